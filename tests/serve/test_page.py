"""What docs/pytorch.md shows of a model of the zoo: the small card's answer in 4 bits."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from linnet.nest.card import find_card
from linnet.nest.fetch import local_weights

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pytorch.md"


@pytest.mark.slow
def test_the_example_answers(capsys: pytest.CaptureFixture[str]) -> None:
    card = find_card("smollm2-135m-instruct")
    if local_weights(card) is None and os.environ.get("LINNET_OFFLINE") == "1":
        pytest.skip(f"LINNET_OFFLINE=1, and the weights of {card.name} are not cached")
    section = PAGE.read_text(encoding="utf-8").split("\n## A model of the zoo\n")[1]
    code, shown = re.findall(r"```(?:python [^\n]*|text)\n(.*?)```", section, re.DOTALL)[:2]
    exec(compile(code, "answer.py", "exec"), {})
    assert capsys.readouterr().out == shown
