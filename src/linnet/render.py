"""Diagnostics as terminal text and as the JSON document of `linnet check --json`."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, repeat
from typing import Any

from linnet.diagnostics import Diagnostic, Label
from linnet.source import Source, Span

_TAB = 4
_WINDOW = 120  # code points shown of a longer line
_BEFORE = 40  # of them before the first mark

_STYLES = {
    "error": "\x1b[1;31m",
    "warning": "\x1b[1;33m",
    "bold": "\x1b[1m",
    "frame": "\x1b[1;34m",
    "help": "\x1b[1;36m",
}
_RESET = "\x1b[0m"


def render_text(diagnostics: Diagnostic | Iterable[Diagnostic], *, color: bool = False) -> str:
    """The diagnostics for a terminal, a blank line between two, without a line end at the end."""
    if isinstance(diagnostics, Diagnostic):
        diagnostics = (diagnostics,)
    return "\n\n".join("\n".join(_Page(d, color).lines()) for d in diagnostics)


def render_json(diagnostics: Diagnostic | Iterable[Diagnostic]) -> dict[str, Any]:
    """The document of `linnet check --json`, version 1."""
    found = (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
    errors = sum(d.severity == "error" for d in found)
    return {
        "version": 1,
        "diagnostics": [_json(d) for d in found],
        "summary": {"errors": errors, "warnings": len(found) - errors},
    }


# ---------------------------------------------------------------- JSON


def _json(d: Diagnostic) -> dict[str, Any]:
    help = None
    if d.help is not None:
        edits = [{"location": _location(e.span), "text": e.text} for e in d.help.edits]
        help = {"message": d.help.text, "edits": edits, "safe": d.help.safe}
    broken = None
    if d.counterexample is not None:
        c = d.counterexample
        sides = {"left": c.left, "right": c.right}
        broken = {"claim": c.claim, "sizes": dict(c.sizes), **sides}
    return {
        "code": d.code,
        "severity": d.severity,
        "message": d.message,
        "label": d.primary.text,
        "location": _location(d.primary.span),
        "related": [{"label": r.text, "location": _location(r.span)} for r in d.related],
        "notes": list(d.notes),
        "help": help,
        "counterexample": broken,
    }


def _location(span: Span) -> dict[str, Any]:
    start, end = _position(span.source, span.start), _position(span.source, span.end)
    return {"file": span.source.name, "start": start, "end": end}


def _position(source: Source, index: int) -> dict[str, int]:
    p = source.position(index)
    return {"line": p.line, "column": p.column, "offset": p.offset}


# ---------------------------------------------------------------- text


@dataclass(frozen=True, slots=True)
class _Mark:
    """A run of code points of one line to underline; `text` stands after or below it."""

    line: int
    start: int  # 0-based within the line
    end: int
    primary: bool
    text: str


class _Page:
    """One diagnostic: a header, the lines it points at, notes and help."""

    def __init__(self, diagnostic: Diagnostic, color: bool) -> None:
        self.diagnostic = diagnostic
        self.color = color
        labels = (diagnostic.primary, *diagnostic.related)
        last = max(r.span.source.position(r.span.end).line for r in labels)
        self.gutter = len(str(last))

    def style(self, name: str, text: str) -> str:
        return f"{_STYLES[name]}{text}{_RESET}" if self.color and text else text

    def lines(self) -> Iterator[str]:
        d = self.diagnostic
        title = self.style(d.severity, f"{d.severity}[{d.code}]")
        yield title + self.style("bold", f": {_clean(d.message)}")
        for arrow, (source, labels) in zip(chain(["-->"], repeat(":::")), self.by_file()):
            if arrow == ":::":
                yield self.bar()
            position = source.position(labels[0].span.start)
            place = f"{_clean(source.name)}:{position.line}:{position.column}"
            yield f"{' ' * self.gutter}{self.style('frame', arrow)} {place}"
            yield from self.snippet(source, labels)
        if d.notes or d.help is not None:
            yield self.bar()
        yield from self.footer("note", "bold", d.notes)
        yield from self.footer("help", "help", () if d.help is None else (d.help.text,))

    def by_file(self) -> Iterator[tuple[Source, list[Label]]]:
        """The labels of each file, the primary one's file first and it first there."""
        files: dict[int, tuple[Source, list[Label]]] = {}
        for label in (self.diagnostic.primary, *self.diagnostic.related):
            source = label.span.source
            files.setdefault(id(source), (source, []))[1].append(label)
        yield from files.values()

    def footer(self, word: str, style: str, texts: Sequence[str]) -> Iterator[str]:
        for text in texts:
            first, *rest = _clean(text).split("\n")
            equals = self.style("frame", "=")
            yield f"{' ' * self.gutter} {equals} {self.style(style, word)}: {first}"
            indent = " " * (self.gutter + len(word) + 5)
            yield from (indent + line for line in rest)

    def bar(self, number: str = "") -> str:
        return self.style("frame", f"{number:>{self.gutter}} |")

    def snippet(self, source: Source, labels: list[Label]) -> Iterator[str]:
        marks: dict[int, list[_Mark]] = {}
        for label in labels:
            for mark in _marks(label, label is self.diagnostic.primary):
                marks.setdefault(mark.line, []).append(mark)
        yield self.bar()
        previous = 0
        for number in sorted(marks):
            if previous and number == previous + 2:
                yield self.source_line(previous + 1, _Drawn(source.line(previous + 1), []))
            elif previous and number > previous + 1:
                yield self.style("frame", "...")
            drawn = _Drawn(source.line(number), marks[number])
            yield self.source_line(number, drawn)
            for row in drawn.rows():
                yield f"{self.bar()} {self.paint(row)}"
            previous = number

    def source_line(self, number: int, drawn: _Drawn) -> str:
        return f"{self.bar(str(number))} {drawn.text}".rstrip()

    def paint(self, row: Sequence[tuple[str, bool]]) -> str:
        """Pieces of a row, coloured by whether they belong to the primary label."""
        parts: list[str] = []
        for (primary, blank), cells in groupby(row, lambda cell: (cell[1], cell[0].isspace())):
            text = "".join(cell[0] for cell in cells)
            style = self.diagnostic.severity if primary else "frame"
            parts.append(text if blank else self.style(style, text))
        return "".join(parts).rstrip()


