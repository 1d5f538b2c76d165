"""Rows that nobody reads are not computed, in the last turn of a loop over blocks.

Of what a prompt's last layer gives, only the positions that meet the output head are read. What
comes after its attention is row by row, so it is done for those rows alone. A selection moves from
where it stands towards what it selects from, as far as every node on the way is row by row; it
moves into functions that are called and into the last turn of loops, which get a version for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from linnet.core.build import ONE, ZERO, Builder, named_like
from linnet.core.derive import shape_of, tensor
from linnet.core.ir import (
    Binary,
    Call,
    Cast,
    Compare,
    Concat,
    Dot,
    Expand,
    For,
    Function,
    Gather,
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
    functions_of,
    operands,
)
from linnet.core.rewrite import map_functions, nodes_of, reachable, rebuild, rewrite, topological
from linnet.core.verify import dims_of
from linnet.dims import Dim, Facts, Relation, proves
from linnet.types import TensorType

# What an index may be made of: it is there before anything that it selects from.
_EARLY = (Param, Literal, Size, Iota, Unary, Binary, Cast, Compare, Select, Reshape, Expand, Concat)


@dataclass(frozen=True, slots=True)
class Picked:
    """Positions of an axis: a run of them, or those that an index `[R]` names."""

    start: Dim
    stop: Dim
    index: Node | None = None
    proved: bool = False  # the index never leaves the axis

    @property
    def count(self) -> Dim:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Way:
    """Of a node, the picked positions of one axis are wanted and nothing else."""

    axis: int
    picked: Picked


def narrow(program: Program) -> Program:
    """The program, whose loops end with the rows that are read where that saves products."""
    made: dict[object, _Version | None] = {}

    def change(function: Function, renewed: Mapping[Function, Function]) -> Function:
        function = rewrite(function, lambda node, builder: None, renewed)
        body = _Narrowing(function, Facts.of(function.facts), {}, made)
        return replace(function, results=body.results()) if body.gained else function

    changed = map_functions(program, change)
    own = set(changed.functions.values())
    functions: dict[str, Function] = {}
    names = {function: name for name, function in changed.functions.items()}
    for function in reachable(changed):
        if function in own or function not in changed.entries.values():
            functions[_fresh(names.get(function, function.name), functions)] = function
    return replace(changed, functions=functions)


@dataclass(frozen=True, slots=True)
class _Version:
    """A function for some rows of its results; `extra` dims and values that a call passes too."""

    function: Function
    dims: tuple[Dim, ...]


class _Narrowing:
    """One body, of whose results some are wanted in part; mutable while it is worked out."""

    def __init__(
        self,
        body: Function,
        facts: Facts,
        wanted: Mapping[int, Way],
        made: dict[object, _Version | None],
    ) -> None:
        self.body = body
        self.facts = facts
        self.wanted = wanted
        self.made = made
        self.gained = False  # some product has fewer rows
        self.ways: dict[Node, Way] = {}  # nodes of which only this is computed
        self.picks: dict[Node, Way] = {}  # nodes that pick, by what they pick
        self.renamed: dict[Node, tuple[str, Dim]] = {}  # calls whose rows are a size of the callee
        self.versions: dict[Node, tuple[_Version, Picked]] = {}
        self.lasts: dict[Node, tuple[For, Picked]] = {}
        self._asked: dict[Node, list[Way | None]] = {}
        self._outcomes: dict[Node, list[Result]] = {}
        # What is read of members alone: a part of a weight is no weight that a kernel takes.
        self._weights: set[Node] = set()
        self._plan()

    # ------------------------------------------------ what is wanted of each node

    def _plan(self) -> None:
        for node in nodes_of(self.body):
            given = operands(node)
            own = isinstance(node, Param) and node.kind in ("param", "buffer")
            if own or (given and all(x in self._weights for x in given)):
                self._weights.add(node)
        for i, result in enumerate(self.body.results):
            self._ask(result, self.wanted.get(i))
        for node in reversed(nodes_of(self.body)):
            self._visit(node)

    def _ask(self, node: Node, way: Way | None) -> None:
        self._asked.setdefault(node, []).append(way)

    def _visit(self, node: Node) -> None:
        if isinstance(node, Result):
            self._outcomes.setdefault(node.of, []).append(node)
            return
        if isinstance(node, (Call, For)):
            self._run(node)
            return
        way = self._one(node)
        axes = pushed(node, way.axis) if way is not None else None
        if way is not None and axes is not None and self._leaves_weights(node, axes):
            self.ways[node] = way
            self.gained = self.gained or isinstance(node, Dot)
            for x, axis in zip(operands(node), axes, strict=True):
                self._ask(x, None if axis is None else Way(axis, way.picked))
            return
        picks = picks_of(node)
        if picks is not None:
            self.picks[node] = picks
        for i, x in enumerate(operands(node)):
            self._ask(x, picks if i == 0 else None)

    def _leaves_weights(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Whether only values are wanted in part."""
        pairs = zip(operands(node), axes, strict=True)
        return all(axis is None or x not in self._weights for x, axis in pairs)

    def _one(self, node: Node) -> Way | None:
        """What all who read the node want of it, if that is one part."""
        found = set(self._asked.get(node, (None,)))
        return found.pop() if len(found) == 1 else None

    def _run(self, node: Call | For) -> None:
        """Functions with a version for the rows that are wanted of their results."""
        outcomes = self._outcomes.get(node, ())
        ways: dict[Node, Way] = {r: way for r in outcomes if (way := self._one(r)) is not None}
        picked = {way.picked for way in ways.values()}
        wanted = {r.index: ways[r] for r in outcomes if r in ways}
        if len(picked) == 1:
            one = picked.pop()
            if isinstance(node, For):
                done = self._last(node, wanted, one)
            else:
                done = self._fewer(node, wanted) or self._version(node, wanted, one)
            if done:
                self.ways |= ways
                return
        for x in operands(node):
            self._ask(x, None)

    def _fewer(self, node: Call, wanted: Mapping[int, Way]) -> bool:
        """The call is of the same function with another size, where that is the rows' number."""
        function = node.function
        names = {name_of(shape_of(function.results[i])[way.axis]) for i, way in wanted.items()}
        used = {r.index for r in self._outcomes[node]}
        name = names.pop() if len(names) == 1 else None
        axes = None if name is None else row_axes(function, name)
        if name is None or axes is None or used != set(wanted):
            return False
        if not self._leaves_weights(node, axes):
            return False
        picked = next(iter(wanted.values())).picked
        bound = dict(zip(function.dims, node.dims, strict=True)) | {name: picked.count}
        if not all(proves(self.facts, fact.substitute(bound)) for fact in function.facts):
            return False
        self.renamed[node] = name, picked.count
        self.gained = self.gained or multiplies(function)
        for x, axis in zip(node.inputs, axes, strict=True):
            self._ask(x, None if axis is None else Way(axis, picked))
        return True

    def _version(self, node: Call, wanted: Mapping[int, Way], picked: Picked) -> bool:
        """The call is of a version of the function that ends with these rows."""
        function = node.function
        if function.op is not None or any(i >= len(function.value_results) for i in wanted):
            return False
        bound = dict(zip(function.dims, node.dims, strict=True))
        extents = {shape_of(function.results[i])[way.axis] for i, way in wanted.items()}
        inner = _inside(picked, extents.pop(), bound, function) if len(extents) == 1 else None
        if inner is None:
            return False
        axes = tuple(sorted((i, way.axis) for i, way in wanted.items()))
        key = function, axes, inner.start, inner.stop, _type(picked), picked.proved
        if key not in self.made:
            self.made[key] = _version_of(function, dict(axes), inner, self.made)
        version = self.made[key]
        if version is None:
            return False
        facts = [
            fact.substitute(bound) for fact in version.function.facts if not fact.names() - {*bound}
        ]
        if not all(proves(self.facts, fact) for fact in facts):
            return False
        self.gained = True
        self.versions[node] = version, picked
        self._whole(node, picked)
        return True

    def _last(self, node: For, wanted: Mapping[int, Way], picked: Picked) -> bool:
        """The last turn of the loop ends with these rows."""
        body = node.body
        turns = (node.stop - node.start).constant
        carried = all(i < len(node.carried) for i in wanted)
        if not turns or not node.scanned or node.stacked or node.last is not None or not carried:
            return False
        inner, params = picked, body.params
        if picked.index is not None:
            index = _param_for(picked, body, Builder(self.facts))
            inner, params = replace(picked, index=index), (*params, index)
        dims = tuple(dict.fromkeys((*body.dims, *sorted(picked.count.names()))))
        body = replace(body, params=params, dims=dims)
        ways = {i: Way(way.axis, inner) for i, way in wanted.items()}
        last = _Narrowing(body, self.facts.extend(body.facts), ways, self.made)
        if not last.gained:
            return False
        self.gained = True
        turned = replace(body, results=last.results())
        fixed = node.fixed if picked.index is None else (*node.fixed, picked.index)
        self.lasts[node] = replace(node, body=body, last=turned, fixed=fixed), picked
        self._whole(node, picked)
        return True

    def _whole(self, node: Node, picked: Picked) -> None:
        for x in (*operands(node), *([] if picked.index is None else [picked.index])):
            self._ask(x, None)

    # ------------------------------------------------ the body as it is now

    def results(self) -> tuple[Node, ...]:
        """The body's results, those that are wanted in part narrow."""
        builder = Builder(self.facts)
        self.done: dict[Node, Node] = {}
        indices = [p.index for _, p in (*self.versions.values(), *self.lasts.values())]
        for node in topological([i for i in indices if i is not None]):
            self._make(node, builder)
        for node in nodes_of(self.body):
            if node not in self.done:
                self._make(node, builder)
        return tuple(
            self._part(node, self.wanted.get(i), builder)
            for i, node in enumerate(self.body.results)
        )

    def _part(self, node: Node, way: Way | None, builder: Builder) -> Node:
        """What a reader who wants this of the node reads."""
        made = self.done[node]
        return made if way is None or self.ways.get(node) == way else cut(made, way, builder)

    def _make(self, node: Node, b: Builder) -> None:
        way, picks = self.ways.get(node), self.picks.get(node)
        if picks is not None and self.ways.get(operands(node)[0]) == picks:
            x = self.done[operands(node)[0]]
            rank = len(shape_of(x))
            first = [picks.axis, *(i for i in range(rank) if i != picks.axis)]
            made = b.permute(x, first) if isinstance(node, Gather) else x
        elif node in self.renamed and isinstance(node, Call):
            name, count = self.renamed[node]
            met = row_axes(node.function, name)
            assert met is not None
            picked = next(self.ways[r].picked for r in self._outcomes[node])
            dims = [
                count if d == name else own
                for d, own in zip(node.function.dims, node.dims, strict=True)
            ]
            made = b.call(node.function, self._parts(node, met, picked, b), dims, node.span)
        elif node in self.versions and isinstance(node, Call):
            version, picked = self.versions[node]
            values = len(node.function.values)
            inputs = [self.done[x] for x in node.inputs]
            if picked.index is not None:
                inputs.insert(values, self.done[picked.index])
            extra = version.dims
            made = b.call(version.function, inputs, [*node.dims, *extra], node.span)
        elif node in self.lasts:
            loop, _ = self.lasts[node]
            carried, scanned, fixed = (
                [self.done[x] for x in group] for group in (loop.carried, loop.scanned, loop.fixed)
            )
            made = b.for_(
                loop.body,
                loop.variable,
                loop.start,
                loop.stop,
                carried,
                scanned,
                fixed,
                span=loop.span,
                last=loop.last,
            )
        elif way is not None and not isinstance(node, Result):
            axes = pushed(node, way.axis)
            assert axes is not None
            made = _narrow(node, way, self._parts(node, axes, way.picked, b), b)
        else:
            made = rebuild(b, node, [self.done[x] for x in operands(node)], {}, {})
        self.done[node] = named_like(made, node)

    def _parts(
        self, node: Node, axes: Sequence[int | None], picked: Picked, b: Builder
    ) -> list[Node]:
        ways = [None if axis is None else Way(axis, picked) for axis in axes]
        return [self._part(x, w, b) for x, w in zip(operands(node), ways, strict=True)]


