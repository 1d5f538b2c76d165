"""Type expressions and generic arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from linnet.check import consts, declare, exprs
from linnet.check.analysis import GenericName, ItemName, Local, ModuleName, PreludeName, Symbol
from linnet.check.expect import always_negative, bare, text_of
from linnet.check.scope import Scope, exported
from linnet.diagnostics import Label
from linnet.dims import Dim, TooLarge
from linnet.syntax import tree
from linnet.types import (
    DTYPES,
    UNKNOWN,
    AnyDType,
    Axis,
    BlockArray,
    BlockType,
    DType,
    DTypeVar,
    EnumType,
    GenericValue,
    OptionalType,
    Pack,
    StructType,
    TensorType,
    TupleType,
    Type,
    UnknownType,
    dtype_within,
    scalar,
    substitute,
    substitute_generic,
)

DTYPE_KIND_NAMES = ("DType", "Numeric", "Integer", "Float")


def resolve(scope: Scope, t: tree.TypeExpr, *, component: bool = False) -> Type:
    """The type that a type expression means; blocks are allowed only where `component`."""
    try:
        found = _resolve(scope, t, component)
    except TooLarge as large:
        scope.report("E2190", str(large), t)
        found = UNKNOWN
    if isinstance(found, (BlockType, BlockArray)) and not component:
        scope.report(
            "E1208",
            f"`{text_of(t)}` is a block, not the type of a value",
            t,
            help="a block stands only in a `sub` member",
        )
        found = UNKNOWN
    scope.analysis.type_exprs[t] = found
    return found


def _resolve(scope: Scope, t: tree.TypeExpr, component: bool) -> Type:
    match t:
        case tree.NamedType():
            return _named(scope, t)
        case tree.TensorTypeExpr(shape=items, dtype=path):
            shape = consts.shape(scope, items)
            dtype = dtype_of(scope, path)
            if shape is None or dtype is None:
                return UNKNOWN
            packs = [i for i in items if isinstance(i, tree.PackRef)]
            if len(packs) > 1:
                scope.report("E3106", "a tensor type has at most one pack among its axes", packs[1])
                return UNKNOWN
            return TensorType(shape, dtype)
        case tree.TupleTypeExpr(items=parts):
            types = tuple(resolve(scope, p) for p in parts)
            found = TupleType(types)
            lost = any(isinstance(x, UnknownType) for x in types)
            return UNKNOWN if lost or exprs.refuse_large(scope, found, t) else found
        case tree.OptionalTypeExpr(of=inner):
            of = resolve(scope, inner, component=component)
            if isinstance(of, BlockArray):
                scope.report("E4101", "an array of blocks cannot be optional", t)
                return UNKNOWN
            return UNKNOWN if isinstance(of, UnknownType) else OptionalType(of)
        case tree.ArrayTypeExpr(element=element, length=length):
            of = resolve(scope, element, component=True)
            size = consts.extent(scope, length)
            if isinstance(of, BlockType) and size is not None:
                return BlockArray(of, size)
            if not isinstance(of, (UnknownType, BlockType)):
                scope.report(
                    "E4101",
                    f"`{text_of(element)}` is not a block; only blocks are put in arrays",
                    element,
                    help="an array of numbers is a tensor: `Tensor[N; f32]`",
                )
            return UNKNOWN
        case tree.BadType():
            return UNKNOWN


def path_symbol(scope: Scope, path: tree.Path, place: str = "type") -> Symbol | None:
    """What the path of a type or a trait means; an unknown one is reported."""
    first, *rest = path.parts
    symbol = PreludeName(first.text) if first.text in DTYPES else scope.lookup(first.text)
    if symbol is None or (isinstance(symbol, Local) and not rest and _hides_type(scope, first)):
        symbol = _type_symbol(scope, first.text)
    if symbol is None:
        names = [n for n in scope.visible() if n[:1].isupper() or n in DTYPES]
        exprs.unknown_name(scope, first, names, place=place)
        return None
    scope.analysis.symbols[first] = symbol
    for part in rest:
        if isinstance(symbol, Local) and isinstance(symbol.type, UnknownType):
            return symbol
        if not isinstance(symbol, ModuleName):
            scope.report("E1208", f"`{first.text}` is not a module", first)
            return None
        symbol = exported(scope, symbol.module, part)
        if symbol is None:
            return None
        scope.analysis.symbols[part] = symbol
    return symbol


def _hides_type(scope: Scope, name: tree.Ident) -> bool:
    symbol = scope.lookup(name.text)
    return isinstance(symbol, Local) and not isinstance(symbol.type, UnknownType)


def _type_symbol(scope: Scope, name: str) -> Symbol | None:
    """A type's name that a local of the same name hides."""
    if name in scope.generics:
        return GenericName(scope.generics[name])
    if name in scope.module.items:
        return ItemName(scope.module.items[name], scope.module)
    return scope.module.imports.get(name)


