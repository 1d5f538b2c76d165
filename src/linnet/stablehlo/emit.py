"""An entry as a StableHLO module (openxla.org/stablehlo/spec): a function for each that is called.

Sizes are numbers, but for the entry's dimensions that stay dynamic: a function that is called with
different numbers is written once for each, and takes the others as scalars before its own
arguments. The public function takes the entry's values, then every parameter and buffer, then the
state, all of them named by `linnet.path`; it returns the entry's results, then the new state.
Members of an array are arguments of their own, and turns of a loop over them are written after each
other: layers are calls of one private function.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
from linnet.core.scalars import holds_all, integer_range, wrap
from linnet.diagnostics import InternalError
from linnet.dims import dim_max, dim_min
from linnet.emit import Names, ordered, snake_case
from linnet.inputs import find_entry, leaf_paths
from linnet.policy import Policy, allows
from linnet.stablehlo.arguments import check_dynamic, read_sizes
from linnet.stablehlo.cpu import CPU_KERNELS
from linnet.stablehlo.kernels import KERNELS, Kernel, Region
from linnet.stablehlo.shaped import Shaped
from linnet.stablehlo.sizes import SCALAR, Sizes
from linnet.stablehlo.text import Extent, Ids, Lines, listed, tensor_type
from linnet.types import BOOL, I64, DType, TensorType

_COUNTER = TensorType((), I64)
# A value's name, or one for each element of an array of members or of several results.
Value = str | tuple["Value", ...]

_UNARY = {
    "neg": "negate",
    "not": "not",
    "abs": "abs",
    "exp": "exponential",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "sin": "sine",
    "cos": "cosine",
    "tanh": "tanh",
}
_BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "rem": "remainder",
    "min": "minimum",
    "max": "maximum",
    "and": "and",
    "or": "or",
    "xor": "xor",
    "shl": "shift_left",
}
_REDUCE = {
    "sum": "add",
    "prod": "multiply",
    "max": "maximum",
    "min": "minimum",
    "any": "or",
    "all": "and",
}


def emit(
    program: Program,
    entry: str | None = None,
    sizes: Mapping[str, int] | None = None,
    policy: Policy = "equivalent",
    dynamic: Sequence[str] = (),
    device: str | None = None,
) -> str:
    """The module of one entry, its own dimensions bound by `sizes`, ended by a line end.

    Those named in `dynamic` are read from the arguments when the module is run: their axes are `?`,
    and what sizes must satisfy is asserted, in words. PlanError where there is no such entry, where
    one of the names is no dimension of it or has a size, and where no argument says what it is.
    It means the same on every device; for a `device` "cpu" some ops are written as XLA runs them
    fast there.
    """
    function = find_entry(program, entry)
    bound = dict(sizes or {})
    name = entry or program.main
    check_dynamic(program, function, name, bound, dynamic)
    module = _Module(policy, {**KERNELS, **CPU_KERNELS} if device == "cpu" else KERNELS)
    main = module.main(function, name, bound, dynamic)
    lines = Lines()
    lines.add(f"module @{snake_case(program.name.replace('.', '_'))} {{")
    for text in (main, *module.texts):
        lines.block(text)
    lines.add("}")
    return str(lines)


@dataclass(frozen=True, slots=True)
class _Written:
    """A private function: the dimensions that it takes as scalars, and its types."""

    name: str
    dims: tuple[str, ...]
    taken: tuple[str, ...]
    made: tuple[str, ...]


@dataclass(slots=True)
class _Module:
    """The functions that were asked for, each for its sizes."""

    policy: Policy
    kernels: Mapping[str, Kernel]
    names: Names = field(default_factory=lambda: Names({"main"}))
    known: dict[tuple[Function, tuple[int | None, ...]], _Written] = field(default_factory=dict)
    texts: list[Lines] = field(default_factory=list)

    def called(self, function: Function, extents: Sequence[Extent]) -> _Written:
        """The private function for the sizes that are numbers, written now if it was not yet."""
        key = function, tuple(size if isinstance(size, int) else None for size in extents)
        if key not in self.known:
            name = self.names.fresh(_plain(function.name))
            at = len(self.texts)
            sizes = zip(function.dims, key[1], strict=True)
            static = {dim: size for dim, size in sizes if size is not None}
            names = Ids()
            scalars = {dim: names.fresh(dim) for dim in function.dims if dim not in static}
            body = Body(self, Sizes(names, static, scalars), names, Lines())
            self.known[key], text = body.private(name, function)
            self.texts.insert(at, text)
        return self.known[key]

    def main(
        self, function: Function, name: str, static: Mapping[str, int], dynamic: Sequence[str]
    ) -> Lines:
        names = Ids()
        body = Body(self, Sizes(names, static, {}), names, Lines())
        return body.public(name, function, dynamic)


def _plain(name: str) -> str:
    return "_".join(snake_case(part) for part in name.split("."))


def paths_of(function: Function) -> list[tuple[str, str, TensorType]]:
    """Kind, path and type of each argument of the public function, in order."""
    values = zip(leaf_paths(function), function.values, strict=True)
    found = [("value", path, _tensor(param.of)) for path, param in values]
    for param in function.params[len(found) :]:
        found += [(param.kind, path, type) for path, type in members(param.name, param.of)]
    return found


def members(path: str, of: ValueType) -> Iterator[tuple[str, TensorType]]:
    """Every tensor of a member, its positions in arrays written out."""
    if isinstance(of, ArrayType):
        for i in range(of.length):
            yield from members(path.replace("*", str(i), 1), of.element)
    else:
        yield path, of


def results_of(function: Function) -> list[TensorType]:
    """The type of each result of the public function: values, then what is written."""
    return [type for node in function.results for _, type in members("", value_type(node))]


def written_by(function: Function) -> list[str]:
    """The paths of the states that the function writes, in the order of its results."""
    new = function.results[len(function.value_results) :]
    return [
        path
        for name, node in zip(function.writes, new, strict=True)
        for path, _ in members(name, value_type(node))
    ]


def _tensor(of: ValueType) -> TensorType:
    if not isinstance(of, TensorType):
        raise InternalError("stablehlo", f"{of} is no tensor")
    return of


def flat(value: Value) -> list[str]:
    """The names that a value is made of."""
    return [value] if isinstance(value, str) else [name for part in value for name in flat(part)]


class Body(Shaped):
    """The operations of one function, or of a region in it."""

    def __init__(self, module: _Module, sizes: Sizes, names: Ids, lines: Lines) -> None:
        super().__init__(sizes, names, lines)
        self.module = module
        self.env: dict[Node, Value] = {}

    # ------------------------------------------------ functions and regions

    def private(self, name: str, function: Function) -> tuple[_Written, Lines]:
        """The whole function, which takes what it uses of its dynamic dimensions first."""
        told, (taken, made) = self.arguments(function), self.signature(function)
        body = self.body(function, made)
        dims = [dim for dim in self.sizes.dynamic if dim in self.sizes.used]
        arguments = [f"{self.sizes.dynamic[dim]}: {SCALAR}" for dim in dims]
        arguments += [f"{name}: {type}" for name, type in zip(told, taken, strict=True)]
        head = f"func.func private @{name}({', '.join(arguments)}) -> {_outcome(made)} {{"
        return _Written(name, tuple(dims), tuple(taken), tuple(made)), _enclosed([head], body)

    def public(self, name: str, function: Function, dynamic: Sequence[str]) -> Lines:
        """The whole function, with what is said of each argument and of each result."""
        told = self.arguments(function)
        if dynamic:
            own = zip(function.values, told, strict=False)
            read_sizes(function, name, self.sizes, dynamic, dict(own))
        taken, made = self.signature(function)
        body = self.body(function, made)
        paths, written = paths_of(function), written_by(function)
        rows = [
            f'    {name}: {type} {{linnet.kind = "{kind}", linnet.path = "{path}"}},'
            for name, type, (kind, path, _) in zip(told, taken, paths, strict=True)
        ]
        if rows:
            rows[-1] = rows[-1].removesuffix(",")
        first = len(made) - len(written)
        marked = [
            f'{type} {{linnet.path = "{path}"}}'
            for type, path in zip(made[first:], written, strict=True)
        ]
        outcome = f"({', '.join(made[:first] + marked)})" if marked else _outcome(made)
        return _enclosed(["func.func public @main(", *rows, f") -> {outcome} {{"], body)

    def arguments(self, function: Function) -> list[str]:
        """A name for each tensor that the function takes."""
        told = [self.names.fresh(_wish(path)) for path in _leaves(function)]
        rest = iter(told)
        for param in function.params:
            self.env[param] = _shaped(param.of, rest)
        return told

    def signature(self, function: Function) -> tuple[list[str], list[str]]:
        """The types that the function takes and gives."""
        taken = [type for param in function.params for type in self.types_of(param.of)]
        return taken, [self.type(type) for type in results_of(function)]

    def body(self, function: Function, made: Sequence[str]) -> Lines:
        """What stands between the braces of the function, which gives these types."""
        self.lines.depth += 1
        returned = ", ".join(self.run(function))
        self.lines.add(f"return {returned} : {', '.join(made)}" if made else "return")
        return Lines([*self.sizes.top.lines.items, *self.lines.items])

    def run(self, function: Function) -> list[str]:
        """Every operation of the function, whose params are known; the names of its results."""
        nodes, needed = ordered(function.results), set(function.results)
        for node in reversed(nodes):
            if node in needed:
                needed.update(self.read_by(node))
        for node in nodes:
            known = node in self.env or isinstance(node, (Literal, Size))
            if node in needed and not known:
                self.env[node] = self.value(node)
        return [name for node in function.results for name in flat(self.at(node))]

    def read_by(self, node: Node) -> tuple[Node, ...]:
        """What is there before the node is written."""
        kernel = self.kernel(node) if isinstance(node, Call) else None
        return operands(node) if kernel is None else kernel.reads(self, node)  # type: ignore[arg-type]

    def at(self, node: Node) -> Value:
        """The node's value; a number is written where it is first used as a tensor."""
        if node not in self.env:
            self.env[node] = self.value(node)
        return self.env[node]

    def inlined(
        self,
        function: Function,
        given: Iterable[Value],
        of: Iterable[ValueType],
        to: Sequence[ValueType],
    ) -> list[Value]:
        """The results, of types `to`, of a body on values of types `of`, written here."""
        inner = Body(self.module, self.sizes, self.names, self.lines)
        for param, value, own in zip(function.params, given, of, strict=True):
            inner.env[param] = self.fitted(value, own, param.of)
        inner.run(function)
        return [
            self.fitted(inner.at(node), value_type(node), wanted)
            for node, wanted in zip(function.results, to, strict=True)
        ]

    def region(
        self,
        function: Function,
        given: Iterable[Value],
        of: Iterable[ValueType],
        to: Sequence[ValueType],
    ) -> None:
        """The operations of a body one step further in, and its return."""
        self.lines.depth += 1
        results = [name for value in self.inlined(function, given, of, to) for name in flat(value)]
        types = [type for each in to for type in self.types_of(each)]
        self.lines.add(f"stablehlo.return {', '.join(results)} : {', '.join(types)}")
        self.lines.depth -= 1

    def fitted(self, value: Value, of: ValueType, to: ValueType) -> Value:
        """The value where a type of the same sizes is wanted.

        Sizes that are proved equal may be a number in one and dynamic in the other.
        """
        if of is to or not self.sizes.dynamic:
            return value
        pairs = zip(flat(value), self.types_of(of), self.types_of(to), strict=True)
        return _shaped(to, iter([self.convert(*pair) for pair in pairs]))

    def given(self, node: Node, type: str) -> str:
        """The tensor, where this type is wanted."""
        return self.convert(self.name(node), self.types(node)[0], type)

    @property
    def policy(self) -> Policy:
        return self.module.policy

    # ------------------------------------------------ text

    def type(self, of: TensorType) -> str:
        return tensor_type(self.sizes.extents(of.shape), of.dtype)  # type: ignore[arg-type]

    def types(self, node: Node) -> list[str]:
        """The types of all that a node's value is made of."""
        if isinstance(node.type, ResultsType):
            return [t for item in node.type.items for t in self.types_of(item)]
        return self.types_of(node.type)

    def types_of(self, of: ValueType) -> list[str]:
        return [self.type(each) for _, each in members("", of)]

    def shape_of(self, node: Node) -> list[Extent]:
        return self.sizes.extents(shape_of(node))

    def moved(self, what: str, x: Node, to: Node) -> str:
        """An operation that gives what the node is from x: `(type) -> type` at its end."""
        return self.op(what, f"({self.types(x)[0]}) -> {self.types(to)[0]}", to.hint)

    def name(self, node: Node) -> str:
        value = self.at(node)
        if not isinstance(value, str):
            raise InternalError("stablehlo", f"{node!r} is no tensor")
        return value

    # ------------------------------------------------ nodes

    def value(self, node: Node) -> Value:
        """The node, written."""
        match node:
            case Param():
                raise InternalError("stablehlo", f"{node.name} is nobody's")
            case Literal(value, dtype):
                return self.number(value, dtype)
            case Size(dim, dtype):
                size = self.sizes.extent(dim)
                if isinstance(size, int):
                    return self.number(_size(size, dtype), dtype)
                return self.convert(self.sizes.scalar(size), SCALAR, tensor_type((), dtype))
            case Iota(_, dtype):
                return self._iota(node, dtype)
            case Unary(op, x):
                if op == "abs" and dtype_of(x).kind == "uint":
                    return self.at(x)
                return self.op(
                    f"stablehlo.{_UNARY[op]} {self.name(x)}", self.types(node)[0], node.hint
                )
            case Binary():
                return self._binary(node)
            case Compare(op, a, b):
                of = self.types(a)[0]
                right = self.given(b, of)
                return self.compare(op, self.name(a), right, of, dtype_of(a), node.hint)
            case Select(c, a, b):
                of, test = self.types(a)[0], tensor_type(self.shape_of(a), BOOL)
                names = f"{self.given(c, test)}, {self.name(a)}, {self.given(b, of)}"
                return self.op(f"stablehlo.select {names}", f"{test}, {of}", node.hint)
            case Cast(x, dtype):
                return self._cast(node, x, dtype)
            case Reshape(x):
                of, shape = self.types(x)[0], self.shape_of(node)
                return self.reshape(self.name(x), of, shape, dtype_of(x), node.hint)
            case Permute(x, order):
                text = f"stablehlo.transpose {self.name(x)}, dims = {listed(order)}"
                return self.moved(text, x, node)
            case Expand(x, _, axes):
                number, shape = self.known(x), self.shape_of(node)
                if number is not None:
                    return self.constant(number, shape, dtype_of(x))
                of = self.types(x)[0]
                return self.broadcast(self.name(x), of, shape, dtype_of(x), axes, node.hint)
            case Slice(x, ranges):
                bounds = [(self.sizes.extent(a), self.sizes.extent(b), s) for a, b, s in ranges]
                of, shape = self.types(x)[0], self.shape_of(node)
                return self.slice(self.name(x), of, bounds, shape, dtype_of(x), node.hint)
            case Concat(parts, axis):
                names = ", ".join(self.name(x) for x in parts)
                types = ", ".join(self.types(x)[0] for x in parts)
                text = f"stablehlo.concatenate {names}, dim = {axis}"
                return self.op(text, f"({types}) -> {self.types(node)[0]}", node.hint)
            case Gather():
                return self._gather(node)
            case Reduce():
                return self._reduce(node)
            case Dot():
                return self._dot(node)
            case Call():
                return self._call(node)
            case If(c, then, other, inputs):
                return self._if(node, c, then, other, inputs)
            case While(test, body, inputs, count):
                return self._while(node, test, body, inputs, count)
            case For():
                return self._for(node)
            case Result(many, index) | Element(many, index):
                return self.at(many)[index]
            case Update(x, index, value):
                assert isinstance(x.type, ArrayType)
                old = self.at(x)
                new = self.fitted(self.at(value), value_type(value), x.type.element)
                return (*old[:index], new, *old[index + 1 :])
            case _:
                raise InternalError("stablehlo", f"unknown node {type(node).__name__}")

    def _iota(self, node: Iota, dtype: DType) -> str:
        shape = self.shape_of(node)
        if dtype.is_float and dtype.bits < 64:  # counted exactly, rounded once
            counted = self.iota(shape, I64)
            return self.convert(
                counted, tensor_type(shape, I64), tensor_type(shape, dtype), node.hint
            )
        return self.iota(shape, dtype, node.hint)

    def _binary(self, node: Binary) -> str:
        dtype, shape, type = dtype_of(node), self.shape_of(node), self.types(node)[0]
        a, b = self.name(node.a), self.given(node.b, type)
        op = node.op
        if op == "shr":
            op_name = "shift_right_arithmetic" if dtype.kind == "int" else "shift_right_logical"
            return self.op(f"stablehlo.{op_name} {a}, {b}", type, node.hint)
        if op in ("div", "rem") and dtype.is_integer and not self.known(node.b):
            zero, one = (self.constant(value, shape, dtype) for value in (0, 1))
            none = self.compare("eq", b, zero, type, dtype)
            by = self.op(
                f"stablehlo.select {none}, {one}, {b}", f"{tensor_type(shape, BOOL)}, {type}"
            )
            whole = self.op(f"stablehlo.{_BINARY[op]} {a}, {by}", type)
            instead = zero if op == "div" else a
            text = f"stablehlo.select {none}, {instead}, {whole}"
            return self.op(text, f"{tensor_type(shape, BOOL)}, {type}", node.hint)
        return self.op(f"stablehlo.{_BINARY[op]} {a}, {b}", type, node.hint)

    def known(self, node: Node) -> bool | int | float | None:
        """What it is everywhere, if that is known."""
        match node:
            case Literal(value):
                return value
            case Size(dim, dtype):
                size = self.sizes.extent(dim)
                return _size(size, dtype) if isinstance(size, int) else None
            case Expand(x):
                return self.known(x)
            case _:
                return None

    def _cast(self, node: Cast, x: Node, dtype: DType) -> str:
        own, type = dtype_of(x), self.types(x)[0]
        if dtype is BOOL and own is not BOOL:
            return self.compare(
                "ne", self.name(x), self.constant(0, self.shape_of(x), own), type, own, node.hint
            )
        return self.convert(self.name(x), type, self.types(node)[0], node.hint)

    def _gather(self, node: Gather) -> str:
        given = [index for index in node.indices if index is not None]
        indexed = [axis for axis, index in enumerate(node.indices) if index is not None]
        kept = [axis for axis, index in enumerate(node.indices) if index is None]
        shape, lead = self.shape_of(node.x), self.shape_of(given[0])
        if not all(shape[axis] for axis in indexed):
            return self.constant(0, self.shape_of(node), dtype_of(node))  # nothing is there to read
        wide = all(dtype_of(index) == dtype_of(given[0]) for index in given)
        dtype = dtype_of(given[0]) if wide else I64
        parts: list[str] = []
        for index in given:
            own = self.given(index, tensor_type(lead, dtype))
            parts.append(self.reshape(own, tensor_type(lead, dtype), [*lead, 1], dtype))
        places, type = parts[0], tensor_type([*lead, len(parts)], dtype)
        if len(parts) > 1:
            types = ", ".join([tensor_type([*lead, 1], dtype)] * len(parts))
            text = f"stablehlo.concatenate {', '.join(parts)}, dim = {len(lead)}"
            places = self.op(text, f"({types}) -> {type}")
        sizes = list(shape)
        for axis in indexed:
            sizes[axis] = 1
            extent = shape[axis]
            if node.proved[axis] and not isinstance(extent, int):  # it may be empty, and not read
                sizes[axis] = dim_min(extent, 1)
        offsets = listed(range(len(lead), len(lead) + len(kept)))
        numbers = (
            f"offset_dims = {offsets}, collapsed_slice_dims = {listed(indexed)}, "
            f"start_index_map = {listed(indexed)}, index_vector_dim = {len(lead)}"
        )
        x, of, to = self.name(node.x), self.types(node.x)[0], self.types(node)[0]
        return self.gather(x, of, places, type, numbers, sizes, to, node.hint)

    def _reduce(self, node: Reduce) -> str:
        dtype = dtype_of(node)
        first = self.number(_identity(node.op, dtype), dtype)
        text = (
            f"stablehlo.reduce({self.name(node.x)} init: {first}) applies "
            f"stablehlo.{_REDUCE[node.op]} across dimensions = {listed(node.axes)}"
        )
        scalar = tensor_type((), dtype)
        return self.op(
            text, f"({self.types(node.x)[0]}, {scalar}) -> {self.types(node)[0]}", node.hint
        )

    def _dot(self, node: Dot) -> str:
        own = {dtype_of(node.a), dtype_of(node.b)}
        # Narrow floats are multiplied as they are, and summed in the wider dtype.
        as_is = len(own) == 1 and all(x.is_float and holds_all(node.dtype, x) for x in own)
        names, types = [], []
        for x in (node.a, node.b):
            given = self.types(x)[0]
            to = given if as_is else tensor_type(self.shape_of(x), node.dtype)
            names.append(self.convert(self.name(x), given, to))
            types.append(to)
        batch = [[pair[side] for pair in node.batch] for side in (0, 1)]
        contract = [[pair[side] for pair in node.contract] for side in (0, 1)]
        batching = (
            f"batching_dims = {listed(batch[0])} x {listed(batch[1])}, " if node.batch else ""
        )
        precision = [self.precision] * 2
        text = (
            f"stablehlo.dot_general {', '.join(names)}, {batching}contracting_dims = "
            f"{listed(contract[0])} x {listed(contract[1])}, precision = {listed(precision)}"
        )
        return self.op(text, f"({', '.join(types)}) -> {self.types(node)[0]}", node.hint)

    # ------------------------------------------------ calls and control

    @property
    def precision(self) -> str:
        """Of products."""
        return "DEFAULT" if allows(self.module.policy, "fast") else "HIGHEST"

    def _call(self, node: Call) -> Value:
        kernel = self.kernel(node)
        if kernel is not None:
            return (kernel.write(self, node),)
        extents = [self.sizes.extent(dim) for dim in node.dims]
        names = [name for x in node.inputs for name in flat(self.at(x))]
        types = [type for x in node.inputs for type in self.types(x)]
        results, made = self.called(node.function, extents, names, types)
        fitted = zip(results, made, self.types(node), strict=True)
        return self._grouped(node, [self.convert(*one) for one in fitted])

    def kernel(self, node: Call) -> Kernel | None:
        """What writes the call in place of the body, if the policy and its sizes allow that."""
        kernel = self.module.kernels.get(str(node.function.op)) if node.function.op else None
        if kernel is None or not allows(self.module.policy, kernel.policy):
            return None
        return kernel if kernel.accepts(self, node) else None

    def called(
        self,
        function: Function,
        extents: Sequence[Extent],
        names: Sequence[str],
        types: Sequence[str],
    ) -> tuple[list[str], Sequence[str]]:
        """The results of the function for these sizes, on tensors of these types, and theirs."""
        to = self.module.called(function, extents)
        bound = dict(zip(function.dims, extents, strict=True))
        scalars = [self.sizes.scalar(bound[dim]) for dim in to.dims]
        given = [self.convert(*one) for one in zip(names, types, to.taken, strict=True)]
        taken = ", ".join([*[SCALAR] * len(scalars), *to.taken])
        text = f"func.call @{to.name}({', '.join(scalars + given)}) : ({taken})"
        wish = _plain(function.name)
        return self.several(f"{text} -> {_outcome(to.made)}", len(to.made), wish), to.made

    def _grouped(self, node: Node, names: Iterable[str]) -> tuple[Value, ...]:
        assert isinstance(node.type, ResultsType)
        rest = iter(names)
        return tuple(_shaped(item, rest) for item in node.type.items)

    def _if(
        self, node: If, c: Node, then: Function, other: Function, inputs: Sequence[Node]
    ) -> Value:
        given, of, made = [self.at(x) for x in inputs], _types_of(inputs), self.types(node)
        assert isinstance(node.type, ResultsType)
        results = self.several(f'"stablehlo.if"({self.name(c)}) ({{', len(made), "chosen")
        self.region(then, given, of, node.type.items)
        self.lines.add("}, {")
        self.region(other, given, of, node.type.items)
        self.lines.add(f"}}) : (tensor<i1>) -> {_outcome(made)}")
        return self._grouped(node, results)

    def loop(
        self, carried: Sequence[str], types: Sequence[str], test: Region, body: Region
    ) -> list[str]:
        """`stablehlo.while` over the carried values."""
        inside = [self.names.fresh("turn") for _ in carried]
        bound = ", ".join(f"{a} = {b}" for a, b in zip(inside, carried, strict=True))
        text = f"stablehlo.while({bound}) : {', '.join(types)}"
        results = self.several(text, len(carried), "looped")
        self.lines.add(" cond {")
        self.lines.depth += 1
        self.lines.add(f"stablehlo.return {test(inside)[0]} : tensor<i1>")
        self.lines.depth -= 1
        self.lines.add(" } do {")
        self.lines.depth += 1
        self.lines.add(f"stablehlo.return {', '.join(body(inside))} : {', '.join(types)}")
        self.lines.depth -= 1
        self.lines.add(" }")
        return results

    def _while(
        self, node: While, test: Function, body: Function, inputs: Sequence[Node], count: int
    ) -> Value:
        given, own = [self.at(x) for x in inputs], _types_of(inputs)
        of = [param.of for param in body.params[:count]]
        types = [t for each in of for t in self.types_of(each)]

        def inside(function: Function, to: Sequence[ValueType]) -> Region:
            def run(names: Sequence[str]) -> list[str]:
                rest = iter(names)
                turn = [*(_shaped(each, rest) for each in of), *given[count:]]
                results = self.inlined(function, turn, [*of, *own[count:]], to)
                return [name for value in results for name in flat(value)]

            return run

        names = self._fitted(given[:count], own[:count], of)
        test_type = [value_type(result) for result in test.results]
        ended = iter(self.loop(names, types, inside(test, test_type), inside(body, of)))
        return self._ended(node, [_shaped(each, ended) for each in of], of)

    def _fitted(
        self, values: Sequence[Value], of: Sequence[ValueType], to: Sequence[ValueType]
    ) -> list[str]:
        """The names of values where other types of the same sizes are wanted."""
        fitted = [self.fitted(*one) for one in zip(values, of, to, strict=True)]
        return [name for value in fitted for name in flat(value)]

    def _ended(
        self, node: Node, values: Sequence[Value], of: Sequence[ValueType]
    ) -> tuple[Value, ...]:
        """The results of a loop, of the node's types."""
        assert isinstance(node.type, ResultsType)
        return tuple(self.fitted(*one) for one in zip(values, of, node.type.items, strict=True))

    def _for(self, node: For) -> Value:
        start, stop = self.sizes.extent(node.start), self.sizes.extent(node.stop)
        carried = [self.at(x) for x in node.carried]
        fixed, fixed_of = [self.at(x) for x in node.fixed], _types_of(node.fixed)
        if isinstance(start, int) and isinstance(stop, int):
            if node.scanned or stop - start <= 1:
                return self._turns(node, range(start, stop), carried, fixed)
        count, own = len(carried), _types_of(node.carried)
        # A stack has a row to write to, though no turn may come.
        rows = self.sizes.extent(dim_max(node.stop - node.start, 1))
        last = self.sizes.extent(node.stop - 1 if node.last is not None else node.stop)
        stacked = node.body.results[count:]
        of = [param.of for param in node.body.params[1 : 1 + count]]
        stacks = [
            self.constant(0, [rows, *self.shape_of(result)], dtype_of(result)) for result in stacked
        ]
        types = [SCALAR, *(t for each in of for t in self.types_of(each))]
        types += [
            tensor_type([rows, *self.shape_of(result)], dtype_of(result)) for result in stacked
        ]

        def test(names: Sequence[str]) -> list[str]:
            return [self.compare("lt", names[0], self.counted(last), SCALAR, I64)]

        def body(names: Sequence[str]) -> list[str]:
            rest = iter(names[1:])
            turn = [_shaped(each, rest) for each in of]
            into = list(rest)
            results = self.inlined(
                node.body,
                [names[0], *turn, *fixed],
                [_COUNTER, *of, *fixed_of],
                [*of, *map(value_type, stacked)],
            )
            one = self.number(1, I64)
            following = self.op(f"stablehlo.add {names[0]}, {one}", SCALAR)
            at = names[0]
            if start != 0:
                at = self.op(f"stablehlo.subtract {at}, {self.counted(start)}", SCALAR)
            kept = [
                self._stack(stack, result, value, rows, at)
                for stack, result, value in zip(into, stacked, results[count:], strict=True)
            ]
            return [following, *(n for v in results[:count] for n in flat(v)), *kept]

        begun = [self.counted(start), *self._fitted(carried, own, of), *stacks]
        ended = iter(self.loop(begun, types, test, body))
        at = next(ended)
        out: list[Value] = [_shaped(each, ended) for each in of]
        if node.last is not None:
            given = [at, *out, *fixed]
            to = _types_of(node.last.results)
            out = self.inlined(node.last, given, [_COUNTER, *of, *fixed_of], to)[:count]
            of = to[:count]
        full = [
            self._filled(stack, result, rows, self.sizes.extent(node.stop - node.start))
            for stack, result in zip(ended, stacked, strict=True)
        ]
        assert isinstance(node.type, ResultsType)
        return self._ended(node, [*out, *full], [*of, *node.type.items[count:]])

    def counted(self, extent: Extent) -> str:
        """A bound of a loop; a number is written where it is used."""
        return self.number(extent, I64) if isinstance(extent, int) else self.sizes.scalar(extent)

    def _filled(self, stack: str, result: Node, rows: Extent, count: Extent) -> str:
        """The rows that turns have written."""
        if rows == count:
            return stack
        shape, dtype = self.shape_of(result), dtype_of(result)
        ranges = [(0, count, 1), *((0, extent, 1) for extent in shape)]
        type = tensor_type([rows, *shape], dtype)
        return self.slice(stack, type, ranges, [count, *shape], dtype)

    def _stack(self, stack: str, result: Node, value: Value, count: Extent, turn: str) -> str:
        shape, dtype = self.shape_of(result), dtype_of(result)
        assert isinstance(value, str)
        own, whole = tensor_type([1, *shape], dtype), tensor_type([count, *shape], dtype)
        row = self.reshape(value, tensor_type(shape, dtype), [1, *shape], dtype)
        zeros = [self.number(0, I64) for _ in shape]
        text = f"stablehlo.dynamic_update_slice {', '.join([stack, row, turn, *zeros])}"
        places = ", ".join([SCALAR] * (1 + len(shape)))
        return self.op(text, f"({whole}, {own}, {places}) -> {whole}")

    def _turns(
        self, node: For, turns: range, carried: list[Value], fixed: Sequence[Value]
    ) -> Value:
        """The turns written one after the other."""
        count = len(carried)
        given, fixed_of = _types_of(node.carried), _types_of(node.fixed)
        elements_of = [x.type.element for x in node.scanned if isinstance(x.type, ArrayType)]
        gathered: list[list[Value]] = [[] for _ in node.body.results[count:]]
        for i in turns:
            function = node.last if node.last and i == turns[-1] else node.body
            elements = [self.at(x)[i] for x in node.scanned]
            at = self.number(i, I64) if _uses_turn(function) else ""
            of = [_COUNTER, *given, *elements_of, *fixed_of]
            to = _types_of(function.results)
            results = self.inlined(function, [at, *carried, *elements, *fixed], of, to)
            carried, given = results[:count], to[:count]
            for items, value in zip(gathered, results[count:], strict=True):
                items.append(value)
        first = len(gathered) - node.stacked
        collected = node.body.results[count:]
        stacks = [
            self._stacked(result, values)
            for result, values in zip(collected[first:], gathered[first:], strict=True)
        ]
        arrays = [
            ArrayType(value_type(result), len(items))
            for result, items in zip(collected[:first], gathered[:first], strict=True)
        ]
        assert isinstance(node.type, ResultsType)
        of = [*given, *arrays, *node.type.items[count + first :]]
        return self._ended(node, [*carried, *map(tuple, gathered[:first]), *stacks], of)

    def _stacked(self, result: Node, values: Sequence[Value]) -> str:
        shape, dtype = self.shape_of(result), dtype_of(result)
        whole = tensor_type([len(values), *shape], dtype)
        if not values:
            return self.constant(0, [0, *shape], dtype)
        own = tensor_type([1, *shape], dtype)
        rows = [
            self.reshape(value, tensor_type(shape, dtype), [1, *shape], dtype)
            for value in values
            if isinstance(value, str)
        ]
        text = f"stablehlo.concatenate {', '.join(rows)}, dim = 0"
        return (
            rows[0]
            if len(rows) == 1
            else self.op(text, f"({', '.join([own] * len(rows))}) -> {whole}")
        )


