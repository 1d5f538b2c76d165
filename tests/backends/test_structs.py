"""Structs given to entries and functions, and given back: mappings or records, checked by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import linnet.torch
from backends.common import assert_close, flat, lowered, module
from linnet.diagnostics import PlanError
from linnet.inputs import record
from linnet.reference import evaluate

F = np.float32
SOURCE = """
module m
struct Inner {
    _x: f32
    y: i32
}
struct Pair<N: Dim, T: Numeric> {
    left: Tensor[N; T]
    right: (T, bool)
    class: Inner?
}
block Cell {
    state order: f32
    pub fn next(by: f32) -> f32 {
        order = order * 10.0 + by
        return order
    }
}
pub block Root {
    sub cell: Cell
    pub entry main<N: Dim>(p: Pair<N, f32>, q: (Inner, f32), k: f32) -> (Pair<N, f32>, Inner) {
        let (r, b) = p.right
        let (inner, t) = q
        let s = Pair(class = some(inner), right = (r * k, !b), left = p.left + t)
        return (s, Inner(y = inner.y + 1, _x = t))
    }
    pub entry again<N: Dim>(p: Pair<N, f32>) -> Pair<N, f32> {
        return p
    }
    pub entry ordered() -> Inner {
        return Inner(y = cast<i32>(cell.next(1.0)), _x = cell.next(2.0))
    }
    pub entry bare<N: Dim>(x: Tensor[N; i32]) -> Pair<N, i32> {
        return Pair(left = x, right = (3, true), class = none)
    }
}
"""
X = np.arange(3, dtype=F)
PAIR: dict[str, Any] = {"left": X, "right": (1.5, True), "class": {"_x": 1.0, "y": 2}}
INNER = {"y": 4, "_x": 7.0}


def runs() -> list[Any]:
    program = lowered(SOURCE)
    made = module(program)
    return [lambda name, inputs: evaluate(program, name, inputs), made.run_entry]


@pytest.mark.parametrize("run", runs(), ids=["reference", "torch"])
def test_fields_go_in_and_come_out(run: Any) -> None:
    out, inner = run("main", [PAIR, (INNER, 2.5), 2.0])
    assert type(out) is record("Pair", ("left", "right", "class"))
    assert type(inner).__name__ == "Inner" and inner._fields == ("field_x", "y")
    assert_close(X + F(2.5), out.left, 0)
    assert isinstance(out.right, tuple) and [float(out.right[0]), bool(out.right[1])] == [3, False]
    assert (float(out.class_.field_x), int(out.class_.y)) == (7, 4)
    assert (float(inner.field_x), int(inner.y)) == (2.5, 5)
    again = run("again", {"p": out})
    for a, b in zip(flat(out), flat(again), strict=True):
        assert_close(a, b, 0)
    assert "left=" in repr(again) and "struct Pair" in type(again).__doc__


@pytest.mark.parametrize("run", runs(), ids=["reference", "torch"])
def test_fields_run_in_the_order_they_are_written(run: Any) -> None:
    found = run("ordered", [])
    assert (float(found.field_x), int(found.y)) == (12, 1)


@pytest.mark.parametrize("run", runs(), ids=["reference", "torch"])
def test_an_absent_field_is_none(run: Any) -> None:
    found = run("bare", [X.astype(np.int32)])
    assert found.class_ is None and int(found.right[0]) == 3


BAD: list[tuple[Any, str]] = [
    ([PAIR, 3, 1.0], "main: q is of the Python type int, expected (Inner, f32): pass a tuple"),
    ([PAIR, (INNER,), 1.0], "main: q is a tuple of 1, expected (Inner, f32)"),
    (
        [3, (INNER, 1.0), 1.0],
        "main: p is of the Python type int, expected Pair<N, f32>: pass a mapping of its fields "
        "(left, right, class), or the record that an entry returned",
    ),
    ([{"left": X}, (INNER, 1.0), 1.0], "main: p: missing right, class"),
    (
        [{**PAIR, "lef": X}, (INNER, 1.0), 1.0],
        "main: p has no field lef; did you mean left?; it takes left, right, class",
    ),
    (
        [{**PAIR, "class": record("Other", ("a", "b"))(1, 2)}, (INNER, 1.0), 1.0],
        "main: p.class is of the Python type Other, expected Inner: pass a mapping of its fields "
        "(_x, y), or the record that an entry returned",
    ),
    (
        [{**PAIR, "class": {"_x": None, "y": 1}}, (INNER, 1.0), 1.0],
        "main: p.class._x is None, expected f32: an optional is given its value",
    ),
    (
        [PAIR],
        "main takes 3 inputs (p: Pair<N, f32>, q: (Inner, f32), k: f32), not 1",
    ),
    ({"p": PAIR, "q": (INNER, 1.0)}, "main: missing k"),
    (
        [{**PAIR, "left": X.astype(np.float64)}, (INNER, 1.0), 1.0],
        "main: p.left is f64, expected Tensor[N; f32]; convert it to f32",
    ),
    (
        [{**PAIR, "right": (True, True)}, (INNER, 1.0), 1.0],
        "main: p.right[0] is True, which is not of type f32",
    ),
    (
        [{**PAIR, "left": [1.0, [2.0]]}, (INNER, 1.0), 1.0],
        "main: p.left is not a rectangle of numbers",
    ),
    (
        [PAIR, (record("Other", ("field_x", "y"))(1.0, 2), 1.0), 1.0],
        "main: q[0] is of the Python type Other, expected Inner: pass a mapping of its fields "
        "(_x, y), or the record that an entry returned",
    ),
    (
        [{**PAIR, "class": None}, (INNER, 1.0), 1.0],
        "main: p.class is None, expected Inner: an optional is given its value",
    ),
]


@pytest.mark.parametrize("run", runs(), ids=["reference", "torch"])
@pytest.mark.parametrize(("inputs", "message"), BAD)
def test_what_does_not_fit_is_named(run: Any, inputs: Any, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        run("main", inputs)
    assert str(caught.value) == message


def test_calls_of_a_loaded_module_and_of_a_function(tmp_path: Path) -> None:
    path = tmp_path / "m.linnet"
    path.write_text(SOURCE)
    made = linnet.torch.load(path)
    out, inner = made.main(PAIR, q=(INNER, torch.tensor(2.5)), k=2.0)
    assert_close(X + F(2.5), made.again(out).left, 0)
    assert float(inner.field_x) == 2.5
    path.write_text(
        "module m\nstruct Pair<*S: Shape, T: Float> { left: Tensor[*S; T] right: T }\n"
        "fn scaled<*S: Shape, T: Float>(p: Pair<[*S], T>, by: T?) -> Pair<[*S], T> {\n"
        "    let k = match by { some(b) => b none => p.right }\n"
        "    return Pair(left = p.left * k, right = k)\n}\n"
    )
    scaled = linnet.torch.load_function(path, "scaled", dtypes={"T": "f32"}, ranks={"S": 1})
    assert scaled.inputs == (("p", "Pair<[S_0], f32>"), ("by", "f32"))
    found = scaled({"right": 3.0, "left": X}, 2.0)
    assert_close(X * 2, found.left, 0)
    alone = linnet.torch.load_function(
        path, "scaled", dtypes={"T": "f32"}, ranks={"S": 1}, absent=["by"]
    )
    assert_close(X * 4, alone(found)[0], 0)


def test_a_record_is_a_tree_for_torch() -> None:
    leaves, spec = torch.utils._pytree.tree_flatten(record("P", ("a", "b"))(1, (2, 3)))
    assert leaves == [1, 2, 3]
    assert torch.utils._pytree.tree_unflatten(leaves, spec).b == (2, 3)


def test_what_may_be_left_out_is_none() -> None:
    made = record("Pass", ("rows", "positions", "pages", "mask"), ("rows", "pages", "mask"))
    assert made(None, 1) == (None, 1, None, None) == made(rows=None, positions=1)
    with pytest.raises(TypeError):
        made(positions=1)
    program = lowered(
        "module m\nstruct Pass<N: Dim> { by: f32? = none x: Tensor[N; f32] mask: i32? = none }\n"
        "entry given<N: Dim>(p: Pass<N>) -> Tensor[N; f32] {\n"
        "    return match p.by { some(by) => p.x * by none => p.x }\n}\n"
        "entry bare<N: Dim>(x: Tensor[N; f32]) -> Pass<N> { return Pass(x = x) }\n"
    )
    out = evaluate(program, "bare", [X])
    assert out == type(out)(by=None, x=out.x) and out.by is None and out.mask is None
    assert_close(X * 2, evaluate(program, "given", [{"x": X, "by": 2.0, "mask": 1}]), 0)
    with pytest.raises(PlanError) as caught:
        evaluate(program, "given", [{"x": X}])
    assert str(caught.value) == "given: p.by is None, expected f32: an optional is given its value"
    loaded = module(program)
    assert_close(X, loaded.run_entry("bare", {"x": X}).x, 0)


def test_names_that_python_does_not_allow() -> None:
    fields = ("_x", "field_x", "for", "for_", "count", "None")
    assert record("R", fields)._fields == ("field_x_", "field_x", "for__", "for_", "count", "None_")
