"""Attention by position: what it reads, where it builds no mask, and both of its ways agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from linnet.torch import attend, kernels

HEADS, KV, LENGTH, WIDTH = 4, 2, 12, 6
SINKS = torch.arange(HEADS) - 1.0


def drawn(rows: int, queries: int, keys: int = LENGTH) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(rows * 100 + queries)
    sizes = (HEADS, queries), (KV, keys), (KV, keys)
    q, k, v = (torch.randn(rows, *size, WIDTH, generator=draw) for size in sizes)
    return q, k, v


@pytest.fixture
def products(monkeypatch: Any) -> list[dict[str, Any]]:
    """What each call of PyTorch's attention is given, where no C kernel takes it."""
    monkeypatch.setattr("linnet.torch.native.takes", lambda *tensors: False)
    seen: list[dict[str, Any]] = []
    run = torch.nn.functional.scaled_dot_product_attention

    def recorded(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        seen.append({"keys": key.shape[2], **options})
        return run(query, key, value, **options)

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", recorded)
    return seen


def waits_for_nothing(monkeypatch: Any) -> None:
    """As on a device: no number is read from a tensor."""
    monkeypatch.setattr("linnet.torch.attend.readable", lambda x: False)


@pytest.mark.parametrize(("at", "queries", "window"), [(0, 5, None), (7, 1, None), (7, 1, 3)])
def test_no_mask_is_built_where_none_is_needed(
    at: int, queries: int, window: int | None, products: list[dict[str, Any]]
) -> None:
    q, k, v = drawn(2, queries)
    for position in (at, torch.tensor(at, dtype=torch.int32)):
        attend.span_attention(q, k, v, position, 0.5, window)
        call = products.pop()
        assert call["attn_mask"] is None
        assert call["keys"] == min(at + queries, window or LENGTH)
        assert bool(call.get("is_causal")) == (queries > 1)


def test_rows_and_packed_prompts_have_no_mask(products: list[dict[str, Any]]) -> None:
    q, k, v = drawn(3, 1)
    attend.rows_attention(q, k, v, torch.tensor([0, 11, 4]), 0.5)
    assert [(call["keys"], call["attn_mask"]) for call in products] == [
        (1, None),
        (12, None),
        (5, None),
    ]
    products.clear()
    lengths = 40, 24
    q, k, v = drawn(1, 64, 64)
    positions = torch.cat([torch.arange(n) for n in lengths])
    attend.packed_attention(q, k, v, positions, torch.tensor([0] * 40 + [1] * 24), 0.5)
    assert [(call["keys"], call["is_causal"]) for call in products] == [(40, True), (24, True)]


def test_what_is_not_written_is_not_read() -> None:
    q, k, v = drawn(3, 2)
    for sinks in (None, SINKS):
        written = attend.span_attention(q, k[:, :, :6], v[:, :, :6], 4, 0.5, None, sinks)
        far = [torch.cat((x[:, :, :6], torch.full_like(x[:, :, 6:], torch.nan)), 2) for x in (k, v)]
        assert torch.equal(
            attend.span_attention(q, *far, torch.tensor(4), 0.5, None, sinks), written
        )
        one = q[:, :, :1]
        rows = attend.rows_attention(one, *far, torch.tensor([5, 0, 3]), 0.5, 2, sinks)
        assert rows.isfinite().all()
    pool = [torch.full((1, KV, 12, WIDTH), torch.nan) for _ in range(2)]
    for of, x in zip(pool, (k, v), strict=True):
        of[:, :, 4:12] = x[:1, :, :8]
    table = torch.tensor([[1, 2, 0], [2, 1, 0]])
    inside = attend.paged_attention(q[:2, :, :1], *pool, table, torch.tensor([7, 4]), 0.5, Size=4)
    assert inside.isfinite().all()


@pytest.mark.parametrize("sinks", [None, SINKS], ids=["plain", "sinks"])
@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.slow
def test_both_ways_give_the_same_and_the_same_gradients(
    sinks: Tensor | None, window: int | None, monkeypatch: Any
) -> None:
    segments = torch.tensor([0] * 40 + [1] * 24)
    positions = torch.cat([torch.arange(40), torch.arange(24)])

    def results() -> list[Tensor]:
        size = None if window is None else torch.tensor(window)
        found: list[Tensor] = []
        for name in ("whole", "chunk", "one", "rows", "packed"):
            q, k, v = drawn(1, 64, 64) if name == "packed" else drawn(2, 1 if name == "rows" else 5)
            q, k, v = q.requires_grad_(), k.requires_grad_(), v.requires_grad_()
            match name:
                case "whole":
                    mixed = attend.span_attention(q, k[:, :, :5], v[:, :, :5], 0, 0.5, size, sinks)
                case "chunk":
                    mixed = attend.span_attention(q, k, v, torch.tensor(4), 0.5, size, sinks)
                case "one":
                    mixed = attend.span_attention(
                        q[:, :, :1], k, v, torch.tensor(9), 0.5, size, sinks
                    )
                case "rows":
                    mixed = attend.rows_attention(q, k, v, torch.tensor([3, 9]), 0.5, size, sinks)
                case _:
                    mixed = attend.packed_attention(q, k, v, positions, segments, 0.5, size, sinks)
            found += [mixed, *torch.autograd.grad(mixed.square().sum(), (q, k, v))]
        return found

    near = results()
    waits_for_nothing(monkeypatch)
    for a, b in zip(near, results(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5)


def test_a_number_given_from_python_is_known_on_every_device(
    products: list[dict[str, Any]], monkeypatch: Any
) -> None:
    """So an entry called with `pos=4` reads what is written there too, and writes a slice."""
    waits_for_nothing(monkeypatch)
    q, k, v = drawn(2, 1)
    at = attend.numbered(torch.tensor(4), 4)
    found = attend.span_attention(q, k, v, at, 0.5)
    assert products.pop()["keys"] == 5
    masked = attend.span_attention(q, k, v, torch.tensor(4), 0.5)
    assert products.pop()["keys"] == LENGTH
    torch.testing.assert_close(found, masked, rtol=0, atol=2e-6)
    cache, other = torch.zeros(2, KV, LENGTH, WIDTH), torch.zeros(2, KV, LENGTH, WIDTH)
    kernels.write_span_(cache, k[:, :, :3], at)
    kernels.write_span_(other, k[:, :, :3], torch.tensor(4))
    assert torch.equal(cache, other) and cache.any()


@pytest.mark.parametrize("rows", [False, True])
def test_heads_that_share_keys_as_queries_of_one(rows: bool, monkeypatch: Any) -> None:
    q, k, v = drawn(2, 3)
    mask = torch.rand(2, 3, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.5
    mask = mask if rows else mask[0]
    wanted = attend.attention(q, k, v, 0.5, mask)
    monkeypatch.setattr("linnet.torch.attend._copies_keys", lambda query: True)
    torch.testing.assert_close(attend.attention(q, k, v, 0.5, mask), wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_query_that_sees_nothing_gets_the_mean(dtype: torch.dtype, monkeypatch: Any) -> None:
    q, k, v = (x.to(dtype) for x in drawn(2, 3))
    mean = v.float().mean(2, keepdim=True).repeat_interleave(HEADS // KV, 1).expand(q.shape)
    for _ in range(2):
        for at, window in ((-4, None), (2, 0), (LENGTH + 2, 2)):
            found = attend.span_attention(q, k, v, torch.tensor(at), 0.5, window).float()
            torch.testing.assert_close(found, mean, rtol=0, atol=2e-2)
        waits_for_nothing(monkeypatch)


@pytest.mark.slow
def test_compiled_code_for_a_cpu_reads_what_is_written_too() -> None:
    """As one operation, without a break in its graph; with gradients it is under a mask."""

    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=False)
    def compiled(q: Tensor, k: Tensor, v: Tensor, at: Tensor, window: int | None) -> Tensor:
        if at.ndim == 0:
            return attend.span_attention(q, k, v, at, 0.5, window)
        return attend.rows_attention(q, k, v, at, 0.5, window)

    q, k, v = drawn(2, 1)
    far = [torch.cat((x[:, :, :6], torch.full_like(x[:, :, 6:], torch.nan)), 2) for x in (k, v)]
    for at in (torch.tensor(4), torch.tensor([3, 5])):
        run = attend.rows_attention if at.ndim else attend.span_attention
        for window in (None, 2):
            wanted = run(q, k, v, at, 0.5, window)
            assert torch.equal(compiled(q, *far, at, window), wanted)
            found = compiled(q.clone().requires_grad_(), k, v, at, window)
            torch.testing.assert_close(found, wanted, rtol=0, atol=2e-6)
            assert found.requires_grad
