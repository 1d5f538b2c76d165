"""Sizes, and products of sizes, that do not fit 32 bits: counted as what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from backends.common import assert_close, flat, lowered
from backends.test_onnx import run as run_onnx
from linnet.core.passes import optimize
from linnet.policy import POLICIES
from linnet.reference import evaluate

LARGE = 3_000_000_000
SOURCE = """module main
fn times<M: Dim>(x: i64) -> i64 { return x * M + M }
fn counted<M: Dim>(x: Tensor[4; i64]) -> i64 {
    var t: i64 = 0
    for i in M..M + 2 { t = t + i + x[i] }
    return t
}
fn cut<M: Dim>(x: Tensor[4; i32]) -> Tensor[4; i32] { return x + M }
pub entry values<N: Dim>(x: i64) -> (i64, i64, i64) {
    return (x + N, times<N * 2>(x), times<N>(x))
}
pub entry cut_off<N: Dim>(
    x: Tensor[4; i32], n: i32, b: Tensor[4; u8]
) -> (Tensor[4; i32], Tensor[4; i32], i32, f32, bool, Tensor[4; u8]) {
    return (x * N, cut<N * 2>(x), n * N * N, cast<f32>(cast<i32>(N)), n < cast<i32>(N), b + N)
}
pub entry loops<N: Dim>(x: Tensor[4; i64]) -> (i64, i64, i32, f32) where N > 3 {
    var t: i64 = 0
    var s: i32 = 0
    var f: f32 = 0.0
    for i in N - 3..N {
        t = t + i
        s = s + cast<i32>(i)
        f = f + cast<f32>(i)
    }
    return (t, counted<N>(x), s, f)
}
pub entry stacks<N: Dim>(x: Tensor[4; i64]) -> (Tensor[3; i64], Tensor[3; i64]) where N > 3 {
    let y = for i in N - 3..N { yield i }
    let z = for i in N - 3..N { yield min(i, x[0]) }
    return (y, z)
}
pub entry products<A: Dim, B: Dim>(x: Tensor[4; f32], n: i64) -> (i64, f32, i64, i64) {
    let c = cast<i64>(A) * B
    let t: i64 = A * B * 4
    return (c, x[n % c], t + n, (n * A + 1) * B)
}
pub entry axes<A: Dim, B: Dim, C: Dim>(
    x: Tensor[A, B, C; f32]
) -> (i64, i64, Tensor[A * B * C; f32]) {
    var t: i64 = 0
    for i in A * B..A * B + 2 { t = t + i * B }
    return (t, A * B * B, reshape(x, [A * B * C]))
}
pub entry narrow<N: Dim>(x: Tensor[4; f32]) -> (f32, f32) where N > 4 {
    var t: f32 = 0.0
    for i in N - 3..N { t = t + cast<f32>(i) * x[i] }
    return (t, cast<f32>(N))
}
pub entry last<N: Dim>(n: i64) -> (Tensor[4; i64], Tensor[4; bool]) where N > 4 {
    let c = iota<i64>(N)[N - 4:N]
    return (c, c > n)
}
pub entry fixed(n: i64) -> (i64, Tensor[4; i64]) {
    var t: i64 = 0
    for i in 3000000000..3000000003 { t = t + i }
    return (t, iota<i64>(3000000000)[2999999996:3000000000] + n)
}
"""
INTEGERS = np.array([5, -7, 2**40, 9], np.int64)
SHORT = [np.array([1, -2, 3, 2**31 - 1], np.int32), np.int32(-5), np.arange(4, dtype=np.uint8)]
FLOATS = np.array([0.5, 1, -2, 4], np.float32)
CALLS: dict[str, tuple[Sequence[Any], dict[str, int]]] = {
    "values": ([np.int64(7)], {"N": LARGE}),
    "cut_off": (SHORT, {"N": LARGE}),
    "loops": ([INTEGERS], {"N": LARGE}),
    "stacks": ([INTEGERS], {"N": LARGE}),
    "products": ([FLOATS, np.int64(10**12 + 3)], {"A": 100_000, "B": 90_000}),
    "axes": ([np.zeros((70_000, 50_000, 0), np.float32)], {"A": 70_000, "B": 50_000, "C": 0}),
    "narrow": ([FLOATS], {"N": LARGE}),
}
# What NumPy would lay out in full.
ENDS = np.arange(LARGE - 4, LARGE)
LAID_OUT: dict[str, tuple[Sequence[Any], dict[str, int], list[Any]]] = {
    "last": ([np.int64(LARGE - 3)], {"N": LARGE}, [ENDS, ENDS > LARGE - 3]),
    "fixed": ([np.int64(7)], {}, [np.int64(3 * LARGE + 3), ENDS + 7]),
}


def wanted(name: str, given: Sequence[Any], sizes: Mapping[str, int]) -> list[Any]:
    return flat(evaluate(lowered(SOURCE), name, given, {}, {}, sizes))


@pytest.mark.slow
@pytest.mark.parametrize("generated", [True, False])
def test_in_jax(generated: bool) -> None:
    import jax

    from linnet.jax.entry import Entry, Source

    calls = [(name, *call, wanted(name, *call)) for name, call in CALLS.items()]
    calls += [(name, *call) for name, call in LAID_OUT.items()]
    small = ([FLOATS], {"N": 90})
    calls.append(("narrow", *small, wanted("narrow", *small)))
    for policy in POLICIES:
        program = optimize(lowered(SOURCE), policy)
        source = Source(program, policy) if generated else None
        entries = {name: Entry(program, name, policy, source) for name in program.entries}
        for name, given, sizes, expected in calls:
            found, _ = entries[name].run(given, sizes, {}, {})
            for a, b in zip(expected, jax.tree.leaves(found), strict=True):
                assert_close(np.asarray(a), np.asarray(b), 1e-6, f"{name} {policy}")


def test_what_is_generated_keeps_32_bits_where_sizes_fit() -> None:
    """Other sizes have source of their own, which the entry chooses by what it is given."""
    from linnet.jax.emit import generate

    program = lowered(SOURCE)
    small, large = (generate(program, "exact", ["narrow"], sizes={"N": n}) for n in (90, LARGE))
    assert not small.entries["narrow"].wide and large.entries["narrow"].wide
    assert generate(program, "exact", ["fixed"]).entries["fixed"].wide


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_in_onnx(name: str) -> None:
    given, sizes = CALLS[name]
    for policy in POLICIES:
        found = run_onnx(optimize(lowered(SOURCE), policy), name, sizes, policy, list(given))
        for a, b in zip(wanted(name, given, sizes), found, strict=True):
            assert_close(np.asarray(a), np.asarray(b), 1e-6, f"{name} {policy}")
