"""A configuration to what a card binds: published ones, tiny ones, and each key that is wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnet.diagnostics import NestError
from linnet.nest.card import card_directories, find_card
from linnet.nest.conversion.plan import Plan, plan
from linnet.nest.conversion.tables import TABLES
from linnet.weights import config_of
from weights.gguf_files import write_gguf

from ..models.families import TINY
from .published import (
    GEMMA3,
    GPT2,
    LLAMA31,
    MINILM,
    MISTRAL,
    PHI3,
    PUBLISHED,
    QWEN3,
    QWEN25,
    ROBERTA,
    SMOLLM2,
)


def read(config: dict[str, Any], **changes: Any) -> Plan:
    return plan({**config, **changes}, "here")


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def refusal(config: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(NestError) as error:
        read(config, **changes)
    return str(error.value)


def test_published_configurations() -> None:
    found = read(SMOLLM2)
    assert found.table.family == "llama" and found.tied and found.dtype == "bf16"
    assert found.generics == {
        "Vocab": 49152,
        "H": 576,
        "Heads": 9,
        "Inner": 1536,
        "Layers": 30,
        "KvHeads": 3,
        "Batch": 1,
        "MaxSeq": 8192,
    }
    assert found.constants == {"EPS": 1e-5, "THETA": 100000.0}
    assert read(LLAMA31).constants == {
        "EPS": 1e-5,
        "THETA": 500000.0,
        "FACTOR": 8.0,
        "LOW_FREQ_FACTOR": 1.0,
        "HIGH_FREQ_FACTOR": 4.0,
        "ORIGINAL_MAX_POSITION_EMBEDDINGS": 8192.0,
    }
    assert read(LLAMA31).generics["MaxSeq"] == 8192
    assert read(LLAMA31).notes == (
        "MaxSeq is 8192, for caches of a moderate size: `max_position_embeddings` is 131072, and "
        'generics={"MaxSeq": N} gives longer ones',
    )
    assert read(MISTRAL).constants == {"EPS": 1e-5, "THETA": 1e6, "WINDOW": 0}
    assert read(QWEN25).constants == {"EPS": 1e-6, "THETA": 1e6, "WINDOW": 0}
    assert read(QWEN3).generics["HeadDim"] == 128
    assert read(PHI3).constants == {"EPS": 1e-5, "THETA": 10000.0, "WINDOW": 2047}
    assert read(GPT2).generics == {
        "Vocab": 50257,
        "MaxPositions": 1024,
        "H": 768,
        "Heads": 12,
        "Layers": 12,
        "Batch": 1,
        "MaxSeq": 1024,
        "Inner": 3072,
    }
    assert read(GPT2).dtype is None
    assert read(MINILM).constants == {"EPS": 1e-12}
    assert read(ROBERTA).constants == {"EPS": 1e-5, "FIRST_POSITION": 2}
    assert read(ROBERTA).generics["D"] == 768 and "MaxSeq" not in read(ROBERTA).generics
    gemma = read(GEMMA3)
    assert gemma.generics["HeadDim"] == 256 and gemma.generics["Period"] == 6 and gemma.tied
    assert gemma.constants == {
        "EPS": 1e-6,
        "QUERY_SCALAR": 256.0,
        "THETA": 1e6,
        "LOCAL_THETA": 10000.0,
        "WINDOW": 512,
    }


def test_every_decoder_that_converts_has_its_configuration_here() -> None:
    cards = [find_card(name) for name in card_directories()]
    families = {table.family for table in TABLES.values()}
    for card in cards:
        if "text-generation" in card.tags and "fp8" not in card.tags and card.family in families:
            assert card.name in PUBLISHED
    assert PUBLISHED.keys() <= {card.name for card in cards}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_cards_of_the_zoo_say_what_their_configurations_do(name: str) -> None:
    """Written by hand, the longer contexts apart. Sizes that a card leaves out are the package's
    own, which test_published.py holds to the checkpoint's shapes."""
    card, found = find_card(name), read(PUBLISHED[name])
    assert card.family == found.table.family
    sizes = {key: found.generics[key] for key in found.generics if key != "MaxSeq"}
    assert {key: card.generics.get(key, value) for key, value in sizes.items()} == sizes
    assert sizes.keys() - card.generics.keys() <= {"Inner", "KvHeads"}
    assert card.constants == found.constants
    assert card.generics.get("T") == (found.dtype or "f32")
    assert int(card.generics.get("MaxSeq", 0)) <= PUBLISHED[name].get(
        "max_position_embeddings", PUBLISHED[name].get("n_positions")
    )


