"""Constructors of nodes: the rule gives the type, identities are dropped, equal nodes are one.

Sizes that differ in form are taken to be equal here, since the checker proved them so; `verify`
proves it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal as Lit

from linnet.core import rules
from linnet.core.derive import derive, dtype_of, shape_of, tensor
from linnet.core.ir import (
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
from linnet.core.ranges import Range, Ranges, unclamped
from linnet.core.rules import Broken, Obligation
from linnet.core.scalars import bits_of, integer_range, round_float, wrap
from linnet.diagnostics import InternalError, PlanError
from linnet.dims import Dim, Facts, Relation, contradictory, proves
from linnet.source import Span
from linnet.types import BOOL, DType

ZERO, ONE = Dim.of(0), Dim.of(1)

# A node's type before its rule has given it one.
_UNTYPED = ResultsType(())


class Builder:
    """Makes the nodes of one Function; the body of an If, a While or a For has its own."""

    def __init__(
        self,
        facts: Facts = Facts(),  # noqa: B008 - immutable
        ranges: Ranges | None = None,
    ) -> None:
        self.facts = facts
        self.ranges: dict[Node, Range] = dict(ranges or {})  # of the function's params
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
        node = Gather(x, tuple(indices), known, type=_UNTYPED, span=span)
        # What a loop counts through is known at once, so that no pass decides which sizes it takes.
        if self.ranges and not all(known):
            node = replace(node, proved=unclamped(node, self.facts, self.ranges))
        return self._add(node)

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
        stacked: int = 0,
        span: Span | None = None,
        last: Function | None = None,
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
                stacked,
                last,
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
        if node.type is not _UNTYPED:  # a node of another builder, or a parameter
            self._nodes[key] = node
            return node
        match derive(node):
            case Broken(code, why):
                raise InternalError("build", f"{type(node).__name__}: {why} ({code})")
            case (type_, obligations):
                for obligation in obligations:
                    _refuse(node, obligation, self.facts)
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


def _refuse(node: Node, obligation: Obligation, facts: Facts) -> None:
    """Constants settle an obligation at once; a false one is our bug, if the facts are possible."""
    goal = obligation.goal
    known = goal.left.constant is not None and goal.right.constant is not None
    if known and not goal.holds({}):
        if contradictory(facts):
            clauses = ", ".join(map(str, facts.relations))
            raise PlanError(f"no sizes satisfy `where {clauses}`, so nothing here can run")
        raise InternalError("build", f"{type(node).__name__}: not {goal} ({obligation.code})")


def named_like(node: Node, like: Node) -> Node:
    """The node, under the source's name for what it takes the place of, unless it has its own."""
    if like.hint and not node.hint and not isinstance(node, (Param, Literal)):
        object.__setattr__(node, "hint", like.hint)
    return node


def node_key(node: Node) -> object:
    """Equal for nodes of one class with equal fields: operands by identity, constants by bits."""
    if isinstance(node, Literal):
        return (Literal, node.dtype, bits_of(node.value))
    kind = type(node)
    names: tuple[str, ...] = kind.__match_args__
    fields: list[object] = [getattr(node, name) for name in names]
    return (kind, *fields)
