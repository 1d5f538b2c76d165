"""Walking and rewriting graphs of nodes, without recursion over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from linnet.core.build import Builder, named_like
from linnet.core.derive import equal_types, substitute_value_type
from linnet.core.ir import (
    Binary,
    Call,
    Cast,
    Compare,
    Concat,
    Dot,
    Element,
    Expand,
    For,
    Function,
    Gather,
    If,
    Iota,
    Literal,
    Node,
    Param,
    Permute,
    Program,
    Reduce,
    Reshape,
    Result,
    Select,
    Size,
    Slice,
    Unary,
    Update,
    While,
    functions_of,
    operands,
)
from linnet.core.ranges import Ranges, given
from linnet.core.rules import Broken
from linnet.diagnostics import InternalError
from linnet.dims import Dim, Facts, proves

Rule = Callable[[Node, Builder], Node | None]
"""A better node of the same type, made with the builder; None where the node is good as it is."""


def topological(results: Iterable[Node]) -> list[Node]:
    """Every node that the results need, each once, operands before users, in a stable order."""
    order: list[Node] = []
    done: set[Node] = set()
    stack = list(reversed(list(results)))
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        waiting = [x for x in operands(node) if x not in done]
        if waiting:
            stack.extend(reversed(waiting))
            continue
        done.add(node)
        order.append(node)
        stack.pop()
    return order


@lru_cache(maxsize=8192)
def nodes_of(function: Function) -> tuple[Node, ...]:
    """Every node that the function's results need, operands before users; remembered."""
    return tuple(topological(function.results))


def reachable(program: Program) -> list[Function]:
    """Every function that the entries run, callees first, bodies of control flow left out."""
    order: list[Function] = []
    done: set[Function] = set()

    def visit(function: Function) -> None:
        if function in done:
            return
        done.add(function)
        for callee in callees(function):
            visit(callee)
        order.append(function)

    for function in (*program.functions.values(), *program.entries.values()):
        visit(function)
    return order


def callees(function: Function) -> list[Function]:
    """The functions that a function calls, from the bodies in it too, each once, in order."""
    found: dict[Function, None] = {}
    for body in bodies(function):
        for node in nodes_of(body):
            if isinstance(node, Call):
                found[node.function] = None
    return list(found)


def bodies(function: Function) -> list[Function]:
    """The function and the bodies of its If, While and For nodes, outer ones first."""
    out = [function]
    for current in out:
        for node in nodes_of(current):
            if not isinstance(node, Call):
                out.extend(f for f in functions_of(node) if f not in out)
    return out


# ---------------------------------------------------------------- rewriting


class RewritingBuilder(Builder):
    """A builder that hands out, for every node asked of it, what a rule makes of that node."""

    def __init__(self, facts: Facts, rule: Rule, ranges: Ranges) -> None:
        super().__init__(facts, ranges)
        self._rule = rule
        self._better: dict[Node, Node] = {}

    def _add(self, node: Node) -> Node:
        node = super()._add(node)
        known = self._better.get(node)
        if known is not None:
            return known
        # A rule that asks for the node that it is looking at gets that node.
        self._better[node] = node
        better = self._rule(node, self)
        if better is not None and better is not node:
            same_type(node, better, self.facts)
            self._better[node] = named_like(better, node)
            return better
        return node


def same_type(before: Node, after: Node, facts: Facts) -> None:
    """A node and what replaces it have one type; anything else is our bug."""
    equal = equal_types(before.type, after.type)
    if isinstance(equal, Broken):
        raise InternalError(
            "rewrite", f"{type(before).__name__} of {before.type} became {after.type}: {equal.why}"
        )
    for obligation in equal:
        if not proves(facts, obligation.goal):
            raise InternalError(
                "rewrite", f"{before.type} became {after.type}: {obligation.goal} is not known"
            )


def rewrite(
    function: Function, rule: Rule, functions: Mapping[Function, Function] | None = None
) -> Function:
    """The function with a rule applied to every node, bottom up, in its bodies too.

    Calls of the keys of `functions` become calls of the values. The function itself comes back
    where nothing changed.
    """
    renewed = dict(functions or {})

    def of(body: Function, facts: Facts, ranges: Ranges) -> Function:
        if body in renewed:
            return renewed[body]
        facts = facts.extend(body.facts)
        builder = RewritingBuilder(facts, rule, ranges)
        done: dict[Node, Node] = {}
        for node in nodes_of(body):
            for inner in functions_of(node):
                if not isinstance(node, Call) and inner not in renewed:
                    renewed[inner] = of(inner, facts, given(node, ranges))
            done[node] = rebuild(builder, node, [done[x] for x in operands(node)], {}, renewed)
        results = tuple(done[node] for node in body.results)
        if all(a is b for a, b in zip(results, body.results, strict=True)):
            return body
        return replace(body, results=results)

    return of(function, Facts(), {})


Change = Callable[[Function, Mapping[Function, Function]], Function]
"""A function changed, its callees replaced by what they have become."""


def map_functions(program: Program, change: Change) -> Program:
    """The program with every function changed, callees first; functions no longer used are gone."""
    renewed: dict[Function, Function] = {}
    for function in reachable(program):
        renewed[function] = change(function, renewed)
    return retarget(program, renewed)


