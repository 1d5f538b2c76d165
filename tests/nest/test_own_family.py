"""The family that docs/nest.md writes: a card of its own, beside transformers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from linnet import nest
from linnet.cli import main
from linnet.diagnostics import PlanError
from linnet.weights import write_safetensors

PAGE = Path(__file__).resolve().parents[2] / "docs/nest.md"
FILES = {
    "toml linnet.toml": "linnet.toml",
    "linnet src/lib.linnet": "src/lib.linnet",
    "toml": "nest.toml",
    "json": "bindings.json",
}
VOCAB, H, INNER, KV, LAYERS = 96, 32, 48, 16, 2


@pytest.fixture
def card(tmp_path: Path) -> Path:
    """The page's four files."""
    section = PAGE.read_text(encoding="utf-8").split("## A family of your own\n")[1]
    section = section.split("\n## ")[0]
    fences = re.findall(r"^```(.+)\n((?:(?!```).*\n)*)```$", section, re.MULTILINE)
    found = {FILES[kind]: body for kind, body in fences if kind in FILES}
    assert set(found) == set(FILES.values())
    for name, text in found.items():
        path = tmp_path / "olmo2" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "olmo2"


@pytest.mark.slow
def test_it_loads_and_its_cache_says_what_a_whole_pass_says(card: Path) -> None:
    write_safetensors(_file(card), _tensors())
    model = nest.load(card)
    tokens = torch.tensor([[5, 1, 90, 17, 3, 3, 44]], dtype=torch.int32)
    whole = model.forward(tokens)
    assert whole.shape == (1, 7, VOCAB) and whole.std() > 0.1
    stepped = [
        model.prefill(tokens[:, :4], 0),
        *(model.decode(tokens[:, i : i + 1], i) for i in (4, 5, 6)),
    ]
    torch.testing.assert_close(torch.stack(stepped, 1), whole[:, 3:], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_what_a_binding_forgets_is_named(card: Path) -> None:
    write_safetensors(_file(card), _tensors())
    file = card / "bindings.json"
    bindings = json.loads(file.read_text(encoding="utf-8"))
    del bindings["layers.{i}.mlp_norm.weight"]
    file.write_text(json.dumps(bindings), encoding="utf-8")
    with pytest.raises(PlanError) as caught:
        nest.load(card)
    assert "`layers.0.mlp_norm.weight` [32]" in str(caught.value)
    assert "`model.layers.1.post_feedforward_layernorm.weight` [32]" in str(caught.value)


@pytest.mark.slow
def test_transformers_says_the_same(card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import Olmo2Config, Olmo2ForCausalLM

    torch.manual_seed(0)
    config: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": H,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    theirs = Olmo2ForCausalLM(Olmo2Config(**config, initializer_range=0.2))
    checkpoint = _file(card).parent
    theirs.save_pretrained(checkpoint)
    assert main(["nest", "validate", str(card), "--weights", str(checkpoint)]) == 0
    out = capsys.readouterr().out
    assert "Olmo2ForCausalLM" in out and "argmax 64/64" in out and "argmax 33/33" in out


def _file(card: Path) -> Path:
    folder = card.parent / "checkpoint"
    folder.mkdir()
    return folder / "model.safetensors"


def _tensors() -> dict[str, np.ndarray]:
    """Random tensors under the names of transformers' OLMo 2."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, H),
        "model.norm.weight": (H,),
        "lm_head.weight": (VOCAB, H),
    }
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        shapes |= {
            f"{layer}.self_attn.q_proj.weight": (H, H),
            f"{layer}.self_attn.k_proj.weight": (KV, H),
            f"{layer}.self_attn.v_proj.weight": (KV, H),
            f"{layer}.self_attn.o_proj.weight": (H, H),
            f"{layer}.self_attn.q_norm.weight": (H,),
            f"{layer}.self_attn.k_norm.weight": (KV,),
            f"{layer}.post_attention_layernorm.weight": (H,),
            f"{layer}.mlp.gate_proj.weight": (INNER, H),
            f"{layer}.mlp.up_proj.weight": (INNER, H),
            f"{layer}.mlp.down_proj.weight": (H, INNER),
            f"{layer}.post_feedforward_layernorm.weight": (H,),
        }
    draw = np.random.default_rng(0)
    return {n: draw.normal(0, 0.2, s).astype(np.float32) for n, s in shapes.items()}
