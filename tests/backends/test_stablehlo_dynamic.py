"""StableHLO with sizes that stay dynamic: one module means what the nodes mean at every size."""

# ruff: noqa: E501 - Linnet sources are laid out for the eye
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from backends.common import assert_close, lowered
from backends.test_drawn import closely, either_infinity
from backends.test_stablehlo import FAMILIES, compare, family, run
from core.graphs import arrays as drawn_arrays
from core.graphs import functions
from core.graphs import program as drawn_program
from linnet.core.ir import Program
from linnet.core.passes import optimize
from linnet.diagnostics import PlanError
from linnet.inputs import bind_entry, demands
from linnet.policy import Policy
from linnet.reference import evaluate_function
from linnet.stablehlo import emit
from linnet.types import DTYPES as DTYPES_OF

Sizes = Mapping[str, int]

# Each with the sizes that one module is run at.
PROGRAMS: dict[str, tuple[str, Sequence[Sizes]]] = {
    "reshape": (
        """
        pub entry main<B: Dim, S: Dim>(x: Tensor[B, 2 * S; f32]) -> (Tensor[B * S, 2; f32], Tensor[2, B, S; f32], Tensor[1, 2 * B * S; f32]) {
            return (reshape(x, [B * S, 2]), permute(reshape(x, [B, S, 2]), [2, 0, 1]), reshape(x, [1, 2 * B * S]))
        }""",
        [{"B": 2, "S": 3}, {"B": 1, "S": 1}, {"B": 0, "S": 4}],
    ),
    "expand": (
        """
        pub entry main<B: Dim, S: Dim>(x: Tensor[B; f32], y: Tensor[1, S; f32], t: f32) -> (Tensor[B, S; f32], Tensor[3, B; f32], Tensor[S, B, 2; bool]) {
            let table[b, s] = x[b] * y[0, s] + t
            return (table + y, broadcast_to(x, [3, B]), fill<bool>([S, B, 2], true))
        }""",
        [{"B": 2, "S": 3}, {"B": 1, "S": 1}, {"B": 3, "S": 0}],
    ),
    "iota": (
        """
        pub entry main<S: Dim, N: Dim>(x: Tensor[S, N; f16]) -> (Tensor[S + N; i64], Tensor[S; f16], Tensor[S, N; i32], i32, f32) {
            let place[s, n] = iota<i32>(S)[s] * N + iota<i32>(N)[n]
            return (iota(S + N), cast<f16>(iota<i64>(S)), place, S * N, cast<f32>(S) / 2.0)
        }""",
        [{"S": 2, "N": 3}, {"S": 1, "N": 1}, {"S": 0, "N": 2}],
    ),
    "slice": (
        """
        pub entry main<S: Dim, N: Dim>(x: Tensor[S, N, 4; f32]) -> (Tensor[S - 1, 4; f32], Tensor[S / 2, N, 2; f32], Tensor[(S + 1) / 2, N, 4; f32], Tensor[N, 4; f32], Tensor[S, 2, 4; f32])
        where S > 0, N >= 2 {
            return (x[1:, 0, :], x[S - S / 2:, :, 1:3], x[0::2, ...], x[S - 1, :, :], x[:, N - 2:, :])
        }""",
        [{"S": 5, "N": 2}, {"S": 1, "N": 3}, {"S": 4, "N": 5}],
    ),
    "concat": (
        """
        pub entry main<B: Dim, S: Dim>(x: Tensor[B, S; i32], y: Tensor[B, 2; i32]) -> (Tensor[B, S + 2; i32], Tensor[3 * B, S; i32]) {
            return (concat(x, y, axis = 1), concat(x, x + 1, x * 2, axis = 0))
        }""",
        [{"B": 2, "S": 3}, {"B": 1, "S": 0}, {"B": 3, "S": 1}],
    ),
    "gather": (
        """
        pub entry main<N: Dim, W: Dim, S: Dim>(x: Tensor[N, W, 3; f32], i: Tensor[S; i32], j: Tensor[S; i64], at: i64) -> (Tensor[S, W; f32], Tensor[W, S; f32], Tensor[N, 3; f32], Tensor[N; f32])
        where W > 0 {
            let rows[s, w] = x[i[s], w, 1]
            let both[w, s] = x[i[s], w, j[s]]
            let corner[n] = x[n, iota<i64>(W)[W - 1], 0]
            return (rows, both, x[:, at, :], corner)
        }""",
        [{"N": 4, "W": 3, "S": 5}, {"N": 1, "W": 1, "S": 1}, {"N": 2, "W": 5, "S": 0}],
    ),
    "reduce": (
        """
        pub entry main<B: Dim, S: Dim>(x: Tensor[B, S; f32], k: Tensor[S, B; bool]) -> (Tensor[B; f32], Tensor[S; f32], f32, bool, Tensor[B; bool]) {
            let most[b] = max[s] x[b, s]
            let total[s] = sum[b] x[b, s]
            let seen[b] = any[s] k[s, b]
            return (most, total, prod[b, s] (x[b, s] + 1.0), all[s, b] k[s, b], seen)
        }""",
        [{"B": 2, "S": 3}, {"B": 1, "S": 1}, {"B": 3, "S": 0}],
    ),
    "dot": (
        """
        pub entry main<B: Dim, S: Dim, D: Dim>(q: Tensor[B, S, D; f32], k: Tensor[B, S + 1, D; f32], w: Tensor[D, 3; f32]) -> (Tensor[B, S, S + 1; f32], Tensor[B, S, 3; f32]) {
            let scores[b, s, t] = sum[d] q[b, s, d] * k[b, t, d]
            let made[b, s, o] = sum[d] q[b, s, d] * w[d, o]
            return (scores, made)
        }""",
        [{"B": 2, "S": 3, "D": 4}, {"B": 1, "S": 1, "D": 1}, {"B": 2, "S": 0, "D": 2}],
    ),
    "caches": (
        """
        use std.nn.cache::{write_at, write_rows, write_span, write_tokens}
        pub entry main<B: Dim, L: Dim, S: Dim>(cache: Tensor[B, 2, L, 3; f32], span: Tensor[B, 2, S, 3; f32], one: Tensor[B, 2, 1, 3; f32], tokens: Tensor[1, 2, S, 3; f32], rows: Tensor[S; i32], at: Tensor[B; i32], places: Tensor[S; i32], start: i32)
            -> (Tensor[B, 2, L, 3; f32], Tensor[B, 2, L, 3; f32], Tensor[B, 2, L, 3; f32], Tensor[B, 2, L, 3; f32])
        where L > 0, S > 0, S <= L {
            return (write_at(cache, one, start), write_span(cache, span, start), write_rows(cache, one, at), write_tokens(cache, tokens, rows, places + iota<i32>(S)))
        }""",
        [{"B": 2, "L": 6, "S": 3}, {"B": 1, "L": 1, "S": 1}, {"B": 3, "L": 4, "S": 4}],
    ),
    "convolution": (
        """
        use std.nn.conv::{conv2d, conv1d}
        pub entry main<B: Dim, H: Dim, W: Dim>(x: Tensor[B, 2, H, W; f32], w: Tensor[3, 2, 3, 3; f32], v: Tensor[3, 2, 2; f32], b: Tensor[3; f32])
            -> (Tensor[B, 3, (H + 2 - 3) / 2 + 1, (W + 2 - 3) / 2 + 1; f32], Tensor[B, 3, W - 1; f32], Tensor[B, 3, (W - 2) / 2 + 1; f32])
        where H > 0, W > 1 {
            let line = x[:, :, 0, :]
            let apart = conv1d<B, 2, 3, W, 2, 2, 0, f32>(line, v, none)
            return (conv2d<B, 2, 3, H, W, 3, 2, 1, f32>(x, w, some(b)), conv1d<B, 2, 3, W, 2, 1, 0, f32>(line, v, some(b)), apart)
        }""",
        [{"B": 2, "H": 5, "W": 6}, {"B": 1, "H": 1, "W": 2}, {"B": 0, "H": 4, "W": 3}],
    ),
    "for": (
        """
        pub entry main<S: Dim, N: Dim>(x: Tensor[S, N; f32]) -> (Tensor[S, N; f32], Tensor[N; f32], i64, Tensor[3, 2; i64]) {
            var total = fill<f32>([N], 0.0)
            let sums = for i in 0..S {
                total = total + x[i, :]
                yield total
            }
            var count: i64 = 0
            static for i in 1..S + 1 { count = count + i }
            let pairs = for i in S..S + 3 { yield fill<i64>([2], i) }
            return (sums, total, count, pairs)
        }""",
        [{"S": 3, "N": 2}, {"S": 1, "N": 4}, {"S": 0, "N": 1}],
    ),
    "while": (
        """
        pub entry main<S: Dim>(x: Tensor[S; f32], limit: f32) -> (Tensor[S; f32], i32) {
            var y = x
            var n: i32 = 0
            while all[k] (y[k] < limit + 3.0) && n < S {
                y = y * 2.0 + iota<f32>(S)
                n = n + 1
            }
            return (y, n)
        }""",
        [{"S": 3}, {"S": 1}, {"S": 6}],
    ),
    "if": (
        """
        pub entry main<S: Dim, N: Dim>(x: Tensor[S, N; f32], c: bool) -> (Tensor[N, S; f32], Tensor[S; i64]) {
            let turned = if c { permute(x, [1, 0]) } else { fill<f32>([N, S], 2.0) }
            return (turned, if c { iota(S) } else { iota(S) * cast<i64>(N) })
        }""",
        [{"S": 3, "N": 2}, {"S": 1, "N": 1}, {"S": 0, "N": 5}],
    ),
    "sizes": (
        """
        pub entry main<S: Dim, N: Dim>(x: Tensor[S; f32], y: Tensor[N; f32]) -> (i64, i64, i64, i64, i64, Tensor[min(S, N); f32], Tensor[max(S, N + 1) - 1; i64])
        where N > 0, S > 0 {
            return (S / N, S % N, (S - 5) / N + S * N, (S - 7) % N, max(S, N) - min(S, 3), x[0:min(S, N)], iota(max(S, N + 1) - 1))
        }""",
        [{"S": 7, "N": 3}, {"S": 1, "N": 1}, {"S": 2, "N": 4}],
    ),
    "fixed": (
        # Sizes that are proved equal, one of them a number and one dynamic.
        """
        fn twice<A: Dim, C: Dim>(x: Tensor[A, C; f32]) -> Tensor[A, C; f32] { return x + x }
        fn first<A: Dim>(x: Tensor[A; f32]) -> Tensor[A; f32] { return x * 2.0 }
        pub entry main<B: Dim, S: Dim>(x: Tensor[B, S; f32], y: Tensor[1, 4; f32], c: bool) -> (Tensor[B, S; f32], Tensor[1, S; f32], Tensor[B, 4; f32], Tensor[B; f32], Tensor[B, S; f32])
        where B == 1, S == 4 {
            var z = x
            for i in 0..3 { z = y + z }
            let chosen: Tensor[B, S; f32] = if c { y } else { x }
            let one: Tensor[1, S; f32] = select(y > 0.0, twice(y), x)
            let row[b] = sum[s] x[b, s] * y[b, s]
            return (twice(x) + y, one, concat(x[:, 0:2], y[:, 2:4], axis = 1), first(row), chosen * z)
        }""",
        [{"B": 1, "S": 4}],
    ),
    "solved": (
        # Dimensions that stand alone on no axis.
        """
        pub entry main<N: Dim, M: Dim, S: Dim>(x: Tensor[2 * N + 1; f32], y: Tensor[N * M + 2; f32], z: Tensor[S - 2; f32]) -> (i64, i64, i64) where N > 0, S >= 2 {
            return (N, M, S)
        }""",
        [{"N": 3, "M": 2, "S": 5}, {"N": 1, "M": 0, "S": 2}, {"N": 2, "M": 7, "S": 3}],
    ),
}


