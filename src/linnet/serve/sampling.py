"""Logits to a token: greedy, or sampled with noise that depends on nothing but the request.

The noise for a token is a hash of (seed, position, token id), so that neither the neighbours in a
batch nor the backend change what is drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from linnet.serve.request import Sampling as Sampling

Array = npt.NDArray[Any]


def lowbias32(x: Array) -> Array:
    """A bijective hash of 32-bit words with low bias (C. Wellons, hash prospector, 2018)."""
    x = x.astype(np.uint32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    x = x ^ (x >> np.uint32(16))
    return x


def gumbel(key: int, position: int, count: int) -> Array:
    """Gumbel noise for token ids 0 .. count-1 at a position, f32 [count]."""
    mixed = lowbias32(np.array([position & 0xFFFFFFFF], np.uint32) ^ lowbias32(np.array([key])))
    words = lowbias32(np.arange(count, dtype=np.uint32) ^ mixed)
    uniform = ((words >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2**-23)
    return np.asarray(-np.log(-np.log(uniform)), np.float32)


def draw_numpy(logits: Array, sampling: Sampling, position: int) -> int:
    """The next token from f32 logits [Vocab]; ties go to the lowest id."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    scaled = logits.astype(np.float32) / np.float32(sampling.temperature)
    kept = _kept(scaled, sampling)
    noisy = np.where(kept, scaled + gumbel(sampling.key, position, len(scaled)), -np.inf)
    return int(noisy.argmax())


def _kept(scaled: Array, sampling: Sampling) -> Array:
    kept = np.ones(len(scaled), np.bool_)
    if sampling.top_k and sampling.top_k < len(scaled):
        order = np.argsort(-scaled, kind="stable")
        kept[order[sampling.top_k :]] = False
    if sampling.top_p < 1:
        order = np.argsort(np.where(kept, -scaled, np.inf), kind="stable")
        chances = np.exp(scaled[order] - scaled[order[0]]) * kept[order]
        before = np.cumsum(chances) - chances
        kept[order[before >= sampling.top_p * chances.sum()]] = False
    return kept
