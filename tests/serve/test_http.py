"""A server on loopback, as OpenAI's own client and others meet it."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from linnet.diagnostics import LinnetError
from linnet.serve.engine import Engine
from linnet.serve.http import Limits, Server, bind
from linnet.serve.metrics import Metrics
from linnet.serve.request import Request
from linnet.serve.worker import Worker

from .served import TEXT, engine, serving, slow

SAID = "Grüße 👋 hi! Stop here."
FORCED: Any = {"model": "tiny", "extra_body": {"guided_choice": [SAID]}}
HI: Any = [{"role": "user", "content": "hi"}]
PARAMETERS = {
    "type": "object",
    "properties": {"day": {"enum": ["mo", "tu"]}},
    "required": ["day"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
G = {"name": "g"}
CUT = {"name": "g", "arguments": "{"}
BAD = {"schema": {"type": "nothing"}}
WEB = httpx.Client(verify=False, trust_env=False, timeout=60)


@pytest.fixture(scope="module", autouse=True)
def web() -> Iterator[None]:
    with WEB:
        yield


@pytest.fixture(scope="module")
def made() -> Engine:
    return engine()


@pytest.fixture
def own(made: Engine) -> Iterator[Engine]:
    """Another engine over the same model: what the first one knows of its pages is no longer so."""
    yield engine()
    made.reset()


@pytest.fixture(scope="module")
def alone(made: Engine) -> list[str]:
    """What the engine says to two prompts when it does nothing else."""
    requests = [Request(TEXT.encode(word * 9), 30) for word in "ab"]
    return [one.text for request in requests for one in made.run([request])[0]]


@pytest.fixture(scope="module")
def server(made: Engine, alone: list[str]) -> Iterator[Server]:
    with serving(made) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    web = httpx.Client(verify=False, trust_env=False)
    base = server.address + "/v1"
    with OpenAI(base_url=base, api_key="none", max_retries=0, http_client=web) as client:
        yield client


def post(server: Server, path: str, body: Any, **headers: str) -> httpx.Response:
    content = body if isinstance(body, str | bytes) else json.dumps(body)
    stated = {"content-type": "application/json"} | headers
    return WEB.post(server.address + path, content=content, headers=stated)


# --- answers ----------------------------------------------------------------------------------


def test_a_text_is_continued(client: OpenAI) -> None:
    whole = client.completions.create(prompt="hi", max_tokens=100, **FORCED)
    [choice] = whole.choices
    assert (choice.text, choice.finish_reason, choice.index) == (SAID, "stop", 0)
    assert whole.object == "text_completion" and whole.id.startswith("cmpl-")
    assert whole.usage is not None and whole.usage.prompt_tokens == 1
    assert whole.usage.completion_tokens >= len(TEXT.encode(SAID, special=False))
    assert whole.usage.total_tokens == whole.usage.completion_tokens + 1
    chunks = list(client.completions.create(prompt="hi", max_tokens=100, stream=True, **FORCED))
    assert "".join(chunk.choices[0].text for chunk in chunks) == SAID
    assert [c.choices[0].finish_reason for c in chunks[-2:]] == [None, "stop"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_message_is_answered(client: OpenAI) -> None:
    whole = client.chat.completions.create(messages=HI, **FORCED)
    [choice] = whole.choices
    assert (choice.message.role, choice.message.content) == ("assistant", SAID)
    assert choice.finish_reason == "stop" and whole.object == "chat.completion"
    options: Any = {"stream_options": {"include_usage": True}, "n": 2, **FORCED}
    chunks = list(client.chat.completions.create(messages=HI, stream=True, **options))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].object == "chat.completion.chunk"
    for index in range(2):
        own = [c for chunk in chunks for c in chunk.choices if c.index == index]
        assert "".join(c.delta.content or "" for c in own) == SAID
        assert [c.finish_reason for c in own if c.finish_reason] == ["stop"]
        assert all("\ufffd" not in (c.delta.content or "") for c in own)
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert whole.usage is not None
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


@pytest.mark.slow
def test_many_at_once(server: Server, alone: list[str]) -> None:
    """Whoever asks beside whom, and however: the answer is what the engine says alone."""

    async def ask() -> list[str]:
        web = httpx.AsyncClient(verify=False, trust_env=False)
        base = server.address + "/v1"
        async with AsyncOpenAI(base_url=base, api_key="none", http_client=web) as client:

            async def one(k: int) -> str:
                options: Any = {
                    "model": "tiny",
                    "prompt": "ab"[k % 2] * 9,
                    "max_tokens": 30,
                    "temperature": 0,
                    "extra_body": {"ignore_eos": True},
                }
                if k % 3:
                    made = await client.completions.create(**options)
                    return made.choices[0].text
                stream = await client.completions.create(**options, stream=True)
                return "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(*map(one, range(12)))

    assert asyncio.run(ask()) == [alone[k % 2] for k in range(12)]


def test_a_stop_string_never_leaks(client: OpenAI) -> None:
    stream = client.completions.create(
        prompt="hi", max_tokens=99, stop=["Stop", "zzz"], stream=True, logprobs=1, **FORCED
    )
    chunks = [chunk.choices[0] for chunk in stream]
    said = "".join(chunk.text for chunk in chunks)
    assert said == "Grüße 👋 hi! " and chunks[-1].finish_reason == "stop"
    tokens = [token for c in chunks if c.logprobs for token in c.logprobs.tokens or ()]
    raw = b"".join(
        bytes.fromhex(token[6:].replace("\\x", ""))
        if token.startswith("bytes:")
        else token.encode()
        for token in tokens
    )
    assert raw.decode() == said


@pytest.mark.slow
def test_likelihoods(client: OpenAI) -> None:
    options: Any = {"logprobs": True, "top_logprobs": 2, "temperature": 0, **FORCED}
    made = client.chat.completions.create(messages=HI, **options)
    assert made.choices[0].logprobs is not None
    entries = made.choices[0].logprobs.content or []
    assert b"".join(bytes(entry.bytes or ()) for entry in entries).decode() == SAID
    for entry in entries:
        first, second = (one.logprob for one in entry.top_logprobs)
        assert 0 >= first >= second and entry.logprob <= first
    chunks = client.chat.completions.create(messages=HI, stream=True, **options)
    told = [chunk.choices[0].logprobs for chunk in chunks]
    streamed = [entry for one in told if one is not None for entry in one.content or ()]
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]
    text = client.completions.create(prompt="x", max_tokens=99, logprobs=1, **FORCED).choices[0]
    assert text.logprobs is not None
    assert text.logprobs.text_offset == sorted(text.logprobs.text_offset or ())
    assert "bytes:\\xc3" in (text.logprobs.tokens or ())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompt", "texts", "first"),
    [("hi", 1, "hi"), ([256, 256], 1, "hihi"), (["hi", "ho"], 2, "hi"), ([[256], [1, 2]], 2, "hi")],
)
def test_prompts_of_all_kinds(client: OpenAI, prompt: Any, texts: int, first: str) -> None:
    made = client.completions.create(
        prompt=prompt, max_tokens=99, echo=True, n=2, temperature=0, **FORCED
    )
    assert [choice.index for choice in made.choices] == list(range(2 * texts))
    assert made.choices[0].text == first + SAID


def test_no_tokens_at_all(client: OpenAI) -> None:
    made = client.completions.create(model="tiny", prompt="hi", max_tokens=0, echo=True, n=2)
    assert [(c.text, c.finish_reason) for c in made.choices] == [("hi", "length")] * 2
    assert made.usage is not None and made.usage.completion_tokens == 0


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    found = client.models.retrieve("tiny")
    assert found.owned_by == "linnet" and 0 <= time.time() - found.created < 3600
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_the_page(server: Server) -> None:
    page = WEB.get(server.address + "/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]


# --- forms and tools --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        ({"guided_regex": "[ab]{3}-ü"}, r"[ab]{3}-ü"),
        ({"guided_json": PARAMETERS}, r'{.*"day".*:.*"(mo|tu)".*}'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": PARAMETERS}}},
            r'{.*"day".*:.*"(mo|tu)".*}',
        ),
        ({"response_format": {"type": "json_object"}, "max_tokens": 5}, r"\s*{.*"),
    ],
)
def test_answers_have_the_form_asked_for(client: OpenAI, asked: Any, fits: str) -> None:
    for seed in range(3):
        made = client.chat.completions.create(
            model="tiny", messages=HI, seed=seed, extra_body={"max_tokens": 150} | asked
        )
        content = made.choices[0].message.content
        assert re.fullmatch(fits, content or "", re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "g"}}])
def test_a_tool_must_be_called(client: OpenAI, choice: Any) -> None:
    other = {"type": "function", "function": {"name": "g", "parameters": PARAMETERS}}
    options: Any = {"tools": [TOOL, other], "tool_choice": choice, "seed": 5, "model": "tiny"}
    whole = client.chat.completions.create(messages=HI, **options).choices[0]
    assert whole.finish_reason == "tool_calls" and whole.message.content is None
    [call] = whole.message.tool_calls or []
    assert call.type == "function" and call.id.startswith("call_")
    assert call.function.name in ("f", "g") if choice == "required" else call.function.name == "g"
    assert json.loads(call.function.arguments)["day"] in ("mo", "tu")
    chunks = [
        c.choices[0] for c in client.chat.completions.create(messages=HI, stream=True, **options)
    ]
    assert not any(chunk.delta.content for chunk in chunks)
    assert chunks[-1].finish_reason == "tool_calls"
    [streamed] = [one for chunk in chunks for one in chunk.delta.tool_calls or ()]
    assert streamed.index == 0 and streamed.function is not None
    assert streamed.function.arguments == call.function.arguments


@pytest.mark.slow
def test_a_tool_may_be_called(client: OpenAI) -> None:
    said = 'So: <tool_call>\n{"name": "f", "arguments": {"day": "mo"}}\n</tool_call>'
    for tools in ([TOOL], None):
        options: Any = {"extra_body": {"guided_choice": [said]}, "model": "tiny"}
        options |= {"tools": tools} if tools else {}
        made = client.chat.completions.create(messages=HI, max_tokens=150, **options).choices[0]
        calls = made.message.tool_calls or []
        assert [call.function.name for call in calls] == (["f"] if tools else [])  # type: ignore[union-attr]
        assert made.message.content == ("So: " if tools else said)
        assert made.finish_reason == ("tool_calls" if tools else "stop")


def test_what_a_tool_said_is_read(client: OpenAI) -> None:
    """Messages reach the template: parts as one text, arguments as objects, roles as it knows."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"day": "mo"}'}}
    messages: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
    ]
    said = (
        "<|begin|>system:Be brief.<|end|><|begin|>user:ab<|end|>"
        '<|begin|>assistant:{"day": "mo"}<|end|><|begin|>tool:rain<|end|><|begin|>'
    )
    made = client.chat.completions.create(messages=messages, max_tokens=9, **FORCED)
    assert made.usage is not None
    assert made.usage.prompt_tokens == len(TEXT.encode(said, special=False))
    assert made.choices[0].finish_reason == "length"


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("completions", "{", 400, None),
        ("completions", b'{"prompt": "\xff"}', 400, None),
        ("completions", "[" * 100_000, 400, None),
        ("completions", '{"prompt": "x", "seed": NaN}', 400, None),
        ("completions", "[]", 400, None),
        ("completions", {}, 400, "prompt"),
        ("completions", {"prompt": ""}, 400, "prompt"),
        ("completions", {"prompt": "\ud800"}, 400, "prompt"),
        ("completions", {"prompt": [1 << 20]}, 400, "prompt"),
        ("completions", {"prompt": "x", "model": "other"}, 404, "model"),
        ("completions", {"prompt": "x", "max_tokens": 256}, 400, "max_tokens"),
        ("completions", {"prompt": "x" * 256}, 400, "prompt"),
        ("completions", {"prompt": "x" * 99_999}, 400, "prompt"),
        ("completions", {"prompt": "x", "repetition_penalty": 1e-300}, 400, "repetition_penalty"),
        ("completions", {"prompt": "x", "max_tokens": -1}, 400, "max_tokens"),
        ("completions", {"prompt": "x", "max_tokens": "9"}, 400, "max_tokens"),
        ("completions", {"prompt": "x", "temperature": 2.5}, 400, "temperature"),
        ("completions", {"prompt": "x", "n": 0}, 400, "n"),
        ("completions", {"prompt": "x", "n": True}, 400, "n"),
        ("completions", {"prompt": "x", "best_of": 3}, 400, "best_of"),
        ("completions", {"prompt": "x", "suffix": "y"}, 400, "suffix"),
        ("completions", {"prompt": "x", "echo": True, "logprobs": 1}, 400, "logprobs"),
        ("completions", {"prompt": "x", "stop": ["a"] * 5}, 400, "stop"),
        ("completions", {"prompt": "x", "stop": ""}, 400, "stop"),
        ("completions", {"prompt": "x", "logit_bias": {"a": 1}}, 400, "logit_bias"),
        ("completions", {"prompt": "x", "logit_bias": {"999": 1}}, 400, "logit_bias"),
        ("completions", {"prompt": "x", "stop_token_ids": [999]}, 400, "stop_token_ids"),
        ("completions", {"prompt": "x", "stream_options": {}}, 400, "stream_options"),
        ("completions", {"prompt": ["x"] * 100, "n": 2}, 400, "n"),
        ("chat/completions", {"messages": []}, 400, "messages"),
        ("chat/completions", {"messages": [{"role": "user"}]}, 400, "messages[0]"),
        ("chat/completions", {"messages": [{"role": "x"}]}, 400, "messages[0].role"),
        ("chat/completions", {"messages": HI, "max_tokens": 0}, 400, "max_tokens"),
        ("chat/completions", {"messages": HI, "audio": {}}, 400, "audio"),
        (
            "chat/completions",
            {"messages": HI, "chat_template_kwargs": {"self": 1}},
            400,
            "messages",
        ),
        ("chat/completions", {"messages": HI, "functions": [{}]}, 400, "functions"),
        ("chat/completions", {"messages": HI, "reasoning_effort": "low"}, 400, "reasoning_effort"),
        ("chat/completions", {"messages": HI, "top_logprobs": 1}, 400, "top_logprobs"),
        ("chat/completions", {"messages": HI, "tool_choice": "required"}, 400, "tool_choice"),
        (
            "chat/completions",
            {"messages": HI, "max_tokens": 1, "max_completion_tokens": 2},
            400,
            "max_tokens",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "messages[0].content[0]",
        ),
        (
            "chat/completions",
            {"messages": HI, "response_format": {"type": "json_schema", "json_schema": BAD}},
            400,
            "response_format",
        ),
        ("chat/completions", {"messages": HI, "guided_regex": "("}, 400, "guided_regex"),
        ("chat/completions", {"messages": HI, "guided_json": "{"}, 400, "guided_json"),
        ("chat/completions", {"messages": HI, "tools": [TOOL, TOOL]}, 400, "tools"),
        ("chat/completions", {"messages": HI, "tools": [{"type": "x"}]}, 400, "tools[0].type"),
        (
            "chat/completions",
            {"messages": HI, "tools": [TOOL], "tool_choice": {"type": "function", "function": G}},
            400,
            "tool_choice",
        ),
        (
            "chat/completions",
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"function": G | {"arguments": "{"}}]}
                ]
            },
            400,
            "messages",
        ),
        ("embeddings", {"input": "x"}, 404, None),
        ("nothing", {}, 404, None),
        ("models", {}, 405, None),
    ],
)
def test_what_is_wrong_is_named(
    server: Server, path: str, body: Any, status: int, param: str | None
) -> None:
    made = post(server, f"/v1/{path}", body)
    assert made.status_code == status, made.text
    error = made.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and error["param"] == param
    assert error["message"] and "Traceback" not in error["message"]


