"""One shard of a model split over a mesh: what it holds, what it reads, and what is refused.

The processes of the mesh are not there: a group that says nothing stands for them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

import linnet.torch
from backends.split_worker import mesh
from linnet.diagnostics import PlanError
from linnet.weights import write_safetensors

SPLIT = """
module split
use std.nn.linear::{Linear}
use std.nn.parallel::{all_gather, all_reduce, shared}
use std.nn.loss::{split_cross_entropy}

block Model<H: Dim, Inner: Dim, Vocab: Dim, Shards: Dim = 1>
where Shards > 0, Inner % Shards == 0, Vocab % Shards == 0 {
    sub up: Linear<H, Inner / Shards, f32>
    sub down: Linear<Inner / Shards, H, f32>
    sub head: Linear<H, Vocab / Shards, f32>
    param norm: Tensor[H; f32]

    fn body<N: Dim>(x: Tensor[N, H; f32]) -> Tensor[N, H; f32] {
        return x * norm + all_reduce(down.forward(up.forward(shared(x))))
    }
    entry forward<N: Dim>(x: Tensor[N, H; f32]) -> Tensor[N, Vocab; f32] {
        return all_gather<N, Vocab / Shards, Shards, f32>(head.forward(shared(body(x))))
    }
    entry loss<N: Dim>(x: Tensor[N, H; f32], targets: Tensor[N; i64]) -> f32 {
        return split_cross_entropy<N, H, Vocab / Shards, Shards, f32>(
            shared(body(x)), head.weight, targets, fill<f32>([N], 1.0),
        )
    }
}
"""
SIZES = {"H": 4, "Inner": 6, "Vocab": 8}
Source = Callable[[str], Path]


@pytest.fixture
def source(tmp_path: Path) -> Source:
    def write(text: str) -> Path:
        name = text.split()[1]
        (tmp_path / f"{name}.linnet").write_text(text, encoding="utf-8")
        return tmp_path / f"{name}.linnet"

    return write


def tensors() -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(3)
    shapes = {"up": (6, 4), "down": (4, 6), "head": (8, 4)}
    named = {f"{name}.weight": torch.randn(s, generator=drawn) for name, s in shapes.items()}
    return {**named, "norm": torch.randn(4, generator=drawn)}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("stored", [True, False])
def test_a_shard_holds_its_part(source: Source, tmp_path: Path, rank: int, stored: bool) -> None:
    whole: Any = tensors()
    weights: Any = whole
    if stored:
        write_safetensors(tmp_path / "w.safetensors", whole)
        weights = tmp_path / "w.safetensors"
    with mesh(rank, 2) as two:
        model = linnet.torch.load(
            source(SPLIT), generics=SIZES, weights=weights, tensor_parallel=two
        )
        assert model.generics["Shards"] == 2 and model.shards is not None
        held = dict(model.named_parameters())
        assert torch.equal(held["up.weight"], whole["up.weight"][3 * rank : 3 * rank + 3])
        assert torch.equal(held["down.weight"], whole["down.weight"][:, 3 * rank : 3 * rank + 3])
        assert torch.equal(held["head.weight"], whole["head.weight"][4 * rank : 4 * rank + 4])
        assert torch.equal(held["norm"], whole["norm"])
        assert set(model.parts) == {"up.weight", "down.weight", "head.weight"}
        again = {name: -value for name, value in whole.items()}
        linnet.torch.bind_weights(model, again)
        assert torch.equal(model.up.weight, again["up.weight"][3 * rank : 3 * rank + 3])
        with pytest.raises(
            PlanError, match=r"the model is split by tensor_parallel, and an adapter is not"
        ):
            model.add_lora("up.weight")
        model.copy_weights(whole)
        assert torch.equal(model.down.weight, whole["down.weight"][:, 3 * rank : 3 * rank + 3])


def test_a_shard_is_copied(source: Source) -> None:
    with mesh(1, 2) as two:
        model = linnet.torch.load(source(SPLIT), generics=SIZES, tensor_parallel=two)
        copied = copy.deepcopy(model)
        assert copied.shards is model.shards and copied.parts == model.parts
        assert torch.equal(copied.up.weight, model.up.weight)
        assert copied.up.weight.data_ptr() != model.up.weight.data_ptr()


def test_random_weights_are_one_models(source: Source) -> None:
    one = linnet.torch.load(source(SPLIT), generics=SIZES, seed=5)
    for rank in (0, 1):
        with mesh(rank, 2) as two:
            model = linnet.torch.load(source(SPLIT), generics=SIZES, seed=5, tensor_parallel=two)
        for path, value in model.named_parameters():
            whole = one.get_parameter(path)
            part = model.parts.get(path)
            assert torch.equal(value, part.cut(whole) if part is not None else whole), path


def test_the_source_says_what_is_communicated(source: Source) -> None:
    with mesh(0, 2) as two:
        model = linnet.torch.load(source(SPLIT), generics=SIZES, tensor_parallel=two)
    text = model.generated_source()
    for part in (
        "SHARDS = world()",
        "SHARDS.all_reduce(",
        "SHARDS.all_gather(",
        "SHARDS.shared(",
        "SHARDS.cross_entropy(",
    ):
        assert part in text
    alone = linnet.torch.load(source(SPLIT), generics=SIZES).generated_source()
    assert "SHARDS" not in alone


def test_a_mesh_of_one_is_the_model_itself(source: Source) -> None:
    x, targets = torch.randn(3, 4), torch.tensor([1, 7, 0])
    one = linnet.torch.load(source(SPLIT), generics=SIZES, weights=tensors())
    with mesh(0, 1) as alone:
        model = linnet.torch.load(
            source(SPLIT), generics=SIZES, weights=tensors(), tensor_parallel=alone
        )
        assert not model.parts
        torch.testing.assert_close(model(x), one(x))
        torch.testing.assert_close(model.loss(x, targets), one.loss(x, targets))


def refused(source: Path, sizes: Any = None, count: int = 2, **options: Any) -> str:
    with mesh(0, count) as many, pytest.raises(PlanError) as error:
        linnet.torch.load(source, generics=sizes or SIZES, tensor_parallel=many, **options)
    return str(error.value)


def test_sizes_that_do_not_divide(source: Source) -> None:
    text = refused(source(SPLIT), count=4)
    assert "binds Shards to its 4 devices: Model requires Inner % Shards == 0" in text
    assert text.endswith("of fewer devices 1, 2 would do")
    text = refused(source(SPLIT), {**SIZES, "Shards": 4})
    assert "has 2 devices and the generics say Shards = 4" in text
    whole = {**tensors(), "up.weight": torch.ones(3, 4)}
    text = refused(source(SPLIT), weights=whole)
    assert "`up.weight` is [6, 4], `up.weight` in <memory> is [3, 4]" in text


def test_sources_that_cannot_be_split(source: Source) -> None:
    fused = SPLIT.replace("module split", "module fused")
    fused = fused.replace(
        "Inner / Shards, f32>\n    sub down", "2 * (Inner / Shards), f32>\n    sub down"
    )
    fused = fused.replace(
        "sub down: Linear<Inner / Shards", "sub down: Linear<2 * (Inner / Shards)"
    )
    text = refused(source(fused))
    assert "`up.weight` is [12, 4], of a shard [6, 4]: axis 0 is 2 * (Inner / Shards)" in text
    text = refused(source(SPLIT), weights={**tensors(), "down.bias": torch.ones(4)})
    assert "`down.bias` would be added by each of the 2 shards of `down.weight`" in text


def test_what_is_no_mesh_for_a_model(source: Source) -> None:
    path = source(SPLIT)

    def message(given: object, **options: Any) -> str:
        with pytest.raises(PlanError) as error:
            linnet.torch.load(path, generics=SIZES, tensor_parallel=given, **options)
        return str(error.value)

    with mesh(0, 2) as two:
        assert "storage='q8' with tensor_parallel" in message(two, storage="q8")
        assert "compile='inductor' with tensor_parallel" in message(two, compile="inductor")
    assert message(2).startswith("tensor_parallel is of type int; it takes a DeviceMesh")
    with mesh(0, 2) as left:
        assert "is a mesh of cpu devices and the model goes to meta" in message(left, device="meta")
    assert "torch.distributed is not initialised: run under torchrun" in message(left)
    with mesh(0, 2, 2) as square:
        assert "mesh of 2 dimensions (2, 2)" in message(square)
    with mesh(0, 2, 2, names=("dp", "tp")) as square:
        assert 'one of them: mesh["tp"]' in message(square)
        linnet.torch.load(path, generics=SIZES, tensor_parallel=square["tp"])
    with mesh(3, 4):
        assert "rank 3, is not in the mesh [0, 1]" in message(DeviceMesh("cpu", [0, 1]))


def test_collectives_over_another_number_of_shards(source: Source) -> None:
    other = SPLIT.replace("module split", "module other").replace(
        "all_gather<N, Vocab / Shards, Shards, f32>", "wide<N, Vocab / Shards, Shards>"
    )
    other += """
fn wide<N: Dim, V: Dim, Shards: Dim>(x: Tensor[N, V; f32]) -> Tensor[N, Shards * V; f32]
where Shards > 0 {
    let more = all_gather<N, V, 2 * Shards, f32>(x)
    return more[:, 0:Shards * V]
}
"""
    with mesh(0, 2) as two:
        model = linnet.torch.load(source(other), generics=SIZES, tensor_parallel=two)
        with pytest.raises(PlanError, match="all_gather is over 4 shards, in a model split over 2"):
            model(torch.randn(3, 4))
