"""The language by example: every program of every Markdown file here finds what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from linnet_md import Program, programs, run

FILES = sorted(Path(__file__).parent.glob("*.md"))
CASES = [
    pytest.param(program, id=f"{file.stem}-{program}")
    for file in FILES
    for program in programs(file)
]


@pytest.mark.parametrize("program", CASES)
def test_program(program: Program) -> None:
    run(program)
