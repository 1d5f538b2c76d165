"""A help with edits can be applied: what it is about is gone, and the program still parses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from linnet.check import check_text
from linnet.diagnostics import Diagnostic
from linnet_md import programs

SPEC = Path(__file__).parent.parent / "spec"


def fixable() -> Iterator[tuple[str, Diagnostic]]:
    for file in sorted(SPEC.glob("*.md")):
        for program in programs(file):
            text = program.files.get("")
            if text is not None:
                for finding in check_text(text).findings.sorted():
                    if finding.help is not None and finding.help.edits:
                        yield text, finding


def applied(text: str, finding: Diagnostic) -> str:
    assert finding.help is not None
    for edit in sorted(finding.help.edits, key=lambda e: e.span.start, reverse=True):
        text = text[: edit.span.start] + edit.text + text[edit.span.end :]
    return text


def count(text: str, finding: Diagnostic) -> tuple[int, int]:
    """Findings of that code on that line, and syntax errors."""
    line = finding.primary.span.source.position(finding.primary.span.start).line
    found = check_text(text).findings.sorted()
    same = [d for d in found if d.code == finding.code and place(d) == line]
    return len(same), sum(d.code.startswith("E11") for d in found)


def place(finding: Diagnostic) -> int:
    span = finding.primary.span
    return span.source.position(span.start).line


FIXABLE = list(fixable())


def test_there_are_many() -> None:
    assert len({finding.code for _, finding in FIXABLE}) >= 15


@pytest.mark.parametrize(
    ("text", "finding"), FIXABLE, ids=[f"{d.code}-{i}" for i, (_, d) in enumerate(FIXABLE)]
)
def test_a_fix_fixes(text: str, finding: Diagnostic) -> None:
    same, syntax = count(text, finding)
    after = applied(text, finding)
    same_after, syntax_after = count(after, finding)
    assert same_after < same and syntax_after == syntax, after