def test_limits_are_told(server: Server) -> None:
    message = post(server, "/v1/completions", {"prompt": "x" * 300}).json()["error"]["message"]
    assert "300 tokens" in message and "holds 256 tokens" in message
    message = post(server, "/v1/completions", {"prompt": "x" * 99_999}).json()["error"]["message"]
    assert "99999 characters" in message and "holds 256 tokens" in message


def test_a_body_must_be_json_and_small(server: Server) -> None:
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert post(server, "/v1/completions", '{"prompt": "x"}', **kind).status_code == 415
    assert post(server, "/v1/completions", b" " * (4 << 20) + b"{}").status_code == 413

    def parts() -> Iterator[bytes]:
        for _ in range(80):
            yield b" " * (1 << 16)

    made = WEB.post(
        server.address + "/v1/completions",
        content=parts(),
        headers={"content-type": "application/json"},
    )
    assert made.status_code == 413 and made.json()["error"]["code"] == "body_too_large"


def test_what_is_ignored_is_said(server: Server) -> None:
    made = post(server, "/v1/completions", {"prompt": "x", "store": True, "a\r\nb: ü": 1})
    assert made.status_code == 200
    assert made.headers["x-linnet-ignored"] == "store, a%0D%0Ab%3A%20%C3%BC"


