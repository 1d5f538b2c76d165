"""Where a backend goes wrong: the first step that is not what the reference makes of its operands.

The values are the backend's own: it runs the entry cut short (`cut`). Each node is worked out by
the reference from the operands that the backend had, so that a step is not blamed for what came
before it, and what rounding has moved a little is followed for what it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from typing import Literal as Lit

import numpy as np

from linnet.core.build import Builder
from linnet.core.ir import (
    ArrayType,
    Binary,
    Call,
    Compare,
    Element,
    For,
    Function,
    If,
    Iota,
    Literal,
    Node,
    NodeType,
    Param,
    Program,
    Reduce,
    Result,
    ResultsType,
    Size,
    Unary,
    ValueType,
    While,
    operands,
)
from linnet.core.rewrite import nodes_of
from linnet.diagnostics import LinnetError
from linnet.dims import Facts
from linnet.policy import Policy, tolerance
from linnet.reference import node_value
from linnet.source import Span
from linnet.types import TensorType
from linnet.verification.compare import SAME, Difference, difference, dtypes_of
from linnet.verification.cut import Path, Step, cut, tensors
from linnet.weights.arrays import FLOATS

Array = np.ndarray[Any, Any]
Run = Callable[[Program], Sequence[Array]]
"""The results of a program's one entry on a backend, in the case that is looked at; LinnetError
where the backend has none."""


@dataclass(frozen=True, slots=True)
class Place:
    """A step of a program.

    `kind` is "step" where the backend's value is not what the reference makes of its operands,
    "decision" where it is, and a number that is no float came out otherwise since they lie within
    rounding of the reference's. `path` are the calls and turns from the entry to it.
    """

    kind: Lit["step", "decision"]
    path: tuple[str, ...]
    what: str  # the op that is called, or the operation
    span: Span | None
    difference: Difference
    bound: float
    call: Call | None = None


@dataclass(slots=True)
class _Frame:
    """One run of a function: what is known of its values, as the backend has them.

    Parameters that a loop carries have none yet. `span` is where it is run from.
    """

    function: Function
    sizes: Mapping[str, int]
    path: tuple[Step, ...]
    names: tuple[str, ...]
    values: dict[Node, Any]
    span: Span | None

    def inner(
        self,
        step: Step,
        name: str,
        values: dict[Node, Any],
        sizes: Mapping[str, int] | None = None,
    ) -> _Frame:
        """What a node of this one runs."""
        path, names = (*self.path, step), (*self.names, name)
        span = step.node.span or self.span
        return _Frame(step.inner, sizes or self.sizes, path, names, values, span)


def locate(
    program: Program,
    entry: str,
    given: Sequence[Any],
    sizes: Mapping[str, int],
    policy: Policy,
    run: Run,
) -> Place | None:
    """The first step of the entry that goes wrong on a backend, or the first decision that falls
    otherwise; None where each step is what the reference makes of its operands.

    `program` is what the backend runs, `given` the values of all parameters of the entry.
    """
    function = program.entries[entry]
    values: dict[Node, Any] = dict(zip(function.params, given, strict=True))
    search = _Search(program, entry, policy, run)
    with np.errstate(all="ignore"):
        found = search.within(_Frame(function, sizes, (), (), values, function.span))
    return found or search.decision or search.suspect


@dataclass(slots=True)
class _Search:
    """The search in one entry. `suspect` is a loop or a function that is wrong while nothing that
    it runs is."""

    program: Program
    entry: str
    policy: Policy
    run: Run
    decision: Place | None = None
    suspect: Place | None = None

    def within(self, frame: _Frame) -> Place | None:
        """The first step that is wrong, in this function or further in."""
        self.take(frame)
        known = frame.values
        own: dict[Node, Any] = {
            p: known[p] for p in frame.function.params
        }  # as it goes on in the reference
        for node in nodes_of(frame.function):
            if isinstance(node, Param):
                continue
            own[node] = node_value(node, [own[x] for x in operands(node)], frame.sizes)
            if isinstance(node, Result):
                continue
            made = node_value(node, [known[x] for x in operands(node)], frame.sizes)
            bound = self.bound(node)
            apart = _apart(frame, node, made)
            if apart.within(bound):
                self.decided(frame, node, own[node])
                continue
            place = self.further(frame, node)
            if place is not None:
                return place
            place = self.place("step", frame, node, apart, bound)
            if (isinstance(node, Call) and node.function.op is None) or _repeats(node):
                self.suspect = self.suspect or place
            else:
                return place
        return None

    def take(self, frame: _Frame) -> None:
        """The values of all nodes of the function, as the backend has them in this run of it."""
        builder = Builder(Facts.of(frame.function.facts))
        wanted: dict[Node, list[Node]] = {}
        for node in (*frame.function.params, *nodes_of(frame.function)):
            if node in frame.values or isinstance(node.type, ResultsType):
                continue
            if isinstance(node, Iota | Size | Literal):
                frame.values[node] = node_value(node, [], frame.sizes)
            elif isinstance(node, Element) and node.x in frame.values:
                frame.values[node] = frame.values[node.x][node.index]
            else:
                wanted[node] = tensors(node, builder)
        if not wanted:
            return
        leaves = [leaf for several in wanted.values() for leaf in several]
        taken = iter(self.taken(frame.path, leaves))
        for node in wanted:
            frame.values[node] = _assembled(node.type, taken)

    def taken(self, path: Path, leaves: Sequence[Node]) -> list[Array]:
        """The values of these nodes: in one run, or in more where the backend cannot give all."""
        try:
            return list(self.run(cut(self.program, self.entry, path, leaves)))
        except LinnetError:
            if len(leaves) == 1:
                raise
            half = len(leaves) // 2
            return [*self.taken(path, leaves[:half]), *self.taken(path, leaves[half:])]

    def further(self, frame: _Frame, node: Node) -> Place | None:
        """The first step that is wrong in what the node runs."""
        known = frame.values
        match node:
            case Call(function, inputs, dims):
                sizes = {
                    n: d.evaluate(frame.sizes) for n, d in zip(function.dims, dims, strict=True)
                }
                values = self.given(frame, function, inputs)
                step = Step(node, function)
                return self.within(frame.inner(step, _name(function), values, sizes))
            case If(c, then, other, inputs):
                body = then if known[c] else other
                values = self.given(frame, body, inputs)
                name = "then" if body is then else "else"
                return self.within(frame.inner(Step(node, body), name, values))
            case For():
                return self.first_turn(frame, node)
            case While(_, body, inputs, count):
                (turns,) = self.run(
                    cut(self.program, self.entry, (*frame.path, Step(node, body, -1)), [])
                )
                values = self.given(frame, body, inputs, count)
                steps = (Step(node, body, turn) for turn in range(int(turns)))
                return self.first(frame, steps, "turn", lambda turn: dict(values))
            case _:
                return None

    def given(
        self, frame: _Frame, body: Function, inputs: Sequence[Node], carried: int = 0
    ) -> dict[Node, Any]:
        """The values of a function's parameters, from the first that no loop carries."""
        pairs = zip(body.params[carried:], inputs[carried:], strict=True)
        return {param: frame.values[x] for param, x in pairs}

    def first_turn(self, frame: _Frame, node: For) -> Place | None:
        """The first step that is wrong in the turns of a counted loop."""
        known, start, stop = frame.values, node.start.evaluate(frame.sizes), node.stop
        end = stop.evaluate(frame.sizes)
        a, b = 1 + len(node.carried), 1 + len(node.carried) + len(node.scanned)

        def body(turn: int) -> Function:
            return node.last if node.last is not None and turn == end - 1 else node.body

        def values(turn: int) -> dict[Node, Any]:
            params = body(turn).params
            found: dict[Node, Any] = {params[0]: np.asarray(turn, np.int64)}
            found |= {p: known[x][turn] for p, x in zip(params[a:b], node.scanned, strict=True)}
            return found | {p: known[x] for p, x in zip(params[b:], node.fixed, strict=True)}

        steps = (Step(node, body(turn), turn) for turn in range(start, end))
        return self.first(frame, steps, node.variable, values)

    def first(
        self,
        frame: _Frame,
        steps: Iterable[Step],
        name: str,
        values: Callable[[int], dict[Node, Any]],
    ) -> Place | None:
        for step in steps:
            inner = frame.inner(step, f"{name} {step.turn}", values(step.turn))
            place = self.within(inner)
            if place is not None or self.decision is not None:
                return place  # what follows another decision is another run
        return None

    def bound(self, node: Node) -> float:
        """How far the node's value may lie from the reference's of the same operands.

        What is only moved too: its operands may be of another run, compiled apart.
        """
        dtypes = {str(t.dtype) for t in map(_element, _types(node))} | dtypes_of(node)
        coarsest = max((tolerance(self.policy, dtype) for dtype in dtypes), default=0.0)
        return coarsest * 2 if isinstance(node.type, ResultsType) else coarsest

    def decided(self, frame: _Frame, node: Node, own: Any) -> None:
        """Notes the first value without floats that is not what the reference went on with."""
        if self.decision is not None or any(map(_is_float, _types(node))):
            return
        apart = _apart(frame, node, own)
        if not apart.within(0.0):
            self.decision = self.place("decision", frame, node, apart, 0.0)

    def place(
        self,
        kind: Lit["step", "decision"],
        frame: _Frame,
        node: Node,
        apart: Difference,
        bound: float,
    ) -> Place:
        call = node if isinstance(node, Call) else None
        return Place(kind, frame.names, _what(node), node.span or frame.span, apart, bound, call)


