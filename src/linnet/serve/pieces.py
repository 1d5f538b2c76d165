"""What each token is as bytes, and where in an answer's text it begins."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache

from tokenizers import pre_tokenizers

from linnet.serve.request import Completion
from linnet.serve.text import Detokenizer, Text


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level vocabularies write bytes as: most stand for themselves."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = {char: ord(char) for char in alphabet if ord(char) < 256}
    rest = sorted(set(range(256)) - set(own.values()))
    return own | dict(zip((char for char in alphabet if ord(char) >= 256), rest))


_BYTES = _byte_alphabet()
_HEX = re.compile(r"<0x([0-9A-F]{2})>")


class Pieces:
    """The bytes of a tokenizer's tokens."""

    def __init__(self, text: Text) -> None:
        self._tokenizer = text.tokenizer
        self._text = text
        stated = json.loads(text.tokenizer.to_str())
        self._byte_level = '"ByteLevel"' in json.dumps(stated.get("decoder"))
        self._added = {one["id"]: one["content"] for one in stated.get("added_tokens") or ()}
        # Where all text is known, each character of it is one of a token's name at least.
        known = self._byte_level or bool(stated["model"].get("byte_fallback"))
        self.longest = max(map(len, text.tokenizer.get_vocab())) if known else None
        self.size = text.tokenizer.get_vocab_size(with_added_tokens=True)

    @lru_cache(maxsize=1 << 16)  # noqa: B019 - one object for each server
    def raw(self, token: int) -> bytes:
        """What a token adds to a text; of special tokens, their name."""
        if token in self._added:
            return str(self._added[token]).encode()
        name = self._tokenizer.id_to_token(token)
        if name is None:
            return b""
        if self._byte_level:
            known = [_BYTES[char] for char in name if char in _BYTES]
            return bytes(known) if len(known) == len(name) else name.encode()
        byte = _HEX.fullmatch(name)
        return bytes([int(byte[1], 16)]) if byte else name.replace("▁", " ").encode()

    def shown(self, token: int) -> str:
        """A token as text; one that is no text by itself as the bytes it is."""
        raw = self.raw(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


@dataclass(slots=True)
class Entry:
    """A token of an answer: how likely it was, what else was, and where its text begins."""

    token: int
    logprob: float
    top: list[tuple[int, float]]
    offset: int


@dataclass(slots=True)
class Likelihoods:
    """The entries of an answer's tokens, given out as their text is."""

    stream: Detokenizer
    settled: int = 0
    entries: list[Entry] = field(default_factory=list[Entry])

    def push(self, completion: Completion, number: int) -> None:
        """Token `number` of the answer has come."""
        token = completion.tokens[number]
        top = completion.top_logprobs[number] if completion.top_logprobs else []
        self.entries.append(Entry(token, completion.logprobs[number], top, self.settled))
        self.settled += len(self.stream.push(token))

    def take(self, length: int) -> list[Entry]:
        """The entries of tokens that begin in the first so many characters, each once."""
        ready = [entry for entry in self.entries if entry.offset < length]
        self.entries = self.entries[len(ready) :]
        return ready
