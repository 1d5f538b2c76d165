"""The C kernels as functions of tensors; `native.takes` says whether their tensors may go there."""

from __future__ import annotations

import torch
from torch import Tensor

from linnet.torch import native
from linnet.torch.native import KIND, bits, run

# More keys than this for each thread's part are worth a part of their own.
_PART = 64
# Threads that may share one query, as in attend.h.
_PARTS = 256


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T`: `[*S, K]` and `[N, K]` to `[*S, N]`, summed in f32 and rounded once."""
    count, width = weight.shape
    if x.stride(-1) != 1 or not (x.ndim == 2 or x.is_contiguous()):
        x = x.contiguous()
    if weight.stride(1) != 1:
        weight = weight.contiguous()
    rows = x.shape[:-1].numel()
    out = x.new_empty((*x.shape[:-1], count))
    size = x.dtype.itemsize
    step = x.stride(0) if x.ndim == 2 else width
    run(
        (rows if rows > 8 else 1) * count * width,
        native.LINEAR,
        x.data_ptr(),
        KIND[x.dtype],
        step * size,
        rows,
        weight.data_ptr(),
        KIND[weight.dtype],
        weight.stride(0) * weight.dtype.itemsize,
        count,
        width,
        out.data_ptr(),
        count,
    )
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x^2) + eps)` rounded to x's dtype, then times the weight."""
    x, weight = x.contiguous(), weight.contiguous()
    out = torch.empty_like(x)
    width = weight.shape[0]
    if not width:
        return out
    run(
        x.numel(),
        native.RMS_NORM,
        x.data_ptr(),
        out.data_ptr(),
        weight.data_ptr(),
        KIND[x.dtype],
        x.numel() // width,
        width,
        bits(eps),
    )
    return out


