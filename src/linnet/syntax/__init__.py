"""Text to tree: tokens, comments and the syntax tree of a file, whatever the text."""

from __future__ import annotations

from linnet.syntax.lexer import lex
from linnet.syntax.parser import parse, parse_text

__all__ = ["lex", "parse", "parse_text"]
