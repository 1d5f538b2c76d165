"""Adapters: what they compute, what trains, merging, and files of them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import linnet.lora
import linnet.torch as lt
from linnet.diagnostics import PlanError
from linnet.weights import safetensors_index

SOURCE = """module net
use std.nn.linear::{Linear, linear}
use std.nn.embedding::{Embedding}
use std.nn.loss::{linear_cross_entropy}

fn transpose<A: Dim, B: Dim, T: Float>(w: Tensor[A, B; T]) -> Tensor[B, A; T] {
    return permute(w, [1, 0])
}

pub block Layer<H: Dim, T: Float> {
    sub up: Linear<H, 2 * H, T>
    /// The other way round, and with a name of its own.
    param down: Tensor[2 * H, H; T]
    param norm: Tensor[H; T]
    pub fn forward<S: Dim>(x: Tensor[S, H; T]) -> Tensor[S, H; T] {
        return x * norm + linear(up.forward(x), transpose(down))
    }
}

pub block Net<V: Dim = 5, H: Dim = 4, Layers: Dim = 3, T: Float = f32> {
    sub embedding: Embedding<V, H, T>
    sub layers: [Layer<H, T>; Layers]
    sub head: Linear<H, V, T>
    sub codes: Linear<H, V, T>
    param square: Tensor[H, H; T]

    pub entry forward<S: Dim>(tokens: Tensor[S; i32]) -> Tensor[S, V; T] {
        return head.forward(run(tokens)) + codes.forward(run(tokens))
    }
    pub entry loss<S: Dim>(
        tokens: Tensor[S; i32], targets: Tensor[S; i64], weights: Tensor[S; f32],
    ) -> f32 {
        return linear_cross_entropy(run(tokens), weight_of_head(), targets, weights)
    }
    fn weight_of_head() -> Tensor[V, H; T] { return head.weight }
    fn run<S: Dim>(tokens: Tensor[S; i32]) -> Tensor[S, H; T] {
        var x = embedding.forward(tokens)
        static for layer in layers { x = layer.forward(x) }
        return linear(x, square)
    }
}
"""
TOKENS = torch.tensor([1, 4, 2, 0, 3], dtype=torch.int32)
LOSS = (TOKENS, TOKENS.long().flip(0), torch.ones(5))
ADAPTED = ["layers.0.up.weight", "layers.0.down", "layers.2.up.weight", "layers.2.down"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("net") / "net.linnet"
    path.write_text(SOURCE)
    return path


def made(source: Path, dtype: str = "f64", **options: Any) -> lt.LinnetModule:
    model = lt.load(source, generics={"T": dtype}, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(25)
    return model


def stirred(model: lt.LinnetModule) -> None:
    """Adapters that add something."""
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for path in model.lora_paths:
            parameter = model.get_parameter(path)
            parameter.copy_(torch.randn(parameter.shape, generator=draw) / 2)


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_an_adapted_weight_is_the_sum(source: Path, numerics: str) -> None:
    """Values and gradients are those of a model whose weights are W + alpha / rank * up @ down."""
    model, plain = (made(source, numerics=numerics) for _ in range(2))
    before = model(TOKENS)
    paths = model.add_lora(["layers.[02].*", "head.weight", "square"], rank=2, alpha=3.0)
    assert sorted(paths) == sorted([*ADAPTED, "head.weight", "square"])
    torch.testing.assert_close(model(TOKENS), before)
    stirred(model)
    parts = {path: model.get_parameter(path) for path in model.lora_paths}
    own = {}
    for path in paths:
        down, up = (parts[name] for name in linnet.lora.adapter_names(path))
        own[path] = (model.get_parameter(path) + 1.5 * up @ down).detach().requires_grad_(True)
    for path, weight in own.items():
        block, name = plain._owner(path)
        block._parameters[name] = torch.nn.Parameter(weight.detach())
    for entry, inputs in [("forward", (TOKENS,)), ("loss", LOSS)]:
        found, wanted = (m.run_entry(entry, inputs) for m in (model, plain))
        torch.testing.assert_close(found, wanted)
        gradients = dict(
            zip(parts, torch.autograd.grad(found.square().sum(), list(parts.values())), strict=True)
        )
        whole = torch.autograd.grad(
            wanted.square().sum(), [plain.get_parameter(path) for path in paths]
        )
        for path, gradient in zip(paths, whole, strict=True):
            down, up = linnet.lora.adapter_names(path)
            torch.testing.assert_close(gradients[down], 1.5 * parts[up].T @ gradient)
            torch.testing.assert_close(gradients[up], 1.5 * gradient @ parts[down].T)


def test_what_trains_and_what_the_code_says(source: Path) -> None:
    model = made(source, trainable=True)
    model.add_lora("layers.*.up.weight", rank=2)
    wanted = [f"layers.{i}.up.lora_{x}" for i in range(3) for x in "ab"]
    assert list(model.lora_paths) == wanted
    assert [p for p, held in model.named_parameters() if held.requires_grad] == wanted
    assert model.lora["layers.1.up.weight"].scale == 16.0
    text = model.generated_source()
    assert "lora.linear(x, self.up, bias=" not in text and "lora.linear(x, self.up)" in text
    # Only what may have an adapter asks for it.
    assert "lora.weight" not in text and "self.down" in text
    model.add_lora("layers.0.down", rank=1, alpha=2)
    assert model.get_parameter("layers.0.down_lora_a").shape == (1, 4)
    assert model.lora["layers.0.down"].scale == 2.0
    model.set_trainable(["*.norm", *linnet.lora.PATTERNS])
    assert "layers.0.norm" in {p for p, held in model.named_parameters() if held.requires_grad}


def test_the_first_values(source: Path) -> None:
    models = [made(source, "bf16") for _ in range(3)]
    for model, seed in zip(models, (5, 5, 6), strict=True):
        model.add_lora("layers.*", rank=3, seed=seed)
    downs = [model.get_parameter("layers.1.up.lora_a") for model in models]
    # In f32 beside bf16 weights: small steps would be lost there.
    assert downs[0].dtype == torch.float32 and downs[0].abs().max() <= 0.5
    assert torch.equal(downs[0], downs[1]) and not torch.equal(downs[0], downs[2])
    assert not torch.equal(downs[0], models[0].get_parameter("layers.0.up.lora_a"))
    assert not models[0].get_parameter("layers.1.up.lora_b").any()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_merging(source: Path, dtype: str) -> None:
    model = made(source, dtype)
    text, names = model.generated_source(), list(model.state_dict())
    given = {path: p.clone() for path, p in model.state_dict().items()}
    model.add_lora(["layers.*", "head.weight"], rank=2, alpha=0.5)
    stirred(model)
    twin = copy.deepcopy(model)
    wanted = model(TOKENS)
    merged = model.merge_lora()
    assert "layers.2.down" in merged and not model.lora and not model.lora_paths
    assert not model.trains()
    close = 1e-5 if dtype == "f32" else 0.1
    torch.testing.assert_close(model(TOKENS), wanted.detach(), rtol=close, atol=close)
    assert model.generated_source() == text and list(model.state_dict()) == names
    assert not torch.equal(model.layers[0].down, given["layers.0.down"])
    assert torch.equal(twin(TOKENS), wanted) and len(twin.lora) == 7
    assert model.merge_lora() == []


def test_a_copy_has_what_adapters_add(source: Path) -> None:
    model, other = made(source), made(source)
    model.add_lora(["layers.*", "square"], rank=2)
    stirred(model)
    other.copy_weights(model)
    torch.testing.assert_close(other(TOKENS), model(TOKENS).detach())
    with pytest.raises(PlanError, match=r"copy_weights: the model has adapters.* merge_lora\(\)"):
        model.copy_weights(other)


def test_what_cannot_have_an_adapter_is_refused(source: Path) -> None:
    weights = {path: t.clone() for path, t in lt.load(source).state_dict().items()}
    tied = {**{p: p for p in weights}, "codes.weight": "embedding.weight"}
    del weights["codes.weight"]
    model = lt.load(source, weights=weights, bindings=tied)
    assert "codes.weight" not in model.add_lora("*", rank=1)
    model.merge_lora()
    model.add_lora("layers.0.down", rank=1)
    refusals: list[tuple[Any, dict[str, Any], str]] = [
        (
            "layers.*.norm",
            {},
            r"'layers.\*.norm' fits no weight to adapt: layers.0.norm is not the",
        ),
        ("embedding.weight", {}, "embedding.weight is not the matrix of a linear"),
        ("codes.weight", {}, "codes.weight is one tensor with embedding.weight, which would"),
        ("layers.*.upp.weight", {}, r"did you mean layers.\*.up.weight"),
        ("layers.*", {"rank": 0}, "rank is 0, expected a whole number from 1 on"),
        ("layers.*", {"rank": 1.5}, "rank is 1.5"),
        ("layers.*", {"alpha": float("nan")}, "alpha is nan, expected a number above 0"),
        ("layers.*.down", {}, r"layers.0.down has an adapter already: merge_lora\(\)"),
    ]
    for patterns, options, match in refusals:
        with pytest.raises(PlanError, match=match):
            model.add_lora(patterns, **options)
    assert list(model.lora) == ["layers.0.down"]


def test_adapters_train(source: Path) -> None:
    model = made(source, "f32")
    kept = {path: t.clone() for path, t in model.state_dict().items()}
    model.add_lora("layers.*", rank=2, alpha=4)
    trained = [p for p in model.parameters() if p.requires_grad]
    losses: list[float] = []
    for _ in range(12):
        loss = model.loss(*LOSS)
        losses.append(float(loss.detach()))
        gradients = torch.autograd.grad(loss, trained)
        with torch.no_grad():
            for parameter, gradient in zip(trained, gradients, strict=True):
                parameter.sub_(gradient.sign() * 0.02)
    assert losses[-1] < losses[0] * 0.8
    for path, tensor in kept.items():
        assert torch.equal(tensor, model.state_dict()[path])


@pytest.mark.slow
def test_adapters_alone_in_a_file(source: Path, tmp_path: Path) -> None:
    base = {path: t.clone() for path, t in made(source, "f32").state_dict().items()}
    names = {path: f"model.{path}" for path in base}
    weights = {names[path]: t for path, t in base.items()}
    model = lt.load(source, weights=weights, bindings=names)
    model.add_lora(["layers.1.*", "square"], rank=2, alpha=5)
    stirred(model)
    with pytest.raises(PlanError, match=r"the model has adapters: merge_lora\(\) first"):
        model.save_weights(tmp_path / "all.safetensors")
    for form in ("checkpoint", "linnet"):
        path = tmp_path / f"{form}.safetensors"
        model.save_weights(path, names=form, include=linnet.lora.PATTERNS)
        prefix = "model." if form == "checkpoint" else ""
        parts = [
            "layers.1.down_lora_a",
            "layers.1.down_lora_b",
            "layers.1.up.lora_a",
            "layers.1.up.lora_b",
            "square_lora_a",
            "square_lora_b",
        ]
        assert sorted(safetensors_index(path)) == [prefix + part for part in parts]
        again = lt.load(source, weights=weights, bindings=names)
        assert sorted(again.load_lora(path)) == ["layers.1.down", "layers.1.up.weight", "square"]
        assert again.lora == model.lora and torch.equal(again(TOKENS), model(TOKENS))
        with pytest.raises(PlanError, match="has an adapter already"):
            again.load_lora(path)
    other = lt.load(source, generics={"H": 3})
    with pytest.raises(PlanError, match=r"the adapter of square is for \[4, 4\], it is \[3, 3\]"):
        other.load_lora(path)
    short = lt.load(source, generics={"Layers": 1})
    with pytest.raises(PlanError, match=r"has an adapter of layers.1.\w.* which this model lacks"):
        short.load_lora(path)
    model.merge_lora()
    model.save_weights(path, names="linnet")
    with pytest.raises(PlanError, match="has no adapters that save_weights"):
        again.load_lora(path)
    with pytest.raises(PlanError, match="cannot be read as a file of adapters"):
        again.load_lora(tmp_path / "no.safetensors")


def test_under_autocast(source: Path) -> None:
    model = made(source, "f32", amp="bf16")
    model.add_lora("layers.*", rank=2)
    stirred(model)
    loss: Tensor = model.loss(*LOSS)
    loss.backward()
    gradient = model.layers[0].up.lora_a.grad
    assert gradient.dtype == torch.float32 and gradient.abs().max() > 0
    with torch.no_grad():
        torch.testing.assert_close(loss.detach(), model.loss(*LOSS), rtol=0.05, atol=0.05)
