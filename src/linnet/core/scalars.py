"""One element in pure Python: what a constant is in its dtype."""

from __future__ import annotations

import math
import struct

from linnet.types import DType

# Significant bits and the exponent of the smallest normal number.
_FLOATS: dict[str, tuple[int, int, float]] = {
    "f16": (11, -14, 65504.0),
    "bf16": (8, -126, math.ldexp(255.0, 120)),
    "f32": (24, -126, math.ldexp(16777215.0, 104)),
}


def round_float(value: int | float, dtype: DType) -> float:
    """The value rounded once, to nearest even, to a float dtype; too large becomes infinite."""
    if dtype.name == "f64":
        try:
            return float(value)
        except OverflowError:
            return math.copysign(math.inf, value)
    if isinstance(value, float) and not math.isfinite(value):
        return value
    if value == 0:
        return float(value)
    bits, smallest, largest = _FLOATS[dtype.name]
    if isinstance(value, int):
        shift = max(abs(value).bit_length() - bits, 0)
        rounded = math.ldexp(float(_divide_even(value, shift)), shift)
    else:
        mantissa, exponent = math.frexp(value)
        unit = max(exponent - bits, smallest - bits + 1)
        # Exact: a rounded float of at most 24 bits, scaled by a power of two.
        rounded = math.ldexp(float(round(math.ldexp(mantissa, exponent - unit))), unit)
    if abs(rounded) > largest:
        return math.copysign(math.inf, value)
    return math.copysign(rounded, value)


def _divide_even(value: int, shift: int) -> int:
    """`value / 2**shift`, to nearest even."""
    quotient, rest = divmod(value, 1 << shift)
    half = (1 << shift) >> 1
    if shift and (rest > half or (rest == half and quotient & 1)):
        quotient += 1
    return quotient


def integer_range(dtype: DType) -> tuple[int, int]:
    """The lowest and the highest value of an integer dtype."""
    if dtype.kind == "int":
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def wrap(value: int, dtype: DType) -> int:
    """The value modulo 2 to the number of bits, in the dtype's range."""
    value &= (1 << dtype.bits) - 1
    if dtype.kind == "int" and value >> (dtype.bits - 1):
        value -= 1 << dtype.bits
    return value


def bits_of(value: bool | int | float) -> bytes | int:
    """What tells two constants of one dtype apart: -0.0 and NaN are values like any other."""
    return struct.pack("<d", value) if isinstance(value, float) else int(value)
