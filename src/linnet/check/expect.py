"""What a place expects and where that comes from; comparing types; the wording of a mismatch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from linnet.check.analysis import BlockInfo, PreludeCall
from linnet.check.scope import ClauseHelp, Known, Scope
from linnet.core import rules
from linnet.core.rules import Broken, Obligation
from linnet.diagnostics import Counterexample, Edit, Help, Label
from linnet.dims import Dim, Refuted, Relation, Unproved, Verdict
from linnet.source import Span
from linnet.syntax import tree
from linnet.types import (
    BOOL,
    DTYPE_KINDS,
    F64,
    I64,
    AnyDType,
    Axis,
    BlockArray,
    BlockType,
    DType,
    EnumType,
    FloatConst,
    IntConst,
    NoneType,
    OptionalType,
    Pack,
    Shape,
    StructType,
    TensorType,
    TupleType,
    Type,
    UnknownType,
    dtype_within,
    scalar,
    shape_text,
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Why a type is expected: a phrase that ends before the type, and where that is written.

    `other` is the code for a value of a kind that no more special code covers.
    """

    phrase: str
    at: Span | None = None
    label: str = ""
    other: str = "E2101"
    inferred: tuple[Label, ...] = ()  # what gave the sizes in it
    redeclare: tuple[Help, Label] | None = None  # where a default gave its dtype

    @property
    def related(self) -> tuple[Label, ...]:
        own = (Label(self.at, self.label),) if self.at is not None else ()
        return (*own, *self.inferred)


@dataclass(frozen=True, slots=True)
class Expected:
    type: Type
    origin: Origin


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first way in which a type is not the expected one; `found` and `want` are the parts."""

    code: str
    found: Type
    want: Type
    notes: tuple[str, ...] = ()
    help: Help | str | None = None
    uncertain: bool = False
    counterexample: Counterexample | None = None
    axis: int | None = None  # of the wanted tensor


# ---------------------------------------------------------------- text of expressions


def text_of(e: tree.Syntax, limit: int = 48) -> str:
    """The user's own text of a node on one line, shortened in the middle."""
    text = " ".join(shown(e).text.split())
    if len(text) <= limit:
        return text
    keep = (limit - 3) // 2
    return f"{text[:keep]}...{text[-keep:]}"


def shown(e: tree.Syntax) -> Span:
    """What a finding about a node points at: of a loop only what stands before its body."""
    if isinstance(e, tree.For):
        return Span(e.span.source, e.span.start, (e.stop or e.start).span.end)
    return e.span


def blocks(array: BlockArray) -> str:
    """How many blocks an array has, in words."""
    return f"{array.length} block{'' if array.length == Dim.of(1) else 's'}"


def described(type: Type) -> str:
    """The type as a sentence names it."""
    match type:
        case BlockType() | BlockArray():
            return f"the block {type}"
        case NoneType():
            return "`none`"
        case _:
            return f"{type}"


# ---------------------------------------------------------------- proofs


def first_failure(
    scope: Scope, obligations: Iterable[Obligation]
) -> tuple[Obligation, Verdict] | None:
    """The first obligation that does not hold for all sizes, with what the solver says of it.

    An extent fails only where it is negative for all sizes: one that turns out negative when sizes
    are bound is refused then.
    """
    for each in obligations:
        goal = each.goal
        if each.code == "E2208":
            if always_negative(scope, goal.left):
                return each, Unproved(())
        elif not scope.known.proves(goal):
            return each, scope.known.verdict(goal)
    return None


def negative_at(scope: Scope, extent: Dim) -> tuple[tuple[str, ...], Counterexample | None]:
    """Notes and data of the smallest sizes, which show what a negative extent comes to."""
    goal = Relation(">=", extent, Dim.of(0))
    verdict = scope.known.verdict(goal)
    shown = counterexample(verdict, goal, "it is {left}")
    return (shown,) if shown and goal.names() else (), broken_at(verdict, goal)


def always_negative(scope: Scope, extent: Dim) -> bool:
    """No sizes make this dimension a natural number."""
    if all(coefficient > 0 for _, coefficient in extent.terms):
        return False
    value = extent.constant
    return value < 0 if value is not None else scope.proves("<", extent, 0)


