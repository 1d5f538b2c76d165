"""What generated code calls that `jax.numpy` says otherwise, and native kernels of std's ops."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from linnet.backends import Kernel, call_dims, call_dtype
from linnet.core.derive import dtype_of
from linnet.core.ir import Call
from linnet.policy import Policy
from linnet.types import BF16, F16, F32, F64

Array = Any  # jax.Array, or what JAX traces in its place

# ---------------------------------------------------------------- primitives


def int_div(a: Array, b: Array) -> Array:
    """Toward zero; x / 0 is 0."""
    a, b = jnp.broadcast_arrays(a, b)
    none = b == 0
    return jnp.where(none, jnp.zeros_like(a), lax.div(a, jnp.where(none, jnp.ones_like(b), b)))


def int_rem(a: Array, b: Array) -> Array:
    """With the sign of a; x % 0 is x."""
    a, b = jnp.broadcast_arrays(a, b)
    none = b == 0
    return jnp.where(none, a, lax.rem(a, jnp.where(none, jnp.ones_like(b), b)))


def whole_div(a: Array, b: Array) -> Array:
    """Toward zero, by what is not zero."""
    return lax.div(*jnp.broadcast_arrays(a, b))


def whole_rem(a: Array, b: Array) -> Array:
    """With the sign of a, by what is not zero."""
    return lax.rem(*jnp.broadcast_arrays(a, b))


def saturated(x: Any, dtype: Any) -> Any:
    """NumPy's floats as integers, as JAX has them: toward zero, what is outside at the ends.

    NaN is 0. NumPy itself leaves open what becomes of these.
    """
    low, high = (np.array(end, dtype) for end in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    x = np.asarray(x, np.float64)
    inside = np.where((x > float(low)) & (x < float(high)), x, 0.0).astype(dtype)
    return np.where(x >= float(high), high, np.where(x <= float(low), low, inside))


def _position(index: Array, extent: int) -> Array:
    """Clamped to the axis, and in 32 bits where they fit: JAX's gradients know no wider ones."""
    top = min(extent - 1, int(np.iinfo(index.dtype).max))
    return jnp.clip(index, 0, top).astype(jnp.int32 if top < 2**31 else jnp.int64)


def take(x: Array, index: Array, axis: int) -> Array:
    """`jnp.take` at positions of any integer dtype, clamped to the axis.

    Of an empty axis nothing is read: the loop around it has no turns, and is traced all the same.
    """
    if not x.shape[axis]:
        return jnp.zeros((*x.shape[:axis], *jnp.shape(index), *x.shape[axis + 1 :]), x.dtype)
    return jnp.take(x, _position(jnp.asarray(index), x.shape[axis]), axis=axis, mode="clip")


def gather(x: Array, *indices: Array | None) -> Array:
    """`x[..., i, ..., j]`: the shape of the indices leads, axes without one follow in order."""
    given = {axis: jnp.asarray(i) for axis, i in enumerate(indices) if i is not None}
    rest = [axis for axis in range(x.ndim) if axis not in given]
    if not all(x.shape[axis] for axis in given):  # as in `take`
        shape = jnp.broadcast_shapes(*(index.shape for index in given.values()))
        return jnp.zeros((*shape, *(x.shape[axis] for axis in rest)), x.dtype)
    at = tuple(_position(index, x.shape[axis]) for axis, index in given.items())
    moved = x.transpose(*given, *rest)
    return moved.at[at].get(mode="promise_in_bounds", wrap_negative_indices=False)


def extremum(op: str, x: Array, axis: int | tuple[int, ...]) -> Array:
    """The largest or least along axes that may be empty."""
    dtype, most = x.dtype, op == "max"
    if jnp.issubdtype(dtype, jnp.floating):
        first: Any = -np.inf if most else np.inf
    else:
        first = np.iinfo(dtype).min if most else np.iinfo(dtype).max
    return x.max(axis, initial=first) if most else x.min(axis, initial=first)


# ---------------------------------------------------------------- attention

