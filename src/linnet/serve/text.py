"""Text and tokens: a checkpoint's own tokenizer and chat template, and text as tokens arrive."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeGuard

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from linnet.diagnostics import LinnetError
from linnet.serve.vocabulary import tokenizer_of
from linnet.weights import gguf_metadata
from linnet.weights.objects import read_object

Message = Mapping[str, Any]
_SPECIAL = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_BROKEN = "\ufffd"
_PENDING = 32
NOTHING = -1
SECONDS = 10.0
_LARGE = 1 << 24
"""As `Text.begin`: nothing stands before plain text."""


class ChatError(LinnetError, ValueError):
    """Messages that the checkpoint's chat template refuses."""


@dataclass(frozen=True, slots=True)
class Text:
    """A checkpoint's tokenizer, the ids that end its answers, and its chat template if it has one.

    `special` has the tokens that a template may name (`bos_token`, ...); `origin` is for messages,
    and so is `stated`: which file names each end token. `begin` stands before plain text (None: as
    the tokenizer has it, -1: nothing does). Ids from `vocab` on have no row in the model.
    """

    tokenizer: Tokenizer
    eos: frozenset[int]
    template: str | None
    special: dict[str, str] = field(default_factory=dict[str, str])
    origin: str = ""
    stated: dict[int, str] = field(default_factory=dict[int, str])
    begin: int | None = None
    vocab: int | None = None

    @staticmethod
    def load(place: str | Path | Iterable[str | Path]) -> Text:
        """The text side of a directory, of several files (tokenizer.json, ...), or of a GGUF."""
        files = _files(place)
        if "tokenizer.json" in files:
            return _from_json(files)
        ggufs = [path for path in files.values() if path.suffix == ".gguf"]
        if ggufs:
            return _from_gguf(ggufs[0])
        found = ", ".join(sorted(files)) or "nothing"
        folder = place if isinstance(place, str | Path) else None
        for path in files.values():
            folder = folder or path.parent
        raise LinnetError(
            f"no tokenizer: neither tokenizer.json nor a .gguf file is among {found}"
            + (f" in {folder}" if folder is not None else "")
            + "\n  a model that reads and writes text needs the tokenizer.json of its checkpoint "
            "beside its weights"
        )

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text; with `special`, what the tokenizer puts around one (a begin token)."""
        around = special and self.begin != NOTHING
        try:
            ids: list[int] = self.tokenizer.encode(text, add_special_tokens=around).ids
        except TypeError as error:  # the only str that the library refuses
            raise LinnetError(f"the text is not valid UTF-8: {text!r:.60}") from error
        if around and self.begin is not None and ids[:1] != [self.begin]:
            ids.insert(0, self.begin)
        if self.vocab is not None and ids and max(ids) >= self.vocab:
            beyond = next(token for token in ids if token >= self.vocab)
            raise LinnetError(
                f"the text holds {self.tokenizer.id_to_token(beyond)!r}, which is id {beyond} of "
                f"{self.origin}: the model has rows for the ids below {self.vocab}"
            )
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of the ids; bytes that are no UTF-8 read as U+FFFD."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def render_chat(
        self,
        messages: Sequence[Message],
        /,
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The conversation as the model was trained to read it, up to where its answer begins."""
        if self.template is None:
            raise LinnetError(f"{self.origin} has no chat template; give the model plain text")
        values = {"tools": None, "documents": None, **self.special, **variables}
        try:
            with _ending(SECONDS):
                return _compiled(self.template).render(
                    messages=list(messages), add_generation_prompt=add_generation_prompt, **values
                )
        except (jinja2.TemplateSyntaxError, SyntaxError) as error:
            raise LinnetError(
                f"the chat template of {self.origin} is not valid: {error} (line {error.lineno})"
            ) from error
        except Exception as error:  # whatever its expressions raise
            reason = str(error) or type(error).__name__
            raise ChatError(f"the chat template of {self.origin} refuses: {reason}") from error

    def encode_chat(
        self,
        messages: Sequence[Message],
        /,
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """The ids of the rendered conversation; only its template adds special tokens."""
        rendered = self.render_chat(
            messages, add_generation_prompt=add_generation_prompt, **variables
        )
        return self.encode(rendered, special=False)

    def stream(self, stop: Sequence[str] = ()) -> Detokenizer:
        """A reader of ids that arrive one by one."""
        return Detokenizer(self, stop)


class Detokenizer:
    """Text from ids as they arrive: whole characters only, and nothing from a stop string on.

    A token's text comes with the token unless it ends inside a character or may begin a stop
    string; then it comes with the token that settles it, or with `finish`.
    """

    def __init__(self, text: Text, stop: Sequence[str] = ()) -> None:
        self.stopped: str | None = None
        self._text = text
        self._stop = tuple(one for one in stop if one)
        self._held = ""
        # Tokens up to `_read` have been given out; those from `_start` on are what the next one
        # is decoded beside, since a token's text may depend on the one before it.
        self._ids: list[int] = []
        self._start = 0
        self._read = 0

    def push(self, token: int) -> str:
        """The text that is settled by this token."""
        if self.stopped is not None:
            return ""
        self._ids.append(token)
        new = self._new()
        if not new:
            self._forget_special(token)
            return ""
        # No character has so many tokens: what does not end by then is none.
        if new.endswith(_BROKEN) and len(self._ids) - self._read < _PENDING:
            return ""
        self._start, self._read = self._read, len(self._ids)
        return self._settle(new)

    def finish(self) -> str:
        """What was held back; of a last character that is not whole, nothing."""
        if self.stopped is not None:
            return ""
        text = self._settle(self._new().rstrip(_BROKEN))
        self._start = self._read = len(self._ids)
        rest, self._held = self._held, ""
        return text + rest

    def _forget_special(self, token: int) -> None:
        """A special token that gives no text is not decoded again beside those that follow."""
        alone = [token]
        if self._text.decode(alone, skip_special=False) and not self._text.decode(alone):
            del self._ids[-1]

    def _new(self) -> str:
        before = self._text.decode(self._ids[self._start : self._read])
        return self._text.decode(self._ids[self._start :])[len(before) :]

    def _settle(self, new: str) -> str:
        """The part of held and new text that no stop string can reach any more."""
        text = self._held + new
        found = [(text.find(stop), stop) for stop in self._stop if stop in text]
        if found:
            position, self.stopped = min(found, key=lambda one: one[0])
            self._held = ""
            return text[:position]
        held = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """How much of the text's end is the beginning of the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


# --- where the parts come from ----------------------------------------------------------------


def _files(place: str | Path | Iterable[str | Path]) -> dict[str, Path]:
    """Existing files by name; of a directory, its tokenizer's and then its GGUF files."""
    if not isinstance(place, str | Path):
        paths = [Path(path) for path in place]
        # Weights given by their files have their tokenizer beside them.
        beside = [path.parent / name for path in paths[:1] for name in _NAMES]
        return {path.name: path for path in [*beside, *paths] if path.is_file()}
    path = Path(place)
    if not os.path.exists(path):
        raise LinnetError(f"{path}: no such file or directory to read a tokenizer from")
    if path.is_file():
        return _files([path]) if path.suffix != ".gguf" else {path.name: path}
    paths = [path / name for name in _NAMES] + sorted(path.glob("*.gguf"))
    return {path.name: path for path in paths if path.is_file()}


_NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
)


