"""Subscripts, accesses of index notation, indexed `let`s and reductions."""

from __future__ import annotations

from collections.abc import Sequence

from linnet.check import exprs, typeexprs
from linnet.check.analysis import (
    Access,
    ArrayElement,
    AxisAt,
    AxisGather,
    AxisSlice,
    AxisWhole,
    Frame,
    IndexVar,
    Local,
    Subscript,
)
from linnet.check.expect import (
    Expected,
    Origin,
    bare,
    blocks,
    broken_at,
    clause_help,
    coerce,
    counterexample,
    described,
    first_failure,
    settle,
    text_of,
)
from linnet.check.scope import Place, Scope
from linnet.core import rules
from linnet.core.rules import Broken, Obligation
from linnet.diagnostics import Help, Label
from linnet.dims import Dim, Relation, Verdict
from linnet.syntax import tree
from linnet.types import (
    BOOL,
    I64,
    UNKNOWN,
    Axis,
    BlockArray,
    Pack,
    TensorType,
    TupleType,
    Type,
    UnknownType,
    dtype_within,
    scalar,
    shape_text,
)

Item = tree.Expr | tree.Slice | tree.Ellipsis_ | tree.PackRef


def subscript(scope: Scope, e: tree.Index) -> Type:
    """`base[...]`: a subscript, an access of one element, or a block of an array."""
    base = exprs.infer_whole(scope, e.base)
    match base:
        case BlockArray():
            return _block(scope, e, base)
        case TensorType():
            return _access(scope, e, base) if scope.elements else _subscript(scope, e, base)
        case UnknownType():
            pass
        case _:
            base = exprs.settle_default(scope, e.base, base)
            message = f"`{text_of(e.base)}` is {described(base)}; only tensors are indexed"
            fix = "take it apart: `let (a, b) = ...`" if isinstance(base, TupleType) else None
            scope.report("E2101", message, e.base, help=fix)
    _lose(scope, e.items)
    return UNKNOWN


def _lose(scope: Scope, items: Sequence[Item]) -> None:
    """Items whose base means nothing: check them alone, and ask nothing of their indices."""
    for item in items:
        match item:
            case tree.Slice(start=start, stop=stop, step=step):
                for part in (start, stop, step):
                    if part is not None:
                        exprs.infer(scope, part)
            case tree.PackRef(name=name):
                symbol = scope.lookup(name.text)
                if isinstance(symbol, IndexVar):
                    scope.lost.add(symbol)
            case tree.Ellipsis_():
                pass
            case _:
                inner = bare(item)
                known = scope.lookup(inner.text) if isinstance(inner, tree.Name) else None
                if isinstance(known, IndexVar):
                    scope.lost.add(known)
                elif not (scope.elements and isinstance(inner, tree.Name) and known is None):
                    exprs.infer(scope, item)


# ---------------------------------------------------------------- blocks of an array


def _block(scope: Scope, e: tree.Index, base: BlockArray) -> Type:
    name = text_of(e.base)
    item = e.items[0] if len(e.items) == 1 else None
    if item is None or isinstance(item, (tree.Slice, tree.Ellipsis_, tree.PackRef)):
        scope.report("E2204", f"`{name}` is an array of blocks and takes one constant index", e)
        return UNKNOWN
    with scope.mode(False):
        fix = f"walk it: `static for x in {name} {{ ... }}`"
        at = exprs.dimension(scope, item, f"the index of `{name}`", fix)
    if at is None:
        return UNKNOWN
    prove_index(scope, item, at, base.length, f"`{name}` has {blocks(base)}")
    scope.analysis.subscripts[e] = ArrayElement(at)
    return base.of


def prove_index(scope: Scope, e: tree.Expr, at: Dim, extent: Dim, holds: str) -> bool:
    """`0 <= at < extent`, or a finding that says what `holds`."""
    lower = Relation(">=", at, Dim.of(0))
    upper = Relation("<", at, extent)
    for goal, fix in ((lower, True), (upper, False)):
        if scope.known.proves(goal):
            continue
        verdict = scope.known.verdict(goal)
        _out_of_range(scope, e, f"the index `{text_of(e)}`", goal, verdict, holds, negative=fix)
        return False
    return True


