"""Statements and function bodies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from linnet.check import exprs, index, patterns, typeexprs
from linnet.check.analysis import IndexVar, Local, MemberName, Signature
from linnet.check.expect import (
    Expected,
    Origin,
    bare,
    broken_at,
    clause_help,
    coerce,
    compare,
    contextual,
    counterexample,
    default_type,
    described,
    settle,
    shown,
    text_of,
)
from linnet.check.scope import Checking, Scope, refuse_prelude, refuse_repeats
from linnet.diagnostics import Edit, Help, Label
from linnet.dims import Dim, Relation, TooLarge
from linnet.source import Span
from linnet.syntax import tree
from linnet.types import (
    I64,
    UNKNOWN,
    BlockArray,
    FloatConst,
    IntConst,
    StructType,
    TensorType,
    TupleType,
    Type,
    UnknownType,
    scalar,
)

_Simple = tree.Let | tree.IndexLet | tree.Var | tree.Assign | tree.Return
_SIMPLE = (tree.Let, tree.IndexLet, tree.Var, tree.Assign, tree.Return)


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
        for _, type in signature.params:
            scope.learn(type)
        for param, (name, type) in zip(fn.params, signature.params, strict=True):
            refuse_prelude(scope, param.name)
            local = Local(name, param, type, "param")
            checking.analysis.symbols[param] = checking.analysis.symbols[param.name] = local
            scope.params.setdefault(name, local)
        if not fn.required:
            with scope.nested():
                _body(scope, fn, signature.result)


def _body(scope: Scope, fn: tree.Fn, result: Type | None) -> None:
    last = fn.body[-1] if fn.body else None
    if result is not None and isinstance(last, tree.For) and _yields(last):
        statements(scope, fn.body[:-1], top=True)
        scope.report(
            "E2124",
            "this `for` is no value: nothing takes what its turns yield",
            shown(last),
            help=Help(
                f"write `return {text_of(last)} {{ ... }}`",
                (Edit(_before(last), "return "),),
                safe=True,
            ),
        )
        _return(scope, tree.Return(last.span, last))
        return
    statements(scope, fn.body, top=True)
    if result is not None and not isinstance(last, tree.Return):
        if any(isinstance(s, tree.Return) for s in fn.body) or scope.checking.lost_in(fn):
            return  # reported where it stands
        if scope.returned:
            return
        assert fn.result is not None
        help: Help | str = "a function that declares a result ends with `return ...`"
        name = _last_bound(scope, last, result)
        if name is not None and last is not None:
            source, start = last.span.source, last.span.start
            line = source.text.rfind("\n", 0, start) + 1
            indent = source.text[line:start] if source.text[line:start].isspace() else ""
            at = Span(source, last.span.end, last.span.end)
            gap = f"\n{indent}" if indent else " "
            help = Help(f"add `return {name}`", (Edit(at, f"{gap}return {name}"),))
        scope.report(
            "E2120",
            f"`{fn.name.text}` ends without `return`",
            fn.end,
            related=(Label(fn.result.span, f"it declares the result {described(result)}"),),
            help=help,
        )


def _yields(loop: tree.For) -> bool:
    return not loop.static and bool(loop.body) and isinstance(loop.body[-1], tree.Yield)


def _before(node: tree.Syntax) -> Span:
    return Span(node.span.source, node.span.start, node.span.start)


def _last_bound(scope: Scope, last: tree.Stmt | None, result: Type) -> str | None:
    """The name that the last statement binds, where it has the type that is to be returned."""
    match last:
        case tree.Let(pattern=tree.NamePattern(name=name)) | tree.IndexLet(name=name):
            pass
        case tree.Var(name=name):
            pass
        case _:
            return None
    symbol = scope.analysis.symbols.get(name)
    if not isinstance(symbol, Local) or isinstance(symbol.type, UnknownType):
        return None
    return name.text if compare(scope, symbol.type, result) is None else None


def statements(scope: Scope, body: Sequence[tree.Stmt], *, top: bool = False) -> None:
    """Check statements in order; only the `top` ones of a function may end in `return`."""
    for i, s in enumerate(body):
        if isinstance(s, tree.Return):
            _statement(scope, s)
            if not top:
                scope.report(
                    "E2120",
                    "`return` stands inside a loop",
                    s,
                    help="assign a `var` in the loop and return it after the loop",
                )
            elif i + 1 < len(body) and not _lost_before(scope, s):
                scope.report(
                    "E2120",
                    "`return` is not the last statement",
                    s,
                    related=(Label(body[i + 1].span, "this would never run"),),
                )
        else:
            _statement(scope, s)


def _lost_before(scope: Scope, s: tree.Stmt) -> bool:
    """Whether what could not be read may hold this statement: an `if` with statements in it."""
    return scope.fn is not None and scope.checking.lost_in(scope.fn, s.span.start)


def _statement(scope: Scope, s: tree.Stmt) -> None:
    try:
        _judge(scope, s)
    except TooLarge as large:
        scope.report("E2190", str(large), s)


def _judge(scope: Scope, s: tree.Stmt) -> None:
    if isinstance(s, _SIMPLE) and not isinstance(s.value, tree.For):
        if not scope.checking.was_read(s):
            with scope.checking.silence(True):
                _unread(scope, s)
            return
    match s:
        case tree.Let():
            _let(scope, s)
        case tree.IndexLet():
            index.index_let(scope, s)
        case tree.Var():
            _var(scope, s)
        case tree.Assign():
            _assign(scope, s)
        case tree.For():
            element, path = _range(scope, s)
            with _turn(scope, s, element, path):
                statements(scope, s.body)
        case tree.While():
            exprs.condition(scope, s.condition, "while")
            with scope.nested():
                statements(scope, s.body)
        case tree.Yield():
            exprs.settled(scope, s.value)
            scope.report(
                "E2124",
                "`yield` ends the body of a `for` that is the value of a `let`, `var`, assignment "
                "or `return`",
                s,
                help="bind the loop: `let ys = for i in 0..n { ... }`",
            )
        case tree.Return():
            _return(scope, s)


def _unread(scope: Scope, s: _Simple) -> None:
    """A statement with a syntax error inside: its names are known, their types are not."""
    match s:
        case tree.Let():
            exprs.settled(scope, s.value)
            patterns.bind(scope, s.pattern, UNKNOWN, "let")
        case tree.IndexLet():
            scope.add_local(s.name, s, UNKNOWN, "let")
        case tree.Var():
            exprs.settled(scope, s.value)
            scope.add_local(s.name, s, UNKNOWN, "var")
        case tree.Assign():
            _assign(scope, s)
        case tree.Return():
            _return(scope, s)


def _let(scope: Scope, s: tree.Let) -> None:
    if s.type is not None:
        found = _annotated(scope, s.type, s.value, text_of(s.pattern))
    else:
        found = _value(scope, s.value)
    found = _with_context(scope, s.value, found)
    patterns.bind(scope, s.pattern, found, "let", value=s.value)
    scope.learn(found)
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
        if not isinstance(bare(value), tree.NoneLit):
            _settled(scope, value)
        return UNKNOWN
    return _checked(scope, value, Expected(declared, origin))


def _with_context(scope: Scope, e: tree.Expr, found: Type) -> Type:
    """Report a `none` that nothing gives a type; other literals stay as they are."""
    if contextual(default_type(found)):
        return exprs.settle_default(scope, e, found)
    return found


def _var(scope: Scope, s: tree.Var) -> None:
    if s.type is not None:
        found = _annotated(scope, s.type, s.value, s.name.text)
    else:
        found = _settled(scope, s.value)
    scope.add_local(s.name, s, found, "var")
    scope.learn(found)


def _assign(scope: Scope, s: tree.Assign) -> None:
    name = s.name.text
    symbol = scope.lookup(name)
    if symbol is None:
        _settled(scope, s.value)
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
            _settled(scope, s.value)
            return
    if isinstance(target, UnknownType):
        _settled(scope, s.value)
        return
    origin = Origin(f"`{name}` is", at, f"`{name}` is {described(target)}", other="E2109")
    _checked(scope, s.value, Expected(target, origin))


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
            place = "a parameter" if kind == "param" else "the variable of a loop"
            what = f"{place}; only `var` and `state` are assigned"
            help = f"copy it: `var current = {name}`"
        case MemberName(member):
            what = f"a `{member.kind}`; only `var` and `state` are assigned"
        case IndexVar():
            what = "an index"
        case _:
            what = "neither a `var` nor a `state` of this block"
    scope.report("E2108", f"`{name}` is {what}", s.name, related=related, help=help)


def _return(scope: Scope, s: tree.Return) -> None:
    assert scope.fn is not None
    result = scope.analysis.signatures[scope.fn].result
    name = scope.fn.name.text
    if s.value is None:
        if result is not None:
            scope.report("E2120", f"`{name}` returns {described(result)}; a value is missing", s)
        return
    if result is None:
        _settled(scope, s.value)
        message = f"`{name}` declares no result"
        scope.report("E2120", message, s, help="declare it with `-> type` after the parameters")
        return
    if isinstance(result, UnknownType):
        _settled(scope, s.value)
        return
    at = scope.fn.result.span if scope.fn.result is not None else None
    origin = Origin(f"`{name}` returns", at, "declared here")
    _checked(scope, s.value, Expected(result, origin))


# ---------------------------------------------------------------- whole values


def _value(scope: Scope, e: tree.Expr, hint: Expected | None = None) -> Type:
    """The type of what is the whole value of a statement: an expression, or a loop's turns."""
    if not isinstance(e, tree.For):
        return exprs.value(scope, e, hint)
    found = _collected(scope, e, hint)
    scope.analysis.types[e] = found
    return found


