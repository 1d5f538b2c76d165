"""Constructors of nodes: the rule gives the type, identities are dropped, equal nodes are one.

Sizes that differ in form are taken to be equal here, since the checker proved them so; `verify`
proves it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal as Lit

from linnet.core import rules
from linnet.core.ir import (
    ArrayType,
    Binary,
    BinaryOp,
    Call,
    Cast,
    Compare,
    CompareOp,
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
    NodeType,
    Param,
    Permute,
    Reduce,
    ReduceOp,
    Reshape,
    Result,
    ResultsType,
    Select,
    Size,
    Slice,
    Unary,
    UnaryOp,
    Update,
    ValueType,
    While,
)
from linnet.core.rules import Broken, Obligation, Outcome, Ruling
from linnet.core.scalars import bits_of, integer_range, round_float, wrap
from linnet.diagnostics import InternalError
from linnet.dims import Dim, Facts, Relation, proves
from linnet.source import Span
from linnet.types import BOOL, I64, DType, TensorType

ZERO, ONE = Dim.of(0), Dim.of(1)

# A node's type before its rule has given it one.
_UNTYPED = ResultsType(())


# ---------------------------------------------------------------- reading types


def tensor(node: Node) -> TensorType:
    """The node's type, which is a tensor's."""
    if not isinstance(node.type, TensorType):
        raise InternalError("build", f"{type(node).__name__} is {node.type}, not a tensor")
    return node.type


def dtype_of(node: Node) -> DType:
    """The concrete dtype of a tensor node."""
    dtype = tensor(node).dtype
    if not isinstance(dtype, DType):
        raise InternalError("build", f"the dtype {dtype} is not bound")
    return dtype


def shape_of(node: Node) -> tuple[Dim, ...]:
    """The shape of a tensor node."""
    shape = tensor(node).shape
    dims = tuple(axis for axis in shape if isinstance(axis, Dim))
    if len(dims) != len(shape):
        raise InternalError("build", f"{node.type} has a pack")
    return dims


def substitute_value_type(of: ValueType, dims: dict[str, Dim]) -> ValueType:
    """The type with these names replaced by dimensions."""
    if isinstance(of, ArrayType):
        return ArrayType(substitute_value_type(of.element, dims), of.length)
    if not dims:
        return of
    shape = tuple(a.substitute(dims) if isinstance(a, Dim) else a for a in of.shape)
    return TensorType(shape, of.dtype)


# ---------------------------------------------------------------- what a node's type is

Derived = tuple[NodeType, tuple[Obligation, ...]]


def derive(node: Node) -> Derived | Broken:
    """The type that the rule gives a node of these fields, and what must be proved of its sizes."""
    match node:
        case Param(_, of):
            return of, ()
        case Literal(_, dtype) | Size(_, dtype):
            return TensorType((), dtype), ()
        case Iota(extent, dtype):
            return _ruled(rules.iota(extent, dtype))
        case Unary(op, x):
            return _ruled(rules.unary(op, tensor(x)))
        case Binary(op, a, b):
            return _aligned((a, b), rules.binary(op, tensor(a), tensor(b)))
        case Compare(op, a, b):
            return _aligned((a, b), rules.compare(op, tensor(a), tensor(b)))
        case Select(c, a, b):
            return _aligned((a, b, c), rules.select(tensor(c), tensor(a), tensor(b)))
        case Cast(x, dtype):
            return _ruled(rules.cast(tensor(x), dtype))
        case Reshape(x, shape):
            return _ruled(rules.reshape(tensor(x), shape))
        case Permute(x, order):
            return _ruled(rules.permute(tensor(x), order))
        case Expand(x, shape, axes):
            rank = len(tensor(x).shape)
            if len(axes) != rank or not _ascending(axes, len(shape)):
                return Broken("E2210", f"axes {list(axes)} for {rank} in {len(shape)}")
            return _ruled(rules.expand(tensor(x), shape, axes))
        case Slice(x, ranges):
            return _ruled(rules.slice(tensor(x), ranges))
        case Concat(parts, axis):
            return _ruled(rules.concat([tensor(p) for p in parts], axis))
        case Gather(x, indices, proved):
            if not len(indices) == len(proved) == len(tensor(x).shape):
                return Broken("E2204", f"{len(indices)} indices into {x.type}")
            types = [None if i is None else tensor(i) for i in indices]
            return _ruled(rules.gather(tensor(x), types))
        case Reduce(op, x, axes):
            if not _ascending(axes, len(tensor(x).shape)):
                return Broken("E2210", f"axes {list(axes)} of {x.type}")
            return _ruled(rules.reduce(op, tensor(x), axes))
        case Dot(a, b, batch, contract, dtype):
            pairs = (*batch, *contract)
            for side, used in ((a, [i for i, _ in pairs]), (b, [j for _, j in pairs])):
                if not _ascending(sorted(used), len(tensor(side).shape)):
                    return Broken("E2210", f"axes {used} of {side.type}")
            return _ruled(rules.dot(tensor(a), tensor(b), batch, contract, dtype))
        case Call(function, inputs, dims):
            return _call(function, inputs, dims)
        case If(c, then, other, inputs):
            return _if(c, then, other, inputs)
        case While(test, body, inputs, count):
            return _while(test, body, inputs, count)
        case For():
            return _for(node)
        case Result(of, index):
            if not isinstance(of.type, ResultsType) or not 0 <= index < len(of.type.items):
                return Broken("E2204", f"result {index} of {of.type}")
            return of.type.items[index], ()
        case Element(x, index):
            if not isinstance(x.type, ArrayType) or not 0 <= index < x.type.length:
                return Broken("E2204", f"element {index} of {x.type}")
            return x.type.element, ()
        case Update(x, index, value):
            if not isinstance(x.type, ArrayType) or not 0 <= index < x.type.length:
                return Broken("E2204", f"element {index} of {x.type}")
            return _with(x.type, equal_types(x.type.element, value.type))
        case _:
            raise InternalError("build", f"unknown node {type(node).__name__}")


def equal_types(a: NodeType, b: NodeType) -> tuple[Obligation, ...] | Broken:
    """What makes two types one type."""
    match a, b:
        case TensorType(), TensorType():
            if a.dtype != b.dtype:
                return Broken("E2103", f"{a.dtype} and {b.dtype}")
            return rules.equal_shapes(a.shape, b.shape)
        case ArrayType(), ArrayType() if a.length == b.length:
            return equal_types(a.element, b.element)
        case ResultsType(), ResultsType():
            return _equal_lists("results", a.items, b.items)
        case _:
            return Broken("E2101", f"{a} and {b}")


def _equal_lists(
    what: str, a: Sequence[NodeType], b: Sequence[NodeType]
) -> tuple[Obligation, ...] | Broken:
    if len(a) != len(b):
        return Broken("E2102", f"{len(a)} and {len(b)} {what}")
    out: list[Obligation] = []
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        match equal_types(x, y):
            case Broken(code, why):
                return Broken(code, f"{what} {i}: {why}")
            case obligations:
                out.extend(obligations)
    return tuple(out)


def _ruled(outcome: Outcome) -> Derived | Broken:
    match outcome:
        case Broken():
            return outcome
        case Ruling(type, obligations):
            return type, obligations


def _with(type: NodeType, *parts: tuple[Obligation, ...] | Broken) -> Derived | Broken:
    """This type, under all of these obligations."""
    out: list[Obligation] = []
    for part in parts:
        if isinstance(part, Broken):
            return part
        out.extend(part)
    return type, tuple(out)


def _aligned(operands: Sequence[Node], outcome: Outcome) -> Derived | Broken:
    """The ruling, for operands of one shape: an IR node does not broadcast."""
    if isinstance(outcome, Broken):
        return outcome
    first = tensor(operands[0])
    equal = [rules.equal_shapes(first.shape, tensor(other).shape) for other in operands[1:]]
    dtype = outcome.type.dtype
    return _with(TensorType(first.shape, dtype), *equal)


def _ascending(axes: Sequence[int], rank: int) -> bool:
    ends = all(0 <= axis < rank for axis in axes)
    return ends and all(a < b for a, b in pairwise(axes))


def _types(nodes: Sequence[Node]) -> list[NodeType]:
    return [node.type for node in nodes]


def results_of(function: Function) -> tuple[ValueType, ...]:
    """The types of the function's results."""
    out: list[ValueType] = []
    for node in function.results:
        if isinstance(node.type, ResultsType):
            raise InternalError("build", f"{function.name} returns several results as one")
        out.append(node.type)
    return tuple(out)


