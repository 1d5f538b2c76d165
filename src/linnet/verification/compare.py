"""How far two values lie apart, and how far they may: from the policy and the dtypes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, prod
from typing import Any

import numpy as np

from linnet.core.derive import dtype_of
from linnet.core.ir import (
    Binary,
    Cast,
    Dot,
    Function,
    Node,
    Program,
    Reduce,
    Unary,
    functions_of,
)
from linnet.core.rewrite import nodes_of
from linnet.policy import Policy, tolerance
from linnet.weights.arrays import FLOATS, as_array, dtype_name

Array = np.ndarray[Any, Any]

VECTOR = 8  # numbers of 16 bits that are not written as they were by chance


@dataclass(frozen=True, slots=True)
class Difference:
    """The worst difference between two arrays, relative to the largest number that is wanted.

    `at` is the index of the worst element, with what was wanted and found there. 0 where both are
    the same, infinite where integers differ, or where one is infinite or NaN alone.
    """

    worst: float
    at: tuple[int, ...] = ()
    wanted: str = ""
    found: str = ""
    what: str = ""  # shapes or dtypes that differ

    def within(self, bound: float) -> bool:
        return self.worst <= bound


SAME = Difference(0.0)


def difference(wanted: Any, found: Any) -> Difference:
    """How far `found` lies from `wanted`."""
    a, b = as_array(wanted), as_array(found)
    if a.shape != b.shape or a.dtype != b.dtype:
        said = " and ".join(f"{list(x.shape)} of {dtype_name(x.dtype) or x.dtype}" for x in (a, b))
        return Difference(float("inf"), what=said)
    if not a.size:
        return SAME
    if a.dtype.kind in "biu":
        unequal = a != b
        return SAME if not unequal.any() else _worst(a, b, np.where(unequal, np.inf, 0.0))
    x, y = a.astype(np.float64), b.astype(np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    finite = np.isfinite(x) & np.isfinite(y)
    largest = np.max(np.abs(x), where=np.isfinite(x), initial=0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(x - y) / (largest or 1.0)
    return _worst(a, b, np.where(same, 0.0, np.where(finite, apart, np.inf)))


def _worst(a: Array, b: Array, apart: Array) -> Difference:
    index = np.unravel_index(int(np.argmax(apart)), apart.shape)
    at = tuple(int(i) for i in index)
    return Difference(float(apart[at]), at, str(a[at]), str(b[at]))


def untouched(before: Any, wanted: Any, found: Any) -> Difference:
    """How far what the reference leaves as it was has moved: nothing may, not by a bit.

    Whole vectors along the last axis are looked at, since single numbers of few bits that are
    written may be what was there. Shorter ones are, where numbers have 32 bits.
    """
    old, new, own = as_array(before), as_array(wanted), as_array(found)
    if not old.size or not old.ndim or (old.dtype.itemsize < 4 and old.shape[-1] < VECTOR):
        return SAME
    kept = (_bits(old) == _bits(new)).all(-1, keepdims=True)
    moved = kept & (_bits(own) != _bits(old))
    return _worst(old, own, np.where(moved, np.inf, 0.0)) if moved.any() else SAME


def _bits(array: Array) -> Array:
    array = np.ascontiguousarray(array)
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind != "b" else array


def bound_of(program: Program, entry: Function, policy: Policy) -> float:
    """How far an entry's results may lie from the reference's, relative to the largest.

    The policy's tolerance for the coarsest float that the entry computes in, times the square
    root of how many blocks run one after another: what rounding does in each is independent. What
    stands before and after the arrays of blocks counts as a block each.
    """
    step = max((tolerance(policy, dtype) for dtype in _inside(entry)), default=0.0)
    arrays = {e.path.rpartition("*")[0]: prod(e.repeat) for e in program.manifest.entries}
    inner = [a for a in arrays if a and not any(b.startswith(f"{a}*") for b in arrays)]
    return float(step * (sum(arrays[a] for a in inner) + 2) ** 0.5)


def dtypes_of(node: Node) -> frozenset[str]:
    """The floats that a node rounds to, in what it runs too: what is only moved is not rounded."""
    own = frozenset[str]()
    match node:
        case Unary() | Binary() | Reduce() | Dot():
            own = frozenset({str(dtype_of(node))}) & FLOATS
        case Cast(x, dtype) if dtype.is_float and dtype_of(x).bits > dtype.bits:
            own = frozenset({str(dtype)})
    return own.union(*(_inside(f) for f in functions_of(node)))


@lru_cache(maxsize=2048)
def _inside(function: Function) -> frozenset[str]:
    return frozenset[str]().union(*map(dtypes_of, nodes_of(function)))


def printed(number: float) -> str:
    """A difference as text."""
    return f"{number:.2g}" if isfinite(number) else "different"
