"""Ops that StableHLO has an operation for, written in place of the body under the policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from linnet.core.derive import dtype_of
from linnet.core.ir import Call, Node, ResultsType
from linnet.core.scalars import holds_all
from linnet.policy import Policy
from linnet.stablehlo import experts
from linnet.stablehlo.text import Extent, listed, tensor_type
from linnet.types import F32, I32, TensorType

if TYPE_CHECKING:
    from linnet.stablehlo.emit import Body

# The names that a region gives for the names of what it carries.
Region = Callable[[Sequence[str]], list[str]]


def _always(w: Body, call: Call) -> bool:
    return True


def _inputs(w: Body, call: Call) -> tuple[Node, ...]:
    return call.inputs


@dataclass(frozen=True, slots=True)
class Kernel:
    """How a call of an op is written: the strictest policy that allows it, and what writes it.

    A call that it does not accept is written as the body says. `reads` are the nodes that it asks
    for, and which are written before it.
    """

    policy: Policy
    write: Callable[[Body, Call], str]
    accepts: Callable[[Body, Call], bool] = _always
    reads: Callable[[Body, Call], tuple[Node, ...]] = _inputs


def _scattered(
    w: Body,
    call: Call,
    cache: Node,
    value: str,
    value_type: str,
    places: str,
    places_type: str,
    numbers: str,
) -> str:
    """The cache with values at places; what lies outside is left out, as the ops have it."""
    scalar = tensor_type((), dtype_of(cache))
    type = w.types(call)[0]
    old = w.given(cache, type)
    head = (
        f'"stablehlo.scatter"({old}, {places}, {value}) <{{indices_are_sorted = false, '
        f"scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, unique_indices = false}}> ({{"
    )
    body = [f"^bb0(%old: {scalar}, %new: {scalar}):", f"  stablehlo.return %new : {scalar}"]
    return w.raw(head, body, f"}}) : ({type}, {places_type}, {value_type}) -> {type}", "written")


def _positions(w: Body, at: Node, count: Extent) -> tuple[str, str]:
    """`at`, `at + 1`, ...: `[count, 1]`, i32."""
    type = tensor_type((count, 1), I32)
    counted = w.iota((count, 1), I32)
    first = w.broadcast(w.name(at), "tensor<i32>", (count, 1), I32, ())
    return w.op(f"stablehlo.add {counted}, {first}", type), type


def write_span(w: Body, call: Call) -> str:
    cache, value, at = call.inputs
    places, type = _positions(w, at, w.shape_of(value)[2])
    numbers = (
        "update_window_dims = [0, 1, 3], inserted_window_dims = [2], "
        "scatter_dims_to_operand_dims = [2], index_vector_dim = 1"
    )
    return _scattered(w, call, cache, w.name(value), w.types(value)[0], places, type, numbers)


def _pairs(
    w: Body, rows: str, rows_type: str, at: str, at_type: str, shape: Sequence[Extent]
) -> tuple[str, str]:
    """`[*shape, 2]`: a row and a position for each value."""
    own = tensor_type([*shape, 1], I32)
    sides = [
        w.reshape(name, type, [*shape, 1], I32) for name, type in ((rows, rows_type), (at, at_type))
    ]
    to = tensor_type([*shape, 2], I32)
    text = f"stablehlo.concatenate {', '.join(sides)}, dim = {len(shape)}"
    return w.op(text, f"({own}, {own}) -> {to}"), to


def _write_rows(w: Body, call: Call) -> str:
    cache, value, at = call.inputs
    count, heads, _, width = w.shape_of(value)
    type = tensor_type((count,), I32)
    rows = w.iota((count,), I32)
    places, places_type = _pairs(w, rows, type, w.name(at), w.types(at)[0], (count,))
    own = tensor_type((count, heads, width), dtype_of(value))
    flat = w.reshape(w.name(value), w.types(value)[0], (count, heads, width), dtype_of(value))
    numbers = (
        "update_window_dims = [1, 2], inserted_window_dims = [0, 2], "
        "scatter_dims_to_operand_dims = [0, 2], index_vector_dim = 1"
    )
    return _scattered(w, call, cache, flat, own, places, places_type, numbers)


def _write_tokens(w: Body, call: Call) -> str:
    cache, value, rows, at = call.inputs
    _, heads, count, width = w.shape_of(value)
    sides = w.name(rows), w.types(rows)[0], w.name(at), w.types(at)[0]
    sides = w.name(rows), w.types(rows)[0], w.name(at), w.types(at)[0]
    places, places_type = _pairs(w, *sides, (count,))
    own = tensor_type((heads, count, width), dtype_of(value))
    flat = w.reshape(w.name(value), w.types(value)[0], (heads, count, width), dtype_of(value))
    numbers = (
        "update_window_dims = [0, 2], inserted_window_dims = [0, 2], "
        "scatter_dims_to_operand_dims = [0, 2], index_vector_dim = 1"
    )
    return _scattered(w, call, cache, flat, own, places, places_type, numbers)


# ---------------------------------------------------------------- convolutions


def _convolution(*axes: tuple[str, str]) -> Kernel:
    """`stablehlo.convolution`; the dimensions that are the stride and the padding of each axis.

    Where windows do not overlap, the body is a product of what is moved once: that is as fast.
    """

    def sizes(w: Body, call: Call) -> list[tuple[Extent, Extent]]:
        bound = dict(zip(call.function.dims, map(w.sizes.extent, call.dims), strict=True))
        return [(bound[stride], bound[pad]) for stride, pad in axes]

    def accepts(w: Body, call: Call) -> bool:
        told = sizes(w, call)
        strides = [stride for stride, _ in told if isinstance(stride, int)]
        windows = w.shape_of(call.inputs[1])[2:]
        known = len(strides) == len(axes) and all(isinstance(pad, int) for _, pad in told)
        return known and any(
            isinstance(window, int) and stride < window
            for stride, window in zip(strides, windows, strict=True)
        )

    def write(w: Body, call: Call) -> str:
        return _convolved(w, call, sizes(w, call))

    return Kernel("equivalent", write, accepts)


def _convolved(w: Body, call: Call, axes: Sequence[tuple[Extent, Extent]]) -> str:
    x, weight, *bias = call.inputs
    assert isinstance(call.type, ResultsType)
    of = call.type.items[0]
    assert isinstance(of, TensorType)
    shape, dtype, type = w.sizes.extents(of.shape), dtype_of(x), w.type(of)
    summed = dtype if holds_all(dtype, F32) else F32
    spatial = ", ".join(map(str, range(len(axes))))
    strides = listed(stride for stride, _ in axes)
    pads = listed(listed((pad, pad)) for _, pad in axes)
    precision = listed([f"#stablehlo<precision {w.precision}>"] * 2)
    numbers = f"[b, f, {spatial}]x[o, i, {spatial}]->[b, f, {spatial}]"
    made = w.op(
        f"stablehlo.convolution({w.name(x)}, {w.name(weight)}) dim_numbers = {numbers}, "
        f"window = {{stride = {strides}, pad = {pads}}} {{batch_group_count = 1 : i64, "
        f"feature_group_count = 1 : i64, precision_config = {precision}}}",
        f"({w.types(x)[0]}, {w.types(weight)[0]}) -> {tensor_type(shape, summed)}",
        "convolved",
    )
    made = w.convert(made, tensor_type(shape, summed), type)
    for shift in bias:
        along = w.broadcast(w.name(shift), w.types(shift)[0], shape, dtype, (1,))
        made = w.op(f"stablehlo.add {made}, {along}", type)
    return made


def _mixture(write: Callable[[Body, Call], str]) -> Kernel:
    return Kernel("equivalent", write, experts.accepts, experts.reads)


KERNELS: Mapping[str, Kernel] = {
    "std.nn.cache::write_at": Kernel("exact", write_span),
    "std.nn.cache::write_span": Kernel("exact", write_span),
    "std.nn.cache::write_rows": Kernel("exact", _write_rows),
    # Of those that name one place any may be kept.
    "std.nn.cache::write_tokens": Kernel("equivalent", _write_tokens),
    "std.nn.conv::conv1d": _convolution(("Stride", "Pad")),
    "std.nn.conv::conv2d": _convolution(("Stride", "Pad"), ("Stride", "Pad")),
    "std.nn.conv::conv2d_rect": _convolution(("StrideH", "PadH"), ("StrideW", "PadW")),
    "std.nn.moe::linear_experts": _mixture(experts.products),
    "std.nn.moe::linear_experts_shared": _mixture(experts.products),
    "std.nn.moe::combine_experts": _mixture(experts.combined),
}
