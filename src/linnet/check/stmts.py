"""Statements and function bodies."""

from __future__ import annotations

from collections.abc import Sequence

from linnet.check import exprs, index, patterns, typeexprs
from linnet.check.analysis import IndexVar, Local, MemberName, Signature
from linnet.check.expect import (
    Expected,
    Origin,
    contextual,
    default_type,
    described,
    settle,
    text_of,
)
from linnet.check.scope import Checking, Scope, refuse_prelude, refuse_repeats
from linnet.diagnostics import Edit, Help, Label
from linnet.source import Span
from linnet.syntax import tree
from linnet.types import (
    I64,
    UNKNOWN,
    BlockArray,
    FloatConst,
    IntConst,
    Type,
    UnknownType,
    scalar,
)


def function(checking: Checking, signature: Signature) -> None:
    """Check a function's defaults and body, once, for all sizes and dtypes."""
    fn = signature.fn
    if fn in checking.broken or signature.block in checking.broken:
        return
    scope = Scope(
        checking,
        signature.module,
        generics={g.name.text: g for g in signature.generics},
        known=checking.known(signature.facts, fn, signature.block),
        block=signature.block,
        fn=fn,
    )
    checking.touched[fn] = scope.touched
    for param, (_, type) in zip(fn.params, signature.params, strict=True):
        if param.default is not None:
            origin = Origin(f"parameter `{param.name.text}` is", param.type.span, "declared here")
            exprs.check(scope, param.default, Expected(type, origin))
    with scope.nested():
        for param, (name, type) in zip(fn.params, signature.params, strict=True):
            refuse_prelude(scope, param.name)
            local = Local(name, param, type, "param")
            checking.analysis.symbols[param] = checking.analysis.symbols[param.name] = local
            scope.params.setdefault(name, local)
        with scope.nested():
            _body(scope, fn, signature.result)


def _body(scope: Scope, fn: tree.Fn, result: Type | None) -> None:
    statements(scope, fn.body, result, top=True)
    last = fn.body[-1] if fn.body else None
    if result is not None and not isinstance(last, tree.Return):
        if any(isinstance(s, tree.Return) for s in fn.body):
            return  # reported where it stands
        assert fn.result is not None
        scope.report(
            "E2120",
            f"`{fn.name.text}` ends without `return`",
            fn.end,
            related=(Label(fn.result.span, f"it declares the result {described(result)}"),),
            help="a function that declares a result ends with `return ...`",
        )


def statements(
    scope: Scope, body: Sequence[tree.Stmt], result: Type | None, *, top: bool = False
) -> None:
    """Check statements in order; `result` is what the function returns."""
    for i, s in enumerate(body):
        if isinstance(s, tree.Return):
            _return(scope, s, result)
            if not top:
                scope.report(
                    "E2120",
                    "`return` stands inside a loop",
                    s,
                    help="assign a `var` in the loop and return it after the loop",
                )
            elif i + 1 < len(body):
                scope.report(
                    "E2120",
                    "`return` is not the last statement",
                    s,
                    related=(Label(body[i + 1].span, "this would never run"),),
                )
        else:
            _statement(scope, s, result)


def _statement(scope: Scope, s: tree.Stmt, result: Type | None) -> None:
    match s:
        case tree.Let():
            _let(scope, s)
        case tree.IndexLet():
            index.index_let(scope, s)
        case tree.Var():
            _var(scope, s)
        case tree.Assign():
            _assign(scope, s)
        case tree.StaticFor():
            _static_for(scope, s, result)
        case tree.While():
            exprs.condition(scope, s.condition, "while")
            with scope.nested():
                statements(scope, s.body, result)
        case tree.Return():
            _return(scope, s, result)


def _let(scope: Scope, s: tree.Let) -> None:
    if s.type is not None:
        found = _annotated(scope, s.type, s.value, text_of(s.pattern))
    else:
        found = exprs.value(scope, s.value)
    found = _with_context(scope, s.value, found)
    patterns.bind(scope, s.pattern, found, "let", value=s.value)
    if isinstance(s.pattern, tree.TuplePattern):
        _refuse_same_names(scope, s.pattern)
    if not isinstance(found, UnknownType) and not isinstance(s.pattern, tree.NamePattern):
        missing = patterns.left_out([s.pattern], found, scope)
        if missing is not None and not _impossible(scope, s.pattern):
            scope.report(
                "E2118",
                f"`let {text_of(s.pattern)}` leaves out `{missing}`",
                s.pattern,
                help="use `match`, with an arm for each case",
            )


def _refuse_same_names(scope: Scope, p: tree.TuplePattern) -> None:
    names: list[tree.Ident] = []
    todo: list[tree.Pattern] = list(p.items)
    while todo:
        match todo.pop(0):
            case tree.NamePattern(name=name):
                names.append(name)
            case tree.TuplePattern(items=items):
                todo[:0] = items
            case tree.SomePattern(item=item):
                todo.insert(0, item)
            case _:
                pass
    refuse_repeats(scope, names, "name")


def _impossible(scope: Scope, p: tree.Pattern) -> bool:
    """Something about the pattern was reported already."""
    return any(
        d.primary.span.source is p.span.source
        and p.span.start <= d.primary.span.start
        and d.primary.span.end <= p.span.end
        for d in scope.findings.items
    )