_UNSEEN = -1e30
_FAR = 2**30  # positions beyond are as far; what is added to them does not wrap


def fused() -> bool:
    """JAX's own attention, which a GPU may fuse; on a CPU it would lay caches out anew."""
    return bool(jax.default_backend() != "cpu")


def attention(
    query: Array, key: Array, value: Array, scale: Array, mask: Array | None = None
) -> Array:
    """`[B, H, Q, D]` over `[B, Hk, K, D]`; `mask` is `[Q, K]`, or `[B, Q, K]`."""
    rows, heads, count, width = query.shape
    groups, last = key.shape[1], key.shape[2]
    if mask is not None and mask.ndim == 2:
        mask = mask[None]
    if not last or not count or not rows:
        return jnp.zeros_like(query)
    if fused():
        sides = [x.swapaxes(1, 2) for x in (query, key, value)]
        kept = None if mask is None else mask[:, None]
        run: Any = jax.nn.dot_product_attention
        return run(*sides, scale=scale, mask=kept).swapaxes(1, 2)
    split = query.reshape(rows, groups, heads // groups, count, width)
    wide: Any = jnp.promote_types(query.dtype, jnp.float32)
    scores = jnp.einsum("bhgqd,bhkd->bhgqk", split, key, preferred_element_type=wide) * scale
    if mask is not None:
        scores = jnp.where(mask[:, None, None], scores, _UNSEEN)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    mixed = jnp.einsum("bhgqk,bhkd->bhgqd", weights, value, preferred_element_type=wide)
    return mixed.astype(query.dtype).reshape(query.shape)


def sink_attention(
    query: Array, key: Array, value: Array, sinks: Array, scale: Array, mask: Array
) -> Array:
    """`attention` whose softmax has a logit of its own for each head of the queries."""
    rows, heads, count, width = query.shape
    groups, last = key.shape[1], key.shape[2]
    if not last or not count or not rows:
        return jnp.zeros_like(query)
    split = query.reshape(rows, groups, heads // groups, count, width)
    wide: Any = jnp.promote_types(query.dtype, jnp.float32)
    scores = jnp.einsum("bhgqd,bhkd->bhgqk", split, key, preferred_element_type=wide) * scale
    scores = jnp.where(mask[:, None, None], scores, _UNSEEN)
    idle = sinks.astype(wide).reshape(1, groups, heads // groups, 1, 1)
    idle = jnp.broadcast_to(idle, (*scores.shape[:-1], 1))
    weights = jax.nn.softmax(jnp.concatenate([scores, idle], axis=-1), axis=-1)[..., :-1]
    mixed = jnp.einsum(
        "bhgqk,bhkd->bhgqd", weights.astype(value.dtype), value, preferred_element_type=wide
    )
    return mixed.astype(query.dtype).reshape(query.shape)


def _seen(own: Array, keys: Array, window: Array | None) -> Array:
    """Which of keys `[K]` each query `[N]` sees from its position."""
    own = jnp.clip(own, -_FAR, _FAR)[..., :, None]
    until = keys <= own
    if window is None:
        return until
    return until & (own - jnp.maximum(keys, -_FAR) < window)


def _masked(
    query: Array, key: Array, value: Array, scale: Array, mask: Array, sinks: Array | None
) -> Array:
    if sinks is not None:
        return sink_attention(query, key, value, sinks, scale, mask)
    return attention(query, key, value, scale, mask)


def span_attention(
    query: Array,
    key: Array,
    value: Array,
    at: Array,
    scale: Array,
    window: Array | None = None,
    sinks: Array | None = None,
) -> Array:
    """Queries at positions `at`, `at + 1`, ... of every row over keys from position 0."""
    own = jnp.arange(query.shape[2], dtype=jnp.int32) + jnp.clip(at, -_FAR, _FAR)
    mask = _seen(own, jnp.arange(key.shape[2], dtype=jnp.int32), window)
    return _masked(query, key, value, scale, mask[None], sinks)


def rows_attention(
    query: Array,
    key: Array,
    value: Array,
    positions: Array,
    scale: Array,
    window: Array | None = None,
    sinks: Array | None = None,
) -> Array:
    """One query for each row, at a position of its own."""
    mask = _seen(positions, jnp.arange(key.shape[2], dtype=jnp.int32), window)
    return _masked(query, key, value, scale, mask[:, None], sinks)


def packed_attention(
    query: Array,
    key: Array,
    value: Array,
    positions: Array,
    segments: Array,
    scale: Array,
    window: Array | None = None,
    sinks: Array | None = None,
) -> Array:
    """Prompts end to end, which attend among themselves."""
    mask = _seen(positions, positions, window) & (segments[:, None] == segments)
    return _masked(query, key, value, scale, mask[None], sinks)


# ---------------------------------------------------------------- caches

_DROP: dict[str, Any] = {"mode": "drop", "wrap_negative_indices": False}


def write_span(cache: Array, value: Array, at: Array) -> Array:
    """`cache` with `value` `[B, H, N, D]` at positions `at`, `at + 1`, ...; outside: left out."""
    count, size = value.shape[2], cache.shape[2]
    if count > size:
        positions = jnp.asarray(at) + jnp.arange(count, dtype=jnp.int32)
        return cache.at[:, :, positions].set(value, **_DROP)
    start = jnp.clip(at, 0, size - count)
    # Most often all of it is inside, and one block is written where it lies.
    offset = jnp.clip(start - jnp.clip(at, -size, size), -count, count)
    old = lax.dynamic_slice_in_dim(cache, start, count, axis=2)
    if count == 1:
        new = jnp.where(offset == 0, value, old)
    else:
        source = jnp.arange(count, dtype=jnp.int32) + offset
        inside = (source >= 0) & (source < count)
        moved = jnp.take(value, source, axis=2, mode="clip")
        new = jnp.where(inside[:, None], moved, old)
    return lax.dynamic_update_slice_in_dim(cache, new, start, axis=2)


def write_rows(cache: Array, value: Array, at: Array) -> Array:
    """`cache` with `value[b]` at position `at[b]` of each row."""
    rows = jnp.arange(cache.shape[0], dtype=jnp.int32)
    return cache.at[rows, :, at].set(value[:, :, 0], unique_indices=True, **_DROP)


def write_slots(cache: Array, value: Array, slots: Array, at: Array) -> Array:
    """`cache` with `value[m]` at positions `at`, `at + 1`, ... of row `slots[m]`."""
    positions = jnp.asarray(at) + jnp.arange(value.shape[2], dtype=jnp.int32)
    return cache.at[slots[:, None], :, positions].set(value.swapaxes(1, 2), **_DROP)


def write_slot(cache: Array, value: Array, slot: Array, at: Array) -> Array:
    """`cache` with `value` `[1, H, N, D]` at positions `at`, `at + 1`, ... of row `slot`."""
    return write_slots(cache, value, jnp.asarray(slot).reshape(1), at)


def write_tokens(cache: Array, value: Array, rows: Array, at: Array) -> Array:
    """`cache` with token `p` of `value` at position `at[p]` of row `rows[p]`."""
    return cache.at[rows, :, at].set(value[0].swapaxes(0, 1), **_DROP)


# ---------------------------------------------------------------- steps of layers


MANY = 160  # rows from which on products of 16 bits are faster in f32 on a CPU (bench/jax_rows.py)


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Of 16-bit numbers, summed in f32: `[..., In]` and `[Out, In]` to `[..., Out]`."""
    rows, wide = int(np.prod(x.shape[:-1])), {"preferred_element_type": jnp.float32}
    over = (((x.ndim - 1,), (1,)), ((), ()))
    if fused() or 1 < rows < MANY:
        found = lax.dot_general(x, weight, over, **wide)
    elif rows == 1:  # turned, a CPU converts the weights as it reads them
        found = jnp.matmul(x.reshape(-1), weight.T, **wide).reshape(*x.shape[:-1], -1)
    else:
        found = lax.dot_general(x.astype(jnp.float32), weight.astype(jnp.float32), over)
    found = found.astype(x.dtype)
    return found if bias is None else found + bias


def softmax(x: Array) -> Array:
    """Along the last axis, in f32."""
    wide: Any = jnp.promote_types(x.dtype, jnp.float32)
    return jax.nn.softmax(x.astype(wide), axis=-1).astype(x.dtype)


def log_softmax(x: Array) -> Array:
    """Along the last axis, in f32."""
    return jax.nn.log_softmax(x.astype(jnp.float32), axis=-1)


def gelu(x: Array) -> Array:
    """With tanh, as GPT-2 has it."""
    return jax.nn.gelu(x, approximate=True)


def gelu_erf(x: Array) -> Array:
    """With the error function."""
    return jax.nn.gelu(x, approximate=False)


# ---------------------------------------------------------------- experts


def _experts(x: Array, weight: Array, experts: Array) -> Array:
    """Each of `[N, In]` rows times the matrix of its own expert, in f32: `[N, Out]`.

    A few rows read their matrices; more are sorted by expert, so that each matrix is read once.
    """
    count = weight.shape[0]
    experts = _position(experts, count)
    if not x.shape[0] or x.shape[0] <= count:
        own = weight[experts]
        return jnp.einsum("ni,noi->no", x, own, preferred_element_type=jnp.float32)
    order = jnp.argsort(experts, stable=True)
    sizes = jnp.zeros(count, jnp.int32).at[experts].add(1)
    found = lax.ragged_dot(
        x[order], weight.swapaxes(1, 2), sizes, preferred_element_type=jnp.float32
    )
    return jnp.zeros_like(found).at[order].set(found, unique_indices=True)


def linear_experts(x: Array, weight: Array, experts: Array) -> Array:
    """Each of `[R, K]` inputs times the matrix of its own expert: `[R, K, Out]`."""
    rows, chosen, width = x.shape
    found = _experts(x.reshape(rows * chosen, width), weight, experts.reshape(-1))
    return found.reshape(rows, chosen, weight.shape[1]).astype(x.dtype)


def linear_experts_shared(x: Array, weight: Array, experts: Array) -> Array:
    """Each row of `[R, In]` times the matrices of its K experts: `[R, K, Out]`."""
    rows, chosen = experts.shape
    repeated = jnp.broadcast_to(x[:, None], (rows, chosen, x.shape[1]))
    return linear_experts(repeated, weight, experts)


def combine_experts(x: Array, weight: Array, experts: Array, weights: Array) -> Array:
    """`linear_experts` summed over the experts of each row with `weights`: `[R, Out]`."""
    rows, chosen, width = x.shape
    found = _experts(x.reshape(rows * chosen, width), weight, experts.reshape(-1))
    own = found.reshape(rows, chosen, weight.shape[1])
    return jnp.einsum("rk,rko->ro", weights.astype(jnp.float32), own).astype(x.dtype)


# ---------------------------------------------------------------- which op has which


def _one_shard(call: Call) -> str | None:
    shards = call_dims(call)["Shards"]
    return None if shards == 1 else f"for Shards = 1, not {shards or 'a size of the call'}"


def _rounds_once(call: Call) -> str | None:
    """The body rounds each step to the dtype, which counts in f16 and bf16."""
    dtype = call_dtype(call)
    return None if dtype in (F32, F64) else f"rounds to {dtype} once, the op at each step"


def _narrow(call: Call) -> str | None:
    dtype = call_dtype(call)
    return None if dtype in (F16, BF16) else f"for numbers of 16 bits, not {dtype}"


def _kept(call: Call) -> str | None:
    """Queries, keys and values are of one dtype, and f32 is enough for their products."""
    query, key = (dtype_of(x) for x in call.inputs[:2])
    if query == F64:
        return "computes in f64, the op in f32"
    return None if query == key else f"for keys of the queries' dtype, not {key} with {query}"


def _kept_f32(call: Call) -> str | None:
    if call_dtype(call) != F32:
        return f"computes in {call_dtype(call)}, the op in f32"
    return _kept(call)


def _attention(run: str, *named: str) -> tuple[Kernel, ...]:
    names, numbers = frozenset(named), frozenset({"scale", "at", "window"})
    return (
        Kernel("fast", f"kernels.{run}", (), _kept, names, numbers=numbers),
        Kernel("equivalent", f"kernels.{run}", (), _kept_f32, names, numbers=numbers),
    )


def _simple(policy: Policy, run: str, **options: Any) -> tuple[Kernel, ...]:
    return (Kernel(policy, run, (), **options),)


def _in_steps(run: str) -> tuple[Kernel, ...]:
    return (Kernel("equivalent", run, (), _rounds_once), Kernel("fast", run, ()))


def _writing(policy: Policy, run: str) -> tuple[Kernel, ...]:
    return _simple(policy, f"kernels.{run}", numbers=frozenset({"at", "slot"}))


KERNELS: dict[str, tuple[Kernel, ...]] = {
    "std.nn.activations::relu": _simple("exact", "jax.nn.relu"),
    "std.nn.activations::sigmoid": _in_steps("jax.nn.sigmoid"),
    "std.nn.activations::silu": _in_steps("jax.nn.silu"),
    "std.nn.activations::gelu": _in_steps("kernels.gelu"),
    "std.nn.activations::gelu_erf": _in_steps("kernels.gelu_erf"),
    "std.nn.softmax::softmax": _simple("equivalent", "kernels.softmax"),
    "std.nn.loss::log_softmax": _simple("equivalent", "kernels.log_softmax"),
    "std.nn.attention::attention": _attention("attention", "mask"),
    "std.nn.attention::grouped_attention": _attention("attention", "mask"),
    "std.nn.attention::attention_rows": _attention("attention", "mask"),
    "std.nn.attention::grouped_attention_rows": _attention("attention", "mask"),
    "std.nn.attention::sink_attention": _attention("sink_attention"),
    "std.nn.attention::span_attention": _attention("span_attention", "window", "sinks"),
    "std.nn.attention::rows_attention": _attention("rows_attention", "window", "sinks"),
    "std.nn.attention::packed_attention": _attention("packed_attention", "window", "sinks"),
    "std.nn.cache::write_at": _writing("exact", "write_span"),
    "std.nn.cache::write_span": _writing("exact", "write_span"),
    "std.nn.cache::write_rows": _writing("exact", "write_rows"),
    "std.nn.cache::write_slot": _writing("exact", "write_slot"),
    "std.nn.cache::write_slots": _writing("exact", "write_slots"),
    # Of tokens that name one place any may be kept.
    "std.nn.cache::write_tokens": _writing("equivalent", "write_tokens"),
    "std.nn.linear::linear": _simple(
        "equivalent", "kernels.linear", accepts=_narrow, named=frozenset({"bias"})
    ),
    "std.nn.moe::linear_experts": _simple("equivalent", "kernels.linear_experts"),
    "std.nn.moe::linear_experts_shared": _simple("equivalent", "kernels.linear_experts_shared"),
    "std.nn.moe::combine_experts": _simple("equivalent", "kernels.combine_experts"),
    # On one device the collectives are their argument.
    "std.nn.parallel::all_reduce": _simple("exact", ""),
    "std.nn.parallel::shared": _simple("exact", ""),
    "std.nn.parallel::all_gather": _simple("exact", "", accepts=_one_shard),
}

# In the program of one shard of several they are collectives (`linnet.jax.sharding.Shards`).
SPLIT_KERNELS: dict[str, tuple[Kernel, ...]] = {
    **KERNELS,
    "std.nn.parallel::all_reduce": _simple("exact", "SHARDS.all_reduce"),
    "std.nn.parallel::all_gather": _simple("exact", "SHARDS.all_gather", dims=("Shards",)),
    "std.nn.loss::split_token_log_probs": _simple(
        "equivalent", "SHARDS.token_log_probs", dims=("Shards",)
    ),
}
