"""Files of every family beside transformers: its model from our configuration and arrays, and its
own reading of the same file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnet.weights import config_of, read_arrays
from weights.gguf_files import write_gguf
from weights.test_gguf_config import llama3_factors

pytestmark = pytest.mark.slow
SMALL = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# GGUF architecture, transformers' model type, its settings, and the metadata beside the common.
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", "llama", {**SMALL, "rope_theta": 20000.0}, {"rope.freq_base": 20000.0}),
    "llama-scaled": (
        "llama",
        "llama",
        {**SMALL, "rope_theta": 10000.0, "rope_scaling": LLAMA3},
        {"rope.freq_base": 10000.0},
    ),
    "llama-biased": ("llama", "llama", {**SMALL, "attention_bias": True}, {}),
    "qwen2": ("qwen2", "qwen2", {**SMALL, "tie_word_embeddings": True}, {}),
    "qwen3": (
        "qwen3",
        "qwen3",
        {**SMALL, "head_dim": 128},  # the only one that transformers reads
        {"attention.key_length": 128, "attention.value_length": 128},
    ),
    "phi3": ("phi3", "phi3", {**SMALL, "sliding_window": 8}, {"attention.sliding_window": 8}),
    "gemma3": (
        "gemma3",
        "gemma3_text",
        {
            **SMALL,
            "num_hidden_layers": 7,
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 8,
            "tie_word_embeddings": True,
        },
        {
            "attention.key_length": 32,
            "attention.value_length": 32,
            "attention.sliding_window": 8,
            "rope.freq_base": 1000000.0,
        },
    ),
    "gpt2": (
        "gpt2",
        "gpt2",
        {
            "vocab_size": 64,
            "n_embd": 64,
            "n_head": 4,
            "n_layer": 2,
            "n_positions": 1024,  # the only number that transformers reads
            "layer_norm_epsilon": 1e-5,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        {},
    ),
}


def metadata(architecture: str, config: Any, more: dict[str, Any]) -> dict[str, Any]:
    """What the converter writes of a transformers configuration."""
    keys: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
    }
    if architecture == "gpt2":
        keys["feed_forward_length"] = 4 * config.hidden_size
        keys["attention.layer_norm_epsilon"] = config.layer_norm_epsilon
    else:
        keys["feed_forward_length"] = config.intermediate_size
        keys["attention.layer_norm_rms_epsilon"] = config.rms_norm_eps
        keys["attention.head_count_kv"] = config.num_key_value_heads
    return {
        "general.name": "small",
        "tokenizer.ggml.tokens": [f"t{k}" for k in range(64)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        **{f"{architecture}.{key}": value for key, value in (keys | more).items()},
    }


def logits(model: Any) -> Any:
    import torch

    tokens = torch.randint(0, 64, (2, 100), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model.eval()(tokens).logits


def stored_model(folder: Path, case: str) -> tuple[Any, Path]:
    """A random model of the case, and the GGUF file that the converter would make of it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    architecture, model_type, settings, more = CASES[case]
    torch.manual_seed(0)
    original = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    tied = original.config.tie_word_embeddings
    state = {
        name.removeprefix("transformer."): value.numpy()
        for name, value in original.state_dict().items()
        if not (tied and name == "lm_head.weight") and not name.endswith(".attn.bias")
    }
    raw = (
        {"rope_freqs.weight": llama3_factors(8.0, 1.0, 4.0, 32, 10000.0, 16)}
        if case == "llama-scaled"
        else None
    )
    keys = metadata(architecture, original.config, more)
    return original, write_gguf(folder / "m.gguf", architecture, keys, state, raw=raw)


@pytest.mark.parametrize("case", CASES)
def test_the_model_is_the_one_that_was_stored(tmp_path: Path, case: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    original, path = stored_model(tmp_path, case)
    model_type, tied = CASES[case][1], original.config.tie_word_embeddings

    # Our configuration and arrays, in transformers' class.
    config = config_of(path)
    again = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    arrays = read_arrays(path)
    arrays.pop("rope_freqs.weight", None)
    prefix = "transformer." if model_type == "gpt2" else ""
    loaded = {
        (name if name == "lm_head.weight" else prefix + name): torch.from_numpy(np.array(array))
        for name, array in arrays.items()
    }
    missing, unexpected = again.load_state_dict(loaded, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"} and bool(missing) == tied
    again.tie_weights()
    assert (logits(again) - logits(original)).abs().max() < 1e-5

    # Transformers' reading of the file: the same tensors, bit for bit.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name)
    for name, value in theirs.state_dict().items():
        own = name.removeprefix("transformer.")
        if own in arrays:
            assert np.array_equal(value.numpy(), arrays[own]), name
        else:
            assert own == "lm_head.weight"
    stated = load_gguf_checkpoint(path)["config"]
    shared = (stated.keys() & config.keys()) - {"model_type"}
    assert len(shared) >= 5
    for key in shared:
        assert config[key] == pytest.approx(stated[key]), key