# ---------------------------------------------------------------- nodes


def picks_of(node: Node) -> Way | None:
    """What the node picks of its operand: one position, or those of an index."""
    match node:
        case Slice(x, ranges):
            cuts = [
                i
                for i, (part, extent) in enumerate(zip(ranges, shape_of(x), strict=True))
                if part != (ZERO, extent, 1)
            ]
            if len(cuts) == 1:
                start, stop, _ = ranges[cuts[0]]
                if stop - start == ONE:
                    return Way(cuts[0], Picked(start, stop))
        case Gather(_, indices, proved):
            given = [i for i, index in enumerate(indices) if index is not None]
            index = indices[given[0]] if len(given) == 1 else None
            if index is not None and len(shape_of(index)) == 1:
                if all(isinstance(n, _EARLY) for n in topological([index])):
                    picked = Picked(ZERO, shape_of(index)[0], index, proved[given[0]])
                    return Way(given[0], picked)
        case _:
            pass
    return None


def cut(x: Node, way: Way, builder: Builder) -> Node:
    """The picked positions of a node's axis."""
    picked, axis, shape = way.picked, way.axis, shape_of(x)
    if picked.index is None:
        ranges = [(picked.start, picked.stop, 1) if i == axis else None for i in range(len(shape))]
        return builder.slice(x, ranges)
    if axis and all(d == ONE for d in shape[:axis]):
        rows = cut(builder.reshape(x, shape[axis:]), Way(0, picked), builder)
        return builder.reshape(rows, (*shape[:axis], picked.count, *shape[axis + 1 :]))
    indices = [picked.index if i == axis else None for i in range(len(shape))]
    rows = builder.gather(x, indices, [i == axis and picked.proved for i in range(len(shape))])
    return builder.permute(rows, [*range(1, axis + 1), 0, *range(axis + 1, len(shape))])


