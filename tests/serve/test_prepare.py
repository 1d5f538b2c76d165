"""Bodies of requests become what the engine is asked, or an error that names the field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from linnet.serve.errors import ApiError
from linnet.serve.prepare import Plan, Preparer
from linnet.serve.request import Request
from linnet.serve.schema import ChatBody, CompletionBody, read

from .test_text import text

HI: Any = [{"role": "user", "content": "hi"}]
TOOL: Any = {"type": "function", "function": {"name": "f"}}
PLAIN = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"


def preparer(template: str | None = PLAIN) -> Preparer:
    return Preparer.of(replace(text(), template=template), "m", 100)


def chat(template: str | None = PLAIN, **fields: Any) -> Plan:
    return preparer(template).chat(read(ChatBody, {"messages": HI, **fields})[0])


def said(plan: Plan) -> str:
    return text().decode(plan.requests[0].prompt)


def completion(**fields: Any) -> Request:
    [request] = preparer().completion(read(CompletionBody, {"prompt": "hi", **fields})[0]).requests
    return request


@pytest.mark.parametrize(
    ("template", "fields", "param"),
    [
        (PLAIN, {"tools": [TOOL]}, "tools"),
        (PLAIN, {"reasoning_effort": "low"}, "reasoning_effort"),
        (PLAIN, {"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        (PLAIN, {"max_tokens": 100}, "max_tokens"),
        (PLAIN, {"messages": HI * 20}, "messages"),
        ("{{ raise_exception('no') }}", {}, "messages"),
        (None, {}, "messages"),
    ],
)
def test_what_a_checkpoint_cannot_do(template: Any, fields: Any, param: str) -> None:
    with pytest.raises(ApiError) as error:
        chat(template, **fields)
    assert (error.value.status, error.value.param) == (400, param)


def test_what_a_template_is_given() -> None:
    assert said(chat()) == "user:hi;"
    assert said(chat(tools=[TOOL], tool_choice="none")) == "user:hi;"
    assert said(chat("{{ reasoning_effort }}", reasoning_effort="low")) == "low"
    assert said(chat("{{ mood }}", chat_template_kwargs={"mood": "glad"})) == "glad"
    prompted = "{% if add_generation_prompt %}go{% else %}stop{% endif %}"
    assert said(chat(prompted)) == "go"
    assert said(chat(prompted, add_generation_prompt=False)) == "stop"
    developer: Any = [{"role": "developer", "content": "x"}]
    assert said(chat(messages=developer)) == "system:x;"
    assert said(chat(PLAIN + "{# developer #}", messages=developer)) == "developer:x;"


def test_how_many_tokens() -> None:
    assert completion().max_new_tokens == 16
    assert completion(max_tokens=None).max_new_tokens == 16
    assert completion(prompt="x" * 95).max_new_tokens == 5
    assert completion(max_tokens=99).max_new_tokens == 99
    assert chat().requests[0].max_new_tokens == 100 - len("user::") - 1
    for name in ("max_tokens", "max_completion_tokens"):
        assert chat(**{name: 7}).requests[0].max_new_tokens == 7
    assert chat(max_tokens=7, max_completion_tokens=7).requests[0].max_new_tokens == 7


def test_how_tokens_are_chosen() -> None:
    usual = completion()
    assert (usual.temperature, usual.top_p, usual.top_k, usual.min_p) == (1.0, 1.0, 0, 0.0)
    assert usual.eos == text().eos and usual.seed is None and usual.logprobs is None
    assert completion(ignore_eos=True).eos == frozenset()
    assert completion(top_k=-1).top_k == 0 and completion(top_p=0).top_p == 1e-6
    given = {"temperature": 0, "seed": -5, "stop": "a", "n": 2, "stop_token_ids": [7], "min_p": 0.5}
    asked = completion(logit_bias={"5": -100}, presence_penalty=1, logprobs=3, **given)
    assert asked.logit_bias == {5: -100.0} and asked.presence_penalty == 1.0
    assert (asked.temperature, asked.seed, asked.stop, asked.n) == (0.0, -5, ("a",), 2)
    assert (asked.stop_ids, asked.min_p, asked.logprobs) == ((7,), 0.5, 3)
    assert chat(logprobs=True).requests[0].logprobs == 0
    assert chat(logprobs=True, top_logprobs=4).requests[0].logprobs == 4
