"""Types of the language: dtypes, tensors, tuples, optionals, structs, enums, blocks.

Shapes hold `Dim`s and packs in the names of the generics in scope. Declarations appear as opaque
`decl` objects (syntax nodes, compared by identity), so that this layer knows no syntax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from linnet.dims import Dim


@dataclass(frozen=True, slots=True)
class DType:
    """A concrete element type; `kind` is bool, int, uint or float."""

    name: str
    kind: str
    bits: int

    def __str__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")


BOOL = DType("bool", "bool", 8)
I8, I16, I32, I64 = (DType(f"i{b}", "int", b) for b in (8, 16, 32, 64))
U8, U16, U32, U64 = (DType(f"u{b}", "uint", b) for b in (8, 16, 32, 64))
F16, BF16 = DType("f16", "float", 16), DType("bf16", "float", 16)
F32, F64 = DType("f32", "float", 32), DType("f64", "float", 64)
DTYPES: dict[str, DType] = {
    d.name: d for d in (BOOL, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64)
}

# Which concrete dtypes a generic of each dtype kind may stand for.
DTYPE_KINDS: dict[str, frozenset[DType]] = {
    "DType": frozenset(DTYPES.values()),
    "Numeric": frozenset(d for d in DTYPES.values() if d is not BOOL),
    "Integer": frozenset(d for d in DTYPES.values() if d.is_integer),
    "Float": frozenset(d for d in DTYPES.values() if d.is_float),
}


@dataclass(frozen=True, slots=True)
class DTypeVar:
    """A dtype generic; `kind` is DType, Numeric, Integer or Float."""

    name: str
    kind: str

    def __str__(self) -> str:
        return self.name


AnyDType = DType | DTypeVar


def dtype_within(dtype: AnyDType, kind: str) -> bool:
    """Every dtype that `dtype` may be belongs to `kind`."""
    own = {dtype} if isinstance(dtype, DType) else DTYPE_KINDS[dtype.kind]
    return own <= DTYPE_KINDS[kind]


@dataclass(frozen=True, slots=True)
class Pack:
    """A shape generic: zero or more axes."""

    name: str

    def __str__(self) -> str:
        return f"*{self.name}"


Axis = Dim | Pack
Shape = tuple[Axis, ...]


def shape_text(shape: Shape) -> str:
    """`[B, *S, 2 * H]`."""
    return "[" + ", ".join(str(a) for a in shape) + "]"


def element_count(shape: Shape) -> Dim:
    """The product of the axes; a pack counts as the name `*S`."""
    count = Dim.of(1)
    for axis in shape:
        count = count * (Dim.of(str(axis)) if isinstance(axis, Pack) else axis)
    return count


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor; rank 0 is a scalar."""

    shape: Shape
    dtype: AnyDType

    def __str__(self) -> str:
        if not self.shape:
            return str(self.dtype)
        return f"Tensor[{', '.join(map(str, self.shape))}; {self.dtype}]"


@dataclass(frozen=True, slots=True)
class TupleType:
    items: tuple[Type, ...]

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.items))
        return f"({inner},)" if len(self.items) == 1 else f"({inner})"


@dataclass(frozen=True, slots=True)
class OptionalType:
    of: Type

    def __str__(self) -> str:
        return f"{self.of}?"


def values_within(type: Type) -> int:
    """How many values a tuple holds, those of the tuples in it counted one by one."""
    match type:
        case TupleType(items):
            return sum(map(values_within, items))
        case OptionalType(of):
            return values_within(of)
        case _:
            return 1


# What a generic may be bound to: a dimension, the axes of a pack, a dtype.
GenericValue = Dim | Shape | DType | DTypeVar
Bindings = Mapping[str, GenericValue]


def generic_text(value: GenericValue) -> str:
    return shape_text(value) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True, slots=True)