def _settled(scope: Scope, e: tree.Expr) -> Type:
    return exprs.settle_default(scope, e, _value(scope, e))


def _checked(scope: Scope, e: tree.Expr, expected: Expected) -> Type:
    return coerce(scope, e, _value(scope, e, expected), expected)


def _collected(scope: Scope, e: tree.For, hint: Expected | None) -> Type:
    """The type of a loop's value: what its turns yield, stacked on a new leading axis."""
    element, path = _range(scope, e)
    last = e.body[-1] if e.body else None
    with _turn(scope, e, element, path):
        if not isinstance(last, tree.Yield):
            statements(scope, e.body)
            scope.report(
                "E2124",
                "this `for` has no value: its body does not end in `yield`",
                shown(e),
                help="end the body with `yield` and what a turn adds",
            )
            return UNKNOWN
        statements(scope, e.body[:-1])
        yielded = _yielded(scope, last.value, hint)
    bounds = scope.analysis.ranges.get(e)
    if bounds is None or isinstance(yielded, UnknownType):
        return UNKNOWN
    start, stop = bounds
    return _stacked(yielded, stop - start)


def _yielded(scope: Scope, e: tree.Expr, hint: Expected | None) -> Type:
    """The type of one turn's value, its literals typed by what the whole is expected to be."""
    want = _unstacked(hint.type) if hint is not None else None
    if hint is not None and want is not None:
        origin = replace(hint.origin, phrase="each turn should yield")
        return exprs.check(scope, e, Expected(want, origin))
    found = exprs.value(scope, e)
    if not _stackable(found):
        scope.report(
            "E2124",
            f"`{text_of(e)}` is {described(found)}; only tensors, scalars and tuples of them are "
            "stacked",
            e,
            help="yield its fields as a tuple: `yield (p.a, p.b)`"
            if isinstance(found, StructType)
            else None,
        )
        return UNKNOWN
    return exprs.settle_default(scope, e, found)


