"""Linnet: a typed tensor language. Public names are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pathlib import Path

    from linnet.check import Analysis
    from linnet.diagnostics import InternalError as InternalError
    from linnet.diagnostics import LinnetError as LinnetError
    from linnet.diagnostics import NestError as NestError
    from linnet.diagnostics import PlanError as PlanError
    from linnet.ir import Program as Program
    from linnet.ir import load_program as load_program
    from linnet.ir import parse_binding as parse_binding
    from linnet.nest import load as load
    from linnet.syntax.format import format as format
    from linnet.weights import RawTensor as RawTensor
    from linnet.weights import apply_bindings as apply_bindings
    from linnet.weights import iter_safetensors as iter_safetensors
    from linnet.weights import read_arrays as read_arrays
    from linnet.weights import read_bindings as read_bindings
    from linnet.weights import safetensors_files as safetensors_files
    from linnet.weights import write_bindings as write_bindings
    from linnet.workspace import Workspace

    def check(place: str | Path | Workspace, target: str | Path = ".") -> Analysis: ...


# Public name -> the module that holds it under the same name.
_HOME = {
    "InternalError": "linnet.diagnostics",
    "LinnetError": "linnet.diagnostics",
    "NestError": "linnet.diagnostics",
    "PlanError": "linnet.diagnostics",
    "Program": "linnet.ir",
    "RawTensor": "linnet.weights",
    "apply_bindings": "linnet.weights",
    "format": "linnet.syntax.format",
    "iter_safetensors": "linnet.weights",
    "load": "linnet.nest",
    "load_program": "linnet.ir",
    "parse_binding": "linnet.ir",
    "read_arrays": "linnet.weights",
    "read_bindings": "linnet.weights",
    "safetensors_files": "linnet.weights",
    "write_bindings": "linnet.weights",
}


def __getattr__(name: str) -> Any:
    """A public name, imported now and kept."""
    if name == "check":  # the package of that name, which can be called
        return import_module("linnet.check")
    if name not in _HOME:
        raise AttributeError(f"module 'linnet' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, "check"})
