"""What each primitive of the Core IR is in `jax.numpy`: one expression from its operands'.

What is known from sizes alone and needs 64-bit floats is NumPy's (`np.`), worked out while JAX
traces, so that a table of frequencies asks for no wide arrays. Integers of 64 bits that provably
fit 32 stay so (`linnet.jax.narrow`).
"""

from __future__ import annotations

from collections.abc import Sequence, Set

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
from linnet.core.scalars import holds_all
from linnet.diagnostics import InternalError
from linnet.dims import Dim
from linnet.emit import Ex, bundle, call, infix, prefix
from linnet.express import INFIX, axes_of_one, dropped, letters, shortened
from linnet.jax.narrow import Narrow
from linnet.reference import evaluate_node
from linnet.types import BF16, BOOL, F16, F32, I32, I64, DType

JAX_NAMES: dict[str, str] = {
    "bool": "bool_",
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


_SUMS = ("sum", "prod")  # they say their dtype


def jax_dtype(dtype: DType) -> str:
    return f"jnp.{JAX_NAMES[dtype.name]}"


class Expressions(express.Expressions):
    """Expressions over what is already written, in `jax.numpy`."""

    narrow: Narrow = Narrow()
    ahead: Set[Node] = frozenset()  # worked out by NumPy
    large: bool = False  # sizes may not fit 32 bits

    # ------------------------------------------------------------ operands

    def lib(self, node: Node) -> str:
        """The module whose functions compute the node."""
        return "np" if node in self.ahead else "jnp"

    def dtype(self, node: Node, dtype: DType) -> str:
        """The dtype's name where the node is computed."""
        if node in self.ahead and dtype is not BF16:
            return f"np.{JAX_NAMES[dtype.name]}"
        return jax_dtype(dtype)

    def scalar(self, value: Ex, dtype: DType) -> Ex:
        return call(jax_dtype(dtype), value)

    def filled(self, value: Ex, shape: Sequence[Dim], dtype: DType) -> Ex:
        sizes = bundle([self.dim(d) for d in shape])
        name = {"0": "zeros", "0.0": "zeros", "False": "zeros", "1": "ones", "1.0": "ones"}.get(
            value.text
        )
        if name is not None:
            return call(f"jnp.{name}", sizes, jax_dtype(dtype))
        return call("jnp.full", sizes, value, jax_dtype(dtype))

    def repeated(self, view: Ex, shape: Sequence[Dim]) -> Ex:
        return call("jnp.broadcast_to", view, bundle([self.dim(d) for d in shape]))

    def constant(self, node: Node) -> bool | int | float | None:
        if isinstance(node, Literal):
            return node.value
        if not isinstance(node, (Unary, Binary, Compare, Select, Cast)) or shape_of(node):
            return None
        if not all(x in self.constants for x in operands(node)):
            return None
        value: bool | int | float = evaluate_node(
            node, [(self.constants[x], dtype_of(x)) for x in operands(node)]
        ).item()
        return value

    def number(self, node: Node) -> Ex | None:
        # A large size is cut off to 32 bits by an array.
        sized = isinstance(node, (Size, Cast)) and node not in self.constants
        return None if self.large and sized and dtype_of(node) == I32 else super().number(node)

    def full(self, node: Node) -> Ex:
        """The node as an array of exactly its shape and dtype."""
        text = super().full(node)
        if node in self.narrow.nodes and node not in self.numbers:
            return text.method("astype", jax_dtype(dtype_of(node)))
        return text

    def fitting(self, node: Node) -> Ex:
        """The node as an array of its shape, whose integers may be of 32 bits."""
        return super().full(node)

    # ------------------------------------------------------------ primitives

    def express(self, node: Node) -> Ex:
        """The expression of a node that is computed from its operands alone."""
        match node:
            case Iota(extent, dtype):
                return self._iota(node, extent, dtype)
            case Size(dim, dtype) if dtype.is_float:
                return self.scalar(self.dim(dim), dtype)
            case Size(dim, dtype):  # it may not fit
                own = I64 if self.large else I32
                return self.cast(node, self.scalar(self.dim(dim), own), own, dtype)
            case Unary("neg", x):
                return prefix("-", self.full(x))
            case Unary("not", x):
                return prefix("~", self.full(x))
            case Unary("rsqrt", x):
                if node in self.ahead:
                    return infix("/", Ex("1"), call("np.sqrt", self.full(x)))
                return call("lax.rsqrt", self.full(x))
            case Unary(op, x):
                return call(f"{self.lib(node)}.{op}", self.full(x))
            case Binary(op, a, b):
                return self._binary(node, op, a, b)
            case Compare(op, a, b):
                left, right = self.aligned((a, b), shape_of(node))
                return infix(INFIX[op], *self._of_one_width((a, b), (left.text, right.text)))
            case Select(c, a, b):
                return self._select(node, c, a, b)
            case Cast(x, dtype):
                return self.cast(node, self.fitting(x), dtype_of(x), dtype)
            case Reshape(x, shape):
                return self._reshape(x, shape)
            case Permute(x, order):
                return _permuted(self.fitting(x), order)
            case Slice(x, ranges):
                return self._slice(x, ranges, frozenset())
            case Concat(parts, axis):
                at = -1 if axis == len(shape_of(node)) - 1 else axis
                listed = f"[{', '.join(str(self.fitting(part)) for part in parts)}]"
                return call(f"{self.lib(node)}.concatenate", listed, axis=at)
            case Gather():
                return self._gather(node)
            case Reduce(op, x, axes):
                return self._reduce(node, op, x, axes)
            case Dot():
                return self._dot(node)
            case _:
                raise InternalError("jax.express", f"{type(node).__name__} has no expression")

    def _iota(self, node: Node, extent: Dim, dtype: DType) -> Ex:
        if node in self.narrow.nodes:
            return call("jnp.arange", self.dim(extent), dtype="jnp.int32")
        if dtype in (F16, BF16):  # counted exactly, rounded once
            counted = call(f"{self.lib(node)}.arange", self.dim(extent))
            return counted.method("astype", self.dtype(node, dtype))
        return call(f"{self.lib(node)}.arange", self.dim(extent), dtype=self.dtype(node, dtype))

    def _binary(self, node: Node, op: str, a: Node, b: Node) -> Ex:
        dtype = dtype_of(node)
        left, right = self.aligned((a, b), shape_of(node))
        x, y = left.text, right.text
        if node not in self.narrow.nodes:
            x, y = self._widened(a, x), self._widened(b, y)
        match op:
            case "min" | "max":
                name = "minimum" if op == "min" else "maximum"
                return call(f"{self.lib(node)}.{name}", x, y)
            case "div" | "rem" if dtype.is_integer:
                base = b.x if isinstance(b, Expand) else b
                whole = isinstance(base, Literal) and base.value not in (0, -1)
                x = self.scalar(x, dtype) if left.number else x
                y = self.scalar(y, dtype) if right.number else y
                return call(f"kernels.{'whole' if whole else 'int'}_{op}", x, y)
            case "rem":
                return call(f"{self.lib(node)}.fmod", x, y)
            case "shr":
                return call("jnp.right_shift", x, y)
            case _:
                return infix(INFIX[op], x, y)

    def _widened(self, node: Node, text: Ex) -> Ex:
        if node in self.narrow.nodes and not self._is_number(node):
            return text.method("astype", jax_dtype(I64))
        return text

    def _is_number(self, node: Node) -> bool:
        return (node.x if isinstance(node, Expand) else node) in self.numbers

    def _of_one_width(self, nodes: Sequence[Node], texts: Sequence[Ex]) -> list[Ex]:
        """Operands that JAX compares as they are: a number may not fit 32 bits."""
        if any(self._is_number(x) and x not in self.narrow.nodes for x in nodes):
            return [self._widened(x, text) for x, text in zip(nodes, texts, strict=True)]
        return list(texts)

    def _select(self, node: Node, c: Node, a: Node, b: Node) -> Ex:
        condition, yes, no = self.aligned((c, a, b), shape_of(node))
        chosen = self.scalar(condition.text, BOOL) if condition.number else condition.text
        first, second = yes.text, no.text
        if node not in self.narrow.nodes:
            first, second = self._widened(a, first), self._widened(b, second)
        # Two Python numbers would give JAX's default dtype.
        other = self.scalar(second, dtype_of(node)) if yes.number and no.number else second
        return call(f"{self.lib(node)}.where", chosen, first, other)

    def cast(self, node: Node, value: Ex, source: DType, dtype: DType) -> Ex:
        """The value in another dtype, by the language's rules."""
        if source == dtype:
            return value
        if node in self.narrow.nodes:
            return value if source == I32 else value.method("astype", jax_dtype(I32))
        if node in self.ahead and source.is_float and dtype.is_integer:
            return call("kernels.saturated", value, self.dtype(node, dtype))
        return value.method("astype", self.dtype(node, dtype))

    # ------------------------------------------------------------ shapes

    def _reshape(self, x: Node, shape: tuple[Dim, ...]) -> Ex:
        own = shape_of(x)
        if isinstance(x, Slice) and x not in self.named:
            single = dropped(x, shape)
            if single is not None:
                return self._slice(x.x, x.ranges, single)
        value = self.fitting(x)
        extra = axes_of_one(own, shape)
        if extra is not None:
            return value.method("squeeze", extra)
        extra = axes_of_one(shape, own)
        if extra is not None:
            return value.index(*shortened([*[":"] * extra, "None", *[":"] * (len(own) - extra)]))
        if not shape:
            return value.method("reshape", "()")
        return value.method("reshape", *map(self.dim, shape))

    # ------------------------------------------------------------ gathers

    def _gather(self, node: Gather) -> Ex:
        value = self.fitting(node.x)
        given = [axis for axis, index in enumerate(node.indices) if index is not None]
        if len(given) == 1:
            (axis,) = given
            index, proved = node.indices[axis], node.proved[axis]
            assert index is not None
            base = index.x if isinstance(index, Expand) else index
            if base in self.numbers and not shape_of(index):
                return self._at(value, axis, self.env[base], shape_of(node.x)[axis], proved)
            if axis == 0 or not shape_of(index):
                short = dtype_of(index) == I32 or index in self.narrow.nodes - self.narrow.counted
                if short and self._filled(shape_of(node.x)[axis]):
                    # Positions outside are those at the ends.
                    return call("jnp.take", value, self.fitting(index), axis=axis, mode='"clip"')
                return call("kernels.take", value, self.fitting(index), axis)
        marks = [None if index is None else self.fitting(index) for index in node.indices]
        while marks and marks[-1] is None:
            marks.pop()
        return call("kernels.gather", value, *marks)

    def _at(self, value: Ex, axis: int, position: Ex, extent: Dim, proved: bool) -> Ex:
        """Read at a Python number."""
        if not proved:
            position = call("min", call("max", position, 0), self.dim(extent - 1))
        return value.index(*shortened([*[":"] * axis, str(position)]))

    # ------------------------------------------------------------ sums

    def _reduce(self, node: Node, op: str, x: Node, axes: tuple[int, ...]) -> Ex:
        dtype, rank = dtype_of(x), len(shape_of(x))
        at = [-1 if axis == rank - 1 else axis for axis in axes]
        where = str(at[0]) if len(at) == 1 else bundle(at)
        if op == "sum" and isinstance(x, Cast) and x not in self.named and dtype is F32:
            if dtype_of(x.x) in (F16, BF16):  # raised element by element while it is summed
                return self.full(x.x).method("sum", where, f"dtype={jax_dtype(F32)}")
        value = self.fitting(x) if node in self.narrow.nodes or op in _SUMS else self.full(x)
        match op:
            case "sum" | "prod":
                # Narrow integers would be summed in wider ones.
                typed = [f"dtype={jax_dtype(dtype)}"] if dtype.is_integer else []
                return value.method(op, where, *typed)
            case "max" | "min":
                if all(self._filled(shape_of(x)[axis]) for axis in axes):
                    return value.method(op, where)
                return call("kernels.extremum", f'"{op}"', value, where)
            case _:
                return value.method(op, where)

    def _dot(self, node: Dot) -> Ex:
        """A matrix product where the axes allow one as they stand, else an einsum."""
        dtype = node.dtype
        own = {dtype_of(node.a), dtype_of(node.b)}
        (first,) = own if len(own) == 1 else (None,)
        a, b = self.full(node.a), self.full(node.b)
        named: dict[str, str] = {}
        if first is not None and first.is_float and first != dtype and holds_all(dtype, first):
            # Narrow floats are multiplied as they are, and summed in the wider dtype.
            named = {"preferred_element_type": jax_dtype(dtype)}
        else:
            a, b = (
                text if dtype_of(x) == dtype else text.method("astype", jax_dtype(dtype))
                for x, text in ((node.a, a), (node.b, b))
            )
        product = self._matrices(node, a, b)
        if product is not None:
            return call("jnp.matmul", *product, **named) if named else infix("@", *product)
        names_a, names_b = letters(node)
        shared = {i for i, _ in (*node.batch, *node.contract)}
        used = {j for _, j in (*node.batch, *node.contract)}
        out = [names_a[i] for i, _ in node.batch]
        out += [n for i, n in enumerate(names_a) if i not in shared]
        out += [n for j, n in enumerate(names_b) if j not in used]
        spec = f'"{"".join(names_a)},{"".join(names_b)}->{"".join(out)}"'
        return call("jnp.einsum", spec, a, b, **named)

    def _matrices(self, node: Dot, a: Ex, b: Ex) -> tuple[Ex, Ex] | None:
        """The operands of `@`, if that is what it is: a transposed one would be laid out anew."""
        rank_a, rank_b = len(shape_of(node.a)), len(shape_of(node.b))
        batches = len(node.batch)
        if len(node.contract) != 1 or node.contract[0][0] != rank_a - 1:
            return None
        j = node.contract[0][1]
        leading = node.batch == tuple((k, k) for k in range(batches))
        if leading and j == rank_b - 2 and (rank_a == rank_b == batches + 2 or rank_b == 2):
            return a, b
        return None


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
        return value.method("swapaxes", i, j)
    return value.method("transpose", *order)
