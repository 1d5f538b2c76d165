"""Section 5 of the language, sentence by sentence: what must be proved, and what must not."""

from __future__ import annotations

import random

import pytest

from dims.reader import clauses, relation
from linnet.dims import Dim, Facts, Proved, Relation, Unproved, prove, proves

# Facts, then what follows from them.
DECIDED = [
    ("H % N == 0, N > 0", "N * (H / N) == H"),
    ("H % N == 0, N > 0", "H / N * N == H"),
    (
        "Heads % Shards == 0, H % Heads == 0, Shards > 0, Heads > 0",
        "Heads / Shards * (H / Heads) * Shards == H",
    ),
    ("Vocab % S == 0, S > 0", "S * (Vocab / S) == Vocab"),
    ("B > 0", "(A * B) / B == A"),
    ("B > 0", "(A * B) % B == 0"),
    ("B > 0", "(A * B + B) / B == A + 1"),
    ("B > 0", "(B * A) / B * B == A * B"),
    ("D % 2 == 0", "D / 2 + D / 2 == D"),
    ("D % 2 == 0", "D - D / 2 == D / 2"),
    (
        "Shards > 0, KvHeads / Shards > 0, Heads % KvHeads == 0, KvHeads > 0, "
        "(Heads / Shards) % (KvHeads / Shards) == 0",
        "(Heads / Shards) % (KvHeads / Shards) == 0",
    ),
    ("P > 0", "P + B > 0"),
    ("", "P <= P + B"),
    ("", "0 <= P"),
    ("S > 0", "S - 1 < S"),
    ("S > 0", "0 <= S - 1"),
    ("Batch > 0", "1 <= Batch"),
    ("", "A + B == B + A"),
    ("", "A * B == B * A"),
    ("", "A + (B + C) == (A + B) + C"),
    ("", "A * (B * C) == (A * B) * C"),
    ("", "A * (B + C) == A * B + A * C"),
    ("A > 0, B > 0", "A * B > 0"),
    ("A > 0, B > 0, C > 0", "2 * A * B * C > 1"),
    ("A > 1, B > 2", "A * B >= 6"),
    ("", "min(A, B) <= A"),
    ("", "min(A, B) <= B"),
    ("", "max(A, B) >= B"),
    ("", "min(A, B) <= max(A, C)"),
    ("", "min(A, B) >= 0"),
    ("", "min(A, B) + max(B, A) == A + B"),
    ("", "min(A, min(B, C)) == min(min(C, A), B)"),
    ("A == 2 * B", "A / 2 == B"),
    ("A == B + 1", "A * C == B * C + C"),
    ("A == B, B == C", "A == C"),
    ("A <= B, B <= C", "A <= C"),
    ("A + 3 <= B, B <= C", "A < C"),
    ("2 * A + B <= C, C <= 2 * A + 4", "B <= 4"),
    ("A >= B + 8, B > 0", "A >= 9"),
    ("N <= M", "N * K <= M * K"),
    ("A <= B, C <= D", "A * C <= B * D"),
    ("N != 0", "N > 0"),
    ("N - 1 != 0, N > 0", "N >= 2"),
    ("A != B, A <= B", "A < B"),
    ("A <= B, B <= A", "A == B"),
    ("A <= B + C, B + C <= A", "A == B + C"),
    ("KvHeads / Shards > 0, Shards > 0", "KvHeads > 0"),
    ("KvHeads / Shards > 0, Shards > 0", "KvHeads >= Shards"),
    ("A * B > 0", "A > 0"),
    ("A * B > 0", "B > 0"),
    ("A * B == C, C > 0", "A > 0"),
    ("H % Heads == 0, Heads > 0, H > 0", "H / Heads > 0"),
    ("H % Heads == 0, Heads > 0, H > 0", "Heads <= H"),
    ("A % B == 0, B % C == 0, B > 0, C > 0", "A % C == 0"),
    ("A % B == 0, B % C == 0, C % D == 0, B > 0, C > 0, D > 0", "A % D == 0"),
    ("A % B == 0, B % C == 0, B > 0, C > 0", "A / B * (B / C) == A / C"),
    ("A % C == 0, B % C == 0, C > 0", "(A + B) % C == 0"),
    ("A % 4 == 0", "A % 2 == 0"),
    ("A % 2 == 0, A % 3 == 0", "A % 6 == 0"),
    ("A <= B", "min(A, B) == A"),
    ("A <= B", "max(A, B) == B"),
    ("A < B", "min(B, A) * C == A * C"),
    ("Window <= S", "min(S, Window) + 1 == Window + 1"),
    ("b > 0", "a / b <= a"),
    ("b > 0", "a / b * b <= a"),
    ("b > 0", "a % b < b"),
    ("b > 0", "a % b <= a"),
    ("b > 0", "a % b >= 0"),
    ("b > 0", "a - a / b * b == a % b"),
    ("b > a", "a / b == 0"),
    ("b > a", "a % b == a"),
    ("b > 0, a >= b", "a / b > 0"),
    ("c > 0, a <= b", "a / c <= b / c"),
    ("b > 0, c > 0", "a / b / c == a / (b * c)"),
    ("n > 0, m > 0", "a % (n * m) % n == a % n"),
    ("In % G == 0, G % 2 == 0, G > 0", "In / G * (2 * (G / 2)) == In"),
    ("A % B == 0, C % B == 0, B > 0, C > 0, A % C == 0", "A / B % (C / B) == 0"),
    # a fact that rewrites inside another fact's atoms
    ("A == B * C, A / B % 2 == 0, B > 0", "C % 2 == 0"),
    ("H == N * D, D % 2 == 0, N > 0", "H / N / 2 * 2 == D"),
    ("B == 2 * C, A % B == 0, C > 0", "A % C == 0"),
    # one symbol with two divisors
    ("H % A == 0, H % B == 0, A > 0, B > 0", "H / A * A == H / B * B"),
    ("H % A == 0, H % B == 0, A > 0, B > 0", "2 * H == A * (H / A) + B * (H / B)"),
    # facts that name each other
    ("A % B == 0, B % A == 0, A > 0, B > 0", "A == B"),
    ("A == B / 2 + 1, B == A / 3 + 1", "A <= B"),
    ("A % B == 0, B % C == 0, C % A == 0, A > 0, B > 0, C > 0", "A == C"),
    # convolution
    ("Stride > 0, K <= H + 2 * Pad", "(H + 2 * Pad - K) / Stride + 1 > 0"),
    ("Stride > 0, K > 0", "(H + 2 * Pad - K) / Stride <= H + 2 * Pad"),
    ("Height % Patch == 0, Patch > 0", "(Height - Patch) / Patch + 1 == Height / Patch"),
    ("s > 0", "(b - a + s - 1) / s == (b - a - 1) / s + 1"),
    ("", "(H + 1) / 2 + H / 2 == H"),
    ("Cache % 128 == 0", "Cache / 128 * 128 == Cache"),
    (
        "(Layers - 1) % Period == 0, Period > 0, Layers > 0",
        "1 + (Layers - 1) / Period * Period == Layers",
    ),
    ("C % Groups == 0, Groups > 0", "B * C * H * W == B * Groups * (C / Groups * H * W)"),
    ("W % 2 == 1, K % 2 == 1", "(W - K) / 2 * 2 == W - K"),
    ("", "A * (A + 1) / 2 * 2 == A * A + A"),
    # divisors that are differences
    ("A < B", "C / (B - A) <= C"),
    ("A < B", "C / (B - A) * (B - A) <= C"),
    ("A < B", "C % (B - A) < B - A"),
    ("B < A", "C % (A - B) >= 0"),
    ("A < B", "(C + B - A) / (B - A) == C / (B - A) + 1"),
    ("A < B", "(2 * C + 1) / (2 * B - 2 * A) == C / (B - A)"),
    # a product of packs on both sides
    ("H % N == 0, N > 0", "*S * H == *S * N * (H / N)"),
    ("", "*S * (A * B) == *S * A * B"),
    ("In % G == 0, G > 0", "*B * *S * In == *S * (In / G) * *B * G"),
    ("", "*S >= 0"),
]

