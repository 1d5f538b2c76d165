"""Proving relations between dimensions for all sizes, or finding sizes that break them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice

from linnet.dims.dim import Atom, Dim, Relation, RelationOp, TooLarge
from linnet.dims.facts import Facts, Proved, Refuted, Unproved, Verdict
from linnet.dims.linear import Effort
from linnet.dims.poly import (
    UNIT,
    Poly,
    add,
    as_constant,
    constant,
    content,
    scaled,
    variable,
    variables,
)
from linnet.dims.search import smallest
from linnet.dims.system import EFFORT, System, natural, standard

BRIEFLY = EFFORT // 60  # spent on a goal where many failed before
FAILURE = 2000  # what it costs at least to say why a goal fails
SAMPLES = 10_000  # and to find the first sizes that satisfy facts
SUGGESTIONS = 3
CLAUSES = 8  # tried as suggestions
CASES = 24  # considered in one proof
DEPTH = 2  # of cases within cases
MANY = 24  # facts, above which those near the goal are tried alone
HOPS = 3  # of facts that share names, before all that bear on the goal
MOST = 96  # facts used at once
REMAINDERS = 4  # the largest divisor whose remainders are cases


def prove(facts: Facts, goal: Relation, within: Effort | None = None) -> Verdict:
    """Whether the goal holds wherever the facts do.

    Once the effort `within` is spent, neither counterexamples nor suggestions are looked for.
    """
    known = facts.memo.answers.get(goal)
    if known is None:
        known = _verdict(facts, goal, within)
        if within is None or within.left > 0:
            facts.memo.answers[goal] = known
    return known


def proves(facts: Facts, goal: Relation, *, briefly: bool = False) -> bool:
    """Whether the goal can be shown to hold wherever the facts do; looks for no counterexample.

    Where it holds by itself, the facts are not worked into each other. `briefly` looks at the
    nearest facts alone and gives up soon.
    """
    known = facts.memo.proved.get(goal)
    if known is None:
        if _positive_by_form(goal):
            known = True
        else:
            known = False
            for part in islice(_parts(facts, goal), 1 if briefly else None):
                effort = Effort(BRIEFLY if briefly else EFFORT)
                with suppress(TooLarge):
                    known = _proves(part, goal, effort)
                if known:
                    break
                facts.memo.costs[goal] = facts.memo.costs.get(goal, 0) + EFFORT - effort.left
        if known or not briefly:
            facts.memo.proved[goal] = known
    return known


def _positive_by_form(goal: Relation) -> bool:
    if goal.op != ">" or goal.right.constant != 0 or goal.left.divisors():
        return False
    return natural(goal.left - 1)


def _parts(facts: Facts, goal: Relation) -> Iterator[Facts]:
    """The facts; where they are many, first those near the goal, then all that bear on it."""
    if len(facts.relations) <= MANY:
        yield facts
        return
    names = goal.names()
    tried: set[int] | None = None
    for _ in range(HOPS):
        touching = {i for name in names for i in facts.having.get(name, ())}
        near = {i for i in touching if facts.relations[i].names() <= names}
        if near != tried:
            yield facts.chosen(near)
        tried = near
        names = names.union(*(facts.relations[i].names() for i in touching))
    rest = facts.bearing(goal.names()) if names else facts
    if len(rest.relations) <= MOST:
        yield rest


def _bearing(facts: Facts, goal: Relation) -> Facts:
    """The facts that matter to the goal, where they are many."""
    return facts.bearing(goal.names()) if len(facts.relations) > MANY else facts


def contradictory(facts: Facts) -> bool:
    """Whether it can be shown that no sizes satisfy the facts."""
    return not facts.samples and proves(facts, Relation("<", Dim.of(0), Dim.of(0)))


def suggest(facts: Facts, goal: Relation, within: Effort | None = None) -> tuple[Relation, ...]:
    """Clauses, simplest first, each of which is possible and would make the goal provable."""
    found: list[Relation] = []
    if (within is not None and within.left < 0) or not facts.samples:
        return ()
    effort = Effort(EFFORT // 2)
    with suppress(TooLarge):  # what is found until then helps too
        blocking = [d for d in goal.divisors() if not _positive(facts, d, effort)]
        for clause in _clauses(facts, goal, blocking):
            extended = facts.extend([clause])
            if _proves(extended, goal, effort) and extended.samples:
                found.append(clause)
                if len(found) == SUGGESTIONS:
                    break
    if within is not None:
        within.left -= EFFORT // 2 - effort.left
    return tuple(found)


def _verdict(facts: Facts, goal: Relation, within: Effort | None) -> Verdict:
    if within is not None and within.left < 0:
        return Proved() if proves(facts, goal, briefly=True) else Unproved(())
    if proves(facts, goal):
        return Proved()
    if within is not None:
        within.left -= facts.memo.costs.get(goal, 0) + FAILURE
        if facts.memo.samples is None:
            within.left -= SAMPLES
    sizes = smallest(facts.relations, goal, within)
    if sizes is not None:
        return Refuted(sizes)
    return Unproved(suggest(_bearing(facts, goal), goal, within))


def _proves(facts: Facts, goal: Relation, effort: Effort) -> bool:
    if not all(_positive(facts, divisor, effort) for divisor in goal.divisors()):
        return False
    if goal in facts.relations or (goal.op in ("==", "<=", ">=") and goal.left == goal.right):
        return True
    base = facts.system
    system = base.fork(effort)
    p = add(system.poly(goal.left), system.poly(goal.right), -1)
    if len(system.parts) > len(base.parts) or len(system.at_least) > len(base.at_least):
        system.settle()
        p = system.reduce(p)
    op, p = standard(goal.op, p)
    if _obvious(system, op, p) or _natural(goal):
        return True
    if (facts.memo.samples is not None or effort.left > BRIEFLY) and _sample(facts, goal):
        return False
    return _by_cases(system, op, p)


def _positive(facts: Facts, divisor: Dim, effort: Effort) -> bool:
    value = divisor.constant
    if value is not None:
        return value > 0
    known = facts.memo.positive.get(divisor)
    if known is None:
        known = _proves(facts, Relation(">", divisor, Dim.of(0)), effort)
        if known or effort.left > EFFORT // 4:  # else more might have been found
            facts.memo.positive[divisor] = known
    return known


def _obvious(system: System, op: RelationOp, p: Poly) -> bool:
    if system.absurd:
        return True
    match op:
        case "==":
            return not p
        case "!=":
            value = as_constant(p)
            return value != 0 if value is not None else _never_zero(p)
        case _:
            return system.bounds.nonnegative(p)


def _natural(goal: Relation) -> bool:
    """Whether the goal compares a sum of products of non-negative factors with 0 or less."""
    difference = goal.left - goal.right if goal.op == ">=" else goal.right - goal.left
    return goal.op in (">=", "<=") and natural(difference)


def _never_zero(p: Poly) -> bool:
    """Whether a number divides all the terms but the constant one."""
    by = content(c for mono, c in p.items() if mono)
    return by > 1 and p.get(UNIT, 0) % by != 0


def _sample(facts: Facts, goal: Relation) -> bool:
    """Whether sizes at hand break the goal, so that no proof need be looked for."""
    opposite = goal.negated()
    names = sorted(goal.names())
    for sample in facts.samples:
        for turn in range(4):
            sizes = {name: (5 * i + 3 * turn + 1) % (4 + 3 * turn) for i, name in enumerate(names)}
            sizes.update(sample)
            if opposite.holds(sizes):
                return True
            if sample.keys() >= set(names):
                break
    return False


# Proofs


def _by_cases(system: System, op: RelationOp, p: Poly) -> bool:
    left = CASES

    def holds(system: System, p: Poly, depth: int) -> bool:
        nonlocal left
        if _holds(system, op, p):
            return True
        if depth == 0:
            return False
        for cases in _splits(system, p):
            if left < len(cases) or system.effort.left <= 0:
                return False
            left -= len(cases)
            if all(holds_in(case, system, p, depth - 1) for case in cases):
                return True
        return False

    def holds_in(case: Case, system: System, p: Poly, depth: int) -> bool:
        narrowed = _assume(system, case)
        return holds(narrowed, narrowed.reduce(p), depth)

    return holds(system, p, DEPTH)


def _holds(system: System, op: RelationOp, p: Poly) -> bool:
    if _obvious(system, op, p):
        return True
    match op:
        case "==":
            return _at_least(system, p) and _at_least(system, scaled(p, -1))
        case "!=":
            below = add(scaled(p, -1), constant(-1))
            if _at_least(system, add(p, constant(-1))) or _at_least(system, below):
                return True
            narrowed = _assume(system, _Zero(p))
            return narrowed.absurd or narrowed.refutes(constant(-1))
        case _:
            return _at_least(system, p)


def _at_least(system: System, p: Poly) -> bool:
    return system.bounds.nonnegative(p) or system.refutes(p)


@dataclass(frozen=True, slots=True)
class _Zero:
    """The case that a polynomial is 0, and, if there is another, that that one is at least 0."""

    p: Poly
    positive: Poly | None = None


@dataclass(frozen=True, slots=True)
class _AtLeast:
    """The case that a polynomial is at least 0."""

    p: Poly


@dataclass(frozen=True, slots=True)
class _Remainder:
    """The case that a variable divided by a number leaves this remainder."""

    name: str
    by: int
    rest: int


Case = _Zero | _AtLeast | _Remainder


def _splits(system: System, p: Poly) -> Iterator[list[Case]]:
    """Ways to divide all sizes into cases."""
    near = _nearby(system, p)
    for name in near:
        op, a, b = system.parts.get(name, ("", {}, {}))
        value = variable(name)
        if op in ("min", "max"):
            below = add(b, a, -1) if op == "min" else add(a, b, -1)
            yield [
                _Zero(add(value, a, -1), below),
                _Zero(add(value, b, -1), scaled(below, -1)),
            ]
        by = as_constant(b) if op == "/" else None
        if by is not None and 2 <= by <= REMAINDERS:
            for inner in sorted(variables(a)):
                if inner not in system.parts:
                    yield [_Remainder(inner, by, rest) for rest in range(by)]
            rest = add(a, scaled(value, by), -1)
            yield [_Zero(add(rest, constant(-r))) for r in range(by)]
    for difference in system.nonzero:
        yield [
            _AtLeast(add(difference, constant(-1))),
            _AtLeast(add(scaled(difference, -1), constant(-1))),
        ]
    for name in near:
        if system.bounds.low.get(name) == 0 and name not in system.rules:
            yield [_Zero(variable(name)), _AtLeast(add(variable(name), constant(-1)))]


def _nearby(system: System, p: Poly) -> list[str]:
    """The variables of the polynomial, those in their operations, and operations equal to them."""
    found = sorted(variables(p))
    for name, rule in system.rules.items():
        if name in system.parts and not variables(rule).isdisjoint(found):
            found.append(name)
    for name in found:
        _, a, b = system.parts.get(name, ("", {}, {}))
        found.extend(sorted((variables(a) | variables(b)) - set(found)))
    return found


def _assume(system: System, case: Case) -> System:
    """The system with the case as one more fact."""
    system.effort.left -= 1000
    narrowed = system.fork(system.effort)
    match case:
        case _Zero(p, positive):
            narrowed.equalities.append(p)
            if positive is not None:
                narrowed.claim(narrowed.reduce(positive))
        case _AtLeast(p):
            narrowed.claim(narrowed.reduce(p))
        case _Remainder(name, by, rest):
            quotient = narrowed.quotient(variable(name), constant(by))
            whole = add(scaled(quotient, by), constant(rest))
            narrowed.equalities.append(add(variable(name), whole, -1))
    narrowed.settle()
    return narrowed


# Suggestions


def _clauses(facts: Facts, goal: Relation, blocking: list[Dim]) -> list[Relation]:
    """Clauses that may help, simplest first: those of the goal's own operations, then the goal.

    Where divisors may be 0 or less, a clause has to make them positive before all else.
    """
    zero = Dim.of(0)
    found: dict[Relation, None] = {}
    if blocking:
        for name in sorted(frozenset().union(*(divisor.names() for divisor in blocking))):
            found[Relation(">", Dim.of(name), zero)] = None
        for divisor in blocking:
            found[Relation(">", divisor, zero)] = None
        return [clause for clause in found if clause not in facts.relations][:CLAUSES]
    for atom in chain(_atoms(goal.left), _atoms(goal.right)):
        if atom.op in ("/", "%"):
            a, b = atom.args
            found[Relation("==", a % b, zero)] = None
            found[Relation(">=", a, b)] = None
        elif atom.op != "name":
            a, b = atom.args
            found[Relation("<=", a, b)] = None
            found[Relation("<=", b, a)] = None
    for name in sorted(goal.names()):
        found[Relation(">", Dim.of(name), zero)] = None
    found.pop(goal, None)
    clauses = [c for c in found if c.names() and c not in facts.relations]
    clauses.sort(key=lambda clause: (len(str(clause)), str(clause)))
    return [*clauses[: CLAUSES - 1], *([goal] if goal.names() else [])]


def _atoms(dim: Dim) -> Iterator[Atom]:
    for atom in dim.atoms():
        yield atom
        for arg in atom.args:
            yield from _atoms(arg)
