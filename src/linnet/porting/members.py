"""A tree of parameters as members of blocks: names, and which of its parts are alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from linnet.porting.graph import Shape
from linnet.porting.names import Names, value_name

Path = tuple[str, ...]
METHOD = "forward"  # what the method of a block, and the entry, are called
ANY = "*"  # stands in a path for the position in an array


@dataclass(frozen=True, slots=True)
class Member:
    """A parameter: the keys that lead to it, the tensor that fills it, its type."""

    keys: tuple[str | int, ...]
    tensor: str
    shape: Shape
    dtype: str
    array: Any = field(default=None, compare=False)
    kind: str = "param"


@dataclass(slots=True)
class Branch:
    """A block: parameters and blocks below it by name.

    `arrays` are blocks that may be one array, and after outlining those that a loop walks; `alike`
    those that no loop walks, and `indexed` those of them whose blocks are of one type.
    """

    children: dict[str, Branch | Member] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    alike: dict[str, list[str]] = field(default_factory=dict)
    indexed: dict[str, list[str]] = field(default_factory=dict)

    def signature(self) -> object:
        """What two blocks share that have the same members of the same types."""
        return tuple(
            (name, child.signature() if isinstance(child, Branch) else (child.shape, child.dtype))
            for name, child in sorted(self.children.items())
        )

    def leaves(self, path: Path = ()) -> Iterator[tuple[Path, Member]]:
        """Every parameter by its path."""
        for name, child in self.children.items():
            if isinstance(child, Branch):
                yield from child.leaves((*path, name))
            else:
                yield (*path, name), child

    def at(self, path: Iterable[str]) -> Branch:
        """The block at a path; in an array the first, since all are alike."""
        found = self
        for name in path:
            if name == ANY:
                continue
            child = found.children.get(name)
            if child is None:
                child = found.children[found.arrays[name][0]]
            assert isinstance(child, Branch)
            found = child
        return found


def branch_of(members: Sequence[Member]) -> Branch:
    """The tree of the members, its names those of the keys, made fit for the language."""
    return _branch([(member.keys, member) for member in members])


def _branch(items: Sequence[tuple[tuple[str | int, ...], Member]]) -> Branch:
    groups: dict[str | int, list[tuple[tuple[str | int, ...], Member]]] = {}
    for keys, member in items:
        groups.setdefault(keys[0], []).append((keys[1:], member))
    made, names = Branch(), Names({METHOD})
    flat: list[tuple[str, list[tuple[tuple[str | int, ...], Member]], str]] = []
    for key, group in groups.items():
        below = {keys[0] for keys, _ in group if keys}
        counted = bool(below) and all(isinstance(k, int) or k.isdigit() for k in below)
        if counted and all(keys for keys, _ in group):
            for position in sorted(below, key=int):
                part = [(keys[1:], m) for keys, m in group if keys[0] == position]
                flat.append((f"{key}_{position}", part, value_name(str(key))))
        else:
            flat.append((str(key), group, ""))
    arrays: dict[str, list[str]] = {}
    for wish, group, array in sorted(flat, key=lambda item: (item[0] == "bias", _natural(item[0]))):
        name = names.fresh(value_name(wish))
        leaf = next((member for keys, member in group if not keys), None)
        made.children[name] = leaf if leaf is not None else _branch(group)
        if leaf is None and (array or (numbered := re.fullmatch(r"(.*?)_?\d+", name))):
            arrays.setdefault(array or _plural(numbered[1] or name), []).append(name)  # type: ignore[index]
    for array, elements in arrays.items():
        branches = [made.children[name] for name in elements]
        kinds = {b.signature() for b in branches if isinstance(b, Branch)}
        if len(elements) > 1 and len(kinds) == 1 and array not in made.children:
            made.arrays[array] = elements
    return made


def _natural(name: str) -> tuple[object, ...]:
    """A key by which layer 10 comes after layer 9."""
    return tuple((1, int(p), "") if p.isdigit() else (0, 0, p) for p in re.split(r"(\d+)", name))


def _plural(name: str) -> str:
    name = value_name(name)
    return name if name.endswith("s") else f"{name}s"
