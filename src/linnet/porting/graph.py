"""A graph of typed tensor operations, as a reader of another framework builds it.

Nodes are interned: equal operations on equal inputs are one node. Shapes are `Dim`s, dtypes the
language's names. What an operation means is what the language says of the text that `write` makes
of it; a body of a loop or a function is closed, and knows what is outside by `arg` nodes only.

| op | inputs | data |
| --- | --- | --- |
| input, arg, param | | name; number; path |
| literal | | the number, of rank 0 |
| size, iota | | a Dim, as a number; the extent |
| those of UNARY, BINARY, COMPARE; select; cast | right-aligned, broadcast | |
| helper | right-aligned, broadcast | the function of `helpers` |
| reshape, expand | x | to the node's own shape, `expand` right-aligned |
| row | x, an integer | x at a position of its first axis |
| permute, slice, concat, reduce | x, or parts | order; ranges; axis; kind and axes |
| dot | a, b | for each, the letter of each axis, and the letters of the result |
| define | tensors | a template, and the extents of its indices: see `define` |
| call | arguments | what is called, generic arguments |
| for, while, if | as `loop`, `repeat` and `branch` say | bodies |
| method, walk | arguments | a child block's path, the body that it does |
| item | a node of several results | which one |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from linnet.diagnostics import InternalError
from linnet.dims import Dim
from linnet.weights.arrays import DTYPES

Shape = tuple[Dim, ...]
UNARY = frozenset(["neg", "not", "abs", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh"])
BINARY = frozenset(
    ["add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr"]
)
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
ELEMENTWISE = UNARY | BINARY | COMPARE.keys() | {"select", "cast", "helper"}
LEAVES = frozenset({"input", "arg", "param", "literal", "size"})
FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
WIDTHS = {"bool": 1, **{f"{kind}{bits}": bits for kind in "iu" for bits in (8, 16, 32, 64)}}


@dataclass(frozen=True, slots=True)
class Body:
    """A closed computation: its `arg` nodes are what it is given, in order of their numbers."""

    results: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operation; `name` is what its result may be called."""

    op: str
    inputs: tuple[Node, ...] = field(repr=False)
    data: tuple[Any, ...]
    shape: Shape
    dtype: str
    name: str = ""

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def bodies(self) -> Iterator[Body]:
        return (item for item in self.data if isinstance(item, Body))


# What a value is called that nobody named.
_WORDS = {
    "dot": "product",
    "sum": "total",
    "prod": "total_product",
    "max": "peak",
    "min": "least",
    "any": "some_true",
    "all": "all_true",
    "exp": "raised",
    "log": "logarithm",
    "sqrt": "root",
    "abs": "size",
    "cos": "cosines",
    "sin": "sines",
    "tanh": "squashed",
    "rsqrt": "inverse",
    "div": "share",
    "mul": "scaled",
    "add": "shifted",
    "sub": "centred",
    "select": "chosen",
    "permute": "turned",
    "concat": "joined",
    "slice": "part",
    "reshape": "shaped",
    "expand": "spread",
    "cast": "rounded",
    "iota": "positions",
    **dict.fromkeys(COMPARE, "mask"),
    **dict.fromkeys(("and", "or", "not"), "mask"),
}


_CALLED = {
    **dict.fromkeys(("relu", "gelu", "gelu_erf", "silu"), "activated"),
    **dict.fromkeys(("conv1d", "conv2d", "conv2d_rect"), "convolved"),
    "sigmoid": "gate",
    "softmax": "weights",
    "log_softmax": "log_weights",
    "embedding": "found",
}


def _made_by(block: str) -> str:
    """What a value is called that a block's parameters made."""
    name = re.sub(r"_\d+$", "", block)
    return "product" if name in ("*", "out", "") else f"{name}_out"


