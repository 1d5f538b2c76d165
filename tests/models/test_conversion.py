"""Checkpoints of every family as transformers saves them: converted by us, loaded, and compared.

Then one key of a configuration changed at a time: it is refused by its name, or changes our result
as it changes transformers'.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnet import nest
from linnet.diagnostics import NestError

from . import families
from .families import LENGTH, TINY

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`saved(name)`: the directory of the checkpoint, saved once."""
    place = tmp_path_factory.mktemp("checkpoints")

    def directory(name: str) -> Path:
        there = place / name
        return there if there.is_dir() else families.checkpoint(name, place)

    return directory


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINNET_NEST_CACHE", str(tmp_path / "cache"))


def ours(directory: Path, name: str, tokens: np.ndarray) -> np.ndarray:
    """What our model computes for the directory."""
    import torch

    model = nest.load(directory, entries=["forward"], numerics="equivalent")
    given = [torch.from_numpy(tokens)]
    if TINY[name].family == "bert":
        given.append(families.token_types(name, given[0]))
    with torch.no_grad():
        return np.asarray(model(*given).numpy())


def theirs(directory: Path, name: str, tokens: np.ndarray) -> np.ndarray:
    """What transformers computes for the directory as it stands."""
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = getattr(transformers, TINY[name].model).from_pretrained(
            directory, attn_implementation="eager", dtype="float32"
        )
    return families.logits(name, tokens, made.eval())


@pytest.mark.parametrize("name", TINY)
def test_a_checkpoint_converts_and_computes_the_same(
    name: str, saved: Callable[[str], Path]
) -> None:
    tokens = families.tokens(31, 2, LENGTH)
    found = ours(saved(name), name, tokens)
    np.testing.assert_allclose(found, families.logits(name, tokens), rtol=0, atol=1e-4)


# Changes that both compute alike: (checkpoint, key, value, whether the result changes).
ALIKE: list[tuple[str, str, Any, bool]] = [
    ("llama", "rms_norm_eps", 0.5, True),
    ("llama", "rope_parameters", {"rope_type": "default", "rope_theta": 50.0}, True),
    ("llama", "rope_parameters", {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}, True),
    ("llama", "rope_parameters", families._LLAMA3, True),
    ("llama", "initializer_range", 0.5, False),
    ("llama", "attention_dropout", 0.25, False),
    ("llama", "max_position_embeddings", 128, False),
    ("llama", "pretraining_tp", 2, False),
    ("llama", "use_cache", False, False),
    ("llama", "eos_token_id", [5, 6], False),
    ("llama-llama3", "rope_parameters", {**families._LLAMA3, "factor": 16.0}, True),
    ("llama-llama3", "rope_parameters", {**families._LLAMA3, "low_freq_factor": 2.0}, True),
    ("llama-llama3", "rope_parameters", {**families._LLAMA3, "high_freq_factor": 8.0}, True),
    (
        "llama-llama3",
        "rope_parameters",
        {**families._LLAMA3, "original_max_position_embeddings": 32},
        True,
    ),
    ("mistral", "sliding_window", 3, True),
    ("mistral", "sliding_window", None, True),
    ("mistral-full", "sliding_window", 5, True),
    ("qwen2", "rms_norm_eps", 0.5, True),
    ("qwen2", "sliding_window", 4, False),
    ("qwen2-window", "sliding_window", 4, True),
    ("qwen2-window", "max_window_layers", 2, True),
    ("qwen3", "rope_parameters", {"rope_type": "default", "rope_theta": 100.0}, True),
    ("qwen3-window", "sliding_window", 20, True),
    ("phi3", "sliding_window", None, True),
    ("phi3", "sliding_window", 3, True),
    ("phi3", "rms_norm_eps", 0.5, True),
    ("phi3", "original_max_position_embeddings", 16, False),
    ("gpt2", "layer_norm_epsilon", 0.5, True),
    ("gpt2", "n_head", 2, True),
    ("gpt2", "attn_pdrop", 0.5, False),
    ("gpt2", "activation_function", "gelu_pytorch_tanh", False),
    ("bert", "layer_norm_eps", 0.5, True),
    ("bert", "num_attention_heads", 3, True),
    ("bert", "hidden_dropout_prob", 0.5, False),
    ("roberta", "pad_token_id", 2, True),
    ("gemma3", "query_pre_attn_scalar", 64, True),
    ("gemma3", "sliding_window", 3, True),
    ("gemma3", "rms_norm_eps", 0.5, True),
    ("gemma3", "hidden_activation", "gelu_new", False),
]


