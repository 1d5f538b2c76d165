"""Ops as operators of our own in C, which read weights of 16 bits as they lie.

They are the kernels of `linnet.native` behind ONNX Runtime's interface for operators, on its CPU
provider alone and only in sessions that `load_model` makes: a model in a file has none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from linnet import native
from linnet.backends import Kernels, call_dtype
from linnet.core.derive import dtype_of, shape_of
from linnet.core.ir import Call
from linnet.onnx import elementwise
from linnet.onnx.kernels import KERNELS, Kernel, Place
from linnet.types import BF16, F16, F32

DOMAIN = "linnet.native"
_DTYPES = (F32, BF16, F16)


def library() -> str | None:
    """The file of the operators; None where there is no C compiler, or LINNET_NATIVE=0 asks so."""
    found = native.library()
    return None if found is None else found._name


def kernels() -> Kernels:
    """What a session on the CPU provider has in place of bodies."""
    return KERNELS if library() is None else WITH_NATIVE


def threads(count: int | None) -> None:
    """The operators that this thread calls use so many threads."""
    found: Any = native.library()
    if found is not None and count is not None:
        found.omp_set_num_threads(count)


def _op(name: str) -> Callable[[Place, Call], str]:
    """The operator of the call's dtype on all that it is given."""

    def write(p: Place, call: Call) -> str:
        return _written(p, name, call, [p.name(x) for x in call.inputs])

    return write


def _written(p: Place, name: str, call: Call, given: list[str]) -> str:
    return p.writer.op(f"{name}_{call_dtype(call)}", *given, domain=DOMAIN, wish=name)


_TOGETHER = 3  # products of one input


def _linear(p: Place, call: Call) -> str:
    """The product, rounded, and then the bias; with it the products of its input that follow."""
    dtype = call_dtype(call)
    calls = [call, *p.alike(call)][:_TOGETHER]
    if len(calls) == 1:
        made = [_written(p, "linear", call, [p.name(x) for x in call.inputs[:2]])]
    else:
        given = [p.name(call.inputs[0]), *(p.name(one.inputs[1]) for one in calls)]
        kind = f"linear_{len(calls)}_{dtype}"
        made = p.writer.ops(kind, given, ["linear"] * len(calls), domain=DOMAIN)
    found = [
        elementwise.binary(p.writer, "add", x, p.name(one.inputs[2]), dtype, None)
        if len(one.inputs) > 2
        else x
        for one, x in zip(calls, made, strict=True)
    ]
    for one, name in zip(calls[1:], found[1:], strict=True):
        p.give(one, name)
    return found[0]


_AXES = 8  # as many has a Tensor of onnx.c


def _floats(call: Call) -> str | None:
    dtype, axes = call_dtype(call), max(len(shape_of(x)) for x in call.inputs)
    if axes > _AXES:
        return f"takes {_AXES} axes at most, not {axes}"
    return None if dtype in _DTYPES else f"reads f32, bf16 and f16, and the input is {dtype}"


def _plain_attention(call: Call) -> str | None:
    """Takes queries, keys and values of one dtype, and of whole vectors."""
    named = {param.name for param in call.function.params}
    for extra in ("window", "sinks"):
        if extra in named:
            return f"takes no `{extra}`"
    if len({dtype_of(x) for x in call.inputs[:3]}) > 1:
        return "needs keys and values in the queries' dtype"
    width, keys = shape_of(call.inputs[0])[3].constant, shape_of(call.inputs[1])[2].constant
    if width is None or width % 16 or not 0 < width <= 256:
        return f"needs heads of a multiple of 16 up to 256, not {shape_of(call.inputs[0])[3]}"
    return _floats(call) if keys else "needs a number of keys that is known"


def _one(
    name: str,
    write: Callable[[Place, Call], str] | None = None,
    accepts: Callable[[Call], str | None] = _floats,
) -> tuple[Kernel, ...]:
    return (Kernel("fast", f"native.{name}", (), accepts, write=write or _op(name)),)


# In place of the operators of ONNX, where these are refused.
NATIVE: dict[str, tuple[Kernel, ...]] = {
    "std.nn.cache::write_at": _one("write_span"),
    "std.nn.cache::write_span": _one("write_span"),
    "std.nn.cache::write_rows": _one("write_rows"),
    "std.nn.cache::write_tokens": _one("write_tokens"),
    "std.nn.linear::linear": _one("linear", _linear),
    "std.nn.norm::rms_norm": _one("rms_norm"),
    "std.nn.rope::rope": _one("rope"),
    "std.nn.activations::silu_gated": _one("silu_gated"),
    "std.nn.attention::span_attention": _one("span_attention", accepts=_plain_attention),
    "std.nn.attention::rows_attention": _one("span_attention", accepts=_plain_attention),
}

WITH_NATIVE: dict[str, tuple[Kernel, ...]] = KERNELS | {
    op: (*own, *KERNELS.get(op, ())) for op, own in NATIVE.items()
}
