"""Constants and shapes: what is known when the program is checked."""

from __future__ import annotations

import math
from collections.abc import Sequence

from linnet.check import exprs, typeexprs
from linnet.check.analysis import ConstInfo, GenericName, ItemName, Module, Variant
from linnet.check.expect import (
    Expected,
    Origin,
    always_negative,
    described,
    literal_fault,
    negative_at,
    settle,
    text_of,
)
from linnet.check.scope import Checking, Constant, Scope
from linnet.diagnostics import LinnetError
from linnet.dims import Dim
from linnet.syntax import tree
from linnet.types import (
    BOOL,
    Axis,
    DType,
    EnumType,
    FloatConst,
    IntConst,
    Pack,
    Shape,
    TensorType,
    Type,
    UnknownType,
)

# ---------------------------------------------------------------- shapes


def shape(scope: Scope, items: Sequence[tree.Expr | tree.PackRef]) -> Shape | None:
    """The axes that a list of dimensions and packs names; None where one is none."""
    axes: list[Axis | None] = [
        pack(scope, item) if isinstance(item, tree.PackRef) else extent(scope, item)
        for item in items
    ]
    known = tuple(a for a in axes if a is not None)
    return known if len(known) == len(axes) else None


def pack(scope: Scope, ref: tree.PackRef) -> Pack | None:
    symbol = scope.lookup(ref.name.text)
    if symbol is None:
        exprs.unknown_name(scope, ref.name)
        return None
    scope.analysis.symbols[ref] = scope.analysis.symbols[ref.name] = symbol
    if isinstance(symbol, GenericName) and symbol.decl.pack:
        return Pack(ref.name.text)
    scope.report(
        "E1208", f"`{ref.name.text}` is not a pack of axes, so `*` cannot stand before it", ref
    )
    return None


def extent(scope: Scope, e: tree.Expr) -> Dim | None:
    """A dimension that is not negative for all sizes."""
    size = exprs.dimension(scope, e, "a dimension")
    if size is not None and scope.pending is None and always_negative(scope, size):
        refuse_negative(scope, e, size)
        return None
    return size


def refuse_negative(scope: Scope, e: tree.Expr, size: Dim) -> None:
    if not scope.first_negative(size):
        return
    value = f": {size}" if str(size) != text_of(e) else ""
    notes, broken = negative_at(scope, size)
    message = f"the dimension `{text_of(e)}` is negative{value}"
    help = None
    if size.constant == -1:
        help = "`-1` finds no size here: write it, as in `[B, S * H]`"
    scope.report("E2208", message, e, notes=notes, counterexample=broken, help=help)


# ---------------------------------------------------------------- constants


def constant(checking: Checking, const: tree.Const, module: Module) -> ConstInfo | None:
    """The type and value of a constant; None when it has none, which is reported once."""
    known = checking.analysis.consts.get(const)
    if known is not None:
        return known
    scope = Scope(checking, module)
    if const in checking.in_progress:
        if const not in checking.failed:
            open_ = [c.name.text for c in checking.in_progress if isinstance(c, tree.Const)]
            name = const.name.text
            chain = " -> ".join([*open_[open_.index(name) :], name])
            scope.report("E2122", f"the constant `{name}` needs its own value: {chain}", const.name)
            checking.failed.add(const)
        return None
    if const in checking.failed:
        return None
    checking.in_progress[const] = None
    with checking.silence(const in checking.broken):
        info = _constant(scope, const)
    del checking.in_progress[const]
    if info is None:
        checking.failed.add(const)
    else:
        checking.analysis.consts[const] = info
    return info


def _constant(scope: Scope, const: tree.Const) -> ConstInfo | None:
    name = const.name.text
    if const.type is None:
        found = exprs.value(scope, const.value)
    else:
        declared = typeexprs.resolve(scope, const.type)
        if isinstance(declared, UnknownType):
            return None
        if not isinstance(declared, EnumType) and not (
            isinstance(declared, TensorType) and not declared.shape
        ):
            message = f"a constant is a scalar or an enum; `{name}` is declared {declared}"
            scope.report("E2101", message, const.type)
            return None
        origin = Origin(f"`{name}` is declared", const.type.span, "declared here")
        errors = scope.findings.errors
        found = exprs.check(scope, const.value, Expected(declared, origin))
        if scope.findings.errors > errors:
            return None
    if isinstance(found, UnknownType):
        return None
    if isinstance(found, IntConst):
        return ConstInfo(const, scope.module, found, found.value)
    if isinstance(found, FloatConst):
        return ConstInfo(const, scope.module, found, found.value)
    if const.type is None:
        settle(scope, const.value, found)
    result = evaluate(scope, const.value)
    if result is None or not isinstance(found, (TensorType, EnumType)):
        scope.report(
            "E2101",
            f"`{text_of(const.value)}` is {described(found)} that is not known when checking",
            const.value,
            help="a constant is made of literals, other constants, operators and variants",
        )
        return None
    checking = scope.checking
    if name in checking.constants and const.public and const in checking.own_constants:
        result = _replaced(scope, const, found)
    return ConstInfo(const, scope.module, found, result)