@pytest.mark.parametrize("name", TINY)
def test_absent_keys_take_the_defaults_of_transformers(name: str) -> None:
    """Each tiny configuration, which states little else than its sizes, is one the tables read."""
    assert read(TINY[name].stated).table.family == TINY[name].family


def test_both_spellings_of_rotary_settings() -> None:
    new = {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA31["rope_scaling"]}
    stated = without(LLAMA31, "rope_scaling", "rope_theta")
    assert read(stated, rope_parameters=new).constants == read(LLAMA31).constants
    older = {"type": "linear", "factor": 2}
    assert read(SMOLLM2, rope_scaling=older).constants == {
        "EPS": 1e-5,
        "THETA": 100000.0,
        "FACTOR": 2.0,
        "ORIGINAL_MAX_POSITION_EMBEDDINGS": 0.0,
    }
    pair = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    old = read(GEMMA3, rope_scaling={"rope_type": "linear", "factor": 8.0})
    keys = ("rope_theta", "rope_scaling", "rope_local_base_freq")
    assert read(without(GEMMA3, *keys), rope_parameters=pair).constants == old.constants
    assert old.constants["FACTOR"] == 8.0


def test_layers_of_gemma() -> None:
    """The pattern from `layer_types`, with the cycle that it has; the older key says the same."""
    kinds = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(26)]
    assert read(without(GEMMA3, "sliding_window_pattern"), layer_types=kinds).generics == (
        read(GEMMA3).generics
    )
    three = ["full_attention" if i % 3 == 2 else "sliding_attention" for i in range(26)]
    with_three = without(GEMMA3, "sliding_window_pattern")
    assert read(with_three, layer_types=three, _sliding_window_pattern=6).generics["Period"] == 3
    assert "two spellings" in refusal(GEMMA3, layer_types=three)
    irregular = [*three[:-1], "full_attention"]
    assert "`layer_types`" in refusal(with_three, layer_types=irregular)
    local = ["sliding_attention"] * 26
    assert int(read(with_three, layer_types=local).generics["Period"]) > 26


def test_windows_of_qwen() -> None:
    on = {"use_sliding_window": True, "sliding_window": 64}
    assert read(QWEN25, **on, max_window_layers=0).constants["WINDOW"] == 64
    assert read(QWEN25, **on, max_window_layers=24).constants["WINDOW"] == 0
    all_windowed = ["sliding_attention"] * 24
    assert read(QWEN25, **on, layer_types=all_windowed).constants["WINDOW"] == 64
    text = refusal(QWEN25, **on)
    assert (
        "`use_sliding_window` is true and `max_window_layers` is 21: 3 of 24 layers have a window"
        in text
    )


