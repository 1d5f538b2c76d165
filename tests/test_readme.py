"""What README.md shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from linnet.cli import main

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def fence(language: str) -> str:
    [text] = re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return str(text)


def test_the_program_and_its_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "heads.linnet"
    file.write_text(fence("linnet"))
    assert main(["check", "heads.linnet"]) == 0
    assert main(["fmt", "--check", "heads.linnet"]) == 0
    file.write_text(fence("linnet").replace(",\n    H % Heads == 0", ""))
    capsys.readouterr()
    assert main(["check", "heads.linnet"]) == 1
    assert capsys.readouterr().out == fence("text")


def test_the_make_targets_and_pins_it_names() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert all(pin in pins for pin in re.findall(r"`(\w+==[\d.]+)`", README))
