"""SafeTensors: the header, checked whole before a byte of data is read; writing a file."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard, cast

import numpy as np

from linnet.diagnostics import PlanError
from linnet.weights.arrays import DTYPES, Array, as_array, byte_count, dtype_name
from linnet.weights.location import Header, MappedFile, TensorLocation, check_layout, regular_size
from linnet.weights.objects import VALUE_LIMIT, read_object
from linnet.weights.report import Report

STORED = {
    "BOOL": "bool",
    "I8": "i8",
    "I16": "i16",
    "I32": "i32",
    "I64": "i64",
    "U8": "u8",
    "U16": "u16",
    "U32": "u32",
    "U64": "u64",
    "F16": "f16",
    "BF16": "bf16",
    "F32": "f32",
    "F64": "f64",
    "F8_E4M3": "f8_e4m3",
    "F8_E5M2": "f8_e5m2",
}
_STORED_NAMES = {name: stored for stored, name in STORED.items()}
HEADER_LIMIT = 100_000_000
MAX_AXES = 32
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def read_header(path: Path, report: Report) -> Header | None:
    """Every tensor the header describes, its problems added to the report; None: no header."""
    try:
        size = regular_size(path)
        with path.open("rb") as file:
            length = header_length(path, file.read(8), size, report)
            header = None if length is None else file.read(length)
    except OSError as error:
        report.add("files", f"{path}: cannot be read: {error.strerror or error}")
        return None
    return None if header is None else parse_header(path, header, size, report)


def header_length(path: Path, start: bytes, size: int, report: Report) -> int | None:
    """The header's length by the first 8 bytes of a file of that size; None and a problem."""
    length = int.from_bytes(start, "little")
    problem = _not_safetensors(start, length, size)
    if problem:
        report.add("files", f"{path}: {problem}")
        return None
    return length


def parse_header(path: Path, header: bytes, size: int, report: Report) -> Header | None:
    """Every tensor that a header describes, in a file of that size that need not be here."""
    described = _parse(path, header, report)
    if described is None:
        return None
    source = MappedFile(path, size)
    origin = 8 + len(header)
    found: dict[str, TensorLocation] = {}
    for name, entry in described.items():
        location = _location(name, entry, origin, source, report)
        if location is not None:
            found[name] = location
    broken = frozenset(described.keys() - found.keys())
    check_layout(source, list(found.values()), origin, report, complete=not broken)
    return Header(found, broken)


def _not_safetensors(start: bytes, length: int, size: int) -> str:
    """Why the file cannot hold the header that its first bytes announce; empty where it can."""
    if start.startswith(b"version "):
        return f"is a Git LFS pointer of {size} bytes, not the weights: fetch the file itself"
    if size < 8:
        return f"is {size} bytes long, too short for SafeTensors: cut short or empty"
    if length > size - 8:
        return (
            f"cut short or not SafeTensors: its header should be {length:,} bytes long, "
            f"the file has {size:,} in all"
        )
    if length > HEADER_LIMIT:
        return f"has a header of {length:,} bytes; at most {HEADER_LIMIT:,} are read"
    return ""


