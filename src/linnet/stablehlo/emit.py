"""An entry as a StableHLO module (openxla.org/stablehlo/spec): a function for each that is called.

Sizes are numbers here, so a function that is called with different ones is written once for each.
The public function takes the entry's values, then every parameter and buffer, then the state, all
of them named by `linnet.path`; it returns the entry's results, then the new state. Members of an
array are arguments of their own, and turns of a loop over them are written after each other: layers
are calls of one private function.
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
)
from linnet.core.scalars import holds_all, integer_range, wrap
from linnet.diagnostics import InternalError
from linnet.dims import Dim
from linnet.emit import Names, ordered, snake_case
from linnet.inputs import find_entry, leaf_paths
from linnet.policy import Policy, allows
from linnet.stablehlo.cpu import CPU_KERNELS
from linnet.stablehlo.kernels import KERNELS, Kernel, Region
from linnet.stablehlo.text import Ids, Lines, dense, element_type, tensor_type
from linnet.types import BOOL, I64, DType, TensorType

# A value's name, or one for each element of an array of members or of several results.
Value = str | tuple["Value", ...]
Sizes = Mapping[str, int]

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
    sizes: Sizes | None = None,
    policy: Policy = "equivalent",
    device: str | None = None,
) -> str:
    """The module of one entry, its own dimensions bound by `sizes`, ended by a line end.

    It means the same on every device; for a `device` "cpu" some ops are written as XLA runs them
    fast there. PlanError where there is no such entry.
    """
    function = find_entry(program, entry)
    module = _Module(policy, {**KERNELS, **CPU_KERNELS} if device == "cpu" else KERNELS)
    main = module.main(function, dict(sizes or {}))
    lines = Lines()
    lines.add(f"module @{snake_case(program.name.replace('.', '_'))} {{")
    for text in (main, *module.texts):
        lines.block(text)
    lines.add("}")
    return str(lines)


@dataclass(slots=True)
class _Module:
    """The functions that were asked for, each for its sizes."""

    policy: Policy
    kernels: Mapping[str, Kernel]
    names: Names = field(default_factory=lambda: Names({"main"}))
    known: dict[tuple[Function, tuple[int, ...]], str] = field(default_factory=dict)
    texts: list[Lines] = field(default_factory=list)

    def called(self, function: Function, dims: Sequence[int]) -> str:
        """The name of the private function for these sizes, written now if it was not yet."""
        key = function, tuple(dims)
        if key not in self.known:
            self.known[key] = self.names.fresh(_plain(function.name))
            at = len(self.texts)
            sizes = dict(zip(function.dims, dims, strict=True))
            body = _Body(self, sizes, Ids(), Lines())
            self.texts.insert(at, body.function(self.known[key], function))
        return self.known[key]

    def main(self, function: Function, sizes: Sizes) -> Lines:
        body = _Body(self, sizes, Ids(), Lines())
        return body.function("main", function, public=True)


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
    return [type for node in function.results for _, type in members("", _value_type(node))]


def written_by(function: Function) -> list[str]:
    """The paths of the states that the function writes, in the order of its results."""
    new = function.results[len(function.value_results) :]
    return [
        path
        for name, node in zip(function.writes, new, strict=True)
        for path, _ in members(name, _value_type(node))
    ]


def _tensor(of: ValueType) -> TensorType:
    if not isinstance(of, TensorType):
        raise InternalError("stablehlo", f"{of} is no tensor")
    return of


def flat(value: Value) -> list[str]:
    """The names that a value is made of."""
    return [value] if isinstance(value, str) else [name for part in value for name in flat(part)]


class _Body:
    """The operations of one function, or of a region in it."""

    def __init__(self, module: _Module, sizes: Sizes, names: Ids, lines: Lines) -> None:
        self.module = module
        self.sizes = sizes
        self.names = names
        self.lines = lines
        self.env: dict[Node, Value] = {}

    # ------------------------------------------------ functions and regions

    def function(self, name: str, function: Function, *, public: bool = False) -> Lines:
        """The whole function."""
        told = [self.names.fresh(_wish(p)) for p in _leaves(function)]
        rest, types = iter(told), [self.type(of) for _, of in self._typed(function)]
        for param in function.params:
            self.env[param] = _shaped(param.of, rest)
        results = [self.type(type) for type in results_of(function)]
        marks = self.marks(function, public)
        arguments = [
            f"{name}: {type}{mark}" for name, type, mark in zip(told, types, marks[0], strict=True)
        ]
        outcome = ", ".join(t + m for t, m in zip(results, marks[1], strict=True))
        if len(results) != 1 or marks[1][0]:
            outcome = f"({outcome})"
        if public:  # an argument on each line
            self.lines.add(f"func.func public @{name}(")
            rows = [f"    {argument}," for argument in arguments[:-1]]
            rows += [f"    {argument}" for argument in arguments[-1:]]
            for row in rows:
                self.lines.add(row)
            self.lines.add(f") -> {outcome} {{")
        else:
            self.lines.add(f"func.func private @{name}({', '.join(arguments)}) -> {outcome} {{")
        self.lines.depth += 1
        returned = ", ".join(self.run(function))
        self.lines.add(f"return {returned} : {', '.join(results)}" if results else "return")
        self.lines.depth -= 1
        self.lines.add("}")
        return self.lines

    def marks(self, function: Function, public: bool) -> tuple[list[str], list[str]]:
        """What is said of each argument and of each result."""
        if not public:
            return [""] * len(_leaves(function)), [""] * len(results_of(function))
        told = [
            f' {{linnet.kind = "{kind}", linnet.path = "{path}"}}'
            for kind, path, _ in paths_of(function)
        ]
        written = [f' {{linnet.path = "{path}"}}' for path in written_by(function)]
        return told, [""] * (len(results_of(function)) - len(written)) + written

    def _typed(self, function: Function) -> Iterator[tuple[str, TensorType]]:
        for param in function.params:
            yield from members(param.name, param.of)

    def run(self, function: Function) -> list[str]:
        """Every operation of the function, whose params are known; the names of its results."""
        for node in ordered(function.results):
            if node not in self.env and not isinstance(node, (Literal, Size)):
                self.env[node] = self.value(node)
        return [name for node in function.results for name in flat(self.at(node))]

    def at(self, node: Node) -> Value:
        """The node's value; a number is written where it is first used as a tensor."""
        if node not in self.env:
            self.env[node] = self.value(node)
        return self.env[node]

    def inlined(self, function: Function, given: Iterable[Value]) -> list[Value]:
        """The results of a body on these values, written here."""
        inner = _Body(self.module, self.sizes, self.names, self.lines)
        inner.env.update(zip(function.params, given, strict=True))
        inner.run(function)
        return [inner.at(node) for node in function.results]

    def region(self, function: Function, given: Iterable[Value]) -> None:
        """The operations of a body one step further in, and its return."""
        self.lines.depth += 1
        results = [name for value in self.inlined(function, given) for name in flat(value)]
        types = [t for node in function.results for t in self.types(node)]
        self.lines.add(f"stablehlo.return {', '.join(results)} : {', '.join(types)}")
        self.lines.depth -= 1

    @property
    def policy(self) -> Policy:
        return self.module.policy

    @property
    def precision(self) -> str:
        """How exact products are, of both sides."""
        return _listed(["DEFAULT" if allows(self.policy, "fast") else "HIGHEST"] * 2)

    # ------------------------------------------------ text

    def type(self, of: TensorType) -> str:
        return tensor_type(self.shape(of.shape), of.dtype)  # type: ignore[arg-type]

    def types(self, node: Node) -> list[str]:
        """The types of all that a node's value is made of."""
        if isinstance(node.type, ResultsType):
            return [t for item in node.type.items for t in self._types(item)]
        return self._types(node.type)

    def _types(self, of: ValueType) -> list[str]:
        return [self.type(each) for _, each in members("", of)]

    def shape(self, shape: Sequence[object]) -> list[int]:
        return [axis.evaluate(self.sizes) for axis in shape if isinstance(axis, Dim)]

    def shape_of(self, node: Node) -> list[int]:
        return self.shape(shape_of(node))

    def op(self, text: str, type: str, wish: str = "") -> str:
        """The operation's one result, by a name of its own."""
        name = self.names.fresh(wish)
        self.lines.add(f"{name} = {text} : {type}")
        return name

    def raw(self, head: str, lines: Sequence[str], tail: str, wish: str = "") -> str:
        """An operation with a region of its own."""
        name = self.names.fresh(wish)
        self.lines.add(f"{name} = {head}")
        for line in lines:
            self.lines.add(f"  {line}")
        self.lines.add(tail)
        return name

    def constant(self, value: bool | int | float, shape: Sequence[int], dtype: DType) -> str:
        """A tensor of one value everywhere."""
        return self.op(
            f"stablehlo.constant dense<{dense(value, dtype)}>", tensor_type(shape, dtype), "c"
        )

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
                return self.constant(value, (), dtype)
            case Size(dim, dtype):
                return self.constant(_size(dim.evaluate(self.sizes), dtype), (), dtype)
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
                return self.compare(
                    op, self.name(a), self.name(b), self.types(a)[0], dtype_of(a), node.hint
                )
            case Select(c, a, b):
                names = f"{self.name(c)}, {self.name(a)}, {self.name(b)}"
                types = f"{self.types(c)[0]}, {self.types(a)[0]}"
                return self.op(f"stablehlo.select {names}", types, node.hint)
            case Cast(x, dtype):
                return self._cast(node, x, dtype)
            case Reshape(x):
                return self.moved(f"stablehlo.reshape {self.name(x)}", x, node)
            case Permute(x, order):
                text = f"stablehlo.transpose {self.name(x)}, dims = {_listed(order)}"
                return self.moved(text, x, node)
            case Expand(x, _, axes):
                number = self.number(x)
                if number is not None:
                    return self.constant(number, self.shape_of(node), dtype_of(x))
                text = f"stablehlo.broadcast_in_dim {self.name(x)}, dims = {_listed(axes)}"
                return self.moved(text, x, node)
            case Slice(x, ranges):
                parts = [
                    f"{a.evaluate(self.sizes)}:{b.evaluate(self.sizes)}"
                    + (f":{s}" if s > 1 else "")
                    for a, b, s in ranges
                ]
                return self.moved(f"stablehlo.slice {self.name(x)} {_listed(parts)}", x, node)
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
                return self._if(node, c, then, other, [self.at(x) for x in inputs])
            case While(test, body, inputs, count):
                return self._while(test, body, [self.at(x) for x in inputs], count)
            case For():
                return self._for(node)
            case Result(of, index) | Element(of, index):
                return self.at(of)[index]
            case Update(x, index, value):
                old = self.at(x)
                return (*old[:index], self.at(value), *old[index + 1 :])
            case _:
                raise InternalError("stablehlo", f"unknown node {type(node).__name__}")

    def _iota(self, node: Iota, dtype: DType) -> str:
        shape = self.shape_of(node)
        if dtype.is_float and dtype.bits < 64:  # counted exactly, rounded once
            counted = self.op("stablehlo.iota dim = 0", tensor_type(shape, I64))
            return self.convert(
                counted, tensor_type(shape, I64), tensor_type(shape, dtype), node.hint
            )
        return self.op("stablehlo.iota dim = 0", tensor_type(shape, dtype), node.hint)

    def _binary(self, node: Binary) -> str:
        a, b = self.name(node.a), self.name(node.b)
        dtype, shape, type = dtype_of(node), self.shape_of(node), self.types(node)[0]
        op = node.op
        if op == "shr":
            op_name = "shift_right_arithmetic" if dtype.kind == "int" else "shift_right_logical"
            return self.op(f"stablehlo.{op_name} {a}, {b}", type, node.hint)
        if op in ("div", "rem") and dtype.is_integer and not self.number(node.b):
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

    def number(self, node: Node) -> bool | int | float | None:
        """What it is everywhere, if that is known."""
        match node:
            case Literal(value):
                return value
            case Size(dim, dtype):
                return _size(dim.evaluate(self.sizes), dtype)
            case Expand(x):
                return self.number(x)
            case _:
                return None

    def compare(self, op: str, a: str, b: str, type: str, dtype: DType, wish: str = "") -> str:
        """Elementwise, of two tensors of this type."""
        kind = "FLOAT" if dtype.is_float else "SIGNED" if dtype.kind == "int" else "UNSIGNED"
        to = type[: type.rindex(element_type(dtype))] + "i1>"
        return self.op(
            f"stablehlo.compare {op.upper()}, {a}, {b}, {kind}", f"({type}, {type}) -> {to}", wish
        )

    def convert(self, x: str, type: str, to: str, wish: str = "") -> str:
        """The tensor in another dtype."""
        return x if type == to else self.op(f"stablehlo.convert {x}", f"({type}) -> {to}", wish)

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
            own = self.convert(self.name(index), self.types(index)[0], tensor_type(lead, dtype))
            to = tensor_type([*lead, 1], dtype)
            parts.append(
                self.op(f"stablehlo.reshape {own}", f"({tensor_type(lead, dtype)}) -> {to}")
            )
        places, type = parts[0], tensor_type([*lead, len(parts)], dtype)
        if len(parts) > 1:
            types = ", ".join([tensor_type([*lead, 1], dtype)] * len(parts))
            text = f"stablehlo.concatenate {', '.join(parts)}, dim = {len(lead)}"
            places = self.op(text, f"({types}) -> {type}")
        sizes = [1 if axis in indexed else extent for axis, extent in enumerate(shape)]
        offsets = _listed(range(len(lead), len(lead) + len(kept)))
        numbers = (
            f"offset_dims = {offsets}, collapsed_slice_dims = {_listed(indexed)}, "
            f"start_index_map = {_listed(indexed)}, index_vector_dim = {len(lead)}"
        )
        return self.op(
            f'"stablehlo.gather"({self.name(node.x)}, {places}) <{{dimension_numbers = '
            f"#stablehlo.gather<{numbers}>, indices_are_sorted = false, "
            f"slice_sizes = {_array(sizes)}}}>",
            f"({self.types(node.x)[0]}, {type}) -> {self.types(node)[0]}",
            node.hint,
        )

    def _reduce(self, node: Reduce) -> str:
        dtype = dtype_of(node)
        first = self.constant(_identity(node.op, dtype), (), dtype)
        text = (
            f"stablehlo.reduce({self.name(node.x)} init: {first}) applies "
            f"stablehlo.{_REDUCE[node.op]} across dimensions = {_listed(node.axes)}"
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
            f"batching_dims = {_listed(batch[0])} x {_listed(batch[1])}, " if node.batch else ""
        )
        text = (
            f"stablehlo.dot_general {', '.join(names)}, {batching}contracting_dims = "
            f"{_listed(contract[0])} x {_listed(contract[1])}, precision = {self.precision}"
        )
        return self.op(text, f"({', '.join(types)}) -> {self.types(node)[0]}", node.hint)

    # ------------------------------------------------ calls and control

    def _call(self, node: Call) -> Value:
        kernel = self.module.kernels.get(str(node.function.op)) if node.function.op else None
        if kernel is not None and allows(self.policy, kernel.policy) and kernel.accepts(self, node):
            return (kernel.write(self, node),)
        dims = [dim.evaluate(self.sizes) for dim in node.dims]
        name = self.module.called(node.function, dims)
        given = [name for x in node.inputs for name in flat(self.at(x))]
        taken = ", ".join(t for x in node.inputs for t in self.types(x))
        made = self.types(node)
        outcome = made[0] if len(made) == 1 else f"({', '.join(made)})"
        wish = _plain(node.function.name)
        results = self._results(
            f"func.call @{name}({', '.join(given)}) : ({taken}) -> {outcome}", len(made), wish
        )
        return self._grouped(node, results)

    def _results(self, text: str, count: int, wish: str) -> list[str]:
        """The names of what the operation gives."""
        name = self.names.fresh(wish)
        self.lines.add(f"{name}{f':{count}' if count != 1 else ''} = {text}")
        return [name] if count == 1 else [f"{name}#{i}" for i in range(count)]

    def _grouped(self, node: Node, names: Iterable[str]) -> tuple[Value, ...]:
        assert isinstance(node.type, ResultsType)
        rest = iter(names)
        return tuple(_shaped(item, rest) for item in node.type.items)

    def _if(
        self, node: If, c: Node, then: Function, other: Function, given: Sequence[Value]
    ) -> Value:
        made = self.types(node)
        outcome = made[0] if len(made) == 1 else f"({', '.join(made)})"
        results = self._results(f'"stablehlo.if"({self.name(c)}) ({{', len(made), "chosen")
        self.region(then, given)
        self.lines.add("}, {")
        self.region(other, given)
        self.lines.add(f"}}) : (tensor<i1>) -> {outcome}")
        return self._grouped(node, results)

    def loop(
        self, carried: Sequence[str], types: Sequence[str], test: Region, body: Region
    ) -> list[str]:
        """`stablehlo.while` over the carried values."""
        inside = [self.names.fresh("turn") for _ in carried]
        bound = ", ".join(f"{a} = {b}" for a, b in zip(inside, carried, strict=True))
        text = f"stablehlo.while({bound}) : {', '.join(types)}"
        results = self._results(text, len(carried), "looped")
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

    def _while(self, test: Function, body: Function, given: Sequence[Value], count: int) -> Value:
        carried, fixed = given[:count], given[count:]
        of = [param.of for param in body.params[:count]]
        types = [t for each in of for t in self._types(each)]

        def inside(function: Function) -> Region:
            def run(names: Sequence[str]) -> list[str]:
                rest = iter(names)
                own = [_shaped(each, rest) for each in of]
                results = self.inlined(function, [*own, *fixed])
                return [name for value in results for name in flat(value)]

            return run

        names = [name for value in carried for name in flat(value)]
        rest = iter(self.loop(names, types, inside(test), inside(body)))
        return tuple(_shaped(each, rest) for each in of)

    def _for(self, node: For) -> Value:
        start, stop = node.start.evaluate(self.sizes), node.stop.evaluate(self.sizes)
        carried = [self.at(x) for x in node.carried]
        fixed = [self.at(x) for x in node.fixed]
        if node.scanned or stop - start <= 1:
            return self._turns(node, range(start, stop), carried, fixed)
        last = stop - (node.last is not None)
        stacked = node.body.results[len(carried) :]
        of = [_value_type(result) for result in (*node.body.results[: len(carried)], *stacked)]
        stacks = [
            self.constant(0, [stop - start, *self.shape_of(result)], dtype_of(result))
            for result in stacked
        ]
        types = ["tensor<i64>", *(t for each in of[: len(carried)] for t in self._types(each))]
        types += [
            tensor_type([stop - start, *self.shape_of(result)], dtype_of(result))
            for result in stacked
        ]

        def test(names: Sequence[str]) -> list[str]:
            end = self.constant(last, (), I64)
            return [self.compare("lt", names[0], end, "tensor<i64>", I64)]

        def body(names: Sequence[str]) -> list[str]:
            rest = iter(names[1:])
            own = [_shaped(each, rest) for each in of[: len(carried)]]
            into = list(rest)
            results = self.inlined(node.body, [names[0], *own, *fixed])
            one = self.constant(1, (), I64)
            following = self.op(f"stablehlo.add {names[0]}, {one}", "tensor<i64>")
            turn = names[0]
            if start:
                first = self.constant(start, (), I64)
                turn = self.op(f"stablehlo.subtract {names[0]}, {first}", "tensor<i64>")
            kept = [
                self._stack(stack, result, value, stop - start, turn)
                for stack, result, value in zip(into, stacked, results[len(carried) :], strict=True)
            ]
            return [following, *(n for v in results[: len(carried)] for n in flat(v)), *kept]

        begun = [self.constant(start, (), I64), *(n for v in carried for n in flat(v)), *stacks]
        ended = iter(self.loop(begun, types, test, body))
        at = next(ended)
        out: list[Value] = [_shaped(each, ended) for each in of[: len(carried)]]
        if node.last is not None:
            return tuple(self.inlined(node.last, [at, *out, *fixed])[: len(carried)])
        return (*out, *ended)

    def _stack(self, stack: str, result: Node, value: Value, count: int, turn: str) -> str:
        shape, dtype = self.shape_of(result), dtype_of(result)
        assert isinstance(value, str)
        own, whole = tensor_type([1, *shape], dtype), tensor_type([count, *shape], dtype)
        row = self.op(f"stablehlo.reshape {value}", f"({tensor_type(shape, dtype)}) -> {own}")
        zeros = [self.constant(0, (), I64) for _ in shape]
        text = f"stablehlo.dynamic_update_slice {', '.join([stack, row, turn, *zeros])}"
        places = ", ".join(["tensor<i64>"] * (1 + len(shape)))
        return self.op(text, f"({whole}, {own}, {places}) -> {whole}")

    def _turns(
        self, node: For, turns: range, carried: list[Value], fixed: Sequence[Value]
    ) -> Value:
        """The turns written one after the other."""
        count = len(carried)
        gathered: list[list[Value]] = [[] for _ in node.body.results[count:]]
        for i in turns:
            function = node.last if node.last and i == turns[-1] else node.body
            elements = [self.at(x)[i] for x in node.scanned]
            at = self.constant(i, (), I64) if _uses_turn(function) else ""
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
        shape, dtype = self.shape_of(result), dtype_of(result)
        whole = tensor_type([len(values), *shape], dtype)
        if not values:
            return self.constant(0, [0, *shape], dtype)
        own = tensor_type([1, *shape], dtype)
        rows = [
            self.op(f"stablehlo.reshape {value}", f"({tensor_type(shape, dtype)}) -> {own}")
            for value in values
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


def _wish(path: str) -> str:
    return path.replace(".", "_")


def _shaped(of: ValueType, names: Iterator[str]) -> Value:
    """As many of the names as a value of the type is made of."""
    if isinstance(of, ArrayType):
        return tuple(_shaped(of.element, names) for _ in range(of.length))
    return next(names)


def _value_type(node: Node) -> ValueType:
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


def _listed(items: Iterable[object]) -> str:
    return f"[{', '.join(map(str, items))}]"


def _array(items: Sequence[int]) -> str:
    return f"array<i64: {', '.join(map(str, items))}>" if items else "array<i64>"