def _stackable(type: Type) -> bool:
    match type:
        case TupleType(items):
            return all(map(_stackable, items))
        case _:
            return isinstance(type, (TensorType, IntConst, FloatConst, UnknownType))


def _stacked(type: Type, count: Dim) -> Type:
    match type:
        case TupleType(items):
            return TupleType(tuple(_stacked(item, count) for item in items))
        case TensorType(shape, dtype):
            return TensorType((count, *shape), dtype)
        case _:
            return UNKNOWN


def _unstacked(type: Type) -> Type | None:
    """What each turn gives a loop whose value has this type; None if no loop's has."""
    match type:
        case TupleType(items):
            parts = [_unstacked(item) for item in items]
            return None if None in parts else TupleType(tuple(p for p in parts if p is not None))
        case TensorType((Dim(), *rest), dtype):
            return TensorType(tuple(rest), dtype)
        case _:
            return None


# ---------------------------------------------------------------- loops


@contextmanager
def _turn(scope: Scope, s: tree.For, element: Type, path: str | None) -> Iterator[None]:
    """The scope of a loop's body, with its variable."""
    with scope.nested():
        kind = "loop" if s.stop is not None else "element"
        local = scope.add_local(s.name, s, element, kind)
        if path is not None:
            scope.paths[local] = path
        yield