def rope(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """`[B, H, S, D]` turned by the tables `[S, D]`, in f32 and rounded once."""
    if x.stride(3) != 1:
        x = x.contiguous()
    cosines, sines = cosines.contiguous(), sines.contiguous()
    rows, heads, positions, width = x.shape
    out = x.new_empty(x.shape)
    size = x.dtype.itemsize
    run(
        x.numel(),
        native.ROPE,
        x.data_ptr(),
        x.stride(0) * size,
        x.stride(1) * size,
        x.stride(2) * size,
        out.data_ptr(),
        cosines.data_ptr(),
        sines.data_ptr(),
        KIND[x.dtype],
        rows,
        heads,
        positions,
        width,
    )
    return out


def silu_gated(gate: Tensor, up: Tensor) -> Tensor:
    """`silu(gate) * up` of `[*S, N]`, in f32 and rounded once."""
    shape, width = gate.shape, gate.shape[-1] if gate.ndim else 1
    gate, up = _as_rows(gate), _as_rows(up)
    out = gate.new_empty(shape)
    size = gate.dtype.itemsize
    run(
        4 * gate.numel(),
        native.SILU_GATED,
        gate.data_ptr(),
        _row_step(gate) * size,
        up.data_ptr(),
        _row_step(up) * size,
        out.data_ptr(),
        KIND[gate.dtype],
        gate.numel() // width if width else 0,
        width,
    )
    return out


def _as_rows(x: Tensor) -> Tensor:
    """The tensor, whose rows lie one step apart and whole, or a copy that does."""
    if x.ndim and x.stride(-1) != 1:
        return x.contiguous()
    step = 0
    for axis in range(x.ndim - 2, -1, -1):
        if axis == x.ndim - 2:
            step = x.stride(axis)
        elif x.shape[axis] != 1 and x.stride(axis) != step:
            return x.contiguous()
        step *= x.shape[axis]
    return x


def _row_step(x: Tensor) -> int:
    return x.stride(-2) if x.ndim > 1 else 0


def attends(query: Tensor, key: Tensor) -> bool:
    """Whether `attend` can take such queries and keys."""
    width = query.shape[3]
    fits = width % 16 == 0 and 0 < width <= 256 and key.shape[2] > 0
    return fits and query.numel() > 0 and key.dtype in KIND


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    at: Tensor | int,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Few queries `[B, Heads, S, D]` over keys `[B, KvHeads, K, D]`, in f32 and rounded once.

    Keys and values, of one dtype, need not have that of the queries.

    Query s of row b is at position `at + s`, or `at[b] + s` for `at` `[B]` (i32), and sees the keys
    up to its own, with a window that many of them; one that sees none gets the mean of all values.
    """
    query, key, value = (x if x.stride(3) == 1 else x.contiguous() for x in (query, key, value))
    sinks = None if sinks is None else sinks.contiguous()
    place = _place(at).contiguous()
    native.keep(place)
    rows, heads, queries, width = query.shape
    keys, groups = key.shape[2], key.shape[1]
    chunks = min(torch.get_num_threads(), max(1, keys // _PART), 64)
    out = query.new_empty((rows, queries, heads, width))
    parts = query.new_empty(rows * heads * queries * chunks * (width + 2), dtype=torch.float32)
    arguments = (
        *_attention(query, key, value, out),
        place.data_ptr(),
        1 if place.ndim else 0,
        window or 0,
        0 if sinks is None else sinks.data_ptr(),
        bits(scale),
        parts.data_ptr(),
        chunks,
        KIND[key.dtype],
    )
    # How much of the keys is written is not read here: a cache counts as full.
    run(2 * rows * groups * queries * keys * width, native.ATTEND, *arguments)
    run(parts.numel(), native.ATTENDED, *arguments)
    return out.transpose(1, 2)


def _attention(query: Tensor, key: Tensor, value: Tensor, out: Tensor) -> tuple[int, ...]:
    """What both kernels of attention are told first: where everything lies, and its sizes."""
    rows, heads, queries, width = query.shape
    return (
        query.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        *(step * x.dtype.itemsize for x in (query, key, value) for step in x.stride()[:3]),
        out.data_ptr(),
        KIND[query.dtype],
        rows,
        heads,
        key.shape[1],
        queries,
        key.shape[2],
        width,
    )


def _place(at: Tensor | int) -> Tensor:
    """The position as a kernel reads it, whatever device new tensors are made on."""
    return at.int() if isinstance(at, Tensor) else torch.tensor(at, dtype=torch.int32, device="cpu")


def put_span_(cache: Tensor, value: Tensor, at: Tensor | int) -> None:
    """`[B, H, N, D]` into a cache `[B, H, S, D]` at positions `at` on; what lies outside is not."""
    if value.stride(3) != 1:
        value = value.contiguous()
    place = _place(at)
    native.keep(place)
    rows, heads, count, width = value.shape
    size = cache.dtype.itemsize
    run(
        value.numel(),
        native.PUT_SPAN,
        cache.data_ptr(),
        cache.stride(0) * size,
        cache.stride(1) * size,
        cache.shape[2],
        width * size,
        value.data_ptr(),
        *(step * size for step in value.stride()[:3]),
        rows,
        heads,
        count,
        place.data_ptr(),
    )


def put_tokens_(cache: Tensor, value: Tensor, rows: Tensor | None, at: Tensor) -> None:
    """Token p of `[H, P, D]` into a cache `[B, H, S, D]` at (rows[p], at[p]), both i32.

    Without `rows` at (p, at[p]). What lies outside is not; of those at one place the last is.
    """
    if value.stride(2) != 1:
        value = value.contiguous()
    at = at.int().contiguous()
    rows = None if rows is None else rows.int().contiguous()
    heads, count, width = value.shape
    size = cache.dtype.itemsize
    run(
        value.numel(),
        native.PUT_TOKENS,
        cache.data_ptr(),
        *(step * size for step in cache.stride()[:3]),
        cache.shape[0],
        cache.shape[2],
        width * size,
        value.data_ptr(),
        value.stride(1) * size,
        value.stride(0) * size,
        heads,
        count,
        0 if rows is None else rows.data_ptr(),
        at.data_ptr(),
    )


def rows_of(table: Tensor, ids: Tensor) -> Tensor:
    """Rows `ids` (i32) of the table `[N, H]`; an id outside it reads the nearest."""
    table, ids = table.contiguous(), ids.contiguous()
    out = table.new_empty((*ids.shape, table.shape[1]))
    width = table.shape[1] * table.dtype.itemsize
    run(
        out.numel(),
        native.ROWS,
        ids.data_ptr(),
        out.data_ptr(),
        table.data_ptr(),
        ids.numel(),
        table.shape[0],
        width,
    )
    return out


def attend_prompt(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    at: int,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """`attend` for many queries, each of which sees a key: `at` >= 0, `at` + S <= K."""
    query, key, value = (x if x.stride(3) == 1 else x.contiguous() for x in (query, key, value))
    sinks = None if sinks is None else sinks.contiguous()
    rows, heads, queries, width = query.shape
    out = query.new_empty((rows, queries, heads, width))
    run(
        rows * heads * queries * (at + queries) * width,
        native.PROMPT,
        *_attention(query, key, value, out),
        at,
        window or 0,
        0 if sinks is None else sinks.data_ptr(),
        bits(scale),
        KIND[key.dtype],
    )
    return out.transpose(1, 2)


def attends_pages(query: Tensor, key: Tensor, table: Tensor) -> bool:
    """Whether `attend_pages` can take queries `[Heads, P, D]` and such a pool."""
    width = query.shape[2]
    fits = width % 16 == 0 and 0 < width <= 256 and key.shape[2] > 0
    return fits and query.numel() > 0 and table.numel() > 0 and key.dtype in KIND


def attend_pages(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    rows: Tensor | None,
    positions: Tensor,
    scale: float,
    size: int,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Queries `[Heads, P, D]` over a pool `[KvHeads, N, D]`, f32 rounded once: `[P, Heads, D]`.

    Keys and values, of one dtype, need not have that of the queries.

    Query p is at `positions[p]` of row `rows[p]` (p where there are none) of `table`, whose pages
    have `size` positions each, and sees the keys up to its own, with a window that many of them;
    one that sees none gets the mean of all values of its row.
    """
    query, key, value = (x if x.stride(2) == 1 else x.contiguous() for x in (query, key, value))
    table, positions = table.int().contiguous(), positions.int().contiguous()
    rows = None if rows is None else rows.int().contiguous()
    sinks = None if sinks is None else sinks.contiguous()
    heads, count, width = query.shape
    groups, places, _ = key.shape
    room = min(torch.get_num_threads(), _PARTS)
    out = query.new_empty((count, heads, width))
    parts = query.new_empty(16 + 2 * room * heads // groups * (width + 2), dtype=torch.float32)
    arguments = (
        query.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        query.stride(1) * query.dtype.itemsize,
        query.stride(0) * query.dtype.itemsize,
        *(step * x.dtype.itemsize for x in (key, value) for step in x.stride()[:2]),
        out.data_ptr(),
        KIND[query.dtype],
        count,
        heads,
        groups,
        places,
        width,
        table.data_ptr(),
        *table.shape,
        size,
        0 if rows is None else rows.data_ptr(),
        positions.data_ptr(),
        window or 0,
        0 if sinks is None else sinks.data_ptr(),
        bits(scale),
        parts.data_ptr(),
        room,
        KIND[key.dtype],
    )
    # How far each query sees is not read here: as far as a few pages reach.
    run(2 * count * heads * min(table.shape[1] * size, 256) * width, native.PAGED, *arguments)
    run(parts.numel(), native.PAGED_WHOLE, *arguments)
    return out


FP8, INT4_GROUPS, MXFP4 = range(3)  # as in packed.c


def packed_linear(
    x: Tensor,
    weight: Tensor,
    format: int,
    scale: Tensor,
    zero: Tensor | None = None,
    rounded: torch.dtype = torch.float32,
) -> Tensor:
    """`x @ w.T`, summed in f32 and rounded once, over numbers as `std.quant` stores them.

    Rows of `weight` are outputs: bytes `[N, K]`, or groups of halves `[N, G, K / G / 2]`, with a
    `scale` (and a `zero` point) for each output or group. `rounded`: the dtype that each is of.
    """
    weight, scale = weight.contiguous(), scale.contiguous()
    if zero is not None:
        zero = zero.contiguous()
    if x.stride(-1) != 1 or not (x.ndim == 2 or x.is_contiguous()):
        x = x.contiguous()
    width, count = x.shape[-1], weight.shape[0]
    rows = x.shape[:-1].numel()
    out = x.new_empty((*x.shape[:-1], count))
    run(
        (rows if rows > 8 else 1) * count * width,
        native.PACKED,
        x.data_ptr(),
        KIND[x.dtype],
        (x.stride(0) if x.ndim == 2 else width) * x.dtype.itemsize,
        rows,
        weight.data_ptr(),
        format,
        weight.shape[1:].numel(),
        count,
        width,
        scale.data_ptr(),
        scale.shape[1:].numel() * scale.dtype.itemsize,
        KIND.get(scale.dtype, 0),
        0 if zero is None else zero.data_ptr(),
        0 if zero is None else zero.shape[1],
        2 * weight.shape[2] if weight.ndim == 3 else 0,
        KIND[rounded],
        out.data_ptr(),
        count,
    )
    return out
