"""What a checkpoint holds twice: copies of tensors that must equal them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from linnet.diagnostics import NestError
from linnet.nest.card import Card
from linnet.weights import Checkpoint, TensorLocation, Weights, open_checkpoint
from linnet.weights.arrays import Array

_ROWS = 1 << 22


def settled(card: Card, weights: Weights) -> Weights:
    """The weights without the card's copies, each of which equals its original.

    Raises NestError where a copy differs: then it cannot be told which one the model reads.
    """
    stated = card.weights
    if not stated.copies:
        return weights
    checkpoint = open_checkpoint(weights)
    for copy, original in stated.copies.items():
        _compare(card, checkpoint, copy, original)
    kept = {name: at for name, at in checkpoint.tensors.items() if name not in stated.copies}
    return replace(checkpoint, tensors=kept)


def _compare(card: Card, checkpoint: Checkpoint, copy: str, original: str) -> None:
    one, other = checkpoint.tensors.get(copy), checkpoint.tensors.get(original)
    if one is None or other is None:
        return  # the copy is not there to differ, or the original is reported as missing
    if one.shape != other.shape or one.dtype != other.dtype:
        differs = f"{list(one.shape)} {one.dtype} and {list(other.shape)} {other.dtype}"
    else:
        unequal = _unequal(one, other)
        if not unequal:
            return
        differs = f"they differ in {unequal:,} of {one.nbytes:,} bytes"
    raise NestError(
        f"{card.name}: `{copy}` must equal `{original}` in {one.file}: {differs}\n"
        "  the checkpoint's configuration ties them (`tie_word_embeddings`), so which of the two "
        "the model reads cannot be told"
    )


def _unequal(one: TensorLocation, other: TensorLocation) -> int:
    """How many bytes differ; a group at a time, so that the memory stays small."""
    left, right = _bytes(one.read()), _bytes(other.read())
    groups = range(0, left.size, _ROWS)
    count = sum(int(np.count_nonzero(left[k : k + _ROWS] != right[k : k + _ROWS])) for k in groups)
    one.release()
    other.release()
    return count


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
