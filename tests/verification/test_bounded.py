"""Which inputs are found to be indices, and of how many positions."""

from __future__ import annotations

import pytest

from linnet.check import check_text
from linnet.core.lower import lower
from linnet.core.passes import optimize
from linnet.verification.bounded import bounds

SIZES = {"N": 5, "B": 2, "S": 3, "Pages": 4}

# What stands in an entry -> the bounds of its inputs by name; those without one are not listed.
CASES = {
    "a scalar reads a position": (
        "entry f<N: Dim>(x: Tensor[N; f32], i: i32) -> f32 { return x[i] }",
        {"i": 5},
    ),
    "the least of two axes": (
        "entry f<N: Dim>(x: Tensor[N; f32], y: Tensor[3; f32], i: i32) -> f32 {"
        " return x[i] * y[i] }",
        {"i": 3},
    ),
    "through casts, shapes and sums": (
        """entry f<N: Dim, B: Dim>(x: Tensor[N; f32], i: Tensor[B, 2; i32]) -> Tensor[B * 2; f32] {
            let flat = cast<i64>(reshape(i, [B * 2])) + 1
            let found[k] = x[flat[k]]
            return found
        }""",
        {"i": 5},
    ),
    "compared with the positions of an axis": (
        """entry f<N: Dim, B: Dim>(at: Tensor[B; i32]) -> Tensor[B, N; bool] {
            let here[b, n] = iota<i32>(N)[n] == at[b]
            return here
        }""",
        {"at": 5},
    ),
    "less a counter": (
        """entry f<N: Dim>(at: i32) -> Tensor[N; bool] {
            let offset = iota<i64>(N) - cast<i64>(at)
            return offset >= 0
        }""",
        {"at": 5},
    ),
    "a page of a table, and a position by its page": (
        """entry f<Pages: Dim>(pool: Tensor[16; f32], table: Tensor[Pages; i32], at: i32) -> f32 {
            return pool[table[at / 4] * 4 + at % 4]
        }""",
        {"table": 4, "at": 16},
    ),
    "in a function, in a loop, in a branch": (
        """fn pick<N: Dim>(x: Tensor[N; f32], i: i32) -> f32 { return x[i] }
        entry f<N: Dim>(x: Tensor[N; f32], i: i32, j: i32, c: bool) -> f32 {
            var total: f32 = 0.0
            for k in 0..3 { total = total + pick(x, i) }
            return if c { total } else { x[j] }
        }""",
        {"i": 5, "j": 5},
    ),
    "carried by a loop": (
        """entry f<N: Dim>(x: Tensor[N; i32], start: i32) -> i32 {
            var at = start
            var turn: i32 = 0
            while turn < 3 {
                at = x[at]
                turn = turn + 1
            }
            return at
        }""",
        {"x": 5, "start": 5},
    ),
    "compared with each other, computed with, or a number": (
        """entry f<S: Dim>(a: Tensor[S; i32], key: Tensor[2; i64], x: f32)
            -> (Tensor[S, S; bool], i64) {
            let same[i, j] = a[i] == a[j]
            return (same, shl(key[0], 3) ^ key[1])
        }""",
        {},
    ),
    "proved to be inside": (
        """entry f<N: Dim>(x: Tensor[N; f32], i: i64) -> f32 where N > 0 {
            return x[min(max(i, 0), N - 1)]
        }""",
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_an_index_is_below(name: str) -> None:
    text, wanted = CASES[name]
    for policy in ("exact", "fast"):
        program = optimize(lower(check_text(f"module m\n{text}")), policy)
        function = program.entries["f"]
        found = bounds(function, {dim: SIZES[dim] for dim in function.dims})
        assert {function.values[i].name: extent for i, extent in found.items()} == wanted
