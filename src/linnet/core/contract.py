"""Sums of products become Dots, so that backends can multiply matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from linnet.core.build import ONE, Builder
from linnet.core.derive import dtype_of, shape_of
from linnet.core.ir import Binary, Cast, Expand, Function, Node, Permute, Reduce
from linnet.core.rewrite import rewrite
from linnet.core.simplify import simpler
from linnet.dims import Dim


def contract(function: Function, functions: Mapping[Function, Function] | None = None) -> Function:
    """The function with every sum over a product of two tensors as a Dot."""
    return rewrite(function, lambda node, b: contracted(node, b) or simpler(node, b), functions)


@dataclass(frozen=True, slots=True)
class Factor:
    """One side of the product: `axes[i]` is where its axis i stands in the product."""

    node: Node
    axes: tuple[int, ...]


def contracted(node: Node, b: Builder) -> Node | None:
    """A sum over a product, where a summed axis is in both factors, is a Dot kept in its dtype.

    Factors cast from one narrower dtype are handed over as they were: a Dot casts them itself.
    """
    match node:
        case Reduce("sum", Binary("mul", x, y) as product, axes):
            frame = shape_of(product)
            left, right = _factor(x, frame, b), _factor(y, frame, b)
            left, right = _uncast(left, right)
            return _dot(left, right, frame, axes, node, b)
        case _:
            return None


def _factor(node: Node, frame: tuple[Dim, ...], b: Builder) -> Factor:
    """The tensor below the Expands and Permutes, and where its axes went."""
    axes = tuple(range(len(frame)))
    while True:
        match node:
            case Expand(x, _, inner):
                node, axes = x, tuple(axes[i] for i in inner)
            case Permute(x, order):
                node, axes = x, tuple(axes[order.index(i)] for i in range(len(order)))
            case _:
                break
    shape = shape_of(node)
    repeated = [i for i, axis in enumerate(axes) if shape[i] == ONE and frame[axis] != ONE]
    if repeated:
        kept = [i for i in range(len(shape)) if i not in repeated]
        node = b.reshape(node, [shape[i] for i in kept], node.span)
        axes = tuple(axes[i] for i in kept)
    return Factor(node, axes)


def _uncast(left: Factor, right: Factor) -> tuple[Factor, Factor]:
    match left.node, right.node:
        case Cast(x), Cast(y) if dtype_of(x) == dtype_of(y) and dtype_of(x).is_float:
            return Factor(x, left.axes), Factor(y, right.axes)
        case _:
            return left, right


def _dot(
    left: Factor,
    right: Factor,
    frame: tuple[Dim, ...],
    summed: tuple[int, ...],
    node: Node,
    b: Builder,
) -> Node | None:
    shared = sorted(set(left.axes) & set(right.axes))
    contract = [axis for axis in shared if axis in summed]
    batch = [axis for axis in shared if axis not in summed]
    free_left = [axis for axis in left.axes if axis not in shared]
    free_right = [axis for axis in right.axes if axis not in shared]
    # Where nothing is left over on either side there is no matrix: the sum is as good as it is.
    # A sum over what is in no factor is not a product's business.
    if not contract or not (free_left or free_right):
        return None
    if not set(summed) <= {*left.axes, *right.axes}:
        return None
    if [*batch, *free_left, *free_right] != sorted([*batch, *free_left, *free_right]):
        swapped = [*batch, *free_right, *free_left]
        if swapped == sorted(swapped):
            left, right, free_left, free_right = right, left, free_right, free_left
    pairs = {axis: (left.axes.index(axis), right.axes.index(axis)) for axis in shared}
    result = b.dot(
        left.node,
        right.node,
        [pairs[axis] for axis in batch],
        [pairs[axis] for axis in contract],
        dtype_of(node),
        node.span,
    )
    axes = [*batch, *free_left, *free_right]
    result = b.reduce("sum", result, [i for i, a in enumerate(axes) if a in summed], node.span)
    axes = [axis for axis in axes if axis not in summed]
    result = b.permute(result, sorted(range(len(axes)), key=axes.__getitem__), node.span)
    kept = [axis for axis in range(len(frame)) if axis not in summed]
    places = [kept.index(axis) for axis in sorted(axes)]
    return b.expand(result, shape_of(node), places, node.span)
