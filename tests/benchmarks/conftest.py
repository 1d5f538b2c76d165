"""A tiny card and a tiny checkpoint to measure."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from bench.prepare import write_safetensors

from linnet.weights import open_checkpoint

CARD = """
[model]
name = "tiny-bench"
title = "Tiny"
summary = "A tiny decoder."
license = "MIT"
family = "llama"
tags = ["text-generation"]

[source]
package = "llama"
root = "Model"
entry = "forward"

[generics]
Vocab = 96
H = 64
Heads = 4
KvHeads = 2
Inner = 96
Layers = 2
Batch = 1
MaxSeq = 64
T = "f32"

[constants]
EPS = 1e-5
THETA = 10000.0

[weights]
repo = "none/tiny"
files = ["model.safetensors"]
bindings = "bindings.json"
"""
CONFIG = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
SHAPES = {
    "model.embed_tokens.weight": (96, 64),
    "lm_head.weight": (96, 64),
    "model.norm.weight": (64,),
    "model.layers.0.input_layernorm.weight": (64,),
    "model.layers.0.post_attention_layernorm.weight": (64,),
    "model.layers.0.self_attn.q_proj.weight": (64, 64),
    "model.layers.0.self_attn.k_proj.weight": (32, 64),
    "model.layers.0.self_attn.v_proj.weight": (32, 64),
    "model.layers.0.self_attn.o_proj.weight": (64, 64),
    "model.layers.0.mlp.gate_proj.weight": (96, 64),
    "model.layers.0.mlp.up_proj.weight": (96, 64),
    "model.layers.0.mlp.down_proj.weight": (64, 96),
}


@pytest.fixture
def card(tmp_path: Path) -> Path:
    zoo = Path(__file__).parents[2] / "src" / "linnet" / "zoo" / "models"
    folder = tmp_path / "tiny-bench"
    folder.mkdir()
    (folder / "nest.toml").write_text(CARD)
    bindings = zoo / "smollm2-135m-instruct" / "bindings.json"
    (folder / "bindings.json").write_text(bindings.read_text())
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint", 96, 64)


def write_checkpoint(folder: Path, vocabulary: int, positions: int) -> Path:
    """A directory of random weights as the Hub has them, for so many tokens and positions."""
    draw = np.random.default_rng(5)
    shapes = {
        name: (vocabulary, 64) if name in ("model.embed_tokens.weight", "lm_head.weight") else shape
        for name, shape in SHAPES.items()
    }
    arrays = {name: draw.normal(size=shape).astype("f4") for name, shape in shapes.items()}
    folder.mkdir()
    config = CONFIG | {"vocab_size": vocabulary, "max_position_embeddings": positions}
    (folder / "config.json").write_text(json.dumps(config))
    written = {name: (array.shape, partial(np.copy, array)) for name, array in arrays.items()}
    write_safetensors(folder / "model.safetensors", written, "f32")
    read = open_checkpoint(folder).tensors
    assert set(read) == set(arrays)
    assert all(np.array_equal(read[name].read("f32"), array) for name, array in arrays.items())
    return folder


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """Arguments of a serving run that takes a moment."""
    asked = ["--random", "--no-probe", "--requests", "5", "--concurrency", "2", "--iters", "1"]
    asked += ["--prompt-min", "4", "--prompt-max", "9", "--new", "4", "--threads", "1"]
    return [*asked, "--cache", str(tmp_path / "cache")]
