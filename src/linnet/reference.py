"""What a Program means: its nodes evaluated one after another in NumPy.

Every operation is rounded to its dtype. Small enough to be believed; backends are compared with it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

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
    Select,
    Size,
    Slice,
    Unary,
    Update,
    ValueType,
    While,
    operands,
    stands_for,
)
from linnet.core.rewrite import nodes_of
from linnet.core.scalars import integer_range, wrap
from linnet.diagnostics import InternalError, PlanError
from linnet.dims import Dim
from linnet.inputs import (
    Given,
    bind_entry,
    check_numbers,
    find_entry,
    flat_inputs,
    leaf_paths,
    structured,
)
from linnet.types import BF16, BOOL, F16, I64, DType, TensorType
from linnet.weights.arrays import DTYPES, as_array, dtype_name

Array = npt.NDArray[Any]
# A node's value: an array, one value per element of an array of members, or several results.
Value = Any
Sizes = Mapping[str, int]


def evaluate(
    program: Program,
    entry: str | None,
    inputs: Sequence[object] | Mapping[str, object],
    members: Mapping[str, object] | None = None,
    state: MutableMapping[str, Array] | None = None,
    generics: Mapping[str, int] | None = None,
    *,
    checked: bool = False,
) -> Any:
    """The entry's results, in the structure that it declares; `state` holds the new state after.

    Inputs are in order, or by name; a struct is a mapping of its fields or a record
    (`inputs.flat_inputs`). Members and state are keyed by full path; state that is missing is
    zeros. With `checked` a runtime index outside its axis is a PlanError instead of being clamped.
    """
    if not isinstance(program, Program):
        raise PlanError(
            f"evaluate takes a program as nodes, not {type(program).__name__}: "
            "`load_program(...).lower(generics)` gives it"
        )
    function = find_entry(program, entry)
    name = entry or program.main
    _refuse_absent(program, name, members or {})
    values = flat_inputs(function, inputs, name)
    arrays = [
        _input(f"{name}: {path}", param.of, value)
        for param, path, value in zip(function.values, leaf_paths(function), values, strict=True)
    ]
    sizes = bind_entry(function, [_given(array) for array in arrays], generics, name)
    bound = _Members(name, members or {}, state if state is not None else {}, sizes)
    given = [*arrays, *(bound.value(p) for p in function.params[len(arrays) :])]
    bound.refuse()
    with np.errstate(all="ignore"):
        results = _run(function, given, sizes, checked)
    written = len(results) - len(function.writes)
    if state is not None:
        for path, value in zip(function.writes, results[written:], strict=True):
            _store(state, path, value)
    return structured(function.returns, results[:written])


def evaluate_function(
    function: Function,
    inputs: Sequence[Value],
    sizes: Sizes | None = None,
    *,
    checked: bool = False,
) -> list[Value]:
    """The results of a function on values of exactly its parameters' types."""
    with np.errstate(all="ignore"):
        return _run(function, list(inputs), sizes or {}, checked)


def evaluate_node(node: Node, operands: Sequence[tuple[bool | int | float, DType]]) -> Array:
    """The value of a node of rank 0 on these numbers."""
    given = [
        _cast(np.asarray(value, None if dtype is BOOL else _wide(dtype)), dtype)
        for value, dtype in operands
    ]
    with np.errstate(all="ignore"):
        return np.asarray(node_value(node, list(given), {}, False))


# ---------------------------------------------------------------- what a call is given


def _input(where: str, of: ValueType, value: object) -> Array:
    """An array; a Python number, or lists of them, takes the dtype that the entry declares."""
    if isinstance(value, (bool, int, float, list, tuple)):
        assert isinstance(of, TensorType) and isinstance(of.dtype, DType)
        check_numbers(where, value, of.dtype)
        try:
            return _cast(np.asarray(value), of.dtype)
        except ValueError as error:
            raise PlanError(f"{where} is not a rectangle of numbers") from error
    return as_array(value)


def _given(array: Array) -> Given:
    return tuple(array.shape), dtype_name(array.dtype) or str(array.dtype)