def positions(extent: Axis) -> str:
    """How many positions an axis of this extent has, in words."""
    return f"{extent} position{'' if extent == Dim.of(1) else 's'}"


def _out_of_range(
    scope: Scope,
    e: tree.Syntax,
    what: str,
    goal: Relation,
    verdict: Verdict,
    holds: str,
    *,
    negative: bool,
    against: str = "{right} positions",
) -> None:
    form = "it is {left}" if negative else "it is {left}, against " + against
    shown = counterexample(verdict, goal, form)
    is_ = "is negative" if negative else "is out of range"
    if not shown:
        is_ = f"could not be proved to satisfy `{goal}`"
    elif negative and goal.names():
        is_ = "may be negative"
    elif goal.names():
        is_ = "may be out of range"
    help: Help | str | None = clause_help(scope, verdict, goal)
    if negative and shown and help is None:
        extent = "the extent" if not goal.names() else "its extent"
        help = f"count from the front: {extent} minus one is the last"
    scope.report(
        "E2209",
        f"{what} {is_}: {holds}",
        e,
        notes=(shown,) if shown and goal.names() else (),
        help=help,
        counterexample=broken_at(verdict, goal),
    )


# ---------------------------------------------------------------- subscripts of whole tensors


def _subscript(scope: Scope, e: tree.Index, base: TensorType) -> Type:
    lined_up = _line_up(scope, e, base)
    if lined_up is None:
        _lose(scope, e.items)
        return UNKNOWN
    meanings: list[AxisWhole | AxisSlice | AxisAt | AxisGather] = []
    ranges: list[tuple[Dim, Dim, int] | None] = []
    failed = False
    for axis, item in zip(base.shape, lined_up, strict=True):
        found = _one_axis(scope, e, axis, item)
        if found is None:
            failed = True
            continue
        meanings.append(found)
        match found:
            case AxisSlice(start, stop, step):
                ranges.append((start, stop, step))
            case AxisAt(at):
                ranges.append((at, at + 1, 1))
            case _:
                ranges.append(None)
    if failed:
        return UNKNOWN
    outcome = rules.slice(base, ranges)
    if isinstance(outcome, Broken):
        scope.report(outcome.code, outcome.why, e)
        return UNKNOWN
    if failure := first_failure(scope, outcome.obligations):
        _report_slice(scope, base, lined_up, meanings, *failure)
        return UNKNOWN
    scope.analysis.subscripts[e] = Subscript(tuple(meanings))
    kept = tuple(
        axis
        for axis, m in zip(outcome.type.shape, meanings, strict=True)
        if isinstance(m, (AxisWhole, AxisSlice))
    )
    return TensorType(kept, base.dtype)


def _line_up(scope: Scope, e: tree.Index, base: TensorType) -> list[Item | None] | None:
    """What stands on each axis (or pack); None where an axis is kept by `...`."""
    dots = [i for i, item in enumerate(e.items) if isinstance(item, tree.Ellipsis_)]
    rank, given = len(base.shape), len(e.items) - len(dots)
    name = text_of(e.base)
    if len(dots) > 1:
        scope.report("E2204", "`...` stands twice; it can stand for one run of axes", e)
        return None
    if given > rank or (not dots and given < rank):
        plural = "indices" if given != 1 else "index"
        if not rank:
            scope.report("E2204", f"`{name}` is a scalar, {base}, and has no axis to index", e)
            return None
        scope.report(
            "E2204",
            f"`{name}` is {base} with {_axes(base)}; {given} {plural} given",
            e,
            help="write one index for each axis, or `...` for the axes left out"
            if given < rank
            else None,
        )
        return None
    if not dots:
        return list(e.items)
    at = dots[0]
    return [*e.items[:at], *[None] * (rank - given), *e.items[at + 1 :]]


def _axes(base: TensorType) -> str:
    """`2 axes`, `a pack and 1 axis`."""
    plain = sum(isinstance(axis, Dim) for axis in base.shape)
    counted = f"{plain} axes" if plain != 1 else "1 axis"
    if plain == len(base.shape):
        return counted
    return f"the axes of a pack and {counted}" if plain else "the axes of a pack"


