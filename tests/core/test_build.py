"""Constructors: types from rules, identities gone, equal nodes one node, bugs refused."""

from __future__ import annotations

import math

import pytest

from core.graphs import dims, function, tensor
from linnet.core.build import Builder
from linnet.core.ir import ArrayType, Expand, Literal, Size
from linnet.diagnostics import InternalError
from linnet.dims import Dim, Facts, Relation
from linnet.source import Source, Span
from linnet.types import BF16, BOOL, F32, I8, I64, U8


def test_equal_nodes_are_one_node_whatever_their_place() -> None:
    b = Builder()
    x = b.param("x", tensor(F32, "B", 4))
    text = Source("a", "xx")
    one = b.unary("neg", x, Span(text, 0, 1))
    assert b.unary("neg", x, Span(text, 1, 2)) is one
    assert b.unary("abs", x) is not one
    assert b.permute(one, [1, 0]) is b.permute(one, (1, 0))


def test_constants_are_told_apart_by_bits_and_dtype() -> None:
    b = Builder()
    constants = [
        b.literal(0.0, F32),
        b.literal(-0.0, F32),
        b.literal(1.0, F32),
        b.literal(1, I64),
        b.literal(True, BOOL),
        b.literal(1, I8),
        b.literal(1.0, BF16),
        b.literal(math.nan, F32),
    ]
    assert len(set(constants)) == len(constants)
    assert b.literal(math.nan, F32) is constants[-1]
    assert b.literal(1, F32) is constants[2]


def test_constants_are_rounded_to_their_dtype_and_integers_must_fit() -> None:
    b = Builder()
    tenth = b.literal(0.1, BF16)
    assert isinstance(tenth, Literal) and tenth.value == 0.10009765625
    for value in (256, -1, 1.5):
        with pytest.raises(InternalError, match="does not fit u8"):
            b.literal(value, U8)


def test_sizes_that_are_known_are_constants() -> None:
    b = Builder()
    assert b.size(300, U8) is b.literal(44, U8)
    assert b.size(Dim.of("B") - Dim.of("B") + 2, F32) is b.literal(2.0, F32)
    assert isinstance(b.size(Dim.of("B"), I64), Size)


def test_identities_are_dropped() -> None:
    b = Builder()
    x = b.param("x", tensor(F32, "B", 4))
    assert b.cast(x, F32) is x
    assert b.reshape(x, dims("B", 4)) is x
    assert b.permute(x, (0, 1)) is x
    assert b.expand(x, dims("B", 4), (0, 1)) is x
    assert b.broadcast(x, dims("B", 4)) is x
    assert b.slice(x, [None, (Dim.of(0), Dim.of(4), 1)]) is x
    assert b.concat([x], 0) is x
    assert b.reduce("sum", x, ()) is x
    assert b.gather(x, [None, None]) is x


def test_what_the_facts_prove_equal_needs_no_reshape() -> None:
    b = Builder(Facts.of([Relation("==", Dim.of("A"), Dim.of("B"))]))
    x = b.param("x", tensor(F32, "A", 4))
    assert b.reshape(x, dims("B", 4)) is x
    assert b.reshape(x, dims(4, "B")) is not x
    assert Builder().reshape(x, dims("B", 4)) is not x


def test_broadcasting_expands_only_what_repeats() -> None:
    b = Builder()
    x = b.param("x", tensor(F32, "B", 1, 4))
    y = b.param("y", tensor(F32, 3, 1))
    z = b.elementwise("add", x, y)
    assert z.type == tensor(F32, "B", 3, 4)
    w = b.elementwise("mul", z, b.literal(2.0, F32))
    assert w.type == z.type
    c = b.comparison("lt", x, b.literal(0.0, F32))
    assert c.type == tensor(BOOL, "B", 1, 4)
    assert b.selection(c, y, b.literal(0.0, F32)).type == tensor(F32, "B", 3, 4)
    assert isinstance(b.fill(b.literal(1.0, F32), dims(2)), Expand)


def test_types_follow_the_rules() -> None:
    b = Builder()
    x = b.param("x", tensor(BF16, "B", "H", 7))
    i = b.param("i", tensor(I64, 5))
    ends = (Dim.of(1), Dim.of(6), 2)
    assert b.slice(x, [None, None, ends]).type == tensor(BF16, "B", "H", 3)
    assert b.gather(x, [None, i, None]).type == tensor(BF16, 5, "B", 7)
    assert b.concat([x, x], -1).type == tensor(BF16, "B", "H", 14)
    assert b.reduce("max", x, (2, 0)).type == tensor(BF16, "H")
    dot = b.dot(x, x, ((0, 0),), ((2, 2),), F32)
    assert dot.type == tensor(F32, "B", "H", "H")


