"""Source text and positions in it; nothing else in Linnet knows about offsets."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a source: 1-based line and column (code points), 0-based byte offset."""

    line: int
    column: int
    offset: int


@dataclass(eq=False, slots=True)
class Source:
    """One file's text; `name` is the path shown to users."""

    name: str
    text: str = field(repr=False)
    _starts: list[int] = field(default_factory=list[int], init=False, repr=False)
    _bytes: list[int] = field(default_factory=list[int], init=False, repr=False)

    def line_starts(self) -> list[int]:
        """Code-point offsets at which each line begins."""
        if not self._starts:
            self._starts.append(0)
            self._starts.extend(i + 1 for i, c in enumerate(self.text) if c == "\n")
        return self._starts

    def position(self, index: int) -> Position:
        """Line, column and byte offset of a code-point index."""
        index = max(0, min(index, len(self.text)))
        starts = self.line_starts()
        line = bisect_right(starts, index)
        return Position(line, index - starts[line - 1] + 1, self._offset(line, index))

    def _offset(self, line: int, index: int) -> int:
        """The byte offset of an index on a line."""
        if self.text.isascii():
            return index
        starts = self.line_starts()
        if not self._bytes:
            total = 0
            for start, end in zip(starts, [*starts[1:], len(self.text)]):
                self._bytes.append(total)
                total += _byte_length(self.text[start:end])
        return self._bytes[line - 1] + _byte_length(self.text[starts[line - 1] : index])

    def line(self, number: int) -> str:
        """The text of a 1-based line, without its line end."""
        starts = self.line_starts()
        end = starts[number] - 1 if number < len(starts) else len(self.text)
        return self.text[starts[number - 1] : end].rstrip("\r")


def _byte_length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of code points in a source."""

    source: Source
    start: int
    end: int

    @property
    def text(self) -> str:
        return self.source.text[self.start : self.end]

    def covers(self, other: Span) -> bool:
        same = self.source is other.source
        return same and self.start <= other.start and other.end <= self.end

    def to(self, other: Span) -> Span:
        """From the start of this span to the end of `other`."""
        return Span(self.source, self.start, other.end)
