"""A terminal for tests of the command line: files in, a transcript out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import linnet
from linnet.cli import main

PACKAGE = str(Path(linnet.__file__).parent)
Terminal = Callable[..., str]


@pytest.fixture
def terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Terminal:
    """`terminal(files, *command lines)`: what a person would see, exit statuses included."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(files: dict[str, str], *lines: str) -> str:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        seen: list[str] = []
        for line in lines:
            status = main(line.split()[1:])
            out, err = capsys.readouterr()
            streams = [out, *(f"[stderr] {part}" for part in err.splitlines(keepends=True))]
            seen.append(f"$ {line}\n{''.join(streams)}[status {status}]\n")
        return "\n".join(seen).replace(str(tmp_path), "TMP").replace(PACKAGE, "LINNET")

    return run