def _apart(frame: _Frame, node: Node, made: Any) -> Difference:
    """How far the backend's value of a node lies from another; of several results the worst."""
    if not isinstance(node.type, ResultsType):
        return _difference(made, frame.values[node])
    read = [n for n in nodes_of(frame.function) if isinstance(n, Result) and n.of is node]
    found = [_difference(made[n.index], frame.values[n]) for n in read]
    return max(found, key=lambda each: each.worst, default=SAME)


def _difference(wanted: Any, found: Any) -> Difference:
    if not isinstance(wanted, tuple):
        return difference(wanted, found)
    each = [_difference(a, b) for a, b in zip(wanted, found, strict=True)]
    return max(each, key=lambda one: one.worst, default=SAME)


def _assembled(type: NodeType, leaves: Iterator[Any]) -> Any:
    if isinstance(type, ArrayType):
        return tuple(_assembled(type.element, leaves) for _ in range(type.length))
    return next(leaves)


def _types(node: Node) -> tuple[ValueType, ...]:
    return node.type.items if isinstance(node.type, ResultsType) else (node.type,)


def _element(type: ValueType) -> TensorType:
    while isinstance(type, ArrayType):
        type = type.element
    return type


def _is_float(type: ValueType) -> bool:
    return str(_element(type).dtype) in FLOATS


def _repeats(node: Node) -> bool:
    return isinstance(node, For | While | If)


def _name(function: Function) -> str:
    """A function as it is declared: what lowering added to tell it from others is left out."""
    return re.sub(r"(\.\d+)+$", "", function.name)


def _what(node: Node) -> str:
    match node:
        case Call(function):
            return str(function.op or _name(function))
        case Unary(op) | Binary(op) | Compare(op) | Reduce(op):
            return op
        case _:
            return type(node).__name__.lower()
