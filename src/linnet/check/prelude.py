"""The prelude: one row for each function, with its parameters and its rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from linnet.check import calls, consts, exprs, typeexprs
from linnet.check.analysis import PreludeCall
from linnet.check.expect import (
    Expected,
    Origin,
    bare,
    broken_at,
    clause_help,
    coerce,
    counterexample,
    described,
    first_failure,
    negative_at,
    text_of,
)
from linnet.check.scope import Scope
from linnet.core import rules
from linnet.core.rules import Broken, Ruling
from linnet.diagnostics import Edit, Help, Label
from linnet.dims import Dim, dim_max, dim_min
from linnet.syntax import tree
from linnet.types import (
    DTYPES,
    I64,
    UNKNOWN,
    AnyDType,
    Axis,
    FloatConst,
    IntConst,
    Pack,
    Shape,
    ShapeType,
    TensorType,
    Type,
    UnknownType,
    dtype_within,
    element_count,
    scalar,
    shape_text,
)

KINDS = ("Dim", "Shape", "DType", "Numeric", "Integer", "Float")
RESERVED = ("pad", "gather", "scatter")

Args = Sequence[tree.Expr]
Rule = Callable[[Scope, tree.Call, Args, Expected | None], Type]


@dataclass(frozen=True, slots=True)
class Row:
    """`dtype` says that the function takes a dtype in `<>`; `shape`, which parameter is a shape."""

    params: tuple[str, ...]
    rule: Rule
    dtype: bool = False
    follows_context: bool = False


def call(scope: Scope, e: tree.Call, name: str, hint: Expected | None) -> Type:
    """The type of a call of a prelude function."""

    if name in RESERVED:
        scope.report("E2190", f"`{name}` is reserved and not implemented yet", e.callee)
        return calls.abandon(scope, e)
    row = PRELUDE[name]
    if e.generics and (not row.dtype or len(e.generics) > 1):
        takes = "one generic argument, a dtype" if row.dtype else "no generic arguments"
        scope.report("E2111", f"`{name}` takes {takes}", e.generics[1 if row.dtype else 0])
        return calls.abandon(scope, e)
    if _as_elsewhere(scope, e, name):
        return UNKNOWN
    if name == "concat":
        args = _concat_args(scope, e)
    else:
        arranged = calls.arrange(scope, e, name, row.params, [False] * len(row.params))
        args = None if arranged is None else [a for a in arranged if a is not None]
        if args is not None and _other_way_round(scope, e, name, args):
            args = None
    if args is None:
        return calls.abandon(scope, e)
    return row.rule(scope, e, args, hint)


def _other_way_round(scope: Scope, e: tree.Call, name: str, args: Args) -> bool:
    """Report a tensor and a list that stand in each other's place."""
    params = PRELUDE[name].params
    if len(args) != 2 or not {"shape", "order"} & set(params):
        return False
    at = 0 if params[0] == "shape" else 1
    lists = [isinstance(bare(a), tree.ShapeLit) for a in args]
    if lists[at] or not lists[1 - at]:
        return False
    a, b = args
    scope.report(
        "E2102",
        f"`{name}` takes the {'list first' if at == 0 else 'list last'}: it is "
        f"`{name}({', '.join(params)})`",
        e,
        help=Help(
            f"write `{name}({text_of(b)}, {text_of(a)})`",
            (Edit(a.span, b.span.text), Edit(b.span, a.span.text)),
            safe=True,
        ),
    )
    return True


def _record(
    scope: Scope,
    e: tree.Call,
    args: Args,
    result: Type,
    uses: int | None = None,
    *,
    order: tuple[int, ...] = (),
    axis: int = 0,
) -> Type:
    """Keep the meaning of a call; `uses` counts the indices before an elementwise one."""

    assert isinstance(e.callee, tree.Name)
    if not isinstance(result, UnknownType):
        lifted = scope.elements and uses is not None and scope.index_uses > uses
        scope.analysis.calls[e] = PreludeCall(
            e.callee.text, tuple(args), result, lifted, order, axis
        )
    return result