def sizes_text(verdict: Verdict, names: Iterable[str]) -> str:
    """`with H = 10, Heads = 4`, of the names that matter."""
    assert isinstance(verdict, Refuted)
    wanted = set(names)
    shown = {n: v for n, v in verdict.sizes.items() if n in wanted} or verdict.sizes
    return "with " + ", ".join(f"{n} = {v}" for n, v in shown.items())


_SINGULAR = {"elements become": "1 element becomes", "positions": "1 position"}
_ONE = re.compile(r"\b1 (elements become|positions)\b")


def counterexample(verdict: Verdict, goal: Relation, form: str = "{left} is not {right}") -> str:
    """The goal's two sides at the sizes that break it; empty when there are none to show.

    `form` says what they are: `{left} elements become {right}`.
    """
    found = broken_at(verdict, goal)
    if found is None:
        return ""
    pairs = ((found.left, goal.left), (found.right, goal.right))
    sides = [f"`{d}`, which divides by 0," if n is None else str(n) for n, d in pairs]
    text = _ONE.sub(lambda m: _SINGULAR[m[1]], form.format(left=sides[0], right=sides[1]))
    return f"{sizes_text(verdict, goal.names())}: {text}" if goal.names() else text


def broken_at(verdict: Verdict, goal: Relation) -> Counterexample | None:
    """The sizes that break the goal and what its two sides are there."""
    if not isinstance(verdict, Refuted):
        return None
    sides: list[int | None] = []
    for side in (goal.left, goal.right):
        try:
            sides.append(side.evaluate(verdict.sizes))
        except ZeroDivisionError:
            sides.append(None)
    return Counterexample(str(goal), tuple(verdict.sizes.items()), sides[0], sides[1])


def clause_help(scope: Scope, verdict: Verdict, goal: Relation) -> Help | None:
    """A `where` clause that would make a goal provable, as an edit where it can be placed."""
    clause = missing_clause(scope.known, verdict, goal)
    return where_help(scope, [clause]) if clause is not None else None


def missing_clauses(known: Known, goals: Sequence[Relation]) -> list[Relation] | None:
    """Clauses that together would make all the goals provable; None where one has no clause."""
    each = [missing_clause(known, known.verdict(goal), goal) for goal in goals]
    if None not in each:
        return [clause for clause in each if clause is not None]
    found: list[Relation] = []  # `Heads % K == 0` is of help only where `K > 0` is there before it
    for goal in goals:
        if not known.proves(goal):
            clause = missing_clause(known, known.verdict(goal), goal)
            if clause is None:
                return None
            found.append(clause)
            known = Known([*known.facts.relations, clause], doubts=known.doubts)
    return found


def missing_clause(known: Known, verdict: Verdict, goal: Relation) -> Relation | None:
    """The simplest clause that would make a goal provable.

    That two sizes are equal is no clause to suggest when they are known to differ somewhere.
    """
    found = verdict.suggestions if isinstance(verdict, Unproved) else ()
    if isinstance(verdict, Refuted) and goal.names():
        found = known.suggestions(goal)
    # `N == 1` proves much and is rarely meant.
    clauses = [c for c in found if c.op != "==" or c.right.constant in (None, 0)]
    if not clauses or (isinstance(verdict, Refuted) and _same_size(clauses[0])):
        return None
    return clauses[0]


def _same_size(clause: Relation) -> bool:
    return clause.op == "==" and clause.right.constant is None


def where_help(scope: Scope, clauses: Sequence[Relation]) -> Help:
    text = ", ".join(str(clause) for clause in dict.fromkeys(clauses))
    edit = _where_edit(scope, frozenset().union(*(c.names() for c in clauses)), text)
    edits = (edit,) if edit is not None else ()
    # That two sizes are equal is often not what was forgotten: each place is told of it.
    missing = tuple(c for c in clauses if not _same_size(c))
    return ClauseHelp(f"add `where {text}`", edits, clauses=missing)