def _marks(label: Label, primary: bool) -> Iterator[_Mark]:
    """What to underline for a label: one run, or the first and last line of several."""
    source, span = label.span.source, label.span
    first, last = source.position(span.start), source.position(span.end)
    text = _clean(label.text).replace("\n", " ")
    if first.line == last.line:
        yield _Mark(first.line, first.column - 1, last.column - 1, primary, text)
        return
    end = source.line(last.line)[: last.column - 1]
    indent = len(end) - len(end.lstrip())
    multi_line = len(end) > indent  # something of the last line belongs to the span
    opening = source.line(first.line)
    stop = max(len(opening), first.column)
    yield _Mark(first.line, first.column - 1, stop, primary, "" if multi_line else text)
    if multi_line:
        yield _Mark(last.line, indent, len(end), primary, text)


class _Drawn:
    """A source line as shown, and its marks in the columns of a terminal."""

    def __init__(self, line: str, marks: list[_Mark]) -> None:
        shown, self.columns, shift = _window(line, min((m.start for m in marks), default=0))
        self.text = shown
        self.marks = sorted(marks, key=lambda m: (m.start, m.end, not m.primary))
        self.shift = shift

    def column(self, index: int) -> int:
        """The terminal column at which a code point of the line is shown."""
        return self.columns[max(0, min(index - self.shift, len(self.columns) - 1))]

    def extent(self, mark: _Mark) -> tuple[int, int]:
        start = self.column(mark.start)
        return start, max(self.column(mark.end), start + 1)

    def rows(self) -> Iterator[list[tuple[str, bool]]]:
        """The underlines with the last label behind them, then the other labels one a row."""
        if not self.marks:
            return
        cells: dict[int, tuple[str, bool]] = {}
        for mark in sorted(self.marks, key=lambda m: m.primary):  # the primary one on top
            start, end = self.extent(mark)
            underline = ("^" if mark.primary else "-", mark.primary)
            cells.update(dict.fromkeys(range(start, end), underline))
        width = max(cells) + 1
        row = [cells.get(i, (" ", False)) for i in range(width)]
        below = [m for m in self.marks if m.text]
        if below and self.extent(below[-1])[1] == width:
            beside = below.pop()
            row.append((f" {beside.text}", beside.primary))
        yield row
        if below:
            yield self.stems(below)
        while below:
            mark = below.pop()
            row = self.stems(below)
            gap = self.extent(mark)[0] - len(row)
            if gap < 0:  # two labels at one column
                row = row[: self.extent(mark)[0]]
                gap = 0
            yield [*row, (" " * gap, False), (mark.text, mark.primary)]

    def stems(self, marks: list[_Mark]) -> list[tuple[str, bool]]:
        """A row of `|` that leads down to labels further below."""
        places = {self.extent(m)[0]: m.primary for m in marks}
        width = max(places, default=-1) + 1
        return [("|" if i in places else " ", places.get(i, False)) for i in range(width)]


def _window(line: str, first_mark: int) -> tuple[str, list[int], int]:
    """A line as shown, the column of each code point and of the end, and how many were cut off."""
    start, end = 0, len(line)
    if end > _WINDOW:
        start = max(0, min(first_mark - _BEFORE, end - _WINDOW))
        end = min(end, start + _WINDOW)
    shown, columns, column = [], [], 0
    if start > 0:
        shown.append("…")
        column = 1
    for char in line[start:end]:
        columns.append(column)
        text, width = _cell(char)
        shown.append(text)
        column += width
    columns.append(column)
    if end < len(line):
        shown.append("…")
    return "".join(shown), columns, start


def _cell(char: str) -> tuple[str, int]:
    """How a character is shown, and in how many columns."""
    if " " <= char <= "~":
        return char, 1
    if char == "\t":
        return " " * _TAB, _TAB
    category = unicodedata.category(char)
    if category in ("Mn", "Me"):
        return char, 0
    if category[0] == "C":  # control, format (which may reorder text), surrogate, unassigned
        return "\ufffd", 1
    return char, 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def _clean(text: str) -> str:
    """A message without characters that would disturb a terminal; line ends stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c == "\n" else _cell(c)[0] for c in text)
