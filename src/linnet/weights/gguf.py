"""GGUF: metadata and tensors of a file, checked whole before a byte of data is read.

The package `gguf` has the tables and the dequantisers. Its reader trusts the counts that a file
states and takes seconds over a vocabulary, so the header is read here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType

from linnet.diagnostics import PlanError
from linnet.weights.dequantise import can_dequantise
from linnet.weights.location import Header, MappedFile, TensorLocation, check_layout, regular_size
from linnet.weights.published import published, published_name
from linnet.weights.report import Report

MAX_AXES = 4
# What a header may hold: several times the largest published ones, and little enough that a forged
# one is refused at once.
MAX_KEYS = 1 << 14
MAX_TENSORS = 1 << 15
MAX_ITEMS = 1 << 21  # of all arrays together; the largest vocabularies with merges have 1.3 million
MAX_NAME = 1 << 10
MAX_TEXT = 1 << 26
_ARRAY_BYTES = 1 << 25  # of all arrays of strings together
_LAZY = 1 << 12  # longer strings are decoded when they are asked for
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
# The encodings that are plain arrays; every other one is quantised.
_PLAIN = {
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "F64": "f64",
    "I8": "i8",
    "I16": "i16",
    "I32": "i32",
    "I64": "i64",
}


@dataclass(frozen=True, slots=True)
class _Stored:
    """An array or a long string of the header, checked to lie inside the file and not yet read."""

    source: MappedFile
    key: str
    kind: int
    count: int
    start: int
    end: int
    array: bool

    def read(self) -> Any:
        data = self.source.view(self.start, self.end)
        if not self.array:
            return self._text(data, f"`{self.key}`")
        if self.kind != _STRING:
            return np.frombuffer(data, _dtype(self.kind)).tolist()
        length_at = struct.Struct("<Q").unpack_from
        texts: list[str] = []
        position = 0
        # A vocabulary has a hundred thousand strings: this loop is most of a tokenizer's time.
        for _ in range(self.count):
            end = position + 8 + length_at(data, position)[0]
            try:
                texts.append(str(data[position + 8 : end], "utf-8"))
            except UnicodeDecodeError:
                self._text(data[position + 8 : end], f"`{self.key}`: string {len(texts):,}")
            position = end
        return texts

    def _text(self, data: memoryview, what: str) -> str:
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise PlanError(f"{self.source.path}: {what} is not UTF-8: {error}") from None


class Metadata(Mapping[str, Any]):
    """The values of a header by key; long ones are read from the file when they are asked for."""

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        self._values = values or {}

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, _Stored):
            value = self._values[key] = value.read()
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __or__(self, other: Metadata) -> Metadata:
        return Metadata(self._values | other._values)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file's metadata, and its tensors under the names and layout of Hugging Face."""

    path: Path
    metadata: Metadata
    header: Header


class _Bad(Exception):
    """The header cannot be followed any further."""


