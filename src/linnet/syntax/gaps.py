"""The tokens of a file, taken one by one, with the comments that stand between them.

What is between two tokens is a gap. Where a token is written right after the one before it, the
comments of its gap are written there too; where a layout may break, they decide where and whether
it does, so that the next format finds each of them where this one has put it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from linnet.diagnostics import Findings, InternalError
from linnet.source import Source
from linnet.syntax.layout import Layout, Space, indent, join, line, remark, text
from linnet.syntax.lexer import lex
from linnet.syntax.tokens import Token, words
from linnet.syntax.tree import Comment

_BLANK = " \t\r\f\v"
_NOTHING_BEFORE = words(", ; : ? .")  # these follow a comment without a space


class Blank(Enum):
    """Empty lines before a row: none, one, or one where the source has any."""

    NONE = auto()
    ONE = auto()
    KEEP = auto()


@dataclass(frozen=True, slots=True)
class _Note:
    """A comment, and how many line breaks are before it in its gap."""

    newlines: int
    comment: Comment

    @property
    def to_line_end(self) -> bool:
        return self.comment.text.startswith("//")


@dataclass(slots=True)
class _Gap:
    """`end` counts the line breaks after the last comment."""

    notes: list[_Note] = field(default_factory=list[_Note])
    end: int = 0

    @property
    def inline(self) -> bool:
        """Whether all comments go on the line before them, and the line can go on."""
        return not any(note.newlines or note.to_line_end for note in self.notes)


@dataclass(slots=True)
class _Placed:
    """The comments of a gap that may break: at the end of a line, on their own, before a token."""

    trailing: list[_Note]
    lines: list[list[_Note]]
    glued: list[_Note]
    blank: bool  # whether the line of the token comes after an empty one


class Stream:
    def __init__(self, source: Source) -> None:
        tokens, comments = lex(source, Findings())
        self.source = source
        self.tokens = list(tokens)
        self.gaps = _gaps(source.text, tokens, comments)
        self.at = 0

    @property
    def next(self) -> str:
        """The token at hand, as written."""
        return self.tokens[self.at].text

    # ------------------------------------------------------------ within a line

    def take(self, expected: str = "", *, indented: bool = True) -> Layout:
        """The token at hand, after its comments; lines that those begin are indented or not."""
        token = self.tokens[self.at]
        if expected == ">" and token.text == ">=":  # `A<B>= none`
            self.tokens[self.at] = Token("=", "=", token.start + 1, token.end)
            return join(*self.inline(self.claim(), indented), text(">"))
        if expected and token.text != expected:
            raise InternalError("format", f"`{expected}` expected at `{token.text}`")
        gap = self.claim()
        self.at += 1
        if not gap.notes:
            return text(token.text)
        before = self.inline(gap, indented)
        if token.text in _NOTHING_BEFORE and isinstance(before[-1], Space):
            before.pop()
        return join(*before, text(token.text))

    def inline(self, gap: _Gap, indented: bool) -> list[Layout]:
        parts: list[Layout] = []
        broken = own = False
        for note in gap.notes:
            own = own or broken or note.newlines > 0
            parts.append(_break(indented) if broken or note.newlines else Space())
            parts.append(self.remark(note, free=note.to_line_end))
            broken = note.to_line_end
        if parts:
            parts.append(_break(indented) if broken or (own and gap.end) else Space())
        return parts

    def before_comma(self) -> list[Layout]:
        """The comments that stay before a comma, where there is none yet."""
        if not self.gaps[self.at].inline:
            return []
        return self.remarks(self.claim().notes, Space())

    def pass_on(self) -> None:
        """Leave before the token at hand, a separator, only what can stand on its line."""
        if not self.gaps[self.at].inline:
            self.put_after()

    def drop(self, token: str) -> None:
        """Leave out the token at hand, if it is this one; its comments go to the next."""
        if self.next == token:
            self.put_after()
            self.at += 1

    def put_after(self) -> None:
        gap, following = self.gaps[self.at], self.gaps[self.at + 1]
        self.gaps[self.at] = _Gap()
        if not gap.notes:
            return
        if following.notes:
            first, *others = following.notes
            first = _Note(gap.end + first.newlines, first.comment)
            merged = _Gap([*gap.notes, first, *others], following.end)
        else:
            merged = _Gap(gap.notes, gap.end + following.end)
        self.gaps[self.at + 1] = merged

    # ------------------------------------------------------------ where lines may break

    def breaks(self) -> bool:
        """Whether comments break the line before the token at hand."""
        return not self.gaps[self.at].inline

    def line(self, flat: str = " ", *, hard: bool = False) -> Layout:
        """A break before the token at hand; comments that share both its lines go with it."""
        gap = self.claim()
        if not gap.notes:
            return line(flat, hard=hard)
        placed = _place(gap, glue=True)
        hard = hard or bool(placed.lines)
        hard = hard or bool(placed.trailing and (gap.end or placed.glued))
        parts = self.remarks(placed.trailing, text(" "), free=hard)
        parts.append(line(flat, hard=hard))
        for notes in placed.lines:
            parts += self.remarks(notes, Space(), free=True)
            parts.append(line(hard=True))
        if placed.glued:
            parts += [*self.remarks(placed.glued, Space()), Space()]
        return join(*parts)

    def tail(self, blank: Blank = Blank.NONE) -> tuple[Layout, bool]:
        """The comments before a closing bracket, to be indented; whether it needs a new line.

        `blank` is for the empty lines before those on lines of their own.
        """
        placed = _place(self.claim(), glue=False, closing=True)
        hard = bool(placed.lines) or any(note.to_line_end for note in placed.trailing)
        parts = self.remarks(placed.trailing, text(" ") if hard else Space(), free=hard)
        for notes in placed.lines:
            parts.append(line(hard=True, blank=_blank(blank, notes[0].newlines > 1)))
            parts += self.remarks(notes, Space(), free=True)
            blank = Blank.NONE if blank is Blank.NONE else Blank.KEEP
        return join(*parts), hard

    def row(self, blank: Blank, *, first: bool = False) -> Layout:
        """The end of a row, and the comments on lines of their own before the next."""
        placed = _place(self.claim(), glue=first)
        parts = self.remarks(placed.trailing, text(" "), free=True)
        for notes in placed.lines:
            parts.append(line(hard=True, blank=_blank(blank, notes[0].newlines > 1)))
            parts += self.remarks(notes, Space(), free=True)
            blank = Blank.KEEP
        parts.append(line(hard=True, blank=_blank(blank, placed.blank)))
        if placed.glued:
            parts += [*self.remarks(placed.glued, Space()), Space()]
        return join(*parts)

    # ------------------------------------------------------------ comments

    def claim(self) -> _Gap:
        """The gap before the token at hand, which from now on is empty."""
        gap, self.gaps[self.at] = self.gaps[self.at], _Gap()
        return gap

    def remarks(self, notes: Sequence[_Note], lead: Layout, *, free: bool = False) -> list[Layout]:
        """Comments side by side, after `lead`."""
        parts: list[Layout] = []
        for note in notes:
            parts += [Space() if parts else lead, self.remark(note, free=free)]
        return parts

    def remark(self, note: _Note, *, free: bool = False) -> Layout:
        first, *others = (part.rstrip(_BLANK) for part in note.comment.text.split("\n"))
        if not others:
            return remark([first], 0, free=free)
        start = note.comment.span.start
        before = self.source.text[self.source.text.rfind("\n", 0, start) + 1 : start]
        column = len(before.expandtabs(4))
        return remark([first, *map(_without_tabs, others)], column, free=free)


def _gaps(source: str, tokens: Sequence[Token], comments: Sequence[Comment]) -> list[_Gap]:
    """For each token, what is between it and the one before."""
    gaps: list[_Gap] = []
    left = iter((*comments, None))
    comment = next(left)
    at = 0
    for token in tokens:
        gap = _Gap()
        while comment is not None and comment.span.start < token.start:
            newlines = source.count("\n", at, comment.span.start)
            first = not gaps and not gap.notes
            gap.notes.append(_Note(max(newlines, 1) if first else newlines, comment))
            at = comment.span.end
            comment = next(left)
        gap.end = source.count("\n", at, token.start)
        gaps.append(gap)
        at = token.end
    return gaps


def _place(gap: _Gap, *, glue: bool, closing: bool = False) -> _Placed:
    """Comments stay at the end of the line before, or with what they stand before."""
    notes = gap.notes
    broken = [i for i, note in enumerate(notes) if note.newlines]
    first = broken[0] if broken else len(notes)
    trailing, glued = notes[:first], list[_Note]()
    blank = gap.end > 1
    if not gap.end and broken and not closing:
        glued = notes[broken[-1] :]
        blank = glued[0].newlines > 1
        broken.pop()
    elif not gap.end and not broken and glue:
        trailing, glued = [], trailing
    end = len(notes) - len(glued)
    lines = [notes[a:b] for a, b in zip(broken, [*broken[1:], end])]
    return _Placed(trailing, lines, glued, blank)


def _without_tabs(line: str) -> str:
    """The line indented by spaces."""
    bare = line.lstrip(_BLANK)
    return line[: len(line) - len(bare)].expandtabs(4) + bare


def _break(indented: bool) -> Layout:
    return indent(line(hard=True)) if indented else line(hard=True)


def _blank(policy: Blank, there: bool) -> bool:
    return policy is Blank.ONE or (policy is Blank.KEEP and there)
