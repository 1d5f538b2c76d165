"""A GGUF file's metadata as a configuration: every key used, held to a value, or named."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnet.diagnostics import PlanError
from linnet.weights import config_of
from linnet.weights.gguf_config import plain_number
from linnet.weights.rope_factors import scaling_of
from weights.gguf_files import write_gguf

H, VOCAB = 64, 40
Metadata = dict[str, Any]


def decoder(architecture: str, **more: Any) -> Metadata:
    """What the converter writes for llama and its relatives; a None leaves a key out."""
    keys: Metadata = {
        "context_length": 512,
        "embedding_length": H,
        "block_count": 2,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "rope.freq_base": 500000.0,
        "attention.layer_norm_rms_epsilon": 1e-5,
    } | {key.replace("__", "."): value for key, value in more.items()}
    return {
        "general.name": "a model",
        "general.file_type": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **{f"{architecture}.{key}": value for key, value in keys.items() if value is not None},
    }


def read(
    tmp_path: Path,
    architecture: str,
    metadata: Metadata,
    tensors: dict[str, Any] | None = None,
    raw: dict[str, Any] | None = None,
) -> dict[str, Any]:
    if tensors is None:
        tensors = {"model.embed_tokens.weight": np.zeros((VOCAB, H), np.float32)}
    return config_of(write_gguf(tmp_path / "m.gguf", architecture, metadata, tensors, raw=raw))


def refused(tmp_path: Path, architecture: str, metadata: Metadata, **more: Any) -> str:
    with pytest.raises(PlanError) as caught:
        read(tmp_path, architecture, metadata, **more)
    return str(caught.value)


COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": H,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def test_llama(tmp_path: Path) -> None:
    assert read(tmp_path, "llama", decoder("llama", rope__dimension_count=16)) == {
        "model_type": "llama",
        **COMMON,
        "head_dim": 16,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }


def test_a_window_tells_mistral_from_llama(tmp_path: Path) -> None:
    config = read(tmp_path, "llama", decoder("llama", attention__sliding_window=128))
    assert config["model_type"] == "mistral" and config["sliding_window"] == 128
    assert "attention_bias" not in config
    config = read(tmp_path, "llama", decoder("llama", attention__sliding_window=0))
    assert config["model_type"] == "llama" and "sliding_window" not in config


def test_what_tensors_say(tmp_path: Path) -> None:
    tensors = {
        "model.embed_tokens.weight": np.zeros((VOCAB, H), np.float16),
        "lm_head.weight": np.zeros((VOCAB, H), np.float16),
        "model.layers.0.self_attn.q_proj.bias": np.zeros(H, np.float32),
        "model.layers.0.mlp.up_proj.bias": np.zeros(96, np.float32),
    }
    config = read(tmp_path, "llama", decoder("llama"), tensors)
    assert config["attention_bias"] and config["mlp_bias"] and not config["tie_word_embeddings"]
    assert config["torch_dtype"] == "float16"
    path = write_gguf(tmp_path / "q.gguf", "llama", decoder("llama"), tensors, "Q8_0")
    assert config_of(path)["torch_dtype"] == "bfloat16"


def test_qwen(tmp_path: Path) -> None:
    rest = {"hidden_act": "silu", "use_sliding_window": False}
    assert read(tmp_path, "qwen2", decoder("qwen2")) == {"model_type": "qwen2", **COMMON, **rest}
    wide = decoder("qwen3", attention__key_length=32, attention__value_length=32)
    assert read(tmp_path, "qwen3", wide) == {
        "model_type": "qwen3",
        **COMMON,
        **rest,
        "head_dim": 32,
    }
    wide = decoder("qwen2", attention__key_length=32, attention__value_length=32)
    assert "`qwen2.attention.head_count` is 4: heads are 32 wide" in refused(
        tmp_path, "qwen2", wide
    )


def test_phi3(tmp_path: Path) -> None:
    metadata = decoder(
        "phi3",
        attention__sliding_window=127,
        rope__dimension_count=16,
        rope__scaling__original_context_length=512,
    )
    assert read(tmp_path, "phi3", metadata) == {
        "model_type": "phi3",
        **COMMON,
        "original_max_position_embeddings": 512,
        "hidden_act": "silu",
        "sliding_window": 127,
    }
    part = decoder("phi3", attention__sliding_window=0, rope__dimension_count=12)
    config = read(tmp_path, "phi3", part)
    assert config["partial_rotary_factor"] == 0.75 and "sliding_window" not in config
    factors = np.linspace(1, 2, 8, dtype=np.float32)
    raw = {"rope_factors_long.weight": factors, "rope_factors_short.weight": factors[::-1].copy()}
    scaling = read(tmp_path, "phi3", metadata, raw=raw)["rope_scaling"]
    assert scaling["rope_type"] == "longrope" and scaling["short_factor"][0] == 2.0
    assert len(scaling["long_factor"]) == 8


def test_gemma3(tmp_path: Path) -> None:
    metadata = decoder(
        "gemma3",
        attention__key_length=32,
        attention__value_length=32,
        attention__sliding_window=16,
        rope__scaling__type="linear",
        rope__scaling__factor=8.0,
    )
    assert read(tmp_path, "gemma3", metadata) == {
        "model_type": "gemma3_text",
        **COMMON,
        "head_dim": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 32,
        "sliding_window": 16,
        "sliding_window_pattern": 6,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    large = decoder("gemma3", block_count=62, attention__key_length=32, attention__value_length=32)
    assert read(tmp_path, "gemma3", large)["query_pre_attn_scalar"] == 16
    listed = decoder("gemma3") | {"gemma3.attention.sliding_window_pattern": [True, False]}
    assert read(tmp_path, "gemma3", listed)["layer_types"] == [
        "sliding_attention",
        "full_attention",
    ]
    third = decoder("gemma3", attention__sliding_window_pattern=3)
    assert read(tmp_path, "gemma3", third)["sliding_window_pattern"] == 3
    capped = decoder("gemma3", final_logit_softcapping=30.0, rope__freq_base_swa=20000.0)
    config = read(tmp_path, "gemma3", capped)
    assert config["final_logit_softcapping"] == 30.0
    assert config["rope_local_base_freq"] == 20000.0


def test_gpt2(tmp_path: Path) -> None:
    keys = {
        "context_length": 24,
        "embedding_length": H,
        "block_count": 2,
        "feed_forward_length": 4 * H,
        "attention.head_count": 4,
        "attention.layer_norm_epsilon": 1e-5,
    }
    metadata = {f"gpt2.{key}": value for key, value in keys.items()}
    tensors = {"wte.weight": np.zeros((VOCAB, H), np.float32)}
    expected = {
        "model_type": "gpt2",
        "vocab_size": VOCAB,
        "n_positions": 24,
        "n_ctx": 24,
        "n_embd": H,
        "n_head": 4,
        "n_layer": 2,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }
    assert read(tmp_path, "gpt2", metadata, tensors) == expected
    metadata["gpt2.feed_forward_length"] = 96
    assert read(tmp_path, "gpt2", metadata, tensors) == {**expected, "n_inner": 96}


def test_bert(tmp_path: Path) -> None:
    keys = {
        "context_length": 24,
        "embedding_length": H,
        "block_count": 2,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.layer_norm_epsilon": 1e-12,
        "attention.causal": False,
        "pooling_type": 1,
    }
    tensors = {
        "embeddings.word_embeddings.weight": np.zeros((VOCAB, H), np.float32),
        "embeddings.token_type_embeddings.weight": np.zeros((2, H), np.float32),
    }
    metadata = {f"bert.{key}": value for key, value in keys.items()}
    config = read(tmp_path, "bert", metadata, tensors)
    assert config["model_type"] == "bert" and config["type_vocab_size"] == 2
    assert config["layer_norm_eps"] == 1e-12 and config["max_position_embeddings"] == 24
    metadata["bert.attention.causal"] = True
    assert "`bert.attention.causal` is True" in refused(tmp_path, "bert", metadata, tensors=tensors)


# --- scaled positions -------------------------------------------------------------------------


def llama3_factors(
    factor: float, low: float, high: float, original: int, theta: float, width: int
) -> np.ndarray[Any, Any]:
    """As the converter computes them: frequency by frequency."""
    found: list[float] = []
    for k in range(0, width, 2):
        wave = 2 * math.pi * theta ** (k / width)
        if wave < original / high:
            found.append(1.0)
        elif wave > original / low:
            found.append(factor)
        else:
            share = (original / wave - low) / (high - low)
            found.append(1 / ((1 - share) / factor + share))
    return np.array(found, np.float32)


@pytest.mark.parametrize(
    ("factor", "low", "high", "original", "width"),
    [
        (8.0, 1.0, 4.0, 8192, 128),  # Llama 3.1
        (32.0, 1.0, 4.0, 8192, 64),  # Llama 3.2
        (4.0, 1.0, 4.0, 64, 16),
        (4.0, 1.0, 4.0, 60, 8),
        (4.0, 1.0, 4.0, 61, 4),
        (4.0, 1.0, 1.1, 100, 8),
        (4.0, 1.0, 4.0, 100, 16),
        (8.0, 1.0, 3.5, 5000, 128),
        (8.0, 2.0, 6.0, 8192, 128),
        (2.5, 1.0, 8.0, 300, 64),
    ],
)
def test_llama3_scaling_is_found_again(
    factor: float, low: float, high: float, original: int, width: int
) -> None:
    table = llama3_factors(factor, low, high, original, 500000.0, width)
    found = scaling_of(table, 500000.0, width)
    assert found is not None and found["factor"] == factor and found["rope_type"] == "llama3"
    del found["rope_type"]
    # Settings that give the same factors are as good: the table is what a model computes with.
    again = llama3_factors(*found.values(), 500000.0, width)
    assert np.allclose(again, table, rtol=1e-4, atol=0)
    if low == 1.0 and high == 4.0 and original == 8192:
        assert list(found.values()) == [factor, low, high, original]


def test_factors_that_mean_nothing_known(tmp_path: Path) -> None:
    assert scaling_of(np.ones(8, np.float32), 10000.0, 16) == {}
    assert scaling_of(np.full(8, 4, np.float32), 10000.0, 16) == {
        "rope_type": "linear",
        "factor": 4.0,
    }
    zigzag = np.array([1, 8, 1, 8, 1, 8, 1, 8], np.float32)
    for table in (zigzag, np.full(8, np.nan, np.float32), np.ones(7, np.float32)):
        assert scaling_of(table, 10000.0, 16) is None
    message = refused(tmp_path, "llama", decoder("llama"), raw={"rope_freqs.weight": zigzag})
    assert "`rope_freqs.weight` in" in message and "nor those of llama3 for heads of 16" in message


def test_a_table_of_factors_is_part_of_the_configuration(tmp_path: Path) -> None:
    metadata = decoder("llama", context_length=131072)
    raw = {"rope_freqs.weight": llama3_factors(8.0, 1.0, 4.0, 8192, 500000.0, 16)}
    assert read(tmp_path, "llama", metadata, raw=raw)["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    ones = {"rope_freqs.weight": np.ones(8, np.float32)}
    assert "rope_scaling" not in read(tmp_path, "llama", metadata, raw=ones)
    both = metadata | {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    assert read(tmp_path, "llama", both, raw=ones)["rope_scaling"]["factor"] == 2.0
    assert "beside `llama.rope.scaling.type`, which is 'linear'" in refused(
        tmp_path, "llama", both, raw=raw
    )


def test_kinds_of_scaling(tmp_path: Path) -> None:
    def scaling(**more: Any) -> Any:
        keys = {f"rope__scaling__{key}": value for key, value in more.items()}
        return read(tmp_path, "qwen2", decoder("qwen2", **keys)).get("rope_scaling")

    assert scaling() is None and scaling(type="none") is None
    assert scaling(type="linear", factor=1.0) is None
    assert scaling(type="linear", factor=4.0) == {"rope_type": "linear", "factor": 4.0}
    assert scaling(type="yarn", factor=4.0, original_context_length=32768, yarn_beta_fast=32.0) == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
        "beta_fast": 32.0,
    }
    older = decoder("llama", rope__scale_linear=2.0)
    assert read(tmp_path, "llama", older)["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"embedding_length": None}, "`llama.embedding_length` is missing: it must be a whole"),
        ({"block_count": "two"}, "`llama.block_count` is 'two': it must be a whole number"),
        ({"attention.head_count": 0}, "`llama.attention.head_count` is 0: it must be a whole"),
        (
            {"attention.head_count": [4, 2]},
            "`llama.attention.head_count` is [4, 2]: it must be a whole number, 1 or more",
        ),
        (
            {"attention.layer_norm_rms_epsilon": None},
            "`llama.attention.layer_norm_rms_epsilon` is missing: it must be a number above 0",
        ),
        ({"rope.freq_base": -1.0}, "`llama.rope.freq_base` is -1.0: it must be a number above 0"),
        (
            {"rope.scaling.type": "spiral"},
            "`llama.rope.scaling.type` is 'spiral': known are none, linear, yarn and longrope",
        ),
        ({"rope.scaling.attn_factor": 2.0}, "`llama.rope.scaling.attn_factor` is 2.0: it goes"),
        ({"rope.dimension_count": 32}, "`llama.rope.dimension_count` is 32: heads are 16 wide"),
        ({"attention.value_length": 8}, "`llama.attention.value_length` is 8: keys are 16 wide"),
        ({"vocab_size": 41}, "`llama.vocab_size` is 41: `model.embed_tokens.weight` has 40 rows"),
        ({"expert_count": 8}, "`llama.expert_count` is 8: 0 is what is computed here"),
        ({"attention.causal": False}, "`llama.attention.causal` is False: True is what"),
        (
            {"attention.temperature": 2.0},
            "`llama.attention.temperature` is 2.0: not a key that is known here, so it may change",
        ),
        (
            {"attention.head_count_kvv": 2},
            "did you mean `llama.attention.head_count_kv`?",
        ),
    ],
)
def test_keys_that_are_refused(tmp_path: Path, changes: Metadata, expected: str) -> None:
    metadata = decoder("llama")
    for key, value in changes.items():
        metadata[f"llama.{key}"] = value
    metadata = {key: value for key, value in metadata.items() if value is not None}
    message = refused(tmp_path, "llama", metadata)
    assert message.startswith(f"cannot make a configuration of {tmp_path}")
    assert expected in message


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    metadata = decoder("llama", block_count=None, expert_count=2, made_up=1)
    assert "3 problems" in refused(tmp_path, "llama", metadata)


def test_keys_that_change_nothing(tmp_path: Path) -> None:
    plain = read(tmp_path, "llama", decoder("llama"))
    more = decoder("llama", expert_count=0, attention__causal=True, rope__scaling__finetuned=True)
    more |= {"split.count": 1, "quantize.imatrix.entries_count": 3, "somebody.made_it": "x"}
    assert read(tmp_path, "llama", more) == plain


def test_equal_layers_are_one_number(tmp_path: Path) -> None:
    metadata = decoder("llama") | {"llama.attention.head_count_kv": [2, 2]}
    assert read(tmp_path, "llama", metadata)["num_key_value_heads"] == 2


def test_files_that_have_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="of the architecture 'falcon'; models of llama, qwen2"):
        read(tmp_path, "falcon", {}, {})
    with pytest.raises(PlanError, match="is of the type 'adapter'"):
        read(tmp_path, "llama", {"general.type": "adapter"}, {})
    from linnet.weights import open_checkpoint

    with pytest.raises(PlanError, match="the weights in memory: holds no metadata"):
        config_of(open_checkpoint({"t": np.zeros(2)}))


def test_numbers_are_the_decimals_that_were_meant() -> None:
    for number in (1e-5, 1e-6, 1e-12, 0.1, 10000.0, 500000.0, 1e38):
        assert plain_number(float(np.float32(number))) == number
    assert plain_number(1 / 3) == 1 / 3 and plain_number(1e300) == 1e300
