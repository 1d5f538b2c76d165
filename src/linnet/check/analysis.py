"""What the checker found out: side tables keyed by syntax node, read by every later stage.

Types are in the names of the generics of the function (and block) in which the syntax stands.
Trees are never copied; one node has one entry, since functions are checked once, for all sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from linnet.diagnostics import Findings
from linnet.dims import Dim, Relation
from linnet.syntax import tree
from linnet.types import (
    BlockArray,
    BlockType,
    EnumType,
    GenericValue,
    StructType,
    Type,
    substitute_generic,
)
from linnet.workspace import ModuleFile, Package

# ---------------------------------------------------------------- what a name means


@dataclass(frozen=True, eq=False, slots=True)
class Local:
    """A `let`, `var`, loop variable, parameter or pattern's binding; identity is the variable."""

    name: str
    decl: tree.Syntax
    type: Type
    kind: Literal["let", "var", "param", "loop", "element"]
    # "loop": the i64 value of `static for i in a..b`;
    # "element": the block element of `static for layer in layers`


@dataclass(frozen=True, eq=False, slots=True)
class IndexVar:
    """An output or reduced index of index notation; `pack` for `*s`."""

    name: str
    decl: tree.Syntax
    pack: bool


@dataclass(frozen=True, eq=False, slots=True)
class GenericName:
    decl: tree.GenericParam


@dataclass(frozen=True, eq=False, slots=True)
class MemberName:
    """A member of the block in whose method the name stands."""

    member: tree.Member


@dataclass(frozen=True, eq=False, slots=True)
class MethodName:
    fn: tree.Fn


@dataclass(frozen=True, eq=False, slots=True)
class ItemName:
    """A module item, own or imported."""

    item: tree.Item
    module: Module


@dataclass(frozen=True, eq=False, slots=True)
class ModuleName:
    module: Module


@dataclass(frozen=True, eq=False, slots=True)
class Variant:
    """A variant of an enum, by position."""

    enum: EnumType
    index: int


@dataclass(frozen=True, eq=False, slots=True)
class PreludeName:
    """A prelude function, dtype, `Tensor` or a kind."""

    name: str


Symbol = (
    Local
    | IndexVar
    | GenericName
    | MemberName
    | MethodName
    | ItemName
    | ModuleName
    | Variant
    | PreludeName
)


# ---------------------------------------------------------------- what a call is


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class FnCall:
    """A call of a free `fn`, `op` or `entry`, or of a method.

    `bindings` gives the callee's own generics in the caller's names (and, for a method, the
    block's generics too). `args` are in the callee's parameter order; None takes the default.
    `receiver` is None for a free function and for a method of the own block; else the expression
    whose type is the block (`attention`, `layer`, `layers[0]`, `layer.attention`).
    `lifted` marks a call on elements inside index notation: its arguments are scalars there.
    """

    fn: tree.Fn
    module: Module
    owner: BlockType | None
    receiver: tree.Expr | None
    bindings: dict[str, GenericValue]
    args: tuple[tree.Expr | None, ...]
    result: Type
    lifted: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class PreludeCall:
    """A call of a prelude function; `args` positional in declaration order, constants aside.

    dtype: of cast, iota, fill. shape: of reshape, broadcast_to, fill. order: of permute (axis
    numbers >= 0). axis: of concat, as written (negative counts from the back). Inside index
    notation elementwise functions get scalars (`lifted`).
    """

    name: str
    args: tuple[tree.Expr, ...]
    result: Type
    lifted: bool = False
    order: tuple[int, ...] = ()
    axis: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class StructCall:
    """`Pair(left = x, right = y)`: arguments in the struct's field order; None is `none`."""

    struct: StructType
    args: tuple[tree.Expr | None, ...]


CallMeaning = FnCall | PreludeCall | StructCall


# ---------------------------------------------------------------- subscripts


@dataclass(frozen=True, eq=False, slots=True)
class AxisWhole:
    """An axis (or a pack) kept as it is: by `:`, `...`, or `*s` spelled out."""


