"""What each primitive of the Core IR is in PyTorch: one expression from its operands' expressions.

Rank-0 values may stand in generated code as Python numbers (constants, sizes, loop counters). A
Python number never changes the dtype of the tensor that it meets, and its text is already rounded
to that dtype; where no operand is a tensor one of them is made one.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from linnet.core.derive import dtype_of, shape_of
from linnet.core.ir import (
    Binary,
    Cast,
    Compare,
    Concat,
    Dot,
    Expand,
    Gather,
    Iota,
    Literal,
    Node,
    Permute,
    Reduce,
    Reshape,
    Select,
    Size,
    Slice,
    Unary,
    operands,
)
from linnet.diagnostics import InternalError
from linnet.dims import Dim, Facts, Relation, proves
from linnet.emit import Ex, bundle, call, infix, number_text, prefix, subscript
from linnet.types import BF16, BOOL, F16, F32, F64, I32, I64, U16, U32, U64, DType

TORCH_NAMES: dict[str, str] = {
    "bool": "bool",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
}
_CASTS = {
    "bool": "bool",
    "i8": "char",
    "i16": "short",
    "i32": "int",
    "i64": "long",
    "u8": "byte",
    "f16": "half",
    "bf16": "bfloat16",
    "f32": "float",
    "f64": "double",
}
_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "shr": ">>",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}
# Stored by PyTorch, without arithmetic: `kernels.unsigned` goes through i64.
UNSIGNED = (U16, U32, U64)
_ONE = Dim.of(1)


def torch_dtype(dtype: DType) -> str:
    return f"torch.{TORCH_NAMES[dtype.name]}"


@dataclass(frozen=True, slots=True)
class Operand:
    """A text that broadcasts to the result; `number`: a Python number; `loose`: it may be one."""

    text: Ex
    number: bool = False
    loose: bool = False


class Expressions:
    """Expressions over what is already written: `env` has a text for every node but Expands.

    `numbers` are Python numbers, `either` parameters that may be numbers or tensors.
    """

    def __init__(self, dim: Callable[[Dim], Ex], facts: Facts, checked: bool = False) -> None:
        self.dim = dim
        self.facts = facts
        self.checked = checked
        self.env: dict[Node, Ex] = {}
        self.numbers: set[Node] = set()
        self.constants: dict[Node, bool | int | float] = {}  # what numbers are, where it is known
        self.either: set[Node] = set()
        self.named: set[Node] = set()

    # ------------------------------------------------------------ operands

    def scalar(self, value: Ex, dtype: DType) -> Ex:
        """A number as a tensor of rank 0."""
        return call("torch.full", "()", value, dtype=torch_dtype(dtype), device="DEVICE")

    def filled(self, value: Ex, shape: Sequence[Dim], dtype: DType) -> Ex:
        sizes = bundle([self.dim(d) for d in shape])
        options = {"dtype": torch_dtype(dtype), "device": "DEVICE"}
        name = {"0": "zeros", "0.0": "zeros", "False": "zeros", "1": "ones", "1.0": "ones"}.get(
            value.text
        )
        if name is not None:
            return call(f"torch.{name}", sizes, **options)
        return call("torch.full", sizes, value, **options)

    def full(self, node: Node) -> Ex:
        """The node as a tensor of exactly its shape."""
        if isinstance(node, Expand) and node not in self.named:
            if self._loose(node.x):
                return self.filled(self.env[node.x], node.shape, dtype_of(node))
            view = self._view(node)
            return view.method("expand", *map(self.dim, node.shape))
        if node in self.numbers:
            return self.scalar(self.env[node], dtype_of(node))
        return self.env[node]

    def _loose(self, node: Node) -> bool:
        return node in self.numbers or node in self.either

    def _operand(self, node: Node) -> Operand:
        """Numbers stay numbers, Expands stay views."""
        base = node.x if isinstance(node, Expand) else node
        text = self._view(node) if isinstance(node, Expand) else self.env[node]
        return Operand(text, base in self.numbers, self._loose(base))

    def _view(self, node: Expand) -> Ex:
        """x with the axes of 1 that broadcasting needs; those in front come by themselves."""
        x = self.full(node.x) if isinstance(node.x, Expand) else self.env[node.x]
        if not node.axes:
            return x
        marks = [":" if i in node.axes else "None" for i in range(len(node.shape))]
        marks = marks[node.axes[0] :]
        if "None" not in marks:
            return x
        return x.index(*_shortened(marks))

    def _covered(self, node: Node, shape: Sequence[Dim]) -> set[int]:
        """The axes on which the operand's text has the result's extent."""
        if not isinstance(node, Expand):
            return set(range(len(shape)))
        own = shape_of(node.x)
        return {at for at, axis in zip(node.axes, own, strict=True) if axis == node.shape[at]}

    def aligned(self, nodes: Sequence[Node], shape: Sequence[Dim]) -> list[Operand]:
        """Operands whose broadcast has the shape; at least one is a tensor."""
        covered = set().union(*(self._covered(n, shape) for n in nodes))
        out = [self._operand(n) for n in nodes]
        missing = any(i not in covered and axis != _ONE for i, axis in enumerate(shape))
        missing = missing or all(isinstance(n, Expand) and n.axes[:1] != (0,) for n in nodes)
        if missing or all(operand.number for operand in out):
            at = next((i for i, n in enumerate(nodes) if isinstance(n, Expand)), 0)
            out[at] = Operand(self.full(nodes[at]))
        return out

    # ------------------------------------------------------------ primitives

    def express(self, node: Node) -> Ex:
        """The expression of a node that is computed from its operands alone."""
        match node:
            case Iota(extent, dtype):
                return self._iota(extent, dtype)
            case Size(dim, dtype):
                return self.scalar(self.dim(dim), dtype)
            case Unary(op, x):
                return self._unary(op, x)
            case Binary(op, a, b):
                return self._binary(node, op, a, b)
            case Compare(op, a, b):
                left, right = self.aligned((a, b), shape_of(node))
                if dtype_of(a) in UNSIGNED:
                    return self._unsigned(op, dtype_of(a), left.text, right.text)
                return infix(_INFIX[op], left.text, right.text)
            case Select(c, a, b):
                return self._select(node, c, a, b)
            case Cast(x, dtype):
                return self._cast(x, dtype)
            case Reshape(x, shape):
                return self._reshape(x, shape)
            case Permute(x, order):
                return _permuted(self.full(x), order)
            case Slice(x, ranges):
                return self._slice(x, ranges, frozenset())
            case Concat(parts, axis):
                at = -1 if axis == len(shape_of(node)) - 1 else axis
                return call("torch.cat", bundle([self.full(p) for p in parts]), dim=at)
            case Gather():
                return self._gather(node)
            case Reduce(op, x, axes):
                return self._reduce(op, x, axes)
            case Dot():
                return self._dot(node)
            case _:
                raise InternalError("torch.express", f"{type(node).__name__} has no expression")

    def number(self, node: Node) -> Ex | None:
        """The node as a Python number, where it is one."""
        value = self._constant(node)
        if value is not None:
            self.constants[node] = value
            return number_text(value, dtype_of(node))
        match node:
            case Size(dim, dtype) if dtype in (I32, I64, F32, F64):
                return self.dim(dim)
            case Cast(x, dtype) if x in self.numbers and dtype in (I32, I64, F32, F64):
                # A counter or a size: the conversion is exact, or done where it meets a tensor.
                return self.env[x] if dtype_of(x).is_integer else None
            case Binary("add" | "sub" | "mul" as op, a, b) if self._counters(a, b):
                return infix(_INFIX[op], self.env[a], self.env[b])
            case Compare(op, a, b) if self._counters(a, b):
                return infix(_INFIX[op], self.env[a], self.env[b])
            case _:
                return None

    def _counters(self, a: Node, b: Node) -> bool:
        """Python integers that do not wrap: sizes and loop counters, not only constants."""
        return a in self.numbers and b in self.numbers and dtype_of(a) in (I32, I64)

    def _constant(self, node: Node) -> bool | int | float | None:
        """A constant of rank 0, computed here as the generated code would compute it."""
        if isinstance(node, Literal):
            return node.value
        if not isinstance(node, (Unary, Binary, Compare, Select, Cast)) or shape_of(node):
            return None
        if not all(x in self.constants for x in operands(node)):
            return None
        from linnet.torch import kernels

        inner = Expressions(self.dim, self.facts)
        for x in operands(node):
            text = number_text(self.constants[x], dtype_of(x))
            inner.env[x] = inner.scalar(text, dtype_of(x))
        space = {"torch": torch, "F": F, "kernels": kernels, "DEVICE": torch.device("cpu")}
        value: bool | int | float = eval(inner.express(node).text, space).item()
        return value

    # ------------------------------------------------------------ elementwise

    def _iota(self, extent: Dim, dtype: DType) -> Ex:
        if dtype in UNSIGNED:
            counted = call("torch.arange", self.dim(extent), device="DEVICE")
            return counted.method("to", torch_dtype(dtype))
        return call("torch.arange", self.dim(extent), dtype=torch_dtype(dtype), device="DEVICE")

    def _unary(self, op: str, x: Node) -> Ex:
        value = self.full(x)
        if dtype_of(x) in UNSIGNED:
            return self._unsigned(op, dtype_of(x), value)
        match op:
            case "neg":
                return prefix("-", value)
            case "not":
                return prefix("~", value)
            case _:
                return call(f"torch.{op}", value)

    def _binary(self, node: Node, op: str, a: Node, b: Node) -> Ex:
        dtype = dtype_of(node)
        left, right = self.aligned((a, b), shape_of(node))
        if dtype in UNSIGNED:
            return self._unsigned(op, dtype, left.text, right.text)
        if op in ("min", "max"):
            return _extremum(op, left, right)
        if op in ("div", "rem"):
            # `number / tensor` would be a rounded reciprocal times the number.
            x = self.scalar(left.text, dtype) if left.number else left.text
            if not dtype.is_float:
                return _integer_division(op, x, right.text, b)
            return infix("/", x, right.text) if op == "div" else call("torch.fmod", x, right.text)
        return infix(_INFIX[op], left.text, right.text)

    def _select(self, node: Node, c: Node, a: Node, b: Node) -> Ex:
        condition, yes, no = self.aligned((c, a, b), shape_of(node))
        chosen = self.scalar(condition.text, BOOL) if condition.number else condition.text
        # Two Python numbers would give PyTorch's default dtype.
        both = yes.number and no.number
        other = self.scalar(no.text, dtype_of(node)) if both else no.text
        return call("torch.where", chosen, yes.text, other)

    def _unsigned(self, op: str, dtype: DType, *values: Ex) -> Ex:
        return call("kernels.unsigned", f'"{op}"', torch_dtype(dtype), *values)

    def _cast(self, x: Node, dtype: DType) -> Ex:
        return self.cast(self.full(x), dtype_of(x), dtype)

    def cast(self, value: Ex, source: DType, dtype: DType) -> Ex:
        """The value in another dtype, by the language's rules."""
        if source == dtype:
            return value
        if dtype == BOOL or source == BOOL:
            return value.method("to", torch_dtype(dtype))
        if source in UNSIGNED or dtype in UNSIGNED or (source.is_float and dtype.is_integer):
            return call("kernels.cast", value, torch_dtype(dtype))
        return value.method(_CASTS[dtype.name])

    # ------------------------------------------------------------ shapes

    def _reshape(self, x: Node, shape: tuple[Dim, ...]) -> Ex:
        own = shape_of(x)
        if isinstance(x, Slice) and x not in self.named:
            dropped = _dropped(x, shape)
            if dropped is not None:
                return self._slice(x.x, x.ranges, dropped)
        value = self.full(x)
        extra = _axes_of_one(own, shape)
        if extra is not None:
            return value.method("squeeze", extra)
        extra = _axes_of_one(shape, own)
        if extra is not None:
            return value.method("unsqueeze", extra)
        if not shape:
            return value.method("reshape", "()")
        return value.method("reshape", *map(self.dim, shape))

    def _slice(
        self, x: Node, ranges: tuple[tuple[Dim, Dim, int], ...], dropped: frozenset[int]
    ) -> Ex:
        """`x[:, a:b]`; a dropped axis is read at one position."""
        marks: list[str] = []
        for i, ((start, stop, step), extent) in enumerate(zip(ranges, shape_of(x), strict=True)):
            if i in dropped:
                marks.append(str(self.dim(start)))
                continue
            first = None if start.constant == 0 else self.dim(start)
            last = None if stop == extent else self.dim(stop)
            marks.append(subscript(first, last, step))
        marks = _shortened(marks)
        return self.full(x).index(*marks) if marks else self.full(x)

    # ------------------------------------------------------------ gathers

    def _gather(self, node: Gather) -> Ex:
        x, indices, proved = node.x, node.indices, node.proved
        marks: list[str] = []
        for axis, (extent, index, known) in enumerate(
            zip(shape_of(x), indices, proved, strict=True)
        ):
            mark = ":" if index is None else self._position(node, axis, index, extent, known)
            marks.append(str(mark))
        given = [i for i, index in enumerate(indices) if index is not None]
        rank = len(shape_of(next(i for i in indices if i is not None)))
        value = self.full(x)
        if rank == 0 or given == list(range(len(given))):
            return value.index(*_shortened(marks))
        # PyTorch leaves the new axes where the indices stand; here they lead.
        rest = [i for i in range(len(indices)) if indices[i] is None]
        moved = _permuted(value, (*given, *rest))
        return moved.index(*(marks[i] for i in given))

    def _position(self, node: Gather, axis: int, index: Node, extent: Dim, known: bool) -> Ex:
        dtype = dtype_of(index)
        base = index.x if isinstance(index, Expand) else index
        if base in self.numbers and not shape_of(index):
            text = self.env[base]
            if known:
                return text
            return call("min", call("max", text, 0), self.dim(extent - 1))
        value = self.full(index)
        if not known and dtype in UNSIGNED:
            top = self.dim(extent - 1)
            value = call("kernels.unsigned", '"min"', torch_dtype(dtype), value, top)
        if dtype not in (I32, I64):
            value = value.method("long")
        if known or (dtype in UNSIGNED and not self.checked):
            return value
        if self.checked:
            return call("kernels.within", value, self.dim(extent), _access_text(node, axis))
        return value.method("clamp", 0, self.dim(extent - 1))

    # ------------------------------------------------------------ sums

    def _reduce(self, op: str, x: Node, axes: tuple[int, ...]) -> Ex:
        dtype, rank = dtype_of(x), len(shape_of(x))
        at = [-1 if axis == rank - 1 else axis for axis in axes]
        where = str(at[0]) if len(at) == 1 else bundle(at)
        if dtype in UNSIGNED:
            return call("kernels.unsigned_reduce", f'"{op}"', self.full(x), bundle(axes))
        if op == "sum" and isinstance(x, Cast) and x not in self.named and dtype is F32:
            if dtype_of(x.x) in (F16, BF16):  # raised element by element while it is summed
                return self.full(x.x).method("sum", where, "dtype=torch.float32")
        value = self.full(x)
        match op:
            case "sum" | "prod":
                # PyTorch sums integers in i64 unless told otherwise.
                typed = [] if dtype.is_float or dtype is I64 else [f"dtype={torch_dtype(dtype)}"]
                if op == "sum":
                    return value.method("sum", where, *typed)
                for axis in reversed(axes):
                    value = value.method("prod", axis, *typed)
                return value
            case "max" | "min":
                if all(self._filled(shape_of(x)[axis]) for axis in axes):
                    return value.method(f"a{op}", where)
                return call("kernels.extremum", f'"{op}"', value, bundle(axes))
            case _:
                return value.method(op, where)

    def _filled(self, extent: Dim) -> bool:
        """The axis has elements at all sizes."""
        if extent.constant is not None:
            return extent.constant > 0
        return proves(self.facts, Relation(">", extent, Dim.of(0)))

    def _dot(self, node: Dot) -> Ex:
        """A matrix product where the axes allow one as they stand, else an einsum."""
        dtype = node.dtype
        through = I64 if dtype in UNSIGNED else dtype
        a = self.cast(self.full(node.a), dtype_of(node.a), through)
        b = self.cast(self.full(node.b), dtype_of(node.b), through)
        product = self._product(node, a, b)
        return self.cast(product, through, dtype)

    def _product(self, node: Dot, a: Ex, b: Ex) -> Ex:
        rank_a, rank_b = len(shape_of(node.a)), len(shape_of(node.b))
        batches = len(node.batch)
        if len(node.contract) == 1:
            (i, j) = node.contract[0]
            if not batches and rank_b == 2 and i == rank_a - 1:
                if j == 1 and node.dtype.is_float:
                    return call("F.linear", a, b)
                return infix("@", a, b.attribute("mT") if j == 1 else b)
            leading = node.batch == tuple((k, k) for k in range(batches))
            if leading and rank_a == rank_b == batches + 2:
                left = a if i == rank_a - 1 else a.attribute("mT")
                right = b if j == rank_b - 2 else b.attribute("mT")
                return infix("@", left, right)
        names_a, names_b = _letters(node)
        shared = {i for i, _ in (*node.batch, *node.contract)}
        used = {j for _, j in (*node.batch, *node.contract)}
        out = [names_a[i] for i, _ in node.batch]
        out += [n for i, n in enumerate(names_a) if i not in shared]
        out += [n for j, n in enumerate(names_b) if j not in used]
        spec = f'"{"".join(names_a)},{"".join(names_b)}->{"".join(out)}"'
        return call("torch.einsum", spec, a, b)