def _where_edit(scope: Scope, names: frozenset[str], clauses: str) -> Edit | None:
    """Adds clauses to the block if they name no generics of the function, else to that."""
    owner = scope.clause_owner(names)
    if owner is None or any(n.startswith("*") for n in names):
        return None
    if owner.where:
        end = owner.where[-1].span.end
        return Edit(Span(owner.span.source, end, end), f", {clauses}")
    if isinstance(owner, tree.Fn) and owner.required:
        end = owner.span.end
        return Edit(Span(owner.span.source, end, end), f" where {clauses}")
    header: list[tree.Syntax] = [owner.name, *owner.generics]
    if isinstance(owner, tree.Fn):
        header += [*owner.params, *((owner.result,) if owner.result else ())]
    brace = owner.span.source.text.find("{", max(h.span.end for h in header))
    return Edit(Span(owner.span.source, brace, brace), f"where {clauses} ") if brace >= 0 else None


# ---------------------------------------------------------------- comparing types


def compare(scope: Scope, found: Type, want: Type) -> Mismatch | None:
    """None when the two are one type for all sizes."""
    if found == want or isinstance(found, UnknownType) or isinstance(want, UnknownType):
        return None
    match found, want:
        case TensorType(), TensorType():
            return _compare_tensors(scope, found, want)
        case TupleType(a), TupleType(b) if len(a) == len(b):
            pairs = zip(a, b, strict=True)
            return next((m for x, y in pairs if (m := compare(scope, x, y))), None)
        case OptionalType(a), OptionalType(b):
            return compare(scope, a, b)
        case StructType(), StructType() if found.decl is want.decl:
            return None if _same_arguments(scope, found, want) else Mismatch("E2101", found, want)
        case EnumType(), EnumType() if found.decl is want.decl:
            return None
        case TupleType(a), TupleType(b):
            note = f"a tuple of {len(a)} is not a tuple of {len(b)}"
            return Mismatch("E2101", found, want, (note,))
        case _, OptionalType(of) if type(found) is type(of):
            return Mismatch("E2101", found, want, help="wrap it: `some(...)`")
        case OptionalType(of), _ if compare(scope, of, want) is None:
            fix = "take the value out: `match ... { some(x) => ... none => ... }`"
            return Mismatch("E2101", found, want, help=fix)
        case _:
            return Mismatch("", found, want)


def _same_arguments(scope: Scope, a: StructType, b: StructType) -> bool:
    for x, y in zip(a.args, b.args, strict=True):
        if isinstance(x, Dim) and isinstance(y, Dim):
            if not scope.proves("==", x, y):
                return False
        elif isinstance(x, tuple) and isinstance(y, tuple):
            outcome = rules.equal_shapes(x, y)
            if isinstance(outcome, Broken) or first_failure(scope, outcome):
                return False
        elif x != y:
            return False
    return True


def _compare_tensors(scope: Scope, found: TensorType, want: TensorType) -> Mismatch | None:
    if bool(found.shape) != bool(want.shape) and not (_all_packs(found) or _all_packs(want)):
        fix = None
        if not found.shape:
            fix = f"make a tensor of it: `fill({shape_text(want.shape)}, ...)`"
        return Mismatch("E2101", found, want, help=fix)
    outcome = rules.equal_shapes(found.shape, want.shape)
    if isinstance(outcome, Broken):
        return Mismatch("E2202", found, want, (outcome.why,))
    if failure := first_failure(scope, outcome):
        obligation, verdict = failure
        goal = obligation.goal
        where = f"axis {obligation.axis}: " if len(want.shape) > 1 else ""
        shown = counterexample(verdict, goal)
        notes = [f"{where}`{goal.left}` is not `{goal.right}`"]
        if not shown:
            notes = [f"{where}could not prove `{goal}`"]
        elif goal.names():
            notes.append(shown)
        if len(want.shape) > 2:
            notes.append(_side_by_side(scope, found.shape, want.shape))
        return Mismatch(
            "E2202",
            found,
            want,
            tuple(notes),
            _reordered(found.shape, want.shape) or clause_help(scope, verdict, goal),
            uncertain=not shown,
            counterexample=broken_at(verdict, goal),
            axis=obligation.axis,
        )
    if found.dtype != want.dtype:
        fix = f"convert it: `cast<{want.dtype}>(...)`"
        return Mismatch("E2103", found, want, help=fix)
    return None