@dataclass(frozen=True, eq=False, slots=True)
class AxisSlice:
    start: Dim
    stop: Dim
    step: int


@dataclass(frozen=True, eq=False, slots=True)
class AxisAt:
    """A compile-time index, proved in range; drops the axis."""

    index: Dim


@dataclass(frozen=True, eq=False, slots=True)
class AxisGather:
    """A runtime integer scalar; drops the axis, clamped."""

    index: tree.Expr


@dataclass(frozen=True, eq=False, slots=True)
class Subscript:
    """A subscript of a tensor outside index notation: one entry per axis (or pack) of the base."""

    axes: tuple[AxisWhole | AxisSlice | AxisAt | AxisGather, ...]


@dataclass(frozen=True, eq=False, slots=True)
class ArrayElement:
    """`layers[0]`: a sub array at a constant index."""

    index: Dim


@dataclass(frozen=True, eq=False, slots=True)
class Access:
    """An access in index notation: per axis (or pack) of the base what stands there.

    IndexVar: a plain index. Dim: a compile-time position, proved in range. Expr: a runtime integer
    scalar (may use indices), clamped.
    """

    axes: tuple[IndexVar | Dim | tree.Expr, ...]


SubscriptMeaning = Subscript | ArrayElement | Access


@dataclass(frozen=True, eq=False, slots=True)
class Frame:
    """The indices of an IndexLet or a Reduction, with the extents they take.

    `extents` is in the order of `indices`; a pack's extent is the pack's own shape.
    """

    indices: tuple[IndexVar, ...]
    extents: tuple[Dim | tuple[Dim | object, ...], ...]


# ---------------------------------------------------------------- declarations


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Signature:
    """A function's types in its own generics; `facts` are its and its block's where clauses.

    `block` is the block or trait in which it is written.
    """

    fn: tree.Fn
    module: Module
    block: tree.Block | None
    generics: tuple[tree.GenericParam, ...]  # the block's first
    params: tuple[tuple[str, Type], ...]
    result: Type | None
    facts: tuple[Relation, ...]


@dataclass(frozen=True, eq=False, slots=True)
class MemberInfo:
    """`type` is the declared type without `?`; a sub's is a BlockType or BlockArray."""

    member: tree.Member
    type: Type
    optional: bool


@dataclass(frozen=True, eq=False, slots=True)
class ImplInfo:
    """A trait that a block implements, its arguments in the block's generics."""

    impl: tree.Impl
    trait: BlockType


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class BlockInfo:
    """A block or a trait; `methods` are its own, then those that its traits provide.

    `effects` are those of what its traits provide, which differ from block to block.
    """

    block: tree.Block
    module: Module
    members: dict[str, MemberInfo]
    methods: dict[str, tree.Fn]
    facts: tuple[Relation, ...]
    impls: tuple[ImplInfo, ...] = ()
    effects: dict[tree.Fn, Effects] = field(default_factory=dict["tree.Fn", "Effects"])

    def bindings(
        self, own: Mapping[str, GenericValue], home: tree.Block | None
    ) -> dict[str, GenericValue]:
        """The generics of where a method is written, the block or a trait of it, by its own."""
        for each in self.impls if home is not self.block else ():
            if each.trait.decl is home and home is not None:
                names = [g.name.text for g in home.generics]
                args = (substitute_generic(a, own) for a in each.trait.args)
                return dict(zip(names, args, strict=True))
        return dict(own)


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class StructInfo:
    """`facts` are the where clauses: they hold wherever there is a value."""

    struct: tree.Struct
    module: Module
    fields: dict[str, Type]
    facts: tuple[Relation, ...]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class ConstInfo:
    """`type` is IntConst or FloatConst when unannotated, else the declared scalar (or enum) type.

    `value` is a Python bool, int or float, a Dim for compile-time integers, or a Variant.
    """

    const: tree.Const
    module: Module
    type: Type
    value: bool | int | float | Dim | Variant


