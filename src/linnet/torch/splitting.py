"""A program without `Shards`, split over devices by rules.

Rules name some weights and the axis that each device has a run of. From there everything follows:
each node of the program is whole (the same on every device), split along one axis, or a summand of
which each device has one. What a split value meets must be split alike, which is how biases, the
weights of a closing product and caches are found; a summand that is more than added becomes whole
by `all_reduce`; a node that needs numbers of other devices in any other way is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from linnet.core.build import Builder, named_like
from linnet.core.derive import dtype_of, shape_of
from linnet.core.ir import (
    ArrayType,
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
    Manifest,
    Node,
    OpId,
    Param,
    Permute,
    Program,
    Reduce,
    Reshape,
    Result,
    ResultsType,
    Select,
    Size,
    Slice,
    Unary,
    Update,
    ValueType,
    While,
    operands,
)
from linnet.core.rewrite import (
    map_functions,
    nodes_of,
    reachable,
    rebuild,
    rewrite,
    substitute,
    substitute_function,
)
from linnet.diagnostics import PlanError
from linnet.dims import Dim, Facts, Relation, proves
from linnet.types import DType, TensorType
from linnet.weights.part import Part, Shard

SUM = "sum"
_SHARED, _ALL_REDUCE = "std.nn.parallel::shared", "std.nn.parallel::all_reduce"
Place = int | str | None
"""Where a value's numbers are: None for everywhere, an axis that is split, or SUM."""
Rule = str | int
_AXES: dict[str, int | None] = {"column": 0, "row": 1, "replicate": None}

# The projections that open a split part, as the families call them; what closes it follows.
DEFAULT_RULES: dict[str, Rule] = {
    **{f"*.{name}_proj.weight": "column" for name in ("q", "k", "v")},
    **{f"*.{name}.weight": "column" for name in ("query", "key", "value")},
    **{f"*.{name}.weight": "column" for name in ("gate", "up", "intermediate")},
    "*.mlp.c_fc.weight": 1,
}


class Refused(Exception):
    """The program cannot be split so, and why."""


class Wanted(Exception):
    """A parameter of the function at hand must be split along an axis."""

    def __init__(self, param: Param, axis: int) -> None:
        super().__init__()
        self.param = param
        self.axis = axis


def split(
    program: Program, rules: Mapping[str, Rule] | None, shard: Shard
) -> tuple[Program, dict[str, Part]]:
    """The program of one shard, and which part of the whole model's each parameter is."""
    program = map_functions(program, lambda function, new: rewrite(function, _alone, new))
    places = _ruled(program, DEFAULT_RULES if rules is None else rules, shard.count)
    fixed = frozenset(places) if rules is not None else frozenset[str]()
    entries = dict(program.entries)
    done = False
    splitter = _Splitter(shard.count)
    while not done:
        done = True
        for name, function in program.entries.items():
            try:
                entries[name] = splitter.entry(function, places)
            except Wanted as wanted:
                _derive(places, fixed, wanted, name)
                done = False
                break
            except Refused as error:
                raise PlanError(
                    f"tensor_parallel: {program.name} cannot be split over {shard.count} devices "
                    f"by these rules: {name}: {error}; tp_rules says which weights are split"
                ) from error
    manifest = _local(program.manifest, places, shard.count)
    parts = {
        path: Part(axis, shard.index, shard.count)
        for entry in manifest.entries
        if entry.kind != "state" and (axis := places.get(entry.path)) is not None
        for path in entry.expanded()
    }
    made = replace(program, entries=entries, functions={}, manifest=manifest)
    functions = {f"{f.name}.{k}": f for k, f in enumerate(reachable(made))}
    return replace(made, functions=functions), parts


def _alone(node: Node, builder: Builder) -> Node | None:
    """What the source itself says to other devices is said to none: it has no `Shards`."""
    match node:
        case Result(Call(function, (x,)), 0) if str(function.op) in (_SHARED, _ALL_REDUCE):
            return x
        case _:
            return None


