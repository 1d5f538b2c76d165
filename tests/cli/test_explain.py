"""`linnet explain`: pages of codes, and what is said where there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from linnet.cli import explain, main
from linnet.diagnostics import CODES

Terminal = Callable[..., str]
Golden = Callable[..., None]

PAGE = """# E2201: index extents differ

Two axes share `i`.

```linnet
let c[i] = a[i]
```
"""


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(explain, "PAGES", tmp_path)
    (tmp_path / "E2201.md").write_text(PAGE)
    return tmp_path


def test_transcript(pages: Path, terminal: Terminal, golden: Golden) -> None:
    words = ("e2201", "2201", "E220", "broadcast", "nothing")
    golden(terminal({}, *(f"linnet explain {word}" for word in words)))


def test_alone_it_lists_every_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed == [f"{code}  {title}" for code, title in CODES.items()]


def test_a_terminal_gets_colours(
    pages: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["explain", "E2201"]) == 0
    styled = capsys.readouterr().out
    assert "\x1b[1mE2201: index extents differ\x1b[0m" in styled
    assert "`" not in styled.split("```")[0]
    assert main(["explain", "E2201", "--no-color"]) == 0
    assert capsys.readouterr().out == PAGE


def test_every_page_belongs_to_a_code() -> None:
    folder = Path(str(explain.PAGES))
    names = {file.stem for file in folder.glob("*.md")} if folder.is_dir() else set()
    assert names <= CODES.keys(), names - CODES.keys()
    for name in sorted(names):
        assert explain.page(name).startswith("#")
