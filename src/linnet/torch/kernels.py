"""What generated modules call beside PyTorch itself: arithmetic with the language's edges, and
native implementations of std's ops with the table that says where each may run.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from linnet.backends import Kernel, Sample, call_dims, call_dtype
from linnet.core.derive import dtype_of
from linnet.core.ir import Call
from linnet.diagnostics import PlanError
from linnet.policy import Policy
from linnet.torch import native
from linnet.torch.attend import known, readable
from linnet.torch.native import ops as native_ops
from linnet.types import F32, F64, U16, U32, U64

Number = bool | int | float

# ---------------------------------------------------------------- constants


class _Holding(threading.local):
    """Who keeps what this thread reads of `once`, beside `once` itself."""

    held: dict[object, Any] | None = None


HOLDING = _Holding()


class once:
    """A function of sizes alone that runs once for each of them and for each device.

    The results of the last few sizes are kept, and those that are read while `HOLDING.held` is a
    dict, by its owner as well.
    """

    KEPT = 8

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__doc__ = function.__doc__
        self._known: OrderedDict[tuple[object, ...], Any] = OrderedDict()

    def __call__(self, *sizes: int) -> Any:
        if torch.compiler.is_compiling():
            return self.function(*sizes)
        key = (self.function.__globals__["DEVICE"], *sizes)
        held = HOLDING.held
        if held is None:
            return self._value(key)
        if (self, key) not in held:
            held[self, key] = self._value(key)
        return held[self, key]

    def _value(self, key: tuple[Any, ...]) -> Any:
        if key in self._known:
            return self._known[key]
        # A tensor made in inference mode could not be used where gradients are wanted.
        with native.unrecorded(), torch.inference_mode(False), torch.no_grad():
            value = self.function(*key[1:])
        self._known[key] = value
        if len(self._known) > self.KEPT:
            self._known.popitem(last=False)
        return value


# ---------------------------------------------------------------- arithmetic


def int_div(a: Tensor, b: Tensor | Number) -> Tensor:
    """`a / b` toward zero; by 0 it is 0, and the lowest value by -1 is itself."""
    b = torch.as_tensor(b, dtype=a.dtype, device=a.device)
    if not a.dtype.is_signed:
        zero = b == 0
        quotient = torch.div(a, torch.where(zero, 1, b), rounding_mode="trunc")
        return torch.where(zero, 0, quotient)
    zero, minus = b == 0, b == -1
    quotient = torch.div(a, torch.where(zero | minus, 1, b), rounding_mode="trunc")
    return torch.where(zero, 0, torch.where(minus, -a, quotient))


def int_rem(a: Tensor, b: Tensor | Number) -> Tensor:
    """`a % b` with the sign of a; by 0 it is a."""
    b = torch.as_tensor(b, dtype=a.dtype, device=a.device)
    zero = b == 0
    unsafe = zero | (b == -1) if a.dtype.is_signed else zero
    return torch.where(zero, a, torch.fmod(a, torch.where(unsafe, 1, b)))


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in the dtype: from a float to an integer truncated and saturated, NaN giving 0."""
    if x.dtype is torch.uint64 and dtype.is_floating_point:
        low = x.view(torch.int64)
        half = ((low >> 1) & _MAX) | (low & 1)  # the last bit decides how it rounds
        return torch.where(low < 0, half.to(dtype) * 2, low.to(dtype))
    if not x.dtype.is_floating_point or dtype.is_floating_point:
        return x.to(dtype)
    return _saturated(x.float() if x.dtype.itemsize == 2 else x, dtype)


def _saturated(x: Tensor, dtype: torch.dtype) -> Tensor:
    info = torch.iinfo(dtype)
    x = x.nan_to_num(0.0, float("inf"), float("-inf"))
    if dtype is torch.uint64:
        upper = x >= 2.0**63
        low = torch.where(upper, 0, x.clamp(min=0)).to(torch.int64)
        high = (torch.where(upper, x, 2.0**63).clamp(max=2.0**64) - 2.0**63).to(torch.float64)
        beyond = high >= 2.0**63
        bits = torch.where(beyond, 0, high).to(torch.int64) | _MIN
        bits = torch.where(beyond, -1, bits)
        return torch.where(upper, bits, low).view(torch.uint64)
    top = float(info.max) + 1 if info.max > 2**24 else float(info.max)
    wide = dtype if dtype not in (torch.uint16, torch.uint32) else torch.int64
    over = x >= top
    inside = torch.where(over, 0, x.clamp(min=float(info.min))).to(wide)
    return torch.where(over, info.max, inside).to(dtype)


def extremum(op: str, x: Tensor, axes: Sequence[int]) -> Tensor:
    """The largest (smallest) along the axes; of no elements the dtype's lowest (highest) value."""
    if all(x.shape[axis] for axis in axes):
        return x.amax(tuple(axes)) if op == "max" else x.amin(tuple(axes))
    if x.dtype.is_floating_point:
        end = float("-inf") if op == "max" else float("inf")
    else:
        end = torch.iinfo(x.dtype).min if op == "max" else torch.iinfo(x.dtype).max
    kept = [n for axis, n in enumerate(x.shape) if axis not in axes]
    return torch.full(kept, end, dtype=x.dtype, device=x.device)


def stacked(rows: Sequence[Tensor], shape: Sequence[int], *, dtype: Any, device: Any) -> Tensor:
    """The rows on a new first axis; of no rows an empty tensor."""
    return torch.stack(tuple(rows)) if rows else torch.empty(shape, dtype=dtype, device=device)


def within(index: Tensor, extent: int, access: str) -> Tensor:
    """The index, every one of which lies inside the axis; else a PlanError names the access."""
    outside = (index < 0) | (index >= extent)
    if bool(outside.any()):
        first = int(index[outside].flatten()[0])
        raise PlanError(f"{access}: index {first} lies outside 0..{extent - 1}")
    return index