def _dtype(scope: Scope, e: tree.Call, kind: str) -> AnyDType | None:
    """The dtype written in `<>`, of this kind; None if none is written or it is reported."""

    assert e.generics
    assert isinstance(e.callee, tree.Name)
    inner = e.generics[0]
    param = tree.GenericParam(
        inner.span, tree.Ident(inner.span, "T"), False, tree.Ident(inner.span, kind), None
    )
    found = typeexprs.explicit(scope, e, (param,), (inner,), e.callee.text)
    value = found.get("T") if found is not None else None
    assert not isinstance(value, (Dim, tuple))
    return value


def _hinted(hint: Expected | None, kind: str) -> AnyDType | None:
    if hint is None or not isinstance(hint.type, TensorType):
        return None
    return hint.type.dtype if dtype_within(hint.type.dtype, kind) else None


def _tensor(scope: Scope, e: tree.Expr, what: str, *, whole: bool = True) -> TensorType | None:
    """The type of an argument that is a tensor of any rank."""

    found = exprs.settled(scope, e, whole=whole)
    if isinstance(found, TensorType):
        return found
    if not isinstance(found, UnknownType):
        scope.report(
            "E2101", f"`{what}` takes a tensor or a scalar; `{text_of(e)}` is {described(found)}", e
        )
    return None


def _shape(scope: Scope, e: tree.Expr, what: str) -> Shape | None:
    """The shape that an argument lists."""

    inner = bare(e)
    if not isinstance(inner, tree.ShapeLit):
        scope.report(
            "E2101",
            f"`{what}` takes its shape as a list; `{text_of(e)}` is none",
            e,
            help=_as_list(inner),
        )
        return None
    errors = scope.findings.errors
    shape = consts.shape(scope, inner.items)
    if scope.findings.errors > errors:
        return None
    if shape is not None:
        scope.analysis.types[inner] = ShapeType(shape)
    return shape


def _as_list(e: tree.Expr) -> Help:
    """A shape that was written as a tuple, or as its one size."""
    inner = ", ".join(x.span.text for x in e.items) if isinstance(e, tree.Tuple) else e.span.text
    return Help(f"write `[{inner}]`", (Edit(e.span, f"[{inner}]"),), safe=True)


def _as_elsewhere(scope: Scope, e: tree.Call, name: str) -> bool:
    """Report a call whose arguments stand as in NumPy or PyTorch."""
    values = [a.value for a in e.args if a.name is None]
    if len(values) < len(e.args) and name != "concat":
        return False
    texts = [v.span.text for v in values]
    lists = [isinstance(bare(v), tree.ShapeLit) for v in values]
    match name:
        case "cast" if len(values) == 2 and texts[1] in DTYPES and not e.generics:
            message, call_ = "the dtype of `cast` stands in `<>`", f"cast<{texts[1]}>({texts[0]})"
        case "reshape" | "permute" | "broadcast_to" if len(values) > 2 and not any(lists):
            row = PRELUDE[name].params[1]
            call_ = f"{name}({texts[0]}, [{', '.join(texts[1:])}])"
            message = f"the {row} of `{name}` is a list"
        case "concat" if len(values) and all(lists):
            parts = [x.span.text for v in values for x in _items(v)]
            axis = [a.span.text for a in e.args if a.name is not None and a.name.text == "axis"]
            if not axis:
                axis = ["axis = 0"]
            call_ = f"concat({', '.join(parts + axis)})"
            message = "`concat` takes the tensors one by one, not a list"
        case "min" | "max" if len(values) == 1 and _has_axes(scope, values[0]):
            fix = f"it is `{name}(a, b)`; over an axis, `{name}[i] x[i]`"
            scope.report("E2102", f"`{name}` needs its argument `b`", e, help=fix)
            return True
        case _:
            return False
    shown_ = call_ if len(call_) <= 60 else f"{name}(...)"
    scope.report("E2102", message, e, help=Help(f"write `{shown_}`", (Edit(e.span, call_),), True))
    return True


def _has_axes(scope: Scope, e: tree.Expr) -> bool:
    found = exprs.settled(scope, e)
    return isinstance(found, TensorType) and bool(found.shape)


