"""One shard's part of a checkpoint: equal runs of an axis of a tensor, read by their bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from linnet.diagnostics import PlanError
from linnet.weights.arrays import DTYPES, Array, RawTensor, as_array, dtype_name
from linnet.weights.bindings import Bound, Slot
from linnet.weights.dequantise import dequantise
from linnet.weights.location import (
    MappedFile,
    Paired,
    PlusOne,
    TensorLocation,
    Transposed,
    halves,
)
from linnet.weights.report import Report

_POSITIONS = frozenset({"i32", "i64", "u32", "u64"})


@dataclass(frozen=True, slots=True)
class Shard:
    """Which of `count` shards of a model this process holds, from 0."""

    index: int
    count: int


@dataclass(frozen=True, slots=True)
class Part:
    """Run `index` of the `count` equal runs of an axis."""

    axis: int
    index: int
    count: int

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """The part's shape, of a tensor of that shape."""
        return tuple(n // self.count if k == self.axis else n for k, n in enumerate(whole))

    def whole(self, part: Sequence[int]) -> tuple[int, ...]:
        """The tensor's shape, of a part of that shape."""
        return tuple(n * self.count if k == self.axis else n for k, n in enumerate(part))

    def cut(self, value: Any) -> Any:
        """The part of an array or tensor, a view of it."""
        extent = int(value.shape[self.axis]) // self.count
        run = slice(self.index * extent, (self.index + 1) * extent)
        return value[(slice(None),) * self.axis + (run,)]


@dataclass(frozen=True, slots=True, eq=False)
class TensorPart(TensorLocation):
    """A part of a stored tensor: `shape` is the part's, the byte range the whole tensor's."""

    part: Part = Part(0, 0, 1)

    @property
    def nbytes(self) -> int:
        """The bytes that are read: of a block of quantised numbers, all."""
        if not isinstance(self.source, MappedFile):
            return (self.end - self.start) // self.part.count
        rows, _, first, last = self._run()
        return rows * (last - first)

    def raw(self) -> RawTensor:
        if self.dtype is None:
            raise PlanError(
                f"{self.file}: `{self.name}` is quantised ({self.encoding}): read() dequantises it"
            )
        return RawTensor(self.dtype, self.shape, self.read().tobytes())

    def read(self, dtype: str | None = None) -> Array:
        """The part, rounded once where `dtype` asks for another dtype than the stored one."""
        if not isinstance(self.source, MappedFile):
            if isinstance(self.source, RawTensor):
                array: Array = self.part.cut(self.source.array())
            else:
                array = as_array(self.part.cut(self.source))
            return array.astype(DTYPES[dtype] if dtype else array.dtype, copy=False)
        match self.form:
            case None:
                return self._own_numbers(dtype)
            case Paired(heads):
                own = heads // self.part.count if self.part.axis == 0 else heads
                return halves(self._own_numbers(dtype), own)
            case Transposed():
                return np.ascontiguousarray(self._own_numbers(dtype).T)
            case PlusOne():
                less = self._own_numbers("f32") - np.float32(1)
                return less.astype(DTYPES[dtype or self.dtype or "f32"], copy=False)

    def read_into(self, memory: Array) -> None:
        np.copyto(memory, self.read(dtype_name(memory.dtype)))

    def _stored(self) -> tuple[tuple[int, ...], int]:
        """The whole tensor's stored shape, and the axis of it that is split."""
        shape = self.part.whole(self.shape)
        if isinstance(self.form, Transposed):
            return shape[::-1], len(shape) - 1 - self.part.axis
        return shape, self.part.axis

    def _run(self) -> tuple[int, int, int, int]:
        """(rows, bytes of a row, first, last): every row's bytes from first to last are read."""
        shape, axis = self._stored()
        rows = math.prod(shape[:axis])
        stride = (self.end - self.start) // max(1, rows)
        first, last = self._places(shape, axis)
        block, width = self._block()
        if axis == len(shape) - 1:
            return rows, stride, first // block * width, -(-last // block) * width
        inner = math.prod(shape[axis + 1 :]) // block * width
        return rows, stride, first * inner, last * inner

    def _places(self, shape: Sequence[int], axis: int) -> tuple[int, int]:
        extent = shape[axis] // self.part.count
        return self.part.index * extent, (self.part.index + 1) * extent

    def _block(self) -> tuple[int, int]:
        """How many numbers of the last axis stand together in how many bytes."""
        if self.dtype is not None:
            return 1, DTYPES[self.dtype].itemsize
        block, width = GGML_QUANT_SIZES[GGMLQuantizationType[self.encoding]]
        return block, width

    def _own_numbers(self, dtype: str | None) -> Array:
        """What the part's bytes hold, in the stored layout."""
        rows, stride, first, last = self._run()
        data = self.source.strips(self.start, rows, stride, first, last)
        shape, axis = self._stored()
        begin, end = self._places(shape, axis)
        wanted = (*shape[:axis], end - begin, *shape[axis + 1 :])
        if self.dtype is not None:
            array: Array = data.reshape(-1).view(DTYPES[self.dtype]).reshape(wanted)
            return array.astype(DTYPES[dtype or self.dtype], copy=False)
        block, width = self._block()
        result = np.empty(data.size // width * block, DTYPES[dtype or "f32"])
        dequantise(data.reshape(-1), self.encoding, result)
        if axis < len(shape) - 1:
            return result.reshape(wanted)
        # The blocks at both ends may reach beyond the part.
        skip = begin - begin // block * block
        columns = result.reshape(*shape[:axis], -1)[..., skip : skip + end - begin]
        return np.ascontiguousarray(columns)


def part_of(location: TensorLocation, part: Part) -> TensorPart:
    """The part of a stored tensor."""
    kept = {f.name: getattr(location, f.name) for f in fields(TensorLocation)}
    return TensorPart(**{**kept, "shape": part.shape(location.shape)}, part=part)


def parts_between(
    whole: Iterable[Slot], own: Iterable[Slot], shard: Shard, fused: Mapping[str, str] | None = None
) -> dict[str, Part]:
    """The part that each split parameter is of the whole model's, by path.

    The axis that is `count` times as long in the whole model is the split one. `fused` says of
    parameters whose parts would not be runs of the stored tensor what their split axis is.
    """
    report = Report()
    shapes = {slot.path: slot.shape for slot in whole}
    parts: dict[str, Part] = {}
    for slot in own:
        full = shapes[slot.path]
        differing = [k for k, (a, b) in enumerate(zip(full, slot.shape, strict=True)) if a != b]
        if not differing:
            continue
        axis = differing[0]
        title = "no equal runs of one axis"
        sizes = f"`{slot.path}` is {list(full)}, of a shard {list(slot.shape)}"
        if len(differing) > 1 or slot.shape[axis] * shard.count != full[axis]:
            report.add(title, f"{sizes}: one axis must be {shard.count} times as long")
        elif slot.dtype in _POSITIONS:
            report.add(title, f"{sizes}: numbers of {slot.dtype} may be positions on a whole axis")
        elif slot.path in (fused or {}):
            why = (fused or {})[slot.path]
            report.add(
                title,
                f"{sizes}: axis {axis} is {why}, so that a shard's numbers lie in several places: "
                "store what is side by side in parameters of their own",
            )
        else:
            parts[slot.path] = Part(axis, shard.index, shard.count)
    report.check(f"cannot split the parameters into {shard.count} shards")
    return parts


def cut(bound: Iterable[Bound], parts: Mapping[str, Part]) -> list[Bound]:
    """What is bound for the whole model, as one shard holds it: split slots and their parts.

    Slots that share a tensor and are split alike share its part.
    """
    report = Report()
    known: dict[tuple[int, int], TensorPart] = {}
    out: list[Bound] = []
    for one in bound:
        part = parts.get(one.slot.path)
        if part is None:
            out.append(one)
            continue
        form = one.location.form
        if isinstance(form, Paired) and part.axis == 0 and form.heads % part.count:
            report.add(
                "heads that do not divide",
                f"`{one.location.name}` in {one.location.file} has {form.heads} heads, "
                f"which {part.count} shards do not share equally",
            )
            continue
        key = (id(one.location), part.axis)
        if key not in known:
            known[key] = part_of(one.location, part)
        slot = replace(one.slot, shape=part.shape(one.slot.shape))
        out.append(Bound(slot, known[key], one.cast))
    report.check("cannot split the weights")
    return out