def _call(function: Function, inputs: tuple[Node, ...], dims: tuple[Dim, ...]) -> Derived | Broken:
    if len(dims) != len(function.dims):
        return Broken("E2111", f"{len(dims)} dims for {len(function.dims)} of {function.name}")
    bound = dict(zip(function.dims, dims, strict=True))
    params = [substitute_value_type(p.of, bound) for p in function.params]
    results = tuple(substitute_value_type(t, bound) for t in results_of(function))
    what = f"inputs of {function.name}"
    return _with(ResultsType(results), _equal_lists(what, params, _types(inputs)))


def _if(c: Node, then: Function, other: Function, inputs: tuple[Node, ...]) -> Derived | Broken:
    given = _types(inputs)
    return _with(
        ResultsType(results_of(then)),
        equal_types(TensorType((), BOOL), c.type),
        _equal_lists("inputs of then", [p.of for p in then.params], given),
        _equal_lists("inputs of else", [p.of for p in other.params], given),
        _equal_lists("results", results_of(then), results_of(other)),
    )


def _while(
    test: Function, body: Function, inputs: tuple[Node, ...], count: int
) -> Derived | Broken:
    given = _types(inputs)
    carried = results_of(body)
    return _with(
        ResultsType(carried),
        _equal_lists("inputs of test", [p.of for p in test.params], given),
        _equal_lists("inputs of body", [p.of for p in body.params], given),
        _equal_lists("results of test", [TensorType((), BOOL)], results_of(test)),
        _equal_lists("carried values", given[:count], carried),
    )


