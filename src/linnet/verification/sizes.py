"""Sizes to verify at: a model's own made small, and a few for each of its entries.

Which size is what is found in the program: how many blocks an array has, what only states have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from linnet.check.blocks import manifest
from linnet.core.derive import shape_of
from linnet.core.ir import Function
from linnet.core.lower import bind_generics, bound_manifest, main_module, root_block
from linnet.diagnostics import PlanError
from linnet.dims import Dim, Relation
from linnet.dims.search import models
from linnet.inputs import demands
from linnet.ir import Program, Value
from linnet.types import DTYPES
from linnet.weights.arrays import FLOATS

ROOM = 64  # positions of a cache, and tokens of the longest sequence
ROWS = 3  # the least size of what only states have: rows of a cache that can be confused
PAGE = 16  # the most of a size that no member has, such as that of a page
BLOCKS = 2  # elements of an array of blocks
MOST = 12  # of what says how many there are, where it can be less
WIDTH = 64  # no width is made smaller than this, and no count of parameters than the next
COUNT = 4
ELEMENTS = 1 << 24  # of all parameters together
PACKED = 8  # times that what is packed in integers counts
PRIMES = (7, 3, 2)  # the last axis gets the first


def reduced(
    program: Program, own: Mapping[str, Value], kept: Mapping[str, Value]
) -> dict[str, Value]:
    """Small generics for a program whose own are these, those in `kept` as they are.

    Two blocks of each array, 64 positions, floats in f32, and widths halved until the parameters
    have no more than ELEMENTS elements; whatever the where clauses allow of that.
    """
    values = program.example({**own, **kept})
    shrinking = _Shrinking(program, values, frozenset(kept))
    shrinking.blocks()
    shrinking.states()
    shrinking.widths()
    return shrinking.values


class _Shrinking:
    """Generics while they are made smaller: each change is taken if the program can be bound."""

    def __init__(self, program: Program, values: dict[str, Value], kept: frozenset[str]) -> None:
        self.program = program
        analysis = program.analysis
        self.block = root_block(analysis, main_module(analysis), program.root)
        self.values = dict(values)
        self.kept = kept
        if self.block is None:
            return
        entries = manifest(analysis, self.block)
        self.lengths = _names(d for e in entries for d in e.lengths)
        self.shapes = _names(d for e in entries if e.kind != "state" for d in e.type.shape)
        self.cached = _names(d for e in entries if e.kind == "state" for d in e.type.shape)

    def open(self) -> dict[str, int]:
        """The sizes that may change, defaults that stand on their own among them."""
        if self.block is None:
            return {}
        bound = bind_generics(self.program.analysis, self.block, self.values)
        alone = {
            g.name.text
            for g in self.block.generics
            if g.default is None or not self.program.analysis.dims.get(g.default, Dim.of(0)).names()
        }
        found = {n: d.constant for n, d in bound.items() if isinstance(d, Dim) and n in alone}
        return {n: v for n, v in found.items() if v is not None and n not in self.kept}

    def take(self, changed: Mapping[str, Value]) -> bool:
        """The values with these changes, if where clauses allow them and no dimension suffers."""
        values = {**self.values, **changed}
        if self.counts(values) is None:
            return False
        self.values = values
        return True

    def counts(self, values: Mapping[str, Value]) -> dict[str, int] | None:
        """How many elements each array of blocks has, over all arrays around it."""
        assert self.block is not None
        try:
            bound = bind_generics(self.program.analysis, self.block, values)
            listed = bound_manifest(self.program.analysis, self.block, bound).entries
        except PlanError:
            return None
        found: dict[str, int] = {}
        for entry in listed:
            pieces = entry.path.split("*")
            for depth in range(len(entry.repeat)):
                found["*".join(pieces[: depth + 1])] = prod(entry.repeat[: depth + 1])
        return found

    def blocks(self) -> None:
        """Two elements of each array, where there are as many."""
        names = [n for n in self.open() if n in self.lengths and n not in self.shapes]
        before = self.counts(self.values) if names else None
        if before is None:
            return
        ranges = [range(min(_size(self.values.get(n, 1)), MOST) + 1) for n in names]
        for sizes in sorted(product(*ranges), key=lambda each: (sum(each), each)):
            changed = dict(zip(names, sizes, strict=True))
            after = self.counts({**self.values, **changed})
            if after is not None and all(
                after.get(array, 0) >= min(BLOCKS, count) for array, count in before.items()
            ):
                self.take(changed)
                return

    def states(self) -> None:
        """Few rows and positions, and pages of which there are several; floats in f32."""
        for name, size in self.open().items():
            member = name in self.shapes or name in self.lengths
            if name in self.cached and not member:
                near = range(ROWS, 2 * ROWS + 1) if size < ROWS else range(ROOM, ROOM // 2, -1)
                any(self.take({name: each}) for each in near if not ROWS <= size <= ROOM)
            elif not member and size > PAGE:
                self.take({name: PAGE})
        for name in self.floats():
            self.take({name: "f32"})

    def floats(self) -> list[str]:
        """The dtypes of floats that may change, defaults that stand on their own among them."""
        found: list[str] = []
        for generic in self.program.generics():
            value = self.values.get(generic.name, generic.default)
            known = DTYPES.get(value) if isinstance(value, str) else None
            if known is not None and known.is_float and generic.name not in self.kept:
                found.append(generic.name)
        return found

    def widths(self) -> None:
        """The largest width is halved, again and again, while there are too many elements.

        Counts, such as that of experts, are halved once no width can be.
        """
        for least in (2 * WIDTH, 2 * COUNT):
            while self.elements() > ELEMENTS and self.halve(least):
                pass

    def halve(self, least: int) -> bool:
        """The largest size of parameters that is `least` or more, and can be, is halved."""
        wide = {n: v for n, v in self.open().items() if n in self.shapes and v >= least}
        for name, size in sorted(wide.items(), key=lambda item: -item[1]):
            half = size // 2
            if self.take({name: half}) or self.take({name: half // WIDTH * WIDTH or half}):
                return True
        return False

    def elements(self) -> int:
        """Of all parameters; integers, which are unpacked in each call, count more."""
        rows = [row for row in self.program.parameters(self.values) if row.kind != "state"]
        return sum((row.count or 0) * (1 if row.dtype in FLOATS else PACKED) for row in rows)

    @property
    def room(self) -> int:
        """The largest size that only states have."""
        sizes = [v for n, v in self.values.items() if isinstance(v, int) and self._is_cached(n)]
        return max(sizes, default=ROOM)

    def _is_cached(self, name: str) -> bool:
        return name in self.cached and name not in self.shapes


def room_of(program: Program, values: Mapping[str, Value]) -> int:
    """How long the longest sequence is: the largest size that only states have, or ROOM."""
    shrinking = _Shrinking(program, dict(values), frozenset())
    return shrinking.room if shrinking.block is not None else ROOM


def _names(dims: Iterator[object]) -> frozenset[str]:
    return frozenset(name for dim in dims if isinstance(dim, Dim) for name in dim.names())


def _size(value: Value) -> int:
    return value if isinstance(value, int) else 0


# ---------------------------------------------------------------- an entry's


@dataclass(frozen=True, slots=True)
class Choice:
    """Sizes of an entry, under the name of what is tried with them."""

    name: str
    sizes: dict[str, int]


def choices(function: Function, room: int) -> list[list[Choice]]:
    """What to try an entry at: all sizes 1, primes, and one at the longest; alternatives in order.

    Sizes that satisfy the entry's clauses. How often a loop runs, which no input's axis says, stays
    small.
    """
    shaped = {n for p in function.values for d in shape_of(p) for n in d.names()}
    axes = [dim for dim in function.dims if dim in shaped]
    small = dict.fromkeys(function.dims, PRIMES[1])
    primes = {**small, **{d: PRIMES[min(i, 2)] for i, d in enumerate(_by_length(axes, function))}}
    groups = [("1", [dict.fromkeys(function.dims, 1)])]
    groups.append(("prime", [primes, small, dict.fromkeys(function.dims, 2)]))
    longest = [small]
    if axes:
        first, *rest = _by_length(axes, function)
        other = {**small, **dict.fromkeys(rest, 2)}
        longest = [{**other, first: room >> i} for i in range(3)]
    groups.append(("longest", longest))
    found: list[list[Choice]] = []
    for name, wanted in groups:
        fitting = [sizes for each in wanted for sizes in _fitting(function, each)]
        distinct = [s for i, s in enumerate(fitting) if s not in fitting[:i]]
        if distinct:
            found.append([Choice(name, sizes) for sizes in distinct])
    return found


def _by_length(axes: Sequence[str], function: Function) -> list[str]:
    """The axes, that of the tokens first: the last one that an input with two axes has, or else
    the one that most inputs have."""
    uses = [d for p in function.values for d in shape_of(p)]
    count = {axis: sum(axis in d.names() for d in uses) for axis in axes}
    lead = {n for p in function.values if len(shape_of(p)) > 1 for n in shape_of(p)[0].names()}
    return sorted(axes, key=lambda axis: (axis in lead, -count[axis]))


def _fitting(function: Function, sizes: dict[str, int]) -> Iterator[dict[str, int]]:
    """The sizes if the entry's clauses hold, else near ones that satisfy them."""
    if fits(function, sizes):
        yield sizes
        return
    for name, size in sizes.items():
        for less in range(size - 1, 0, -1):
            if fits(function, {**sizes, name: less}):
                yield {**sizes, name: less}
                return
    wanted = [Relation(">=", Dim.of(name), Dim.of(min(sizes[name], 2))) for name in sizes]
    for found in models([*function.facts, *wanted]):
        near = {name: found.get(name, sizes[name]) for name in sizes}
        if fits(function, near):
            yield near
            return


def fits(function: Function, sizes: Mapping[str, int]) -> bool:
    """Whether the entry can be called at these sizes."""
    goals = [*function.facts, *(demand.goal for demand in demands(function))]
    try:
        return all(goal.holds(sizes) for goal in goals)
    except ZeroDivisionError:
        return False