def test_what_other_servers_call_it_names_what_does_it_here(server: Server) -> None:
    made = post(server, "/v1/completions", {"prompt": "x", "structured_outputs": {"regex": "a"}})
    assert made.status_code == 400
    error = made.json()["error"]
    assert error["param"] == "structured_outputs" and "guided_regex" in error["message"]
    # Nothing is asked for, so nothing is refused.
    assert post(server, "/v1/completions", {"prompt": "x", "grammar": ""}).status_code == 200


def test_lengths_are_told_in_plain_words(server: Server) -> None:
    made = post(server, "/v1/completions", {"prompt": "x", "stop": ["a"] * 5})
    said = made.json()["error"]["message"]
    assert said.endswith("it should be a valid string, or have at most 4 items, not 5")


def test_every_request_is_a_line_of_the_log(server: Server) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("linnet.serve")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        body = {"prompt": "x", "max_tokens": 3, "ignore_eos": True}
        assert post(server, "/v1/completions", body).status_code == 200
        assert WEB.get(server.address + "/health").status_code == 200
        assert WEB.get(server.address + "/v1/a%0Ab").status_code == 404
        # A line is written when its answer is out, so an earlier test's may come as well.
        wait_for(lambda: any("404" in line for line in lines))
        wait_for(lambda: any("+ 3 tokens" in line for line in lines))
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    (first,) = (line for line in lines if "+ 3 tokens" in line)
    assert re.fullmatch(
        r"POST /v1/completions: 200, \d+ \+ 3 tokens \(length\), \d+\.\d\d s", first
    )
    (second,) = (line for line in lines if "404" in line)
    assert second.startswith("GET /v1/a%0Ab: 404, ")
    assert not any("/health" in line for line in lines)


