"""Programs cut short: an entry that gives values from inside of what it runs.

A place is reached from the entry through calls, turns of loops and branches. What stands between
is run as the entry runs it; nothing hangs on a backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from linnet.core.build import Builder
from linnet.core.derive import dtype_of, shape_of
from linnet.core.ir import (
    ArrayType,
    Call,
    For,
    Function,
    If,
    Node,
    Param,
    Program,
    While,
)
from linnet.core.rewrite import reachable
from linnet.dims import Facts
from linnet.types import BOOL, I64, TensorType, TupleType


@dataclass(frozen=True, slots=True)
class Step:
    """One step further in: the function that a node runs, in one of a loop's turns."""

    node: Node
    inner: Function
    turn: int = 0


Path = Sequence[Step]


def cut(program: Program, entry: str, path: Path, wanted: Sequence[Node]) -> Program:
    """The program of one entry, whose results are these nodes of the place, all tensors."""
    function = _cut(program.entries[entry], path, wanted)
    types = (n.type for n in function.results)
    returns = TupleType(tuple(t for t in types if isinstance(t, TensorType)))
    function = replace(function, kind="entry", returns=returns)
    entries = {entry: function}
    bare = replace(program, functions={}, entries=entries, main=entry, refused={})
    functions = {f.name: f for f in reachable(bare) if f is not function}
    return replace(bare, functions=functions)


def _cut(function: Function, path: Path, wanted: Sequence[Node]) -> Function:
    """The function with these results, which stand at the path's end, and no identity."""
    results = tuple(_values(function, path, wanted))
    name = f"{function.name}_cut"
    kind = "fn" if function.kind == "op" else function.kind
    return replace(function, name=name, kind=kind, op=None, results=results, writes=())


def _values(function: Function, path: Path, wanted: Sequence[Node]) -> list[Node]:
    """Nodes of the function, old ones and new, whose values are those wanted."""
    if not path:
        return list(wanted)
    step, rest = path[0], path[1:]
    builder = Builder(Facts.of(function.facts))
    node = step.node
    match node:
        case Call(_, inputs, dims):
            made = builder.call(_cut(step.inner, rest, wanted), inputs, dims, node.span)
            return list(builder.results(made))
        case If(c, then, other, inputs):
            branch = _cut(step.inner, rest, wanted)
            empty = other if step.inner is then else then
            zeros = _zeros(Builder(Facts.of(empty.facts)), branch.results)
            empty = replace(empty, results=tuple(zeros))
            sides = (branch, empty) if step.inner is then else (empty, branch)
            return list(builder.results(builder.if_(c, *sides, inputs, node.span)))
        case For():
            return _of_turn(builder, node, step, rest, wanted)
        case While():
            return _of_while(builder, node, step, rest, wanted)
        case _:
            raise AssertionError(node)


def _zeros(builder: Builder, like: Sequence[Node]) -> list[Node]:
    return [
        builder.fill(builder.literal(False if dtype_of(n) is BOOL else 0, dtype_of(n)), shape_of(n))
        for n in like
    ]


def _held(builder: Builder, like: Sequence[Node]) -> list[Param]:
    """Parameters of a body that carry what was taken in an earlier turn."""
    found: list[Param] = []
    for i, node in enumerate(like):
        assert isinstance(node.type, TensorType)
        found.append(builder.param(f"taken_{i}", node.type))
    return found


def _keeping(
    builder: Builder, now: Node, taken: Sequence[Node], held: Sequence[Node]
) -> list[Node]:
    """What is taken, in the turn where `now` holds; else what is held."""
    return [builder.selection(now, new, old) for new, old in zip(taken, held, strict=True)]


def _of_turn(
    outer: Builder, node: For, step: Step, rest: Path, wanted: Sequence[Node]
) -> list[Node]:
    """The loop carries the values besides, from the turn in which they are taken.

    They come before the states that it carries, which end a body's parameters and results.
    """
    count = sum(p.kind != "state" for p in node.body.params[1 : 1 + len(node.carried)])
    inside = Builder(Facts.of(step.inner.facts))
    taken = _values(step.inner, rest, wanted)

    def with_taken(body: Function) -> Function:
        builder = inside if body is step.inner else Builder(Facts.of(body.facts))
        held = _held(builder, taken)
        kept: Sequence[Node] = held
        if body is step.inner:
            turn = builder.literal(step.turn, I64)
            kept = _keeping(builder, builder.compare("eq", body.params[0], turn), taken, held)
        first, params = body.params[: count + 1], body.params[count + 1 :]
        results = (*body.results[:count], *kept, *body.results[count:])
        return replace(body, params=(*first, *held, *params), results=results)

    made = outer.for_(
        with_taken(node.body),
        node.variable,
        node.start,
        node.stop,
        (*node.carried[:count], *_zeros(outer, taken), *node.carried[count:]),
        node.scanned,
        node.fixed,
        node.stacked,
        node.span,
        None if node.last is None else with_taken(node.last),
    )
    return [outer.result(made, count + i) for i in range(len(taken))]


def _of_while(
    outer: Builder, node: While, step: Step, rest: Path, wanted: Sequence[Node]
) -> list[Node]:
    """As for a counted loop, with a counter of its own, which is given in place of nothing."""
    count = node.count
    carried, fixed = node.inputs[:count], node.inputs[count:]
    taken = _values(node.body, rest, wanted)

    def with_taken(body: Function) -> Function:
        builder = Builder(Facts.of(body.facts))
        held, turn = _held(builder, taken), builder.param("turn", TensorType((), I64))
        results = body.results
        if body is node.body:
            now = builder.compare("eq", turn, builder.literal(step.turn, I64))
            kept = _keeping(builder, now, taken, held)
            results = (*results, *kept, builder.binary("add", turn, builder.literal(1, I64)))
        first, params = body.params[:count], body.params[count:]
        return replace(body, params=(*first, *held, turn, *params), results=results)

    start = [*_zeros(outer, taken), outer.literal(0, I64)]
    made = outer.while_(
        with_taken(node.test),
        with_taken(node.body),
        (*carried, *start, *fixed),
        count + len(start),
        node.span,
    )
    given = range(len(taken)) if taken else (0,)
    return [outer.result(made, count + i) for i in given]


def tensors(node: Node, builder: Builder) -> list[Node]:
    """The node, or the elements of an array of members, each a tensor."""
    if isinstance(node.type, ArrayType):
        elements = (builder.element(node, i) for i in range(node.type.length))
        return [leaf for element in elements for leaf in tensors(element, builder)]
    return [node]
