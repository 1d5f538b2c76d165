"""Numbers to blocks of few bits: Q4_0 and Q8_0 as GGML defines them, bit for bit.

A block is 32 numbers of one row and an f16 scale. Rows are taken in pieces that stay in a
processor's cache, so the f32 form of a matrix never stands beside its blocks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from linnet.weights.arrays import Array
from linnet.weights.dequantise import PIECE

BLOCK = 32
_WIDTHS = {"Q4_0": 18, "Q8_0": 34}


def quantise(matrix: Array, encoding: str) -> Array:
    """The rows of a matrix of any float dtype as blocks: bytes, a row for each of its own."""
    rows, columns = matrix.shape
    result = np.empty((rows, columns // BLOCK * _WIDTHS[encoding]), np.uint8)
    step = max(1, PIECE // max(1, columns))
    pack = _PACK[encoding]
    for start in range(0, rows, step):
        piece = np.ascontiguousarray(matrix[start : start + step], np.float32)
        blocks = piece.reshape(-1, BLOCK)
        # Numbers that are none have no block: the file's business, not a warning.
        with np.errstate(all="ignore"):
            packed = pack(blocks)
        result[start : start + step] = packed.reshape(len(piece), -1)
    return result


def _q4_0(blocks: Array) -> Array:
    """The number farthest from 0 is -8 times the scale; two numbers a byte, 16 apart."""
    at = np.abs(blocks).argmax(axis=1)[:, None]
    scale = np.take_along_axis(blocks, at, axis=1) / np.float32(-8)
    levels = blocks * _inverse(scale)
    levels += np.float32(8.5)
    whole = np.trunc(levels, out=levels).clip(0, 15).astype(np.uint8)
    return _joined(scale, whole[:, :16] | whole[:, 16:] << 4)


def _q8_0(blocks: Array) -> Array:
    """The number farthest from 0 is 127 times the scale, or -127 times it."""
    scale = np.abs(blocks).max(axis=1)[:, None] / np.float32(127)
    levels = blocks * _inverse(scale)
    whole = np.trunc(levels)
    # To the nearest, halves away from 0; the rest and its double are exact.
    whole += np.trunc((levels - whole) * 2)
    return _joined(scale, whole.astype(np.int8).view(np.uint8))


def _inverse(scale: Array) -> Array:
    return np.where(scale == 0, np.float32(0), np.float32(1) / scale)


def _joined(scale: Array, levels: Array) -> Array:
    return np.concatenate([scale.astype(np.float16).view(np.uint8), levels], axis=1)


_PACK: dict[str, Callable[[Array], Array]] = {"Q4_0": _q4_0, "Q8_0": _q8_0}
