"""Tokens from a decoder, one by one; what its caches already hold is not computed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from linnet.serve.sampling import Sampling, draw_numpy

ENTRIES = ("prefill", "decode")
"""The entries of a decoder that are called."""


class Generator:
    """A decoder of one row, and the tokens whose keys and values its caches hold.

    `seen` is what the caches hold from position 0 on. It is right at any moment, also where an
    answer is broken off: positions beyond it are written again before they are read.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.seen: list[int] = []
        # Steps are all alike, so recording one pays; what is streamed from elsewhere cannot be.
        steady = getattr(getattr(model, "placement", None), "trivial", False)
        self.options = {"compile": "reduce-overhead"} if steady else {}

    def prefill(self, ids: Sequence[int]) -> torch.Tensor:
        """The logits [Vocab] after the ids; only those after the ones already seen are computed."""
        kept = shared_prefix(self.seen, ids[:-1])
        del self.seen[kept:]
        new = torch.tensor([ids[kept:]], dtype=torch.int32)
        with torch.inference_mode():
            logits = _tensor(self.model.run_entry("prefill", [new, kept]))
        self.seen = list(ids)
        return logits[0]

    def step(self, token: int) -> torch.Tensor:
        """The logits [Vocab] after one more token."""
        new = torch.tensor([[token]], dtype=torch.int32)
        with torch.inference_mode():
            logits = _tensor(self.model.run_entry("decode", [new, len(self.seen)], **self.options))
        self.seen.append(token)
        return logits[0]

    def tokens(self, ids: Sequence[int], count: int, sampling: Sampling) -> Iterator[int]:
        """The tokens that follow the ids, at most `count`."""
        logits = self.prefill(ids)
        for k in range(count):
            token = choose(logits, sampling, len(ids) + k)
            yield token
            if k + 1 < count:
                logits = self.step(token)


def _tensor(logits: Any) -> torch.Tensor:
    """PyTorch's own; another backend's array in f32."""
    if isinstance(logits, torch.Tensor):
        return logits
    return torch.from_numpy(np.array(logits, np.float32))


def choose(logits: torch.Tensor, sampling: Sampling, position: int) -> int:
    """The next token from logits [Vocab]."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    return draw_numpy(logits.float().numpy(), sampling, position)


def shared_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(one), len(other)))