# Facts, then what does not follow from them, or is not to be derived.
NOT_DECIDED = [
    ("", "A == B"),
    ("", "A > 0"),
    ("", "A - B >= 0"),
    ("H % N == 0", "N > 0"),
    ("H % N == 0, H > 0", "N > 0"),  # it would make `N` positive by its use as a divisor
    ("H % N == 0, K % N == 0", "N > 0"),
    ("A / N > 0", "N > 0"),
    ("A / N > 0", "A > 0"),
    ("H % N == 0", "N * (H / N) == H"),  # `N` may be 0
    ("N > 0", "N * (H / N) == H"),
    ("", "A / 0 == A / 0"),
    ("", "A * B / B == A"),
    ("A * B == A * C", "B == C"),  # `A` may be 0
    ("Heads > 0", "Heads * (H / Heads) == H"),
    ("A % B == 0, A % C == 0, B > 0, C > 0", "A % (B * C) == 0"),
    ("A % 4 == 0, A % 6 == 0", "A % 24 == 0"),
    ("D > 0", "D / 2 + D / 2 == D"),
    ("", "min(A, B) == A"),
    ("b > 0", "(a - c) / b >= 0"),
    ("b > 0, c > 0", "(a + c) / b == a / b + c / b"),
    ("b > 0, k > 0", "a / b * k == a * k / b"),
    ("A < B", "C % (B - A) == 0"),
    ("A < B", "C % (B - A) <= 0"),
    ("A <= B", "C / (B - A) <= C"),
    ("A <= B", "A < B"),
    ("A != B", "A < B"),
    ("A * B >= 0", "A > 0"),
    ("Shards > 0, KvHeads > 0", "KvHeads / Shards > 0"),
    ("", "*S == *B"),
    ("", "*S > 0"),
]