def called(node: Node, owner: int = 0) -> str:
    """What the node's result may be called, in a block whose path has so many steps."""
    if node.name:
        return node.name
    match node.op:
        case "call":
            name = str(node.data[0]).rpartition("::")[2]
            return _CALLED.get(name, f"{name}_of")
        case "row":
            [x, _] = node.inputs
            return str(x.data[0][-1]) if x.op == "param" else x.name or "row"
        case "helper":
            return f"{node.data[0]}_of"
        case "reduce":
            return _WORDS[node.data[0]]
        case "dot":
            for each in reversed(node.inputs):
                if each.op == "param":
                    *blocks, own = each.data[0][owner:]
                    plain = own in ("weight", "embedding", "w")
                    return _made_by((["", *blocks])[-1] if plain else own)
        case "method":
            return _made_by(node.data[0][-1])
        case "input" | "arg":
            return "x"
    return _WORDS.get(node.op, "y")


def constant(node: Node) -> float | int | bool | None:
    """The number that the node is everywhere, where it is a literal."""
    while node.op in ("expand", "reshape"):
        [node] = node.inputs
    return node.data[0] if node.op == "literal" else None


def known_size(node: Node) -> Dim | None:
    """The integer that the node is everywhere, where that is known as a size."""
    while node.op in ("expand", "reshape"):
        [node] = node.inputs
    if node.op == "size":
        return node.data[0] if node.dtype[0] in "iu" else None
    if node.op == "literal" and node.dtype[0] in "iu":
        return Dim.of(int(node.data[0]))
    return None


