"""Tiny random models of each family, as transformers makes, computes and saves them.

Windows and the boundaries of rotary scaling are small, so that LENGTH positions get past them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

LENGTH = 40
VOCAB = 96
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_BERT = {key: value for key, value in _SIZES.items() if key != "num_key_value_heads"}
_GPT2: dict[str, Any] = {
    "vocab_size": VOCAB,
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True, slots=True)
class Tiny:
    """A model of a family: transformers' names for it and the arguments of its configuration."""

    family: str
    model: str
    config: str
    arguments: Mapping[str, Any]
    sizes: Mapping[str, Any] = field(default_factory=lambda: _SIZES)

    @property
    def stated(self) -> dict[str, Any]:
        """The arguments as a config.json that states nothing else."""
        types = {"Gemma3TextConfig": "gemma3_text", "GPT2Config": "gpt2"}
        kind = types.get(self.config) or self.config.removesuffix("Config").lower()
        return {"model_type": kind, "architectures": [self.model], **self.sizes, **self.arguments}

    def made(self, **changes: Any) -> Any:
        """transformers' configuration of these arguments."""
        import transformers

        return getattr(transformers, self.config)(**{**self.sizes, **self.arguments, **changes})


def _llama(**arguments: Any) -> Tiny:
    return Tiny("llama", "LlamaForCausalLM", "LlamaConfig", {"rms_norm_eps": 1e-5, **arguments})


_GEMMA3: dict[str, Any] = {
    "num_hidden_layers": 8,
    "head_dim": 16,
    "sliding_window": 8,
    "layer_types": ["full_attention" if i % 3 == 2 else "sliding_attention" for i in range(8)],
    "query_pre_attn_scalar": 24,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
    },
}
_QWEN = {"rope_parameters": {"rope_type": "default", "rope_theta": 30000.0}}
_WINDOW = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}

TINY: dict[str, Tiny] = {
    "llama": _llama(),
    "llama-tied": _llama(tie_word_embeddings=True, head_dim=16),
    "llama-biases": _llama(attention_bias=True, mlp_bias=True, num_key_value_heads=None),
    "llama-linear": _llama(
        rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 20000.0}
    ),
    "llama-llama3": _llama(rope_parameters=_LLAMA3),
    "mistral": Tiny("llama", "MistralForCausalLM", "MistralConfig", {"sliding_window": 8}),
    "mistral-full": Tiny(
        "llama", "MistralForCausalLM", "MistralConfig", {"sliding_window": None, "head_dim": 16}
    ),
    "qwen2": Tiny("qwen2", "Qwen2ForCausalLM", "Qwen2Config", _QWEN),
    "qwen2-window": Tiny(
        "qwen2", "Qwen2ForCausalLM", "Qwen2Config", {**_WINDOW, "tie_word_embeddings": True}
    ),
    "qwen3": Tiny("qwen3", "Qwen3ForCausalLM", "Qwen3Config", {**_QWEN, "head_dim": 16}),
    "qwen3-window": Tiny(
        "qwen3",
        "Qwen3ForCausalLM",
        "Qwen3Config",
        {**_WINDOW, "head_dim": 8, "tie_word_embeddings": True},
    ),
    "phi3": Tiny("phi3", "Phi3ForCausalLM", "Phi3Config", {"sliding_window": 8}),
    "phi3-full": Tiny(
        "phi3", "Phi3ForCausalLM", "Phi3Config", {"num_key_value_heads": 6, "rms_norm_eps": 1e-3}
    ),
    "gpt2": Tiny(
        "gpt2",
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_positions": 48, "layer_norm_epsilon": 1e-4},
        _GPT2,
    ),
    "gpt2-inner": Tiny(
        "gpt2",
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_positions": 64, "n_inner": 80},
        _GPT2,
    ),
    "bert": Tiny("bert", "BertModel", "BertConfig", {}, _BERT),
    "bert-heads": Tiny("bert", "BertForPreTraining", "BertConfig", {"layer_norm_eps": 1e-5}, _BERT),
    "roberta": Tiny("bert", "RobertaModel", "RobertaConfig", {"type_vocab_size": 1}, _BERT),
    "roberta-heads": Tiny(
        "bert", "RobertaForMaskedLM", "RobertaConfig", {"pad_token_id": 2}, _BERT
    ),
    "gemma3": Tiny("gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig", _GEMMA3),
}


def model(name: str, **changes: Any) -> Any:
    """transformers' model, its weights drawn wide enough that every part matters; the same ones
    for the same shapes."""
    import torch
    import transformers

    tiny = TINY[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = getattr(transformers, tiny.model)._from_config(
            tiny.made(**changes), attn_implementation="eager"
        )
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for path, parameter in made.named_parameters():
            noise = torch.randn(parameter.shape, generator=draw)
            norm = "norm" in path or ".ln_" in path or "LayerNorm" in path
            if path.endswith("bias") or (norm and tiny.family == "gemma3"):
                parameter.copy_(0.1 * noise)
            elif tiny.family == "gemma3" and "embed" in path:
                # Scaled up on the way in, else the head would repeat each token.
                parameter.copy_(0.05 * noise)
            else:
                parameter.copy_(1 + 0.1 * noise if norm else 0.2 * noise)
    made.tie_weights()
    return made.eval()


@cache
def _model(name: str) -> Any:
    return model(name)


def logits(name: str, tokens: np.ndarray, made: Any = None) -> np.ndarray:
    """transformers' logits after every token, or an encoder's last states, f32."""
    import torch

    made = made or _model(name)
    inputs = torch.from_numpy(tokens.astype(np.int64))
    with torch.no_grad():
        if TINY[name].family == "bert":
            encoder = getattr(made, made.base_model_prefix, made)
            out = encoder(inputs, token_type_ids=token_types(name, inputs)).last_hidden_state
        else:
            out = made(inputs).logits
    return np.asarray(out.numpy())


def checkpoint(name: str, place: Path, **options: Any) -> Path:
    """The directory holds the model as save_pretrained writes it (`options` are its own)."""
    return saved(_model(name), place / name, **options)


def saved(made: Any, directory: Path, **options: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.save_pretrained(directory, **options)
    return directory


def token_types(name: str, tokens: Any) -> Any:
    """Token types for tokens of an encoder: all that it has."""
    return tokens % TINY[name].arguments.get("type_vocab_size", 2)


def tokens(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, VOCAB, shape).astype(np.int32)
