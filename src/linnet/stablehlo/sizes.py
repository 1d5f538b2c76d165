"""The dimensions of one function: numbers, and scalars that are worked out once, at its top."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from linnet.dims import Atom, Dim, Relation
from linnet.dims.dim import Monomial
from linnet.inputs import natural
from linnet.stablehlo.text import Extent, Ids, Lines, tensor_type
from linnet.stablehlo.writer import Writer
from linnet.types import I64

SCALAR = tensor_type((), I64)
_ROW = tensor_type((1,), I64)
_COMPARE = {"==": "EQ", "!=": "NE", "<": "LT", "<=": "LE", ">": "GT", ">=": "GE"}


class Sizes:
    """`static` has the dimensions that are numbers, `dynamic` names a scalar for each other one.

    All scalars are i64, so no product of sizes is cut off. Those that are worked out stand in
    `top`, before the function's own operations: any region sees them.
    """

    def __init__(self, names: Ids, static: Mapping[str, int], dynamic: Mapping[str, str]) -> None:
        self.static = dict(static)
        self.dynamic = dict(dynamic)
        self.top = Writer(names, Lines(depth=1))
        self.used: set[str] = set()
        self._scalars: dict[str, str] = {}
        self._shapes: dict[tuple[str, ...], str] = {}

    def extent(self, dim: Dim) -> Extent:
        """The number, where no dynamic dimension is in it."""
        if not self.dynamic or self.dynamic.keys().isdisjoint(dim.names()):
            return dim.evaluate(self.static)
        left = dim.substitute(self.static)
        return left if left.constant is None else left.constant

    def extents(self, shape: Sequence[object]) -> list[Extent]:
        return [self.extent(axis) for axis in shape if isinstance(axis, Dim)]

    # ------------------------------------------------ scalars

    def scalar(self, extent: Extent) -> str:
        """The size as a scalar."""
        dim = Dim.of(self.extent(Dim.of(extent)))
        return self._once(dim.key, lambda: self._sum(dim))

    def shape(self, extents: Sequence[Extent]) -> str:
        """The sizes as a tensor of one axis; its type is `shape_type(len(extents))`."""
        scalars = tuple(self.scalar(extent) for extent in extents)
        if scalars not in self._shapes:
            self._shapes[scalars] = self._shape(scalars)
        return self._shapes[scalars]

    def holds(self, relation: Relation) -> str:
        """Whether the relation holds, `tensor<i1>`."""
        left, right = self.scalar(relation.left), self.scalar(relation.right)
        return self.top.compare(_COMPARE[relation.op], left, right, SCALAR, I64)

    def _once(self, key: str, make: Callable[[], str]) -> str:
        if key not in self._scalars:
            self._scalars[key] = make()
        return self._scalars[key]

    def _sum(self, dim: Dim) -> str:
        if dim.constant is not None:
            return self.top.number(dim.constant, I64)
        total = ""
        for product, coefficient in dim.coefficients():
            if total and coefficient < 0:
                total = self._binary("subtract", total, self._product(product, -coefficient))
            elif total:
                total = self._binary("add", total, self._product(product, coefficient))
            else:
                total = self._product(product, coefficient)
        return total

    def _product(self, product: Monomial, coefficient: int) -> str:
        factors = [self._atom(atom) for atom in product]
        if coefficient != 1 or not factors:
            factors.append(self.scalar(coefficient))
        total = factors[0]
        for factor in factors[1:]:
            total = self._binary("multiply", total, factor)
        return total

    def _atom(self, atom: Atom) -> str:
        match atom.op:
            case "name":
                self.used.add(atom.name)
                return self.dynamic[atom.name]
            case "min" | "max":
                a, b = (self.scalar(arg) for arg in atom.args)
                return self._once(atom.key, lambda: self._binary(f"{atom.op}imum", a, b))
            case _:
                return self._once(atom.key, lambda: self._divided(atom))

    def _divided(self, atom: Atom) -> str:
        """Rounded down, as sizes are; what divides by zero is refused and must not stop before."""
        over, under = atom.args
        a, b = self.scalar(over), self.scalar(under)
        if under.constant is None:
            b = self._binary("maximum", b, self.scalar(1))
        if natural(over):
            return self._binary("divide" if atom.op == "/" else "remainder", a, b)
        rest = self._binary("remainder", a, b)
        rest = self._binary("remainder", self._binary("add", rest, b), b)
        if atom.op == "%":
            return rest
        return self._binary("divide", self._binary("subtract", a, rest), b)

    def _binary(self, op: str, a: str, b: str) -> str:
        key = f"{op} {a} {b}"
        return self._once(key, lambda: self.top.op(f"stablehlo.{op} {a}, {b}", SCALAR, "size"))

    def _row(self, scalar: str) -> str:
        text = f"stablehlo.reshape {scalar}"
        return self._once(text, lambda: self.top.op(text, f"({SCALAR}) -> {_ROW}"))

    def _shape(self, scalars: Sequence[str]) -> str:
        rows = [self._row(scalar) for scalar in scalars]
        if len(rows) == 1:
            return rows[0]
        types = ", ".join([_ROW] * len(rows))
        text = f"stablehlo.concatenate {', '.join(rows)}, dim = 0"
        return self.top.op(text, f"({types}) -> {shape_type(len(rows))}", "shape")


def shape_type(rank: int) -> str:
    """Of a tensor of sizes."""
    return tensor_type((rank,), I64)
