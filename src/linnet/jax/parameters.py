"""Pytrees of arrays as the members of blocks, and what a function has captured beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from linnet.jax.traced import dim, dtype_of
from linnet.porting.graph import Graph, Node, Shape
from linnet.porting.members import Member
from linnet.porting.names import Names
from linnet.porting.operations import Unsupported
from linnet.weights.arrays import dtype_name

# Collections of Flax, which share the names of the modules below them.
_COLLECTIONS = frozenset({"params", "batch_stats", "buffers", "constants"})


def aval_of(value: Any) -> Any:
    """The shape and dtype of a value, as JAX takes it."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return value
    shaped: Any = jax.ShapeDtypeStruct
    return shaped(np.shape(value), jax.dtypes.canonicalize_dtype(jax.numpy.result_type(value)))


def input_node(graph: Graph, name: str, shape: Shape, dtype: str) -> Node:
    """What the entry is given under this name."""
    return graph.node("input", (), [name], shape=shape, dtype=dtype, name=name)


def key_of(key: Any) -> str | int:
    """One step into a pytree."""
    for field in ("key", "idx", "name"):
        if hasattr(key, field):
            found = getattr(key, field)
            return found if isinstance(found, (int, str)) else str(found)
    return str(key)


def members_of(leaves: Sequence[tuple[Any, Any]], problems: dict[str, None]) -> list[Member]:
    """The parameters, with the keys of their modules."""
    paths = [[key_of(key) for key in path] for path, _ in leaves]
    while all(len(path) > 1 and path[-1] in ("value", "raw_value") for path in paths) and paths:
        paths = [path[:-1] for path in paths]
    tensors = [".".join(map(str, path)) or "params" for path in paths]
    roots = {path[0] for path in paths if path}
    if roots and roots <= _COLLECTIONS and all(len(path) > 1 for path in paths):
        short = [tuple(path[1:]) for path in paths]
        if len(set(short)) == len(short):
            paths = [list(path) for path in short]
    out: list[Member] = []
    for path, tensor, (_, value) in zip(paths, tensors, leaves, strict=True):
        try:
            aval = aval_of(value)
            shape, dtype = tuple(map(dim, aval.shape)), dtype_of(aval)
        except (Unsupported, TypeError) as reason:
            problems[f"the parameter `{tensor}`: {reason}"] = None
            continue
        if any(size.constant is None for size in shape):
            shown = f"the parameter `{tensor}` has the shape {aval.shape}"
            problems[f"{shown}: sizes of parameters are numbers"] = None
            continue
        array = None if isinstance(value, jax.ShapeDtypeStruct) else np.asarray(value, aval.dtype)
        out.append(Member(tuple(path) or ("params",), tensor, shape, dtype, array))
    return out


def node_of(graph: Graph, member: Member) -> Node:
    """The member before its path is known: by its tensor."""
    return graph.node("param", (), [("", member.tensor)], shape=member.shape, dtype=member.dtype)


class Captured:
    """Arrays that a function holds itself: buffers of the root block."""

    def __init__(self, members: list[Member], nodes: dict[Member, Node]) -> None:
        self.members = members
        self.nodes = nodes
        self.names = Names(str(member.keys[0]) for member in members)
        self.known: dict[tuple[Any, ...], Node] = {}

    def node(self, array: Any, graph: Graph) -> Node:
        key = (array.shape, str(array.dtype), array.tobytes())
        if key not in self.known:
            name = dtype_name(array.dtype)
            if name is None or name.startswith("f8"):
                raise Unsupported(f"a constant of dtype {array.dtype} has no counterpart")
            flat = array.reshape(-1)
            shape = tuple(map(dim, array.shape))
            if array.size and (flat == flat[0]).all():
                self.known[key] = graph.literal(flat[0].item(), name, shape)
            else:
                tensor = self.names.fresh("constant")
                member = Member((tensor,), tensor, shape, name, array, "buffer")
                self.members.append(member)
                self.nodes[member] = self.known[key] = node_of(graph, member)
        return self.known[key]
