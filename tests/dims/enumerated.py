"""Random facts and goals of the shapes models need, and the truth by trying all small sizes.

`python tests/dims/enumerated.py --seconds 300 --seed 1` hunts for wrong answers and prints how many
of the goals that hold at all the sizes tried are proved.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

from linnet.dims import (
    Atom,
    Dim,
    Facts,
    Proved,
    Refuted,
    Relation,
    Unproved,
    dim_max,
    dim_min,
    prove,
)

NAMES = ("A", "B", "C", "D")
Sizes = dict[str, int]


# The truth


def python(dim: Dim) -> str:
    """The dimension as a Python expression; division by zero raises there as it does here."""

    def of_atom(atom: Atom) -> str:
        if atom.op == "name":
            return atom.name
        a, b = (python(arg) for arg in atom.args)
        if atom.op in ("min", "max"):
            return f"{atom.op}({a}, {b})"
        return f"(({a}) {'//' if atom.op == '/' else '%'} ({b}))"

    terms = [
        "*".join([str(coefficient), *map(of_atom, product)]) for product, coefficient in dim.terms
    ]
    return " + ".join(terms) or "0"


def predicate(relations: list[Relation], names: list[str]) -> Callable[..., bool | None]:
    """Whether all relations hold at given sizes; None where something is divided by zero."""
    tests = [f"(({python(r.left)}) {r.op} ({python(r.right)}))" for r in relations]
    # Every relation is evaluated: one that is false hides no division by zero in the next.
    body = "all([" + ", ".join(tests) + "])"
    lines = (
        f"def test({', '.join(names)}):\n"
        f" try: return {body}\n"
        " except ZeroDivisionError: return None\n"
    )
    scope: dict[str, Callable[..., bool | None]] = {}
    exec(lines, {"min": min, "max": max, "all": all}, scope)
    return scope["test"]


def satisfying(facts: list[Relation], names: list[str], top: int) -> list[tuple[int, ...]]:
    """All sizes up to `top` at which the facts hold and divide by nothing but non-zeros."""
    test = predicate(facts, names)
    return [sizes for sizes in itertools.product(range(top + 1), repeat=len(names)) if test(*sizes)]


# Random facts and goals


class Draw:
    """Random relations over a few names."""

    def __init__(self, rng: random.Random, names: list[str]) -> None:
        self.rng = rng
        self.names = names

    def name(self) -> Dim:
        return Dim.of(self.rng.choice(self.names))

    def dim(self, depth: int) -> Dim:
        roll = self.rng.random()
        if depth == 0 or roll < 0.25:
            return self.name() if self.rng.random() < 0.8 else Dim.of(self.rng.randint(0, 4))
        a, b = self.dim(depth - 1), self.dim(depth - 1)
        match self.rng.choices(
            ["+", "-", "*", "/", "%", "min", "max", "k*"], [4, 2, 6, 7, 3, 1, 1, 2]
        ):
            case ["+"]:
                return a + b
            case ["-"]:
                return a - b
            case ["*"]:
                return a * b
            case ["/"]:
                return a // self.divisor(depth)
            case ["%"]:
                return a % self.divisor(depth)
            case ["min"]:
                return dim_min(a, b)
            case ["max"]:
                return dim_max(a, b)
            case _:
                return a * self.rng.randint(2, 3)

    def divisor(self, depth: int) -> Dim:
        roll = self.rng.random()
        if roll < 0.6:
            return self.name()
        if roll < 0.8:
            return Dim.of(self.rng.randint(2, 4))
        if roll < 0.9:
            a, b = self.name(), self.name()
            return self.rng.choice([a - b, a + b, a + 1, 2 * a, a * b])
        return self.dim(depth - 1)

    def fact(self) -> Relation:
        zero = Dim.of(0)
        a, b, c = self.name(), self.name(), self.name()
        k = self.rng.randint(1, 4)
        choices: list[Callable[[], Relation]] = [
            lambda: Relation("==", a % b, zero),
            lambda: Relation("==", a % b, zero),
            lambda: Relation("==", a % (k + 1), zero),
            lambda: Relation("==", (a // b) % c, zero),
            lambda: Relation("==", (a // b) % (c // b), zero),
            lambda: Relation("==", (a // b) % (k + 1), zero),
            lambda: Relation("==", a % (b * c), zero),
            lambda: Relation("==", (a + b) % c, zero),
            lambda: Relation("==", (a - k) % b, zero),
            lambda: Relation(">", a // b, zero),
            lambda: Relation("<=", a, b),
            lambda: Relation("<=", a + k, b),
            lambda: Relation("<", a, b),
            lambda: Relation(">=", a, Dim.of(k)),
            lambda: Relation("==", a, b * c),
            lambda: Relation("==", a, b),
            lambda: Relation("==", a * b, c),
            lambda: Relation("==", a * k, b * self.rng.randint(1, 4)),
            lambda: Relation("==", a, b // c),
            lambda: Relation("==", a, dim_min(b, c)),
            lambda: Relation("==", a, dim_max(b, c)),
            lambda: Relation("!=", a, b),
            lambda: Relation("!=", a, zero),
            lambda: Relation("==", a, Dim.of(k)),
            lambda: Relation(self.op(), self.dim(2), self.dim(1)),
        ]
        return self.rng.choice(choices)()

    def op(self) -> str:
        return self.rng.choice(["==", "==", "!=", "<", "<=", ">", ">="])

    def facts(self) -> list[Relation]:
        """Facts of which most names are positive, as in models."""
        found = [
            Relation(">", Dim.of(name), Dim.of(0)) for name in self.names if self.rng.random() < 0.7
        ]
        found += [self.fact() for _ in range(self.rng.randint(0, 4))]
        self.rng.shuffle(found)
        return found

    def goal(self, facts: list[Relation]) -> Relation:
        """A goal: anything, or a consequence of a fact, or something near one."""
        a, b, c = self.name(), self.name(), self.name()
        zero = Dim.of(0)
        roll = self.rng.random()
        if roll < 0.3:
            return Relation(self.op(), self.dim(3), self.dim(2))
        if roll < 0.4:
            return self.fact()
        if roll < 0.6 and facts:
            fact = self.rng.choice(facts)
            extra = self.dim(1)
            left, right = fact.left, fact.right
            match self.rng.randint(0, 3):
                case 0:
                    left, right = left * extra, right * extra
                case 1:
                    left, right = left + extra, right + extra
                case 2:
                    left = left + extra
                case _:
                    left, right = left // self.divisor(1), right // self.divisor(1)
            return Relation(self.rng.choice([fact.op, self.op()]), left, right)
        x, y = self.dim(1), self.dim(1)
        choices: list[Callable[[], Relation]] = [
            lambda: Relation("==", b * (a // b), a),
            lambda: Relation("==", a // b * (c // a) * b, c),
            lambda: Relation("==", a // b + a // b, a),
            lambda: Relation("==", x % y, zero),
            lambda: Relation("==", (a // c) % (b // c), zero),
            lambda: Relation(">", x, zero),
            lambda: Relation(">", x // y, zero),
            lambda: Relation("<=", x // b, y // b),
            lambda: Relation("<=", x // y, x),
            lambda: Relation("<=", x // y * y, x),
            lambda: Relation("<", x % b, b),
            lambda: Relation("<=", x * c, y * c),
            lambda: Relation("==", dim_min(x, y), x),
            lambda: Relation("<=", dim_min(x, y), dim_max(a, y)),
            lambda: Relation("==", x * y // b, x // b * y),
            lambda: Relation("==", x // a // b, x // (a * b)),
            lambda: Relation("<=", x, x * y),
            lambda: Relation("<=", zero, (a + 2 * b - c) // a),
            lambda: Relation("==", x + y, y + x * 1),
        ]
        return self.rng.choice(choices)()


def problems(
    seed: int, goals: int = 8
) -> Iterator[tuple[list[Relation], list[Relation], list[str]]]:
    """Endless facts, goals and the names they may use, the same for the same seed."""
    rng = random.Random(seed)
    while True:
        names = list(NAMES[: rng.choice([2, 3, 3, 4])])
        draw = Draw(rng, names)
        facts = draw.facts()
        yield facts, [draw.goal(facts) for _ in range(goals)], names


def mistake(
    facts: list[Relation], goal: Relation, names: list[str], points: list[tuple[int, ...]]
) -> str | None:
    """What is wrong with the solver's answer, judged by all small sizes that satisfy the facts."""
    answer = prove(Facts.of(facts), goal)
    match answer:
        case Proved():
            test = predicate([goal], names)
            for point in points:
                if not test(*point):
                    return f"proved, but not so at {dict(zip(names, point, strict=True))}"
        case Refuted(sizes):
            whole = dict.fromkeys(names, 0) | sizes
            if not set(goal.names()) <= sizes.keys():
                return f"refuted without a size for each name: {sizes}"
            near = [fact for fact in facts if fact.names() <= sizes.keys()]
            if not all(fact.holds(whole) for fact in near):
                return f"refuted by {sizes}, which breaks a fact"
            if not goal.negated().holds(sizes):
                return f"refuted by {sizes}, which does not break it"
            if any(not fact.names().isdisjoint(sizes) and fact not in near for fact in facts):
                return f"refuted by {sizes}, which leaves a name of a related fact out"
        case Unproved(suggestions):
            for clause in suggestions:
                if not isinstance(prove(Facts.of([*facts, clause]), goal), Proved):
                    return f"the suggested {clause} does not help"
    return None


