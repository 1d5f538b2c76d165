"""Loops and branches: bodies become closed Functions, what they change becomes results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from linnet.check.analysis import FnCall, Local
from linnet.core import expressions
from linnet.core.body import Body, Place, hinted, joined, limit
from linnet.core.derive import shape_of
from linnet.core.ir import Function, Node, Param
from linnet.core.ranges import counted
from linnet.core.values import (
    Aligned,
    ArrayRef,
    Axis,
    BlockRef,
    Fields,
    Present,
    Value,
    flatten,
    rebuild,
    structure,
)
from linnet.dims import Dim
from linnet.source import Span
from linnet.syntax import tree
from linnet.types import I64, GenericValue, IntConst, Type, scalar, substitute


def for_loop(body: Body, stmt: tree.For) -> Value:
    """Runs the loop; its value is what the turns of it yield, stacked, or nothing."""
    bounds = body.analysis.ranges.get(stmt)
    if bounds is not None:
        return loop(body, stmt, body.dim(bounds[0]), body.dim(bounds[1]), None)
    array = expressions.expr(body, stmt.start)
    assert isinstance(array, ArrayRef)
    return loop(body, stmt, Dim.of(0), Dim.of(array.length), array)


def loop(outer: Body, stmt: tree.For, start: Dim, stop: Dim, array: ArrayRef | None) -> Value:
    variable = free_variable(outer, stmt.name.text) if array else stmt.name.text
    body = outer.child(variable if array else None)
    counter = body.value_param("i" if array else variable, scalar(I64))
    body.build.ranges[counter] = counted(start, stop)
    carried = assigned(outer, stmt.body)
    before = {local: carry(outer, local) for local in carried}
    for local in carried:
        body.env[local] = body.parameter(local.name, local_type(outer, local), before[local])
    if array is not None:
        body.bind(stmt.name, BlockRef(array.bound, variable, (), array.presence))
    else:
        body.bind(stmt.name, counter)
    yielded = body.reified(expressions.run(body, stmt.body))
    check_same(body, before, stmt.span)
    if array is not None and reached_twice(body, variable, array):
        for position in range(array.length):
            parts = (*array.parts, position)
            outer.bind(stmt.name, BlockRef(array.bound, array.base, parts, array.presence))
            expressions.run(outer, stmt.body)
        return ()
    stacked = flatten(yielded)
    scanned = [p for p in body.members if p[0] == variable and array is not None]
    scanned_states = [p for p in body.state_params if p[0] == variable and array is not None]
    outer_states = [p for p in body.written if p not in scanned_states]
    fixed_members = [p for p in body.members if p not in scanned]
    fixed_states = [
        p for p in body.state_params if p not in scanned_states and p not in outer_states
    ]
    values = list(body.values)
    assert values[0] is counter
    params: tuple[Param, ...] = (
        *values,
        *(body.state_params[p] for p in outer_states),
        *(body.members[p] for p in scanned),
        *(body.state_params[p] for p in scanned_states),
        *(p for _, p in body.captures),
        *(body.members[p] for p in fixed_members),
        *(body.state_params[p] for p in fixed_states),
    )
    results: tuple[Node, ...] = (
        *(n for local in carried for n in body.results(body.env[local])),
        *(body.states[p] for p in outer_states),
        *(body.states[p] for p in scanned_states),
        *stacked,
    )
    function = closed(outer, "for", params, results, stmt.span)
    node = outer.build.for_(
        function,
        variable,
        start,
        stop,
        (
            *(n for local in carried for n in flatten(before[local])),
            *(outer.whole(*p) for p in outer_states),
        ),
        (
            *(scanned_member(outer, array, path) for _, path in scanned),
            *(scanned_member(outer, array, path) for _, path in scanned_states),
        ),
        (
            *(captured for captured, _ in body.captures),
            *(outer.whole(*p) for p in fixed_members),
            *(outer.whole(*p) for p in fixed_states),
        ),
        len(stacked),
        span=stmt.span,
    )
    outs = iter(outer.build.results(node))
    take(outer, carried, before, outs)
    for place in outer_states:
        outer.put(place, next(outs))
    for _, path in scanned_states:
        assert array is not None
        outer.put((array.base, joined((*array.parts, "*", path))), next(outs))
    return rebuild(yielded, outs)


def for_elements(
    outer: Body,
    call: FnCall,
    ref: BlockRef | None,
    own: Mapping[str, GenericValue],
    args: Sequence[Value],
    span: Span,
) -> Value:
    """A call on elements whose body needs scalars: one turn for each element of the frame."""
    leaves = [leaf for arg in args for leaf in parts_of(arg)]
    used = {axis for leaf in leaves if isinstance(leaf, Aligned) for axis in leaf.axes}
    axes = tuple(axis for axis in outer.frame if axis in used)
    extents = [outer.extents[axis] for axis in axes]
    count = math.prod(extents, start=Dim.of(1))
    body = outer.child()
    counter = body.value_param("i", scalar(I64))
    body.build.ranges[counter] = counted(Dim.of(0), count)

    def turn(value: Value) -> Value:
        match value:
            case Aligned():
                row = outer.build.reshape(outer.over(value, axes), [count], span)
                return body.build.gather(body.capture(row, "x"), [counter], span=span)
            case Node():
                return body.capture(value, "x")
            case tuple():
                return tuple(turn(part) for part in value)
            case Present(inner):
                return Present(turn(inner))
            case Fields(type, items):
                return Fields(type, tuple((name, turn(part)) for name, part in items))
            case _:
                return value

    result = body.reified(expressions.called(body, call, ref, own, [turn(a) for a in args], span))
    members, states = list(body.members), list(body.state_params)
    params = (
        counter,
        *(param for _, param in body.captures),
        *(body.members[p] for p in members),
        *(body.state_params[p] for p in states),
    )
    stacked = flatten(result)
    if any(shape_of(node) for node in stacked):
        raise limit(span, "a tensor made for every element; name it with an index of its own")
    fixed = [node for node, _ in body.captures]
    fixed += [outer.whole(*p) for p in (*members, *states)]
    function = closed(outer, "elements", params, stacked, span)
    node = outer.build.for_(function, "i", Dim.of(0), count, (), (), fixed, len(stacked), span=span)
    rows = (outer.build.reshape(r, extents, span) for r in outer.build.results(node))
    return over_frame(result, rows, axes)


def parts_of(value: Value) -> tuple[Value, ...]:
    """The nodes of a value, over a frame or not."""
    match value:
        case tuple():
            return tuple(leaf for part in value for leaf in parts_of(part))
        case Present(inner):
            return parts_of(inner)
        case Fields(_, items):
            return tuple(leaf for _, part in items for leaf in parts_of(part))
        case _:
            return (value,)


def over_frame(template: Value, rows: Iterator[Node], axes: tuple[Axis, ...]) -> Value:
    """The template's structure, its nodes replaced by those of every element."""
    match template:
        case Node():
            return Aligned(next(rows), axes)
        case tuple():
            return tuple(over_frame(part, rows, axes) for part in template)
        case Present(inner):
            return Present(over_frame(inner, rows, axes))
        case Fields(type, items):
            return Fields(type, tuple((n, over_frame(part, rows, axes)) for n, part in items))
        case _:
            return template


