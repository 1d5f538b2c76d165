"""The catalogue, and what is counted as a parameter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from linnet.diagnostics import NestError, PlanError
from linnet.nest.__main__ import main
from linnet.nest.card import ZOO, Card, card_directories, find_card
from linnet.nest.catalogue import describe, index, index_text
from linnet.nest.parameters import (
    card_slots,
    expand_paths,
    format_parameters,
    parameter_count,
)

from .hub_server import COMMIT
from .small_card import BINDINGS, MANIFEST, SOURCE, write


def test_a_card_described(tmp_path: Path) -> None:
    directory = write(tmp_path / "small")
    (directory / ".hidden").write_text("")
    (directory / "samples").mkdir()
    (directory / "samples/a.png").write_text("")
    found = describe(Card.read(directory))
    blocks = found.pop("blocks")
    assert blocks["small::Shift"] == "Scales, and adds a bias where there is one."
    assert "std.nn.linear::Linear" in blocks and list(blocks) == sorted(blocks)
    assert found == {
        "name": "small",
        "title": "Small",
        "summary": "A small model.",
        "license": "MIT",
        "family": "small",
        "tags": ["text-generation"],
        "links": {"huggingface": "https://huggingface.co/org/small"},
        "source": "src/lib.linnet",
        "root": "Model",
        "module": "small",
        "entry": "forward",
        "generics": {"N": 6, "Layers": 2, "T": "f32"},
        "constants": {"SCALE": 2.0},
        "check": {"S": 3},
        "parameters": 6 + 2 * 36,
        "entries": [
            {
                "name": "forward",
                "signature": "pub entry forward<S: Dim>(x: Tensor[S, N; T]) -> Tensor[S, N; T]",
                "docs": "All of it.",
                "inputs": [{"name": "x", "type": "Tensor[S, N; T]"}],
                "results": ["Tensor[S, N; T]"],
                "states": [],
            }
        ],
        "weights": {
            "repo": "org/small",
            "files": ["model.safetensors"],
            "revision": COMMIT,
            "bindings": "bindings.json",
        },
        "files": [
            "README.md",
            "bindings.json",
            "linnet.toml",
            "nest.toml",
            "samples/a.png",
            "src/lib.linnet",
        ],
    }


def test_entries_that_the_card_cannot_run(tmp_path: Path) -> None:
    entry = "    pub entry large() -> Tensor[N; T]\n    where\n        N > 6\n    {\n"
    source = SOURCE.rstrip().removesuffix("}") + f"\n{entry}        return table\n    }}\n}}\n"
    found = describe(Card.read(write(tmp_path / "small", source=source)))
    assert [one["name"] for one in found["entries"]] == ["forward"]
    larger = MANIFEST.replace("N = 6", "N = 7")
    found = describe(Card.read(write(tmp_path / "small", source=source, manifest=larger)))
    assert [one["name"] for one in found["entries"]] == ["forward", "large"]


def test_the_command_writes_the_same_bytes_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "zoo/models/small")
    write(tmp_path / "zoo/models/another")
    assert main(["index", str(tmp_path / "zoo")]) == 0
    printed = capsys.readouterr().out
    assert main(["index", str(tmp_path / "zoo/models"), "-o", str(tmp_path / "index.json")]) == 0
    assert (tmp_path / "index.json").read_text("utf-8") == printed
    document = json.loads(printed)
    assert document["version"] == 1
    assert [model["source"] for model in document["models"]] == ["src/lib.linnet"] * 2


def test_a_zoo_without_cards(tmp_path: Path) -> None:
    with pytest.raises(NestError, match="holds no cards"):
        index(tmp_path)
    with pytest.raises(NestError, match="no such directory"):
        index(tmp_path / "x")


def listed() -> dict[str, list[str]]:
    """The rows of the page's table of models, by name."""
    page = (ZOO.parents[2] / "docs/nest.md").read_text("utf-8")
    table = page.split("\n## The models\n")[1].split("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines() if row.startswith("| ")]
    return {row[0]: row[1:] for row in rows[2:]}


def test_the_page_lists_the_cards() -> None:
    rows, cards = listed(), [find_card(name) for name in sorted(card_directories())]
    assert list(rows) == [card.name for card in cards]
    for card in cards:
        positions = card.generics.get("MaxSeq") or card.generics["MaxPositions"]
        said = [card.package, str(positions), card.generics["T"], card.license]
        assert [rows[card.name][0], *rows[card.name][2:]] == said


@pytest.mark.slow
def test_the_zoo() -> None:
    text = index_text(ZOO)
    assert len(text) < 1_000_000 and text == index_text(ZOO)
    models = {model["name"]: model for model in json.loads(text)["models"]}
    assert list(models) == sorted(models)
    counts = {name: format_parameters(model["parameters"]) for name, model in models.items()}
    assert counts == {name: row[1] for name, row in listed().items()}
    assert models["mistral-7b-instruct-v0.3"]["parameters"] == 7_248_023_552
    smollm = models["smollm2-135m-instruct"]
    assert smollm["parameters"] == 134_515_008
    assert smollm["source"] == "families/llama/src/lib.linnet"
    decode = next(entry for entry in smollm["entries"] if entry["name"] == "decode")
    assert decode["states"] == [
        "layers[*].attention.cache.keys",
        "layers[*].attention.cache.values",
    ]


def counted(tmp_path: Path, **changed: str) -> int:
    card = Card.read(write(tmp_path / "small", **changed))
    return parameter_count(card, card.program())


def test_what_counts(tmp_path: Path) -> None:
    assert counted(tmp_path) == 6 + 2 * 36  # `table` and `head` are one tensor
    apart = BINDINGS.replace('"head": "table.weight"', '"head": "head.weight"')
    assert counted(tmp_path, bindings=apart) == 6 + 6 + 2 * 36
    biased = BINDINGS.replace("\n}", ',\n  "layers.{i}.bias": "model.layers.{i}.bias"\n}')
    assert counted(tmp_path, bindings=biased) == 6 + 2 * 36 + 2 * 6
    stated = MANIFEST.replace('family = "small"', "parameters = 7")
    assert counted(tmp_path, manifest=stated) == 7


def test_sizes_without_a_value(tmp_path: Path) -> None:
    card = Card.read(write(tmp_path / "small"))
    with pytest.raises(PlanError, match="the size N has no value"):
        card_slots(replace(card, generics={"Layers": 2, "T": "f32"}), card.program())


def test_paths_at_every_position() -> None:
    assert expand_paths("a.{i}.b.{j}", [2, 2]) == ["a.0.b.0", "a.0.b.1", "a.1.b.0", "a.1.b.1"]
    assert expand_paths("a", []) == ["a"] and expand_paths("a.*.b", [0]) == []


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (950, "950"),
        (1000, "1.0K"),
        (22_565_376, "22.6M"),
        (999_949, "999.9K"),
        (999_950, "1.0M"),
        (1_100_474_624, "1.1B"),
        (7_248_023_552, "7.2B"),
        (1_000_000_000_000, "1.0T"),
    ],
)
def test_counts_as_text(count: int, text: str) -> None:
    assert format_parameters(count) == text
