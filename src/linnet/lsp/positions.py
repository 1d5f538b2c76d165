"""Between an editor's positions and code points: lines from 0, and units of an encoding."""

from __future__ import annotations

import re
from bisect import bisect_right

_LINE_END = re.compile(r"\r\n|\r|\n")
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")

UTF8, UTF16, UTF32 = "utf-8", "utf-16", "utf-32"


class Lines:
    """The lines of a text, as the protocol counts them."""

    def __init__(self, text: str, encoding: str = UTF16) -> None:
        self.text = text
        self.starts = [0, *(m.end() for m in _LINE_END.finditer(text))]
        # One unit a character: nothing has to be counted.
        plain = text.isascii() or (encoding == UTF16 and not _ASTRAL.search(text))
        self.encoding = UTF32 if plain else encoding

    def position(self, offset: int) -> tuple[int, int]:
        """Line and character of a code point."""
        offset = max(0, min(offset, len(self.text)))
        line = bisect_right(self.starts, offset) - 1
        return line, self._units(self.text[self.starts[line] : offset])

    def offset(self, line: int, character: int) -> int:
        """The code point at a position; past the end of its line, the end of that line."""
        if line < 0:
            return 0
        if line >= len(self.starts):
            return len(self.text)
        start = self.starts[line]
        text = self.text[start : self._end(line)]
        if self.encoding == UTF32:
            return start + max(0, min(character, len(text)))
        units = 0
        for at, char in enumerate(text):
            if units >= character:
                return start + at
            units += self._units(char)
        return start + len(text)

    def _end(self, line: int) -> int:
        """Where a line ends, before its line end."""
        if line + 1 == len(self.starts):
            return len(self.text)
        end = self.starts[line + 1] - 1
        return end - (self.text[end] == "\n" and self.text[end - 1 : end] == "\r")

    def _units(self, text: str) -> int:
        match self.encoding:
            case "utf-8":
                return len(text.encode("utf-8", "surrogatepass"))
            case "utf-16":
                return len(text) + sum(char > "\uffff" for char in text)
            case _:
                return len(text)


def edited(text: str, start: tuple[int, int], end: tuple[int, int], new: str, encoding: str) -> str:
    """The text with the characters between two positions replaced."""
    lines = Lines(text, encoding)
    a, b = lines.offset(*start), lines.offset(*end)
    return text[:a] + new + text[max(a, b) :]