def topological(results: Iterable[Node]) -> list[Node]:
    """Every node that the results need, each after its inputs; bodies are not entered."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(node, False) for node in reversed(list(results))]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((each, False) for each in reversed(node.inputs) if each not in seen)
    return order


def within(results: Iterable[Node]) -> Iterator[Node]:
    """Every node that the results need, those in bodies too."""
    for node in topological(results):
        yield node
        for body in node.bodies:
            yield from within(body.results)


class Graph:
    """Makes nodes, one of a kind; the shape of what it makes follows from the inputs."""

    def __init__(self) -> None:
        self.known: dict[Any, Node] = {}

    def node(
        self,
        op: str,
        inputs: Iterable[Node] = (),
        data: Sequence[Any] = (),
        *,
        shape: Sequence[Dim] = (),
        dtype: str = "",
        name: str = "",
    ) -> Node:
        """The node of these parts."""
        inputs, data, shape = tuple(inputs), tuple(data), tuple(shape)
        key = op, inputs, tuple(exact_key(item) for item in data), shape, dtype
        if key not in self.known:
            self.known[key] = Node(op, inputs, data, shape, dtype, name)
        return self.known[key]

    def named(self, node: Node, name: str) -> Node:
        """The node called `name`, unless it is called something already."""
        if not name or node.name or node.op in LEAVES:
            return node
        key = node.op, node.inputs, tuple(exact_key(i) for i in node.data), node.shape, node.dtype
        object.__setattr__(self.known.get(key, node), "name", name)
        return node

    # ------------------------------------------------ numbers

    def literal(self, value: float | int | bool, dtype: str, shape: Sequence[Dim] = ()) -> Node:
        """A number everywhere."""
        if dtype == "bool":
            value = bool(value)
        elif dtype in FLOATS:
            value = float(value)
        else:
            value = int(value)
        return self.expand(self.node("literal", data=(value,), dtype=dtype), shape)

    def iota(self, shape: Sequence[Dim], axis: int, dtype: str) -> Node:
        """Positions along one axis."""
        made = self.node("iota", data=(shape[axis],), shape=(shape[axis],), dtype=dtype)
        return self.broadcast(made, shape, (axis,))

    # ------------------------------------------------ elementwise

    def elementwise(
        self,
        op: str,
        inputs: Sequence[Node],
        dtype: str | None = None,
        data: Sequence[Any] = (),
    ) -> Node:
        """An operation on elements; what is broadcast to fit is given as it was before."""
        if op == "sub" and inputs[0].dtype in FLOATS and _is(inputs[1], 0):
            return self.fitted(inputs[0], inputs)
        if (op in ("mul", "div") and _is(inputs[1], 1)) or (
            op == "add" and inputs[0].dtype not in FLOATS and _is(inputs[1], 0)
        ):
            return self.fitted(inputs[0], inputs)
        if (op == "mul" and _is(inputs[0], 1)) or (
            op == "add" and inputs[0].dtype not in FLOATS and _is(inputs[0], 0)
        ):
            return self.fitted(inputs[1], inputs)
        if op == "select" and inputs[1].dtype == "bool":
            test, yes, no = inputs
            if _is_true(yes) and constant(no) is False:
                return self.fitted(test, inputs)
            if constant(no) is False:
                return self.elementwise("and", [test, yes])
            if _is_true(yes):
                return self.elementwise("or", [test, no])
        if op == "and":
            for one, other in (inputs, inputs[::-1]):
                if _is_true(one):
                    return self.fitted(other, inputs)
        if op == "select" and inputs[0].op == "literal":
            return self.fitted(inputs[1] if inputs[0].data[0] else inputs[2], inputs)
        if op == "ne" and inputs[0].op == "cast" and _is(inputs[1], 0):
            if inputs[0].inputs[0].dtype == "bool":
                return self.fitted(inputs[0].inputs[0], inputs)
        if op in ("add", "sub", "mul") and (size := self._sized(op, inputs)) is not None:
            return size
        if op == "select" and inputs[1] is inputs[2]:
            return self.fitted(inputs[1], inputs)
        if op == "max" and inputs[0].dtype in FLOATS:
            for one, other in (inputs, inputs[::-1]):
                if constant(one) == -math.inf:
                    return self.fitted(other, inputs)
        shape = broadcast_shape([node.shape for node in inputs])
        if shape and shape[0] == ONE and all(_may_lose_ones(node, len(shape)) for node in inputs):
            told = shape[next((i for i, n in enumerate(shape) if n != ONE), len(shape)) :]
            narrow = [self.reshape(n, n.shape[max(0, n.rank - len(told)) :]) for n in inputs]
            return self.reshape(self.elementwise(op, narrow, dtype, data), shape)
        given = list(inputs)
        if op == "helper":  # a function, whose arguments are of one shape
            given = [self.expand(node, shape) for node in given]
        for at, node in enumerate(given if op != "helper" else ()):
            while node.op == "expand" or (node.op == "reshape" and _leads_with_ones(node)):
                node = node.inputs[0]
                narrow = [*given[:at], node, *given[at + 1 :]]
                if broadcast_shape([each.shape for each in narrow]) != shape:
                    break
                given = narrow
        if dtype is None:
            dtype = "bool" if op in COMPARE else given[-1].dtype
        if op == "cast":
            [x] = given
            if x.dtype == dtype:
                return self.fitted(x, inputs)
            if x.op == "size":
                return self.node("size", (), x.data, dtype=dtype)
            if x.op == "literal" and "bool" not in (dtype, x.dtype):
                if dtype in FLOATS or float(x.data[0]).is_integer():
                    return self.literal(x.data[0], dtype, shape)
        numbers = [constant(node) for node in given]
        if shape and None not in numbers:
            scalars = [self.node("literal", (), [n], dtype=x.dtype) for n, x in zip(numbers, given)]
            return self.expand(self.elementwise(op, scalars, dtype, data), shape)
        if given and None not in numbers:
            number = _folded(op, [DTYPES[x.dtype].type(n) for n, x in zip(numbers, given)])
            if number is not None:
                return self.literal(number.item(), dtype)
        return self.node(op, given, data, shape=shape, dtype=dtype)

    def _sized(self, op: str, inputs: Sequence[Node]) -> Node | None:
        """Arithmetic of a size and a number, or of two sizes, as a size."""
        a, b = (known_size(node) if node.rank == 0 else None for node in inputs)
        if a is None or b is None or all(node.op == "literal" for node in inputs):
            return None
        made = {"add": a + b, "sub": a - b, "mul": a * b}[op]
        return self.node("size", (), [made], dtype=inputs[0].dtype)

    def fitted(self, x: Node, inputs: Sequence[Node]) -> Node:
        """x at the shape that all of the inputs have together."""
        return self.expand(x, broadcast_shape([node.shape for node in inputs]))

    def cast(self, x: Node, dtype: str) -> Node:
        return self.elementwise("cast", [x], dtype)

    def helper(self, name: str, *inputs: Node, dtype: str | None = None) -> Node:
        """A function of `helpers` on elements."""
        return self.elementwise("helper", inputs, dtype or inputs[0].dtype, (name,))

    def square(self, x: Node) -> Node:
        return self.elementwise("mul", [x, x])

    # ------------------------------------------------ moves

    def reshape(self, x: Node, shape: Sequence[Dim]) -> Node:
        """The elements of x in row-major order."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        if (number := constant(x)) is not None:
            return self.literal(number, x.dtype, shape)
        if x.op == "reshape":
            return self.reshape(x.inputs[0], shape)
        if x.op == "expand" and (moved := _spread(x, shape)) is not None:
            return self.expand(self.reshape(x.inputs[0], moved), shape)
        if not _splits_or_merges(x.shape, shape):
            flat = self.node("reshape", [x], shape=(product(x.shape),), dtype=x.dtype)
            return self.node("reshape", [flat], shape=shape, dtype=x.dtype)
        return self.node("reshape", [x], shape=shape, dtype=x.dtype)

    def expand(self, x: Node, shape: Sequence[Dim]) -> Node:
        """x repeated along the axes of size 1 and those in front that it lacks."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        if x.op == "expand":
            return self.expand(x.inputs[0], shape)
        ones = [axis for axis in x.shape if axis != ONE]
        if x.op != "literal" and [axis for axis in shape if axis != ONE] == ones:
            return self.reshape(x, shape)
        return self.node("expand", [x], shape=shape, dtype=x.dtype)

    def broadcast(self, x: Node, shape: Sequence[Dim], axes: Sequence[int]) -> Node:
        """x with its axis `i` at `axes[i]` of the shape, repeated along all others."""
        if list(axes) != sorted(axes):
            order = sorted(range(len(axes)), key=lambda i: axes[i])
            x, axes = self.permute(x, order), sorted(axes)
        first = min(axes, default=len(shape))
        wide = [ONE] * (len(shape) - first)
        for at, axis in enumerate(axes):
            wide[axis - first] = x.shape[at]
        return self.expand(self.reshape(x, wide), shape)

    def permute(self, x: Node, order: Sequence[int]) -> Node:
        """x with its axis `order[i]` at place i."""
        if list(order) == list(range(x.rank)):
            return x
        if x.op == "permute":
            return self.permute(x.inputs[0], [x.data[0][i] for i in order])
        shape = [x.shape[i] for i in order]
        if constant(x) is not None:
            return self.reshape(x, shape)
        if x.op == "dot":
            of_a, of_b, result = x.data
            a, b = x.inputs
            return self.dot(a, b, of_a, of_b, "".join(result[i] for i in order))
        return self.node("permute", [x], [tuple(order)], shape=shape, dtype=x.dtype)

    def slice(self, x: Node, ranges: Sequence[tuple[Dim, Dim, int]]) -> Node:
        """From each axis the positions of `range(start, stop, step)`."""
        if all(
            a == ZERO and b == n and s == 1 for (a, b, s), n in zip(ranges, x.shape, strict=True)
        ):
            return x
        if x.op == "concat" and (part := self._one_part(x, ranges)) is not None:
            return part
        shape = [(b - a + (s - 1)) // s if s > 1 else b - a for a, b, s in ranges]
        return self.node("slice", [x], [tuple(ranges)], shape=shape, dtype=x.dtype)

    def _one_part(self, x: Node, ranges: Sequence[tuple[Dim, Dim, int]]) -> Node | None:
        """What is cut out of parts that were joined, where it lies in one of them."""
        [axis] = x.data
        start, stop, step = ranges[axis]
        at = ZERO
        for part in x.inputs:
            end = at + part.shape[axis]
            if (start, stop) == (at, end):
                inner = [*ranges[:axis], (ZERO, part.shape[axis], step), *ranges[axis + 1 :]]
                return self.slice(part, inner)
            at = end
        return None

    def part(self, x: Node, axis: int, start: Dim | int, stop: Dim | int) -> Node:
        """The positions from start to stop of one axis."""
        ranges = [(ZERO, size, 1) for size in x.shape]
        ranges[axis] = Dim.of(start), Dim.of(stop), 1
        return self.slice(x, ranges)

    def row(self, x: Node, at: Node) -> Node:
        """x at a position of its first axis, the nearest where that is outside."""
        return self.node("row", [x, at], shape=x.shape[1:], dtype=x.dtype)

    def concat(self, parts: Sequence[Node], axis: int) -> Node:
        """The parts one after another along an axis."""
        parts = [part for part in parts if part.shape[axis] != ZERO] or list(parts[:1])
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[axis] = sum((part.shape[axis] for part in parts), ZERO)
        return self.node("concat", parts, [axis], shape=shape, dtype=parts[0].dtype)

    def pad(self, x: Node, value: Node, edges: Sequence[tuple[int, int, int]]) -> Node:
        """x with `low` of the value before, `high` after and `between` amid positions of each axis.

        Negative edges cut.
        """
        for axis, (low, high, between) in enumerate(edges):
            if between:
                size, rest = x.shape[axis], x.shape[axis + 1 :]
                head = x.shape[:axis]
                apart = self.reshape(x, [*head, size, ONE, *rest])
                gap = self.expand(value, [*head, size, Dim.of(between), *rest])
                spread = self.concat([apart, gap], axis + 1)
                whole = self.reshape(spread, [*head, size * (between + 1), *rest])
                x = self.part(whole, axis, 0, size * (between + 1) - between)
            x = self.part(x, axis, max(-low, 0), x.shape[axis] - max(-high, 0))
            shape = list(x.shape)
            parts = [x]
            if low > 0:
                shape[axis] = Dim.of(low)
                parts.insert(0, self.expand(value, shape))
            if high > 0:
                shape[axis] = Dim.of(high)
                parts.append(self.expand(value, shape))
            x = self.concat(parts, axis)
        return x

    # ------------------------------------------------ sums

    def reduce(self, kind: str, x: Node, axes: Sequence[int]) -> Node:
        """`sum`, `prod`, `max`, `min`, `any` or `all` over the axes, which go."""
        axes = tuple(sorted(axes))
        ones = [axis for axis in axes if x.shape[axis] == ONE]
        if ones:  # there is nothing to add up
            left = [i for i in range(x.rank) if i not in ones]
            plain = self.reshape(x, [x.shape[i] for i in left])
            axes = tuple(left.index(i) for i in axes if i not in ones)
            return self.reduce(kind, plain, axes)
        if not axes:
            return x
        shape = [size for axis, size in enumerate(x.shape) if axis not in axes]
        if (number := constant(x)) is not None and kind != "prod":
            count = product(x.shape[axis] for axis in axes)
            if kind != "sum":
                return self.literal(number, x.dtype, shape)
            if count.constant is not None and x.dtype != "bool":
                return self.literal(number * count.constant, x.dtype, shape)
            times = self.node("size", (), [count], dtype=x.dtype)
            value = self.node("literal", (), [number], dtype=x.dtype)
            return self.expand(self.elementwise("mul", [value, times]), shape)
        return self.node("reduce", [x], [kind, axes], shape=shape, dtype=x.dtype)

    def dot(self, a: Node, b: Node, of_a: str, of_b: str, result: str) -> Node:
        """The sum of the products over the letters that are not in the result."""
        sizes = dict(zip(of_a + of_b, a.shape + b.shape, strict=True))
        shape = [sizes[letter] for letter in result]
        return self.node("dot", [a, b], [of_a, of_b, result], shape=shape, dtype=a.dtype)

    def define(
        self,
        template: str,
        inputs: Sequence[Node],
        outputs: Sequence[Dim],
        reduced: Sequence[Dim] = (),
        *,
        dtype: str,
        name: str = "",
    ) -> Node:
        """A tensor by its elements, in the language's index notation.

        `$0, $1, ...` are the indices, of the result first and then those reduced over;
        `@2[...]` is an element of the third input, and `#0` the extent of the first index. Inputs
        that the template does not read are left out.
        """
        read = sorted({int(number) for number in re.findall(r"@(\d+)", template)})
        template = re.sub(r"@(\d+)", lambda mark: f"@{read.index(int(mark[1]))}", template)
        inputs = [inputs[number] for number in read]
        data = [template, tuple(outputs), tuple(reduced)]
        return self.node("define", inputs, data, shape=outputs, dtype=dtype, name=name)

    # ------------------------------------------------ calls and control

    def call(
        self,
        function: str,
        inputs: Sequence[Node],
        *,
        shape: Sequence[Dim],
        dtype: str,
        generics: Sequence[str] = (),
        form: Sequence[str] = (),
        name: str = "",
    ) -> Node:
        """An item of the standard library, `std.nn.softmax::softmax`, or of `helpers`, `::erf`.

        `form` says how each argument is given where that is not plain: `some({})`, `eps = {}`.
        """
        data = (function, tuple(generics), tuple(form))
        return self.node("call", inputs, data, shape=shape, dtype=dtype, name=name)

    def arg(self, number: int, like: Node, name: str = "") -> Node:
        """What a body is given."""
        return self.node("arg", (), [number], shape=like.shape, dtype=like.dtype, name=name)

    def items(self, node: Node, like: Sequence[Node]) -> list[Node]:
        """The results of a node that has several, typed as those of its body."""
        return [
            self.node("item", [node], [at], shape=each.shape, dtype=each.dtype)
            for at, each in enumerate(like)
        ]

    def loop(
        self,
        constants: Sequence[Node],
        carried: Sequence[Node],
        count: Dim,
        body: Callable[[list[Node], Node, list[Node]], tuple[list[Node], list[Node]]],
    ) -> tuple[list[Node], list[Node]]:
        """`for`: the body gives the next of what is carried, and what is stacked.

        It gets the constants, the turn's number (i64) and what is carried.
        """
        given = [self.arg(i, node, node.name) for i, node in enumerate(constants)]
        turn = self.node("arg", (), [len(given)], dtype="i64", name="i")
        held = [self.arg(len(given) + 1 + i, node, node.name) for i, node in enumerate(carried)]
        new, stacked = body(given, turn, held)
        constants, [whole] = self._read(constants, [Body((*new, *stacked))])
        made = self.node("for", [*constants, *carried], [whole, count, len(carried)])
        shapes = [node.shape for node in new] + [(count, *node.shape) for node in stacked]
        out = [
            self.node("item", [made], [at], shape=shape, dtype=node.dtype, name=node.name)
            for at, (shape, node) in enumerate(zip(shapes, whole.results, strict=True))
        ]
        return out[: len(new)], out[len(new) :]

    def repeat(
        self, constants: Sequence[Node], carried: Sequence[Node], test: Body, body: Body
    ) -> list[Node]:
        """`while`: both bodies get the constants and what is carried."""
        constants, [test, body] = self._read(constants, [test, body])
        made = self.node("while", [*constants, *carried], [test, body, len(carried)])
        return self.items(made, body.results)

    def branch(self, chosen: Node, inputs: Sequence[Node], bodies: Sequence[Body]) -> list[Node]:
        """`if`, or a chain of them: `chosen` is a bool, or the i32 number of a body."""
        inputs, bodies = self._read(inputs, bodies)
        made = self.node("if", [chosen, *inputs], bodies)
        return self.items(made, bodies[0].results)

    def _read(
        self, constants: Sequence[Node], bodies: Sequence[Body]
    ) -> tuple[list[Node], list[Body]]:
        """The constants that a body reads, and the bodies with those alone."""
        args = {n for body in bodies for n in topological(body.results) if n.op == "arg"}
        read = sorted({n.data[0] for n in args if n.data[0] < len(constants)})
        gone = len(constants) - len(read)
        known = {
            node: self.node(
                "arg",
                (),
                [read.index(at) if (at := node.data[0]) < len(constants) else at - gone],
                shape=node.shape,
                dtype=node.dtype,
                name=node.name,
            )
            for node in args
        }
        return [constants[at] for at in read], [
            Body(tuple(self.substitute(body.results, known))) for body in bodies
        ]

    # ------------------------------------------------ rewriting

    def rebuilt(self, node: Node, inputs: Sequence[Node]) -> Node:
        """The same operation on other inputs of the same types."""
        if tuple(inputs) == node.inputs:
            return node
        return self.node(
            node.op, inputs, node.data, shape=node.shape, dtype=node.dtype, name=node.name
        )

    def substitute(self, results: Sequence[Node], known: Mapping[Node, Node]) -> list[Node]:
        """The results with some nodes in the place of others."""
        new = dict(known)
        for node in topological(results):
            if node not in new:
                new[node] = self.rebuilt(node, [new[each] for each in node.inputs])
        return [new[node] for node in results]


ZERO, ONE = Dim.of(0), Dim.of(1)


def product(shape: Iterable[Dim]) -> Dim:
    found = ONE
    for axis in shape:
        found = found * axis
    return found


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """The shape of right-aligned operands together."""
    rank = max(map(len, shapes), default=0)
    out: list[Dim] = []
    for at in range(rank):
        axes = [s[len(s) - rank + at] for s in shapes if len(s) - rank + at >= 0]
        wide = [axis for axis in axes if axis != ONE]
        if any(axis != wide[0] for axis in wide):
            told = " and ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes)
            raise InternalError("porting", f"shapes do not broadcast: {told}")
        out.append(wide[0] if wide else ONE)
    return tuple(out)


def _folded(op: str, values: Sequence[Any]) -> Any:
    """What an operation gives on numbers, where every machine gives the same; else None."""
    with np.errstate(all="ignore"):
        match op, values:
            case "neg", [x] if x.dtype.kind == "f":
                return -x
            case (("add" | "sub" | "mul" | "eq" | "ne" | "lt" | "le" | "gt" | "ge"), [a, b]):
                if a.dtype.kind != "b":
                    return getattr(a, f"__{op}__")(b)
            case "sqrt", [x] if x >= 0:
                return np.sqrt(x)
            case "div", [a, b] if a.dtype.kind == "f":
                return a / b
            case (("and" | "or"), [a, b]) if a.dtype.kind == "b":
                return a & b if op == "and" else a | b
            case "not", [x] if x.dtype.kind == "b":
                return ~x
            case "select", [c, a, b]:
                return a if c else b
    return None


def _is(node: Node, value: float) -> bool:
    return constant(node) == value and constant(node) is not True


def _is_true(node: Node) -> bool:
    return constant(node) is True


def exact_key(item: Any) -> Any:
    """A key that tells 1.0 from True, and 0.0 from -0.0."""
    return (type(item).__name__, repr(item)) if isinstance(item, (bool, int, float)) else item


def _spread(x: Node, shape: Shape) -> list[Dim] | None:
    """The shape of x's own input that broadcasts to `shape`, where only axes of 1 come or go."""
    [source] = x.inputs
    own = [ONE] * (x.rank - source.rank) + list(source.shape)
    sizes = [(mine, whole) for mine, whole in zip(own, x.shape, strict=True) if whole != ONE]
    if [whole for _, whole in sizes] != [axis for axis in shape if axis != ONE]:
        return None
    told = iter(sizes)
    return [ONE if axis == ONE else next(told)[0] for axis in shape]