# --- a server's life --------------------------------------------------------------------------


LONG = {"prompt": "x", "max_tokens": 100, "ignore_eos": True}


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def open_stream(server: Server, kind: str = "stream", sent: int | None = None) -> socket.socket:
    body = json.dumps(LONG | {"stream": kind == "stream"}).encode()
    host, port = server.address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"connection: close\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(body), body[:sent])
    )
    return connection


def read_all(connection: socket.socket) -> bytes:
    with connection, connection.makefile("rb") as reader:
        return reader.read()


@pytest.mark.parametrize("kind", ["stream", "whole"])
def test_who_leaves_frees_what_was_held(own: Engine, kind: str) -> None:
    slow(own, 0.03)
    with serving(own) as server:
        connection = open_stream(server, kind)
        wait_for(lambda: own.stats.generated_tokens > 2)
        connection.close()
        wait_for(lambda: not own.busy)
        assert own.stats.generated_tokens < 100 and server.worker.open == 0
        assert own.pool.free == own.pool.pages


def test_who_leaves_before_the_request_is_whole_is_no_fault_of_ours(own: Engine) -> None:
    def counted(code: str) -> float:
        return float(server.metrics.responses.labels(code)._value.get())

    with serving(own) as server:
        connection = open_stream(server, sent=-1)
        connection.close()
        wait_for(lambda: counted("499") == 1)
        assert counted("500") == 0


