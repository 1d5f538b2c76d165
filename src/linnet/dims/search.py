"""Small sizes that satisfy facts, and those that break a goal as well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import lcm

from linnet.dims.dim import Dim, Relation
from linnet.dims.linear import Effort

Sizes = dict[str, int]

LEVELS = (
    2,
    4,
    7,
    12,
    20,
)  # the largest size tried, in turn; multiples of a known divisor go beyond
STEPS = 1000  # sizes tried at each level
SMALLER_STEPS = 3000  # sizes tried to find smaller ones than the first that do
SAMPLE_STEPS = 400
STEP = 10  # what one of them costs, in units of effort
LARGE = 10**6  # constants beyond this are not tried as sizes


def smallest(
    facts: Sequence[Relation], goal: Relation, effort: Effort | None = None
) -> Sizes | None:
    """The smallest sizes that satisfy the facts and break the goal, free of division by zero.

    Those with the fewest zeros, then the smallest sum, then the first in order of names. They hold
    every name of the goal and of the facts that share names with it, directly or not; the remaining
    facts are satisfied by some sizes too.
    """
    near, far = related(facts, goal.names())
    if far and next(models(far), None) is None:
        return None
    plan = _Plan.of([*near, goal.negated()], goal.names())
    for level in LEVELS:
        if effort is not None:
            effort.left -= STEPS * STEP
            if effort.left < 0:
                return None
        found = min(_walk(plan, level, STEPS), key=_size_key, default=None)
        if found is not None:
            return _smaller(plan, found)
    return None


def _smaller(plan: _Plan, found: Sizes) -> Sizes:
    """The smallest sizes that do what these do; sums beyond theirs are not looked at."""
    most = sum(found.values())
    if 0 in found.values() or most > LEVELS[-1] * len(found):
        return found
    level = most - len(found) + 1
    return min(_walk(plan, level, SMALLER_STEPS, most=most), key=_size_key, default=found)


def models(facts: Sequence[Relation]) -> Iterator[Sizes]:
    """A few different sizes of all the facts' names that satisfy the facts."""
    groups = list(_components(facts))
    choices: list[list[Sizes]] = []
    for group in groups:
        found = list(_group_models(group))
        if not found:
            return
        choices.append(found)
    for i in range(max((len(found) for found in choices), default=1)):
        merged: Sizes = {}
        for found in choices:
            merged.update(found[i % len(found)])
        yield merged


def _group_models(group: Sequence[Relation]) -> Iterator[Sizes]:
    plan = _Plan.of(group, frozenset())
    seen: list[Sizes] = []
    for level, turn in ((3, 0), (5, 1), (4, 2), (9, 3), (20, 0)):
        if level == 20 and seen:
            return
        for sizes in _walk(plan, level, SAMPLE_STEPS * (5 if level == 20 else 1), turn):
            if sizes not in seen:
                seen.append(sizes)
                yield sizes
            break


def _size_key(sizes: Sizes) -> tuple[int, int, tuple[int, ...]]:
    values = tuple(sizes.values())
    return (values.count(0), sum(values), values)


def related(
    facts: Sequence[Relation], names: frozenset[str]
) -> tuple[list[Relation], list[Relation]]:
    """The facts that share names with these, through others too, and the rest."""
    having: dict[str, list[int]] = {}
    for i, fact in enumerate(facts):
        for name in fact.names():
            having.setdefault(name, []).append(i)
    known = set(names)
    order = [i for i, fact in enumerate(facts) if not fact.names() or fact.names() & known]
    wave, near = order, set(order)
    while wave:
        new = set().union(*(facts[i].names() for i in wave)) - known
        known |= new
        wave = sorted({i for name in new for i in having[name]} - near)
        near.update(wave)
        order = order + wave
    return [facts[i] for i in order], [fact for i, fact in enumerate(facts) if i not in near]


def _components(facts: Sequence[Relation]) -> Iterator[list[Relation]]:
    rest = list(facts)
    while rest:
        group, rest = related(rest, rest[0].names())
        yield group


@dataclass(frozen=True, slots=True)
class _Plan:
    """Names in the order in which they are chosen, each with what is known once it is."""

    names: tuple[str, ...]
    fixed: tuple[Relation, ...]  # relations without names
    checks: tuple[tuple[Relation, ...], ...]  # relations whose last name this is
    divisors: tuple[tuple[Dim, ...], ...]  # the name is a multiple of these, which are known before
    values: tuple[tuple[Dim, ...], ...]  # the name equals these
    constants: tuple[int, ...]  # sizes worth trying besides the small ones
    goal: int  # once this many names are chosen, one completion is enough

    @staticmethod
    def of(relations: Sequence[Relation], wanted: frozenset[str]) -> _Plan:
        """A plan that chooses divisors before what they divide, and wanted names early."""
        names = _order(relations, wanted)
        place = {name: i for i, name in enumerate(names)}
        checks: list[list[Relation]] = [[] for _ in names]
        divisors: list[list[Dim]] = [[] for _ in names]
        values: list[list[Dim]] = [[] for _ in names]
        for relation in relations:
            if relation.names():
                checks[max(place[name] for name in relation.names())].append(relation)
            for name, divisor in _multiples(relation):
                if all(place[other] < place[name] for other in divisor.names()):
                    divisors[place[name]].append(divisor)
            for name, value in _equals(relation):
                if all(place[other] < place[name] for other in value.names()):
                    values[place[name]].append(value)
        goal = max((place[name] + 1 for name in wanted), default=0)
        return _Plan(
            names,
            tuple(relation for relation in relations if not relation.names()),
            tuple(map(tuple, checks)),
            tuple(map(tuple, divisors)),
            tuple(map(tuple, values)),
            tuple(sorted(_constants(relations))),
            goal,
        )


