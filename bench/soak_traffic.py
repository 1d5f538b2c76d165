"""What the clients of a soak ask, and what they must be told."""

from __future__ import annotations

import http.client
import json
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NEAR = 1e-4
"""Two likeliest tokens whose log-probabilities are this near may change places."""

TEXT = (
    "the weather on the coast turns before the evening and the boats come home with little fish "
    "while the lamps along the harbour are lit one after another by a boy who counts them aloud"
)
BODY = "application/json"


class Wrong(Exception):
    """The server did not do what it should; says what."""


@dataclass(slots=True)
class Case:
    """A prompt, and its greedy answer alone: the text, and where near ties are in it.

    `ties` has the places of characters from which on another answer is as good.
    """

    prompt: str
    new: int
    text: str = ""
    ties: tuple[int, ...] = ()

    def check(self, found: str) -> None:
        """Raises Wrong where the answer is not the one alone, up to a near tie."""
        if found == self.text:
            return
        pairs = enumerate(zip(found, self.text, strict=False))
        at = next((k for k, (a, b) in pairs if a != b), min(len(found), len(self.text)))
        if not any(place <= at for place in self.ties):
            raise Wrong(
                f"{self.prompt[:40]!r} is answered with {found!r}, alone with {self.text!r}"
            )


def cases(letters: int, new: int) -> list[Case]:
    """Prompts of one word up to so many letters, some of which begin alike."""
    draw = random.Random(7)
    lengths = [letters // 40, letters // 20, letters // 10, letters // 4, letters // 2, letters]
    found = [Case(_words(draw, length), new) for length in lengths]
    start = _words(draw, letters // 2)
    return found + [Case(f"{start} {end}", new) for end in ("one", "two", "three")]


def letters_of(api: Api, tokens: int) -> int:
    """How many letters of text such as ours fit into so many tokens, with some to spare."""
    usage = api.good("/v1/completions", {"prompt": TEXT, "max_tokens": 1})["usage"]
    return int(0.9 * tokens * len(TEXT) / usage["prompt_tokens"])


def _words(draw: random.Random, letters: int) -> str:
    words = TEXT.split()
    text = draw.choice(words)
    while len(text) < letters:
        text += " " + draw.choice(words)
    return text[: max(letters, 1)].strip()


class Api:
    """A server on this machine, asked by many threads."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = threading.Lock()
        self.statuses: Counter[int] = Counter()

    def _open(self, method: str, path: str, body: Any = None) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
        connection.request(method, path, raw, {"Content-Type": BODY})
        return connection

    def _answer(self, connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
        response = connection.getresponse()
        with self._lock:
            self.statuses[response.status] += 1
        return response

    def ask(self, path: str, body: Any = None, method: str = "POST") -> tuple[int, Any]:
        """The status and the document of an answer."""
        connection = self._open(method, path, body)
        try:
            response = self._answer(connection)
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def good(self, path: str, body: Any) -> Any:
        """The document of an answer that must be one."""
        status, found = self.ask(path, body)
        if status != 200:
            raise Wrong(f"{path} answered {status}: {found}")
        return found

    def stream(self, path: str, body: Any) -> Iterator[Any]:
        """The events of a stream, which must end as it should; closed early, the client is gone."""
        connection = self._open("POST", path, {**body, "stream": True})
        try:
            response = self._answer(connection)
            if response.status != 200:
                raise Wrong(f"{path} answered {response.status}: {response.read()!r:.200}")
            for line in response:
                if line == b"data: [DONE]\n":
                    return
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
            raise Wrong(f"the stream of {path} ended without [DONE]")
        finally:
            connection.close()

    def leave(self, path: str, body: Any, after: Callable[[], None]) -> None:
        """A client that asks, and goes before the answer."""
        connection = self._open("POST", path, body)
        after()
        connection.close()

    def greedy(self, case: Case) -> str:
        """The answer to a case."""
        return str(self.good("/v1/completions", asked(case))["choices"][0]["text"])

    def metrics(self) -> dict[str, float]:
        """What the server counts."""
        connection = self._open("GET", "/metrics")
        try:
            text = self._answer(connection).read().decode()
        finally:
            connection.close()
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}


def asked(case: Case, **more: Any) -> dict[str, Any]:
    """A greedy request."""
    return {"prompt": case.prompt, "max_tokens": case.new, "temperature": 0, **more}


def reference(api: Api, case: Case) -> None:
    """The case has the answer that the server gives when it does nothing else."""
    (choice,) = api.good("/v1/completions", asked(case, logprobs=2))["choices"]
    told = choice["logprobs"]
    case.text = choice["text"]
    ties: list[int] = []
    for at, best in zip(told["text_offset"], told["top_logprobs"], strict=True):
        first, second = sorted(best.values(), reverse=True)[:2] if len(best) > 1 else (0.0, -1.0)
        if first - second <= NEAR:
            ties.append(at - told["text_offset"][0])
    case.ties = tuple(ties)
    case.check(api.greedy(case))


# ---------------------------------------------------------------- what is asked


def whole(api: Api, draw: random.Random, every: list[Case]) -> None:
    case = draw.choice(every)
    case.check(api.greedy(case))


def streamed(api: Api, draw: random.Random, every: list[Case]) -> None:
    case, text, usage = draw.choice(every), "", None
    options = {"stream_options": {"include_usage": True}}
    for event in api.stream("/v1/completions", asked(case, **options)):
        text += "".join(choice["text"] for choice in event["choices"])
        usage = event.get("usage") or usage
    case.check(text)
    if "\ufffd" in text and "\ufffd" not in case.text:
        raise Wrong(f"a stream has broken text: {text!r}")
    if usage is None or not 0 < usage["completion_tokens"] <= case.new:
        raise Wrong(f"the usage of a stream is {usage}")


def several(api: Api, draw: random.Random, every: list[Case]) -> None:
    case = draw.choice(every)
    found = api.good("/v1/completions", asked(case, n=3))["choices"]
    if [choice["index"] for choice in found] != [0, 1, 2]:
        raise Wrong(f"n=3 has the choices {[choice['index'] for choice in found]}")
    for choice in found:
        case.check(choice["text"])


def stopped(api: Api, draw: random.Random, every: list[Case]) -> None:
    """A stop string of two characters somewhere in the answer: what is before it is the answer."""
    case = draw.choice([one for one in every if len(one.text) > 4])
    at = draw.randrange(1, len(case.text) - 2)
    stop = case.text[at : at + 2]
    (choice,) = api.good("/v1/completions", asked(case, stop=[stop]))["choices"]
    if stop in choice["text"]:
        raise Wrong(f"the answer has the stop string {stop!r}: {choice['text']!r}")
    wanted = case.text[: case.text.index(stop)]
    Case(case.prompt, case.new, wanted, case.ties).check(choice["text"])


def sampled(api: Api, draw: random.Random, every: list[Case]) -> None:
    """A conversation, sampled in some way or other."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": draw.choice(every[:4]).prompt}],
        "max_completion_tokens": draw.randrange(1, 24),
        "temperature": draw.choice([0.0, 0.7, 1.3]),
        "top_p": draw.choice([1.0, 0.9]),
        "seed": draw.randrange(1000),
        "frequency_penalty": draw.choice([0.0, 0.5]),
    }
    reason = None
    for event in api.stream("/v1/chat/completions", body):
        for choice in event["choices"]:
            reason = choice["finish_reason"] or reason
    if reason not in ("stop", "length"):
        raise Wrong(f"a conversation ended with {reason!r}")


