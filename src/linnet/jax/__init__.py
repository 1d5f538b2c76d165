"""JAX: programs as StableHLO that XLA compiles, inside `jax.jit` or alone."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linnet.diagnostics import ExportError as ExportError
    from linnet.jax.importing import export_linnet as export_linnet
    from linnet.jax.importing import import_stablehlo as import_stablehlo
    from linnet.jax.runtime import LinnetFunction as LinnetFunction
    from linnet.jax.runtime import LinnetModel as LinnetModel
    from linnet.jax.runtime import load as load
    from linnet.jax.runtime import load_model as load_model
    from linnet.porting.package import ExportResult as ExportResult

# Public name -> the module that holds it under the same name.
_HOME = {
    **dict.fromkeys(("LinnetFunction", "LinnetModel", "load", "load_model"), "linnet.jax.runtime"),
    **dict.fromkeys(("export_linnet", "import_stablehlo"), "linnet.jax.importing"),
    "ExportError": "linnet.diagnostics",
    "ExportResult": "linnet.porting.package",
}

__all__ = [
    "ExportError",
    "ExportResult",
    "LinnetFunction",
    "LinnetModel",
    "export_linnet",
    "import_stablehlo",
    "load",
    "load_model",
]


def __getattr__(name: str) -> Any:
    """A public name, imported now and kept."""
    if name not in _HOME:
        raise AttributeError(f"module 'linnet.jax' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
