"""What is drawn: nodes, the edges between them, and the frames around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["input", "output", "param", "call", "op", "state"]


@dataclass(frozen=True, slots=True)
class Node:
    """A box. `call` is a block's method, `op` a function or an operation; `group` its frame."""

    id: str
    kind: Kind
    label: str
    sublabel: str = ""
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    """What flows from a node to another, as it arrives; `both` where a state is written back."""

    src: str
    dst: str
    label: str = ""
    both: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """A frame: a block that is opened, or a loop."""

    id: str
    label: str
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes come before those that they feed; `sizes` says which sizes were given."""

    title: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    groups: tuple[Group, ...]
    sizes: str = ""