def undivided(facts: list[Relation], goal: Relation) -> bool:
    """Whether every divisor of the goal is known to be positive, as it must be in a program."""
    return all(
        isinstance(prove(Facts.of(facts), Relation(">", divisor, Dim.of(0))), Proved)
        for divisor in goal.divisors()
    )


def bare() -> None:
    """Makes the solver try to prove even goals that some sizes at hand break.

    Those sizes would hide an unsound step: no proof is looked for once they are tried.
    """
    module = importlib.import_module("linnet.dims.prove")
    module._sample = lambda facts, goal: False  # type: ignore[attr-defined]


def show(facts: list[Relation], goal: Relation) -> str:
    return f"{', '.join(map(str, facts))} |- {goal}"


def main() -> int:
    """Hunts for wrong answers; 1 if any was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--top", type=int, default=6)
    parser.add_argument("--show", action="store_true", help="print true goals that are not proved")
    parser.add_argument("--bare", action="store_true", help="use no samples to refute goals")
    options = parser.parse_args()
    if options.bare:
        bare()
    end = time.monotonic() + options.seconds
    counts: Counter[str] = Counter()
    slowest: list[tuple[float, str]] = []
    for facts, goals, names in problems(options.seed):
        if time.monotonic() > end:
            break
        points = satisfying(facts, names, options.top)
        for goal in goals:
            start = time.process_time()
            try:
                answer = prove(Facts.of(facts), goal)
                seconds = time.process_time() - start
                wrong = mistake(facts, goal, names, points)
            except Exception as error:
                print(f"CRASH {show(facts, goal)}: {type(error).__name__} {error}"[:400])
                counts["crash"] += 1
                continue
            slowest = sorted([*slowest, (seconds, show(facts, goal))])[-5:]
            if wrong:
                counts["wrong"] += 1
                print(f"WRONG {show(facts, goal)}: {wrong}")
            test = predicate([goal], names)
            results = [test(*point) for point in points]
            true = all(results) and len(points) > 3 and undivided(facts, goal)
            kind = type(answer).__name__
            counts[kind] += 1
            if true:
                counts[f"true and {kind}"] += 1
                if options.show and kind == "Unproved":
                    print(f"MISSED {show(facts, goal)}")
    for kind, count in sorted(counts.items()):
        print(f"{kind}: {count}")
    for seconds, text in slowest:
        print(f"{seconds * 1e3:.0f} ms  {text}")
    return 1 if counts["wrong"] or counts["crash"] else 0


if __name__ == "__main__":
    sys.exit(main())