# ---------------------------------------------------------------- u16, u32, u64

_MIN, _MAX = -(2**63), 2**63 - 1


def unsigned(op: str, dtype: torch.dtype, *values: Tensor | Number) -> Tensor:
    """The operation on u16, u32 or u64, for which PyTorch has no arithmetic: through i64."""
    # u64 keeps its bits as an i64; only what depends on the sign differs there.
    signed = [v.to(torch.int64) if isinstance(v, Tensor) else _bits(v) for v in values]
    if dtype is torch.uint64 and op in _U64:
        return _narrow(_U64[op](*_tensors(signed)), dtype, op)
    return _narrow(_I64[op](*_tensors(signed)), dtype, op)


def unsigned_reduce(op: str, x: Tensor, axes: Sequence[int]) -> Tensor:
    """A sum, product or extremum of u16, u32 or u64."""
    wide = x.to(torch.int64)
    match op:
        case "sum":
            return wide.sum(tuple(axes)).to(x.dtype)
        case "prod":
            for axis in sorted(axes, reverse=True):
                wide = wide.prod(axis)
            return wide.to(x.dtype)
        case _:
            flip = _MIN if x.dtype is torch.uint64 else 0
            if not all(x.shape[axis] for axis in axes):
                kept = [n for axis, n in enumerate(x.shape) if axis not in axes]
                end = 0 if op == "max" else torch.iinfo(x.dtype).max
                return torch.full(kept, end, dtype=x.dtype, device=x.device)
            return (extremum(op, wide ^ flip, axes) ^ flip).to(x.dtype)


def _bits(value: Number) -> int:
    number = int(value)
    return number - 2**64 if number > _MAX else number


def _tensors(values: list[Tensor | int]) -> list[Tensor]:
    device = next((v.device for v in values if isinstance(v, Tensor)), None)
    return [torch.as_tensor(v, dtype=torch.int64, device=device) for v in values]


def _narrow(x: Tensor, dtype: torch.dtype, op: str) -> Tensor:
    return x if x.dtype is torch.bool else x.to(dtype)


def _u64_less(a: Tensor, b: Tensor) -> Tensor:
    return (a ^ _MIN) < (b ^ _MIN)


def _u64_div(a: Tensor, b: Tensor) -> Tensor:
    """Through the half of a, which fits i64; a divisor past i64 goes at most once."""
    half = int_div((a >> 1) & _MAX, torch.where(b < 0, 1, b)) << 1
    rest = a - half * b
    quotient = half + (~_u64_less(rest, b)).to(torch.int64)
    quotient = torch.where(b < 0, (~_u64_less(a, b)).to(torch.int64), quotient)
    return torch.where(b == 0, 0, quotient)


def _u64_shr(a: Tensor, n: Tensor) -> Tensor:
    moved = ((a >> 1) & _MAX) >> (n - 1)
    return torch.where(n == 0, a, torch.where((n < 0) | (n > 63), 0, moved))


def _shl(a: Tensor, n: Tensor) -> Tensor:
    return torch.where((n < 0) | (n > 63), 0, a << n)


_I64: dict[str, Callable[..., Tensor]] = {
    "neg": torch.neg,
    "not": torch.bitwise_not,
    "abs": torch.clone,
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": int_div,
    "rem": int_rem,
    "min": torch.minimum,
    "max": torch.maximum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "shl": _shl,
    "shr": lambda a, n: torch.where(n > 63, 0, a >> n),
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
}
_U64: dict[str, Callable[..., Tensor]] = {
    "div": _u64_div,
    "rem": lambda a, b: torch.where(b == 0, a, a - _u64_div(a, b) * b),
    "min": lambda a, b: torch.where(_u64_less(a, b), a, b),
    "max": lambda a, b: torch.where(_u64_less(a, b), b, a),
    "shr": _u64_shr,
    "lt": _u64_less,
    "le": lambda a, b: ~_u64_less(b, a),
    "gt": lambda a, b: _u64_less(b, a),
    "ge": lambda a, b: ~_u64_less(a, b),
}


# ---------------------------------------------------------------- lookups and masks


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """Rows of the table; an id outside it reads the nearest row."""
    if ids.dtype is torch.int32 and ids.is_cpu and table.shape[0] and native.takes(table):
        return native_ops.rows_of(table, ids)
    if readable(ids):
        try:
            return F.embedding(ids, table)  # it looks at every id on its way
        except IndexError:
            pass
    return F.embedding(ids.clamp(0, table.shape[0] - 1), table)


def causal_mask(*, Q: int, K: int, device: torch.device) -> Tensor:
    """`[Q, K]`, true where key j <= query i + K - Q."""
    return torch.ones((Q, K), dtype=torch.bool, device=device).tril(K - Q)


def argmax(x: Tensor) -> Tensor:
    """The index of the largest of the last axis: the first of equals, the first NaN."""
    if x.shape[-1] == 0:
        return torch.full(x.shape[:-1], 2**31 - 1, dtype=torch.int32, device=x.device)
    return x.argmax(-1).int()


# ---------------------------------------------------------------- caches

# Each writes into a `[B, H, S, D]` cache and drops what lies outside. On a CPU a position is read
# as a Python number; elsewhere that would wait for the device, and compiled code has no numbers, so
# what lies outside is written back as it was.


def write_at_(cache: Tensor, value: Tensor, at: Tensor | int) -> None:
    """`value` at position `at` of every row."""
    write_span_(cache, value, at)


