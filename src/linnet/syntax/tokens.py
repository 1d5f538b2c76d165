"""Tokens: the words and signs of Linnet.

A token's `kind` is its own text for keywords and signs, so the parser compares one string.
The other kinds are the constants below.
"""

from __future__ import annotations

from dataclasses import dataclass

NAME = "name"
INT = "int"
FLOAT = "float"
STRING = "string"
RESERVED = "reserved"  # a word kept for later: never a name
BAD = "bad"  # already reported by the lexer; the parser stays silent about it
END = "end"  # one, at the end of the file


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


KEYWORDS = words(
    "module use pub crate self super as const type struct enum fn op block entry param buffer "
    "state sub let var return if else match static for in while yield where true false none some "
    "extern trait impl"
)
RESERVED_WORDS = words("async await effect unsafe macro derive rng mut ref kernel device")

# Where things begin: what the parser goes on from after a mistake.
STATEMENT_WORDS = words("let var return static while for yield")
FUNCTION_WORDS = words("fn op entry")
MEMBER_WORDS = words("param buffer state sub impl")
TOP_WORDS = words("block trait struct enum const type")

# `>` stays single, so that nested lists close one by one.
SIGNS = words("... :: -> => == != <= >= && || .. + - * / % ! & | ^ < > = ( ) [ ] { } , : ; . ?")

REDUCTIONS = words("sum prod max min any all")
GENERIC_KINDS = words("Dim Shape DType Numeric Integer Float")


@dataclass(frozen=True, slots=True)
class Token:
    """`text` as written, at code points `start` to `end`; `value` for literals.

    `docs` is what the documentation comments just before the token say.
    """

    kind: str
    text: str
    start: int
    end: int
    value: int | float | str | None = None
    docs: str = ""
