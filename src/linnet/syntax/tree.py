"""The syntax tree: one frozen dataclass per form, each with a span.

Nodes are compared and hashed by identity, so later stages key side tables by node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from linnet.source import Source, Span


@dataclass(frozen=True, eq=False, slots=True)
class Syntax:
    span: Span


@dataclass(frozen=True, eq=False, slots=True)
class Ident(Syntax):
    text: str


@dataclass(frozen=True, eq=False, slots=True)
class Path(Syntax):
    """`a.b.c`; in a `use` or `module` line, or the head of a named type."""

    parts: tuple[Ident, ...]

    @property
    def text(self) -> str:
        return ".".join(p.text for p in self.parts)


# ---------------------------------------------------------------- expressions


@dataclass(frozen=True, eq=False, slots=True)
class IntLit(Syntax):
    value: int


@dataclass(frozen=True, eq=False, slots=True)
class FloatLit(Syntax):
    value: float


@dataclass(frozen=True, eq=False, slots=True)
class StringLit(Syntax):
    value: str


@dataclass(frozen=True, eq=False, slots=True)
class BoolLit(Syntax):
    value: bool


@dataclass(frozen=True, eq=False, slots=True)
class NoneLit(Syntax):
    pass


@dataclass(frozen=True, eq=False, slots=True)
class Name(Syntax):
    """A name used as a value (or, in generic arguments, as a dimension or dtype)."""

    text: str


@dataclass(frozen=True, eq=False, slots=True)
class Paren(Syntax):
    """`(e)`, kept for the formatter."""

    value: Expr


@dataclass(frozen=True, eq=False, slots=True)
class Tuple(Syntax):
    """`(a, b)` or `(a,)` or `()`."""

    items: tuple[Expr, ...]


@dataclass(frozen=True, eq=False, slots=True)
class PackRef(Syntax):
    """`*S` in a shape, a shape literal or an access."""

    name: Ident


@dataclass(frozen=True, eq=False, slots=True)
class ShapeLit(Syntax):
    """`[a, *S, 2 * H]`: the shape argument of `reshape`, an axis order, an explicit pack."""

    items: tuple[Expr | PackRef, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Some(Syntax):
    value: Expr


@dataclass(frozen=True, eq=False, slots=True)
class Unary(Syntax):
    op: Literal["!", "-", "+"]
    value: Expr


@dataclass(frozen=True, eq=False, slots=True)
class Binary(Syntax):
    """`op` is one of || && == != < <= > >= | ^ & + - * / %."""

    op: str
    op_span: Span
    left: Expr
    right: Expr


@dataclass(frozen=True, eq=False, slots=True)
class Arg(Syntax):
    """A call argument, with its name if it was written `name = value`."""

    name: Ident | None
    value: Expr


@dataclass(frozen=True, eq=False, slots=True)
class Call(Syntax):
    """`callee<generics>(args)`; `generics` is None when no `<` was written.

    A generic argument is an expression: a dimension, a dtype name, or a ShapeLit for a pack.
    """

    callee: Expr
    generics: tuple[Expr, ...] | None
    args: tuple[Arg, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Slice(Syntax):
    """`start:stop:step` inside an index, each part optional."""

    start: Expr | None
    stop: Expr | None
    step: Expr | None


@dataclass(frozen=True, eq=False, slots=True)
class Ellipsis_(Syntax):
    """`...` inside an index."""


@dataclass(frozen=True, eq=False, slots=True)
class Index(Syntax):
    """`base[...]`: a subscript, or an access in index notation."""

    base: Expr
    items: tuple[Expr | Slice | Ellipsis_ | PackRef, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Field(Syntax):
    """`base.name`: a tuple-free member, an enum variant, a module's item or a struct field."""

    base: Expr
    name: Ident


@dataclass(frozen=True, eq=False, slots=True)
class Reduction(Syntax):
    """`sum<f32>[i, j] body`."""

    kind: Literal["sum", "prod", "max", "min", "any", "all"]
    dtype: Ident | None
    indices: tuple[Ident | PackRef, ...]
    body: Expr


