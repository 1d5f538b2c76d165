"""Arrays by dtype name: what a stored tensor becomes in memory, with or without NumPy's help."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# The language's dtypes, and the two 8-bit floats that checkpoints hold beside them.
DTYPES: dict[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
FLOATS = frozenset({"f16", "bf16", "f32", "f64"})

# How NumPy, JAX and PyTorch print the same dtypes.
_NAMES: dict[str, str] = {
    "float16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float": "f32",
    "float64": "f64",
    "double": "f64",
    "float8_e4m3fn": "f8_e4m3",
    "float8_e5m2": "f8_e5m2",
    "bool": "bool",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
}


def dtype_name(dtype: object) -> str | None:
    """The language's name of a NumPy, JAX or PyTorch dtype; None where it has none."""
    text = str(dtype).removeprefix("torch.")
    return text if text in DTYPES else _NAMES.get(text)


def byte_count(dtype: str, shape: Sequence[int]) -> int:
    """The bytes that a tensor of this dtype and shape takes."""
    return math.prod(shape) * DTYPES[dtype].itemsize


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as bytes in row-major order, for dtypes that a framework's arrays may lack."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | bytearray | memoryview

    def array(self) -> Array:
        """The same bytes as a NumPy array (bf16 and 8-bit floats through ml_dtypes)."""
        return np.frombuffer(self.data, DTYPES[self.dtype]).reshape(self.shape)


def as_array(value: object) -> Array:
    """A NumPy array of the value: an array, a RawTensor, or a tensor of any framework."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, RawTensor):
        return value.array()
    held: Any = value
    if hasattr(held, "detach"):
        held = held.detach().cpu()
        name = dtype_name(held.dtype)
        if name in ("bf16", "f8_e4m3", "f8_e5m2"):
            # NumPy cannot be handed these, but their bits: a tensor's framework is loaded.
            framework: Any = sys.modules["torch"]
            bits: Array = held.view(framework.int16 if name == "bf16" else framework.uint8).numpy()
            return bits.view(DTYPES[name])
        array: Array = held.numpy()
        return array
    return np.asarray(held)
