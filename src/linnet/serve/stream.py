"""An answer as OpenAI's API gives it: chunk by chunk, or whole as all its chunks together."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from linnet import __version__
from linnet.serve.objects import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    ChunkChoice,
    Delta,
    Finish,
    TextChoice,
    TextCompletion,
    TextLogprobs,
    TokenLogprob,
    ToolCallDelta,
    ToolCallObject,
    Usage,
)
from linnet.serve.pieces import Entry, Likelihoods, Pieces
from linnet.serve.request import Completion
from linnet.serve.tools import Called, Parser, Said, Thought
from linnet.serve.worker import News

Chunk = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Frame:
    """What all objects of one answer have in common."""

    prefix: str
    model: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def around(self, kind: str, choices: Sequence[Any], **more: Any) -> Chunk:
        """The object with these choices."""
        return {
            "id": f"{self.prefix}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"linnet-{__version__}",
            "choices": choices,
            **more,
        }


class Writer(Protocol):
    """What becomes of one answer: choices of chunks, as they can be sent."""

    def start(self) -> list[Any]: ...
    def push(self, news: News, completion: Completion) -> list[Any]: ...


@dataclass(slots=True)
class Growth:
    """What of an answer has been given out, and what its new tokens are worth."""

    likelihoods: Likelihoods | None
    sent: int = 0
    number: int = 0

    def push(self, news: News, completion: Completion) -> str:
        """The text that is new."""
        if news.token is not None:
            if self.likelihoods is not None:
                self.likelihoods.push(completion, self.number)
            self.number += 1
        self.sent += len(news.text)
        return news.text

    def entries(self) -> list[Entry] | None:
        """Those of the tokens whose text is given out now."""
        return None if self.likelihoods is None else self.likelihoods.take(self.sent)


def finish_reason(completion: Completion) -> Finish:
    """Why the answer ended, in OpenAI's words."""
    return "length" if completion.reason in ("length", "cache") else "stop"


