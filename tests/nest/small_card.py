"""A small model of its own package: two layers of a bias, an embedding used twice, one entry."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from linnet.weights import write_safetensors

from .hub_server import COMMIT, Hub

MANIFEST = f"""\
[model]
name = "small"
title = "Small"
summary = "A small model."
license = "MIT"
family = "small"
tags = ["text-generation"]

[links]
huggingface = "https://huggingface.co/org/small"

[source]
root = "Model"
entry = "forward"

[generics]
N = 6
Layers = 2
T = "f32"

[constants]
SCALE = 2.0

[check]
S = 3

[weights]
repo = "org/small"
revision = "{COMMIT}"
files = ["model.safetensors"]
bindings = "bindings.json"
"""
PACKAGE = '[package]\nname = "small"\nversion = "0.1.0"\nlanguage = "0.1"\n'
SOURCE = """\
// A small model.
module small

use std.nn.linear::{linear}

pub const SCALE: f32 = 1.0

/// Scales, and adds a bias where there is one.
pub block Shift<N: Dim, T: Float> {
    param weight: Tensor[N, N; T]
    param bias: Tensor[N; T]? = none
    state last: Tensor[N; T]

    pub fn forward<S: Dim>(x: Tensor[S, N; T]) -> Tensor[S, N; T] {
        return linear(x, weight, bias)
    }
}

/// Shifts in a row.
pub block Model<N: Dim, Layers: Dim, T: Float>
where
    N > 1
{
    param table: Tensor[N; T]
    param head: Tensor[N; T]
    sub layers: [Shift<N, T>; Layers]

    /// All of it.
    pub entry forward<S: Dim>(x: Tensor[S, N; T]) -> Tensor[S, N; T]
    where
        S <= N
    {
        var y = x * table * cast<T>(SCALE)
        static for layer in layers {
            y = layer.forward(y)
        }
        return y * head
    }
}
"""
BINDINGS = """\
{
  "table": "table.weight",
  "head": "table.weight",
  "layers.{i}.weight": "model.layers.{i}.weight"
}
"""
README = "# Small\n\n" + "A model that fits on a page and is here to be checked. " * 5


def tensors() -> dict[str, np.ndarray]:
    """What the card's weights hold."""
    names = ["table.weight", "model.layers.0.weight", "model.layers.1.weight"]
    shapes = [(6,), (6, 6), (6, 6)]
    return {name: np.full(shape, 2, np.float32) for name, shape in zip(names, shapes)}


def write(directory: Path, **changed: str) -> Path:
    """The card lies in the directory; `manifest`, `source`, `bindings`, `readme` stand for ours."""
    (directory / "src").mkdir(parents=True, exist_ok=True)
    files = {
        "nest.toml": changed.get("manifest", MANIFEST),
        "linnet.toml": PACKAGE,
        "src/lib.linnet": changed.get("source", SOURCE),
        "bindings.json": changed.get("bindings", BINDINGS),
        "README.md": changed.get("readme", README),
    }
    for name, text in files.items():
        (directory / name).write_text(text, "utf-8")
    return directory


def publish(hub: Hub, tmp_path: Path, held: dict[str, np.ndarray] | None = None) -> None:
    """The Hub has the card's weights, and no tokenizer."""
    hub.files.pop(f"org/small/resolve/{COMMIT}/tokenizer.json", None)
    write_safetensors(tmp_path / "published", tensors() if held is None else held)
    hub.put("model.safetensors", (tmp_path / "published").read_bytes())
