"""Calls: arguments, generic inference with packs, where clauses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from linnet.check import exprs, habits, imports, instances, prelude, typeexprs
from linnet.check.analysis import (
    FnCall,
    GenericName,
    ItemName,
    MethodName,
    Module,
    ModuleName,
    PreludeName,
    StructCall,
)
from linnet.check.expect import (
    Expected,
    Mismatch,
    Origin,
    always_negative,
    bare,
    blocks,
    broken_at,
    coerce,
    compare,
    contextual,
    default_type,
    described,
    info_of,
    missing_clauses,
    negative_at,
    report_mismatch,
    settle,
    sizes_text,
    text_of,
    where_help,
)
from linnet.check.scope import Called, Scope, publish, suggestion
from linnet.core import rules
from linnet.diagnostics import Edit, Help, Label
from linnet.dims import Atom, Dim, Refuted, Relation
from linnet.source import Span
from linnet.syntax import tree
from linnet.syntax.tokens import KEYWORDS, RESERVED_WORDS
from linnet.types import (
    F64,
    I64,
    UNKNOWN,
    BlockArray,
    BlockType,
    DTypeVar,
    FloatConst,
    GenericValue,
    IntConst,
    NoneType,
    OptionalType,
    Pack,
    Shape,
    ShapeType,
    StructType,
    TensorType,
    TupleType,
    Type,
    UnknownType,
    dim_bindings,
    dtype_within,
    generic_text,
    substitute,
)

# ---------------------------------------------------------------- arguments in order


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    type: Type
    at: Span | None
    optional: bool
    position: int = 0  # among the arguments, from 1; 0 for one that is named


def arrange(
    scope: Scope,
    e: tree.Call,
    what: str,
    names: Sequence[str],
    optional: Sequence[bool],
    *,
    noun: str = "parameter",
    generics: Callable[[], str | None] = lambda: None,
) -> list[tree.Expr | None] | None:
    """One expression for each parameter, None for a default; None after a report of E2102.

    `generics` gives the help where what is too much may have been meant as a generic argument.
    """
    out: list[tree.Expr | None] = [None] * len(names)
    takes = _takes(what, names, noun)
    for position, arg in enumerate(e.args):
        if arg.name is None:
            if position >= len(names):
                message = f"`{what}` takes {_count(len(names))}, {len(e.args)} are given"
                scope.report("E2102", message, arg, help=generics() or takes)
                return None
            out[position] = arg.value
            continue
        if arg.name.text not in names:
            if arg.name.text in RESERVED_WORDS | KEYWORDS:
                return None  # reported as no name at all
            help = suggestion(arg.name, names) or generics() or takes
            scope.report("E2102", f"`{what}` has no {noun} `{arg.name.text}`", arg.name, help=help)
            return None
        at = list(names).index(arg.name.text)
        if out[at] is not None:
            scope.report("E2102", f"`{arg.name.text}` of `{what}` is given twice", arg)
            return None
        out[at] = arg.value
    missing = [n for n, x, o in zip(names, out, optional, strict=True) if x is None and not o]
    if missing:
        listed = ", ".join(f"`{n}`" for n in missing)
        plural = "argument" if noun == "parameter" else noun
        plural += "s" if len(missing) > 1 else ""
        scope.report("E2102", f"`{what}` needs its {plural} {listed}", e, help=takes)
        return None
    return out


def _count(n: int) -> str:
    return "no arguments" if n == 0 else f"{n} argument{'s' if n > 1 else ''}"


def _takes(what: str, names: Sequence[str], noun: str) -> str:
    if noun == "field":
        names = [f"{name} = ..." for name in names]
    return f"it is `{what}({', '.join(names)})`"


def abandon(scope: Scope, e: tree.Call) -> Type:
    """Check the arguments of a call that cannot be understood, for mistakes of their own."""
    for arg in e.args:
        if not isinstance(bare(arg.value), tree.ShapeLit):
            found = exprs.infer(scope, arg.value)
            if contextual(found):
                settle(scope, arg.value, default_type(found))
    return UNKNOWN


# ---------------------------------------------------------------- what is called


def is_function(name: str) -> bool:
    return name in prelude.PRELUDE or name in prelude.RESERVED


def call(scope: Scope, e: tree.Call, hint: Expected | None) -> Type:
    callee = bare(e.callee)
    match callee:
        case tree.Name():
            # Nothing else may be declared with a prelude name.
            known = is_function(callee.text)
            symbol = PreludeName(callee.text) if known else scope.lookup(callee.text)
            if symbol is None:
                exprs.unknown_name(scope, callee, place="call")
                return UNKNOWN if habits.is_call(callee.text) else abandon(scope, e)
            scope.analysis.symbols[callee] = symbol
        case tree.Field():
            symbol = exprs.static_field(scope, callee)
            if symbol is None:
                return _method_of(scope, e, callee, hint)
            if symbol is exprs.UNRESOLVED:
                return abandon(scope, e)
        case _:
            return _not_callable(scope, e, exprs.infer(scope, callee))
    match symbol:
        case PreludeName(name) if is_function(name):
            return prelude.call(scope, e, name, hint)
        case ItemName(tree.Fn() as fn, _):
            return _function(scope, e, Called(fn, None, e.span), None, None, hint)
        case ItemName(tree.Struct() as struct, _):
            return _struct(scope, e, struct, hint)
        case MethodName(fn):
            assert scope.block is not None
            block = scope.block
            args = typeexprs.in_order(block.generics, typeexprs.identity(block.generics))
            owner = BlockType(block, block.name.text, args)
            return _function(scope, e, Called(fn, "", e.span), owner, None, hint)
        case PreludeName(name):
            fix = f"write `cast<{name}>(...)`" if name[0].islower() else None
            scope.report("E2106", f"`{name}` is a type, not a function", callee, help=fix)
        case ItemName(tree.Trait(), _):
            fix = "call a method of a block that implements it"
            scope.report("E2106", f"`{text_of(callee)}` is a trait", callee, help=fix)
        case ItemName(tree.Block(), _):
            name = text_of(callee)
            fix = f"declare `sub x: {name}<...>` in a block and call a method of `x`"
            scope.report(
                "E2106", f"`{name}` is a block; it is not built by a call", callee, help=fix
            )
        case ModuleName():
            scope.report("E2106", f"`{text_of(callee)}` is a module, not a function", callee)
        case _:
            return _not_callable(scope, e, exprs.infer(scope, callee))
    return abandon(scope, e)


def _not_callable(scope: Scope, e: tree.Call, found: Type) -> Type:
    if isinstance(found, UnknownType):
        return abandon(scope, e)
    message = f"`{text_of(e.callee)}` is {described(found)}, not a function"
    source, end = e.callee.span.source, e.callee.span.end
    gap = source.text[end : source.text.index("(", end)]
    if "\n" not in gap:
        method = "forward"
        if isinstance(found, BlockType) and (info := info_of(scope, found)) is not None:
            method = next(iter(info.methods), method) if method not in info.methods else method
        called = f"call a method of it: `{text_of(e.callee)}.{method}(...)`"
        fix = called if isinstance(found, BlockType) else None
        scope.report("E2106", message, e.callee, help=fix)
        return abandon(scope, e)
    # The parentheses were meant to begin a statement, which names what is not bound yet.
    at = Span(source, end + len(gap), end + len(gap))
    last = scope.fn is not None and scope.fn.body and scope.fn.body[-1].span.end == e.span.end
    help: Help | str = "a `(` on the next line goes on with this expression; begin it with `let`"
    if last:
        help = Help(
            "to return what stands in the parentheses, write `return`", (Edit(at, "return "),), True
        )
        scope.returned = True
    inside = Label(Span(source, at.start, e.span.end), "read as its arguments")
    scope.report("E2106", message, e.callee, related=(inside,), help=help)
    return UNKNOWN


def _method_of(scope: Scope, e: tree.Call, callee: tree.Field, hint: Expected | None) -> Type:
    base = exprs.infer_whole(scope, callee.base)
    name = callee.name.text
    receiver = text_of(callee.base)
    match base:
        case UnknownType():
            return abandon(scope, e)
        case BlockType():
            pass
        case OptionalType(BlockType()):
            fix = f"take it out: `match {receiver} {{ some(x) => x.{name}(...) none => ... }}`"
            scope.report(
                "E2107",
                f"`{receiver}` may be absent, so `{name}` cannot be called on it",
                callee.name,
                help=fix,
            )
            return abandon(scope, e)
        case BlockArray():
            fix = f"walk it: `static for x in {receiver} {{ ... }}`, or choose `{receiver}[0]`"
            scope.report(
                "E2107",
                f"`{receiver}` is an array of {blocks(base)}; `{name}` is a method of each",
                callee.name,
                help=fix,
            )
            return abandon(scope, e)
        case _:
            return _plain_method(scope, e, callee, base)
    info = info_of(scope, base)
    if info is None:
        return abandon(scope, e)
    fn = info.methods.get(name)
    if fn is None:
        if name in info.members:
            scope.report("E2106", f"`{text_of(callee)}` is a member, not a method", callee)
        elif info.block not in scope.checking.holed:
            help = suggestion(callee.name, info.methods)
            scope.report("E2107", f"{base.name} has no method `{name}`", callee.name, help=help)
        return abandon(scope, e)
    if not fn.public and info.block is not scope.block:
        home = scope.analysis.signatures[fn].module if fn in scope.analysis.signatures else None
        _private(scope, callee, base, fn, home or info.module)
        return abandon(scope, e)
    scope.analysis.symbols[callee] = scope.analysis.symbols[callee.name] = MethodName(fn)
    called = Called(fn, f"{exprs.path_of(scope, callee.base)}.", e.span, info.block)
    return _function(scope, e, called, base, callee.base, hint)


def _private(scope: Scope, callee: tree.Field, base: BlockType, fn: tree.Fn, home: Module) -> None:
    """The method is reported where a module first calls it: one `pub` makes all the calls right."""
    if (scope.module, fn) in scope.checking.private:
        return
    if not scope.checking.silent:
        scope.checking.private.add((scope.module, fn))
    name = fn.name.text
    scope.report(
        "E2107",
        f"`{name}` is private to {base.name}",
        callee.name,
        related=(Label(fn.name.span, "declared here, without `pub`"),),
        help=publish(scope, fn, f"write `pub {fn.kind} {name}` in {base.name}", home),
    )


def _plain_method(scope: Scope, e: tree.Call, callee: tree.Field, base: Type) -> Type:
    name = callee.name.text
    symbol = scope.lookup(name)
    own = isinstance(symbol, ItemName) and isinstance(symbol.item, tree.Fn)
    help = None if own else habits.method_help(name, text_of(callee.base))
    if own or (help is None and isinstance(symbol, PreludeName)):
        inner = ", ".join(["..."] * len(e.args))
        help = Help(f"write `{name}({text_of(callee.base)}{', ' if inner else ''}{inner})`")
    elif help is None and (found := imports.that_brings(scope, name, "call")) is not None:
        help = Help(f"{found.text}, and write `{name}({text_of(callee.base)}, ...)`")
    scope.report("E2107", f"{described(base)} has no methods", callee.name, help=help)
    return UNKNOWN if habits.is_call(name) else abandon(scope, e)


# ---------------------------------------------------------------- functions


def _function(
    scope: Scope,
    e: tree.Call,
    called: Called,
    owner: BlockType | None,
    receiver: tree.Expr | None,
    hint: Expected | None,
) -> Type:
    scope.touched.calls.append(called)
    fn = called.fn
    signature = scope.analysis.signatures.get(fn)
    if signature is None or fn in scope.checking.broken:
        return abandon(scope, e)
    names = [name for name, _ in signature.params]
    optional = [p.default is not None for p in fn.params]
    start = {}
    if owner is not None and (info := info_of(scope, owner)) is not None:
        start = info.bindings(typeexprs.bindings_of(owner), signature.block)
    filling = _Filling(scope, e, fn.name.text, fn.generics, start)
    types = [type for _, type in signature.params]
    meant = partial(filling.meant_as_generics, types)
    args = arrange(scope, e, fn.name.text, names, optional, generics=meant)
    if args is None:
        return abandon(scope, e)
    positional = sum(a.name is None for a in e.args)
    params = [
        Parameter(name, type, decl.span, decl.default is not None, i if i <= positional else 0)
        for i, ((name, type), decl) in enumerate(zip(signature.params, fn.params, strict=True), 1)
    ]
    uses = scope.index_uses
    errors = scope.findings.errors
    if owner is not None and receiver is not None and signature.block is owner.decl:
        filling.instance = receiver, owner
    bindings = filling.bind(params, args, signature.result, hint)
    if bindings is None:
        return UNKNOWN
    lifted = scope.elements and scope.index_uses > uses
    if lifted:
        _refuse_whole(scope, fn.name.text, args)
    if scope.findings.errors == errors:
        prove_instance(scope, e, fn.name.text, scope.checking.clauses.get(fn, ()), bindings)
    result = signature.result
    if result is None:
        scope.report("E2101", f"`{fn.name.text}` gives no result", e)
        return UNKNOWN
    result = substitute(result, bindings)
    if scope.findings.errors == errors:
        refuse_negative(scope, e, fn.name.text, result)
    home = signature.module
    meaning = FnCall(fn, home, owner, receiver, bindings, tuple(args), result, lifted)
    scope.analysis.calls[e] = meaning
    if lifted:
        scope.checking.lifted.append((scope, e, called))
    # What a wrong call gives is not what was meant: one mistake, one error.
    return result if scope.findings.errors == errors else UNKNOWN


def _refuse_whole(scope: Scope, what: str, args: Iterable[tree.Expr | None]) -> None:
    """Inside index notation a call on elements takes elements only."""
    for arg in args:
        found = scope.analysis.types.get(arg) if arg is not None else None
        if arg is not None and isinstance(found, TensorType) and found.shape:
            scope.report(
                "E3104",
                f"`{text_of(arg)}` is {found}; `{what}` is called on elements here",
                arg,
                help="call it on whole tensors in a `let` of its own, and index the result",
            )


def refuse_negative(scope: Scope, e: tree.Expr, what: str, result: Type) -> None:
    """The result of a call has no axis that is negative for all sizes."""
    match result:
        case TensorType(shape):
            for axis in shape:
                if isinstance(axis, Dim) and always_negative(scope, axis):
                    message = f"the result of `{what}` is {result}; `{axis}` is negative"
                    notes, broken = negative_at(scope, axis)
                    scope.report("E2208", message, e, notes=notes, counterexample=broken)
                    return
        case TupleType(items):
            for item in items:
                refuse_negative(scope, e, what, item)
        case _:
            pass


def prove_instance(
    scope: Scope,
    at: tree.Syntax,
    what: str,
    clauses: Sequence[tuple[tree.Relation, Relation]],
    bindings: dict[str, GenericValue],
) -> None:
    """Every where clause of a callee or a block holds with these generics."""
    sizes = dim_bindings(bindings)
    goals = [(clause, relation.substitute(sizes)) for clause, relation in clauses]
    failed = [(clause, goal) for clause, goal in goals if not scope.known.proves(goal)]
    if not failed:
        return
    clause, goal = failed[0]
    [relation] = [r for c, r in clauses if c is clause]
    verdict = scope.known.verdict(goal)
    message = f"`{what}` requires `{text_of(clause)}`"
    if f"{goal}" != text_of(clause):
        given = relation.names() & sizes.keys() if not goal.names() else frozenset[str]()
        values = ", ".join(f"{name} = {sizes[name]}" for name in sorted(given))
        message += f"; with {values} that is `{goal}`" if given else f"; here that is `{goal}`"
    if isinstance(verdict, Refuted):
        shown = f" {sizes_text(verdict, goal.names())}" if goal.names() else ""
        message += f", which does not hold{shown}"
    else:
        message += ", which could not be proved"
    missing = missing_clauses(scope.known, [goal for _, goal in failed])
    scope.report(
        "E2206",
        message,
        at,
        related=tuple(Label(c.span, "required here") for c, _ in failed),
        help=None if missing is None else where_help(scope, missing),
        counterexample=broken_at(verdict, goal),
    )


# ---------------------------------------------------------------- structs


def _struct(scope: Scope, e: tree.Call, struct: tree.Struct, hint: Expected | None) -> Type:
    if struct in scope.checking.broken:
        return abandon(scope, e)
    name = struct.name.text
    info = scope.analysis.structs[struct]
    names = list(info.fields)
    for arg in e.args:
        if arg.name is None:
            form = ", ".join(f"{n} = ..." for n in names)
            message = f"`{name}` is built by naming its fields"
            scope.report("E2102", message, arg, help=f"write `{name}({form})`")
            return abandon(scope, e)
    declared = {f.name.text: f for f in struct.fields}
    optional = [declared[n].default is not None for n in names]
    args = arrange(scope, e, name, names, optional, noun="field")
    if args is None:
        return abandon(scope, e)
    params = [Parameter(n, t, declared[n].span, False) for n, t in info.fields.items()]
    errors = scope.findings.errors
    generics = struct.generics
    result = StructType(struct, name, typeexprs.in_order(generics, typeexprs.identity(generics)))
    bindings = _Filling(scope, e, name, generics, {}, noun="field").bind(params, args, result, hint)
    if bindings is None:
        return UNKNOWN
    found = substitute(result, bindings)
    assert isinstance(found, StructType)
    if scope.findings.errors == errors:
        prove_instance(scope, e, name, scope.checking.clauses.get(struct, ()), bindings)
    scope.analysis.calls[e] = StructCall(found, tuple(args))
    return found


# ---------------------------------------------------------------- inference


@lru_cache(maxsize=8192)
def generic_names(type: Type) -> frozenset[str]:
    """The generics that a type speaks of."""
    match type:
        case TensorType(shape, dtype):
            own = {dtype.name} if isinstance(dtype, DTypeVar) else set[str]()
            return frozenset(own) | _shape_names(shape)
        case ShapeType(shape):
            return _shape_names(shape)
        case TupleType(items):
            return frozenset().union(*(generic_names(t) for t in items))
        case OptionalType(of):
            return generic_names(of)
        case StructType(args=args) | BlockType(args=args):
            return frozenset().union(*(_value_names(a) for a in args))
        case BlockArray(of, length):
            return generic_names(of) | length.names()
        case _:
            return frozenset()


def _value_names(value: GenericValue) -> frozenset[str]:
    match value:
        case Dim():
            return value.names()
        case tuple():
            return _shape_names(value)
        case DTypeVar(name=name):
            return frozenset({name})
        case _:
            return frozenset()


def _shape_names(shape: Shape) -> frozenset[str]:
    names: set[str] = set()
    for axis in shape:
        names |= {axis.name} if isinstance(axis, Pack) else axis.names()
    return frozenset(names)


@dataclass(eq=False, slots=True)
class _Filling:
    """Finding the generics of one call, in the caller's names."""

    scope: Scope
    call: tree.Call
    what: str
    generics: Sequence[tree.GenericParam]
    bound: dict[str, GenericValue]
    noun: str = "parameter"
    open: set[str] = field(default_factory=set[str])
    later: list[tuple[Dim, Dim]] = field(default_factory=list[tuple[Dim, Dim]])
    from_where: dict[str, tree.Expr] = field(default_factory=dict[str, tree.Expr])
    written: set[str] = field(default_factory=set[str])
    source: tree.Expr | None = None
    instance: tuple[tree.Expr, BlockType] | None = None  # what a method is called on

    def bind(
        self,
        params: Sequence[Parameter],
        args: Sequence[tree.Expr | None],
        result: Type | None,
        hint: Expected | None,
    ) -> dict[str, GenericValue] | None:
        """A value for every generic, and every argument checked; None after a report."""
        scope, e = self.scope, self.call
        given = typeexprs.explicit(scope, e, self.generics, e.generics or (), self.what)
        if given is None:
            abandon(scope, e)
            return None
        self.bound |= given
        self.from_where = {
            g.name.text: written
            for g, written in zip(self.generics, e.generics or (), strict=False)
        }
        self.written = set(self.from_where)
        self.open = {g.name.text for g in self.generics} - given.keys()
        found = self._arguments(params, args, result, hint)
        unknown = any(isinstance(t, UnknownType) for t in (*found, *(p.type for p in params)))
        if self.open and result is not None and hint is not None:
            self.source = e
            self._unify(result, hint.type)
            self._solve_later()
        self._defaults()
        self._literals(params, found)
        self._defaults()
        if self.open:
            report = not unknown and not self._misfit(params, args, found)
            self._give_up(params, args, found, report=report)
            return None
        if not self._kinds():
            self._give_up(params, args, found, report=False)
            return None
        reported: set[str] = set()
        for param, arg, t in zip(params, args, found, strict=True):
            if arg is None or t is None:
                continue
            expected = Expected(substitute(param.type, self.bound), self._origin(param))
            inferred = self._inferred_at_fault(param, t, expected)
            # The argument that gave a size fits none of these, or all are written in a wrong order.
            sources = {"<" if name in self.written else name for name in inferred}
            if sources and sources <= reported:
                continue
            reported |= sources
            if inferred:
                origin = replace(expected.origin, inferred=tuple(inferred.values()))
                expected = Expected(expected.type, origin)
            elif self.instance is not None:
                receiver, owner = self.instance
                other = instances.with_dtype(scope, receiver, owner, param.type, t)
                if other is not None:
                    origin = replace(expected.origin, redeclare=other)
                    expected = Expected(expected.type, origin)
            coerce(scope, arg, t, expected)
        ordered = [*(n for n in self.bound if n not in given), *given]
        return {n: self.bound[n] for n in ordered}

    def _inferred_at_fault(
        self, param: Parameter, found: Type, expected: Expected
    ) -> dict[str, Label]:
        """The generics of the axis that does not fit, with the arguments that gave their sizes."""
        mismatch = compare(self.scope, found, expected.type)
        if mismatch is None or mismatch.axis is None or not isinstance(param.type, TensorType):
            return {}
        want = mismatch.want
        if not isinstance(want, TensorType) or want != expected.type:
            return {}
        wanted = [axis for axis in param.type.shape if isinstance(axis, Dim)]
        back = len(want.shape) - mismatch.axis
        if back > len(wanted) or not isinstance(param.type.shape[-back], Dim):
            return {}
        axis = param.type.shape[-back]
        assert isinstance(axis, Dim)
        out: dict[str, Label] = {}
        for name in sorted(axis.names() & self.from_where.keys()):
            value = generic_text(self.bound[name])
            how = "written here" if name in self.written else "by this argument"
            text = f"`{name}` of `{self.what}` is `{value}`, {how}"
            out[name] = Label(self.from_where[name].span, text)
        return out

    def _origin(self, param: Parameter) -> Origin:
        phrase = f"{self.noun} `{param.name}` of `{self.what}` is"
        if param.position:
            phrase = f"argument {param.position} of `{self.what}`, `{param.name}`, is"
        return Origin(phrase, param.at, "declared here")

    def _arguments(
        self,
        params: Sequence[Parameter],
        args: Sequence[tree.Expr | None],
        result: Type | None,
        hint: Expected | None,
    ) -> list[Type | None]:
        """The arguments' types; those made of literals are read last, with what the others fix."""
        scope = self.scope
        found: list[Type | None] = [None] * len(params)
        given = [i for i, a in enumerate(args) if a is not None]
        opens = {i for i in given if (a := args[i]) is not None and exprs.is_open(scope, a)}
        for i in sorted(given, key=lambda i: i in opens):
            arg, param = args[i], params[i]
            assert arg is not None
            expected, bound = None, self.bound
            needed = generic_names(param.type) & self.open
            if needed and result is not None and hint is not None and _holds_struct(param.type):
                # A struct that is built here may need what the whole is expected to be.
                bound = {**self._told(result, hint.type), **self.bound}
            if needed <= bound.keys():
                expected = Expected(substitute(param.type, bound), self._origin(param))
            t = found[i] = exprs.value(scope, arg, expected, whole=True)
            if self.open:
                self.source = arg
                self._unify(param.type, t)
        self._solve_later()
        return found

    def _told(self, want: Type, found: Type) -> dict[str, GenericValue]:
        """What the open generics would be, were `want` to become `found`."""
        fresh = replace(self, bound={}, open=set(self.open), later=[], source=None)
        fresh._unify(want, found)
        return fresh.bound

    def meant_as_generics(self, params: Sequence[Type]) -> str | None:
        """How the generics that no argument tells are written, for a call with too many arguments;
        None where there are none."""
        told = frozenset[str]().union(*(generic_names(type) for type in params))
        untold = [
            g for g in self.generics if g.name.text not in told and not g.pack and g.default is None
        ]
        if not untold:
            return None
        given = [a.value for a in self.call.args if a.name is None]
        found = [exprs.infer(self.scope, arg) for arg in given[: len(params)]]
        extra = [*(self.call.generics or ()), *given[len(params) :]]
        extra += [a.value for a in self.call.args if a.name is not None]
        listed = ", ".join(f"`{g.name.text}`" for g in untold)
        are = "is a generic" if len(untold) == 1 else "are generics"
        written = self._as_meant(params, found, untold, extra)
        inner = ", ".join(text_of(arg) for arg in given[: len(params)])
        return f"{listed} {are}: write `{self.what}{written}({inner})`"

    def _as_meant(
        self,
        params: Sequence[Type],
        found: Sequence[Type | None],
        untold: Sequence[tree.GenericParam],
        values: Sequence[tree.Expr],
    ) -> str:
        """All generics in order: those that the arguments tell, and these values for the rest."""
        fresh = _Filling(self.scope, self.call, self.what, self.generics, {})
        fresh.open = {g.name.text for g in self.generics}
        for param, t in zip(params, found, strict=False):
            if t is not None:
                fresh._unify(param, t)
        texts = {name: generic_text(value) for name, value in fresh.bound.items()}
        if len(values) <= len(untold):
            texts |= {g.name.text: text_of(e) for g, e in zip(untold, values, strict=False)}
        names = [g.name.text for g in self.generics]
        return f"<{', '.join(texts.get(name, name) for name in names)}>"

    # ------------------------------------------------------------ unification

    def _set(self, name: str, value: GenericValue) -> None:
        if name in self.open:
            self.open.discard(name)
            self.bound[name] = value
            if self.source is not None:
                self.from_where[name] = self.source

    def _unify(self, want: Type, found: Type) -> None:
        """Bind generics so that `want` becomes `found`, as far as its form tells."""
        match want, found:
            case TensorType(), TensorType():
                if isinstance(want.dtype, DTypeVar):
                    self._set(want.dtype.name, found.dtype)
                self._unify_shapes(want.shape, found.shape)
            case TensorType(), IntConst() | FloatConst():
                if all(isinstance(axis, Pack) for axis in want.shape):
                    self._unify_shapes(want.shape, ())
            case TupleType(a), TupleType(b):
                for x, y in zip(a, b, strict=False):
                    self._unify(x, y)
            case OptionalType(a), OptionalType(b):
                self._unify(a, b)
            case OptionalType(a), _ if not isinstance(found, NoneType):
                self._unify(a, found)
            case StructType(), StructType() if want.decl is found.decl:
                for p, q in zip(want.args, found.args, strict=True):
                    self._unify_values(p, q)
            case _:
                pass

    def _unify_values(self, want: GenericValue, found: GenericValue) -> None:
        if isinstance(want, Dim) and isinstance(found, Dim):
            self._unify_dims(want, found)
        elif isinstance(want, tuple) and isinstance(found, tuple):
            self._unify_shapes(want, found)
        elif isinstance(want, DTypeVar) and not isinstance(found, (Dim, tuple)):
            self._set(want.name, found)

    def _unify_shapes(self, want: Shape, found: Shape) -> None:
        packs = [i for i, axis in enumerate(want) if isinstance(axis, Pack)]
        if not packs:
            if len(want) == len(found):
                self._unify_axes(want, found)
            return
        at = packs[0]
        after = len(want) - at - 1
        if len(packs) > 1 or len(found) < at + after:
            return
        self._unify_axes(want[:at], found[:at])
        self._unify_axes(want[at + 1 :], found[len(found) - after :])
        pack = want[at]
        assert isinstance(pack, Pack)
        self._set(pack.name, found[at : len(found) - after])

    def _unify_axes(self, want: Shape, found: Shape) -> None:
        for x, y in zip(want, found, strict=True):
            if isinstance(x, Dim) and isinstance(y, Dim):
                self._unify_dims(x, y)

    def _unify_dims(self, want: Dim, found: Dim) -> None:
        alone = _single_name(want)
        if alone is not None:
            self._set(alone, found)
        elif want.names() & self.open:
            self.later.append((want, found))

    def _solve_later(self) -> None:
        """Linear axes with one unknown, again and again while that binds something."""
        progress = True
        while progress and self.later:
            progress = False
            remaining: list[tuple[Dim, Dim]] = []
            for want, found in self.later:
                unknown = want.names() & self.open
                if len(unknown) == 1:
                    name = next(iter(unknown))
                    value = self._solve(want, name, found)
                    if value is not None:
                        self._set(name, value)
                        progress = True
                        continue
                if unknown:
                    remaining.append((want, found))
            self.later = remaining

    def _solve(self, want: Dim, name: str, found: Dim) -> Dim | None:
        """The value of `name` that makes a linear axis equal to `found`."""
        known = dim_bindings({n: v for n, v in self.bound.items() if n != name})
        mark = "?"
        form = want.substitute({**known, name: Dim.of(mark)})
        rest = form.substitute({mark: 0})
        factor = form.substitute({mark: 1}) - rest
        if mark in factor.names() or factor * Dim.of(mark) + rest != form:
            return None
        left = found - rest
        exact = _exact_quotient(left, factor)
        if exact is not None:
            return exact
        return left // factor if self.scope.proves(">", factor, 0) else None

    # ------------------------------------------------------------ what inference leaves

    def _defaults(self) -> None:
        for param in self.generics:
            name = param.name.text
            if name in self.open:
                filled = typeexprs.default_value(self.scope, param, self.bound)
                if filled is not None and not (_value_names(filled) & self.open):
                    self.source = None
                    self._set(name, filled)

    def _literals(self, params: Sequence[Parameter], found: Sequence[Type | None]) -> None:
        """A dtype that only literals fix is i64 or f64."""
        kinds = {g.name.text: g.kind.text for g in self.generics}
        for param, t in zip(params, found, strict=True):
            match param.type:
                case TensorType(shape, DTypeVar(name=name)) if name in self.open:
                    if isinstance(t, (IntConst, FloatConst)) and not any(
                        isinstance(axis, Dim) for axis in shape
                    ):
                        real = isinstance(t, FloatConst) or kinds[name] == "Float"
                        self._set(name, F64 if real else I64)
                case _:
                    pass

    def _kinds(self) -> bool:
        fine = True
        for param in self.generics:
            value = self.bound[param.name.text]
            kind = param.kind.text
            if kind in typeexprs.DTYPE_KIND_NAMES and not param.pack:
                assert not isinstance(value, (Dim, tuple))
                if not dtype_within(value, kind):
                    at = self.from_where.get(param.name.text, self.call)
                    typeexprs.outside_kind(self.scope, at, param, value, self.what)
                    fine = False
        return fine

    def _misfit(
        self,
        params: Sequence[Parameter],
        args: Sequence[tree.Expr | None],
        found: Sequence[Type | None],
    ) -> bool:
        """Report the first argument that no generics make fit, which is why some are not found."""
        for param, arg, t in zip(params, args, found, strict=True):
            if arg is None or t is None or contextual(t) or _may_fit(param.type, t):
                continue
            origin = self._origin(param)
            code = "E2101"
            if isinstance(t, TensorType) and isinstance(param.type, TensorType) and t.shape:
                code = "E2202"
            notes: tuple[str, ...] = ()
            if isinstance(t, TensorType) and isinstance(param.type, TensorType):
                ruling = rules.equal_shapes(t.shape, param.type.shape)
                notes = (ruling.why,) if isinstance(ruling, rules.Broken) else ()
            mismatch = Mismatch(code, t, param.type, notes)
            report_mismatch(self.scope, arg, t, Expected(param.type, origin), mismatch)
            return True
        return False

    def _give_up(
        self,
        params: Sequence[Parameter],
        args: Sequence[tree.Expr | None],
        found: Sequence[Type | None],
        *,
        report: bool,
    ) -> None:
        """Say which generics to write out, and silence the arguments' literals."""
        for arg, t in zip(args, found, strict=True):
            if arg is not None and t is not None and contextual(t):
                settle(self.scope, arg, default_type(t))
        if not report:
            return
        missing = [g for g in self.generics if g.name.text in self.open]
        forms = [
            generic_text(self.bound[g.name.text]) if g.name.text in self.bound else g.name.text
            for g in self.generics
        ]
        listed = ", ".join(f"`{g.name.text}`" for g in missing)
        written = f"<{', '.join(forms)}>"
        callee = self.call.callee.span
        at = Span(callee.source, callee.end, callee.end)
        # The missing ones have the callee's names, which may mean something here too.
        known = all(isinstance(self.scope.lookup(g.name.text), GenericName) for g in missing)
        edits = (Edit(at, written),) if known and not self.call.generics else ()
        notes: tuple[str, ...] = ()
        if given := self.call.generics:
            names = [f"`{g.name.text}`" for g in self.generics]
            filled = ", ".join(names[: len(given)])
            notes = (f"generic arguments are taken in order, {', '.join(names)}: here {filled}",)
            if len(given) == len(missing) or all(e.span.text.isdigit() for e in given):
                written = self._as_meant([p.type for p in params], found, missing, given)
        self.scope.report(
            "E2110",
            f"nothing here tells {listed} of `{self.what}`",
            self.call,
            related=(Label(missing[0].span, "declared here"),),
            notes=notes,
            help=Help(f"write the generics out: `{self.what}{written}(...)`", edits),
        )