def pushed(node: Node, axis: int) -> list[int | None] | None:
    """For each operand the axis whose positions are those of the node's axis; None if it is needed
    whole. No list where a position of the node hangs on more than its own of an operand."""
    match node:
        case Unary() | Cast() | Binary() | Compare() | Select():
            return [axis] * len(operands(node))
        case Expand(x, _, axes):
            at = axes.index(axis) if axis in axes else None
            repeats = at is None or shape_of(x)[at] == ONE
            return [None if repeats else at]
        case Permute(_, order):
            return [order[axis]]
        case Reshape(x, shape):
            before, after = prod(shape[:axis], start=ONE), prod(shape[axis + 1 :], start=ONE)
            own = shape_of(x)
            same = [
                i
                for i, extent in enumerate(own)
                if extent == shape[axis]
                and prod(own[:i], start=ONE) == before
                and prod(own[i + 1 :], start=ONE) == after
            ]
            return [same[0]] if same else None
        case Slice(x, ranges):
            return [axis] if ranges[axis] == (ZERO, shape_of(x)[axis], 1) else None
        case Concat(parts, along):
            return None if along == axis else [axis] * len(parts)
        case Gather(_, indices):
            given = [i for i in indices if i is not None]
            rank = len(shape_of(given[0]))
            if axis < rank:
                return [None, *([axis] * len(given))]
            rest = [i for i, index in enumerate(indices) if index is None]
            return [rest[axis - rank], *([None] * len(given))]
        case Reduce(_, x, axes):
            return [[i for i in range(len(shape_of(x))) if i not in axes][axis]]
        case Dot(a, b, batch, contract):
            if axis < len(batch):
                return [*batch[axis]]
            pairs = (*batch, *contract)
            left = [i for i in range(len(shape_of(a))) if i not in {p for p, _ in pairs}]
            right = [i for i in range(len(shape_of(b))) if i not in {p for _, p in pairs}]
            at = axis - len(batch)
            return [left[at], None] if at < len(left) else [None, right[at - len(left)]]
        case _:
            return None


