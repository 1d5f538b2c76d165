"""A page for every code: its program fails as shown, and its fixed program does not."""

from __future__ import annotations

from pathlib import Path

import pytest

import linnet
from linnet.diagnostics import CODES
from shown import codes, compare, programs

PAGES = Path(linnet.__file__).parent / "explain"
PARTS = ["## Why", "## Fixed", "## Other causes"]


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    assert {page.stem for page in PAGES.iterdir()} == set(CODES)


@pytest.mark.parametrize("code", list(CODES))
def test_page(code: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    page = PAGES / f"{code}.md"
    found = compare(page, tmp_path, request.config.getoption("--update"))
    text = page.read_text(encoding="utf-8")
    first, *rest = found
    assert first.title == f"{code}: {CODES[code]}" and first.output, "the failing program leads"
    fixed = [p for p in rest if p.title == "Fixed" and p.output is None]
    assert fixed, "a fixed program"
    for number, program in enumerate(found):
        if program.output is not None:
            assert codes(program, tmp_path / str(number)) == [code]
    assert [line for line in text.splitlines() if line.startswith("## ")] == PARTS


@pytest.mark.parametrize("code", list(CODES))
def test_page_reads_well_in_a_terminal(code: str) -> None:
    text = (PAGES / f"{code}.md").read_text(encoding="utf-8")
    for program in reversed(programs(text)):
        if program.output is not None:
            text = text[: program.output[0]] + text[program.output[1] :]
    assert [line for line in text.splitlines() if len(line) > 100] == []
