"""How nodes are put into one Python expression: what any backend that prints array code shares.

Rank-0 values may stand in generated code as Python numbers (constants, sizes, loop counters). A
Python number never changes the dtype of the array that it meets, and its text is already rounded
to that dtype; where no operand is an array one of them is made one.
"""

from __future__ import annotations

import string
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from linnet.core.derive import dtype_of, shape_of
from linnet.core.ir import (
    Binary,
    Cast,
    Compare,
    Dot,
    Expand,
    Node,
    Size,
    Slice,
)
from linnet.core.scalars import wrap
from linnet.dims import Dim, Facts, Relation, proves
from linnet.emit import Ex, infix, number_text, subscript
from linnet.types import F32, F64, I32, I64, DType

INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "shr": ">>",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}
ONE = Dim.of(1)


@dataclass(frozen=True, slots=True)
class Operand:
    """A text that broadcasts to the result; `number`: a Python number; `loose`: it may be one."""

    text: Ex
    number: bool = False
    loose: bool = False


class Expressions:
    """Expressions over what is already written: `env` has a text for every node but Expands.

    `numbers` are Python numbers, `either` parameters that may be numbers or arrays.
    """

    def __init__(self, dim: Callable[[Dim], Ex], facts: Facts) -> None:
        self.dim = dim
        self.facts = facts
        self.env: dict[Node, Ex] = {}
        self.numbers: set[Node] = set()
        self.constants: dict[Node, bool | int | float] = {}  # what numbers are, where it is known
        self.either: set[Node] = set()
        self.named: set[Node] = set()

    # ------------------------------------------------------------ as a framework says it

    @abstractmethod
    def scalar(self, value: Ex, dtype: DType) -> Ex:
        """A number as an array of rank 0."""

    @abstractmethod
    def filled(self, value: Ex, shape: Sequence[Dim], dtype: DType) -> Ex:
        """An array of one number."""

    @abstractmethod
    def repeated(self, view: Ex, shape: Sequence[Dim]) -> Ex:
        """What broadcasts to the shape, in that shape."""

    @abstractmethod
    def constant(self, node: Node) -> bool | int | float | None:
        """A constant of rank 0, computed as the generated code would compute it."""

    # ------------------------------------------------------------ operands

    def full(self, node: Node) -> Ex:
        """The node as a tensor of exactly its shape."""
        if isinstance(node, Expand) and node not in self.named:
            if self._loose(node.x):
                return self.filled(self.env[node.x], node.shape, dtype_of(node))
            return self.repeated(self._view(node), node.shape)
        if node in self.numbers:
            return self.scalar(self.env[node], dtype_of(node))
        return self.env[node]

    def _loose(self, node: Node) -> bool:
        return node in self.numbers or node in self.either

    def _operand(self, node: Node) -> Operand:
        """Numbers stay numbers, Expands stay views."""
        base = node.x if isinstance(node, Expand) else node
        text = self._view(node) if isinstance(node, Expand) else self.env[node]
        return Operand(text, base in self.numbers, self._loose(base))

    def _view(self, node: Expand) -> Ex:
        """x with the axes of 1 that broadcasting needs; those in front come by themselves."""
        x = self.full(node.x) if isinstance(node.x, Expand) else self.env[node.x]
        if not node.axes:
            return x
        marks = [":" if i in node.axes else "None" for i in range(len(node.shape))]
        marks = marks[node.axes[0] :]
        if "None" not in marks:
            return x
        return x.index(*shortened(marks))

    def _covered(self, node: Node, shape: Sequence[Dim]) -> set[int]:
        """The axes on which the operand's text has the result's extent."""
        if not isinstance(node, Expand):
            return set(range(len(shape)))
        own = shape_of(node.x)
        return {at for at, axis in zip(node.axes, own, strict=True) if axis == node.shape[at]}

    def aligned(self, nodes: Sequence[Node], shape: Sequence[Dim]) -> list[Operand]:
        """Operands whose broadcast has the shape; at least one is a tensor."""
        covered = set().union(*(self._covered(n, shape) for n in nodes))
        out = [self._operand(n) for n in nodes]
        missing = any(i not in covered and axis != ONE for i, axis in enumerate(shape))
        missing = missing or all(isinstance(n, Expand) and n.axes[:1] != (0,) for n in nodes)
        if missing or all(operand.number for operand in out):
            at = next((i for i, n in enumerate(nodes) if isinstance(n, Expand)), 0)
            out[at] = Operand(self.full(nodes[at]))
        return out

    def number(self, node: Node) -> Ex | None:
        """The node as a Python number, where it is one."""
        value = self.constant(node)
        if value is not None:
            self.constants[node] = value
            return number_text(value, dtype_of(node))
        match node:
            case Size(dim, dtype) if dim.constant is not None and dtype.is_integer:
                return number_text(wrap(dim.constant, dtype), dtype)
            case Size(dim, dtype) if dtype in (I32, I64, F32, F64):
                return self.dim(dim)
            case Cast(x, dtype) if x in self.numbers and dtype in (I32, I64, F32, F64):
                # A counter or a size: the conversion is exact, or done where it meets a tensor.
                return self.env[x] if dtype_of(x).is_integer else None
            case Binary("add" | "sub" | "mul" as op, a, b) if self._counters(a, b):
                return infix(INFIX[op], self.env[a], self.env[b])
            case Compare(op, a, b) if self._counters(a, b):
                return infix(INFIX[op], self.env[a], self.env[b])
            case _:
                return None

    def _counters(self, a: Node, b: Node) -> bool:
        """Python integers that do not wrap: sizes and loop counters, not only constants."""
        return a in self.numbers and b in self.numbers and dtype_of(a) in (I32, I64)

    def _slice(
        self, x: Node, ranges: tuple[tuple[Dim, Dim, int], ...], dropped: frozenset[int]
    ) -> Ex:
        """`x[:, a:b]`; a dropped axis is read at one position."""
        marks: list[str] = []
        for i, ((start, stop, step), extent) in enumerate(zip(ranges, shape_of(x), strict=True)):
            if i in dropped:
                marks.append(str(self.dim(start)))
                continue
            first = None if start.constant == 0 else self.dim(start)
            last = None if stop == extent else self.dim(stop)
            marks.append(subscript(first, last, step))
        marks = shortened(marks)
        return self.full(x).index(*marks) if marks else self.full(x)

    def _filled(self, extent: Dim) -> bool:
        """The axis has elements at all sizes."""
        if extent.constant is not None:
            return extent.constant > 0
        return proves(self.facts, Relation(">", extent, Dim.of(0)))


