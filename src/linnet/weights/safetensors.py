"""SafeTensors: the header, checked whole before a byte of data is read; writing a file."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from linnet.diagnostics import PlanError
from linnet.weights.arrays import DTYPES, Array, RawTensor, as_array, byte_count, dtype_name
from linnet.weights.location import MappedFile, TensorLocation
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
INDEX = "model.safetensors.index.json"


def read_header(path: Path, report: Report) -> dict[str, TensorLocation] | None:
    """Every tensor the header describes, its problems added to the report; None: no header."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            text = _header_text(path, size, file.read(8), report)
            if text is None:
                return None
            header = file.read(text)
    except OSError as error:
        report.add("files", f"{path}: cannot be read: {error.strerror or error}")
        return None
    described = _parse(path, header, report)
    if described is None:
        return None
    source = MappedFile(path, size)
    origin = 8 + len(header)
    found: dict[str, TensorLocation] = {}
    for name, entry in described.items():
        location = _location(path, name, entry, origin, source, report)
        if location is not None:
            found[name] = location
    complete = len(found) == len(described)
    _check_layout(path, list(found.values()), origin, size, report, complete=complete)
    return found


def _header_text(path: Path, size: int, prefix: bytes, report: Report) -> int | None:
    """The length of the JSON header, if the file can hold it."""
    if prefix.startswith(b"version "):
        report.add(
            "files",
            f"{path}: is a Git LFS pointer of {size} bytes, not the weights: fetch the file itself",
        )
        return None
    if size < 8:
        report.add(
            "files", f"{path}: is {size} bytes long, too short for SafeTensors (cut or empty?)"
        )
        return None
    length = int.from_bytes(prefix, "little")
    if length > size - 8:
        report.add(
            "files",
            f"{path}: cut short or not SafeTensors: its header should be {length:,} bytes long, "
            f"the file has {size:,} in all",
        )
        return None
    if length > HEADER_LIMIT:
        report.add("files", f"{path}: a header of {length:,} bytes; at most {HEADER_LIMIT:,} is read")
        return None
    return length


def _parse(path: Path, header: bytes, report: Report) -> dict[str, Any] | None:
    repeated: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            names = [name for name, _ in pairs]
            repeated.extend(name for name in entries if names.count(name) > 1)
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
    entries.pop("__metadata__", None)
    return entries


def _location(
    path: Path, name: str, entry: Any, origin: int, source: MappedFile, report: Report
) -> TensorLocation | None:
    """The tensor of one header entry, or None and a problem."""
    if not isinstance(entry, dict):
        report.add("files", f"{path}: `{name}`: its header entry is not an object")
        return None
    stored: Any = entry.get("dtype")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    shape: Any = entry.get("shape")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    offsets: Any = entry.get("data_offsets")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(stored, str) or stored not in STORED:
        report.add(
            "files",
            f"{path}: `{name}` has the unknown dtype {stored!r}; known: {', '.join(STORED)}",
        )
        return None
    if not _are_sizes(shape):
        report.add("files", f"{path}: `{name}` has the shape {shape!r}, not a list of sizes")
        return None
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        report.add(
            "files", f"{path}: `{name}` has the offsets {offsets!r}, not [start, end] with start <= end"
        )
        return None
    dtype = STORED[stored]
    taken = offsets[1] - offsets[0]
    needed = byte_count(dtype, shape)
    if taken != needed:
        report.add(
            "files",
            f"{path}: `{name}`: {stored} {shape} takes {needed:,} bytes, "
            f"its offsets {offsets} give it {taken:,}",
        )
        return None
    return TensorLocation(
        path, name, dtype, tuple(shape), origin + offsets[0], origin + offsets[1], stored, None, source
    )


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in cast("list[Any]", value))


def _check_layout(
    path: Path,
    locations: list[TensorLocation],
    origin: int,
    size: int,
    report: Report,
    *,
    complete: bool,
) -> None:
    """The tensors fill the file from the header to its end, each byte once."""
    locations = sorted(locations, key=lambda location: (location.start, location.end))
    position, before = origin, ""
    for location in locations:
        if location.start < position and location.nbytes:
            report.add(
                "files",
                f"{path}: `{location.name}` and `{before}` overlap in "
                f"{min(position, location.end) - location.start:,} bytes",
            )
        elif location.start > position and complete:
            report.add(
                "files",
                f"{path}: {location.start - position:,} bytes before `{location.name}` "
                "belong to no tensor",
            )
        if location.end > position:
            position, before = location.end, location.name
    if position > size:
        beyond = next(location.name for location in locations if location.end > size)
        report.add(
            "files",
            f"{path}: cut short: {size:,} bytes, its header describes {position:,}; "
            f"`{beyond}` is the first tensor that is not whole",
        )
    elif position < size and complete:
        report.add(
            "files",
            f"{path}: {size - position:,} bytes too long: {size:,} bytes, "
            f"its header describes {position:,}",
        )


def read_index(path: Path, report: Report) -> dict[str, str] | None:
    """The index's map from tensor to shard, or None and a problem."""
    try:
        document: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        report.add("index", f"{path}: cannot be read as JSON: {error}")
        return None
    shards: Any = cast("dict[str, Any]", document).get("weight_map") if isinstance(document, dict) else None
    if not isinstance(shards, dict):
        report.add("index", f"{path}: has no object `weight_map` from tensor to file")
        return None
    entries = cast("dict[str, Any]", shards)
    for name, shard in entries.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            report.add("index", f"{path}: `{name}` lies in {shard!r}, not the name of a file beside it")
            return None
    return entries


def safetensors_index(path: str | Path) -> dict[str, TensorLocation]:
    """Every tensor of a SafeTensors file by name, the file checked, no data read."""
    report = Report()
    found = read_header(Path(path), report)
    report.check(f"cannot read {path}")
    return found or {}


def iter_safetensors(files: str | Path | Sequence[str | Path]) -> Iterator[tuple[str, Array]]:
    """Each name and array of the files, all files checked before the first is read."""
    paths = [files] if isinstance(files, str | Path) else list(files)
    report = Report()
    headers = [read_header(Path(path), report) for path in paths]
    report.check("cannot read the weights")
    for header in headers:
        for name, location in (header or {}).items():
            yield name, location.read()
            location.release()


def write_safetensors(
    path: str | Path,
    tensors: Mapping[str, Array | RawTensor | object],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """The file holds the tensors; it is written whole beside its place and then moved there."""
    path = Path(path)
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name, tensor in tensors.items():
        held: Any = tensor
        dtype = dtype_name(held.dtype)
        if dtype is None or dtype not in DTYPES:
            raise PlanError(f"{path}: `{name}` has the dtype {held.dtype}, which cannot be stored")
        shape = [int(n) for n in held.shape]
        end = position + byte_count(dtype, shape)
        header[name] = {"dtype": _STORED_NAMES[dtype], "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor in tensors.values():
                # ml_dtypes arrays refuse the buffer protocol, their bytes do not.
                file.write(np.ascontiguousarray(as_array(tensor)).reshape(-1).view(np.uint8).data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
