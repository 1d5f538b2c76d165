"""Where a stored tensor lies, and reading it from there without loading the rest."""

from __future__ import annotations

import mmap
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from linnet.diagnostics import PlanError
from linnet.weights.arrays import DTYPES, Array, RawTensor, as_array, dtype_name
from linnet.weights.dequantise import dequantise
from linnet.weights.report import Report

MEMORY = Path("<memory>")


def regular_size(path: Path) -> int:
    """The size of a file that can be mapped; what is no file is an OSError."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is a directory, a pipe or a device, and no file")
    return status.st_size


class MappedFile:
    """A file mapped into memory on first use; unread pages cost nothing."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self._map: mmap.mmap | None = None

    def view(self, start: int, end: int) -> memoryview:
        """The bytes from start to end, not copied; what is written there stays in this process."""
        return memoryview(self._mapping())[start:end]

    def strips(self, start: int, rows: int, stride: int, first: int, last: int) -> Array:
        """`[rows, last - first]`: the bytes from first to last of each row of `stride` bytes.

        No other byte is read. One row is not copied.
        """
        if not rows or first >= last:
            return np.empty((rows, last - first), np.uint8)
        if rows == 1:
            return np.frombuffer(self.view(start + first, start + last), np.uint8)[None]
        out = np.empty((rows, last - first), np.uint8)
        for row in range(rows):
            at = start + row * stride
            out[row] = np.frombuffer(self.view(at + first, at + last), np.uint8)
        return out

    def release(self, start: int, end: int) -> None:
        """The pages inside the range count as memory no longer; reading them again is allowed."""
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = self.size if end == self.size else end // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and first < last and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def expect(self, start: int, end: int) -> None:
        """The system begins to read the range's pages, and does not wait for them."""
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        if first < end and hasattr(mmap, "MADV_WILLNEED"):
            self._mapping().madvise(mmap.MADV_WILLNEED, first, end - first)

    def _mapping(self) -> mmap.mmap:
        if self._map is None:
            try:
                with self.path.open("rb") as file:
                    # Copy on write: a framework may write into its parameter (loading a state
                    # dict, training), which must neither end the process nor reach the file.
                    self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except (OSError, ValueError) as error:
                raise PlanError(f"{self.path}: cannot be read: {error}") from error
            if len(self._map) != self.size:
                raise PlanError(
                    f"{self.path}: changed while it was being loaded "
                    f"({self.size:,} bytes when checked, {len(self._map):,} now)"
                )
        return self._map


@dataclass(frozen=True, slots=True)
class Paired:
    """Rows of a projection are stored as the interleaved pairs of each head, and read as halves."""

    heads: int


@dataclass(frozen=True, slots=True)
class Transposed:
    """A matrix is stored the other way round."""


@dataclass(frozen=True, slots=True)
class PlusOne:
    """Numbers are stored with 1 added to them."""


