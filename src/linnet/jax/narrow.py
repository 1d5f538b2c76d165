"""Which integers of 64 bits are kept in 32: those that provably fit.

An axis has fewer than 2^31 positions, so what counts them fits; so does what was 32 bits wide. What
else is computed in 64 bits asks JAX for them (`jax.enable_x64`), in the call of that entry only.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from linnet.core.derive import dtype_of, shape_of
from linnet.core.ir import (
    Binary,
    Cast,
    Compare,
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
    Unary,
    operands,
)
from linnet.core.scalars import holds_all
from linnet.dims import Dim
from linnet.types import F64, I32, I64, U64, TensorType

_FITS = 2**31


@dataclass(frozen=True, slots=True)
class Narrow:
    """The nodes of a body that are of i64 and stand in 32 bits.

    `counted` are those that come from a loop's counter, which JAX makes as wide as it has numbers.
    """

    nodes: frozenset[Node] = frozenset()
    counted: frozenset[Node] = frozenset()


def narrow_nodes(order: Iterable[Node], counters: Set[Node] = frozenset()) -> Narrow:
    """Of nodes in order; `counters` are those of loops around or in the body."""
    found: set[Node] = set(counters)
    counted: set[Node] = set(counters)
    for node in order:
        if isinstance(node.type, TensorType) and dtype_of(node) == I64 and _fits(node, found):
            found.add(node)
            if any(x in counted for x in operands(node)):
                counted.add(node)
    return Narrow(frozenset(found), frozenset(counted))


def _fits(node: Node, known: set[Node]) -> bool:
    match node:
        case Iota():
            return True
        case Cast(x):
            return dtype_of(x).is_integer and holds_all(I32, dtype_of(x))
        case Literal(value):
            return -_FITS <= value < _FITS
        case Size(dim):  # one size counts an axis; a product of sizes may be large
            if dim.constant is not None:
                return dim.constant < _FITS
            return dim in map(Dim.of, dim.names())
        case Expand(x) | Reshape(x) | Permute(x) | Slice(x):
            return x in known
        case Gather(x):
            return x in known
        case Concat(parts):
            return all(part in known for part in parts)
        case Select(_, a, b) | Binary("min" | "max", a, b):
            both = _plain(a), _plain(b)
            return all(x in known for x in both) and not all(isinstance(x, Literal) for x in both)
        case Reduce("max" | "min", x, axes):  # over no elements it is an end of the wide range
            extents = [shape_of(x)[axis].constant for axis in axes]
            return x in known and all(extents)
        case _:
            return False


def _plain(node: Node) -> Node:
    return node.x if isinstance(node, Expand) else node


def worked_out_ahead(order: Iterable[Node]) -> frozenset[Node]:
    """The nodes that sizes alone give and that f64 has a part in: NumPy computes them."""
    nodes = list(order)
    kinds = (Iota, Cast, Expand, Reshape, Permute, Slice, Concat, Select)
    fixed: set[Node] = set()
    for node in nodes:
        plain = isinstance(node, kinds) or _is_float_step(node)
        if isinstance(node, (Literal, Size)) or (plain and all(x in fixed for x in operands(node))):
            fixed.add(node)
    wide = {n for n in fixed if isinstance(n.type, TensorType) and dtype_of(n) == F64}
    wide |= {n for n in fixed if any(x in wide for x in operands(n))}
    stack = list(wide)
    while stack:
        for x in operands(stack.pop()):
            if x not in wide:
                wide.add(x)
                stack.append(x)
    return frozenset(n for n in wide if shape_of(n))


def meets_wide(order: Iterable[Node], results: Iterable[Node], ahead: Set[Node]) -> bool:
    """Whether JAX computes with what NumPy worked out in 64 bits, or is given it."""
    met = [x for node in order if node not in ahead for x in operands(node)]
    return any(x in ahead and dtype_of(x) in (F64, I64, U64) for x in (*met, *results))


def _is_float_step(node: Node) -> bool:
    """An elementwise operation on floats: NumPy's and JAX's edges are the same."""
    match node:
        case Unary() | Binary():
            return dtype_of(node).is_float
        case Compare(_, a):
            return dtype_of(a).is_float
        case _:
            return False
