"""Answers of a given form: JSON, a JSON schema, a regular expression, one of several texts.

`llguidance` follows the form in the bytes of a checkpoint's tokens; here it meets `Text` on one
side and `Request.grammar` on the other. It is imported where a form is first asked for.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from linnet.diagnostics import InternalError, LinnetError
from linnet.serve.request import RequestError
from linnet.serve.text import Text

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

_SPACE: JsonCompileOptions = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{0,32}"}
"""So much white space between the parts of JSON: a model that likes it would never end."""
_END = "<non-verbose/>"
_STATES = 50_000
"""At most so many states of a form's lexer are kept, of about 2 kB each."""


class Grammars:
    """The forms that answers of a checkpoint can be given.

    The first one asked for takes seconds, in which its tokens are put in order; a form that cannot
    be followed is a RequestError about the request's `field`.
    """

    def __init__(self, text: Text) -> None:
        self._text = text
        self._lock = threading.Lock()
        self._made: LLTokenizer | None = None

    def prepare(self) -> None:
        """The first form will take no longer than others."""
        self._tokenizer()

    def json_object(self, field: str = "response_format") -> Form:
        """Any JSON object."""
        return self.json_schema({"type": "object"}, field)

    def json_schema(self, schema: Any, field: str = "response_format") -> Form:
        """JSON that a schema, as an object or as its text, describes."""
        try:
            stated = json.loads(schema) if isinstance(schema, str) else schema
            written = json.dumps({} if stated is True else stated, allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:
            raise RequestError(f"the JSON schema is no JSON: {error}", field) from error
        if not isinstance(stated, dict) and stated is not True:
            raise RequestError(f"the JSON schema is {written:.60}; it must be an object", field)
        return self._form(
            lambda made: made.grammar_from_json_schema(written, overrides=_SPACE),
            "the JSON schema cannot be followed",
            field,
        )

    def regex(self, pattern: str, field: str = "regex") -> Form:
        """Text that matches the pattern from its first to its last character."""
        written = _whole(pattern, field)
        return self._form(
            lambda made: made.grammar_from_regex(written),
            f"the pattern {pattern!r:.200} cannot be followed",
            field,
        )

    def choice(self, options: Sequence[str], field: str = "choice") -> Form:
        """One of the texts."""
        texts = [] if isinstance(options, str) else list(options)
        if not texts or not all(isinstance(one, str) and one for one in texts):
            raise RequestError("the choices must be a list of texts, none of them empty", field)
        pattern = "|".join(re.sub(r"\W", _escaped, _whole(one, field)) for one in texts)
        return self._form(
            lambda made: made.grammar_from_regex(pattern), "the choices cannot be followed", field
        )

    def lark(self, grammar: str, field: str = "grammar") -> Form:
        """Text that a grammar, in llguidance's dialect of Lark, derives."""
        written = _whole(grammar, field)
        return self._form(
            lambda made: made.grammar_from_lark(written), "the grammar cannot be followed", field
        )

    def _form(self, grammar: Callable[[type[LLMatcher]], str], problem: str, field: str) -> Form:
        tokenizer = self._tokenizer()
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(max_lexer_states=_STATES, verbose_errors=False)
        try:
            matcher = LLMatcher(tokenizer, grammar(LLMatcher), log_level=0, limits=limits)
        except ValueError as error:  # the size and depth of what is read
            raise RequestError(f"{problem}: {error}", field) from error
        reason = matcher.get_error()
        if not reason:
            first = matcher.deep_copy()
            first.compute_bitmask()  # which takes far longer than later ones
            reason = first.get_error()
            if first.is_stopped() and not first.is_accepting():
                reason = reason or "NoExtension"
        if reason:
            found = re.search(r"error: (.+)|\(in regex\): (?!regex parse)(.+)", reason)
            reason = (found[1] or found[2]) if found else reason.removesuffix(_END).strip()
            if reason.startswith("NoExtension"):
                reason = "no text has this form"
            raise RequestError(f"{problem}: {reason}", field)
        return Form(matcher)

    def _tokenizer(self) -> LLTokenizer:
        with self._lock:
            if self._made is None:
                self._made = _tokenizer_of(self._text)
            return self._made


class Form:
    """A form that answers can be given, as `Request.grammar`."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._first = matcher

    def start(self) -> Following:
        """The state of an answer that has no token yet."""
        return Following(self._first.deep_copy())


class Following:
    """How far an answer has come in its form."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def allowed(self) -> Sequence[int]:
        """A bit for each token id, 32 to a number, the lowest first; ends where it may end."""
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise LinnetError(
                f"the answer's form is too much to follow: {self._matcher.stop_reason()}"
            )
        words: Any = np.frombuffer(mask, np.uint32)
        return words  # type: ignore[no-any-return]

    def accept(self, token: int) -> None:
        """The token comes next."""
        if not self._matcher.consume_token(token):
            raise InternalError(
                "grammar",
                f"token {token} is not one that the answer's form allows: "
                f"{self._matcher.get_error()}",
            )

    @property
    def finished(self) -> bool:
        """Whether nothing may follow any more."""
        return self._matcher.is_stopped()


def _tokenizer_of(text: Text) -> LLTokenizer:
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise LinnetError(
            "answers of a given form need the package llguidance: pip install 'linnet[serve]'"
        ) from error
    ends = sorted(one for one in text.eos if one < text.tokenizer.get_vocab_size())
    try:
        return LLTokenizer(_described(text.tokenizer), eos_token=ends or None)
    except ValueError as error:
        raise LinnetError(
            f"the tokenizer of {text.origin} is of a kind that no answer can be given a form with: "
            f"{error}"
        ) from error


def _described(tokenizer: Tokenizer) -> str:
    """The tokenizer as JSON: without what it does to a batch of texts, and what stands for unknown
    text is special in it, which is not always so in files."""
    parts: dict[str, Any] = json.loads(tokenizer.to_str())
    added: list[dict[str, Any]] = parts["added_tokens"]
    unknown: Any = parts["model"].get("unk_token")
    if isinstance(unknown, str) and all(one["content"] != unknown for one in added):
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        number = tokenizer.token_to_id(unknown)
        added.append({"id": number, "content": unknown, **flags, "special": True})
        added.sort(key=lambda one: one["id"])
    return json.dumps({**parts, "truncation": None, "padding": None})


def _whole(written: str, field: str) -> str:
    """The text itself, if it can be written as UTF-8."""
    try:
        written.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{field} has half of a character: {written!r:.60}", field) from error
    return written


def _escaped(match: re.Match[str]) -> str:
    return f"\\x{{{ord(match[0]):X}}}"