def module_of(name: str, policy: Policy = "exact") -> tuple[Program, str]:
    """One of the programs, and its module with every dimension dynamic."""
    program = optimize(lowered("module main\n" + PROGRAMS[name][0]), policy)
    return program, emit(program, "main", {}, policy, program.entries["main"].dims)


@pytest.mark.parametrize("name", ["reshape", "slice", "caches", "for", "sizes", "fixed", "solved"])
def test_goldens(name: str, golden: Callable[..., None]) -> None:
    golden(module_of(name, "equivalent")[1])


LAYERS = """
    use std.nn.linear::{Linear}
    use std.nn.softmax::{softmax}
    pub block Layer {
        sub proj: Linear<4, 4, f32>
        pub fn forward<B: Dim, S: Dim>(x: Tensor[B, S, 4; f32]) -> Tensor[B, S, 4; f32] {
            return softmax(proj.forward(x)) + x
        }
    }
    pub block Model {
        sub layers: [Layer; 3]
        pub entry main<B: Dim, S: Dim>(x: Tensor[B, S, 4; f32]) -> Tensor[B * S, 4; f32] {
            var y = x
            static for layer in layers { y = layer.forward(y) }
            return reshape(y, [B * S, 4])
        }
    }"""


def test_calls_take_the_sizes_that_they_need(golden: Callable[..., None]) -> None:
    """Layers stay calls of one function; a size that is bound is a number in it."""
    program = lowered("module main\n" + LAYERS)
    text = emit(program, "main", {"B": 2}, "exact", ["S"])
    golden(text)
    assert text.count("func.call @layer_forward(") == 3
    assert text.count("func.func private @layer_forward(") == 1
    compare(program, "main", "exact", 2e-5, partial(run, text=text), {"B": 2, "S": 5})


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("fixed", "sizes") else pytest.mark.slow)
        for name in PROGRAMS
    ],
)
def test_one_module_at_several_sizes(name: str) -> None:
    for policy in ("exact", "fast") if name in ("caches", "convolution") else ("equivalent",):
        program, text = module_of(name, policy)
        for sizes in PROGRAMS[name][1]:
            compare(program, "main", policy, 2e-5, partial(run, text=text), dict(sizes))


