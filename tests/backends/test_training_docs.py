"""What docs/pytorch.md shows of training runs, and does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pytorch.md"


# AdamW alone takes seconds to import.
@pytest.mark.slow
def test_the_example_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## Training it\n")[1].split("\n## ")[0]
    fences = re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    (program,) = [text for language, text in fences if language == "linnet"]
    (tmp_path / "bigram.linnet").write_text(program, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    for language, text in fences:
        if language == "python":
            exec(compile(text, str(PAGE), "exec"), space)
    losses, batch = space["losses"], space["batch"]
    assert losses[-1] < losses[0] / 4
    model, again, third = (space[name] for name in ("model", "again", "third"))
    assert space["paths"] == ["layers.0.proj.weight", "layers.1.proj.weight"]
    trained = {p for p, held in again.named_parameters() if held.grad is not None}
    assert trained == set(again.lora_paths)
    # An adapter that has not learned adds nothing.
    assert abs((third.loss(*batch) - model.loss(*batch)).item()) < 1e-6
