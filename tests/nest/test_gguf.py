"""GGUF files of every decoder family as models: `nest.load` and `nest convert` of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnet import nest
from linnet.nest.__main__ import main
from linnet.nest.card import Card
from linnet.weights import config_of
from weights.test_gguf_transformers import CASES, logits, stored_model

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]


def ours(model: Any) -> Any:
    import torch

    tokens = torch.randint(0, 64, (2, 100), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model(tokens.to(torch.int32))


@pytest.mark.parametrize("case", CASES)
def test_a_file_is_the_model_that_was_stored(tmp_path: Path, case: str) -> None:
    """Over positions past the window, and past what the scaling was trained on."""
    original, path = stored_model(tmp_path, case)
    model = nest.load(path, entries=["forward"], generics={"T": "f32"})
    assert (ours(model) - logits(original)).abs().max() < 1e-4


def test_a_card_is_made_from_a_file(tmp_path: Path) -> None:
    original, path = stored_model(tmp_path, "llama-scaled")
    assert main(["convert", str(path), "-o", str(tmp_path / "card")]) == 0
    card = Card.read(tmp_path / "card")
    assert card.weights.files == ("m.gguf",) and card.constants["FACTOR"] == 8.0
    assert card.generics["T"] == "f32" == {"float32": "f32"}[config_of(path)["torch_dtype"]]
    model = nest.load(card, entries=["forward"])
    assert np.abs((ours(model) - logits(original)).numpy()).max() < 1e-4