def _uses_turn(function: Function) -> bool:
    return function.params[0] in ordered(function.results)


def _leaves(function: Function) -> list[str]:
    """A wish for the name of each argument."""
    names: list[str] = []
    for param in function.params:
        names += [path for path, _ in members(param.name, param.of)]
    return names


def _outcome(made: Sequence[str]) -> str:
    """Several results, or none, stand in parentheses."""
    return made[0] if len(made) == 1 else f"({', '.join(made)})"


def _enclosed(head: Sequence[str], body: Lines) -> Lines:
    return Lines([*head, *body.items, "}"])


def _types_of(nodes: Iterable[Node]) -> list[ValueType]:
    return [value_type(node) for node in nodes]


def _wish(path: str) -> str:
    return path.replace(".", "_")


def _shaped(of: ValueType, names: Iterator[str]) -> Value:
    """As many of the names as a value of the type is made of."""
    if isinstance(of, ArrayType):
        return tuple(_shaped(of.element, names) for _ in range(of.length))
    return next(names)


def value_type(node: Node) -> ValueType:
    if isinstance(node.type, ResultsType):
        raise InternalError("stablehlo", "several results where one is wanted")
    return node.type


def _size(value: int, dtype: DType) -> int | float:
    return wrap(value, dtype) if dtype.is_integer else float(value)


def _identity(op: str, dtype: DType) -> bool | int | float:
    """What a reduction of nothing gives."""
    match op:
        case "sum" | "prod":
            return int(op == "prod")
        case "any" | "all":
            return op == "all"
        case _ if dtype.is_float:
            return -math.inf if op == "max" else math.inf
        case _:
            return integer_range(dtype)[op == "min"]