def test_who_does_not_read_holds_each_character_once(own: Engine) -> None:
    async def held() -> list[str]:
        worker = Worker(own, Metrics(own))
        worker.start()
        answers = worker.submit([Request(TEXT.encode("a"), 40, n=2)])
        await answers.accepted()
        wait_for(lambda: answers.closed)
        worker.stop()
        texts = ["", ""]
        async for news in answers:
            for one in news:
                texts[one.choice] += one.text
        assert [one.text for one in answers.completions] == texts
        return texts

    assert all(map(len, asyncio.run(held())))


def test_a_bug_is_told_in_the_shape_of_the_api(own: Engine, monkeypatch: Any) -> None:
    with serving(own) as server:
        monkeypatch.setattr(server.api, "preparer", None)
        made = WEB.get(server.address + "/v1/models")
        assert made.status_code == 500
        assert made.json()["error"]["type"] == "server_error"


@pytest.mark.slow
def test_an_overfull_queue(own: Engine) -> None:
    slow(own, 0.03)
    with serving(own, max_queue=1) as server:
        connections = [open_stream(server) for _ in range(5)]
        wait_for(lambda: server.worker.open == 5)
        made = post(server, "/v1/completions", {"prompt": "x"})
        assert made.status_code == 429 and int(made.headers["retry-after"]) >= 1
        assert made.json()["error"]["code"] == "queue_full"
        for connection in connections:
            connection.close()
        wait_for(lambda: server.worker.open == 0)
        assert post(server, "/v1/completions", {"prompt": "x"}).status_code == 200