def _refuse_absent(program: Program, entry: str, members: Mapping[str, object]) -> None:
    """No member is given that the program was lowered without."""
    given = [m for m in members if any(stands_for(path, m) for path in program.absent)]
    if given:
        more = f" and {len(given) - 1} more" if len(given) > 1 else ""
        what = "an optional member" if len(given) == 1 else "optional members"
        raise PlanError(
            f"{entry} is given {given[0]}{more}, {what} that the program was lowered without: "
            "lower it with `present=members`, or leave them out"
        )


class _Members:
    """Weights and state as parameters take them; every problem is collected, then refused."""

    def __init__(
        self,
        entry: str,
        members: Mapping[str, object],
        state: MutableMapping[str, Array],
        sizes: Sizes,
    ) -> None:
        self.entry = entry
        self.members = members
        self.state = state
        self.sizes = sizes
        self.problems: list[str] = []

    def value(self, param: Param) -> Value:
        return self._at(param.kind, param.name, param.of)

    def _at(self, kind: str, path: str, of: ValueType) -> Value:
        if isinstance(of, ArrayType):
            paths = (path.replace("*", str(i), 1) for i in range(of.length))
            return tuple(self._at(kind, p, of.element) for p in paths)
        shape, dtype = _extents(of, self.sizes), of.dtype
        held = (self.state if kind == "state" else self.members).get(path)
        if held is None and kind == "state":
            return np.zeros(shape, DTYPES[str(dtype)])
        if held is None:
            self.problems.append(f"{kind} {path} is missing, expected {of}")
            return None
        array = as_array(held)
        found = _given(array)
        if found != (shape, str(dtype)):
            text = f"[{', '.join(map(str, found[0]))}; {found[1]}]"
            self.problems.append(f"{kind} {path} is Tensor{text}, expected {of}")
        return array

    def refuse(self) -> None:
        if self.problems:
            listed = "\n".join(f"  {problem}" for problem in self.problems)
            raise PlanError(f"{self.entry} cannot run with these members:\n{listed}")


def _store(state: MutableMapping[str, Array], path: str, value: Value) -> None:
    if isinstance(value, tuple):
        for i, element in enumerate(value):
            _store(state, path.replace("*", str(i), 1), element)
    else:
        state[path] = np.array(value)


def _extents(type: TensorType, sizes: Sizes) -> tuple[int, ...]:
    return tuple(axis.evaluate(sizes) for axis in type.shape if isinstance(axis, Dim))


# ---------------------------------------------------------------- running functions


@lru_cache(maxsize=4096)
def _schedule(function: Function) -> tuple[tuple[Node, tuple[Node, ...]], ...]:
    """The nodes in order, each with the nodes whose values nothing needs after it."""
    order = nodes_of(function)
    kept = set(function.results)
    last: dict[Node, Node] = {}
    for node in order:
        for x in operands(node):
            last[x] = node
    dead: dict[Node, list[Node]] = {}
    for x, user in last.items():
        if x not in kept:
            dead.setdefault(user, []).append(x)
    return tuple((node, tuple(dead.get(node, ()))) for node in order)


def _run(function: Function, inputs: list[Value], sizes: Sizes, checked: bool) -> list[Value]:
    if len(inputs) != len(function.params):
        raise InternalError("reference", f"{function.name}: {len(inputs)} inputs")
    values: dict[Node, Value] = dict(zip(function.params, inputs, strict=True))
    strict = os.environ.get("LINNET_CHECKS") == "1"
    for node, dead in _schedule(function):
        if not isinstance(node, Param):
            value = node_value(node, [values[x] for x in operands(node)], sizes, checked)
            if strict:
                _check(function, node, value, sizes)
            values[node] = value
        for x in dead:
            del values[x]
    return [values[node] for node in function.results]


def _check(function: Function, node: Node, value: Value, sizes: Sizes) -> None:
    if isinstance(node.type, TensorType):
        expected = (_extents(node.type, sizes), str(node.type.dtype))
        if not isinstance(value, np.ndarray) or _given(value) != expected:
            found = _given(value) if isinstance(value, np.ndarray) else type(value).__name__
            what = f"{type(node).__name__} gave {found}, its type is {expected}"
            raise InternalError("reference", f"{function.name}: {what}")


