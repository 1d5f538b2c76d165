"""The clauses of the seed's blocks, in any order, prove everything its sources need."""

from __future__ import annotations

import random

import pytest

from dims.reader import clauses, relation
from dims.seed_obligations import (
    ATTENTION,
    ATTENTION_ROWS,
    LAYER,
    LAYER_ROWS,
    MODEL,
    MODEL_ROWS,
)
from linnet.dims import Dim, Facts, Proved, Relation, contradictory, prove, proves

BLOCKS = [(ATTENTION, ATTENTION_ROWS), (LAYER, LAYER_ROWS), (MODEL, MODEL_ROWS)]
NAMES = ["attention", "layer", "model"]


def orders(listed: list[Relation]) -> list[list[Relation]]:
    """All rotations, the reverse, and some shuffles."""
    rng = random.Random(7)
    rotations = [listed[i:] + listed[:i] for i in range(len(listed))]
    shuffles = [rng.sample(listed, len(listed)) for _ in range(4)]
    return [*rotations, listed[::-1], *shuffles]


@pytest.mark.parametrize(("text", "rows"), BLOCKS, ids=NAMES)
def test_every_obligation(text: str, rows: list[tuple[str, list[str]]]) -> None:
    block = Facts.of(clauses(text))
    for extra, goals in rows:
        facts = block.extend(clauses(extra))
        for goal in goals:
            assert isinstance(prove(facts, relation(goal)), Proved), f"{extra} |- {goal}"


@pytest.mark.parametrize(("text", "rows"), BLOCKS[-1:], ids=NAMES[-1:])
@pytest.mark.slow
def test_every_obligation_in_any_order(text: str, rows: list[tuple[str, list[str]]]) -> None:
    distinct = {(extra, goal) for extra, goals in rows for goal in goals}
    for order in orders(clauses(text)):
        block = Facts.of(order)
        for extra, goal in distinct:
            # The function's own facts come first here: they too may stand anywhere.
            facts = Facts.of([*clauses(extra), *order]) if extra else block
            assert proves(facts, relation(goal)), f"{list(map(str, order))}, {extra} |- {goal}"


@pytest.mark.parametrize("text", [ATTENTION, LAYER, MODEL], ids=NAMES)
def test_each_clause_divides_by_positives_given_the_others(text: str) -> None:
    for order in orders(clauses(text))[::5]:
        for i, clause in enumerate(order):
            others = Facts.of(order[:i] + order[i + 1 :])
            for divisor in clause.divisors():
                assert proves(others, Relation(">", divisor, Dim.of(0))), f"{divisor} in {clause}"


@pytest.mark.parametrize(
    ("outer", "inner"),
    [(MODEL, LAYER), (LAYER, ATTENTION)],
    ids=["model has layers", "layer has attention"],
)
def test_a_block_satisfies_the_clauses_of_its_children(outer: str, inner: str) -> None:
    for order in orders(clauses(outer)):
        facts = Facts.of(order)
        for clause in clauses(inner):
            assert proves(facts, clause), str(clause)


def test_the_clauses_for_one_shard() -> None:
    one = [clause.substitute({"Shards": 1}) for clause in clauses(MODEL)]
    facts = Facts.of(one)
    for goal in ("Heads * (H / Heads) == H", "Heads % KvHeads == 0", "Vocab == 1 * Vocab"):
        assert proves(facts, relation(goal))
    for clause in clauses(MODEL):
        assert proves(facts, clause.substitute({"Shards": 1}))


IMPLIED = """
KvHeads / Shards > 0, KvHeads > 0, Heads % Shards == 0, Heads % KvHeads == 0,
(Heads / Shards) % (KvHeads / Shards) == 0
"""


@pytest.mark.parametrize("left_out", range(len(clauses(MODEL))))
def test_only_clauses_that_others_imply_follow_from_them(left_out: int) -> None:
    listed = clauses(MODEL)
    clause = listed.pop(left_out)
    assert proves(Facts.of(listed), clause) == (clause in clauses(IMPLIED)), str(clause)


@pytest.mark.parametrize("text", [ATTENTION, LAYER, MODEL], ids=NAMES)
def test_the_clauses_are_possible(text: str) -> None:
    facts = Facts.of(clauses(text))
    assert not contradictory(facts)
    sizes = {
        "Vocab": 32768, "H": 4096, "Heads": 32, "KvHeads": 8, "Inner": 14336, "Batch": 1,
        "MaxSeq": 4096, "Shards": 2, "PageSize": 64,
    }  # fmt: skip
    assert all(clause.holds(sizes) for clause in clauses(text))
    for sample in facts.samples:
        assert all(clause.holds(sample) for clause in clauses(text))
