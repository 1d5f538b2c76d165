"""`nest.load`: a card's package, generics, constants and bindings put together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from linnet import nest
from linnet.diagnostics import NestError, PlanError
from linnet.nest.conversion.agreement import refuse_other_constants

from ..models import tiny

SMALL: dict[str, int | str] = {**tiny.SIZES, "Batch": 1, "MaxSeq": 16}


def run(model: object, tokens: np.ndarray) -> np.ndarray:
    import torch

    with torch.no_grad():
        return np.asarray(model(torch.from_numpy(tokens)).numpy())  # type: ignore[operator]


@pytest.mark.slow
def test_the_seed_directory_loads_as_it_is(seed: Path) -> None:
    """Its own source and its 32 written-out layers of bindings, at tiny sizes."""
    model = nest.load(seed, entries=["forward"], generics=SMALL, weights=tiny.weights())
    tokens = tiny.tokens(21, 2, 7)
    wanted = tiny.logits(1e6, tokens)
    np.testing.assert_allclose(run(model, tokens), wanted, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_a_card_of_the_family_with_its_constants() -> None:
    model = nest.load(
        "mistral-7b-instruct-v0.3", entries=["forward"], generics=SMALL, weights=tiny.weights()
    )
    tokens = tiny.tokens(22, 1, 9)
    wanted = tiny.logits(1e6, tokens)
    np.testing.assert_allclose(run(model, tokens), wanted, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_fewer_layers_leave_the_rest_of_the_checkpoint_unread() -> None:
    weights = tiny.weights()
    shorter = {**SMALL, "Layers": 1}
    model = nest.load("mistral-7b-instruct-v0.3", generics=shorter, weights=weights)
    assert not any(".1." in name for name in model.state_dict())
    # The same sizes as the package's own, not an override of a card: nothing is left out quietly.
    with pytest.raises(PlanError, match="that nothing binds"):
        import linnet.torch

        linnet.torch.load(tiny.FAMILY, generics=shorter, weights=weights, bindings=tiny.NAMES)


@pytest.mark.slow
def test_a_tensor_beyond_every_array_is_still_refused() -> None:
    weights = tiny.weights() | {"model.extra.weight": np.zeros(3, np.float32)}
    with pytest.raises(PlanError, match=r"model\.extra\.weight"):
        nest.load("mistral-7b-instruct-v0.3", generics=SMALL, weights=weights)


@pytest.mark.slow
def test_tensors_that_a_card_knows_of_may_stay_unread() -> None:
    card = nest.find_card("mistral-7b-instruct-v0.3")
    knowing = replace(card, weights=replace(card.weights, unread=("model.extra.*",)))
    weights = tiny.weights() | {"model.extra.weight": np.zeros(3, np.float32)}
    options = {"entries": ["next_token"], "generics": SMALL}
    model = nest.load(knowing, weights=weights, **options)
    assert not any("extra" in name for name in model.state_dict())
    with pytest.raises(PlanError, match=r"nothing binds(.|\n)*model\.extras"):
        nest.load(knowing, weights=weights | {"model.extras": np.zeros(3, np.float32)}, **options)


def test_unknown_backends_and_cards_are_named() -> None:
    with pytest.raises(NestError, match="no backend 'numpy'"):
        nest.load("mistral-7b-instruct-v0.3", backend="numpy")
    with pytest.raises(NestError, match=r"did you mean `smollm2-135m-instruct`"):
        nest.load("smollm2-135m-instuct")


SETTINGS = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 80,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
}


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("mistral-7b-instruct-v0.3", {}, None),
        (
            "mistral-7b-instruct-v0.3",
            {"rope_theta": 10000.0},
            "`THETA` is 10000.0 by `rope_theta`, 1000000.0 in the card",
        ),
        (
            "mistral-7b-instruct-v0.3",
            {"rms_norm_eps": 1e-6},
            "`EPS` is 1e-06 by `rms_norm_eps`, 1e-05 in the card",
        ),
        (
            "llama-3.1-8b-instruct",
            {"rope_theta": 500000.0},
            "`FACTOR` is 1.0 by what they leave out, 8.0 in the card",
        ),
        ("mistral-7b-instruct-v0.3", {"model_type": "qwen2", "rope_theta": 1.0}, None),
    ],
)
def test_weights_of_a_model_with_other_settings_are_refused(
    tmp_path: Path, name: str, changes: dict[str, object], said: str | None
) -> None:
    """The tensors have the same shapes: only the configuration beside them tells them apart."""
    (tmp_path / "config.json").write_text(json.dumps({**SETTINGS, **changes}))
    card, file = nest.find_card(name), tmp_path / "model.safetensors"
    for weights in (tmp_path, file, str(file)):
        if said is None:
            refuse_other_constants(card, weights)
            continue
        with pytest.raises(NestError) as error:
            refuse_other_constants(card, weights)
        assert said in str(error.value) and "give the checkpoint itself" in str(error.value)
    refuse_other_constants(card, tiny.weights())


def test_loading_looks_at_the_configuration_of_given_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SETTINGS, "rope_theta": 10000.0}))
    with pytest.raises(NestError, match=r"`THETA` is 10000\.0"):
        nest.load("mistral-7b-instruct-v0.3", generics=SMALL, weights=tmp_path)