def orders(text: str) -> list[list[Relation]]:
    listed = clauses(text)
    rng = random.Random(1)
    rotations = [listed[i:] + listed[:i] for i in range(max(1, len(listed)))]
    return [*rotations, listed[::-1], rng.sample(listed, len(listed))]


@pytest.mark.parametrize(("facts", "goal"), DECIDED)
def test_decided_in_any_order_of_facts(facts: str, goal: str) -> None:
    for order in orders(facts):
        assert isinstance(prove(Facts.of(order), relation(goal)), Proved)


@pytest.mark.parametrize(("facts", "goal"), DECIDED)
def test_decided_whatever_the_names(facts: str, goal: str) -> None:
    """Nothing depends on how names sort."""
    listed, claim = clauses(facts), relation(goal)
    names = sorted(claim.names().union(*(clause.names() for clause in listed)))
    packs = [name for name in names if name.startswith("*")]
    plain = [name for name in names if name not in packs]
    for turn in range(1, len(plain)):
        renamed = {name: Dim.of(plain[(i + turn) % len(plain)]) for i, name in enumerate(plain)}
        facts_now = Facts.of(clause.substitute(renamed) for clause in listed)
        assert proves(facts_now, claim.substitute(renamed)), f"renamed by {turn}"


@pytest.mark.parametrize(("facts", "goal"), NOT_DECIDED)
def test_not_proved(facts: str, goal: str) -> None:
    for order in orders(facts):
        assert not proves(Facts.of(order), relation(goal))


@pytest.mark.parametrize(("facts", "goal"), DECIDED)
def test_an_extension_proves_what_the_whole_does(facts: str, goal: str) -> None:
    listed = clauses(facts)
    for cut in range(len(listed)):
        assert proves(Facts.of(listed[:cut]).extend(listed[cut:]), relation(goal))


def test_a_stated_fact_does_not_make_its_own_divisor_positive() -> None:
    facts = Facts.of(clauses("H % N == 0"))
    assert not proves(facts, relation("H % N == 0"))
    assert isinstance(prove(facts, relation("N > 0")), Unproved)


def test_a_goal_with_a_divisor_that_may_be_zero_is_not_proved() -> None:
    for goal in ("A / B == A / B", "A % B >= 0", "0 * (A / B) + A / B / C >= 0"):
        assert not proves(Facts.of([]), relation(goal))
        assert not isinstance(prove(Facts.of(clauses("C > 0")), relation(goal)), Proved)


def test_strictness_and_direction_are_read_correctly() -> None:
    facts = Facts.of(clauses("A < B"))
    for goal, expected in [
        ("A <= B", True),
        ("A + 1 <= B", True),
        ("B > A", True),
        ("B >= A + 1", True),
        ("B != A", True),
        ("A + 2 <= B", False),
        ("B <= A", False),
        ("A == B", False),
    ]:
        assert proves(facts, relation(goal)) == expected, goal