def _for(node: For) -> Derived | Broken:
    elements: list[NodeType] = []
    length = rules.trip_count(node.start, node.stop).constant
    for x in node.scanned:
        if not isinstance(x.type, ArrayType) or x.type.length != length or node.start != ZERO:
            return Broken("E2121", f"{x.type} scanned over {node.start}..{node.stop}")
        elements.append(x.type.element)
    carried = _types(node.carried)
    results = results_of(node.body)
    collected: tuple[ValueType, ...] = ()
    if len(results) > len(carried):
        if length is None:
            return Broken("E2121", f"collected over {node.start}..{node.stop}")
        collected = tuple(ArrayType(t, length) for t in results[len(carried) :])
    given = [TensorType((), I64), *carried, *elements, *_types(node.fixed)]
    return _with(
        ResultsType((*results[: len(carried)], *collected)),
        _equal_lists("inputs of body", [p.of for p in node.body.params], given),
        _equal_lists("carried values", carried, results[: len(carried)]),
    )


# ---------------------------------------------------------------- the builder


class Builder:
    """Makes the nodes of one Function; the body of an If, a While or a For has its own."""

    def __init__(self, facts: Facts = Facts()) -> None:  # noqa: B008 - immutable
        self.facts = facts
        self._nodes: dict[object, Node] = {}

    # ------------------------------------------------ leaves

    def param(
        self,
        name: str,
        of: ValueType,
        kind: Lit["value", "param", "buffer", "state"] = "value",
        base: str = "self",
        span: Span | None = None,
    ) -> Param:
        """A parameter: one node for each base and name."""
        node = self._add(Param(name, of, kind, base, type=of, span=span))
        assert isinstance(node, Param)
        return node

    def literal(self, value: bool | int | float, dtype: DType, span: Span | None = None) -> Node:
        """The constant, rounded to a float dtype; an integer must fit its dtype."""
        if dtype.is_float:
            value = round_float(value, dtype)
        elif dtype is BOOL:
            value = bool(value)
        else:
            low, high = integer_range(dtype)
            if isinstance(value, float) or not low <= value <= high:
                raise InternalError("build", f"{value!r} does not fit {dtype}")
            value = int(value)
        return self._add(Literal(value, dtype, type=_UNTYPED, span=span))

    def size(self, dim: Dim | int, dtype: DType, span: Span | None = None) -> Node:
        """The dimension as a value; wrapped if it does not fit."""
        dim = Dim.of(dim)
        if dim.constant is None:
            return self._add(Size(dim, dtype, type=_UNTYPED, span=span))
        value = dim.constant
        return self.literal(wrap(value, dtype) if dtype.is_integer else value, dtype, span)

    def iota(self, extent: Dim | int, dtype: DType, span: Span | None = None) -> Node:
        return self._add(Iota(Dim.of(extent), dtype, type=_UNTYPED, span=span))

    def fill(self, value: Node, shape: Sequence[Dim], span: Span | None = None) -> Node:
        """A tensor of one scalar."""
        return self.expand(value, tuple(shape), (), span)

    # ------------------------------------------------ elementwise

    def unary(self, op: UnaryOp, x: Node, span: Span | None = None) -> Node:
        return self._add(Unary(op, x, type=_UNTYPED, span=span))

    def binary(self, op: BinaryOp, a: Node, b: Node, span: Span | None = None) -> Node:
        """Of operands of one shape; `elementwise` broadcasts first."""
        return self._add(Binary(op, a, b, type=_UNTYPED, span=span))

    def compare(self, op: CompareOp, a: Node, b: Node, span: Span | None = None) -> Node:
        """Of operands of one shape; `comparison` broadcasts first."""
        return self._add(Compare(op, a, b, type=_UNTYPED, span=span))

    def select(self, c: Node, a: Node, b: Node, span: Span | None = None) -> Node:
        """Of operands of one shape; `selection` broadcasts first."""
        return self._add(Select(c, a, b, type=_UNTYPED, span=span))

    def cast(self, x: Node, dtype: DType, span: Span | None = None) -> Node:
        if dtype_of(x) is dtype or dtype_of(x) == dtype:
            return x
        return self._add(Cast(x, dtype, type=_UNTYPED, span=span))

    def elementwise(self, op: BinaryOp, a: Node, b: Node, span: Span | None = None) -> Node:
        """A binary operation on operands broadcast to their common shape."""
        a, b = self.broadcast_all((a, b), span)
        return self.binary(op, a, b, span)

    def comparison(self, op: CompareOp, a: Node, b: Node, span: Span | None = None) -> Node:
        """A comparison of operands broadcast to their common shape."""
        a, b = self.broadcast_all((a, b), span)
        return self.compare(op, a, b, span)

    def selection(self, c: Node, a: Node, b: Node, span: Span | None = None) -> Node:
        """A select of operands broadcast to their common shape."""
        c, a, b = self.broadcast_all((c, a, b), span)
        return self.select(c, a, b, span)

    def broadcast_all(self, nodes: Sequence[Node], span: Span | None = None) -> tuple[Node, ...]:
        """The nodes at their common shape."""
        common = rules.broadcast([shape_of(node) for node in nodes])
        if isinstance(common, Broken):
            raise InternalError("build", common.why)
        shape = tuple(axis for axis in common[0] if isinstance(axis, Dim))
        return tuple(self.broadcast(node, shape, span) for node in nodes)

    def broadcast(self, x: Node, shape: Sequence[Dim], span: Span | None = None) -> Node:
        """Right-aligned to the shape; x itself where nothing repeats."""
        own = shape_of(x)
        if len(own) == len(shape) and not any(
            a == ONE and b != ONE for a, b in zip(own, shape, strict=True)
        ):
            return x
        first = len(shape) - len(own)
        return self.expand(x, tuple(shape), tuple(range(first, len(shape))), span)

    # ------------------------------------------------ shapes

    def reshape(self, x: Node, shape: Sequence[Dim], span: Span | None = None) -> Node:
        shape = tuple(shape)
        if self._same_shape(shape_of(x), shape):
            return x
        return self._add(Reshape(x, shape, type=_UNTYPED, span=span))

    def permute(self, x: Node, order: Sequence[int], span: Span | None = None) -> Node:
        order = tuple(order)
        if order == tuple(range(len(tensor(x).shape))):
            return x
        return self._add(Permute(x, order, type=_UNTYPED, span=span))

    def expand(
        self, x: Node, shape: Sequence[Dim], axes: Sequence[int], span: Span | None = None
    ) -> Node:
        shape, axes = tuple(shape), tuple(axes)
        if axes == tuple(range(len(shape))) and self._same_shape(shape_of(x), shape):
            return x
        return self._add(Expand(x, shape, axes, type=_UNTYPED, span=span))

    def slice(
        self, x: Node, ranges: Sequence[tuple[Dim, Dim, int] | None], span: Span | None = None
    ) -> Node:
        """One range per axis; None keeps the axis whole."""
        shape = shape_of(x)
        if len(ranges) != len(shape):
            raise InternalError("build", f"{len(ranges)} ranges for {x.type}")
        full = tuple(
            (ZERO, axis, 1) if part is None else part
            for axis, part in zip(shape, ranges, strict=True)
        )
        if all(part == (ZERO, axis, 1) for axis, part in zip(shape, full, strict=True)):
            return x
        return self._add(Slice(x, full, type=_UNTYPED, span=span))

    def concat(self, parts: Sequence[Node], axis: int, span: Span | None = None) -> Node:
        """A negative axis counts from the back."""
        if len(parts) == 1:
            return parts[0]
        at = axis if axis >= 0 else len(tensor(parts[0]).shape) + axis
        return self._add(Concat(tuple(parts), at, type=_UNTYPED, span=span))

    def gather(
        self,
        x: Node,
        indices: Sequence[Node | None],
        proved: Sequence[bool] | None = None,
        span: Span | None = None,
    ) -> Node:
        if all(index is None for index in indices):
            return x
        known = tuple(proved) if proved is not None else (False,) * len(indices)
        return self._add(Gather(x, tuple(indices), known, type=_UNTYPED, span=span))

    # ------------------------------------------------ sums

    def reduce(self, op: ReduceOp, x: Node, axes: Sequence[int], span: Span | None = None) -> Node:
        axes = tuple(sorted(axes))
        if not axes:
            return x
        return self._add(Reduce(op, x, axes, type=_UNTYPED, span=span))

    def dot(
        self,
        a: Node,
        b: Node,
        batch: Sequence[tuple[int, int]],
        contract: Sequence[tuple[int, int]],
        dtype: DType,
        span: Span | None = None,
    ) -> Node:
        return self._add(Dot(a, b, tuple(batch), tuple(contract), dtype, type=_UNTYPED, span=span))

    # ------------------------------------------------ functions

    def call(
        self,
        function: Function,
        inputs: Sequence[Node],
        dims: Sequence[Dim] = (),
        span: Span | None = None,
    ) -> Node:
        """Its results are read through `result`, also when there is one."""
        return self._add(Call(function, tuple(inputs), tuple(dims), type=_UNTYPED, span=span))

    def if_(
        self,
        c: Node,
        then: Function,
        other: Function,
        inputs: Sequence[Node],
        span: Span | None = None,
    ) -> Node:
        return self._add(If(c, then, other, tuple(inputs), type=_UNTYPED, span=span))

    def while_(
        self,
        test: Function,
        body: Function,
        inputs: Sequence[Node],
        count: int,
        span: Span | None = None,
    ) -> Node:
        return self._add(While(test, body, tuple(inputs), count, type=_UNTYPED, span=span))

    def for_(
        self,
        body: Function,
        variable: str,
        start: Dim,
        stop: Dim,
        carried: Sequence[Node],
        scanned: Sequence[Node] = (),
        fixed: Sequence[Node] = (),
        span: Span | None = None,
    ) -> Node:
        return self._add(
            For(
                body,
                variable,
                start,
                stop,
                tuple(carried),
                tuple(scanned),
                tuple(fixed),
                type=_UNTYPED,
                span=span,
            )
        )

    def result(self, of: Node, index: int, span: Span | None = None) -> Node:
        return self._add(Result(of, index, type=_UNTYPED, span=span))

    def results(self, of: Node) -> tuple[Node, ...]:
        """Every result of a Call, If, While or For."""
        assert isinstance(of.type, ResultsType), of.type
        return tuple(self.result(of, i, of.span) for i in range(len(of.type.items)))

    def element(self, x: Node, index: int, span: Span | None = None) -> Node:
        return self._add(Element(x, index, type=_UNTYPED, span=span))

    def update(self, x: Node, index: int, value: Node, span: Span | None = None) -> Node:
        return self._add(Update(x, index, value, type=_UNTYPED, span=span))

    # ------------------------------------------------ interning

    def intern(self, node: Node) -> Node:
        """The builder's node of these fields, which is the given one if there was none."""
        return self._add(node)

    def _add(self, node: Node) -> Node:
        key = node_key(node)
        known = self._nodes.get(key)
        if known is not None:
            return known
        match derive(node):
            case Broken(code, why):
                raise InternalError("build", f"{type(node).__name__}: {why} ({code})")
            case (type_, obligations):
                for obligation in obligations:
                    _refuse(node, obligation)
        # The only place where a node changes: its rule has just said what its type is.
        object.__setattr__(node, "type", type_)
        self._nodes[key] = node
        return node

    def _same_shape(self, a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
        """Axis by axis the same, by form or by the builder's facts."""
        return len(a) == len(b) and all(
            x == y or (x.constant is None and y.constant is None and self._equal(x, y))
            for x, y in zip(a, b, strict=True)
        )

    def _equal(self, a: Dim, b: Dim) -> bool:
        return proves(self.facts, Relation("==", a, b))


def _refuse(node: Node, obligation: Obligation) -> None:
    """Constants settle an obligation at once; a false one is our bug."""
    goal = obligation.goal
    known = goal.left.constant is not None and goal.right.constant is not None
    if known and not goal.holds({}):
        raise InternalError("build", f"{type(node).__name__}: not {goal} ({obligation.code})")


def node_key(node: Node) -> object:
    """Equal for nodes of one class with equal fields: operands by identity, constants by bits."""
    if isinstance(node, Literal):
        return (Literal, node.dtype, bits_of(node.value))
    kind = type(node)
    fields: list[object] = [getattr(node, name) for name in kind.__match_args__]
    return (kind, *fields)
