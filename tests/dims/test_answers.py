"""Counterexamples, suggestions, contradictions, and what an answer costs."""

from __future__ import annotations

from functools import partial

import pytest

from dims.reader import clauses, facts, relation
from dims.seed_obligations import MODEL
from effort import calls
from linnet.dims import (
    Dim,
    Facts,
    Proved,
    Refuted,
    Relation,
    Unproved,
    contradictory,
    prove,
    proves,
    suggest,
)
from linnet.dims.system import System


@pytest.mark.parametrize(
    ("given", "goal", "sizes"),
    [
        ("Heads > 0", "Heads * (H / Heads) == H", {"H": 1, "Heads": 2}),
        ("", "0 <= S - 1", {"S": 0}),
        ("", "A == B", {"A": 1, "B": 2}),
        ("", "N > 0", {"N": 0}),
        ("S > 0", "S == 1", {"S": 2}),
        ("A % 16 == 0, A > 0", "A < 40", {"A": 48}),
        ("A == 1000 * B, B > 0", "A < 1000", {"A": 1000, "B": 1}),
        ("A >= 100, B > 0", "A / B * B == A", {"A": 101, "B": 2}),
        ("H >= 1000, H % 64 == 0", "H % 128 == 0", {"H": 1088}),
        ("D % 2 == 0, D > 0", "D / 2 % 2 == 0", {"D": 2}),
        ("K > 0", "(H + 2 * Pad - K) / 2 + 1 > 0", {"H": 1, "K": 4, "Pad": 1}),
        ("", "1 == 2", {}),
        ("X > 0", "B * S * H == B * S * H * 2", {"B": 1, "H": 1, "S": 1}),
    ],
)
def test_the_smallest_counterexample(given: str, goal: str, sizes: dict[str, int]) -> None:
    assert prove(facts(given), relation(goal)) == Refuted(sizes)


def test_a_counterexample_has_the_names_of_related_facts() -> None:
    answer = prove(facts("H % Heads == 0, Heads > 0, Other > 3"), relation("H == 6"))
    assert isinstance(answer, Refuted)
    assert answer.sizes.keys() == {"H", "Heads"}


def test_a_counterexample_divides_by_no_zero() -> None:
    answer = prove(facts(""), relation("N * (H / N) == H"))
    assert isinstance(answer, Refuted)
    assert answer.sizes["N"] > 0
    assert isinstance(prove(facts("H % N == 0"), relation("N > 0")), Unproved)


def test_no_counterexample_where_the_other_facts_cannot_hold() -> None:
    answer = prove(facts("X > 0, X * X == 2 * X * X * Y, A > 0"), relation("A == 1"))
    assert not isinstance(answer, Refuted)


def test_counterexamples_of_the_seeds_clauses() -> None:
    model = Facts.of(clauses(MODEL))
    for goal in ("Heads == KvHeads", "H / Heads == 64", "MaxSeq >= 16", "Vocab > 0"):
        answer = prove(model, relation(goal))
        assert isinstance(answer, Refuted), goal
        assert relation(goal).negated().holds(answer.sizes)


@pytest.mark.parametrize(
    ("given", "goal", "first"),
    [
        ("N > 0", "N * (H / N) == H", "H % N == 0"),
        ("Shards > 0", "Shards * (Vocab / Shards) == Vocab", "Vocab % Shards == 0"),
        ("", "D / 2 + D / 2 == D", "D % 2 == 0"),
        ("", "P + B > 0", "B > 0"),
        ("", "S - 1 >= 0", "S > 0"),
        ("", "min(A, B) == A", "A <= B"),
        ("H % N == 0", "H / N >= 0", "N > 0"),
        ("", "A == B", "A == B"),
        ("b > 0", "(a - c) / b >= 0", "a - c >= b"),
    ],
)
def test_the_first_suggestion(given: str, goal: str, first: str) -> None:
    suggested = suggest(facts(given), relation(goal))
    assert suggested
    assert suggested[0] == relation(first)
    for clause in suggested:
        assert proves(facts(given).extend([clause]), relation(goal)), str(clause)


