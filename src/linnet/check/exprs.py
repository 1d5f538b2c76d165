"""Expressions: their types, with literals typed by context.

`infer` gives the type of anything, `value` of what must be a value, `check` of what is expected.
A literal stays contextual (IntConst, FloatConst, NoneType) until `coerce` or `settled` types it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from linnet.check import calls, consts, habits, imports, index, patterns, prelude, typeexprs
from linnet.check.analysis import (
    GenericName,
    IndexVar,
    ItemName,
    Local,
    MemberInfo,
    MemberName,
    MethodName,
    Module,
    ModuleName,
    PreludeName,
    Symbol,
    Variant,
)
from linnet.check.expect import (
    Expected,
    Origin,
    bare,
    blocks,
    broken_at,
    clause_help,
    coerce,
    compare,
    contextual,
    counterexample,
    default_type,
    described,
    first_failure,
    info_of,
    literal_fault,
    report_mismatch,
    settle,
    shown,
    text_of,
)
from linnet.check.scope import Scope, exported, suggestion
from linnet.core import rules
from linnet.core.rules import Broken, Obligation, Ruling
from linnet.diagnostics import Edit, Help, Label
from linnet.dims import Dim, Relation, TooLarge
from linnet.source import Span
from linnet.syntax import tree
from linnet.syntax.tokens import KEYWORDS, RESERVED_WORDS
from linnet.types import (
    BOOL,
    I64,
    UNKNOWN,
    AnyDType,
    BlockArray,
    BlockType,
    EnumType,
    FloatConst,
    IntConst,
    NoneType,
    OptionalType,
    ShapeType,
    StructType,
    TensorType,
    TupleType,
    Type,
    UnknownType,
    dtype_within,
    scalar,
    shape_text,
    substitute,
    values_within,
)

ARITHMETIC = {"+": "add", "-": "sub", "*": "mul", "/": "div", "%": "rem"}
ORDER = frozenset(("<", "<=", ">", ">="))
LARGEST_TUPLE = 1000  # values
MISSPELT = 300  # unknown names of a run for which a near one is looked for
BITWISE = {"|": "or", "^": "xor", "&": "and"}
COMPARISON = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
NOT_NAMES = KEYWORDS | RESERVED_WORDS  # the parser reports one that stands for a name


def infer(scope: Scope, e: tree.Expr, hint: Expected | None = None) -> Type:
    """The type of an expression, recorded; it may be contextual, and may be a block."""
    rule: Callable[[Scope, Any, Expected | None], Type] = _RULES[type(e)]
    try:
        found = rule(scope, e, hint)
    except TooLarge as large:
        scope.report("E2190", str(large), e)
        found = UNKNOWN
    scope.analysis.types[e] = found
    if isinstance(found, IntConst):
        scope.analysis.dims[e] = found.value
    return found


def value(scope: Scope, e: tree.Expr, hint: Expected | None = None, *, whole: bool = False) -> Type:
    """The type of a value: a block is refused, and a whole tensor where elements are read."""
    found = infer(scope, e, hint)
    match found:
        case BlockType() | BlockArray() | OptionalType(BlockType()):
            fix = "call one of its methods or read one of its members"
            if isinstance(found, OptionalType):
                fix = "take it out with `match` first, then " + fix
            scope.report("E1208", f"`{text_of(e)}` is a block, not a value", e, help=fix)
        case ShapeType():
            scope.report("E1208", f"`{text_of(e)}` is a shape, not a value", e)
        case TensorType(shape=shape) if shape and scope.elements and not whole:
            axes = f"all its {len(shape)} axes" if len(shape) > 1 else "its axis"
            scope.report(
                "E3104",
                f"`{text_of(e)}` is {found}; index notation reads elements",
                e,
                help=f"put an index on {axes}",
            )
        case _:
            return found
    scope.analysis.types[e] = UNKNOWN
    return UNKNOWN


def settled(
    scope: Scope, e: tree.Expr, hint: Expected | None = None, *, whole: bool = False
) -> Type:
    """The type of a value, its literals typed by the hint if they can be, else i64 and f64."""
    return settle_default(scope, e, value(scope, e, hint, whole=whole), hint)


def settle_default(scope: Scope, e: tree.Expr, found: Type, hint: Expected | None = None) -> Type:
    """A type without contextual parts, recorded; a `none` without context is reported."""
    if not contextual(found):
        return found
    if hint is not None and isinstance(found, (IntConst, FloatConst)):
        want = hint.type
        if isinstance(want, TensorType) and literal_fault(found, want.dtype) is None:
            found = scalar(want.dtype)
    found = default_type(found)
    if contextual(found):
        scope.report(
            "E2113",
            f"`{text_of(e)}` could be of any optional type",
            e,
            help="write the type: `let x: Tensor[N; f32]? = none`",
        )
        found = UNKNOWN
    settle(scope, e, found)
    scope.analysis.types[e] = found
    return found


def check(scope: Scope, e: tree.Expr, expected: Expected, *, whole: bool = False) -> Type:
    """The expected type; anything else is reported."""
    return coerce(scope, e, value(scope, e, expected, whole=whole), expected)


def dimension(scope: Scope, e: tree.Expr, what: str, help: Help | str | None = None) -> Dim | None:
    """The value of a compile-time integer; None when it is none, which is reported."""
    found = infer(scope, e)
    known = scope.analysis.dims.get(e)
    if known is not None or isinstance(found, UnknownType):
        return known
    notes: tuple[str, ...] = ()
    symbol = scope.analysis.symbols.get(bare(e))
    if isinstance(symbol, Local) and symbol.kind == "loop":
        notes = ("the variable of a loop is a value; it cannot stand in a shape",)
    elif isinstance(symbol, Local) and symbol.kind == "let" and found == scalar(I64):
        notes = ("a `let` of a constant integer is an i64 value; a `const` may stand in a shape",)
    if isinstance(found, TensorType) and not found.shape and found.dtype == I64:
        reason = "is an i64 value, known when the program runs"
        if help is None and not notes:
            help = "a size is a generic, as in `fn f<N: Dim>(...)`, or a `const`"
    else:
        reason = f"is {described(found)}"
    message = f"{what} is a compile-time integer; `{text_of(e)}` {reason}"
    scope.report("E2123", message, e, notes=notes, help=help)
    return None


def divisor(scope: Scope, by: Dim, e: tree.Expr) -> None:
    """Prove that a divisor is positive, or keep it for when the facts are known."""
    if scope.pending is not None:
        scope.pending.append((by, e.span))
    else:
        prove_divisor(scope, by, e.span)


def prove_divisor(scope: Scope, by: Dim, at: Span) -> None:
    constant = by.constant
    if constant is not None and constant > 0:
        return
    goal = Relation(">", by, Dim.of(0))
    if scope.known.proves(goal):
        return
    verdict = scope.known.verdict(goal)
    shown = counterexample(verdict, goal, "the divisor is {left}")
    message = f"the divisor `{by}` may be 0" if constant is None else f"the divisor is {constant}"
    fix = clause_help(scope, verdict, goal)
    notes = (shown,) if shown and constant is None else ()
    broken = broken_at(verdict, goal)
    scope.report("E2205", message, at, notes=notes, help=fix, counterexample=broken)


# ---------------------------------------------------------------- literals


def _int(scope: Scope, e: tree.IntLit, hint: Expected | None) -> Type:
    return IntConst(Dim.of(e.value))


def _float(scope: Scope, e: tree.FloatLit, hint: Expected | None) -> Type:
    return FloatConst(e.value)


def _string(scope: Scope, e: tree.StringLit, hint: Expected | None) -> Type:
    if not any(d.code == "E1003" and e.span.covers(d.primary.span) for d in scope.findings.items):
        scope.report("E2101", "a string is not a value of any type", e)
    return UNKNOWN


def _bool(scope: Scope, e: tree.BoolLit, hint: Expected | None) -> Type:
    return scalar(BOOL)


def _none(scope: Scope, e: tree.NoneLit, hint: Expected | None) -> Type:
    return NoneType()


def _for(scope: Scope, e: tree.For, hint: Expected | None) -> Type:
    """A loop anywhere but as the whole value of a statement, which `stmts` looks at itself."""
    scope.report(
        "E2124",
        "a `for` stands alone as the value of a `let`, `var`, assignment or `return`",
        shown(e),
        help=f"name its value before: `let ys = {text_of(e)} ...`",
    )
    return UNKNOWN


def _bad(scope: Scope, e: tree.BadExpr, hint: Expected | None) -> Type:
    return UNKNOWN


def _paren(scope: Scope, e: tree.Paren, hint: Expected | None) -> Type:
    return infer(scope, e.value, hint)


def _some(scope: Scope, e: tree.Some, hint: Expected | None) -> Type:
    inner = None
    if hint is not None and isinstance(hint.type, OptionalType):
        inner = Expected(hint.type.of, hint.origin)
    found = value(scope, e.value, inner, whole=True)
    return UNKNOWN if isinstance(found, UnknownType) else OptionalType(found)


def _tuple(scope: Scope, e: tree.Tuple, hint: Expected | None) -> Type:
    hints: Sequence[Expected | None] = [None] * len(e.items)
    if hint is not None and isinstance(hint.type, TupleType):
        if len(hint.type.items) == len(e.items):
            hints = [Expected(t, hint.origin) for t in hint.type.items]
    found = TupleType(tuple(value(scope, x, h) for x, h in zip(e.items, hints, strict=True)))
    return UNKNOWN if refuse_large(scope, found, e) else found


def refuse_large(scope: Scope, tuple_: TupleType, at: tree.Syntax) -> bool:
    """Whether a tuple, which may double with every line, holds too much; it is reported."""
    if sum(map(values_within, tuple_.items)) <= LARGEST_TUPLE:
        return False
    message = f"a tuple of more than {LARGEST_TUPLE} values, those of the tuples in it included"
    scope.report("E2190", message, at, help="a struct holds many values, each with a name")
    return True


def _shape(scope: Scope, e: tree.ShapeLit, hint: Expected | None) -> Type:
    shape = consts.shape(scope, e.items)
    return ShapeType(shape) if shape is not None else UNKNOWN


# ---------------------------------------------------------------- names


def _name(scope: Scope, e: tree.Name, hint: Expected | None) -> Type:
    symbol = scope.lookup(e.text)
    if symbol is None:
        unknown_name(scope, e)
        return UNKNOWN
    scope.analysis.symbols[e] = symbol
    return _meaning(scope, e, symbol)


def unknown_name(
    scope: Scope,
    name: tree.Name | tree.Ident,
    names: Iterable[str] | None = None,
    *,
    place: str = "value",
) -> None:
    """Report a name that means nothing, once in each function; `names` are those it may mean."""
    known = scope.checking.unknown_names
    places = (scope.module, scope.block or scope.fn or scope.module)
    if any((place, name.text) in known for place in places) or name.text in NOT_NAMES:
        return
    if scope.checking.silent or scope.may_be_lost(name):
        return
    if names is None:
        names = [n for n in scope.visible() if n not in prelude.NAMES or n in prelude.PRELUDE]
    help = imports.that_brings(scope, name.text, place)
    known.add((places[0 if help is not None else 1], name.text))  # one `use` line mends them all
    help = help or habits.name_help(name, place)
    if help is None and len(known) < MISSPELT:
        help = suggestion(name, names)
    scope.report("E1201", f"`{name.text}` is not defined here", name, help=help)


def _meaning(scope: Scope, e: tree.Name | tree.Field, symbol: Symbol) -> Type:
    """The type of a name with this meaning; a name that is no value is refused."""
    name = text_of(e)
    match symbol:
        case Local():
            scope.checking.used_locals.add(symbol)
            return symbol.type
        case IndexVar():
            return _index_value(scope, e, symbol)
        case GenericName(decl):
            if decl.kind.text == "Dim" and not decl.pack:
                return IntConst(Dim.of(decl.name.text))
            what = "a pack of axes" if decl.pack else "a dtype"
            scope.report("E1208", f"`{name}` is {what}, not a value", e)
        case MemberName(member):
            assert scope.block is not None
            info = scope.analysis.blocks[scope.block].members[member.name.text]
            return member_type(scope, info, member.name.text)
        case MethodName():
            fix = Help(f"call it: `{name}(...)`")
            scope.report("E1208", f"`{name}` is a method, not a value", e, help=fix)
        case ItemName(item, module):
            return _item(scope, e, item, module)
        case ModuleName():
            scope.report("E1208", f"`{name}` is a module, not a value", e)
        case PreludeName(text):
            what = "a function" if text[0].islower() and calls.is_function(text) else "a type"
            scope.report("E1208", f"`{name}` is {what}, not a value", e)
        case Variant(enum=enum):
            return enum
    return UNKNOWN


def _index_value(scope: Scope, e: tree.Name | tree.Field, symbol: IndexVar) -> Type:
    scope.lost.add(symbol)
    name = symbol.name
    if not scope.elements:
        scope.report(
            "E3104",
            f"the index `{name}` stands in an expression of whole tensors",
            e,
            help="name that expression with a `let` of its own, and index the result",
        )
    else:
        scope.report(
            "E3104",
            f"the index `{name}` is a position, not a value",
            e,
            help=f"`iota<i64>(N)[{name}]` gives its value, with `N` the extent of its axis",
        )
    return UNKNOWN


def _item(scope: Scope, e: tree.Name | tree.Field, item: tree.Item, module: Module) -> Type:
    name = text_of(e)
    match item:
        case tree.Const():
            info = consts.constant(scope.checking, item, module)
            if info is None:
                return UNKNOWN
            if isinstance(info.type, TensorType) and isinstance(info.value, int):
                if info.type.dtype is not BOOL and not isinstance(info.value, bool):
                    scope.analysis.dims[e] = Dim.of(info.value)
            return info.type
        case tree.Fn():
            what, fix = "a function", f"call it: `{name}(...)`"
        case tree.Trait():
            what, fix = "a trait", f"a block implements it: `impl {name}<...>`"
        case tree.Block():
            what, fix = "a block", f"declare `sub x: {name}<...>` and use `x`"
        case tree.Enum():
            first = item.variants[0].text if item.variants else "Variant"
            what, fix = "an enum", f"write one of its variants: `{name}.{first}`"
        case tree.Struct():
            what, fix = "a struct", f"build one: `{name}(...)`"
        case tree.Alias():
            what, fix = "a type", ""
    scope.report("E1208", f"`{name}` is {what}, not a value", e, help=fix or None)
    return UNKNOWN


def member_type(scope: Scope, info: MemberInfo, path: str) -> Type:
    """The type of a member that is read at `path` below the block, and the reading recorded."""
    member = info.member
    scope.checking.used_members.add((scope.module, member))
    if member.kind == "state":
        scope.touched.reads.add(path)
    elif member.kind != "sub":
        scope.touched.members.add(path)
    return OptionalType(info.type) if info.optional else info.type


def _field(scope: Scope, e: tree.Field, hint: Expected | None) -> Type:
    symbol = static_field(scope, e)
    if symbol is not None:
        return UNKNOWN if symbol is UNRESOLVED else _meaning(scope, e, symbol)
    base = infer_whole(scope, e.base)
    name = e.name.text
    match base:
        case UnknownType():
            return UNKNOWN
        case BlockType():
            return _block_field(scope, e, base)
        case OptionalType(BlockType()):
            scope.report(
                "E2107",
                f"`{text_of(e.base)}` may be absent, so `{name}` cannot be read from it",
                e.name,
                help=f"take it out: `match {text_of(e.base)} {{ some(x) => ... none => ... }}`",
            )
            return UNKNOWN
        case BlockArray():
            scope.report(
                "E2107",
                f"`{text_of(e.base)}` is an array of {blocks(base)}; `{name}` is in each",
                e.name,
                help=f"choose one, `{text_of(e.base)}[0].{name}`, or walk them with `static for`",
            )
            return UNKNOWN
        case StructType(decl=decl):
            assert isinstance(decl, tree.Struct)
            if decl in scope.checking.broken:
                return UNKNOWN
            info = scope.analysis.structs[decl]
            field = info.fields.get(name)
            if field is not None:
                return substitute(field, typeexprs.bindings_of(base))
            help = suggestion(e.name, info.fields)
            scope.report("E2107", f"{base} has no field `{name}`", e.name, help=help)
            return UNKNOWN
        case _:
            help = habits.member_help(name, text_of(e.base), base)
            message = f"{described(base)} has no members; `{name}` is none"
            scope.report("E2107", message, e.name, help=help)
            return UNKNOWN


UNRESOLVED = PreludeName("?")  # a static name that was reported


def static_field(scope: Scope, e: tree.Field) -> Symbol | None:
    """What `module.item` or `Enum.Variant` means; None when the base is a value or a block."""
    base = bare(e.base)
    symbol: Symbol | None = None
    if isinstance(base, tree.Name):
        symbol = scope.lookup(base.text)
        if not isinstance(symbol, (ModuleName, ItemName)):
            return None
        scope.analysis.symbols[base] = symbol
    elif isinstance(base, tree.Field):
        symbol = static_field(scope, base)
        if symbol is UNRESOLVED:
            return symbol
    found: Symbol | None = None
    match symbol:
        case ModuleName(module):
            found = exported(scope, module, e.name) or UNRESOLVED
        case ItemName(tree.Enum() as enum, _):
            found = variant(scope, enum, e.name) or UNRESOLVED
        case _:
            return None
    if found is not UNRESOLVED:
        scope.analysis.symbols[e] = found
        scope.analysis.symbols[e.name] = found
    return found


def variant(scope: Scope, enum: tree.Enum, name: tree.Ident) -> Variant | None:
    """The variant of an enum; its absence is reported."""
    names = [v.text for v in enum.variants]
    if name.text in names:
        return Variant(EnumType(enum, enum.name.text), names.index(name.text))
    help = suggestion(name, names)
    scope.report("E2107", f"{enum.name.text} has no variant `{name.text}`", name, help=help)
    return None


def infer_whole(scope: Scope, e: tree.Expr) -> Type:
    """The type of the base of a field or an access: tensors in it are whole."""
    if not scope.elements:
        return infer(scope, e)
    with scope.mode(False):
        return infer(scope, e)


def _block_field(scope: Scope, e: tree.Field, base: BlockType) -> Type:
    info = info_of(scope, base)
    if info is None:
        return UNKNOWN
    member = info.members.get(e.name.text)
    if member is None:
        if e.name.text in info.methods:
            fix: Help | str | None = f"call it: `{text_of(e)}(...)`"
            scope.report("E1208", f"`{text_of(e)}` is a method, not a value", e.name, help=fix)
        elif info.block not in scope.checking.holed:
            fix = suggestion(e.name, [*info.members, *info.methods])
            scope.report("E2107", f"{base.name} has no member `{e.name.text}`", e.name, help=fix)
        return UNKNOWN
    scope.analysis.symbols[e] = scope.analysis.symbols[e.name] = MemberName(member.member)
    path = path_of(scope, e.base)
    found = member_type(scope, member, f"{path}.{e.name.text}")
    return substitute(found, typeexprs.bindings_of(base))


def path_of(scope: Scope, e: tree.Expr) -> str:
    """The member path of an expression that stands for a block, below the own block."""
    match bare(e):
        case tree.Name() as name:
            symbol = scope.analysis.symbols.get(name)
            if isinstance(symbol, Local):
                return scope.paths.get(symbol, symbol.name)
            return name.text
        case tree.Field(base=base, name=name):
            return f"{path_of(scope, base)}.{name.text}"
        case tree.Index(base=base):
            return f"{path_of(scope, base)}.*"
        case other:
            return text_of(other)


# ---------------------------------------------------------------- operators


def _unary(scope: Scope, e: tree.Unary, hint: Expected | None) -> Type:
    if e.op == "!":
        return _logical_operand(scope, e.value, "!", e)
    found = value(scope, e.value, hint)
    match found:
        case IntConst(number):
            return IntConst(-number if e.op == "-" else number)
        case FloatConst(real):
            return FloatConst(-real if e.op == "-" else real)
        case TensorType():
            outcome = rules.unary("neg", found)
            if isinstance(outcome, Ruling):
                return outcome.type
    if not isinstance(found, UnknownType):
        _undefined(scope, e, e.op, e.value, found)
    return UNKNOWN


def _undefined(scope: Scope, at: tree.Syntax | Span, op: str, e: tree.Expr, found: Type) -> None:
    message = f"`{op}` is not defined for {described(found)}, which `{text_of(e)}` is"
    help: str | None = None
    if isinstance(found, OptionalType):
        help = f"take it out: `match {text_of(e)} {{ some(x) => ... none => ... }}`"
    scope.report("E2104", message, at, help=help)


def _logical_operand(scope: Scope, e: tree.Expr, op: str, whole: tree.Unary | tree.Binary) -> Type:
    found = value(scope, e)
    if isinstance(found, UnknownType) or found == scalar(BOOL):
        return found
    if isinstance(found, TensorType) and found.shape:
        fix = "`&` and `|` work element by element on bool tensors"
        if op == "!":
            fix = "compare with `== false`"
        if found.dtype is not BOOL:
            fix = "compare first; " + fix
        help: Help | str = fix
        if found.dtype is BOOL:
            help = _elementwise_form(whole)
        scope.report("E2116", f"`{op}` takes scalar bools; `{text_of(e)}` is {found}", e, help=help)
    else:
        settle_default(scope, e, found)
        shown = described(default_type(found))
        scope.report("E2104", f"`{op}` takes a bool; `{text_of(e)}` is {shown}", e)
    return UNKNOWN


def _elementwise_form(e: tree.Unary | tree.Binary) -> Help:
    """The operator that does to each element what this one does to scalars."""
    if isinstance(e, tree.Unary):
        text = f"{_atom(e.value)} == false"
        return Help(f"write `{text}`", (Edit(e.span, f"({text})"),), safe=True)
    op = e.op[0]
    # `&` binds tighter than a comparison, which `&&` does not.
    compared = [x for x in (e.left, e.right) if isinstance(x, tree.Binary) and x.op in COMPARISON]
    edits = [Edit(x.span, f"({x.span.text})") for x in compared]
    text = f"write `{op}`, which works element by element"
    return Help(text, (*edits, Edit(e.op_span, op)), safe=True)


def _atom(e: tree.Expr) -> str:
    """The text of an expression as an operand of any operator."""
    loose = isinstance(e, (tree.Unary, tree.Binary, tree.Reduction, tree.If, tree.Match))
    return f"({e.span.text})" if loose else e.span.text


def _binary(scope: Scope, e: tree.Binary, hint: Expected | None) -> Type:
    if e.op in ("&&", "||"):
        errors = scope.findings.errors
        a = _logical_operand(scope, e.left, e.op, e)
        if scope.findings.errors > errors:
            value(scope, e.right)  # the operator is at fault once, not once for each side
            return UNKNOWN
        b = _logical_operand(scope, e.right, e.op, e)
        return scalar(BOOL) if a == b == scalar(BOOL) else UNKNOWN
    if e.op in ORDER and isinstance(e.left, tree.Binary) and e.left.op in ORDER:
        return _chained(scope, e, e.left)
    operand_hint = scalar_hint(hint) if e.op not in COMPARISON else None
    left, right = operands(scope, (e.left, e.right), operand_hint)
    if isinstance(left, UnknownType) or isinstance(right, UnknownType):
        return UNKNOWN
    literals = (IntConst, FloatConst)
    if isinstance(left, IntConst) and isinstance(right, IntConst) and e.op in ARITHMETIC:
        return IntConst(_integer(scope, e, left.value, right.value))
    if isinstance(left, literals) and isinstance(right, literals):
        return _constants(scope, e, left, right, operand_hint)
    return _elementwise(scope, e, left, right)


def _chained(scope: Scope, e: tree.Binary, first: tree.Binary) -> Type:
    """`a < b < c`, which compares a bool with `c`, reported."""
    instead = f"{first.span.text} && {first.right.span.text} {e.op} {e.right.span.text}"
    shown = f"write `{instead}`" if len(instead) <= 60 else "compare twice, with `&&` between"
    found = value(scope, first)
    value(scope, e.right)
    if not isinstance(found, UnknownType):
        help = Help(shown, (Edit(e.span, instead),))
        scope.report("E2104", "comparisons do not chain", e, help=help)
    return UNKNOWN


def operands(scope: Scope, parts: Sequence[tree.Expr], hint: Expected | None) -> list[Type]:
    """The types of operands that share a dtype; those made of literals follow the others."""
    found: dict[int, Type] = {}
    opens = [is_open(scope, e) for e in parts]
    for i in sorted(range(len(parts)), key=opens.__getitem__):
        t = found[i] = value(scope, parts[i], hint if opens[i] else None)
        if not opens[i] and hint is None and isinstance(t, TensorType):
            hint = _operand_hint(parts[i], t)
    return [found[i] for i in range(len(parts))]


def _operand_hint(e: tree.Expr, found: Type) -> Expected:
    assert isinstance(found, TensorType)
    origin = Origin("the other operand has dtype", e.span, f"this is {found}")
    return Expected(scalar(found.dtype), origin)


def scalar_hint(hint: Expected | None) -> Expected | None:
    if hint is None or not isinstance(hint.type, TensorType):
        return None
    return Expected(scalar(hint.type.dtype), hint.origin)


def is_open(scope: Scope, e: tree.Expr) -> bool:
    """The expression is made of literals and compile-time integers, so its context types it."""
    match e:
        case tree.IntLit() | tree.FloatLit() | tree.NoneLit():
            return True
        case tree.Paren(value=inner) | tree.Some(value=inner):
            return is_open(scope, inner)
        case tree.Unary(op=op, value=inner):
            return op != "!" and is_open(scope, inner)
        case tree.Binary(op=op, left=left, right=right):
            return (
                (op in ARITHMETIC or op in BITWISE)
                and is_open(scope, left)
                and is_open(scope, right)
            )
        case tree.If(then=then, other=other):
            return is_open(scope, then) and is_open(scope, other)
        case tree.Match(arms=arms):
            return all(is_open(scope, arm.value) for arm in arms)
        case tree.Tuple(items=items):
            return any(is_open(scope, item) for item in items)
        case tree.Call(callee=tree.Name(text=text), args=args):
            follows = text in prelude.FOLLOWS_CONTEXT
            return follows and all(is_open(scope, a.value) for a in args)
        case tree.Name(text=text):
            match scope.lookup(text):
                case GenericName():
                    return True
                case Local(type=IntConst() | FloatConst()):
                    return True
                case ItemName(tree.Const(type=None, value=inner), _):
                    return isinstance(bare(inner), (tree.IntLit, tree.FloatLit, tree.Binary))
    return False


def _integer(scope: Scope, e: tree.Binary, a: Dim, b: Dim) -> Dim:
    """Arithmetic on compile-time integers; `/` is floor division."""
    match e.op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
    divisor(scope, b, e.right)
    return a // b if e.op == "/" else a % b


def _constants(
    scope: Scope,
    e: tree.Binary,
    left: IntConst | FloatConst,
    right: IntConst | FloatConst,
    hint: Expected | None,
) -> Type:
    """Two contextual operands, not both integers under arithmetic."""
    real = isinstance(left, FloatConst) or isinstance(right, FloatConst)
    if real and e.op in ARITHMETIC:
        return FloatConst(_real(e.op, left, right))
    if isinstance(left, IntConst) and isinstance(right, IntConst) and e.op in BITWISE:
        a, b = left.value.constant, right.value.constant
        if a is not None and b is not None:
            return IntConst(Dim.of({"|": a | b, "^": a ^ b, "&": a & b}[e.op]))
    wide = default_type(FloatConst(0.0) if real else IntConst(Dim.of(0)))
    if hint is not None and not real:
        wide = hint.type
    for x, found in ((e.left, left), (e.right, right)):
        coerce(scope, x, found, Expected(wide, Origin("the other operand is")))
    return _elementwise(scope, e, wide, wide)


def _real(op: str, left: IntConst | FloatConst, right: IntConst | FloatConst) -> float:
    """The value of float arithmetic on constants; NaN where a dimension takes part."""
    a, b = (as_float(x) for x in (left, right))
    match op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "/" if b:
            return a / b
        case "%" if b and not math.isinf(a):
            return math.fmod(a, b)
        case "/" if a and not math.isnan(a):
            return math.copysign(math.inf, a) * math.copysign(1.0, b)
    return math.nan


def as_float(x: IntConst | FloatConst) -> float:
    if isinstance(x, FloatConst):
        return x.value
    return float(x.value.constant) if x.value.constant is not None else math.nan


def _elementwise(scope: Scope, e: tree.Binary, left: Type, right: Type) -> Type:
    """An operator on two values, at least one of which has a dtype."""
    left, right = join_literals(scope, (e.left, e.right), [left, right])
    if isinstance(left, UnknownType) or isinstance(right, UnknownType):
        return UNKNOWN
    for x, found in ((e.left, left), (e.right, right)):
        if not isinstance(found, TensorType):
            _undefined(scope, e.op_span, e.op, x, found)
            return UNKNOWN
    assert isinstance(left, TensorType) and isinstance(right, TensorType)
    if e.op in COMPARISON:
        outcome = rules.compare(COMPARISON[e.op], left, right)
    else:
        outcome = rules.binary((ARITHMETIC | BITWISE)[e.op], left, right)
    result = ruled(scope, e, e.op, [e.left, e.right], [left, right], outcome)
    if e.op in ARITHMETIC and isinstance(result, TensorType):
        _typed_constant(scope, e, result.dtype)
    return result


def _typed_constant(scope: Scope, e: tree.Binary, dtype: AnyDType) -> None:
    """Arithmetic with typed integer constants stays usable in shapes."""
    dims = scope.analysis.dims
    a, b = dims.get(e.left), dims.get(e.right)
    if a is None or b is None:
        return
    if e.op in "/%" and not ((a.constant or 0) >= 0 and (b.constant or 0) > 0):
        return  # at run time it truncates
    size = _integer(scope, e, a, b)
    if literal_fault(IntConst(size), dtype) is None:  # at run time it wraps
        dims[e] = size


def join_literals(scope: Scope, parts: Sequence[tree.Expr], found: list[Type]) -> list[Type]:
    """The types with literals settled to the dtype of the first operand that has one."""
    first = next((i for i, t in enumerate(found) if isinstance(t, TensorType)), None)
    if first is None:
        return found
    hint = _operand_hint(parts[first], found[first])
    out: list[Type] = []
    for e, t in zip(parts, found, strict=True):
        if isinstance(t, (IntConst, FloatConst)):
            want = hint.type
            assert isinstance(want, TensorType)
            if literal_fault(t, want.dtype) is not None:
                coerce(scope, e, t, hint)
                out.append(UNKNOWN)
                continue
            settle(scope, e, want)
            out.append(want)
        else:
            out.append(t)
    return out


def ruled(
    scope: Scope,
    e: tree.Expr,
    what: str,
    parts: Sequence[tree.Expr],
    found: Sequence[TensorType],
    outcome: rules.Outcome,
) -> Type:
    """The type that a rule gives elementwise operands; what breaks it is reported."""
    if isinstance(outcome, Ruling):
        failure = first_failure(scope, outcome.obligations)
        if failure is None:
            return outcome.type
        obligation, verdict = failure
        goal = obligation.goal
        shown = counterexample(verdict, goal)
        at_fault = _meeting(parts, found, obligation)
        texts = " and ".join(f"`{text_of(p)}`" for p, _ in at_fault)
        shapes = " and ".join(shape_text(t.shape) for _, t in at_fault)
        verb = "do not broadcast" if shown else "could not be proved to broadcast"
        note = f"counted from the last axis, `{goal.left}` meets `{goal.right}`"
        scope.report(
            obligation.code,
            f"{texts} {verb}: {shapes}",
            e,
            notes=(note, shown) if shown and goal.names() else (note,),
            related=tuple(Label(p.span, shape_text(t.shape)) for p, t in at_fault),
            help=clause_help(scope, verdict, goal) or _axis_fix([t for _, t in at_fault]),
            counterexample=broken_at(verdict, goal),
        )
        return UNKNOWN
    _broken(scope, e, what, parts, found, outcome)
    return UNKNOWN


def _meeting(
    parts: Sequence[tree.Expr], found: Sequence[TensorType], obligation: Obligation
) -> list[tuple[tree.Expr, TensorType]]:
    """The two operands whose axes meet, of all operands."""
    goal = obligation.goal
    assert obligation.axis is not None
    back = max(len(t.shape) for t in found) - obligation.axis
    pairs = list(zip(parts, found, strict=True))
    sides = [
        next((p for p in pairs if len(p[1].shape) >= back and p[1].shape[-back] == side), None)
        for side in (goal.left, goal.right)
    ]
    kept = [p for p in sides if p is not None]
    return kept if len(kept) == 2 else pairs


def _axis_fix(found: Sequence[TensorType]) -> Help | None:
    if len({len(t.shape) for t in found}) == 1:
        return None
    return Help("axes align from the last one; `reshape` an operand to put a 1 where it repeats")


def _broken(
    scope: Scope,
    e: tree.Expr,
    what: str,
    parts: Sequence[tree.Expr],
    found: Sequence[TensorType],
    outcome: Broken,
) -> None:
    related = tuple(Label(p.span, f"{t}") for p, t in zip(parts, found, strict=True))
    subject = f"`{what}`"
    match outcome.code:
        case "E2103":
            help: Help | None = None
            message = f"{subject} needs one dtype: {outcome.why}"
            if found[0].dtype is not BOOL and len(parts) == 3:
                message = f"{subject} chooses by bools: {outcome.why}"
                help = Help(f"compare it: `{text_of(parts[0])} != 0`")
            elif len(parts) >= 2:
                a, b = found[-2].dtype, found[-1].dtype
                text = parts[-1].span.text
                edit = Edit(parts[-1].span, f"cast<{a}>({text})")
                if a != b:
                    help = Help(f"convert one: `cast<{a}>({text_of(parts[-1])})`", (edit,))
        case "E2207":
            message, help = f"{subject} cannot broadcast: {outcome.why}", None
        case _:
            message = f"{subject} is not defined for {found[-1]}: {outcome.why}"
            help = _other_operation(what, parts, found)
    scope.report(outcome.code, message, e, related=related, help=help)


def _other_operation(
    what: str, parts: Sequence[tree.Expr], found: Sequence[TensorType]
) -> Help | None:
    """What to write where an operation is not defined for the operands."""
    if what == "^" and dtype_within(found[-1].dtype, "Float"):
        return Help("there is no power operator: write `x * x`, or `exp(y * log(x))`")
    if len(parts) == 1 and dtype_within(found[0].dtype, "Integer"):
        text = parts[0].span.text
        edit = Edit(parts[0].span, f"cast<f32>({text})")
        return Help(f"convert it: `cast<f32>({text_of(parts[0])})`", (edit,))
    return None


# ---------------------------------------------------------------- branches


def condition(scope: Scope, e: tree.Expr, what: str) -> None:
    """The condition of `if` and `while` is a scalar bool."""
    found = value(scope, e, whole=True)
    if isinstance(found, UnknownType) or found == scalar(BOOL):
        return
    found = settle_default(scope, e, found)
    fix = None
    if isinstance(found, TensorType) and found.shape and found.dtype is BOOL:
        fix = "reduce it with `any[i] ...` or `all[i] ...`, or choose by element with `select`"
    elif isinstance(found, TensorType) and found.dtype is not BOOL:
        fix = f"compare it: `{text_of(e)} != 0`"
    shown = described(found)
    message = f"the condition of `{what}` is a scalar bool; `{text_of(e)}` is {shown}"
    scope.report("E2114", message, e, help=fix)


def _if(scope: Scope, e: tree.If, hint: Expected | None) -> Type:
    """All branches of an `if ... else if ...` chain are looked at together."""
    chain: list[tree.If] = [e]
    while isinstance(chain[-1].other, tree.If):
        chain.append(chain[-1].other)
    for link in chain:
        condition(scope, link.condition, "if")
    arms = [Arm(link.then) for link in chain]
    found = branches(scope, [*arms, Arm(chain[-1].other)], hint)
    for link in chain[1:]:
        scope.analysis.types[link] = found
    return found


def _match(scope: Scope, e: tree.Match, hint: Expected | None) -> Type:
    return patterns.match(scope, e, hint)


@dataclass(frozen=True, eq=False, slots=True)
class Arm:
    """A branch: its value, the names of its pattern, and types of which it has a value."""

    value: tree.Expr
    names: dict[str, Local | IndexVar] = field(default_factory=dict[str, "Local | IndexVar"])
    held: tuple[Type, ...] = ()

    @contextmanager
    def within(self, scope: Scope) -> Iterator[None]:
        with scope.nested() as names:
            names.update(self.names)
            for type in self.held:
                scope.learn(type)
            yield


def branches(scope: Scope, arms: Sequence[Arm], hint: Expected | None) -> Type:
    """The one type of all branches; those made of literals follow the others, then the hint.

    What only holds within a branch may make its type the common one, or the hint.
    """
    common: Type | None = None
    origin: Origin | None = None
    failed = False
    arms = sorted(arms, key=lambda arm: bool(arm.held))
    closed = [arm for arm in arms if not is_open(scope, arm.value)]
    if not arms[0].held and all(arm.held for arm in closed):
        closed = []  # what holds in them alone cannot be asked of the others
    for arm in closed:
        with arm.within(scope):
            found = value(scope, arm.value, hint, whole=True)
            if isinstance(found, UnknownType):
                failed = True
                continue
            if contextual(found):
                found = settle_default(scope, arm.value, found, hint)
            if arm.held and hint is not None and compare(scope, found, hint.type) is None:
                found = hint.type
            if common is None:
                common = found
                origin = _branch_origin(arm.value, found)
            elif mismatch := compare(scope, found, common):
                assert origin is not None
                report_mismatch(scope, arm.value, found, Expected(common, origin), mismatch)
                failed = True
    open_ = [arm for arm in arms if arm not in closed]
    if common is not None and origin is not None:
        hint = Expected(common, origin)
    found_open: list[tuple[Arm, Type]] = []
    for arm in open_:
        with arm.within(scope):
            found_open.append((arm, value(scope, arm.value, hint, whole=True)))
    if failed or any(isinstance(t, UnknownType) for _, t in found_open):
        for arm, found in found_open:
            settle(scope, arm.value, default_type(found))
        return UNKNOWN
    if hint is None or (common is None and not _fits(found_open, hint)):
        joined = found_open[0][1]
        for _, found in found_open[1:]:
            joined = _join(joined, found)
        hint = Expected(default_type(joined), _branch_origin(found_open[0][0].value, joined))
        if contextual(hint.type):
            return joined
    errors = scope.findings.errors
    for arm, found in found_open:
        with arm.within(scope):
            coerce(scope, arm.value, found, hint)
    return hint.type if scope.findings.errors == errors else UNKNOWN


def _fits(found: Sequence[tuple[Arm, Type]], hint: Expected) -> bool:
    """Literals of branches are worth typing by the hint: it is a scalar, or no literal is bare."""
    if isinstance(hint.type, TensorType) and not hint.type.shape:
        return True
    return not any(isinstance(t, (IntConst, FloatConst)) for _, t in found)


def _branch_origin(e: tree.Expr, found: Type) -> Origin:
    return Origin("another branch is", e.span, f"this branch is {described(found)}", other="E2115")


def _join(a: Type, b: Type) -> Type:
    match a, b:
        case IntConst(), FloatConst():
            return b
        case NoneType(), _:
            return b
        case IntConst() | FloatConst(), TensorType():
            return b
        case OptionalType(x), OptionalType(y):
            return OptionalType(_join(x, y))
        case TupleType(x), TupleType(y) if len(x) == len(y):
            return TupleType(tuple(_join(i, j) for i, j in zip(x, y, strict=True)))
        case _:
            return a


# ---------------------------------------------------------------- forms with files of their own


def _call(scope: Scope, e: tree.Call, hint: Expected | None) -> Type:
    return calls.call(scope, e, hint)


def _index(scope: Scope, e: tree.Index, hint: Expected | None) -> Type:
    return index.subscript(scope, e)


def _reduction(scope: Scope, e: tree.Reduction, hint: Expected | None) -> Type:
    return index.reduction(scope, e, hint)


_RULES: dict[type, Any] = {
    tree.IntLit: _int,
    tree.FloatLit: _float,
    tree.StringLit: _string,
    tree.BoolLit: _bool,
    tree.NoneLit: _none,
    tree.Name: _name,
    tree.Paren: _paren,
    tree.Tuple: _tuple,
    tree.ShapeLit: _shape,
    tree.Some: _some,
    tree.Unary: _unary,
    tree.Binary: _binary,
    tree.Call: _call,
    tree.Index: _index,
    tree.Field: _field,
    tree.Reduction: _reduction,
    tree.If: _if,
    tree.Match: _match,
    tree.For: _for,
    tree.BadExpr: _bad,
}
