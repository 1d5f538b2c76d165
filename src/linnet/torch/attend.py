"""Native attention: over what is written of a cache, and with a mask only where one is needed.

A position on a CPU is read as a number. On any other device that would wait for it, so it is known
there only if it came as a number, and while a graph is compiled reading would end the graph: else
the mask of every position is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from linnet.torch import native
from linnet.torch.native import ops as native_ops

Scalar = Tensor | int
Attend = Callable[..., Tensor]

# ---------------------------------------------------------------- under any mask


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
) -> Tensor:
    """Softmax attention; a query that may see nothing gets the mean of all values.

    Heads of the query may share a head of the keys; the mask is `[Q, K]` or, a row at a time,
    `[B, Q, K]`, and `causal` says that query i sees keys 0 to i. Computed in the dtype of the
    inputs, or of the query where keys and values are kept in another.
    """
    key, value = key.to(query.dtype), value.to(query.dtype)
    rows, heads, queries, width = query.shape
    groups = key.shape[1]
    if native.takes(query, key, value) and not native.has_matrix_units(query.dtype):
        if query.dtype is not torch.float32:
            # Products of 16-bit floats are slow on a processor that has no units for them.
            return attention_f32(query, key, value, scale, mask, causal=causal)
    if isinstance(scale, Tensor):
        query, scale = query * scale.to(query.dtype), 1.0
    bias = None
    if mask is not None:
        mask = mask[:, None] if mask.ndim == 3 else mask
        if query.dtype is torch.float16 or _recorded(query, key, value):
            # -1e30 is -inf in f16, and the backward pass counts with its sum of a row, which it
            # swallows: a query that sees nothing sees everything, and tells no key from another.
            blind = ~mask.any(-1, keepdim=True)
            query, mask = query.masked_fill(blind, 0), mask | blind
        # Not -inf: a row of nothing else must be uniform. It swallows every real score.
        bias = torch.where(mask, 0.0, -1e30).to(query.dtype)
    if groups != heads and (queries == 1 or (bias is not None and _copies_keys(query))):
        # The heads that share keys are as good as queries of one head.
        share = heads // groups
        query = query.reshape(rows, groups, share * queries, width)
        if bias is not None and queries > 1:
            bias = bias[..., None, :, :].expand(*bias.shape[:-2], share, *bias.shape[-2:])
            bias = bias.flatten(-3, -2)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)
        return mixed.reshape(rows, heads, queries, width)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=bias,
        is_causal=causal,
        scale=scale,
        enable_gqa=groups != heads,
    )


def _recorded(*inputs: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)


def _copies_keys(query: Tensor) -> bool:
    """Whether PyTorch, under a mask, copies the keys for each head that shares them."""
    return not query.is_cpu


def attention_f32(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
) -> Tensor:
    """`attention` computed in f32 and rounded once."""
    wide = query.float(), key.float(), value.float()
    return attention(*wide, scale, mask, causal=causal).to(query.dtype)


def sink_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor,
    scale: float | Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """Attention with a logit of each head that takes part in the softmax and has no value."""
    rows, heads, queries, width = query.shape
    groups = key.shape[1]
    wide = query.float().reshape(rows, groups, heads // groups, queries, width)
    scores = torch.einsum("bhgqd,bhkd->bhgqk", wide, key.float()) * scale
    if mask is not None:
        mask = mask[:, None, None] if mask.ndim == 3 else mask
        scores = torch.where(mask, scores, -1e30)
    sink = sinks.float().reshape(1, groups, -1, 1, 1).expand(*scores.shape[:-1], 1)
    weights = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
    mixed = torch.einsum("bhgqk,bhkd->bhgqd", weights, value.float())
    return mixed.reshape(query.shape).to(query.dtype)


# ---------------------------------------------------------------- by position


def span_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    at: Scalar,
    scale: float | Tensor,
    window: Scalar | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Queries at positions `at` on, each over the positions up to its own, or the last of them."""
    return _seeing(attention, query, key, value, at, None, scale, window, sinks)


