"""What an entry refuses, and the words it uses."""

from __future__ import annotations

import pytest

from core.graphs import dims, function, program, tensor
from linnet.core.build import Builder
from linnet.core.ir import Function
from linnet.diagnostics import PlanError
from linnet.dims import Dim, Relation
from linnet.inputs import bind_entry, demands, find_entry, structured
from linnet.source import Source, Span
from linnet.types import BF16, F32, I32, I64, OptionalType, TupleType

SOURCE = Source("m.linnet", "module m\nlet y = x[at]\n")
SPAN = Span(SOURCE, 17, 22)


def entry() -> Function:
    """f<B, S, Cap>(tokens: [B, S] i32, mask: [B, 2 * S + 1] f32, scale: bf16) where S <= Cap."""
    b = Builder()
    params = [
        b.param("tokens", tensor(I32, "B", "S")),
        b.param("mask", tensor(F32, "B", Dim.of("S") * 2 + 1)),
        b.param("scale", tensor(BF16)),
    ]
    fact = Relation("<=", Dim.of("S"), Dim.of("Cap"))
    rest = b.iota(Dim.of("Cap") - Dim.of("B"), I64, SPAN)
    return function([rest], params, names=("B", "S", "Cap"), facts=[fact], name="Model.f")


GOOD = [((2, 3), "i32"), ((2, 7), "f32"), ((), "bf16")]


def refused(inputs: list[tuple[tuple[int, ...], str]], **generics: int) -> str:
    with pytest.raises(PlanError) as caught:
        bind_entry(entry(), inputs, generics)
    return str(caught.value)


def test_sizes_come_from_axes_and_generics() -> None:
    assert bind_entry(entry(), GOOD, {"Cap": 4}) == {"B": 2, "S": 3, "Cap": 4}


def test_each_mistake_names_the_argument_what_was_found_and_what_was_expected() -> None:
    tokens, mask, scale = GOOD
    listed = "(tokens: Tensor[B, S; i32], mask: Tensor[B, 2 * S + 1; f32], scale: bf16)"
    assert refused(GOOD[:2]) == f"f takes 3 inputs {listed}, not 2"
    assert refused([((2, 3), "i64"), mask, scale]) == (
        "f: tokens is i64, expected Tensor[B, S; i32]; convert it to i32"
    )
    assert refused([((3,), "i32"), mask, scale]) == (
        "f: tokens has 1 axis [3], expected 2: Tensor[B, S; i32]"
    )
    assert refused([tokens, ((3, 7), "f32"), scale], Cap=4) == (
        "f: mask has 3 on axis 0, expected B = 2 from axis 0 of tokens"
    )
    assert refused([tokens, ((2, 8), "f32"), scale], Cap=4) == (
        "f: mask has 8 on axis 1, expected 2 * S + 1 = 7 (S = 3 from axis 1 of tokens)"
    )


def test_generics_are_known_integers_that_do_not_contradict_the_inputs() -> None:
    assert refused(GOOD) == "f: the inputs do not say what Cap is: pass generics={'Cap': ...}"
    assert refused(GOOD, Cpa=4) == (
        "f has no generic Cpa; did you mean Cap?; its generics: B, S, Cap"
    )
    assert refused(GOOD, Cap=-1) == "f: Cap = -1 is negative; a dimension is at least 0"
    assert refused(GOOD, Cap=True) == "f: Cap is a dimension and takes an integer, not True"
    assert refused(GOOD, Cap=4, S=5) == ("f: tokens has 3 on axis 1, expected S = 5 from generics")


def test_facts_and_negative_dimensions_name_the_sizes() -> None:
    assert refused(GOOD, Cap=2) == (
        "f requires S <= Cap, which does not hold with S = 3 from axis 1 of tokens, "
        "Cap = 2 from generics"
    )
    wide = [((5, 1), "i32"), ((5, 3), "f32"), ((), "bf16")]
    message = refused(wide, Cap=3)
    assert "the dimension" in message and "at m.linnet:2:9 is -2 with" in message
    assert "B = 5 from axis 0 of tokens, Cap = 3 from generics" in message


def test_a_linear_expression_gives_its_one_unknown() -> None:
    b = Builder()
    x = b.param("x", tensor(F32, Dim.of("N") * 3 + 1))
    y = b.param("y", tensor(F32, Dim.of("N") + Dim.of("M")))
    f = function([x], [x, y], names=("N", "M"))
    assert bind_entry(f, [((7,), "f32"), ((5,), "f32")]) == {"N": 2, "M": 3}
    for size, why in ((6, "not a whole number"), (-2, "negative")):
        with pytest.raises(PlanError, match=rf"x has {size} on axis 0, .* N would be {why}"):
            bind_entry(f, [((size,), "f32"), ((5,), "f32")])
    with pytest.raises(PlanError, match=r"y has 1 on axis 0, .* M would be negative"):
        bind_entry(f, [((7,), "f32"), ((1,), "f32")])


def test_a_division_that_sizes_make_impossible() -> None:
    b = Builder()
    x = b.param("x", tensor(F32, "N"))
    y = b.param("y", tensor(F32, Dim.of(12) // Dim.of("N")))
    f = function([x], [x, y], names=("N",))
    assert bind_entry(f, [((4,), "f32"), ((3,), "f32")]) == {"N": 4}
    with pytest.raises(PlanError, match="12 / N divides by zero with N = 0 from axis 0 of x"):
        bind_entry(f, [((0,), "f32"), ((3,), "f32")])


def test_an_index_into_an_empty_axis_is_refused_through_calls() -> None:
    c = Builder()
    x, at = c.param("x", tensor(F32, "K", 2)), c.param("at", tensor(I64))
    first = c.gather(x, [at, None], span=SPAN)
    proved = c.gather(x, [at, None], [True, False], span=SPAN)
    callee = function([first, proved], [x, at], name="pick", kind="fn", names=("K",))
    b = Builder()
    x, at = b.param("x", tensor(F32, "N", 2)), b.param("at", tensor(I64))
    tail = b.slice(x, [(Dim.of(0), Dim.of("N"), 2), None])
    half = (Dim.of("N") + 1) // 2
    f = function([b.result(b.call(callee, [tail, at], [half]), 0)], [x, at], names=("N",))
    assert bind_entry(f, [((1, 2), "f32"), ((), "i64")]) == {"N": 1}
    with pytest.raises(PlanError) as caught:
        bind_entry(f, [((0, 2), "f32"), ((), "i64")])
    assert str(caught.value) == (
        "f: the access `x[at]` at m.linnet:2:9 indexes an axis of size 0 "
        "((N + 1) / 2 with N = 0 from axis 0 of x)"
    )
    assert len(demands(f)) == 1  # the proved one asks for nothing


def test_entries_are_found_or_listed() -> None:
    p = program(function([], [], name="forward"), function([], [], name="decode"))
    assert find_entry(p, "decode").name == "decode"
    assert find_entry(p).name == "forward"
    with pytest.raises(PlanError) as caught:
        find_entry(p, "decod")
    assert str(caught.value) == (
        "test has no entry decod; did you mean decode?; it has forward, decode"
    )


def test_results_take_the_declared_structure() -> None:
    one = tensor(F32, *dims(2))
    nested = TupleType((one, TupleType((one, one)), OptionalType(one)))
    assert structured(nested, [1, 2, 3, 4]) == (1, (2, 3), 4)
    assert structured(one, [1]) == 1
    assert structured(None, []) is None
