"""Nest, the model zoo: cards, their weights, and loading a model by name."""

from __future__ import annotations

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
    "fetch_hub",
    "fetch_weights",
    "find_card",
    "hub_safetensors_header",
    "load",
    "local_checkpoint",
    "local_weights",
    "remote_checkpoint",
]
