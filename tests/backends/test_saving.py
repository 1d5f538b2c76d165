"""Weights saved and loaded again, bit for bit, and what cannot be saved."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import linnet.torch as lt
from linnet.diagnostics import PlanError
from linnet.weights import read_arrays, safetensors_index, write_safetensors

SOURCE = """module tied
use std.nn.linear::{Linear}
use std.nn.embedding::{Embedding}
use std.quant::{Fp8Linear}

pub block Tied<V: Dim = 6, H: Dim = 4, T: Float = bf16> {
    sub embedding: Embedding<V, H, T>
    sub layers: [Linear<H, H, T>; 2]
    sub narrow: Fp8Linear<H, H, T>
    sub head: Linear<H, V, T>
    buffer order: Tensor[V; i64]
    state seen: i32
    pub entry forward<S: Dim>(tokens: Tensor[S; i32]) -> Tensor[S, V; T] {
        seen = seen + 1
        var x = embedding.forward(tokens)
        static for layer in layers { x = layer.forward(x) }
        return head.forward(narrow.forward(x))
    }
}
"""
BINDINGS = {
    "embedding.weight": "wte",
    "head.weight": "wte",
    "layers.{i}.weight": "h.{i}.w",
    "layers.{i}.bias": "h.{i}.b",
    "narrow.weight": "n.w",
    "narrow.scale": "n.scale",
    "order": "order",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tied") / "tied.linnet"
    path.write_text(SOURCE)
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a published one has them: an E4M3 weight, its scales in a column, a tied head."""
    draw = torch.Generator().manual_seed(1)

    def floats(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw).bfloat16()

    tensors = {
        "wte": floats(6, 4),
        **{f"h.{i}.w": floats(4, 4) for i in range(2)},
        **{f"h.{i}.b": floats(4) for i in range(2)},
        "n.w": floats(4, 4).to(torch.float8_e4m3fn),
        "n.scale": floats(4, 1).float(),
        "order": torch.arange(6),
    }
    path = tmp_path_factory.mktemp("checkpoint") / "model.safetensors"
    write_safetensors(path, tensors)
    return path


def bits(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {n: (str(a.dtype), a.shape, a.tobytes()) for n, a in read_arrays(path).items()}


def test_a_checkpoint_comes_back_as_it_was(source: Path, checkpoint: Path, tmp_path: Path) -> None:
    model = lt.load(source, weights=checkpoint, bindings=BINDINGS)
    assert model.weight_names["layers.1.bias"] == "h.1.b"
    assert model.weight_names["head.weight"] == model.weight_names["embedding.weight"] == "wte"
    model(torch.arange(3).int())
    model.save_weights(tmp_path / "again.safetensors")
    assert bits(tmp_path / "again.safetensors") == bits(checkpoint)
    # transformers wants to know whose tensors these are.
    from safetensors import safe_open

    with safe_open(tmp_path / "again.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_under_paths_the_file_loads_by_itself(
    source: Path, checkpoint: Path, tmp_path: Path
) -> None:
    model = lt.load(source, weights=checkpoint, bindings=BINDINGS)
    model.save_weights(tmp_path / "own.safetensors", names="linnet")
    again = lt.load(source, weights=tmp_path / "own.safetensors")
    assert again.weight_names == {path: path for path in model.weight_names}
    for (path, a), (_, b) in zip(
        model.state_dict().items(), again.state_dict().items(), strict=True
    ):
        assert a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8)), path


def test_another_dtype_and_a_part(source: Path, checkpoint: Path, tmp_path: Path) -> None:
    model = lt.load(source, weights=checkpoint, bindings=BINDINGS)
    path = tmp_path / "part.safetensors"
    model.save_weights(path, dtype="f32", include=["layers.1.*", "order", "narrow.*"])
    found = {name: at.dtype for name, at in safetensors_index(path).items()}
    assert found == {
        "h.1.w": "f32",
        "h.1.b": "f32",
        "order": "i64",
        "n.w": "f8_e4m3",
        "n.scale": "f32",
    }
    wanted = read_arrays(checkpoint)["h.1.w"].astype("float32")
    assert (read_arrays(path)["h.1.w"] == wanted).all()


def test_a_weight_that_was_tied_and_is_not(source: Path, checkpoint: Path, tmp_path: Path) -> None:
    model = lt.load(source, weights=checkpoint, bindings=BINDINGS)
    model.head.weight = torch.nn.Parameter(model.head.weight + 1, requires_grad=False)
    with pytest.raises(PlanError, match=r"one tensor `wte` for embedding.weight and head.weight"):
        model.save_weights(tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())
    model.save_weights(tmp_path / "x.safetensors", names="linnet")


def test_what_cannot_be_saved_is_refused(source: Path, tmp_path: Path) -> None:
    model = lt.load(source)
    kept = tmp_path / "kept.safetensors"
    kept.write_bytes(b"as it was")
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"path": tmp_path}, "is a directory: name a file in it"),
        ({"path": tmp_path / "no" / "x.safetensors"}, "there is no directory .*no"),
        ({"path": tmp_path / "x.bin"}, r"in a file \*.safetensors"),
        ({"path": kept, "names": "hf"}, "names='hf': choose 'checkpoint' or 'linnet'"),
        ({"path": kept, "dtype": "q4"}, "dtype='q4': floats are saved as f64, f32, bf16, f16"),
        ({"path": kept, "include": "layer.*"}, r"include: no weight's path fits 'layer.\*'"),
    ]
    for options, match in refusals:
        with pytest.raises(PlanError, match=match):
            model.save_weights(**options)
    assert kept.read_bytes() == b"as it was" and list(tmp_path.iterdir()) == [kept]


def test_a_write_that_fails_leaves_the_old_file(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = lt.load(source)
    kept = tmp_path / "kept.safetensors"
    kept.write_bytes(b"as it was")

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(PlanError, match="cannot be written: No space left on device"):
        model.save_weights(kept)
    assert kept.read_bytes() == b"as it was" and list(tmp_path.iterdir()) == [kept]
