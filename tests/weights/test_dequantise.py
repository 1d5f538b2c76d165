"""Every quantised type, bit for bit as the package `gguf` widens it."""

from __future__ import annotations

from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from linnet.diagnostics import PlanError
from linnet.weights import read_arrays
from linnet.weights.dequantise import _UNPACK, can_dequantise, dequantise

PLAIN = {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"}
TYPES = [scheme.name for scheme in GGMLQuantizationType if scheme.name not in PLAIN]
READ = [name for name in TYPES if can_dequantise(name)]


def random_blocks(name: str, blocks: int) -> np.ndarray:
    """Bytes of any value: every bit pattern of quants and scales, infinities and NaN among them."""
    width = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    return np.random.default_rng(len(name)).integers(0, 256, (blocks, width), np.uint8)


def test_all_but_three_types_are_read() -> None:
    assert set(TYPES) - set(READ) == {"Q8_1", "Q8_K", "Q1_0"}
    assert {"Q4_1", "Q8_0", "Q5_0", "Q4_K", "Q6_K"} <= set(_UNPACK)


@pytest.mark.parametrize("name", READ)
@pytest.mark.slow
def test_bits_are_those_of_the_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = GGMLQuantizationType[name]
    data = random_blocks(name, 999)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(data, scheme)
    bits = expected.view(np.uint32)
    block = expected.shape[1]
    for piece in (1 << 17, 7 * block):
        monkeypatch.setattr("linnet.weights.dequantise.PIECE", piece)
        result = np.full(expected.size, 7, np.float32)
        dequantise(data.reshape(-1), name, result)
        # Adding two NaNs keeps the bits of either, as the processor's instruction has it.
        same = (result.reshape(expected.shape).view(np.uint32) == bits) | np.isnan(expected)
        assert same.all() and np.array_equal(np.isnan(result), np.isnan(expected).reshape(-1))
    for dtype in (ml_dtypes.bfloat16, np.float16):
        rounded = np.empty(expected.size, dtype)
        dequantise(data.reshape(-1), name, rounded)
        with np.errstate(all="ignore"):
            assert np.array_equal(
                rounded.astype(np.float32),
                expected.reshape(-1).astype(dtype).astype(np.float32),
                equal_nan=True,
            )


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_numbers_come_back_as_near_as_the_type_can(name: str) -> None:
    numbers = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    data = gguf.quants.quantize(numbers, GGMLQuantizationType[name])
    result = np.empty(numbers.size, np.float32)
    dequantise(data.reshape(-1), name, result)
    steps = {"4": 8, "5": 16, "8": 127}[name[1]]
    assert np.abs(result - numbers.reshape(-1)).max() < np.abs(numbers).max() / steps


@pytest.mark.parametrize("name", sorted(set(TYPES) - set(READ)))
def test_a_type_that_is_not_read_is_named_with_its_tensor(tmp_path: Path, name: str) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    data = random_blocks(name, 8).reshape(4, -1)
    writer.add_tensor("blk.0.attn_v.weight", data, raw_dtype=GGMLQuantizationType[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(PlanError) as caught:
        read_arrays(tmp_path / "m.gguf")
    assert f"`blk.0.attn_v.weight` is stored as {name}, an encoding that is not read" in str(
        caught.value
    )