def _extremum(op: str, a: Operand, b: Operand) -> Ex:
    bound = "min" if op == "max" else "max"
    for x, other in ((a, b), (b, a)):
        if x.loose:
            return other.text.method("clamp", f"{bound}={x.text}")
    return call("torch.maximum" if op == "max" else "torch.minimum", a.text, b.text)


def _integer_division(op: str, a: Ex, b: Ex, divisor: Node) -> Ex:
    base = divisor.x if isinstance(divisor, Expand) else divisor
    safe = isinstance(base, Literal) and base.value not in (0, -1)
    if op == "div":
        if safe:
            return call("torch.div", a, b, rounding_mode='"trunc"')
        return call("kernels.int_div", a, b)
    return call("torch.fmod" if safe else "kernels.int_rem", a, b)


def _letters(node: Dot) -> tuple[list[str], list[str]]:
    """A letter for each axis of an einsum, of its size's name where it can be."""
    taken: set[str] = set()

    def letter(axis: Dim) -> str:
        wish = [c.lower() for c in str(axis) if c.isascii() and c.isalpha()][:1]
        chosen: str = next(c for c in (*wish, *string.ascii_letters) if c not in taken)
        taken.add(chosen)
        return chosen

    a = [letter(axis) for axis in shape_of(node.a)]
    shared = {j: a[i] for i, j in (*node.batch, *node.contract)}
    b = [shared[j] if j in shared else letter(d) for j, d in enumerate(shape_of(node.b))]
    return a, b


