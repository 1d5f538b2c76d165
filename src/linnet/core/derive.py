"""A node's type, from its fields: what `build` gives it and `verify` holds it to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from linnet.core import rules
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
    NodeType,
    Param,
    Permute,
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
from linnet.core.rules import Broken, Obligation, Outcome, Ruling
from linnet.diagnostics import InternalError
from linnet.dims import Dim, Relation
from linnet.types import BOOL, I64, DType, TensorType

# ---------------------------------------------------------------- reading types


def tensor(node: Node) -> TensorType:
    """The node's type, which is a tensor's."""
    if not isinstance(node.type, TensorType):
        raise InternalError("derive", f"{type(node).__name__} is {node.type}, not a tensor")
    return node.type


def dtype_of(node: Node) -> DType:
    """The concrete dtype of a tensor node."""
    dtype = tensor(node).dtype
    if not isinstance(dtype, DType):
        raise InternalError("derive", f"the dtype {dtype} is not bound")
    return dtype


def shape_of(node: Node) -> tuple[Dim, ...]:
    """The shape of a tensor node."""
    shape = tensor(node).shape
    dims = tuple(axis for axis in shape if isinstance(axis, Dim))
    if len(dims) != len(shape):
        raise InternalError("derive", f"{node.type} has a pack")
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
            raise InternalError("derive", f"unknown node {type(node).__name__}")


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
            raise InternalError("derive", f"{function.name} returns several results as one")
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
        if not isinstance(x.type, ArrayType) or x.type.length != length or node.start != Dim.of(0):
            return Broken("E2121", f"{x.type} scanned over {node.start}..{node.stop}")
        elements.append(x.type.element)
    carried = _types(node.carried)
    results = results_of(node.body)
    first = len(results) - node.stacked
    collected: list[ValueType] = []
    for type in results[len(carried) : first]:
        if length is None:
            return Broken("E2121", f"collected over {node.start}..{node.stop}")
        collected.append(ArrayType(type, length))
    stacks: list[ValueType] = []
    obligations: tuple[Obligation, ...] = ()
    for type in results[first:]:
        if not isinstance(type, TensorType):
            return Broken("E2124", f"{type} is yielded")
        stacks.append(TensorType((node.stop - node.start, *type.shape), type.dtype))
        obligations = (Obligation("E2209", Relation("<=", node.start, node.stop)),)
    given = [TensorType((), I64), *carried, *elements, *_types(node.fixed)]
    final, own = results[: len(carried)], tuple[tuple[Obligation, ...] | Broken, ...]()
    if node.last is not None:
        if not length or node.stacked:
            return Broken("E2121", f"a last turn of its own over {node.start}..{node.stop}")
        at_last = results_of(node.last)
        final = at_last[: len(carried)]
        own = (
            _equal_lists("inputs of last", [p.of for p in node.last.params], given),
            _equal_lists("collected", at_last[len(carried) :], results[len(carried) :]),
        )
    return _with(
        ResultsType((*final, *collected, *stacks)),
        obligations,
        *own,
        _equal_lists("inputs of body", [p.of for p in node.body.params], given),
        _equal_lists("carried values", carried, results[: len(carried)]),
    )