def node_value(node: Node, inputs: list[Value], sizes: Sizes, checked: bool = False) -> Value:
    """The value of one node on the values of its operands; one that has several gives a list."""
    match node:
        case Literal(value, dtype):
            return _cast(np.asarray(value, None if dtype is BOOL else _wide(dtype)), dtype)
        case Size(dim, dtype):
            return _size(dim.evaluate(sizes), dtype)
        case Iota(extent, dtype):
            return _cast(np.arange(extent.evaluate(sizes), dtype=np.int64), dtype)
        case Unary(op):
            return _unary(op, inputs[0])
        case Binary(op):
            return _binary(op, inputs[0], inputs[1])
        case Compare(op):
            return np.asarray(_COMPARE[op](inputs[0], inputs[1]))
        case Select():
            return np.where(inputs[0], inputs[1], inputs[2])
        case Cast(_, dtype):
            return _cast(inputs[0], dtype)
        case Reshape(_, shape):
            return np.reshape(inputs[0], [d.evaluate(sizes) for d in shape])
        case Permute(_, order):
            return np.transpose(inputs[0], order)
        case Expand(_, shape, axes):
            return _expand(inputs[0], [d.evaluate(sizes) for d in shape], axes)
        case Slice(_, ranges):
            parts = [slice(a.evaluate(sizes), b.evaluate(sizes), step) for a, b, step in ranges]
            return np.asarray(inputs[0][tuple(parts)])
        case Concat(_, axis):
            return np.concatenate(inputs, axis)
        case Gather():
            return _gather(node, inputs, checked)
        case Reduce(op, _, axes):
            return _reduce(op, inputs[0], axes)
        case Dot(_, _, batch, contract, dtype):
            return _dot(_cast(inputs[0], dtype), _cast(inputs[1], dtype), batch, contract)
        case Call(function, _, dims):
            bound = {n: d.evaluate(sizes) for n, d in zip(function.dims, dims, strict=True)}
            return _run(function, inputs, bound, checked)
        case If(_, then, other):
            return _run(then if inputs[0] else other, inputs[1:], sizes, checked)
        case While(test, body, _, count):
            carried, fixed = inputs[:count], inputs[count:]
            while _run(test, [*carried, *fixed], sizes, checked)[0]:
                carried = _run(body, [*carried, *fixed], sizes, checked)
            return carried
        case For():
            return _for(node, inputs, sizes, checked)
        case Result(_, index) | Element(_, index):
            return inputs[0][index]
        case Update(_, index):
            return (*inputs[0][:index], inputs[1], *inputs[0][index + 1 :])
        case _:
            raise InternalError("reference", f"unknown node {type(node).__name__}")


def _for(node: For, inputs: list[Value], sizes: Sizes, checked: bool) -> list[Value]:
    a, b = len(node.carried), len(node.carried) + len(node.scanned)
    carried, scanned, fixed = inputs[:a], inputs[a:b], inputs[b:]
    gathered: list[list[Value]] = [[] for _ in node.body.results[a:]]
    for i in range(node.start.evaluate(sizes), node.stop.evaluate(sizes)):
        elements = [x[i] for x in scanned]
        turn = node.last if node.last and i == node.stop.evaluate(sizes) - 1 else node.body
        results = _run(turn, [_size(i, I64), *carried, *elements, *fixed], sizes, checked)
        carried = results[:a]
        for items, value in zip(gathered, results[a:], strict=True):
            items.append(value)
    first = len(gathered) - node.stacked
    yielded = zip(node.body.results[a + first :], gathered[first:], strict=True)
    stacks = [_stack(_typed(result), values, sizes) for result, values in yielded]
    return [*carried, *map(tuple, gathered[:first]), *stacks]


def _typed(node: Node) -> TensorType:
    assert isinstance(node.type, TensorType)
    return node.type


