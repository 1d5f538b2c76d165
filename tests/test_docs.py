"""What the documents show is what happens: their programs, and what `linnet check` says of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from linnet.check.prelude import PRELUDE
from linnet.syntax.tokens import REDUCTIONS
from shown import compare

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=[d.name for d in DOCUMENTS])
def test_programs_of_a_document(
    document: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    compare(document, tmp_path, request.config.getoption("--update"))


def test_the_prelude_is_listed() -> None:
    table = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8").split("## ")[1]
    written = set(re.findall(r"`(\w+)[\[(<]", table))
    assert written >= {*PRELUDE, *REDUCTIONS}
