"""transformers' model of what a card binds: for each family the one that the card was made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnet.nest import stack
from linnet.nest.card import Card
from linnet.nest.conversion.plan import plan
from linnet.nest.stack import Settings

from ..models import families

pytestmark = pytest.mark.slow


def settings(name: str, tmp_path: Path) -> Settings:
    """What the conversion of this model's configuration binds, with the packages' own defaults."""
    tiny = families.TINY[name]
    path = tmp_path / "config.json"
    tiny.made(architectures=[tiny.model]).to_json_file(path, use_diff=False)
    config: dict[str, Any] = json.loads(path.read_text())
    stated = {k: v for k, v in config.items() if k in tiny.stated} | tiny.stated
    found = plan(stated, name)
    generics = dict(found.generics)
    heads = int(generics["Heads"])
    if "H" in generics:
        generics.setdefault("KvHeads", heads)
        generics.setdefault("HeadDim", int(generics["H"]) // heads)
        generics.setdefault("Inner", 4 * int(generics["H"]))
    tensors = {"embedding.weight": "table", "lm_head.weight": "table" if found.tied else "head"}
    if any(found.biases.values()):
        tensors |= {"layers.0.attention.q_proj.bias": "q", "layers.0.mlp.gate.bias": "gate"}
    constants = {k: float(v) for k, v in found.constants.items()}
    card = Card(tmp_path, name, package=found.table.family)
    return Settings(card, generics, constants, tensors, 0)


@pytest.mark.parametrize("name", sorted(families.TINY))
def test_the_configuration_of_a_card_is_the_one_it_was_made_from(name: str, tmp_path: Path) -> None:
    """The same weights give the same results, past windows and where rotary scaling begins."""
    tokens = np.random.default_rng(3).integers(4, 96, (1, families.LENGTH)).astype(np.int32)
    theirs = families._model(name)
    ours = stack._of_config(settings(name, tmp_path))
    weights = getattr(theirs, theirs.base_model_prefix, theirs) if is_encoder(name) else theirs
    missing, unexpected = ours.load_state_dict(weights.state_dict(), strict=False)
    assert all("pooler" in one for one in missing) and not unexpected
    found = families.logits(name, tokens, ours)
    assert np.abs(found - families.logits(name, tokens)).max() < 1e-5


def is_encoder(name: str) -> bool:
    return families.TINY[name].family == "bert"
