"""Weights stored in fewer bits, as the floats that transformers has in their place, and back."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from linnet.weights.arrays import DTYPES, Array

_BLOCKS, _SCALES, _SCALE = "_blocks", "_scales", "_scale"
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_LARGEST_FP8 = 448.0


def own_name(name: str, names: Collection[str]) -> str | None:
    """What transformers calls the tensor whose values `name` holds; None where it holds scales."""
    if name.endswith(_BLOCKS) and name.removesuffix(_BLOCKS) + _SCALES in names:
        return name.removesuffix(_BLOCKS)
    if name.endswith(_SCALES) and name.removesuffix(_SCALES) + _BLOCKS in names:
        return None
    if name.endswith(_SCALE) and name.removesuffix(_SCALE) in names:
        return None
    return name


def values(name: str, names: Collection[str], read: Callable[[str, str], Array]) -> Array:
    """The f32 values that `name` and its scales hold, with transformers' axes."""
    if name.endswith(_BLOCKS):
        scales = name.removesuffix(_BLOCKS) + _SCALES
        return _from_mxfp4(read(name, "u8"), read(scales, "u8"))
    if name + _SCALE in names:
        scale = read(name + _SCALE, "f32")
        return read(name, "f32") * scale.reshape(-1, 1)
    return read(name, "f32")


def stored(name: str, names: Collection[str], array: Array) -> dict[str, Array]:
    """The tensors that hold the f32 values as nearly as their form can."""
    if name.endswith(_BLOCKS):
        blocks, scales = _to_mxfp4(array)
        return {name: blocks, name.removesuffix(_BLOCKS) + _SCALES: scales}
    if name + _SCALE in names:
        scale = (np.abs(array).max(1, keepdims=True) / _LARGEST_FP8).astype(DTYPES["bf16"])
        return {
            name: (array / scale.astype(np.float32)).astype(DTYPES["f8_e4m3"]),
            name + _SCALE: scale,
        }
    return {name: array}


def _from_mxfp4(blocks: Array, scales: Array) -> Array:
    """`[E, In, Out]`, as transformers has an expert's matrix."""
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*scales.shape, 32)
    numbers = np.concatenate([_E2M1, -_E2M1])[codes]
    scaled = np.ldexp(numbers, scales.astype(np.int32)[..., None] - 127)
    return np.ascontiguousarray(scaled.reshape(*scales.shape[:2], -1).swapaxes(1, 2))


def _to_mxfp4(array: Array) -> tuple[Array, Array]:
    """The bytes and scales of `[E, In, Out]`, each number the nearest of its block's."""
    turned = array.swapaxes(1, 2)
    groups = turned.reshape(*turned.shape[:2], -1, 32)
    largest = np.maximum(np.abs(groups).max(-1), np.float32(2.0**-60))
    exponent = np.floor(np.log2(largest)).astype(np.int32) - 2
    scaled = np.ldexp(groups, -exponent[..., None])
    nearest = np.abs(np.abs(scaled)[..., None] - _E2M1).argmin(-1)
    codes = (nearest + 8 * (scaled < 0)).astype(np.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4, (exponent + 127).astype(np.uint8)
