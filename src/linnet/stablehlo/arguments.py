"""The dynamic dimensions of an entry: read from its arguments, and what they must satisfy asserted.

`linnet.inputs.bind_entry` does the same for numbers, and says the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from linnet.core.ir import Function, Param, Program
from linnet.diagnostics import PlanError
from linnet.dims import Dim, Relation
from linnet.inputs import demands, leaf_paths, near, place_of
from linnet.stablehlo.sizes import SCALAR, Sizes
from linnet.stablehlo.text import quoted, tensor_type
from linnet.types import BOOL, I32, I64, TensorType


def check_dynamic(
    program: Program,
    function: Function,
    name: str,
    sizes: Mapping[str, object],
    dynamic: Sequence[str],
) -> None:
    """PlanError where one of the names is no dimension of the entry that may stay dynamic."""
    for dim in dynamic:
        if dim in program.generics:
            raise PlanError(
                f"{name}: {dim} is a generic of the model and not of the entry, so it cannot stay "
                f"dynamic; use --bind {dim}={program.generics[dim]}"
            )
        if dim not in function.dims:
            own = ", ".join(function.dims) or "none"
            hint = near(dim, function.dims)
            raise PlanError(f"{name} has no dimension {dim}{hint}; its dimensions: {own}")
        if dim in sizes:
            raise PlanError(f"{name}: {dim} is bound to {sizes[dim]} and dynamic; leave out one")


ZERO, ONE = Dim.of(0), Dim.of(1)


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of an argument, of which the type says what size it has."""

    param: Param
    index: int
    dim: Dim


Part = str | Dim | Axis
"""Of a message: text, or a size."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a dimension is read: the axis is `factor * dimension + rest`."""

    axis: Axis
    factor: Dim
    rest: Dim

    @property
    def alone(self) -> bool:
        return self.factor.constant == 1 and self.rest.constant == 0


def sources(
    function: Function, name: str, bound: Collection[str], dynamic: Sequence[str]
) -> dict[str, Source]:
    """Where each dynamic dimension is read, in an order in which they can be.

    They come from axes on which they stand alone, and then from those whose one unknown they are.
    PlanError names the dimensions that no argument gives.
    """
    axes = _axes(function)
    found: dict[str, Source] = {}
    for axis in axes:
        for dim in dynamic:
            if axis.dim == Dim.of(dim):
                found.setdefault(dim, Source(axis, ONE, ZERO))
    while True:
        known = {*bound, *found}
        more = [
            (min(unknown), source)
            for axis in axes
            if len(unknown := axis.dim.names() - known) == 1
            and (source := _solved(axis, min(unknown))) is not None
        ]
        if not more:
            break
        found.setdefault(*more[0])
    missing = [dim for dim in dynamic if dim not in found]
    if missing:
        named = " ".join(f"{dim}=..." for dim in missing)
        raise PlanError(
            f"{name}: no argument's shape gives {', '.join(missing)}, so that cannot stay dynamic; "
            f"use --bind {named}"
        )
    return found


def _axes(function: Function) -> list[Axis]:
    return [
        Axis(param, i, dim)
        for param in function.values
        if isinstance(param.of, TensorType)
        for i, dim in enumerate(param.of.shape)
        if isinstance(dim, Dim)
    ]


def _solved(axis: Axis, name: str) -> Source | None:
    """The axis as `factor * name + rest`, if it is that."""
    factor, rest = ZERO, ZERO
    for product, coefficient in axis.dim.coefficients():
        others = [atom for atom in product if atom.op != "name" or atom.name != name]
        if any(name in arg.names() for atom in others for arg in atom.args):
            return None
        if len(product) - len(others) > 1:
            return None
        term = Dim.of(coefficient)
        for atom in others:
            term = term * Dim(((((atom,)), 1),), ((atom,),))
        if len(others) < len(product):
            factor += term
        else:
            rest += term
    return Source(axis, factor, rest)


def read_sizes(
    function: Function, name: str, sizes: Sizes, dynamic: Sequence[str], given: Mapping[Param, str]
) -> None:
    """Reads each dynamic dimension at the top of the function, and asserts what must hold."""
    found = sources(function, name, sizes.static, dynamic)
    _Entry(function, name, sizes, given, found).write()