def usage(prompts: Sequence[Sequence[int]], completions: Sequence[Completion]) -> Usage:
    """How many tokens were read and made."""
    read = sum(map(len, prompts))
    made = sum(len(completion.tokens) for completion in completions)
    cached = sum(completion.cached for completion in completions if completion.choice == 0)
    return {
        "prompt_tokens": read,
        "completion_tokens": made,
        "total_tokens": read + made,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


# --- texts ------------------------------------------------------------------------------------


@dataclass(slots=True)
class TextWriter:
    """An answer of /v1/completions, after the prompt where that is echoed."""

    index: int
    growth: Growth
    pieces: Pieces
    echo: str = ""

    def start(self) -> list[TextChoice]:
        return [self._choice(self.echo, None)] if self.echo else []

    def push(self, news: News, completion: Completion) -> list[TextChoice]:
        new = self.growth.push(news, completion)
        finish = finish_reason(completion) if news.token is None else None
        return [self._choice(new, finish)] if new or finish else []

    def _choice(self, text: str, finish: Finish | None) -> TextChoice:
        entries = self.growth.entries()
        logprobs = None if entries is None else self._logprobs(entries)
        return {"index": self.index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, entries: Sequence[Entry]) -> TextLogprobs:
        shown = self.pieces.shown
        return {
            "tokens": [shown(entry.token) for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [
                {shown(token): logprob for token, logprob in entry.top} for entry in entries
            ],
            "text_offset": [entry.offset for entry in entries],
        }


def whole_texts(frame: Frame, chunks: Iterable[TextChoice], used: Usage) -> TextCompletion:
    """The document that the chunks' choices are together."""
    choices: dict[int, TextChoice] = {}
    for new in chunks:
        old = choices.setdefault(new["index"], new)
        if old is new:
            continue
        old["text"] += new["text"]
        old["finish_reason"] = new["finish_reason"]
        if old["logprobs"] is not None and new["logprobs"] is not None:
            for name, values in old["logprobs"].items():
                cast(list[Any], values).extend(cast(Any, new["logprobs"])[name])
    ordered = [choices[index] for index in sorted(choices)]
    return cast(TextCompletion, frame.around("text_completion", ordered, usage=used))


# --- messages ---------------------------------------------------------------------------------


@dataclass(slots=True)
class ChatWriter:
    """An answer of /v1/chat/completions; `parser` finds the calls of tools in it."""

    index: int
    growth: Growth
    pieces: Pieces
    parser: Parser | None = None
    marks: Mapping[int, str] = field(default_factory=dict[int, str])
    most: int | None = None  # calls that may be made
    calls: int = 0

    def start(self) -> list[ChunkChoice]:
        return [self._choice({"role": "assistant", "content": "", "refusal": None}, None)]

    def push(self, news: News, completion: Completion) -> list[ChunkChoice]:
        deltas = list(self._deltas(news, self.growth.push(news, completion)))
        chunks = [self._choice(delta, self._entries()) for delta in deltas]
        if news.token is None:
            finish = finish_reason(completion)
            if self.calls and finish == "stop":
                finish = "tool_calls"
            chunks.append(self._choice({}, self._entries(), finish))
        return chunks

    def _deltas(self, news: News, new: str) -> Iterable[Delta]:
        if self.parser is None:
            if new:
                yield {"content": new}
            return
        if news.token is not None:
            new += self.marks.get(news.token, "")
        parts = self.parser.feed(new) if new else []
        if news.token is None:
            parts = [*parts, *self.parser.finish()]
        for part in parts:
            match part:
                case Said(text):
                    yield {"content": text}
                case Thought(text):
                    yield {"reasoning_content": text}
                case Called(name, arguments) if self.most is None or self.calls < self.most:
                    yield {"tool_calls": [self._call(name, arguments)]}

    def _call(self, name: str, arguments: str) -> ToolCallDelta:
        self.calls += 1
        return {
            "index": self.calls - 1,
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def _entries(self) -> ChatLogprobs | None:
        entries = self.growth.entries()
        if entries is None:
            return None
        return {"content": [self._logprob(entry) for entry in entries], "refusal": None}

    def _logprob(self, entry: Entry) -> TokenLogprob:
        def one(token: int, logprob: float) -> Any:
            raw = self.pieces.raw(token)
            return {"token": self.pieces.shown(token), "logprob": logprob, "bytes": list(raw)}

        top = [one(token, logprob) for token, logprob in entry.top]
        return cast(TokenLogprob, one(entry.token, entry.logprob) | {"top_logprobs": top})

    def _choice(
        self, delta: Delta, logprobs: ChatLogprobs | None, finish: Finish | None = None
    ) -> ChunkChoice:
        return {
            "index": self.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish,
        }


def whole_chats(frame: Frame, chunks: Iterable[ChunkChoice], used: Usage) -> ChatCompletion:
    """The document that the chunks' choices are together."""
    choices: dict[int, ChatChoice] = {}
    for new in chunks:
        choice = choices.setdefault(new["index"], _empty(new["index"]))
        _add(choice["message"], new["delta"])
        choice["finish_reason"] = new["finish_reason"]
        logprobs = new["logprobs"]
        if logprobs is not None:
            held = choice["logprobs"] = choice["logprobs"] or {"content": [], "refusal": None}
            held["content"] = (held["content"] or []) + (logprobs["content"] or [])
    ordered = [choices[index] for index in sorted(choices)]
    return cast(ChatCompletion, frame.around("chat.completion", ordered, usage=used))


def _empty(index: int) -> ChatChoice:
    message: AssistantMessage = {"role": "assistant", "content": "", "refusal": None}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": None}


def _add(message: AssistantMessage, delta: Delta) -> None:
    message["content"] = (message["content"] or "") + (delta.get("content") or "")
    if "reasoning_content" in delta:
        message["reasoning_content"] = (
            message.get("reasoning_content", "") + delta["reasoning_content"]
        )
    if "tool_calls" in delta:
        calls = message.setdefault("tool_calls", [])
        for call in delta["tool_calls"]:
            one: ToolCallObject = {k: v for k, v in call.items() if k != "index"}  # type: ignore[assignment]
            calls.append(one)
    if message.get("tool_calls") and not message["content"]:
        message["content"] = None
