"""Normal forms: what they equal, how they print, what they are at given sizes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dims.enumerated import Draw
from dims.reader import dim, relation
from linnet.dims import Atom, Dim, Relation, dim_max, dim_min, equal

A, B, H, N = map(Dim.of, ("A", "B", "H", "N"))


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("A + B", "B + A"),
        ("A * B * 2", "2 * B * A"),
        ("A * (B + H)", "A * H + A * B"),
        ("(A + B) * (A - B)", "A * A - B * B"),
        ("A - A", "0"),
        ("A / 1", "A"),
        ("A % 1", "0"),
        ("7 / 2", "3"),
        ("(0 - 7) / 2", "-4"),
        ("(0 - 7) % 2", "1"),
        ("2 * H / 2", "H"),
        ("(4 * A + 2 * B) / 2", "2 * A + B"),
        ("(2 * A + 2 * B) / 4", "(A + B) / 2"),
        ("(2 * A + 3) / 2", "A + 1"),
        ("(2 * A + B) % 2", "B % 2"),
        ("A / 2 / 3", "A / 6"),
        ("min(A, B)", "min(B, A)"),
        ("min(A + 1, A)", "A"),
        ("max(3, 5)", "5"),
        ("*S * H", "H * *S"),
    ],
)
def test_equal_forms_are_equal(written: str, same: str) -> None:
    assert dim(written) == dim(same)
    assert hash(dim(written)) == hash(dim(same))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A / B", "B / A"),
        ("A / B", "A % B"),
        ("H / N * N", "H"),  # not so where N does not divide H
        ("A * B / B", "A"),  # not so where B is 0
        ("A / A", "1"),
        ("min(A, B)", "max(A, B)"),
        ("A / (B * N)", "A / B / N"),
        ("A", "AB"),
    ],
)
def test_different_forms_are_different(one: str, other: str) -> None:
    assert dim(one) != dim(other)


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "42",
        "-3",
        "P + B",
        "B + P",
        "2 * H",
        "H - K",
        "Heads / Shards * (H / Heads)",
        "In / G * (2 * (G / 2))",
        "(H + 2 * Pad - K) / Stride + 1",
        "H / Heads % 2",
        "(Heads / Shards) % (KvHeads / Shards)",
        "A / B / C",
        "A / (B / C)",
        "A % (B * C)",
        "A * B / C",
        "min(S, Window) * 2",
        "max(A, min(B, 3)) - 1",
        "-(H / Heads)",
        "-A * B",
        "(-A) % N",
        "N - 1 - A / B",
        "2 * (A / B) * (A % B)",
        "*S * H",
        "H * *S / N",
        "A / (-B)",
        "A / (2 * B)",
        "(A + B) / (A - B)",
    ],
)
def test_printing_reads_back(text: str) -> None:
    assert dim(str(dim(text))) == dim(text)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("Heads / Shards * (H / Heads)", "Heads / Shards * (H / Heads)"),
        ("P + B", "P + B"),
        ("B + P", "B + P"),
        ("H * 2", "2 * H"),
        ("(H / N) * (H % N)", "H / N * (H % N)"),
        ("(H / N) / (A / B)", "H / N / (A / B)"),
        ("0 - K + H", "H - K"),
        ("((H + 2 * Pad) - K) / Stride + 1", "(H + 2 * Pad - K) / Stride + 1"),
        ("(Heads / Shards) % (KvHeads / Shards)", "Heads / Shards % (KvHeads / Shards)"),
        ("2 * (H / 2)", "2 * (H / 2)"),
        ("H * (A + B)", "H * A + H * B"),
        ("A * B - A * B", "0"),
        ("max(A, B + 1)", "max(A, B + 1)"),
    ],
)
def test_printing_is_natural(text: str, printed: str) -> None:
    assert str(dim(text)) == printed


def test_the_written_order_does_not_matter_to_equality() -> None:
    assert str(dim("P + B")) != str(dim("B + P"))
    assert {dim("P + B"): 1}[dim("B + P")] == 1


def test_operators_take_integers_on_either_side() -> None:
    assert 1 + A == A + 1
    assert 2 * A == A + A
    assert 3 - A == -(A - 3)
    assert 7 // Dim.of(2) == Dim.of(3)
    assert 7 % Dim.of(4) == Dim.of(3)
    assert (7 // A).evaluate({"A": 2}) == 3
    assert (7 % A).evaluate({"A": 4}) == 3


def test_constants_and_names() -> None:
    assert Dim.of(5).constant == 5
    assert Dim.of(0).constant == 0
    assert A.constant is None
    assert (A - A).constant == 0
    assert dim("A / B + min(H, 2) % N").names() == {"A", "B", "H", "N"}
    assert dim("*S * H").names() == {"*S", "H"}
    assert Dim.of(A) is A


def test_evaluation_divides_downwards_and_refuses_zero() -> None:
    assert dim("(A - B) / H").evaluate({"A": 1, "B": 4, "H": 2}) == -2
    assert dim("(A - B) % H").evaluate({"A": 1, "B": 4, "H": 2}) == 1
    for text in ("A / B", "A % B", "2 * (H / (A / B))", "A / 0"):
        with pytest.raises(ZeroDivisionError):
            dim(text).evaluate({"A": 1, "B": 0, "H": 3})


def test_substitution_reaches_inside_operations() -> None:
    replaced = dim("H / Heads + min(H, K)").substitute({"H": dim("2 * K"), "Heads": 2})
    assert replaced == dim("K + min(2 * K, K)")
    assert dim("A / B").substitute({"B": 0}) == dim("A / 0")
    assert str(dim("N * D").substitute({"N": dim("Heads / Shards"), "D": dim("H / Heads")})) == (
        "Heads / Shards * (H / Heads)"
    )


def test_divisors_are_listed_from_the_inside_once() -> None:
    listed = dim("A / (H / N) + H / N + min(A % B, 2)").divisors()
    assert [str(divisor) for divisor in listed] == ["N", "H / N", "B"]
    assert relation("A / N == B / N").divisors() == (N,)
    assert dim("A * B").divisors() == ()


def test_atoms_compare_by_what_they_are() -> None:
    assert Atom("name", "A") == Atom("name", "A")
    assert Atom("min", args=(A, B)) == Atom("min", args=(B, A))
    assert Atom("/", args=(A, B)) != Atom("/", args=(B, A))
    assert Atom("name", "A") != "A"


def test_relations() -> None:
    claim = relation("A / B < N")
    assert str(claim) == "A / B < N"
    assert claim.negated() == relation("A / B >= N")
    assert claim.negated().negated() == claim
    assert claim.holds({"A": 4, "B": 2, "N": 3})
    assert not claim.holds({"A": 4, "B": 2, "N": 2})
    assert not claim.holds({"A": 4, "B": 0, "N": 2})
    assert not claim.negated().holds({"A": 4, "B": 0, "N": 2})
    assert claim.substitute({"B": 2}) == relation("A / 2 < N")
    assert equal(A, 3) == Relation("==", A, Dim.of(3))
    assert {claim, relation("A / B < N")} == {claim}


# Properties


@st.composite
def sizes_and_seeds(draw: st.DrawFn) -> tuple[int, dict[str, int]]:
    return draw(st.integers(0, 10**6)), {name: draw(st.integers(0, 9)) for name in "ABCD"}


@settings(max_examples=150, deadline=None)
@given(sizes_and_seeds())
def test_the_normal_form_is_what_was_written(case: tuple[int, dict[str, int]]) -> None:
    seed, sizes = case
    rng = random.Random(seed)
    for _ in range(5):
        built, value = _evaluated(rng, sizes, 4)
        if value is not None:
            assert built.evaluate(sizes) == value


def _evaluated(rng: random.Random, sizes: dict[str, int], depth: int) -> tuple[Dim, int | None]:
    """A random dimension, and its value as computed without any normal form."""
    if depth == 0 or rng.random() < 0.2:
        if rng.random() < 0.3:
            number = rng.randint(0, 6)
            return Dim.of(number), number
        name = rng.choice("ABCD")
        return Dim.of(name), sizes[name]
    (a, x), (b, y) = _evaluated(rng, sizes, depth - 1), _evaluated(rng, sizes, depth - 1)
    op = rng.choice(["+", "-", "*", "/", "/", "%", "min", "max"])
    if op in ("/", "%") and rng.random() < 0.6:
        y = rng.randint(1, 6)
        b = Dim.of(y)
    if x is None or y is None or (op in ("/", "%") and y == 0):
        return a, None
    match op:
        case "+":
            return a + b, x + y
        case "-":
            return a - b, x - y
        case "*":
            return a * b, x * y
        case "/":
            return a // b, x // y
        case "%":
            return a % b, x % y
        case "min":
            return dim_min(a, b), min(x, y)
        case _:
            return dim_max(a, b), max(x, y)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_printing_then_reading_gives_the_same(seed: int) -> None:
    draw = Draw(random.Random(seed), ["A", "B", "C", "*S"])
    for _ in range(6):
        drawn = draw.dim(4)
        assert dim(str(drawn)) == drawn


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_substituting_then_evaluating_is_evaluating(seed: int) -> None:
    rng = random.Random(seed)
    draw = Draw(rng, ["A", "B", "C"])
    outer, inner = draw.dim(3), draw.dim(2)
    sizes = {"A": rng.randint(0, 7), "B": rng.randint(1, 7), "C": rng.randint(1, 7)}
    try:
        value = inner.evaluate(sizes)
        expected = outer.evaluate(sizes | {"A": value})
    except ZeroDivisionError:
        return
    assert outer.substitute({"A": inner}).evaluate(sizes) == expected
