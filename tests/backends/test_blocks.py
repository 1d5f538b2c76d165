"""Weights in blocks: the numbers that they stand for, and the ops that read them."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.policy import Policy, tolerance
from linnet.torch import blocks, native
from linnet.torch.blocks import FORMATS, Blocks, dense
from linnet.weights.dequantise import dequantise

POLICIES: tuple[Policy, ...] = ("fast", "equivalent")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def drawn(format: str, rows: int, columns: int, seed: int, dtype: torch.dtype) -> Blocks:
    """Any blocks of the format whose scales are finite and give numbers near 1."""
    draw = np.random.default_rng(seed)
    numbers, width = FORMATS[format]
    data = draw.integers(0, 256, (rows, columns // numbers, width), dtype=np.uint8)
    scales = (0.1 * draw.standard_normal((2, rows, columns // numbers))).astype(np.float16)
    scales[0, draw.random(scales.shape[1:]) < 0.1] = 0
    at = 208 if format == "Q6_K" else 0
    data[..., at : at + 2] = scales[0, ..., None].view(np.uint8)
    if format == "Q4_1":
        data[..., 2:4] = scales[1, ..., None].view(np.uint8)
    flat = torch.from_numpy(data.reshape(rows, columns // numbers * width))
    return Blocks(format, (rows, columns), dtype, flat)


def numbers_of(weight: Blocks) -> torch.Tensor:
    """The f32 numbers, as the reader of GGUF files widens them."""
    result = np.empty(tuple(weight.shape), np.float32)
    if len(result):
        dequantise(weight.data.numpy().reshape(-1), weight.format, result.reshape(-1))
    return torch.from_numpy(result)


@pytest.mark.parametrize("format", FORMATS)
def test_blocks_are_widened_bit_for_bit(format: str) -> None:
    assert FORMATS[format] == GGML_QUANT_SIZES[GGMLQuantizationType[format]]
    for rows, columns in ((7, 512), (1, 256), (0, 256)):
        weight = drawn(format, rows, columns, 3, torch.float32)
        assert torch.equal(weight.floats(0, rows), numbers_of(weight))
        assert torch.equal(blocks.dense(weight), numbers_of(weight))


@pytest.fixture(params=["native", "plain"], scope="module")
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """The C kernels, and what runs where there is no compiler."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain":
            patch.setattr(native, "available", lambda: False)
        yield request.param


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("format", FORMATS)
@settings(deadline=None, max_examples=20)
@given(
    st.sampled_from(POLICIES),
    st.sampled_from(sorted(DTYPES)),
    st.integers(0, 2**32 - 1),
    st.sampled_from([(), (1,), (2,), (3,), (4,), (1, 1), (2, 5), (0,), (40,)]),
    st.integers(1, 9),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([-3, 0, 2]),
)
def test_products_are_those_of_the_numbers(
    format: str,
    policy: Policy,
    dtype: str,
    seed: int,
    shape: tuple[int, ...],
    rows: int,
    count: int,
    strided: bool,
    power: int,
) -> None:
    columns = FORMATS[format][0] * count
    weight = drawn(format, rows, columns, seed, DTYPES[dtype])
    source = torch.Generator().manual_seed(seed % 2**31)
    power = min(power, 0) if dtype == "f16" else power  # whose largest number is 65504
    x = torch.randn(*shape, columns * (2 if strided else 1), generator=source) * 10.0**power
    x = x.to(DTYPES[dtype])
    x = x[..., ::2] if strided else x
    bias = torch.randn(rows, generator=source).to(DTYPES[dtype])
    run = blocks.linear if policy == "fast" else blocks.linear_f32
    got = run(x, weight, bias=bias)
    wanted = (x.double() @ numbers_of(weight).double().T).to(x.dtype) + bias
    assert got.dtype == x.dtype and got.shape == (*shape, rows)
    largest = wanted.abs().max().item() if wanted.numel() else 0.0
    # Sums whose terms cancel are compared with the terms.
    terms = x.double().abs() @ numbers_of(weight).double().abs().T
    largest = max(largest, terms.max().item() / 4 if terms.numel() else 0.0)
    difference = (got.double() - wanted.double()).abs().max().item() if wanted.numel() else 0.0
    assert difference <= tolerance(policy, dtype) * largest


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("format", FORMATS)
def test_rows_are_read_exactly(format: str) -> None:
    weight = drawn(format, 6, 256, 5, torch.bfloat16)
    ids = torch.tensor([[0, 5, -3], [6, 2, 2]], dtype=torch.int32)
    wanted = numbers_of(weight)[ids.clamp(0, 5).long()].bfloat16()
    assert torch.equal(blocks.embedding(ids, weight), wanted)
    assert blocks.embedding(ids[:0], weight).shape == (0, 3, 256)