def _items(e: tree.Expr) -> Sequence[tree.Expr | tree.PackRef]:
    inner = bare(e)
    return inner.items if isinstance(inner, tree.ShapeLit) else ()


# ---------------------------------------------------------------- elementwise


def _unary(name: str) -> Rule:
    def rule(scope: Scope, e: tree.Call, args: Args, hint: Expected | None) -> Type:

        uses = scope.index_uses
        if exprs.is_open(scope, args[0]):
            found = exprs.settled(scope, args[0], hint)
        else:
            found = exprs.settled(scope, args[0])
        if isinstance(found, UnknownType):
            return UNKNOWN
        if not isinstance(found, TensorType):
            return _no_tensor(scope, e, args[0], found)
        outcome = rules.unary(name, found)
        return _record(scope, e, args, exprs.ruled(scope, e, name, args, [found], outcome), uses)

    return rule


def _no_tensor(scope: Scope, e: tree.Call, arg: tree.Expr, found: Type) -> Type:

    what = text_of(e.callee)
    scope.report("E2104", f"`{what}` is not defined for {described(found)}", arg)
    return UNKNOWN


def _binary(name: str) -> Rule:
    def rule(scope: Scope, e: tree.Call, args: Args, hint: Expected | None) -> Type:

        uses = scope.index_uses
        scalar_hint = exprs.scalar_hint(hint)
        found = exprs.operands(scope, args, scalar_hint)
        if any(isinstance(t, UnknownType) for t in found):
            return UNKNOWN
        match found:
            case [IntConst(a), IntConst(b)] if name in ("min", "max"):
                pick = dim_min if name == "min" else dim_max
                return _record(scope, e, args, IntConst(pick(a, b)), uses)
            case [IntConst() | FloatConst() as x, IntConst() | FloatConst() as y]:
                if name in ("min", "max"):
                    best = min if name == "min" else max
                    numbers = best(exprs.as_float(x), exprs.as_float(y))
                    return _record(scope, e, args, FloatConst(numbers), uses)
                found = [
                    exprs.settle_default(scope, a, t, scalar_hint)
                    for a, t in zip(args, found, strict=True)
                ]
        found = exprs.join_literals(scope, args, found)
        tensors: list[TensorType] = []
        for arg, t in zip(args, found, strict=True):
            if isinstance(t, UnknownType):
                return UNKNOWN
            if not isinstance(t, TensorType):
                return _no_tensor(scope, e, arg, t)
            tensors.append(t)
        outcome = rules.binary(name, *tensors)
        return _record(scope, e, args, exprs.ruled(scope, e, name, args, tensors, outcome), uses)

    return rule


def _select(scope: Scope, e: tree.Call, args: Args, hint: Expected | None) -> Type:

    uses = scope.index_uses
    condition = exprs.settled(scope, args[0])
    branches = args[1:]
    found = exprs.operands(scope, branches, exprs.scalar_hint(hint))
    if all(isinstance(t, (IntConst, FloatConst)) for t in found):
        real = any(isinstance(t, FloatConst) for t in found)
        wide: Type = FloatConst(0.0) if real else IntConst(Dim.of(0))
        wide = exprs.settle_default(scope, e, wide, exprs.scalar_hint(hint))

        for arg, t in zip(branches, found, strict=True):
            coerce(scope, arg, t, Expected(wide, Origin("the other value is")))
        found = [wide, wide]
    found = exprs.join_literals(scope, branches, found)
    tensors: list[TensorType] = []
    for arg, t in zip(args, [condition, *found], strict=True):
        if isinstance(t, UnknownType):
            return UNKNOWN
        if not isinstance(t, TensorType):
            return _no_tensor(scope, e, arg, t)
        tensors.append(t)
    outcome = rules.select(*tensors)
    return _record(scope, e, args, exprs.ruled(scope, e, "select", args, tensors, outcome), uses)


