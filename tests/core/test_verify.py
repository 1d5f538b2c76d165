"""Every planted fault is found, and the error names function, node and reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.graphs import dims, function, program, tensor
from linnet.core.build import Builder
from linnet.core.ir import ArrayType, Binary, Call, Function, Node, Param, Permute, Unary
from linnet.core.verify import verify, verify_function
from linnet.diagnostics import InternalError
from linnet.dims import Dim, Relation
from linnet.types import F32, I64, DTypeVar, Pack, TensorType


def fault(f: Function) -> str:
    with pytest.raises(InternalError) as caught:
        verify_function(f)
    return str(caught.value)


def plain(
    b: Builder, *results: Node, names: tuple[str, ...] = ("B",), facts: tuple[Relation, ...] = ()
) -> Function:
    params = [n for n in b._nodes.values() if isinstance(n, Param)]
    return function(results, params, names=names, facts=facts)


def test_a_type_that_its_rule_does_not_give() -> None:
    b = Builder()
    x = b.param("x", tensor(F32, "B", 4))
    wrong = Permute(x, (1, 0), type=tensor(F32, "B", 4))
    assert fault(plain(b, wrong)) == (
        "internal error in verify: in f: %0 = permute x [1, 0] : Tensor[B, 4; f32]: "
        "its type: Tensor[B, 4; f32] is not Tensor[4, B; f32]: B == 4 not known"
    )
    wrong = Permute(x, (1, 0), type=tensor(I64, 4, "B"))
    assert "i64 and f32" in fault(plain(b, wrong))


def test_operands_that_no_rule_takes() -> None:
    b = Builder()
    x, i = b.param("x", tensor(F32, "B")), b.param("i", tensor(I64, "B"))
    assert "(E2103)" in fault(plain(b, Binary("add", x, i, type=x.type)))
    row = b.param("row", tensor(F32, 1))
    mixed = Binary("add", x, row, type=x.type)
    assert "B == 1 is not known" in fault(plain(b, mixed))


def test_an_obligation_needs_the_functions_facts() -> None:
    b = Builder()
    x, y = b.param("x", tensor(F32, "A")), b.param("y", tensor(F32, "B"))
    f = plain(b, b.binary("add", x, y), names=("A", "B"))
    assert "A == B is not known (E2202)" in fault(f)
    fact = Relation("==", Dim.of("A"), Dim.of("B"))
    verify_function(replace(f, facts=(fact,)))
    b = Builder()
    x = b.param("x", tensor(F32, "B"))
    cut = b.slice(x, [(Dim.of(0), Dim.of(3), 1)])
    assert "3 <= B is not known (E2209)" in fault(plain(b, cut))
    verify_function(plain(b, cut, facts=(Relation(">", Dim.of("B"), Dim.of(2)),)))


def test_parameters_dims_packs_and_dtype_generics_belong_to_the_function() -> None:
    b = Builder()
    x = b.param("x", tensor(F32, "B"))
    stranger = Builder().param("z", tensor(F32, "B"))
    assert "the parameter z is not one of this function" in fault(
        plain(b, Binary("add", x, stranger, type=x.type))
    )
    assert "the dimension B names what is not declared" in fault(plain(b, x, names=()))
    fact = Relation(">", Dim.of("Q"), Dim.of(0))
    assert "the fact Q > 0 names dims" in fault(plain(b, x, facts=(fact,)))
    packed = Builder()
    y = packed.param("y", TensorType((Pack("S"),), F32))
    assert "has a pack" in fault(plain(packed, y, names=()))
    generic = Builder()
    y = generic.param("y", TensorType((), DTypeVar("T", "Float")))
    assert "a dtype generic" in fault(plain(generic, y, names=()))
    twice = plain(b, x)
    assert "two parameters have one name" in fault(replace(twice, params=(x, x)))  # type: ignore[arg-type]
    assert "two dims have one name" in fault(replace(twice, dims=("B", "B")))


def test_equal_nodes_must_be_one() -> None:
    b = Builder()
    x = b.param("x", tensor(F32, "B"))
    one, two = Unary("neg", x, type=x.type), Unary("neg", x, type=x.type)
    assert "an equal node stands beside it" in fault(plain(b, b.binary("add", one, two)))


def test_results_and_writes_match_what_is_declared() -> None:
    b = Builder()
    x = b.param("x", tensor(F32, "B"))
    cache = b.param("cache", tensor(F32, 4), "state")
    f = function([x, cache], [x, cache], names=("B",), writes=("cache",))
    verify_function(f)
    assert "the state missing is written" in fault(replace(f, writes=("missing",)))
    assert "the state cache: Tensor[B; f32] is not Tensor[4; f32]" in fault(
        replace(f, results=(x, x))
    )
    assert "1 results, 2 declared" in fault(replace(f, returns=function([x, x], [x]).returns))
    assert "the declared result" in fault(replace(f, returns=tensor(F32, 4)))
    assert "0 results for 1 writes" in fault(replace(f, results=()))
    call = Call(f, (x, cache), dims("B"), type=b.call(f, [x, cache], dims("B")).type)
    g = function([b.result(call, 0)], [x, cache], names=("B",))
    assert "several results are returned as one" in fault(
        replace(g, results=(call,), returns=tensor(F32, "B"))
    )


def test_calls_fit_and_their_facts_are_known() -> None:
    c = Builder()
    v = c.param("v", tensor(F32, "N"))
    fact = Relation(">", Dim.of("N"), Dim.of(0))
    callee = function([c.unary("neg", v)], [v], name="g", kind="fn", names=("N",), facts=(fact,))
    b = Builder()
    x = b.param("x", tensor(F32, "B"))
    f = plain(b, b.result(b.call(callee, [x], dims("B")), 0))
    assert "g requires N > 0: B > 0 is not known" in fault(f)
    good = replace(f, facts=(Relation(">=", Dim.of("B"), Dim.of(1)),))
    verify_function(good)
    call = Call(callee, (x,), dims(4), type=b.call(callee, [x], dims("B")).type)
    assert "B == 4" in fault(replace(good, results=(b.result(call, 0),)))
    lost = Call(callee, (), dims("B"), type=b.call(callee, [x], dims("B")).type)
    assert "1 and 0 inputs of g" in fault(replace(good, results=(b.result(lost, 0),)))
    with pytest.raises(InternalError, match="g is called but is not in the program"):
        verify(program(good))
    with pytest.raises(InternalError, match="g stands after its caller f"):
        verify(program(good, callee))
    verify(program(callee, good))


def test_bodies_are_closed_and_of_their_kind() -> None:
    c = Builder()
    i, v = c.param("i", tensor(I64)), c.param("v", tensor(F32, "B"))
    body = function([c.unary("neg", v)], [i, v], kind="body", names=("B",), name="step")
    b = Builder()
    x = b.param("x", tensor(F32, "B"))

    def looped(inner: Function) -> Function:
        builder = Builder()
        y = builder.intern(x)
        loop = builder.for_(inner, "i", Dim.of(0), Dim.of(3), [y])
        return function([builder.result(loop, 0)], [x], names=("B",))

    verify_function(looped(body))
    assert "step is a fn, not a body" in fault(looped(replace(body, kind="fn")))
    assert "has dims of its own" in fault(looped(replace(body, dims=("B", "C"))))
    stray = replace(body, results=(Unary("neg", x, type=x.type),))
    message = fault(looped(stray))
    assert "in f, in For body step: x = x" in message
    assert "the parameter x is not one of this function" in message
    turn = Builder()
    stack = turn.for_(body, "i", Dim.of(0), Dim.of("B") - 3, [], [], [turn.intern(x)], 1)
    stacked = function([turn.result(stack, 0)], [x], names=("B",))
    assert "0 <= B - 3 is not known (E2209)" in fault(stacked)
    verify_function(replace(stacked, facts=(Relation(">=", Dim.of("B"), Dim.of(3)),)))


def test_arrays_of_members_keep_their_lengths() -> None:
    b = Builder()
    of = ArrayType(tensor(F32, 2), 3)
    xs = b.param("xs.*", of, "state")
    new = b.update(xs, 1, b.element(xs, 2))
    f = function([new], [xs], writes=("xs.*",))
    verify_function(f)
    short = b.param("ys.*", ArrayType(tensor(F32, 2), 2), "state")
    assert "the state xs.*" in fault(replace(f, results=(short,), params=(xs, short)))