def _reordered(found: Shape, want: Shape) -> str | None:
    """The `permute` that makes one shape of the other, if they have the same axes."""
    left: list[Axis | None] = list(found)
    order: list[int] = []
    for axis in want:
        if axis not in left or isinstance(axis, Pack):
            return None
        order.append(left.index(axis))
        left[order[-1]] = None
    return f"bring the axes in this order: `permute(..., {order})`"


def _side_by_side(scope: Scope, found: Shape, want: Shape) -> str:
    """Two shapes of one rank, axis below axis, and marks under those that differ."""
    rows = [[f"{axis}" for axis in shape] for shape in (found, want)]
    marks: list[str] = []
    for x, y, a, b in zip(found, want, *rows, strict=True):
        same = x == y or (isinstance(x, Dim) and isinstance(y, Dim) and scope.proves("==", x, y))
        marks.append("" if same else "^" * max(len(a), len(b)))
    widths = [max(len(a), len(b)) for a, b in zip(*rows, strict=True)]
    lines = [
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (*rows, marks)
    ]
    words = ("found   ", "expected", "        ")
    return "\n".join(f"{word} {line}" for word, line in zip(words, lines, strict=True))


def _all_packs(type: TensorType) -> bool:
    return bool(type.shape) and not any(isinstance(a, Dim) for a in type.shape)


# ---------------------------------------------------------------- contextual literals


def contextual(type: Type) -> bool:
    """Some part of the type is still to be settled by its context."""
    match type:
        case IntConst() | FloatConst() | NoneType():
            return True
        case TupleType(items):
            return any(contextual(t) for t in items)
        case OptionalType(of):
            return contextual(of)
        case _:
            return False


def default_type(type: Type) -> Type:
    """The type that literals take without context: i64 and f64."""
    match type:
        case IntConst():
            return scalar(I64)
        case FloatConst():
            return scalar(F64)
        case TupleType(items):
            return TupleType(tuple(default_type(t) for t in items))
        case OptionalType(of):
            return OptionalType(default_type(of))
        case _:
            return type


def literal_fault(type: IntConst | FloatConst, dtype: AnyDType) -> tuple[str, str] | None:
    """Why a literal cannot have this dtype: the code, and a reason that follows the literal."""
    if isinstance(dtype, DType):
        own = frozenset({dtype})
    else:
        own = DTYPE_KINDS[dtype.kind]
    if BOOL in own:
        which = "bool" if isinstance(dtype, DType) else f"{dtype}, which may be bool"
        return "E2101", f"is a number, not {which}"
    if isinstance(type, FloatConst):
        if not dtype_within(dtype, "Float"):
            which = "is not" if isinstance(dtype, DType) else "need not be"
            return "E2105", f"is a float, and {dtype} {which} a Float dtype"
        if isinstance(dtype, DType) and abs(type.value) > _largest(dtype):
            return "E2105", f"does not fit {dtype}: its largest value is {_largest(dtype):g}"
        return None
    value = type.value.constant
    if value is None:
        return None
    for each in own:
        low, high = _range(each)
        if not low <= value <= high:
            which = f"{dtype}" if isinstance(dtype, DType) else f"{dtype}, which may be {each}"
            return "E2105", f"does not fit {which}: its range is {low:g} to {high:g}" if (
                each.is_float
            ) else f"does not fit {which}: its range is {low} to {high}"
    return None


def _largest(dtype: DType) -> float:
    return {
        "f16": 65504.0,
        "bf16": 3.3895313892515355e38,
        "f32": 3.4028234663852886e38,
    }.get(dtype.name, float("inf"))


def _range(dtype: DType) -> tuple[float, float]:
    if dtype.is_float:
        return -_largest(dtype), _largest(dtype)
    if dtype.kind == "uint":
        return 0, 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


# ---------------------------------------------------------------- coercion


