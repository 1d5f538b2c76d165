"""GGUF files of a family from a checkpoint's tensors, written as llama.cpp's converter does it.

The names come from the package's own table, so that the reader's tables are checked by it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import MODEL_ARCH_NAMES
from gguf.tensor_mapping import get_tensor_name_map

Arrays = Mapping[str, "np.ndarray[Any, Any]"]
_ARCHITECTURES = {name: architecture for architecture, name in MODEL_ARCH_NAMES.items()}


def gguf_name(published: str, architecture: str, layers: int = 8) -> str:
    """What the converter calls a checkpoint's tensor."""
    stem, _, suffix = published.rpartition(".")
    stem = stem.removeprefix("bert.")
    name = get_tensor_name_map(_ARCHITECTURES[architecture], layers).get_name(stem)
    assert name is not None, published
    return f"{name}.{suffix}"


def paired(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """A projection's halves of each head become interleaved pairs."""
    shape = rows.shape
    return rows.reshape(heads, 2, -1, *shape[1:]).swapaxes(1, 2).reshape(shape)


def stored(name: str, array: np.ndarray[Any, Any], architecture: str, metadata: Any) -> Any:
    """The values and layout that the converter gives a tensor of the GGUF name."""
    module = name.split(".")[-2]
    if architecture == "llama" and module in ("attn_q", "attn_k"):
        key = "head_count" if module == "attn_q" else "head_count_kv"
        return paired(array, metadata[f"llama.attention.{key}"])
    if architecture == "gemma3" and module.endswith("norm"):
        return array + np.float32(1)
    turned = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
    if architecture == "gpt2" and module in turned and array.ndim == 2:
        return np.ascontiguousarray(array.T)
    return array


def write_gguf(
    path: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    tensors: Arrays,
    scheme: str | None = None,
    raw: Arrays | None = None,
) -> Path:
    """The file at the path: `tensors` by published name, `raw` ones under GGUF names as they are.

    Matrices are quantised where a scheme is given.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        _add(writer, key, value)
    for published, array in tensors.items():
        name = gguf_name(published, architecture)
        array = stored(name, array, architecture, metadata)
        if scheme is None or array.ndim < 2:
            writer.add_tensor(name, array)
        else:
            kind = gguf.GGMLQuantizationType[scheme]
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    for name, array in (raw or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


# --- bytes of a header, right or wrong ---------------------------------------------------------


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def info(name: str, sizes: list[int], encoding: int, offset: int) -> bytes:
    axes = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return text(name) + axes + struct.pack("<IQ", encoding, offset)


def forged(
    infos: list[bytes], data: int, keys: list[bytes] | None = None, version: int = 3
) -> bytes:
    keys = keys or []
    head = b"GGUF" + struct.pack("<IQQ", version, len(infos), len(keys))
    head += b"".join(keys) + b"".join(infos)
    return head + b"\0" * (-len(head) % 32 + data)