def _named(scope: Scope, t: tree.NamedType) -> Type:
    symbol = path_symbol(scope, t.path)
    name = t.path.text
    match symbol:
        case None | Local(type=UnknownType()):
            return UNKNOWN
        case PreludeName(text) if text in DTYPES:
            _refuse_arguments(scope, t)
            return scalar(DTYPES[text])
        case GenericName(decl) if decl.kind.text in DTYPE_KIND_NAMES:
            _refuse_arguments(scope, t)
            return scalar(DTypeVar(decl.name.text, decl.kind.text))
        case ItemName(item, _):
            return _item_type(scope, t, item)
        case PreludeName("Tensor"):
            scope.report("E1208", "a tensor type is written `Tensor[dims; dtype]`", t)
        case GenericName(decl):
            what = "a pack" if decl.pack else "a dimension"
            scope.report("E1208", f"`{name}` is {what}, not a type", t)
        case _:
            scope.report("E1208", f"`{name}` is not a type", t)
    return UNKNOWN


def _item_type(scope: Scope, t: tree.NamedType, item: tree.Item) -> Type:
    checking = scope.checking
    if item in checking.broken:
        return UNKNOWN
    match item:
        case tree.Enum():
            _refuse_arguments(scope, t)
            return EnumType(item, item.name.text)
        case tree.Alias():
            values = arguments(scope, t, item.generics, t.generics or (), item.name.text)
            of = declare.alias(checking, item)
            if values is None or isinstance(of, UnknownType):
                return UNKNOWN
            return substitute(of, values)
        case tree.Struct():
            values = arguments(scope, t, item.generics, t.generics or (), item.name.text)
            if values is None:
                return UNKNOWN
            return StructType(item, item.name.text, in_order(item.generics, values))
        case tree.Trait():
            scope.report(
                "E1208",
                f"`{t.path.text}` is a trait, not a type",
                t,
                help=f"name a block that implements it, by the line `impl {text_of(t)}` in it",
            )
            return UNKNOWN
        case tree.Block():
            values = arguments(scope, t, item.generics, t.generics or (), item.name.text)
            if values is None:
                return UNKNOWN
            return BlockType(item, item.name.text, in_order(item.generics, values))
        case _:
            kind = "a constant" if isinstance(item, tree.Const) else "a function"
            scope.report("E1208", f"`{t.path.text}` is {kind}, not a type", t)
            return UNKNOWN


def _refuse_arguments(scope: Scope, t: tree.NamedType) -> None:
    if t.generics:
        scope.report("E2111", f"`{t.path.text}` takes no generic arguments", t)


def dtype_of(scope: Scope, path: tree.Path) -> AnyDType | None:
    """The dtype that a path names: a dtype, a dtype generic, or an alias of one."""
    symbol = path_symbol(scope, path)
    match symbol:
        case None | Local(type=UnknownType()):
            return None
        case PreludeName(text) if text in DTYPES:
            return DTYPES[text]
        case GenericName(decl) if decl.kind.text in DTYPE_KIND_NAMES:
            return DTypeVar(decl.name.text, decl.kind.text)
        case ItemName(tree.Alias() as item, _) if not item.generics:
            of = declare.alias(scope.checking, item)
            if isinstance(of, TensorType) and not of.shape:
                return of.dtype
            if isinstance(of, UnknownType):
                return None
    scope.report("E1208", f"`{path.text}` is not a dtype", path)
    return None


# ---------------------------------------------------------------- generic arguments


def arguments(
    scope: Scope,
    at: tree.Syntax,
    params: Sequence[tree.GenericParam],
    given: Sequence[tree.Expr],
    what: str,
) -> dict[str, GenericValue] | None:
    """A value for each generic: the given ones in order, then defaults; None after a report."""
    out = explicit(scope, at, params, given, what)
    if out is None:
        return None
    for param in params[len(given) :]:
        filled = default_value(scope, param, out)
        if filled is None:
            missing = [f"`{p.name.text}`" for p in params[len(given) :] if p.default is None]
            scope.report(
                "E2111",
                f"`{what}` needs its generic arguments {', '.join(missing)}"
                if len(missing) > 1
                else f"`{what}` needs its generic argument {''.join(missing)}",
                at,
                related=(Label(param.name.span, "declared here"),),
                help=f"write `{what}<{', '.join(p.name.text for p in params)}>`",
            )
            return None
        out[param.name.text] = filled
    return out


def explicit(
    scope: Scope,
    at: tree.Syntax,
    params: Sequence[tree.GenericParam],
    given: Sequence[tree.Expr],
    what: str,
) -> dict[str, GenericValue] | None:
    """The values of the generics that are written out."""
    if len(given) > len(params):
        takes = _count(len(params))
        scope.report(
            "E2111",
            f"`{what}` takes {takes}, {len(given)} are given",
            given[len(params)],
            help=_order(what, params),
        )
        return None
    out: dict[str, GenericValue] = {}
    for param, e in zip(params, given, strict=False):
        found = _argument(scope, param, e, what)
        if found is None:
            return None  # in a wrong order, all that follow are wrong as well
        out[param.name.text] = found
    return out


def _count(n: int) -> str:
    return "no generic arguments" if n == 0 else f"{n} generic argument{'s' if n > 1 else ''}"


