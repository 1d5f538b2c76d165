"""Ops that StableHLO has an operation for, written in place of the body under the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from linnet.core.derive import dtype_of
from linnet.core.ir import Call, Node
from linnet.policy import Policy
from linnet.stablehlo.text import tensor_type
from linnet.types import I32, DType

# The names that a region gives for the names of what it carries.
Region = Callable[[Sequence[str]], list[str]]


class Writer(Protocol):
    """The function that is being written."""

    def name(self, node: Node) -> str: ...
    def types(self, node: Node) -> list[str]: ...
    def shape_of(self, node: Node) -> list[int]: ...
    def op(self, text: str, type: str, wish: str = "") -> str: ...
    def raw(self, head: str, lines: Sequence[str], tail: str, wish: str = "") -> str: ...
    def constant(self, value: float, shape: Sequence[int], dtype: DType) -> str: ...
    def loop(
        self, carried: Sequence[str], types: Sequence[str], test: Region, body: Region
    ) -> list[str]: ...
    @property
    def policy(self) -> Policy: ...
    @property
    def precision(self) -> str: ...


def _always(w: Writer, call: Call) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Kernel:
    """How a call of an op is written: the strictest policy that allows it, and what writes it.

    A call that it does not accept is written as the body says.
    """

    policy: Policy
    write: Callable[[Writer, Call], str]
    accepts: Callable[[Writer, Call], bool] = _always


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
    head = (
        f'"stablehlo.scatter"({w.name(cache)}, {places}, {value}) <{{indices_are_sorted = false, '
        f"scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, unique_indices = false}}> ({{"
    )
    body = [f"^bb0(%old: {scalar}, %new: {scalar}):", f"  stablehlo.return %new : {scalar}"]
    type = w.types(cache)[0]
    return w.raw(head, body, f"}}) : ({type}, {places_type}, {value_type}) -> {type}", "written")


def _positions(w: Writer, at: Node, count: int) -> tuple[str, str]:
    """`at`, `at + 1`, ...: `[count, 1]`, i32."""
    type = tensor_type((count, 1), I32)
    counted = w.op("stablehlo.iota dim = 0", type)
    first = w.op(f"stablehlo.broadcast_in_dim {w.name(at)}, dims = []", f"(tensor<i32>) -> {type}")
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
    w: Writer, rows: str, rows_type: str, at: str, at_type: str, shape: Sequence[int]
) -> tuple[str, str]:
    """`[*shape, 2]`: a row and a position for each value."""
    own = tensor_type([*shape, 1], I32)
    sides = [
        w.op(f"stablehlo.reshape {name}", f"({type}) -> {own}")
        for name, type in ((rows, rows_type), (at, at_type))
    ]
    to = tensor_type([*shape, 2], I32)
    text = f"stablehlo.concatenate {', '.join(sides)}, dim = {len(shape)}"
    return w.op(text, f"({own}, {own}) -> {to}"), to


def _write_rows(w: Writer, call: Call) -> str:
    cache, value, at = call.inputs
    count, heads, _, width = w.shape_of(value)
    type = tensor_type((count,), I32)
    rows = w.op("stablehlo.iota dim = 0", type)
    places, places_type = _pairs(w, rows, type, w.name(at), type, (count,))
    own = tensor_type((count, heads, width), dtype_of(value))
    flat = w.op(f"stablehlo.reshape {w.name(value)}", f"({w.types(value)[0]}) -> {own}")
    numbers = (
        "update_window_dims = [1, 2], inserted_window_dims = [0, 2], "
        "scatter_dims_to_operand_dims = [0, 2], index_vector_dim = 1"
    )
    return _scattered(w, call, cache, flat, own, places, places_type, numbers)


def _write_tokens(w: Writer, call: Call) -> str:
    cache, value, rows, at = call.inputs
    _, heads, count, width = w.shape_of(value)
    type = tensor_type((count,), I32)
    places, places_type = _pairs(w, w.name(rows), type, w.name(at), type, (count,))
    own = tensor_type((heads, count, width), dtype_of(value))
    flat = w.op(f"stablehlo.reshape {w.name(value)}", f"({w.types(value)[0]}) -> {own}")
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
