"""PyTorch: programs as nn.Modules that run generated source. Names are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from linnet.diagnostics import installing

if TYPE_CHECKING:
    from linnet.torch.causal import CausalLM as CausalLM
    from linnet.torch.kernels import KERNELS as KERNELS
    from linnet.torch.runtime import Function as Function
    from linnet.torch.runtime import LinnetModule as LinnetModule
    from linnet.torch.runtime import bind_weights as bind_weights
    from linnet.torch.runtime import load as load
    from linnet.torch.runtime import load_function as load_function

# Public name -> the module that holds it under the same name.
_HOME = {
    "KERNELS": "linnet.torch.kernels",
    "CausalLM": "linnet.torch.causal",
    "Function": "linnet.torch.runtime",
    "LinnetModule": "linnet.torch.runtime",
    "bind_weights": "linnet.torch.runtime",
    "load": "linnet.torch.runtime",
    "load_function": "linnet.torch.runtime",
}

__all__ = [
    "KERNELS",
    "CausalLM",
    "Function",
    "LinnetModule",
    "bind_weights",
    "load",
    "load_function",
]


def __getattr__(name: str) -> Any:
    """A public name, imported now and kept."""
    if name not in _HOME:
        raise AttributeError(f"module 'linnet.torch' has no attribute {name!r}")
    with installing(f"linnet.torch.{name}", "torch"):
        value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
