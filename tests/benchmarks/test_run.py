"""Weights in the forms that methods read, and the whole command on a tiny card."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from bench.gguf_file import write_gguf
from bench.prepare import write_safetensors
from bench.run import main

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
    draw = np.random.default_rng(5)
    arrays = {name: draw.normal(size=shape).astype("f4") for name, shape in SHAPES.items()}
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    written = {name: (array.shape, partial(np.copy, array)) for name, array in arrays.items()}
    write_safetensors(folder / "model.safetensors", written, "f32")
    read = open_checkpoint(folder).tensors
    assert set(read) == set(arrays)
    assert all(np.array_equal(read[name].read("f32"), array) for name, array in arrays.items())
    return folder


@pytest.mark.parametrize(
    ("storage", "error"), [("f32", 0.0), ("bf16", 2**-7), ("q8", 0.02), ("q4", 0.3)]
)
def test_a_gguf_file_holds_the_checkpoint(checkpoint: Path, storage: str, error: float) -> None:
    """Linnet's own reader gives the Hub's names and order back."""
    place = checkpoint / "model.gguf"
    write_gguf(checkpoint, place, storage)
    expected, found = open_checkpoint(checkpoint / "model.safetensors"), open_checkpoint(place)
    assert set(found.tensors) == set(expected.tensors)
    for name, at in expected.tensors.items():
        array, other = at.read("f32"), found.tensors[name].read("f32")
        assert np.abs(array - other).max() <= error * np.abs(array).max(), name


@pytest.mark.slow
def test_the_command(card: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """transformers and ours on the same random weights: rows, files, and the same logits."""
    out = tmp_path / "out"
    asked = ["--random", "--no-probe", "--prompt", "12", "--new", "4", "--iters", "1"]
    asked += ["--warmup", "0", "--threads", "1", "--cache", str(tmp_path / "cache")]
    asked += ["--methods", "transformers-eager,linnet-torch", "--out", str(out), "--imports", "1"]
    assert main([str(card), *asked]) == 0
    found = json.loads((out / "bench.json").read_text())
    assert [row["error"] for row in found["methods"]] == [None, None]
    theirs, ours = (row["metrics"] for row in found["methods"])
    assert found["reference"] == "transformers-eager"
    assert found["methods"][1]["max_abs_diff"] < 1e-5
    assert theirs["first_token"] == ours["first_token"]
    assert ours["decode_tok_s"] > 0 and ours["peak_memory_mib"] > 0
    values = 96 * 64 + 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96 + 2 * 64)
    caches = 2 * 2 * 2 * 16 * 16
    assert ours["weights_caches_mib"] == pytest.approx(4 * (values + caches) / 2**20, abs=0.01)
    imports = found["imports"]
    assert imports["ratio"] == pytest.approx(imports["linnet_torch_s"] / imports["torch_s"], 0.01)
    assert (out / "bench.svg").read_text().startswith("<svg ")
    assert "linnet-torch" in capsys.readouterr().out