def rows_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    scale: float | Tensor,
    window: Scalar | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """One query for each row, at its own position, over those that `span_attention` says."""
    return _seeing(attention, query, key, value, positions, None, scale, window, sinks)


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    segments: Tensor,
    scale: float | Tensor,
    window: Scalar | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Packed tokens, each over those of its segment up to its position, or the last of them."""
    return _seeing(attention, query, key, value, positions, segments, scale, window, sinks)


def span_attention_f32(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    at: Scalar,
    scale: float | Tensor,
    window: Scalar | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """`span_attention` computed in f32 and rounded once."""
    return _seeing(attention_f32, query, key, value, at, None, scale, window, sinks)


def rows_attention_f32(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    scale: float | Tensor,
    window: Scalar | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """`rows_attention` computed in f32 and rounded once."""
    return _seeing(attention_f32, query, key, value, positions, None, scale, window, sinks)


def packed_attention_f32(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    segments: Tensor,
    scale: float | Tensor,
    window: Scalar | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """`packed_attention` computed in f32 and rounded once."""
    return _seeing(attention_f32, query, key, value, positions, segments, scale, window, sinks)


def _seeing(
    attend: Attend,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    at: Scalar,
    segments: Tensor | None,
    scale: float | Tensor,
    window: Scalar | None,
    sinks: Tensor | None,
) -> Tensor:
    """What each query sees: of segments, of its row, or of the one span of all rows."""
    if torch.compiler.is_compiling() and _for_numbers(query, key, value, at, scale, window, sinks):
        # One operation to the compiler, which reads numbers when it runs.
        wide = attend is attention_f32
        given = query, key, value, at, segments, scale, window, sinks, wide
        rows: Tensor = torch.ops.linnet.attention(*given)
        return rows.transpose(1, 2)
    if segments is None:
        mixed = _in_c(query, key, value, at, scale, window, sinks)
        if mixed is not None:
            return mixed
    how = _Weighing(attend, scale, sinks)
    if segments is not None:
        return _packed(how, query, key, value, torch.as_tensor(at), segments, window)
    if isinstance(at, Tensor) and at.ndim:
        return _rows(how, query, key, value, at, window)
    return _span(how, query, key, value, at, window)


def _for_numbers(*given: Scalar | float | None) -> bool:
    """Whether the operation of compiled code takes these: on a CPU, and without gradients."""
    *queries, at, scale, window, sinks = given
    tensors = [x for x in (*queries, at, sinks) if isinstance(x, Tensor)]
    grows = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    known = not isinstance(at, Tensor) or isinstance(scale, Tensor) or isinstance(window, Tensor)
    return not grows and not known and all(x.device.type == "cpu" for x in tensors)


def _compiled(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    at: Tensor,
    segments: Tensor | None,
    scale: float,
    window: int | None,
    sinks: Tensor | None,
    wide: bool,
) -> Tensor:
    attend = attention_f32 if wide else attention
    mixed = _seeing(attend, query, key, value, at, segments, scale, window, sinks)
    return mixed.transpose(1, 2).contiguous()


def _shaped(query: Tensor, *_: object) -> Tensor:
    rows, heads, queries, width = query.shape
    return query.new_empty((rows, queries, heads, width))


_library: Any = torch.library
_OPERATIONS = _library.Library("linnet", "DEF")
_OPERATIONS.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor at, Tensor? segments, float scale,"
    " int? window, Tensor? sinks, bool wide) -> Tensor"
)
_OPERATIONS.impl("attention", _compiled, "CPU")
_library.register_fake("linnet::attention", _shaped, lib=_OPERATIONS)


# More queries of a head than these are products of matrices.
_FEW = 4


def _in_c(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    at: Scalar,
    scale: float | Tensor,
    window: Scalar | None,
    sinks: Tensor | None,
) -> Tensor | None:
    """What the C kernel gives, which reads what each query sees and no more, if it takes this."""
    # Asked first: while a graph is compiled, what is asked of a size makes the graph its own.
    if not native.takes(query, key, value, *(() if sinks is None else (sinks,))):
        return None
    if query.shape[2] > _FEW or not isinstance(scale, float):
        return None
    if window is not None and (not isinstance(window, int) or window < 1):
        return None
    if not native_ops.attends(query, key):
        return None
    return native_ops.attend(query, key, value, scale, at, window, sinks)


@dataclass(frozen=True, slots=True)
class _Weighing:
    """How keys that are seen are weighed: `attention` or `attention_f32`, or with `sinks`."""

    attend: Attend
    scale: float | Tensor
    sinks: Tensor | None

    def every(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Each query sees every key."""
        return self.under(query, key, value, None)

    def causal(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Query i sees keys 0 to i."""
        if self.sinks is None:
            return self.attend(query, key, value, self.scale, causal=True)
        own = torch.arange(query.shape[2], device=query.device)
        return self.under(query, key, value, own <= own[:, None])

    def under(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """A query sees the keys that the mask keeps."""
        if self.sinks is None:
            return self.attend(query, key, value, self.scale, mask)
        return sink_attention(query, key, value, self.sinks, self.scale, mask)


def _span(
    how: _Weighing, query: Tensor, key: Tensor, value: Tensor, at: Scalar, window: Scalar | None
) -> Tensor:
    count, length = query.shape[2], key.shape[2]
    start, size = known(at), known(window)
    if start is None or (size is None and window is not None):
        return _span_masked(how, query, key, value, at, window)
    if start < 0 or (size is not None and (size < 1 or start + count - size >= length)):
        return _span_masked(how, query, key, value, start, size)  # some query sees nothing
    mixed = _prompt_in_c(how, query, key, value, start, size)
    if mixed is not None:
        return mixed
    long = size is not None and count > 2 * max(size, _BLOCK)
    if size is not None and long and not torch.compiler.is_compiling():
        blocks = torch.split(query, max(size, _BLOCK), 2)
        starts = range(start, start + count, max(size, _BLOCK))
        parts = zip(blocks, starts, strict=True)
        return torch.cat([_span(how, q, key, value, i, size) for q, i in parts], 2)
    first = 0 if size is None else max(start + 1 - size, 0)
    last = min(start + count, length)
    key, value = key[:, :, first:last], value[:, :, first:last]
    if count == 1:
        return how.every(query, key, value)
    if start == first and last - first == count and (size is None or size >= count):
        return how.causal(query, key, value)
    return _span_masked(how, query, key, value, start - first, size)


def _prompt_in_c(
    how: _Weighing, query: Tensor, key: Tensor, value: Tensor, start: int, size: int | None
) -> Tensor | None:
    """What the C kernel for many queries gives, if it takes this: each of them sees a key."""
    sinks = () if how.sinks is None else (how.sinks,)
    if not native.takes(query, key, value, *sinks) or native.has_matrix_units(query.dtype):
        return None
    if key.dtype not in native.KIND:
        return None
    count, length = query.shape[2], key.shape[2]
    if count <= _FEW or start + count > length or not isinstance(how.scale, float):
        return None
    if not query.numel():
        return None
    return native_ops.attend_prompt(query, key, value, how.scale, start, size, how.sinks)


# A prompt longer than two windows, or two of these, goes block by block: a query's keys are near.
_BLOCK = 128


def _span_masked(
    how: _Weighing, query: Tensor, key: Tensor, value: Tensor, at: Scalar, window: Scalar | None
) -> Tensor:
    own = at + torch.arange(query.shape[2], device=query.device)
    return how.under(query, key, value, _up_to(own, key.shape[2], window))


def _rows(
    how: _Weighing,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    window: Scalar | None,
) -> Tensor:
    if not readable(positions):
        seen = _up_to(positions.long(), key.shape[2], window)
        return how.under(query, key, value, seen[:, None])
    at = positions.tolist()
    if len(set(at)) == 1:
        return _span(how, query, key, value, at[0], window)
    parts = []
    for row, own in enumerate(at):
        q, k, v = (x[row : row + 1] for x in (query, key, value))
        parts.append(_span(how, q, k, v, own, window))
    return torch.cat(parts) if parts else query.clone()


def _packed(
    how: _Weighing,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    segments: Tensor,
    window: Scalar | None,
) -> Tensor:
    size = known(window)
    runs = _runs(segments) if size is None or size > 0 else None
    if runs is None or (size is None and window is not None):
        at = positions.long()
        seen = _among(at, at, window) & (segments[:, None] == segments)
        return how.under(query, key, value, seen)
    following = positions[1:] - positions[:-1] == 1
    parts = []
    for first, last in runs:
        q, k, v = (x[:, :, first:last] for x in (query, key, value))
        if bool(following[first : last - 1].all()):
            parts.append(_span(how, q, k, v, 0, size))
        else:
            at = positions[first:last].long()
            parts.append(how.under(q, k, v, _among(at, at, size)))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _runs(segments: Tensor) -> list[tuple[int, int]] | None:
    """Where segments start and end, if that is readable, each is in one place, and it pays."""
    if not readable(segments) or not segments.numel():
        return None
    count = segments.shape[0]
    inner = (segments[1:] != segments[:-1]).nonzero().flatten().tolist()
    starts = [0, *(i + 1 for i in inner)]
    runs = list(pairwise([*starts, count]))
    if len(set(segments[starts].tolist())) < len(runs):
        return None
    work = sum((last - first) ** 2 + _CALL for first, last in runs)
    return runs if len(runs) == 1 or work < count * count else None


_CALL = 512  # how many scores a call of its own costs as much as


# ---------------------------------------------------------------- over pages


def paged_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    positions: Tensor,
    scale: float | Tensor,
    window: Scalar | None = None,
    sinks: Tensor | None = None,
    *,
    Size: int,
) -> Tensor:
    """One query for each row over its pages, up to its own position, in f32."""
    given = query[:, :, 0].transpose(0, 1), key, value, table, None, positions
    mixed = _pages_in_c(*given, scale, window, sinks, Size)
    if mixed is not None:
        return mixed[:, :, None]
    table = _written(table, positions, Size)
    places = _places(table, Size, key.shape[2])
    keys = key[0][:, places].transpose(0, 1)
    values = value[0][:, places].transpose(0, 1)
    return rows_attention_f32(query, keys, values, positions, scale, window, sinks)


def paged_prefill_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    rows: Tensor,
    positions: Tensor,
    scale: float | Tensor,
    window: Scalar | None = None,
    sinks: Tensor | None = None,
    *,
    Size: int,
) -> Tensor:
    """Packed queries, each over the pages of its row, up to its own position, in f32.

    Every row's pages are gathered once, side by side; a query sees those of its own row.
    """
    own_pages = query[0], key, value, table, rows, positions
    result = _pages_in_c(*own_pages, scale, window, sinks, Size)
    if result is not None:
        return result.transpose(0, 1)[None]
    table = _written(table, positions, Size)
    count, length = table.shape[0], table.shape[1] * Size
    places = _places(table, Size, key.shape[2]).flatten()
    own = torch.arange(count, device=table.device) == rows.clamp(0, count - 1)[:, None]
    seen = _up_to(positions.long(), length, window)
    if sinks is not None:
        mask = (own[:, :, None] & seen[:, None]).reshape(-1, count * length)
        return sink_attention(query, key[:, :, places], value[:, :, places], sinks, scale, mask)
    if _recorded(query, key, value):
        blind = ~seen.any(-1, keepdim=True)
        query, seen = query.masked_fill(blind, 0), seen | blind
    bias = torch.where(seen, 0.0, -1e30)[:, None].expand(-1, count, -1)
    # Another row's keys are not even part of the mean that a query which sees nothing gets.
    bias = torch.where(own[:, :, None], bias, float("-inf")).reshape(-1, count * length)
    mixed = F.scaled_dot_product_attention(
        query.float() * scale,
        key[:, :, places].float(),
        value[:, :, places].float(),
        attn_mask=bias,
        scale=1.0,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return mixed.to(query.dtype)


def _pages_in_c(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    rows: Tensor | None,
    positions: Tensor,
    scale: float | Tensor,
    window: Scalar | None,
    sinks: Tensor | None,
    size: int,
) -> Tensor | None:
    """What the C kernel gives for queries `[Heads, P, D]`, `[P, Heads, D]`, if it takes this."""
    if not native.takes(query, key, value, *(() if sinks is None else (sinks,))):
        return None
    if not isinstance(scale, float) or not native_ops.attends_pages(query, key, table):
        return None
    if window is not None and (not isinstance(window, int) or window < 1):
        return None
    given = query, key[0], value[0], table, rows, positions
    return native_ops.attend_pages(*given, scale, size, window, sinks)


def _written(table: Tensor, positions: Tensor, size: int) -> Tensor:
    """The columns of the table that some position reaches, all of them where that is not known."""
    if not readable(positions) or not positions.numel():
        return table
    low, high = (int(x) for x in positions.aminmax())
    return table[:, : high // size + 1] if low >= 0 else table


def _places(table: Tensor, size: int, places: int) -> Tensor:
    """`[Rows, Pages * Size]`: where in the pool each position of a row lies."""
    inside = torch.arange(size, dtype=torch.int32, device=table.device)
    found = (table[:, :, None] * size + inside).clamp(0, places - 1)
    return found.reshape(table.shape[0], -1)


# ---------------------------------------------------------------- positions and masks


_NUMBER = "linnet_number"


def numbered(x: Tensor, number: int) -> Tensor:
    """The scalar, which nothing writes into, with its number beside it for whoever may not wait."""
    if not torch.compiler.is_compiling():
        setattr(x, _NUMBER, number)
    return x


def known(x: Scalar | None) -> int | None:
    """The number, where it can be had without waiting for it."""
    if not isinstance(x, Tensor):
        return x
    if readable(x):
        return int(x)
    if torch.compiler.is_compiling():
        return None
    number: int | None = getattr(x, _NUMBER, None)
    return number


def readable(x: Tensor) -> bool:
    """Whether reading numbers neither waits for a device nor ends the graph being compiled."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    native.reads()
    return True


def _up_to(own: Tensor, length: int, window: Scalar | None) -> Tensor:
    """`[N, length]`: the positions from 0 that a query sees from its own."""
    return _among(own, torch.arange(length, device=own.device), window)


def _among(own: Tensor, keys: Tensor, window: Scalar | None) -> Tensor:
    """`[N, K]`: which of the keys a query sees, all of them at their positions."""
    seen = keys <= own[:, None]
    return seen if window is None else seen & (own[:, None] - keys < window)