def _one_axis(
    scope: Scope, e: tree.Index, axis: Axis, item: Item | None
) -> AxisWhole | AxisSlice | AxisAt | AxisGather | None:
    """What an item does to its axis; None after a report."""
    match item:
        case None | tree.Slice(start=None, stop=None, step=None):
            return AxisWhole()
        case tree.PackRef(name=name):
            if isinstance(axis, Pack) and axis.name == name.text:
                return AxisWhole()
            scope.report("E2204", f"`*{name.text}` stands on the axis `{axis}`", item)
            return None
    if isinstance(axis, Pack):
        _lose(scope, [item])
        scope.report(
            "E2204",
            f"`{text_of(item)}` stands on the pack `{axis}`, which is any number of axes",
            item,
            help="write `...` for the pack",
        )
        return None
    if isinstance(item, tree.Slice):
        return _slice(scope, axis, item)
    assert not isinstance(item, tree.Ellipsis_)
    found = exprs.value(scope, item)
    at = scope.analysis.dims.get(item)
    if at is not None:
        settle(scope, item, scalar(I64))
        return AxisAt(at)
    if isinstance(found, UnknownType):
        return None
    if isinstance(found, TensorType) and not found.shape and dtype_within(found.dtype, "Integer"):
        return AxisGather(item)
    _not_an_index(scope, item, found)
    return None


def _not_an_index(scope: Scope, item: tree.Expr, found: Type) -> None:
    found = exprs.settle_default(scope, item, found)
    fix = None
    if isinstance(found, TensorType) and found.shape and dtype_within(found.dtype, "Integer"):
        name = "i" if text_of(item) != "i" else "j"
        fix = f"index notation gathers: `let y[{name}] = x[{text_of(item)}[{name}]]`"
    elif isinstance(found, TensorType) and found.shape and found.dtype is BOOL:
        fix = f"no shape depends on values; choose by element: `select({text_of(item)}, x, 0.0)`"
    elif isinstance(found, TensorType) and not found.shape and found.dtype is not BOOL:
        fix = f"convert it: `cast<i64>({text_of(item)})`"
    message = f"an index is an integer scalar; `{text_of(item)}` is {described(found)}"
    scope.report("E2101", message, item, help=fix)


def _slice(scope: Scope, axis: Dim, item: tree.Slice) -> AxisSlice | None:
    start, stop, step = Dim.of(0), axis, Dim.of(1)
    failed = False
    parts = [(item.start, "start"), (item.stop, "stop"), (item.step, "step")]
    for part, what in parts:
        if part is None:
            continue
        size = exprs.dimension(scope, part, f"the {what} of a slice")
        if size is None:
            failed = True
        elif what == "start":
            start = size
        elif what == "stop":
            stop = size
        else:
            step = size
    if failed:
        return None
    count = step.constant
    if count is None or count <= 0:
        assert item.step is not None
        scope.report(
            "E2209",
            f"the step of a slice is a positive constant; `{text_of(item.step)}` is {step}",
            item.step,
        )
        return None
    return AxisSlice(start, stop, count)


def _report_slice(
    scope: Scope,
    base: TensorType,
    items: Sequence[Item | None],
    meanings: Sequence[AxisWhole | AxisSlice | AxisAt | AxisGather],
    obligation: Obligation,
    verdict: Verdict,
) -> None:
    assert obligation.axis is not None
    item, meaning = items[obligation.axis], meanings[obligation.axis]
    extent = base.shape[obligation.axis]
    assert item is not None
    goal = obligation.goal
    holds = f"axis {obligation.axis} of {shape_text(base.shape)} has {positions(extent)}"
    at: tree.Syntax = item
    against = "{right} positions"
    what = f"the index `{text_of(item)}`"
    negative = goal.op == ">="
    if isinstance(item, tree.Slice) and isinstance(meaning, AxisSlice):
        what = f"the slice `{text_of(item)}`"
        if negative and item.start is not None:
            at, what = item.start, f"the start `{text_of(item.start)}`"
        elif goal.left == meaning.stop and goal.right == extent and item.stop is not None:
            at, what = item.stop, f"the stop `{text_of(item.stop)}`"
        else:
            holds = f"its start `{meaning.start}` lies after its stop `{meaning.stop}`"
            against = "a stop of {right}"
    elif isinstance(meaning, AxisAt) and not negative:
        goal = Relation("<", meaning.index, goal.right)
        verdict = scope.known.verdict(goal)
    _out_of_range(scope, at, what, goal, verdict, holds, negative=negative, against=against)


