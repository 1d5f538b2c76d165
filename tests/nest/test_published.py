"""The cards beside the tensors of the published checkpoints, by name, shape and dtype.

The names and shapes are those of transformers' model of the published configuration; the files
have headers and no data.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from linnet import nest
from linnet.nest.card import Card, find_card
from linnet.nest.parameters import bound_tensors, card_bindings, card_slots, parameter_count
from linnet.weights import open_checkpoint
from linnet.weights.bindings import match_bindings

from .published import PUBLISHED

# What catalogues say of each model: with a bias for every projection and for the head where their
# program has such members, although no checkpoint fills them. EXACT are without.
COUNTS = {
    "gemma-3-270m": 268_098_176,
    "gpt2": 124_439_808,
    "llama-3.1-8b-instruct": 8_031_765_760,
    "mistral-7b-instruct-v0.3": 7_249_432_576,
    "phi-3-mini-4k-instruct": 3_822_127_424,
    "qwen2.5-0.5b-instruct": 494_461_184,
    "qwen3-4b": 4_023_725_952,
    "qwen3-8b": 8_192_288_128,
    "smollm2-1.7b-instruct": 1_712_064_512,
    "smollm2-135m-instruct": 134_515_008,
    "tinyllama-1.1b-chat": 1_100_474_624,
}
EXACT = ("gemma-3-270m", "gpt2", "smollm2-135m-instruct")
SIZES = {"BF16": 2, "F32": 4}


def tensors(name: str, folder: Path) -> dict[str, tuple[int, ...]]:
    """The tensors of the checkpoint, as transformers' model has them and the Hub stores them."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    state = {tensor: tuple(value.shape) for tensor, value in model.state_dict().items()}
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    if name != "gpt2":
        return state
    # Stored by the model without its head, with the causal masks of older versions.
    plain = {tensor.removeprefix("transformer."): shape for tensor, shape in state.items()}
    return plain | {f"h.{i}.attn.bias": (1, 1, 1024, 1024) for i in range(12)}


def write_headers(path: Path, dtype: str, shapes: dict[str, tuple[int, ...]]) -> None:
    """A SafeTensors file of these tensors, whose data is a hole."""
    header: dict[str, Any] = {}
    end = 0
    for tensor, shape in shapes.items():
        start, end = end, end + math.prod(shape) * SIZES[dtype]
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTS)
def test_a_card_and_its_checkpoint(name: str, tmp_path: Path) -> None:
    card, source = find_card(name), tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(PUBLISHED[name]))
    weights = source / "model.safetensors"
    write_headers(weights, "F32" if name == "gpt2" else "BF16", tensors(name, source))

    # The converter makes the same of it as the card that was written by hand.
    converted = Card.read(nest.convert(source, output=tmp_path / "card"))
    assert converted.constants == card.constants
    program = card.program()
    slots = card_slots(card, program)
    assert card_slots(converted, program) == slots
    bound = bound_tensors(slots, card_bindings(card))
    assert bound_tensors(slots, card_bindings(converted)) == bound

    # Nothing is missing, and nothing is left over.
    _, report = match_bindings(slots, open_checkpoint(weights), card_bindings(card))
    assert report.count == 0, report.text(name)

    counted = parameter_count(card, program)
    biases = sum(math.prod(slot.shape) for slot in slots if slot.path not in bound)
    more = 0 if name in EXACT else biases + int(card.generics["Vocab"])
    assert counted + more == COUNTS[name]
    assert f"{counted:,} parameters" in " ".join((card.directory / "README.md").read_text().split())