@dataclass(frozen=True, eq=False, slots=True)
class If(Syntax):
    condition: Expr
    then: Expr
    other: Expr


@dataclass(frozen=True, eq=False, slots=True)
class Arm(Syntax):
    pattern: Pattern
    value: Expr


@dataclass(frozen=True, eq=False, slots=True)
class Match(Syntax):
    subject: Expr
    arms: tuple[Arm, ...]


@dataclass(frozen=True, eq=False, slots=True)
class BadExpr(Syntax):
    """What the parser could not read; already reported."""


Expr = (
    IntLit
    | FloatLit
    | StringLit
    | BoolLit
    | NoneLit
    | Name
    | Paren
    | Tuple
    | ShapeLit
    | Some
    | Unary
    | Binary
    | Call
    | Index
    | Field
    | Reduction
    | If
    | Match
    | BadExpr
)


# ---------------------------------------------------------------- patterns


@dataclass(frozen=True, eq=False, slots=True)
class NamePattern(Syntax):
    """A bare name: binds, or (in a match on an enum) names a variant."""

    name: Ident


@dataclass(frozen=True, eq=False, slots=True)
class WildcardPattern(Syntax):
    pass


@dataclass(frozen=True, eq=False, slots=True)
class TuplePattern(Syntax):
    items: tuple[Pattern, ...]


@dataclass(frozen=True, eq=False, slots=True)
class SomePattern(Syntax):
    item: Pattern


@dataclass(frozen=True, eq=False, slots=True)
class NonePattern(Syntax):
    pass


@dataclass(frozen=True, eq=False, slots=True)
class VariantPattern(Syntax):
    """`Enum.Variant` or `module.Enum.Variant`."""

    path: Path
    name: Ident


Pattern = NamePattern | WildcardPattern | TuplePattern | SomePattern | NonePattern | VariantPattern


# ---------------------------------------------------------------- types


@dataclass(frozen=True, eq=False, slots=True)
class NamedType(Syntax):
    """A dtype, a generic dtype, a struct, an enum, an alias or a block, with generic arguments."""

    path: Path
    generics: tuple[Expr, ...] | None


@dataclass(frozen=True, eq=False, slots=True)
class TensorTypeExpr(Syntax):
    shape: tuple[Expr | PackRef, ...]
    dtype: Path


@dataclass(frozen=True, eq=False, slots=True)
class TupleTypeExpr(Syntax):
    items: tuple[TypeExpr, ...]


@dataclass(frozen=True, eq=False, slots=True)
class ArrayTypeExpr(Syntax):
    """`[Block<...>; N]`."""

    element: TypeExpr
    length: Expr


@dataclass(frozen=True, eq=False, slots=True)
class OptionalTypeExpr(Syntax):
    of: TypeExpr


@dataclass(frozen=True, eq=False, slots=True)
class BadType(Syntax):
    """What the parser could not read; already reported."""


TypeExpr = NamedType | TensorTypeExpr | TupleTypeExpr | ArrayTypeExpr | OptionalTypeExpr | BadType


# ---------------------------------------------------------------- statements


@dataclass(frozen=True, eq=False, slots=True)
class Let(Syntax):
    pattern: Pattern
    type: TypeExpr | None
    value: Expr


@dataclass(frozen=True, eq=False, slots=True)
class IndexLet(Syntax):
    """`let c[m, *s] = value`: a tensor by its elements."""

    name: Ident
    outputs: tuple[Ident | PackRef, ...]
    value: Expr


@dataclass(frozen=True, eq=False, slots=True)
class Var(Syntax):
    name: Ident
    type: TypeExpr | None
    value: Expr


@dataclass(frozen=True, eq=False, slots=True)
class Assign(Syntax):
    """`name = value`, for a `var` or an own `state`."""

    name: Ident
    value: Expr