# ---------------------------------------------------------------- accesses


def _access(scope: Scope, e: tree.Index, base: TensorType) -> Type:
    """One element: an index, a position or a gather on each axis."""
    name = text_of(e.base)
    if scope.analysis.symbols.get(bare(e.base)) in scope.checking.suspects:
        _lose(scope, e.items)
        return UNKNOWN
    for item in e.items:
        if isinstance(item, (tree.Slice, tree.Ellipsis_)):
            scope.report(
                "E3104",
                f"`{text_of(item)}` has no meaning here; index notation reads one element",
                item,
                help=f"take the slice of `{name}` in a `let` of its own, and index the result",
            )
            _lose(scope, e.items)
            return UNKNOWN
    rank = len(base.shape)
    if len(e.items) != rank:
        plural = "indices" if len(e.items) != 1 else "index"
        message = f"`{name}` is {base} with {_axes(base)}; {len(e.items)} {plural} given"
        if not rank:
            message = f"`{name}` is a scalar, {base}, and has no axis to index"
        scope.report("E2204", message, e)
        _lose(scope, e.items)
        return UNKNOWN
    entries: list[IndexVar | Dim | tree.Expr] = []
    for i, (item, axis) in enumerate(zip(e.items, base.shape, strict=True)):
        assert not isinstance(item, (tree.Slice, tree.Ellipsis_))
        holds = f"axis {i} of `{name}`" if rank > 1 else f"the axis of `{name}`"
        entry = _entry(scope, e, item, axis, holds)
        if entry is not None:
            entries.append(entry)
        elif scope.analysis.symbols.get(item) and scope.findings.items[-1].code == "E3106":
            _lose(scope, e.items[i + 1 :])  # each of the others is off by as much
            symbol = scope.analysis.symbols.get(bare(e.base))
            if isinstance(symbol, Local) and symbol.kind == "let":
                scope.checking.suspects.add(symbol)
            return UNKNOWN
    if len(entries) != rank:
        return UNKNOWN
    scope.analysis.subscripts[e] = Access(tuple(entries))
    return scalar(base.dtype)


def _entry(
    scope: Scope, e: tree.Index, item: tree.Expr | tree.PackRef, axis: Axis, of: str
) -> IndexVar | Dim | tree.Expr | None:
    """What stands on one axis; None after a report."""
    inner = item.name if isinstance(item, tree.PackRef) else bare(item)
    if isinstance(inner, (tree.Name, tree.Ident)):
        symbol = scope.lookup(inner.text)
        starred = isinstance(item, tree.PackRef)
        if symbol is None:
            if inner.text in scope.unlisted:
                return None
            scope.unlisted.add(inner.text)
            star = "*" if starred else ""
            scope.report(
                "E3101",
                f"`{star}{inner.text}` is neither an output nor a reduced index",
                item,
                help=f"reduce it, as in `sum[{inner.text}] ...`, or list it on the left",
            )
            return None
        if isinstance(symbol, IndexVar):
            scope.analysis.symbols[inner] = symbol
            scope.analysis.symbols[item] = symbol
            return _place(scope, e, item, symbol, axis, of, starred)
        if starred:
            message = f"`*{inner.text}` is not an index of a pack declared here"
            scope.report("E3106", message, item, help=f"list `*{inner.text.lower()}` on the left")
            return None
    assert not isinstance(item, tree.PackRef)
    if isinstance(axis, Pack):
        exprs.infer(scope, item)
        message = f"`{text_of(item)}` stands on the pack `{axis}`, which is any number of axes"
        scope.report("E3106", message, item, help="a pack takes an index with a star: `*s`")
        return None
    found = exprs.value(scope, item)
    at = scope.analysis.dims.get(item)
    if at is not None:
        settle(scope, item, scalar(I64))
        proved = prove_index(scope, item, at, axis, f"{of} has {positions(axis)}")
        return at if proved else None
    if isinstance(found, UnknownType):
        return None
    if isinstance(found, TensorType) and not found.shape and dtype_within(found.dtype, "Integer"):
        return item
    _not_an_index(scope, item, found)
    return None