def reached_twice(body: Body, variable: str, array: ArrayRef) -> bool:
    """Whether a loop's body touches a state of its element by another path too, and writes it.

    A step may then read or write what another step's element holds, which a loop over the values
    that the elements had at first cannot say.
    """
    places = ((place, (array.base, joined((*array.parts, "*", place[1])))) for place in body.states)
    return any(
        place[0] == variable
        and other in body.states
        and not {place, other}.isdisjoint(body.written)
        for place, other in places
    )


def free_variable(body: Body, name: str) -> str:
    """A base no enclosing loop uses."""
    taken: set[str] = set()
    at: Body | None = body
    while at is not None:
        if at.variable is not None:
            taken.add(at.variable)
        at = at.parent
    count, fresh = 2, name
    while fresh in taken or fresh == "self":
        fresh = f"{name}_{count}"
        count += 1
    return fresh


def scanned_member(body: Body, array: ArrayRef | None, path: str) -> Node:
    assert array is not None
    return body.read(array.base, (*array.parts, "*", *path.split(".")))


def while_loop(outer: Body, stmt: tree.While) -> None:
    carried = assigned(outer, stmt.body)
    before = {local: carry(outer, local) for local in carried}
    body, test = outer.child(), outer.child()
    for inner in (body, test):
        for local in carried:
            inner.env[local] = inner.parameter(local.name, local_type(outer, local), before[local])
    expressions.run(body, stmt.body)
    check_same(body, before, stmt.span)
    condition = expressions.expr(test, stmt.condition)
    assert isinstance(condition, Node)
    written = list(body.written)
    places = places_of(body, test)
    inputs, body_params, test_params = joined_inputs(outer, body, test, written, places)
    body_function = closed(
        outer,
        "while",
        body_params,
        (
            *(n for local in carried for n in body.results(body.env[local])),
            *(body.states[p] for p in written),
        ),
        stmt.span,
    )
    test_function = closed(outer, "test", test_params, (condition,), stmt.condition.span)
    values = [n for local in carried for n in flatten(before[local])]
    node = outer.build.while_(
        test_function,
        body_function,
        (*values, *inputs),
        len(values) + len(written),
        span=stmt.span,
    )
    outs = iter(outer.build.results(node))
    take(outer, carried, before, outs)
    for place in written:
        outer.put(place, next(outs))


