"""Nest, the model zoo: cards, their weights, and loading a model by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from linnet.diagnostics import installing

if TYPE_CHECKING:
    from linnet.nest.catalogue import describe as describe
    from linnet.nest.catalogue import index as index
    from linnet.nest.checking import check as check
    from linnet.nest.conversion import convert as convert
    from linnet.nest.proof import verify_loading as verify_loading
    from linnet.nest.pushing import hub_readme as hub_readme
    from linnet.nest.pushing import push as push

with installing("linnet.nest", "nest"):
    from linnet.nest.cache import cache_dir
    from linnet.nest.card import Card, Links, Mirror, Weights, card_directories, find_card
    from linnet.nest.fetch import WeightFiles, fetch_weights, local_weights
    from linnet.nest.hub import (
        HUB_REPO,
        Published,
        fetch_hub,
        hub_safetensors_header,
        local_checkpoint,
        remote_checkpoint,
    )
    from linnet.nest.load import load
    from linnet.nest.parameters import expand_paths, format_parameters, parameter_count
    from linnet.nest.resolve import resolve

# Public name -> the module that holds it, imported on first use: these need the checker.
_HOME = {
    "check": "linnet.nest.checking",
    "convert": "linnet.nest.conversion",
    "describe": "linnet.nest.catalogue",
    "hub_readme": "linnet.nest.pushing",
    "index": "linnet.nest.catalogue",
    "push": "linnet.nest.pushing",
    "verify_loading": "linnet.nest.proof",
}

__all__ = [
    "HUB_REPO",
    "Card",
    "Links",
    "Mirror",
    "Published",
    "WeightFiles",
    "Weights",
    "cache_dir",
    "card_directories",
    "check",
    "convert",
    "describe",
    "expand_paths",
    "fetch_hub",
    "fetch_weights",
    "find_card",
    "format_parameters",
    "hub_readme",
    "hub_safetensors_header",
    "index",
    "load",
    "local_checkpoint",
    "local_weights",
    "parameter_count",
    "push",
    "remote_checkpoint",
    "resolve",
    "verify_loading",
]


def __getattr__(name: str) -> Any:
    """A public name, imported now."""
    if name not in _HOME:
        raise AttributeError(f"module 'linnet.nest' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
