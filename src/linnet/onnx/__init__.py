"""ONNX: an entry as a model that serves all of its sizes, and models on ONNX Runtime."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from linnet.diagnostics import installing

if TYPE_CHECKING:
    from linnet.diagnostics import OnnxImportError as OnnxImportError
    from linnet.onnx.export import Exported as Exported
    from linnet.onnx.export import Port as Port
    from linnet.onnx.export import export_function as export_function
    from linnet.onnx.export import export_model as export_model
    from linnet.onnx.importing import import_onnx as import_onnx
    from linnet.onnx.runtime import OnnxModel as OnnxModel
    from linnet.onnx.runtime import load_model as load_model
    from linnet.porting.package import ExportResult as ExportResult

# Public name -> the module that holds it under the same name.
_HOME = {
    **dict.fromkeys(("Exported", "Port", "export_function", "export_model"), "linnet.onnx.export"),
    **dict.fromkeys(("OnnxModel", "load_model"), "linnet.onnx.runtime"),
    "ExportResult": "linnet.porting.package",
    "OnnxImportError": "linnet.diagnostics",
    "import_onnx": "linnet.onnx.importing",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """A public name, imported now and kept."""
    if name not in _HOME:
        raise AttributeError(f"module 'linnet.onnx' has no attribute {name!r}")
    with installing(f"linnet.onnx.{name}", "onnx"):
        value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