def changed(directory: Path, place: Path, key: str, value: Any) -> Path:
    """The same weights beside a configuration with one key changed; ABSENT keys are not there."""
    there = place / "changed"
    there.mkdir()
    config = json.loads((directory / "config.json").read_text())
    config[key] = value
    if key in ("max_window_layers",):
        config.pop("layer_types")  # which transformers derives from it, and writes out
    (there / "config.json").write_text(json.dumps(config))
    (there / "model.safetensors").symlink_to(directory / "model.safetensors")
    return there


@pytest.mark.parametrize("name, key, value, differs", ALIKE, ids=[f"{n}-{k}" for n, k, *_ in ALIKE])
def test_one_changed_key_changes_both_alike(
    name: str,
    key: str,
    value: Any,
    differs: bool,
    saved: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    directory = changed(saved(name), tmp_path, key, value)
    tokens = families.tokens(32, 1, LENGTH)
    wanted = theirs(directory, name, tokens)
    before = families.logits(name, tokens)
    assert bool(np.abs(wanted - before).max() > 1e-3) is differs
    np.testing.assert_allclose(ours(directory, name, tokens), wanted, rtol=0, atol=1e-4)


# Changes that the headers or the package contradict: refused by the key's name.
REFUSED: list[tuple[str, str, Any]] = [
    ("llama", "vocab_size", 97),
    ("llama", "hidden_size", 96),
    ("llama", "num_attention_heads", 12),
    ("llama", "num_key_value_heads", 3),
    ("llama", "num_hidden_layers", 3),
    ("llama", "num_hidden_layers", 1),
    ("llama", "intermediate_size", 96),
    ("llama", "head_dim", 16),
    ("llama", "attention_bias", True),
    ("llama", "mlp_bias", True),
    ("llama-biases", "attention_bias", False),
    ("llama-biases", "mlp_bias", False),
    ("llama-biases", "num_attention_heads", 3),
    ("llama-tied", "tie_word_embeddings", False),
    ("llama", "hidden_act", "gelu"),
    ("llama", "model_type", "cohere"),
    ("qwen2", "num_hidden_layers", 4),
    ("qwen2", "layer_types", ["full_attention", "sliding_attention"]),
    ("qwen2-window", "max_window_layers", 1),
    ("qwen3", "head_dim", 8),
    ("qwen3", "attention_bias", True),
    ("phi3", "intermediate_size", 96),
    ("phi3", "num_key_value_heads", 6),
    ("phi3", "hidden_act", "relu"),
    ("gpt2", "n_positions", 64),
    ("gpt2", "n_inner", 80),
    ("gpt2", "tie_word_embeddings", False),
    ("gpt2", "scale_attn_weights", False),
    ("bert", "hidden_act", "relu"),
    ("bert", "position_embedding_type", "relative_key"),
    ("bert", "type_vocab_size", 3),
    ("bert", "is_decoder", True),
    ("roberta", "max_position_embeddings", 50),
    ("gemma3", "head_dim", 8),
    ("gemma3", "final_logit_softcapping", 30.0),
    ("gemma3", "num_hidden_layers", 9),
    ("gemma3", "layer_types", ["full_attention"] + ["sliding_attention"] * 7),
]


@pytest.mark.parametrize("name, key, value", REFUSED, ids=[f"{n}-{k}" for n, k, _ in REFUSED])
def test_one_wrong_key_is_refused_by_its_name(
    name: str, key: str, value: Any, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    directory = changed(saved(name), tmp_path, key, value)
    with pytest.raises(NestError, match=f"`{key}[`.]"):
        nest.convert(directory, output=tmp_path / "card")
    assert not (tmp_path / "card").exists()


@pytest.mark.parametrize("name", TINY)
def test_the_defaults_are_those_of_transformers(name: str) -> None:
    """What a configuration leaves out is what its class puts there: the same plan from both."""
    from linnet.nest.conversion import plan

    stated = TINY[name].stated
    whole = {**TINY[name].made().to_dict(), "architectures": stated["architectures"]}
    found, wanted = plan(stated, "stated"), plan(json.loads(json.dumps(whole)), "whole")
    assert (found.generics, found.constants, found.tied, found.biases) == (
        wanted.generics,
        wanted.constants,
        wanted.tied,
        wanted.biases,
    )


def test_every_key_of_every_configuration_class_is_known() -> None:
    """A bare configuration, all defaults written out, has no key that the tables do not know."""
    import transformers

    from linnet.nest.conversion import TABLES, plan

    for tiny in TINY.values():
        whole = getattr(transformers, tiny.config)().to_dict()
        bare = {"model_type": tiny.stated["model_type"]}
        found, wanted = plan(bare, "bare"), plan(json.loads(json.dumps(whole)), "whole")
        assert (found.generics, found.constants, found.tied) == (
            wanted.generics,
            wanted.constants,
            wanted.tied,
        ), tiny.config
    assert {tiny.stated["model_type"] for tiny in TINY.values()} == set(TABLES)