def retarget(program: Program, renewed: Mapping[Function, Function]) -> Program:
    """The program of these functions in place of its own, without those that nothing calls."""
    entries = {name: renewed[f] for name, f in program.entries.items()}
    used = set(reachable(replace(program, functions={}, entries=entries)))
    functions = {name: renewed[f] for name, f in program.functions.items() if renewed[f] in used}
    return replace(program, functions=functions, entries=entries)


# ---------------------------------------------------------------- rebuilding


def substitute(
    nodes: Sequence[Node],
    params: Mapping[Node, Node],
    dims: Mapping[str, Dim],
    builder: Builder,
) -> tuple[Node, ...]:
    """The nodes as the builder makes them, params replaced by nodes and names by dimensions."""
    done: dict[Node, Node] = {}
    renewed: dict[Function, Function] = {}
    for node in topological(nodes):
        if isinstance(node, Param):
            done[node] = params[node]
            continue
        for inner in functions_of(node):
            if not isinstance(node, Call) and dims and inner not in renewed:
                renewed[inner] = substitute_function(inner, dims)
        done[node] = rebuild(builder, node, [done[x] for x in operands(node)], dims, renewed)
    return tuple(done[node] for node in nodes)


def substitute_function(function: Function, dims: Mapping[str, Dim]) -> Function:
    """A body with names replaced by dimensions, in the types of its params too."""
    builder = Builder(Facts.of(r.substitute(dims) for r in function.facts))
    bound = dict(dims)
    params = tuple(
        builder.param(p.name, substitute_value_type(p.of, bound), p.kind, p.base, p.span)
        for p in function.params
    )
    replaced: dict[Node, Node] = dict(zip(function.params, params, strict=True))
    return replace(
        function,
        dims=tuple(sorted({n for name in function.dims for n in _names(name, dims)})),
        params=params,
        results=substitute(function.results, replaced, dims, builder),
        facts=builder.facts.relations,
    )


def _names(name: str, dims: Mapping[str, Dim]) -> frozenset[str]:
    return dims[name].names() if name in dims else frozenset((name,))


def rebuild(
    builder: Builder,
    node: Node,
    inputs: Sequence[Node],
    dims: Mapping[str, Dim],
    functions: Mapping[Function, Function],
) -> Node:
    """The node over other operands, dimensions and functions; the node itself over its own."""
    return named_like(_rebuild(builder, node, inputs, dims, functions), node)


def _rebuild(
    builder: Builder,
    node: Node,
    inputs: Sequence[Node],
    dims: Mapping[str, Dim],
    functions: Mapping[Function, Function],
) -> Node:
    same = all(a is b for a, b in zip(operands(node), inputs, strict=True))
    moved = any(functions.get(f, f) is not f for f in functions_of(node))
    if same and not dims and not moved:
        return builder.intern(node)

    def at(dim: Dim) -> Dim:
        return dim.substitute(dims) if dims else dim

    def run(function: Function) -> Function:
        return functions.get(function, function)

    span = node.span
    match node:
        case Param() | Literal():
            return builder.intern(node)
        case Size(dim, dtype):
            return builder.size(at(dim), dtype, span)
        case Iota(extent, dtype):
            return builder.iota(at(extent), dtype, span)
        case Unary(op):
            return builder.unary(op, inputs[0], span)
        case Binary(op):
            return builder.binary(op, inputs[0], inputs[1], span)
        case Compare(op):
            return builder.compare(op, inputs[0], inputs[1], span)
        case Select():
            return builder.select(inputs[0], inputs[1], inputs[2], span)
        case Cast(_, dtype):
            return builder.cast(inputs[0], dtype, span)
        case Reshape(_, shape):
            return builder.reshape(inputs[0], [at(d) for d in shape], span)
        case Permute(_, order):
            return builder.permute(inputs[0], order, span)
        case Expand(_, shape, axes):
            return builder.expand(inputs[0], [at(d) for d in shape], axes, span)
        case Slice(_, ranges):
            parts = [(at(start), at(stop), step) for start, stop, step in ranges]
            return builder.slice(inputs[0], parts, span)
        case Concat(_, axis):
            return builder.concat(inputs, axis, span)
        case Gather(_, indices, proved):
            rest = iter(inputs[1:])
            given = [None if index is None else next(rest) for index in indices]
            return builder.gather(inputs[0], given, proved, span)
        case Reduce(op, _, axes):
            return builder.reduce(op, inputs[0], axes, span)
        case Dot(_, _, batch, contract, dtype):
            return builder.dot(inputs[0], inputs[1], batch, contract, dtype, span)
        case Call(function, _, sizes):
            return builder.call(run(function), inputs, [at(d) for d in sizes], span)
        case If(_, then, other):
            return builder.if_(inputs[0], run(then), run(other), inputs[1:], span)
        case While(test, body, _, count):
            return builder.while_(run(test), run(body), inputs, count, span)
        case For(body, variable, start, stop, carried, scanned, _, stacked, last):
            a, b = len(carried), len(carried) + len(scanned)
            return builder.for_(
                run(body),
                variable,
                at(start),
                at(stop),
                inputs[:a],
                inputs[a:b],
                inputs[b:],
                stacked,
                span,
                None if last is None else run(last),
            )
        case Result(_, index):
            return builder.result(inputs[0], index, span)
        case Element(_, index):
            return builder.element(inputs[0], index, span)
        case Update(_, index):
            return builder.update(inputs[0], index, inputs[1], span)
        case _:
            raise InternalError("rewrite", f"unknown node {type(node).__name__}")
