"""Operations that are told sizes: the form for numbers, or the one that reads them when it runs."""

from __future__ import annotations

from collections.abc import Sequence

from linnet.stablehlo.sizes import Sizes, shape_type
from linnet.stablehlo.text import (
    Extent,
    Ids,
    Lines,
    dense,
    is_dynamic,
    listed,
    tensor_type,
)
from linnet.stablehlo.writer import Writer
from linnet.types import DType

Range = tuple[Extent, Extent, int]


class Shaped(Writer):
    """A writer that knows the function's dimensions."""

    def __init__(self, sizes: Sizes, names: Ids, lines: Lines) -> None:
        super().__init__(names, lines)
        self.sizes = sizes

    def constant(self, value: bool | int | float, shape: Sequence[Extent], dtype: DType) -> str:
        """A tensor of one value everywhere."""
        type = tensor_type(shape, dtype)
        if is_dynamic(type):
            scalar = self.number(value, dtype)
            return self.broadcast(scalar, tensor_type((), dtype), shape, dtype, (), "c")
        return self.op(f"stablehlo.constant dense<{dense(value, dtype)}>", type, "c")

    def iota(self, shape: Sequence[Extent], dtype: DType, wish: str = "") -> str:
        """0, 1, ... along the first axis."""
        type = tensor_type(shape, dtype)
        if is_dynamic(type):
            text = f"stablehlo.dynamic_iota {self.sizes.shape(shape)}, dim = 0"
            return self.op(text, f"({shape_type(len(shape))}) -> {type}", wish)
        return self.op("stablehlo.iota dim = 0", type, wish)

    def reshape(
        self, x: str, type: str, shape: Sequence[Extent], dtype: DType, wish: str = ""
    ) -> str:
        """The same elements, in order."""
        return self._told("reshape", x, type, shape, dtype, "", wish)

    def broadcast(
        self,
        x: str,
        type: str,
        shape: Sequence[Extent],
        dtype: DType,
        axes: Sequence[int],
        wish: str = "",
    ) -> str:
        """x repeated, its axis `i` at `axes[i]`."""
        rest = f", dims = {listed(axes)}"
        return self._told("broadcast_in_dim", x, type, shape, dtype, rest, wish)

    def slice(
        self,
        x: str,
        type: str,
        ranges: Sequence[Range],
        shape: Sequence[Extent],
        dtype: DType,
        wish: str = "",
    ) -> str:
        """From start to stop in steps, on each axis."""
        to = tensor_type(shape, dtype)
        starts, stops, steps = ([one[i] for one in ranges] for i in range(3))
        if all(isinstance(bound, int) for bound in (*starts, *stops)):
            parts = [f"{a}:{b}" + (f":{s}" if s > 1 else "") for a, b, s in ranges]
            return self.op(f"stablehlo.slice {x} {listed(parts)}", f"({type}) -> {to}", wish)
        told = [self.sizes.shape(bounds) for bounds in (starts, stops, steps)]
        types = ", ".join([type, *[shape_type(len(ranges))] * 3])
        text = f"stablehlo.real_dynamic_slice {', '.join([x, *told])}"
        return self.op(text, f"({types}) -> {to}", wish)

    def gather(
        self,
        x: str,
        type: str,
        places: str,
        places_type: str,
        numbers: str,
        sizes: Sequence[Extent],
        to: str,
        wish: str = "",
    ) -> str:
        """A slice of x of these sizes at each of the places; `numbers` say which axis is which."""
        attributes = f"dimension_numbers = #stablehlo.gather<{numbers}>, indices_are_sorted = false"
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) < len(sizes):
            told = self.sizes.shape(sizes)
            text = f'"stablehlo.dynamic_gather"({x}, {places}, {told}) <{{{attributes}}}>'
            types = f"{type}, {places_type}, {shape_type(len(sizes))}"
            return self.op(text, f"({types}) -> {to}", wish)
        array = f"array<i64: {', '.join(map(str, sizes))}>" if sizes else "array<i64>"
        text = f'"stablehlo.gather"({x}, {places}) <{{{attributes}, slice_sizes = {array}}}>'
        return self.op(text, f"({type}, {places_type}) -> {to}", wish)

    def _told(
        self,
        op: str,
        x: str,
        type: str,
        shape: Sequence[Extent],
        dtype: DType,
        rest: str,
        wish: str,
    ) -> str:
        to = tensor_type(shape, dtype)
        if is_dynamic(to):
            text = f"stablehlo.dynamic_{op} {x}, {self.sizes.shape(shape)}{rest}"
            return self.op(text, f"({type}, {shape_type(len(shape))}) -> {to}", wish)
        return self.op(f"stablehlo.{op} {x}{rest}", f"({type}) -> {to}", wish)
