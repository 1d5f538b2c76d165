"""How deep a tree may be, and room on the stack to walk one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# No expression, type, pattern or body of a parsed file is higher than this.
MAX_DEPTH = 200

_FRAMES = 20 * MAX_DEPTH
_lock = threading.Lock()
_active = 0
_before = 0


@contextmanager
def deep_stack() -> Iterator[None]:
    """Within it, a walk may take twenty frames for each level of a tree."""
    # The limit is the interpreter's, so threads share it: the first raises it, the last restores.
    global _active, _before
    with _lock:
        if _active == 0:
            _before = sys.getrecursionlimit()
            sys.setrecursionlimit(_before + _FRAMES)
        _active += 1
    try:
        yield
    finally:
        with _lock:
            _active -= 1
            if _active == 0:
                sys.setrecursionlimit(_before)
