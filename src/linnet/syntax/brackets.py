"""Which bracket closes which, for a whole file at once.

The parser asks this table instead of looking ahead, so it stays linear; and when something is
missing, the words that only begin a statement or an item show where the open brackets must end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from linnet.syntax.tokens import (
    END,
    FUNCTION_WORDS,
    KEYWORDS,
    MEMBER_WORDS,
    NAME,
    STATEMENT_WORDS,
    STRING,
    TOP_WORDS,
    Token,
    words,
)

_CLOSES = {")": "(", "]": "[", "}": "{"}
# A generic argument holds none of these outside brackets, so a `<` before one compares.
_NOT_IN_GENERICS = (KEYWORDS - {"true", "false"}) | {STRING, END}
_NOT_IN_GENERICS |= words("&& || == != <= >= = => -> :: : ; ? ! .. ...")


@dataclass(slots=True)
class Brackets:
    """For each token index: the index of its partner, or -1."""

    partner: list[int]
    angle: list[int]  # for a `<` after a name: its `>`, if generic arguments could stand between


@dataclass(slots=True)
class _Open:
    at: int
    sign: str
    role: str  # for braces: "block", "fn" or ""
    angles: list[int]  # the `<` still open outside
    inside: dict[str, int] = field(default_factory=lambda: {"(": 0, "[": 0})  # open since a `{`


def pair(tokens: Sequence[Token]) -> Brackets:
    """Every bracket with its partner; what stays open has none."""
    plain = _Pairing(tokens, by_words=False)
    return plain.brackets if plain.balanced else _Pairing(tokens, by_words=True).brackets


class _Pairing:
    def __init__(self, tokens: Sequence[Token], *, by_words: bool) -> None:
        self.tokens = tokens
        self.by_words = by_words
        self.balanced = True
        self.partner = [-1] * len(tokens)
        self.angle = [-1] * len(tokens)
        self.stack: list[_Open] = [_Open(-1, "{", "", [])]  # a floor that never closes
        self.angles: list[int] = []
        self.braces: list[_Open] = [self.stack[0]]
        self.blocks = 0
        self.role = ""  # of the next brace
        self.run()
        self.balanced = self.balanced and len(self.stack) == 1
        self.brackets = Brackets(self.partner, self.angle)

    def run(self) -> None:
        previous = ""
        for at, token in enumerate(self.tokens):
            kind = token.kind
            if kind in ("(", "[", "{"):
                self.open(at, kind)
            elif kind in _CLOSES:
                self.close(at, kind)
            elif kind == "<":
                if previous == NAME:
                    self.angles.append(at)
            elif kind == ">":
                if self.angles:
                    self.angle[self.angles.pop()] = at
            elif kind in _NOT_IN_GENERICS:
                self.angles.clear()
                if self.by_words and kind in KEYWORDS:
                    self.word(at, kind)
            previous = kind

    def open(self, at: int, sign: str) -> None:
        opened = _Open(at, sign, "", self.angles)
        if sign == "{":
            self.angles.clear()
            opened.role, self.role = self.role, ""
            self.blocks += opened.role == "block"
            self.braces.append(opened)
        else:
            self.braces[-1].inside[sign] += 1
        self.stack.append(opened)
        self.angles = []

    def close(self, at: int, sign: str) -> None:
        wanted = _CLOSES[sign]
        exists = len(self.braces) > 1 if wanted == "{" else self.braces[-1].inside[wanted] > 0
        if not exists:
            self.balanced = False
            self.angles.clear()
            return
        while (opened := self.pop()).sign != wanted:
            self.balanced = False
        self.partner[at], self.partner[opened.at] = opened.at, at

    def pop(self) -> _Open:
        opened = self.stack.pop()
        if opened.sign == "{":
            self.braces.pop()
            self.blocks -= opened.role == "block"
        else:
            self.braces[-1].inside[opened.sign] -= 1
        self.angles = opened.angles
        return opened

    def word(self, at: int, kind: str) -> None:
        """Leave the brackets that cannot go on past this keyword unclosed."""
        following = self.tokens[at + 1].kind if at + 1 < len(self.tokens) else END
        if kind in STATEMENT_WORDS:
            while self.stack[-1].sign != "{":
                self.pop()
        elif following != NAME:
            return
        elif kind in FUNCTION_WORDS:
            self.leave_to_block()
            self.role = "fn"
        elif kind in MEMBER_WORDS and self.blocks:
            self.leave_to_block()
            self.role = "block" if kind == "impl" else self.role
        elif kind in TOP_WORDS or kind == "impl":
            while len(self.stack) > 1:
                self.pop()
            self.role = "block" if kind in ("block", "trait", "impl") else ""

    def leave_to_block(self) -> None:
        while len(self.stack) > 1 and self.stack[-1].role != "block":
            self.pop()
