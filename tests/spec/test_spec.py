"""The language by example: every program of every Markdown file here finds what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from linnet.diagnostics import CODES
from linnet_md import EXPECTED, Program, programs, run

FILES = sorted(Path(__file__).parent.glob("*.md"))
CASES = [
    pytest.param(program, id=f"{file.stem}-{program}")
    for file in FILES
    for program in programs(file)
]


def test_every_code_is_found_in_some_program() -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in FILES)
    assert {code for _, code, _ in EXPECTED.findall(text)} == set(CODES)


@pytest.mark.parametrize("program", CASES)
def test_program(program: Program) -> None:
    run(program)