def test_a_failed_engine(own: Engine) -> None:
    slow(own, 0.03)
    with serving(own) as server:
        assert WEB.get(server.address + "/health").json() == {"status": "ok"}
        connection = open_stream(server)
        wait_for(lambda: own.stats.generated_tokens > 2)

        def broken(*given: Any) -> Any:
            raise RuntimeError("out of memory")

        own.driver.run = broken  # type: ignore[method-assign]
        said = read_all(connection)
        assert b"data: " in said and b"[DONE]" not in said
        assert b'"error"' in said and b"out of memory" in said
        for made in (
            WEB.get(server.address + "/health"),
            post(server, "/v1/completions", {"prompt": "x"}),
        ):
            assert made.status_code == 503 and "out of memory" in made.json()["error"]["message"]


def test_what_goes_wrong_with_one_request_is_its_own(own: Engine) -> None:
    body = {"prompt": "x", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    with serving(own) as server:
        run, submit = own.driver.run, own.submit

        def nothing(*given: Any) -> Any:
            return run(*given) * math.nan

        def buggy(request: Request) -> Any:
            raise ZeroDivisionError("a bug")

        for name, fault, told in (("run", nothing, "logit"), ("submit", buggy, "a bug")):
            place = own.driver if name == "run" else own
            setattr(place, name, fault)
            made = post(server, "/v1/completions", body)
            assert made.status_code == 500 and told in made.json()["error"]["message"]
            assert made.json()["error"]["type"] == "server_error"
            setattr(place, name, run if name == "run" else submit)
            assert post(server, "/v1/completions", body).status_code == 200


@pytest.mark.slow
def test_a_server_drains(own: Engine) -> None:
    slow(own, 0.02)
    with serving(own) as server:
        connection = open_stream(server)
        wait_for(lambda: own.busy)
        server.shutdown()
        assert post(server, "/v1/completions", {"prompt": "x"}).status_code == 503
        assert WEB.get(server.address + "/health").status_code == 503
        assert b"[DONE]" in read_all(connection)


def test_a_key(own: Engine) -> None:
    with serving(own, api_key=" secret\n") as server:  # as files have them
        assert WEB.get(server.address + "/health").status_code == 200
        for key in ("wrong", "secre"):
            made = post(server, "/v1/completions", {}, authorization=f"Bearer {key}")
            assert made.status_code == 401 and made.json()["error"]["code"] == "invalid_api_key"
        assert WEB.get(server.address + "/v1/models").status_code == 401
        made = post(server, "/v1/completions", {"prompt": "x"}, authorization="Bearer secret")
        assert made.status_code == 200


@pytest.mark.slow
def test_other_origins(own: Engine) -> None:
    asks = {"origin": "http://a.example", "access-control-request-method": "POST"}
    with serving(own, cors=("http://a.example",)) as server:
        made = WEB.options(server.address + "/v1/completions", headers=asks)
        assert made.headers["access-control-allow-origin"] == "http://a.example"
    with serving(own) as server:
        made = WEB.options(server.address + "/v1/completions", headers=asks)
        assert "access-control-allow-origin" not in made.headers


@pytest.mark.slow
def test_time_is_limited(own: Engine) -> None:
    slow(own, 0.01)
    with serving(own, limits=Limits(sending=0.2, seconds=0.2)) as server:
        made = post(server, "/v1/completions", LONG)
        assert made.status_code == 504
        assert b"took more than" in read_all(open_stream(server))
        wait_for(lambda: not own.busy)
        host, port = server.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as late:
            late.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n"
                b"content-type: application/json\r\n\r\n{"
            )
            assert b" 408 " in late.recv(100)


