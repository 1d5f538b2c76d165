"""One rule per primitive: its result type and what must hold of its sizes.

Read by the checker (which proves the obligations and words the findings), by `build` (which takes
the type) and by `verify`. Shapes may hold packs and dtype generics in the checker, never later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from linnet.dims import Dim, Relation, dim_max
from linnet.types import (
    BOOL,
    AnyDType,
    Axis,
    DType,
    Pack,
    Shape,
    TensorType,
    dtype_within,
    element_count,
    shape_text,
)


@dataclass(frozen=True, slots=True)
class Obligation:
    """A relation between sizes that must be proved; `code` is the finding if it is not.

    `axis` is the position (from the front of the result, or of the checked operand) it is about.
    """

    code: str
    goal: Relation
    axis: int | None = None


@dataclass(frozen=True, slots=True)
class Ruling:
    """The result type and what remains to be proved."""

    type: TensorType
    obligations: tuple[Obligation, ...] = ()


@dataclass(frozen=True, slots=True)
class Broken:
    """The rule cannot apply whatever the sizes; `why` is a phrase for the message."""

    code: str
    why: str


Outcome = Ruling | Broken

UNARY_KINDS: dict[str, str] = {
    "neg": "Numeric",
    "abs": "Numeric",
    "exp": "Float",
    "log": "Float",
    "sqrt": "Float",
    "rsqrt": "Float",
    "sin": "Float",
    "cos": "Float",
    "tanh": "Float",
}
BINARY_KINDS: dict[str, str] = {
    "add": "Numeric",
    "sub": "Numeric",
    "mul": "Numeric",
    "div": "Numeric",
    "rem": "Numeric",
    "min": "Numeric",
    "max": "Numeric",
    "shl": "Integer",
    "shr": "Integer",
}
REDUCE_KINDS: dict[str, str] = {
    "sum": "Numeric",
    "prod": "Numeric",
    "max": "Numeric",
    "min": "Numeric",
}


def equal_shapes(a: Shape, b: Shape, code: str = "E2202") -> tuple[Obligation, ...] | Broken:
    """What makes two shapes equal, axis by axis."""
    if len(a) != len(b):
        return Broken(code, f"{shape_text(a)} has {len(a)} axes, {shape_text(b)} has {len(b)}")
    out: list[Obligation] = []
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if x == y:
            continue
        if isinstance(x, Pack) or isinstance(y, Pack):
            return Broken(code, f"axis {i} is {x} on one side and {y} on the other")
        out.append(Obligation(code, Relation("==", x, y), i))
    return tuple(out)


def broadcast(shapes: Sequence[Shape]) -> tuple[Shape, tuple[Obligation, ...]] | Broken:
    """The common shape of right-aligned operands: axes equal, or one of them the literal 1."""
    result: list[Axis] = []
    out: list[Obligation] = []
    rank = max(len(s) for s in shapes)
    for back in range(1, rank + 1):
        axes = [s[-back] for s in shapes if len(s) >= back]
        chosen = axes[0]
        for axis in axes[1:]:
            if axis == chosen:
                continue
            # A pack may stand for no axes at all, so not even a 1 lines up with it.
            if isinstance(axis, Pack) or isinstance(chosen, Pack):
                texts = " and ".join(shape_text(s) for s in shapes)
                return Broken("E2207", f"{texts} do not align: {chosen} meets {axis}")
            if _is_one(axis):
                continue
            if _is_one(chosen):
                chosen = axis
            else:
                out.append(Obligation("E2207", Relation("==", chosen, axis), rank - back))
        result.append(chosen)
    return tuple(reversed(result)), tuple(out)


def _is_one(axis: Axis) -> bool:
    return isinstance(axis, Dim) and axis.constant == 1


def unary(op: str, x: TensorType) -> Outcome:
    if op == "not":
        if x.dtype is BOOL or dtype_within(x.dtype, "Integer"):
            return Ruling(x)
        return Broken("E2104", f"`!` takes a bool, not {x.dtype}")
    kind = UNARY_KINDS[op]
    if not dtype_within(x.dtype, kind):
        return Broken("E2104", f"{op} takes a {kind} dtype, not {x.dtype}")
    return Ruling(x)


def binary(op: str, a: TensorType, b: TensorType) -> Outcome:
    """Equal dtypes, broadcast shapes."""
    if a.dtype != b.dtype:
        return Broken("E2103", f"{a.dtype} on the left, {b.dtype} on the right")
    if op in ("and", "or", "xor"):
        if not (a.dtype is BOOL or dtype_within(a.dtype, "Integer")):
            return Broken("E2104", f"bitwise operators take integers or bool, not {a.dtype}")
    elif not dtype_within(a.dtype, BINARY_KINDS[op]):
        kind = BINARY_KINDS[op]
        return Broken(
            "E2104", f"it takes {'an' if kind[0] == 'I' else 'a'} {kind} dtype, not {a.dtype}"
        )
    return _elementwise((a.shape, b.shape), a.dtype)


def compare(op: str, a: TensorType, b: TensorType) -> Outcome:
    """Equal dtypes, bool result; bools compare for equality only."""
    if a.dtype != b.dtype:
        return Broken("E2103", f"{a.dtype} on the left, {b.dtype} on the right")
    if op not in ("eq", "ne") and not dtype_within(a.dtype, "Numeric"):
        return Broken("E2104", f"{a.dtype} has no order")
    return _elementwise((a.shape, b.shape), BOOL)


def select(c: TensorType, a: TensorType, b: TensorType) -> Outcome:
    if c.dtype is not BOOL:
        return Broken("E2103", f"the condition is {c.dtype}, not bool")
    if a.dtype != b.dtype:
        return Broken("E2103", f"{a.dtype} where true, {b.dtype} where false")
    return _elementwise((c.shape, a.shape, b.shape), a.dtype)


def _elementwise(shapes: Sequence[Shape], dtype: AnyDType) -> Outcome:
    match broadcast(shapes):
        case Broken() as broken:
            return broken
        case (shape, obligations):
            return Ruling(TensorType(shape, dtype), obligations)


def cast(x: TensorType, dtype: AnyDType) -> Outcome:
    return Ruling(TensorType(x.shape, dtype))


def iota(extent: Dim, dtype: AnyDType) -> Outcome:
    if not dtype_within(dtype, "Numeric"):
        return Broken("E2112", f"iota counts in a Numeric dtype, not {dtype}")
    return Ruling(TensorType((extent,), dtype), (_natural(extent),))


def fill(shape: Shape, value: TensorType) -> Outcome:
    if value.shape:
        return Broken("E2101", f"the value is {value}, not a scalar")
    naturals = tuple(_natural(a) for a in shape if isinstance(a, Dim))
    return Ruling(TensorType(shape, value.dtype), naturals)


def _natural(extent: Dim) -> Obligation:
    return Obligation("E2208", Relation(">=", extent, Dim.of(0)))


def reshape(x: TensorType, shape: Shape) -> Outcome:
    """Equal element counts."""
    before, after = element_count(x.shape), element_count(shape)
    naturals = tuple(_natural(a) for a in shape if isinstance(a, Dim))
    goal = Obligation("E2203", Relation("==", before, after))
    return Ruling(TensorType(shape, x.dtype), (*naturals, goal))


def permute(x: TensorType, order: tuple[int, ...]) -> Outcome:
    if any(isinstance(a, Pack) for a in x.shape):
        return Broken("E2210", f"{shape_text(x.shape)} has a pack, so its rank is not known")
    if sorted(order) != list(range(len(x.shape))):
        return Broken(
            "E2210",
            f"{list(order)} is not a permutation of the {len(x.shape)} axes of "
            f"{shape_text(x.shape)}",
        )
    return Ruling(TensorType(tuple(x.shape[i] for i in order), x.dtype))


def broadcast_to(x: TensorType, shape: Shape) -> Outcome:
    """Each trailing axis of x equals the target's or is 1."""
    if len(x.shape) > len(shape):
        return Broken("E2207", f"{shape_text(x.shape)} has more axes than {shape_text(shape)}")
    out: list[Obligation] = []
    start = len(shape) - len(x.shape)
    for i, axis in enumerate(x.shape):
        target = shape[start + i]
        if axis == target:
            continue
        if isinstance(axis, Pack) or isinstance(target, Pack):
            return Broken("E2207", f"{axis} meets {target}")
        if not _is_one(axis):
            out.append(Obligation("E2207", Relation("==", axis, target), start + i))
    return Ruling(TensorType(shape, x.dtype), tuple(out))


