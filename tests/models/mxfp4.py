"""Tiny gpt-oss checkpoints in MXFP4 bytes, and transformers' model of the values they stand for."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FAMILY = Path(__file__).parents[2] / "src" / "linnet" / "zoo" / "families" / "gpt_oss"
CARD = FAMILY.parents[1] / "models" / "gpt-oss-20b"
SIZES = {
    "Vocab": 96,
    "H": 64,
    "Heads": 6,
    "KvHeads": 2,
    "HeadDim": 16,
    "Inner": 32,
    "Experts": 5,
    "TopK": 2,
    "Layers": 4,
    "T": "f32",
}
WINDOW, ORIGINAL = 8, 64
CONFIG: dict[str, Any] = {
    "vocab_size": SIZES["Vocab"],
    "hidden_size": SIZES["H"],
    "num_attention_heads": SIZES["Heads"],
    "num_key_value_heads": SIZES["KvHeads"],
    "head_dim": SIZES["HeadDim"],
    "intermediate_size": SIZES["Inner"],
    "num_local_experts": SIZES["Experts"],
    "num_experts_per_tok": SIZES["TopK"],
    "num_hidden_layers": SIZES["Layers"],
    "sliding_window": WINDOW,
    "max_position_embeddings": 256,
    "swiglu_limit": 1.5,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 500.0,
        "factor": 8.0,
        "beta_fast": 4.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": ORIGINAL,
    },
}
CONSTANTS: dict[str, float | int] = {
    "THETA": 500.0,
    "FACTOR": 8.0,
    "BETA_FAST": 4.0,
    "ORIGINAL_MAX_POSITION_EMBEDDINGS": float(ORIGINAL),
    "WINDOW": WINDOW,
    "LIMIT": 1.5,  # low enough that values meet it
}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
VALUES = np.concatenate([E2M1, -E2M1])


@cache
def weights() -> dict[str, np.ndarray]:
    """The tensors as the checkpoint stores them: experts as bytes, the rest f32."""
    sizes = {name: int(size) for name, size in SIZES.items() if name != "T"}
    vocab, h, inner, experts = (sizes[name] for name in ("Vocab", "H", "Inner", "Experts"))
    heads, width = sizes["Heads"], sizes["HeadDim"]
    q, kv = heads * width, sizes["KvHeads"] * width
    floats: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, h),
        "model.norm.weight": (h,),
        "lm_head.weight": (vocab, h),
    }
    stored: dict[str, np.ndarray] = {}
    draw = np.random.default_rng(20)
    for i in range(sizes["Layers"]):
        layer = f"model.layers.{i}"
        for part, (wide, out) in {
            "self_attn.q_proj": (h, q),
            "self_attn.k_proj": (h, kv),
            "self_attn.v_proj": (h, kv),
            "self_attn.o_proj": (q, h),
            "mlp.router": (h, experts),
        }.items():
            floats |= {f"{layer}.{part}.weight": (out, wide), f"{layer}.{part}.bias": (out,)}
        floats |= {
            f"{layer}.input_layernorm.weight": (h,),
            f"{layer}.post_attention_layernorm.weight": (h,),
            f"{layer}.self_attn.sinks": (heads,),
            f"{layer}.mlp.experts.gate_up_proj_bias": (experts, 2 * inner),
            f"{layer}.mlp.experts.down_proj_bias": (experts, h),
        }
        for part, (wide, out) in {"gate_up": (h, 2 * inner), "down": (inner, h)}.items():
            place = f"{layer}.mlp.experts.{part}_proj"
            shape = (experts, out, wide // 32)
            stored[f"{place}_blocks"] = draw.integers(0, 256, (*shape, 16)).astype(np.uint8)
            stored[f"{place}_scales"] = draw.integers(121, 125, shape).astype(np.uint8)
    for name, shape in floats.items():
        noise = draw.standard_normal(shape)
        if "norm" in name:
            noise = 1 + 0.1 * noise
        elif not name.endswith("sinks"):
            noise = 0.2 * noise
        stored[name] = noise.astype(np.float32)
    return stored


def dequantised(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The values of MXFP4 blocks, `[E, Out, In]`."""
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    values = VALUES[codes] * np.exp2(scales.astype(np.float32) - 127)[..., None]
    return values.reshape(*blocks.shape[:2], -1).astype(np.float32)


@cache
def reference() -> Any:
    """transformers' model of these values, f32, eager attention."""
    import torch
    from transformers import GptOssConfig, GptOssForCausalLM

    config = GptOssConfig(**CONFIG, pad_token_id=None)
    config._attn_implementation = "eager"
    model = GptOssForCausalLM(config).float().eval()
    tensors = {}
    for name, array in weights().items():
        if name.endswith("_blocks"):
            place = name.removesuffix("_blocks")
            # transformers has an expert's matrices the other way round.
            array = dequantised(array, weights()[f"{place}_scales"]).transpose(0, 2, 1).copy()
            name = place
        elif name.endswith("_scales"):
            continue
        tensors[name] = torch.from_numpy(array)
    model.load_state_dict(tensors)
    return model


def logits(tokens: np.ndarray) -> np.ndarray:
    """transformers' logits after every token."""
    import torch

    with torch.no_grad():
        out = reference()(torch.from_numpy(tokens.astype(np.int64))).logits
    return np.asarray(out.numpy())


def bindings() -> dict[str, str]:
    """The names of the card's first layers."""
    from linnet.weights import read_bindings

    pairs = int(SIZES["Layers"]) // 2
    return {
        path: name
        for path, name in read_bindings(CARD / "bindings.json").items()
        if not path.startswith("pairs.") or int(path.split(".")[1]) < pairs
    }


def tokens(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, int(SIZES["Vocab"]), shape).astype(np.int32)