def _range(scope: Scope, s: tree.For) -> tuple[Type, str | None]:
    """What a loop's variable is, and the path of the array that it walks."""
    if s.stop is None:
        return _walked(scope, s)
    word = "static for" if s.static else "for"
    fix = "a `while` counts to a number that is known when the program runs"
    start = exprs.dimension(scope, s.start, f"a bound of `{word}`", fix)
    stop = exprs.dimension(scope, s.stop, f"a bound of `{word}`", fix)
    for bound in (s.start, s.stop):
        settle(scope, bound, scalar(I64))
    if start is not None and stop is not None:
        scope.analysis.ranges[s] = (start, stop)
        if not s.static:
            _prove_range(scope, s, Relation("<=", start, stop))
    return scalar(I64), None


def _prove_range(scope: Scope, s: tree.For, goal: Relation) -> None:
    """A counted loop ends where it begins or later, for all sizes."""
    if scope.known.proves(goal):
        return
    assert s.stop is not None
    verdict = scope.known.verdict(goal)
    noted = counterexample(verdict, goal, "it goes from {left} to {right}")
    whole = Span(s.span.source, s.start.span.start, s.stop.span.end)
    what = "ends" if not goal.names() else "may end"
    message = f"the range `{whole.text}` {what} before it begins"
    if not noted:
        message = f"could not prove that the range `{whole.text}` does not end before it begins"
    scope.report(
        "E2209",
        message,
        whole,
        notes=(noted,) if noted and goal.names() else (),
        help=clause_help(scope, verdict, goal),
        counterexample=broken_at(verdict, goal),
    )


def _walked_text(found: Type) -> str:
    return "one number" if isinstance(found, IntConst) else described(found)


def _walked(scope: Scope, s: tree.For) -> tuple[Type, str | None]:
    """The element type and path of the sub array that a loop walks."""
    found = exprs.infer(scope, s.start)
    if isinstance(found, UnknownType):
        return UNKNOWN, None
    name = text_of(s.start)
    if isinstance(found, BlockArray):
        if s.static:
            return found.of, f"{exprs.path_of(scope, s.start)}.*"
        at = Span(s.span.source, s.span.start, s.span.start)
        scope.report(
            "E2121",
            f"`for` counts through a range; `{name}` is an array of blocks",
            s.start,
            help=Help("walk it with `static for`", (Edit(at, "static "),), safe=True),
        )
        return UNKNOWN, None
    if isinstance(found, (IntConst, FloatConst)):
        settle(scope, s.start, default_type(found))
    walks = "`static for` walks an array of blocks or" if s.static else "`for` counts through"
    scope.report(
        "E2121",
        f"{walks} a range; `{name}` is {_walked_text(found)}",
        s.start,
        help=f"write a range: `0..{name}`" if isinstance(found, IntConst) else None,
    )
    return UNKNOWN, None
