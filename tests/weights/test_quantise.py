"""Numbers to blocks: the bytes of the package `gguf`, for any numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.weights.quantise import quantise

FORMATS = ("Q4_0", "Q8_0")


@pytest.mark.parametrize("encoding", FORMATS)
@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(-8, 4), st.integers(1, 5), st.integers(1, 4))
def test_the_bytes_are_ggmls(encoding: str, seed: int, power: int, rows: int, blocks: int) -> None:
    draw = np.random.default_rng(seed)
    matrix = draw.standard_normal((rows, blocks * 32)).astype(np.float32) * np.float32(10.0**power)
    matrix[draw.random(matrix.shape) < 0.2] = 0
    # Numbers that lie halfway between two levels, where rounding is decided.
    matrix[0, :32] = draw.integers(-127, 128, 32) / np.float32(2)
    wanted = quantize(matrix, GGMLQuantizationType[encoding])
    assert np.array_equal(quantise(matrix, encoding), wanted)


@pytest.mark.parametrize("encoding", FORMATS)
def test_edges(encoding: str) -> None:
    matrix = np.zeros((4, 64), np.float32)
    matrix[1] = 6e4  # all alike
    matrix[2, 5] = -1e-30  # a scale that f16 cannot hold
    matrix[3, ::2] = -3.0
    wanted = quantize(matrix, GGMLQuantizationType[encoding])
    assert np.array_equal(quantise(matrix, encoding), wanted)
    assert quantise(np.zeros((0, 64), np.float32), encoding).shape == (0, wanted.shape[1])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_are_widened_piece_by_piece(dtype: Any) -> None:
    matrix = np.random.default_rng(1).standard_normal((5000, 64)).astype(dtype)
    wanted = quantize(matrix.astype(np.float32), GGMLQuantizationType.Q4_0)
    assert np.array_equal(quantise(matrix, "Q4_0"), wanted)