def _replaced(scope: Scope, const: tree.Const, declared: Type) -> Constant | Variant:
    """The value given from outside for a typed public constant; one that does not fit raises."""
    name = const.name.text
    given = scope.checking.constants[name]
    other = scope.checking.replaced.setdefault(name, const)
    if other is not const:
        places = f"{other.span.source.name} and {const.span.source.name}"
        raise LinnetError(f"constant {name}: declared in two places, {places}")
    if not isinstance(declared, TensorType) or not isinstance(declared.dtype, DType):
        raise LinnetError(f"constant {name}: only scalar constants can be given a value")
    dtype = declared.dtype
    if dtype is BOOL:
        fits = isinstance(given, bool)
    elif dtype.is_float:
        fits = isinstance(given, (int, float)) and not isinstance(given, bool)
    else:
        fits = isinstance(given, int) and not isinstance(given, bool)
    if fits and dtype is not BOOL:
        literal = FloatConst(given) if isinstance(given, float) else IntConst(Dim.of(int(given)))
        fits = literal_fault(literal, dtype) is None
    if not fits:
        raise LinnetError(f"constant {name}: {given!r} does not fit {dtype}, its declared type")
    return float(given) if dtype.is_float else given


def evaluate(scope: Scope, e: tree.Expr) -> Constant | Variant | None:
    """The value of a checked expression of constants; None when it is not one."""
    types = scope.analysis.types
    match e:
        case tree.BoolLit(value=value):
            return value
        case tree.IntLit() | tree.FloatLit():
            return _typed(types.get(e), e.value)
        case tree.Paren(value=inner):
            return evaluate(scope, inner)
        case tree.Name() | tree.Field():
            return _named(scope, e)
        case tree.Unary(op=op, value=inner):
            x = evaluate(scope, inner)
            if x is None or isinstance(x, Variant):
                return None
            return (not x) if op == "!" else (-x if op == "-" else x)
        case tree.Binary(left=left, right=right):
            a, b = evaluate(scope, left), evaluate(scope, right)
            if a is None or b is None or isinstance(a, Variant) or isinstance(b, Variant):
                return None
            found = types.get(e)
            return _typed(found, _operate(e.op, a, b))
        case tree.If(condition=c, then=then, other=other):
            test = evaluate(scope, c)
            if not isinstance(test, bool):
                return None
            return evaluate(scope, then if test else other)
        case tree.Call(callee=tree.Name(text="min" | "max" as name), args=args):
            values = [evaluate(scope, a.value) for a in args]
            numbers = [v for v in values if v is not None and not isinstance(v, Variant)]
            if len(numbers) != len(values):
                return None
            return min(numbers) if name == "min" else max(numbers)
        case tree.Call(callee=tree.Name(text="cast"), args=(arg,)):
            return _cast(types.get(e), evaluate(scope, arg.value))
    return None


def _named(scope: Scope, e: tree.Name | tree.Field) -> Constant | Variant | None:
    symbol = scope.analysis.symbols.get(e)
    if isinstance(symbol, Variant):
        return symbol
    if isinstance(symbol, ItemName) and isinstance(symbol.item, tree.Const):
        info = constant(scope.checking, symbol.item, symbol.module)
        if info is None:
            return None
        value = info.value
        if isinstance(value, Dim):
            value = value.constant if value.constant is not None else 0
        return value if isinstance(value, Variant) else _typed(scope.analysis.types.get(e), value)
    return None


def _typed(found: Type | None, value: Constant | None) -> Constant | None:
    """The value as its type holds it: floats as float, integers wrapped."""
    if value is None or isinstance(value, bool):
        return value
    dtype = found.dtype if isinstance(found, TensorType) else None
    if isinstance(found, FloatConst) or (dtype is not None and _is_float(dtype)):
        return float(value)
    if isinstance(dtype, DType) and dtype.is_integer:
        wrapped = int(value) & ((1 << dtype.bits) - 1)
        signed = dtype.kind == "int" and wrapped >> (dtype.bits - 1)
        return wrapped - (1 << dtype.bits) if signed else wrapped
    return value


def _is_float(dtype: object) -> bool:
    return isinstance(dtype, DType) and dtype.is_float


def _operate(op: str, a: Constant, b: Constant) -> Constant | None:
    match op:
        case "&&":
            return bool(a and b)
        case "||":
            return bool(a or b)
        case "==":
            return a == b
        case "!=":
            return a != b
        case "<":
            return a < b
        case "<=":
            return a <= b
        case ">":
            return a > b
        case ">=":
            return a >= b
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
    if isinstance(a, float) or isinstance(b, float):
        if op == "/":
            return a / b if b else math.copysign(math.inf, a) if a else math.nan
        return math.fmod(a, b) if b else math.nan
    match op:
        case "/":
            return (abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)) if b else 0
        case "%":
            return int(math.fmod(a, b)) if b else a
        case "|":
            return a | b
        case "^":
            return a ^ b
        case "&":
            return a & b
    return None


def _cast(found: Type | None, value: Constant | Variant | None) -> Constant | None:
    dtype = found.dtype if isinstance(found, TensorType) else None
    if value is None or isinstance(value, Variant) or not isinstance(dtype, DType):
        return None
    if dtype is BOOL:
        return bool(value)
    if dtype.is_float:
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return 0
    return _typed(found, int(value))


def check_replacements(checking: Checking, names: dict[str, tree.Const]) -> None:
    """Every constant given from outside is a typed public scalar of the package, else it raises."""
    for name in checking.constants:
        if name in checking.replaced:
            continue
        const = names.get(name)
        if const is None:
            known = ", ".join(sorted(n for n, c in names.items() if c.public and c.type))
            raise LinnetError(
                f"constant {name}: the package declares no such constant"
                + (f"; it has {known}" if known else "")
            )
        if not const.public or const.type is None:
            what = "has no type" if const.type is None else "is not `pub`"
            raise LinnetError(
                f"constant {name}: only typed `pub const` scalars can be given a value; this {what}"
                f" ({const.span.source.name})"
            )
