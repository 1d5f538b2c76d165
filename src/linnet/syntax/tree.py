"""The syntax tree: one frozen dataclass per form, each with a span.

Nodes are compared and hashed by identity, so later stages key side tables by node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

from linnet.source import Source, Span


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Syntax:
    span: Span

    def __repr__(self) -> str:
        # Short: trees share their source, and a test's failure prints many of them.
        text = " ".join(self.span.text.split())
        return f"<{type(self).__name__} {text if len(text) <= 40 else text[:37] + '...'}>"


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Ident(Syntax):
    text: str


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Path(Syntax):
    """`a.b.c`; in a `use` or `module` line, or the head of a named type."""

    parts: tuple[Ident, ...]

    @property
    def text(self) -> str:
        return ".".join(p.text for p in self.parts)


# ---------------------------------------------------------------- expressions


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class IntLit(Syntax):
    value: int


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class FloatLit(Syntax):
    value: float


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class StringLit(Syntax):
    value: str


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class BoolLit(Syntax):
    value: bool


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class NoneLit(Syntax):
    pass


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Name(Syntax):
    """A name used as a value (or, in generic arguments, as a dimension or dtype)."""

    text: str


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Paren(Syntax):
    """`(e)`, kept for the formatter."""

    value: Expr


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Tuple(Syntax):
    """`(a, b)` or `(a,)` or `()`."""

    items: tuple[Expr, ...]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class PackRef(Syntax):
    """`*S` in a shape, a shape literal or an access."""

    name: Ident


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class ShapeLit(Syntax):
    """`[a, *S, 2 * H]`: the shape argument of `reshape`, an axis order, an explicit pack."""

    items: tuple[Expr | PackRef, ...]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Some(Syntax):
    value: Expr


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Unary(Syntax):
    op: Literal["!", "-", "+"]
    value: Expr


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Binary(Syntax):
    """`op` is one of || && == != < <= > >= | ^ & + - * / %."""

    op: str
    op_span: Span
    left: Expr
    right: Expr


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Arg(Syntax):
    """A call argument, with its name if it was written `name = value`."""

    name: Ident | None
    value: Expr


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Call(Syntax):
    """`callee<generics>(args)`; `generics` is None when no `<` was written.

    A generic argument is an expression: a dimension, a dtype name, or a ShapeLit for a pack.
    """

    callee: Expr
    generics: tuple[Expr, ...] | None
    args: tuple[Arg, ...]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Slice(Syntax):
    """`start:stop:step` inside an index, each part optional."""

    start: Expr | None
    stop: Expr | None
    step: Expr | None


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Ellipsis_(Syntax):
    """`...` inside an index."""


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Index(Syntax):
    """`base[...]`: a subscript, or an access in index notation."""

    base: Expr
    items: tuple[Expr | Slice | Ellipsis_ | PackRef, ...]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Field(Syntax):
    """`base.name`: a tuple-free member, an enum variant, a module's item or a struct field."""

    base: Expr
    name: Ident


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Reduction(Syntax):
    """`sum<f32>[i, j] body`."""

    kind: Literal["sum", "prod", "max", "min", "any", "all"]
    dtype: Ident | None
    indices: tuple[Ident | PackRef, ...]
    body: Expr


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class If(Syntax):
    condition: Expr
    then: Expr
    other: Expr


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Arm(Syntax):
    pattern: Pattern
    value: Expr


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Match(Syntax):
    subject: Expr
    arms: tuple[Arm, ...]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class For(Syntax):
    """`for name in start..stop { }`, a statement, or the whole value of one if its body yields;
    or `static for name in start { }`, over a sub array or `start..stop`."""

    static: bool
    name: Ident
    start: Expr
    stop: Expr | None
    body: tuple[Stmt, ...]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
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
    | For
    | BadExpr
)


# ---------------------------------------------------------------- patterns


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class NamePattern(Syntax):
    """A bare name: binds, or (in a match on an enum) names a variant."""

    name: Ident


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class WildcardPattern(Syntax):
    pass


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class TuplePattern(Syntax):
    items: tuple[Pattern, ...]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class SomePattern(Syntax):
    item: Pattern


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class NonePattern(Syntax):
    pass


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class VariantPattern(Syntax):
    """`Enum.Variant` or `module.Enum.Variant`."""

    path: Path
    name: Ident


Pattern = NamePattern | WildcardPattern | TuplePattern | SomePattern | NonePattern | VariantPattern


# ---------------------------------------------------------------- types


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class NamedType(Syntax):
    """A dtype, a generic dtype, a struct, an enum, an alias or a block, with generic arguments."""

    path: Path
    generics: tuple[Expr, ...] | None


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class TensorTypeExpr(Syntax):
    shape: tuple[Expr | PackRef, ...]
    dtype: Path


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class TupleTypeExpr(Syntax):
    items: tuple[TypeExpr, ...]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class ArrayTypeExpr(Syntax):
    """`[Block<...>; N]`."""

    element: TypeExpr
    length: Expr


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class OptionalTypeExpr(Syntax):
    of: TypeExpr


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class BadType(Syntax):
    """What the parser could not read; already reported."""


