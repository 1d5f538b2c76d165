"""`linnet init`: what it makes works, and it harms nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from linnet.cli import main

Terminal = Callable[..., str]
Golden = Callable[..., None]


def test_transcript(terminal: Terminal, golden: Golden) -> None:
    golden(
        terminal(
            {
                "notes/linnet.txt": "",
                "taken/src/lib.linnet": "mine",
                "repository/README.md": "mine",
                "file": "",
                "odd/src": "",
            },
            "linnet init new/deep/small-model",
            "linnet check --strict new/deep/small-model",
            "linnet fmt --check new/deep/small-model",
            "linnet inspect new/deep/small-model",
            "linnet init new/deep/small-model",
            "linnet init notes --name part-2",
            "linnet init taken",
            "linnet init repository",
            "linnet init file",
            "linnet init odd",
            "linnet init other --name 2nd",
            "linnet init other --name block",
            "linnet check --strict notes",
        )
    )
    assert not Path("other").exists() and os.listdir("taken") == os.listdir("odd") == ["src"]
    assert Path("repository/README.md").read_text() == "mine"
    assert Path("taken/src/lib.linnet").read_text() == "mine"


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("3d-vision", "model_3d-vision"),
        ("std", "model_std"),
        ("block", "model_block"),
        ("Größe", "Gr_e"),
        ("a b", "a_b"),
        ("---", "model"),
        ("x" * 200, "x" * 200),
    ],
)
def test_names_from_folders(tmp_path: Path, folder: str, name: str) -> None:
    place = tmp_path / folder
    assert main(["init", str(place)]) == 0
    assert f'name = "{name}"\n' in (place / "linnet.toml").read_text()
    assert main(["check", "--strict", str(place)]) == 0
    assert main(["fmt", "--check", str(place)]) == 0


def test_the_readme_s_commands_and_python_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    readme = (tmp_path / "README.md").read_text()
    for line in re.findall(r"^\$ linnet (.+)$", readme, re.MULTILINE):
        assert main(line.split()) == 0, line
    capsys.readouterr()
    [code] = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    said = re.findall(r"# (.+)$", code, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == said


def test_after_an_error_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    really = Path.open

    def failing(path: Path, *args: str, **options: str) -> object:
        opened.append(path)
        if path.name == "README.md":
            raise OSError(28, "No space left on device", str(path))
        return really(path, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", failing)
    (tmp_path / "here").mkdir()
    for folder in ("here", "there"):
        assert main(["init", str(tmp_path / folder)]) == 1
    assert len(opened) == 6 and os.listdir(tmp_path) == ["here"]
    assert not os.listdir(tmp_path / "here")
