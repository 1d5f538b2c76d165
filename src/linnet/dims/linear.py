"""Exact linear arithmetic: can all these polynomials be non-negative at once?

Each monomial is read as an unknown of its own. The unknowns are non-negative, except those that are
named free. A contradiction is a sum of non-negative multiples of the polynomials whose coefficients
are all negative or zero and whose constant is negative; it is looked for by a simplex on integers.
Polynomials multiplied by unknowns take part where that lets terms cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd

from linnet.dims.poly import UNIT, Frozen, Mono, Poly, common, freeze, join, quotient, times

Row = dict[int, int]
Free = Callable[[Mono], bool]

DEGREE = 5  # of products formed
TOGETHER = 90  # polynomials in one problem
PIVOTS = 160
LARGEST = 2**256  # coefficients beyond this end the search


@dataclass(slots=True)
class Effort:
    """How much more may be done: counted, not timed, so that answers are the same everywhere."""

    left: int


def impossible(
    start: Poly, facts: list[Poly], free: Free, effort: Effort, *, thorough: bool
) -> bool:
    """Whether `start` cannot be non-negative together with the facts; False if unsure."""
    for rounds in (1, 3) if thorough else (1,):
        if effort.left <= 0:
            return False
        polys = _multiples(start, facts, free, effort, rounds)
        weights = _weights(polys, free, effort)
        if weights is not None and _refutes(polys, weights, free):
            return True
    return False


# The problem


def _multiples(
    start: Poly, facts: list[Poly], free: Free, effort: Effort, rounds: int
) -> list[Poly]:
    """Those multiples of `start` and the facts whose terms can cancel against each other."""
    base = [start, *facts]
    # The sum must have a negative constant, so one of these takes part in it.
    frontier = [p for p in base if p is start or p.get(UNIT, 0) < 0]
    found: dict[Frozen, Poly] = {freeze(p): p for p in frontier}
    for _ in range(rounds):
        added: list[Poly] = []
        for p in frontier:
            for multiple in _cancelling(p, base, start if rounds > 1 else None, free, effort):
                effort.left -= 4 * len(multiple)
                key = freeze(multiple)
                if key not in found:
                    found[key] = multiple
                    added.append(multiple)
                    if len(found) == TOGETHER or effort.left < 0:
                        return list(found.values())
        frontier = added
    return list(found.values())


def _cancelling(
    p: Poly, base: list[Poly], start: Poly | None, free: Free, effort: Effort
) -> Iterator[Poly]:
    """Multiples of the base in which a term of `p` cancels, and of `start` to match them."""
    for mono, coefficient in p.items():
        if not mono or (coefficient < 0 and not free(mono)):
            continue
        for other in base:
            effort.left -= len(other) * (1 + len(mono) // DEGREE)
            if effort.left < 0:
                return
            for target, weight in other.items():
                if not target or (weight > 0) == (coefficient > 0):
                    continue
                shared = common(mono, target)
                up = quotient(mono, shared) or UNIT
                down = quotient(target, shared) or UNIT
                if free(up) or free(down) or len(join(mono, down)) > DEGREE:
                    continue
                if not down:
                    yield times(other, up)
                elif shared and (p is start or other is start):
                    yield times(other, up)
                    yield times(p, down)


# Its solution


def _weights(polys: Sequence[Poly], free: Free, effort: Effort) -> dict[int, int] | None:
    """Multipliers of the polynomials that add up to a contradiction."""
    rows, basis = _tableau(polys, free)
    reserve = effort.left // 2  # for others: one hard problem must not use up all
    target: Row = {k: -p[UNIT] for k, p in enumerate(polys) if UNIT in p}
    for pivot in range(PIVOTS):
        improving = [k for k, gain in target.items() if gain > 0]
        if not improving:
            return None
        # The steepest column is quick and may cycle; the first one (Bland's rule) cannot.
        enter = max(improving, key=lambda k: (target[k], -k)) if pivot < 30 else min(improving)
        blocking = [i for i, row in enumerate(rows) if row.get(enter, 0) > 0]
        if not blocking:
            return _ray(rows, basis, enter, len(polys))
        leave = min(blocking, key=lambda i: basis[i])
        row = rows[leave]
        effort.left -= len(row) + len(rows)
        if effort.left <= reserve or max(map(abs, row.values())) > LARGEST:
            return None
        for i in range(len(rows)):
            if i != leave and enter in rows[i]:
                effort.left -= (len(rows[i]) + len(row)) // 2
                rows[i] = _eliminate(rows[i], row, enter)
        target = _eliminate(target, row, enter)
        basis[leave] = enter
    return None


def _tableau(polys: Sequence[Poly], free: Free) -> tuple[list[Row], list[int]]:
    """One row a monomial: its sum over the weighted polynomials, plus a slack, is zero."""
    sums: dict[Mono, Row] = {}
    for k, p in enumerate(polys):
        for mono, coefficient in p.items():
            if mono:
                sums.setdefault(mono, {})[k] = coefficient
    rows: list[Row] = []
    for mono, row in sums.items():
        rows.append(row)
        if free(mono):
            rows.append({k: -coefficient for k, coefficient in row.items()})
    basis = [len(polys) + i for i in range(len(rows))]
    for slack, row in zip(basis, rows, strict=True):
        row[slack] = 1
    return rows, basis


def _eliminate(row: Row, by: Row, column: int) -> Row:
    """The row, scaled by a positive number, less a multiple of `by`, so that the column is zero."""
    scale, factor = by[column], row[column]
    result = {k: scale * value for k, value in row.items()}
    for k, value in by.items():
        total = result.get(k, 0) - factor * value
        if total:
            result[k] = total
        else:
            result.pop(k, None)
    shared = gcd(*result.values())
    return {k: value // shared for k, value in result.items()} if shared > 1 else result


def _ray(rows: list[Row], basis: list[int], enter: int, count: int) -> dict[int, int]:
    """The weights along the direction in which nothing stops column `enter` from growing."""
    scale = 1
    for row, basic in zip(rows, basis, strict=True):
        if enter in row:
            scale *= row[basic] // gcd(scale, row[basic])
    weights = {enter: scale}
    for row, basic in zip(rows, basis, strict=True):
        if enter in row:
            weights[basic] = -row[enter] * scale // row[basic]
    return {k: weight for k, weight in weights.items() if k < count and weight}


def _refutes(polys: Sequence[Poly], weights: dict[int, int], free: Free) -> bool:
    """Whether the weighted sum is a contradiction: the check that makes the search trusted."""
    total: Poly = {}
    for k, weight in weights.items():
        if weight < 0:
            return False
        for mono, coefficient in polys[k].items():
            total[mono] = total.get(mono, 0) + weight * coefficient
    if total.pop(UNIT, 0) >= 0:
        return False
    return all(c <= 0 and (c == 0 or not free(mono)) for mono, c in total.items())
