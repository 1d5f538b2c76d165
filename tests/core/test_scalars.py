"""Constants against tables of every 16-bit float, and against Python's integers."""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.scalars import fold_cast, holds_all, round_float, wrap
from linnet.types import BF16, BOOL, DTYPES, F16, F32, F64, I8, I32, I64, U8, U64, DType
from linnet.weights.arrays import DTYPES as ARRAYS


def table(dtype: DType) -> tuple[list[float], np.ndarray]:
    """Every finite value of a 16-bit float, ascending, and its bits."""
    bits = np.arange(2**16, dtype=np.uint16)
    with np.errstate(all="ignore"):  # signalling NaNs are among them
        values = bits.view(ARRAYS[dtype.name]).astype(np.float64)
    keep = np.isfinite(values) & ~((values == 0) & np.signbit(values))
    order = np.argsort(values[keep])
    return [float(v) for v in values[keep][order]], bits[keep][order]


TABLES = {dtype: table(dtype) for dtype in (F16, BF16)}


def nearest(value: float, dtype: DType) -> float:
    values, bits = TABLES[dtype]
    at = bisect_left(values, value)
    if at == 0 or at == len(values):
        # Beyond the last value: infinite from half a step past it.
        last = values[0] if at == 0 else values[-1]
        step = abs(last) - abs(values[1] if at == 0 else values[-2])
        return last if abs(value) < abs(last) + step / 2 else math.copysign(math.inf, value)
    below, above = values[at - 1], values[at]
    if value - below == above - value:
        return below if bits[at - 1] % 2 == 0 else above
    return below if value - below < above - value else above


REALS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-70000, 70000),
    st.floats(-(2.0**-14), 2.0**-14),
    st.integers(-(2**15), 2**15).map(lambda i: i * 2.0**-12),
)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@given(value=REALS)
def test_rounding_takes_the_nearest_value_and_the_even_one_between(
    value: float, dtype: DType
) -> None:
    assert round_float(value, dtype) == nearest(value, dtype)


@given(value=st.floats(allow_nan=False))
def test_f32_rounds_as_numpy_does(value: float) -> None:
    with np.errstate(all="ignore"):
        assert round_float(value, F32) == np.float32(value)
    assert round_float(value, F64) == value


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64], ids=str)
@given(value=st.integers(-(2**64), 2**64))
def test_integers_round_once(value: int, dtype: DType) -> None:
    rounded = round_float(value, dtype)
    if dtype in TABLES:
        values, _ = TABLES[dtype]
        if abs(value) <= values[-1]:
            best = min((values[i] for i in near(values, value)), key=lambda v: abs(int(v) - value))
            assert abs(int(rounded) - value) == abs(int(best) - value)
        return
    to = np.float32 if dtype is F32 else np.float64
    other = [np.nextafter(to(rounded), to(end)) for end in (-math.inf, math.inf)]
    assert all(abs(int(rounded) - value) <= abs(int(v) - value) for v in other)


def near(values: list[float], value: int) -> range:
    at = bisect_left(values, value)
    return range(max(at - 1, 0), min(at + 1, len(values)))


def test_signs_of_zero_and_what_is_not_finite_stay() -> None:
    for dtype in (F16, BF16, F32, F64):
        assert math.copysign(1, round_float(-0.0, dtype)) == -1
        assert math.copysign(1, round_float(-1e-320, dtype)) == -1
        assert math.isnan(round_float(math.nan, dtype))
        assert round_float(-math.inf, dtype) == -math.inf
    assert round_float(65519.99, F16) == 65504
    assert round_float(65520.0, F16) == math.inf


@given(st.integers(-(2**70), 2**70))
def test_wrapping_is_modulo_the_bits(value: int) -> None:
    for dtype in (I8, U8, I32, I64, U64):
        low = -(2 ** (dtype.bits - 1)) if dtype.kind == "int" else 0
        assert (wrap(value, dtype) - value) % 2**dtype.bits == 0
        assert low <= wrap(value, dtype) < low + 2**dtype.bits


def test_constant_casts_saturate_and_nan_is_zero() -> None:
    assert fold_cast(300.9, I8) == 127
    assert fold_cast(-300.9, I8) == -128
    assert fold_cast(-0.5, U8) == 0
    assert fold_cast(-1.5, U8) == 0
    assert fold_cast(math.inf, U64) == 2**64 - 1
    assert fold_cast(math.nan, I32) == 0
    assert fold_cast(-1.9, I32) == -1
    assert fold_cast(300, I8) == 44
    assert fold_cast(math.nan, BOOL) is True
    assert fold_cast(0.0, BOOL) is False


@pytest.mark.parametrize("narrow", list(DTYPES.values()), ids=str)
def test_a_dtype_holds_another_when_its_edges_come_back(narrow: DType) -> None:
    """By trying: the extreme and finest values of the narrow dtype are values of the wide one."""
    to = ARRAYS[narrow.name]
    if narrow is BOOL:
        probes: list[float | int | bool] = [True, False]
    elif narrow.is_float:
        tiny = {"f16": 2.0**-24, "bf16": 2.0**-133, "f32": 2.0**-149, "f64": 5e-324}[narrow.name]
        bits = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}[narrow.name]
        largest = {"f16": 65504.0, "bf16": 2.0**127, "f32": 2.0**127, "f64": 2.0**1023}
        probes = [tiny, largest[narrow.name], 2.0 - 2.0 ** (1 - bits), -0.5]
    else:
        info = np.iinfo(to)
        probes = [int(info.min), int(info.max), int(info.max) - 1]
    for wide in DTYPES.values():
        kept = all(fold_cast(p, wide) == p for p in probes)
        assert holds_all(wide, narrow) == kept, wide
