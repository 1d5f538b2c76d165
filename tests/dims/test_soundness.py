"""Random facts and goals against the truth at all small sizes."""

from __future__ import annotations

import importlib
from itertools import islice

import pytest

from dims.enumerated import mistake, predicate, problems, satisfying, show, undivided
from dims.reader import relation
from linnet.dims import Facts, Proved, Refuted, contradictory, prove


def hunt(seed: int, count: int, top: int) -> tuple[int, int]:
    """How many goals that hold at all sizes tried there were, and how many of them are proved."""
    true = proved = 0
    for facts, goals, names in islice(problems(seed), count):
        points = satisfying(facts, names, top)
        assert not (points and contradictory(Facts.of(facts)))
        for goal in goals:
            wrong = mistake(facts, goal, names, points)
            assert wrong is None, f"{show(facts, goal)}: {wrong}"
            answer = prove(Facts.of(facts), goal)
            if isinstance(answer, Refuted) or len(points) < 4 or not undivided(facts, goal):
                continue
            if all(predicate([goal], names)(*point) for point in points):
                true += 1
                proved += isinstance(answer, Proved)
    return true, proved


@pytest.mark.parametrize("seed", range(100, 103))
@pytest.mark.slow
def test_answers_agree_with_all_small_sizes(seed: int) -> None:
    true, proved = hunt(seed, 15, top=4)
    assert true > 15
    assert proved > 0.85 * true


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goals that sizes at hand break are not given up: those sizes would hide a wrong proof."""
    prover = importlib.import_module("linnet.dims.prove")
    monkeypatch.setattr(prover, "_sample", lambda facts, goal: False)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("seed", range(110, 111))
def test_nothing_false_is_proved_even_without_samples(seed: int) -> None:
    hunt(seed, 15, top=4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 204))
def test_answers_agree_with_all_small_sizes_at_length(seed: int) -> None:
    true, proved = hunt(seed, 100, top=6)
    assert proved > 0.9 * true


@pytest.mark.slow
@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("seed", range(300, 304))
def test_nothing_false_is_proved_even_without_samples_at_length(seed: int) -> None:
    hunt(seed, 100, top=5)


def test_the_hunt_would_find_a_wrong_proof() -> None:
    facts, goal = [relation("A > 0")], relation("A * A >= A")
    assert mistake(facts, goal, ["A"], [(1,), (2,)]) is None
    # As if the facts had been misread: at A = 0, B = 1 the goal does not hold.
    wrong = mistake([relation("A >= B")], relation("A >= B"), ["A", "B"], [(0, 1)])
    assert wrong is not None
    assert wrong.startswith("proved, but not so")