def _narrow(node: Node, way: Way, inputs: Sequence[Node], b: Builder) -> Node:
    """The node for the picked positions alone, of operands that are so."""
    count, axis = way.picked.count, way.axis

    def fewer(shape: Sequence[Dim]) -> list[Dim]:
        return [count if i == axis else d for i, d in enumerate(shape)]

    match node:
        case Expand(_, shape, axes):
            return b.expand(inputs[0], fewer(shape), axes, node.span)
        case Reshape(_, shape):
            return b.reshape(inputs[0], fewer(shape), node.span)
        case Slice(_, ranges):
            parts = [None if i == axis else part for i, part in enumerate(ranges)]
            return b.slice(inputs[0], parts, node.span)
        case _:
            return rebuild(b, node, inputs, {}, {})


# ---------------------------------------------------------------- functions


def name_of(dim: Dim) -> str | None:
    """The name that the dimension is, if it is no more."""
    names = list(dim.names())
    return names[0] if len(names) == 1 and dim == Dim.of(names[0]) else None


@lru_cache(maxsize=2048)
def row_axes(function: Function, name: str) -> tuple[int | None, ...] | None:
    """For each param the axis whose extent is `name`, where each position along it gives that
    position of the results: then another size means some of the positions. None where not."""
    asked: dict[Node, set[int | None]] = {}
    if function.writes or any(p.kind == "state" for p in function.params):
        return None
    for result in function.results:
        asked.setdefault(result, set()).add(_axis(result, name))
    for node in reversed(nodes_of(function)):
        if isinstance(node, Result):
            continue
        if functions_of(node):
            axes: Sequence[int | None] | None = _rows_through(node, asked, function, name)
        else:
            own = asked[node]
            axis = next(iter(own)) if len(own) == 1 else None
            if own != {_axis(node, name)} or (axis is None and _mentions(node, name)):
                return None
            if isinstance(node, Param):
                if axis is not None and node.kind != "value":
                    return None
                continue
            axes = [None] * len(operands(node)) if axis is None else pushed(node, axis)
        if axes is None:
            return None
        for x, at in zip(operands(node), axes, strict=True):
            asked.setdefault(x, set()).add(at)
    return tuple(_axis(p, name) for p in function.params)


