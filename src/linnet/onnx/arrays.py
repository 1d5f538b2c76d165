"""Primitives that move, collect or sum: gathers, reductions, products of matrices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from onnx import helper

from linnet.core.derive import dtype_of, shape_of
from linnet.core.ir import Dot, Gather, Reduce
from linnet.core.scalars import integer_range
from linnet.dims import Dim
from linnet.onnx.dtypes import computed_in
from linnet.onnx.elementwise import cast, select
from linnet.onnx.graph import Writer, value_info
from linnet.onnx.sizes import Sizes
from linnet.types import BOOL, I64, U8, U64, DType

_REDUCE = {
    "sum": "ReduceSum",
    "prod": "ReduceProd",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "any": "ReduceMax",
    "all": "ReduceMin",
}


def iota(w: Writer, sizes: Sizes, extent: Dim, dtype: DType, wish: str = "") -> str:
    """`0 .. extent-1`, counted exactly and rounded once."""
    zero, one = w.number(0, I64), w.number(1, I64)
    counted = w.op("Range", zero, sizes.scalar(extent), one, wish=wish if dtype == I64 else "")
    return cast(w, counted, I64, dtype, wish)


def permuted(w: Writer, x: str, order: Sequence[int], wish: str = "") -> str:
    """The axes in another order."""
    if list(order) == list(range(len(order))):
        return x
    return w.op("Transpose", x, perm=list(order), wish=wish)


def reshaped(
    w: Writer,
    sizes: Sizes,
    x: str,
    shape: Sequence[Dim],
    wish: str = "",
    own: Sequence[Dim] = (),
) -> str:
    """The elements in another shape; `own` is the shape that they have, where it is known."""
    to, zeros = sizes.reshaped(shape, own)
    if zeros:
        return w.op("Reshape", x, to, wish=wish, allowzero=1)
    return w.op("Reshape", x, to, wish=wish)


# ---------------------------------------------------------------- gathers


def gather(w: Writer, sizes: Sizes, node: Gather, x: str, indices: Sequence[str]) -> str:
    """Rows of x at the indices, each clamped to its axis."""
    extents = shape_of(node.x)
    indexed = [axis for axis, index in enumerate(node.indices) if index is not None]
    kept = [axis for axis, index in enumerate(node.indices) if index is None]
    given = [index for index in node.indices if index is not None]
    places = [
        _place(w, sizes, name, dtype_of(index), extents[axis], node.proved[axis])
        for name, index, axis in zip(indices, given, indexed, strict=True)
    ]
    lead = shape_of(given[0])
    if len(indexed) == 1:
        at = indexed[0]
        found = w.op("Gather", x, places[0], axis=at, wish="" if at else node.hint)
        count = len(lead)
        order = [*range(at, at + count), *range(at), *range(at + count, count + len(kept))]
        return permuted(w, found, order, node.hint)
    one = w.integers([-1])
    rows = [w.op("Unsqueeze", place, one) for place in places]
    stacked = w.op("Concat", *rows, axis=-1)
    return w.op("GatherND", permuted(w, x, [*indexed, *kept]), stacked, wish=node.hint)


def _place(w: Writer, sizes: Sizes, index: str, dtype: DType, extent: Dim, proved: bool) -> str:
    """The index in i64, within its axis."""
    if proved:
        return w.to(index, dtype, I64)
    wide = U64 if dtype == U64 else I64  # an index of u64 may be beyond all of i64
    last = w.to(sizes.scalar(extent - 1), I64, wide)
    inside = w.op("Clip", w.to(index, dtype, wide), w.number(0, wide), last)
    return w.to(inside, wide, I64)


# ---------------------------------------------------------------- reductions


def reduce(w: Writer, sizes: Sizes, node: Reduce, x: str) -> str:
    """Over the axes, which go."""
    dtype, kind, axes = dtype_of(node), _REDUCE[node.op], w.integers(node.axes)
    if not node.axes:
        return x
    if node.op in ("sum", "prod") and dtype.is_integer:
        return _collected(w, sizes, node, x)
    if node.op in ("max", "min") and dtype == U64:  # as i64, the upper half first
        half = w.number(integer_range(I64)[0], I64)
        flipped = w.op("BitwiseXor", w.to(x, U64, I64), half)
        found = w.op(kind, flipped, axes, keepdims=0)
        return w.to(w.op("BitwiseXor", found, half), I64, U64, node.hint)
    wide = computed_in(kind, dtype)
    own = w.to(x, dtype, wide)
    last = "" if wide != dtype or node.op in ("max", "min") else node.hint
    found = w.op(kind, own, axes, keepdims=0, wish=last)
    if node.op in ("max", "min"):
        if dtype.is_float:  # which the operator does not pass on
            none = w.op("ReduceMax", w.to(w.op("IsNaN", own), BOOL, U8), axes, keepdims=0)
            found = select(w, w.to(none, U8, BOOL), w.number(math.nan, wide), found, wide)
        elif wide != dtype and dtype.is_integer:  # of no elements it is the wider dtype's
            edge = w.number(integer_range(dtype)[node.op == "min"], wide)
            found = w.op("Max" if node.op == "max" else "Min", found, edge)
    return w.to(found, wide, dtype, node.hint)


def _collected(w: Writer, sizes: Sizes, node: Reduce, x: str) -> str:
    """Sums and products of integers, which wrap; the runtime's own reductions use floats."""
    dtype, shape = dtype_of(node), shape_of(node.x)
    kept = [axis for axis in range(len(shape)) if axis not in node.axes]
    count, left = _product(shape[axis] for axis in node.axes), [shape[axis] for axis in kept]
    wide = computed_in("MatMul" if node.op == "sum" else "Mul", dtype)
    own, one = w.to(x, dtype, wide), w.number(1, wide)
    if node.op == "sum":  # a product with ones
        rows = permuted(w, own, [*kept, *node.axes])
        if len(node.axes) > 1:
            rows = reshaped(w, sizes, rows, [*left, count])
        return w.to(w.op("MatMul", rows, w.op("Expand", one, sizes.one(count))), wide, dtype)
    rows = permuted(w, own, [*node.axes, *kept])
    if len(node.axes) > 1:
        rows = reshaped(w, sizes, rows, [count, *left])
    first = w.op("Expand", one, sizes.shape(left))
    turn, goes, before = (w.names.fresh(name) for name in ("turn", "goes", "before"))
    with w.inside() as nodes:
        product = w.op("Mul", before, w.op("Gather", rows, turn, axis=0))
        outputs = w.named([goes, product], "goes")
    extents = [axis.constant for axis in left]
    types = [(BOOL, []), (wide, extents)]
    inputs = [value_info(turn, I64, [])]
    inputs += [value_info(n, *type) for n, type in zip((goes, before), types, strict=True)]
    results = [value_info(n, *type) for n, type in zip(outputs, types, strict=True)]
    body = helper.make_graph(nodes, "body", inputs, results)
    return w.to(w.op("Loop", sizes.one(count), "", first, body=body), wide, dtype, node.hint)


