"""Each node of the reference against plain Python: integers by Python's, floats by fractions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.graphs import arrays, dims, function, program, tensor, unary_function
from linnet.core.build import Builder
from linnet.core.ir import ArrayType, Function, Node
from linnet.core.scalars import fold_unary, round_float
from linnet.diagnostics import PlanError
from linnet.dims import Dim
from linnet.reference import evaluate, evaluate_function
from linnet.source import Source, Span
from linnet.types import BF16, BOOL, DTYPES, F16, F32, F64, I8, I16, I32, I64, U8, U64, DType
from linnet.weights.arrays import DTYPES as ARRAYS

INTEGERS = [d for d in DTYPES.values() if d.is_integer]
FLOATS = [F16, BF16, F32, F64]


def wrapped(value: int, dtype: DType) -> int:
    low = -(2 ** (dtype.bits - 1)) if dtype.kind == "int" else 0
    return (value - low) % 2**dtype.bits + low


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def edges(dtype: DType) -> list[int]:
    info = np.iinfo(ARRAYS[dtype.name])
    low, high = int(info.min), int(info.max)
    inner = [-9, -7, -2, -1, 0, 1, 2, 7, 8, 9, 63, 64]
    return sorted({low, low + 1, high - 1, high, *(i for i in inner if low <= i <= high)})


def of_integers(op: str, a: int, b: int, bits: int) -> int:
    inside = 0 <= b < bits
    match op:
        case "div":
            return 0 if b == 0 else truncated(a, b)
        case "rem":
            return a if b == 0 else a - truncated(a, b) * b
        case "shl":
            return a << b if inside else 0
        case "shr":
            return a >> b if inside else (-1 if a < 0 else 0)
        case "and" | "or" | "xor":
            return {"and": a & b, "or": a | b, "xor": a ^ b}[op]
        case "min" | "max":
            return min(a, b) if op == "min" else max(a, b)
        case _:
            return {"add": a + b, "sub": a - b, "mul": a * b}[op]


BINARY = ["add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr"]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(dtype: DType) -> None:
    pairs = list(itertools.product(edges(dtype), repeat=2))
    to = ARRAYS[dtype.name]
    a = np.array([x for x, _ in pairs], to)
    b = np.array([y for _, y in pairs], to)
    f = unary_function(
        lambda b, x, y: [b.binary(op, x, y) for op in BINARY],
        tensor(dtype, len(pairs)),
        tensor(dtype, len(pairs)),
    )
    for op, out in zip(BINARY, evaluate_function(f, [a, b]), strict=True):
        assert out.dtype == to
        expected = [wrapped(of_integers(op, x, y, dtype.bits), dtype) for x, y in pairs]
        assert out.tolist() == expected, op
    g = unary_function(
        lambda b, x: [b.unary(op, x) for op in ("neg", "abs", "not")], tensor(dtype, len(a))
    )
    negated, positive, inverted = evaluate_function(g, [a])
    assert negated.tolist() == [wrapped(-int(x), dtype) for x in a]
    assert positive.tolist() == [wrapped(abs(int(x)), dtype) for x in a]
    assert inverted.tolist() == [wrapped(~int(x), dtype) for x in a]


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_float_arithmetic_is_rounded_once(dtype: DType, data: Any) -> None:
    """f64 holds the result before rounding closely enough for these four and the root."""
    of = tensor(dtype, 12)
    bits = st.binary(min_size=12 * dtype.bits // 8, max_size=12 * dtype.bits // 8)
    a, b = (np.frombuffer(data.draw(bits), ARRAYS[dtype.name]) for _ in range(2))
    f = unary_function(
        lambda b, x, y: (
            [b.binary(op, x, y) for op in ("add", "sub", "mul", "div")]
            + [b.unary("sqrt", b.unary("abs", x))]
        ),
        of,
        of,
    )
    *four, root = evaluate_function(f, [a, b])
    with np.errstate(all="ignore"):
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        wanted = [wide_a + wide_b, wide_a - wide_b, wide_a * wide_b, wide_a / wide_b]
        wanted.append(np.sqrt(np.abs(wide_a)))
    for out, exact in zip([*four, root], wanted, strict=True):
        rounded = [round_float(float(x), dtype) for x in exact]
        with np.errstate(all="ignore"):  # signalling NaNs are among them
            np.testing.assert_array_equal(out.astype(np.float64), rounded)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions_of_floats(dtype: DType) -> None:
    x = np.array([0.0, 0.25, 1.0, 2.0, 3.5, 9.0, 40.0]).astype(ARRAYS[dtype.name])
    wanted: dict[str, Any] = {
        "exp": math.exp,
        "log": lambda v: math.log(v) if v else -math.inf,
        "rsqrt": lambda v: 1 / math.sqrt(v) if v else math.inf,
        "sin": math.sin,
        "cos": math.cos,
        "tanh": math.tanh,
    }
    f = unary_function(lambda b, x: [b.unary(op, x) for op in wanted], tensor(dtype, len(x)))
    for (op, one), out in zip(wanted.items(), evaluate_function(f, [x]), strict=True):
        exact = [round_float(one(float(v)), dtype) for v in x]
        unit = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-50}[dtype.name]
        np.testing.assert_allclose(out.astype(np.float64), exact, rtol=unit, err_msg=op)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_edges(dtype: DType) -> None:
    nan = math.nan
    a = np.array([nan, 1.0, 7.5, -7.5, 1.0, -1.0]).astype(ARRAYS[dtype.name])
    b = np.array([1.0, nan, 2.0, 2.0, 0.0, 0.0]).astype(ARRAYS[dtype.name])
    f = unary_function(
        lambda b, x, y: (
            [b.binary(op, x, y) for op in ("min", "max", "rem", "div")]
            + [b.compare(op, x, y) for op in ("eq", "ne", "lt", "ge")]
        ),
        tensor(dtype, 6),
        tensor(dtype, 6),
    )
    low, high, rest, quotient, same, other, less, least = evaluate_function(f, [a, b])
    np.testing.assert_array_equal(low.astype(float), [nan, nan, 2.0, -7.5, 0.0, -1.0])
    np.testing.assert_array_equal(high.astype(float), [nan, nan, 7.5, 2.0, 1.0, 0.0])
    np.testing.assert_array_equal(rest.astype(float), [nan, nan, 1.5, -1.5, nan, nan])
    wanted = [nan, nan, 3.75, -3.75, math.inf, -math.inf]
    np.testing.assert_array_equal(quotient.astype(float), wanted)
    assert same.tolist() == [False] * 6 and other.tolist() == [True] * 6
    assert less.tolist() == [False, False, False, True, False, True]
    assert least.tolist() == [False, False, True, False, True, False]


def cast_by_hand(value: Any, source: DType, to: DType) -> Any:
    if to is BOOL:
        return value != 0
    if to.is_float:
        return round_float(float(value) if source.is_float else int(value), to)
    if not source.is_float:
        return wrapped(int(value), to)
    if math.isnan(value):
        return 0
    info = np.iinfo(ARRAYS[to.name])
    low, high = int(info.min), int(info.max)
    return low if value <= low else high if value >= high else math.trunc(value)


PROBES: list[float] = [0.0, 0.4, -0.6, 1.0, 2.5, -3.99, 127.5, 128.0, -128.9, 255.5, 65503.0]
PROBES += [2.0**31, -(2.0**31), 2.0**63, -(2.0**63), 2.0**64, 1e30, -1e30]
PROBES += [math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("source", list(DTYPES.values()), ids=str)
def test_casts(source: DType) -> None:
    to = ARRAYS[source.name]
    if source is BOOL:
        values: list[Any] = [True, False]
    elif source.is_float:
        values = PROBES
    else:
        middle = [2**53 + 1, 2**40 + 2**32 + 1, 2**33 + 2**25, 2**24 + 1]
        top = int(np.iinfo(to).max)
        values = edges(source) + [m for m in middle if m <= top]
    with np.errstate(all="ignore"):
        x = np.array(values, object).astype(to)
    held = [round_float(v, source) if source.is_float else v for v in values]
    targets = list(DTYPES.values())
    f = unary_function(lambda b, x: [b.cast(x, to) for to in targets], tensor(source, len(values)))
    for target, out in zip(targets, evaluate_function(f, [x]), strict=True):
        assert out.dtype == ARRAYS[target.name]
        wanted = [cast_by_hand(v, source, target) for v in held]
        found = out.astype(np.float64) if target.is_float else out
        np.testing.assert_array_equal(found, wanted, err_msg=str(target))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8))
def test_large_integers_become_bf16_in_one_rounding(values: list[int]) -> None:
    f = unary_function(lambda b, x: b.cast(x, BF16), tensor(I64, len(values)))
    (out,) = evaluate_function(f, [np.array(values, np.int64)])
    assert out.astype(float).tolist() == [round_float(v, BF16) for v in values]


# ---------------------------------------------------------------- sums


@pytest.mark.parametrize("dtype", [I8, U8, I32, F16, BF16, F32], ids=str)
def test_reductions_over_nothing(dtype: DType) -> None:
    ops = ["sum", "prod", "max", "min"]
    f = unary_function(
        lambda b, x: [b.reduce(op, x, (1,)) for op in ops], tensor(dtype, 2, "K"), names=("K",)
    )
    x = np.zeros((2, 0), ARRAYS[dtype.name])
    total, product, top, bottom = evaluate_function(f, [x], {"K": 0})
    assert total.tolist() == [0, 0] and product.tolist() == [1, 1]
    if dtype.is_float:
        assert top.astype(float).tolist() == [-math.inf] * 2
        assert bottom.astype(float).tolist() == [math.inf] * 2
    else:
        info = np.iinfo(x.dtype)
        assert top.tolist() == [info.min] * 2 and bottom.tolist() == [info.max] * 2
    g = unary_function(
        lambda b, x: [b.reduce("any", x, (0,)), b.reduce("all", x, (0,))],
        tensor(BOOL, "K"),
        names=("K",),
    )
    some, every = evaluate_function(g, [np.zeros(0, bool)], {"K": 0})
    assert not some and every


def test_reductions_wrap_and_pass_nan_on() -> None:
    f = unary_function(
        lambda b, x: [b.reduce(op, x, (0,)) for op in ("sum", "prod")], tensor(I8, 3)
    )
    total, product = evaluate_function(f, [np.array([100, 100, 3], np.int8)])
    assert total == wrapped(203, I8) and product == wrapped(30000, I8)
    g = unary_function(
        lambda b, x: [b.reduce(op, x, (0,)) for op in ("max", "min")], tensor(BF16, 3)
    )
    for out in evaluate_function(g, [np.array([1, np.nan, 3], ml_dtypes.bfloat16)]):
        assert np.isnan(out.astype(float))


@pytest.mark.parametrize("dtype", [I8, I32, U64, F16, BF16, F32, F64], ids=str)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_dot_is_the_sum_of_the_products(dtype: DType, data: Any) -> None:
    """Batched, with axes out of order, against the sum written out."""
    a_type, b_type = tensor(dtype, 3, "B", 2), tensor(dtype, "B", 2, 3)
    size = {"B": data.draw(st.integers(0, 2))}
    x, y = (data.draw(arrays(t, size, False)) for t in (a_type, b_type))

    def build(b: Builder, a: Node, c: Node) -> list[Node]:
        dot = b.dot(a, c, ((1, 0),), ((0, 2),), dtype)
        frame = dims("B", 2, 2, 3)
        left = b.expand(b.permute(a, (1, 2, 0)), frame, (0, 1, 3))
        right = b.expand(c, frame, (0, 2, 3))
        return [dot, b.reduce("sum", b.binary("mul", left, right), (3,))]

    f = unary_function(build, a_type, b_type, names=("B",))
    dot, spelled = evaluate_function(f, [x, y], size)
    assert dot.shape == (size["B"], 2, 2)
    np.testing.assert_array_equal(dot, spelled)


def test_a_wider_dot_does_not_round_its_products() -> None:
    f = unary_function(
        lambda b, x, y: [b.dot(x, y, (), ((1, 0),), F32)], tensor(BF16, 1, 2), tensor(BF16, 2, 1)
    )
    x = np.array([[1.0078125, 1.0]], ml_dtypes.bfloat16)
    y = np.array([[1.0078125], [-1.0]], ml_dtypes.bfloat16)
    (out,) = evaluate_function(f, [x, y])
    assert out.dtype == np.float32 and out[0, 0] == np.float32(1.0078125**2 - 1)


# ---------------------------------------------------------------- shapes


def test_shapes_follow_numpy() -> None:
    x = np.arange(24, dtype=np.int32).reshape(2, 3, 4)

    def build(b: Builder, x: Node) -> list[Node]:
        return [
            b.reshape(x, dims(4, "B", 3)),
            b.permute(x, (2, 0, 1)),
            b.expand(x, dims(5, 2, 3, 1, 4), (1, 2, 4)),
            b.slice(x, [None, (Dim.of(1), Dim.of(3), 1), (Dim.of(0), Dim.of(4), 3)]),
            b.concat([x, x], -2),
            b.fill(b.literal(7, I32), dims("B", 2)),
            b.iota(Dim.of("B") + 3, BF16),
        ]

    f = unary_function(build, tensor(I32, "B", 3, 4), names=("B",))
    flat, turned, spread, cut, joined, filled, counted = evaluate_function(f, [x], {"B": 2})
    np.testing.assert_array_equal(flat, x.reshape(4, 2, 3))
    np.testing.assert_array_equal(turned, x.transpose(2, 0, 1))
    np.testing.assert_array_equal(spread, np.broadcast_to(x[None, :, :, None], (5, 2, 3, 1, 4)))
    np.testing.assert_array_equal(cut, x[:, 1:3, 0:4:3])
    np.testing.assert_array_equal(joined, np.concatenate([x, x], 1))
    assert filled.tolist() == [[7, 7], [7, 7]]
    assert counted.astype(float).tolist() == [0, 1, 2, 3, 4]


SOURCE = Source("look.linnet", "module a\nlet y = table[ids]\n")
SPAN = Span(SOURCE, 17, 27)


def lookup(dtype: DType, rank: int = 1) -> Function:
    b = Builder()
    table = b.param("table", tensor(F32, "V", 2))
    ids = b.param("ids", tensor(dtype, *["N"] * rank))
    return function(
        [b.gather(table, [ids, None], span=SPAN)], [table, ids], names=("V", "N"), name="embed"
    )


@pytest.mark.parametrize("dtype", [I8, U8, I64, U64], ids=str)
def test_a_runtime_index_is_clamped(dtype: DType) -> None:
    table = np.arange(600, dtype=np.float32).reshape(300, 2)
    info = np.iinfo(ARRAYS[dtype.name])
    ids = np.array([info.min, 1, info.max], info.dtype)
    (out,) = evaluate_function(lookup(dtype), [table, ids], {"V": 300, "N": 3})
    expected = [min(max(int(i), 0), 299) for i in ids]
    np.testing.assert_array_equal(out, table[expected])


def test_an_index_outside_its_axis_is_named_when_checked() -> None:
    table = np.zeros((3, 2), np.float32)
    p = program(lookup(I64))
    for bad in (3, -1):
        with pytest.raises(PlanError) as caught:
            evaluate(p, "embed", [table, np.array([0, bad])], checked=True)
        assert str(caught.value) == (
            f"index {bad} is outside 0 .. 2 on axis 0 in `table[ids]` at look.linnet:2:9"
        )
    evaluate(p, "embed", [table, np.array([0, 2])], checked=True)


def test_gathers_put_the_index_axes_first() -> None:
    x = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
    i = np.array([[0, 1], [1, 1]])

    def build(b: Builder, x: Node, i: Node) -> list[Node]:
        return [
            b.gather(x, [None, i, None]),
            b.gather(x, [i, None, i]),
            b.gather(x, [i, i, i]),
            b.gather(x, [None, None, b.literal(-3, I32)]),
        ]

    f = unary_function(build, tensor(I64, 2, 3, 4), tensor(I64, 2, 2))
    middle, outer, every, one = evaluate_function(f, [x, i])
    np.testing.assert_array_equal(middle, np.moveaxis(x[:, i], 0, 2))
    np.testing.assert_array_equal(outer, x[i, :, i])
    np.testing.assert_array_equal(every, x[i, i, i])
    np.testing.assert_array_equal(one, x[:, :, 0])


# ---------------------------------------------------------------- control flow


def body(results: list[Node], params: list[Node], names: tuple[str, ...] = ()) -> Function:
    return function(results, params, name="body", kind="body", names=names)


def test_while_counts_and_if_takes_one_branch() -> None:
    t, w = Builder(), Builder()
    i, n = (t.param(x, tensor(I64)) for x in ("i", "n"))
    test = body([t.compare("lt", i, n)], [i, n])
    i, n = (w.param(x, tensor(I64)) for x in ("i", "n"))
    step = body([w.binary("add", i, w.literal(3, I64))], [i, n])
    b = Builder()
    n = b.param("n", tensor(I64))
    loop = b.result(b.while_(test, step, [b.literal(0, I64), n], 1), 0)
    e = Builder()
    v = e.param("v", tensor(I64))
    big = body([e.literal(1, I64)], [v])
    small = body([e.unary("neg", v)], [v])
    picked = b.result(b.if_(b.compare("gt", loop, b.literal(5, I64)), big, small, [loop]), 0)
    p = program(function([loop, picked], [n]))
    assert evaluate(p, None, [7]) == (9, 1)
    assert evaluate(p, None, [2]) == (3, -3)
    assert evaluate(p, None, [0]) == (0, 0)


def layered() -> Function:
    """Three layers: x = x * w[layer] + i, each writing what it saw to its own state."""
    w = Builder()
    i = w.param("layer", tensor(I64))
    x = w.param("x", tensor(F32, 2))
    weight = w.param("w", tensor(F32), "param", "layer")
    seen = w.param("seen", tensor(F32, 2), "state", "layer")
    grown = w.elementwise("mul", x, weight)
    step = body(
        [w.elementwise("add", grown, w.cast(i, F32)), w.binary("add", seen, x)],
        [i, x, weight, seen],
    )
    b = Builder()
    x = b.param("x", tensor(F32, 2))
    weights = b.param("layers.*.w", ArrayType(tensor(F32), 3), "param")
    states = b.param("layers.*.seen", ArrayType(tensor(F32, 2), 3), "state")
    loop = b.for_(step, "layer", Dim.of(0), Dim.of(3), [x], [weights, states])
    out, new = b.results(loop)
    return function([out, new], [x, weights, states], writes=("layers.*.seen",))


def test_a_loop_over_layers_keeps_their_state() -> None:
    p = program(layered())
    members = {f"layers.{i}.w": np.float32(i + 1) for i in range(3)}
    state: dict[str, np.ndarray] = {"layers.1.seen": np.array([5, 5], np.float32)}
    x = np.array([1, 2], np.float32)
    # 1 -> 1*1+0 = 1 -> 1*2+1 = 3 -> 3*3+2 = 11; 2 -> 2 -> 5 -> 17.
    assert evaluate(p, "f", [x], members, state).tolist() == [11, 17]
    assert {k: v.tolist() for k, v in state.items()} == {
        "layers.0.seen": [1, 2],
        "layers.1.seen": [6, 7],
        "layers.2.seen": [3, 5],
    }
    evaluate(p, "f", [x], members, state)
    assert state["layers.2.seen"].tolist() == [6, 10]
    assert evaluate(p, "f", [x], members).tolist() == [11, 17]


def test_all_problems_of_members_come_in_one_report() -> None:
    p = program(layered())
    members = {"layers.0.w": np.float32(1), "layers.2.w": np.zeros(3, np.float64)}
    state = {"layers.1.seen": np.zeros(3, np.float32)}
    with pytest.raises(PlanError) as caught:
        evaluate(p, "f", [np.zeros(2, np.float32)], members, state)
    assert str(caught.value).splitlines() == [
        "f cannot run with these members:",
        "  param layers.1.w is missing, expected f32",
        "  param layers.2.w is Tensor[3; f64], expected f32",
        "  state layers.1.seen is Tensor[3; f32], expected Tensor[2; f32]",
    ]


def test_elements_are_read_and_replaced() -> None:
    b = Builder()
    x = b.param("xs.*", ArrayType(tensor(I16), 3), "state")
    new = b.update(x, 1, b.binary("add", b.element(x, 0), b.element(x, 2)))
    p = program(function([b.element(new, 1), new], [x], writes=("xs.*",)))
    state: dict[str, np.ndarray] = {f"xs.{i}": np.array(i + 1, np.int16) for i in range(3)}
    assert evaluate(p, "f", [], {}, state) == 4
    assert [int(state[f"xs.{i}"]) for i in range(3)] == [1, 4, 3]


def test_calls_bind_the_callees_dims() -> None:
    c = Builder()
    v = c.param("v", tensor(F64, "N"))
    mean = c.binary("div", c.reduce("sum", v, (0,)), c.size(Dim.of("N"), F64))
    callee = function([mean], [v], name="mean", kind="fn", names=("N",))
    b = Builder()
    x = b.param("x", tensor(F64, "A", "B"))
    flat = b.reshape(x, [Dim.of("A") * Dim.of("B")])
    out = b.result(b.call(callee, [flat], [Dim.of("A") * Dim.of("B")]), 0)
    p = program(callee, function([out], [x], names=("A", "B")))
    assert evaluate(p, "f", [np.arange(6.0).reshape(2, 3)]) == 2.5


def test_large_values_are_let_go_after_their_last_use() -> None:
    """A chain of sixty arrays of 1 MB needs a few of them at a time."""
    import tracemalloc

    b = Builder()
    x = b.param("x", tensor(F32, 2**18))
    y: Node = x
    for i in range(60):
        y = b.binary("add", y, b.fill(b.literal(i, F32), dims(2**18)))
    f = function([b.reduce("sum", y, (0,))], [x])
    tracemalloc.start()
    evaluate_function(f, [np.zeros(2**18, np.float32)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 2**20


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
def test_functions_of_constants_are_folded_to_what_the_reference_gives(dtype: DType) -> None:
    ops: list[Any] = ["exp", "log", "sin", "cos", "tanh", "rsqrt", "sqrt"]
    values = [0.25, 1.0, 2.0, 3.5, 8.0, 64.0, 10000.0]
    of = tensor(dtype, len(values))
    f = unary_function(lambda b, x: [b.unary(op, x) for op in ops], of)
    x = np.array(values).astype(ARRAYS[dtype.name])
    for op, out in zip(ops, evaluate_function(f, [x]), strict=True):
        for value, wanted in zip(values, out.astype(float), strict=True):
            folded = fold_unary(op, round_float(value, dtype), dtype)
            assert folded is None or folded == wanted, (op, value)