def coerce(scope: Scope, e: tree.Expr, found: Type, expected: Expected) -> Type:
    """The expected type: literals in `e` are settled to it, and what does not match is reported."""
    want = expected.type
    if isinstance(found, UnknownType) or isinstance(want, UnknownType):
        if contextual(found):
            settle(scope, e, default_type(found))
        return want
    if contextual(found):
        if not _fill_in(scope, e, found, expected):
            return want
        settle(scope, e, want)
        return want
    if mismatch := compare(scope, found, want):
        report_mismatch(scope, e, found, expected, mismatch)
    return want


def _fill_in(scope: Scope, e: tree.Expr, found: Type, expected: Expected) -> bool:
    """Whether a type with literals in it can become the expected one; reported if not."""
    want = expected.type
    match found, want:
        case ((IntConst() | FloatConst()), TensorType((), dtype)):
            fault = literal_fault(found, dtype)
            if fault is None:
                return True
            code, reason = fault
            scope.report(
                code,
                f"`{text_of(e)}` {reason}",
                e,
                label=f"{expected.origin.phrase} {want}",
                related=expected.origin.related,
            )
            return False
        case NoneType(), OptionalType():
            return True
        case TupleType(items), TupleType(wants) if len(items) == len(wants):
            parts = _parts(e, len(items))
            return all(
                _fill_in(scope, part, item, Expected(w, expected.origin))
                for part, item, w in zip(parts, items, wants, strict=True)
            )
        case OptionalType(of), OptionalType(want_of):
            inner = bare(e)
            part = inner.value if isinstance(inner, tree.Some) else e
            return _fill_in(scope, part, of, Expected(want_of, expected.origin))
        case _:
            settled = default_type(found)
            if not contextual(settled) and compare(scope, settled, want) is None:
                return True
            mismatch = compare(scope, settled, want) or Mismatch("", found, want)
            report_mismatch(scope, e, settled, expected, mismatch)
            return False


def _parts(e: tree.Expr, count: int) -> tuple[tree.Expr, ...]:
    inner = bare(e)
    if isinstance(inner, tree.Tuple) and len(inner.items) == count:
        return inner.items
    return (e,) * count


def bare(e: tree.Expr) -> tree.Expr:
    """The expression without parentheses around it."""
    while isinstance(e, tree.Paren):
        e = e.value
    return e


def settle(scope: Scope, e: tree.Expr, want: Type) -> None:
    """Record the type that its context gave an expression, and with it its literals."""
    types = scope.analysis.types
    before = types.get(e)
    if before is None or not contextual(before):
        return
    types[e] = want
    match e:
        case tree.Paren(value=inner) | tree.Unary(value=inner):
            settle(scope, inner, want)
        case tree.Binary(left=left, right=right):
            settle(scope, left, want)
            settle(scope, right, want)
        case tree.If(then=then, other=other):
            settle(scope, then, want)
            settle(scope, other, want)
        case tree.Match(arms=arms):
            for arm in arms:
                settle(scope, arm.value, want)
        case tree.Call(args=args):
            for arg in args:
                settle(scope, arg.value, want)
            meaning = scope.analysis.calls.get(e)
            if isinstance(meaning, PreludeCall):
                scope.analysis.calls[e] = replace(meaning, result=want)
        case tree.Some(value=inner) if isinstance(want, OptionalType):
            settle(scope, inner, want.of)
        case tree.Tuple(items=items) if isinstance(want, TupleType):
            # The lengths differ only in what was already reported.
            for item, part in zip(items, want.items, strict=False):
                settle(scope, item, part)
        case _:
            pass


# ---------------------------------------------------------------- wording


