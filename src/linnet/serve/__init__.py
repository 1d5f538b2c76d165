"""Serving: many requests over one model, and what that needs. Names are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from linnet.diagnostics import installing

if TYPE_CHECKING:
    from linnet.serve.engine import Engine as Engine
    from linnet.serve.http import Server as Server
    from linnet.serve.request import Completion as Completion
    from linnet.serve.request import Request as Request
    from linnet.serve.request import RequestError as RequestError
    from linnet.serve.request import Sampling as Sampling
    from linnet.serve.request import Stats as Stats
    from linnet.serve.text import Text as Text

# Public name -> the module that holds it under the same name.
_HOME = {
    "Completion": "linnet.serve.request",
    "Engine": "linnet.serve.engine",
    "Request": "linnet.serve.request",
    "RequestError": "linnet.serve.request",
    "Sampling": "linnet.serve.request",
    "Server": "linnet.serve.http",
    "Stats": "linnet.serve.request",
    "Text": "linnet.serve.text",
}

__all__ = ["Completion", "Engine", "Request", "RequestError", "Sampling", "Server", "Stats", "Text"]


def __getattr__(name: str) -> Any:
    """A public name, imported now."""
    if name not in _HOME:
        raise AttributeError(f"module 'linnet.serve' has no attribute {name!r}")
    with installing(f"linnet.serve.{name}", "torch,serve"):
        return getattr(import_module(_HOME[name]), name)