def test_nothing_impossible_is_suggested() -> None:
    assert suggest(facts(""), relation("A + 1 <= A")) == ()
    assert suggest(facts("A > B"), relation("min(A, B) == A")) == ()


def test_an_unproved_answer_carries_suggestions() -> None:
    answer = prove(facts("H % N == 0"), relation("N > 0"))
    assert answer == Unproved((relation("N > 0"),))


@pytest.mark.parametrize(
    "given",
    [
        "A > B, B > A",
        "A > 0, A < 1",
        "A == B, A != B",
        "A == 2 * B, A == 2 * C + 1",
        "A % 2 == 0, A == 2 * B + 1",
        "A < 0",
        "A + B == 0, A > 0",
        "A >= B + 1, B >= C + 1, C >= A",
        "1 == 2",
    ],
)
def test_contradictory(given: str) -> None:
    assert contradictory(facts(given))


@pytest.mark.parametrize(
    "given",
    ["", "A > 0", "A % B == 0, B % A == 0, A > 0", "A == B / 2, B == A * 2", "A != B", MODEL],
)
def test_not_contradictory(given: str) -> None:
    assert not contradictory(facts(given))


def test_everything_follows_from_a_contradiction() -> None:
    assert isinstance(prove(facts("A > B, B > A"), relation("C == 7")), Proved)


def test_facts_are_values() -> None:
    one = Facts.of(clauses("A > 0, B > 0, A > 0"))
    assert one.relations == tuple(clauses("A > 0, B > 0"))
    assert one == Facts.of(clauses("A > 0")).extend(clauses("B > 0"))
    assert hash(one) == hash(Facts.of(clauses("A > 0, B > 0")))
    assert one.extend([]).relations == one.relations
    assert Facts.of([]).relations == ()


def test_answers_are_remembered() -> None:
    given, goal = facts("H % N == 0, N > 0"), relation("N * (H / N) == H")
    assert prove(given, goal) is prove(given, goal)


HARD = [
    ("B == A / B, C == A / A, B > 0, (C + A) % B == 0, A > 0", "1 / B / A / A == 1 / B / (A * A)"),
    (
        "C > 0, A % D == 0, A > 0, (C - 1) % C == 0, C % B == 0, B > 0, C == max(C, D)",
        "4 * A * (4 / A) / B == 4 * A / B * (4 / A)",
    ),
    ("B - C * A == B * B, A > 0, C > 0", "C * B <= C * B * (C / 4)"),
    ("B * A * B >= B / A, A == min(A, B), B > 0", "2 * (A / B / B) * A * B * B < 3 * A"),
    ("A == B * B, B == C * C, C == A * A + 1", "A + B + C == 7"),
    ("A * B == C * D, A * C == B * D, A * D == B * C, A > 0, B > 0", "C * C == D * D + 1"),
    ("A * B * C == D * D * D, A > B, B > C, C > D", "A * A == B * C + D"),
    (
        "A / B / C == D, B / C / D == A, C / D / A == B, A > 0, B > 0, C > 0, D > 0",
        "A + B == C * D",
    ),
]


MOST = 1_000_000  # calls: some tenths of a second


@pytest.mark.parametrize(("given", "goal"), HARD)
def test_every_answer_takes_bounded_work(given: str, goal: str) -> None:
    scope, wanted = facts(given), relation(goal)
    assert calls(partial(prove, scope, wanted)) < MOST


def test_the_seeds_obligations_are_cheap() -> None:
    """Some hundred answers about one block cost less than a few dozen builds of its facts."""
    build = calls(lambda: System.of(clauses(MODEL)))
    block = Facts(tuple(clauses(MODEL)))

    def answers() -> None:
        for size in range(300):
            goal = Relation("==", Dim.of("Heads") // "Shards" * (Dim.of("H") // "Heads") * "Shards"
                            + size, Dim.of("H") + size)  # fmt: skip
            assert proves(block, goal)

    assert calls(answers) < 100 * build
