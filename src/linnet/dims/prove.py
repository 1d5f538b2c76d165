"""Proving relations between dimensions for all sizes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from linnet.dims.dim import Dim, Relation
from linnet.dims.facts import Facts


@dataclass(frozen=True, slots=True)
class Proved:
    """The goal holds at all sizes that satisfy the facts."""


@dataclass(frozen=True, slots=True)
class Refuted:
    """These sizes satisfy the facts and break the goal."""

    sizes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Unproved:
    """Neither a proof nor a counterexample was found; each suggestion would make it provable."""

    suggestions: tuple[Relation, ...]


Verdict = Proved | Refuted | Unproved


def prove(facts: Facts, goal: Relation) -> Verdict:
    """Whether the goal holds wherever the facts do."""
    if proves(facts, goal):
        return Proved()
    names = sorted(goal.names().union(*(fact.names() for fact in facts.relations)))
    if len(names) <= 5:
        for values in product(range(7 if len(names) < 4 else 4), repeat=len(names)):
            sizes = dict(zip(names, values, strict=True))
            if all(f.holds(sizes) for f in facts.relations) and goal.negated().holds(sizes):
                return Refuted(sizes)
    return Unproved(suggest(facts, goal))


def proves(facts: Facts, goal: Relation) -> bool:
    """Whether the goal can be shown to hold wherever the facts do."""
    if goal in facts.relations:
        return True
    difference = goal.left - goal.right
    if difference.constant is None:
        return False
    return Relation(goal.op, difference, Dim.of(0)).holds({})


def suggest(facts: Facts, goal: Relation) -> tuple[Relation, ...]:
    """Clauses that would make the goal provable, simplest first."""
    return (goal,)


def contradictory(facts: Facts) -> bool:
    """Whether no sizes satisfy the facts, as far as can be shown."""
    return any(proves(facts, fact.negated()) for fact in facts.relations)