WRONG: list[tuple[dict[str, Any], str, Any]] = [
    (SMOLLM2, "hidden_act", "gelu"),
    (SMOLLM2, "hidden_act", "relu"),
    (SMOLLM2, "rope_interleaved", True),
    (SMOLLM2, "hidden_size", 577),
    (SMOLLM2, "hidden_size", "576"),
    (SMOLLM2, "num_attention_heads", 0),
    (SMOLLM2, "num_attention_heads", 64),
    (SMOLLM2, "num_key_value_heads", 2),
    (SMOLLM2, "num_hidden_layers", True),
    (SMOLLM2, "rms_norm_eps", 0),
    (SMOLLM2, "rms_norm_eps", "1e-5"),
    (SMOLLM2, "rope_theta", -1),
    (SMOLLM2, "rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
    (SMOLLM2, "rope_scaling", {"type": "dynamic", "factor": 2.0}),
    (SMOLLM2, "rope_scaling", {"type": "linear"}),
    (SMOLLM2, "rope_scaling", {"type": "linear", "factor": 2.0, "attention_factor": 1.5}),
    (SMOLLM2, "rope_parameters", {"rope_type": "default", "rope_theta": 5.0}),
    (SMOLLM2, "partial_rotary_factor", 0.5),
    (SMOLLM2, "head_dim", 63),
    (SMOLLM2, "max_position_embeddings", 0),
    (SMOLLM2, "attention_bias", "yes"),
    (SMOLLM2, "tie_word_embeddings", "true"),
    (SMOLLM2, "torch_dtype", "float8_e4m3fn"),
    (SMOLLM2, "dtype", "float16"),
    (SMOLLM2, "architectures", ["LlamaForSequenceClassification"]),
    (SMOLLM2, "is_encoder_decoder", True),
    (SMOLLM2, "add_cross_attention", True),
    (SMOLLM2, "pruned_heads", {"0": [1]}),
    (SMOLLM2, "quantization_config", {"quant_method": "gptq", "bits": 4}),
    (SMOLLM2, "attention_multiplier", 0.5),
    (SMOLLM2, "sliding_window", 4096),
    (SMOLLM2, "layer_types", ["sliding_attention"] * 30),
    (LLAMA31, "rope_scaling", {**LLAMA31["rope_scaling"], "high_freq_factor": 1.0}),
    (MISTRAL, "sliding_window", 0),
    (MISTRAL, "attention_bias", True),
    (MISTRAL, "layer_types", ["full_attention", "sliding_attention"] * 16),
    (QWEN25, "use_sliding_window", True),
    (QWEN25, "use_mrope", True),
    (QWEN25, "head_dim", 32),
    (QWEN25, "rope_scaling", {"type": "yarn", "factor": 4.0}),
    (QWEN25, "rope_scaling", {"type": "linear", "factor": 4.0}),
    (QWEN25, "layer_types", ["full_attention"] * 23),
    (QWEN3, "attention_bias", True),
    (QWEN3, "layer_types", ["sliding_attention"] * 36),
    (PHI3, "rope_scaling", {"type": "longrope", "short_factor": [1], "long_factor": [1]}),
    (PHI3, "partial_rotary_factor", 0.75),
    (PHI3, "lm_head_bias", True),
    (PHI3, "head_dim", 64),
    (GPT2, "activation_function", "relu"),
    (GPT2, "n_ctx", 512),
    (GPT2, "n_embd", 770),
    (GPT2, "scale_attn_weights", False),
    (GPT2, "scale_attn_by_inverse_layer_idx", True),
    (GPT2, "reorder_and_upcast_attn", True),
    (GPT2, "hidden_size", 1024),
    (MINILM, "hidden_act", "relu"),
    (MINILM, "position_embedding_type", "relative_key"),
    (MINILM, "is_decoder", True),
    (MINILM, "num_attention_heads", 7),
    (MINILM, "embedding_size", 128),
    (ROBERTA, "architectures", ["RobertaForSequenceClassification"]),
    (GEMMA3, "hidden_activation", "gelu"),
    (GEMMA3, "attn_logit_softcapping", 50.0),
    (GEMMA3, "final_logit_softcapping", 30.0),
    (GEMMA3, "use_bidirectional_attention", True),
    (GEMMA3, "sliding_window", None),
    (GEMMA3, "rope_scaling", {"rope_type": "llama3", "factor": 8.0}),
    (GEMMA3, "rope_parameters", {"rope_type": "default", "rope_theta": 1e6}),
    (GEMMA3, "attention_bias", True),
]


@pytest.mark.parametrize(
    "config, key, value", WRONG, ids=[f"{c['model_type']}-{k}" for c, k, _ in WRONG]
)
def test_one_wrong_key_is_refused_by_its_name(config: dict[str, Any], key: str, value: Any) -> None:
    assert config.get(key) != value
    text = refusal(config, **{key: value})
    assert f"`{key}`" in text or f"`{key}." in text, text


def test_words() -> None:
    text = refusal(SMOLLM2, hidden_act="gelu", attention_multiplier=0.5, rope_thetta=1.0)
    assert text == (
        "cannot convert here (llama): 3 settings of its configuration\n"
        '  `hidden_act` is "gelu"; the package `llama` supports "silu" or "swish"\n'
        "  `attention_multiplier` is 0.5: not a setting of llama that is known here, so it may "
        "change the model (--ignore attention_multiplier, if it does not)\n"
        "  `rope_thetta` is 1.0: not a setting of llama that is known here, so it may change the "
        "model; did you mean `rope_theta`? (--ignore rope_thetta, if it does not)"
    )
    assert refusal(SMOLLM2, dtype="float32") == (
        "cannot convert here (llama): 1 setting of its configuration\n"
        '  `dtype` is "float32" and `torch_dtype` is "bfloat16": two spellings of one setting that '
        "disagree"
    )
    assert refusal(SMOLLM2, model_type="mamba") == (
        'cannot convert here: its `model_type` is "mamba", which no package of the zoo computes\n'
        f"  the zoo converts {', '.join(TABLES)}\n"
        "  (docs/nest.md, `A family of your own`, writes a package and a card for another)"
    )
    assert "gemma3_text" in refusal(GEMMA3, model_type="gemma3")
    assert "states no `model_type`" in refusal(without(GPT2, "model_type"))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "phi3", "gemma3"])