def _stack(type: TensorType, values: Sequence[Array], sizes: Sizes) -> Array:
    """The values on a new leading axis; without any there is the type's shape."""
    out = np.empty((len(values), *_extents(type, sizes)), DTYPES[str(type.dtype)])
    for i, value in enumerate(values):
        out[i] = value
    return out


# ---------------------------------------------------------------- elementwise


def _wide(dtype: DType) -> npt.DTypeLike:
    """A NumPy dtype that holds every value of the dtype."""
    return np.float64 if dtype.is_float else DTYPES[dtype.name]


def _size(value: int, dtype: DType) -> Array:
    if dtype.is_integer:
        return np.asarray(wrap(value, dtype), DTYPES[dtype.name])
    return _cast(np.asarray(value), dtype)


_COMPARE: dict[str, Any] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_PLAIN: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_FLOAT: dict[str, Any] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "div": np.divide,
    "rem": np.fmod,
}


def _rounded(op: str, *xs: Array) -> Array:
    """A float operation one width up, rounded once: products of roundings would be two."""
    dtype = xs[0].dtype
    wide = np.float32 if dtype.itemsize == 2 else np.float64
    return np.asarray(_FLOAT[op](*(x.astype(wide) for x in xs))).astype(dtype)


def _unary(op: str, x: Array) -> Array:
    match op:
        case "neg":
            return np.asarray(np.negative(x))
        case "abs":
            return np.asarray(np.abs(x))
        case "not":
            return np.asarray(np.invert(x))
        case _:
            return _rounded(op, x)


def _binary(op: str, a: Array, b: Array) -> Array:
    if op in _PLAIN:
        return np.asarray(_PLAIN[op](a, b))
    if op in _FLOAT and not np.issubdtype(a.dtype, np.integer):
        return _rounded(op, a, b)
    match op:
        case "rem":
            return np.where(b == 0, a, np.fmod(a, _nonzero(b)))
        case "div":
            by = _nonzero(b)
            # The remainder takes the sign of a: what is left divides without one.
            return np.where(b == 0, b, (a - np.fmod(a, by)) // by)
        case "shl" | "shr":
            return _shift(op, a, b)
        case _:
            raise InternalError("reference", f"unknown operation {op}")


def _nonzero(b: Array) -> Array:
    return np.where(b == 0, np.ones_like(b), b)


def _shift(op: str, a: Array, b: Array) -> Array:
    bits = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < bits)
    count = np.where(inside, b, np.zeros_like(b))
    if op == "shl":
        return np.where(inside, np.left_shift(a, count), np.zeros_like(a))
    beyond = np.where(a < 0, np.invert(np.zeros_like(a)), np.zeros_like(a))
    return np.where(inside, np.right_shift(a, count), beyond)


def _cast(x: Array, dtype: DType) -> Array:
    """Float to integer truncates and saturates, NaN gives 0; integers wrap; to bool is `!= 0`."""
    to = DTYPES[dtype.name]
    if x.dtype == to:
        return x
    if dtype is BOOL:
        return np.asarray(x != 0)
    is_float = x.dtype.kind not in "biu"
    if dtype.is_integer and is_float:
        return _float_to_integer(x.astype(np.float64), dtype)
    if dtype == BF16 and x.dtype.itemsize > 2 and x.dtype != np.float32:
        return _to_odd(x).astype(to)
    return x.astype(to)


def _float_to_integer(x: Array, dtype: DType) -> Array:
    low, high = integer_range(dtype)
    # high + 1 is a power of two: exact as a float, as high itself may not be.
    inside = (x > low) & (x < high + 1.0)
    out = np.trunc(np.where(inside, x, 0.0)).astype(DTYPES[dtype.name])
    out = np.where(x >= high + 1.0, np.asarray(high, out.dtype), out)
    return np.where(x <= low, np.asarray(low, out.dtype), out)