TypeExpr = NamedType | TensorTypeExpr | TupleTypeExpr | ArrayTypeExpr | OptionalTypeExpr | BadType


# ---------------------------------------------------------------- statements


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Let(Syntax):
    pattern: Pattern
    type: TypeExpr | None
    value: Expr


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class IndexLet(Syntax):
    """`let c[m, *s] = value`: a tensor by its elements."""

    name: Ident
    outputs: tuple[Ident | PackRef, ...]
    value: Expr


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Var(Syntax):
    name: Ident
    type: TypeExpr | None
    value: Expr


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Assign(Syntax):
    """`name = value`, for a `var` or an own `state`."""

    name: Ident
    value: Expr


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Return(Syntax):
    value: Expr | None


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class While(Syntax):
    condition: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Yield(Syntax):
    """`yield value`: what one turn of a `for` adds to its value."""

    value: Expr


Stmt = Let | IndexLet | Var | Assign | Return | For | While | Yield


# ---------------------------------------------------------------- items


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class GenericParam(Syntax):
    """`*S: Shape`, `H: Dim = A / B`, `T: Float = bf16`."""

    name: Ident
    pack: bool
    kind: Ident  # Dim | Shape | DType | Numeric | Integer | Float
    default: Expr | None


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Param(Syntax):
    name: Ident
    type: TypeExpr
    default: Expr | None


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Relation(Syntax):
    """A clause of a `where` list; `op` is one of == != < <= > >=."""

    left: Expr
    op: str
    right: Expr


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Use(Syntax):
    """`use path` (names is None) or `use path::{names}`."""

    path: Path
    names: tuple[UseName, ...] | None


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class UseName(Syntax):
    name: Ident
    alias: Ident | None


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Const(Syntax):
    docs: str
    public: bool
    name: Ident
    type: TypeExpr | None
    value: Expr


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Alias(Syntax):
    docs: str
    public: bool
    name: Ident
    generics: tuple[GenericParam, ...]
    of: TypeExpr


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class StructField(Syntax):
    """`default` is what stands after `=` (only `none` is legal)."""

    name: Ident
    type: TypeExpr
    default: Expr | None


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Struct(Syntax):
    docs: str
    public: bool
    name: Ident
    generics: tuple[GenericParam, ...]
    where: tuple[Relation, ...]
    fields: tuple[StructField, ...]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Enum(Syntax):
    docs: str
    public: bool
    name: Ident
    variants: tuple[Ident, ...]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Fn(Syntax):
    """A `fn`, `op` or `entry`; free, or a method of a block or a trait.

    A trait's method is `required` where it has no body; a block that implements the trait has one.
    """

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
    required: bool = False


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Member(Syntax):
    """`value` is what stands after `=` (only `none` is legal)."""

    docs: str
    kind: Literal["param", "buffer", "state", "sub"]
    name: Ident
    type: TypeExpr
    value: Expr | None


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Impl(Syntax):
    """`impl Trait<...>`: a line of a block."""

    trait: TypeExpr


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Block(Syntax):
    docs: str
    public: bool
    name: Ident
    generics: tuple[GenericParam, ...]
    where: tuple[Relation, ...]
    impls: tuple[Impl, ...]
    members: tuple[Member, ...]
    methods: tuple[Fn, ...]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Trait(Block):
    """Methods written once for many blocks: to those of a trait a block is what it names itself."""


Item = Const | Alias | Struct | Enum | Fn | Trait | Block


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Comment(Syntax):
    """`//`, `///`, `/* */` or `/** */` with its text as written; read by the formatter alone."""

    text: str


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class File(Syntax):
    """One file; `module` is None when the declaration is missing (already reported)."""

    source: Source
    module: Path | None
    uses: tuple[Use, ...]
    items: tuple[Item, ...]
    comments: tuple[Comment, ...]


# ---------------------------------------------------------------- walks

_PARTS: dict[type[Syntax], tuple[str, ...]] = {}


def _parts(node: Syntax) -> tuple[str, ...]:
    kind = type(node)
    if kind not in _PARTS:
        skipped = ("span", "op_span", "end", "comments")
        _PARTS[kind] = tuple(f.name for f in fields(kind) if f.name not in skipped)
    return _PARTS[kind]


def children(node: Syntax) -> Iterator[Syntax]:
    """What a node is made of, in source order."""
    for name in _parts(node):
        value = getattr(node, name)
        if isinstance(value, Syntax):
            yield value
        elif isinstance(value, tuple):
            yield from (part for part in value if isinstance(part, Syntax))


def walk(root: Syntax) -> Iterator[Syntax]:
    """Every node below a node, and itself, each before its parts."""
    todo = [root]
    while todo:
        node = todo.pop()
        yield node
        todo.extend(reversed(list(children(node))))
