"""The arithmetic under the solver: polynomials, bounds, and the search for a contradiction."""

from __future__ import annotations

import random
from itertools import product

import pytest

from linnet.dims.bounds import Bounds
from linnet.dims.linear import Effort, _refutes, impossible
from linnet.dims.poly import (
    UNIT,
    Mono,
    Poly,
    add,
    divide,
    lead,
    mul,
    order,
    substitute,
    tight,
)


def value(p: Poly, sizes: dict[str, int]) -> int:
    total = 0
    for mono, coefficient in p.items():
        for name in mono:
            coefficient *= sizes[name]
        total += coefficient
    return total


def random_poly(rng: random.Random, names: str, terms: int = 4, degree: int = 2) -> Poly:
    p: Poly = {}
    for _ in range(rng.randint(1, terms)):
        mono = tuple(sorted(rng.choices(names, k=rng.randint(0, degree))))
        p = add(p, {mono: rng.choice([-3, -2, -1, 1, 2, 3])})
    return p


def never(mono: Mono) -> bool:
    return False


def points(names: str, low: int, high: int) -> list[dict[str, int]]:
    spans = product(range(low, high + 1), repeat=len(names))
    return [dict(zip(names, values, strict=True)) for values in spans]


@pytest.mark.parametrize(
    ("start", "facts", "expected"),
    [
        # x <= 1, x >= 2
        ({("x",): -1, UNIT: 1}, [{("x",): 1, UNIT: -2}], True),
        ({("x",): -1, UNIT: 2}, [{("x",): 1, UNIT: -2}], False),
        # x + y <= 3, x >= 2, y >= 2
        ({("x",): -1, ("y",): -1, UNIT: 3}, [{("x",): 1, UNIT: -2}, {("y",): 1, UNIT: -2}], True),
        # x <= y, x * z > y * z
        ({("x", "z"): 1, ("y", "z"): -1, UNIT: -1}, [{("y",): 1, ("x",): -1}], True),
        # -1 >= 0 alone
        ({UNIT: -1}, [], True),
        ({}, [], False),
        ({}, [{("x",): -1, UNIT: -1}], True),
    ],
)
def test_contradictions(start: Poly, facts: list[Poly], expected: bool) -> None:
    assert impossible(start, facts, never, Effort(10_000), thorough=True) == expected


def test_a_free_unknown_may_be_negative() -> None:
    start: Poly = {("x",): -1, UNIT: -1}  # x <= -1
    assert impossible(start, [], never, Effort(10_000), thorough=True)
    assert not impossible(start, [], lambda mono: "x" in mono, Effort(10_000), thorough=True)


def test_without_effort_nothing_is_found() -> None:
    start: Poly = {("x",): -1, UNIT: 1}
    facts: list[Poly] = [{("x",): 1, UNIT: -2}]
    assert not impossible(start, facts, never, Effort(0), thorough=True)


def test_what_the_search_finds_is_checked() -> None:
    polys: list[Poly] = [{("x",): -1, UNIT: 1}, {("x",): 1, UNIT: -2}]
    assert _refutes(polys, {0: 1, 1: 1}, never)
    assert not _refutes(polys, {0: 1}, never)  # x <= 1 can be
    assert not _refutes(polys, {1: 1}, never)  # the sum has a positive coefficient
    assert not _refutes(polys, {0: -1, 1: -1}, never)
    assert not _refutes([{("x",): -1, UNIT: -1}], {0: 1}, lambda mono: True)


def test_no_solution_where_a_contradiction_is_found() -> None:
    rng = random.Random(3)
    grid = points("xy", 0, 8)
    found = 0
    for _ in range(400):
        polys = [random_poly(rng, "xy") for _ in range(rng.randint(1, 4))]
        if impossible(polys[0], polys[1:], never, Effort(5_000), thorough=True):
            found += 1
            for sizes in grid:
                assert any(value(p, sizes) < 0 for p in polys), f"{polys} at {sizes}"
    assert found > 40


def test_most_contradictions_of_linear_polynomials_are_found() -> None:
    rng = random.Random(4)
    grid = points("xy", 0, 40)
    missed = impossible_ones = 0
    for _ in range(120):
        polys = [random_poly(rng, "xy", degree=1) for _ in range(3)]
        if not any(all(value(p, sizes) >= 0 for p in polys) for sizes in grid):
            impossible_ones += 1
            missed += not impossible(polys[0], polys[1:], never, Effort(5_000), thorough=True)
    assert impossible_ones > 10
    assert missed <= impossible_ones // 10  # those without whole solutions alone


def test_division_is_exact_where_it_says_so() -> None:
    rng = random.Random(5)
    for _ in range(300):
        num, den = random_poly(rng, "xyz", 5, 3), random_poly(rng, "xyz", 2, 2)
        if not den:
            continue
        whole, rest = divide(num, den)
        assert add(mul(whole, den), rest) == num
        assert divide(mul(num, den), den) == (num, {})


def test_the_order_of_monomials_suits_multiplication() -> None:
    rng = random.Random(6)
    for _ in range(300):
        a, b, c = (tuple(sorted(rng.choices("xyz", k=rng.randint(0, 3)))) for _ in range(3))
        if order(a) < order(b):
            assert order(tuple(sorted(a + c))) < order(tuple(sorted(b + c)))
    assert lead({UNIT: 5, ("x",): 1, ("x", "y"): 1}) == ("x", "y")


def test_substitution_is_evaluation() -> None:
    rng = random.Random(7)
    for _ in range(200):
        p, q = random_poly(rng, "xyz", 5, 3), random_poly(rng, "yz")
        sizes = {name: rng.randint(-3, 5) for name in "xyz"}
        expected = value(p, sizes | {"x": value(q, sizes)})
        assert value(substitute(p, {"x": q}), sizes) == expected


def test_tightening_loses_no_whole_solution() -> None:
    assert tight({("x",): 2, UNIT: -1}) == {("x",): 1, UNIT: -1}
    assert tight({("x",): 4, ("y",): -6, UNIT: 3}) == {("x",): 2, ("y",): -3, UNIT: 1}
    assert tight({UNIT: -4}) == {UNIT: -4}


def test_bounds_narrow_soundly() -> None:
    rng = random.Random(8)
    grid = points("xyz", 0, 4)
    for _ in range(200):
        bounds = Bounds()
        for name in "xyz":
            bounds.raise_low(name, 0)
            bounds.lower_high(name, 4)
        facts = [random_poly(rng, "xyz") for _ in range(3)]
        for p in facts * 3:
            bounds.narrow(p)
        solutions = [s for s in grid if all(value(p, s) >= 0 for p in facts)]
        assert not (bounds.absurd and solutions)
        for sizes in solutions:
            for name in "xyz":
                assert bounds.low[name] <= sizes[name] <= bounds.high[name]
            p = random_poly(rng, "xyz")
            least = bounds.least(p)
            assert least is None or value(p, sizes) >= least
            assert not bounds.nonnegative(p) or value(p, sizes) >= 0
