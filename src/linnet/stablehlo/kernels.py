"""Ops that StableHLO has an operation for, written in place of the body under the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from linnet.core.derive import dtype_of
from linnet.core.ir import Call, Node
from linnet.policy import Policy
from linnet.stablehlo.text import Extent, tensor_type
from linnet.types import I32, DType


class Writer(Protocol):
    """The function that is being written."""

    def name(self, node: Node) -> str: ...
    def given(self, node: Node, type: str) -> str: ...
    def types(self, node: Node) -> list[str]: ...
    def shape_of(self, node: Node) -> list[Extent]: ...
    def op(self, text: str, type: str, wish: str = "") -> str: ...
    def raw(self, head: str, lines: Sequence[str], tail: str, wish: str = "") -> str: ...
    def iota(self, shape: Sequence[Extent], dtype: DType, wish: str = "") -> str: ...
    def reshape(
        self, x: str, type: str, shape: Sequence[Extent], dtype: DType, wish: str = ""
    ) -> str: ...
    def broadcast(
        self,
        x: str,
        type: str,
        shape: Sequence[Extent],
        dtype: DType,
        axes: Sequence[int],
        wish: str = "",
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class Kernel:
    """How a call of an op is written: the strictest policy that allows it, and what writes it."""

    policy: Policy
    write: Callable[[Writer, Call], str]


def _scattered(
    w: Writer,
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


def _positions(w: Writer, at: Node, count: Extent) -> tuple[str, str]:
    """`at`, `at + 1`, ...: `[count, 1]`, i32."""
    type = tensor_type((count, 1), I32)
    counted = w.iota((count, 1), I32)
    first = w.broadcast(w.name(at), "tensor<i32>", (count, 1), I32, ())
    return w.op(f"stablehlo.add {counted}, {first}", type), type


def _write_span(w: Writer, call: Call) -> str:
    cache, value, at = call.inputs
    places, type = _positions(w, at, w.shape_of(value)[2])
    numbers = (
        "update_window_dims = [0, 1, 3], inserted_window_dims = [2], "
        "scatter_dims_to_operand_dims = [2], index_vector_dim = 1"
    )
    return _scattered(w, call, cache, w.name(value), w.types(value)[0], places, type, numbers)


def _pairs(
    w: Writer, rows: str, rows_type: str, at: str, at_type: str, shape: Sequence[Extent]
) -> tuple[str, str]:
    """`[*shape, 2]`: a row and a position for each value."""
    own = tensor_type([*shape, 1], I32)
    sides = [
        w.reshape(name, type, [*shape, 1], I32) for name, type in ((rows, rows_type), (at, at_type))
    ]
    to = tensor_type([*shape, 2], I32)
    text = f"stablehlo.concatenate {', '.join(sides)}, dim = {len(shape)}"
    return w.op(text, f"({own}, {own}) -> {to}"), to


def _write_rows(w: Writer, call: Call) -> str:
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


def _write_tokens(w: Writer, call: Call) -> str:
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


KERNELS: dict[str, Kernel] = {
    "std.nn.cache::write_at": Kernel("exact", _write_span),
    "std.nn.cache::write_span": Kernel("exact", _write_span),
    "std.nn.cache::write_rows": Kernel("exact", _write_rows),
    # Of those that name one place any may be kept.
    "std.nn.cache::write_tokens": Kernel("equivalent", _write_tokens),
}