def structured(api: Api, draw: random.Random, every: list[Case]) -> None:
    """An answer that must have a form has it."""
    case = draw.choice(every[:4])
    form: Mapping[str, Any]
    if draw.random() < 0.5:
        form, pattern = {"guided_choice": ["yes", "no", "perhaps"]}, "yes|no|perhaps"
    else:
        form, pattern = {"guided_regex": "[a-f]{2}-[0-9]{3}"}, "[a-f]{2}-[0-9]{3}"
    body = asked(case, **form) | {"temperature": 1.0, "seed": draw.randrange(1000)}
    text = api.good("/v1/completions", body)["choices"][0]["text"]
    if not re.fullmatch(pattern, text):
        raise Wrong(f"the answer {text!r} has not the form {pattern}")


def gone_in_a_stream(api: Api, draw: random.Random, every: list[Case]) -> None:
    """A client goes after a few events of a long answer."""
    body = {**asked(draw.choice(every[:6])), "ignore_eos": True}
    events = api.stream("/v1/completions", body)
    for _ in range(draw.randrange(1, 4)):
        next(events, None)
    events.close()  # type: ignore[attr-defined]


def gone_at_once(api: Api, draw: random.Random, every: list[Case]) -> None:
    """A client goes before it hears anything."""
    pause = draw.choice([0.0, 0.05, 0.3])
    api.leave("/v1/completions", asked(draw.choice(every)), lambda: threading.Event().wait(pause))


def refused(api: Api, draw: random.Random, every: list[Case]) -> None:
    """Mistakes of all kinds are answered with the status that says so."""
    path, good = "/v1/completions", asked(every[0])
    chat = "/v1/chat/completions"
    mistakes: list[tuple[str, Any, int]] = [
        (path, b"{", 400),
        (path, b"[1]", 400),
        (path, {**good, "temperature": -1}, 400),
        (path, {**good, "max_tokens": "many"}, 400),
        (path, {**good, "n": 0}, 400),
        (path, {**good, "suffix": "after"}, 400),
        (path, {**good, "prompt": "long " * 9000}, 400),
        (path, {**good, "prompt": [1 << 30]}, 400),
        (path, {**good, "model": "another"}, 404),
        (path, {"max_tokens": 3}, 400),
        (chat, {"messages": []}, 400),
        (chat, {"messages": [{"role": "nobody", "content": "x"}]}, 400),
        ("/v1/embeddings", {"input": "x"}, 404),
        ("/v1/nothing", {}, 404),
    ]
    path, body, wanted = draw.choice(mistakes)
    status, found = api.ask(path, body)
    if status != wanted or not found["error"]["message"]:
        raise Wrong(f"{path} with {body!r:.80} answered {status}, not {wanted}: {found}")


def looked_at(api: Api, draw: random.Random, every: list[Case]) -> None:
    """What is asked beside answers."""
    for path in ("/health", "/v1/models"):
        status, found = api.ask(path, method="GET")
        if status != 200:
            raise Wrong(f"{path} answered {status}: {found}")
    if "linnet_running" not in api.metrics():
        raise Wrong("/metrics does not count what is running")


Kind = Callable[[Api, random.Random, list[Case]], None]
KINDS: dict[str, tuple[int, Kind]] = {
    "whole": (4, whole),
    "streamed": (4, streamed),
    "several": (2, several),
    "stopped": (2, stopped),
    "sampled": (3, sampled),
    "structured": (2, structured),
    "gone in a stream": (3, gone_in_a_stream),
    "gone at once": (2, gone_at_once),
    "refused": (4, refused),
    "looked at": (1, looked_at),
}
"""How often each is asked, and what it is."""
