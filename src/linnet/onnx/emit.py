"""An entry as a graph of ONNX: a model-local function for each function that is called.

Sizes stay symbolic: they are read from the shapes of a function's inputs, and what no shape says is
an input more, of i64 and one element. Members of an array are inputs of their own, and turns of a
loop over them are written after each other: layers are calls of one function.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import FunctionProto, NodeProto, OperatorSetIdProto, ValueInfoProto, helper

from linnet.backends import Kernels, choose
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
    Node,
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
from linnet.diagnostics import InternalError
from linnet.dims import Dim
from linnet.emit import ordered
from linnet.inputs import find_entry
from linnet.onnx import arrays, elementwise
from linnet.onnx.dtypes import computed_in
from linnet.onnx.graph import DOMAIN, OPSET, Names, Writer, value_info, words
from linnet.onnx.kernels import KERNELS, Kernel
from linnet.onnx.sizes import Sizes
from linnet.policy import Policy
from linnet.stablehlo.emit import members, paths_of, results_of, written_by
from linnet.types import BOOL, I64, TensorType

# Sizes that are numbers, by name.
Fixed = tuple[tuple[str, int], ...]

# A value's name, or one for each element of an array of members or of several results.
Value = str | tuple["Value", ...]


def opsets(nodes: Iterable[NodeProto]) -> list[OperatorSetIdProto]:
    """The sets of operators that a model, or a function with these nodes, names."""
    further = sorted({node.domain for node in nodes} - {"", DOMAIN})
    made = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return [*made, *(helper.make_opsetid(domain, 1) for domain in further)]


# Written where they are first used, for most uses need no tensor of them.
_ON_USE = (Literal, Size, Expand)


@dataclass(slots=True)
class Written:
    """An entry's nodes and the functions that they call.

    `inputs` are the names of the entry's arguments in the order of `paths_of`, `sizes` the
    dimensions that are inputs beside them, each with its name; `outputs` are in the order of
    `results_of`.
    """

    inputs: list[str]
    sizes: dict[str, str]
    outputs: list[str]
    nodes: list[NodeProto]
    functions: list[FunctionProto]


def write_entry(
    program: Program,
    entry: str | None,
    policy: Policy,
    kernels: Kernels = KERNELS,
    *,
    apart: bool = False,
) -> Written:
    """The entry, which is called as the argument says; PlanError where there is no such entry.

    A function serves all of its calls, or with `apart` those that know the same sizes.
    """
    function = find_entry(program, entry)
    module = _Module(policy, kernels, apart)
    return module.main(function)


@dataclass(slots=True)
class _Called:
    """A function that was written: its name, and the sizes that it takes as inputs."""

    name: str
    sizes: tuple[str, ...]


@dataclass(slots=True)
class _Module:
    """The functions that were asked for."""

    policy: Policy
    kernels: Kernels
    apart: bool
    names: Names = field(default_factory=Names)
    known: dict[tuple[Function, Fixed], _Called] = field(
        default_factory=dict[tuple[Function, Fixed], _Called]
    )
    protos: list[FunctionProto] = field(default_factory=list[FunctionProto])

    def called(self, function: Function, fixed: Fixed = ()) -> _Called:
        """The function where these sizes are numbers, written now if it was not yet."""
        key = function, fixed if self.apart else ()
        if key not in self.known:
            writer = Writer()
            inputs = [writer.names.fresh(words(path) or "x") for path, _ in _leaves(function)]
            scope = _Arguments(writer, function, inputs, dict(key[1]))
            results = writer.named(_Body(self, writer, scope.sizes, function, inputs).run(), "out")
            name = self.names.fresh(_apart(words(function.name)))
            proto = helper.make_function(
                DOMAIN,
                name,
                [*inputs, *scope.added.values()],
                results,
                [*writer.first, *writer.nodes],
                opsets([*writer.first, *writer.nodes]),
            )
            if function.docs:
                proto.doc_string = function.docs
            self.protos.append(proto)
            self.known[key] = _Called(name, tuple(scope.added))
        return self.known[key]

    def main(self, function: Function) -> Written:
        writer = Writer()
        inputs = [
            writer.names.fresh(words(path) if kind == "value" else path)
            for kind, path, _ in paths_of(function)
        ]
        scope = _Arguments(writer, function, inputs)
        results = _Body(self, writer, scope.sizes, function, inputs).run()
        wished = _result_names(function)
        outputs = [writer.output(value, wish) for value, wish in zip(results, wished, strict=True)]
        nodes = [*writer.first, *writer.nodes]
        return Written(inputs, scope.added, outputs, nodes, self.protos)


def _apart(name: str) -> str:
    """The name without a number at its end that stands alone.

    ONNX Runtime numbers the calls of a function when it inlines it, and would take the second call
    of `f` and the first of `f_2` for one.
    """
    return re.sub(r"_(\d+)$", r"_v\1", name)


def _leaves(function: Function) -> list[tuple[str, TensorType]]:
    return [leaf for param in function.params for leaf in members(param.name, param.of)]


def _result_names(function: Function) -> list[str]:
    """A wish for each output: `result`, or one for each; `next.cache` for a new state."""
    new = [f"next.{path}" for path in written_by(function)]
    count = len(results_of(function)) - len(new)
    names = ["result"] if count == 1 else [f"result_{i}" for i in range(count)]
    return [*names, *new]


@dataclass(slots=True)
class _Arguments:
    """Where a function finds its sizes: its inputs' shapes, else an input for the size itself."""

    writer: Writer
    function: Function
    inputs: Sequence[str]
    fixed: Mapping[str, int] = field(default_factory=dict[str, int])
    added: dict[str, str] = field(default_factory=dict[str, str])
    sizes: Sizes = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = Sizes(self.writer, self.read, self.fixed)

    def read(self, dim: str) -> str:
        alone = Dim.of(dim)
        for name, (_, type) in zip(self.inputs, _leaves(self.function), strict=True):
            for axis, extent in enumerate(type.shape):
                if extent == alone:
                    return self.writer.early("Shape", name, start=axis, end=axis + 1, wish=dim)
        self.added[dim] = self.writer.names.fresh(dim)
        return self.added[dim]


