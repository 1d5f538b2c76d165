"""Nest, the model zoo: cards, their weights, and loading a model by name."""

from __future__ import annotations

from linnet.nest.card import Card, Links, Mirror, Weights, card_directories, find_card
from linnet.nest.fetch import WeightFiles, cache_dir, fetch_weights, local_weights
from linnet.nest.load import load

__all__ = [
    "Card",
    "Links",
    "Mirror",
    "WeightFiles",
    "Weights",
    "cache_dir",
    "card_directories",
    "fetch_weights",
    "find_card",
    "load",
    "local_weights",
]
