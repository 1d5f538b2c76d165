"""A mixture's products, each row with the matrices of its own experts and no others.

The bodies of `std.nn.moe` multiply every row with every matrix. Here rows of one expert stand
together, in blocks of so many rows as an expert has on average; a block has one expert, and a loop
multiplies block after block. The last block of an expert is filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from linnet.core.derive import dtype_of
from linnet.core.ir import Call, Node, Result
from linnet.core.scalars import holds_all
from linnet.stablehlo.text import listed, tensor_type
from linnet.types import BOOL, F32, I32, I64, U16, DType

if TYPE_CHECKING:
    from linnet.stablehlo.emit import Body

LARGEST = 64  # rows in a block
FEW = 4  # matrices take as long made together as one made alone
# Ops that make the matrix of each expert from its own part of their inputs, and the dimension that
# counts the experts. Where few experts are used the loop makes those alone.
MADE = {"std.quant::dequantize_mxfp4": "Experts"}


def accepts(w: Body, call: Call) -> bool:
    """Whether all sizes are numbers, none of them 0, and rows leave experts out.

    Rows are counted in 32 bits.
    """
    shapes = [size for x in call.inputs for size in w.shape_of(x)]
    if not all(isinstance(size, int) and size for size in shapes):
        return False
    (rows, each), (count, _, _) = w.shape_of(call.inputs[2]), w.shape_of(call.inputs[1])
    assert isinstance(rows, int) and isinstance(each, int) and isinstance(count, int)
    return 2 * each <= count and rows * each + LARGEST * count < 2**31


def made_by(w: Body, call: Call) -> Call | None:
    """The call that makes the matrices, if they are made one by one."""
    count, *_ = w.shape_of(call.inputs[1])
    rows, each = w.shape_of(call.inputs[2])
    assert isinstance(count, int) and isinstance(rows, int) and isinstance(each, int)
    match call.inputs[1]:
        case Result(Call() as made) if str(made.function.op) in MADE and rows * each * FEW <= count:
            return made
        case _:
            return None


def reads(w: Body, call: Call) -> tuple[Node, ...]:
    """The inputs, but what the matrices are made from in place of them."""
    made = made_by(w, call)
    if made is None:
        return call.inputs
    return (call.inputs[0], *made.inputs, *call.inputs[2:])


def products(w: Body, call: Call) -> str:
    """`linear_experts` and `linear_experts_shared`."""
    text = _Text(w)
    return text.cast(_products(text, call), dtype_of(call.inputs[0])).name


def combined(w: Body, call: Call) -> str:
    """`combine_experts`."""
    text = _Text(w)
    own = _products(text, call)
    weights = text.cast(text.of(call.inputs[3]), F32)
    scaled = text.binary("multiply", text.spread(weights, own.shape, (0, 1)), own)
    return text.cast(text.total(scaled, 1), dtype_of(call.inputs[0])).name


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value: its name, and what it is."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def type(self) -> str:
        return tensor_type(self.shape, self.dtype)


class _Text:
    """Operations on tensors of known sizes."""

    def __init__(self, w: Body) -> None:
        self.w = w

    def of(self, x: Node) -> Tensor:
        """The value of a node."""
        shape = [size for size in self.w.shape_of(x) if isinstance(size, int)]
        return Tensor(self.w.name(x), tuple(shape), dtype_of(x))

    def op(self, text: str, taken: Sequence[Tensor], shape: Sequence[int], dtype: DType) -> Tensor:
        """Typed as `(taken) -> result`."""
        types = ", ".join(x.type for x in taken)
        name = self.w.op(f"stablehlo.{text}", f"({types}) -> {tensor_type(shape, dtype)}")
        return Tensor(name, tuple(shape), dtype)

    def number(self, value: int, shape: Sequence[int] = (), dtype: DType = I32) -> Tensor:
        return Tensor(self.w.constant(value, shape, dtype), tuple(shape), dtype)

    def iota(self, shape: Sequence[int], axis: int) -> Tensor:
        type = tensor_type(shape, I32)
        return Tensor(self.w.op(f"stablehlo.iota dim = {axis}", type), tuple(shape), I32)

    def cast(self, x: Tensor, dtype: DType) -> Tensor:
        to = tensor_type(x.shape, dtype)
        return Tensor(self.w.convert(x.name, x.type, to), x.shape, dtype)

    def reshape(self, x: Tensor, *shape: int) -> Tensor:
        return self.op(f"reshape {x.name}", [x], shape, x.dtype)

    def spread(self, x: Tensor, shape: Sequence[int], axes: Sequence[int]) -> Tensor:
        """x repeated, its axis `i` at `axes[i]`."""
        text = f"broadcast_in_dim {x.name}, dims = {listed(axes)}"
        return self.op(text, [x], shape, x.dtype)

    def binary(self, op: str, a: Tensor, b: Tensor) -> Tensor:
        return Tensor(self.w.op(f"stablehlo.{op} {a.name}, {b.name}", a.type), a.shape, a.dtype)

    def compare(self, op: str, a: Tensor, b: Tensor) -> Tensor:
        return Tensor(self.w.compare(op, a.name, b.name, a.type, a.dtype), a.shape, BOOL)

    def total(self, x: Tensor, axis: int) -> Tensor:
        """The sum along an axis; of bools, how many are true."""
        x = self.cast(x, I32) if x.dtype is BOOL else x
        zero = self.number(0, (), x.dtype)
        shape = x.shape[:axis] + x.shape[axis + 1 :]
        text = (
            f"reduce({x.name} init: {zero.name}) applies stablehlo.add across dimensions = [{axis}]"
        )
        return self.op(text, [x, zero], shape, x.dtype)

    def where(self, c: Tensor, a: Tensor) -> Tensor:
        """a where c holds, else 0."""
        zero = self.number(0, a.shape, a.dtype)
        text = f"stablehlo.select {c.name}, {a.name}, {zero.name}"
        return Tensor(self.w.op(text, f"{c.type}, {a.type}"), a.shape, a.dtype)

    def part(self, x: Tensor, at: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        """A part of this shape, from a place on."""
        names = ", ".join([x.name, *(i.name for i in at)])
        return self.op(f"dynamic_slice {names}, sizes = {listed(shape)}", [x, *at], shape, x.dtype)

    def put(self, x: Tensor, part: Tensor, at: Sequence[Tensor]) -> Tensor:
        """x with a part replaced, from a place on."""
        names = ", ".join([x.name, part.name, *(i.name for i in at)])
        return self.op(f"dynamic_update_slice {names}", [x, part, *at], x.shape, x.dtype)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Rows in blocks: all rows, the expert of each block, how many there are, where each row is."""

    rows: Tensor
    expert: Tensor
    count: Tensor
    place: Tensor | None


