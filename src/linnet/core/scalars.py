"""One element in pure Python: what a constant is in its dtype."""

from __future__ import annotations

import math
import struct

from linnet.types import F32, F64, DType

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
    if abs(value) >= 2 * largest:
        return math.copysign(math.inf, value)
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


# ---------------------------------------------------------------- operations on constants
#
# Only what the reference computes to the last bit: f64 holds sums, products, quotients and roots
# of narrower floats closely enough that rounding them again is rounding once, and the functions
# of narrower floats in nearly every bit that is then rounded away.

Scalar = bool | int | float


def fold_unary(op: str, x: Scalar, dtype: DType) -> Scalar | None:
    """The value of the operation on a constant; None where it is left to run."""
    match op:
        case "not":
            return not x if isinstance(x, bool) else wrap(~int(x), dtype)
        case "neg":
            return -x if dtype.is_float else wrap(-int(x), dtype)
        case "abs":
            return abs(x) if dtype.is_float else wrap(abs(int(x)), dtype)
        case "sqrt":
            return round_float(math.sqrt(x), dtype) if x >= 0 else math.nan
        case "rsqrt" if x > 0:
            wide = F32 if dtype.bits == 16 else F64
            return round_float(1 / round_float(math.sqrt(x), wide), dtype)
        case "exp" | "log" | "sin" | "cos" | "tanh" if dtype.bits < 64:
            try:
                return round_float(getattr(math, op)(x), dtype)
            except (ValueError, OverflowError):
                return None
        case _:
            return None


def fold_binary(op: str, a: Scalar, b: Scalar, dtype: DType) -> Scalar | None:
    """The value of the operation on two constants; None where it is left to run."""
    if isinstance(a, bool) and isinstance(b, bool):
        return {"and": a and b, "or": a or b, "xor": a != b}.get(op)
    if op in ("min", "max") and not (math.isnan(a) or math.isnan(b)) and a != b:
        return min(a, b) if op == "min" else max(a, b)
    if isinstance(a, float) or isinstance(b, float):
        return _fold_floats(op, float(a), float(b), dtype)
    value = _fold_integers(op, a, b, dtype)
    return None if value is None else wrap(value, dtype)


def _fold_floats(op: str, a: float, b: float, dtype: DType) -> float | None:
    match op:
        case "add":
            return round_float(a + b, dtype)
        case "sub":
            return round_float(a - b, dtype)
        case "mul":
            return round_float(a * b, dtype)
        case "div" if b != 0:
            return round_float(a / b, dtype)
        case _:
            return None


def _fold_integers(op: str, a: int, b: int, dtype: DType) -> int | None:
    match op:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "div":
            return _truncated(a, b) if b else 0
        case "rem":
            return a - _truncated(a, b) * b if b else a
        case "and":
            return a & b
        case "or":
            return a | b
        case "xor":
            return a ^ b
        case "shl":
            return a << b if 0 <= b < dtype.bits else 0
        case "shr":
            return a >> b if 0 <= b < dtype.bits else -(a < 0)
        case "min" | "max":
            return a  # the two are equal
        case _:
            return None


def _truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def fold_compare(op: str, a: Scalar, b: Scalar) -> bool:
    """The comparison of two constants of one dtype."""
    return {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[op]


def fold_cast(x: Scalar, dtype: DType) -> Scalar:
    """The constant in another dtype: truncated and saturated, wrapped, rounded or `!= 0`."""
    if dtype.kind == "bool":
        return x != 0
    if dtype.is_float:
        return round_float(x, dtype)
    if not isinstance(x, float):
        return wrap(int(x), dtype)
    if math.isnan(x):
        return 0
    low, high = integer_range(dtype)
    return low if x <= low else high if x >= high else int(x)


def holds_all(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow` is a value of `wide`."""
    if wide == narrow or narrow.kind == "bool":
        return True
    if wide.kind == "bool":
        return False
    if narrow.is_float:
        sizes = {"f16": (11, 15), "bf16": (8, 127), "f32": (24, 127), "f64": (53, 1023)}
        (a, b), (c, d) = sizes.get(wide.name, (0, 0)), sizes[narrow.name]
        return a >= c and b >= d
    bits = narrow.bits - (narrow.kind == "int")
    if wide.is_float:
        return bits <= {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}[wide.name]
    low, high = integer_range(wide)
    own_low, own_high = integer_range(narrow)
    return low <= own_low and own_high <= high
