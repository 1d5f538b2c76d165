"""Which dtypes an operator may be computed in: those for which the runtime's CPU has a kernel.

Found by asking ONNX Runtime 1.32 (`tests/backends/test_onnx_operators.py` asks again). Floats of 16
bits are computed in f32 and rounded once: the runtime would, but says nothing about roundings.
"""

from __future__ import annotations

from linnet.types import DTYPES, DType

_INTEGERS = "i8 i16 i32 i64 u8 u16 u32 u64"
_FLOATS = "f32 f64"
_MOVED = f"bool {_INTEGERS} f16 bf16 {_FLOATS}"

KERNELS: dict[str, str] = {
    **dict.fromkeys(("Add", "Sub", "Mul"), f"{_INTEGERS} {_FLOATS}"),
    # i8, i16 and i32 have a wider dtype to divide in, where the lowest by -1 is a number.
    "Div": f"i64 u8 u16 u32 u64 {_FLOATS}",
    "Mod": _FLOATS,
    **dict.fromkeys(("Min", "Max"), f"i8 i32 i64 u8 u32 u64 {_FLOATS}"),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"), _INTEGERS),
    **dict.fromkeys(("And", "Or", "Xor", "Not"), "bool"),
    "BitShift": "u64",
    "Equal": f"bool {_INTEGERS} {_FLOATS}",
    **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual"), f"{_INTEGERS} {_FLOATS}"),
    "Neg": f"i8 i32 i64 {_FLOATS}",
    "Abs": f"{_INTEGERS} {_FLOATS}",
    **dict.fromkeys(("Exp", "Log", "Sqrt", "Sin", "Cos", "Tanh", "Reciprocal"), _FLOATS),
    "IsNaN": _FLOATS,
    "Clip": "i64 u64",
    "Where": f"i8 i32 i64 u8 u32 {_FLOATS}",
    "Expand": f"bool {_INTEGERS} f16 {_FLOATS}",
    # Those of integers are summed in floats.
    **dict.fromkeys(("ReduceSum", "ReduceProd"), _FLOATS),
    # Those of bools end where there are none.
    **dict.fromkeys(("ReduceMax", "ReduceMin"), f"i8 i32 i64 u8 {_FLOATS}"),
    "MatMul": f"i32 i64 {_FLOATS}",
    "Range": "i64",
    **dict.fromkeys(
        (
            *("Reshape", "Transpose", "Slice", "Concat", "Gather", "GatherND"),
            *("ScatterND", "ScatterElements", "Identity"),
        ),
        _MOVED,
    ),
}
TABLE = {kind: frozenset(names.split()) for kind, names in KERNELS.items()}

# Where a dtype has no kernel: what holds its values, or (u64 in i64) its bits.
_WIDER: dict[str, tuple[str, ...]] = {
    "bool": ("u8",),
    **dict.fromkeys(("i8", "i16", "u8", "u16"), ("i32", "i64")),
    **dict.fromkeys(("i32", "u32", "u64"), ("i64",)),
    **dict.fromkeys(("f16", "bf16"), ("f32",)),
}


def computed_in(kind: str, dtype: DType) -> DType:
    """The dtype in which the operator is computed for values of this one.

    For u64 that may be i64, which has the same sums, products and bits, and another order.
    """
    known = TABLE[kind]
    for name in (dtype.name, *_WIDER.get(dtype.name, ())):
        if name in known:
            return DTYPES[name]
    raise KeyError(f"{kind} of {dtype}")
