"""Linnet: a typed tensor language. Public names are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from linnet.diagnostics import InternalError as InternalError
    from linnet.diagnostics import LinnetError as LinnetError
    from linnet.diagnostics import NestError as NestError
    from linnet.diagnostics import PlanError as PlanError

# Public name -> the module that holds it under the same name.
_HOME = {
    "InternalError": "linnet.diagnostics",
    "LinnetError": "linnet.diagnostics",
    "NestError": "linnet.diagnostics",
    "PlanError": "linnet.diagnostics",
}


def __getattr__(name: str) -> Any:
    """A public name, imported now and kept."""
    if name not in _HOME:
        raise AttributeError(f"module 'linnet' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
