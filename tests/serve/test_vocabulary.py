"""Tokenizers from a GGUF file's vocabulary: as SentencePiece merges, and files that are wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from linnet.diagnostics import LinnetError
from linnet.serve.vocabulary import tokenizer_of

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6


def sentence_pieces(
    dice: random.Random, *, prefix: bool
) -> tuple[dict[str, Any], list[str], list[float], list[int]]:
    """A vocabulary grown by merging, scores falling in the order of the merges."""
    letters = [*"abcd▁é"]
    merged: list[str] = []
    while len(merged) < 40:
        piece = dice.choice(letters + merged) + dice.choice(letters + merged)
        if piece not in merged and len(piece) < 7:
            merged.append(piece)
    bytes_ = [f"<0x{k:02X}>" for k in range(256)]
    user = ["<tag>", "  ", "\n\n", "\n"]
    tokens = ["<unk>", "<s>", "</s>", *user, *bytes_, *merged, *letters]
    count = len(user)
    kinds = [UNKNOWN, CONTROL, CONTROL, *[USER] * count, *[BYTE] * 256]
    scores = [-1000.0] * (3 + count) + [0.0] * 256
    kinds += [NORMAL] * (len(tokens) - len(kinds))
    scores += [-float(k) for k in range(len(tokens) - len(scores))]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": prefix,
    }
    return metadata, tokens, scores, kinds


def merged_by_hand(
    written: str, tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int]
) -> list[int]:
    """SentencePiece without a queue: the best scored pair of neighbours, while there is one."""
    ids = {token: k for k, token in enumerate(tokens)}
    symbols: list[str] = []
    fixed = [tokens[k] for k in range(len(tokens)) if kinds[k] in (USER, CONTROL)]
    frozen: set[int] = set()
    position = 0
    while position < len(written):
        found = max(
            (one for one in fixed if written.startswith(one, position)), key=len, default=""
        )
        if found:
            frozen.add(len(symbols))
        symbols.append(found or written[position].replace(" ", "▁"))
        position += len(found) or 1
    parts = [(symbol, k in frozen) for k, symbol in enumerate(symbols)]
    while True:
        best: tuple[float, int] | None = None
        for k in range(len(parts) - 1):
            (left, one), (right, other) = parts[k], parts[k + 1]
            token = ids.get(left + right)
            if one or other or token is None or kinds[token] != NORMAL:
                continue
            if best is None or scores[token] > best[0]:
                best = scores[token], k
        if best is None:
            break
        k = best[1]
        parts[k : k + 2] = [(parts[k][0] + parts[k + 1][0], False)]
    result: list[int] = []
    for symbol, _ in parts:
        if symbol in ids:
            result.append(ids[symbol])
        else:
            result += [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return result


def test_sentence_pieces_are_merged_as_by_hand() -> None:
    for seed in range(12):
        dice = random.Random(seed)
        metadata, tokens, scores, kinds = sentence_pieces(dice, prefix=False)
        tokenizer = tokenizer_of(metadata, "m.gguf")
        for _ in range(60):
            written = "".join(
                dice.choice(["a", "b", "c", "d", " ", "é", "\n", "<tag>", "x", "🙂", "<0x41>"])
                for _ in range(dice.randrange(30))
            )
            ids = tokenizer.encode(written, add_special_tokens=False).ids
            assert ids == merged_by_hand(written, tokens, scores, kinds), written
            assert tokenizer.decode(ids) == written


def test_tokens_around_a_text() -> None:
    metadata, _, _, _ = sentence_pieces(random.Random(0), prefix=True)
    assert tokenizer_of(metadata, "m.gguf").encode("").ids == [1]
    ends = metadata | {"tokenizer.ggml.add_eos_token": True}
    assert tokenizer_of(ends, "m.gguf").encode("").ids == [1, 2]
    both = tokenizer_of(ends, "m.gguf").encode("", "")
    assert both.ids == [1, 2, 1, 2] and both.type_ids == [0, 0, 1, 1]
    none = ends | {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": False}
    assert tokenizer_of(none, "m.gguf").encode("").ids == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tokens": [1, 2]}, "`tokenizer.ggml.tokens` is not a list of str"),
        ({"tokens": "abc"}, "`tokenizer.ggml.tokens` is not a list of str"),
        ({"token_type": [1, 2]}, "`tokenizer.ggml.token_type` has 2 values for 309 tokens"),
        ({"token_type": ["1"] * 309}, "`tokenizer.ggml.token_type` is not a list of int"),
        ({"scores": [0.5]}, "`tokenizer.ggml.scores` has 1 values for 309 tokens"),
        ({"model": "gpt2", "merges": [7]}, "`tokenizer.ggml.merges` is not a list of str"),
        ({"model": "gpt2", "merges": ["ab"]}, "`tokenizer.ggml.merges` is missing or not a list"),
        ({"model": "gpt2", "merges": ["q zz"]}, "its vocabulary is broken: "),
        ({"model": ["gpt2"]}, "its vocabulary is of the kind ['gpt2']"),
        ({"model": "gpt2", "pre": 7}, "splits words by the scheme 7"),
    ],
)
def test_broken_vocabularies_are_named(changes: dict[str, Any], expected: str) -> None:
    metadata, tokens, _, _ = sentence_pieces(random.Random(0), prefix=False)
    assert len(tokens) == 309
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    with pytest.raises(LinnetError) as caught:
        tokenizer_of(metadata, "m.gguf")
    assert str(caught.value).startswith("m.gguf: ") and expected in str(caught.value)


@pytest.mark.parametrize("token", [-1, 309, 1 << 63, "1", None])
def test_special_tokens_outside_the_vocabulary_are_none(token: Any) -> None:
    metadata, _, _, _ = sentence_pieces(random.Random(0), prefix=False)
    names = ("bos", "eos", "unknown")
    metadata |= {f"tokenizer.ggml.{name}_token_id": token for name in names}
    assert tokenizer_of(metadata, "m.gguf").encode("a").tokens == ["a"]
