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
    """transformers' Mistral of these sizes, weights drawn wide enough that heads matter."""
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
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=draw)
            parameter.copy_(1 + 0.1 * noise if name.endswith("norm.weight") else 0.2 * noise)
    return model


def weights(theta: float) -> dict[str, np.ndarray]:
    """The checkpoint of `mistral(theta)` under transformers' own names."""
    return {k: v.detach().numpy() for k, v in mistral(theta).state_dict().items()}


def logits(theta: float, tokens: np.ndarray) -> np.ndarray:
    """transformers' logits after every token, f32."""
    import torch

    with torch.no_grad():
        out = mistral(theta)(torch.from_numpy(tokens.astype(np.int64))).logits
    return np.asarray(out.numpy())


def tokens(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, int(SIZES["Vocab"]), shape).astype(np.int32)
