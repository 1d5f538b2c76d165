"""Weights by path as the blocks that generated code reads: `self.layers[3].norm.weight`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax

from linnet.core.ir import ArrayType, Param, ValueType


class Block:
    """Members as attributes: arrays, blocks, and lists of blocks. JAX sees through it."""

    def __init__(self, members: Mapping[str, Any]) -> None:
        self.__dict__.update(members)

    def __repr__(self) -> str:
        return f"Block({', '.join(self.__dict__)})"


def attribute(member: str) -> str:
    """The member's name in its block: with `_` after it where Python has a use for such names."""
    return f"{member}_" if member.startswith("__") else member


def _flat(block: Block) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
    names = tuple(block.__dict__)
    return [(jax.tree_util.GetAttrKey(name), block.__dict__[name]) for name in names], names


def _made(names: tuple[str, ...], members: Iterable[Any]) -> Block:
    return Block(dict(zip(names, members, strict=True)))


jax.tree_util.register_pytree_with_keys(Block, _flat, _made)


def tree_of(arrays: Mapping[str, Any], params: Iterable[Param]) -> Block:
    """The blocks of arrays by path, as a function with these params reads them."""
    nested: dict[str, Any] = {}
    empty = [path for param in params for path in _empty(param.name, param.of)]
    for path in empty:
        *way, last = path.split(".")
        at = nested
        for part in way:
            at = at.setdefault(part, {})
        at[last] = []
    for path, array in arrays.items():
        *way, last = path.split(".")
        at = nested
        for part in way:
            at = at.setdefault(part, {})
        at[last] = array
    made = _blocks(nested)
    assert isinstance(made, Block)
    return made


def _empty(path: str, of: ValueType) -> Iterator[str]:
    """The sub arrays on the path that have no elements."""
    if not isinstance(of, ArrayType):
        return
    if of.length == 0:
        yield path[: path.index(".*")]
    for i in range(of.length):
        yield from _empty(path.replace("*", str(i), 1), of.element)


def _blocks(members: Mapping[str, Any]) -> Block | list[Any]:
    inner = {n: _blocks(m) if isinstance(m, dict) else m for n, m in members.items()}
    if inner and all(name.isdecimal() for name in inner):
        # A position that nothing is read of has no members, and still counts.
        found = {int(name): member for name, member in inner.items()}
        return [found.get(i, Block({})) for i in range(max(found) + 1)]
    return Block({attribute(name): member for name, member in inner.items()})


def nested(of: ValueType, arrays: Iterable[Any]) -> Any:
    """The arrays of a state, one for each element of a sub array, as generated code takes them."""
    rest = iter(arrays)

    def one(type: ValueType) -> Any:
        if isinstance(type, ArrayType):
            return [one(type.element) for _ in range(type.length)]
        return next(rest)

    return one(of)