def _place(
    scope: Scope,
    e: tree.Index,
    item: tree.Syntax,
    index: IndexVar,
    axis: Axis,
    of: str,
    starred: bool,
) -> IndexVar | None:
    """An index stands on an axis; its extent is compared when all places are known."""
    scope.index_uses += 1
    if index in scope.lost:
        return None
    if isinstance(axis, Pack) and not (starred and index.pack):
        star = f"`*{index.name}` on the left and here" if not index.pack else f"`*{index.name}`"
        message = f"`{index.name}` is one index; {of} is the pack `{axis}`, any number of axes"
        scope.report("E3106", message, item, help=f"write {star}")
    elif not isinstance(axis, Pack) and (starred or index.pack):
        message = f"`*{index.name}` stands for the axes of a pack; {of} is the plain axis `{axis}`"
        scope.report("E3106", message, item, help="use a plain index here, without `*`")
    else:
        scope.places[index].append(Place(axis, item.span, of, e))
        return index
    scope.lost.add(index)
    return None


# ---------------------------------------------------------------- frames


def _declare(
    scope: Scope, listed: Sequence[tree.Ident | tree.PackRef], *, reduced: bool
) -> list[IndexVar]:
    """The listed indices, in the innermost scope."""
    out: list[IndexVar] = []
    for each in listed:
        name = each.name if isinstance(each, tree.PackRef) else each
        pack = isinstance(each, tree.PackRef)
        outer = scope.lookup(name.text)
        if isinstance(outer, IndexVar):
            scope.report(
                "E3105",
                f"the index `{name.text}` is listed twice",
                each,
                related=(Label(outer.decl.span, "first here"),),
                help="give one of them another name",
            )
            scope.lost.add(outer)
            continue
        if pack and reduced:
            message = f"`*{name.text}` cannot be reduced; a reduction lists plain indices"
            scope.report("E3106", message, each)
        index = IndexVar(name.text, each, pack)
        scope.places[index] = []
        if pack and reduced:
            scope.lost.add(index)
        scope.declare(name, index)
        out.append(index)
    return out


def _close(
    scope: Scope,
    node: tree.IndexLet | tree.Reduction,
    indices: Sequence[IndexVar],
    code: str,
    body: Type,
) -> Frame | None:
    """The frame with the extent of each index; None when one has none.

    That an index stands nowhere is no news where the body was not understood.
    """
    extents: list[Dim | tuple[Dim | object, ...]] = []
    stood = {index: scope.places.pop(index) for index in indices}
    for index, places in stood.items():
        if places and index not in scope.lost:
            first = places[0]
            if all(_same_extent(scope, index, first, other) for other in places[1:]):
                extent = first.extent
                extents.append((extent,) if isinstance(extent, Pack) else extent)
    mixed = len(extents) < sum(bool(places) for places in stood.values())
    for index, places in stood.items():
        # A wrong letter leaves one index without an axis, and puts another on two.
        if not places and not mixed and not isinstance(body, UnknownType):
            scope.nowhere = True
            role = "reduced over" if code == "E3102" else "listed on the left"
            scope.report(
                code,
                f"`{index.name}` is {role} but stands on no axis, so it has no extent",
                index.decl,
                help=f"index an axis with it, as in `iota<i64>(N)[{index.name}]`",
            )
    if len(extents) != len(indices):
        return None
    frame = Frame(tuple(indices), tuple(extents))
    scope.analysis.frames[node] = frame
    return frame