Form = Paired | Transposed | PlusOne
"""How the stored form of a tensor differs from what is read."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorLocation:
    """A stored tensor: its file, name, shape and byte range; no byte of it has been read.

    `dtype` is None for a quantised tensor, whose `encoding` names the scheme instead. `shape` is
    that of the tensor as it is read; `form` says how the stored one differs.
    """

    file: Path
    name: str
    dtype: str | None
    shape: tuple[int, ...]
    start: int
    end: int
    encoding: str = ""
    form: Form | None = None
    source: Any = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        return self.end - self.start

    @property
    def is_mapped(self) -> bool:
        """Whether it lies in a file, not in an array that was given."""
        return isinstance(self.source, MappedFile)

    def raw(self) -> RawTensor:
        """The stored bytes as they lie, for a tensor that has a dtype of its own."""
        if self.dtype is None:
            raise PlanError(
                f"{self.file}: `{self.name}` is quantised ({self.encoding}): read() dequantises it"
            )
        if isinstance(self.source, MappedFile) and self.form is None:
            return RawTensor(self.dtype, self.shape, self.source.view(self.start, self.end))
        return RawTensor(self.dtype, self.shape, self.read().tobytes())

    def read(self, dtype: str | None = None) -> Array:
        """The tensor, rounded once where `dtype` asks for another than the stored one.

        Without a conversion the array is a view of the mapped file (or the very array
        of an in-memory checkpoint). A quantised tensor is dequantised in f32 first.
        """
        if not isinstance(self.source, MappedFile):
            array = as_array(self.source)
            return array.astype(DTYPES[dtype] if dtype else array.dtype, copy=False)
        data = np.frombuffer(self.source.view(self.start, self.end), np.uint8)
        match self.form:
            case None:
                return self._numbers(data, dtype)
            case Paired(heads):
                return halves(self._numbers(data, dtype), heads)
            case Transposed():
                return np.ascontiguousarray(self._numbers(data, dtype).T)
            case PlusOne():
                less = self._numbers(data, "f32") - np.float32(1)
                return less.astype(DTYPES[dtype or self.dtype or "f32"], copy=False)

    def read_into(self, memory: Array) -> None:
        """`read` into memory of the tensor's shape, in its dtype, without a copy beside it."""
        if self.form is not None or not self.is_mapped:
            np.copyto(memory, self.read(dtype_name(memory.dtype)))
        elif self.dtype is not None:
            np.copyto(memory, self.read(), casting="unsafe")
        else:
            data = np.frombuffer(self.source.view(self.start, self.end), np.uint8)
            dequantise(data, self.encoding, memory.reshape(-1))

    def blocks(self) -> Array | None:
        """The bytes of a quantised matrix, a row for each of its own; None for other tensors.

        A matrix that is stored the other way round, or in other values, is none.
        """
        if self.dtype is not None or len(self.shape) != 2:
            return None
        data = np.frombuffer(self.source.view(self.start, self.end), np.uint8)
        data = data.reshape(self.shape[0], -1) if self.shape[0] else data.reshape(0, 0)
        match self.form:
            case None:
                return data
            case Paired(heads):
                return halves(data, heads)
            case _:
                return None

    def release(self) -> None:
        """The mapped pages of this tensor count as memory no longer."""
        if isinstance(self.source, MappedFile):
            self.source.release(self.start, self.end)

    def _numbers(self, data: Array, dtype: str | None) -> Array:
        """What the bytes hold, in the stored layout."""
        shape = self.shape[::-1] if isinstance(self.form, Transposed) else self.shape
        if self.dtype is not None:
            array = data.view(DTYPES[self.dtype]).reshape(shape)
            return array.astype(DTYPES[dtype or self.dtype], copy=False)
        result = np.empty(shape, DTYPES[dtype or "f32"])
        dequantise(data, self.encoding, result.reshape(-1))
        return result


def halves(array: Array, heads: int) -> Array:
    """Rows 2k and 2k + 1 of a head are its k-th pair: all first ones, then all second ones."""
    paired = array.reshape(heads, -1, 2, *array.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(array.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """The tensors of one file by name, and the names that its header describes wrongly."""

    tensors: dict[str, TensorLocation]
    broken: frozenset[str] = frozenset()


def check_layout(
    source: MappedFile,
    locations: list[TensorLocation],
    origin: int,
    report: Report,
    *,
    complete: bool,
    alignment: int = 1,
) -> None:
    """The tensors fill the file from `origin` to its end, each byte once but for padding.

    `complete` says that no tensor's place is unknown, so that a hole is a hole.
    """
    path, size = source.path, source.size
    locations = sorted(locations, key=lambda location: (location.start, location.end))
    position, before = origin, ""
    for location in locations:
        name = location.name
        if location.start < position and location.nbytes:
            shared = min(position, location.end) - location.start
            report.add("files", f"{path}: `{name}` and `{before}` overlap in {shared:,} bytes")
        elif location.start - position >= alignment and complete:
            hole = location.start - position
            report.add("files", f"{path}: {hole:,} bytes before `{name}` belong to no tensor")
        if location.end > position:
            position, before = location.end, name
    if position > size:
        beyond = next((location for location in locations if location.end > size), None)
        first = (
            f"; `{beyond.name}` ({beyond.nbytes:,} bytes at {beyond.start:,}) is the first that is "
            "not whole"
            if beyond is not None
            else ""
        )
        report.add(
            "files",
            f"{path}: cut short: {size:,} bytes, its header describes {position:,}{first}",
        )
    elif size - position >= alignment and complete:
        report.add(
            "files",
            f"{path}: {size - position:,} bytes too long: {size:,} bytes, "
            f"its header describes {position:,}",
        )