class _Cursor:
    """Reads header values in order; a length or count that the file cannot hold is refused."""

    def __init__(self, source: MappedFile) -> None:
        self.source = source
        self.data = source.view(0, source.size)
        self.position = 0
        self.items = 0
        self.array_bytes = 0

    def need(self, count: int, what: str) -> None:
        left = len(self.data) - self.position
        if count > left:
            raise _Bad(
                f"{what} at byte {self.position:,} should take {count:,} bytes, "
                f"{left:,} are left: the file is cut short or forged"
            )

    def number(self, code: str, what: str) -> Any:
        size = struct.calcsize("<" + code)
        self.need(size, what)
        (value,) = struct.unpack_from("<" + code, self.data, self.position)
        self.position += size
        return value

    def name(self, what: str) -> str:
        """A key or a tensor's name."""
        start, end = self._text(what, MAX_NAME)
        try:
            return str(self.data[start:end], "utf-8")
        except UnicodeDecodeError as error:
            raise _Bad(f"{what} is not UTF-8: {error}") from None

    def value(self, key: str) -> Any:
        kind: int = self.number("I", f"the type of `{key}`")
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], f"`{key}`")
        if kind == _ARRAY:
            return self._array(key)
        if kind != _STRING:
            raise _Bad(f"`{key}` has the unknown value type {kind}")
        start, end = self._text(f"`{key}`", MAX_TEXT)
        stored = _Stored(self.source, key, _STRING, 1, start, end, array=False)
        if end - start > _LAZY:
            return stored
        try:
            return str(self.data[start:end], "utf-8")
        except UnicodeDecodeError as error:
            raise _Bad(f"`{key}` is not UTF-8: {error}") from None

    def _text(self, what: str, limit: int) -> tuple[int, int]:
        """Where the bytes of a string lie."""
        length: int = self.number("Q", what)
        self.need(length, what)
        if length > limit:
            raise _Bad(f"{what} is {length:,} bytes long; at most {limit:,} are read")
        start, self.position = self.position, self.position + length
        return start, self.position

    def _array(self, key: str) -> _Stored:
        item: int = self.number("I", f"`{key}`")
        count: int = self.number("Q", f"`{key}`")
        what = f"`{key}`, {count:,} values,"
        if item not in _SCALARS and item != _STRING:
            raise _Bad(
                f"`{key}` is an array of arrays, which are not read"
                if item == _ARRAY
                else f"`{key}` is an array of the unknown value type {item}"
            )
        self.need(count * (8 if item == _STRING else _dtype(item).itemsize), what)
        self.items += count
        if self.items > MAX_ITEMS:
            raise _Bad(f"{what} are more than are read: a header may hold {MAX_ITEMS:,}")
        start = self.position
        if item == _STRING:
            self._pass_texts(key, count)
        else:
            self.position += count * _dtype(item).itemsize
        return _Stored(self.source, key, item, count, start, self.position, array=True)

    def _pass_texts(self, key: str, count: int) -> None:
        """Each of the strings lies inside the file; none is read."""
        data, start, position = self.data, self.position, self.position
        last = min(len(data), start + _ARRAY_BYTES - self.array_bytes)
        length_at = struct.Struct("<Q").unpack_from
        passed, at = 0, position
        while passed < count and position + 8 <= last:
            at = position
            position += 8 + length_at(data, position)[0]
            passed += position <= last
        if passed < count:
            problem = (
                "passes the end of the file: the file is cut short or forged"
                if last == len(data)
                else f"passes the {_ARRAY_BYTES:,} bytes that a header's strings may take"
            )
            raise _Bad(f"`{key}`: string {passed:,} of {count:,} at byte {at:,} {problem}")
        self.position = position
        self.array_bytes += position - start
        self.source.release(start, position)


def _dtype(kind: int) -> np.dtype[Any]:
    return np.dtype(_SCALARS[kind]).newbyteorder("<")


