"""Blocks that differ in sizes alone, as one block with generics.

Of all blocks with the same parameters, the sizes that vary become generics. One whose sizes tell
all of them apart gives the text; that the others are the same with their own sizes is looked up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from linnet.dims import Dim
from linnet.porting.graph import Body, Graph, Node, topological
from linnet.porting.members import Branch, Member
from linnet.porting.names import Names

_NAMES = {"weight": ("In", "Out"), "embedding": ("Vocab", "H"), "scale": ("H",), "bias": ("Out",)}
_LETTERS = ("N", "M", "K", "L", "P", "Q")
Position = tuple[str, int]  # a member and one of its axes


@dataclass(frozen=True, slots=True)
class Instance:
    """A block that has parameters alone, and what its method does, where it has one."""

    branch: Branch
    body: Body | None
    turned: bool  # its weight's last axis is the one that is summed over

    def sizes(self) -> dict[Position, Dim]:
        return {
            (name, axis): size
            for name, child in self.branch.children.items()
            if isinstance(child, Member)
            for axis, size in enumerate(child.shape)
        }

    def kind(self) -> object:
        """What blocks share that may be one."""
        members = [
            (name, len(child.shape), child.dtype, child.kind)
            for name, child in self.branch.children.items()
            if isinstance(child, Member)
        ]
        return tuple(members), self.body is None, self.turned


@dataclass(frozen=True, slots=True)
class Generic:
    """Blocks that are one: its generics, its members and body with them, each block's arguments."""

    names: tuple[str, ...]
    shapes: Mapping[str, tuple[Dim, ...]]
    body: Body | None
    arguments: Mapping[int, tuple[Dim, ...]]  # by the identity of a branch


def generic_blocks(
    graph: Graph, instances: Sequence[Instance], taken: Sequence[str]
) -> list[Generic]:
    """The generic blocks that stand for at least two different ones."""
    groups: dict[object, list[Instance]] = {}
    for instance in instances:
        groups.setdefault(instance.kind(), []).append(instance)
    found = (_generic(graph, group, taken) for group in groups.values())
    return [each for each in found if each is not None]


def _generic(graph: Graph, group: Sequence[Instance], taken: Sequence[str]) -> Generic | None:
    sizes = [instance.sizes() for instance in group]
    classes: dict[tuple[Dim, ...], list[Position]] = {}
    for position in sizes[0]:
        classes.setdefault(tuple(each[position] for each in sizes), []).append(position)
    varied = [(values, at) for values, at in classes.items() if len(set(values)) > 1]
    if not varied:
        return None
    names = Names(taken)
    titles = [names.fresh(_title(group[0], at)) for _, at in varied]
    for number, template in enumerate(group):
        own = [values[number] for values, _ in varied]
        if len(set(own)) < len(own):
            continue
        abstract = _resized(graph, template.body, dict(zip(own, map(Dim.of, titles), strict=True)))
        fitting: dict[int, tuple[Dim, ...]] = {}
        for other, instance in enumerate(group):
            given = [values[other] for values, _ in varied]
            back = dict(zip(map(Dim.of, titles), given, strict=True))
            if _resized(graph, abstract, back) == _resized(graph, instance.body, {}):
                fitting[id(instance.branch)] = tuple(given)
        if len(set(fitting.values())) > 1:
            told = {
                at: title for title, (_, each) in zip(titles, varied, strict=True) for at in each
            }
            return Generic(tuple(titles), _shapes(template.branch, told), abstract, fitting)
    return None


def _shapes(branch: Branch, told: Mapping[Position, str]) -> dict[str, tuple[Dim, ...]]:
    """The members' shapes, with names in the place of sizes that have one."""
    return {
        name: tuple(
            Dim.of(told[name, axis]) if (name, axis) in told else size
            for axis, size in enumerate(child.shape)
        )
        for name, child in branch.children.items()
        if isinstance(child, Member)
    }


def _title(instance: Instance, positions: Sequence[Position]) -> str:
    """What a size is called: by the parameter that it is an axis of."""
    for name, axis in sorted(positions, key=lambda position: position[0] == "bias"):
        titles = _NAMES.get(name, ())
        child = instance.branch.children[name]
        if isinstance(child, Member) and len(child.shape) == len(titles):
            if name == "weight" and instance.turned:
                titles = titles[::-1]
            return titles[axis]
    return _LETTERS[0]


def _resized(graph: Graph, body: Body | None, sizes: Mapping[Dim, Dim]) -> Body | None:
    """The body with other sizes in the place of some, and parameters by their own names."""
    if body is None:
        return None
    new: dict[Node, Node] = {}
    for node in topological(body.results):
        new[node] = graph.node(
            node.op,
            [new[each] for each in node.inputs],
            [(node.data[0][-1],)] if node.op == "param" else [_data(i, sizes) for i in node.data],
            shape=[_data(size, sizes) for size in node.shape],
            dtype=node.dtype,
            name=node.name,
        )
    return Body(tuple(new[node] for node in body.results))


def _data(item: Any, sizes: Mapping[Dim, Dim]) -> Any:
    if isinstance(item, Dim):
        return sizes.get(item, item)
    return tuple(_data(each, sizes) for each in item) if isinstance(item, tuple) else item
