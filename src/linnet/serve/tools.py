"""Calls of tools in an answer's text, in the formats that chat templates teach.

A parser is fed the text of an answer as it grows. What it gives back is text to show, text that the
model thought, and whole calls; nothing of a tag is ever shown, also where it comes in pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from linnet.serve.text import Text


@dataclass(frozen=True, slots=True)
class Said:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Text that comes before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A tool's name, and its arguments as JSON text."""

    name: str
    arguments: str


Found = Said | Thought | Called


class Parser(Protocol):
    """Finds the calls in one answer."""

    def feed(self, text: str) -> list[Found]: ...
    def finish(self) -> list[Found]: ...


@dataclass(frozen=True, slots=True)
class Format:
    """How a checkpoint writes calls.

    `marks` are tokens that the decoded text leaves out and a parser must see. `opening` is what
    comes before a call that the model is made to make, `key` what its arguments stand under.
    """

    name: str
    marks: tuple[str, ...] = ()
    opening: str = ""
    key: str = "arguments"
    always: bool = False  # answers have its marks whether there are tools or not

    def forced(self) -> Parser:
        """A parser for an answer that is a call, whose opening stands in the prompt."""
        return Whole()

    def parser(self, known: Iterable[str]) -> Parser:
        """A parser for one answer, which may call the tools of these names."""
        match self.name:
            case "hermes":
                return Tagged("<tool_call>", "</tool_call>")
            case "phi":
                return Tagged("<|tool_call|>", "<|/tool_call|>")
            case "mistral":
                return Tagged("[TOOL_CALLS]", None)
            case "harmony":
                return Harmony()
            case _:
                return Bare(frozenset(known))


HERMES = Format("hermes", opening="<tool_call>\n")
PHI = Format("phi", ("<|tool_call|>", "<|/tool_call|>"), "<|tool_call|>[")
MISTRAL = Format("mistral", ("[TOOL_CALLS]", "[ARGS]"), "[TOOL_CALLS] [")
LLAMA = Format("llama", ("<|python_tag|>",), key="parameters")
HARMONY = Format(
    "harmony",
    (
        "<|start|>",
        "<|channel|>",
        "<|constrain|>",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
    ),
    always=True,
)


def format_of(text: Text) -> Format | None:
    """How the checkpoint's template writes calls; None where it takes no tools."""
    template = text.template or ""
    if "<|channel|>" in template and "<|message|>" in template:
        return HARMONY
    if not re.search(r"\btools\b", template):
        return None
    for tag, found in (("<tool_call>", HERMES), ("[TOOL_CALLS]", MISTRAL), ("<|tool_call|>", PHI)):
        if tag in template:
            return found
    return LLAMA


# --- parsers ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Tagged:
    """Calls as JSON after an opening tag, up to a closing tag or to the end."""

    opening: str
    closing: str | None
    inside: bool = False
    held: str = ""

    def feed(self, text: str) -> list[Found]:
        """What the text settles."""
        self.held += text
        found: list[Found] = []
        while True:
            tag = self.closing if self.inside else self.opening
            before, tagged, after = self.held.partition(tag) if tag else (self.held, "", "")
            if not tagged:
                break
            found += self._inner(before) if self.inside else _said(before)
            self.held = after
            self.inside = not self.inside
        if not self.inside:
            keep = _begun(self.held, self.opening)
            shown = self.held[: len(self.held) - keep]
            found += _said(shown)
            self.held = self.held[len(shown) :]
        return found

    def finish(self) -> list[Found]:
        """What is left."""
        rest, self.held = self.held, ""
        return self._inner(rest) if self.inside else _said(rest)

    def _inner(self, text: str) -> list[Found]:
        """The calls, or the text as it was where it holds none."""
        calls = [call for part in text.split(self.opening) for call in calls_in(part)]
        return list(calls) if calls else [Said(self.opening + text + (self.closing or ""))]


@dataclass(slots=True)
class Whole:
    """An answer that is a call and nothing else."""

    held: str = ""

    def feed(self, text: str) -> list[Found]:
        """Nothing is settled before the end."""
        self.held += text
        return []

    def finish(self) -> list[Found]:
        """The call; where the answer was cut off, the text that there is."""
        return list(calls_in(self.held)) or _said(self.held)


@dataclass(slots=True)
class Bare:
    """An answer that is JSON from its first character on, and names a known tool, is a call."""

    known: frozenset[str]
    held: str = ""
    decided: bool = False

    def feed(self, text: str) -> list[Found]:
        """What the text settles."""
        if self.decided:
            return _said(text)
        self.held += text
        begin = self.held.lstrip()
        if not begin or begin.startswith("{") or _prefixes(_PYTHON, begin):
            return []
        self.decided = True
        return _said(self.held)

    def finish(self) -> list[Found]:
        """What is left."""
        if self.decided:
            return []
        tag = self.held.lstrip().startswith(_PYTHON)
        calls = calls_in(self.held.lstrip().removeprefix(_PYTHON))
        if calls and all(tag or call.name in self.known for call in calls):
            return list(calls)
        return _said(self.held.replace(_PYTHON, "", 1))


