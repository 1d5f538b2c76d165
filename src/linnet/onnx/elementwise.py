"""Elementwise primitives in operators of ONNX, with the language's meaning at every edge.

All functions take names of values and the dtype that they have; operands broadcast as in ONNX.
"""

from __future__ import annotations

from linnet.core.scalars import integer_range
from linnet.onnx.dtypes import computed_in
from linnet.onnx.graph import ELEMENT, Writer
from linnet.types import BF16, BOOL, F32, F64, I32, I64, U64, DType

_FLOAT = {
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "sin": "Sin",
    "cos": "Cos",
    "tanh": "Tanh",
}
_PLAIN = {"add": "Add", "sub": "Sub", "mul": "Mul", "min": "Min", "max": "Max"}
_BITS = {"and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor"}
_LOGIC = {"and": "And", "or": "Or", "xor": "Xor"}
_COMPARE = {
    "eq": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}


def computed(w: Writer, kind: str, dtype: DType, *inputs: str, wish: str = "") -> str:
    """An operator on values of one dtype, which the result has too."""
    wide = computed_in(kind, dtype)
    if wide == dtype:
        return w.op(kind, *inputs, wish=wish)
    made = w.op(kind, *(w.to(x, dtype, wide) for x in inputs))
    return w.to(made, wide, dtype, wish)


def unary(w: Writer, op: str, x: str, dtype: DType, wish: str = "") -> str:
    """`op` of a value."""
    match op:
        case "not":
            return computed(w, "Not" if dtype is BOOL else "BitwiseNot", dtype, x, wish=wish)
        case "neg" if dtype.kind == "uint":
            return computed(w, "Sub", dtype, w.number(0, dtype), x, wish=wish)
        case "neg":
            return computed(w, "Neg", dtype, x, wish=wish)
        case "abs":
            return x if dtype.kind == "uint" else computed(w, "Abs", dtype, x, wish=wish)
        case "rsqrt":
            wide = computed_in("Sqrt", dtype)
            root = w.op("Sqrt", w.to(x, dtype, wide))
            made = w.op("Reciprocal", root, wish=wish if wide == dtype else "")
            return w.to(made, wide, dtype, wish)
        case _:
            return computed(w, _FLOAT[op], dtype, x, wish=wish)


def binary(
    w: Writer,
    op: str,
    a: str,
    b: str,
    dtype: DType,
    number: bool | int | float | None = None,
    wish: str = "",
) -> str:
    """`a op b`; `number` is what b is everywhere, where that is known."""
    if op in _LOGIC:
        kind = _LOGIC[op] if dtype is BOOL else _BITS[op]
        return computed(w, kind, dtype, a, b, wish=wish)
    if op in _PLAIN:
        return computed(w, _PLAIN[op], dtype, a, b, wish=wish)
    if op in ("shl", "shr"):
        return _shift(w, op, a, b, dtype, number, wish)
    if dtype.is_integer:
        return _divide(w, op, a, b, dtype, number, wish)
    if op == "div":
        return computed(w, "Div", dtype, a, b, wish=wish)
    wide = computed_in("Mod", dtype)
    made = w.op("Mod", w.to(a, dtype, wide), w.to(b, dtype, wide), fmod=1)
    return w.to(made, wide, dtype, wish)


def _divide(
    w: Writer,
    op: str,
    a: str,
    b: str,
    dtype: DType,
    number: bool | int | float | None,
    wish: str,
) -> str:
    """Toward zero; `x / 0` is 0 and `x % 0` is x.

    The runtime's kernels end the process at a divisor of 0, and i64's at the lowest by -1.
    """
    wide = I64 if dtype == I32 else computed_in("Div", dtype)
    a, b = w.to(a, dtype, wide), w.to(b, dtype, wide)
    zero, one = w.number(0, wide), w.number(1, wide)
    if number:  # known, and not 0
        if number == -1 and wide == I64:
            whole = w.op("Neg", a)
        else:
            whole = w.op("Div", a, b)
        made = whole if op == "div" else w.op("Sub", a, w.op("Mul", whole, b))
        return w.to(made, wide, dtype, wish)
    none = w.op("Equal", b, zero)
    by = select(w, none, one, b, wide)
    if dtype == I64:
        back = w.op("Equal", b, w.number(-1, wide))
        by = select(w, back, one, by, wide)
    whole = w.op("Div", a, by)
    if dtype == I64:
        whole = select(w, back, w.op("Neg", a), whole, wide)
    whole = select(w, none, zero, whole, wide)
    made = whole if op == "div" else w.op("Sub", a, w.op("Mul", whole, b))
    return w.to(made, wide, dtype, wish)


