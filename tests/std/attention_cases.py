"""What attention must give: one query at a time, in f64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from std.cases import BF16, F32, FLOATS, ROUNDING, Case, i32, numbers, wide

B, H, HK, Q, K, D = 2, 6, 2, 3, 5, 4
SCALE = np.float32(0.5)


def attention() -> Iterator[Case]:
    yield from causal()
    yield from shared_mask()
    yield from row_masks()
    yield from sinks()
    yield from spans()
    yield from rows()
    yield from packs()
    yield from paged()
    yield from heads()
    yield from paged_prefill()


def attend(q: Any, keys: Any, values: Any, seen: Any, sink: float | None = None) -> np.ndarray:
    """One query over its keys; `seen` says which count, and where none does, all do."""
    scores = np.where(seen, wide(keys) @ wide(q) * float(SCALE), -1e30)
    largest = max(np.max(scores), -np.inf if sink is None else sink)
    raised = np.exp(scores - largest)
    total = np.sum(raised) + (0 if sink is None else np.exp(sink - largest))
    return raised / total @ wide(values)


def over_heads(query: Any, key: Any, value: Any, seen: Any, sink: Any = None) -> np.ndarray:
    """Every query of `[B, H, Q, D]` over its group's keys; `seen` is `[B, Q, K]`."""
    out = np.zeros(query.shape)
    share = query.shape[1] // key.shape[1]
    for b, h, q in np.ndindex(query.shape[:3]):
        rest = (key[b, h // share], value[b, h // share], seen[b, q])
        out[b, h, q] = attend(query[b, h, q], *rest, None if sink is None else float(sink[h]))
    return out.astype(query.dtype)


def inputs(seed: int, heads: int, dtype: np.dtype) -> dict[str, Any]:
    return {
        "query": numbers(seed, (B, H, Q, D), dtype),
        "key": numbers(seed + 1, (B, heads, K, D), dtype),
        "value": numbers(seed + 2, (B, heads, K, D), dtype),
        "scale": SCALE,
    }


def three(given: dict[str, Any]) -> tuple[Any, Any, Any]:
    return given["query"], given["key"], given["value"]


def causal() -> Iterator[Case]:
    for rows, keys in ((4, 4), (2, 5), (5, 2), (1, 6), (0, 3), (3, 0)):
        seen = np.array([[j <= i + keys - rows for j in range(keys)] for i in range(rows)])
        expected = seen.astype(bool).reshape(rows, keys)
        generics = {"Q": rows, "K": keys}
        yield Case("std.nn.attention.causal_mask", f"{rows} {keys}", {}, expected, generics)


def shared_mask() -> Iterator[Case]:
    masks = {
        "none": None,
        "some": np.random.default_rng(1).random((Q, K)) < 0.6,
        "all seen": np.ones((Q, K), bool),
        "one row unseen": np.array([[1, 1, 0, 0, 1], [0] * K, [0, 0, 1, 0, 0]], bool),
    }
    for op, heads in (("attention", H), ("grouped_attention", HK)):
        for dtype in FLOATS:
            given = inputs(40, heads, dtype)
            for label, mask in masks.items():
                seen = np.ones((Q, K), bool) if mask is None else mask
                expected = over_heads(*three(given), np.broadcast_to(seen, (B, Q, K)))
                arguments = {**given, "mask": mask}
                name, tag = f"std.nn.attention.{op}", f"{dtype} {label}"
                yield Case(name, tag, arguments, expected, {}, ROUNDING[dtype])
        given = inputs(40, heads, F32)
        empty = {**given, "query": given["query"][:, :, :0]}
        expected = np.zeros((B, H, 0, D), F32)
        yield Case(f"std.nn.attention.{op}", "no queries", empty, expected)
        # A query that sees nothing gets the mean of all values.
        blind = {**given, "mask": np.zeros((Q, K), bool)}
        mean = np.repeat(wide(given["value"]).mean(2), H // heads, axis=1)[:, :, None]
        expected = np.broadcast_to(mean, (B, H, Q, D)).astype(F32)
        yield Case(f"std.nn.attention.{op}", "nothing seen", blind, expected, {}, 2e-6)
    one = inputs(43, H, F32)
    expected = over_heads(*three(one), np.ones((B, Q, K), bool))
    yield Case("std.nn.attention.grouped_attention", "a head each", one, expected, {}, 2e-6)


def row_masks() -> Iterator[Case]:
    mask = np.random.default_rng(2).random((B, Q, K)) < 0.6
    mask[1, 2] = False
    for op, heads in (("attention_rows", H), ("grouped_attention_rows", HK)):
        for dtype in FLOATS:
            given = {**inputs(50, heads, dtype), "mask": mask}
            expected = over_heads(*three(given), mask)
            yield Case(f"std.nn.attention.{op}", f"{dtype}", given, expected, {}, ROUNDING[dtype])


def sinks() -> Iterator[Case]:
    op = "std.nn.attention.sink_attention"
    mask = np.random.default_rng(3).random((B, Q, K)) < 0.6
    mask[0, 1] = False  # all of the weight goes to the sink, and the result is 0
    for dtype in FLOATS:
        for label, level in (("low", -20.0), ("middle", 0.0), ("high", 20.0)):
            sink = numbers(60, (H,), dtype) + np.array(level, dtype)
            given = {**inputs(61, HK, dtype), "sinks": sink, "mask": mask}
            expected = over_heads(*three(given), mask, wide(sink))
            expected[0, :, 1] = 0
            yield Case(op, f"{dtype} {label}", given, expected, {}, ROUNDING[dtype])
    # Scores and sinks of some hundreds, whose exponentials only fit once the largest is taken off.
    for label, level in (("large scores", 0.0), ("large sinks", 400.0)):
        given = {**inputs(64, HK, F32), "sinks": numbers(60, (H,)) + F32.type(level), "mask": mask}
        given["query"] = given["query"] * F32.type(100)
        expected = over_heads(*three(given), mask, wide(given["sinks"]))
        yield Case(op, label, given, expected, {}, 1e-4)


def number(value: int | None) -> Any:
    return None if value is None else np.int32(value)


def seen_from(own: Any, keys: Any, window: int | None) -> np.ndarray:
    """Which keys, at their positions, each query sees from its own."""
    back = np.asarray(own)[:, None] - np.asarray(keys)
    return (back >= 0) & (back < (2**40 if window is None else window))


def spans() -> Iterator[Case]:
    """At the first position, inside, past the keys, and where some or all queries see nothing."""
    op = "std.nn.attention.span_attention"
    for dtype in FLOATS:
        sink = numbers(102, (H,), dtype)
        for at in (0, 2, 4, 9, -1, -7, 2**31 - 1) if dtype == F32 else (2, -1):
            for window, sinks in ((None, None), (1, None), (2, sink), (60, None), (0, None)):
                given = inputs(100, HK, dtype)
                seen = seen_from(at + np.arange(Q), np.arange(K), window)
                expected = over_heads(*three(given), np.broadcast_to(seen, (B, Q, K)), sinks)
                given |= {"at": np.int32(at), "window": number(window), "sinks": sinks}
                label = f"{dtype} {at} {window} {sinks is not None}"
                yield Case(op, label, given, expected, {}, ROUNDING[dtype])
    given = {**inputs(103, H, F32), "at": np.int32(0)}
    given["query"] = given["query"][:, :, :0]
    yield Case(op, "no queries", given, np.zeros((B, H, 0, D), F32))


def rows() -> Iterator[Case]:
    op = "std.nn.attention.rows_attention"
    for dtype in FLOATS:
        sink = numbers(112, (H,), dtype)
        for positions in ((0, 0), (4, 1), (-1, 9), (2**31 - 1, 3)) if dtype == F32 else ((4, 1),):
            for window, sinks in ((None, None), (1, None), (3, sink), (60, None), (0, None)):
                given = inputs(110, HK, dtype)
                given["query"] = given["query"][:, :, :1]
                seen = seen_from(positions, np.arange(K), window)[:, None]
                expected = over_heads(*three(given), seen, sinks)
                given |= {"positions": i32(*positions), "window": number(window), "sinks": sinks}
                label = f"{dtype} {positions} {window} {sinks is not None}"
                yield Case(op, label, given, expected, {}, ROUNDING[dtype])


def packs() -> Iterator[Case]:
    op = "std.nn.attention.packed_attention"
    one, two = list(range(6)), [*range(20), *range(1, 25)]
    layouts = {
        "one prompt": (one, [3] * 6),
        "two prompts": (two, [0] * 20 + [1] * 24),
        "in turns": (two, [0, 1] * 22),
        "padded": ([*range(30), *[9] * 14], [0] * 30 + [-1] * 14),
        "backwards": (one[::-1], [0, 0, 0, 1, 1, 1]),
    }
    for dtype in (F32, BF16):
        for name, (at, segments) in list(layouts.items())[: 5 if dtype == F32 else 2]:
            count = len(at)
            q, sink = numbers(120, (1, H, count, D), dtype), numbers(121, (H,), dtype)
            k, v = (numbers(seed, (1, HK, count, D), dtype) for seed in (122, 123))
            for window, sinks in ((None, None), (3, None), (4, sink), (0, None)):
                seen = seen_from(at, at, window) & np.equal.outer(segments, segments)
                given = {"query": q, "key": k, "value": v, "scale": SCALE, "sinks": sinks}
                expected = over_heads(*three(given), seen[None], sinks)
                given |= {"positions": i32(*at), "segments": i32(*segments)}
                given["window"] = number(window)
                label = f"{dtype} {name} {window} {sinks is not None}"
                yield Case(op, label, given, expected, {}, ROUNDING[dtype])


def pool(seed: int, dtype: np.dtype) -> dict[str, Any]:
    """Keys and values of 8 pages of 4 positions."""
    return {
        "key": numbers(seed, (1, HK, 32, D), dtype),
        "value": numbers(seed + 1, (1, HK, 32, D), dtype),
        "scale": SCALE,
    }


def places(table: np.ndarray, row: int, position: int) -> list[int]:
    """Where positions 0 to `position` of a row lie in the pool."""
    return [int(table[row, s // 4]) * 4 + s % 4 for s in range(position + 1)]


TABLE = np.array([[7, 2, 0], [3, 6, 0], [5, 0, 0]], np.int32)  # unused cells name page 0


def over_pages(query: Any, given: dict[str, Any], at: list[int], sink: Any = None) -> np.ndarray:
    """One query `[H, D]` over these places of the pool."""
    out = np.zeros(query.shape)
    for h in range(H):
        keys, values = (given[name][0, h // (H // HK), at] for name in ("key", "value"))
        idle = None if sink is None else float(sink[h])
        out[h] = attend(query[h], keys, values, np.ones(len(at), bool), idle)
    return out


def paged() -> Iterator[Case]:
    op = "std.nn.attention.paged_attention"
    for dtype in (F32, BF16):
        given, query, sink = pool(70, dtype), numbers(72, (3, H, 1, D), dtype), numbers(78, (H,))
        for positions in ((0, 0, 0), (11, 5, 3), (4, 7, 2)):
            for window, sinks in ((None, None), (3, None), (5, sink.astype(dtype))):
                expected = np.zeros(query.shape)
                for b in range(3):
                    at = places(TABLE, b, positions[b])[-(window or 12) :]
                    expected[b, :, 0] = over_pages(query[b, :, 0], given, at, sinks)
                inputs = {"query": query, **given, "table": TABLE, "positions": i32(*positions)}
                inputs |= {"window": number(window), "sinks": sinks}
                label = f"{dtype} {positions} {window}"
                value = expected.astype(dtype)
                yield Case(op, label, inputs, value, {"Size": 4}, ROUNDING[dtype])


def heads() -> Iterator[Case]:
    x = numbers(90, (2, 3, 8))
    apart = x.reshape(2, 3, 4, 2).transpose(0, 2, 1, 3)
    yield Case("std.nn.attention.split_heads", "f32", {"x": x}, apart, {"N": 4, "D": 2})
    yield Case("std.nn.attention.merge_heads", "f32", {"x": apart}, x)


def paged_prefill() -> Iterator[Case]:
    op = "std.nn.attention.paged_prefill_attention"
    rows, positions = (0, 0, 0, 2, 1, 1), (0, 1, 11, 3, 6, 7)
    for dtype in (F32, BF16):
        given = pool(80, dtype)
        query, sink = numbers(82, (1, H, 6, D), dtype), numbers(83, (H,), dtype)
        for window, sinks in ((None, None), (4, None), (None, sink), (2, sink)):
            expected = np.zeros(query.shape)
            for p in range(6):
                at = places(TABLE, rows[p], positions[p])[-(window or 12) :]
                expected[0, :, p] = over_pages(query[0, :, p], given, at, sinks)
            inputs = {"query": query, **given, "table": TABLE}
            inputs |= {"rows": i32(*rows), "positions": i32(*positions)}
            inputs |= {"window": number(window), "sinks": sinks}
            label, value = f"{dtype} {window} {sinks is not None}", expected.astype(dtype)
            yield Case(op, label, inputs, value, {"Size": 4}, ROUNDING[dtype])
