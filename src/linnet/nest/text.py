"""A checkpoint's text as its card states it: end tokens, begin token and chat template, checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from linnet.diagnostics import LinnetError, NestError
from linnet.nest.card import MANIFEST, Card, TextContract
from linnet.serve.text import NOTHING, Text

# What is asked of a template; the words are looked for in what it makes of them.
_SYSTEM = {"role": "system", "content": "Answer briefly."}
_TURNS = [
    {"role": "user", "content": "What is the first letter?"},
    {"role": "assistant", "content": "It is A."},
    {"role": "user", "content": "And the second?"},
]


def load_text(card: Card, place: str | Path | Iterable[str | Path]) -> Text:
    """The tokenizer and chat template of a checkpoint, held to what the card says of them.

    `place` is what `Text.load` takes. Raises one NestError that lists everything in which card and
    checkpoint disagree, by file, token and id.
    """
    return with_contract(card, Text.load(place))


def with_contract(card: Card, text: Text) -> Text:
    """The text with the card's begin and end tokens and template; checked as `load_text` says.

    What the card leaves out is not held against the checkpoint; but a text with a token that the
    model has no row for is refused, whatever the card says.
    """
    contract = card.text
    vocab = card.generics.get("Vocab")
    look = _Lookup(card, text, vocab if isinstance(vocab, int) else None, [])
    template = text.template
    if contract.template is not None:
        template = _read_template(card.directory / contract.template)
    begin: int | None = None
    if contract.begin is False:
        begin = NOTHING
    elif contract.begin is not None:
        begin = look.token("begin", contract.begin)
    ends = {id for token in contract.end if (id := look.token("end", token)) is not None}
    # A mirror's tokenizer may lack them, which is as well.
    unused = {id for token in contract.unused if (id := look.known(token)) is not None}
    whole = replace(
        text,
        template=None if contract.chat is False else template,
        begin=begin,
        eos=frozenset(ends) if contract.end else text.eos,
        vocab=look.vocab,
    )
    if contract != TextContract():
        look.problems.extend(_beyond(look, unused))
    if contract.end:
        look.problems.extend(_stated_ends(look, ends, template or ""))
    if contract.chat and not look.problems:
        look.problems.extend(_conversation(card, whole))
    if look.problems:
        listed = "".join(f"\n  {problem}" for problem in look.problems)
        raise NestError(f"the text of {card.name} is not what its card says{listed}")
    return whole


@dataclass(frozen=True, slots=True)
class _Lookup:
    """Where tokens are looked up, and what has been found wrong."""

    card: Card
    text: Text
    vocab: int | None
    problems: list[str]

    @property
    def manifest(self) -> Path:
        return self.card.directory / MANIFEST

    def token(self, key: str, token: str | int) -> int | None:
        """The id of a token of `[text]`; one that the tokenizer lacks is a problem, and None."""
        id = self.known(token)
        if id is not None:
            return id
        named = f"{token!r}" if isinstance(token, str) else f"id {token}"
        self.problems.append(
            f"{self.manifest}: `{key}` of [text] names {named}, and the tokenizer of "
            f"{self.text.origin} has no such token"
        )
        return None

    def known(self, token: str | int) -> int | None:
        """The id of a token, or None where the tokenizer lacks it."""
        tokenizer = self.text.tokenizer
        id: int | None = tokenizer.token_to_id(token) if isinstance(token, str) else token
        return None if id is None or tokenizer.id_to_token(id) is None else id

    def named(self, id: int) -> str:
        token = self.text.tokenizer.id_to_token(id)
        return f"id {id}" if token is None else f"{token!r} (id {id})"


def _beyond(look: _Lookup, unused: set[int]) -> Iterator[str]:
    """Tokens that the model has no row for; fewer tokens than rows are as they should be."""
    if look.vocab is None:
        return
    names = look.text.tokenizer.get_vocab(with_added_tokens=True)
    beyond = sorted(id for id in names.values() if id >= look.vocab and id not in unused)
    if beyond:
        shown = ", ".join(look.named(id) for id in beyond[:3])
        rest = f" and {len(beyond) - 3} more" if len(beyond) > 3 else ""
        yield (
            f"{look.text.origin}: the tokenizer has {shown}{rest}, and `Vocab` is {look.vocab}: "
            "the model has no row for them; if no text uses them, list them as `unused` in [text] "
            f"of {look.manifest}"
        )


def _stated_ends(look: _Lookup, ends: set[int], template: str) -> Iterator[str]:
    """What the checkpoint's own files say of end tokens, where that is not what the card says."""
    for id, source in look.text.stated.items():
        place = f"{look.text.origin}: {source}"
        if look.text.tokenizer.id_to_token(id) is None:
            yield f"{place} ends answers at id {id}, a token that the tokenizer does not have"
        elif id not in ends:
            yield (
                f"{place} ends answers at {look.named(id)}, which `end` in [text] of "
                f"{look.manifest} does not list"
            )
    configured = "generation_config.json" in look.text.stated.values()
    for id in sorted(ends - look.text.stated.keys()) if configured else ():
        if str(look.text.tokenizer.id_to_token(id)) not in template:
            yield (
                f"{look.manifest}: `end` in [text] lists {look.named(id)}, which neither "
                f"generation_config.json of {look.text.origin} nor its chat template knows"
            )


def _conversation(card: Card, text: Text) -> Iterator[str]:
    """Whether a conversation can be rendered, with everything in it and an end to each answer."""
    manifest = card.directory / MANIFEST
    if text.template is None:
        yield (
            f"{manifest}: [text] says `chat = true`, and {text.origin} has no chat template "
            "(tokenizer_config.json or chat_template.jinja); `template` names one beside the card"
        )
        return
    messages = [*([_SYSTEM] if card.text.system else []), *_TURNS]
    try:
        rendered = text.render_chat(messages)
    except LinnetError as error:
        hint = (
            f"; where it takes no system message, `system = false` in [text] of {manifest}"
            if card.text.system
            else ""
        )
        yield f"{error}{hint}"
        return
    lost = [one["role"] for one in messages if one["content"] not in rendered]
    if lost:
        yield f"the chat template of {text.origin} leaves out what the {lost[0]} said"
        return
    _, _, after = rendered.partition(_TURNS[1]["content"])
    names = [str(text.tokenizer.id_to_token(id)) for id in sorted(text.eos)]
    if not any(name in after for name in names):
        listed = ", ".join(repr(name) for name in names) or "no token"
        yield (
            f"the chat template of {text.origin} writes no end token after an answer: {listed} "
            f"should end one; `end` in [text] of {manifest} names others"
        )


def _read_template(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise NestError(f"{path}: the card's chat template cannot be read: {reason}") from error