def _leads_with_ones(node: Node) -> bool:
    """A reshape that adds axes of size 1 in front, nothing else."""
    [x] = node.inputs
    more = node.rank - x.rank
    return more > 0 and node.shape == (ONE,) * more + x.shape


def _may_lose_ones(node: Node, rank: int) -> bool:
    """Nothing is lost where the node's axes of size 1 in front go."""
    return (
        node.rank < rank
        or constant(node) is not None
        or (node.op == "reshape" and _leads_with_ones(node))
    )


def _splits_or_merges(old: Shape, new: Shape) -> bool:
    """Each group of neighbouring axes becomes one axis, or one axis such a group."""
    a, b = [x for x in old if x != ONE], [x for x in new if x != ONE]
    while a or b:
        if not a or not b:
            return False
        left, right, taken = a.pop(0), b.pop(0), [1, 1]
        while left != right:
            if taken[1] == 1 and a and _divides(left, right):
                left, taken[0] = left * a.pop(0), taken[0] + 1
            elif taken[0] == 1 and b:
                right, taken[1] = right * b.pop(0), taken[1] + 1
            elif taken[1] == 1 and a:
                left, taken[0] = left * a.pop(0), taken[0] + 1
            else:
                return False
    return True


def _divides(left: Dim, right: Dim) -> bool:
    small, large = left.constant, right.constant
    if small is not None and large is not None:
        return small != 0 and small < large
    if left.names() == right.names() and len(left.terms) == len(right.terms) == 1:
        return _factor(left) < _factor(right)
    return left.names() < right.names() or (left.names() == right.names() and len(right.terms) == 1)


def _factor(size: Dim) -> int:
    """The number that names are multiplied by, in a size of one term."""
    [(_, count)] = size.coefficients()
    return count
