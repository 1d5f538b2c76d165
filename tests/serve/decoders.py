"""Tiny random decoders for engines, and what each says when it is alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

import linnet.torch

from ..models import tiny

VOCAB = int(tiny.SIZES["Vocab"])
LONGEST = 48
PAGE = 4
PAGED = ("prefill_paged", "decode_paged", "step_paged")
ROWS = ("forward", "prefill_packed", "prefill_slots", "decode_rows", "step_packed")
CLOSE = 1e-4
"""Two logits so near to each other may change places with the shape of a pass."""


def decoder(seed: int = 0, **sizes: int | str) -> Any:
    """A llama of these sizes of caches; a seed other than 0 has other weights."""
    weights = {name: x.copy() for name, x in tiny.weights().items()}  # a test may write into them
    if seed:
        draw = np.random.default_rng(seed)
        for name in ("lm_head.weight", "model.embed_tokens.weight"):
            weights[name] = 0.2 * draw.standard_normal(weights[name].shape).astype(np.float32)
    generics, paged = {**tiny.SIZES, **sizes}, "PageSize" in sizes
    entries = PAGED if paged else ROWS
    return linnet.torch.load(
        tiny.FAMILY, generics=generics, bindings=tiny.NAMES, weights=weights, entries=entries
    )


@cache
def pool(pages: int, size: int = PAGE) -> Any:
    """A decoder with a pool of so many pages, besides the one that is nobody's."""
    return decoder(Batch=1, MaxSeq=(pages + 1) * size, PageSize=size)


@cache
def rows(count: int) -> Any:
    """A decoder with so many rows."""
    return decoder(Batch=count, MaxSeq=LONGEST)


@cache
def _whole(seed: int, kept: str) -> Any:
    """Any decoder of these weights: whole sequences use no cache."""
    plain = not seed and kept == "f32"
    return rows(3) if plain else decoder(seed, Batch=3, MaxSeq=LONGEST, Kv=kept)


@cache
def lone_logits(seed: int, *tokens: int, kept: str = "f32") -> np.ndarray:
    """The logits [len(tokens), Vocab] after each of the tokens, of one whole pass."""
    given = torch.tensor([tokens], dtype=torch.int32)
    with torch.inference_mode():
        return np.asarray(_whole(seed, kept).run_entry("forward", [given])[0].numpy())


def greedy(prompt: Sequence[int], answer: Sequence[int], seed: int = 0, kept: str = "f32") -> None:
    """Each token of the answer is the one that the model alone finds likeliest.

    Its keys and values are `kept` in a dtype.
    Up to where its two best logits are within CLOSE of each other: there either may follow.
    """
    logits = lone_logits(seed, *prompt, *answer, kept=kept)[len(prompt) - 1 : -1]
    for row, token in zip(logits, answer, strict=True):
        if row.argmax() != token:
            assert row.max() - row[token] < CLOSE, (token, row.argmax())
            return
