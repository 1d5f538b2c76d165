"""Nodes that say less with the same meaning: identities, folded shapes, constants.

Every rule keeps results to the last bit, NaN and -0.0 included; sums may change their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from linnet.core.build import ONE, ZERO, Builder
from linnet.core.derive import dtype_of, shape_of
from linnet.core.ir import (
    Binary,
    Cast,
    Compare,
    CompareOp,
    Concat,
    Element,
    Expand,
    Function,
    Gather,
    If,
    Literal,
    Node,
    Permute,
    Reduce,
    ReduceOp,
    Reshape,
    Result,
    Select,
    Size,
    Slice,
    Unary,
    Update,
)
from linnet.core.ranges import unclamped
from linnet.core.rewrite import rewrite, substitute
from linnet.core.scalars import (
    Scalar,
    fold_binary,
    fold_cast,
    fold_compare,
    fold_unary,
    holds_all,
    wrap,
)
from linnet.dims import Dim
from linnet.types import BOOL, I64, DType


def simplify(function: Function, functions: Mapping[Function, Function] | None = None) -> Function:
    """The function with every node as simple as the rules know, calling `functions` instead."""
    return rewrite(function, simpler, functions)


def simpler(node: Node, b: Builder) -> Node | None:
    """A simpler node of the same meaning."""
    match node:
        case Unary() | Binary() | Compare() | Select() | Cast():
            return _constant(node, b) or _identity(node, b) or _below_expand(node, b)
        case Reshape() | Permute() | Expand() | Slice() | Concat() | Reduce():
            return _shape(node, b)
        case Gather(x, indices, proved):
            known = unclamped(node, b.facts, b.ranges)
            return None if known == proved else b.gather(x, indices, known, node.span)
        case Element(Update(x, written, value), index):
            return value if written == index else b.element(x, index, node.span)
        case Update(Update(x, earlier, _), index, value) if earlier == index:
            return b.update(x, index, value, node.span)
        case Result(If(Literal(value), then, other, inputs), index):
            taken = then if value else other
            params: dict[Node, Node] = dict(zip(taken.params, inputs, strict=True))
            return substitute((taken.results[index],), params, {}, b)[0]
        case _:
            return None


# ---------------------------------------------------------------- constants and identities


def _constant(node: Node, b: Builder) -> Node | None:
    """An operation on rank-0 constants is a constant."""
    match node:
        case Unary(op, Literal(x, dtype)):
            return _literal(fold_unary(op, x, dtype), dtype, node, b)
        case Binary(op, Literal(x, dtype), Literal(y)):
            return _literal(fold_binary(op, x, y, dtype), dtype, node, b)
        case Compare(op, Literal(x), Literal(y)):
            return b.literal(fold_compare(op, x, y), BOOL, node.span)
        case Cast(Literal(x), dtype):
            return b.literal(fold_cast(x, dtype), dtype, node.span)
        case _:
            return None


def _literal(value: Scalar | None, dtype: DType, node: Node, b: Builder) -> Node | None:
    return None if value is None else b.literal(value, dtype, node.span)


def _identity(node: Node, b: Builder) -> Node | None:
    match node:
        case Unary("neg", Unary("neg", x)) | Unary("not", Unary("not", x)):
            return x
        case Unary("abs", x) if dtype_of(x).kind == "uint":
            return x
        case Unary("abs", Unary("abs" | "neg", x)):
            return b.unary("abs", x, node.span)
        case Unary("not", Compare(op, x, y)) if op in ("eq", "ne") or not _is_float(x):
            return b.compare(_OPPOSITE[op], x, y, node.span)
        case Binary(op, x, y):
            return _binary(op, x, y, b)
        case Compare(op, x, y) if x is y and not _is_float(x):
            return _filled(op in ("eq", "le", "ge"), BOOL, x, b)
        case Select(c, x, y):
            if x is y:
                return x
            if (known := _value(c)) is not None:
                return x if known else y
            if isinstance(c, Unary) and c.op == "not":
                return b.select(c.x, y, x, node.span)
            return None
        case Cast(Size(dim, inner), dtype) if inner == I64 and dtype != BOOL:
            return b.size(dim, dtype, node.span)
        case Cast(Cast(x, middle), dtype):
            return _cast_twice(x, middle, dtype, node, b)
        case _:
            return None


_OPPOSITE: dict[CompareOp, CompareOp] = {
    "eq": "ne",
    "ne": "eq",
    "lt": "ge",
    "ge": "lt",
    "le": "gt",
    "gt": "le",
}


def _binary(op: str, x: Node, y: Node, b: Builder) -> Node | None:
    dtype = dtype_of(x)
    left, right = _value(x), _value(y)
    if x is y and op in ("min", "max", "and", "or"):
        return x
    if _neutral(op, right, dtype):
        return x
    if op in ("add", "mul", "and", "or", "xor") and _neutral(op, left, dtype):
        return y
    if dtype.is_float:
        return None
    if x is y and op in ("sub", "xor"):
        return _filled(0, dtype, x, b)
    absorbs = (op == "mul" and 0 in (left, right)) or (op == "and" and 0 in (left, right))
    if absorbs or (op == "rem" and right == 1):
        return _filled(0, dtype, x, b)
    return None


def _neutral(op: str, value: Scalar | None, dtype: DType) -> bool:
    """Whether the operation with this constant on its right (or either side) changes nothing."""
    if value is None:
        return False
    if op in ("mul", "div"):
        return value == 1
    if op == "and":
        return value == (True if dtype is BOOL else wrap(-1, dtype))
    if dtype.is_float:
        # x + 0.0 turns -0.0 into 0.0; x - 0.0 and x + -0.0 do not.
        zero = value == 0
        return zero and (op, str(value)[0] == "-") in (("add", True), ("sub", False))
    return op in ("add", "sub", "or", "xor", "shl", "shr") and value == 0


def _cast_twice(x: Node, middle: DType, dtype: DType, node: Node, b: Builder) -> Node | None:
    """A cast through a dtype that loses nothing is one cast."""
    first = dtype_of(x)
    if not holds_all(middle, first):
        return None
    # Integers wrap and floats saturate: the way through floats counts where the end is narrower.
    changes = not first.is_float and middle.is_float and dtype.is_integer
    if changes and not holds_all(dtype, first):
        return None
    return b.cast(x, dtype, node.span)


def _value(node: Node) -> Scalar | None:
    """The constant that a node is, everywhere."""
    while isinstance(node, Expand):
        node = node.x
    return node.value if isinstance(node, Literal) else None


def _filled(value: Scalar, dtype: DType, like: Node, b: Builder) -> Node:
    return b.fill(b.literal(value, dtype), shape_of(like))


def _is_float(x: Node) -> bool:
    return dtype_of(x).is_float


# ---------------------------------------------------------------- elementwise below Expand


def _below_expand(node: Node, b: Builder) -> Node | None:
    """What is computed on repeated elements is computed before they are repeated."""
    match node:
        case Unary(op, Expand(x, shape, axes)):
            return b.expand(b.unary(op, x, node.span), shape, axes)
        case Cast(Expand(x, shape, axes), dtype):
            return b.expand(b.cast(x, dtype, node.span), shape, axes)
        case Binary(op, Expand() as x, Expand() as y):
            if (inner := _unexpanded((x, y), b)) is not None:
                a, c = inner[0]
                return b.expand(b.binary(op, a, c, node.span), *inner[1])
        case Compare(op, Expand() as x, Expand() as y):
            if (inner := _unexpanded((x, y), b)) is not None:
                a, c = inner[0]
                return b.expand(b.compare(op, a, c, node.span), *inner[1])
        case Select(Expand() as c, Expand() as x, Expand() as y):
            if (inner := _unexpanded((c, x, y), b)) is not None:
                condition, a, d = inner[0]
                return b.expand(b.select(condition, a, d, node.span), *inner[1])
        case _:
            pass
    return None


Spread = tuple[tuple[Dim, ...], tuple[int, ...]]


def _unexpanded(nodes: Sequence[Expand], b: Builder) -> tuple[list[Node], Spread] | None:
    """The operands before one common Expand, where all but scalars are repeated alike."""
    main = max(nodes, key=lambda n: len(n.axes))
    own = shape_of(main.x)
    out: list[Node] = []
    for n in nodes:
        if n.axes == main.axes and shape_of(n.x) == own:
            out.append(n.x)
        elif not n.axes:
            out.append(b.fill(n.x, own))
        else:
            return None
    return out, (main.shape, main.axes)


# ---------------------------------------------------------------- shapes


def _shape(node: Node, b: Builder) -> Node | None:
    match node:
        case Reshape(Reshape(x), shape):
            return b.reshape(x, shape, node.span)
        case Reshape(Expand(x, _, ()), shape):
            return b.expand(x, shape, (), node.span)
        case Permute(Permute(x, inner), order):
            return b.permute(x, [inner[i] for i in order], node.span)
        case Permute(Expand(x, shape, axes), order):
            return _permute_expand(x, shape, axes, order, node, b)
        case Expand(Expand(x, _, inner), shape, axes):
            return b.expand(x, shape, [axes[i] for i in inner], node.span)
        case Slice(Slice(x, inner), ranges):
            return _slice_slice(x, inner, ranges, node, b)
        case Slice(Expand(x, shape, axes), ranges):
            return _slice_expand(x, axes, ranges, node, b)
        case Concat(parts, axis):
            return _concat(parts, axis, node, b)
        case Reduce(op, Reduce(inner_op, x, inner), axes) if op == inner_op:
            kept = [i for i in range(len(shape_of(x))) if i not in inner]
            return b.reduce(op, x, [*inner, *(kept[i] for i in axes)], node.span)
        case Reduce(op, x, axes):
            return _reduce(op, x, axes, node, b)
        case _:
            return None


def _permute_expand(
    x: Node,
    shape: tuple[Dim, ...],
    axes: tuple[int, ...],
    order: tuple[int, ...],
    node: Node,
    b: Builder,
) -> Node:
    """The axes of x that are there move first; the new ones are put in where they end up."""
    place = {axis: i for i, axis in enumerate(order)}
    inner = sorted(range(len(axes)), key=lambda i: place[axes[i]])
    moved = b.permute(x, inner, node.span)
    ends = [place[axes[i]] for i in inner]
    return b.expand(moved, [shape[i] for i in order], ends, node.span)


def _slice_slice(
    x: Node,
    inner: tuple[tuple[Dim, Dim, int], ...],
    ranges: tuple[tuple[Dim, Dim, int], ...],
    node: Node,
    b: Builder,
) -> Node | None:
    if any(step != 1 for _, _, step in inner):
        return None
    parts = [
        (first + start, first + stop, step)
        for (first, _, _), (start, stop, step) in zip(inner, ranges, strict=True)
    ]
    return b.slice(x, parts, node.span)


def _slice_expand(
    x: Node,
    axes: tuple[int, ...],
    ranges: tuple[tuple[Dim, Dim, int], ...],
    node: Node,
    b: Builder,
) -> Node:
    """Only what is not repeated is cut."""
    own = shape_of(x)
    parts = [None if size == ONE else ranges[axis] for size, axis in zip(own, axes, strict=True)]
    return b.expand(b.slice(x, parts, node.span), shape_of(node), axes, node.span)


def _concat(parts: tuple[Node, ...], axis: int, node: Node, b: Builder) -> Node | None:
    flat: list[Node] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, Concat) and part.axis == axis else (part,))
    kept = [part for part in flat if shape_of(part)[axis] != ZERO] or flat[:1]
    return None if len(kept) == len(parts) else b.concat(kept, axis, node.span)


def _reduce(op: ReduceOp, x: Node, axes: tuple[int, ...], node: Node, b: Builder) -> Node | None:
    shape = shape_of(x)
    if all(shape[axis] == ONE for axis in axes):
        return b.reshape(x, shape_of(node), node.span)
    match x:
        case Permute(inner, order):
            summed = sorted(order[axis] for axis in axes)
            rest = [i for i in range(len(order)) if i not in summed]
            kept = [order[i] for i in range(len(order)) if i not in axes]
            reduced = b.reduce(op, inner, summed, node.span)
            return b.permute(reduced, [rest.index(i) for i in kept], node.span)
        case Expand(inner, _, places):
            own = shape_of(inner)
            where = {axis: i for i, axis in enumerate(places)}
            if not all(axis in where and own[where[axis]] == shape[axis] for axis in axes):
                return None
            reduced = b.reduce(op, inner, [where[axis] for axis in axes], node.span)
            left = [axis for axis in range(len(shape)) if axis not in axes]
            ends = [left.index(axis) for axis in places if axis not in axes]
            return b.expand(reduced, shape_of(node), ends, node.span)
        case _:
            return None
