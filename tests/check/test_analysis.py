"""What the side tables hold: types after context, sizes, meanings of names and calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import pytest

from linnet.check import check_text
from linnet.check.analysis import (
    Access,
    Analysis,
    AxisAt,
    AxisGather,
    AxisSlice,
    AxisWhole,
    FnCall,
    IndexVar,
    ItemName,
    MethodName,
    PreludeCall,
    Subscript,
)
from linnet.diagnostics import LinnetError
from linnet.dims import Dim
from linnet.render import render_text
from linnet.source import Span
from linnet.syntax import tree
from linnet.types import F32, I32, TensorType, scalar


def analysed(text: str) -> Analysis:
    analysis = check_text("module test\n" + text)
    errors = [d for d in analysis.findings.sorted() if d.severity == "error"]
    assert not errors, "\n".join(map(render_text, errors))
    return analysis


def nodes(node: object) -> Iterator[tree.Syntax]:
    if isinstance(node, tuple):
        for each in node:
            yield from nodes(each)
    elif is_dataclass(node) and not isinstance(node, Span) and isinstance(node, tree.Syntax):
        yield node
        for f in fields(node):
            if f.name != "source":
                yield from nodes(getattr(node, f.name))


def find(analysis: Analysis, text: str, kind: type = tree.Syntax) -> tree.Syntax:
    """The outermost node with this text."""
    module = analysis.roots[0]
    for node in nodes(module.tree.items):
        if isinstance(node, kind) and node.span.text == text and node in analysis.types:
            return node
    raise AssertionError(text)


def test_literals_have_the_type_of_their_context() -> None:
    a = analysed("""
        fn f<H: Dim>(x: Tensor[H; f32], n: i32) -> (f32, bool) {
            let y = x * 2 + 0.5
            let z = select(n > 1, 1.5, x[n])
            return (z * (if n == 7 { 3 } else { y[n] }), n < H / 4)
        }""")
    for text, wanted in (
        ("2", F32),
        ("0.5", F32),
        ("1", I32),
        ("1.5", F32),
        ("7", I32),
        ("3", F32),
    ):
        assert a.types[find(a, text)] == scalar(wanted), text
    quarter = find(a, "H / 4")
    assert a.types[quarter] == scalar(I32)
    assert a.dims[quarter] == Dim.of("H") // 4


def test_none_has_the_type_of_its_context() -> None:
    a = analysed("""
        fn f(b: Tensor[3; f32]?) -> Tensor[3; f32]? {
            return match b { some(x) => none none => b }
        }""")
    assert str(a.types[find(a, "none", tree.NoneLit)]) == "Tensor[3; f32]?"


def test_calls_bind_every_generic() -> None:
    a = analysed(
        """
        block Inner<N: Dim, T: Float> {
            param w: Tensor[N; T]
            pub fn f<*S: Shape, M: Dim>(x: Tensor[*S, M; T], by: f32 = 2.0, more: i32 = 1) -> T {
                return w[0]
            }
        }
        block Outer<H: Dim>
        where H > 0 {
            sub many: [Inner<2 * H, f16>; 3]
            entry f(x: Tensor[H, 7; f16]) -> f16 {
                return many[1].f(x, more = 5)
            }
        }
        """.replace("w[0]", "1.0")
    )
    call = find(a, "many[1].f(x, more = 5)")
    assert isinstance(call, tree.Call)
    meaning = a.calls[call]
    assert isinstance(meaning, FnCall)
    shown = {n: str(v) for n, v in meaning.bindings.items() if not isinstance(v, tuple)}
    assert shown == {"N": "2 * H", "T": "f16", "M": "7"}
    assert meaning.bindings["S"] == (Dim.of("H"),)
    assert [x and x.span.text for x in meaning.args] == ["x", None, "5"]
    assert str(meaning.owner) == "Inner<2 * H, f16>" and not meaning.lifted
    assert meaning.receiver is not None and meaning.receiver.span.text == "many[1]"
    assert isinstance(a.symbols[call.callee], MethodName)


def test_calls_on_elements_are_marked() -> None:
    a = analysed("""
        fn half(x: f32) -> f32 { return x / 2.0 }
        fn total<N: Dim>(x: Tensor[N; f32]) -> f32 { return sum[i] x[i] }
        fn f<N: Dim>(x: Tensor[N; f32]) -> Tensor[N; f32] {
            let y[i] = half(x[i]) + total(x) * exp(x[i])
            return y
        }""")
    lifted = {e.span.text: getattr(m, "lifted", None) for e, m in a.calls.items()}
    assert lifted == {"half(x[i])": True, "total(x)": False, "exp(x[i])": True}


def test_subscripts() -> None:
    a = analysed("""
        fn f<N: Dim, *S: Shape>(x: Tensor[N, *S, 8, N; f32], i: i32) -> Tensor[*S, 3; f32]
        where N > 1 {
            return x[1, ..., 0:5:2, i]
        }""")
    (meaning,) = a.subscripts.values()
    assert isinstance(meaning, Subscript)
    at, whole, part, gather = meaning.axes
    assert isinstance(at, AxisAt) and at.index == Dim.of(1)
    assert isinstance(whole, AxisWhole)
    assert isinstance(part, AxisSlice)
    assert (part.start, part.stop, part.step) == (Dim.of(0), Dim.of(5), 2)
    assert isinstance(gather, AxisGather) and gather.index.span.text == "i"


def test_index_notation_frames() -> None:
    a = analysed("""
        fn f<*S: Shape, N: Dim, M: Dim>(
            x: Tensor[*S, N; f32],
            y: Tensor[M, 2; i32],
        ) -> Tensor[M, *S; f32]
        where N > 3 {
            let z[m, *s] = sum[k] x[*s, k] * x[*s, y[m, 1]] * x[*s, 3]
            return z
        }""")
    let = next(frame for node, frame in a.frames.items() if isinstance(node, tree.IndexLet))
    reduction = next(frame for node, frame in a.frames.items() if isinstance(node, tree.Reduction))
    assert [v.name for v in let.indices] == ["m", "s"]
    assert [str(e) if isinstance(e, Dim) else [str(x) for x in e] for e in let.extents] == [
        "M",
        ["*S"],
    ]
    assert [str(e) for e in reduction.extents] == ["N"]
    by_text = {e.span.text: m for e, m in a.subscripts.items()}
    gather = by_text["x[*s, y[m, 1]]"]
    assert isinstance(gather, Access)
    assert isinstance(gather.axes[0], IndexVar) and isinstance(gather.axes[1], tree.Index)
    constant = by_text["x[*s, 3]"]
    assert isinstance(constant, Access) and constant.axes[1] == Dim.of(3)


def test_prelude_calls() -> None:
    a = analysed("""
        fn f<N: Dim>(x: Tensor[N, 3; f32]) -> Tensor[6, N; f32] {
            let y = permute(x, [1, 0])
            return concat(y, y, axis = -2)
        }""")
    by_name = {m.name: m for m in a.calls.values() if isinstance(m, PreludeCall)}
    assert by_name["permute"].order == (1, 0)
    assert by_name["concat"].axis == -2 and len(by_name["concat"].args) == 2
    assert isinstance(by_name["concat"].result, TensorType)


def test_loops_and_state() -> None:
    a = analysed("""
        block B<N: Dim> {
            state s: Tensor[N; f32]
            entry f(x: f32) -> f32 {
                var y = x
                static for i in 1..2 * N {
                    y = y * 2.0
                    s = fill([N], y)
                }
                return y
            }
        }""")
    ((start, stop),) = a.ranges.values()
    assert (str(start), str(stop)) == ("1", "2 * N")
    (effects,) = a.effects.values()
    assert effects.writes == {"s"} and not effects.reads


CARD = """
pub const THETA: f32 = 10000.0
pub const EPS: f32 = 1e-5
pub const WIDTH: i64 = 4
pub const OPEN = 3
const HIDDEN: f32 = 1.0
pub fn f(x: Tensor[WIDTH; f32]) -> Tensor[4; f32] {
    return x * THETA * EPS * OPEN * HIDDEN
}
"""


def test_constants_from_outside() -> None:
    text = "module test\n" + CARD
    analysis = check_text(text, constants={"THETA": 5e5, "EPS": 1})
    values = {c.name.text: i.value for c, i in analysis.consts.items()}
    assert values["THETA"] == 5e5 and values["EPS"] == 1.0
    assert analysis.ok
    wide = check_text(text, constants={"WIDTH": 5})
    assert [d.code for d in wide.findings.sorted()] == ["E2202"]  # rechecked where it stands


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"THETAS": 1.0}, "declares no such constant; it has EPS, THETA, WIDTH"),
        ({"OPEN": 1}, "has no type"),
        ({"HIDDEN": 1.0}, "is not `pub`"),
        ({"WIDTH": 1.5}, "1.5 does not fit i64"),
        ({"THETA": True}, "does not fit f32"),
        ({"THETA": 1e39}, "does not fit f32"),
    ],
)
def test_constants_that_cannot_be_replaced(given: dict[str, float], says: str) -> None:
    with pytest.raises(LinnetError, match=next(iter(given))) as error:
        check_text("module test\n" + CARD, constants=given)
    assert says in str(error.value)


def test_imported_names_mean_their_items() -> None:
    a = analysed("""
        use std.nn.activations::{relu as act}
        fn f(x: f32) -> f32 { return act(x) }""")
    call = find(a, "act(x)")
    assert isinstance(call, tree.Call)
    symbol = a.symbols[call.callee]
    assert isinstance(symbol, ItemName) and symbol.item.name.text == "relu"
    assert symbol.module.name == "std.nn.activations"
