"""Weights: checkpoints of SafeTensors or GGUF, their bindings, and reading them lazily.

A checkpoint is opened from its headers alone. `plan_bindings` checks every name, shape and dtype,
the files included, and reports all problems at once; only then is data read, tensor by tensor,
from mapped memory.
"""

from __future__ import annotations

from linnet.weights.arrays import DTYPES, RawTensor, as_array, dtype_name
from linnet.weights.bindings import (
    Bound,
    Slot,
    apply_bindings,
    expand_bindings,
    paths_by_tensor,
    plan_bindings,
    read_bindings,
    read_bound,
    write_bindings,
)
from linnet.weights.checkpoint import (
    Checkpoint,
    Weights,
    open_checkpoint,
    read_arrays,
    safetensors_files,
)
from linnet.weights.gguf import GgufFile, gguf_metadata
from linnet.weights.gguf_config import config_of
from linnet.weights.location import TensorLocation
from linnet.weights.report import Report
from linnet.weights.safetensors import iter_safetensors, safetensors_index, write_safetensors

__all__ = [
    "DTYPES",
    "Bound",
    "Checkpoint",
    "GgufFile",
    "RawTensor",
    "Report",
    "Slot",
    "TensorLocation",
    "Weights",
    "apply_bindings",
    "as_array",
    "config_of",
    "dtype_name",
    "expand_bindings",
    "gguf_metadata",
    "iter_safetensors",
    "open_checkpoint",
    "paths_by_tensor",
    "plan_bindings",
    "read_arrays",
    "read_bindings",
    "read_bound",
    "safetensors_files",
    "safetensors_index",
    "write_bindings",
    "write_safetensors",
]
