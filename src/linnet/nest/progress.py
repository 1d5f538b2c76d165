"""Progress and notices of work that takes a while, as text."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[str, int, int | None], None]
"""Told what is being fetched, the bytes so far, and all bytes where they are known."""

Notice = Callable[[str], None]
"""Told one line that the user should see."""


class TextProgress:
    """Progress as text: one line rewritten on a terminal, elsewhere a line per quarter."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()
        self.what = ""
        self.shown = -1.0
        self.next = 0.0

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if what != self.what:
            self.what, self.shown, self.next = what, -1.0, 0.0
        if self.shown == 1.0:
            return
        # The size that a registry announces is rounded: only the last call says what is whole.
        whole = total is not None and done >= total
        share = 1.0 if whole else min(done / total, 0.99) if total else 0.0
        now = time.monotonic()
        if self.live and (whole or now >= self.next):
            self.shown, self.next = share, now + 0.1
            self._write(f"\r{self._line(done, total, share)}\x1b[K" + "\n" * whole)
        elif not self.live and (whole or self.shown < 0 or share - self.shown >= 0.25):
            self.shown = share
            self._write(self._line(done, total, share) + "\n")

    def _line(self, done: int, total: int | None, share: float) -> str:
        of = f" of {size_text(total)} ({share:.0%})" if total else ""
        return f"{self.what}: {size_text(done)}{of}"

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def size_text(count: int) -> str:
    """The bytes in the unit that a reader would choose."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


def say(line: str) -> None:
    """The line stands on standard error."""
    print(line, file=sys.stderr)


def say_nothing(line: str) -> None:
    """No notice is wanted."""


def show_nothing(what: str, done: int, total: int | None) -> None:
    """No progress is wanted."""