def test_counts(server: Server, client: OpenAI) -> None:
    client.completions.create(prompt="hi", max_tokens=100, **FORCED)
    lines = WEB.get(server.address + "/metrics").text.splitlines()
    counts = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"
    }
    assert counts['linnet_http_responses_total{code="200"}'] >= 1
    assert counts["linnet_generated_tokens_total"] >= 20
    assert counts["linnet_time_to_first_token_seconds_count"] >= 1
    assert counts["linnet_time_between_tokens_seconds_count"] >= 20
    assert counts["linnet_request_seconds_count"] >= 1
    assert counts["linnet_cache_pages"] == 64


@pytest.mark.slow
def test_whatever_the_document_allows(made: Engine, tmp_path: Path) -> None:
    """schemathesis asks all that the server's own OpenAPI document allows, and what it forbids.

    Fields may agree with the document and not with each other: that one is a 400 is no failure.
    """
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        "run",
        "openapi.json",
        *("--phases", "coverage,fuzzing", "--max-examples", "10", "--seed", "1"),
        *("--exclude-checks", "positive_data_acceptance"),
        *("--request-timeout", "120", "--no-color"),
    ]
    with serving(engine(max_len=40)) as server:
        command[2] = f"{server.address}/openapi.json"
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    made.reset()
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr


def test_an_address_that_cannot_be_had(server: Server) -> None:
    port = int(server.address.rpartition(":")[2])
    for host, number, problem in [
        ("127.0.0.1", port, "in use"),
        ("127.0.0.1", 70000, "65535"),
        ("no.such.host.invalid", 0, "cannot listen"),
        ("a..b", 0, "cannot listen"),
    ]:
        with pytest.raises(LinnetError, match=problem):
            bind(host, number)


def test_pieces_are_sent_at_once(server: Server) -> None:
    """asyncio turns the wait for more off where it knows that a socket speaks TCP."""
    assert server.socket.proto == socket.IPPROTO_TCP
