"""Small functions and programs by hand, and drawn ones, for the tests of the IR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from linnet.core.build import Builder
from linnet.core.derive import dtype_of, shape_of
from linnet.core.ir import Function, Manifest, Node, OpId, Param, Program
from linnet.dims import Dim, Facts, Relation
from linnet.types import (
    BF16,
    BOOL,
    DTYPES,
    F16,
    F32,
    F64,
    I32,
    I64,
    U8,
    DType,
    TensorType,
    TupleType,
)
from linnet.weights.arrays import DTYPES as ARRAYS


def dims(*axes: int | str) -> tuple[Dim, ...]:
    return tuple(Dim.of(axis) for axis in axes)


def tensor(dtype: DType, *axes: int | str | Dim) -> TensorType:
    return TensorType(tuple(Dim.of(axis) for axis in axes), dtype)


def function(
    results: Sequence[Node],
    params: Sequence[Node],
    *,
    name: str = "f",
    kind: Any = "entry",
    names: Sequence[str] = (),
    writes: Sequence[str] = (),
    facts: Sequence[Relation] = (),
    op: OpId | None = None,
) -> Function:
    """A function whose declared result is the tuple (or the one) of its value results."""
    values = results[: len(results) - len(writes)]
    types = tuple(node.type for node in values)
    returns: Any = types[0] if len(types) == 1 else TupleType(types)  # type: ignore[arg-type]
    given = tuple(p for p in params if isinstance(p, Param))
    assert len(given) == len(params)
    return Function(
        name,
        kind,
        op,
        None,
        tuple(names),
        given,
        tuple(results),
        tuple(writes),
        tuple(facts),
        None if kind == "body" else returns,
    )


def program(*functions: Function) -> Program:
    """A program of these, callees first; those of kind "entry" are its entries."""
    entries = {f.name: f for f in functions if f.kind == "entry"}
    table = {f.name: f for f in functions}
    return Program("test", table, entries, Manifest("test", ()), {}, next(iter(entries)))


def unary_function(build: Any, *types: TensorType, names: Sequence[str] = ()) -> Function:
    """`build(builder, *params)` as a function of parameters a, b, c, ..."""
    b = Builder()
    params = [b.param("abcdefgh"[i], of) for i, of in enumerate(types)]
    made = build(b, *params)
    return function(made if isinstance(made, list) else [made], params, names=names)


# ---------------------------------------------------------------- drawn graphs

SIZES = st.sampled_from([1, 2, 3])
FLOATS = (F16, BF16, F32, F64)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.25, 100.0, float("nan"), float("inf"), -float("inf")]


@st.composite
def arrays(draw: st.DrawFn, of: TensorType, sizes: dict[str, int], special: bool) -> np.ndarray:
    """An array of this type: small values, the edges of integers, or floats of every kind."""
    shape = [axis.evaluate(sizes) for axis in of.shape if isinstance(axis, Dim)]
    count = int(np.prod(shape))
    assert isinstance(of.dtype, DType)
    to = ARRAYS[of.dtype.name]
    if of.dtype is BOOL:
        one: st.SearchStrategy[Any] = st.booleans()
    elif of.dtype.is_float:
        one = st.sampled_from(SPECIAL if special else SPECIAL[:8])
    else:
        info = np.iinfo(to)
        low, high = int(info.min), int(info.max)
        edges = st.sampled_from([low, low + 1, high, high - 1, 0, 1])
        one = st.one_of(st.integers(max(low, -4), 5), edges)
    values = draw(st.lists(one, min_size=count, max_size=count))
    return np.array(values, None if of.dtype is BOOL else object).astype(to).reshape(shape)


@st.composite
def functions(draw: st.DrawFn, dtypes: Sequence[DType], sums: bool = True) -> Function:
    """A function of two to three parameters and some ten nodes, made through the builder."""
    dtype = draw(st.sampled_from(dtypes))
    b = Builder(Facts())
    axes = [Dim.of("B"), Dim.of(2), Dim.of(3), Dim.of(1)]
    shapes = st.lists(st.sampled_from(axes), max_size=3).map(tuple)
    types = [TensorType(draw(shapes), dtype) for _ in range(draw(st.integers(1, 3)))]
    params: list[Node] = [b.param(f"x{i}", of) for i, of in enumerate(types)]
    # B is always known from an input.
    params.append(b.param("n", tensor(dtype, "B")))
    pool = list(params)
    for _ in range(draw(st.integers(3, 12))):
        node = _step(draw, b, pool, sums)
        if node is not None and len(shape_of(node)) <= 4:
            pool.append(node)
    results = [pool[-1], draw(st.sampled_from(pool))]
    return function(results, params, names=("B",))


def _step(draw: st.DrawFn, b: Builder, pool: list[Node], sums: bool) -> Node | None:
    x = draw(st.sampled_from(pool))
    shape, dtype = shape_of(x), dtype_of(x)
    rank = len(shape)
    step = draw(st.sampled_from(_STEPS if sums else _STEPS[:-3]))
    numeric = dtype is not BOOL
    match step:
        case "unary":
            ops = ["neg", "abs"] if numeric else ["not"]
            ops += ["not"] if dtype.is_integer else []
            return b.unary(draw(st.sampled_from(ops)), x)  # type: ignore[arg-type]
        case "binary":
            return _binary(draw, b, x, pool)
        case "constant":
            wide = [2**31, -(2**33)] if dtype == I64 else []
            value = draw(st.sampled_from([0, 1, 2, *wide])) if numeric else draw(st.booleans())
            constant = b.literal(value, dtype)
            if numeric and draw(st.booleans()):  # one of both, the number as it stands
                c = b.comparison("lt", x, constant)
                return b.selection(c, x, constant)
            ops = ["add", "sub", "mul", "div", "min"] if numeric else ["and", "or", "xor"]
            op: Any = draw(st.sampled_from(ops))
            flip = draw(st.booleans())
            return b.elementwise(op, constant, x) if flip else b.elementwise(op, x, constant)
        case "compare":
            y = draw(st.sampled_from([p for p in pool if p.type == x.type]))
            op = draw(st.sampled_from(["eq", "ne", "lt", "ge"] if numeric else ["eq", "ne"]))
            c = b.compare(op, x, y)
            c = b.unary("not", c) if draw(st.booleans()) else c
            return b.select(c, x, y)
        case "cast":
            there = draw(st.sampled_from(list(DTYPES.values())))
            y = b.cast(x, there)
            if draw(st.booleans()) and dtype_of(x) != BOOL:
                y = b.cast(y, draw(st.sampled_from(list(DTYPES.values()))))
            return b.cast(y, dtype)
        case "permute":
            return b.permute(x, draw(st.permutations(range(rank))))
        case "expand":
            at = draw(st.integers(0, rank))
            size = draw(st.sampled_from([Dim.of(1), Dim.of(2), Dim.of("B")]))
            ends = [i for i in range(rank + 1) if i != at]
            return b.expand(x, (*shape[:at], size, *shape[at:]), ends)
        case "repeat":
            grown = tuple(Dim.of(2) if axis == Dim.of(1) else axis for axis in shape)
            return b.expand(x, grown, range(rank))
        case "reshape":
            return b.reshape(x, (Dim.of(1), *shape)) if rank < 3 else b.reshape(x, _merged(shape))
        case "slice":
            ranges = [_slice(draw, axis) for axis in shape]
            return b.slice(x, ranges)
        case "concat":
            same = [p for p in pool if p.type == x.type]
            return (
                b.concat([x, draw(st.sampled_from(same)), x], draw(st.integers(0, rank - 1)))
                if rank
                else None
            )
        case "gather":
            return _gather(draw, b, x) if rank else None
        case "reduce":
            if not rank:
                return None
            ops = ["sum", "prod", "max", "min"] if numeric else ["any", "all"]
            chosen = draw(st.lists(st.integers(0, rank - 1), min_size=1, unique=True))
            return b.reduce(draw(st.sampled_from(ops)), x, chosen)  # type: ignore[arg-type]
        case _:
            return _product(draw, b, x, pool) if numeric else None


_STEPS = [
    "unary",
    "binary",
    "binary",
    "constant",
    "compare",
    "cast",
    "permute",
    "expand",
    "repeat",
    "reshape",
    "slice",
    "concat",
    "gather",
    "reduce",
    "product",
    "product",
]


def _binary(draw: st.DrawFn, b: Builder, x: Node, pool: list[Node]) -> Node | None:
    dtype = dtype_of(x)
    others = [p for p in pool if dtype_of(p) == dtype and _broadcasts(shape_of(p), shape_of(x))]
    if dtype is BOOL:
        ops = ["and", "or", "xor"]
    elif dtype.is_float:
        ops = ["add", "sub", "mul", "div", "min", "max"]
    else:
        ops = ["add", "sub", "mul", "div", "rem", "min", "max", "and", "xor", "shl", "shr"]
    op: Any = draw(st.sampled_from(ops))
    return b.elementwise(op, x, draw(st.sampled_from(others)))


def _gather(draw: st.DrawFn, b: Builder, x: Node) -> Node:
    """Positions along the first axis: counted, moved, clamped, wrapped around or chosen."""
    size = Dim.of("B") if draw(st.booleans()) else Dim.of(2)
    extent = shape_of(x)[0]
    index = b.iota(size, draw(st.sampled_from([I64, I32, U8])))
    for _ in range(draw(st.integers(0, 3))):
        dtype = dtype_of(index)
        step: Any = draw(st.sampled_from(["add", "sub", "min", "max", "rem", "select", "cast"]))
        bound = b.size(extent - 1 if draw(st.booleans()) else extent, dtype)
        bound = bound if draw(st.booleans()) else b.literal(draw(st.integers(0, 2)), dtype)
        if step == "cast":
            index = b.cast(index, I64)
        elif step == "select":
            below = b.comparison("lt", index, bound)
            index = b.selection(below, index, bound)
        else:
            index = b.elementwise(step, index, bound)
    if draw(st.booleans()):
        index = b.reduce(draw(st.sampled_from(["max", "min"])), index, (0,))
    return b.gather(x, [index, *[None] * (len(shape_of(x)) - 1)])


def _broadcasts(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    one = Dim.of(1)
    pairs = zip(reversed(a), reversed(b), strict=False)
    return all(x == y or one in (x, y) for x, y in pairs)


def _merged(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return (shape[0] * shape[1], *shape[2:])


def _slice(draw: st.DrawFn, axis: Dim) -> tuple[Dim, Dim, int] | None:
    size = axis.constant
    if size is None:
        return None
    start = draw(st.integers(0, size))
    stop = draw(st.integers(start, size))
    return Dim.of(start), Dim.of(stop), draw(st.sampled_from([1, 1, 2]))


def _product(draw: st.DrawFn, b: Builder, x: Node, pool: list[Node]) -> Node | None:
    """A sum over the product of two tensors on a frame of up to four axes, as notation makes it."""
    y = draw(st.sampled_from([p for p in pool if dtype_of(p) == dtype_of(x)]))
    frame: list[Dim] = list(shape_of(x))
    places: list[int] = []
    for axis in shape_of(y):
        free = [i for i, d in enumerate(frame) if d == axis and i not in places]
        if free and draw(st.booleans()):
            places.append(draw(st.sampled_from(free)))
        else:
            frame.append(axis)
            places.append(len(frame) - 1)
    if len(frame) > 4 or not frame:
        return None
    order = sorted(range(len(places)), key=places.__getitem__)
    left = b.expand(x, frame, range(len(shape_of(x))))
    right = b.expand(b.permute(y, order), frame, [places[i] for i in order])
    dtype = dtype_of(x)
    narrow = dtype in (F16, BF16)
    if narrow:
        left, right = b.cast(left, F32), b.cast(right, F32)
    chosen = draw(st.lists(st.integers(0, len(frame) - 1), min_size=1, unique=True))
    return b.cast(b.reduce("sum", b.binary("mul", left, right), chosen), dtype)