def _to_odd(x: Array) -> Array:
    """f32 rounded toward zero, its last bit set where inexact: rounding again is rounding once."""
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        sticky = np.where(x & 4095 != 0, 2048, 0).astype(x.dtype)
        far = (x >= 2**32) | (x < -(2**32)) if x.dtype.kind == "i" else x >= 2**32
        x = np.where(far, (x & ~np.asarray(4095, x.dtype)) | sticky, x)
    exact = x.astype(np.float64)
    near = exact.astype(np.float32)
    back = near.astype(np.float64)
    bits = np.array(near).view(np.uint32)
    bits = bits - (np.abs(back) > np.abs(exact)) | ((back != exact) & ~np.isnan(exact))
    return np.asarray(bits, np.uint32).view(np.float32)


# ---------------------------------------------------------------- shapes and sums


def _expand(x: Array, shape: list[int], axes: tuple[int, ...]) -> Array:
    inner = [1] * len(shape)
    for size, axis in zip(x.shape, axes, strict=True):
        inner[axis] = size
    return np.broadcast_to(np.reshape(x, inner), shape)


def _gather(node: Gather, inputs: list[Value], checked: bool) -> Array:
    x, rest = inputs[0], iter(inputs[1:])
    indexed = [axis for axis, index in enumerate(node.indices) if index is not None]
    kept = [axis for axis, index in enumerate(node.indices) if index is None]
    positions: list[Array] = []
    for axis in indexed:
        index, extent = next(rest), x.shape[axis]
        if (checked or node.proved[axis]) and bool(np.any((index < 0) | (index >= extent))):
            _out_of_range(node, axis, index, extent)
        top = min(max(extent - 1, 0), int(np.iinfo(index.dtype).max))
        positions.append(np.clip(index, 0, top).astype(np.intp))
    return np.asarray(np.transpose(x, (*indexed, *kept))[tuple(positions)])


def _out_of_range(node: Gather, axis: int, index: Array, extent: int) -> None:
    if node.proved[axis]:
        raise InternalError("reference", f"a proved index is outside its axis of {extent}")
    outside = index[(index < 0) | (index >= extent)]
    value = int(np.ravel(outside)[0])
    at = ""
    if node.span is not None:
        start = node.span.source.position(node.span.start)
        place = f"{node.span.source.name}:{start.line}:{start.column}"
        at = f" in `{node.span.text}` at {place}"
    raise PlanError(f"index {value} is outside 0 .. {extent - 1} on axis {axis}{at}")


_REDUCE: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}


def _reduce(op: str, x: Array, axes: tuple[int, ...]) -> Array:
    if op in ("max", "min") and not all(x.shape[axis] for axis in axes):
        shape = [size for axis, size in enumerate(x.shape) if axis not in axes]
        return np.full(shape, _extreme(x.dtype, lowest=op == "max"), x.dtype)
    return np.asarray(_REDUCE[op].reduce(x, axis=axes, dtype=x.dtype))


def _extreme(dtype: np.dtype[Any], lowest: bool) -> Any:
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return info.min if lowest else info.max
    return -np.inf if lowest else np.inf


def _dot(
    a: Array, b: Array, batch: tuple[tuple[int, int], ...], contract: tuple[tuple[int, int], ...]
) -> Array:
    """Both sides as (batch, free, contracted), then one product."""
    sides: list[Array] = []
    free: list[int] = []
    sizes: list[int] = []
    for side, x in enumerate((a, b)):
        shared, summed = [pair[side] for pair in batch], [pair[side] for pair in contract]
        own = [axis for axis in range(x.ndim) if axis not in shared and axis not in summed]
        lead = [x.shape[axis] for axis in shared]
        free += [x.shape[axis] for axis in own]
        sizes = lead
        flat = (*lead, _product(x, own), _product(x, summed))
        sides.append(np.transpose(x, (*shared, *own, *summed)).reshape(flat))
    left, right = sides
    if a.dtype.itemsize == 2 and a.dtype in (DTYPES[F16.name], DTYPES[BF16.name]):
        # No matrix product of NumPy keeps 16-bit products and sums: the same sum, spelled out.
        products = left[..., :, None, :] * right[..., None, :, :]
        out = np.add.reduce(products, axis=-1, dtype=a.dtype)
    else:
        out = np.matmul(left, np.swapaxes(right, -1, -2))
    return np.asarray(out).reshape([*sizes, *free])


def _product(x: Array, axes: list[int]) -> int:
    return int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