def _annotated(scope: Scope, t: tree.TypeExpr, value: tree.Expr, name: str) -> Type:
    declared = typeexprs.resolve(scope, t)
    origin = Origin(f"`{name}` is declared", t.span, "declared here")
    if isinstance(declared, UnknownType):
        exprs.settled(scope, value)
        return UNKNOWN
    return exprs.check(scope, value, Expected(declared, origin))


def _with_context(scope: Scope, e: tree.Expr, found: Type) -> Type:
    """Report a `none` that nothing gives a type; other literals stay as they are."""
    if contextual(default_type(found)):
        return exprs.settle_default(scope, e, found)
    return found


def _var(scope: Scope, s: tree.Var) -> None:
    if s.type is not None:
        found = _annotated(scope, s.type, s.value, s.name.text)
    else:
        found = exprs.settled(scope, s.value)
    scope.add_local(s.name, s, found, "var")


def _assign(scope: Scope, s: tree.Assign) -> None:
    name = s.name.text
    symbol = scope.lookup(name)
    if symbol is None:
        exprs.settled(scope, s.value)
        exprs.unknown_name(scope, s.name)
        return
    scope.analysis.symbols[s.name] = symbol
    target: Type = UNKNOWN
    at: Span | None = None
    match symbol:
        case Local(kind="var"):
            target, at = symbol.type, symbol.decl.span
            if isinstance(symbol.decl, tree.Var):
                at = symbol.decl.name.span
        case MemberName(member) if member.kind == "state" and scope.block is not None:
            target, at = scope.analysis.blocks[scope.block].members[name].type, member.type.span
            scope.touched.writes.add(name)
            scope.checking.used_members.add((scope.module, member))
        case _:
            _refuse_assignment(scope, s, symbol)
            exprs.settled(scope, s.value)
            return
    if isinstance(target, UnknownType):
        exprs.settled(scope, s.value)
        return
    origin = Origin(f"`{name}` is", at, f"`{name}` is {described(target)}", other="E2109")
    exprs.check(scope, s.value, Expected(target, origin))


def _refuse_assignment(scope: Scope, s: tree.Assign, symbol: object) -> None:
    name = s.name.text
    help: Help | str | None = None
    related: tuple[Label, ...] = ()
    match symbol:
        case Local(kind="let", decl=decl):
            what = "a `let`, which keeps its value"
            related = (Label(decl.span, "bound here"),)
            if isinstance(decl, tree.NamePattern):
                start = decl.span.source.text.rfind("let", 0, decl.span.start)
                edit = Edit(Span(decl.span.source, start, start + 3), "var")
                help = Help("declare it with `var`", (edit,))
            if isinstance(symbol.type, UnknownType) and isinstance(decl, tree.Ident):
                return
        case Local(kind=kind):
            what = "a parameter" if kind == "param" else "the variable of a loop"
            help = f"copy it: `var current = {name}`"
        case MemberName(member):
            what = f"a `{member.kind}`; only `state` and `var` are assigned"
        case IndexVar():
            what = "an index"
        case _:
            what = "neither a `var` nor a `state` of this block"
    scope.report("E2108", f"`{name}` is {what}", s.name, related=related, help=help)


def _return(scope: Scope, s: tree.Return, result: Type | None) -> None:
    assert scope.fn is not None
    name = scope.fn.name.text
    if s.value is None:
        if result is not None:
            scope.report("E2120", f"`{name}` returns {described(result)}; a value is missing", s)
        return
    if result is None:
        exprs.settled(scope, s.value)
        message = f"`{name}` declares no result"
        scope.report("E2120", message, s, help="declare it with `-> type` after the parameters")
        return
    if isinstance(result, UnknownType):
        exprs.settled(scope, s.value)
        return
    at = scope.fn.result.span if scope.fn.result is not None else None
    origin = Origin(f"`{name}` returns", at, "declared here")
    exprs.check(scope, s.value, Expected(result, origin))


def _static_for(scope: Scope, s: tree.StaticFor, result: Type | None) -> None:
    if s.stop is None:
        element, path = _walked(scope, s)
        kind = "element"
    else:
        start = exprs.dimension(scope, s.start, "a bound of `static for`")
        stop = exprs.dimension(scope, s.stop, "a bound of `static for`")
        for bound in (s.start, s.stop):
            settle(scope, bound, scalar(I64))
        if start is not None and stop is not None:
            scope.analysis.ranges[s] = (start, stop)
        element, path, kind = scalar(I64), None, "loop"
    with scope.nested():
        local = scope.add_local(s.name, s, element, kind)
        if path is not None:
            scope.paths[local] = path
        statements(scope, s.body, result)


def _walked(scope: Scope, s: tree.StaticFor) -> tuple[Type, str | None]:
    """The element type and path of the sub array that a loop walks."""
    found = exprs.infer(scope, s.start)
    if isinstance(found, BlockArray):
        return found.of, f"{exprs.path_of(scope, s.start)}.*"
    if isinstance(found, UnknownType):
        return UNKNOWN, None
    if isinstance(found, (IntConst, FloatConst)):
        settle(scope, s.start, default_type(found))
    name = text_of(s.start)
    scope.report(
        "E2121",
        f"`static for` walks an array of blocks or a range; `{name}` is {described(found)}",
        s.start,
        help=f"write a range: `0..{name}`" if isinstance(found, IntConst) else None,
    )
    return UNKNOWN, None
