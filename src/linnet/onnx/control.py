"""ONNX's operators that have graphs: branches and loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from linnet.onnx.known import Known
from linnet.onnx.reader import CONTROL, Reader, Value
from linnet.porting.graph import Body, Graph, Node, constant
from linnet.porting.operations import Unsupported

Env = dict[str, Value | None]


def _if(
    reader: Reader,
    proto: onnx.NodeProto,
    given: Sequence[Value | None],
    attributes: Mapping[str, Any],
    env: Env,
) -> Value | list[Value]:
    """The branch that is known to be taken, or both."""
    [test] = given
    yes, no = attributes["then_branch"], attributes["else_branch"]
    if isinstance(test, Known):
        if test.symbolic:
            raise Unsupported("its condition depends on the sizes that it is given")
        return reader.body(yes if bool(test.array.reshape(())) else no, [], env)
    assert isinstance(test, Node)
    graph = reader.graph
    outside = _outside(reader, [yes, no], env)
    fixed = list(outside.values())
    args = [graph.arg(at, x, x.name) for at, x in enumerate(fixed)]
    inner = {**env, **dict(zip(outside, args, strict=True))}
    results = [[reader.node(x) for x in reader.body(each, [], inner)] for each in (no, yes)]
    if any(a.shape != b.shape for a, b in zip(*results, strict=True)):
        raise Unsupported("its branches give tensors of different shapes")
    return list(graph.branch(graph.reshape(test, ()), fixed, [Body(tuple(r)) for r in results]))


def _outside(reader: Reader, graphs: Sequence[onnx.GraphProto], env: Env) -> dict[str, Node]:
    """The tensors that subgraphs read from around them."""
    found: dict[str, Node] = {}
    for graph in graphs:
        for node in graph.node:
            inner = [each.g for each in node.attribute if each.HasField("g")]
            found.update(_outside(reader, inner, env))
            for name in node.input:
                if name not in env and name in reader.stored.tensors:
                    env[name] = reader.initializer(reader.stored.tensors[name])
                if isinstance(value := env.get(name), Node):
                    found[name] = value
        for output in graph.output:
            if isinstance(value := env.get(output.name), Node):
                found[output.name] = value
    return found


def _loop(
    reader: Reader,
    proto: onnx.NodeProto,
    given: Sequence[Value | None],
    attributes: Mapping[str, Any],
    env: Env,
) -> list[Value]:
    """`for` where the number of turns is a size and nothing ends it before; else `while`."""
    graph, body = reader.graph, attributes["body"]
    count, test, *start = [*given, None, None][: max(len(given), 2)]
    begun = [reader.node(value) for value in start if value is not None]
    kept = [
        at
        for at, name in enumerate(proto.output[: len(begun)])
        if name in reader.stored.read or _reads(body, body.input[2 + at].name)
    ]
    carried = [begun[at] for at in kept]
    outside = _outside(reader, [body], env)
    fixed = list(outside.values())
    stacks = len(body.output) - 1 - len(begun)
    turns = count.sizes()[0] if isinstance(count, Known) else None

    def turn(known: Sequence[Node], at: Node, going: Value, held: Sequence[Node]) -> list[Value]:
        inner = {**env, **dict(zip(outside, known, strict=True))}
        told: list[Value] = list(begun)  # what nothing reads is not carried
        for number, value in zip(kept, held, strict=True):
            told[number] = value
        again, *found = reader.body(body, [at, going, *told], inner)
        return [again, *(found[number] for number in kept), *found[len(begun) :]]

    def results(new: Sequence[Node]) -> list[Value]:
        out: list[Value] = list(begun)
        for number, value in zip(kept, new, strict=False):
            out[number] = value
        return [*out, *new[len(kept) :]]

    endless = test is None or (isinstance(test, Known) and bool(test.array.reshape(-1)[0]))
    if endless and turns is not None and _goes_on(reader, turn, fixed, carried):

        def step(known: list[Node], at: Node, held: list[Node]) -> tuple[list[Node], list[Node]]:
            _, *found = turn(known, at, _true(graph), held)
            nodes = _alike(reader, found, held)
            return nodes[: len(held)], nodes[len(held) :]

        new, stacked = graph.loop(fixed, carried, turns, step)
        return results([*new, *stacked])
    if stacks:
        raise Unsupported("a loop that may end early, and collects what its turns give")
    first = graph.literal(0, "i64")
    going = _true(graph) if test is None else graph.reshape(reader.node(test), ())
    limit = None if count is None else graph.reshape(reader.node(count), ())
    constants = [*fixed, *([] if limit is None else [limit])]
    counted = limit is not None or _reads(body, body.input[0].name)
    state = [*([first] if counted else []), going, *carried]
    args = [graph.arg(at, x, x.name) for at, x in enumerate([*constants, *state])]
    own, held = args[: len(constants)], args[len(constants) :]
    at = held.pop(0) if counted else first
    until = held[0]
    if limit is not None:
        below = graph.elementwise("lt", [at, own[-1]], "bool")
        until = graph.elementwise("and", [until, below])
    again, *found = turn(own[: len(fixed)], at, held[0], held[1:])
    after = [graph.reshape(reader.node(again), ()), *_alike(reader, found, held[1:])]
    if counted:
        after.insert(0, graph.elementwise("add", [at, graph.literal(1, "i64")]))
    made = graph.repeat(constants, state, Body((until,)), Body(tuple(after)))
    return results(made[2 if counted else 1 :])


def _reads(graph: onnx.GraphProto, name: str) -> bool:
    """Something in the graph reads the value of this name."""
    return any(value.name == name for value in graph.output) or any(
        name in node.input
        or any(_reads(each.g, name) for each in node.attribute if each.HasField("g"))
        for node in graph.node
    )


def _true(graph: Graph) -> Node:
    return graph.literal(True, "bool")


def _goes_on(reader: Reader, turn: Any, fixed: Sequence[Node], carried: Sequence[Node]) -> bool:
    """No turn says that it is the last."""
    graph = reader.graph
    args = [graph.arg(at, x, x.name) for at, x in enumerate([*fixed, *carried])]
    at = graph.node("arg", (), [len(args)], dtype="i64")
    going, *_ = turn(args[: len(fixed)], at, _true(graph), args[len(fixed) :])
    if isinstance(going, Known):
        return bool(going.array.reshape(-1)[0])
    return isinstance(going, Node) and constant(going) is True


def _alike(reader: Reader, found: Sequence[Value], held: Sequence[Node]) -> list[Node]:
    """What a turn gives, of the types that it was given."""
    nodes = [reader.node(value) for value in found]
    for new, old in zip(nodes, held, strict=False):
        if (new.shape, new.dtype) != (old.shape, old.dtype):
            raise Unsupported("a loop that changes the shape of what it carries")
    return nodes


CONTROL |= {"If": _if, "Loop": _loop}