@dataclass(frozen=True, eq=False, slots=True)
class Return(Syntax):
    value: Expr | None


@dataclass(frozen=True, eq=False, slots=True)
class StaticFor(Syntax):
    """`static for name in start { }` over a sub array, or `start..stop`."""

    name: Ident
    start: Expr
    stop: Expr | None
    body: tuple[Stmt, ...]


@dataclass(frozen=True, eq=False, slots=True)
class While(Syntax):
    condition: Expr
    body: tuple[Stmt, ...]


Stmt = Let | IndexLet | Var | Assign | Return | StaticFor | While


# ---------------------------------------------------------------- items


@dataclass(frozen=True, eq=False, slots=True)
class GenericParam(Syntax):
    """`*S: Shape`, `H: Dim = A / B`, `T: Float = bf16`."""

    name: Ident
    pack: bool
    kind: Ident  # Dim | Shape | DType | Numeric | Integer | Float
    default: Expr | None


@dataclass(frozen=True, eq=False, slots=True)
class Param(Syntax):
    name: Ident
    type: TypeExpr
    default: Expr | None


@dataclass(frozen=True, eq=False, slots=True)
class Relation(Syntax):
    """A clause of a `where` list; `op` is one of == != < <= > >=."""

    left: Expr
    op: str
    right: Expr


@dataclass(frozen=True, eq=False, slots=True)
class Use(Syntax):
    """`use path` (names is None) or `use path::{names}`."""

    path: Path
    names: tuple[UseName, ...] | None


@dataclass(frozen=True, eq=False, slots=True)
class UseName(Syntax):
    name: Ident
    alias: Ident | None


@dataclass(frozen=True, eq=False, slots=True)
class Const(Syntax):
    docs: str
    public: bool
    name: Ident
    type: TypeExpr | None
    value: Expr


@dataclass(frozen=True, eq=False, slots=True)
class Alias(Syntax):
    docs: str
    public: bool
    name: Ident
    generics: tuple[GenericParam, ...]
    of: TypeExpr


@dataclass(frozen=True, eq=False, slots=True)
class StructField(Syntax):
    name: Ident
    type: TypeExpr


@dataclass(frozen=True, eq=False, slots=True)
class Struct(Syntax):
    docs: str
    public: bool
    name: Ident
    generics: tuple[GenericParam, ...]
    fields: tuple[StructField, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Enum(Syntax):
    docs: str
    public: bool
    name: Ident
    variants: tuple[Ident, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Fn(Syntax):
    """A `fn`, `op` or `entry`; free, or a method of a block."""

    docs: str
    public: bool
    kind: Literal["fn", "op", "entry"]
    name: Ident
    generics: tuple[GenericParam, ...]
    params: tuple[Param, ...]
    result: TypeExpr | None
    where: tuple[Relation, ...]
    body: tuple[Stmt, ...]
    end: Span  # the closing brace


@dataclass(frozen=True, eq=False, slots=True)
class Member(Syntax):
    """`value` is what stands after `=` (only `none` is legal)."""

    docs: str
    kind: Literal["param", "buffer", "state", "sub"]
    name: Ident
    type: TypeExpr
    value: Expr | None


@dataclass(frozen=True, eq=False, slots=True)
class Block(Syntax):
    docs: str
    public: bool
    name: Ident
    generics: tuple[GenericParam, ...]
    where: tuple[Relation, ...]
    members: tuple[Member, ...]
    methods: tuple[Fn, ...]


Item = Const | Alias | Struct | Enum | Fn | Block


@dataclass(frozen=True, eq=False, slots=True)
class Comment(Syntax):
    """`//`, `///`, `/* */` or `/** */` with its text as written; read by the formatter alone."""

    text: str


@dataclass(frozen=True, eq=False, slots=True)
class File(Syntax):
    """One file; `module` is None when the declaration is missing (already reported)."""

    source: Source
    module: Path | None
    uses: tuple[Use, ...]
    items: tuple[Item, ...]
    comments: tuple[Comment, ...]