# ---------------------------------------------------------------- products


def dot(w: Writer, sizes: Sizes, node: Dot, a: str, b: str) -> str:
    """Sums of products, kept in the node's dtype: MatMul, with the axes moved to suit it."""
    wide = computed_in("MatMul", node.dtype)
    a, b = (
        w.to(cast(w, name, dtype_of(x), node.dtype), node.dtype, wide)
        for name, x in ((a, node.a), (b, node.b))
    )
    shared = [[pair[side] for pair in node.batch] for side in (0, 1)]
    summed = [[pair[side] for pair in node.contract] for side in (0, 1)]
    shapes = [shape_of(node.a), shape_of(node.b)]
    free = [
        [i for i in range(len(shapes[side])) if i not in shared[side] and i not in summed[side]]
        for side in (0, 1)
    ]
    last = node.hint if wide == node.dtype else ""
    # ONNX Runtime fuses a transpose into a product, and gets that of a matrix and a vector wrong.
    turned = [*free[0], *summed[0]] != sorted([*free[0], *summed[0]])
    plain = len(free[1]) == 1 or (not free[1] and not turned)
    if not node.batch and len(node.contract) == 1 and plain:
        a = permuted(w, a, [*free[0], *summed[0]])
        b = permuted(w, b, [*summed[1], *free[1]])
        return w.to(w.op("MatMul", a, b, wish=last), wide, node.dtype, node.hint)
    lead = [shapes[0][axis] for axis in shared[0]]
    within = _product(shapes[0][axis] for axis in summed[0])
    counts = [_product(shapes[side][axis] for axis in free[side]) for side in (0, 1)]
    a = permuted(w, a, [*shared[0], *free[0], *summed[0]])
    b = permuted(w, b, [*shared[1], *summed[1], *free[1]])
    single = len(free[0]) == 1, len(free[1]) == 1
    if not single[0] or len(node.contract) != 1:
        a = reshaped(w, sizes, a, [*lead, counts[0], within])
    if not single[1] or len(node.contract) != 1:
        b = reshaped(w, sizes, b, [*lead, within, counts[1]])
    if all(single):
        return w.to(w.op("MatMul", a, b, wish=last), wide, node.dtype, node.hint)
    made = reshaped(w, sizes, w.op("MatMul", a, b), shape_of(node), last)
    return w.to(made, wide, node.dtype, node.hint)


def _product(dims: Iterable[Dim]) -> Dim:
    return math.prod(dims, start=Dim.of(1))
