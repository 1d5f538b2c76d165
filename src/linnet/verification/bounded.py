"""Which inputs of an entry are indices, and of how many positions: found in its nodes.

An integer input is followed through casts, shapes, sums and constant factors, through calls and
loops, to where it reads a position of an axis, or is compared with the positions of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

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
    If,
    Iota,
    Literal,
    Node,
    Param,
    Permute,
    Reduce,
    Reshape,
    Result,
    ResultsType,
    Select,
    Size,
    Slice,
    Unary,
    While,
    operands,
)
from linnet.core.rewrite import nodes_of
from linnet.dims import Dim
from linnet.types import TensorType

# What a value is made of: inputs by their number, and counters by how far they count, each with
# the factor that it has. `iota(8) - 2 * x` is {(8, 1), ("0", -2)} where x is input 0.
Parts = frozenset[tuple["str | int", Fraction]]
NOTHING: Parts = frozenset()
_MAY_LOOP = 4  # joins of what a loop carries; four links from input to index are more than any has


def bounds(function: Function, sizes: Mapping[str, int]) -> dict[int, int]:
    """For each value input that is an index, by its number: how many positions there are.

    The least, where it reads several axes. An input that has none here is bounded by no axis.
    """
    found = _Tracing()
    given = {
        param: frozenset({(str(number), Fraction(1))}) if _whole(param) else NOTHING
        for number, param in enumerate(function.values)
    }
    found.run(function, [given.get(p, NOTHING) for p in function.params], sizes)
    return {int(number): extent for number, extent in found.bounds.items()}


def _whole(node: Node) -> bool:
    return isinstance(node.type, TensorType) and dtype_of(node).is_integer


@dataclass(slots=True)
class _Tracing:
    """The bounds so far; mutable."""

    bounds: dict[str, int] = field(default_factory=dict[str, int])

    def bound(self, number: str, extent: Fraction) -> None:
        """The input is less than the extent, rounded up."""
        most = -(-extent.numerator // extent.denominator)
        self.bounds[number] = min(most, self.bounds.get(number, most))

    def run(
        self, function: Function, given: Sequence[Parts], sizes: Mapping[str, int]
    ) -> list[Parts]:
        """What each result is made of."""
        parts: dict[Node, Parts | list[Parts]] = dict(zip(function.params, given, strict=True))
        for node in nodes_of(function):
            if not isinstance(node, Param):
                inputs = [parts[x] for x in operands(node)]
                parts[node] = self.made(node, inputs, sizes)
        return [_one(parts[node]) for node in function.results]

    def made(
        self, node: Node, inputs: Sequence[Parts | list[Parts]], sizes: Mapping[str, int]
    ) -> Parts | list[Parts]:
        if isinstance(node, Result):
            (several,) = inputs
            return several[node.index] if isinstance(several, list) else NOTHING
        flat = [_one(x) for x in inputs]
        if isinstance(node.type, ResultsType):
            return self.ran(node, flat, sizes)
        match node:
            case Compare():
                self.compared(_sum(flat[0], _scaled(flat[1], Fraction(-1))))
            case Gather():
                self.gathered(node, flat[1:], sizes)
                return flat[0]
        if not _whole(node):
            return NOTHING
        match node:
            case Iota(extent):
                return frozenset({(extent.evaluate(sizes), Fraction(1))})
            case Unary("neg"):
                return _scaled(flat[0], Fraction(-1))
            case Binary(op, a, b):
                return _binary(op, flat, _constant(a, sizes), _constant(b, sizes))
            case Select():
                return flat[1] | flat[2]
            case Reduce("max" | "min") | Cast() | Reshape() | Permute() | Expand() | Slice():
                return flat[0]
            case Concat():
                return frozenset().union(*flat)
            case _:
                return NOTHING

    def compared(self, difference: Parts) -> None:
        """An input is at a counter's positions where the two are compared with each other."""
        for name, factor in difference:
            for count, other in difference:
                if isinstance(name, str) and isinstance(count, int) and factor * other < 0:
                    self.bound(name, count * abs(other / factor))

    def gathered(self, node: Gather, indices: Sequence[Parts], sizes: Mapping[str, int]) -> None:
        given = iter(indices)
        for extent, index, proved in zip(shape_of(node.x), node.indices, node.proved, strict=True):
            if index is None:
                continue
            parts = next(given)
            if proved:
                continue
            for name, factor in parts:
                if isinstance(name, str) and factor > 0:
                    self.bound(name, extent.evaluate(sizes) / factor)

    def ran(self, node: Node, given: Sequence[Parts], sizes: Mapping[str, int]) -> list[Parts]:
        """What the results of a node that runs functions are made of."""
        match node:
            case Call(function, _, dims):
                inner = dict(zip(function.dims, (_at(d, sizes) for d in dims), strict=True))
                return self.run(function, given, inner)
            case If(_, then, other):
                both = (self.run(f, given[1:], sizes) for f in (then, other))
                return [a | b for a, b in zip(*both, strict=True)]
            case While(test, body, _, count):
                carried, fixed = list(given[:count]), given[count:]
                for _turn in range(_MAY_LOOP):
                    self.run(test, [*carried, *fixed], sizes)
                    made = self.run(body, [*carried, *fixed], sizes)
                    carried = [a | b for a, b in zip(carried, made, strict=True)]
                return carried
            case For():
                return self.looped(node, given, sizes)
            case _:
                raise AssertionError(node)

    def looped(self, node: For, given: Sequence[Parts], sizes: Mapping[str, int]) -> list[Parts]:
        count = len(node.carried)
        carried, rest = list(given[:count]), given[count:]
        made: list[Parts] = [NOTHING] * len(node.body.results)
        for _turn in range(_MAY_LOOP):
            made = self.run(node.body, [NOTHING, *carried, *rest], sizes)
            joined = [a | b for a, b in zip(carried, made, strict=False)]
            if joined == carried:
                break
            carried = joined
        if node.last is not None:
            self.run(node.last, [NOTHING, *carried, *rest], sizes)
        return [*carried, *made[count:]]


def _one(parts: Parts | list[Parts]) -> Parts:
    return NOTHING if isinstance(parts, list) else parts


def _at(dim: Dim, sizes: Mapping[str, int]) -> int:
    return dim.evaluate(sizes)


def _sum(a: Parts, b: Parts) -> Parts:
    return a | b


def _scaled(parts: Parts, factor: Fraction) -> Parts:
    return frozenset((name, known * factor) for name, known in parts)


def _binary(op: str, parts: Sequence[Parts], a: int | None, b: int | None) -> Parts:
    match op:
        case "add" | "min" | "max":
            return _sum(*parts)
        case "sub":
            return _sum(parts[0], _scaled(parts[1], Fraction(-1)))
        case "mul" if b:
            return _scaled(parts[0], Fraction(b))
        case "mul" if a:
            return _scaled(parts[1], Fraction(a))
        case "div" if b:
            return _scaled(parts[0], Fraction(1, b))
        case _:  # a remainder, bits: any input gives an index that is there
            return NOTHING


def _constant(node: Node, sizes: Mapping[str, int]) -> int | None:
    while isinstance(node, Expand | Cast | Reshape):
        node = node.x
    match node:
        case Literal(value):
            return int(value)
        case Size(dim):
            return dim.evaluate(sizes)
        case _:
            return None