def _cast(scope: Scope, e: tree.Call, args: Args, hint: Expected | None) -> Type:

    uses = scope.index_uses
    dtype = _dtype(scope, e, "DType") if e.generics else _hinted(hint, "DType")
    found = _tensor(scope, args[0], "cast", whole=False)
    if dtype is None:
        if not e.generics:
            _name_dtype(scope, e, "cast<f32>(x)")
        return UNKNOWN
    if found is None:
        return UNKNOWN
    outcome = rules.cast(found, dtype)
    return _record(scope, e, args, exprs.ruled(scope, e, "cast", args, [found], outcome), uses)


def _name_dtype(scope: Scope, e: tree.Call, form: str) -> None:

    what = text_of(e.callee)
    scope.report("E2110", f"nothing here tells the dtype of `{what}`", e, help=f"write `{form}`")


# ---------------------------------------------------------------- shapes


def _elements(count: Dim) -> str:
    return "element" if count == Dim.of(1) else "elements"


def _reshape(scope: Scope, e: tree.Call, args: Args, hint: Expected | None) -> Type:

    found = _tensor(scope, args[0], "reshape")
    shape = _shape(scope, args[1], "reshape")
    if found is None or shape is None:
        return UNKNOWN
    outcome = rules.reshape(found, shape)
    if isinstance(outcome, Broken):
        return _report_broken(scope, e, outcome, found)
    if failure := first_failure(scope, outcome.obligations):
        obligation, verdict = failure
        goal = obligation.goal
        if obligation.code == "E2208":
            return _negative(scope, args[1], goal.left)
        before, after = element_count(found.shape), element_count(shape)
        shown = counterexample(verdict, goal, "{left} elements become {right}")
        x = text_of(args[0])
        if not shown:
            message = (
                f"could not prove that `{x}`, {shape_text(found.shape)}, has as many elements as "
                f"{shape_text(shape)}: `{before}` and `{after}`"
            )
        else:
            message = (
                f"`{x}` is {shape_text(found.shape)} with `{before}` {_elements(before)}; "
                f"{shape_text(shape)} has `{after}`"
            )
        scope.report(
            "E2203",
            message,
            e,
            related=(
                Label(args[0].span, f"{found}"),
                Label(args[1].span, f"`{after}` {_elements(after)}"),
            ),
            notes=(*_unshared(found.shape, shape), *((shown,) if shown and goal.names() else ())),
            help=clause_help(scope, verdict, goal),
            counterexample=broken_at(verdict, goal),
        )
        return UNKNOWN
    _warn_of_mixing(scope, e, args, found.shape, shape)
    return _record(scope, e, args[:1], outcome.type)


def _unshared(before: Shape, after: Shape) -> tuple[str, ...]:
    """What two shapes do not have in common, where they have axes in common."""
    left: list[Axis] = []
    rest = list(after)
    for axis in before:
        if axis in rest:
            rest.remove(axis)
        else:
            left.append(axis)
    if len(left) == len(before) or not (left or rest):
        return ()
    a, b = (" * ".join(f"({x})" if " " in f"{x}" else f"{x}" for x in s) for s in (left, rest))
    return (f"without the axes that both have: `{a or 1}` becomes `{b or 1}`",)


def _negative(scope: Scope, at: tree.Expr, extent: Dim) -> Type:
    if scope.first_negative(extent):
        notes, broken = negative_at(scope, extent)
        message = f"the dimension `{extent}` is negative"
        scope.report("E2208", message, at, notes=notes, counterexample=broken)
    return UNKNOWN