def test_the_metadata_of_a_gguf_file_is_a_configuration(architecture: str, tmp_path: Path) -> None:
    """What it becomes under transformers' names has no key that the tables do not know."""
    metadata: dict[str, Any] = {
        "context_length": 512,
        "embedding_length": 64,
        "block_count": 2,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "rope.freq_base": 5e5,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.sliding_window": 128,
    }
    if architecture.startswith("qwen"):
        del metadata["attention.sliding_window"]
    stated = {f"{architecture}.{key}": value for key, value in metadata.items()}
    tensors = {"model.embed_tokens.weight": np.zeros((40, 64), np.float32)}
    config = config_of(write_gguf(tmp_path / "m.gguf", architecture, stated, tensors))
    found = read(config)
    assert found.table.family == architecture and found.tied
    assert found.generics["H"] == 64 and found.constants["THETA"] == 5e5


def test_the_page_lists_every_type() -> None:
    page = (Path(__file__).parents[2] / "docs" / "nest.md").read_text("utf-8")
    table = page.split("## Convert a checkpoint")[1].split("###")[0]
    rows = re.findall(r"^\| (`.*?`) \| `(\w+)` \|", table, re.MULTILINE)
    listed = {kind: family for kinds, family in rows for kind in re.findall(r"`(\w+)`", kinds)}
    assert listed == {kind: table.family for kind, table in TABLES.items()}


def test_a_key_that_is_ignored_on_purpose() -> None:
    config = {**SMOLLM2, "run_name": "third"}
    assert plan(config, "here", ["run_name"]).generics == read(SMOLLM2).generics
    with pytest.raises(NestError, match="--ignore hidden_act: `hidden_act` is a known setting"):
        plan(config, "here", ["run_name", "hidden_act"])
    with pytest.raises(NestError, match="--ignore other: `other` is not in the configuration"):
        plan(config, "here", ["run_name", "other"])
    assert read(SMOLLM2, unknown=None).generics == read(SMOLLM2).generics  # null sets nothing


def test_gpt_oss_is_told_of_its_card() -> None:
    found = refusal({"model_type": "gpt_oss"})
    assert (
        'nest.load("gpt-oss-20b", weights=' in found
        and find_card("gpt-oss-20b").weights.repo in found
    )
