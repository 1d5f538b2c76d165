"""Sizes while a model runs: read from shapes, computed in i64, each as a tensor `[1]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from linnet.dims import Atom, Dim
from linnet.onnx.graph import Writer, words
from linnet.types import I64


@dataclass(slots=True)
class Sizes:
    """The sizes of one function or graph; `read` gives a dimension that stands alone, by name.

    `fixed` are those that are numbers there.
    """

    writer: Writer
    read: Callable[[str], str]
    fixed: Mapping[str, int] = field(default_factory=dict[str, int])
    known: dict[Dim, str] = field(default_factory=dict[Dim, str])
    scalars: dict[Dim, str] = field(default_factory=dict[Dim, str])
    vectors: dict[tuple[Dim, ...], str] = field(default_factory=dict[tuple[Dim, ...], str])

    def plain(self, dim: Dim) -> Dim:
        """The dimension with what is known of it."""
        return dim.substitute(self.fixed) if self.fixed else dim

    def one(self, dim: Dim) -> str:
        """The dimension as a tensor `[1]` of i64."""
        dim = self.plain(dim)
        if dim.constant is not None:
            return self.writer.integers([dim.constant])
        if dim not in self.known:
            self.known[dim] = self._sum(dim)
        return self.known[dim]

    def scalar(self, dim: Dim) -> str:
        """The dimension as a tensor `[]` of i64."""
        dim = self.plain(dim)
        if dim.constant is not None:
            return self.writer.number(dim.constant, I64)
        if dim not in self.scalars:
            shape, wish = self.writer.integers([]), words(str(dim)) or "size"
            self.scalars[dim] = self.writer.early("Reshape", self.one(dim), shape, wish=wish)
        return self.scalars[dim]

    def shape(self, dims: Sequence[Dim]) -> str:
        """The dimensions as one tensor of i64."""
        dims = [self.plain(dim) for dim in dims]
        numbers = [dim.constant for dim in dims]
        if None not in numbers:
            return self.writer.integers([n for n in numbers if n is not None])
        if len(dims) == 1:
            return self.one(dims[0])
        key = tuple(dims)
        if key not in self.vectors:
            parts: list[str] = []
            run: list[int] = []
            for dim, number in zip(dims, numbers, strict=True):
                if number is not None:
                    run.append(number)
                    continue
                parts += [self.writer.integers(run)] if run else []
                parts.append(self.one(dim))
                run = []
            parts += [self.writer.integers(run)] if run else []
            self.vectors[key] = self.writer.early("Concat", *parts, axis=0, wish="shape")
        return self.vectors[key]

    def reshaped(self, dims: Sequence[Dim], own: Sequence[Dim] = ()) -> tuple[str, bool]:
        """What Reshape takes, and whether zeros in it are zeros.

        One unknown axis is -1; where all of them stand where the tensor has them, they are 0.
        """
        dims, own = ([self.plain(dim) for dim in each] for each in (dims, own))
        numbers = [dim.constant for dim in dims]
        kept = [i < len(own) and own[i] == dim for i, dim in enumerate(dims)]
        if None in numbers and all(
            n if n is not None else k for n, k in zip(numbers, kept, strict=True)
        ):
            return self.writer.integers([n or 0 for n in numbers]), False
        if numbers.count(None) == 1 and all(n is None or n > 0 for n in numbers):
            return self.writer.integers([-1 if n is None else n for n in numbers]), False
        return self.shape(dims), any(not n for n in numbers)

    def _sum(self, dim: Dim) -> str:
        total = ""
        for product, coefficient in dim.coefficients():
            term = ""
            for atom in product:
                factor = self._atom(atom)
                term = self._op("Mul", term, factor) if term else factor
            size = abs(coefficient)
            if size != 1 or not term:
                number = self.writer.integers([size])
                term = self._op("Mul", term, number) if term else number
            if total:
                total = self._op("Add" if coefficient > 0 else "Sub", total, term)
            elif coefficient > 0:
                total = term
            else:
                total = self._op("Neg", term)
        return total

    def _atom(self, atom: Atom) -> str:
        if atom.op == "name":
            alone = Dim.of(atom.name)
            if alone not in self.known:
                self.known[alone] = self.read(atom.name)
            return self.known[alone]
        a, b = (self.one(arg) for arg in atom.args)
        match atom.op:
            case "/" if _counts(atom.args[0]):
                return self._op("Div", a, b)
            case "/":  # floor division; the operator's truncates
                return self._op("Div", self._op("Sub", a, self._op("Mod", a, b)), b)
            case "%":
                return self._op("Mod", a, b)
            case "min" | "max":
                return self._op(atom.op.capitalize(), a, b)

    def _op(self, kind: str, *inputs: str) -> str:
        return self.writer.early(kind, *inputs, wish="size")


def _counts(dim: Dim) -> bool:
    """Whether the form alone shows that the dimension is not negative."""
    return all(
        coefficient >= 0
        and all(atom.op == "name" or all(map(_counts, atom.args)) for atom in product)
        for product, coefficient in dim.terms
    )
