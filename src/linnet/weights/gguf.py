"""GGUF: metadata and tensors of a file, checked whole before a byte of data is read.

The package `gguf` has the tables and the dequantisers. Its reader trusts the counts that a file
states and takes seconds over a vocabulary, so the header is read here.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType

from linnet.weights.location import Header, MappedFile, TensorLocation, check_layout
from linnet.weights.report import Report

MAX_AXES = 4
_NESTING = 4
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
class GgufFile:
    """A GGUF file's metadata, and its tensors under the names and layout of Hugging Face."""

    path: Path
    metadata: dict[str, Any]
    header: Header

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))


class _Bad(Exception):
    """The header cannot be followed any further."""


class _Cursor:
    """Reads header values in order; a length or count that the file cannot hold is refused."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.position = 0

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

    def text(self, what: str) -> str:
        length: int = self.number("Q", what)
        self.need(length, what)
        start, self.position = self.position, self.position + length
        try:
            return str(self.data[start : self.position], "utf-8")
        except UnicodeDecodeError as error:
            raise _Bad(f"{what} is not UTF-8: {error}") from None

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], what)
        if kind == _STRING:
            return self.text(what)
        if kind != _ARRAY or depth == _NESTING:
            raise _Bad(f"{what} has the unknown value type {kind}")
        item: int = self.number("I", what)
        count: int = self.number("Q", what)
        if item in _SCALARS:
            code = np.dtype(_SCALARS[item]).newbyteorder("<")
            self.need(count * code.itemsize, f"{what}, {count:,} values,")
            start, self.position = self.position, self.position + count * code.itemsize
            return np.frombuffer(self.data[start : self.position], code).tolist()
        self.need(count * 8, f"{what}, {count:,} values,")
        if item == _STRING:
            return self._texts(count, what)
        return [self.value(item, what, depth + 1) for _ in range(count)]

    def _texts(self, count: int, what: str) -> list[str]:
        # A vocabulary has a hundred thousand strings: this loop is most of the time of a header.
        data, position, size = self.data, self.position, len(self.data)
        length_at = struct.Struct("<Q").unpack_from
        texts: list[str] = []
        for _ in range(count):
            if position + 8 > size:
                break
            end = position + 8 + length_at(data, position)[0]
            if end > size:
                break
            try:
                texts.append(str(data[position + 8 : end], "utf-8"))
            except UnicodeDecodeError as error:
                raise _Bad(f"{what}: string {len(texts)} is not UTF-8: {error}") from None
            position = end
        self.position = position
        if len(texts) < count:
            raise _Bad(
                f"{what}: string {len(texts):,} of {count:,} at byte {position:,} passes the end "
                "of the file: the file is cut short or forged"
            )
        return texts


def read_gguf(path: str | Path, report: Report) -> GgufFile | None:
    """The file's metadata and tensors, problems added to the report; None: no usable header."""
    path = Path(path)
    try:
        size = path.stat().st_size
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
    cursor = _Cursor(source.view(0, size))
    cursor.position = 8
    try:
        metadata, entries = _header(cursor)
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
        named = _published(location, metadata, report)
        if named.name in tensors:
            report.add("files", f"{path}: `{location.name}` stands twice in the header")
        tensors[named.name] = named
    lost = [entry for entry, location in zip(entries, stored, strict=True) if location is None]
    broken = frozenset(_published_name(entry[0], metadata) for entry in lost)
    return GgufFile(path, metadata, Header(tensors, broken))


def gguf_metadata(path: str | Path) -> dict[str, Any]:
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


def _header(cursor: _Cursor) -> tuple[dict[str, Any], list[_Entry]]:
    """Metadata by key, and each tensor's (name, sizes fastest first, encoding, offset)."""
    tensors: int = cursor.number("Q", "the tensor count")
    keys: int = cursor.number("Q", "the metadata count")
    # A key takes at least 13 bytes and a tensor 24: what a forged count cannot get past.
    cursor.need(keys * 13, f"metadata of {keys:,} keys")
    metadata: dict[str, Any] = {}
    for k in range(keys):
        key = cursor.text(f"the name of metadata key {k}")
        if key in metadata:
            raise _Bad(f"the metadata key `{key}` stands twice")
        metadata[key] = cursor.value(cursor.number("I", f"`{key}`"), f"`{key}`")
    cursor.need(tensors * 24, f"the description of {tensors:,} tensors")
    entries: list[_Entry] = []
    for k in range(tensors):
        name = cursor.text(f"the name of tensor {k}")
        axes: int = cursor.number("I", f"`{name}`")
        if axes > MAX_AXES:
            raise _Bad(f"`{name}` has {axes:,} axes; GGUF tensors have at most {MAX_AXES}")
        sizes = [int(cursor.number("Q", f"`{name}`")) for _ in range(axes)]
        encoding: int = cursor.number("I", f"`{name}`")
        entries.append((name, sizes, encoding, cursor.number("Q", f"`{name}`")))
    return metadata, entries


def _alignment(metadata: dict[str, Any]) -> int:
    alignment: Any = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise _Bad(f"`general.alignment` is {alignment!r}, not a power of two")
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
    if dtype is None and (not sizes or sizes[0] % block):
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


# GGUF's names to those of the checkpoints it is made from, for the families that share them.
_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_WHOLE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_NAMED = frozenset({"llama", "qwen2", "qwen3"})
_PAIRED = {"attn_q": "head_count", "attn_k": "head_count_kv"}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def _published(
    location: TensorLocation, metadata: dict[str, Any], report: Report
) -> TensorLocation:
    """The tensor as its first checkpoint named and laid it out; of an unknown family, as it is."""
    name = _published_name(location.name, metadata)
    match = _BLOCK.fullmatch(location.name)
    # Only the llama converter stores the rows of q and k as interleaved pairs.
    if metadata.get("general.architecture") != "llama" or match is None or match[2] not in _PAIRED:
        return replace(location, name=name)
    key = f"llama.attention.{_PAIRED[match[2]]}"
    heads: Any = metadata.get(key, metadata.get("llama.attention.head_count"))
    rows = location.shape[0] if location.shape else 0
    if type(heads) is int and heads > 0 and rows % (2 * heads) == 0:
        return replace(location, name=name, heads=heads)
    report.add(
        "files",
        f"{location.file}: `{location.name}` has {rows} rows, which `{key}` = {heads!r} "
        "does not divide into pairs",
    )
    return replace(location, name=name)


def _published_name(name: str, metadata: dict[str, Any]) -> str:
    if metadata.get("general.architecture") not in _NAMED:
        return name
    stem, _, suffix = name.rpartition(".")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.{suffix}"
    match = _BLOCK.fullmatch(name)
    if match is None or match[2] not in _MODULES:
        return name
    return f"model.layers.{match[1]}.{_MODULES[match[2]]}.{match[3]}"
