"""Dimensions and relations from the language's own syntax, for tests."""

from __future__ import annotations

import re

from linnet.dims import Dim, Facts, Relation, dim_max, dim_min

TOKEN = re.compile(r"\s*(\*?[A-Za-z_]\w*|\d+|==|!=|<=|>=|[-+*/%<>(),])")


class Reader:
    """Recursive descent over the language's arithmetic: unary minus, then `* / %`, then `+ -`."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        at = 0
        text = text.rstrip()
        while at < len(text):
            # `*S` is a pack where an operand must stand, a product elsewhere.
            match = TOKEN.match(text, at)
            assert match is not None, text[at:]
            token = match[1]
            if len(token) > 1 and token[0] == "*" and not self.operand_next():
                self.tokens.append("*")
                at = match.start(1) + 1
                continue
            self.tokens.append(token)
            at = match.end()
        self.at = 0

    def operand_next(self) -> bool:
        return not self.tokens or self.tokens[-1] in (
            "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "(", ",",
        )  # fmt: skip

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        assert not expected or token == expected, f"{expected} expected at {self.tokens[self.at :]}"
        self.at += 1
        return token

    def sum(self) -> Dim:
        left = self.product()
        while self.peek() in ("+", "-"):
            left = left + self.product() if self.take() == "+" else left - self.product()
        return left

    def product(self) -> Dim:
        left = self.unary()
        while self.peek() in ("*", "/", "%"):
            match self.take():
                case "*":
                    left = left * self.unary()
                case "/":
                    left = left // self.unary()
                case _:
                    left = left % self.unary()
        return left

    def unary(self) -> Dim:
        if self.peek() == "-":
            self.take()
            return -self.unary()
        token = self.take()
        if token == "(":
            inner = self.sum()
            self.take(")")
            return inner
        if token in ("min", "max") and self.peek() == "(":
            self.take("(")
            a = self.sum()
            self.take(",")
            b = self.sum()
            self.take(")")
            return dim_min(a, b) if token == "min" else dim_max(a, b)
        return Dim.of(int(token) if token.isdigit() else token)

    def relation(self) -> Relation:
        left = self.sum()
        op = self.take()
        return Relation(op, left, self.sum())  # type: ignore[arg-type]


def dim(text: str) -> Dim:
    """The dimension written in the text."""
    reader = Reader(text)
    result = reader.sum()
    assert not reader.peek(), f"unread: {reader.tokens[reader.at :]}"
    return result


def relation(text: str) -> Relation:
    """The relation written in the text."""
    reader = Reader(text)
    result = reader.relation()
    assert not reader.peek(), f"unread: {reader.tokens[reader.at :]}"
    return result


def clauses(text: str) -> list[Relation]:
    """The relations of a `where` list."""
    reader = Reader(text)
    found: list[Relation] = []
    while reader.peek():
        found.append(reader.relation())
        if reader.peek():
            reader.take(",")
    return found


def facts(text: str) -> Facts:
    """Facts that hold the relations of a `where` list."""
    return Facts.of(clauses(text))
