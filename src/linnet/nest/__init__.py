"""Nest, the model zoo: cards, their weights, and loading a model by name."""

from __future__ import annotations

from linnet.nest.card import Card, Links, Mirror, Weights, card_directories, find_card

__all__ = ["Card", "Links", "Mirror", "Weights", "card_directories", "find_card"]
