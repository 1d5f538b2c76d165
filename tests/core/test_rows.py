"""Rows that nobody reads are left out of a last turn, and nothing else is."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from backends.common import lowered
from core.graphs import dims, tensor, unary_function
from linnet.core.build import Builder
from linnet.core.ir import Call, Dot, For, Function, Node, Program
from linnet.core.passes import optimize
from linnet.core.print import program_text
from linnet.core.rewrite import bodies, nodes_of
from linnet.core.rows import narrow, pushed, row_axes
from linnet.core.verify import verify
from linnet.dims import Dim
from linnet.reference import evaluate
from linnet.types import F32, I32

# A layer that mixes positions, remembers what it saw, and goes on row by row.
LAYER = """
module m

use std.nn.linear::{{Linear}}
use std.nn.norm::{{RmsNorm}}

pub block Mlp<H: Dim> {{
    sub up: Linear<H, 2 * H, f32>
    sub down: Linear<2 * H, H, f32>

    pub fn forward<B: Dim, S: Dim>(x: Tensor[B, S, H; f32]) -> Tensor[B, S, H; f32] {{
        return down.forward(tanh(up.forward(x)))
    }}
}}

pub block Layer<H: Dim> {{
    sub inner: Linear<H, H, f32>
    sub outer: Linear<H, H, f32>
    sub norm: RmsNorm<H, f32>
    sub mlp: Mlp<H>
    state seen: Tensor[H; f32]

    pub fn forward<B: Dim, S: Dim>(x: Tensor[B, S, H; f32], at: i32) -> Tensor[B, S, H; f32] {{
        let own = inner.forward(x)
        let place = iota<i64>(S)
        let near[b, s, h] = sum[r] select(
            place[r] <= place[s],
            own[b, r, h] / cast<f32>(place[s] - place[r] + 1),
            0.0,
        )
        let most[h] = max[b, s] near[b, s, h]
        seen = seen + most + cast<f32>(at)
        let mixed = x + outer.forward(near)
        return mixed + mlp.forward(norm.forward(mixed))
    }}
}}

