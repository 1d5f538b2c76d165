"""What an expression is worth while it is lowered: a node, or a structure of nodes.

Tuples, structs, optionals and constant enums exist only here; the IR sees their nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from linnet.check.analysis import BlockInfo, IndexVar
from linnet.core.ir import Literal, Node
from linnet.dims import Dim
from linnet.syntax import tree
from linnet.types import I64, GenericValue, StructType, scalar


@dataclass(frozen=True, slots=True)
class Present:
    """An optional with a value; presence is known when a function is lowered."""

    value: Value


@dataclass(frozen=True, slots=True)
class Absent:
    """An optional without a value."""


ABSENT = Absent()


@dataclass(frozen=True, slots=True)
class Fields:
    """A struct's value, field by field."""

    type: StructType
    items: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class EnumConst:
    """An enum value known while lowering."""

    index: int


@dataclass(frozen=True, slots=True)
class DimValue:
    """A compile-time integer that no context gave a dtype."""

    dim: Dim


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A block instance with every generic bound to a constant."""

    info: BlockInfo
    bindings: dict[str, GenericValue]
    name: str

    def generics(self, home: tree.Block | None) -> dict[str, GenericValue]:
        """The generics of where a method is written, which may be a trait of the block."""
        return self.info.bindings(self.bindings, home)


@dataclass(frozen=True, slots=True, eq=False)
class BlockRef:
    """A block instance reached from `base` ("self" or a loop's variable) through `parts`.

    Parts are member names and positions in sub arrays. `presence` holds the optional members below
    it that have a value, as paths with `*` for positions.
    """

    bound: Bound
    base: str
    parts: tuple[str | int, ...]
    presence: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class ArrayRef:
    """A sub array, reached like a BlockRef."""

    bound: Bound
    length: int
    base: str
    parts: tuple[str | int, ...]
    presence: frozenset[str]


# One axis of an index frame: an index, and which of its axes when the index is a pack.
Axis = tuple[IndexVar, int]


@dataclass(frozen=True, slots=True, eq=False)
class Aligned:
    """A scalar of index notation as a tensor over the frame axes it depends on, in frame order."""

    node: Node
    axes: tuple[Axis, ...]


Value = (
    Node
    | tuple["Value", ...]
    | Present
    | Absent
    | Fields
    | EnumConst
    | DimValue
    | BlockRef
    | ArrayRef
    | Aligned
)


# Stands for any node where only a value's structure counts.
PLACEHOLDER: Node = Literal(0, I64, type=scalar(I64))


def below(presence: frozenset[str], part: str) -> frozenset[str]:
    """The part of a presence set under one member."""
    prefix = f"{part}."
    return frozenset(p[len(prefix) :] for p in presence if p.startswith(prefix))


def flatten(value: Value) -> tuple[Node, ...]:
    """The nodes of a value, left to right."""
    match value:
        case Node():
            return (value,)
        case tuple():
            return tuple(n for v in value for n in flatten(v))
        case Present(inner):
            return flatten(inner)
        case Fields(_, items):
            return tuple(n for _, v in items for n in flatten(v))
        case Aligned(node, ()):
            return (node,)
        case Absent() | EnumConst() | DimValue() | BlockRef() | ArrayRef():
            return ()
        case Aligned():
            raise AssertionError("a value over a frame cannot leave it")


def rebuild(template: Value, nodes: Iterator[Node]) -> Value:
    """The template's structure with other nodes."""
    match template:
        case Node():
            return next(nodes)
        case tuple():
            return tuple(rebuild(v, nodes) for v in template)
        case Present(inner):
            return Present(rebuild(inner, nodes))
        case Fields(type, items):
            return Fields(type, tuple((name, rebuild(v, nodes)) for name, v in items))
        case Aligned(_, axes):
            return Aligned(next(nodes), axes)
        case Absent() | EnumConst() | DimValue() | BlockRef() | ArrayRef():
            return template


Key = str | tuple["Key", ...]


def structure(value: Value) -> Key:
    """What a function is specialised by: the shape of a value without its nodes."""
    match value:
        case Node() | Aligned():
            return "node"
        case tuple():
            return tuple(structure(v) for v in value)
        case Present(inner):
            return ("some", structure(inner))
        case Absent():
            return "none"
        case Fields(_, items):
            return tuple(structure(v) for _, v in items)
        case EnumConst(index):
            return f"variant {index}"
        case DimValue(dim):
            return f"dim {dim}"
        case BlockRef() | ArrayRef():
            raise AssertionError("a block is not a value")