def assigned(body: Body, stmts: Iterable[tree.Stmt]) -> list[Local]:
    """The locals from outside that the statements assign, in order."""
    found: dict[Local, None] = {}
    own: set[Local] = set()
    stack = list(stmts)[::-1]
    while stack:
        stmt = stack.pop()
        match stmt:
            case tree.Assign(name=name):
                symbol = body.analysis.symbols[name]
                if isinstance(symbol, Local) and symbol not in own:
                    found[symbol] = None
            case tree.Var(name=name):
                symbol = body.analysis.symbols[name]
                assert isinstance(symbol, Local)
                own.add(symbol)
            case _:
                pass
        match stmt:
            case tree.For(body=inner) | tree.While(body=inner):
                stack.extend(inner[::-1])
            case tree.Let(value=tree.For() as loop) | tree.Var(value=tree.For() as loop):
                stack.append(loop)
            case tree.Assign(value=tree.For() as loop):
                stack.append(loop)
            case _:
                pass
    return list(found)


def carry(body: Body, local: Local) -> Value:
    value = body.reified(body.lookup(local))
    body.env[local] = value
    return value


def check_same(body: Body, before: Mapping[Local, Value], span: Span) -> None:
    for local, value in before.items():
        if structure(body.reified(body.env[local])) != structure(value):
            raise limit(span, f"whether `{local.name}` is `none` changes in a loop, at run time")


def take(
    body: Body, carried: Sequence[Local], before: Mapping[Local, Value], outs: Iterator[Node]
) -> None:
    for local in carried:
        body.env[local] = hinted(rebuild(before[local], outs), local.name)


def closed(
    body: Body,
    name: str,
    params: Sequence[Param],
    results: Sequence[Node],
    span: Span,
) -> Function:
    return Function(
        name=name,
        kind="body",
        op=None,
        block=body.owner.name if body.owner else None,
        dims=body.dims,
        params=tuple(params),
        results=tuple(results),
        writes=(),
        facts=(),
        returns=None,
        span=span,
    )


def places_of(*bodies: Body) -> dict[Place, Param]:
    """Every member and state that one of the bodies uses."""
    out: dict[Place, Param] = {}
    for body in bodies:
        out.update(body.members)
        out.update(body.state_params)
    return out


def joined_inputs(
    body: Body, first: Body, second: Body, written: Sequence[Place], places: Mapping[Place, Param]
) -> tuple[list[Node], tuple[Param, ...], tuple[Param, ...]]:
    """One input list for two closed bodies: written states, captures, other members."""
    order = [*written, *(p for p in places if p not in written)]
    captures: dict[Node, Param] = {}
    for inner in (first, second):
        for outer, param in inner.captures:
            captures.setdefault(outer, param)
    inputs = [
        *(body.whole(*p) for p in written),
        *captures,
        *(body.whole(*p) for p in order[len(written) :]),
    ]

    def params(inner: Body) -> tuple[Param, ...]:
        own = dict(inner.captures)
        return (
            *inner.values,
            *(inner.same(places[p]) for p in written),
            *(own.get(o) or inner.fresh_capture(p) for o, p in captures.items()),
            *(inner.same(places[p]) for p in order[len(written) :]),
        )

    return inputs, params(first), params(second)


def branch(
    body: Body,
    condition: Node,
    then: Callable[[Body], Value],
    other: Callable[[Body], Value],
    span: Span,
) -> Value:
    first, second = body.child(), body.child()
    a, b = first.reified(then(first)), second.reified(other(second))
    if structure(a) != structure(b):
        raise limit(span, "whether the value is `none` would be known only at run time")
    written = [*first.written, *(p for p in second.written if p not in first.written)]
    places = places_of(first, second)
    inputs, first_params, second_params = joined_inputs(body, first, second, written, places)
    results = [
        (*flatten(value), *(inner.states.get(p) or inner.same(places[p]) for p in written))
        for inner, value in ((first, a), (second, b))
    ]
    node = body.build.if_(
        condition,
        closed(body, "then", first_params, results[0], span),
        closed(body, "else", second_params, results[1], span),
        inputs,
        span=span,
    )
    outs = iter(body.build.results(node))
    value = rebuild(a, outs)
    for place in written:
        body.put(place, next(outs))
    return value


def local_type(body: Body, local: Local) -> Type:
    type = substitute(local.type, body.bindings)
    return scalar(I64) if isinstance(type, IntConst) else type