pub block M<H: Dim = 4, V: Dim = 5, Layers: Dim = 3> {{
    sub layers: [Layer<H>; Layers]
    sub head: Linear<H, V, f32>

    fn run<B: Dim, S: Dim>(x: Tensor[B, S, H; f32], at: i32) -> Tensor[B, S, H; f32] {{
        var y = x
        static for layer in layers {{
            y = layer.forward(y, at)
        }}
        return y
    }}

    pub entry forward<{dims}>({params}) -> {result} {{
        {body}
    }}
}}
"""
X = "x: Tensor[B, S, H; f32], at: i32"
ROWS = "x: Tensor[1, S, H; f32], at: i32, rows: Tensor[R; i32]"

# Entries that read some rows: their sizes, parameters, result and body.
READS = {
    "last": (
        "B: Dim, S: Dim",
        X,
        "Tensor[B, V; f32] where S > 0",
        "return head.forward(run(x, at)[:, S - 1, :])",
    ),
    "first": (
        "B: Dim, S: Dim",
        X,
        "Tensor[B, V; f32] where S > 0",
        "return head.forward(run(x, at)[:, 0, :])",
    ),
    "one but last": (
        "B: Dim, S: Dim",
        X,
        "Tensor[B, 1, V; f32] where S > 1",
        "return head.forward(run(x, at)[:, S - 2:S - 1, :])",
    ),
    "of all rows": (
        "B: Dim, S: Dim, R: Dim",
        X + ", rows: Tensor[R; i32]",
        "Tensor[R, S, H; f32] where B > 0",
        "let y = run(x, at)\n let found[r, s, h] = y[rows[r], s, h]\n return found",
    ),
    "named": (
        "S: Dim, R: Dim",
        ROWS,
        "Tensor[R, V; f32] where S > 0",
        "let y = run(x, at)\n let found[r, h] = y[0, rows[r], h]\n return head.forward(found)",
    ),
    "named twice": (
        "S: Dim, R: Dim",
        ROWS,
        "Tensor[2 * R, V; f32] where S > 0",
        "let y = run(x, at)\n let every = concat(rows, iota<i32>(R) + cast<i32>(S), axis = 0)\n"
        " let found[r, h] = y[0, every[r], h]\n return head.forward(found)",
    ),
}

# Entries that read more, so that nothing is left out.
KEEPS = {
    "all": ("B: Dim, S: Dim", X, "Tensor[B, S, V; f32]", "return head.forward(run(x, at))"),
    "two": (
        "B: Dim, S: Dim",
        X,
        "Tensor[B, H; f32] where S > 1",
        "let y = run(x, at)\n return y[:, 0, :] + y[:, 1, :]",
    ),
    "some and all": (
        "B: Dim, S: Dim",
        X,
        "Tensor[B, S, H; f32] where S > 0",
        "let y = run(x, at)\n return y + y[:, 0:1, :]",
    ),
    "where it says": (
        "S: Dim",
        "x: Tensor[1, S, H; f32], at: i32",
        "Tensor[1, H; f32] where S > 0",
        "let y = run(x, at)\n let top[s] = max[h] y[0, s, h]\n"
        " let rows = reshape(cast<i32>(top[0]), [1])\n let found[r, h] = y[0, rows[r], h]\n"
        " return found",
    ),
    "columns": (
        "B: Dim, S: Dim",
        X,
        "Tensor[B, S; f32] where H > 0",
        "let y = run(x, at)\n return y[:, :, 0]",
    ),
}


@cache
def entry(case: str, layers: int = 3) -> Program:
    sizes, params, result, body = (READS | KEEPS)[case]
    text = LAYER.format(dims=sizes, params=params, result=result, body=body)
    return optimize(lowered(text, generics={"Layers": layers}), "fast", after="contract")


def loops(program: Program) -> list[For]:
    inside = (b for f in program.functions.values() for b in bodies(f))
    entries = (b for f in program.entries.values() for b in bodies(f))
    return list(
        dict.fromkeys(n for b in (*inside, *entries) for n in nodes_of(b) if isinstance(n, For))
    )


def weights(program: Program, seed: int = 0) -> dict[str, np.ndarray]:
    source = np.random.default_rng(seed)
    return {
        path: source.normal(size=[int(str(d)) for d in e.type.shape]).astype(np.float32)
        for e in program.manifest.entries
        if e.kind != "state" and not e.optional
        for path in e.expanded()
    }


def results(program: Program, inputs: list[Any]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    state: dict[str, Any] = {}
    out = evaluate(program, "forward", inputs, weights(program), state)
    return np.asarray(out), {path: np.asarray(value) for path, value in state.items()}


def inputs_of(case: str, batch: int, length: int, rows: list[int]) -> list[Any]:
    batch = 1 if "named" in case or case == "where it says" else batch
    source = np.random.default_rng(batch + length)
    given: list[Any] = [source.normal(size=(batch, length, 4)).astype(np.float32), np.int32(7)]
    several = "named" in case or case == "of all rows"
    return [*given, np.array(rows, np.int32)] if several else given


@pytest.mark.parametrize("case, layers", [("last", 1), *((case, 3) for case in READS)])
def test_the_rows_that_are_read_and_the_state_stay_what_they_were(case: str, layers: int) -> None:
    before = entry(case, layers)
    after = narrow(before)
    verify(after)
    # Also no rows, some twice, and some that lie outside.
    for batch, length, rows in ((1, 2, [1]), (2, 5, []), (3, 4, [3, 0, 3, -2, 9])):
        given = inputs_of(case, batch, length, rows)
        (wanted, states), (found, kept) = results(before, given), results(after, given)
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)
        assert states.keys() == kept.keys() and states
        for path, value in states.items():
            np.testing.assert_array_equal(kept[path], value)


@pytest.mark.parametrize("case", READS)
def test_the_last_turn_has_products_of_the_rows_that_are_read(case: str) -> None:
    before = entry(case)
    after = narrow(before)
    (loop,) = loops(after)
    assert loop.last is not None
    assert not any(loop.last is None for loop in loops(after))
    # Another time there is nothing left to do.
    assert program_text(narrow(after)) == program_text(after)
    extents = {d for c in _calls(loop.last) for d in c.dims}
    assert Dim.of("S") in extents  # what mixes positions has them all


def _calls(function: Function) -> list[Call]:
    return [n for n in nodes_of(function) if isinstance(n, Call)]


def test_row_by_row_means_the_whole_rest_of_the_layer() -> None:
    after = narrow(entry("last"))
    (loop,) = loops(after)
    assert loop.last is not None
    (layer,) = _calls(loop.last)
    assert layer.function.name == "Layer.forward_rows"
    sizes = {
        call.function.name: call.dims[call.function.dims.index("S")]
        for call in _calls(layer.function)
        if "S" in call.function.dims
    }
    assert sizes["Mlp.forward"] == Dim.of(1)


@pytest.mark.parametrize("case", KEEPS)
def test_what_is_read_in_other_ways_is_computed_whole(case: str) -> None:
    before = entry(case)
    after = narrow(before)
    assert all(loop.last is None for loop in loops(after))
    assert "_rows" not in program_text(after)


def test_a_loop_that_need_not_turn_has_no_last_turn() -> None:
    assert all(loop.last is None for loop in loops(narrow(entry("last", 0))))


def test_exact_numerics_keep_every_product() -> None:
    sizes, params, result, body = READS["last"]
    text = LAYER.format(dims=sizes, params=params, result=result, body=body)
    exact, fast = (optimize(lowered(text), policy) for policy in ("exact", "fast"))
    assert all(loop.last is None for loop in loops(exact))
    assert any(loop.last is not None for loop in loops(fast))


# ---------------------------------------------------------------- what is row by row


def _row(build: Any, *types: Any, names: tuple[str, ...] = ("N", "K")) -> Any:
    return row_axes(unary_function(build, *types, names=names), "N")


W = tensor(F32, "K", "K")


def _dot(b: Builder, x: Node, w: Node) -> Node:
    return b.dot(x, w, [], [(1, 0)], F32)


@pytest.mark.parametrize(
    "build, types, axes",
    [
        (_dot, (tensor(F32, "N", "K"), W), (0, None)),
        (lambda b, x: b.reduce("max", x, (1,)), (tensor(F32, "N", "K"),), (0,)),
        (lambda b, x: b.permute(b.unary("exp", x), (1, 0)), (tensor(F32, "K", "N"),), (1,)),
        (
            lambda b, x: b.reshape(x, dims("N", "K", 2)),
            (tensor(F32, "N", Dim.of("K") * 2),),
            (0,),
        ),
        (
            lambda b, x: b.expand(x, dims("N", "K", 3), (0, 1)),
            (tensor(F32, "N", "K"),),
            (0,),
        ),
        (
            lambda b, x, i: b.gather(x, [i, None]),
            (tensor(F32, "K", 4), tensor(I32, "N")),
            (None, 0),
        ),
    ],
)
def test_each_position_gives_that_position(build: Any, types: Any, axes: Any) -> None:
    assert _row(build, *types) == axes


@pytest.mark.parametrize(
    "build, types",
    [
        (lambda b, x: b.reduce("sum", x, (0,)), (tensor(F32, "N", "K"),)),
        (lambda b, x: b.dot(x, x, [], [(0, 0)], F32), (tensor(F32, "N", "K"),)),
        (lambda b, x: b.dot(x, x, [], [(1, 1)], F32), (tensor(F32, "N", "K"),)),
        (lambda b, x: b.binary("add", x, b.iota(Dim.of("N"), I32)), (tensor(I32, "N"),)),
        (
            lambda b, x: b.binary("mul", x, b.fill(b.size(Dim.of("N"), F32), dims("N"))),
            (tensor(F32, "N"),),
        ),
        (
            lambda b, x: b.binary("add", x, b.permute(x, (1, 0))),
            (tensor(F32, "N", "N"),),
        ),
        (lambda b, x: b.reshape(x, dims("K", "N")), (tensor(F32, "N", "K"),)),
        (lambda b, x: b.gather(x, [x]), (tensor(I32, "N"),)),
        (lambda b, x: b.concat([x, x], 0), (tensor(F32, "N", "K"),)),
        (
            lambda b, x: b.slice(b.concat([x, x], 0), [(Dim.of(1), Dim.of("N") + 1, 1), None]),
            (tensor(F32, "N", "K"),),
        ),
    ],
)
def test_positions_that_meet_are_not_row_by_row(build: Any, types: Any) -> None:
    assert _row(build, *types) is None


def test_an_axis_is_followed_through_a_product() -> None:
    b = Builder()
    x, y = b.param("x", tensor(F32, 2, 3, 4)), b.param("y", tensor(F32, 5, 2, 4))
    product = b.dot(x, y, [(0, 1)], [(2, 2)], F32)
    assert isinstance(product, Dot)
    assert [pushed(product, axis) for axis in range(3)] == [[0, 1], [1, None], [None, 0]]