@dataclass(frozen=True, eq=False, slots=True)
class Effects:
    """State that a function reads and writes, through its calls, as member paths of its block.

    A path is member names joined by dots with `*` for any position in a sub array. `members` are
    the params and buffers it uses, likewise. In a trait, a required method stands for the state
    that it may write.
    """

    reads: frozenset[str]
    writes: frozenset[str]
    members: frozenset[str]


Item = tree.Item  # within Module, `tree` is a field


@dataclass(eq=False, slots=True, repr=False)
class Module:
    """A checked file: its items by name, and what its imports bring."""

    name: str  # the declared name, `std.nn.linear`
    file: ModuleFile
    tree: tree.File
    items: dict[str, Item] = field(default_factory=dict[str, Item])
    imports: dict[str, Symbol] = field(default_factory=dict[str, Symbol])


@dataclass(eq=False, slots=True, repr=False)
class Analysis:
    """The result of checking; complete only when `findings.errors == 0`.

    types: the type of every expression, after its context settled literals (a literal in an f32
    context has type f32; a compile-time integer used as a value has that scalar type, and its
    value stays in `dims`). `none` has the optional type that its context gave it.
    dims: the value of every expression that is a compile-time integer.
    """

    package: Package
    modules: dict[str, Module] = field(default_factory=dict[str, Module])
    roots: list[Module] = field(default_factory=list[Module])  # the modules asked for
    findings: Findings = field(default_factory=Findings)
    types: dict[tree.Syntax, Type] = field(default_factory=dict[tree.Syntax, Type])
    dims: dict[tree.Syntax, Dim] = field(default_factory=dict[tree.Syntax, Dim])
    # Name, Field, Ident and pattern nodes -> what they mean; binding sites too.
    symbols: dict[tree.Syntax, Symbol] = field(default_factory=dict[tree.Syntax, Symbol])
    calls: dict[tree.Call, CallMeaning] = field(default_factory=dict[tree.Call, CallMeaning])
    subscripts: dict[tree.Index, SubscriptMeaning] = field(
        default_factory=dict[tree.Index, SubscriptMeaning]
    )
    frames: dict[tree.IndexLet | tree.Reduction, Frame] = field(
        default_factory=dict["tree.IndexLet | tree.Reduction", Frame]
    )
    # A pattern's or a type expression's type.
    type_exprs: dict[tree.Syntax, Type] = field(default_factory=dict[tree.Syntax, Type])
    signatures: dict[tree.Fn, Signature] = field(default_factory=dict[tree.Fn, Signature])
    blocks: dict[tree.Block, BlockInfo] = field(default_factory=dict[tree.Block, BlockInfo])
    structs: dict[tree.Struct, StructInfo] = field(default_factory=dict[tree.Struct, StructInfo])
    consts: dict[tree.Const, ConstInfo] = field(default_factory=dict[tree.Const, ConstInfo])
    effects: dict[tree.Fn, Effects] = field(default_factory=dict[tree.Fn, Effects])
    # Range loops' bounds; sub-array loops are absent here.
    ranges: dict[tree.For, tuple[Dim, Dim]] = field(default_factory=dict[tree.For, tuple[Dim, Dim]])

    @property
    def ok(self) -> bool:
        return self.findings.errors == 0


__all__ = [
    "Access",
    "Analysis",
    "ArrayElement",
    "AxisAt",
    "AxisGather",
    "AxisSlice",
    "AxisWhole",
    "BlockArray",
    "BlockInfo",
    "CallMeaning",
    "ConstInfo",
    "Effects",
    "FnCall",
    "Frame",
    "GenericName",
    "ImplInfo",
    "IndexVar",
    "ItemName",
    "Local",
    "MemberInfo",
    "MemberName",
    "MethodName",
    "Module",
    "ModuleName",
    "PreludeCall",
    "PreludeName",
    "Signature",
    "StructCall",
    "StructInfo",
    "Subscript",
    "Symbol",
    "Variant",
]