def test_a_call_has_its_callees_types_in_the_callers_sizes() -> None:
    c = Builder()
    v = c.param("v", tensor(F32, "N", "M"))
    callee = function([c.permute(v, (1, 0)), v], [v], kind="fn", names=("N", "M"))
    b = Builder()
    x = b.param("x", tensor(F32, "M", 8))
    first, second = b.results(b.call(callee, [x], dims("M", 8)))
    assert first.type == tensor(F32, 8, "M") and second.type == x.type


def test_arrays_of_members() -> None:
    b = Builder()
    of = ArrayType(ArrayType(tensor(F32, 2), 3), 4)
    x = b.param("layers.*.experts.*.w", of, "param")
    assert b.element(b.element(x, 3), 2).type == tensor(F32, 2)
    assert b.update(x, 0, b.element(x, 1)).type == of
    with pytest.raises(InternalError, match="element 4"):
        b.element(x, 4)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda b, x, i: b.binary("add", x, i),
        lambda b, x, i: b.binary("shl", x, x),
        lambda b, x, i: b.binary("add", x, b.reduce("sum", x, (0,))),
        lambda b, x, i: b.unary("exp", i),
        lambda b, x, i: b.select(x, x, x),
        lambda b, x, i: b.reshape(x, dims(9)),
        lambda b, x, i: b.permute(x, (0, 0)),
        lambda b, x, i: b.expand(x, dims(2, 4), (1, 0)),
        lambda b, x, i: b.expand(x, dims(3, 4), (0, 1)),
        lambda b, x, i: b.slice(x, [None, (Dim.of(0), Dim.of(5), 1)]),
        lambda b, x, i: b.slice(x, [None]),
        lambda b, x, i: b.concat([x, b.permute(x, (1, 0))], 0),
        lambda b, x, i: b.concat([x, x], 2),
        lambda b, x, i: b.gather(x, [x, None]),
        lambda b, x, i: b.gather(x, [i]),
        lambda b, x, i: b.reduce("any", x, (0,)),
        lambda b, x, i: b.reduce("sum", x, (2,)),
        lambda b, x, i: b.dot(x, x, (), ((0, 1),), F32),
        lambda b, x, i: b.dot(x, x, (), ((0, 0), (0, 1)), F32),
        lambda b, x, i: b.iota(Dim.of(3), BOOL),
        lambda b, x, i: b.result(x, 0),
        lambda b, x, i: b.element(x, 0),
    ],
)
def test_what_no_rule_allows_is_our_bug(wrong) -> None:  # type: ignore[no-untyped-def]
    b = Builder()
    x, i = b.param("x", tensor(F32, 2, 4)), b.param("i", tensor(I64, 3))
    with pytest.raises(InternalError):
        wrong(b, x, i)


def test_loops_and_branches_refuse_bodies_that_do_not_fit() -> None:
    c = Builder()
    v = c.param("v", tensor(F32, 2))
    same = function([c.unary("neg", v)], [v], kind="body")
    other = function([c.reduce("sum", v, (0,))], [v], kind="body")
    b = Builder()
    x, yes = b.param("x", tensor(F32, 2)), b.param("yes", tensor(BOOL))
    assert b.result(b.if_(yes, same, same, [x]), 0).type == x.type
    with pytest.raises(InternalError, match="results 0"):
        b.if_(yes, same, other, [x])
    with pytest.raises(InternalError, match="1 and 0 inputs of then"):
        b.if_(yes, same, same, [])
    with pytest.raises(InternalError, match="results of test"):
        b.while_(other, same, [x], 1)
    with pytest.raises(InternalError, match="inputs of body"):
        b.for_(same, "i", Dim.of(0), Dim.of(3), [x])
    with pytest.raises(InternalError, match=r"scanned over 0\.\.3"):
        b.for_(same, "i", Dim.of(0), Dim.of(3), [], [x])
    turn = function([c.unary("neg", v)], [c.param("i", tensor(I64)), v], kind="body")
    stack = b.for_(turn, "i", Dim.of(1), Dim.of("N"), [], [], [x], 1)
    assert b.result(stack, 0).type == tensor(F32, Dim.of("N") - 1, 2)
    with pytest.raises(InternalError, match=r"not 3 <= 2 \(E2209\)"):
        b.for_(turn, "i", Dim.of(3), Dim.of(2), [], [], [x], 1)