class StructType:
    """`fields` are written out in what a lowered function takes and returns, for its callers."""

    decl: object
    name: str
    args: tuple[GenericValue, ...]
    fields: tuple[tuple[str, Type], ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return self.name + (f"<{', '.join(map(generic_text, self.args))}>" if self.args else "")


@dataclass(frozen=True, slots=True)
class EnumType:
    decl: object
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class BlockType:
    """An instance of a block: a component, never a value."""

    decl: object
    name: str
    args: tuple[GenericValue, ...]

    def __str__(self) -> str:
        return self.name + (f"<{', '.join(map(generic_text, self.args))}>" if self.args else "")


@dataclass(frozen=True, slots=True)
class BlockArray:
    of: BlockType
    length: Dim

    def __str__(self) -> str:
        return f"[{self.of}; {self.length}]"


@dataclass(frozen=True, slots=True)
class IntConst:
    """A compile-time integer: an integer literal, a `Dim`, arithmetic over them.

    Takes any numeric dtype that the context asks for; usable in shapes.
    """

    value: Dim

    def __str__(self) -> str:
        return f"the integer {self.value}"


@dataclass(frozen=True, slots=True)
class FloatConst:
    """A float literal, or a constant expression of them: takes any float dtype."""

    value: float

    def __str__(self) -> str:
        return f"the number {self.value!r}"


@dataclass(frozen=True, slots=True)
class NoneType:
    """`none` before its context says of what."""

    def __str__(self) -> str:
        return "none"


@dataclass(frozen=True, slots=True)
class ShapeType:
    """A shape literal such as `[B, S]`, an argument of `reshape` and its like."""

    shape: Shape

    def __str__(self) -> str:
        return shape_text(self.shape)


@dataclass(frozen=True, slots=True)
class UnknownType:
    """The type of what was already reported: compatible with everything, silent."""

    def __str__(self) -> str:
        return "an unknown type"


UNKNOWN = UnknownType()

Type = (
    TensorType
    | TupleType
    | OptionalType
    | StructType
    | EnumType
    | BlockType
    | BlockArray
    | IntConst
    | FloatConst
    | NoneType
    | ShapeType
    | UnknownType
)


def scalar(dtype: AnyDType) -> TensorType:
    return TensorType((), dtype)


# ---------------------------------------------------------------- substitution


def substitute_shape(shape: Shape, bindings: Bindings) -> Shape:
    """The shape with generics replaced; a bound pack spreads its axes."""
    out: list[Axis] = []
    dims = dim_bindings(bindings)
    for axis in shape:
        if isinstance(axis, Pack):
            value = bindings.get(axis.name, axis)
            assert isinstance(value, (tuple, Pack)), (axis, value)
            out.extend(value if isinstance(value, tuple) else (value,))
        else:
            out.append(axis.substitute(dims) if dims else axis)
    return tuple(out)


def dim_bindings(bindings: Bindings) -> dict[str, Dim]:
    """The dimensions among the bindings; a pack contributes its element count as `*S`."""
    out: dict[str, Dim] = {}
    for name, value in bindings.items():
        if isinstance(value, Dim):
            out[name] = value
        elif isinstance(value, tuple):
            out[f"*{name}"] = element_count(value)
    return out


def substitute_dtype(dtype: AnyDType, bindings: Bindings) -> AnyDType:
    if isinstance(dtype, DTypeVar):
        value = bindings.get(dtype.name, dtype)
        assert isinstance(value, (DType, DTypeVar)), (dtype, value)
        return value
    return dtype


def substitute_generic(value: GenericValue, bindings: Bindings) -> GenericValue:
    match value:
        case Dim():
            return value.substitute(dim_bindings(bindings))
        case tuple():
            return substitute_shape(value, bindings)
        case DType() | DTypeVar():
            return substitute_dtype(value, bindings)


def substitute(type: Type, bindings: Bindings) -> Type:
    """The type with generics replaced by their values."""
    if not bindings:
        return type
    match type:
        case TensorType(shape, dtype):
            return TensorType(substitute_shape(shape, bindings), substitute_dtype(dtype, bindings))
        case TupleType(items):
            return TupleType(tuple(substitute(t, bindings) for t in items))
        case OptionalType(of):
            return OptionalType(substitute(of, bindings))
        case StructType(decl, name, args):
            return StructType(decl, name, tuple(substitute_generic(a, bindings) for a in args))
        case BlockType(decl, name, args):
            return BlockType(decl, name, tuple(substitute_generic(a, bindings) for a in args))
        case BlockArray(of, length):
            element = substitute(of, bindings)
            assert isinstance(element, BlockType)
            return BlockArray(element, length.substitute(dim_bindings(bindings)))
        case IntConst(value):
            return IntConst(value.substitute(dim_bindings(bindings)))
        case ShapeType(shape):
            return ShapeType(substitute_shape(shape, bindings))
        case EnumType() | FloatConst() | NoneType() | UnknownType():
            return type