def write_span_(cache: Tensor, value: Tensor, at: Tensor | int) -> None:
    """`value` at positions `at` to `at + N - 1` of every row."""
    size, count = cache.shape[2], value.shape[2]
    if native.takes(cache, value) and cache.stride(2) == cache.shape[3] and cache.stride(3) == 1:
        native_ops.put_span_(cache, value, at)
        return
    start = known(at)
    if start is not None:
        first, last = max(start, 0), min(start + count, size)
        if first < last:
            cache[:, :, first:last] = value[:, :, first - start : last - start]
        return
    place = at + torch.arange(count, device=cache.device)
    if 0 < count <= size:
        # Modulo the size, no two of them meet.
        own = place % size
        inside = (own == place)[:, None]
        cache.index_copy_(2, own, torch.where(inside, value, cache.index_select(2, own)))
        return
    rows = torch.arange(cache.shape[0], device=cache.device)[:, None]
    _put(cache, rows, place[None, :], value.transpose(1, 2))


def write_rows_(cache: Tensor, value: Tensor, at: Tensor) -> None:
    """`value[b]` at position `at[b]` of each row b."""
    if _takes_tokens(cache, value):
        native_ops.put_tokens_(cache, value[:, :, 0].transpose(0, 1), None, at)
        return
    rows = torch.arange(cache.shape[0], device=cache.device)
    _put(cache, rows, at.long(), value[:, :, 0])


def write_slot_(cache: Tensor, value: Tensor, slot: Tensor | int, at: Tensor | int) -> None:
    """`value` at positions `at` to `at + N - 1` of one row."""
    write_slots_(cache, value, torch.as_tensor(slot, device=cache.device).reshape(1), at)


def write_slots_(cache: Tensor, value: Tensor, slots: Tensor, at: Tensor | int) -> None:
    """`value[m]` at positions `at` to `at + N - 1` of row `slots[m]`."""
    place = at + torch.arange(value.shape[2], device=cache.device)
    _put(cache, slots.long()[:, None], place[None, :], value.transpose(1, 2))


def write_tokens_(cache: Tensor, value: Tensor, rows: Tensor, at: Tensor) -> None:
    """Token p of `value` at (rows[p], at[p])."""
    if _takes_tokens(cache, value):
        native_ops.put_tokens_(cache, value[0], rows, at)
        return
    _put(cache, rows.long(), at.long(), value[0].transpose(0, 1))


def _takes_tokens(cache: Tensor, value: Tensor) -> bool:
    """Whether the kernel that copies tokens one by one may."""
    return cache.stride(3) == 1 and native.takes(cache, value)


def _put(cache: Tensor, rows: Tensor, at: Tensor, value: Tensor) -> None:
    """`cache[rows, :, at] = value` where both lie inside; nothing else changes."""
    inside = (rows >= 0) & (rows < cache.shape[0]) & (at >= 0) & (at < cache.shape[2])
    rows, at = rows.expand(inside.shape), at.expand(inside.shape)
    if not readable(cache):
        _put_unwaiting(cache, rows, at, inside, value)
        return
    if not bool(inside.all()):
        rows, at, value = rows[inside], at[inside], value[inside]
    cache[rows, :, at] = value


def _put_unwaiting(cache: Tensor, rows: Tensor, at: Tensor, inside: Tensor, value: Tensor) -> None:
    """`_put` without asking the device: pairs outside write (0, 0) as another write leaves it."""
    if not inside.numel():
        return
    rows, at = torch.where(inside, rows, 0), torch.where(inside, at, 0)
    corner = (inside & (rows == 0) & (at == 0)).flatten()
    source = torch.where(corner, torch.arange(corner.numel(), device=cache.device), -1).amax()
    flat = value.reshape(-1, *value.shape[-2:])
    kept = torch.where(
        source >= 0, flat.index_select(0, source.clamp(min=0)[None])[0], cache[0, :, 0]
    )
    cache[rows, :, at] = torch.where(inside[..., None, None], value, kept)


def _copying(write: Callable[..., None]) -> Callable[..., Tensor]:
    def written(cache: Tensor, *rest: Tensor) -> Tensor:
        cache = cache.clone()
        write(cache, *rest)
        return cache

    written.__doc__ = f"A copy of the cache, with {write.__doc__}"
    return written


write_at = _copying(write_at_)
write_span = _copying(write_span_)
write_rows = _copying(write_rows_)
write_slot = _copying(write_slot_)
write_slots = _copying(write_slots_)
write_tokens = _copying(write_tokens_)


