"""`nest.load`: a card's package, generics, constants and bindings put together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from linnet import nest
from linnet.diagnostics import NestError, PlanError

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
