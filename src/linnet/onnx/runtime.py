"""Programs on ONNX Runtime."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import onnxruntime as ort

from linnet.onnx.graph import ELEMENT, NAMES
from linnet.weights.arrays import DTYPES

Array = np.ndarray[Any, Any]


def options() -> ort.SessionOptions:
    """How sessions are made: quietly."""
    made = ort.SessionOptions()
    made.log_severity_level = 3
    return made


def ort_value(array: Array) -> ort.OrtValue:
    """The array as the runtime's own, which keeps the array's memory where it can."""
    name = NAMES[array.dtype]
    if name == "bf16":
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
            np.asarray(array, order="C").view(np.uint16), ELEMENT[name]
        )
    return ort.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))


def to_array(value: ort.OrtValue) -> Array:
    """The runtime's value as an array."""
    if value.element_type() != ELEMENT["bf16"]:
        return value.numpy()
    # NumPy's own types have no bf16, and the runtime's Python knows no other.
    size = value.tensor_size_in_bytes()
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(bytearray(data), DTYPES["bf16"]).reshape(value.shape())