def _order(what: str, params: Sequence[tree.GenericParam]) -> str | None:
    return f"in order: `{what}<{', '.join(p.name.text for p in params)}>`" if params else None


def _argument(
    scope: Scope, param: tree.GenericParam, e: tree.Expr, what: str
) -> GenericValue | None:
    name = param.name.text
    inner = bare(e)
    related = (Label(param.name.span, f"`{name}` is declared here"),)
    if param.pack:
        if isinstance(inner, tree.ShapeLit):
            return consts.shape(scope, inner.items)
        scope.report(
            "E2111",
            f"`{name}` of `{what}` is a pack of axes; `{text_of(e)}` is not a list",
            e,
            related=related,
            help=f"write `[{text_of(e)}]`",
        )
        return None
    if isinstance(inner, tree.ShapeLit):
        scope.report(
            "E2111",
            f"`{name}` of `{what}` is one {param.kind.text}; `{text_of(e)}` is a list of axes",
            e,
            related=related,
        )
        return None
    dtype = _as_dtype(scope, inner)
    if param.kind.text == "Dim":
        if dtype is not None:
            scope.report(
                "E2111",
                f"`{name}` of `{what}` is a dimension; `{text_of(e)}` is a dtype",
                e,
                related=related,
                help=_order_hint(what),
            )
            return None
        size = exprs.dimension(scope, e, f"the generic argument `{name}` of `{what}`")
        if size is not None and scope.pending is None and always_negative(scope, size):
            consts.refuse_negative(scope, e, size)
            return None
        return size
    if dtype is None:
        symbol = None
        if isinstance(inner, tree.Name):
            symbol = scope.lookup(inner.text)
            if symbol is None:
                exprs.unknown_name(scope, inner)
                return None
            if isinstance(symbol, Local) and isinstance(symbol.type, UnknownType):
                return None
        scope.report(
            "E2111",
            f"`{name}` of `{what}` is a dtype; `{text_of(e)}` is none",
            e,
            related=related,
        )
        return None
    if not dtype_within(dtype, param.kind.text):
        outside_kind(scope, e, param, dtype, what)
        return None
    return dtype


def _order_hint(what: str) -> str:
    return f"generic arguments of `{what}` are written in the order of their declaration"


def outside_kind(
    scope: Scope, at: tree.Syntax, param: tree.GenericParam, dtype: AnyDType, what: str
) -> None:
    is_ = f"is {dtype}" if isinstance(dtype, DType) else f"is {dtype}, any {dtype.kind} dtype"
    scope.report(
        "E2112",
        f"`{param.name.text}` of `{what}` is a {param.kind.text} dtype; here it {is_}",
        at,
        related=(Label(param.span, "declared here"),),
    )


def _as_dtype(scope: Scope, e: tree.Expr) -> AnyDType | None:
    """The dtype that a generic argument names, if it names one."""
    if isinstance(e, tree.Field):
        symbol = exprs.static_field(scope, e)
    elif isinstance(e, tree.Name):
        symbol = PreludeName(e.text) if e.text in DTYPES else scope.lookup(e.text)
    else:
        return None
    match symbol:
        case PreludeName(text) if text in DTYPES:
            found: AnyDType = DTYPES[text]
        case GenericName(decl) if decl.kind.text in DTYPE_KIND_NAMES and not decl.pack:
            found = DTypeVar(decl.name.text, decl.kind.text)
        case ItemName(tree.Alias() as item, _) if not item.generics:
            of = declare.alias(scope.checking, item)
            if not (isinstance(of, TensorType) and not of.shape):
                return None
            found = of.dtype
        case _:
            return None
    scope.analysis.symbols[e] = symbol
    return found


def default_value(
    scope: Scope, param: tree.GenericParam, before: Mapping[str, GenericValue]
) -> GenericValue | None:
    """A generic's default in terms of the generics before it."""
    if param.default is None:
        return None
    own = declare.default(scope.checking, param)
    if own is None:
        return Dim.of(param.name.text) if param.kind.text == "Dim" else None
    return substitute_generic(own, before)


def identity(params: Sequence[tree.GenericParam]) -> dict[str, GenericValue]:
    """Each generic standing for itself."""
    out: dict[str, GenericValue] = {}
    for p in params:
        name, kind = p.name.text, p.kind.text
        if p.pack:
            axes: tuple[Axis, ...] = (Pack(name),)
            out[name] = axes
        elif kind == "Dim":
            out[name] = Dim.of(name)
        else:
            out[name] = DTypeVar(name, kind)
    return out


def bindings_of(instance: BlockType | StructType) -> dict[str, GenericValue]:
    """The generics of a block or struct by name, as this instance has them."""
    assert isinstance(instance.decl, (tree.Block, tree.Struct))
    names = [g.name.text for g in instance.decl.generics]
    return dict(zip(names, instance.args, strict=True))


def in_order(
    params: Sequence[tree.GenericParam], values: Mapping[str, GenericValue]
) -> tuple[GenericValue, ...]:
    """The values as the arguments of a type: one for each generic, even of a repeated name."""
    return tuple(values[p.name.text] for p in params)
