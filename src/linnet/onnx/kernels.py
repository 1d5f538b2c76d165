"""Ops that ONNX has operators for, written in place of the body under the policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from linnet import backends
from linnet.backends import any_call, call_dtype
from linnet.core.derive import dtype_of, shape_of
from linnet.core.ir import Call, Expand, Literal, Node
from linnet.onnx import arrays
from linnet.onnx.elementwise import select
from linnet.onnx.graph import Writer
from linnet.onnx.sizes import Sizes
from linnet.policy import Policy
from linnet.types import F32, F64, I32, I64


class Place(Protocol):
    """The function that is being written."""

    writer: Writer
    sizes: Sizes

    def name(self, node: Node) -> str: ...

    def alike(self, call: Call) -> list[Call]: ...

    def give(self, call: Call, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Kernel(backends.Kernel):
    """An operator that an op is, or what moves its values; `write` writes a call of it."""

    write: Callable[[Place, Call], str] = field(kw_only=True)


# ---------------------------------------------------------------- caches
#
# The runtime refuses positions outside an axis, which the ops leave out.


def _write_span(p: Place, call: Call) -> str:
    """The cache before the values, those of the values that are inside, the cache after them."""
    cache, value, at = call.inputs
    return _spanned(p, call, p.name(cache), p.name(value), p.name(at))


def _spanned(p: Place, call: Call, cache: str, value: str, at: str) -> str:
    w, sizes = p.writer, p.sizes
    extent = sizes.one(shape_of(call.inputs[0])[2])
    count = sizes.one(shape_of(call.inputs[1])[2])
    zero, axis = w.integers([0]), w.integers([2])
    first = w.to(w.op("Reshape", at, w.integers([1])), I32, I64)
    start = _within(w, first, extent)
    stop = _within(w, w.op("Add", first, count), extent)
    begin = _within(w, w.op("Sub", start, first), count)
    end = _within(w, w.op("Sub", stop, first), count)
    before = w.op("Slice", cache, zero, start, axis)
    new = w.op("Slice", value, begin, end, axis)
    after = w.op("Slice", cache, stop, extent, axis)
    return w.op("Concat", before, new, after, axis=2, wish="written")


def _within(w: Writer, x: str, most: str) -> str:
    return w.op("Min", w.op("Max", x, w.integers([0])), most)


def _write_rows(p: Place, call: Call) -> str:
    """The value, or what is there, at the nearest position of each row."""
    cache, value, at = call.inputs
    w, sizes, dtype = p.writer, p.sizes, dtype_of(cache)
    extent = shape_of(cache)[2]
    place = w.op("Unsqueeze", w.to(p.name(at), I32, I64), w.integers([1, 2, 3]))
    near = w.op("Clip", place, w.number(0, I64), sizes.scalar(extent - 1))
    inside = w.op("Equal", place, near)
    index = w.op("Expand", near, sizes.shape(shape_of(value)))
    old = w.op("GatherElements", p.name(cache), index, axis=2)
    new = select(w, inside, p.name(value), old, dtype)
    return w.op("ScatterElements", p.name(cache), index, new, axis=2, wish="written")


def _inside(w: Writer, x: str, extent: str) -> str:
    return w.op("And", w.op("GreaterOrEqual", x, w.number(0, I64)), w.op("Less", x, extent))


def _which(w: Writer, kept: str) -> str:
    """The positions of what is true. (The operator Compress knows no bf16.)"""
    return w.op("Reshape", w.op("NonZero", kept), w.integers([-1]))


def _write_slots(p: Place, call: Call) -> str:
    """Rows that are there are taken, written and put back."""
    cache, value, slots, at = call.inputs
    w, sizes = p.writer, p.sizes
    rows = w.to(p.name(slots), I32, I64)
    kept = _inside(w, rows, sizes.scalar(shape_of(cache)[0]))
    kept = _which(w, kept)
    rows = w.op("Gather", rows, kept)
    new = w.op("Gather", p.name(value), kept)
    old = w.op("Gather", p.name(cache), rows, axis=0)
    written = _spanned(p, call, old, new, p.name(at))
    index = w.op("Unsqueeze", rows, w.integers([1]))
    return w.op("ScatterND", p.name(cache), index, written, wish="written")


def _write_tokens(p: Place, call: Call) -> str:
    """Each token's heads at its row and position."""
    cache, value, rows, at = call.inputs
    w, sizes = p.writer, p.sizes
    b, h, s, _ = shape_of(cache)
    row, place = (w.to(p.name(x), I32, I64) for x in (rows, at))
    kept = w.op("And", _inside(w, row, sizes.scalar(b)), _inside(w, place, sizes.scalar(s)))
    kept = _which(w, kept)
    each = w.op("Concat", sizes.one(h), w.op("Shape", kept), axis=0)
    heads = w.op("Unsqueeze", arrays.iota(w, sizes, h, I64), w.integers([1]))
    parts = [
        w.op("Unsqueeze", w.op("Expand", x, each), w.integers([2]))
        for x in (w.op("Gather", row, kept), heads, w.op("Gather", place, kept))
    ]
    index = w.op("Concat", *parts, axis=2)  # of each head's tokens: row, head, position
    new = w.op("Gather", p.name(value), kept, axis=2)
    own = w.op("Squeeze", new, w.integers([0]))
    return w.op("ScatterND", p.name(cache), index, own, wish="written")


