"""Facts: what a scope knows about its dimensions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from linnet.dims.dim import Relation


@dataclass(frozen=True, slots=True)
class Facts:
    """Relations that hold in a scope; every name is also non-negative."""

    relations: tuple[Relation, ...] = ()

    @staticmethod
    def of(relations: Iterable[Relation] = ()) -> Facts:
        """Facts that hold these relations, each once."""
        return Facts(tuple(dict.fromkeys(relations)))

    def extend(self, relations: Iterable[Relation]) -> Facts:
        """These facts and more."""
        return Facts.of((*self.relations, *relations))