def _warn_of_mixing(scope: Scope, e: tree.Call, args: Args, before: Shape, after: Shape) -> None:
    """W2001 where axes are neither split nor merged with their neighbours.

    Where that cannot be proved for all sizes, it takes sizes at which they are not.
    """
    a, b = _factors(before), _factors(after)
    equal = lru_cache(maxsize=None)(lambda x, y: scope.proves("==", x, y))
    done = _line_up(equal, a, b)
    if done is None or not a or not b or not _crosses(scope, a, b):
        return
    i, j = done
    left, right = (" * ".join(_factor(x) for x in axes) for axes in (a[i:], b[j:]))
    notes = [f"`{left}` becomes `{right}`, which neither splits axes nor merges neighbours"]
    help: Help | str = "`permute` the axes that belong together next to each other first"
    if len(b) > len(a):
        help = "split axes only, in place; then `permute` the parts to where they belong"
    moved = _moved(equal, a[i:], b[j:])
    if moved is not None:
        past = " * ".join(_factor(x) for x in a[i : i + moved])
        notes.append(
            f"`{a[i + moved]}` would have to move past `{past}`, which a `reshape` does not"
        )
        order = _order(before, a, i, i + moved)
        shape = [before[n] for n in order]
        if not any(isinstance(x, Pack) for x in before) and not _line_up(equal, _factors(shape), b):
            text = f"permute({args[0].span.text}, {order})"
            shown = f"permute({text_of(args[0])}, {order})"
            help = Help(f"move it first: `{shown}`", (Edit(args[0].span, text),))
    scope.report(
        "W2001",
        f"`reshape` to {shape_text(after)} mixes axes of `{text_of(args[0])}`, "
        f"{shape_text(before)}",
        e,
        related=(Label(args[0].span, shape_text(before)), Label(args[1].span, "")),
        notes=tuple(notes),
        help=help,
    )


def _factors(shape: Sequence[Axis]) -> list[Dim]:
    axes = [a if isinstance(a, Dim) else Dim.of(str(a)) for a in shape]
    return [a for a in axes if a.constant != 1]


def _factor(axis: Dim) -> str:
    return f"({axis})" if " " in f"{axis}" else f"{axis}"


Size = TypeVar("Size", Dim, int)


def _line_up(
    equal: Callable[[Size, Size], bool], a: Sequence[Size], b: Sequence[Size]
) -> tuple[int, int] | None:
    """None when each axis is kept, split, or merged with neighbours; else how far that goes."""
    furthest = (0, 0)
    todo = [(0, 0)]
    seen: set[tuple[int, int]] = set()
    while todo:
        i, j = todo.pop()
        if (i, j) == (len(a), len(b)):
            return None
        if (i, j) in seen or i == len(a) or j == len(b):
            continue
        seen.add((i, j))
        furthest = max(furthest, (i, j))
        for one, many, side in ((a[i], b[j:], 0), (b[j], a[i:], 1)):
            product: Size | None = None
            for n, axis in enumerate(many, 1):
                product = axis if product is None else product * axis
                if equal(one, product):
                    todo.append((i + 1, j + n) if side == 0 else (i + n, j + 1))
    return furthest


