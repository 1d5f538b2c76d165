"""What std's ops ask of their arguments that no type says, and whether an entry's inputs have it.

The arguments are worked out from the inputs alone where they hang on nothing else: values are
computed only as far as they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from linnet.core.derive import shape_of
from linnet.core.ir import (
    Call,
    For,
    Function,
    If,
    Node,
    Param,
    Result,
    While,
    functions_of,
    operands,
)
from linnet.core.rewrite import nodes_of
from linnet.reference import node_value

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]


def _tokens_apart(call: Call, value: Callable[[Node], Any], sizes: Sizes) -> bool:
    """No two tokens name one place of the cache: a kernel may keep any of them."""
    cache, _, rows, at = call.inputs
    extents = [d.evaluate(sizes) for d in shape_of(cache)]
    row, place = value(rows).astype(np.int64), value(at).astype(np.int64)
    inside = (row >= 0) & (row < extents[0]) & (place >= 0) & (place < extents[2])
    named = (row * extents[2] + place)[inside]
    return len(np.unique(named)) == len(named)


def _slots_apart(call: Call, value: Callable[[Node], Any], sizes: Sizes) -> bool:
    """The slots are of different rows."""
    slots = value(call.inputs[2])
    inside = slots[(slots >= 0) & (slots < shape_of(call.inputs[0])[0].evaluate(sizes))]
    return len(np.unique(inside)) == len(inside)


# Op -> whether a call's arguments are as its documentation asks.
ASKED: dict[str, Callable[[Call, Callable[[Node], Any], Sizes], bool]] = {
    "std.nn.cache::write_tokens": _tokens_apart,
    "std.nn.cache::write_slots": _slots_apart,
}


def legal(function: Function, inputs: Sequence[Array], sizes: Sizes) -> bool:
    """Whether what the entry's ops ask of their arguments holds in the first turn of its loops.

    `inputs` are the entry's value parameters; weights and states are not looked at.
    """
    given: dict[Node, Any] = dict(zip(function.values, inputs, strict=True))
    return all(_allowed(_Frame(function, given, sizes)))


_Outer = Mapping[Node, "tuple[_Frame, Node]"]


@dataclass(slots=True)
class _Frame:
    """A function while it runs: the values so far, and where its parameters come from."""

    function: Function
    values: dict[Node, Any]
    sizes: Sizes
    outer: _Outer = field(default_factory=dict[Node, Any])
    inner: dict[Node, _Frame] = field(default_factory=dict[Node, Any])

    def value(self, node: Node) -> Any:
        """The node's value, worked out if it is not known."""
        if node not in self.values:
            self.values[node] = self.worked_out(node)
        return self.values[node]

    def worked_out(self, node: Node) -> Any:
        match node:
            case Param():
                if node not in self.outer:
                    raise _UnknownError
                frame, there = self.outer[node]
                return frame.value(there)
            case Result(Call() as call, index):
                frame = self.called(call)
                return frame.value(call.function.results[index])
            case _:
                return node_value(node, [self.value(x) for x in operands(node)], self.sizes)

    def called(self, call: Call) -> _Frame:
        if call not in self.inner:
            sizes = {
                n: d.evaluate(self.sizes)
                for n, d in zip(call.function.dims, call.dims, strict=True)
            }
            outer: _Outer = {
                param: (self, x) for param, x in zip(call.function.params, call.inputs, strict=True)
            }
            self.inner[call] = _Frame(call.function, {}, sizes, outer)
        return self.inner[call]


class _UnknownError(Exception):
    """A value hangs on weights or states."""


def _allowed(frame: _Frame) -> Iterator[bool]:
    """For each call that asks something, here and in what runs here, whether it is given it."""
    for node in nodes_of(frame.function):
        match node:
            case Call(function) if function.op is not None and str(function.op) in ASKED:
                with suppress(_UnknownError):
                    yield ASKED[str(function.op)](node, frame.value, frame.sizes)
            case Call(function) if _asks(function):
                yield from _allowed(frame.called(node))
            case For(body, _, start) if _asks(body):
                first = np.asarray(start.evaluate(frame.sizes), np.int64)
                _, *params = body.params
                fixed = params[len(params) - len(node.fixed) :]
                taken = [*zip(params, node.carried), *zip(fixed, node.fixed)]
                yield from _allowed(_entered(frame, body, taken, {body.params[0]: first}))
            case If() | While():
                for body in filter(_asks, functions_of(node)):
                    yield from _allowed(_entered(frame, body, zip(body.params, node.inputs)))
            case _:
                pass


def _entered(
    frame: _Frame,
    body: Function,
    taken: Iterable[tuple[Node, Node]],
    known: Mapping[Node, Any] | None = None,
) -> _Frame:
    """A body of the frame's function, its parameters what the function gives them."""
    return _Frame(body, dict(known or {}), frame.sizes, {p: (frame, x) for p, x in taken})


@lru_cache(maxsize=1024)
def _asks(function: Function) -> bool:
    """Whether anything that it runs asks something of its arguments."""
    if function.op is not None and str(function.op) in ASKED:
        return True
    return any(_asks(inner) for node in nodes_of(function) for inner in functions_of(node))
