"""docs/verify.md shows what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs/verify.md"
FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)


def test_the_page_shows_what_happens(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """Its program is written, its Python run, in order; `--update` rewrites what that prints."""
    monkeypatch.chdir(tmp_path)
    said, space = "", dict[str, object]()

    def happens(fence: re.Match[str]) -> str:
        nonlocal said
        kind, body = fence.groups()
        if kind.startswith("linnet "):
            Path(kind.split()[1]).write_text(body, encoding="utf-8")
        elif kind == "python":
            exec(compile(body, str(PAGE), "exec"), space)
            said = capsys.readouterr().out
            assert said
        elif kind == "text":
            body = said
        return f"```{kind}\n{body}```"

    text = PAGE.read_text(encoding="utf-8")
    found = FENCE.sub(happens, text)
    if request.config.getoption("--update"):
        PAGE.write_text(found, encoding="utf-8")
    assert found == PAGE.read_text(encoding="utf-8"), "`pytest --update` accepts what happens"