# ---------------------------------------------------------------- axes


def letters(node: Dot) -> tuple[list[str], list[str]]:
    """A letter for each axis of an einsum, of its size's name where it can be."""
    taken: set[str] = set()

    def letter(axis: Dim) -> str:
        wish = [c.lower() for c in str(axis) if c.isascii() and c.isalpha()][:1]
        chosen: str = next(c for c in (*wish, *string.ascii_letters) if c not in taken)
        taken.add(chosen)
        return chosen

    a = [letter(axis) for axis in shape_of(node.a)]
    shared = {j: a[i] for i, j in (*node.batch, *node.contract)}
    b = [shared[j] if j in shared else letter(d) for j, d in enumerate(shape_of(node.b))]
    return a, b


def shortened(marks: list[str]) -> list[str]:
    """Subscripts without the `:` that go without saying."""
    end = len(marks)
    while end and marks[end - 1] == ":":
        end -= 1
    if end < len(marks):
        return marks[:end]
    front = next(i for i, mark in enumerate([*marks, ""]) if mark != ":")
    return ["...", *marks[front:]] if front >= 2 else marks


def dropped(x: Slice, shape: tuple[Dim, ...]) -> frozenset[int] | None:
    """The axes sliced to one position that the reshape drops, if that is all that it does."""
    single = [
        i
        for i, (start, stop, step) in enumerate(x.ranges)
        if step == 1 and stop - start == ONE and shape_of(x.x)[i] != ONE
    ]
    kept = tuple(axis for i, axis in enumerate(shape_of(x)) if i not in single)
    return frozenset(single) if single and kept == shape else None


def axes_of_one(longer: tuple[Dim, ...], shorter: tuple[Dim, ...]) -> int | None:
    """The axis of 1 that the longer shape has in addition, if that is the one difference."""
    if len(longer) != len(shorter) + 1:
        return None
    for at in range(len(longer) - 1, -1, -1):
        if longer[at] == ONE and (*longer[:at], *longer[at + 1 :]) == shorter:
            return at
    return None
