"""The C kernels over pages and rows of caches against formulas in f64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from linnet.torch import kernels
from linnet.torch.native import ops

NEAR = {torch.float32: 1e-5, torch.bfloat16: 4.5e-3, torch.float16: 6e-4}
DTYPES = list(NEAR)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Unless a test asks for more: on a busy machine they wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def over_pages(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    rows: Tensor | None,
    positions: Tensor,
    size: int,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The formula: every page of a query's row, and a score of -1e30 for what it does not see."""
    heads, count, width = query.shape
    groups, pool, _ = key.shape
    own = torch.arange(count) if rows is None else rows.long()
    pages = table.long()[own.clamp(0, len(table) - 1)]
    places = (pages[:, :, None] * size + torch.arange(size)).clamp(0, pool - 1).flatten(1)
    place = torch.arange(places.shape[1])
    seen = place <= positions[:, None]
    if window is not None:
        seen &= positions[:, None] - place < window
    q = query.double().transpose(0, 1).reshape(count, groups, -1, width)
    keys, values = (x.double()[:, places].transpose(0, 1) for x in (key, value))
    scores = torch.where(seen[:, None, None], q @ keys.transpose(-1, -2) * 0.125, -1e30)
    if sinks is not None:
        sink = sinks.double().reshape(1, groups, -1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sink), -1)
    mixed = scores.softmax(-1)[..., : places.shape[1]] @ values
    return mixed.reshape(count, heads, width)


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert found.dtype is dtype and found.shape == expected.shape
    near = NEAR[dtype] * max(1.0, expected.abs().max().item() if expected.numel() else 0.0)
    assert torch.allclose(found.double(), expected, rtol=NEAR[dtype], atol=near)


def runs(draw: st.DrawFn, rows: int, keys: int) -> tuple[list[int], list[int]]:
    """Rows and positions of queries: stretches that follow each other, and others."""
    own: list[int] = []
    at: list[int] = []
    for _ in range(draw(st.integers(1, 5))):
        row, length = draw(st.integers(-1, rows)), draw(st.integers(1, 60))
        start = draw(st.integers(-3, keys + 3))
        step = draw(st.sampled_from([1, 1, 1, 0, 2, -1]))
        own += [row] * length
        at += [start + step * i for i in range(length)]
    return own, at


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_queries_over_pages(data: st.DataObject) -> None:
    draw = data.draw
    dtype, kept = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(DTYPES))
    groups, shared = draw(st.sampled_from([(1, 1), (3, 3), (2, 1), (1, 14), (1, 5), (2, 25)]))
    width, size = draw(st.sampled_from([16, 48, 64, 128])), draw(st.sampled_from([1, 4, 16, 64]))
    rows, pages, pool = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 300))
    own, at = runs(draw, rows, pages * size)
    source = torch.Generator().manual_seed(draw(st.integers(0, 99)))

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source).to(dtype)

    count, heads = len(own), groups * shared
    turned = draw(st.booleans())
    query = drawn(count, heads, width).transpose(0, 1) if turned else drawn(heads, count, width)
    room = (drawn(groups, pool + 3, width + 16).to(kept) for _ in "kv")
    key, value = (x[:, :pool, :width] for x in room)
    table = torch.randint(-2, pool // size + 2, (rows, pages), generator=source).int()
    window = draw(st.sampled_from([None, None, 1, 7, 50, 1000]))
    sinks = draw(st.sampled_from([None, drawn(2 * heads)[::2]]))
    one_each = draw(st.booleans()) and count <= rows
    given_rows = None if one_each else torch.tensor(own).int()
    rest = table, given_rows, torch.tensor(at).int()
    torch.set_num_threads(draw(st.sampled_from([1, 1, 2, 3])))
    found = ops.attend_pages(query, key, value, *rest, 0.125, size, window, sinks)
    close(found, over_pages(query, key, value, *rest, size, window, sinks), dtype)


@pytest.mark.parametrize("threads", [3])
def test_one_long_row_is_shared_by_threads(threads: int) -> None:
    torch.set_num_threads(threads)
    source = torch.Generator().manual_seed(1)
    query = torch.randn(6, 3, 32, generator=source)
    key, value = (torch.randn(2, 1024, 32, generator=source) for _ in "kv")
    table = torch.randperm(16, generator=source).int().expand(3, 16)
    for at in ([1023, 0, 700], [64, 1023, 1023], [0, 0, 0], [1, 2, 900]):
        positions = torch.tensor(at).int()
        for window in (None, 500):
            for sinks in (None, torch.randn(6, generator=source)):
                rest = table, None, positions
                found = ops.attend_pages(query, key, value, *rest, 0.125, 64, window, sinks)
                expected = over_pages(query, key, value, *rest, 64, window, sinks)
                close(found, expected, torch.float32)


def test_no_number_among_pages() -> None:
    """NaN is not swallowed, minus infinity weighs nothing, and nothing is read beyond."""
    source = torch.Generator().manual_seed(2)
    query = torch.randn(4, 40, 16, generator=source).abs()
    for bad in (float("nan"), float("-inf")):
        key, value = (torch.randn(1, 64, 16, generator=source) for _ in "kv")
        key[0, 3, 0] = bad
        key[0, 50] = value[0, 50] = float("nan")
        rows = torch.tensor([0] * 40).int()
        rest = torch.tensor([[0, 1, 2, 3]]).int(), rows, torch.arange(40).int()
        found = ops.attend_pages(query, key, value, *rest, 0.125, 16)
        clean = torch.where(torch.arange(64)[:, None] == 50, 0, key), value.nan_to_num()
        expected = over_pages(query, *clean, *rest, 16)
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.allclose(found.double(), expected, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 3])
def test_tokens_into_a_cache(dtype: torch.dtype, threads: int) -> None:
    torch.set_num_threads(threads)
    source = torch.Generator().manual_seed(3)
    value = torch.randn(5, 30, 7, generator=source).to(dtype)
    rows = torch.randint(-1, 4, (30,), generator=source).int()
    at = torch.randint(-2, 10, (30,), generator=source).int()
    for own in (value, value.transpose(0, 1).contiguous().transpose(0, 1)):
        for place in (rows, None):
            cache = torch.randn(3, 5, 9, 7, generator=source).to(dtype)[:, :, 1:]
            expected = cache.clone()
            for p in range(30):
                row, position = p if place is None else int(place[p]), int(at[p])
                if 0 <= row < 3 and 0 <= position < 8:
                    expected[row, :, position] = value[:, p]
            ops.put_tokens_(cache, own, place, at)
            assert torch.equal(cache, expected)


def test_writing_ops_use_it_for_caches_of_any_layout() -> None:
    value, at = torch.randn(1, 2, 3, 4), torch.tensor([2, 0, 9]).int()
    rows = torch.tensor([1, 0, 1]).int()
    for cache in (torch.zeros(2, 2, 5, 4), torch.zeros(2, 2, 4, 5).transpose(2, 3)):
        kernels.write_tokens_(cache, value, rows, at)
        assert torch.equal(cache[1, :, 2], value[0, :, 0])
        assert torch.equal(cache[0, :, 0], value[0, :, 1])
        assert cache.count_nonzero() == 16
        kernels.write_rows_(cache, value.transpose(0, 2)[:2], at[:2])
        assert torch.equal(cache[0, :, 2], value[0, :, 0])
