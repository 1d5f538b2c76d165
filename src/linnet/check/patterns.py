"""Patterns: what they bind, what they leave out, and `match`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from linnet.check import exprs, typeexprs
from linnet.check.analysis import ItemName, Local, Variant
from linnet.check.evidence import structs_in
from linnet.check.expect import Expected, bare, default_type, described, settle, text_of
from linnet.check.scope import Scope, similar
from linnet.diagnostics import Edit, Help, Label
from linnet.syntax import tree
from linnet.types import (
    UNKNOWN,
    BlockArray,
    BlockType,
    EnumType,
    FloatConst,
    IntConst,
    OptionalType,
    TupleType,
    Type,
    UnknownType,
)


def match(scope: Scope, e: tree.Match, hint: Expected | None) -> Type:
    """The one type of the arms; the patterns fit the subject and leave nothing out."""
    with scope.mode(False):
        subject = exprs.infer(scope, e.subject)
    if isinstance(subject, (IntConst, FloatConst)):
        subject = exprs.settle_default(scope, e.subject, subject)
    fine = isinstance(subject, (OptionalType, EnumType, UnknownType))
    if isinstance(subject, TupleType):
        subject = exprs.settle_default(scope, e.subject, subject)
        fine = True
    if not fine:
        shown = described(subject)
        scope.report(
            "E2117",
            f"`match` takes optionals and enums apart; `{text_of(e.subject)}` is {shown}",
            e.subject,
            help="choose with `if` or `select`",
        )
        subject = UNKNOWN
    analysis, arms = scope.analysis, list[exprs.Arm]()
    path = None
    if isinstance(subject, OptionalType) and isinstance(subject.of, BlockType):
        path = exprs.path_of(scope, e.subject)
    errors = scope.findings.errors
    for arm in e.arms:
        with scope.nested() as names:
            bind(scope, arm.pattern, subject, "let", path)
        proved = tuple(t for t in _held(arm.pattern, subject) if any(structs_in(analysis, t)))
        arms.append(exprs.Arm(arm.value, names, proved))
    if not isinstance(subject, UnknownType) and scope.findings.errors == errors:
        missing = _each_left_out([arm.pattern for arm in e.arms], subject, scope)
        if missing:
            arms_text = ", ".join(f"`{each} => ...`" for each in missing)
            scope.report(
                "E2118",
                f"`match` leaves out {' and '.join(f'`{m}`' for m in missing)} of "
                f"`{text_of(e.subject)}`",
                e,
                help=f"add an arm {arms_text}" if len(missing) == 1 else f"add arms {arms_text}",
            )
    if not arms:
        return UNKNOWN
    return exprs.branches(scope, arms, hint)


def _held(p: tree.Pattern, found: Type) -> Iterator[Type]:
    """The types of which there is a value where the pattern fits."""
    yield found
    match p, found:
        case tree.SomePattern(item=item), OptionalType(of):
            yield from _held(item, of)
        case tree.TuplePattern(items=items), TupleType(types):
            for each, type in zip(items, types, strict=False):
                yield from _held(each, type)
        case _:
            pass


def bind(
    scope: Scope,
    p: tree.Pattern,
    found: Type,
    kind: str,
    path: str | None = None,
    *,
    value: tree.Expr | None = None,
) -> None:
    """Declare what a pattern binds for a value of this type; a pattern that cannot fit is refused.

    `value` is the expression it takes apart, whose literals are settled so too.
    """
    scope.analysis.type_exprs[p] = found
    match p:
        case tree.WildcardPattern():
            if value is not None:
                settle(scope, value, default_type(found))
        case tree.NamePattern(name=name):
            _bind_name(scope, p, name, found, kind, path, value)
        case tree.TuplePattern(items=items):
            _bind_tuple(scope, p, items, found, kind, value)
        case tree.SomePattern(item=item):
            if isinstance(found, OptionalType):
                bind(scope, item, found.of, kind, path)
            else:
                _impossible(scope, p, found)
                bind(scope, item, UNKNOWN, kind)
        case tree.NonePattern():
            if not isinstance(found, OptionalType):
                _impossible(scope, p, found)
        case tree.VariantPattern():
            _variant(scope, p, found)


def _impossible(scope: Scope, p: tree.Pattern, found: Type) -> None:
    if not isinstance(found, UnknownType):
        message = f"the pattern `{text_of(p)}` cannot fit {described(found)}"
        scope.report("E2117", message, p)


def _bind_name(
    scope: Scope,
    p: tree.Pattern,
    name: tree.Ident,
    found: Type,
    kind: str,
    path: str | None,
    value: tree.Expr | None,
) -> None:
    if isinstance(found, EnumType):
        assert isinstance(found.decl, tree.Enum)
        names = [v.text for v in found.decl.variants]
        if name.text in names:
            symbol = Variant(found, names.index(name.text))
            scope.analysis.symbols[p] = scope.analysis.symbols[name] = symbol
            return
        near = similar(name.text, names)
        if name.text[:1].isupper() or near is not None:
            help = f"did you mean `{near}`?" if near else f"it has {', '.join(names)}"
            scope.report("E2117", f"{found} has no variant `{name.text}`", p, help=help)
            return
    bound = found
    if isinstance(found, (IntConst, FloatConst)):
        if isinstance(found, FloatConst) or found.value.constant is not None:
            bound = default_type(found)
    elif not isinstance(found, (BlockType, BlockArray)):
        bound = default_type(found)
    if value is not None:
        settle(scope, value, bound)
    local = Local(name.text, p, bound, kind)  # type: ignore[arg-type]
    scope.declare(name, local)
    scope.analysis.type_exprs[p] = bound
    if path is not None:
        scope.paths[local] = path


def _bind_tuple(
    scope: Scope,
    p: tree.TuplePattern,
    items: Sequence[tree.Pattern],
    found: Type,
    kind: str,
    value: tree.Expr | None,
) -> None:
    inner = bare(value) if value is not None else None
    values: Sequence[tree.Expr | None] = [None] * len(items)
    if isinstance(inner, tree.Tuple) and len(inner.items) == len(items):
        values = inner.items
    types: Sequence[Type] = [UNKNOWN] * len(items)
    if isinstance(found, TupleType):
        if len(found.items) == len(items):
            types = found.items
        else:
            count, have = len(items), len(found.items)
            message = f"a pattern of {count} names takes a tuple of {have} apart"
            related: tuple[Label, ...] = ()
            if value is not None and not isinstance(bare(value), tree.Tuple):
                related = (Label(value.span, f"this is {described(found)}"),)
            help = None
            if count < have:
                text = ", ".join([*(item.span.text for item in items), *["_"] * (have - count)])
                help = Help(f"write `({text})`", (Edit(p.span, f"({text})"),))
            scope.report("E2117", message, p, related=related, help=help)
    else:
        _impossible(scope, p, found)
    for item, t, v in zip(items, types, values, strict=True):
        bind(scope, item, t, kind, value=v)
    if value is not None and inner is not None and all(v is None for v in values):
        settle(scope, value, default_type(found))


def _variant(scope: Scope, p: tree.VariantPattern, found: Type) -> None:
    symbol = typeexprs.path_symbol(scope, p.path)
    if symbol is None:
        return
    if not (isinstance(symbol, ItemName) and isinstance(symbol.item, tree.Enum)):
        if not (isinstance(symbol, Local) and isinstance(symbol.type, UnknownType)):
            scope.report("E1208", f"`{p.path.text}` is not an enum", p.path)
        return
    variant = exprs.variant(scope, symbol.item, p.name)
    if variant is None:
        return
    scope.analysis.symbols[p] = scope.analysis.symbols[p.name] = variant
    if isinstance(found, UnknownType):
        return
    if not isinstance(found, EnumType) or found.decl is not symbol.item:
        _impossible(scope, p, found)


# ---------------------------------------------------------------- exhaustiveness


def left_out(patterns: Sequence[tree.Pattern], found: Type, scope: Scope) -> str | None:
    """A value that no pattern takes, as a pattern; None when they take every value."""
    rows = [[p] for p in patterns]
    missing = _missing(rows, [found], scope)
    return missing[0] if missing is not None else None


def _each_left_out(patterns: Sequence[tree.Pattern], found: Type, scope: Scope) -> list[str]:
    """Patterns that together with these take every value, one for each case of the outermost."""
    first = left_out(patterns, found, scope)
    if first is None:
        return []
    match found:
        case EnumType(decl=decl):
            assert isinstance(decl, tree.Enum)
            named = {_variant_of(p, scope) for p in patterns}
            names = [v.text for i, v in enumerate(decl.variants) if i not in named]
            return [f"{decl.name.text}.{name}" for name in names]
        case OptionalType() if first != "none":
            absent = any(isinstance(p, tree.NonePattern) or _takes_all(p, scope) for p in patterns)
            return [first] if absent else [first, "none"]
        case _:
            return [first]


Row = list[tree.Pattern]
_ANY = object()


def _missing(
    rows: Sequence[Sequence[tree.Pattern | object]], types: Sequence[Type], scope: Scope
) -> list[str] | None:
    """Values of these types, one each, that no row takes."""
    if not types:
        return None if rows else []
    first, rest = types[0], types[1:]
    match first:
        case OptionalType(of):
            present = [
                [r[0].item if isinstance(r[0], tree.SomePattern) else _ANY, *r[1:]]
                for r in rows
                if isinstance(r[0], tree.SomePattern) or _takes_all(r[0], scope)
            ]
            found = _missing(present, [of, *rest], scope)
            if found is not None:
                return [f"some({found[0]})", *found[1:]]
            absent = [
                r[1:] for r in rows if isinstance(r[0], tree.NonePattern) or _takes_all(r[0], scope)
            ]
            found = _missing(absent, rest, scope)
            return None if found is None else ["none", *found]
        case EnumType(decl=decl):
            assert isinstance(decl, tree.Enum)
            own: dict[int, list[Sequence[tree.Pattern | object]]] = {}
            every = [r[1:] for r in rows if _takes_all(r[0], scope)]
            for r in rows:
                variant = _variant_of(r[0], scope)
                if variant is not None:
                    own.setdefault(variant, []).append(r[1:])
            others: list[str] | None = None  # the answer for variants that no row names
            if len(own) < len(decl.variants):
                others = _missing(every, rest, scope)
            for i, name in enumerate(decl.variants):
                found = _missing([*own[i], *every], rest, scope) if i in own else others
                if found is not None:
                    return [f"{decl.name.text}.{name.text}", *found]
            return None
        case TupleType(items):
            spread: list[list[tree.Pattern | object]] = []
            for r in rows:
                if isinstance(r[0], tree.TuplePattern) and len(r[0].items) == len(items):
                    spread.append([*r[0].items, *r[1:]])
                elif _takes_all(r[0], scope):
                    spread.append([*[_ANY] * len(items), *r[1:]])
            found = _missing(spread, [*items, *rest], scope)
            if found is None:
                return None
            n = len(items)
            return [f"({', '.join(found[:n])})", *found[n:]]
        case _:
            found = _missing([r[1:] for r in rows], rest, scope)
            return None if found is None else ["_", *found]


def _takes_all(p: tree.Pattern | object, scope: Scope) -> bool:
    if p is _ANY or isinstance(p, tree.WildcardPattern):
        return True
    return isinstance(p, tree.NamePattern) and not isinstance(
        scope.analysis.symbols.get(p), Variant
    )


def _variant_of(p: tree.Pattern | object, scope: Scope) -> int | None:
    """The position of the variant that the pattern takes alone."""
    if not isinstance(p, (tree.NamePattern, tree.VariantPattern)):
        return None
    symbol = scope.analysis.symbols.get(p)
    return symbol.index if isinstance(symbol, Variant) else None
