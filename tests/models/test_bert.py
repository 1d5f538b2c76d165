"""The bert family against transformers: small random models under each naming, and real weights.

transformers writes the checkpoints; hidden states and pooled vectors agree within 1e-4 in f32.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnet import nest
from linnet.diagnostics import PlanError
from linnet.nest.card import ZOO, find_card
from linnet.nest.fetch import fetch_weights, local_weights
from linnet.weights import read_arrays, read_bindings

from .runners import RUNNERS, Runner

FAMILY = ZOO / "families" / "bert"
SIZES: dict[str, int | str] = {
    "Vocab": 90,
    "MaxPositions": 24,
    "TypeVocab": 2,
    "D": 24,
    "Heads": 3,
    "Inner": 40,
    "Layers": 2,
    "T": "f32",
}
TOLERANCE = {"rtol": 0, "atol": 1e-4}

pytestmark = pytest.mark.slow  # transformers alone takes seconds to import


@cache
def original(kind: str) -> Any:
    """transformers' model of these sizes, drawn wide enough that norms and heads matter."""
    import torch
    from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

    sizes = {
        "vocab_size": SIZES["Vocab"],
        "max_position_embeddings": SIZES["MaxPositions"],
        "hidden_size": SIZES["D"],
        "num_attention_heads": SIZES["Heads"],
        "intermediate_size": SIZES["Inner"],
        "num_hidden_layers": SIZES["Layers"],
    }
    torch.manual_seed(5)
    model: Any = (
        BertModel(BertConfig(**sizes, attn_implementation="eager"))
        if kind == "bert"
        else RobertaModel(
            RobertaConfig(**sizes, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1)
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.2)
    return model.eval()


def saved(kind: str, folder: Path, *, heads: bool, old_norms: bool) -> Path:
    """The model's checkpoint as a training script saves it: prefixed where it has a head on top."""
    import torch
    from safetensors.torch import save_file
    from transformers import BertForPreTraining, RobertaForMaskedLM

    model = original(kind)
    if heads:
        whole: Any = (BertForPreTraining if kind == "bert" else RobertaForMaskedLM)(model.config)
        setattr(whole, kind, model)
        model = whole
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    if old_norms:
        arrays = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ): torch.from_numpy(np.array(array))
            for name, array in read_arrays(path).items()
        }
        save_file(arrays, path)
    return path


def theirs(kind: str, tokens: np.ndarray, types: np.ndarray) -> tuple[np.ndarray, ...]:
    """Hidden states, sentence vectors and pooled vectors."""
    import torch

    with torch.no_grad():
        out = original(kind)(
            torch.from_numpy(tokens.astype(np.int64)),
            token_type_ids=torch.from_numpy(types.astype(np.int64)),
        )
        unit = torch.nn.functional.normalize(out.last_hidden_state.mean(1), dim=1)
    return out.last_hidden_state.numpy(), unit.numpy(), out.pooler_output.numpy()


def ids(seed: int, *shape: int) -> np.ndarray:
    # Below 4 are RoBERTa's special tokens, padding among them.
    return np.random.default_rng(seed).integers(4, int(SIZES["Vocab"]), shape).astype(np.int32)


def compare(run: Runner, kind: str, entries: tuple[str, ...]) -> None:
    for batch, length in ((1, 1), (3, 7), (2, 22)):
        tokens = ids(length, batch, length)
        types = (ids(9, batch, length) % (2 if kind == "bert" else 1)).astype(np.int32)
        wanted = dict(zip(("forward", "embed", "pool"), theirs(kind, tokens, types), strict=True))
        for entry in entries:
            np.testing.assert_allclose(run(entry, tokens, types), wanted[entry], **TOLERANCE)


# Each card's own bindings, and the checkpoint that is named as that card's is.
CASES = [
    ("bert", "all-MiniLM-L6-v2", {"heads": False, "old_norms": False}, ("forward", "embed")),
    ("bert", "bert-base-uncased", {"heads": True, "old_norms": True}, ("forward", "embed", "pool")),
    ("roberta", "roberta-base", {"heads": True, "old_norms": False}, ("forward", "embed")),
]


@pytest.mark.parametrize("backend", RUNNERS)
@pytest.mark.parametrize(("kind", "name", "options", "entries"), CASES)
def test_what_transformers_saves_gives_what_transformers_gives(
    tmp_path: Path,
    backend: str,
    kind: str,
    name: str,
    options: dict[str, bool],
    entries: tuple[str, ...],
) -> None:
    card = find_card(name)
    assert card.bindings_path is not None
    run = RUNNERS[backend](
        FAMILY,
        {**SIZES, "TypeVocab": 2 if kind == "bert" else 1, "Poolers": card.generics["Poolers"]},
        constants=card.constants,
        weights=saved(kind, tmp_path, **options),
        bindings=card.bindings_path,
        unread=card.weights.unread,
    )
    compare(run, kind, entries)


def test_a_card_loads_whole_and_its_unread_tensors_stay_unread(tmp_path: Path) -> None:
    path = saved("bert", tmp_path, heads=True, old_norms=True)
    model = nest.load("bert-base-uncased", generics=SIZES, weights=path)
    assert model.entries == ("forward", "embed", "pool")
    held = read_bindings(find_card("bert-base-uncased").bindings_path or "")
    assert len(model.state_dict()) == 5 + 16 * 2 + 2 and len(held) == 5 + 16 + 2
    with pytest.raises(PlanError, match=r"missing tensors(.|\n)*for `pooler\.0\.weight`"):
        arrays = read_arrays(path)
        weights = {name: arrays[name] for name in arrays if "pooler" not in name}
        nest.load("bert-base-uncased", generics=SIZES, weights=weights)


def test_a_checkpoint_without_biases_is_refused(tmp_path: Path) -> None:
    arrays = read_arrays(saved("bert", tmp_path, heads=False, old_norms=False))
    lacking = "encoder.layer.1.intermediate.dense.bias"
    weights = {name: array for name, array in arrays.items() if name != lacking}
    with pytest.raises(PlanError, match=lacking):
        nest.load("all-MiniLM-L6-v2", generics=SIZES, weights=weights)


def test_a_sequence_that_the_positions_have_no_room_for_is_refused() -> None:
    sizes = {**SIZES, "TypeVocab": 1}
    run = RUNNERS["torch"](FAMILY, sizes, constants={"FIRST_POSITION": 2})
    run("forward", ids(1, 1, 22), np.zeros((1, 22), np.int32))
    with pytest.raises(PlanError, match=r"S \+ 2 <= 24, which does not hold with S = 23"):
        run("forward", ids(1, 1, 23), np.zeros((1, 23), np.int32))


def test_real_weights_give_the_vectors_of_transformers() -> None:
    """The published MiniLM; the longest text is cut to 256 tokens by both."""
    import sys

    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
    try:
        from sentence_vectors import MODEL, compare
    finally:
        sys.path.pop(0)
    if local_weights(find_card(MODEL)) is None and os.environ.get("LINNET_OFFLINE") == "1":
        pytest.skip(f"LINNET_OFFLINE=1, and the weights of {MODEL} are not cached")
    fetch_weights(find_card(MODEL))
    hidden, vector, found = compare()
    assert hidden < 1e-4 and vector < 1e-5
    assert abs(float(found[0] @ found[1]) - 0.7553) < 5e-5
    assert abs(float(found[0] @ found[2]) - 0.1419) < 5e-5
