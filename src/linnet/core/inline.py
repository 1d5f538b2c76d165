"""Calls of small helpers become their bodies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from linnet.core.build import Builder
from linnet.core.ir import (
    Call,
    Function,
    Literal,
    Node,
    Param,
    Program,
    Result,
    Size,
    functions_of,
)
from linnet.core.rewrite import map_functions, nodes_of, rewrite, substitute
from linnet.dims import Facts, Relation, proves

LIMIT = 16
"""How many nodes a helper may have to be inlined: more read better under a name of their own."""


def inline(program: Program) -> Program:
    """The program with calls of small `fn`s replaced by their bodies.

    Ops stay, since a backend looks for them; methods stay, since generated code has one function
    for each, but for those that only pass on what they are given.
    """
    small: dict[Function, bool] = {}

    def change(function: Function, renewed: Mapping[Function, Function]) -> Function:
        changed = _inlined(function, renewed, small)
        small[changed] = (changed.kind == "fn" and _is_small(changed)) or _passes_on(changed)
        return changed

    return map_functions(program, change)


def _is_small(function: Function) -> bool:
    nodes = nodes_of(function)
    counted = [n for n in nodes if not isinstance(n, (Param, Literal, Size, Result))]
    return len(counted) <= LIMIT and not any(
        functions_of(n) for n in counted if not isinstance(n, Call)
    )


def _passes_on(function: Function) -> bool:
    """A method that gives what one call gives: no more than a choice made while lowering."""
    nodes = [n for n in nodes_of(function) if not isinstance(n, (Param, Literal, Size, Result))]
    return function.kind == "method" and len(nodes) == 1 and isinstance(nodes[0], Call)


def _inlined(
    function: Function, renewed: Mapping[Function, Function], small: dict[Function, bool]
) -> Function:
    facts: dict[Relation, None] = {}

    def body_of(node: Node, b: Builder) -> Node | None:
        match node:
            case Result(Call(callee, inputs, sizes), index) if small.get(callee, False):
                dims = dict(zip(callee.dims, sizes, strict=True))
                # What the checker proved at the call, for the body may need it.
                given = [fact.substitute(dims) for fact in callee.facts]
                facts.update(dict.fromkeys(given))
                b.facts = b.facts.extend(given)
                params: dict[Node, Node] = dict(zip(callee.params, inputs, strict=True))
                return substitute((callee.results[index],), params, dims, b)[0]
            case _:
                return None

    changed = rewrite(function, body_of, renewed)
    known = Facts.of(changed.facts)
    new = [fact for fact in facts if not proves(known, fact)]
    return replace(changed, facts=known.extend(new).relations) if new else changed
