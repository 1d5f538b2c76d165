"""What integers a node can hold, so that an index that cannot leave its axis is not clamped."""

from __future__ import annotations

from dataclasses import dataclass

from linnet.core.derive import dtype_of, shape_of
from linnet.core.ir import (
    Binary,
    Cast,
    Concat,
    Expand,
    Gather,
    Iota,
    Literal,
    Node,
    Permute,
    Reduce,
    Reshape,
    Select,
    Size,
    Slice,
)
from linnet.core.scalars import holds_all, integer_range
from linnet.dims import Dim, Facts, Relation, dim_max, dim_min, proves
from linnet.types import I64, DType

DEPTH = 8
"""How far down operands are followed: an index is a short expression."""


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds, every one of which holds for all elements."""

    lowest: tuple[Dim, ...] = ()
    highest: tuple[Dim, ...] = ()


def inside(index: Node, extent: Dim, facts: Facts) -> bool:
    """Whether every element of the index is provably a position of an axis of this extent."""
    found = range_of(index)
    return any(proves(facts, Relation(">=", low, Dim.of(0))) for low in found.lowest) and any(
        proves(facts, Relation("<", high, extent)) for high in found.highest
    )


def range_of(node: Node, depth: int = DEPTH) -> Range:
    """Bounds of an integer node, in the sizes of its function."""
    dtype = dtype_of(node)
    if depth and dtype.is_integer:
        found = _known(node, dtype, depth - 1)
        if found.lowest or found.highest:
            return found
    return Range((Dim.of(0),)) if dtype.kind == "uint" else Range()


def _known(node: Node, dtype: DType, depth: int) -> Range:
    match node:
        case Literal(value):
            return Range((Dim.of(int(value)),), (Dim.of(int(value)),))
        case Size(dim) if dtype == I64:
            return Range((dim,), (dim,))
        case Iota(extent) if dtype == I64 or _fits(extent, dtype):
            return Range((Dim.of(0),), (extent - 1,))
        case Cast(x) if dtype_of(x).is_integer and holds_all(dtype, dtype_of(x)):
            return range_of(x, depth)
        case Expand(x) | Reshape(x) | Permute(x) | Slice(x) | Gather(x):
            return range_of(x, depth)
        case Select(_, a, b) | Concat((a, b)):
            return _either(range_of(a, depth), range_of(b, depth))
        case Binary("min", a, b):
            left, right = range_of(a, depth), range_of(b, depth)
            return Range(_either(left, right).lowest, left.highest + right.highest)
        case Binary("max", a, b):
            left, right = range_of(a, depth), range_of(b, depth)
            return Range(left.lowest + right.lowest, _either(left, right).highest)
        case Reduce("max", x):  # over nothing it is the dtype's lowest value
            return Range((), range_of(x, depth).highest)
        case Reduce("min", x):
            return Range(range_of(x, depth).lowest)
        case Binary("rem", a, b) if Dim.of(0) in range_of(a, depth).lowest:
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


def _constant(node: Node) -> int | None:
    while isinstance(node, Expand):
        node = node.x
    return int(node.value) if isinstance(node, Literal) and node.value > 0 else None


def unclamped(node: Gather, facts: Facts) -> tuple[bool, ...]:
    """Which indices cannot leave their axis."""
    return tuple(
        known or (index is not None and inside(index, extent, facts))
        for index, extent, known in zip(node.indices, shape_of(node.x), node.proved, strict=True)
    )
