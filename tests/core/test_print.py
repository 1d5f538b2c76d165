"""The printed IR of programs made by hand."""

from __future__ import annotations

import math
from typing import Any

from core.graphs import dims, function, program, tensor
from linnet.core.build import Builder
from linnet.core.ir import ArrayType, Function, Manifest, ManifestEntry, Node, OpId, Program
from linnet.core.print import function_text, literal_text, program_text
from linnet.core.verify import verify
from linnet.dims import Dim, Relation
from linnet.source import Source, Span
from linnet.types import BF16, BOOL, F16, F32, F64, I32, I64, TensorType


def every_node() -> Function:
    b = Builder()
    x = b.param("x", tensor(F32, "B", "S", 8))
    ids = b.param("ids", tensor(I64, "B"))
    yes = b.param("yes", tensor(BOOL))
    w = b.param("w", tensor(F32, 4, 8), "param")
    count = b.size(Dim.of("B") * Dim.of("S") + 1, F32)
    scaled = b.elementwise("mul", x, b.elementwise("sub", count, b.literal(0.5, F32)))
    half = b.slice(scaled, [None, None, (Dim.of(0), Dim.of(8), 2)])
    rotated = b.concat([half, b.unary("neg", half)], -1)
    flat = b.reshape(b.permute(rotated, (1, 0, 2)), [Dim.of("B") * Dim.of("S"), Dim.of(8)])
    positive = b.comparison("gt", flat, b.literal(0.0, F32))
    kept = b.selection(positive, flat, b.literal(0.0, F32))
    product = b.dot(kept, w, (), ((1, 1),), F32)
    batched = b.dot(x, x, ((0, 0),), ((2, 2),), F32)
    top = b.reduce("max", product, (0, 1))
    row = b.gather(x, [ids, None, b.iota(Dim.of("B"), I64)], [False, False, True])
    low = b.cast(row, BF16)
    none = b.unary("not", yes)
    return function([top, low, batched, none], [x, ids, yes, w], names=("B", "S"), name="every")


def layered() -> Program:
    """A model of two layers that call an op, loop, branch and keep state."""
    o = Builder()
    v = o.param("v", tensor(F32, "N", 2))
    norm = function(
        [o.elementwise("div", v, o.reshape(o.reduce("sum", v, (1,)), dims("N", 1)))],
        [v],
        name="norm",
        kind="op",
        names=("N",),
        facts=[Relation(">", Dim.of("N"), Dim.of(0))],
        op=OpId("std", "std.nn.norm", "norm"),
    )
    m = Builder()
    x, w = m.param("x", tensor(F32, "B", 2)), m.param("w", tensor(F32, 2), "param")
    seen = m.param("seen", tensor(I64), "state")
    y = m.result(m.call(norm, [x], dims("B")), 0)
    layer = function(
        [m.elementwise("mul", y, w), m.binary("add", seen, m.literal(1, I64))],
        [x, w, seen],
        name="Layer.forward",
        kind="method",
        names=("B",),
        writes=("seen",),
        facts=[Relation(">=", Dim.of("B"), Dim.of(1))],
    )
    w_, s_ = ArrayType(tensor(F32, 2), 2), ArrayType(tensor(I64), 2)
    loop = Builder()
    i, x = loop.param("layer", tensor(I64)), loop.param("x", tensor(F32, "B", 2))
    lw = loop.param("w", tensor(F32, 2), "param", "layer")
    ls = loop.param("seen", tensor(I64), "state", "layer")
    step = loop.call(layer, [x, lw, ls], dims("B"))
    step_body = function(loop.results(step), [i, x, lw, ls], name="body", kind="body", names=("B",))
    b = Builder()
    x = b.param("x", tensor(F32, "B", 2))
    weights, states = b.param("layers.*.w", w_, "param"), b.param("layers.*.seen", s_, "state")
    out, new = b.results(b.for_(step_body, "layer", Dim.of(0), Dim.of(2), [x], [weights, states]))
    first = b.element(new, 0)
    picked = b.result(
        b.if_(b.compare("lt", first, b.literal(5, I64)), branch(1.0), branch(-2.0), [out]), 0
    )
    spent = b.result(b.while_(*halving(), [b.reduce("sum", picked, (0, 1)), first], 1), 0)
    reset = b.update(new, 1, b.literal(0, I64))
    forward = function(
        [picked, spent, reset],
        [x, weights, states],
        name="Model.forward",
        names=("B",),
        writes=("layers.*.seen",),
        facts=[Relation(">", Dim.of("B"), Dim.of(0))],
    )
    p = program(norm, layer, forward)
    one: Any = TensorType
    members = (
        ManifestEntry("layers.*.w", (2,), "param", one(dims(2), F32), False),
        ManifestEntry("layers.*.seen", (2,), "state", one((), I64), False),
        ManifestEntry("bias", (), "param", one(dims(2), F32), True),
    )
    return Program(
        "Model", p.functions, p.entries, Manifest("Model", members), {"H": 2}, "Model.forward"
    )


def branch(value: float) -> Function:
    b = Builder()
    v = b.param("v", tensor(F32, "B", 2))
    scaled = b.elementwise("mul", v, b.literal(value, F32))
    return function([scaled], [v], name="branch", kind="body", names=("B",))


def halving() -> tuple[Function, Function]:
    out: list[Function] = []
    for step in (False, True):
        b = Builder()
        v, n = b.param("v", tensor(F32)), b.param("n", tensor(I64))
        result: Node = b.compare("gt", v, b.cast(n, F32))
        if step:
            result = b.binary("div", v, b.literal(2.0, F32))
        out.append(function([result], [v, n], name="body", kind="body", names=("B",)))
    return out[0], out[1]


def test_every_node(golden: Any) -> None:
    f = every_node()
    verify(program(f))
    golden(function_text(f))


def test_a_layered_model(golden: Any) -> None:
    p = layered()
    verify(p)
    golden(program_text(p))


def test_positions_on_request() -> None:
    b = Builder()
    source = Source("a.linnet", "module a\n-x\n")
    x = b.param("x", tensor(I32))
    f = function([b.unary("neg", x, Span(source, 9, 11))], [x])
    assert function_text(f, spans=True) == (
        "entry f\n  x: i32\n  %0 = neg x : i32  // a.linnet:2:1\n  return %0\n"
    )


def test_text_does_not_depend_on_the_order_of_making() -> None:
    def build(flip: bool) -> str:
        b = Builder()
        x, y = b.param("x", tensor(F32)), b.param("y", tensor(F32))
        first = [lambda: b.unary("exp", x), lambda: b.unary("log", y)]
        made = [make() for make in (reversed(first) if flip else first)]
        a, c = reversed(made) if flip else made
        return function_text(function([b.binary("add", a, c)], [x, y]))

    assert build(True) == build(False)


def test_constants_print_in_the_fewest_digits_that_give_them_back() -> None:
    tenth = Builder().literal(0.1, F32)
    assert literal_text(tenth.value, F32) == "0.1:f32"  # type: ignore[attr-defined]
    assert literal_text(0.10009765625, BF16) == "0.1:bf16"
    assert literal_text(0.1, F64) == "0.1:f64"
    assert literal_text(-math.inf, F16) == "-inf:f16"
    assert literal_text(-0.0, F32) == "-0.0:f32"
    assert literal_text(7, I32) == "7:i32"
    assert literal_text(True, BOOL) == "true"
