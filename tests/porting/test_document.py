"""What docs/jax.md says of importing is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "jax.md"


def test_the_example(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    section = page.split("## From JAX to Linnet\n")[1].split("\n## ")[0]
    [program] = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    [shown] = re.findall(r"^```linnet\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "example.py"
    script.write_text(program)
    exec(compile(program, str(script), "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == "(2, 3, 5)\n"
    written = (tmp_path / "classifier/src/lib.linnet").read_text()
    if request.config.getoption("--update"):
        PAGE.write_text(page.replace(f"```linnet\n{shown}```", f"```linnet\n{written}```"), "utf-8")
    else:
        assert written == shown
