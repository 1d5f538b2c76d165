"""Small networks of `std`'s layers, whose shapes the checker must follow, against PyTorch's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from backends.common import assert_close
from linnet.policy import Policy, tolerance
from linnet.reference import evaluate
from linnet.torch import LinnetModule, load
from linnet.weights import as_array
from std.cases import numbers

RESIDUAL = """
module m

use std.nn.activations::{relu}
use std.nn.conv::{Conv2d}
use std.nn.linear::{Linear}
use std.nn.norm::{batch_norm}
use std.nn.pool::{global_average_pool2d, max_pool2d}

block Norm<C: Dim> {
    param mean: Tensor[C; f32]
    param variance: Tensor[C; f32]
    param weight: Tensor[C; f32]
    param bias: Tensor[C; f32]

    pub fn forward<B: Dim, H: Dim, W: Dim>(x: Tensor[B, C, H, W; f32]) -> Tensor[B, C, H, W; f32] {
        return batch_norm(x, mean, variance, weight, bias)
    }
}

block Same<C: Dim> {
    sub conv: Conv2d<C, C, 3, 1, 1>
    sub norm: Norm<C>

    pub fn forward<B: Dim, H: Dim, W: Dim>(x: Tensor[B, C, H, W; f32]) -> Tensor[B, C, H, W; f32] {
        return relu(norm.forward(conv.forward(x)) + x)
    }
}

block Half<C: Dim> {
    sub conv: Conv2d<C, 2 * C, 3, 2, 1>
    sub shortcut: Conv2d<C, 2 * C, 1, 2, 0>

    pub fn forward<B: Dim, H: Dim, W: Dim>(
        x: Tensor[B, C, H, W; f32],
    ) -> Tensor[B, 2 * C, (H - 1) / 2 + 1, (W - 1) / 2 + 1; f32] {
        return relu(conv.forward(x) + shortcut.forward(x))
    }
}

pub block Residual<C: Dim, Classes: Dim, Layers: Dim> {
    sub stem: Conv2d<3, C, 7, 2, 3>
    sub layers: [Same<C>; Layers]
    sub half: Half<C>
    sub head: Linear<2 * C, Classes, f32>

    pub entry forward<B: Dim, H: Dim, W: Dim>(
        x: Tensor[B, 3, H, W; f32],
    ) -> Tensor[B, Classes; f32] {
        let wide = stem.forward(x)
        var h = max_pool2d<B, C, (H - 1) / 2 + 1, (W - 1) / 2 + 1, 3, 2, 1, f32>(wide)
        static for layer in layers {
            h = layer.forward(h)
        }
        return head.forward(global_average_pool2d(half.forward(h)))
    }
}
"""

DECODER = """
module m

use std.nn.activations::{silu}
use std.nn.conv::{Conv2d}
use std.nn.norm::{group_norm}
use std.nn.resize::{upsample_nearest2d}

pub block Decoder<C: Dim, Groups: Dim>
where
    Groups > 0,
    C % Groups == 0
{
    param weight: Tensor[C; f32]
    param bias: Tensor[C; f32]
    sub conv: Conv2d<C, C, 3, 1, 1>

    pub entry forward<B: Dim, H: Dim, W: Dim>(
        x: Tensor[B, C, H, W; f32],
    ) -> Tensor[B, C, 2 * H, 2 * W; f32] {
        let normal = silu(group_norm<B, C, H, W, Groups, f32>(x, weight, bias))
        return conv.forward(upsample_nearest2d<B, C, H, W, 2, f32>(normal))
    }
}
"""


def both(
    text: str, folder: Path, policy: Policy, x: Any, expected: Any, weights: Any, **generics: int
) -> None:
    """PyTorch and, under `exact`, the reference give what is expected."""
    path = folder / "m.linnet"
    path.write_text(text.lstrip())
    module: LinnetModule = load(path, weights=weights, generics=generics, numerics=policy)
    limit = 5 * tolerance(policy, "f32")  # a few layers deep
    assert_close(expected, module.forward(x), limit, policy)
    if policy == "exact":
        members = {name: as_array(value) for name, value in weights.items()}
        assert_close(expected, evaluate(module.program, "forward", [x], members), limit)


@pytest.mark.parametrize("policy", ["exact", "fast"])
def test_a_residual_network(policy: Policy, tmp_path: Path) -> None:
    weights: dict[str, Any] = {
        "stem.weight": numbers(1, (4, 3, 7, 7), scale=0.1),
        "half.conv.weight": numbers(2, (8, 4, 3, 3), scale=0.2),
        "half.shortcut.weight": numbers(3, (8, 4, 1, 1)),
        "head.weight": numbers(4, (5, 8)),
        "head.bias": numbers(5, (5,)),
    }
    for i in range(2):
        weights[f"layers.{i}.conv.weight"] = numbers(6 + i, (4, 4, 3, 3), scale=0.2)
        for j, name in enumerate(("mean", "weight", "bias")):
            weights[f"layers.{i}.norm.{name}"] = numbers(8 + 3 * i + j, (4,))
        weights[f"layers.{i}.norm.variance"] = np.abs(numbers(14 + i, (4,))) + np.float32(0.5)
    x = numbers(20, (2, 3, 17, 20))
    w = {name: torch.from_numpy(v.astype(np.float64)) for name, v in weights.items()}
    h = F.conv2d(torch.from_numpy(x.astype(np.float64)), w["stem.weight"], None, 2, 3)
    h = F.max_pool2d(h, 3, 2, 1)
    for i in range(2):
        parts = [w[f"layers.{i}.norm.{n}"] for n in ("mean", "variance", "weight", "bias")]
        h = F.relu(F.batch_norm(F.conv2d(h, w[f"layers.{i}.conv.weight"], None, 1, 1), *parts) + h)
    shortcut = F.conv2d(h, w["half.shortcut.weight"], None, 2)
    h = F.relu(F.conv2d(h, w["half.conv.weight"], None, 2, 1) + shortcut)
    expected = F.linear(h.mean((2, 3)), w["head.weight"], w["head.bias"]).numpy()
    expected = expected.astype(np.float32)
    both(RESIDUAL, tmp_path, policy, x, expected, weights, C=4, Classes=5, Layers=2)


@pytest.mark.parametrize("policy", ["exact", "fast"])
def test_a_decoder(policy: Policy, tmp_path: Path) -> None:
    weights = {
        "weight": numbers(1, (6,)),
        "bias": numbers(2, (6,)),
        "conv.weight": numbers(3, (6, 6, 3, 3), scale=0.2),
        "conv.bias": numbers(4, (6,)),
    }
    x = numbers(5, (2, 6, 3, 5))
    w = {name: torch.from_numpy(v.astype(np.float64)) for name, v in weights.items()}
    wide = torch.from_numpy(x.astype(np.float64))
    h = F.silu(F.group_norm(wide, 3, w["weight"], w["bias"], 1e-6))
    h = F.interpolate(h, scale_factor=2, mode="nearest")
    expected = F.conv2d(h, w["conv.weight"], w["conv.bias"], 1, 1).numpy().astype(np.float32)
    both(DECODER, tmp_path, policy, x, expected, weights, C=6, Groups=3)