def _from_json(files: Mapping[str, Path]) -> Text:
    path = files["tokenizer.json"]
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise LinnetError(f"{path}: is not a tokenizer: {error}") from error
    config = _object(files.get("tokenizer_config.json"))
    special = {name: _content(config[name]) for name in _SPECIAL if config.get(name)}
    end = tokenizer.token_to_id(special["eos_token"]) if "eos_token" in special else None
    stated = {} if end is None else {end: "tokenizer_config.json"}
    for name in ("generation_config.json", "config.json"):
        if configured := _object(files.get(name)):
            ends: Any = configured.get("eos_token_id")
            ends = ends if isinstance(ends, list) else [ends]
            stated |= {one: name for one in ends if _is_id(one)}
            break
    template = _template(config.get("chat_template"))
    if "chat_template.jinja" in files:
        template = _read(files["chat_template.jinja"])
    return Text(tokenizer, frozenset(stated), template, special, str(path.parent), stated)


def _from_gguf(path: Path) -> Text:
    metadata = gguf_metadata(path)
    tokenizer = tokenizer_of(metadata, str(path))
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special: dict[str, str] = {}
    for name, key in named.items():
        token: Any = metadata.get(f"tokenizer.ggml.{key}_token_id")
        known = type(token) is int and 0 <= token < tokenizer.get_vocab_size()
        text = tokenizer.id_to_token(token) if known else None
        if text is not None:
            special[name] = text
    keys = [f"tokenizer.ggml.{key}_token_id" for key in ("eos", "eot", "eom")]
    ends = {metadata.get(key): f"its {key}" for key in keys}
    stated = {end: key for end, key in ends.items() if _is_id(end)}
    template: Any = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise LinnetError(f"{path}: `tokenizer.chat_template` is not a string")
    return Text(tokenizer, frozenset(stated), template, special, str(path), stated)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise LinnetError(f"{path}: cannot be read: {error}") from error


def _object(path: Path | None) -> dict[str, Any]:
    return {} if path is None else read_object(path, LinnetError)


def _content(token: Any) -> str:
    """A special token as text: it is written plain, or as an object with its flags."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def _is_id(value: Any) -> TypeGuard[int]:
    """A number that a token can have; -1 stands for none."""
    return type(value) is int and 0 <= value < 1 << 32


def _template(stated: Any) -> str | None:
    """The default one where a checkpoint has several."""
    if isinstance(stated, list):
        named = [one for one in stated if isinstance(one, dict) and one.get("name") == "default"]
        stated = named[0].get("template") if named else None
    return stated if isinstance(stated, str) else None


# --- the chat template ------------------------------------------------------------------------


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the model said, which only training asks about."""

    tags = {"generation"}  # noqa: RUF012 - how jinja2 reads it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Strings and numbers grow no further by one operation than a conversation does."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        first, second = map(_extent, (left, right))
        if first * second > _LARGE if operator == "*" else first > _LARGE or second > 64:
            raise jinja2.TemplateError(f"`{operator}` makes something too large")
        return super().call_binop(context, operator, left, right)


def _extent(value: Any) -> int:
    if isinstance(value, int):
        return abs(value)
    return len(value) if hasattr(value, "__len__") else 0


@contextmanager
def _ending(seconds: float) -> Iterator[None]:
    """What runs here ends, or is ended after so long: a template may loop as it likes."""
    end = time.monotonic() + seconds

    def look(frame: FrameType, event: str, value: Any) -> Any:
        if time.monotonic() > end:
            raise jinja2.TemplateError(f"it has not ended after {seconds:g} seconds")
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)


@lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    """The template in a sandbox, with the settings and functions that published ones expect."""
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment.from_string(template)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