def flat(value: Value) -> list[str]:
    """The names that a value is made of."""
    return [value] if isinstance(value, str) else [name for part in value for name in flat(part)]


class _Body:
    """The nodes of one function, or of a graph in it."""

    def __init__(
        self,
        module: _Module,
        writer: Writer,
        sizes: Sizes,
        function: Function,
        inputs: Iterable[str],
    ) -> None:
        self.module = module
        self.writer = writer
        self.sizes = sizes
        self.function = function
        rest = iter(inputs)
        self.env: dict[Node, Value] = {param: _shaped(param.of, rest) for param in function.params}

    def run(self) -> list[str]:
        """Every operation of the function; the names of its results."""
        for node in ordered(self.function.results):
            if node not in self.env and not isinstance(node, _ON_USE):
                self.env[node] = self.value(node)
        return [name for node in self.function.results for name in flat(self.at(node))]

    def at(self, node: Node) -> Value:
        """The node's value, written now if it was left until it is used."""
        if node not in self.env:
            self.env[node] = self.value(node)
        return self.env[node]

    def name(self, node: Node) -> str:
        """The node's one tensor."""
        value = self.at(node)
        if not isinstance(value, str):
            raise InternalError("onnx", f"{node!r} is no tensor")
        return value

    def alike(self, call: Call) -> list[Call]:
        """Calls of the same op on the same first input, not written yet, whose others are there."""
        return [
            node
            for node in ordered(self.function.results)
            if isinstance(node, Call)
            and node is not call
            and node.function.op == call.function.op
            and node.inputs[0] is call.inputs[0]
            and node not in self.env
            and all(x in self.env for x in node.inputs)
        ]

    def give(self, call: Call, name: str) -> None:
        """The call's result was written with another's."""
        self.env[call] = (name,)

    def inlined(self, function: Function, given: Iterable[Value]) -> list[Value]:
        """The results of a body on these values, written here."""
        names = [name for value in given for name in flat(value)]
        inner = _Body(self.module, self.writer, self.sizes, function, names)
        inner.run()
        return [inner.at(node) for node in function.results]

    # ------------------------------------------------ nodes

    def value(self, node: Node) -> Value:
        """The node, written."""
        w, sizes = self.writer, self.sizes
        match node:
            case Param():
                raise InternalError("onnx", f"{node.name} is nobody's")
            case Literal(value, dtype):
                return w.number(value, dtype)
            case Size(dim, dtype):
                return elementwise.cast(w, sizes.scalar(dim), I64, dtype)
            case Iota(extent, dtype):
                return arrays.iota(w, sizes, extent, dtype, node.hint)
            case Unary(op, x):
                return elementwise.unary(w, op, self.name(x), dtype_of(x), node.hint)
            case Binary(op, a, b):
                (one, other), whole = self.aligned(node)
                number = _number(b)
                made = elementwise.binary(w, op, one, other, dtype_of(a), number, node.hint)
                return self.whole(node, made, whole)
            case Compare(op, a):
                (one, other), whole = self.aligned(node)
                made = elementwise.compare(w, op, one, other, dtype_of(a), node.hint)
                return self.whole(node, made, whole)
            case Select():
                (c, one, other), whole = self.aligned(node)
                made = elementwise.select(w, c, one, other, dtype_of(node), node.hint)
                return self.whole(node, made, whole)
            case Cast(x, dtype):
                return elementwise.cast(w, self.name(x), dtype_of(x), dtype, node.hint)
            case Reshape(x, shape):
                return arrays.reshaped(w, sizes, self.name(x), shape, node.hint, shape_of(x))
            case Permute():
                return self._permuted(node)
            case Expand():
                return self.expanded(node, self.loose(node))
            case Slice():
                return self._slice(node)
            case Concat(parts, axis):
                return w.op("Concat", *map(self.name, parts), axis=axis, wish=node.hint)
            case Gather(x):
                given = [self.name(index) for index in operands(node)[1:]]
                return arrays.gather(w, sizes, node, self.name(x), given)
            case Reduce(_, x):
                return arrays.reduce(w, sizes, node, self.name(x))
            case Dot(a, b):
                return arrays.dot(w, sizes, node, self.name(a), self.name(b))
            case Call():
                return self._call(node)
            case If():
                return self._if(node)
            case While():
                return self._while(node)
            case For():
                return self._for(node)
            case Result(of, index) | Element(of, index):
                return self.at(of)[index]
            case Update(x, index, value):
                old = self.at(x)
                return (*old[:index], self.at(value), *old[index + 1 :])
            case _:
                raise InternalError("onnx", f"unknown node {type(node).__name__}")

    def aligned(self, node: Node) -> tuple[list[str], bool]:
        """Operands that broadcast to each other, and whether that makes all of the result.

        What repeats along an axis need not be written out where another operand has that axis.
        """
        given = operands(node)
        left = set.intersection(*map(_repeated, given))
        rank = max(map(_loose_rank, given))
        return [self.loose(x) for x in given], not left and rank == len(shape_of(node))

    def loose(self, node: Node) -> str:
        """The value before it is repeated, its axes where they stand in the result."""
        if not isinstance(node, Expand):
            return self.name(node)
        name = self.name(node.x)
        if _is_trailing(node):
            return name
        new = [axis for axis in range(len(node.shape)) if axis not in node.axes]
        return self.writer.op("Unsqueeze", name, self.writer.integers(new))

    def expanded(self, node: Node, name: str) -> str:
        """The value repeated to the node's whole shape."""
        shape, dtype = self.sizes.shape(shape_of(node)), dtype_of(node)
        if not shape_of(node):
            return name
        wide = computed_in("Expand", dtype)
        made = self.writer.op("Expand", self.writer.to(name, dtype, wide), shape, wish=node.hint)
        return self.writer.to(made, wide, dtype)

    def whole(self, node: Node, name: str, whole: bool) -> str:
        return name if whole else self.expanded(node, name)

    def _permuted(self, node: Permute) -> str:
        """Where only axes of 1 are moved, everything lies as it lay."""
        shape = [self.sizes.plain(extent) for extent in shape_of(node.x)]
        moved = [axis for axis in node.order if shape[axis] != Dim.of(1)]
        if moved == sorted(moved) and list(node.order) != sorted(node.order):
            to = [shape[axis] for axis in node.order]
            return arrays.reshaped(self.writer, self.sizes, self.name(node.x), to, node.hint)
        return arrays.permuted(self.writer, self.name(node.x), node.order, node.hint)

    def _slice(self, node: Slice) -> str:
        extents = shape_of(node.x)
        cut = [
            (axis, start, stop, step)
            for axis, (start, stop, step) in enumerate(node.ranges)
            if (start, stop, step) != (Dim.of(0), extents[axis], 1)
        ]
        if not cut:
            return self.name(node.x)
        w, (axes, starts, stops, steps) = self.writer, zip(*cut, strict=True)
        return w.op(
            "Slice",
            self.name(node.x),
            self.sizes.shape(starts),
            self.sizes.shape(stops),
            w.integers(axes),
            w.integers(steps),
            wish=node.hint,
        )

    # ------------------------------------------------ calls and control

    def _call(self, node: Call) -> Value:
        kernel, _ = choose(self.module.kernels, node, self.module.policy)
        if isinstance(kernel, Kernel):
            return (kernel.write(self, node),)
        dims = dict(zip(node.function.dims, map(self.sizes.plain, node.dims), strict=True))
        fixed = tuple((name, n) for name, dim in dims.items() if (n := dim.constant) is not None)
        called = self.module.called(node.function, fixed)
        given = [name for x in node.inputs for name in flat(self.at(x))]
        given += [self.sizes.one(dims[name]) for name in called.sizes]
        count = len(_types(node))
        wish = words(node.function.name.rpartition(".")[2])
        made = self.writer.ops(called.name, given, [wish] * count, domain=DOMAIN)
        return _grouped(node, made)

    def _info(self, names: Sequence[str], types: Sequence[TensorType]) -> list[ValueInfoProto]:
        """The types in a branch or a loop: only numbers, since names of sizes are a function's."""
        return [
            value_info(name, type.dtype, [axis.constant for axis in _dims(type)])  # type: ignore[arg-type]
            for name, type in zip(names, types, strict=True)
        ]

    def _if(self, node: If) -> Value:
        given = [self.at(x) for x in node.inputs]
        types = _types(node)
        branches = {}
        for key, function in (("then_branch", node.then), ("else_branch", node.other)):
            with self.writer.inside() as nodes:
                results = self.inlined(function, given)
                names = self.writer.named([n for v in results for n in flat(v)], "branch")
            outputs = self._info(names, types)
            branches[key] = helper.make_graph(nodes, key, [], outputs)
        made = self.writer.ops("If", [self.name(node.c)], ["chosen"] * len(types), **branches)
        return _grouped(node, made)

    def _while(self, node: While) -> Value:
        given = [self.at(x) for x in node.inputs]
        carried, fixed = given[: node.count], given[node.count :]
        of = [param.of for param in node.body.params[: node.count]]
        types = [type for each in of for _, type in members("", each)]
        first = flat(self.inlined(node.test, given)[0])[0]
        turn = self.writer.names.fresh("turn")
        goes = self.writer.names.fresh("goes")
        inside = [self.writer.names.fresh("carried") for _ in types]
        with self.writer.inside() as nodes:
            rest = iter(inside)
            own = [_shaped(each, rest) for each in of]
            results = self.inlined(node.body, [*own, *fixed])
            test = self.inlined(node.test, [*results, *fixed])[0]
            names = [name for value in (test, *results) for name in flat(value)]
            names = self.writer.named(names, "carried")
        graph = helper.make_graph(
            nodes,
            "body",
            self._info([turn, goes, *inside], [_SCALAR, _FLAG, *types]),
            self._info(names, [_FLAG, *types]),
        )
        begun = ["", first, *(n for v in carried for n in flat(v))]
        made = self.writer.ops("Loop", begun, ["looped"] * len(types), body=graph)
        rest = iter(made)
        return tuple(_shaped(each, rest) for each in of)

    def _for(self, node: For) -> Value:
        carried = [self.at(x) for x in node.carried]
        fixed = [self.at(x) for x in node.fixed]
        start, stop = node.start.constant, node.stop.constant
        known = start is not None and stop is not None
        if known and (node.scanned or stop - start <= 1):  # type: ignore[operator]
            return self._turns(node, range(start, stop), carried, fixed)  # type: ignore[arg-type]
        count = node.stop - node.start
        return self._loop(node, count, carried, fixed)

    def _loop(self, node: For, count: Dim, carried: list[Value], fixed: Sequence[Value]) -> Value:
        w, kept = self.writer, len(carried)
        stacked = node.body.results[kept:]
        of = [_value_type(result) for result in node.body.results[:kept]]
        types = [type for each in of for _, type in members("", each)]
        turn, goes = w.names.fresh("turn"), w.names.fresh("goes")
        inside = [w.names.fresh("carried") for _ in types]
        with w.inside() as nodes:
            rest = iter(inside)
            own = [_shaped(each, rest) for each in of]
            results = self.inlined(node.body, [self._turn(node, turn), *own, *fixed])
            names = [goes, *(name for value in results for name in flat(value))]
            names = w.named(names, "carried")
        row_types = [_tensor_type(result) for result in stacked]
        graph = helper.make_graph(
            nodes,
            "body",
            self._info([turn, goes, *inside], [_SCALAR, _FLAG, *types]),
            self._info(names, [_FLAG, *types, *row_types]),
        )
        last = count - 1 if node.last is not None else count
        begun = [self.sizes.one(last), "", *(n for v in carried for n in flat(v))]
        wishes = ["looped"] * (len(types) + len(stacked))
        made = w.ops("Loop", begun, wishes, body=graph)
        rest = iter(made)
        out: list[Value] = [_shaped(each, rest) for each in of]
        if node.last is not None:
            at = self.sizes.scalar(node.stop - 1)
            return tuple(self.inlined(node.last, [at, *out, *fixed])[:kept])
        rows = [
            # Without a turn the runtime knows the rank alone.
            arrays.reshaped(w, self.sizes, name, [count, *_dims(type)])
            for name, type in zip(rest, row_types, strict=True)
        ]
        return (*out, *rows)

    def _turn(self, node: For, turn: str) -> str:
        """The loop's variable, from the number of the turn."""
        if node.start == Dim.of(0) or not _uses_turn(node.body):
            return turn
        return self.writer.op("Add", turn, self.sizes.scalar(node.start), wish=node.variable)

    def _turns(
        self, node: For, turns: range, carried: list[Value], fixed: Sequence[Value]
    ) -> Value:
        """The turns written one after the other."""
        count = len(carried)
        gathered: list[list[Value]] = [[] for _ in node.body.results[count:]]
        for i in turns:
            function = node.last if node.last and i == turns[-1] else node.body
            elements = [self.at(x)[i] for x in node.scanned]
            at = self.writer.number(i, I64)
            results = self.inlined(function, [at, *carried, *elements, *fixed])
            carried = results[:count]
            for items, value in zip(gathered, results[count:], strict=True):
                items.append(value)
        first = len(gathered) - node.stacked
        stacks = [
            self._stacked(result, values)
            for result, values in zip(
                node.body.results[count + first :], gathered[first:], strict=True
            )
        ]
        return (*carried, *map(tuple, gathered[:first]), *stacks)

    def _stacked(self, result: Node, values: Sequence[Value]) -> str:
        w, dims = self.writer, shape_of(result)
        if not values:
            zero = w.number(False if dtype_of(result) is BOOL else 0, dtype_of(result))
            wide = computed_in("Expand", dtype_of(result))
            shape = self.sizes.shape([Dim.of(0), *dims])
            made = w.op("Expand", w.to(zero, dtype_of(result), wide), shape)
            return w.to(made, wide, dtype_of(result))
        rows = [
            w.op("Unsqueeze", name, w.integers([0])) for value in values for name in flat(value)
        ]
        return rows[0] if len(rows) == 1 else w.op("Concat", *rows, axis=0)