_PYTHON = "<|python_tag|>"


@dataclass(slots=True)
class Harmony:
    """Messages with channels: what is thought, what is said, and calls addressed to functions.

    An answer that begins with neither a mark nor an address, as one of a given form does, is said
    as it is.
    """

    held: str = ""
    header: str = ""
    begun: bool = False
    body: bool = False
    arguments: list[str] = field(default_factory=list[str])

    def feed(self, text: str) -> list[Found]:
        """What the text settles."""
        self.held += text
        found: list[Found] = []
        while mark := _MARK.search(self.held):
            found += self._text(self.held[: mark.start()])
            found += self._mark(mark[0])
            self.held = self.held[mark.end() :]
        keep = max(_begun(self.held, mark) for mark in HARMONY.marks)
        shown = self.held[: len(self.held) - keep]
        self.held = self.held[len(shown) :]
        return found + self._text(shown)

    def finish(self) -> list[Found]:
        """What is left."""
        rest, self.held = self.held, ""
        found = self._text(rest)
        if not self.begun:
            return found + _said(self.header)
        return found + self._mark("<|end|>")

    def _mark(self, mark: str) -> list[Found]:
        self.begun = True
        match mark:
            case "<|channel|>":
                found, self.header = self._end(), "" if self.body else f"{self.header} "
                self.body = False
                return found
            case "<|constrain|>":
                return []
            case "<|message|>":
                self.body = True
                return []
            case _:
                found = self._end()
                self.header, self.body = "", False
                return found

    def _end(self) -> list[Found]:
        """A call is whole when its message ends."""
        name = self._called() if self.body else None
        arguments, self.arguments = "".join(self.arguments), []
        return [Called(name, arguments.strip() or "{}")] if name else []

    def _called(self) -> str | None:
        found = re.search(r"to=(?:functions\.)?([\w.-]+)", self.header)
        return found[1] if found else None

    def _text(self, text: str) -> list[Found]:
        if not self.body:
            self.header += text
            if self.begun or _prefixes("to=", self.header.lstrip()):
                return []
            self.begun = self.body = True
            text, self.header = self.header, ""
        if self._called():
            self.arguments.append(text)
            return []
        if not text:
            return []
        final = "analysis" not in self.header
        return [Said(text) if final else Thought(text)]


_MARK = re.compile("|".join(re.escape(mark) for mark in HARMONY.marks))


# --- what stands in a tag ---------------------------------------------------------------------


def calls_in(text: str) -> list[Called]:
    """The calls that a text of JSON holds, one after another or in lists; none if it is no such."""
    text = text.strip()
    named = re.match(r"([\w.-]+)\s*(?:\[ARGS\]\s*)?(?=\{)", text)
    if named is not None:
        text = json.dumps({"name": named[1]})[:-1] + ', "arguments": ' + text[named.end() :] + "}"
    calls: list[Called] = []
    decoder = json.JSONDecoder()
    while text:
        try:
            value, end = decoder.raw_decode(text)
        except (ValueError, RecursionError):
            return []
        values = value if isinstance(value, list) else [value]
        found = [_call(one) for one in values]
        calls += [one for one in found if one is not None]
        if None in found:
            return []
        text = text[end:].lstrip(" \t\r\n;,")
    return calls


def _call(value: Any) -> Called | None:
    if not isinstance(value, Mapping):
        return None
    value = value.get("function", value) if isinstance(value.get("function"), Mapping) else value
    name = value.get("name")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _object(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, Mapping):
        return None
    return Called(name, json.dumps(arguments, ensure_ascii=False))


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _said(text: str) -> list[Found]:
    return [Said(text)] if text else []


def _begun(text: str, tag: str) -> int:
    """How much of the text's end is the beginning of the tag."""
    longest = min(len(text), len(tag) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)


def _prefixes(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def marks_of(text: Text, found: Format | None) -> dict[int, str]:
    """The ids of a format's marks that the decoded text leaves out."""
    ids = {mark: text.tokenizer.token_to_id(mark) for mark in (found.marks if found else ())}
    return {id: mark for mark, id in ids.items() if id is not None and not text.decode([id])}


def schema_of_calls(tools: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    """The JSON schema of a call of one of these functions."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["name"]},
                key: tool.get("parameters") or {"type": "object"},
            },
            "required": ["name", key],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}