# ---------------------------------------------------------------- functions of numbers


def _elementwise(kind: str, **attributes: Any) -> Callable[[Place, Call], str]:
    """An operator of f32, or of f64 where the op computes in its own dtype."""

    def write(p: Place, call: Call) -> str:
        (x,), w, dtype = call.inputs, p.writer, call_dtype(call)
        wide = F64 if kind == "Sigmoid" and dtype == F64 else F32
        made = w.op(kind, w.to(p.name(x), dtype, wide), **attributes)
        return w.to(made, wide, dtype_of(call.function.results[0]))

    return write


def _normal(kind: str) -> Callable[[Place, Call], str]:
    """A normalisation of the last axis, in f32 with the weight and the bias."""

    def write(p: Place, call: Call) -> str:
        w, dtype = p.writer, call_dtype(call)
        given = [w.to(p.name(x), dtype, F32) for x in call.inputs[:-1]]
        made = w.op(kind, *given, axis=-1, epsilon=_number(call.inputs[-1]), stash_type=1)
        return w.to(made, F32, dtype)

    return write


def _number(node: Node) -> float | None:
    while isinstance(node, Expand):
        node = node.x
    return float(node.value) if isinstance(node, Literal) else None


def _in_one_step(call: Call) -> str | None:
    """Takes calls whose body rounds but once, as the kernel does."""
    return None if call_dtype(call) in (F32, F64) else f"rounds {call_dtype(call)} once"


def _normal_whole(call: Call) -> str | None:
    if call_dtype(call) != F32:
        return f"computes in f32, and the input is {call_dtype(call)}"
    return _normal_any(call)


def _normal_any(call: Call) -> str | None:
    if call_dtype(call) == F64:
        return "computes in f32, and the input is f64"
    return None if _number(call.inputs[-1]) is not None else "`eps` is no constant"


def _steps(kind: str, write: Callable[[Place, Call], str]) -> tuple[Kernel, ...]:
    """Floats of 16 bits are rounded once instead of at each step: that is for `fast`."""
    return (
        Kernel("equivalent", kind, (), _in_one_step, write=write),
        Kernel("fast", kind, (), write=write),
    )


def _normals(kind: str) -> tuple[Kernel, ...]:
    write = _normal(kind)
    return (
        Kernel("equivalent", kind, (), _normal_whole, write=write),
        Kernel("fast", kind, (), _normal_any, write=write),
    )


def _one(policy: Policy, kind: str, write: Callable[[Place, Call], str]) -> tuple[Kernel, ...]:
    return (Kernel(policy, kind, (), any_call, write=write),)


KERNELS: dict[str, tuple[Kernel, ...]] = {
    "std.nn.cache::write_at": _one("exact", "Concat", _write_span),
    "std.nn.cache::write_span": _one("exact", "Concat", _write_span),
    "std.nn.cache::write_rows": _one("exact", "ScatterElements", _write_rows),
    # Rows are distinct: of two that are one the op says which is kept.
    "std.nn.cache::write_slots": _one("equivalent", "ScatterND", _write_slots),
    # Of those that name one place any may be kept.
    "std.nn.cache::write_tokens": _one("equivalent", "ScatterND", _write_tokens),
    "std.nn.activations::sigmoid": _steps("Sigmoid", _elementwise("Sigmoid")),
    "std.nn.activations::gelu": _one(
        "equivalent", "Gelu", _elementwise("Gelu", approximate="tanh")
    ),
    "std.nn.activations::gelu_erf": _one("equivalent", "Gelu", _elementwise("Gelu")),
    "std.nn.softmax::softmax": _one("equivalent", "Softmax", _elementwise("Softmax", axis=-1)),
    "std.nn.loss::log_softmax": _one(
        "equivalent", "LogSoftmax", _elementwise("LogSoftmax", axis=-1)
    ),
    "std.nn.norm::rms_norm": _normals("RMSNormalization"),
    "std.nn.norm::layer_norm": _normals("LayerNormalization"),
}
