"""Which states a model may write where they lie: an output over the memory of its input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx.inliner
from onnx import ModelProto, NodeProto

# What the runtime puts into a copy of its first input, or into that input itself.
_WRITES = ("ScatterElements", "ScatterND", "write_")
# What copies what it reads, so that nobody looks at the input once it is done.
_READS = {"Gather", "GatherElements", "Shape"}


def in_place(model: ModelProto, states: Iterable[tuple[str, str]]) -> frozenset[str]:
    """The outputs, of pairs of a state's input and output, that may have the input's memory.

    A node writes into the input as its first one; of this node's output nothing but it is made; and
    whoever else reads the input is read by that node, so that it is done before.
    """
    nodes = list(onnx.inliner.inline_local_functions(model).graph.node)
    makers = {name: node for node in nodes for name in node.output}
    readers: dict[str, list[NodeProto]] = {}
    for node in nodes:
        for name in _read(node):
            readers.setdefault(name, []).append(node)
    return frozenset(
        output
        for given, output in states
        if (node := _origin(makers, output)) is not None
        and node.op_type.startswith(_WRITES)
        and node.input[0] == given
        and _before(makers, node, [one for one in readers[given] if one is not node])
    )


def _origin(makers: dict[str, NodeProto], name: str) -> NodeProto | None:
    """Who makes the value, before what only hands it on."""
    node = makers.get(name)
    while node is not None and node.op_type == "Identity":
        node = makers.get(node.input[0])
    return node


def _before(makers: dict[str, NodeProto], writer: NodeProto, others: list[NodeProto]) -> bool:
    """All the others are among what the writer waits for, and keep nothing of what they read."""
    if list(writer.input).count(writer.input[0]) > 1:
        return False
    if any(node.op_type not in _READS for node in others):
        return False
    waiting, seen = list(writer.input[1:]), set[str]()
    while others and waiting:
        name = waiting.pop()
        if name in seen or name not in makers:
            continue
        seen.add(name)
        others = [node for node in others if node is not makers[name]]
        waiting += _read(makers[name])
    return not others


def _read(node: NodeProto) -> Iterator[str]:
    """The names that a node reads, those in its branches and loops too."""
    yield from node.input
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                yield from _read(inner)
            yield from (output.name for output in attribute.g.output)
