"""What the cache writes must give: assignments into a copy, one position at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from std.cases import BF16, F32, Case, i32, numbers

B, H, S, D = 3, 2, 5, 2


def cache() -> Iterator[Case]:
    yield from at_and_span()
    yield from rows()
    yield from slots()
    yield from tokens()
    yield from pages()


def case(op: str, label: str, before: np.ndarray, inputs: dict[str, Any], writes: Any) -> Case:
    """The cache after each write `(row, position, vectors)` in turn, those outside it dropped."""
    after = before.copy()
    for row, position, vectors in writes:
        if 0 <= row < before.shape[0] and 0 <= position < before.shape[2]:
            after[row, :, position] = vectors
    return Case(f"std.nn.cache.{op}", label, {"cache": before, **inputs}, after)


def at_and_span() -> Iterator[Case]:
    for dtype in (F32, BF16):
        before, value = numbers(1, (B, H, S, D), dtype), numbers(2, (B, H, 3, D), dtype)
        for at in (0, 3, S - 1, S, -1, 2**31 - 1, -(2**31)):
            inputs = {"value": value[:, :, :1], "at": np.int32(at)}
            writes = [(b, at, value[b, :, 0]) for b in range(B)]
            yield case("write_at", f"{dtype} at {at}", before, inputs, writes)
        for at in (0, 2, S - 1, S, -1, -2, -3, -4, 2**31 - 1, -(2**31)):
            inputs = {"value": value, "at": np.int32(at)}
            writes = [(b, at + n, value[b, :, n]) for b in range(B) for n in range(3)]
            yield case("write_span", f"{dtype} at {at}", before, inputs, writes)
    long = numbers(3, (B, H, S + 4, D))
    before = numbers(1, (B, H, S, D))
    writes = [(b, n - 2, long[b, :, n]) for b in range(B) for n in range(S + 4)]
    yield case("write_span", "longer", before, {"value": long, "at": np.int32(-2)}, writes)


def rows() -> Iterator[Case]:
    before, value = numbers(1, (B, H, S, D)), numbers(2, (B, H, 1, D))
    for at in ((0, 4, 2), (1, 1, 1), (-1, 5, 3), (7, -9, 2**31 - 1)):
        writes = [(b, at[b], value[b, :, 0]) for b in range(B)]
        yield case("write_rows", f"at {at}", before, {"value": value, "at": i32(*at)}, writes)


def slots() -> Iterator[Case]:
    before, value = numbers(1, (B, H, S, D)), numbers(2, (2, H, 3, D))
    for slot in (0, 2, 3, -1):
        for at in (0, 4, -2, 9):
            inputs = {"value": value[:1], "slot": np.int32(slot), "at": np.int32(at)}
            writes = [(slot, at + n, value[0, :, n]) for n in range(3)]
            yield case("write_slot", f"{slot} at {at}", before, inputs, writes)
    for places in ((0, 1), (2, 0), (1, 7), (-1, 3)):
        for at in (0, 3, -1):
            inputs = {"value": value, "slots": i32(*places), "at": np.int32(at)}
            writes = [(places[m], at + n, value[m, :, n]) for m in range(2) for n in range(3)]
            yield case("write_slots", f"{places} at {at}", before, inputs, writes)


def tokens() -> Iterator[Case]:
    before, value = numbers(1, (B, H, S, D)), numbers(2, (1, H, 6, D))
    places = {
        "distinct": ((0, 0, 2, 1, 2, 1), (0, 1, 4, 4, 0, 2)),
        "last of equals": ((1, 1, 0, 1, 0, 2), (3, 3, 0, 3, 0, 4)),
        "all in one place": ((2,) * 6, (4,) * 6),
        "outside": ((-1, 3, 0, 1, 2, 0), (0, 0, -1, 5, 3, 2**31 - 1)),
    }
    for label, (row, at) in places.items():
        inputs = {"value": value, "rows": i32(*row), "at": i32(*at)}
        writes = [(row[p], at[p], value[0, :, p]) for p in range(6)]
        yield case("write_tokens", label, before, inputs, writes)
    one = {"value": value[:, :, :1], "rows": i32(1), "at": i32(2)}
    yield case("write_tokens", "one", before, one, [(1, 2, value[0, :, 0])])


def pages() -> Iterator[Case]:
    table = np.array([[7, 2, 0], [3, 3, 9]], np.int32)
    for positions in ((0, 0), (5, 11), (3, 4)):
        found = [table[b, p // 4] * 4 + p % 4 for b, p in enumerate(positions)]
        inputs = {"table": table, "positions": i32(*positions)}
        label = f"positions {positions}"
        yield Case("std.nn.cache.page_slots", label, inputs, i32(*found), {"Size": 4})
