"""What each primitive of the Core IR is in PyTorch: one expression from its operands' expressions.

Operands, and numbers among them, are `linnet.express`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from linnet import express
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
from linnet.dims import Dim, Facts
from linnet.emit import Ex, bundle, call, infix, number_text, prefix
from linnet.express import INFIX, Operand, axes_of_one, dropped, letters, shortened
from linnet.types import BF16, BOOL, F16, F32, I32, I64, U16, U32, U64, DType

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
# Stored by PyTorch, without arithmetic: `kernels.unsigned` goes through i64.
UNSIGNED = (U16, U32, U64)


def torch_dtype(dtype: DType) -> str:
    return f"torch.{TORCH_NAMES[dtype.name]}"


class Expressions(express.Expressions):
    """Expressions over what is already written, in PyTorch."""

    def __init__(self, dim: Callable[[Dim], Ex], facts: Facts, checked: bool = False) -> None:
        super().__init__(dim, facts)
        self.checked = checked

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

    def repeated(self, view: Ex, shape: Sequence[Dim]) -> Ex:
        return view.method("expand", *map(self.dim, shape))

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
                return infix(INFIX[op], left.text, right.text)
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

    def constant(self, node: Node) -> bool | int | float | None:
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
        return infix(INFIX[op], left.text, right.text)

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
            single = dropped(x, shape)
            if single is not None:
                return self._slice(x.x, x.ranges, single)
        value = self.full(x)
        extra = axes_of_one(own, shape)
        if extra is not None:
            return value.method("squeeze", extra)
        extra = axes_of_one(shape, own)
        if extra is not None:
            return value.method("unsqueeze", extra)
        if not shape:
            return value.method("reshape", "()")
        return value.method("reshape", *map(self.dim, shape))

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
            return value.index(*shortened(marks))
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
        names_a, names_b = letters(node)
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


# ---------------------------------------------------------------- axes


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


def _access_text(node: Gather, axis: int) -> str:
    if node.span is None:
        return repr(f"a gather on axis {axis}")
    at = node.span.source.position(node.span.start)
    text = " ".join(node.span.text.split())
    return repr(f"{node.span.source.name}:{at.line}:{at.column}: `{text}`, axis {axis}")
