"""Documents that know where they may break, and the printer that decides where they do.

A group is written on one line if it fits there, with what follows it up to the next place that may
break; otherwise its own lines break, and the groups inside it are tried in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

COLUMNS = 100
INDENT = 4
_NEVER = 1 << 30  # the width of what cannot stand on one line

# The width of a document is what it takes on one line.


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    width: int


@dataclass(frozen=True, slots=True)
class Space:
    """One space, unless a space, an opening bracket or the beginning of a line is before it."""

    width: int = 1


@dataclass(frozen=True, slots=True)
class Line:
    """A line break, with an empty line if `blank`; `flat` where its group is on one line."""

    flat: str
    blank: bool
    width: int


@dataclass(frozen=True, slots=True)
class IfBroken:
    """A text that is there only where its group is broken."""

    text: str
    width: int = 0


@dataclass(frozen=True, slots=True)
class Remark:
    """A comment's lines, the first of which began at `column`; the others keep their distance."""

    lines: tuple[str, ...]
    column: int
    width: int


@dataclass(frozen=True, slots=True)
class Indent:
    body: Layout
    width: int


@dataclass(frozen=True, slots=True)
class Group:
    """On one line, or broken. A `weak` one breaks only if nothing before it on its line can."""

    body: Layout
    weak: bool
    width: int


@dataclass(frozen=True, slots=True)
class Join:
    parts: tuple[Layout, ...]
    width: int


Layout: TypeAlias = Text | Space | Line | IfBroken | Remark | Indent | Group | Join


def text(text: str) -> Text:
    return Text(text, len(text))


def line(flat: str = " ", *, hard: bool = False, blank: bool = False) -> Line:
    """A line break; a hard one breaks every group around it."""
    return Line(flat, blank, _NEVER if hard or blank else len(flat))


def remark(lines: Sequence[str], column: int, *, free: bool = False) -> Remark:
    """A comment; a free one, at the end of a line, may pass the last column."""
    width = 0 if free else len(lines[0]) if len(lines) == 1 else _NEVER
    return Remark(tuple(lines), column, width)


def indent(*parts: Layout) -> Indent:
    body = join(*parts)
    return Indent(body, body.width)


def group(*parts: Layout, broken: bool = False, weak: bool = False) -> Group:
    body = join(*parts)
    return Group(body, weak, _NEVER if broken else body.width)


def extended(first: Layout, *rest: Layout) -> Group:
    """A group and what follows it as one: where that does not fit, the group's own lines break."""
    body = first.body if isinstance(first, Group) else first
    return group(body, *rest, broken=first.width >= _NEVER)


def join(*parts: Layout) -> Layout:
    return parts[0] if len(parts) == 1 else Join(parts, sum(part.width for part in parts))


def render(layout: Layout) -> str:
    """The text of a layout, without spaces at the ends of lines, with a line end at its end."""
    printer = _Printer()
    printer.print(layout)
    return "".join(printer.out).rstrip(" \n") + "\n"


class _Printer:
    def __init__(self) -> None:
        self.out: list[str] = []
        self.column = 0
        self.before = 0  # spaces due before the first text of this line

    def print(self, layout: Layout) -> None:
        stack: list[tuple[Layout, int, bool]] = [(layout, 0, False)]
        while stack:
            doc, depth, flat = stack.pop()
            match doc:
                case Text():
                    self.write(doc.text)
                case Join():
                    stack += [(part, depth, flat) for part in reversed(doc.parts)]
                case Group():
                    flat = flat or self.fits(doc, stack)
                    stack.append((doc.body, depth, flat))
                case Line():
                    if flat:
                        self.write(doc.flat)
                    else:
                        self.new_line(depth, doc.blank)
                case Indent():
                    stack.append((doc.body, depth + INDENT, flat))
                case IfBroken():
                    if not flat:
                        self.write(doc.text)
                case Space():
                    if self.out and self.out[-1][-1] not in " \n([<{":
                        self.write(" ")
                case Remark():
                    self.remark(doc)

    def write(self, text: str) -> None:
        if text:
            if self.before:
                self.out.append(" " * self.before)
                self.before = 0
            self.out.append(text)
            self.column += len(text)

    def new_line(self, depth: int, blank: bool) -> None:
        if not self.out:  # a text begins with its first line
            return
        while self.out and self.out[-1] == " ":
            self.out.pop()
        self.out.append("\n\n" if blank else "\n")
        self.column = self.before = depth

    def remark(self, doc: Remark) -> None:
        """Lines that begin with `*` are lined up under the first; others move with it."""
        column = self.column
        self.write(doc.lines[0])
        stars = all(line.startswith("*") for line in map(str.strip, doc.lines[1:]))
        for line in doc.lines[1:]:
            bare = line.lstrip()
            at = column + 1 if stars else column - doc.column + len(line) - len(bare)
            # A limit, since each of many comments on one line would begin further to the right.
            self.new_line(max(0, min(at, COLUMNS)), blank=False)
            self.write(bare)

    def fits(self, group: Group, stack: list[tuple[Layout, int, bool]]) -> bool:
        """Whether the group fits on this line, with what follows up to the next break."""
        room = COLUMNS - self.column - group.width
        if room < 0:
            return False
        for doc in _following(stack):
            match doc:
                case Line():
                    return True
                case Remark() if len(doc.lines) > 1:
                    return doc.width == 0 or len(doc.lines[0]) <= room
                case IfBroken():
                    room -= len(doc.text)
                case _:
                    room -= doc.width
            if room < 0:
                return False
        return True


def _following(stack: list[tuple[Layout, int, bool]]) -> Iterator[Layout]:
    """What is still to be printed, piece by piece, each group before the end of the line broken."""
    for layout, _, _ in reversed(stack):
        inner: list[Iterator[Layout]] = [iter((layout,))]
        while inner:
            for doc in inner[-1]:
                match doc:
                    case Join():
                        inner.append(iter(doc.parts))
                        break
                    case Indent():
                        inner.append(iter((doc.body,)))
                        break
                    case Group() if not doc.weak:
                        inner.append(iter((doc.body,)))
                        break
                    case _:
                        yield doc
            else:
                inner.pop()