def _products(text: _Text, call: Call) -> Tensor:
    """Every row times the matrices of its experts, `[R, K, Out]` in f32."""
    x, chosen, weight = text.of(call.inputs[0]), text.of(call.inputs[2]), _matrices(text, call)
    rows, each = chosen.shape
    count, out, width = weight.shape
    if not holds_all(F32, x.dtype):
        x = text.cast(x, F32)
    flat = rows * each
    if len(x.shape) == 2:
        x = text.spread(x, (rows, each, width), (0, 2))
    x = text.reshape(x, flat, width)
    low, high = text.number(0, (), I64), text.number(count - 1, (), I64)
    expert = text.reshape(chosen, flat)
    clamped = f"clamp {low.name}, {expert.name}, {high.name}"
    expert = text.cast(text.op(clamped, [low, expert, high], (flat,), I64), I32)
    size = 1
    while size < LARGEST and size * count < flat:
        size *= 2
    blocks = _Blocks(x, expert, text.number(flat), None)
    if size > 1:
        blocks = _grouped(text, x, expert, count, size)
    made = _multiplied(text, blocks, weight, size)
    if blocks.place is not None:
        made = _rows_at(text, made, blocks.place)
    return text.reshape(made, rows, each, out)


def _grouped(text: _Text, x: Tensor, expert: Tensor, count: int, size: int) -> _Blocks:
    """Rows of one expert together, in blocks of `size`."""
    flat, width = x.shape
    own = text.compare("eq", text.spread(expert, (flat, count), (0,)), text.iota((flat, count), 1))
    filled = text.binary("add", text.total(own, 0), text.number(size - 1, (count,)))
    used = text.binary("divide", filled, text.number(size, (count,)))
    square = (count, count)
    before = text.compare("le", text.iota(square, 1), text.iota(square, 0))
    ends = text.total(text.where(before, text.spread(used, square, (1,))), 1)
    firsts = text.binary("subtract", ends, used)
    first = text.total(text.where(own, text.spread(firsts, (flat, count), (1,))), 1)
    square = (flat, flat)
    same = text.compare("eq", text.spread(expert, square, (0,)), text.spread(expert, square, (1,)))
    earlier = text.compare("lt", text.iota(square, 1), text.iota(square, 0))
    rank = text.total(text.binary("and", same, earlier), 1)
    start = text.binary("multiply", first, text.number(size, (flat,)))
    place = text.reshape(text.binary("add", start, rank), flat, 1)
    most = min(flat, flat // size + count)
    passed = text.compare("le", text.spread(ends, (most, count), (1,)), text.iota((most, count), 0))
    last = text.number(count - 1, (most,))
    of_block = text.binary("minimum", text.total(passed, 1), last)
    end = text.op(f"slice {ends.name} [{count - 1}:{count}]", [ends], (1,), I32)
    rows = _scattered(text, text.number(0, (most * size, width), x.dtype), place, x)
    return _Blocks(rows, of_block, text.reshape(end), place)


@dataclass(frozen=True, slots=True)
class _Matrices:
    """A matrix for each expert: what has a part for each, and what makes one of its parts."""

    shape: tuple[int, ...]
    parts: tuple[Tensor, ...]
    make: Callable[[Sequence[Tensor]], Tensor]


def _matrices(text: _Text, call: Call) -> _Matrices:
    w, made = text.w, made_by(text.w, call)
    count, out, width = (size for size in w.shape_of(call.inputs[1]) if isinstance(size, int))
    dtype = dtype_of(call.inputs[1])

    def fitted(own: Tensor) -> Tensor:
        return own if holds_all(F32, dtype) else text.cast(own, F32)

    if made is not None:
        parts = tuple(text.of(x) for x in made.inputs)
        function, counted = made.function, MADE[str(made.function.op)]
        one = [
            1 if name == counted else w.sizes.extent(dim)
            for name, dim in zip(function.dims, made.dims, strict=True)
        ]

        def call_of(taken: Sequence[Tensor]) -> Tensor:
            names, types = [x.name for x in taken], [x.type for x in taken]
            (name,), _ = w.called(function, one, names, types)
            return fitted(text.reshape(Tensor(name, (1, out, width), dtype), out, width))

        return _Matrices((count, out, width), parts, call_of)

    weight = text.of(call.inputs[1])
    # As bits: processors that do not know the dtype would convert every matrix beforehand.
    hidden = dtype.bits == 16
    if hidden:
        weight = text.op(f"bitcast_convert {weight.name}", [weight], weight.shape, U16)

    def part_of(taken: Sequence[Tensor]) -> Tensor:
        own = text.reshape(taken[0], out, width)
        if hidden:
            own = text.op(f"bitcast_convert {own.name}", [own], own.shape, dtype)
        return fitted(own)

    return _Matrices((count, out, width), (weight,), part_of)


def _multiplied(text: _Text, blocks: _Blocks, weight: _Matrices, size: int) -> Tensor:
    """The products of each block with the matrix of its expert, in f32."""
    w = text.w
    _, out, width = weight.shape
    begun = text.number(0, (blocks.rows.shape[0], out), F32)

    def test(names: Sequence[str]) -> list[str]:
        return [text.compare("lt", Tensor(names[0], (), I32), blocks.count).name]

    def body(names: Sequence[str]) -> list[str]:
        turn, made = Tensor(names[0], (), I32), Tensor(names[1], begun.shape, F32)
        zero = text.number(0)
        at = text.binary("multiply", turn, text.number(size))
        rows = text.part(blocks.rows, [at, zero], (size, width))
        expert = text.reshape(text.part(blocks.expert, [turn], (1,)))
        own = weight.make(
            [
                text.part(x, [expert, *[zero] * (len(x.shape) - 1)], (1, *x.shape[1:]))
                for x in weight.parts
            ]
        )
        precision = listed([w.precision] * 2)
        product = text.op(
            f"dot_general {rows.name}, {own.name}, contracting_dims = [1] x [1], "
            f"precision = {precision}",
            [rows, own],
            (size, out),
            F32,
        )
        following = text.binary("add", turn, text.number(1))
        return [following.name, text.put(made, product, [at, zero]).name]

    first = text.number(0)
    ended = w.loop([first.name, begun.name], [first.type, begun.type], test, body)
    return Tensor(ended[1], begun.shape, F32)


def _scattered(text: _Text, into: Tensor, place: Tensor, rows: Tensor) -> Tensor:
    """The rows at their places, of which none is there twice."""
    scalar = tensor_type((), into.dtype)
    numbers = (
        "update_window_dims = [1], inserted_window_dims = [0], "
        "scatter_dims_to_operand_dims = [0], index_vector_dim = 1"
    )
    name = text.w.raw(
        f'"stablehlo.scatter"({into.name}, {place.name}, {rows.name}) <{{indices_are_sorted = '
        f"false, scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, "
        "unique_indices = true}> ({",
        [f"^bb0(%old: {scalar}, %new: {scalar}):", f"  stablehlo.return %new : {scalar}"],
        f"}}) : ({into.type}, {place.type}, {rows.type}) -> {into.type}",
    )
    return Tensor(name, into.shape, into.dtype)


def _rows_at(text: _Text, x: Tensor, place: Tensor) -> Tensor:
    shape = (place.shape[0], x.shape[1])
    numbers = (
        "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1"
    )
    made = tensor_type(shape, x.dtype)
    sizes = (1, x.shape[1])
    name = text.w.gather(x.name, x.type, place.name, place.type, numbers, sizes, made)
    return Tensor(name, shape, x.dtype)