def expand(x: TensorType, shape: Shape, axes: tuple[int, ...]) -> Outcome:
    """Axis i of x stands at axes[i]; equal there, or 1."""
    out: list[Obligation] = []
    for i, at in enumerate(axes):
        axis, target = x.shape[i], shape[at]
        if axis == target or _is_one(axis):
            continue
        if isinstance(axis, Pack) or isinstance(target, Pack):
            return Broken("E2207", f"{axis} meets {target}")
        out.append(Obligation("E2207", Relation("==", axis, target), at))
    return Ruling(TensorType(shape, x.dtype), tuple(out))


def concat(parts: Sequence[TensorType], axis: int) -> Outcome:
    """All axes but one equal; counted from the front or, negative, from the back."""
    first = parts[0]
    rank = len(first.shape)
    at = axis if axis >= 0 else rank + axis
    if not 0 <= at < rank:
        return Broken("E2210", f"axis {axis} of {shape_text(first.shape)}")
    for part in parts:
        side = part.shape[: axis + 1] if axis >= 0 else part.shape[axis:]
        if any(isinstance(a, Pack) for a in side):
            return Broken("E2210", f"{shape_text(part.shape)} has a pack where axes are counted")
        if part.dtype != first.dtype:
            return Broken("E2103", f"{first.dtype} and {part.dtype}")
    out: list[Obligation] = []
    total = Dim.of(0)
    for part in parts:
        if len(part.shape) != rank:
            return Broken(
                "E2202", f"{shape_text(first.shape)} and {shape_text(part.shape)} differ in rank"
            )
        extent = part.shape[at]
        assert isinstance(extent, Dim)
        total = total + extent
        a = (*first.shape[:at], *first.shape[at + 1 :])
        b = (*part.shape[:at], *part.shape[at + 1 :])
        match equal_shapes(a, b):
            case Broken(code, why):
                return Broken(code, why)
            case obligations:
                out.extend(obligations)
    return Ruling(
        TensorType((*first.shape[:at], total, *first.shape[at + 1 :]), first.dtype), tuple(out)
    )