def report_mismatch(
    scope: Scope, e: tree.Expr, found: Type, expected: Expected, mismatch: Mismatch
) -> None:
    """One finding: the expression and what it is, what was expected and why, and how to fix it."""
    origin = expected.origin
    part, part_type = _culprit(scope, e, found, expected.type)
    code = mismatch.code or origin.other
    if code == "E2101" and origin.other == "E2115":
        code = "E2115"
    notes = list(mismatch.notes)
    if mismatch.code and mismatch.found != part_type:
        notes.insert(0, f"the part that differs is {mismatch.found}, expected {mismatch.want}")
    elif part is not e:
        notes.insert(0, f"expected {mismatch.want} in this place")
    wanted = described(expected.type)
    message = f"`{text_of(part)}` is {described(part_type)}, but {origin.phrase} {wanted}"
    if mismatch.uncertain:
        message = (
            f"could not prove that `{text_of(part)}`, which is {described(part_type)}, has the "
            f"type that {origin.phrase} {wanted}"
        )
    # A fix for a part that is not written out here would be put around the whole.
    fix = mismatch.help if mismatch.found == part_type or not mismatch.code else None
    if mismatch.code == "E2101" and fix is None:
        fix = all_help(part, part_type, expected.type)
    related, help = origin.related, _shown_fix(part, fix)
    if code == "E2103" and origin.redeclare is not None:
        declared, default = origin.redeclare
        related = (*related, default)
        # The cast is seldom what is meant, but it may be.
        cast = help.text if isinstance(help, Help) else help
        help = replace(declared, text=f"{declared.text}; or {cast}" if cast else declared.text)
    scope.report(
        code,
        message,
        shown(part),
        label=f"this is {described(part_type)}",
        related=related,
        notes=tuple(notes),
        help=help,
        counterexample=mismatch.counterexample,
    )


def _culprit(scope: Scope, e: tree.Expr, found: Type, want: Type) -> tuple[tree.Expr, Type]:
    """The part of a written tuple or `some(...)` that is not as wanted, and its type."""
    inner = bare(e)
    match inner, found, want:
        case tree.Tuple(items=items), TupleType(a), TupleType(b) if len(items) == len(a) == len(b):
            for item, x, y in zip(items, a, b, strict=True):
                if compare(scope, x, y) is not None:
                    return _culprit(scope, item, x, y)
        case tree.Some(value=value), OptionalType(x), OptionalType(y):
            return _culprit(scope, value, x, y)
    return e, found


def all_help(e: tree.Expr, found: Type, want: Type) -> Help | None:
    """How tensors that are compared element by element give the one bool that is wanted."""
    if want != scalar(BOOL) or not isinstance(found, TensorType) or found.dtype is not BOOL:
        return None
    inner = bare(e)
    fit = f"all[i] {text_of(e)}[i]" if isinstance(inner, tree.Name) else "all[i] ..."
    rank = len(found.shape)
    if isinstance(inner, tree.Binary) and rank <= 4 and not any(map(_is_pack, found.shape)):
        at = ", ".join("ijkl"[:rank])
        sides = [_element(side, at) for side in (inner.left, inner.right)]
        if None not in sides:
            form = f"all[{at}] {sides[0]} {inner.op} {sides[1]}"
            text = f"`{inner.op}` compares element by element: `{form}` is one bool"
            return Help(text, (Edit(e.span, form),))
    return Help(f"it has a bool for each element: `{fit}` is one bool, `any[i]` likewise")


def _is_pack(axis: Axis) -> bool:
    return isinstance(axis, Pack)


def _element(e: tree.Expr, at: str) -> str | None:
    match bare(e):
        case tree.Name(text=name):
            return f"{name}[{at}]"
        case tree.IntLit() | tree.FloatLit():
            return e.span.text
        case _:
            return None


def _shown_fix(e: tree.Expr, fix: Help | str | None) -> Help | str | None:
    """A fix whose one `...` is the expression, with the edit that makes it."""
    if isinstance(e, tree.For):
        return None if isinstance(fix, str) else fix  # nothing stands around a loop
    if not isinstance(fix, str) or fix.count("...") != 1 or fix.count("`") != 2:
        return fix
    before, form, after = fix.split("`")
    return Help(
        f"{before}`{form.replace('...', text_of(e))}`{after}",
        (Edit(e.span, form.replace("...", e.span.text)),),
        safe=form.startswith("some("),  # nothing else makes an optional of it
    )


def info_of(scope: Scope, type: BlockType) -> BlockInfo | None:
    """What is known of the block that a type is an instance of."""
    assert isinstance(type.decl, tree.Block)
    return scope.analysis.blocks.get(type.decl)