def _crosses(scope: Scope, a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether there are sizes at which the axes do not line up."""
    names = sorted(frozenset[str]().union(*(axis.names() for axis in (*a, *b))))
    primes = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37]
    for sample in scope.known.facts.samples:
        sizes = {name: primes[i % len(primes)] for i, name in enumerate(names)} | sample
        try:
            left, right = ([axis.evaluate(sizes) for axis in axes] for axes in (a, b))
        except ZeroDivisionError:
            continue
        if 0 in left or 0 in right:
            continue
        left, right = ([n for n in axes if n != 1] for axes in (left, right))
        if left != right and _line_up(int.__eq__, left, right) is not None:
            return True
    return False


def _moved(equal: Callable[[Dim, Dim], bool], a: Sequence[Dim], b: Sequence[Dim]) -> int | None:
    """Which of the old axes stands first in the new order."""
    return next((n for n, axis in enumerate(a) if n and equal(axis, b[0])), None)


def _order(before: Shape, a: Sequence[Dim], to: int, at: int) -> list[int]:
    """The axes with one moved to another's place; `a` are those that are not 1."""
    places = [n for n, axis in enumerate(before) if axis != Dim.of(1)]
    order = list(range(len(before)))
    order.remove(places[at])
    order.insert(order.index(places[to]), places[at])
    return order


def _report_broken(scope: Scope, e: tree.Call, outcome: Broken, x: TensorType) -> Type:

    what = text_of(e.callee)
    scope.report(
        outcome.code,
        f"`{what}` of `{text_of(e.args[0])}`: {outcome.why}",
        e,
        related=(Label(e.args[0].span, f"{x}"),),
    )
    return UNKNOWN


def _permute(scope: Scope, e: tree.Call, args: Args, hint: Expected | None) -> Type:

    found = _tensor(scope, args[0], "permute")
    inner = bare(args[1])
    if not isinstance(inner, tree.ShapeLit):
        message = f"`permute` takes the order of the axes as a list; `{text_of(inner)}` is none"
        scope.report("E2101", message, inner, help="write `[1, 0]`")
        return UNKNOWN
    order: list[int] = []
    for item in inner.items:
        position = None
        if not isinstance(item, tree.PackRef):
            size = exprs.dimension(scope, item, "the position of an axis")
            if size is None:
                return UNKNOWN
            position = size.constant
        if position is None:
            scope.report("E2210", f"`{text_of(item)}` is not a constant position of an axis", item)
            return UNKNOWN
        order.append(position)
    if found is None:
        return UNKNOWN
    outcome = rules.permute(found, tuple(order))
    if isinstance(outcome, Broken):
        return _report_broken(scope, e, outcome, found)
    return _record(scope, e, args[:1], outcome.type, order=tuple(order))


def _broadcast_to(scope: Scope, e: tree.Call, args: Args, hint: Expected | None) -> Type:

    found = _tensor(scope, args[0], "broadcast_to")
    shape = _shape(scope, args[1], "broadcast_to")
    if found is None or shape is None:
        return UNKNOWN
    outcome = rules.broadcast_to(found, shape)
    if isinstance(outcome, Broken):
        return _report_broken(scope, e, outcome, found)
    if failure := first_failure(scope, outcome.obligations):
        obligation, verdict = failure
        goal = obligation.goal
        shown = counterexample(verdict, goal)
        verb = "does not broadcast" if shown else "could not be proved to broadcast"
        note = f"`{goal.left}` is neither 1 nor `{goal.right}`"
        scope.report(
            obligation.code,
            f"`{text_of(args[0])}`, {shape_text(found.shape)}, {verb} to {shape_text(shape)}",
            e,
            notes=(note, shown) if shown and goal.names() else (note,),
            help=clause_help(scope, verdict, goal),
            counterexample=broken_at(verdict, goal),
        )
        return UNKNOWN
    return _record(scope, e, args[:1], outcome.type)


def _concat_args(scope: Scope, e: tree.Call) -> list[tree.Expr] | None:
    """The axis, then the parts."""
    parts = [a.value for a in e.args if a.name is None]
    axis: tree.Expr | None = None
    for arg in e.args:
        if arg.name is not None:
            if arg.name.text != "axis" or axis is not None:
                message = f"`concat` has no parameter `{arg.name.text}`"
                if axis is not None:
                    message = "`axis` of `concat` is given twice"
                scope.report("E2102", message, arg, help="it is `concat(a, b, axis = k)`")
                return None
            axis = arg.value
    if axis is None or not parts:
        missing = "`axis`" if parts else "the tensors to join"
        scope.report("E2102", f"`concat` needs {missing}", e, help="it is `concat(a, b, axis = k)`")
        return None
    return [axis, *parts]


def _concat(scope: Scope, e: tree.Call, args: Args, hint: Expected | None) -> Type:

    axis_at, *parts = args
    size = exprs.dimension(scope, axis_at, "`axis` of `concat`")
    found = [_tensor(scope, p, "concat") for p in parts]
    tensors = [t for t in found if t is not None]
    if size is None or len(tensors) != len(parts):
        return UNKNOWN
    axis = size.constant
    if axis is None:
        scope.report("E2210", f"`{text_of(axis_at)}` is not a constant axis", axis_at)
        return UNKNOWN
    outcome = rules.concat(tensors, axis)
    listed = tuple(Label(p.span, f"{t}") for p, t in zip(parts, tensors, strict=True))
    if isinstance(outcome, Broken):
        at = axis_at if outcome.code == "E2210" else e
        reason = outcome.why
        if outcome.code == "E2103":
            reason = f"the parts have one dtype, not {outcome.why}"
        elif outcome.code == "E2210" and "pack" not in reason:
            reason = f"there is no {outcome.why}"
        scope.report(outcome.code, f"`concat`: {reason}", at, related=listed)
        return UNKNOWN
    if failure := first_failure(scope, outcome.obligations):
        obligation, verdict = failure
        goal = obligation.goal
        shown = counterexample(verdict, goal)
        verb = "differ" if shown else "could not be proved equal"
        scope.report(
            obligation.code,
            f"`concat` along axis {axis}: the other axes {verb}, `{goal.left}` and `{goal.right}`",
            e,
            related=listed,
            notes=(shown,) if shown and goal.names() else (),
            help=clause_help(scope, verdict, goal),
            counterexample=broken_at(verdict, goal),
        )
        return UNKNOWN
    return _record(scope, e, parts, outcome.type, axis=axis)


def _iota(scope: Scope, e: tree.Call, args: Args, hint: Expected | None) -> Type:

    dtype: AnyDType | None = _hinted(hint, "Numeric") or I64
    if e.generics:
        dtype = _dtype(scope, e, "Numeric")
    extent = consts.extent(scope, args[0])
    if dtype is None or extent is None:
        return UNKNOWN
    outcome = rules.iota(extent, dtype)
    assert isinstance(outcome, Ruling)
    return _record(scope, e, (), outcome.type)


def _fill(scope: Scope, e: tree.Call, args: Args, hint: Expected | None) -> Type:

    shape = _shape(scope, args[0], "fill")
    dtype = _dtype(scope, e, "DType") if e.generics else None
    if e.generics and dtype is None:
        exprs.settled(scope, args[1], whole=True)
        return UNKNOWN
    if dtype is None and exprs.is_open(scope, args[1]):
        dtype = _hinted(hint, "DType")
    if dtype is None:
        found = exprs.value(scope, args[1], whole=True)
        if isinstance(found, (IntConst, FloatConst)):
            exprs.settle_default(scope, args[1], found)
            _name_dtype(scope, e, f"fill<f32>({text_of(args[0])}, {text_of(args[1])})")
            return UNKNOWN
    else:
        at = e.generics[0] if e.generics else e
        origin = Origin("this `fill` is of", at.span, f"{dtype} here")
        found = exprs.check(scope, args[1], Expected(scalar(dtype), origin), whole=True)
    if isinstance(found, UnknownType) or shape is None:
        return UNKNOWN
    if not isinstance(found, TensorType):
        what = described(found)
        scope.report("E2101", f"`fill` repeats a scalar; `{text_of(args[1])}` is {what}", args[1])
        return UNKNOWN
    outcome = rules.fill(shape, found)
    if isinstance(outcome, Broken):
        message = f"`fill` repeats a scalar; `{text_of(args[1])}` is {found}"
        scope.report(outcome.code, message, args[1], help="`broadcast_to` repeats a tensor")
        return UNKNOWN
    return _record(scope, e, args[1:], outcome.type)


PRELUDE: dict[str, Row] = {
    "cast": Row(("x",), _cast, dtype=True),
    **{
        name: Row(("x",), _unary(name), follows_context=True)
        for name in ("exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "abs")
    },
    **{name: Row(("a", "b"), _binary(name), follows_context=True) for name in ("min", "max")},
    **{name: Row(("x", "n"), _binary(name), follows_context=True) for name in ("shl", "shr")},
    "select": Row(("c", "a", "b"), _select),
    "reshape": Row(("x", "shape"), _reshape),
    "permute": Row(("x", "order"), _permute),
    "broadcast_to": Row(("x", "shape"), _broadcast_to),
    "concat": Row(("parts", "axis"), _concat),
    "iota": Row(("n",), _iota, dtype=True),
    "fill": Row(("shape", "value"), _fill, dtype=True),
}

FOLLOWS_CONTEXT = frozenset(name for name, row in PRELUDE.items() if row.follows_context)
NAMES = frozenset((*DTYPES, "Tensor", *KINDS, *PRELUDE, *RESERVED))