def _shift(
    w: Writer,
    op: str,
    a: str,
    b: str,
    dtype: DType,
    number: bool | int | float | None,
    wish: str,
) -> str:
    """By counts outside 0 .. bits-1 nothing is left, or the sign of what is shifted right."""
    inside = ""
    if number is None or not 0 <= number < dtype.bits:
        low = compare(w, "ge", b, w.number(0, dtype), dtype)
        inside = w.op("And", low, compare(w, "lt", b, w.number(dtype.bits, dtype), dtype))
        b = select(w, inside, b, w.number(0, dtype), dtype)
    count = w.to(b, dtype, U64)
    if op == "shl" or dtype.kind == "uint":
        direction = "LEFT" if op == "shl" else "RIGHT"
        made = w.op("BitShift", w.to(a, dtype, U64), count, direction=direction)
        made = w.to(made, U64, dtype, "" if inside else wish)
        return select(w, inside, made, w.number(0, dtype), dtype, wish) if inside else made
    own = w.to(a, dtype, I64)
    sign = w.op("Where", w.op("Less", own, w.number(0, I64)), w.number(-1, I64), w.number(0, I64))
    # Shifted as what is not negative: its own bits, or all of them the other way round.
    bits = w.to(w.op("BitwiseXor", own, sign), I64, U64)
    moved = w.to(w.op("BitShift", bits, count, direction="RIGHT"), U64, I64)
    made = w.op("BitwiseXor", moved, sign)
    if inside:
        made = w.op("Where", inside, made, sign)
    return w.to(made, I64, dtype, wish)


def compare(w: Writer, op: str, a: str, b: str, dtype: DType, wish: str = "") -> str:
    """A bool for each element."""
    if op == "ne":
        return w.op("Not", compare(w, "eq", a, b, dtype), wish=wish)
    if dtype is BOOL and op != "eq":
        wide = computed_in("Where", dtype)
    else:
        wide = computed_in(_COMPARE[op], dtype)
    return w.op(_COMPARE[op], w.to(a, dtype, wide), w.to(b, dtype, wide), wish=wish)


def select(w: Writer, c: str, a: str, b: str, dtype: DType, wish: str = "") -> str:
    """`c ? a : b`."""
    wide = computed_in("Where", dtype)
    made = w.op("Where", c, w.to(a, dtype, wide), w.to(b, dtype, wide), wish=wish)
    return w.to(made, wide, dtype, wish)


# ---------------------------------------------------------------- casts


def cast(w: Writer, x: str, own: DType, dtype: DType, wish: str = "") -> str:
    """The value in another dtype."""
    if own == dtype:
        return x
    if own.is_float and dtype.is_integer:
        return _to_integer(w, x, own, dtype, wish)
    if dtype.is_float and dtype.bits == 16:
        if own == F64:
            return _rounded_once(w, x, dtype, wish)
        if dtype == BF16 and own.is_integer and own.bits > 16:
            exact = w.op("Cast", _to_odd(w, x, own), to=ELEMENT["f64"])
            return _rounded_once(w, exact, dtype, wish)
    return w.to(x, own, dtype, wish)


def _to_integer(w: Writer, x: str, own: DType, dtype: DType, wish: str) -> str:
    """Truncated and saturated; NaN gives 0."""
    low, high = integer_range(dtype)
    wide = own if own in (F32, F64) else F32
    x = w.to(x, own, wide)
    # high + 1 is a power of two: exact as a float, as high itself may not be.
    over = w.op("GreaterOrEqual", x, w.number(float(high + 1), wide))
    under = w.op("LessOrEqual", x, w.number(float(low), wide))
    known = w.op("Or", w.op("Or", over, under), w.op("IsNaN", x))
    through = U64 if dtype == U64 else I64
    whole = w.op("Cast", w.op("Where", known, w.number(0.0, wide), x), to=ELEMENT[through.name])
    made = w.to(whole, through, dtype)
    made = select(w, over, w.number(high, dtype), made, dtype)
    return select(w, under, w.number(low, dtype), made, dtype, wish)


def _rounded_once(w: Writer, x: str, dtype: DType, wish: str) -> str:
    """f64 to 16 bits, which the operator Cast rounds to f32 on the way.

    That goes wrong where what f32 makes of x lies half way between two results: which of them is
    nearer is known from where x lies.
    """
    near = w.op("Cast", x, to=ELEMENT["f32"])
    made = w.op("Cast", near, to=ELEMENT[dtype.name])
    back = w.op("Cast", made, to=ELEMENT["f32"])
    rest = w.op("Sub", near, back)
    other = w.op("Add", back, w.op("Add", rest, rest))
    exact = w.op("Cast", w.op("Cast", other, to=ELEMENT[dtype.name]), to=ELEMENT["f32"])
    half = w.op("And", w.op("Equal", other, exact), w.op("Not", w.op("Equal", back, other)))
    left = w.op("Sub", x, w.op("Cast", near, to=ELEMENT["f64"]))
    farther = w.op(
        "Greater", w.op("Mul", left, w.op("Cast", rest, to=ELEMENT["f64"])), w.number(0.0, F64)
    )
    taken = w.op("Where", w.op("And", half, farther), other, back)
    return w.op("Cast", taken, to=ELEMENT[dtype.name], wish=wish)


def _to_odd(w: Writer, x: str, dtype: DType) -> str:
    """Integers that f64 holds, and that bf16 rounds to what it makes of x."""
    if dtype.bits < 64:
        return x
    beyond = 1 << 32
    far = w.op("GreaterOrEqual", x, w.number(beyond, dtype))
    if dtype == I64:
        far = w.op("Or", far, w.op("Less", x, w.number(-beyond, dtype)))
    rest = w.op("BitwiseAnd", x, w.number(4095, dtype))
    kept = w.op("Sub", x, rest)
    some = w.op("Not", w.op("Equal", rest, w.number(0, dtype)))
    sticky = select(w, some, w.number(2048, dtype), w.number(0, dtype), dtype)
    return select(w, far, w.op("Add", kept, sticky), x, dtype)
