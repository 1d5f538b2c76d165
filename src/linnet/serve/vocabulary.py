"""A tokenizer from the vocabulary that a GGUF file carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
from tokenizers import pre_tokenizers as pre

from linnet.diagnostics import LinnetError

# llama.cpp's kinds of token.
_CONTROL, _USER = 3, 4

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer_of(metadata: Mapping[str, Any], origin: str) -> Tokenizer:
    """The tokenizer that the metadata describes; a kind we do not know is a clear error."""
    kind: Any = metadata.get("tokenizer.ggml.model")
    tokens: Any = metadata.get("tokenizer.ggml.tokens")
    if kind is None or not isinstance(tokens, list):
        raise LinnetError(f"{origin}: carries no vocabulary; a tokenizer.json beside it would do")
    match kind:
        case "gpt2":
            tokenizer = _byte_level(metadata, tokens, origin)
        case "llama":
            tokenizer = _sentence_piece(metadata, tokens, origin)
        case _:
            raise LinnetError(
                f"{origin}: its vocabulary is of the kind {kind!r}; known are 'gpt2' and 'llama' "
                "(a tokenizer.json beside it would do)"
            )
    _add_special(tokenizer, metadata, tokens)
    return tokenizer


def _byte_level(metadata: Mapping[str, Any], tokens: list[str], origin: str) -> Tokenizer:
    """Byte-level pair encoding: merges in order, words split as the model's own tokenizer does."""
    scheme: Any = metadata.get("tokenizer.ggml.pre", "default")
    plain = pre.ByteLevel(add_prefix_space=False, use_regex=True)
    bytes_only = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    normalizer: normalizers.Normalizer | None = None
    match scheme:
        case "default" | "gpt-2" | "gpt2":
            splitter: pre.PreTokenizer = plain
        case "smollm":
            splitter = pre.Sequence([pre.Digits(individual_digits=True), plain])
        case "llama-bpe" | "llama3":
            words = pre.Split(Regex(_WORDS % r"\p{N}{1,3}"), "isolated")
            splitter = pre.Sequence([words, bytes_only])
        case "qwen2":
            words = pre.Split(Regex(_WORDS % r"\p{N}"), "isolated")
            splitter = pre.Sequence([words, bytes_only])
            normalizer = normalizers.NFC()
        case _:
            raise LinnetError(
                f"{origin}: its vocabulary splits words by the scheme {scheme!r}; known are "
                "default, gpt-2, smollm, llama-bpe and qwen2 (a tokenizer.json beside it would do)"
            )
    merges: Any = metadata.get("tokenizer.ggml.merges")
    pairs = [tuple(merge.split(" ", 1)) for merge in merges or ()]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise LinnetError(f"{origin}: `tokenizer.ggml.merges` is missing or not a list of pairs")
    vocabulary = {token: k for k, token in enumerate(tokens)}
    whole_words = scheme in ("llama-bpe", "llama3")
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=whole_words))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def _sentence_piece(metadata: Mapping[str, Any], tokens: list[str], origin: str) -> Tokenizer:
    """SentencePiece pair encoding: of all neighbours, the best scored pair is merged first."""
    scores: Any = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise LinnetError(f"{origin}: `tokenizer.ggml.scores` is missing or not one per token")
    vocabulary = {token: k for k, token in enumerate(tokens)}
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, token in vocabulary.items():
        for cut in range(1, len(piece)):
            left, right = vocabulary.get(piece[:cut]), vocabulary.get(piece[cut:])
            if left is not None and right is not None:
                merges.append((-scores[token], left, right, piece[:cut], piece[cut:]))
    merges.sort()
    unknown: Any = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            [(left, right) for _, _, _, left, right in merges],
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    )
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * bool(prefix))
    return tokenizer


def _add_special(tokenizer: Tokenizer, metadata: Mapping[str, Any], tokens: list[str]) -> None:
    """Control tokens are found in text as wholes and left out of decoded text; a begin token that
    the file asks for stands before every text."""
    kinds: Any = metadata.get("tokenizer.ggml.token_type") or []
    added = [
        (token, kind)
        for token, kind in zip(tokens, kinds, strict=False)
        if kind in (_CONTROL, _USER)
    ]
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token, k in added if k == _CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False, special=False) for token, k in added if k == _USER]
    )
    begin: Any = metadata.get("tokenizer.ggml.bos_token_id")
    wanted = metadata.get(
        "tokenizer.ggml.add_bos_token", metadata["tokenizer.ggml.model"] == "llama"
    )
    if wanted and type(begin) is int and begin < len(tokens):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[tokens[begin], "$A"],
            pair=[tokens[begin], "$A", tokens[begin], "$B:1"],
            special_tokens=[(tokens[begin], begin)],
        )
