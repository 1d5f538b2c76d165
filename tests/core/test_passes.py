"""Each pass by its text before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.graphs import dims, function, program, tensor, unary_function
from linnet.core.build import Builder
from linnet.core.contract import contract
from linnet.core.inline import LIMIT, inline
from linnet.core.ir import Function, Gather, Node, OpId, Param, Permute, Program, Unary
from linnet.core.passes import PASSES, optimize
from linnet.core.print import function_text, program_text
from linnet.core.rewrite import rewrite, topological
from linnet.core.simplify import simplify
from linnet.core.verify import verify, verify_function
from linnet.diagnostics import InternalError
from linnet.dims import Dim, Relation
from linnet.reference import evaluate
from linnet.types import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8, TensorType

Build = Callable[..., Any]


def lines(f: Function) -> list[str]:
    """The nodes and results of the printed function."""
    text = function_text(f).splitlines()
    return [line.strip() for line in text if " = " in line or "return" in line]


def simplified(build: Build, *types: TensorType, names: Sequence[str] = ("B",)) -> list[str]:
    f = unary_function(build, *types, names=names)
    better = simplify(f)
    verify_function(better)
    return lines(better)


X = tensor(F32, "B", 4)
N = tensor(I32, "B", 4)
C = tensor(BOOL, "B", 4)


@pytest.mark.parametrize(
    "build, of",
    [
        (lambda b, x: b.unary("neg", b.unary("neg", x)), X),
        (lambda b, x: b.unary("not", b.unary("not", x)), N),
        (lambda b, x: b.elementwise("mul", x, b.literal(1.0, F32)), X),
        (lambda b, x: b.elementwise("mul", b.literal(1.0, F32), x), X),
        (lambda b, x: b.elementwise("div", x, b.literal(1.0, F32)), X),
        (lambda b, x: b.elementwise("sub", x, b.literal(0.0, F32)), X),
        (lambda b, x: b.elementwise("add", x, b.literal(-0.0, F32)), X),
        (lambda b, x: b.elementwise("add", b.literal(0, I32), x), N),
        (lambda b, x: b.elementwise("or", x, b.literal(0, I32)), N),
        (lambda b, x: b.elementwise("and", x, b.literal(-1, I32)), N),
        (lambda b, x: b.elementwise("shr", x, b.literal(0, I32)), N),
        (lambda b, x: b.elementwise("and", b.literal(True, BOOL), x), C),
        (lambda b, x: b.elementwise("xor", b.literal(False, BOOL), x), C),
        (lambda b, x: b.binary("max", x, x), X),
        (lambda b, x: b.unary("abs", x), tensor(U8, "B", 4)),
        (lambda b, x: b.select(b.compare("lt", x, x), x, x), X),
        (lambda b, x: b.selection(b.literal(True, BOOL), x, b.unary("exp", x)), X),
        (lambda b, x: b.cast(b.cast(x, F64), F32), X),
        (lambda b, x: b.cast(b.cast(x, I64), I32), N),
        (lambda b, x: b.cast(b.cast(x, F64), I32), N),
        (lambda b, x: b.permute(b.permute(x, (1, 0)), (1, 0)), X),
        (lambda b, x: b.reshape(b.reshape(x, [Dim.of("B") * 4]), dims("B", 4)), X),
        (lambda b, x: b.slice(b.concat([x], 0), [None, None]), X),
        (lambda b, x: b.reduce("max", b.reshape(x, dims(1, "B", 4)), (0,)), X),
    ],
)
def test_it_is_the_parameter_itself(build: Build, of: TensorType) -> None:
    assert simplified(build, of) == ["return a"]


@pytest.mark.parametrize(
    "build, of",
    [
        # -0.0 + 0.0 is 0.0; NaN is not equal to itself; rounding and wrapping lose something.
        (lambda b, x: b.elementwise("add", x, b.literal(0.0, F32)), X),
        (lambda b, x: b.elementwise("mul", x, b.literal(0.0, F32)), X),
        (lambda b, x: b.binary("sub", x, x), X),
        (lambda b, x: b.compare("eq", x, x), X),
        (lambda b, x: b.unary("not", b.compare("lt", x, b.unary("exp", x))), X),
        (lambda b, x: b.cast(b.cast(x, F16), F32), X),
        (lambda b, x: b.cast(b.cast(x, BF16), F16), X),
        (lambda b, x: b.cast(b.cast(x, F64), I8), N),
        (lambda b, x: b.cast(b.cast(x, I8), I32), N),
        (lambda b, x: b.unary("abs", b.unary("neg", x)), tensor(U8, 4)),
    ],
)
def test_what_looks_like_an_identity_and_is_none_stays(build: Build, of: TensorType) -> None:
    f = unary_function(build, of, names=("B",))
    kept = [type(n) for n in topological(simplify(f).results)]
    if of == tensor(U8, 4):  # the abs goes, the negation stays
        assert kept == [Param, Unary]
    else:
        assert kept == [type(n) for n in topological(f.results)]


@pytest.mark.parametrize(
    "build, result",
    [
        (lambda b: b.binary("mul", b.literal(100, I8), b.literal(3, I8)), "44:i8"),
        (lambda b: b.binary("div", b.literal(-7, I32), b.literal(2, I32)), "-3:i32"),
        (lambda b: b.binary("rem", b.literal(-7, I32), b.literal(2, I32)), "-1:i32"),
        (lambda b: b.binary("div", b.literal(-7, I32), b.literal(0, I32)), "0:i32"),
        (lambda b: b.binary("shl", b.literal(1, I8), b.literal(8, I8)), "0:i8"),
        (lambda b: b.binary("shr", b.literal(-3, I8), b.literal(9, I8)), "-1:i8"),
        (lambda b: b.binary("add", b.literal(2048, F16), b.literal(1, F16)), "2048.0:f16"),
        (lambda b: b.binary("mul", b.literal(1e30, F32), b.literal(1e30, F32)), "inf:f32"),
        (lambda b: b.unary("sqrt", b.literal(2, BF16)), "1.414:bf16"),
        (lambda b: b.unary("rsqrt", b.literal(4, F16)), "0.5:f16"),
        (lambda b: b.unary("log", b.literal(10000, F32)), "9.2103405:f32"),
        (lambda b: b.cast(b.size(Dim.of("B"), I64), F32), "(B):f32"),
        (lambda b: b.unary("not", b.literal(5, U8)), "250:u8"),
        (lambda b: b.cast(b.literal(-1.9, F32), I8), "-1:i8"),
        (lambda b: b.cast(b.literal(1e9, F32), I8), "127:i8"),
        (lambda b: b.compare("le", b.literal(1, I8), b.literal(2, I8)), "true"),
        (
            lambda b: b.select(b.literal(False, BOOL), b.literal(1, I8), b.literal(2, I8)),
            "2:i8",
        ),
    ],
)
def test_constants_are_folded_with_their_dtypes_arithmetic(build: Build, result: str) -> None:
    assert simplified(build) == [f"return {result}"]


def test_functions_of_f64_constants_are_left_to_the_framework() -> None:
    assert simplified(lambda b: b.unary("exp", b.literal(1.0, F64))) == [
        "%0 = exp 1.0:f64 : f64",
        "return %0",
    ]
    assert simplified(lambda b: b.unary("log", b.literal(-1.0, F32)))[0].startswith("%0 = log")


@pytest.mark.parametrize(
    "name, build, of",
    [
        (
            "scalars",
            lambda b, x: b.binary(
                "mul",
                b.unary("exp", b.expand(x, dims(3, "B", 4), (1, 2))),
                b.fill(b.literal(2.0, F32), dims(3, "B", 4)),
            ),
            X,
        ),
        ("permuted", lambda b, x: b.permute(b.expand(x, dims("B", 3, 4), (0, 2)), (2, 1, 0)), X),
        (
            "expanded",
            lambda b, x: b.expand(
                b.expand(x, dims(2, "B", 4), (1, 2)), dims(2, 5, "B", 4), (0, 2, 3)
            ),
            X,
        ),
        (
            "sliced",
            lambda b, x: b.slice(
                b.slice(x, [None, (Dim.of(1), Dim.of(4), 1)]), [None, (Dim.of(0), Dim.of(3), 2)]
            ),
            X,
        ),
        (
            "cut",
            lambda b, x: b.slice(
                b.expand(x, dims(3, "B", 4), (1, 2)),
                [(Dim.of(1), Dim.of(3), 1), None, (Dim.of(0), Dim.of(2), 1)],
            ),
            X,
        ),
        (
            "joined",
            lambda b, x: b.concat(
                [b.concat([x, b.slice(x, [None, (Dim.of(2), Dim.of(2), 1)])], 1), x], 1
            ),
            X,
        ),
        (
            "summed",
            lambda b, x: b.reduce("sum", b.reduce("sum", b.permute(x, (1, 0)), (0,)), (0,)),
            X,
        ),
        ("kept", lambda b, x: b.reduce("max", b.expand(x, dims("B", 3, 4), (0, 2)), (2,)), X),
        ("repeated", lambda b, x: b.reduce("sum", b.expand(x, dims("B", 3, 4), (0, 2)), (1, 2)), X),
        ("compared", lambda b, x: b.unary("not", b.comparison("lt", x, b.literal(3, I32))), N),
        (
            "swapped",
            lambda b, x: b.select(b.unary("not", b.cast(x, BOOL)), x, b.unary("neg", x)),
            N,
        ),
    ],
)
def test_simplify(name: str, build: Build, of: TensorType, golden: Any) -> None:
    f = unary_function(build, of, names=("B",))
    golden(function_text(f) + "\n----- simplify\n\n" + function_text(simplify(f)), f"{name}.txt")


def product(
    left: tuple[TensorType, tuple[int, ...]],
    right: tuple[TensorType, tuple[int, ...]],
    frame: tuple[int | str, ...],
    summed: tuple[int, ...],
    keep: Any = None,
) -> Function:
    """`sum[summed] left * right`, as index notation lowers it."""
    b = Builder()
    sides: list[Node] = []
    for name, (of, axes) in (("a", left), ("b", right)):
        x: Node = b.param(name, of)
        order = sorted(range(len(axes)), key=axes.__getitem__)
        x = b.expand(b.permute(x, order), dims(*frame), [axes[i] for i in order])
        sides.append(b.cast(x, keep) if keep else x)
    out = b.reduce("sum", b.binary("mul", *sides), summed)
    out = b.cast(out, left[0].dtype) if keep else out  # type: ignore[arg-type]
    params = [b.param("a", left[0]), b.param("b", right[0])]
    names = sorted({n for axis in frame if isinstance(axis, str) for n in [axis]})
    return function([out], params, names=names)


MATRIX = tensor(F32, "M", 8), tensor(F32, 8, "N")


@pytest.mark.parametrize(
    "name, f",
    [
        ("matrix", product((MATRIX[0], (0, 2)), (MATRIX[1], (2, 1)), ("M", "N", 8), (2,))),
        (
            "linear-bf16",
            product(
                (tensor(BF16, "B", "S", 8), (0, 1, 3)),
                (tensor(BF16, 4, 8), (2, 3)),
                ("B", "S", 4, 8),
                (3,),
                F32,
            ),
        ),
        (
            "scores",
            product(
                (tensor(F32, "B", "S", 2, 8), (0, 2, 1, 4)),
                (tensor(F32, "B", "T", 2, 8), (0, 3, 1, 4)),
                ("B", 2, "S", "T", 8),
                (4,),
            ),
        ),
        (
            "turned",
            product(
                (tensor(F32, "M", 8), (1, 2)), (tensor(F32, 8, "N"), (2, 0)), ("N", "M", 8), (2,)
            ),
        ),
        (
            "mixed-order",
            product(
                (tensor(F32, 8, "M", "N"), (3, 0, 2)),
                (tensor(F32, "K", 8), (1, 3)),
                ("M", "K", "N", 8),
                (3,),
            ),
        ),
        (
            "two-summed",
            product(
                (tensor(F32, "M", 2, 8), (0, 1, 2)),
                (tensor(F32, 8, 2, "N"), (2, 1, 3)),
                ("M", 2, 8, "N"),
                (1, 2),
            ),
        ),
        (
            "one-sided-sum",
            product(
                (tensor(F32, "M", 2, 8), (0, 1, 2)),
                (tensor(F32, 8, "N"), (2, 3)),
                ("M", 2, 8, "N"),
                (1, 2),
            ),
        ),
        (
            "row-of-one",
            product(
                (tensor(F32, 1, 8), (0, 2)), (tensor(F32, 8, "N"), (2, 1)), ("M", "N", 8), (2,)
            ),
        ),
        (
            "squares",
            product((tensor(F32, "M", 8), (0, 1)), (tensor(F32, "M", 8), (0, 1)), ("M", 8), (1,)),
        ),
        ("outer", product((tensor(F32, "M"), (0,)), (tensor(F32, "N"), (1,)), ("M", "N"), (1,))),
    ],
)
def test_contract(name: str, f: Function, golden: Any) -> None:
    verify_function(f)
    after = contract(simplify(f))
    verify_function(after)
    golden(function_text(f) + "\n----- contract\n\n" + function_text(after), f"{name}.txt")


# ---------------------------------------------------------------- clamps


def gathered(build: Build, facts: Sequence[Relation] = ()) -> tuple[bool, ...]:
    """Which of the indices that `build` makes into an axis of N are known to stay in it."""
    b = Builder()
    table, ids = b.param("table", tensor(F32, "N")), b.param("ids", tensor(I64, "M"))
    out = b.gather(table, [build(b, ids)])
    f = function([out], [table, ids], names=("N", "M"), facts=facts)
    (node,) = simplify(f).results
    assert isinstance(node, Gather)
    return node.proved


SOME = [Relation(">", Dim.of("N"), Dim.of(0))]


def clamped(b: Builder, x: Node) -> Node:
    low = b.elementwise("max", x, b.literal(0, I64))
    return b.elementwise("min", low, b.size(Dim.of("N") - 1, I64))


@pytest.mark.parametrize(
    "build, facts, known",
    [
        (lambda b, x: b.iota(Dim.of("N"), I64), [], True),
        (lambda b, x: b.permute(b.iota(Dim.of("N"), I64), (0,)), [], True),
        (lambda b, x: b.iota(Dim.of("N") + 1, I64), [], False),
        (lambda b, x: b.iota(Dim.of("N"), I32), [], False),  # it wraps where N is large
        (lambda b, x: x, SOME, False),
        (clamped, SOME, True),
        (clamped, [], False),  # over no positions the clamp gives -1
        (lambda b, x: b.elementwise("max", x, b.literal(0, I64)), SOME, False),
        (lambda b, x: b.elementwise("min", x, b.size(Dim.of("N") - 1, I64)), SOME, False),
        (lambda b, x: b.literal(0, I64), SOME, True),
        (lambda b, x: b.literal(1, I64), SOME, False),
        (lambda b, x: b.size(Dim.of("N") - 1, I64), SOME, True),
        (lambda b, x: b.reduce("max", b.iota(Dim.of("N"), I64), (0,)), SOME, False),
        (
            lambda b, x: b.elementwise("rem", b.iota(Dim.of("M"), I64), b.literal(4, I64)),
            [Relation(">=", Dim.of("N"), Dim.of(4))],
            True,
        ),
        (
            lambda b, x: b.elementwise("rem", x, b.literal(4, I64)),
            [Relation(">=", Dim.of("N"), Dim.of(4))],
            False,
        ),
    ],
)
def test_an_index_that_cannot_leave_its_axis_is_not_clamped(
    build: Build, facts: Sequence[Relation], known: bool
) -> None:
    assert gathered(build, facts) == (known,)


# ---------------------------------------------------------------- inline


def helper(kind: Any, count: int, fact: bool = False) -> Function:
    """`count` nodes over a vector of N, reshaped to twice N halves under `N % 2 == 0`."""
    c = Builder()
    v = c.param("v", tensor(F32, "N"))
    out: Node = v
    for i in range(count):
        out = c.unary("exp", out) if i % 2 else c.unary("tanh", out)
    half = Dim.of("N") // 2
    facts: tuple[Relation, ...] = ()
    if fact:
        facts = (Relation("==", Dim.of("N") % 2, Dim.of(0)),)
        out = c.reshape(out, [half, Dim.of(2)])
    op = OpId("p", "m", "h") if kind == "op" else None
    return function([out], [v], name="h", kind=kind, names=("N",), facts=facts, op=op)


def calling(callee: Function, facts: Sequence[Relation] = ()) -> Program:
    b = Builder()
    x = b.param("x", tensor(F32, "B", 2))
    flat = b.reshape(x, [Dim.of("B") * 2])
    out = b.result(b.call(callee, [flat], [Dim.of("B") * 2]), 0)
    return program(callee, function([out], [x], names=("B",), facts=facts))


def test_small_helpers_become_their_bodies(golden: Any) -> None:
    before = calling(helper("fn", 2))
    after = inline(before)
    verify(after)
    assert list(after.functions) == ["f"]
    golden(program_text(before) + "\n----- inline\n\n" + program_text(after))


@pytest.mark.parametrize("callee", [helper("op", 2), helper("method", 2), helper("fn", LIMIT + 1)])
def test_ops_methods_and_long_helpers_stay(callee: Function) -> None:
    before = calling(callee)
    after = inline(before)
    assert after.functions == before.functions and after.entries == before.entries


def test_what_the_checker_proved_at_a_call_holds_in_the_inlined_body() -> None:
    even = [Relation("==", Dim.of("B") % 2, Dim.of(0))]
    b = Builder()
    x = b.param("x", tensor(F32, "B"))
    callee = helper("fn", 1, fact=True)
    out = b.result(b.call(callee, [x], [Dim.of("B")]), 0)
    before = program(callee, function([out], [x], names=("B",), facts=even))
    verify(before)
    after = inline(before)
    verify(after)
    x_in = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(evaluate(before, "f", [x_in]), evaluate(after, "f", [x_in]))


def test_inlining_reaches_into_loops_and_through_helpers() -> None:
    inner = replace(helper("fn", 1), name="inner")
    c = Builder()
    v = c.param("v", tensor(F32, "N"))
    out = c.unary("neg", c.result(c.call(inner, [v], dims("N")), 0))
    outer = function([out], [v], name="outer", kind="fn", names=("N",))
    w = Builder()
    i, x = w.param("i", tensor(I64)), w.param("x", tensor(F32, "B"))
    step = function([w.result(w.call(outer, [x], dims("B")), 0)], [i, x], kind="body", names=("B",))
    b = Builder()
    x = b.param("x", tensor(F32, "B"))
    loop = b.result(b.for_(step, "i", Dim.of(0), Dim.of(3), [x]), 0)
    before = program(inner, outer, function([loop], [x], names=("B",)))
    after = inline(before)
    verify(after)
    assert list(after.functions) == ["f"]
    assert "call" not in program_text(after)
    x_in = np.array([0.5, -1.0], np.float32)
    np.testing.assert_array_equal(evaluate(before, "f", [x_in]), evaluate(after, "f", [x_in]))


# ---------------------------------------------------------------- the list of passes


def test_passes_run_in_order_and_stop_where_asked() -> None:
    names = ["untouched", "inline", "simplify", "contract", "narrow"]
    assert [step.name for step in PASSES] == names
    p = calling(helper("fn", 2))
    assert "reshape" in program_text(optimize(p, after="inline"))
    assert optimize(p, "fast").entries["f"] is not p.entries["f"]
    for wrong in ({"policy": "quick"}, {"after": "inlnie"}):
        with pytest.raises(InternalError):
            optimize(p, **wrong)


def test_a_pass_that_breaks_a_program_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_it(p: Program) -> Program:
        f = p.entries["f"]
        x = f.params[0]
        bad = Permute(x, (1, 0), type=x.type)
        broken = replace(f, results=(bad,), returns=None)
        return replace(p, functions={"f": broken}, entries={"f": broken})

    from linnet.core import passes

    step = passes.Pass("break", break_it)
    monkeypatch.setattr(passes, "PASSES", (step,))
    with pytest.raises(InternalError, match="in after break: in f: %0 = permute"):
        optimize(calling(helper("fn", 1)))
    monkeypatch.setenv("LINNET_CHECKS", "0")
    optimize(calling(helper("fn", 1)))


def test_a_rule_must_keep_the_type() -> None:
    f = unary_function(lambda b, x: b.unary("exp", x), X, names=("B",))
    with pytest.raises(InternalError, match=r"in rewrite: Unary of .*: f32 and f64"):
        rewrite(f, lambda n, b: b.cast(n, F64) if isinstance(n, Unary) else None)


def test_names_from_the_source_stay_on_what_takes_their_place() -> None:
    b = Builder()
    x = b.param("x", tensor(F32, "B", 4))
    inner = b.permute(b.unary("exp", x), (1, 0))
    named = b.permute(inner, (1, 0))
    object.__setattr__(named, "hint", "grown")
    (result,) = simplify(function([named], [x], names=("B",))).results
    assert result.hint == "grown" and result is not named


def test_a_long_chain_is_no_deeper_than_a_short_one() -> None:
    b = Builder()
    x = b.param("x", tensor(F32, 2))
    y: Node = x
    for i in range(1500):
        y = b.binary("add", y, b.fill(b.literal(i, F32), dims(2)))
    f = function([y], [x])
    verify_function(f)
    assert len(topological(simplify(f).results)) == len(topological(f.results))