def test_as_it_was_lowered() -> None:
    program = lowered("module main\n" + PROGRAMS["for"][0])
    text = emit(program, "main", {}, "exact", ["S", "N"])
    compare(program, "main", "exact", 2e-5, partial(run, text=text), {"S": 2, "N": 3})


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(p.name for p in FAMILIES.iterdir()))
def test_every_family(name: str) -> None:
    program = family(name, "equivalent")
    for entry in ("forward", "prefill", "loss_packed"):
        if entry not in program.entries:
            continue
        dims = program.entries[entry].dims
        text = emit(program, entry, {}, "equivalent", dims)
        for sizes in ({"B": 2, "S": 5, "P": 7}, {"B": 1, "S": 1, "P": 1}, {"B": 3, "S": 4, "P": 6}):
            own = {dim: sizes[dim] for dim in dims}
            compare(program, entry, "equivalent", 2e-5, partial(run, text=text), own)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(functions(tuple(DTYPES_OF.values())), st.data())
def test_drawn_functions(f: Any, data: st.DataObject) -> None:
    """Any operations on any dtypes, integers to the bit, with a size that stays dynamic."""
    sizes = {"B": data.draw(st.integers(0, 3))}
    assume(all(demand.goal.holds(sizes) for demand in demands(f)))
    given = [np.asarray(data.draw(drawn_arrays(p.of, sizes, False))) for p in f.params]
    made = drawn_program(f)
    found = run(made, "f", sizes, "exact", given, emit(made, "f", {}, "exact", ["B"]))
    for a, b in zip(evaluate_function(f, given, sizes), found, strict=True):
        a, b = either_infinity(f, a), either_infinity(f, b)
        assert_close(a, b, closely(str(b.dtype)), "a result")