def _parse(path: Path, header: bytes, report: Report) -> dict[str, Any] | None:
    repeated: list[str] = []
    values = header.count(b",")
    if values > VALUE_LIMIT:
        report.add("files", f"{path}: has a header of {values:,} values; it may be forged")
        return None

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            repeated.extend(name for name, count in counts.items() if count > 1)
        return entries

    try:
        described: Any = json.loads(header.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        report.add("files", f"{path}: its header is not valid JSON: {error}")
        return None
    if not isinstance(described, dict):
        report.add("files", f"{path}: its header is not a JSON object")
        return None
    for name in repeated:
        report.add("files", f"{path}: `{name}` stands twice in the header")
    entries = cast("dict[str, Any]", described)
    metadata: object = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        report.add("files", f"{path}: `__metadata__` is not an object of strings")
    return entries


def _location(
    name: str, entry: Any, origin: int, source: MappedFile, report: Report
) -> TensorLocation | None:
    """The tensor of one header entry, or None and a problem."""
    path = source.path
    fields = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    stored: object = fields.get("dtype")
    shape: object = fields.get("shape")
    offsets: object = fields.get("data_offsets")
    if not isinstance(stored, str) or stored not in STORED:
        known = ", ".join(STORED)
        report.add("files", f"{path}: `{name}` has the dtype {stored!r}; known are {known}")
        return None
    if not _are_sizes(shape):
        report.add("files", f"{path}: `{name}` has the shape {shape!r}, not a list of sizes")
        return None
    if len(shape) > MAX_AXES or math.prod(shape) > 1 << 62:
        large = f"{len(shape):,} axes" if len(shape) > MAX_AXES else "more elements than any file"
        report.add("files", f"{path}: `{name}` has {large}")
        return None
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        report.add("files", f"{path}: `{name}` has the offsets {offsets!r}, not [start, end]")
        return None
    dtype = STORED[stored]
    start, end = offsets
    if end - start != byte_count(dtype, shape):
        report.add(
            "files",
            f"{path}: `{name}`: {stored} {shape} takes {byte_count(dtype, shape):,} bytes, "
            f"its offsets {offsets} give it {end - start:,}",
        )
    return TensorLocation(
        path, name, dtype, tuple(shape), origin + start, origin + end, stored, None, source
    )


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        type(size) is int and size >= 0 for size in cast("list[object]", value)
    )


def read_index(path: Path, report: Report) -> dict[str, str] | None:
    """The index's map from tensor to shard, or None and a problem."""
    try:
        shards: Any = read_object(path, PlanError).get("weight_map")
    except PlanError as error:
        report.add("index", str(error))
        return None
    if not isinstance(shards, dict):
        report.add("index", f"{path}: has no object `weight_map` from tensor to file")
        return None
    entries = cast("dict[str, Any]", shards)
    for name, shard in entries.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            report.add(
                "index", f"{path}: `{name}` lies in {shard!r}, not the name of a file beside it"
            )
            return None
    return entries


def safetensors_index(path: str | Path) -> dict[str, TensorLocation]:
    """Every tensor of a SafeTensors file by name, the file checked, no data read."""
    report = Report()
    header = read_header(Path(path), report)
    report.check(f"cannot read {path}")
    return header.tensors if header else {}


def iter_safetensors(files: str | Path | Sequence[str | Path]) -> Iterator[tuple[str, Array]]:
    """Each name and array of the files, all files checked before the first is read."""
    paths = [files] if isinstance(files, str | Path) else list(files)
    report = Report()
    headers = [read_header(Path(path), report) for path in paths]
    report.check("cannot read the weights")
    for header in headers:
        for name, location in (header.tensors if header else {}).items():
            yield name, location.read()
            location.release()


def write_safetensors(
    path: str | Path,
    tensors: Mapping[str, Any],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """The file holds the tensors; it is written whole beside its place and then moved there.

    A tensor is a NumPy array, a RawTensor, or what a framework calls one.
    """
    path = Path(path)
    dtypes = {name: dtype_name(tensor.dtype) or "" for name, tensor in tensors.items()}
    unknown = [f"`{name}` ({tensors[name].dtype})" for name, dtype in dtypes.items() if not dtype]
    if unknown:
        raise PlanError(f"{path}: of a dtype that cannot be stored: {', '.join(unknown)}")
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    # Wide elements first: each tensor then begins at a multiple of its element's size.
    order = sorted(tensors, key=lambda name: -DTYPES[dtypes[name]].itemsize)
    for name in order:
        dtype, shape = dtypes[name], [int(n) for n in tensors[name].shape]
        offsets = [position, position + byte_count(dtype, shape)]
        header[name] = {"dtype": _STORED_NAMES[dtype], "shape": shape, "data_offsets": offsets}
        position = offsets[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in order:
                # ml_dtypes arrays refuse the buffer protocol, their bytes do not.
                array = np.ascontiguousarray(as_array(tensors[name]))
                file.write(array.reshape(-1).view(np.uint8).data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