def _same_extent(scope: Scope, index: IndexVar, first: Place, other: Place) -> bool:
    if first.extent == other.extent:
        return True
    notes: tuple[str, ...] = ()
    help = None
    broken = None
    if isinstance(first.extent, Dim) and isinstance(other.extent, Dim):
        goal = Relation("==", first.extent, other.extent)
        if scope.known.proves(goal):
            return True
        if scope.nowhere or _reported(scope, first, other):
            return False
        verdict = scope.known.verdict(goal)
        shown = counterexample(verdict, goal)
        if shown and goal.names():
            notes = (shown,)
        elif not shown:
            notes = (f"could not prove `{goal}`",)
        help = clause_help(scope, verdict, goal)
        broken = broken_at(verdict, goal)
    elif scope.nowhere or _reported(scope, first, other):
        return False
    scope.report(
        "E2201",
        f"the index `{index.name}` stands on {first.of}, `{first.extent}`, and on {other.of}, "
        f"`{other.extent}`",
        other.span,
        label=f"`{other.extent}` here",
        related=(Label(first.span, f"`{first.extent}` here"),),
        notes=notes,
        help=help,
        counterexample=broken,
    )
    return False


def _reported(scope: Scope, first: Place, other: Place) -> bool:
    """Whether this is the other half of a report: two indices in each other's place."""
    swapped = scope.checking.swapped.setdefault((first.access, other.access), set())
    if first.extent in {b for _, b in swapped} or other.extent in {a for a, _ in swapped}:
        return True
    swapped.add((first.extent, other.extent))
    return False


def index_let(scope: Scope, s: tree.IndexLet) -> None:
    """`let y[i, *s] = e`: a tensor whose axes are the extents of its indices."""
    errors = scope.findings.errors
    scope.unlisted.clear()
    scope.nowhere = False
    with scope.nested(), scope.mode(True):
        indices = _declare(scope, s.outputs, reduced=False)
        body = exprs.settled(scope, s.value)
    frame = _close(scope, s, indices, "E3103", body)
    found: Type = UNKNOWN
    if isinstance(body, TensorType):
        if frame is not None and scope.findings.errors == errors:
            shape: list[Axis] = []
            for extent in frame.extents:
                if isinstance(extent, Dim):
                    shape.append(extent)
                else:
                    shape.extend(a for a in extent if isinstance(a, (Dim, Pack)))
            found = TensorType(tuple(shape), body.dtype)
    elif not isinstance(body, UnknownType):
        message = f"an element is a scalar; `{text_of(s.value)}` is {described(body)}"
        scope.report("E3104", message, s.value)
    scope.add_local(s.name, s, found, "let")


def reduction(scope: Scope, e: tree.Reduction, hint: Expected | None) -> Type:
    """`sum<T>[i, j] e`: a scalar of the dtype of `e`."""
    dtype = None
    if e.dtype is not None:
        dtype = typeexprs.dtype_of(scope, tree.Path(e.dtype.span, (e.dtype,)))
    if e.dtype is not None and dtype is not None:
        origin = Origin(f"`{e.kind}<{dtype}>` accumulates", e.dtype.span, "accumulated in this")
        hint = Expected(scalar(dtype), origin)
    elif e.kind in ("any", "all"):
        hint = None
    else:
        hint = exprs.scalar_hint(hint)
    if not scope.elements:
        scope.unlisted.clear()
        scope.nowhere = False
    scope.nowhere = False
    with scope.nested(), scope.mode(True):
        indices = _declare(scope, e.indices, reduced=True)
        body = exprs.value(scope, e.body, hint)
        if e.dtype is not None and dtype is not None and hint is not None:
            body = coerce(scope, e.body, body, hint)
        else:
            body = exprs.settle_default(scope, e.body, body, hint)
    frame = _close(scope, e, indices, "E3102", body)
    if isinstance(body, UnknownType):
        return UNKNOWN
    if not isinstance(body, TensorType):
        message = f"`{e.kind}` reduces scalars; `{text_of(e.body)}` is {described(body)}"
        scope.report("E3104", message, e.body)
        return UNKNOWN
    outcome = rules.reduce(e.kind, body, ())
    if isinstance(outcome, Broken):
        help = None
        if e.kind in ("any", "all"):
            help = f"compare it: `{text_of(e.body)} != 0`"
        elif body.dtype is BOOL:
            help = f"count with `{e.kind}[...] cast<i64>({text_of(e.body)})`"
        scope.report(outcome.code, f"{outcome.why}: `{text_of(e.body)}`", e.body, help=help)
        return UNKNOWN
    return outcome.type if frame is not None else UNKNOWN