def _holds_struct(type: Type) -> bool:
    match type:
        case OptionalType(of):
            return _holds_struct(of)
        case TupleType(items):
            return any(map(_holds_struct, items))
        case _:
            return isinstance(type, StructType)


def _may_fit(want: Type, found: Type) -> bool:
    """Some generics could make the two one type, as far as ranks and kinds tell."""
    match want, found:
        case TensorType(a), TensorType(b):
            fixed = sum(isinstance(axis, Dim) for axis in a)
            return len(b) == fixed if fixed == len(a) else len(b) >= fixed
        case TupleType(a), TupleType(b):
            pairs = zip(a, b, strict=False)
            return len(a) == len(b) and all(_may_fit(x, y) for x, y in pairs)
        case OptionalType(a), OptionalType(b):
            return _may_fit(a, b)
        case StructType(), StructType():
            return want.decl is found.decl
        case _:
            unknown = isinstance(found, UnknownType) or isinstance(want, UnknownType)
            return unknown or type(want) is type(found)


def _single_name(dim: Dim) -> str | None:
    """The name that a dimension is, alone."""
    if len(dim.terms) == 1:
        product, coefficient = dim.terms[0]
        if coefficient == 1 and len(product) == 1 and product[0].op == "name":
            return product[0].name
    return None


def _exact_quotient(left: Dim, by: Dim) -> Dim | None:
    """`left / by` where `by` is one product that divides every term of `left`."""
    if by.constant == 1:
        return left
    if len(by.terms) != 1:
        return None
    factors, coefficient = by.terms[0]
    total = Dim.of(0)
    for product, count in left.terms:
        rest = list(product)
        if count % coefficient:
            return None
        for atom in factors:
            if atom not in rest:
                return None
            rest.remove(atom)
        term = Dim.of(count // coefficient)
        for atom in rest:
            term = term * _atom(atom)
        total = total + term
    return total


def _atom(atom: Atom) -> Dim:
    return Dim((((atom,), 1),), ((atom,),))