def slice(x: TensorType, ranges: Sequence[tuple[Dim, Dim, int] | None]) -> Outcome:
    """`0 <= start <= stop <= extent` on each axis; None keeps an axis (or pack) whole."""
    assert len(ranges) == len(x.shape)
    shape: list[Axis] = []
    out: list[Obligation] = []
    for i, (axis, part) in enumerate(zip(x.shape, ranges, strict=True)):
        if part is None:
            shape.append(axis)
            continue
        assert isinstance(axis, Dim)
        start, stop, step = part
        if step <= 0:
            return Broken("E2209", f"the step {step} is not positive")
        out.append(Obligation("E2209", Relation(">=", start, Dim.of(0)), i))
        out.append(Obligation("E2209", Relation("<=", start, stop), i))
        out.append(Obligation("E2209", Relation("<=", stop, axis), i))
        shape.append((stop - start + (step - 1)) // Dim.of(step) if step > 1 else stop - start)
    return Ruling(TensorType(tuple(shape), x.dtype), tuple(out))


def gather(x: TensorType, indices: Sequence[TensorType | None]) -> Outcome:
    """The common index shape, then the axes of x without an index."""
    assert len(indices) == len(x.shape)
    common: Shape | None = None
    out: list[Obligation] = []
    for index in indices:
        if index is None:
            continue
        if not dtype_within(index.dtype, "Integer"):
            return Broken("E2101", f"an index is {index.dtype}, not an integer")
        if common is None:
            common = index.shape
            continue
        match equal_shapes(common, index.shape):
            case Broken(code, why):
                return Broken(code, why)
            case obligations:
                out.extend(obligations)
    kept = tuple(a for a, i in zip(x.shape, indices, strict=True) if i is None)
    return Ruling(TensorType((*(common or ()), *kept), x.dtype), tuple(out))


def reduce(op: str, x: TensorType, axes: Sequence[int]) -> Outcome:
    if op in ("any", "all"):
        if x.dtype is not BOOL:
            return Broken("E2103", f"{op} takes bool, not {x.dtype}")
    elif not dtype_within(x.dtype, REDUCE_KINDS[op]):
        return Broken("E2104", f"{op} takes a Numeric dtype, not {x.dtype}")
    kept = tuple(a for i, a in enumerate(x.shape) if i not in axes)
    return Ruling(TensorType(kept, x.dtype))


def dot(
    a: TensorType,
    b: TensorType,
    batch: Sequence[tuple[int, int]],
    contract: Sequence[tuple[int, int]],
    dtype: DType,
) -> Outcome:
    if a.dtype != b.dtype:
        return Broken("E2103", f"{a.dtype} and {b.dtype}")
    out: list[Obligation] = []
    for i, j in (*batch, *contract):
        x, y = a.shape[i], b.shape[j]
        if x != y:
            assert isinstance(x, Dim) and isinstance(y, Dim)
            out.append(Obligation("E2201", Relation("==", x, y)))
    used_a = {i for i, _ in (*batch, *contract)}
    used_b = {j for _, j in (*batch, *contract)}
    shape = (
        *(a.shape[i] for i, _ in batch),
        *(x for i, x in enumerate(a.shape) if i not in used_a),
        *(x for j, x in enumerate(b.shape) if j not in used_b),
    )
    return Ruling(TensorType(shape, dtype), tuple(out))


def trip_count(start: Dim, stop: Dim) -> Dim:
    """How often a counted loop runs: never for an empty range."""
    return dim_max(stop - start, Dim.of(0))
