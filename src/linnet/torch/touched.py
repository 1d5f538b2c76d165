"""Which states a function changes, and which it reads: what only passes a state on does neither."""

from __future__ import annotations

from functools import lru_cache

from linnet.core.ir import (
    Call,
    Element,
    For,
    Function,
    If,
    Node,
    Param,
    Result,
    Update,
    While,
    functions_of,
    operands,
)
from linnet.emit import ordered
from linnet.torch.state import written_operands


@lru_cache(maxsize=2048)
def changed_states(function: Function) -> frozenset[str]:
    """The written states whose new value is not the old one whatever happens."""
    first = len(function.value_results)
    kept = _kept(function)
    own = {p.name: i for i, p in enumerate(function.params) if p.kind == "state"}
    return frozenset(
        path for j, path in enumerate(function.writes) if kept[first + j] != own.get(path)
    )


def touches_state(function: Function) -> bool:
    """Whether a state is changed or read."""
    if changed_states(function):
        return True
    read = _read(function)
    return any(p.kind == "state" and i in read for i, p in enumerate(function.params))


@lru_cache(maxsize=2048)
def _kept(function: Function) -> tuple[int | None, ...]:
    """For each result, the param that it is, unchanged."""
    at = {p: i for i, p in enumerate(function.params)}
    sources = (_source(result) for result in function.results)
    return tuple(at.get(x) if isinstance(x, Param) else None for x in sources)


def _source(node: Node) -> Node:
    """The node whose value this is, through calls and loops that hand it on."""
    match node:
        case Result(of, index):
            at = _handed_on(of, index)
            return node if at is None else _source(operands(of)[at])
        case Update(x, index, value):
            part = _source(value)
            if isinstance(part, Element) and part.index == index and _source(part.x) is _source(x):
                return _source(x)
        case _:
            pass
    return node


def _handed_on(node: Node, index: int) -> int | None:
    """The operand that this result is."""
    match node:
        case Call(function):
            return _kept(function)[index]
        case If(_, then, other):
            kept, same = _kept(then)[index], _kept(other)[index]
            return kept + 1 if kept is not None and kept == same else None
        case For(body):
            at = written_operands(node).get(index)
            same = all(_kept(turn)[index] == _kept(body)[index] for turn in functions_of(node))
            return at if at is not None and same and _kept(body)[index] == at + 1 else None
        case While(_, body):
            at = written_operands(node).get(index)
            return at if at is not None and _kept(body)[index] == at else None
        case _:
            return None


@lru_cache(maxsize=2048)
def _read(function: Function) -> frozenset[int]:
    """The params whose values count, beyond being handed on as a new state."""
    at = {p: i for i, p in enumerate(function.params)}
    found: set[int] = set()

    def read(x: Node) -> None:
        source = _source(x)
        while isinstance(source, Element):
            source = _source(source.x)
        if source in at:
            found.add(at[source])

    for node in ordered(function.results):
        inner = functions_of(node)
        if not inner:
            if not isinstance(node, (Param, Result, Element, Update)):
                for x in operands(node):
                    read(x)
            continue
        given = operands(node)
        for callee in inner:
            # A loop's counter is no operand; a condition is none of its branches'.
            first = 1 if isinstance(node, For) else 0
            own = given[len(given) - len(callee.params) + first :]
            for i in _read(callee):
                if i >= first:
                    read(own[i - first])
    for result in function.value_results:
        read(result)
    return frozenset(found)
