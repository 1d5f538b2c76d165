"""Which integers of 64 bits are kept in 32: those that provably fit.

What was 32 bits wide fits, and so does what counts positions, since sizes are below 2^31: what runs
with others is generated for them, and keeps nothing (`beyond`). What else is computed in 64 bits
asks JAX for them (`jax.enable_x64`), in the call of that entry only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache

from linnet.core.derive import dtype_of, shape_of
from linnet.core.ir import (
    Binary,
    Call,
    Cast,
    Compare,
    Concat,
    Expand,
    For,
    Function,
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
    functions_of,
    operands,
)
from linnet.core.rewrite import nodes_of
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


def beyond(function: Function, sizes: Mapping[str, int]) -> bool:
    """Whether a size does not fit 32 bits in a call with these, as far as they are known."""
    return any(
        dim.names() <= sizes.keys() and dim.evaluate(sizes) >= _FITS for dim in _counted(function)
    )


@lru_cache(maxsize=2048)
def _counted(function: Function) -> frozenset[Dim]:
    """The sizes that the function computes with, through its calls, in its names."""
    found: set[Dim] = set()
    for node in nodes_of(function):
        match node:
            case Size(dim):
                found.add(dim)
            case For(start=start, stop=stop):
                found |= {start, stop}
            case Call(inner, dims=dims):
                bound = dict(zip(inner.dims, dims, strict=True))
                found.update(dim.substitute(bound) for dim in _counted(inner))
                continue
            case _ if isinstance(node.type, TensorType):
                found.update(shape_of(node))
        for body in functions_of(node):
            found |= _counted(body)
    return frozenset(d for d in found if d.constant is None or d.constant >= _FITS)


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