# ---------------------------------------------------------------- activations, norms, products


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T`, accumulated in f32 and rounded once, then the bias."""
    if native.takes(x, weight) and not _faster(x, weight):
        product = native_ops.linear(x, weight)
    else:
        product = F.linear(x, weight)
    return product if bias is None else product + bias


def _faster(x: Tensor, weight: Tensor) -> bool:
    """Whether PyTorch's own product is the faster one: many rows on a machine made for them."""
    return x.numel() > 8 * weight.shape[1] and native.has_matrix_units(x.dtype)


def softmax(x: Tensor) -> Tensor:
    """The softmax of the last axis, in f32."""
    return F.softmax(x, -1, dtype=torch.float32).to(x.dtype)


def gelu(x: Tensor) -> Tensor:
    """GELU in its tanh form."""
    return F.gelu(x, approximate="tanh")


def rms_norm(x: Tensor, weight: Tensor, eps: float | Tensor) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis; the quotient in f32."""
    if native.takes(x, weight) and isinstance(eps, float):
        return native_ops.rms_norm(x, weight, eps)
    if x.dtype in (torch.bfloat16, torch.float16):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return wide.to(x.dtype) * weight
    return F.rms_norm(x, weight.shape, weight, float(eps))


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, eps: float | Tensor
) -> Tensor:
    """`(x - mean) / sqrt(variance + eps) * weight + bias` over the last axis."""
    return F.layer_norm(x, weight.shape, weight, bias, float(eps))


def batch_norm(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float | Tensor,
) -> Tensor:
    """Each channel of `[B, C, H, W]` with given statistics, in f32 and rounded once."""
    mean, variance, weight, bias = (t.float() for t in (mean, variance, weight, bias))
    if torch.is_grad_enabled() and (mean.requires_grad or variance.requires_grad):
        # PyTorch takes statistics for constants, which these are not: the batch's own, say.
        weight = weight * torch.rsqrt(variance + eps)
        moved = (x.float() - mean[:, None, None]) * weight[:, None, None]
        return (moved + bias[:, None, None]).to(x.dtype)
    wide = F.batch_norm(x.float(), mean, variance, weight, bias, eps=float(eps))
    return wide.to(x.dtype)


def group_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float | Tensor, *, Groups: int
) -> Tensor:
    """Groups of neighbouring channels of `[B, C, H, W]` normalised; the quotient in f32."""
    if x.dtype is torch.float32:
        return torch.group_norm(x, Groups, weight, bias, float(eps))
    scaled = torch.group_norm(x.float(), Groups, eps=float(eps)).to(x.dtype)
    return scaled * weight[:, None, None] + bias[:, None, None]


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """`down(silu(gate x) * up x)`."""
    return linear(silu_gated(linear(x, gate), linear(x, up)), down)


def silu_gated(gate: Tensor, up: Tensor) -> Tensor:
    """`silu(gate) * up`."""
    if native.takes(gate, up):
        return native_ops.silu_gated(gate, up)
    return F.silu(gate) * up


def rope(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """`[B, H, S, D]` turned by the tables `[S, D]`, the halves of D being the two coordinates."""
    if native.takes(x, cosines, sines):
        return native_ops.rope(x, cosines, sines)
    half = x.shape[3] // 2
    return x * cosines + torch.cat((-x[..., half:], x[..., :half]), -1) * sines


# ---------------------------------------------------------------- convolution and pooling


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, Stride: int, Pad: int
) -> Tensor:
    """The convolution with one stride and one padding, in the dtype of the inputs."""
    return _convolved(x, weight, bias, (Stride, Stride), (Pad, Pad))


def conv2d_rect(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    StrideH: int,
    StrideW: int,
    PadH: int,
    PadW: int,
) -> Tensor:
    """The convolution with a stride and a padding for each axis."""
    return _convolved(x, weight, bias, (StrideH, StrideW), (PadH, PadW))


def conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, Stride: int, Pad: int
) -> Tensor:
    """The convolution along one axis."""
    return _convolved(x, weight, bias, (Stride,), (Pad,))


def _convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], pad: Sequence[int]
) -> Tensor:
    if not x.numel() or not weight.numel():
        # PyTorch refuses some of these, and sums nothing in the others.
        sizes = zip(x.shape[2:], weight.shape[2:], stride, pad, strict=True)
        places = [(n + 2 * p - k) // s + 1 for n, k, s, p in sizes]
        product = x.new_zeros(x.shape[0], weight.shape[0], *places)
        return product if bias is None else product + bias[(...,) + (None,) * len(pad)]
    run = F.conv1d if len(pad) == 1 else F.conv2d
    return run(x, weight, bias, stride, pad)


def _raised(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def raised(x: Tensor, weight: Tensor, bias: Tensor | None = None, **sizes: int) -> Tensor:
        if x.dtype.itemsize > 2:
            return run(x, weight, bias, **sizes)
        product = run(x.float(), weight.float(), **sizes).to(x.dtype)
        return product if bias is None else product + bias[(...,) + (None,) * (x.ndim - 2)]

    raised.__doc__ = f"{run.__doc__} Summed in f32, rounded once, then the bias."
    return raised


conv2d_f32 = _raised(conv2d)
conv2d_rect_f32 = _raised(conv2d_rect)
conv1d_f32 = _raised(conv1d)


def max_pool2d(x: Tensor, *, K: int, Stride: int, Pad: int) -> Tensor:
    """The largest of each K x K window; padding is finite, where f16 has such a number."""
    lowest = float("-inf") if x.dtype is torch.float16 else _LOWEST
    padded = F.pad(x, (Pad, Pad, Pad, Pad), value=lowest) if Pad else x
    # A channel is as good as a row, and PyTorch refuses to have none of them.
    pooled = F.max_pool2d(padded.flatten(0, 1)[:, None], K, Stride)
    return pooled.reshape(*x.shape[:2], *pooled.shape[2:])


# -1e30 in f32, also where the dtype could hold more of its digits.
_LOWEST = float(torch.tensor(-1e30, dtype=torch.float32))


def global_average_pool2d(x: Tensor) -> Tensor:
    """The mean of each channel, in f32 and rounded once."""
    return x.mean((2, 3), dtype=torch.float32).to(x.dtype)


# ---------------------------------------------------------------- losses


def token_log_probs(logits: Tensor, targets: Tensor) -> Tensor:
    """The log-probability of each row's target, in f32."""
    targets = targets.clamp(0, logits.shape[1] - 1)
    return -F.cross_entropy(logits.float(), targets, reduction="none")


def cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """The sum of `weights * -log p(targets)`; a weight of 0 removes its row."""
    loss = -token_log_probs(logits, targets)
    return torch.where(weights == 0, 0.0, weights * loss).sum()


def linear_token_log_probs(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """`token_log_probs` of the output head's logits."""
    return token_log_probs(F.linear(hidden, weight), targets)


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, weights: Tensor
) -> Tensor:
    """`cross_entropy` of the output head's logits."""
    return cross_entropy(F.linear(hidden, weight), targets, weights)


def log_softmax(logits: Tensor) -> Tensor:
    """The log-softmax of the last axis, in f32."""
    return F.log_softmax(logits, -1, dtype=torch.float32)


# ---------------------------------------------------------------- the table


def _float(call: Call) -> str | None:
    return None if call_dtype(call).is_float else "only floats"


def _arithmetic(call: Call) -> str | None:
    dtype = call_dtype(call)
    return f"PyTorch does not compare {dtype}" if dtype in (U16, U32, U64) else None


def _one_shard(call: Call) -> str | None:
    shards = call_dims(call)["Shards"]
    return None if shards == 1 else f"for Shards = 1, not {shards or 'a size of the call'}"


def _rounds_once(call: Call) -> str | None:
    """The body rounds each step to the dtype, which counts in f16 and bf16."""
    dtype = call_dtype(call)
    return None if dtype in (F32, F64) else f"rounds to {dtype} once, the op at each step"


def _is_f32(call: Call) -> str | None:
    dtype = call_dtype(call)
    return None if dtype == F32 else f"computes in {dtype}, the op in f32"


def _scaled_once(call: Call) -> str | None:
    """The op's product is f32: f64 has more digits."""
    dtype = dtype_of(call.inputs[1])
    return "computes in f64, the op in f32" if dtype == F64 else None


def _not_f64(call: Call) -> str | None:
    return "computes in f64, the op in f32" if call_dtype(call) == F64 else None


def _elementwise(policy: Policy, run: str) -> tuple[Kernel, ...]:
    samples = Sample({"S_0": 3, "S_1": 7}), Sample({"S_0": 0, "S_1": 2}), Sample({})
    return (Kernel(policy, run, samples),)


def _in_steps(run: str, *samples: Sample) -> tuple[Kernel, ...]:
    given = samples or _elementwise("fast", run)[0].samples
    return (Kernel("equivalent", run, given, _rounds_once), Kernel("fast", run, given))


def _attention(
    *samples: Sample, run: str = "attention", named: tuple[str, ...] = ("mask",)
) -> tuple[Kernel, ...]:
    names, numbers = frozenset(named), frozenset({"scale", "at", "window"})
    run = f"attend.{run}"
    return (
        Kernel("fast", run, samples, _not_f64, names, numbers=numbers),
        Kernel("equivalent", run, samples, _is_f32, names, numbers=numbers),
        Kernel("equivalent", f"{run}_f32", samples, named=names, numbers=numbers),
    )


def _writing(policy: Policy, name: str, *samples: Sample) -> tuple[Kernel, ...]:
    numbers = frozenset({"at", "slot"})
    run = f"kernels.{name}"
    return (Kernel(policy, run, samples, in_place=f"{run}_", numbers=numbers),)


def _convolution(name: str, *sizes: dict[str, int]) -> tuple[Kernel, ...]:
    bias, dims = frozenset({"bias"}), tuple(n for n in sizes[0] if n.startswith(("Str", "Pad")))
    samples = tuple(Sample({"B": 2, "Cin": 3, "Cout": 4, **each}) for each in sizes)
    samples += (Sample(samples[0].dims, ("bias",)), Sample({**samples[0].dims, "Cin": 0}))
    return (
        Kernel("fast", f"kernels.{name}", samples, named=bias, dims=dims),
        Kernel("equivalent", f"kernels.{name}_f32", samples, named=bias, dims=dims),
    )


def _experts(name: str, *samples: Sample) -> tuple[Kernel, ...]:
    return _simple("equivalent", f"quantised.{name}", *samples)


def _simple(policy: Policy, run: str, *samples: Sample, **options: Any) -> tuple[Kernel, ...]:
    return (Kernel(policy, run, samples, **options),)


_HEADS = {"B": 2, "H": 6, "Q": 3, "K": 5, "D": 8}
_GROUPS = {**_HEADS, "Hk": 2}
_STEP = {"Q": 1, "K": 9}
_SCALE = {"scale": (0.25, 0.25)}
_CACHE = {"B": 3, "H": 2, "S": 5, "D": 4}
_LOSS = {"N": 5, "H": 6, "V": 7}
_TARGETS = {"targets": (-2, 8)}
_SINKS = {"B": 2, "Hq": 6, "Hk": 2, "Q": 3, "K": 5, "D": 8}
_SEEING = ("window", "sinks")
_SINK: dict[str, tuple[float, float]] = {"sinks": (-2, 2)}
_SPAN = {"B": 2, "Hq": 6, "Hk": 2, "Q": 3, "K": 9, "D": 8}
# Sizes and values of spans: one query and more, a prompt, blocks of a long one, at each edge, with
# windows from none to more than there is, and where some query sees nothing.
_SPANS: tuple[tuple[dict[str, int], dict[str, tuple[float, float]]], ...] = tuple(
    (sizes, {**_SCALE, "at": (at, at), **({"window": (w, w)} if w is not None else {}), **more})
    for sizes, at, w, more in (
        ({"Q": 1}, 0, None, {}),
        ({"Q": 1}, 8, None, {}),
        ({"Q": 1}, 5, 2, {}),
        ({"Q": 1}, 5, 50, _SINK),
        ({"Q": 1}, -1, None, {}),
        ({"Q": 1}, 12, 5, {}),
        ({"Q": 1}, 13, 5, {}),
        ({"Q": 9}, 0, None, {}),
        ({"Q": 9}, 0, None, _SINK),
        ({"Q": 9}, 0, 9, {}),
        ({"Q": 9}, 0, 4, _SINK),
        ({"Q": 9, "Hk": 6}, 0, None, {}),
        ({}, 4, None, {}),
        ({}, 6, 1, {}),
        ({}, 7, None, {}),
        ({}, -2, 3, {}),
        ({}, -5, None, _SINK),
        ({}, 9, 3, {}),
        ({}, 2, 0, {}),
        ({"Q": 12}, 0, None, {}),
        ({"Q": 300, "K": 301}, 1, 4, {}),
        ({"Q": 0}, 0, None, {}),
        ({"Q": 0, "K": 0}, 0, None, {}),
    )
)
_ROWS: tuple[tuple[int, dict[str, tuple[float, float]]], ...] = (
    (1, {"positions": (4, 4)}),
    (3, {"positions": (0, 8)}),
    (3, {"positions": (5, 5), "window": (3, 3)}),
    (4, {"positions": (-2, 12), "window": (3, 3)}),
    (4, {"positions": (-2, 12), **_SINK}),
    (3, {"positions": (0, 8), "window": (0, 0), **_SINK}),
    (0, {"positions": (0, 0)}),
)
_PACKS: tuple[tuple[int, dict[str, tuple[float, float]]], ...] = (
    (1, {"positions": (4, 4), "segments": (0, 0)}),
    (7, {"positions": (0, 8), "segments": (0, 1)}),
    (7, {"positions": (0, 8), "segments": (0, 0), "window": (3, 3), **_SINK}),
    (7, {"positions": (2, 2), "segments": (-1, 2), "window": (1, 1)}),
    (5, {"positions": (0, 8), "segments": (0, 2), "window": (0, 0)}),
    (0, {"positions": (0, 0), "segments": (0, 0)}),
)
_PAGES = {"Hq": 4, "Hk": 2, "N": 24, "Pages": 3, "Size": 4, "D": 8}
_IN_PAGES: dict[str, tuple[float, float]] = {"table": (0, 5), "positions": (0, 11), **_SCALE}
_OVER_PAGES: tuple[tuple[tuple[str, ...], dict[str, tuple[float, float]]], ...] = (
    (_SEEING, _IN_PAGES),
    (_SEEING, {**_IN_PAGES, "positions": (0, 5)}),
    (_SEEING, {**_IN_PAGES, "table": (-1, 9), "positions": (-1, 3)}),
    (("sinks",), {**_IN_PAGES, "window": (3, 3)}),
    ((), {**_IN_PAGES, "window": (7, 7)}),
    (("sinks",), {**_IN_PAGES, "table": (-1, 9), "positions": (-1, 14), "window": (2, 2)}),
)
_NORM = {"S_0": 2, "S_1": 3, "H": 8}
_EPS = {"eps": (1e-5, 1e-5)}
_IMAGE = {"B": 2, "C": 6, "H": 5, "W": 4}
_MANY = {"R": 7, "K": 2, "E": 4, "In": 6, "Out": 5}
_CHOSEN: dict[str, tuple[float, float]] = {"experts": (-1, 4)}
_BLOCKS = {"R": 7, "K": 2, "E": 4, "G": 2, "Out": 5}
_BYTES: dict[str, tuple[float, float]] = {"blocks": (0, 255), "scales": (110, 140), **_CHOSEN}
_MIXTURES = tuple(
    Sample({**_MANY, "R": rows, "E": experts}, ranges=_CHOSEN)
    for rows, experts in ((7, 4), (1, 1), (0, 4))
)
_PACKED = (Sample(_BLOCKS, ranges=_BYTES), Sample({**_BLOCKS, "E": 1, "R": 0}, ranges=_BYTES))
_FP8 = {"S_0": 2, "S_1": 3, "In": 6, "Out": 4}
_FP8_RANGE: dict[str, tuple[float, float]] = {"weight": (0, 126), "scale": (0.1, 0.5)}
_INT4 = {"Out": 4, "Groups": 3, "Half": 2}
_INT4_RANGE: dict[str, tuple[float, float]] = {"packed": (0, 255), "zero": (0, 255)}

KERNELS: dict[str, tuple[Kernel, ...]] = {
    "std.linalg::matmul": _simple(
        "equivalent", "torch.matmul", Sample({"M": 3, "K": 5, "N": 4}), accepts=_float
    ),
    "std.linalg::batched_matmul": _simple(
        "equivalent",
        "torch.matmul",
        Sample({"B_0": 2, "B_1": 3, "M": 3, "K": 5, "N": 4}),
        Sample({"M": 3, "K": 0, "N": 4}),
        accepts=_float,
    ),
    "std.nn.activations::relu": _elementwise("exact", "F.relu"),
    "std.nn.activations::sigmoid": _in_steps("torch.sigmoid"),
    "std.nn.activations::silu": _in_steps("F.silu"),
    "std.nn.activations::gelu": _elementwise("equivalent", "kernels.gelu"),
    "std.nn.activations::gelu_erf": _elementwise("equivalent", "F.gelu"),
    "std.nn.softmax::softmax": _simple(
        "equivalent", "kernels.softmax", Sample({"S_0": 3, "N": 6}), Sample({"N": 1})
    ),
    "std.nn.attention::causal_mask": _simple(
        "exact",
        "kernels.causal_mask",
        *(Sample({"Q": q, "K": k}) for q, k in ((3, 3), (2, 5), (5, 2), (0, 3))),
        dims=("Q", "K"),
    ),
    "std.nn.attention::attention": _attention(
        Sample(_HEADS, ranges=_SCALE), Sample(_HEADS | _STEP, ("mask",), _SCALE)
    ),
    "std.nn.attention::grouped_attention": _attention(
        Sample(_GROUPS, ranges=_SCALE),
        Sample(_GROUPS | _STEP, ranges=_SCALE),
        Sample(_GROUPS, ("mask",), _SCALE),
    ),
    "std.nn.attention::attention_rows": _attention(Sample(_HEADS, ranges=_SCALE)),
    "std.nn.attention::grouped_attention_rows": _attention(
        Sample(_GROUPS, ranges=_SCALE), Sample(_GROUPS | _STEP, ranges=_SCALE)
    ),
    "std.nn.attention::sink_attention": _simple(
        "equivalent",
        "attend.sink_attention",
        Sample(_SINKS, ranges=_SCALE),
        numbers=frozenset({"scale"}),
    ),
    "std.nn.attention::span_attention": _attention(
        *(
            Sample({**_SPAN, **sizes}, tuple(n for n in _SEEING if n not in ranges), ranges)
            for sizes, ranges in _SPANS
        ),
        run="span_attention",
        named=_SEEING,
    ),
    "std.nn.attention::rows_attention": _attention(
        *(
            Sample(
                {**_SINKS, "K": 9, "B": rows},
                tuple(n for n in _SEEING if n not in ranges),
                {**_SCALE, **ranges},
            )
            for rows, ranges in _ROWS
        ),
        run="rows_attention",
        named=_SEEING,
    ),
    "std.nn.attention::packed_attention": _attention(
        *(
            Sample(
                {**_SINKS, "P": count},
                tuple(n for n in _SEEING if n not in ranges),
                {**_SCALE, **ranges},
            )
            for count, ranges in _PACKS
        ),
        run="packed_attention",
        named=_SEEING,
    ),
    "std.nn.attention::paged_attention": _simple(
        "equivalent",
        "attend.paged_attention",
        *(Sample({"B": 3, **_PAGES}, absent, ranges) for absent, ranges in _OVER_PAGES),
        named=frozenset(_SEEING),
        dims=("Size",),
        numbers=frozenset({"scale", "window"}),
    ),
    "std.nn.attention::paged_prefill_attention": _simple(
        "equivalent",
        "attend.paged_prefill_attention",
        *(
            Sample({"P": 5, "Rows": 3, **_PAGES}, absent, {"rows": (-1, 3), **ranges})
            for absent, ranges in _OVER_PAGES
        ),
        named=frozenset(_SEEING),
        dims=("Size",),
        numbers=frozenset({"scale", "window"}),
    ),
    "std.nn.cache::write_at": _writing(
        "exact", "write_at", *(Sample(_CACHE, ranges={"at": (at, at)}) for at in (0, 4, -1, 5))
    ),
    "std.nn.cache::write_span": _writing(
        "exact",
        "write_span",
        *(Sample({**_CACHE, "N": 3}, ranges={"at": (at, at)}) for at in (0, 2, -1, 3, 9)),
    ),
    "std.nn.cache::write_rows": _writing(
        "exact", "write_rows", Sample(_CACHE, ranges={"at": (-2, 6)})
    ),
    "std.nn.cache::write_slot": _writing(
        "exact",
        "write_slot",
        *(
            Sample({**_CACHE, "N": 2}, ranges={"slot": (slot, slot), "at": (at, at)})
            for slot, at in ((0, 0), (2, 4), (1, -1), (3, 0), (-1, 0))
        ),
    ),
    "std.nn.cache::write_slots": _writing(
        "exact",
        "write_slots",
        *(
            Sample({**_CACHE, "M": 1, "N": 2}, ranges={"slots": (slot, slot), "at": (at, at)})
            for slot, at in ((0, 0), (2, 4), (1, -1), (3, 0), (-1, 0))
        ),
    ),
    "std.nn.cache::write_tokens": _writing(
        "equivalent",
        "write_tokens",
        *(
            Sample({**_CACHE, "P": 1}, ranges={"rows": (row, row), "at": (at, at)})
            for row, at in ((0, 0), (2, 4), (1, -1), (3, 0), (-1, 2))
        ),
        Sample({**_CACHE, "S": 40, "P": 6}, ranges={"rows": (-1, 3), "at": (-3, 42)}),
    ),
    "std.nn.embedding::embedding": _simple(
        "exact",
        "kernels.embedding",
        Sample({"S_0": 2, "S_1": 3, "Vocab": 6, "H": 4}, ranges={"ids": (-2, 8)}),
    ),
    "std.nn.decoding::argmax": _simple(
        "exact",
        "kernels.argmax",
        Sample({"S_0": 3, "N": 6}),
        Sample({"N": 1}),
        Sample({"S_0": 2, "N": 0}),
        accepts=_arithmetic,
    ),
    "std.nn.linear::linear": _simple(
        "equivalent",
        "kernels.linear",
        Sample({"S_0": 2, "S_1": 3, "In": 5, "Out": 4}),
        Sample({"S_0": 2, "S_1": 3, "In": 5, "Out": 4}, absent=("bias",)),
        Sample({"In": 5, "Out": 4}, absent=("bias",)),
        Sample({"S_0": 11, "In": 70, "Out": 40}, absent=("bias",)),
        named=frozenset({"bias"}),
    ),
    "std.nn.activations::silu_gated": _in_steps("kernels.silu_gated"),
    "std.nn.rope::rope": _in_steps(
        "kernels.rope",
        Sample({"B": 2, "H": 3, "S": 5, "D": 6}),
        Sample({"B": 1, "H": 2, "S": 1, "D": 64}),
    ),
    "std.nn.mlp::swiglu": _in_steps("kernels.swiglu", Sample({"S_0": 2, "H": 6, "Inner": 10})),
    "std.nn.norm::rms_norm": _simple(
        "equivalent",
        "kernels.rms_norm",
        Sample(_NORM, ranges=_EPS),
        numbers=frozenset({"eps"}),
    ),
    "std.nn.norm::layer_norm": _simple(
        "equivalent",
        "kernels.layer_norm",
        Sample(_NORM, ranges=_EPS),
        Sample(_NORM, ("bias",), _EPS),
        named=frozenset({"bias", "eps"}),
        numbers=frozenset({"eps"}),
    ),
    "std.nn.loss::log_softmax": _simple(
        "equivalent", "kernels.log_softmax", Sample({"S_0": 3, "V": 6})
    ),
    "std.nn.loss::token_log_probs": _simple(
        "equivalent", "kernels.token_log_probs", Sample({"N": 5, "V": 7}, ranges=_TARGETS)
    ),
    "std.nn.loss::cross_entropy": _simple(
        "equivalent", "kernels.cross_entropy", Sample({"N": 5, "V": 7}, ranges=_TARGETS)
    ),
    "std.nn.loss::linear_token_log_probs": _simple(
        "equivalent", "kernels.linear_token_log_probs", Sample(_LOSS, ranges=_TARGETS)
    ),
    "std.nn.loss::linear_cross_entropy": _simple(
        "equivalent", "kernels.linear_cross_entropy", Sample(_LOSS, ranges=_TARGETS)
    ),
    "std.nn.loss::split_token_log_probs": _simple(
        "equivalent",
        "kernels.linear_token_log_probs",
        Sample({**_LOSS, "Shards": 1}, ranges=_TARGETS),
        accepts=_one_shard,
    ),
    "std.nn.loss::split_cross_entropy": _simple(
        "equivalent",
        "kernels.linear_cross_entropy",
        Sample({**_LOSS, "Shards": 1}, ranges=_TARGETS),
        accepts=_one_shard,
    ),
    # On one device the collectives are their argument.
    "std.nn.parallel::all_reduce": _elementwise("exact", ""),
    "std.nn.parallel::shared": _elementwise("exact", ""),
    "std.nn.parallel::all_gather": _simple(
        "exact", "", Sample({"R": 3, "N": 4, "Shards": 1}), accepts=_one_shard
    ),
    "std.nn.norm::batch_norm": _simple(
        "equivalent",
        "kernels.batch_norm",
        Sample(_IMAGE, ranges={**_EPS, "variance": (0.1, 2.0)}),
        Sample({**_IMAGE, "B": 0}, ranges={**_EPS, "variance": (0.1, 2.0)}),
        numbers=frozenset({"eps"}),
    ),
    "std.nn.norm::group_norm": _simple(
        "equivalent",
        "kernels.group_norm",
        *(Sample({**_IMAGE, "Groups": groups}, ranges=_EPS) for groups in (1, 2, 6)),
        dims=("Groups",),
        numbers=frozenset({"eps"}),
    ),
    "std.nn.conv::conv2d": _convolution(
        "conv2d",
        {"H": 6, "W": 5, "K": 3, "Stride": 2, "Pad": 1},
        {"H": 6, "W": 7, "K": 1, "Stride": 3, "Pad": 0},
        {"H": 0, "W": 2, "K": 2, "Stride": 1, "Pad": 3},
    ),
    "std.nn.conv::conv2d_rect": _convolution(
        "conv2d_rect",
        {"H": 6, "W": 5, "KH": 3, "KW": 2, "StrideH": 2, "StrideW": 1, "PadH": 0, "PadW": 2},
    ),
    "std.nn.conv::conv1d": _convolution(
        "conv1d",
        {"L": 7, "K": 3, "Stride": 2, "Pad": 1},
        {"L": 5, "K": 1, "Stride": 1, "Pad": 0},
    ),
    "std.nn.pool::max_pool2d": _simple(
        "exact",
        "kernels.max_pool2d",
        Sample({**_IMAGE, "K": 3, "Stride": 2, "Pad": 1}),
        Sample({**_IMAGE, "K": 2, "Stride": 2, "Pad": 0}),
        Sample({**_IMAGE, "K": 2, "Stride": 1, "Pad": 3}),
        Sample({**_IMAGE, "C": 0, "K": 2, "Stride": 1, "Pad": 1}),
        dims=("K", "Stride", "Pad"),
    ),
    "std.nn.pool::global_average_pool2d": _simple(
        "equivalent", "kernels.global_average_pool2d", Sample(_IMAGE), Sample({**_IMAGE, "H": 0})
    ),
    "std.nn.moe::linear_experts": _experts("linear_experts", *_MIXTURES),
    "std.nn.moe::linear_experts_shared": _experts("linear_experts_shared", *_MIXTURES),
    "std.nn.moe::combine_experts": _experts("combine_experts", *_MIXTURES),
    "std.quant::mxfp4_experts": _experts("mxfp4_experts", *_PACKED),
    "std.quant::mxfp4_experts_shared": _experts("mxfp4_experts_shared", *_PACKED),
    "std.quant::mxfp4_linear_experts_shared": _experts("mxfp4_linear_experts_shared", *_PACKED),
    "std.quant::mxfp4_combine_experts": _experts("mxfp4_combine_experts", *_PACKED),
    "std.quant::decode_fp8": _simple(
        "exact",
        "quantised.decode_fp8",
        Sample({"S_0": 40, "S_1": 50}, ranges={"bits": (0, 255)}),
        Sample({}, ranges={"bits": (127, 127)}),
    ),
    "std.quant::linear_fp8": _simple(
        "equivalent",
        "quantised.linear_fp8",
        Sample(_FP8, ranges=_FP8_RANGE),
        Sample(_FP8, ("bias",), {**_FP8_RANGE, "weight": (0, 255)}),
        named=frozenset({"bias"}),
    ),
    "std.quant::dequantize_int4_groups": _simple(
        "exact",
        "quantised.dequantize_int4_groups",
        Sample(_INT4, ranges=_INT4_RANGE),
        accepts=_scaled_once,
    ),
    "std.quant::linear_int4_groups": _simple(
        "equivalent",
        "quantised.linear_int4_groups",
        Sample({"S_0": 2, "S_1": 3, **_INT4}, ranges=_INT4_RANGE),
        Sample(_INT4, ("bias",), _INT4_RANGE),
        named=frozenset({"bias"}),
    ),
    "std.quant::take_inputs": _simple(
        "exact",
        "quantised.take_inputs",
        Sample({"S_0": 2, "S_1": 3, "N": 5}, ranges={"order": (-2, 7)}),
        Sample({"N": 5}, ranges={"order": (0, 4)}),
    ),
}
