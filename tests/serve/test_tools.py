"""Calls of tools in text as it grows: found whole, and never shown, however the text is cut."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.serve.tools import (
    HARMONY,
    HERMES,
    LLAMA,
    MISTRAL,
    PHI,
    Called,
    Format,
    Found,
    Said,
    Thought,
    Whole,
    format_of,
)

from .test_text import text

CALL = '{"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2]}}'
ARGUMENTS = {"city": "Zürich", "days": [1, 2]}
SAID = [
    (HERMES, f"Let me see.\n<tool_call>\n{CALL}\n</tool_call>", "Let me see.\n", 1),
    (HERMES, f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "\n", 2),
    (HERMES, f"<tool_call>\n{CALL}", "", 1),
    (HERMES, "a < b <tool and </tool_call>", "a < b <tool and </tool_call>", 0),
    (HERMES, "<tool_call>no JSON</tool_call>.", "<tool_call>no JSON</tool_call>.", 0),
    (HERMES, "ends in <tool", "ends in <tool", 0),
    (MISTRAL, f"[TOOL_CALLS] [{CALL}, {CALL}]", "", 2),
    (MISTRAL, f"[TOOL_CALLS]weather[ARGS]{json.dumps(ARGUMENTS)}", "", 1),
    (MISTRAL, "a [TOOL list]", "a [TOOL list]", 0),
    (PHI, f"<|tool_call|>[{CALL}]<|/tool_call|>", "", 1),
    (LLAMA, CALL.replace("arguments", "parameters"), "", 1),
    (LLAMA, f" <|python_tag|>{CALL}; {CALL}", "", 2),
    (LLAMA, '{"name": "other", "parameters": {}}', '{"name": "other", "parameters": {}}', 0),
    (LLAMA, '{"a": 1}', '{"a": 1}', 0),
    (LLAMA, "Plain {text}", "Plain {text}", 0),
    (LLAMA, '{"name": "weather", "param', '{"name": "weather", "param', 0),
    (
        HARMONY,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        "Yes.",
        0,
    ),
    (
        HARMONY,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.weather <|constrain|>json<|message|>{json.dumps(ARGUMENTS)}<|call|>",
        "",
        1,
    ),
    (
        HARMONY,
        f" to=functions.weather<|channel|>commentary json<|message|>{json.dumps(ARGUMENTS)}",
        "",
        1,
    ),
    (HARMONY, '{"a": 1}', '{"a": 1}', 0),
    (HARMONY, " t", " t", 0),
]


def pieces(said: str, cuts: list[int]) -> list[str]:
    ends = sorted({0, len(said), *(cut % (len(said) + 1) for cut in cuts)})
    return [said[a:b] for a, b in pairwise(ends)]


def parsed(form: Format, said: list[str]) -> list[Found]:
    parser = form.parser(["weather"])
    found = [one for piece in said for one in parser.feed(piece)]
    return found + parser.finish()


@settings(deadline=None, max_examples=80)
@given(st.sampled_from(SAID), st.lists(st.integers(0, 200), max_size=12))
def test_however_it_is_cut(case: tuple[Format, str, str, int], cuts: list[int]) -> None:
    form, said, shown, calls = case
    found = parsed(form, pieces(said, cuts))
    assert "".join(one.text for one in found if isinstance(one, Said)) == shown
    called = [one for one in found if isinstance(one, Called)]
    assert len(called) == calls
    assert all(json.loads(one.arguments) == ARGUMENTS for one in called)
    assert all(one.name == "weather" for one in called)
    thought = "".join(one.text for one in found if isinstance(one, Thought))
    assert thought == ("Hm." if "analysis" in said else "")


def test_what_needs_no_waiting_is_shown_at_once() -> None:
    parser = HERMES.parser(["weather"])
    assert parser.feed("Let me") == [Said("Let me")]
    assert parser.feed(" see <") == [Said(" see ")]
    assert parser.feed("3") == [Said("<3")]
    bare = LLAMA.parser(["weather"])
    assert bare.feed("  ") == [] and bare.feed("Hello") == [Said("  Hello")]


@settings(deadline=None, max_examples=40)
@given(st.sampled_from([HERMES, PHI, MISTRAL, LLAMA, HARMONY]), st.text(max_size=60))
def test_any_text_is_read(form: Format, said: str) -> None:
    found = parsed(form, list(said))
    assert not any(isinstance(one, Called) for one in found)
    assert "".join(one.text for one in found if isinstance(one, Said)) == said


def test_an_answer_that_is_a_call() -> None:
    parser = Whole()
    assert parser.feed(CALL[:9]) == [] and parser.feed(CALL[9:]) == []
    assert parser.finish() == [Called("weather", json.dumps(ARGUMENTS, ensure_ascii=False))]
    cut = Whole()
    assert cut.feed(CALL[:9]) == [] and cut.finish() == [Said(CALL[:9])]


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (None, None),
        ("{{ messages }}", None),
        ("{% if tools %}<tool_call>{% endif %}", HERMES),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", MISTRAL),
        ("{{ tools }}<|tool_call|>", PHI),
        ('{{ tools }}{"name": f, "parameters": p}', LLAMA),
        ("<|channel|>final<|message|>", HARMONY),
    ],
)
def test_the_template_says_which(template: Any, form: Format | None) -> None:
    assert format_of(replace(text(), template=template)) is form