def test_plain_weights_pass_through() -> None:
    weight, x = torch.randn(4, 6), torch.randn(3, 6)
    assert torch.allclose(blocks.linear(x, weight), x @ weight.T, atol=1e-5)
    assert torch.equal(blocks.embedding(torch.tensor([9]), weight), weight[3:])
    assert blocks.dense(weight) is weight


@pytest.mark.usefixtures("kernels")
def test_several_products_of_one_input() -> None:
    formats = ("Q4_0", "Q6_K", "Q8_0")
    weights = [drawn(f, 3 + i, 256, i, torch.float32) for i, f in enumerate(formats)]
    x, shifts = torch.randn(2, 3, 256), [torch.randn(3 + i) for i in range(3)]
    for run, one in ((blocks.linears, blocks.linear), (blocks.linears_f32, blocks.linear_f32)):
        for taken, plain in ((weights, weights), ([*weights[:2], dense(weights[2])], weights)):
            got = run(x, taken, bias=shifts)
            wanted = [one(x, w, bias=b) for w, b in zip(plain, shifts, strict=True)]
            assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-2) for a, b in zip(got, wanted))
        assert torch.equal(run(x, weights)[1], one(x, weights[1]))


@pytest.mark.usefixtures("kernels")
def test_extreme_scales() -> None:
    weight = drawn("Q4_1", 3, 64, 1, torch.float32)
    halves = weight.data.reshape(3, 2, 20)[..., :4].contiguous().view(torch.float16)
    halves[0], halves[1], halves[2] = 6e4, 6e-8, 0.0
    weight.data.reshape(3, 2, 20)[..., :4] = halves.view(torch.uint8)
    x = torch.randn(2, 64)
    wanted = x.double() @ numbers_of(weight).double().T
    terms = x.double().abs() @ numbers_of(weight).double().abs().T
    for run in (blocks.linear, blocks.linear_f32):
        got = run(x, weight).double()
        assert ((got - wanted).abs() <= 1e-4 * terms).all()
        assert run(torch.zeros(2, 64), weight).eq(0).all()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_stays_none(value: float) -> None:
    weight = drawn("Q8_0", 5, 64, 1, torch.float32)
    weight.data[:] = 1
    x = torch.ones(3, 64)
    x[1, 40] = value
    for run in (blocks.linear, blocks.linear_f32):
        got = run(x, weight)
        assert not got[1].isfinite().any() and got[[0, 2]].isfinite().all()


def test_gradients_pass_through_to_inputs() -> None:
    weight = drawn("Q4_0", 5, 64, 1, torch.float32)
    x = torch.randn(3, 64, requires_grad=True)
    blocks.linear(x, weight).sum().backward()
    assert torch.allclose(x.grad, numbers_of(weight).sum(0).expand(3, 64), atol=1e-4)


def test_blocks_stand_in_a_tree_like_a_buffer() -> None:
    owner = torch.nn.Module()
    owner.weight = drawn("Q8_0", 4, 64, 2, torch.float32)
    saved = {k: v.clone() for k, v in owner.state_dict().items()}
    assert {k: tuple(v.shape) for k, v in saved.items()} == {"weight.data": (4, 68)}
    other = torch.nn.Module()
    other.weight = drawn("Q8_0", 4, 64, 9, torch.float32)
    other.load_state_dict(saved)
    assert torch.equal(other.weight.data, owner.weight.data)
    assert torch.equal(copy.deepcopy(owner).weight.data, owner.weight.data)
    with pytest.raises(RuntimeError, match=r"Missing key.*weight\.data"):
        other.load_state_dict({})
    assert "Q8_0, [4, 64]" in repr(owner.weight)
