"""Tiny random decoders of the Llama family, and transformers' Mistral with the same weights."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FAMILY = Path(__file__).parents[2] / "src" / "linnet" / "zoo" / "families" / "llama"
SIZES = {"Vocab": 96, "H": 48, "Heads": 6, "KvHeads": 2, "Inner": 80, "Layers": 2, "T": "f32"}

NAMES = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
    "layers.{i}.attention_norm.weight": "model.layers.{i}.input_layernorm.weight",
    "layers.{i}.mlp_norm.weight": "model.layers.{i}.post_attention_layernorm.weight",
    **{
        f"layers.{{i}}.attention.{p}_proj.weight": f"model.layers.{{i}}.self_attn.{p}_proj.weight"
        for p in "qkvo"
    },
    **{
        f"layers.{{i}}.mlp.{p}.weight": f"model.layers.{{i}}.mlp.{p}_proj.weight"
        for p in ("gate", "up", "down")
    },
}


@cache
def mistral(theta: float) -> Any:
    """transformers' Mistral of these sizes and `weights`."""
    import torch
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=SIZES["Vocab"],
        hidden_size=SIZES["H"],
        num_attention_heads=SIZES["Heads"],
        num_key_value_heads=SIZES["KvHeads"],
        num_hidden_layers=SIZES["Layers"],
        intermediate_size=SIZES["Inner"],
        head_dim=int(SIZES["H"]) // int(SIZES["Heads"]),
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        sliding_window=None,
        tie_word_embeddings=False,
        max_position_embeddings=256,
        attn_implementation="eager",
    )
    model = MistralForCausalLM(config).eval()
    model.load_state_dict({name: torch.from_numpy(x) for name, x in weights().items()})
    return model


@cache
def weights() -> dict[str, np.ndarray]:
    """A checkpoint under transformers' own names, drawn wide enough that heads matter."""
    vocab, h, inner = (int(SIZES[name]) for name in ("Vocab", "H", "Inner"))
    kv = h // int(SIZES["Heads"]) * int(SIZES["KvHeads"])
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, h),
        "model.norm.weight": (h,),
        "lm_head.weight": (vocab, h),
    }
    for i in range(int(SIZES["Layers"])):
        layer = f"model.layers.{i}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (h,),
            f"{layer}.post_attention_layernorm.weight": (h,),
            f"{layer}.self_attn.q_proj.weight": (h, h),
            f"{layer}.self_attn.k_proj.weight": (kv, h),
            f"{layer}.self_attn.v_proj.weight": (kv, h),
            f"{layer}.self_attn.o_proj.weight": (h, h),
            f"{layer}.mlp.gate_proj.weight": (inner, h),
            f"{layer}.mlp.up_proj.weight": (inner, h),
            f"{layer}.mlp.down_proj.weight": (h, inner),
        }
    draw = np.random.default_rng(7)
    noise = {name: draw.standard_normal(shape) for name, shape in shapes.items()}
    return {
        name: (1 + 0.1 * x if name.endswith("norm.weight") else 0.2 * x).astype(np.float32)
        for name, x in noise.items()
    }


def logits(theta: float, tokens: np.ndarray) -> np.ndarray:
    """transformers' logits after every token, f32."""
    import torch

    with torch.no_grad():
        out = mistral(theta)(torch.from_numpy(tokens.astype(np.int64))).logits
    return np.asarray(out.numpy())


def tokens(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, int(SIZES["Vocab"]), shape).astype(np.int32)