def _order(relations: Sequence[Relation], wanted: frozenset[str]) -> tuple[str, ...]:
    before: dict[str, set[str]] = {}
    count: dict[str, int] = {}
    for relation in relations:
        for name in relation.names():
            before.setdefault(name, set())
            count[name] = count.get(name, 0) + 1
        for name, other in [*_multiples(relation), *_equals(relation)]:
            before[name] |= other.names() - {name}
    early = set(wanted)
    while True:
        more = {other for name in early for other in before.get(name, ())} - early
        if not more:
            break
        early |= more
    rest = set(before)
    ready = sorted(rest, key=lambda name: (name not in early, -count[name], name))
    chosen: list[str] = []
    while rest:
        name = next((n for n in ready if before[n].isdisjoint(rest)), ready[0])
        chosen.append(name)
        ready.remove(name)
        rest.remove(name)
    return tuple(chosen)


def _multiples(relation: Relation) -> Iterator[tuple[str, Dim]]:
    """The names that a fact `name % divisor == 0` makes multiples."""
    if relation.op != "==" or relation.right.constant != 0 or len(relation.left.terms) != 1:
        return
    (product, coefficient) = relation.left.terms[0]
    if coefficient == 1 and len(product) == 1 and product[0].op == "%":
        name = _plain(product[0].args[0])
        if name is not None:
            yield name, product[0].args[1]


def _equals(relation: Relation) -> Iterator[tuple[str, Dim]]:
    """The names that a fact `name == value` gives."""
    if relation.op == "==":
        for a, b in ((relation.left, relation.right), (relation.right, relation.left)):
            name = _plain(a)
            if name is not None and name not in b.names():
                yield name, b


def _plain(dim: Dim) -> str | None:
    if len(dim.terms) == 1:
        (product, coefficient) = dim.terms[0]
        if coefficient == 1 and len(product) == 1 and product[0].op == "name":
            return product[0].name
    return None


def _constants(relations: Iterable[Relation]) -> set[int]:
    """The constants of the relations and their neighbours, where those are sizes to try."""
    found: set[int] = set()

    def visit(dim: Dim) -> None:
        for product, coefficient in dim.terms:
            if not product:
                found.update(abs(coefficient) + step for step in (-1, 0, 1))
            elif abs(coefficient) > 1:
                found.add(abs(coefficient))
            for atom in product:
                for arg in atom.args:
                    visit(arg)

    for relation in relations:
        visit(relation.left)
        visit(relation.right)
    return {value for value in found if 0 <= value <= LARGE}


def _walk(
    plan: _Plan, level: int, steps: int, turn: int = 0, most: int | None = None
) -> Iterator[Sizes]:
    """Sizes up to the level that satisfy the plan's relations, until the steps are used up.

    With `most`, only positive ones that add up to no more, and every completion of the wanted ones.
    """
    sizes: Sizes = {}
    left = steps
    total = 0

    def options(i: int) -> Sequence[int]:
        try:
            for value in plan.values[i]:
                return (value.evaluate(sizes),)
            step = lcm(*(divisor.evaluate(sizes) for divisor in plan.divisors[i]))
        except ZeroDivisionError:
            return ()
        if step == 0:
            return ()
        small = [*range(step, max(level, 2 * step) + 1, step), 0]
        shift = (turn * (i + 1)) % len(small)
        # Constants of the relations, rounded to multiples of what divides the name.
        above = [c + -c % step for c in plan.constants]
        near = [value for c in above for value in (c, c + step, c - step)]
        return list(dict.fromkeys([*small[shift:], *small[:shift], *near]))

    def visit(i: int) -> Iterator[Sizes]:
        nonlocal left, total
        if i == len(plan.names):
            yield {name: sizes[name] for name in sorted(sizes)}
            return
        for value in options(i):
            if left <= 0:
                return
            if value < 0:
                continue
            if most is not None:
                rest = len(plan.names) - i - 1  # each of them at least 1
                if value == 0 or total + value + rest > most:
                    continue
            left -= 1
            sizes[plan.names[i]] = value
            total += value
            if all(relation.holds(sizes) for relation in plan.checks[i]):
                for found in visit(i + 1):
                    yield found
                    if i >= plan.goal and most is None:
                        total -= value
                        return
            total -= value

    if all(relation.holds({}) for relation in plan.fixed):
        yield from visit(0)