_SCALAR = TensorType((), I64)
_FLAG = TensorType((), BOOL)


def _is_trailing(node: Expand) -> bool:
    """New axes come first, where operators of ONNX add them by themselves."""
    rank = len(node.shape)
    return node.axes == tuple(range(rank - len(node.axes), rank))


def _loose_rank(node: Node) -> int:
    """The number of axes before the value is repeated."""
    own = node.x if isinstance(node, Expand) and _is_trailing(node) else node
    return len(shape_of(own))


def _repeated(node: Node) -> set[int]:
    """The axes of the result along which the operand is only repeated."""
    if not isinstance(node, Expand):
        return set()
    own = {
        axis
        for axis, extent in zip(node.axes, shape_of(node.x), strict=True)
        if extent == node.shape[axis] or extent.constant != 1
    }
    # An axis of 1 is whole as it is.
    return {i for i, extent in enumerate(node.shape) if i not in own and extent.constant != 1}


def _number(node: Node) -> bool | int | float | None:
    """What the node is everywhere, where its form says so."""
    while isinstance(node, Expand):
        node = node.x
    return node.value if isinstance(node, Literal) else None


def _uses_turn(function: Function) -> bool:
    return function.params[0] in ordered(function.results)


def _shaped(of: ValueType, names: Iterator[str]) -> Value:
    """As many of the names as a value of the type is made of."""
    if isinstance(of, ArrayType):
        return tuple(_shaped(of.element, names) for _ in range(of.length))
    return next(names)


def _grouped(node: Node, names: Iterable[str]) -> tuple[Value, ...]:
    assert isinstance(node.type, ResultsType)
    rest = iter(names)
    return tuple(_shaped(item, rest) for item in node.type.items)


def _types(node: Node) -> list[TensorType]:
    """The types of all that a node's value is made of."""
    assert isinstance(node.type, ResultsType)
    return [type for item in node.type.items for _, type in members("", item)]


def _value_type(node: Node) -> ValueType:
    assert not isinstance(node.type, ResultsType)
    return node.type


def _tensor_type(node: Node) -> TensorType:
    assert isinstance(node.type, TensorType)
    return node.type


def _dims(type: TensorType) -> list[Dim]:
    return [axis for axis in type.shape if isinstance(axis, Dim)]
