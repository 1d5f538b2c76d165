"""PyTorch: programs as nn.Modules that run generated source."""

from __future__ import annotations

from linnet.torch.causal import CausalLM
from linnet.torch.kernels import KERNELS
from linnet.torch.runtime import Function, LinnetModule, bind_weights, load, load_function

__all__ = [
    "KERNELS",
    "CausalLM",
    "Function",
    "LinnetModule",
    "bind_weights",
    "load",
    "load_function",
]