class _Entry:
    """The top of the public function while it is written."""

    def __init__(
        self,
        function: Function,
        name: str,
        sizes: Sizes,
        given: Mapping[Param, str],
        found: Mapping[str, Source],
    ) -> None:
        self.function = function
        self.name = name
        self.sizes = sizes
        self.given = given
        self.found = found
        self.paths = dict(zip(function.values, leaf_paths(function), strict=True))
        self.read: dict[tuple[Param, int], str] = {}

    def write(self) -> None:
        # The types of the arguments say which of their sizes are dynamic: all are marked first.
        self.sizes.dynamic.update(dict.fromkeys(self.found, ""))
        for dim, source in self.found.items():
            self.sizes.dynamic[dim] = self._solve(dim, source)
        for axis in _axes(self.function):
            self._assert_axis(axis)
        for fact in self.function.facts:
            self._assert_fact(fact)
        self._assert_demands()

    # ------------------------------------------------ reading

    def _solve(self, dim: str, source: Source) -> str:
        """The dimension as a scalar; that it is a whole number is asserted later."""
        size = self._size(source.axis, dim if source.alone else "")
        if source.alone:
            return size
        top, factor = self.sizes.top, source.factor
        by = self.sizes.scalar(factor)
        if factor.constant is None:  # zero is refused, and must not stop before
            by = top.op(f"stablehlo.maximum {by}, {self.sizes.scalar(1)}", SCALAR)
        if source.rest.constant != 0:
            size = top.op(f"stablehlo.subtract {size}, {self.sizes.scalar(source.rest)}", SCALAR)
        if factor.constant == 1:
            return size
        return top.op(f"stablehlo.divide {size}, {by}", SCALAR, dim)

    def _size(self, axis: Axis, wish: str = "") -> str:
        """What the argument has on this axis."""
        place = axis.param, axis.index
        if place not in self.read:
            assert isinstance(axis.param.of, TensorType)
            extents = self.sizes.extents(axis.param.of.shape)
            type, i32 = tensor_type(extents, axis.param.of.dtype), tensor_type((), I32)  # type: ignore[arg-type]
            text = f"stablehlo.get_dimension_size {self.given[axis.param]}, dim = {axis.index}"
            found = self.sizes.top.op(text, f"({type}) -> {i32}")
            self.read[place] = self.sizes.top.convert(found, i32, SCALAR, wish)
        return self.read[place]

    # ------------------------------------------------ asserting

    def _assert_axis(self, axis: Axis) -> None:
        """That the argument has what its type says, unless the size was read there."""
        read = {source.axis: dim for dim, source in self.found.items()}
        if (axis in read and self.found[read[axis]].alone) or not self._varies(axis.dim):
            return
        names = axis.dim.names()
        divided = f"{self.name}: the dimension {axis.dim} divides by zero with "
        self._assert_divisors(axis.dim.divisors(), divided, names)
        has: list[Part] = [f"{self.name}: {self.paths[axis.param]} has ", axis]
        size, expected = self._size(axis), self.sizes.scalar(axis.dim)
        same = self.sizes.top.compare("eq", size, expected, SCALAR, I64)
        where = f" on axis {axis.index}, expected "
        if axis in read:
            self._assert_solved(same, [*has, f"{where}{axis.dim}"], read[axis])
        elif axis.dim == Dim.of(min(names)):
            self._assert(same, [*has, where, *self._names(names)])
        else:
            known = self._names(names)
            self._assert(same, [*has, f"{where}{axis.dim} = ", axis.dim, " (", *known, ")"])

    def _assert_solved(self, same: str, has: Sequence[Part], dim: str) -> None:
        """That an axis of `factor * dim + rest` gave a size."""
        source = self.found[dim]
        rest = self._names(source.axis.dim.names() - {dim})
        known = [" with ", *rest] if rest else []
        if source.factor.constant is None:
            positive = self.sizes.holds(Relation(">", source.factor, ZERO))
            self._assert(positive, [*has, f", which does not say what {dim} is", *known])
        self._assert(same, [*has, f": {dim} would be not a whole number", *known])
        natural = self.sizes.holds(Relation(">=", Dim.of(dim), ZERO))
        self._assert(natural, [*has, f": {dim} would be negative", *known])

    def _assert_fact(self, fact: Relation) -> None:
        if not (self._varies(fact.left) or self._varies(fact.right)):
            return
        text = f"{self.name} requires {fact}, which does not hold with "
        self._assert_divisors(fact.divisors(), text, fact.names())
        self._assert(self.sizes.holds(fact), [text, *self._names(fact.names())])

    def _assert_demands(self) -> None:
        """What sizes can still break: dimensions below zero, indices into empty axes."""
        for demand in demands(self.function):
            if not (self._varies(demand.goal.left) or self._varies(demand.goal.right)):
                continue
            names = self._names(demand.goal.names())
            at = f" at {place_of(demand.span)}" if demand.span is not None else ""
            ok = self.sizes.holds(demand.goal)
            if demand.access:
                text = f" `{demand.span.text}`" if demand.span is not None else ""
                empty = f"{self.name}: the access{text}{at} indexes an axis of size 0"
                self._assert(ok, [f"{empty} ({demand.dim} with ", *names, ")"])
            else:
                below = f"{self.name}: the dimension {demand.dim}{at} is "
                self._assert(ok, [below, demand.dim, " with ", *names])

    def _assert_divisors(self, divisors: Iterable[Dim], text: str, names: Collection[str]) -> None:
        for divisor in divisors:
            if self._varies(divisor):
                positive = self.sizes.holds(Relation(">", divisor, ZERO))
                self._assert(positive, [text, *self._names(names)])

    def _varies(self, dim: Dim) -> bool:
        return not isinstance(self.sizes.extent(dim), int)

    def _names(self, names: Collection[str]) -> list[Part]:
        """`B = 2 from axis 0 of x, H = 8`."""
        told: list[Part] = []
        for name in self.function.dims:
            if name not in names:
                continue
            told += [", "] if told else []
            told += [f"{name} = ", Dim.of(name)]
            if name in self.found:
                axis = self.found[name].axis
                told.append(f" from axis {axis.index} of {self.paths[axis.param]}")
        return told

    def _assert(self, ok: str, message: Sequence[Part]) -> None:
        """Refuses sizes with this message, in which dimensions and axes stand for their sizes."""
        scalars: list[str] = []
        text = ""
        for part in message:
            if isinstance(part, str):
                text += part.replace("{", "{{")
                continue
            extent = part if isinstance(part, Axis) else self.sizes.extent(part)
            if isinstance(extent, int):
                text += str(extent)
                continue
            scalar = self._size(extent) if isinstance(extent, Axis) else self.sizes.scalar(extent)
            if scalar not in scalars:
                scalars.append(scalar)
            text += f"{{{scalars.index(scalar)}}}"
        types = ", ".join([tensor_type((), BOOL), *[SCALAR] * len(scalars)])
        said = f"api_version = 2 : i32, error_message = {quoted(text)}, has_side_effect = true"
        self.sizes.top.lines.add(
            f"stablehlo.custom_call @shape_assertion({', '.join([ok, *scalars])}) {{{said}}} : "
            f"({types}) -> ()"
        )
