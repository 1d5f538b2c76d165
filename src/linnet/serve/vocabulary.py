"""A tokenizer from the vocabulary that a GGUF file carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
from tokenizers import pre_tokenizers as pre

from linnet.diagnostics import LinnetError

# llama.cpp's kinds of token.
_UNKNOWN, _CONTROL, _USER, _BYTE = 2, 3, 4, 6

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer_of(metadata: Mapping[str, Any], origin: str) -> Tokenizer:
    """The tokenizer that the metadata describes; a kind we do not know is a clear error."""
    kind: Any = metadata.get("tokenizer.ggml.model")
    if kind is None or metadata.get("tokenizer.ggml.tokens") is None:
        raise LinnetError(f"{origin}: carries no vocabulary; a tokenizer.json beside it would do")
    tokens = _items(metadata, "tokens", str, origin)
    kinds: list[int] = _items(metadata, "token_type", int, origin, len(tokens))
    try:
        match kind:
            case "gpt2":
                tokenizer = _byte_level(metadata, tokens, origin)
            case "llama":
                tokenizer = _sentence_piece(metadata, tokens, kinds, origin)
            case _:
                raise LinnetError(
                    f"{origin}: its vocabulary is of the kind {kind!r}; known are 'gpt2' and "
                    "'llama' (a tokenizer.json beside it would do)"
                )
        _add_special(tokenizer, metadata, tokens, kinds)
    except LinnetError:
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise LinnetError(f"{origin}: its vocabulary is broken: {error}") from error
    return tokenizer


def _items(
    metadata: Mapping[str, Any], name: str, kind: type, origin: str, count: int | None = None
) -> list[Any]:
    """The values of an array of the vocabulary, of one type; with a count, one for each token.

    Where a file has no array of the name, there are none.
    """
    values: Any = metadata.get(f"tokenizer.ggml.{name}")
    if values is None:
        return []
    if not isinstance(values, list) or any(type(value) is not kind for value in values):
        raise LinnetError(f"{origin}: `tokenizer.ggml.{name}` is not a list of {kind.__name__}")
    if count is not None and len(values) != count:
        raise LinnetError(
            f"{origin}: `tokenizer.ggml.{name}` has {len(values):,} values for {count:,} tokens"
        )
    return values


def _token(metadata: Mapping[str, Any], name: str, tokens: list[str]) -> int | None:
    """The id that the file gives a special token, where it is one of the vocabulary."""
    token: Any = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return token if type(token) is int and 0 <= token < len(tokens) else None


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
        case "qwen2" | "deepseek-r1-qwen":
            words = pre.Split(Regex(_WORDS % r"\p{N}"), "isolated")
            splitter = pre.Sequence([words, bytes_only])
            normalizer = normalizers.NFC()
        case _:
            raise LinnetError(
                f"{origin}: its vocabulary splits words by the scheme {scheme!r}; known are "
                "default, gpt-2, smollm, llama-bpe and qwen2 (a tokenizer.json beside it would do)"
            )
    merges: list[str] = _items(metadata, "merges", str, origin)
    pairs = [(left, right) for left, space, right in map(_halves, merges) if space]
    if not pairs or len(pairs) < len(merges):
        raise LinnetError(f"{origin}: `tokenizer.ggml.merges` is missing or not a list of pairs")
    vocabulary = {token: k for k, token in enumerate(tokens)}
    whole_words = scheme in ("llama-bpe", "llama3")
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=whole_words))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def _halves(merge: str) -> tuple[str, str, str]:
    return merge.partition(" ")


def _sentence_piece(
    metadata: Mapping[str, Any], tokens: list[str], kinds: list[int], origin: str
) -> Tokenizer:
    """SentencePiece pair encoding: of all neighbours, the best scored pair is merged first."""
    scores: list[float] = _items(metadata, "scores", float, origin, len(tokens))
    if not scores:
        raise LinnetError(f"{origin}: `tokenizer.ggml.scores` is missing or not one per token")
    vocabulary = {token: k for k, token in enumerate(tokens)}
    unknown = _token(metadata, "unknown", tokens)
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            _merges(tokens, scores, kinds, vocabulary),
            unk_token=tokens[unknown or 0],
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


def _merges(
    tokens: list[str], scores: list[float], kinds: list[int], vocabulary: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Both halves of every cut of a token that are tokens too, best scored tokens first."""
    merges: list[tuple[str, str]] = []
    for k in sorted(range(len(tokens)), key=scores.__getitem__, reverse=True):
        # No text is merged to what stands for a byte, or for nothing that can be written.
        if kinds and kinds[k] in (_UNKNOWN, _CONTROL, _BYTE):
            continue
        piece = tokens[k]
        cuts = [
            (left, right)
            for cut in range(1, len(piece))
            if (left := piece[:cut]) in vocabulary and (right := piece[cut:]) in vocabulary
        ]
        if len(cuts) > 1:
            cuts.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges += cuts
    return merges


def _add_special(
    tokenizer: Tokenizer, metadata: Mapping[str, Any], tokens: list[str], kinds: list[int]
) -> None:
    """Control tokens are found in text as wholes and left out of decoded text; a begin token that
    the file asks for stands before every text, an end token after it."""
    for wanted, special in ((_CONTROL, True), (_USER, False)):
        added = [
            AddedToken(token, normalized=False, special=special)
            for token, kind in zip(tokens, kinds, strict=False)
            if kind == wanted and token
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    default = metadata["tokenizer.ggml.model"] == "llama"
    begin = _token(metadata, "bos", tokens)
    end = _token(metadata, "eos", tokens)
    around = {
        "before": begin if metadata.get("tokenizer.ggml.add_bos_token", default) else None,
        "after": end if metadata.get("tokenizer.ggml.add_eos_token", False) else None,
    }
    if any(token is not None for token in around.values()):
        before, after = ([tokens[k]] if k is not None else [] for k in around.values())
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *(f"{one}:1" for one in before), "$B:1"]
            + [f"{one}:1" for one in after],
            special_tokens=[(tokens[k], k) for k in around.values() if k is not None],
        )