def _ruled(program: Program, rules: Mapping[str, Rule], count: int) -> dict[str, int | None]:
    """The axis of each manifest path that a rule fits; the first rule that fits counts."""
    entries = [e for e in program.manifest.entries if e.kind != "state"]
    used = {p.name for f in program.entries.values() for p in f.params}
    places: dict[str, int | None] = {}
    fitted: set[str] = set()
    for entry in entries:
        for pattern, rule in rules.items():
            first = entry.path.replace("*", "0")
            if not any(fnmatchcase(p, pattern) for p in (entry.path, first, f".{first}")):
                continue
            fitted.add(pattern)
            if entry.path not in places and entry.path in used:
                places[entry.path] = _axis(entry.path, entry.type, pattern, rule, count)
    unused = [pattern for pattern in rules if pattern not in fitted]
    if rules is not DEFAULT_RULES and unused:
        listed = ", ".join(e.path for e in entries[:6])
        raise PlanError(f"tp_rules: {unused[0]!r} fits no parameter; there are {listed}, ...")
    if all(axis is None for axis in places.values()):
        raise PlanError(
            f"tensor_parallel: {program.name} has no generic Shards, and "
            + (
                "no weight has a name that the built-in rules know"
                if rules is DEFAULT_RULES
                else "tp_rules split nothing"
            )
            + ": tp_rules={'layers.*.mlp.up.weight': 'column'} names weights and how they are split"
        )
    return places


def _axis(path: str, type: TensorType, pattern: str, rule: Rule, count: int) -> int | None:
    if not isinstance(rule, int) and rule not in _AXES:
        raise PlanError(
            f"tp_rules: {pattern!r} is {rule!r}; a rule is 'column' (axis 0), 'row' (axis 1), "
            "'replicate' or an axis"
        )
    axis = rule if isinstance(rule, int) else _AXES[rule]
    shape = [int(str(n)) for n in type.shape]
    if axis is None:
        return None
    if not 0 <= axis < len(shape):
        raise PlanError(f"tp_rules: {path} is {shape}, which has no axis {axis} to split")
    if shape[axis] % count:
        raise PlanError(
            f"tp_rules: {path} is {shape}: axis {axis} is not shared equally by {count} devices"
        )
    return axis


def _derive(
    places: dict[str, int | None], fixed: frozenset[str], wanted: Wanted, entry: str
) -> None:
    """What must be split is, or a PlanError says why it cannot be."""
    path = wanted.param.name
    if wanted.param.kind == "value":
        raise PlanError(
            f"tensor_parallel: {entry} would need its input {path} split along axis {wanted.axis}; "
            "inputs are whole on every device: tp_rules must not split what meets it"
        )
    if path in places and (path in fixed or places[path] is not None):
        known = places[path]
        now = "whole" if known is None else f"split along axis {known}"
        raise PlanError(
            f"tensor_parallel: {entry} needs {path} split along axis {wanted.axis}, by the rules "
            f"it is {now}"
        )
    places[path] = wanted.axis


def _local(manifest: Manifest, places: Mapping[str, int | None], count: int) -> Manifest:
    return replace(
        manifest,
        entries=tuple(
            replace(entry, type=_part_type(entry.type, places.get(entry.path), count))
            for entry in manifest.entries
        ),
    )


def _part_type(of: TensorType, place: Place, count: int) -> TensorType:
    if not isinstance(place, int):
        return of
    shape = list(of.shape)
    shape[place] = _share(shape[place], count)
    return TensorType(tuple(shape), of.dtype)


