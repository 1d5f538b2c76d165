"""What integers a node can hold, so that an index that cannot leave its axis is not clamped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from linnet.core.derive import dtype_of, shape_of
from linnet.core.ir import (
    Binary,
    Cast,
    Concat,
    Expand,
    For,
    Gather,
    If,
    Iota,
    Literal,
    Node,
    Permute,
    Reduce,
    Reshape,
    Select,
    Size,
    Slice,
    While,
    functions_of,
)
from linnet.core.scalars import holds_all, integer_range
from linnet.dims import Dim, Facts, Relation, dim_max, dim_min, proves
from linnet.types import I64, DType, TensorType

DEPTH = 8
"""How far down operands are followed: an index is a short expression."""


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds, every one of which holds for all elements."""

    lowest: tuple[Dim, ...] = ()
    highest: tuple[Dim, ...] = ()


Ranges = Mapping[Node, Range]
"""What the params of a body can hold: a loop's counter, and what the body is given."""


def inside(index: Node, extent: Dim, facts: Facts, ranges: Ranges) -> bool:
    """Whether every element of the index is provably a position of an axis of this extent."""
    found = range_of(index, ranges)
    return any(proves(facts, Relation(">=", low, Dim.of(0))) for low in found.lowest) and any(
        proves(facts, Relation("<", high, extent)) for high in found.highest
    )


def range_of(node: Node, ranges: Ranges, depth: int = DEPTH) -> Range:
    """Bounds of an integer node, in the sizes of its function."""
    dtype = dtype_of(node)
    if node in ranges:
        return ranges[node]
    if depth and dtype.is_integer:
        found = _known(node, dtype, ranges, depth - 1)
        if found.lowest or found.highest:
            return found
    return Range((Dim.of(0),)) if dtype.kind == "uint" else Range()


def _known(node: Node, dtype: DType, ranges: Ranges, depth: int) -> Range:
    match node:
        case Literal(value):
            return Range((Dim.of(int(value)),), (Dim.of(int(value)),))
        case Size(dim) if dtype == I64:
            return Range((dim,), (dim,))
        case Iota(extent) if dtype == I64 or _fits(extent, dtype):
            return Range((Dim.of(0),), (extent - 1,))
        case Cast(x) if dtype_of(x).is_integer and holds_all(dtype, dtype_of(x)):
            return range_of(x, ranges, depth)
        case Expand(x) | Reshape(x) | Permute(x) | Slice(x) | Gather(x):
            return range_of(x, ranges, depth)
        case Select(_, a, b) | Concat((a, b)):
            return _either(range_of(a, ranges, depth), range_of(b, ranges, depth))
        case Binary("add", a, b) if dtype == I64 and (by := _small(b)) is not None:
            return _moved(range_of(a, ranges, depth), by)
        case Binary("sub", a, b) if dtype == I64 and (by := _small(b)) is not None:
            return _moved(range_of(a, ranges, depth), -by)
        case Binary("min", a, b):
            left, right = range_of(a, ranges, depth), range_of(b, ranges, depth)
            return Range(_either(left, right).lowest, left.highest + right.highest)
        case Binary("max", a, b):
            left, right = range_of(a, ranges, depth), range_of(b, ranges, depth)
            return Range(left.lowest + right.lowest, _either(left, right).highest)
        case Reduce("max", x):  # over nothing it is the dtype's lowest value
            return Range((), range_of(x, ranges, depth).highest)
        case Reduce("min", x):
            return Range(range_of(x, ranges, depth).lowest)
        case Binary("rem", a, b) if Dim.of(0) in range_of(a, ranges, depth).lowest:
            # x % 0 is x: only a divisor that is known and not 0 bounds it.
            by = _constant(b)
            return Range((Dim.of(0),), (Dim.of(by - 1),) if by else ())
        case _:
            return Range()


def _fits(extent: Dim, dtype: DType) -> bool:
    return extent.constant is not None and extent.constant - 1 <= integer_range(dtype)[1]


def _either(x: Range, y: Range) -> Range:
    """What holds of both."""
    lowest = tuple(dim_min(a, b) for a in x.lowest for b in y.lowest)
    highest = tuple(dim_max(a, b) for a in x.highest for b in y.highest)
    return Range(lowest, highest)


def _small(node: Node) -> int | None:
    """A constant that takes no size past the ends of i64."""
    while isinstance(node, Expand):
        node = node.x
    if isinstance(node, Literal) and abs(node.value) < 1 << 31:
        return int(node.value)
    return None


def _moved(x: Range, by: int) -> Range:
    return Range(tuple(low + by for low in x.lowest), tuple(high + by for high in x.highest))


def _constant(node: Node) -> int | None:
    while isinstance(node, Expand):
        node = node.x
    return int(node.value) if isinstance(node, Literal) and node.value > 0 else None


def unclamped(node: Gather, facts: Facts, ranges: Ranges) -> tuple[bool, ...]:
    """Which indices cannot leave their axis."""
    return tuple(
        known or (index is not None and inside(index, extent, facts, ranges))
        for index, extent, known in zip(node.indices, shape_of(node.x), node.proved, strict=True)
    )


def counted(start: Dim, stop: Dim) -> Range:
    """What the counter of a loop holds, whenever its body runs."""
    return Range((start,), (stop - 1,))


def given(node: Node, ranges: Ranges) -> dict[Node, Range]:
    """What the params of a node's bodies can hold, those aside that change from turn to turn."""
    out: dict[Node, Range] = {}
    pairs: list[tuple[Node, Node]] = []
    match node:
        case For(_, _, start, stop, carried, scanned, fixed):
            for body in functions_of(node):
                out[body.params[0]] = counted(start, stop)
                pairs += zip(body.params[1 + len(carried) + len(scanned) :], fixed, strict=True)
        case While(test, body, inputs, count):
            pairs += zip(test.params[count:], inputs[count:], strict=True)
            pairs += zip(body.params[count:], inputs[count:], strict=True)
        case If(_, then, other, inputs):
            pairs += zip(then.params, inputs, strict=True)
            pairs += zip(other.params, inputs, strict=True)
        case _:
            pass
    for param, x in pairs:
        if isinstance(x.type, TensorType) and dtype_of(x).is_integer:
            found = range_of(x, ranges)
            if found.lowest or found.highest:
                out[param] = found
    return out
