"""A lexer for Pygments, so that `pygmentize -l linnet` and Sphinx colour Linnet.

Pygments imports it by its entry point; nothing else here imports Pygments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from pygments.lexer import RegexLexer, bygroups, words  # type: ignore[import-untyped]
from pygments.token import (  # type: ignore[import-untyped]
    Comment,
    Keyword,
    Name,
    Number,
    Operator,
    Punctuation,
    String,
    Whitespace,
)

from linnet.check.prelude import KINDS, PRELUDE, RESERVED
from linnet.syntax.tokens import KEYWORDS, REDUCTIONS, RESERVED_WORDS, SIGNS
from linnet.syntax.tokens import words as words_in
from linnet.types import DTYPES

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PUNCTUATION = words_in("( ) [ ] { } , : ; . ::")
_CONSTANTS = words_in("true false none")


def _signs(signs: Iterable[str]) -> Any:
    return words(sorted(signs, key=len, reverse=True))


def _whole(names: Iterable[str]) -> Any:
    return words(sorted(names), prefix=r"\b", suffix=r"\b")


class LinnetLexer(RegexLexer):  # type: ignore[misc]
    """Linnet, a typed tensor language."""

    name = "Linnet"
    aliases: ClassVar[list[str]] = ["linnet"]
    filenames: ClassVar[list[str]] = ["*.linnet"]
    mimetypes: ClassVar[list[str]] = ["text/x-linnet"]

    tokens: ClassVar[dict[str, list[Any]]] = {
        "root": [
            (r"\s+|\ufeff", Whitespace),
            (r"///(?!/)[^\n]*", String.Doc),
            (r"//[^\n]*", Comment.Single),
            (r"/\*", Comment.Multiline, "comment"),
            (r'"', String, "string"),
            (r"0x[0-9a-fA-F_]+", Number.Hex),
            (r"0b[01_]+", Number.Bin),
            (
                r"[0-9][0-9_]*(\.[0-9][0-9_]*([eE][+-]?[0-9][0-9_]*)?|[eE][+-]?[0-9][0-9_]*)",
                Number.Float,
            ),
            (r"[0-9][0-9_]*", Number.Integer),
            (
                rf"\b(module|use)(\s+)({_NAME}(?:\.{_NAME})*)",
                bygroups(Keyword.Namespace, Whitespace, Name.Namespace),
            ),
            (
                rf"\b(fn|op|entry)(\s+)({_NAME})",
                bygroups(Keyword.Declaration, Whitespace, Name.Function),
            ),
            (
                rf"\b(block|trait|struct|enum|type)(\s+)({_NAME})",
                bygroups(Keyword.Declaration, Whitespace, Name.Class),
            ),
            (rf"\b(?:{'|'.join(sorted(REDUCTIONS))})(?=\s*\[|<{_NAME}>\s*\[)", Operator.Word),
            (_whole(_CONSTANTS), Keyword.Constant),
            (_whole(KEYWORDS - _CONSTANTS), Keyword),
            (_whole(RESERVED_WORDS), Keyword.Reserved),
            (_whole((*DTYPES, "Tensor", *KINDS)), Keyword.Type),
            (_whole((*PRELUDE, *RESERVED)), Name.Builtin),
            (_NAME, Name),
            (_signs(_PUNCTUATION), Punctuation),
            (_signs(SIGNS - _PUNCTUATION), Operator),
        ],
        "comment": [
            (r"[^*/]+", Comment.Multiline),
            (r"/\*", Comment.Multiline, "#push"),
            (r"\*/", Comment.Multiline, "#pop"),
            (r"[*/]", Comment.Multiline),
        ],
        "string": [
            (r'\\(?:[nt\\"]|u\{[0-9a-fA-F]*\})', String.Escape),
            (r'[^"\\\n]+', String),
            (r'"', String, "#pop"),
        ],
    }
