"""From the body of a request to what the engine is asked, and how its answers are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from linnet.diagnostics import LinnetError
from linnet.serve.errors import ApiError, refused
from linnet.serve.grammar import Grammars
from linnet.serve.pieces import Likelihoods, Pieces
from linnet.serve.request import Grammar, Request, RequestError
from linnet.serve.schema import Body, ChatBody, CompletionBody, NamedTool
from linnet.serve.stream import ChatWriter, Frame, Growth, TextWriter, Writer
from linnet.serve.text import ChatError, Text
from linnet.serve.tools import Format, format_of, marks_of, schema_of_calls
from linnet.serve.worker import NAMES

DEFAULT_TOKENS = 16
_SHRINKING = 4
"""A tokenizer may make one of so many characters before it looks for tokens."""
RESERVED = ("messages", "tools")


@dataclass(frozen=True, slots=True)
class Plan:
    """Requests, a writer for each answer, and what is around the answers.

    Without requests nothing is generated: there are as many answers as writers, and they are empty.
    """

    frame: Frame
    requests: list[Request]
    writers: list[Writer]
    prompts: list[list[int]]
    stream: bool
    include_usage: bool


@dataclass(frozen=True, slots=True)
class Preparer:
    """What bodies are turned into requests with: a model's text and limits."""

    text: Text
    name: str
    max_len: int
    pieces: Pieces
    grammars: Grammars
    format: Format | None
    marks: Mapping[int, str] = field(default_factory=dict[int, str])

    @staticmethod
    def of(text: Text, name: str, max_len: int) -> Preparer:
        """All of it for a text."""
        found = format_of(text)
        marks = marks_of(text, found)
        return Preparer(text, name, max_len, Pieces(text), Grammars(text), found, marks)

    # ------------------------------------------------ texts

    def completion(self, body: CompletionBody) -> Plan:
        """What /v1/completions is asked for."""
        self._named(body)
        prompts = [self._ids(prompt, body) for prompt in body.prompts]
        wanted = DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
        frame = Frame("cmpl", self.name)
        n = body.n or 1
        writers: list[Writer] = []
        for prompt, ids in zip(body.prompts, prompts):
            echo = ""
            if body.echo:
                echo = prompt if isinstance(prompt, str) else self.text.decode(ids)
            for _ in range(n):
                growth = self._growth(body.logprobs is not None)
                writers.append(TextWriter(len(writers), growth, self.pieces, echo))
        requests: list[Request] = []
        for ids in prompts if wanted else ():
            room = self._room(ids, body.max_tokens, wanted, "prompt")
            requests.append(self._request(body, ids, room, body.logprobs))
        return Plan(frame, requests, writers, prompts, bool(body.stream), _usage(body))

    def _ids(self, prompt: str | list[int], body: CompletionBody) -> list[int]:
        if isinstance(prompt, str):
            return self._encode(prompt, "prompt")
        size = self.text.vocab or self.pieces.size
        for token in prompt:
            if token >= size:
                raise ApiError(
                    400, f"prompt has the id {token}; ids of tokens are below {size}", "prompt"
                )
        return list(prompt)

    # ------------------------------------------------ conversations

    def chat(self, body: ChatBody) -> Plan:
        """What /v1/chat/completions is asked for."""
        self._named(body)
        tools = self._tools(body)
        rendered = self._rendered(body, tools)
        ids = self._encode(rendered, "messages", special=False)
        parser: Callable[[], Any] | None = None
        grammar: Grammar | None = None
        found = self.format
        known = [tool["name"] for tool in tools]
        if found is not None and (tools or found.always):
            parser = lambda: found.parser(known)  # noqa: E731
        if tools and found is not None and body.tool_choice not in (None, "auto"):
            ids, grammar, parser = self._forced(body, tools, found, ids)
        given = body.max_completion_tokens or body.max_tokens
        alternatives = (body.top_logprobs or 0) if body.logprobs else None
        room = self._room(ids, given, given or self.max_len, "messages")
        request = self._request(body, ids, room, alternatives, grammar)
        writers: list[Writer] = [
            ChatWriter(
                index,
                self._growth(alternatives is not None),
                self.pieces,
                parser() if parser is not None else None,
                self.marks,
                1 if body.parallel_tool_calls is False else None,
            )
            for index in range(body.n or 1)
        ]
        frame = Frame("chatcmpl", self.name)
        return Plan(frame, [request], writers, [ids], bool(body.stream), _usage(body))

    def _tools(self, body: ChatBody) -> list[dict[str, Any]]:
        """The functions that the model is told of."""
        if not body.tools or body.tool_choice == "none":
            return []
        if self.format is None:
            raise ApiError(
                400,
                f"the chat template of {self.name} takes no tools",
                "tools",
                "unsupported_parameter",
            )
        return [tool.function.model_dump(exclude_none=True) for tool in body.tools]

    def _rendered(self, body: ChatBody, tools: Sequence[Mapping[str, Any]]) -> str:
        """The conversation as the model reads it."""
        more = dict(body.chat_template_kwargs or {})
        template = self.text.template or ""
        for name in RESERVED:
            if name in more:
                raise ApiError(
                    400, f"chat_template_kwargs: {name} is a field", "chat_template_kwargs"
                )
        if body.reasoning_effort is not None:
            if "reasoning_effort" not in template:
                raise ApiError(
                    400,
                    f"reasoning_effort is not supported by {self.name}",
                    "reasoning_effort",
                    "unsupported_parameter",
                )
            more.setdefault("reasoning_effort", body.reasoning_effort)
        if tools:
            more["tools"] = [{"type": "function", "function": tool} for tool in tools]
        prompt = more.pop("add_generation_prompt", body.add_generation_prompt)
        messages = [_message(one, "developer" in template) for one in body.messages]
        try:
            return self.text.render_chat(
                messages, add_generation_prompt=prompt is not False, **more
            )
        except ChatError as error:
            raise ApiError(400, str(error), "messages", "invalid_value") from None
        except LinnetError as error:
            raise ApiError(400, f"{error}; use /v1/completions", "messages") from None

    def _forced(
        self, body: ChatBody, tools: list[dict[str, Any]], found: Format, ids: list[int]
    ) -> tuple[list[int], Grammar, Callable[[], Any]]:
        """The prompt with the beginning of a call, and what must follow."""
        if _constrained(body):
            raise ApiError(400, "tool_choice: the answer is a call, so it has no format of its own",
                           "tool_choice")  # fmt: skip
        if isinstance(body.tool_choice, NamedTool):
            chosen = body.tool_choice.function.name
            tools = [tool for tool in tools if tool["name"] == chosen]
        opening = self.text.encode(found.opening, special=False) if found.opening else []
        grammar = self._grammar(
            "tools", self.grammars.json_schema, schema_of_calls(tools, found.key)
        )
        return ids + opening, grammar, found.forced

    # ------------------------------------------------ both

    def _named(self, body: Body) -> None:
        if body.model is not None and body.model != self.name:
            raise ApiError(
                404,
                f"there is no model {body.model!r:.100}; this server has {self.name!r}",
                "model",
                "model_not_found",
            )

    def _encode(self, text: str, field: str, special: bool = True) -> list[int]:
        """The text as ids; raises ApiError where it is none, or so long that nobody need count."""
        longest = self.pieces.longest
        if longest is not None and len(text) > _SHRINKING * longest * self.max_len:
            raise ApiError(
                400,
                f"the prompt is {len(text)} characters long, and the context holds {self.max_len} "
                "tokens, prompt and answer together: shorten it",
                field,
                "context_length_exceeded",
            )
        try:
            return self.text.encode(text, special=special)
        except LinnetError as error:
            raise ApiError(400, str(error), field, "invalid_value") from None

    def _growth(self, logprobs: bool) -> Growth:
        return Growth(Likelihoods(self.text.stream()) if logprobs else None)

    def _room(self, ids: Sequence[int], given: int | None, wanted: int, field: str) -> int:
        """How many tokens may be generated; raises ApiError where not even one can, or not as many
        as the request states."""
        room = self.max_len - len(ids)
        limits = f"the context holds {self.max_len} tokens, prompt and answer together"
        if room < 1:
            raise ApiError(
                400,
                f"the prompt is {len(ids)} tokens long, and {limits}: shorten it to "
                f"{self.max_len - 1} or fewer",
                field,
                "context_length_exceeded",
            )
        if given is not None and given > room:
            raise ApiError(
                400,
                f"{given} tokens are asked for after a prompt of {len(ids)}, and {limits}: ask for "
                f"{room} or fewer",
                "max_tokens",
                "context_length_exceeded",
            )
        return min(wanted, room)

    def _request(
        self,
        body: Body,
        ids: list[int],
        room: int,
        logprobs: int | None,
        grammar: Grammar | None = None,
    ) -> Request:
        bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
        size = self.text.vocab or self.pieces.size
        for token in (*bias, *(body.stop_token_ids or ())):
            if token >= size:
                field = "logit_bias" if token in bias else "stop_token_ids"
                raise ApiError(400, f"{field}: token {token} is not below {size}", field)
        request = Request(
            prompt=ids,
            max_new_tokens=room,
            eos=frozenset() if body.ignore_eos else self.text.eos,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_k=max(body.top_k or 0, 0),
            top_p=1.0 if body.top_p is None else max(body.top_p, 1e-6),
            seed=body.seed,
            logprobs=logprobs,
            min_p=body.min_p or 0.0,
            repetition_penalty=body.repetition_penalty or 1.0,
            presence_penalty=body.presence_penalty or 0.0,
            frequency_penalty=body.frequency_penalty or 0.0,
            logit_bias=bias or None,
            stop=body.stops,
            stop_ids=tuple(body.stop_token_ids or ()),
            n=body.n or 1,
            grammar=grammar or self._wanted(body),
        )
        try:
            request.sampling(0).check()
        except RequestError as error:
            raise refused(error, NAMES) from None
        return request

    def _wanted(self, body: Body) -> Grammar | None:
        """The grammar that the body asks for, in one of its ways."""
        form = body.response_format
        if form is not None and form.type == "json_object":
            return self._grammar("response_format", self.grammars.json_object)
        if form is not None and form.json_schema is not None:
            schema = form.json_schema.schema_
            return self._grammar("response_format", self.grammars.json_schema, schema)
        for name, make in (
            ("guided_json", self.grammars.json_schema),
            ("guided_regex", self.grammars.regex),
            ("guided_choice", self.grammars.choice),
        ):
            stated = getattr(body, name)
            if stated is not None:
                return self._grammar(name, make, stated)
        return None

    def _grammar(self, name: str, make: Callable[..., Grammar], *stated: Any) -> Grammar:
        try:
            return make(*stated, name)
        except LinnetError as error:
            raise ApiError(400, str(error), name, "invalid_value") from None


def _constrained(body: Body) -> bool:
    form = body.response_format
    asked = (body.guided_json, body.guided_regex, body.guided_choice)
    return (form is not None and form.type != "text") or any(one is not None for one in asked)


def _usage(body: Body) -> bool:
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def _message(message: Any, developers: bool) -> dict[str, Any]:
    """A message as templates expect it: its content one text, arguments of calls as objects."""
    role = message.role
    if role == "developer" and not developers:
        role = "system"
    made: dict[str, Any] = {"role": role, "content": message.words}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if getattr(message, name) is not None:
            made[name] = getattr(message, name)
    if message.tool_calls:
        made["tool_calls"] = [_made_call(call) for call in message.tool_calls]
    return made


def _made_call(call: Any) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        raise ApiError(
            400,
            f"the arguments of a call are no JSON: {call.function.arguments!r:.60}",
            "messages",
            "invalid_value",
        ) from None
    made = {"type": "function", "function": {"name": call.function.name, "arguments": arguments}}
    return made if call.id is None else {"id": call.id, **made}