def _rows_through(
    node: Node, asked: Mapping[Node, set[int | None]], function: Function, name: str
) -> list[int | None] | None:
    """`pushed` of a node that runs a function: a call that goes row by row, or has none."""
    results = [n for n in nodes_of(function) if isinstance(n, Result) and n.of is node]
    if not _mentions(node, name) and all(asked[r] == {None} for r in results):
        bodies = [inner for inner in functions_of(node) if not isinstance(node, Call)]
        none = not any(_mentions(n, name) for body in bodies for n in nodes_of(body))
        return [None] * len(operands(node)) if none else None
    if not isinstance(node, Call):
        return None
    bound = zip(node.function.dims, node.dims, strict=True)
    inner = [d for d, own in bound if name in own.names()]
    if len(inner) != 1 or Dim.of(name) not in node.dims:
        return None
    axes = row_axes(node.function, inner[0])
    callee = node.function.results
    if axes is None or any(asked[r] != {_axis(callee[r.index], inner[0])} for r in results):
        return None
    return [*axes]


def _axis(node: Node, name: str) -> int | None:
    """The one axis whose extent is the name."""
    found = [i for i, d in enumerate(shape_of(node)) if d == Dim.of(name)]
    return found[0] if len(found) == 1 else None


def _mentions(node: Node, name: str) -> bool:
    return any(name in dim.names() for dim in dims_of(node))


@lru_cache(maxsize=2048)
def multiplies(function: Function) -> bool:
    """Whether there is a product of matrices in the function."""
    return any(
        isinstance(node, Dot) or any(multiplies(inner) for inner in functions_of(node))
        for node in nodes_of(function)
    )


def _inside(
    picked: Picked, extent: Dim, bound: Mapping[str, Dim], function: Function
) -> Picked | None:
    """What is picked, in the names of a function whose result has this extent there."""
    if picked.index is not None:
        count = picked.count
        if count.constant is None:
            count = Dim.of(_fresh(name_of(count) or "Picked", function.dims))
        return Picked(ZERO, count, picked.index, picked.proved)
    if picked.start.constant is not None and picked.start == ZERO:
        return picked
    outer = extent.substitute(bound)
    if (outer - picked.start).constant is None or (outer - picked.stop).constant is None:
        return None
    return Picked(extent - (outer - picked.start), extent - (outer - picked.stop))


def _version_of(
    function: Function,
    axes: Mapping[int, int],
    picked: Picked,
    made: dict[object, _Version | None],
) -> _Version | None:
    """The function for these rows of its results, if there is less to multiply then."""
    extents = [shape_of(function.results[i])[axis] for i, axis in axes.items()]
    facts, params, dims = Facts.of(function.facts), list(function.params), function.dims
    extra: tuple[Dim, ...] = ()
    if picked.index is None:
        wanted = [Relation("<=", ZERO, picked.start), Relation("<=", picked.stop, extents[0])]
        facts = facts.extend([fact for fact in wanted if not proves(facts, fact)])
    else:
        if picked.count.constant is None:
            dims, extra = (*dims, str(picked.count)), (shape_of(picked.index)[0],)
        index = _param_for(picked, function, Builder(facts))
        params.insert(len(function.values), index)
        picked = replace(picked, index=index)
    parts = function.name.split(".")
    parts[1 if function.block is not None and len(parts) > 1 else 0] += "_rows"
    changed = replace(
        function,
        name=".".join(parts),
        dims=dims,
        params=tuple(params),
        facts=facts.relations,
        returns=None,
        takes=(),
        docs="",
    )
    ways = {i: Way(axis, picked) for i, axis in axes.items()}
    inner = _Narrowing(changed, facts, ways, made)
    if not inner.gained:
        return None
    return _Version(replace(changed, results=inner.results()), extra)


def _param_for(picked: Picked, function: Function, builder: Builder) -> Param:
    """A parameter for the index, named as it is, or so that it is told apart."""
    index = picked.index
    assert index is not None and picked.index is not None
    wish = index.name if isinstance(index, Param) else index.hint or "rows"
    name = _fresh(wish.replace(".", "_"), [p.name for p in function.params])
    type = _type(picked)
    assert type is not None
    return builder.param(name, replace(type, shape=(picked.count,)))


def _type(picked: Picked) -> TensorType | None:
    return None if picked.index is None else tensor(picked.index)


def _fresh(wish: str, taken: Sequence[str] | Mapping[str, object]) -> str:
    name, number = wish, 1
    while name in taken:
        number += 1
        name = f"{wish}_{number}"
    return name
