"""JAX: programs as StableHLO that XLA compiles, or as generated `jax.numpy`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from linnet.diagnostics import installing

if TYPE_CHECKING:
    from linnet.diagnostics import ExportError as ExportError
    from linnet.jax.importing import export_linnet as export_linnet
    from linnet.jax.importing import import_stablehlo as import_stablehlo
    from linnet.jax.nnx import LinnetNNX as LinnetNNX
    from linnet.jax.nnx import load_nnx as load_nnx
    from linnet.jax.nnx import to_nnx as to_nnx
    from linnet.jax.runtime import Function as Function
    from linnet.jax.runtime import LinnetFunction as LinnetFunction
    from linnet.jax.runtime import LinnetModel as LinnetModel
    from linnet.jax.runtime import SourceFunction as SourceFunction
    from linnet.jax.runtime import load as load
    from linnet.jax.runtime import load_function as load_function
    from linnet.jax.runtime import load_model as load_model
    from linnet.jax.runtime import load_source as load_source
    from linnet.porting.package import ExportResult as ExportResult

_NAMES = {
    "linnet.diagnostics": ("ExportError",),
    "linnet.jax.importing": ("export_linnet", "import_stablehlo"),
    "linnet.jax.nnx": ("LinnetNNX", "load_nnx", "to_nnx"),
    "linnet.jax.runtime": (
        "Function",
        "LinnetFunction",
        "LinnetModel",
        "SourceFunction",
        "load",
        "load_function",
        "load_model",
        "load_source",
    ),
    "linnet.porting.package": ("ExportResult",),
}
# Public name -> the module that holds it under the same name.
_HOME = {name: home for home, names in _NAMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """A public name, imported now and kept."""
    if name not in _HOME:
        raise AttributeError(f"module 'linnet.jax' has no attribute {name!r}")
    extra = "flax" if _HOME[name] == "linnet.jax.nnx" else "jax"
    with installing(f"linnet.jax.{name}", extra):
        value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
