"""Operations that belong together, as the one function of the standard library that they are."""

from __future__ import annotations

from collections.abc import Sequence

from linnet.porting.graph import Graph, Node


def recognised(graph: Graph, results: Sequence[Node], notes: list[str]) -> list[Node]:
    return list(results)
