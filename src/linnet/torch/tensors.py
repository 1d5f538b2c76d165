"""Arrays of weights and inputs as tensors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor


def tensor_of(array: np.ndarray[Any, np.dtype[Any]]) -> Tensor:
    """The array as a tensor over the same memory."""
    if not array.flags.c_contiguous or not array.dtype.isnative:
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    name = array.dtype.name
    with warnings.catch_warnings():
        # An array of the user's may be read-only; what it is given for does not write into it.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        if name == "bfloat16":
            return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
        return torch.from_numpy(array)
