"""Quantised blocks widened to numbers, bit for bit as the package `gguf` does it, and faster.

The types that published files use are unpacked here: a few passes over contiguous bytes, in
pieces that stay in a processor's cache. What is left (ternary, MXFP4, the IQ types with their
tables) goes through the package's own functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from linnet.weights.arrays import Array

# Elements widened at once: their f32 form fits a second-level cache, and the f32 form of a large
# tensor never stands beside its rounded one.
PIECE = 1 << 17

Unpack = Callable[[Array, Array], None]
"""Fills f32 blocks [n, block] from the bytes of n blocks [n, width]."""


def dequantise(data: Array, encoding: str, result: Array) -> None:
    """`result`, flat and of any float dtype, holds what the bytes encode, rounded once at most."""
    block, width = GGML_QUANT_SIZES[GGMLQuantizationType[encoding]]
    unpack = _UNPACK.get(encoding) or _by_library(encoding)
    blocks = data.reshape(-1, width)
    numbers = result.reshape(-1, block)
    step = max(1, PIECE // block)
    scratch = np.empty((min(step, len(blocks)), block), np.float32)
    # Scales that are no numbers give numbers that are none: the file's business, not a warning.
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            piece = blocks[start : start + step]
            target = numbers[start : start + step]
            wide = target if target.dtype == np.float32 else scratch[: len(piece)]
            unpack(piece, wide)
            if wide is not target:
                target[...] = wide


@cache
def can_dequantise(encoding: str) -> bool:
    """There is a way from the encoding's blocks to numbers."""
    if encoding in _UNPACK:
        return True
    scheme = GGMLQuantizationType[encoding]
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[scheme][1]), np.uint8), scheme)
    except NotImplementedError:
        return False
    return True


def _by_library(encoding: str) -> Unpack:
    scheme = GGMLQuantizationType[encoding]

    def unpack(blocks: Array, out: Array) -> None:
        # Its own pieces are sixteen rows: one long row is done at once.
        out[...] = dequantize(blocks.reshape(1, -1), scheme).reshape(out.shape)

    return unpack


# --- parts of blocks --------------------------------------------------------------------------


def _half(blocks: Array, at: int) -> Array:
    """The f16 number at a byte of every block, in f32: [n, 1]."""
    pairs = np.ascontiguousarray(blocks[:, at : at + 2])
    return pairs.view(np.float16).astype(np.float32)


