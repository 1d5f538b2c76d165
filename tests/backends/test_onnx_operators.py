"""Single operations on ONNX Runtime at the edges of every dtype, to the last bit."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

from backends.common import assert_close
from linnet.core.build import Builder
from linnet.core.ir import Function, Manifest, Node, Program
from linnet.core.scalars import integer_range
from linnet.dims import Dim
from linnet.onnx.dtypes import TABLE
from linnet.onnx.entry import Entry
from linnet.onnx.graph import ELEMENT, IR_VERSION, OPSET
from linnet.reference import evaluate_function
from linnet.types import DTYPES, DType, TensorType
from linnet.weights.arrays import DTYPES as ARRAYS

pytestmark = pytest.mark.slow

N = Dim.of("N")
INTEGERS = [d for d in DTYPES.values() if d.is_integer]
FLOATS = [d for d in DTYPES.values() if d.is_float]
# Halves between neighbours of f16 and bf16, and what lies just beside them: rounding twice errs.
HALVES = [
    sign * (1 + 2.0**-k) * (1 + side * 2.0**-j)
    for sign in (1, -1)
    for k in (8, 9, 11, 12)
    for j in (26, 30, 40)
    for side in (-1, 0, 1)
]


def edges(dtype: DType) -> np.ndarray[Any, Any]:
    """Values at which operations go wrong."""
    if dtype.name == "bool":
        return np.array([False, True])
    if dtype.is_integer:
        low, high = integer_range(dtype)
        small = [x for x in (-9, -2, -1, 0, 1, 2, 3, 7, 8, dtype.bits, dtype.bits - 1) if x >= low]
        wide = [x for x in (2**32 + 2049, 2**40 + 2**32 + 1, 2**62 + 2**53 + 1) if x <= high]
        halves = [x for x in (257, 769, 2049, -2051) if low <= x <= high]
        return np.array([low, low + 1, *small, *halves, *wide, high - 1, high], object).astype(
            ARRAYS[dtype.name]
        )
    special = [0.0, -0.0, np.nan, np.inf, -np.inf, 0.5, -1.5, 2.5, 127.5, 128.0, -129.0, 255.9]
    beyond = [3e4, -7e4, 2147483648.0, -2147483649.0, 9.3e18, -9.3e18, 1.9e19, 1e30, 1e-6, 1e-30]
    with np.errstate(all="ignore"):
        return np.array([*special, *beyond, *HALVES], np.float64).astype(ARRAYS[dtype.name])


def ran(make: Any, *arrays: np.ndarray[Any, Any], fixed: int | None = None) -> tuple[Any, Any]:
    """What one operation on vectors is in the reference, and on ONNX Runtime."""
    b = Builder()
    names = {ARRAYS[name]: dtype for name, dtype in DTYPES.items()}
    params = [
        b.param(f"x{i}", TensorType((N if fixed is None else Dim.of(fixed),), names[x.dtype]))
        for i, x in enumerate(arrays)
    ]
    result: Node = make(b, *params)
    f = Function(
        "f",
        "entry",
        None,
        None,
        ("N",) if fixed is None else (),
        tuple(params),
        (result,),
        (),
        (),
        result.type,
    )  # type: ignore[arg-type]
    program = Program("test", {"f": f}, {"f": f}, Manifest("test", ()), {}, "f")
    with np.errstate(all="ignore"):
        (wanted,) = evaluate_function(f, list(arrays), {"N": len(arrays[0])})
    found, _ = Entry(program, "f", "exact", ["CPUExecutionProvider"]).run(
        list(arrays), None, {}, {}
    )
    return wanted, found


def same(wanted: Any, found: Any) -> None:
    assert wanted.dtype == found.dtype
    off = ~((wanted == found) | ((wanted != wanted) & (found != found)))
    assert not off.any(), (np.flatnonzero(off), wanted[off], found[off])


@pytest.mark.parametrize(("own", "to"), list(product(DTYPES, DTYPES)), ids=str)
def test_casts(own: str, to: str) -> None:
    same(*ran(lambda b, x: b.cast(x, DTYPES[to]), edges(DTYPES[own])))


BITWISE = ("add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr")


@pytest.mark.parametrize(("dtype", "op"), list(product(INTEGERS, BITWISE)), ids=str)
def test_integers(dtype: DType, op: Any) -> None:
    pairs = np.array(list(product(edges(dtype), edges(dtype))), ARRAYS[dtype.name])
    same(*ran(lambda b, x, y: b.binary(op, x, y), pairs[:, 0].copy(), pairs[:, 1].copy()))


@pytest.mark.parametrize("number", [-1, 0, 3, 31])
@pytest.mark.parametrize(
    ("dtype", "op"), list(product(INTEGERS, ("div", "rem", "shl", "shr"))), ids=str
)
def test_known_operands(dtype: DType, op: Any, number: int) -> None:
    """A divisor or a count that is written in the program needs fewer guards."""
    if number < integer_range(dtype)[0]:
        return

    def make(b: Builder, x: Node) -> Node:
        return b.binary(op, x, b.expand(b.literal(number, dtype), (N,), ()))

    same(*ran(make, edges(dtype)))


@pytest.mark.parametrize(
    ("dtype", "op"),
    list(product(FLOATS, ("add", "sub", "mul", "div", "rem", "min", "max"))),
    ids=str,
)
def test_floats(dtype: DType, op: Any) -> None:
    pairs = np.array(list(product(edges(dtype)[:40], edges(dtype)[:40])), ARRAYS[dtype.name])
    same(*ran(lambda b, x, y: b.binary(op, x, y), pairs[:, 0].copy(), pairs[:, 1].copy()))


@pytest.mark.parametrize(
    ("dtype", "op"), list(product(DTYPES.values(), ("eq", "ne", "lt", "le", "gt", "ge"))), ids=str
)
def test_comparisons(dtype: DType, op: Any) -> None:
    pairs = np.array(list(product(edges(dtype)[:30], edges(dtype)[:30])), ARRAYS[dtype.name])
    if dtype.name != "bool" or op in ("eq", "ne"):
        same(*ran(lambda b, x, y: b.compare(op, x, y), pairs[:, 0].copy(), pairs[:, 1].copy()))


@pytest.mark.parametrize(
    ("dtype", "op"),
    list(product(DTYPES.values(), ("sum", "prod", "max", "min", "any", "all"))),
    ids=str,
)
def test_reductions(dtype: DType, op: Any) -> None:
    """Of some elements, of one that is no number, and of none."""
    if (op in ("any", "all")) != (dtype.name == "bool"):
        return
    for x in (edges(dtype), edges(dtype)[3:5], edges(dtype)[:2], edges(dtype)[:0]):
        wanted, found = ran(lambda b, x: b.reduce(op, x, (0,)), x)
        if dtype.is_float and op in ("sum", "prod"):
            assert_close(wanted, found, 1e-2, f"{op} {dtype}")
        else:
            same(np.atleast_1d(wanted), np.atleast_1d(found))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_sums_wrap(dtype: DType) -> None:
    """Along some axes of several, and in products of matrices."""
    shape = (Dim.of(2), Dim.of(3), Dim.of(2))
    x = edges(dtype)[-12:]
    for op, axes in product(("sum", "prod", "max"), ((0,), (1,), (0, 2), (0, 1, 2))):
        same(*ran(lambda b, x, a=axes, o=op: b.reduce(o, b.reshape(x, shape), a), x, fixed=12))

    def dot(b: Builder, x: Node) -> Node:
        left = b.reshape(x, (Dim.of(3), Dim.of(4)))
        return b.dot(left, b.reshape(x, (Dim.of(3), Dim.of(4))), (), ((0, 0),), dtype)

    same(*ran(dot, x, fixed=12))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_gathers_clamp(dtype: DType) -> None:
    """Whatever an index is: in one axis, and in both."""
    places = edges(dtype)
    table = np.arange(30, dtype=np.float32).reshape(5, 6)

    def make(rows: bool, columns: bool) -> Any:
        def gather(b: Builder, i: Node) -> Node:
            six = b.reshape(b.iota(Dim.of(30), DTYPES["f32"]), (Dim.of(5), Dim.of(6)))
            given = (i if rows else None, i if columns else None)
            return b.gather(six, given, (False, False))

        return gather

    top = [np.clip(places.astype(object), 0, size - 1).astype(int) for size in (5, 6)]
    for rows, columns, expected in (
        (True, False, table[top[0]]),
        (False, True, table[:, top[1]].T),
        (True, True, table[top[0], top[1]]),
    ):
        wanted, found = ran(make(rows, columns), places)
        same(wanted, found)
        same(expected, found)


# ---------------------------------------------------------------- the table


ONE = ["Neg", "Abs", "Exp", "Log", "Sqrt", "Sin", "Cos", "Tanh", "Reciprocal"]
ONE += ["Not", "BitwiseNot", "Identity"]
TWO = ["Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "BitShift", "And", "Or", "Xor"]
TWO += ["BitwiseAnd", "BitwiseOr", "BitwiseXor"]
TWO += ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]


@pytest.mark.parametrize("kind", [*ONE, *TWO])
def test_the_runtime_has_what_the_table_says(kind: str) -> None:
    for name in sorted(TABLE[kind]):
        inputs = ["a", "b"] if kind in TWO else ["a"]
        more = {"Mod": {"fmod": 1}, "BitShift": {"direction": "LEFT"}}.get(kind, {})
        types = [helper.make_tensor_value_info(x, ELEMENT[name], [2]) for x in inputs]
        out = helper.make_empty_tensor_value_info("y")
        graph = helper.make_graph(
            [helper.make_node(kind, inputs, ["y"], **more)], "g", types, [out]
        )
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION)
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        ort.InferenceSession(model.SerializeToString(), options)
