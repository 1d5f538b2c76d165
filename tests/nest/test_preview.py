"""`nest preview`: a card's main entry, drawn as it is now."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from linnet.cli import main as linnet
from linnet.nest.__main__ import main
from linnet.nest.card import ZOO, Card
from linnet.nest.preview import FILES, drawing, program_of_card

CARDS = sorted((ZOO / "models").iterdir())
SMALL = ZOO / "models/smollm2-135m-instruct"


def stale(cards: list[Card]) -> list[Path]:
    """The drawings beside these cards that are not as they would be drawn now."""
    found: list[Path] = []
    for card in cards:
        kept = {theme: card.directory / name for theme, name in FILES.items()}
        kept = {theme: path for theme, path in kept.items() if path.is_file()}
        program = program_of_card(card) if kept else None
        for theme, path in kept.items():
            if path.read_text(encoding="utf-8") != drawing(card, theme, program=program):
                found.append(path)
    return found


@pytest.mark.slow  # every card's program is checked and lowered
def test_committed_previews_are_not_stale() -> None:
    assert not stale([Card.read(path) for path in CARDS]), "`make previews` draws them again"


@pytest.mark.slow
def test_previews_of_a_folder_of_cards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        shutil.copy(SMALL / "nest.toml", tmp_path / name)
    assert main(["preview", str(tmp_path)]) == 0
    written = [tmp_path / name / file for name in ("one", "two") for file in FILES.values()]
    assert capsys.readouterr().out.split() == [str(path) for path in written]
    card = Card.read(tmp_path / "one")
    assert stale([card]) == []
    light = written[0].read_text(encoding="utf-8")
    assert "SmolLM2 135M Instruct: forward" in light and "DecoderLayer × 30" in light
    written[0].write_text(light.replace("× 30", "× 31"), encoding="utf-8")
    assert stale([card]) == [written[0]]
    assert main(["preview", str(tmp_path), "-o", str(tmp_path / "x.svg")]) == 1
    assert "has 2 cards, not one" in capsys.readouterr().err


@pytest.mark.slow
def test_one_drawing_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--expand", "0", "--theme", "dark", "-o"]
    assert main(["preview", SMALL.name, *words, str(tmp_path / "x.svg")]) == 0
    text = (tmp_path / "x.svg").read_text(encoding="utf-8")
    assert text == drawing(Card.read(SMALL), "dark", 0)
    assert main(["preview", SMALL.name, *words, str(tmp_path / "none/x.svg")]) == 1
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_draws_a_card_with_its_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--entry", "decode", "--no-arithmetic", "-o", str(tmp_path / "x.svg")]
    assert linnet(["diagram", SMALL.name, "--bind", "Layers=5", *options]) == 0
    text = (tmp_path / "x.svg").read_text(encoding="utf-8")
    assert "llama: Model.decode" in text and "× 5" in text and "H 576" in text
    assert linnet(["diagram", SMALL.name, "--entry", "a", "--entry", "b"]) == 1
    assert "one drawing shows one entry, not 2: a, b" in capsys.readouterr().err