def read_gguf(path: str | Path, report: Report) -> GgufFile | None:
    """The file's metadata and tensors, problems added to the report; None: no usable header."""
    path = Path(path)
    try:
        size = regular_size(path)
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        report.add("files", f"{path}: cannot be read: {error.strerror or error}")
        return None
    problem = _not_gguf(start, size)
    if problem:
        report.add("files", f"{path}: {problem}")
        return None
    source = MappedFile(path, size)
    try:
        cursor = _Cursor(source)
        cursor.position = 8
        metadata, entries = _header(cursor)
        architecture = _architecture(metadata)
        alignment = _alignment(metadata)
    except _Bad as bad:
        report.add("files", f"{path}: {bad}")
        return None
    origin = -(-cursor.position // alignment) * alignment
    stored = [_location(entry, origin, alignment, source, report) for entry in entries]
    found = [location for location in stored if location is not None]
    check_layout(
        source, found, origin, report, complete=len(found) == len(stored), alignment=alignment
    )
    tensors: dict[str, TensorLocation] = {}
    for location in found:
        named = published(location, architecture, metadata, report)
        if named.name in tensors:
            report.add("files", f"{path}: `{location.name}` stands twice in the header")
        tensors[named.name] = named
    lost = [entry for entry, location in zip(entries, stored, strict=True) if location is None]
    broken = frozenset(published_name(entry[0], architecture) for entry in lost)
    return GgufFile(path, metadata, Header(tensors, broken))


def gguf_metadata(path: str | Path) -> Mapping[str, Any]:
    """The metadata of a GGUF file by key; a damaged file is a PlanError."""
    report = Report()
    file = read_gguf(path, report)
    report.check(f"cannot read {path}")
    return file.metadata if file is not None else {}


def _not_gguf(start: bytes, size: int) -> str:
    """Why the first eight bytes are not those of a file that can be read; empty where they are."""
    if start.startswith(b"version "):
        return f"is a Git LFS pointer of {size} bytes, not the weights: fetch the file itself"
    if start[:4] != b"GGUF":
        return f"is not GGUF: it starts with {start[:4]!r}, not b'GGUF'"
    if size < 24:
        return f"is {size} bytes long, too short for a GGUF header: cut short"
    version = int.from_bytes(start[4:8], "little")
    if version not in (2, 3):
        swapped = version & 0xFFFF == 0 and version
        return (
            "is big-endian GGUF; only little-endian files are read"
            if swapped
            else f"is GGUF version {version}; versions 2 and 3 are read"
        )
    return ""


_Entry = tuple[str, list[int], int, int]


def _header(cursor: _Cursor) -> tuple[Metadata, list[_Entry]]:
    """Metadata by key, and each tensor's (name, sizes fastest first, encoding, offset)."""
    tensors: int = cursor.number("Q", "the tensor count")
    keys: int = cursor.number("Q", "the metadata count")
    # A key takes at least 13 bytes and a tensor 24: what a forged count cannot get past.
    cursor.need(keys * 13, f"metadata of {keys:,} keys")
    if keys > MAX_KEYS:
        raise _Bad(f"has {keys:,} metadata keys; at most {MAX_KEYS:,} are read")
    values: dict[str, Any] = {}
    for k in range(keys):
        key = cursor.name(f"the name of metadata key {k}")
        if key in values:
            raise _Bad(f"the metadata key `{key}` stands twice")
        values[key] = cursor.value(key)
    cursor.need(tensors * 24, f"the description of {tensors:,} tensors")
    if tensors > MAX_TENSORS:
        raise _Bad(f"has {tensors:,} tensors; at most {MAX_TENSORS:,} are read")
    entries: list[_Entry] = []
    for k in range(tensors):
        name = cursor.name(f"the name of tensor {k}")
        axes: int = cursor.number("I", f"`{name}`")
        if axes > MAX_AXES:
            raise _Bad(f"`{name}` has {axes:,} axes; GGUF tensors have at most {MAX_AXES}")
        sizes = [int(cursor.number("Q", f"`{name}`")) for _ in range(axes)]
        encoding: int = cursor.number("I", f"`{name}`")
        entries.append((name, sizes, encoding, cursor.number("Q", f"`{name}`")))
    return Metadata(values), entries


def _architecture(metadata: Metadata) -> str:
    architecture: Any = metadata.get("general.architecture", "")
    if not isinstance(architecture, str):
        raise _Bad(f"`general.architecture` is {_short(architecture)}, not a string")
    return architecture


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."


def _alignment(metadata: Metadata) -> int:
    alignment: Any = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise _Bad(f"`general.alignment` is {_short(alignment)}, not a power of two")
    return alignment


def _location(
    entry: _Entry, origin: int, alignment: int, source: MappedFile, report: Report
) -> TensorLocation | None:
    """The tensor as stored, its axes slowest first, or None and a problem."""
    name, sizes, code, offset = entry
    path = source.path
    try:
        scheme = GGMLQuantizationType(code)
        block, width = GGML_QUANT_SIZES[scheme]
    except (ValueError, KeyError):
        report.add("files", f"{path}: `{name}` has the unknown encoding {code}")
        return None
    if math.prod(sizes) > 1 << 62:
        report.add("files", f"{path}: `{name}` has the sizes {sizes}: more than any file can hold")
        return None
    dtype = _PLAIN.get(scheme.name)
    if dtype is None and not can_dequantise(scheme.name):
        report.add(
            "files",
            f"{path}: `{name}` is stored as {scheme.name}, an encoding that is not read",
        )
        return None
    if dtype is None and (not sizes or not sizes[0] or sizes[0] % block):
        report.add(
            "files",
            f"{path}: `{name}`: rows of {sizes[0] if sizes else 1} elements; "
            f"{scheme.name} stores blocks of {block}",
        )
        return None
    if offset % alignment:
        report.add(
            "files", f"{path}: `{name}` lies at offset {offset:,}, not a multiple of {alignment}"
        )
    start = origin + offset
    end = start + math.prod(sizes) // block * width
    shape = tuple(reversed(sizes))
    return TensorLocation(path, name, dtype, shape, start, end, scheme.name, None, source)
