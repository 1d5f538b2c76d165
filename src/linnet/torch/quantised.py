"""Native implementations of std's experts and of its linear maps over weights in few bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from linnet.torch import native
from linnet.torch.native import ops

# ---------------------------------------------------------------- experts


def linear_experts(x: Tensor, weight: Tensor, experts: Tensor) -> Tensor:
    """Each of `[R, K]` inputs times the matrix of its own expert."""
    return _products(x, experts, len(weight), weight.shape[1], weight.__getitem__)


def linear_experts_shared(x: Tensor, weight: Tensor, experts: Tensor) -> Tensor:
    """Each row times the matrices of its K experts."""
    return linear_experts(_repeated(x[:, None], experts), weight, experts)


def combine_experts(x: Tensor, weight: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """`linear_experts` summed over K with `weights`, in f32 and rounded once."""
    own = _products(x.float(), experts, len(weight), weight.shape[1], lambda e: weight[e].float())
    return _mixed(own, weights)


def mxfp4_experts(x: Tensor, blocks: Tensor, scales: Tensor, experts: Tensor) -> Tensor:
    """`linear_experts` over MXFP4 blocks."""
    product = partial(_mxfp4_linear, blocks=blocks, scales=scales, dtype=x.dtype)
    return _grouped(x, experts, len(blocks), blocks.shape[1], product)


def mxfp4_experts_shared(x: Tensor, blocks: Tensor, scales: Tensor, experts: Tensor) -> Tensor:
    """`mxfp4_experts` with one input, `[R, 1, In]`, for all experts of a row."""
    return mxfp4_experts(_repeated(x, experts), blocks, scales, experts)


def mxfp4_linear_experts_shared(
    x: Tensor, blocks: Tensor, scales: Tensor, experts: Tensor
) -> Tensor:
    """`mxfp4_experts` with one input, `[R, In]`, for all experts of a row."""
    return mxfp4_experts(_repeated(x[:, None], experts), blocks, scales, experts)


def mxfp4_combine_experts(
    x: Tensor, blocks: Tensor, scales: Tensor, experts: Tensor, weights: Tensor
) -> Tensor:
    """`mxfp4_experts` summed over K with `weights`, in f32 and rounded once."""
    product = partial(_mxfp4_linear, blocks=blocks, scales=scales, dtype=x.dtype)
    own = _grouped(x.float(), experts, len(blocks), blocks.shape[1], product)
    return _mixed(own, weights)


def _products(
    x: Tensor, experts: Tensor, count: int, width: int, matrix: Callable[[int], Tensor]
) -> Tensor:
    """One matrix product for each expert in use, over the inputs that it gets."""
    return _grouped(x, experts, count, width, lambda own, e: F.linear(own, matrix(e)))


def _grouped(
    x: Tensor, experts: Tensor, count: int, width: int, product: Callable[[Tensor, int], Tensor]
) -> Tensor:
    """What each expert in use makes of the inputs that it gets, in one call each."""
    chosen = experts.clamp(0, count - 1).flatten()
    if not len(chosen):
        return x.new_zeros(*experts.shape, width)
    order = chosen.argsort(stable=True)
    sizes = torch.bincount(chosen, minlength=count).tolist()
    grouped = torch.split(x.flatten(0, 1)[order], sizes)
    parts = [product(own, e) for e, own in enumerate(grouped) if len(own)]
    return torch.cat(parts)[order.argsort()].reshape(*experts.shape, width)


def _repeated(x: Tensor, experts: Tensor) -> Tensor:
    return x.expand(-1, experts.shape[1], -1)


def _mixed(own: Tensor, weights: Tensor) -> Tensor:
    return (own * weights.float()[..., None]).sum(1).to(weights.dtype)


# ---------------------------------------------------------------- weights in few bits

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _halves(packed: Tensor) -> Tensor:
    """The two 4-bit numbers of each byte of the last axis, the low half first."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def _mxfp4(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """One expert's matrix `[Rows, G * 32]`: E2M1 numbers with a power of two for each 32."""
    values = torch.tensor(_E2M1 + tuple(-v for v in _E2M1), device=blocks.device)
    numbers = F.embedding(_halves(blocks).int(), values[:, None]).squeeze(-1)
    # A scale is the exponent of an f32 as it is stored.
    power = (scales.clamp(66, 190).int() << 23).view(torch.float32)
    return (numbers * power[..., None]).to(dtype).flatten(1)


def _mxfp4_linear(
    x: Tensor, expert: int, *, blocks: Tensor, scales: Tensor, dtype: torch.dtype
) -> Tensor:
    """x times one expert's matrix, whose numbers are of the dtype."""
    own, scale = blocks[expert], scales[expert]
    if native.takes(x) and own.is_cpu and dtype in native.KIND:
        return ops.packed_linear(x, own, ops.MXFP4, scale, rounded=dtype)
    return F.linear(x, _mxfp4(own, scale, dtype).to(x.dtype))


def decode_fp8(bits: Tensor) -> Tensor:
    """The values of E4M3 bytes in f32; the two codes for NaN are 480 and -480."""
    value = bits.view(torch.float8_e4m3fn).float()
    return torch.where(value.isnan(), torch.where(bits < 128, 480.0, -480.0), value)


def linear_fp8(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x` times the decoded weight and its scales, in f32 and rounded once, then the bias."""
    if native.takes(x, scale) and weight.is_cpu:
        product = ops.packed_linear(x, weight, ops.FP8, scale)
    else:
        product = (F.linear(x.float(), decode_fp8(weight)) * scale.float()).to(x.dtype)
    return product if bias is None else product + bias


def dequantize_int4_groups(packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """`(q - zero) * scale`, with a scale and a zero point for each group."""
    # Differences are small integers, which every dtype holds: the product rounds once.
    level = _halves(packed).to(scale.dtype) - zero.to(scale.dtype)[..., None]
    return (level * scale[..., None]).flatten(1)


def linear_int4_groups(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None = None
) -> Tensor:
    """`x` times the weight that `dequantize_int4_groups` gives, then the bias."""
    if native.takes(x, scale) and packed.is_cpu:
        product = ops.packed_linear(x, packed, ops.INT4_GROUPS, scale, zero, x.dtype)
    else:
        product = F.linear(x, dequantize_int4_groups(packed, scale, zero))
    return product if bias is None else product + bias


def take_inputs(x: Tensor, order: Tensor) -> Tensor:
    """The last axis in another order."""
    return x.index_select(-1, order.clamp(0, x.shape[-1] - 1))
