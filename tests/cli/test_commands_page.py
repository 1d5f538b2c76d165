"""docs/commands.md shows what happens, and shows every command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from linnet.cli import COMMANDS, main

PAGE = Path(__file__).resolve().parents[2] / "docs/commands.md"
FENCE = re.compile(r"^(```+)(.*)\n((?:.*\n)*?)\1$", re.MULTILINE)


def test_what_it_shows_happens(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """Files are written, command lines and Python run, in order; `--update` rewrites the page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINNET_NEST", "")
    said = ""

    def happens(fence: re.Match[str]) -> str:
        nonlocal said
        marks, kind, body = fence.groups()
        if kind.startswith("linnet "):
            Path(kind.split()[1]).write_text(body, encoding="utf-8")
        elif kind == "console":
            lines = re.findall(r"^\$ linnet (.+)$", body, re.MULTILINE)
            assert lines, body
            body = "\n".join(f"$ linnet {line}\n{transcript(line)}" for line in lines)
        elif kind == "python":
            exec(compile(body, str(PAGE), "exec"), {})
            said = capsys.readouterr().out
        elif kind == "text" and said:
            body, said = said, ""
        return f"{marks}{kind}\n{body}{marks}"

    def transcript(line: str) -> str:
        main(line.split())
        out, err = capsys.readouterr()
        text = out + err
        for real, shown in ((str(tmp_path), "."), (str(PACKAGE), "linnet")):
            text = text.replace(real, shown)
        return text

    text = PAGE.read_text(encoding="utf-8")
    found = FENCE.sub(happens, text)
    if request.config.getoption("--update"):
        PAGE.write_text(found, encoding="utf-8")
    assert found == PAGE.read_text(encoding="utf-8"), "`pytest --update` accepts what happens"


PACKAGE = Path(__file__).resolve().parents[2] / "src/linnet"


def test_every_command_has_its_example() -> None:
    text = PAGE.read_text(encoding="utf-8")
    headings = "\n".join(re.findall(r"^## .+$", text, re.MULTILINE))
    for name in COMMANDS:
        assert f"`linnet {name}`" in headings, name
        assert re.search(rf"^(\$ )?linnet {name}\b", text, re.MULTILINE) or name == "lsp", name