def _share(extent: object, count: int) -> Dim:
    constant = extent.constant if isinstance(extent, Dim) else None
    if constant is None or constant % count:
        raise Refused(f"an axis of {extent} is not shared equally by {count} devices")
    return Dim.of(constant // count)


def _part_value(of: ValueType, place: Place, count: int) -> ValueType:
    if isinstance(of, ArrayType):
        inner = _part_value(of.element, place, count)
        return ArrayType(inner, of.length)
    return _part_type(of, place, count)


# ---------------------------------------------------------------- functions


@dataclass(frozen=True, slots=True)
class _Made:
    """A function as one device runs it, where its results are, and whether it speaks."""

    function: Function
    places: tuple[Place, ...]
    speaks: bool


class _Splitter:
    """Functions by where their inputs are."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._made: dict[tuple[object, ...], _Made] = {}
        self._special: dict[tuple[Function, tuple[tuple[str, int], ...]], Function] = {}
        self._ops: dict[tuple[str, int, DType], Function] = {}

    def entry(self, function: Function, places: Mapping[str, int | None]) -> Function:
        own = tuple(None if p.kind == "value" else places.get(p.name) for p in function.params)
        if all(place is None for place in own):
            return function
        return self.function(function, own, whole=True).function

    def function(
        self, function: Function, places: tuple[Place, ...], *, whole: bool = False
    ) -> _Made:
        """`whole`: the value results are whole, as an entry's always are."""
        whole = whole or function.kind == "entry"
        key = (function, places, whole)
        if key not in self._made:
            body = _Body(self, function, places, Facts.of(function.facts))
            states = {p.name: p for p in function.params if p.kind == "state"}
            first = len(function.value_results)
            kept = {first + i: states[path] for i, path in enumerate(function.writes)}
            self._made[key] = body.made(kept, whole)
        return self._made[key]

    def inner(
        self,
        body: Function,
        places: tuple[Place, ...],
        facts: Facts,
        kept: Mapping[int, Param] | None = None,
    ) -> _Made:
        """A body inside a function, the results `kept` placed as the params that they become."""
        key = (body, places, *(kept or {}))
        if key not in self._made:
            made = _Body(self, body, places, facts.extend(body.facts))
            self._made[key] = made.made(kept or {}, False)
        return self._made[key]

    def special(self, call: Call) -> Function:
        """The callee with the sizes that are constants in the call."""
        sizes = tuple(
            (name, dim.constant)
            for name, dim in zip(call.function.dims, call.dims, strict=True)
            if dim.constant is not None
        )
        if not sizes:
            return call.function
        key = (call.function, sizes)
        if key not in self._special:
            bound = {name: Dim.of(size) for name, size in sizes}
            self._special[key] = substitute_function(call.function, bound)
        return self._special[key]

    def collective(self, name: str, rank: int, dtype: DType) -> Function:
        """`std.nn.parallel`'s op for values of that rank."""
        key = (name, rank, dtype)
        if key not in self._ops:
            self._ops[key] = _gathering(dtype) if name == "all_gather" else _passing(*key)
        return self._ops[key]


def _passing(name: str, rank: int, dtype: DType) -> Function:
    dims = tuple(f"S_{i}" for i in range(rank))
    of = TensorType(tuple(map(Dim.of, dims)), dtype)
    x = Builder().param("x", of)
    return _op(name, dims, x, x)


def _gathering(dtype: DType) -> Function:
    rows, width, shards = Dim.of("R"), Dim.of("N"), Dim.of("Shards")
    b = Builder()
    x = b.param("x", TensorType((rows, width), dtype))
    repeated = b.expand(x, (rows, shards, width), (0, 2))
    return _op("all_gather", ("R", "N", "Shards"), x, b.reshape(repeated, (rows, shards * width)))


def _op(name: str, dims: tuple[str, ...], x: Param, result: Node) -> Function:
    assert isinstance(x.of, TensorType) and isinstance(result.type, TensorType)
    return Function(
        name=name,
        kind="op",
        op=OpId("std", "std.nn.parallel", name),
        block=None,
        dims=dims,
        params=(x,),
        results=(result,),
        writes=(),
        facts=(),
        returns=result.type,
        takes=(("x", x.of),),
    )


# ---------------------------------------------------------------- nodes


class _Body:
    """One function's nodes, made again for one device."""

    def __init__(
        self,
        splitter: _Splitter,
        function: Function,
        places: tuple[Place, ...],
        facts: Facts,
    ) -> None:
        self.splitter = splitter
        self.count = splitter.count
        self.function = function
        self.facts = facts
        self.builder = Builder(facts)
        self.new: dict[Node, Node] = {}
        self.place: dict[Node, Place] = {}
        self.several: dict[Node, tuple[Place, ...]] = {}  # of nodes with several results
        self.speaks = False
        for param, place in zip(function.params, places, strict=True):
            of = _part_value(param.of, place, self.count)
            made = self.builder.param(param.name, of, param.kind, param.base, param.span)
            self.new[param], self.place[param] = made, place

    def made(self, kept: Mapping[int, Param], whole: bool) -> _Made:
        """The results `kept` are placed as these params; the others, if `whole`, everywhere."""
        function = self.function
        for node in nodes_of(function):
            if node not in self.new:
                self._node(node)
        results: list[Node] = []
        places: list[Place] = []
        for i, node in enumerate(function.results):
            if i in kept:
                results.append(self._as_kept(node, kept[i]))
                places.append(self.place[kept[i]])
            elif whole:
                results.append(self.whole(node, gather=True))
                places.append(None)
            else:
                results.append(self.new[node])
                places.append(self.place[node])
        made = replace(
            function,
            params=tuple(self._param(p) for p in function.params),
            results=tuple(results),
            returns=function.returns if whole else None,
            op=None if self.speaks else function.op,
        )
        return _Made(made, tuple(places), self.speaks)

    def _param(self, param: Param) -> Param:
        made = self.new[param]
        assert isinstance(made, Param)
        return made

    def _as_kept(self, node: Node, param: Param) -> Node:
        """The new value of a state or a loop's variable, split as that is."""
        have, want = self.place[node], self.place[param]
        if have == SUM and want is None:
            return self.whole(node)
        if have == want:
            return self.new[node]
        if isinstance(have, int):
            raise Wanted(param, have)
        assert isinstance(want, int)
        return self.along(node, want)

    # ------------------------------------------------ changes of place

    def whole(self, node: Node, *, gather: bool = False) -> Node:
        """The value on every device."""
        place = self.place[node]
        if place is None:
            return self.new[node]
        if place == SUM:
            return self._speak("all_reduce", self.new[node])
        shape = shape_of(self.new[node])
        if not gather or place != len(shape) - 1:
            raise Refused(f"{_named(node)} is split along axis {place}, and is needed whole")
        rows = Dim.of(1)
        for extent in shape[:-1]:
            rows = rows * extent
        flat = self.builder.reshape(self.new[node], (rows, shape[-1]))
        op = self.splitter.collective("all_gather", 2, dtype_of(node))
        self.speaks = True
        made = self.builder.call(op, (flat,), (rows, shape[-1], Dim.of(self.count)))
        return self.builder.reshape(self.builder.result(made, 0), shape_of(node))

    def _speak(self, name: str, x: Node) -> Node:
        self.speaks = self.speaks or name == "all_reduce"
        op = self.splitter.collective(name, len(shape_of(x)), dtype_of(x))
        return self.builder.result(self.builder.call(op, (x,), shape_of(x)), 0)

    def shared(self, node: Node) -> Node:
        """The whole value where a split one reads it: its gradient is summed."""
        x = self.whole(node)
        return self._speak("shared", x) if _learns(x) else x

    def along(self, node: Node, axis: int) -> Node:
        """The value split along the axis, without a word from another device."""
        place = self.place[node]
        if place == axis:
            return self.new[node]
        if place is not None:
            raise Refused(f"{_named(node)} is needed split along axis {axis}, not {place}")
        b = self.builder
        match node:
            case Param():
                raise Wanted(node, axis)
            case Expand(x, shape, axes):
                local = _cut(shape, axis, self.count)
                if axis not in axes or shape_of(x)[axes.index(axis)] == Dim.of(1) != shape[axis]:
                    return b.expand(self.shared(x), local, axes)
                return b.expand(self.along(x, axes.index(axis)), local, axes)
            case Unary() | Cast() | Binary() | Compare() | Select():
                inputs = [self.along(x, axis) for x in operands(node)]
                return rebuild(b, node, inputs, {}, {})
            case Permute(x, order):
                return b.permute(self.along(x, order[axis]), order)
            case Element(x, index):
                return b.element(self.along(x, axis), index)
            case Result(Call() as call, index):
                return self._called_along(call, index, axis)
            case _:
                raise Refused(f"{_named(node)} is whole, and is needed split along axis {axis}")

    # ------------------------------------------------ one node

    def _set(self, node: Node, made: Node, place: Place) -> None:
        self.new[node], self.place[node] = named_like(made, node), place

    def _node(self, node: Node) -> None:
        given = [self.place.get(x) for x in operands(node)]
        several = any(
            p is not None for x in operands(node) if x in self.several for p in self.several[x]
        )
        if all(place is None for place in given) and not several:
            self._plain(node)
            return
        b = self.builder
        match node:
            case Unary(op, x):
                self._unary(node, x, linear=op == "neg")
            case Cast(x, dtype):
                self._unary(node, x, linear=dtype.is_float and dtype_of(x).is_float)
            case Binary() | Compare() | Select():
                self._elementwise(node)
            case Reshape(x, shape):
                self._reshape(node, x, shape)
            case Permute(x, order):
                place = self.place[x]
                moved = order.index(place) if isinstance(place, int) else place
                self._set(node, b.permute(self.new[x], order), moved)
            case Expand(x, shape, axes):
                place = self.place[x]
                at = axes[place] if isinstance(place, int) else place
                local = _cut(shape, at, self.count) if isinstance(at, int) else shape
                self._set(node, b.expand(self.new[x], local, axes), at)
            case Slice(x, ranges):
                self._slice(node, x, ranges)
            case Concat(parts, axis):
                self._concat(node, parts, axis)
            case Gather():
                self._gather(node)
            case Reduce(op, x, axes):
                self._reduce(node, op, x, axes)
            case Dot():
                self._dot(node)
            case Call():
                self._call(node)
            case For():
                self._for(node)
            case If():
                self._if(node)
            case While():
                self._while(node)
            case Result(of, index):
                self._set(node, b.result(self.new[of], index), self.several[of][index])
            case Element(x, index):
                self._set(node, b.element(self.new[x], index), self.place[x])
            case Update(x, index, value):
                if self.place[x] != self.place[value]:
                    raise Refused(f"{_named(node)}: an array's elements are split differently")
                made = b.update(self.new[x], index, self.new[value])
                self._set(node, made, self.place[x])
            case _:
                raise Refused(f"{_named(node)} has no split form")

    def _plain(self, node: Node) -> None:
        """The node over whole values."""
        made = rebuild(self.builder, node, [self.new[x] for x in operands(node)], {}, {})
        self.new[node], self.place[node] = made, None
        if isinstance(node.type, ResultsType):
            self.several[node] = (None,) * len(node.type.items)

    def _unary(self, node: Node, x: Node, *, linear: bool) -> None:
        if self.place[x] == SUM and not linear:
            self._set(node, rebuild(self.builder, node, [self.whole(x)], {}, {}), None)
        else:
            self._set(node, rebuild(self.builder, node, [self.new[x]], {}, {}), self.place[x])

    def _elementwise(self, node: Node) -> None:
        inputs = operands(node)
        places = {self.place[x] for x in inputs}
        if places == {SUM} and isinstance(node, Binary) and node.op in ("add", "sub"):
            made = rebuild(self.builder, node, [self.new[x] for x in inputs], {}, {})
            self._set(node, made, SUM)
            return
        axes = {p for p in places if isinstance(p, int)}
        if not axes:
            made = rebuild(self.builder, node, [self.whole(x) for x in inputs], {}, {})
            self._set(node, made, None)
            return
        axis = min(axes)
        made = rebuild(self.builder, node, [self.along(x, axis) for x in inputs], {}, {})
        self._set(node, made, axis)

    def _reshape(self, node: Node, x: Node, shape: tuple[Dim, ...]) -> None:
        place = self.place[x]
        if not isinstance(place, int):
            self._set(node, self.builder.reshape(self.new[x], shape), place)
            return
        axis = _moved(shape_of(x), shape, place, self.facts)
        if axis is None:
            raise Refused(
                f"{_named(node)}: axis {place} of {_listed(shape_of(x))} is split, and does not "
                f"begin an axis of {_listed(shape)}"
            )
        self._set(node, self.builder.reshape(self.new[x], _cut(shape, axis, self.count)), axis)

    def _slice(self, node: Node, x: Node, ranges: Sequence[tuple[Dim, Dim, int]]) -> None:
        place = self.place[x]
        local = list(ranges)
        if isinstance(place, int):
            extent = shape_of(x)[place]
            if ranges[place] != (Dim.of(0), extent, 1):
                raise Refused(
                    f"{_named(node)} takes a run of axis {place} of {_listed(shape_of(x))}, which "
                    "is split: several parts side by side need weights of their own"
                )
            local[place] = (Dim.of(0), _share(extent, self.count), 1)
        self._set(node, self.builder.slice(self.new[x], local), place)

    def _concat(self, node: Node, parts: Sequence[Node], axis: int) -> None:
        places = {self.place[x] for x in parts}
        axes = {p for p in places if isinstance(p, int)}
        if not axes:
            made = self.builder.concat([self.whole(x) for x in parts], axis)
            self._set(node, made, None)
            return
        at = min(axes)
        if at == axis:
            raise Refused(f"{_named(node)} joins along axis {axis}, which is split")
        made = self.builder.concat([self.along(x, at) for x in parts], axis)
        self._set(node, made, at)

    def _gather(self, node: Gather) -> None:
        place = self.place[node.x]
        wanted = [i for i in node.indices if i is not None]
        if any(self.place[i] is not None for i in wanted) or place == SUM:
            raise Refused(f"{_named(node)} reads by split positions")
        assert isinstance(place, int)
        if node.indices[place] is not None:
            raise Refused(f"{_named(node)} reads by positions on axis {place}, which is split")
        first = len(shape_of(wanted[0]))
        after = sum(1 for i in node.indices[:place] if i is None)
        indices = [None if i is None else self.new[i] for i in node.indices]
        made = self.builder.gather(self.new[node.x], indices, node.proved)
        self._set(node, made, first + after)

    def _reduce(self, node: Node, op: str, x: Node, axes: Sequence[int]) -> None:
        place = self.place[x]
        if place == SUM or (place in axes and op != "sum"):
            value = self.whole(x)  # refused where it is split
            self._set(node, rebuild(self.builder, node, [value], {}, {}), None)
            return
        made = rebuild(self.builder, node, [self.new[x]], {}, {})
        assert isinstance(place, int)
        at: Place = SUM if place in axes else place - sum(1 for a in axes if a < place)
        if at == SUM and not dtype_of(node).is_float:
            raise Refused(f"{_named(node)}: a sum of {dtype_of(node)} over devices")
        self._set(node, made, at)

    def _dot(self, node: Dot) -> None:
        sides = (node.a, node.b)
        values = [self.whole(x) if self.place[x] == SUM else self.new[x] for x in sides]
        places = [None if self.place[x] == SUM else self.place[x] for x in sides]
        if places == [None, None]:
            self._set(node, rebuild(self.builder, node, values, {}, {}), None)
            return
        for pairs, summed in ((node.contract, True), (node.batch, False)):
            for k, pair in enumerate(pairs):
                hit = [places[i] == pair[i] for i in (0, 1)]
                if not any(hit):
                    continue
                both = [self.along(x, axis) for x, axis in zip(sides, pair, strict=True)]
                self._set(node, rebuild(self.builder, node, both, {}, {}), SUM if summed else k)
                return
        if None not in places:
            raise Refused(f"{_named(node)} is a product of two values that are split apart")
        side = 0 if places[0] is not None else 1
        values[1 - side] = self.shared(sides[1 - side])
        made = rebuild(self.builder, node, values, {}, {})
        self._set(node, made, _free(node, side, places[side]))

    # ------------------------------------------------ calls

    def _call(self, node: Call) -> None:
        inputs = [self.whole(x) if self.place[x] == SUM else self.new[x] for x in node.inputs]
        places = [None if self.place[x] == SUM else self.place[x] for x in node.inputs]
        self._several(node, *self._called(node, inputs, places))

    def _called(
        self, node: Call, inputs: list[Node], places: list[Place]
    ) -> tuple[Node, tuple[Place, ...]]:
        """The call with these inputs, and where its results are."""
        function = self.splitter.special(node)
        made = self._settled(function, node.inputs, inputs, places, inner=False)
        kept = self._as_op(node, made, inputs, places)
        if kept is not None:
            return kept, made.places
        sizes = dict(zip(node.function.dims, node.dims, strict=True))
        self.speaks = self.speaks or made.speaks
        dims = [sizes[n] for n in made.function.dims]
        return self.builder.call(made.function, inputs, dims), made.places

    def _called_along(self, node: Call, index: int, axis: int) -> Node:
        """A result of a call of whole values, split along the axis."""
        function = self.splitter.special(node)
        inputs = [self.whole(x) for x in node.inputs]
        places: list[Place] = [None] * len(inputs)
        for _ in inputs:
            body = _Body(self.splitter, function, tuple(places), Facts.of(function.facts))
            body.made({}, False)
            try:
                body.along(function.results[index], axis)
            except Wanted as wanted:
                at = function.params.index(wanted.param)
                inputs[at], places[at] = self.along(node.inputs[at], wanted.axis), wanted.axis
            made, found = self._called(node, inputs, places)
            if found[index] == axis:
                return self.builder.result(made, index)
        raise Refused(f"{function.name} is whole, and is needed split along axis {axis}")

    def _settled(
        self,
        function: Function,
        old: Sequence[Node],
        inputs: list[Node],
        places: list[Place],
        *,
        inner: bool,
    ) -> _Made:
        """The function for these inputs, after those that it wants split are."""
        while True:
            try:
                if inner:
                    return self.splitter.inner(function, tuple(places), self.facts)
                return self.splitter.function(function, tuple(places))
            except Wanted as wanted:
                at = function.params.index(wanted.param)
                if places[at] is not None:
                    raise Refused(
                        f"{function.name} needs {wanted.param.name} split along axis "
                        f"{wanted.axis} and along {places[at]}"
                    ) from None
                inputs[at] = self.along(old[at], wanted.axis)
                places[at] = wanted.axis

    def _as_op(
        self, node: Call, made: _Made, inputs: list[Node], places: list[Place]
    ) -> Node | None:
        """A call of the op itself at a device's sizes, for its kernels; None: it is none."""
        op = node.function
        if op.op is None or made.speaks or any(p is None for p in made.places):
            return None
        dims = _solved(
            op, [shape_of(x) for x in inputs], dict(zip(op.dims, node.dims, strict=True))
        )
        if dims is None:
            return None
        if not _alike(op, made.function, dims):
            return None
        given = [
            self._speak("shared", x) if p is None and _learns(x) else x
            for x, p in zip(inputs, places, strict=True)
        ]
        return self.builder.call(op, given, [dims[n] for n in op.dims])

    def _several(self, node: Node, made: Node, places: tuple[Place, ...]) -> None:
        self.new[node], self.place[node] = named_like(made, node), None
        self.several[node] = places

    # ------------------------------------------------ control

    def _for(self, node: For) -> None:
        body = node.body
        old = operands(node)
        inputs = [self.whole(x) if self.place[x] == SUM else self.new[x] for x in old]
        places = [None if self.place[x] == SUM else self.place[x] for x in old]
        a, c = len(node.carried), len(node.carried) + len(node.scanned)

        def turn(body: Function) -> _Made:
            params = body.params[1:]
            kept = dict(enumerate(params[:a]))
            kept |= {a + k: p for k, p in enumerate(p for p in params[a:c] if p.kind == "state")}
            return self.splitter.inner(body, (None, *places), self.facts, kept)

        while True:
            try:
                made = turn(body)
                last = None if node.last is None else turn(node.last)
                break
            except Wanted as wanted:
                names = [(p.base, p.name) for p in body.params]
                at = names.index((wanted.param.base, wanted.param.name)) - 1
                if at < 0 or places[at] is not None:
                    raise Refused(f"a loop needs {wanted.param.name} split in two ways") from None
                inputs[at] = self.along(old[at], wanted.axis)
                places[at] = wanted.axis
        first = len(body.results) - node.stacked
        found = tuple(
            p + 1 if i >= first and isinstance(p, int) else p for i, p in enumerate(made.places)
        )
        new = self.builder.for_(
            made.function,
            node.variable,
            node.start,
            node.stop,
            inputs[:a],
            inputs[a:c],
            inputs[c:],
            node.stacked,
            last=None if last is None else last.function,
        )
        self.speaks = self.speaks or made.speaks or (last is not None and last.speaks)
        self._several(node, new, found)

    def _if(self, node: If) -> None:
        if self.place[node.c] is not None:
            raise Refused("a condition is split")
        inputs = [self.whole(x) if self.place[x] == SUM else self.new[x] for x in node.inputs]
        places = [None if self.place[x] == SUM else self.place[x] for x in node.inputs]
        branches = (node.then, node.other)
        made: list[_Made] = []
        for _ in branches:  # the second time with what the other one wanted
            made = [self._settled(f, node.inputs, inputs, places, inner=True) for f in branches]
        if made[0].places != made[1].places:
            raise Refused("the branches of an `if` are split differently")
        new = self.builder.if_(self.new[node.c], made[0].function, made[1].function, inputs)
        self.speaks = self.speaks or any(m.speaks for m in made)
        self._several(node, new, made[0].places)

    def _while(self, node: While) -> None:
        inputs = [self.whole(x) if self.place[x] == SUM else self.new[x] for x in node.inputs]
        places = [None if self.place[x] == SUM else self.place[x] for x in node.inputs]
        kept = dict(enumerate(node.body.params[: node.count]))
        while True:
            try:
                made = self.splitter.inner(node.body, tuple(places), self.facts, kept)
                test = self.splitter.inner(node.test, tuple(places), self.facts)
                break
            except Wanted as wanted:
                params = node.body.params
                at = next(i for i, p in enumerate(params) if p.name == wanted.param.name)
                if places[at] is not None:
                    raise Refused(f"a loop needs {wanted.param.name} split in two ways") from None
                inputs[at] = self.along(node.inputs[at], wanted.axis)
                places[at] = wanted.axis
        if test.places != (None,):
            raise Refused("a condition is split")
        new = self.builder.while_(test.function, made.function, inputs, node.count)
        self.speaks = self.speaks or made.speaks or test.speaks
        self._several(node, new, made.places)


# ---------------------------------------------------------------- sizes


def _cut(shape: Sequence[Dim], axis: int, count: int) -> tuple[Dim, ...]:
    return tuple(_share(n, count) if k == axis else n for k, n in enumerate(shape))


def _moved(old: Sequence[Dim], new: Sequence[Dim], axis: int, facts: Facts) -> int | None:
    """The axis of the new shape that the runs of an axis of the old one are runs of."""

    def equal(a: Dim, b: Dim) -> bool:
        return a == b or proves(facts, Relation("==", a, b))

    one = Dim.of(1)
    i = j = 0
    while i < len(old) and j < len(new):
        start, left, right = i, old[i], new[j]
        target = j
        i, j = i + 1, j + 1
        while not equal(left, right):
            a, b = left.constant, right.constant
            grow_left = i < len(old) and (j >= len(new) or (a or 0) < (b or 0))
            if grow_left:
                left, i = left * old[i], i + 1
            elif j < len(new):
                right, j = right * new[j], j + 1
            else:
                return None
        if start <= axis < i:
            while target < j - 1 and new[target] == one:
                target += 1
            return target if all(n == one for n in old[start:axis]) else None
    return None


def _free(node: Dot, side: int, place: Place) -> int:
    """Where a free axis of an operand stands in the product."""
    taken = [{p[s] for p in (*node.batch, *node.contract)} for s in (0, 1)]
    free = [
        [k for k in range(len(shape_of(x))) if k not in taken[s]]
        for s, x in enumerate((node.a, node.b))
    ]
    assert isinstance(place, int)
    return len(node.batch) + (len(free[0]) if side else 0) + free[side].index(place)


def _solved(
    op: Function, shapes: Sequence[Sequence[Dim]], whole: Mapping[str, Dim]
) -> dict[str, Dim] | None:
    """The op's sizes at which its parameters have these shapes."""
    dims: dict[str, Dim] = {}
    pairs = [
        (declared, extent)
        for param, shape in zip(op.params, shapes, strict=True)
        for declared, extent in zip(shape_of(param), shape, strict=True)
    ]
    for name in op.dims:
        found = {extent.key: extent for declared, extent in pairs if declared == Dim.of(name)}
        if len(found) > 1:
            return None
        if found:
            [dims[name]] = found.values()
    for name in op.dims:
        if name not in dims:
            dims[name] = _factor(name, pairs, dims) or whole[name]
    fits = all(declared.substitute(dims) == extent for declared, extent in pairs)
    return dims if fits else None


def _alike(op: Function, made: Function, dims: Mapping[str, Dim]) -> bool:
    """The op at these sizes is the function, but for what only gradients see."""
    sizes = {name: dim for name, dim in dims.items() if dim.constant is not None}
    builder = Builder(Facts.of(made.facts))
    params: dict[Node, Node] = {p: builder.intern(p) for p in made.params}
    own: dict[Node, Node] = dict(zip(op.params, params.values(), strict=True))
    results = substitute(op.results, own, sizes, builder)
    done = dict(params)
    for node in nodes_of(made):
        match node:
            case Result(Call(function, (x,))) if str(function.op) == _SHARED:
                done[node] = done[x]
            case _ if node not in done:
                done[node] = rebuild(builder, node, [done[x] for x in operands(node)], {}, {})
            case _:
                pass
    return all(a is done[b] for a, b in zip(results, made.results, strict=True))


def _factor(name: str, pairs: Sequence[tuple[Dim, Dim]], dims: Mapping[str, Dim]) -> Dim | None:
    """A size that stands in products alone, where the others of one are known."""
    for declared, extent in pairs:
        if name not in declared.names() or extent.constant is None:
            continue
        unit = declared.substitute({**dims, name: Dim.of(1)}).constant
        if unit and extent.constant % unit == 0:
            return Dim.of(extent.constant // unit)
    return None


def _learns(x: Node) -> bool:
    """Whether a gradient may go through the value: no scalar, and nothing fixed."""
    fixed = isinstance(x, (Literal, Size, Iota)) or not shape_of(x)
    return not fixed and dtype_of(x).is_float


def _named(node: Node) -> str:
    return node.hint or type(node).__name__.lower()


def _listed(shape: Sequence[Dim]) -> str:
    return f"[{', '.join(map(str, shape))}]"
