"""`nest validate` and `nest sample`: a card beside transformers, and where the two differ."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from linnet import nest
from linnet.diagnostics import NestError
from linnet.nest import stack as stacks
from linnet.nest import validate as validation
from linnet.nest.__main__ import main
from linnet.nest.card import Card, card_directories, find_card
from linnet.nest.fetch import local_weights
from linnet.nest.sample import text_sample
from linnet.nest.stack import Stack, settings_of
from linnet.nest.validate import Figure, validate
from linnet.weights import write_safetensors

from ..models import families, tiny

CARD = """
[model]
family = "llama"
[source]
package = "llama"
root = "Model"
entry = "forward"
[generics]
Vocab = 96
H = 48
Heads = 6
KvHeads = 2
Inner = 80
Layers = 2
Batch = 1
MaxSeq = 48
T = "f32"
[text]
chat = false
end = [95]
[weights]
files = ["model.safetensors"]
bindings = "bindings.json"
"""


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Card:
    """A card with weights and a tokenizer of one word per id beside it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("cards") / "tiny"
    folder.mkdir()
    (folder / "nest.toml").write_text(CARD)
    (folder / "bindings.json").write_text(json.dumps(tiny.NAMES))
    write_safetensors(folder / "model.safetensors", tiny.weights())
    words = {f"w{i}": i for i in range(96)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w7"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return Card.read(folder)


# --- without transformers ---------------------------------------------------------------------


class Ours:
    """Stands for transformers' model: ours, with something added to its logits."""

    def __init__(self, card: Card, added: torch.Tensor) -> None:
        self.model = nest.load(card, generics={"Layers": 1, "MaxSeq": 16}, entries=("forward",))
        self.added = added

    def __call__(self, tokens: torch.Tensor, use_cache: bool) -> Ours:
        assert not use_cache
        logits = self.model.run_entry("forward", [tokens.int()])
        self.logits = logits + self.added
        return self


@pytest.mark.slow
def test_figures_say_where_two_models_differ(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    added = torch.zeros(1, 16, 96)
    theirs = Ours(card, added)
    asked: list[Any] = []

    def published(settings: Any, weights: Any, layers: int | None) -> Stack:
        asked.append((settings.size("Layers"), layers))
        return Stack(theirs, "a stack")

    monkeypatch.setattr(validation, "published_stack", published)
    same = validate(card, layers=1, tokens=16)
    assert asked == [(1, 1)]
    assert same.problems == () and same.layers == 1 and same.of_layers == 2
    logits, decode = same.figures
    assert logits.max_abs_difference == 0 and logits.agreeing == logits.positions == 16
    assert decode.max_abs_difference < 1e-5 and decode.positions == 9
    assert "tiny: 1 of 2 layers in f32 (fast), 16 tokens of a text" in same.text()
    assert same.document()["figures"]["logits"]["agreeing"] == 16

    added[0, 3, 5] = 1000.0
    other = validate(card, layers=1, tokens=16)
    assert other.figures[0].max_abs_difference == pytest.approx(1000.0)
    assert other.problems == (
        "logits: argmax differs at 1 positions",
        "logits: the difference is more than 0.001 of the largest value",
    )
    assert "NOT AS IT SHOULD BE: logits: argmax" in other.text()


def test_a_difference_that_is_no_number_is_none_that_is_allowed() -> None:
    assert Figure("x", 1e-5, 0.0, 1.0).within(1e-3)
    assert not Figure("x", float("nan"), 0.0, 1.0).within(1e-3)
    assert not Figure("x", 1e-5, 0.0, float("nan")).within(1e-3)


@pytest.mark.slow
def test_what_a_card_binds(card: Card) -> None:
    settings = settings_of(replace(card, constants={"THETA": 5.0}), {"Layers": 1})
    assert settings.size("Layers") == 1 and settings.size("Shards") == 1
    assert settings.number("THETA", 0.0) == 5.0
    assert settings.decodes and not settings.tied
    assert "layers.0.mlp.up.weight" in settings.tensors
    assert "layers.1.mlp.up.weight" not in settings.tensors
    layer = 2 * 48 * 48 + 2 * 48 * 16 + 3 * 48 * 80 + 2 * 48
    assert settings.values == 2 * 96 * 48 + 48 + layer
    assert settings_of(find_card("smollm2-135m-instruct"), {}).tied


@pytest.mark.slow
def test_too_large_for_the_memory(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "_free_memory", lambda: 1 << 18)
    with pytest.raises(NestError, match=r"2 layers in f32 take about .* --layers takes fewer"):
        validate(card)


def test_a_card_without_weights_here(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = replace(card, weights=replace(card.weights, files=("gone.safetensors",)))
    with pytest.raises(NestError, match="--random validates the program without them"):
        validate(gone)


@pytest.mark.slow
def test_an_unknown_package(card: Card) -> None:
    settings = replace(settings_of(card, {}), card=replace(card, package="other"))
    with pytest.raises(NestError, match="no configuration of transformers is known for the pack"):
        stacks._of_config(settings)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["validate", "--layers", "0"], "--layers is '0'; it must be 1 or more, or `all`"),
        (["validate", "--tokens", "1"], "--tokens is 1; it must be 2 or more"),
        (["validate", "--tolerance", "nan"], "--tolerance is nan"),
        (["validate", "--threads", "0"], "--threads is 0"),
        (["sample", "--max-new-tokens", "0"], "--max-new-tokens is 0"),
        (["sample", "--max-new-tokens", "48"], "are more than its context of 48 holds"),
        (["sample", "--weights", "/no/such"], "/no/such: no such file or directory"),
    ],
)
def test_wrong_options_are_named(
    card: Card, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main([*words, str(card.directory)]) == 1
    assert message in capsys.readouterr().err


def test_a_model_without_text_has_no_sample(card: Card) -> None:
    encoder = replace(card, generics={k: v for k, v in card.generics.items() if k != "MaxSeq"})
    with pytest.raises(NestError, match="makes no text"):
        text_sample(encoder)


# --- beside transformers ----------------------------------------------------------------------


@pytest.mark.slow
def test_its_tensors_in_transformers(card: Card, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a config.json transformers' model is made from what the card binds."""
    assert main(["validate", str(card.directory), "--layers", "all", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["layers"] == 2 and document["tokens"] == 48 and document["problems"] == []
    assert document["figures"]["logits"]["max_abs_difference"] < 1e-4
    assert "LlamaForCausalLM" in document["reference"]
    assert "the tensors that Linnet reads" in document["reference"]
    assert main(["validate", str(card.directory), "--layers", "1"]) == 0
    assert "tiny: 1 of 2 layers in f32" in capsys.readouterr().out


@pytest.mark.slow
def test_a_checkpoint_that_the_card_misreads(card: Card, tmp_path: Path) -> None:
    """With its config.json transformers reads the checkpoint itself, and the card is tested."""
    tiny.mistral(10000.0).save_pretrained(tmp_path)
    right = validate(card, layers=1, weights=tmp_path, tokens=40)
    assert right.problems == () and "MistralForCausalLM" in right.reference
    assert "drawn ids (seed 0): there is no tokenizer" in right.read
    with pytest.raises(NestError, match=r"`THETA` is 10000\.0 by .*, 100\.0 in the card"):
        validate(replace(card, constants={"THETA": 100.0}), weights=tmp_path, tokens=40)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_checkpoint_without_a_card(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One is made for it, and its tensors are those of the directory."""
    monkeypatch.setenv("LINNET_NEST_CACHE", str(tmp_path / "cache"))
    place = families.checkpoint(name, tmp_path)
    assert main(["validate", str(place), "--tokens", "40", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "the same checkpoint, read by transformers" in document["reference"]
    assert all(figure["max_abs_difference"] < 1e-4 for figure in document["figures"].values())


@pytest.mark.slow
def test_a_checkpoint_that_transformers_cannot_read(card: Card, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    write_safetensors(tmp_path / "model.safetensors", tiny.weights())
    with pytest.raises(NestError, match=f"transformers cannot read {tmp_path}"):
        validate(card, weights=tmp_path)


@pytest.mark.slow
def test_ours_and_theirs_say_the_same(card: Card, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sample", str(card.directory), "--max-new-tokens", "12", "--prompt", "w1 w2 w3"]
    assert main(words) == 0
    assert "samples.json: 12 of 12 tokens agree" in capsys.readouterr().out
    sample = json.loads((card.directory / "samples.json").read_text("utf-8"))
    sequence = [1, 2, 3]
    for _ in range(12):
        logits = tiny.logits(10000.0, np.array([sequence], np.int32))
        sequence.append(int(logits[0, -1].argmax()))
    assert sample["output"] == sample["reference"] == " ".join(f"w{id}" for id in sequence[3:])
    assert sample["kind"] == "text" and sample["chat"] is False and sample["prompt"] == "w1 w2 w3"


# Sizes in the place of a card's own, and the layers that show everything the family has. Widths of
# heads, windows and rotary settings are constants or follow: they stay the card's.
DECODER: dict[str, int | str] = {"Vocab": 96, "H": 48, "Heads": 6, "KvHeads": 2, "Inner": 80}
SMALL: dict[str, tuple[dict[str, int | str], int]] = {
    "llama": (DECODER, 2),
    "llama_fp8": (DECODER, 2),
    "gpt_oss": (DECODER | {"H": 64, "Inner": 32, "HeadDim": 16, "Experts": 6}, 2),
    "qwen2": (DECODER, 2),
    "qwen3": (DECODER | {"HeadDim": 16}, 2),
    "phi3": (DECODER, 2),
    "gpt2": ({"Vocab": 96, "MaxPositions": 128, "H": 48, "Heads": 4, "Inner": 192}, 2),
    "gemma3": (DECODER | {"HeadDim": 16}, 6),
    "bert": ({"Vocab": 96, "MaxPositions": 128, "D": 48, "Heads": 4, "Inner": 80}, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(card_directories()))
def test_every_card_with_random_weights(name: str) -> None:
    """Its constants and bindings, with small sizes, beside the configuration that they mean."""
    card = find_card(name)
    assert card.package in SMALL, f"small sizes for the family {card.package}, please"
    sizes, layers = SMALL[card.package]
    # What a card binds stays bound: a generic that it leaves to its default follows.
    generics = card.generics | {k: v for k, v in sizes.items() if k in card.generics}
    if "HeadDim" in card.generics:
        generics["HeadDim"] = 16
    if "MaxSeq" in card.generics:
        generics["MaxSeq"] = 96
    found = validate(
        replace(card, generics=generics), layers=layers, tokens=96, random=True, numerics="exact"
    )
    assert found.problems == ()
    assert all(figure.max_abs_difference < 1e-4 for figure in found.figures)


@pytest.mark.slow
def test_the_small_card_beside_transformers() -> None:
    card = find_card("smollm2-135m-instruct")
    if local_weights(card) is None and os.environ.get("LINNET_OFFLINE") == "1":
        pytest.skip(f"LINNET_OFFLINE=1, and the weights of {card.name} are not cached")
    found = validate(card, layers=2, tokens=32)
    assert found.problems == () and "read by transformers" in found.reference
    assert found.figures[0].max_abs_difference < 1e-3


def test_samples_of_cards_are_whole() -> None:
    keys = ["kind", "prompt", "chat", "output", "reference", "reference_stack", "tokens"]
    for directory in card_directories().values():
        path = directory / "samples.json"
        sample = json.loads(path.read_text("utf-8")) if path.is_file() else {"kind": "none"}
        if sample["kind"] == "text":
            assert list(sample) == [*keys, "agreeing_prefix"], path
            assert 0 < sample["agreeing_prefix"] <= sample["tokens"], path