# ---------------------------------------------------------------- axes


def _shortened(marks: list[str]) -> list[str]:
    """Subscripts without the `:` that go without saying."""
    end = len(marks)
    while end and marks[end - 1] == ":":
        end -= 1
    if end < len(marks):
        return marks[:end]
    front = next(i for i, mark in enumerate([*marks, ""]) if mark != ":")
    return ["...", *marks[front:]] if front >= 2 else marks


def _permuted(value: Ex, order: tuple[int, ...]) -> Ex:
    moved = [i for i, axis in enumerate(order) if i != axis]
    if not moved:
        return value
    if len(moved) == 2:
        i, j = moved
        if len(order) == 2:
            return value.attribute("T")
        if j == len(order) - 1 and i == j - 1:
            return value.attribute("mT")
        return value.method("transpose", i, j)
    return value.method("permute", *order)


def _dropped(x: Slice, shape: tuple[Dim, ...]) -> frozenset[int] | None:
    """The axes sliced to one position that the reshape drops, if that is all that it does."""
    single = [
        i
        for i, (start, stop, step) in enumerate(x.ranges)
        if step == 1 and stop - start == _ONE and shape_of(x.x)[i] != _ONE
    ]
    kept = tuple(axis for i, axis in enumerate(shape_of(x)) if i not in single)
    return frozenset(single) if single and kept == shape else None


def _axes_of_one(longer: tuple[Dim, ...], shorter: tuple[Dim, ...]) -> int | None:
    """The axis of 1 that the longer shape has in addition, if that is the one difference."""
    if len(longer) != len(shorter) + 1:
        return None
    for at in range(len(longer) - 1, -1, -1):
        if longer[at] == _ONE and (*longer[:at], *longer[at + 1 :]) == shorter:
            return at
    return None


def _access_text(node: Gather, axis: int) -> str:
    if node.span is None:
        return repr(f"a gather on axis {axis}")
    at = node.span.source.position(node.span.start)
    text = " ".join(node.span.text.split())
    return repr(f"{node.span.source.name}:{at.line}:{at.column}: `{text}`, axis {axis}")