def _nibbles(packed: Array, run: int) -> Array:
    """The low halves of each `run` bytes, then their high halves: [n, 2 * packed bytes]."""
    packed = np.ascontiguousarray(packed)
    n = len(packed)
    # Runs are moved as wholes: a run of 16 bytes is one complex number, and copying looks at none.
    whole = np.dtype(np.complex128)
    halves = np.empty((n, packed.shape[1] // run, 2, run), np.uint8)
    runs = halves.view(whole)
    runs[:, :, 0] = (packed & 15).view(whole).reshape(n, -1, run // 16)
    runs[:, :, 1] = (packed >> 4).view(whole).reshape(n, -1, run // 16)
    return halves.reshape(n, -1)


def _bits(packed: Array) -> Array:
    """Every bit of the bytes as a byte, lowest first: [n, 8 * packed bytes]."""
    return np.unpackbits(np.ascontiguousarray(packed), axis=1, bitorder="little")


def _quarters(packed: Array, run: int) -> Array:
    """The lowest two bits of each `run` bytes, then the next two, ...: [n, 4 * packed bytes]."""
    packed = np.ascontiguousarray(packed)
    n = len(packed)
    whole = np.dtype(np.complex128)
    parts = np.empty((n, packed.shape[1] // run, 4, run), np.uint8)
    runs = parts.view(whole)
    for k in range(4):
        part = (packed >> (2 * k)) & 3
        runs[:, :, k] = part.view(whole).reshape(n, -1, run // 16)
    return parts.reshape(n, -1)


def _planes(packed: Array) -> Array:
    """Bit 0 of all 32 bytes of a block, then bit 1, ...: [n, 256]."""
    packed = np.ascontiguousarray(packed)
    planes = np.empty((len(packed), 8, 32), np.uint8)
    for k in range(8):
        planes[:, k] = (packed >> k) & 1
    return planes.reshape(len(packed), 256)


def _six_bit_scales(packed: Array) -> tuple[Array, Array]:
    """Eight scales and eight minima of 6 bits, in the 12 bytes of Q4_K and Q5_K."""
    low, mid, high = (packed[:, k : k + 4] for k in (0, 4, 8))
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 2) & 48)], axis=1)
    minima = np.concatenate([mid & 63, (high >> 4) | ((mid >> 2) & 48)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _scale(out: Array, scales: Array, minima: Array | None = None) -> None:
    """Each part of the blocks is multiplied by its scale, and its minimum taken off."""
    parts = out.reshape(scales.size, -1)
    np.multiply(scales.reshape(-1, 1), parts, out=parts)
    if minima is not None:
        np.subtract(parts, minima.reshape(-1, 1), out=parts)


# --- the types --------------------------------------------------------------------------------


def _q4_0(blocks: Array, out: Array) -> None:
    quants = _nibbles(blocks[:, 2:], 16).view(np.int8)
    quants -= 8
    out[...] = quants
    _scale(out, _half(blocks, 0))


def _q4_1(blocks: Array, out: Array) -> None:
    out[...] = _nibbles(blocks[:, 4:], 16)
    _scale(out, _half(blocks, 0))
    np.add(out, _half(blocks, 2), out=out)


def _five_bits(blocks: Array, at: int) -> Array:
    quants = _nibbles(blocks[:, at + 4 :], 16)
    quants |= _bits(blocks[:, at : at + 4]) << 4
    return quants


def _q5_0(blocks: Array, out: Array) -> None:
    quants = _five_bits(blocks, 2).view(np.int8)
    quants -= 16
    out[...] = quants
    _scale(out, _half(blocks, 0))


def _q5_1(blocks: Array, out: Array) -> None:
    out[...] = _five_bits(blocks, 4)
    _scale(out, _half(blocks, 0))
    np.add(out, _half(blocks, 2), out=out)


def _q8_0(blocks: Array, out: Array) -> None:
    out[...] = np.ascontiguousarray(blocks[:, 2:]).view(np.int8)
    _scale(out, _half(blocks, 0))


def _q2_k(blocks: Array, out: Array) -> None:
    out[...] = _quarters(blocks[:, 16:80], 32)
    scales = (blocks[:, :16] & 15).astype(np.float32)
    minima = (blocks[:, :16] >> 4).astype(np.float32)
    _scale(out, _half(blocks, 80) * scales, _half(blocks, 82) * minima)


def _q3_k(blocks: Array, out: Array) -> None:
    quants = _quarters(blocks[:, 32:96], 32)
    quants |= _planes(blocks[:, :32]) << 2
    signed = quants.view(np.int8)
    signed -= 4
    out[...] = signed
    low, high = blocks[:, 96:104], blocks[:, 104:108]
    scales = np.concatenate([low & 15, low >> 4], axis=1)
    scales |= np.concatenate([(high >> k & 3) << 4 for k in (0, 2, 4, 6)], axis=1)
    offset = (scales.view(np.int8) - 32).astype(np.float32)
    _scale(out, _half(blocks, 108) * offset)


def _q4_k(blocks: Array, out: Array) -> None:
    out[...] = _nibbles(blocks[:, 16:], 32)
    scales, minima = _six_bit_scales(blocks[:, 4:16])
    _scale(out, _half(blocks, 0) * scales, _half(blocks, 2) * minima)


def _q5_k(blocks: Array, out: Array) -> None:
    quants = _nibbles(blocks[:, 48:], 32)
    quants |= _planes(blocks[:, 16:48]) << 4
    out[...] = quants
    scales, minima = _six_bit_scales(blocks[:, 4:16])
    _scale(out, _half(blocks, 0) * scales, _half(blocks, 2) * minima)


def _q6_k(blocks: Array, out: Array) -> None:
    quants = _nibbles(blocks[:, :128], 64)
    quants |= _quarters(blocks[:, 128:192], 32) << 4
    signed = quants.view(np.int8)
    signed -= 32
    out[...] = signed
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    _scale(out, _half(blocks, 208) * scales)


_UNPACK: dict[str, Unpack] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