# ---------------------------------------------------------------- what is refused

SUBTRACTED = """
    pub entry main<S: Dim, N: Dim>(x: Tensor[S; f32], y: Tensor[N; f32]) -> Tensor[S - N; i64] {
        return iota(S - N)
    }"""
DIVIDED = """
    pub entry main<S: Dim, N: Dim>(x: Tensor[S; f32], y: Tensor[N; f32]) -> i64
    where S % N == 0, N > 0 { return S / N }"""
ON_TWO_LINES = """
    pub entry main<N: Dim>(x: Tensor[N; f32], i: i64) -> f32 {
        return x[ /* a "quoted" \\ {0} */
            i]
    }"""
REFUSED = [
    ("slice", [(0, 2, 4)], "main requires S > 0, which does not hold with S = 0 from axis 0 of x"),
    ("slice", [(3, 1, 4)], "main requires N >= 2, which does not hold with N = 1 from axis 1 of x"),
    (
        "fixed",
        [(2, 4), (1, 4), ()],
        "main requires B == 1, which does not hold with B = 2 from axis 0 of x",
    ),
    (
        "dot",
        [(1, 2, 3), (1, 2, 3), (3, 3)],
        "main: k has 2 on axis 1, expected S + 1 = 3 (S = 2 from axis 1 of q)",
    ),
    (
        "dot",
        [(1, 2, 3), (2, 3, 3), (3, 3)],
        "main: k has 2 on axis 0, expected B = 1 from axis 0 of q",
    ),
    (
        "solved",
        [(4,), (3,), (0,)],
        "main: x has 4 on axis 0, expected 2 * N + 1: N would be not a whole number",
    ),
    (
        DIVIDED,
        [(2,), (0,)],
        "main requires S % N == 0, which does not hold with S = 2 from axis 0 of x, N = 0 from axis 0 of y",
    ),
    (
        SUBTRACTED,
        [(2,), (3,)],
        "main: the dimension S - N at <text>:4:16 is -1 with S = 2 from axis 0 of x, N = 3 from axis 0 of y",
    ),
    (
        "gather",
        [(0, 2, 3), (1,), (1,), ()],
        "main: the access `x[i[s], w, 1]` at <text>:5:30 indexes an axis of size 0 (N with N = 0 from axis 0 of x)",
    ),
    (
        ON_TWO_LINES,
        [(0,), ()],
        'main: the access `x[ /* a "quoted" \\ {0} */\n            i]` at <text>:4:16 indexes an axis of size 0 (N with N = 0 from axis 0 of x)',
    ),
]


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        pytest.param(*row, marks=[] if i % 4 == 0 else pytest.mark.slow)
        for i, row in enumerate(REFUSED)
    ],
    ids=range(len(REFUSED)),
)
def test_sizes_that_the_module_refuses(
    text: str, shapes: Sequence[tuple[int, ...]], message: str
) -> None:
    """In the words of a call whose sizes are numbers."""
    import jax

    from linnet.jax.exported import aval, callable_of

    program = lowered("module main\n" + (PROGRAMS[text][0] if text in PROGRAMS else text))
    function = program.entries["main"]
    dtypes = [str(param.of.dtype) for param in function.values]  # type: ignore[union-attr]
    with pytest.raises(PlanError) as bound:
        bind_entry(function, list(zip(shapes, dtypes, strict=True)))
    assert str(bound.value) == message
    module = emit(program, "main", {}, "exact", function.dims)
    with jax.enable_x64(True), pytest.raises(PlanError) as told:
        taken = [aval(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        callable_of("main", module, taken, [])
    assert str(told.value) == message


@pytest.mark.slow
def test_an_axis_that_does_not_say_its_size() -> None:
    import jax

    from linnet.jax.exported import aval, callable_of

    module = module_of("solved")[1]
    for shape, said in (
        (
            [1, 3, 0],
            "main: y has 3 on axis 0, expected N * M + 2, which does not say what M is with N = 0 from axis 0 of x",
        ),
        (
            [5, 1, 0],
            "main: y has 1 on axis 0, expected N * M + 2: M would be not a whole number with N = 2 from axis 0 of x",
        ),
        (
            [5, 0, 0],
            "main: y has 0 on axis 0, expected N * M + 2: M would be negative with N = 2 from axis 0 of x",
        ),
    ):
        with jax.enable_x64(True), pytest.raises(PlanError) as told:
            callable_of("main", module, [aval((size,), "f32") for size in shape], [])
        assert str(told.value) == said


def test_names_that_cannot_stay_dynamic() -> None:
    program = family("llama", "equivalent")
    for entry, sizes, dynamic, said in (
        (
            "forward",
            {},
            ["B", "s"],
            "forward has no dimension s; its dimensions: B, S",
        ),
        ("forward", {"B": 2}, ["B", "S"], "forward: B is bound to 2 and dynamic; leave out one"),
        (
            "forward",
            {"B": 2},
            ["MaxSeq"],
            "forward: MaxSeq is a generic of the model and not of the entry, so it cannot stay dynamic; use --bind MaxSeq=16",
        ),
        (
            "generate",
            {},
            ["Steps"],
            "generate: no argument's shape gives Steps, so that cannot stay dynamic; use --bind Steps=...",
        ),
    ):
        with pytest.raises(PlanError) as told:
            emit(program, entry, sizes, "equivalent", dynamic)
        assert str(told.value) == said


@pytest.mark.slow
def test_jax_takes_it_as_a_function_of_any_size() -> None:
    """In an `Exported` of symbolic shapes."""
    import jax
    from jax import export
    from jaxlib.mlir.dialects import stablehlo

    text = PROGRAMS["dot"][0]
    program = lowered("module main\n" + text)
    b, s, d = export.symbolic_shape("B, S, D")
    given = [jax.ShapeDtypeStruct(of, np.float32) for of in ((b, s, d), (b, s + 1, d), (d, 3))]

    def frame(q: Any, k: Any, w: Any) -> Any:
        return q @ k.transpose(0, 2, 1), q @ w

    module = emit(program, "main", {}, "exact", ["B", "S", "D"])
    version = stablehlo.get_minimum_version()
    exported = replace(
        export.export(jax.jit(frame))(*given),
        mlir_module_serialized=stablehlo.serialize_portable_artifact_str(module, version),
    )
    draw = np.random.default_rng(0)
    for sizes in ((2, 3, 4), (1, 1, 1), (3, 2, 5)):
        arrays = [
            draw.standard_normal(shape).astype(np.float32)
            for shape in (sizes, (sizes[0], sizes[1] + 1, sizes[2]), (sizes[2], 3))
        ]
        for x, y in zip(frame(*arrays), jax.jit(exported.call)(*arrays), strict=True):
            assert_close(x, np.asarray(y), 2e-5)
