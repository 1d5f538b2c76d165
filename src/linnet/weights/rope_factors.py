"""The settings behind the factors of rotary frequencies that a GGUF file holds as a tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from linnet.weights.arrays import Array

# The converter works in f32: what it computes of the same settings agrees this far.
_NEAR = 1e-4
_ORIGINALS = (8192, *(1 << k for k in range(4, 21)))


def scaling_of(
    factors: Array, theta: float, turning: int, original: int | None = None
) -> dict[str, Any] | None:
    """The `rope_scaling` that gives these factors: empty where they are 1, None where none does.

    Only where frequencies lie between the two limits can the limits be told; settings that give
    the same factors are as good. `turning` is the width that rotates.
    """
    if factors.shape != (turning // 2,) or not np.isfinite(factors).all() or (factors < 0.5).any():
        return None
    wide = factors.astype(np.float64)
    if np.allclose(wide, 1.0, rtol=_NEAR, atol=0):
        return {}
    if np.allclose(wide, wide[0], rtol=_NEAR, atol=0):
        return {"rope_type": "linear", "factor": _rounded(float(wide[0]))}
    waves = 2 * math.pi * theta ** (np.arange(0, turning, 2) / turning)
    factor = _rounded(float(wide.max()))
    known = (original,) if original else _ORIGINALS
    for length in known:
        settings = _settings(factor, 1.0, 4.0, length)
        if np.allclose(_factors(settings, waves), wide, rtol=_NEAR, atol=0):
            return settings
    fitted = _fitted(wide, waves, factor)
    if fitted and np.allclose(_factors(fitted, waves), wide, rtol=_NEAR, atol=0):
        return fitted
    return None


def _settings(factor: float, low: float, high: float, original: int) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _factors(settings: Mapping[str, Any], waves: Array) -> Array:
    """What long waves are divided by, short ones not, and those between by a part of it."""
    low, high = settings["low_freq_factor"], settings["high_freq_factor"]
    turns = settings["original_max_position_embeddings"] / waves
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    factors: Array = 1 / ((1 - share) / settings["factor"] + share)
    return factors


def _fitted(factors: Array, waves: Array, factor: float) -> dict[str, Any] | None:
    """The shares grow evenly with the frequency: a line through them gives both limits.

    A length and two limits stand for two numbers: the lower limit is 1 here.
    """
    shares = (1 / factors - 1 / factor) / (1 - 1 / factor)
    between = (shares > 1e-3) & (shares < 1 - 1e-3)
    if between.sum() == 1:
        return _settings(factor, 1.0, 4.0, round(float((waves * (3 * shares + 1))[between][0])))
    if not between.any():
        # Any limits will do that have no wave between them.
        short, long = waves[shares > 0.5].max(initial=1.0), waves[shares < 0.5].min()
        return _settings(factor, 1.0, long / short * 0.999, max(1, math.floor(long)))
    slope, offset = np.polyfit(1 / waves[between], shares[between], 1)
    if slope <= 0 or offset >= 0:
        return None
    spread = -1 / offset
    return _settings(factor, 1.0, _rounded(1 + spread), max(1, round(slope * spread)))


def _rounded(number: float) -> float:
    """The nearest short number where it is one within the converter's accuracy."""
    short = round(number, 3)
    return short if abs(short - number) <= _NEAR * number else number
