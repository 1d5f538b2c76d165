"""Every entry of a program on every backend that is installed, compared with the reference."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from linnet.core.ir import ArrayType, Program, ValueType
from linnet.core.passes import optimize
from linnet.diagnostics import LinnetError, PlanError
from linnet.ir import Value
from linnet.nest.card import Card
from linnet.policy import Policy, policy_named
from linnet.reference import evaluate
from linnet.verification import draw
from linnet.verification.compare import (
    SAME,
    Difference,
    bound_of,
    difference,
    untouched,
)
from linnet.verification.draw import Case
from linnet.verification.locate import Place, locate
from linnet.verification.runners import Runner, Way, chosen
from linnet.verification.sizes import choices
from linnet.verification.subject import Asked, Subject, open_subject
from linnet.weights.arrays import as_array

Array = np.ndarray[Any, Any]
States = dict[str, Array]


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """A case, and what the reference makes of it: results, flat, and every state after it."""

    case: Case
    results: list[Array]
    states: States


@dataclass(frozen=True, slots=True)
class Failure:
    """A case in which a backend is not what the reference is.

    `where` is the result or the state, `error` what the backend said where it gave nothing,
    `place` the step that goes wrong.
    """

    case: Case
    where: str
    difference: Difference
    bound: float
    error: str = ""
    place: Place | None = None


@dataclass(slots=True)
class Outcome:
    """An entry on a backend: its worst difference over all cases, and the first that failed.

    `ties` are cases that differ since a decision between numbers as good as equal fell otherwise.
    """

    entry: str
    way: str
    bound: float
    worst: float = 0.0
    worst_state: float = 0.0
    cases: list[str] = field(default_factory=list[str])
    failure: Failure | None = None
    ties: list[Failure] = field(default_factory=list[Failure])
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """What was verified, how, and what came of it."""

    subject: Subject
    policy: Policy
    seed: int
    full: bool
    ways: list[Way]
    absent: dict[str, str]  # backends that were not run, each with why
    cases: dict[str, list[Case]]
    refused: dict[str, str]  # entries that the generics rule out, each with the clause
    untried: list[str]  # entries for which no inputs were found
    outcomes: list[Outcome]
    seconds: float

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.failure is not None]

    @property
    def agrees(self) -> bool:
        """Every entry was tried, on every backend that is installed, and none failed."""
        return not self.failures and not self.untried


Told = Callable[[str], None]


def verify(
    model: str | Path | Card,
    *,
    backends: Sequence[str] | None = None,
    entries: Iterable[str] | None = None,
    numerics: str = "fast",
    generics: Mapping[str, Value] | None = None,
    root: str | None = None,
    full: bool = False,
    weights: str | Path | None = None,
    seed: int = 0,
    std_root: str | Path | None = None,
    told: Told | None = None,
) -> Report:
    """The entries of a card, a package or a file on each backend, compared with the reference.

    Without `full` the program is made small (`sizes.reduced`) and its weights are drawn from
    `seed`; with it, sizes and weights are the card's, or those of `weights`. `backends` are names
    of `runners.WAYS`, all that are installed without any; `numerics` is their policy. `told` hears
    of each backend as it starts. Raises PlanError or NestError for what cannot be verified at all:
    source with errors, generics, entries or backends that there are not.
    """
    started = time.perf_counter()
    policy, told = policy_named(numerics), told or (lambda line: None)
    ways, missing = chosen(backends)
    absent = {w.name: f"{w.missing} is not installed (linnet[{w.extra}])" for w in missing}
    named = None if entries is None else tuple(entries)
    asked = Asked(generics or {}, named, root, full, weights, seed, std_root)
    subject = open_subject(model, asked)
    told(f"reference: {subject.name}")
    meant = optimize(subject.program, "exact")
    before = draw.states(meant, seed)
    refused = {**meant.refused, **_ruled_out(meant)}
    cases = {
        name: draw.cases(function, choices(function, subject.room), seed)
        for name, function in meant.entries.items()
        if name not in refused
    }
    wanted = {
        name: [_expected(meant, name, case, subject.weights, before) for case in each]
        for name, each in cases.items()
    }
    program = optimize(subject.program, policy)
    runs = _runs(ways, program, policy, subject.weights, before, wanted, told)
    for way, run in zip(ways, runs, strict=True):
        if isinstance(run, PlanError):
            if backends is not None:
                raise run
            absent[way.name] = str(run)
    made = [(way, run) for way, run in zip(ways, runs, strict=True) if isinstance(run, list)]
    return Report(
        subject,
        policy,
        seed,
        full,
        [way for way, _ in made],
        absent,
        cases,
        refused,
        [name for name, each in cases.items() if not each],
        [outcome for _, outcomes in made for outcome in outcomes],
        time.perf_counter() - started,
    )


def _ruled_out(program: Program) -> dict[str, str]:
    """The entries that no sizes of their own can make callable, each with the clause."""
    found: dict[str, str] = {}
    for name, function in program.entries.items():
        never = [str(f) for f in function.facts if not f.names() and not f.holds({})]
        found |= {name: f"{name} requires {', '.join(never)}"} if never else {}
    return found


def _runs(
    ways: Sequence[Way],
    program: Program,
    policy: Policy,
    weights: Mapping[str, Array],
    before: States,
    wanted: Mapping[str, Sequence[Expected]],
    told: Told,
) -> list[list[Outcome] | PlanError]:
    """What each way gives; or why it cannot run here.

    Those of one framework run one after another, the frameworks beside each other: most of the
    time is theirs, spent in compilers.
    """
    stopped = Event()

    def one(way: Way) -> list[Outcome] | PlanError:
        told(way.name)
        try:
            runner = way.make(program, policy, weights)
        except PlanError as error:
            return error
        trial = _Trial(way, runner, program, policy, weights, before)
        found: list[Outcome] = []
        for name, each in wanted.items():
            if each and not stopped.is_set():
                found.append(trial.entry(name, each))
        return found

    def several(group: list[Way]) -> list[list[Outcome] | PlanError]:
        return [one(way) for way in group]

    groups = [[w for w in ways if w.extra == x] for x in dict.fromkeys(w.extra for w in ways)]
    with ThreadPoolExecutor(max(1, min(len(groups), os.cpu_count() or 1))) as pool:
        try:
            made = [run for runs in pool.map(several, groups) for run in runs]
        finally:
            stopped.set()
    order = [way.name for group in groups for way in group]
    return [made[order.index(way.name)] for way in ways]


def _expected(
    program: Program, name: str, case: Case, weights: Mapping[str, Array], before: States
) -> Expected:
    function, states = program.entries[name], dict(before)
    found = evaluate(
        program, name, case.arguments(function), weights, states, case.generics(function)
    )
    return Expected(case, _flat(found), states)


def _flat(value: Any) -> list[Array]:
    if value is None:
        return []
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in _flat(part)]
    return [as_array(value)]


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """A program on one backend."""

    way: Way
    runner: Runner
    program: Program
    policy: Policy
    weights: Mapping[str, Array]
    before: States

    def entry(self, name: str, wanted: Sequence[Expected]) -> Outcome:
        """All cases of an entry, the first that fails looked into."""
        started = time.perf_counter()
        bound = bound_of(self.program, self.program.entries[name], self.policy)
        outcome = Outcome(name, self.way.name, bound)
        for each in wanted:
            outcome.cases.append(each.case.name)
            failure = self.case(name, each, outcome)
            if failure is None:
                continue
            if not failure.error:
                failure = self.looked_into(name, failure)
            if failure.place is not None and failure.place.kind == "decision":
                outcome.ties.append(failure)
                continue
            outcome.failure = failure
            break
        outcome.seconds = time.perf_counter() - started
        return outcome

    def case(self, name: str, wanted: Expected, outcome: Outcome) -> Failure | None:
        """What fails in a case; the worst differences of those that do not are noted."""
        case, bound = wanted.case, outcome.bound
        function = self.program.entries[name]
        try:
            found, after = self.runner.run(
                name, case.arguments(function), case.generics(function), self.before
            )
        except Exception as error:  # a framework may raise anything: it is the backend's failure
            return Failure(case, "error", SAME, bound, _said(error))
        worst, state, failure = 0.0, 0.0, None
        flat = _flat(found)
        for number, (a, b) in enumerate(zip(wanted.results, flat, strict=True)):
            apart = difference(a, b)
            worst = max(worst, apart.worst)
            if not apart.within(bound) and failure is None:
                where = "its result" if len(flat) == 1 else f"result {number}"
                failure = Failure(case, where, apart, bound)
        for path, array in after.items():
            apart, moved = difference(wanted.states[path], array), SAME
            if apart.within(bound):
                moved = untouched(self.before[path], wanted.states[path], array)
            state = max(state, apart.worst)
            if not (apart.within(bound) and moved.within(0.0)) and failure is None:
                left = moved if not moved.within(0.0) else apart
                kept = " where nothing is written" if left is moved else ""
                failure = Failure(case, f"state {path}{kept}", left, bound)
        if failure is None:
            outcome.worst = max(outcome.worst, worst)
            outcome.worst_state = max(outcome.worst_state, state)
        return failure

    def looked_into(self, name: str, failure: Failure) -> Failure:
        """The failure with the step that goes wrong, if one is found."""
        case, function = failure.case, self.program.entries[name]
        arguments, generics = case.arguments(function), case.generics(function)

        def run(program: Program) -> Sequence[Array]:
            try:
                runner = self.way.make(program, self.policy, self.weights)
                found, _ = runner.run(name, arguments, generics, self.before)
            except Exception as error:  # as above
                raise LinnetError(_said(error)) from error
            return _flat(found)

        held = {"state": self.before}
        given = [
            *case.inputs,
            *(
                _member(p.name, p.of, held.get(p.kind, self.weights))
                for p in function.params[len(case.inputs) :]
            ),
        ]
        try:
            place = locate(self.program, name, given, case.sizes, self.policy, run)
        except LinnetError as error:
            return _with(failure, None, f"it could not be looked into: {error}")
        return _with(failure, place)


def _with(failure: Failure, place: Place | None, error: str = "") -> Failure:
    return Failure(failure.case, failure.where, failure.difference, failure.bound, error, place)


def _member(path: str, of: ValueType, held: Mapping[str, Any]) -> Any:
    """A parameter's value as functions take it: along an array one for each element."""
    if isinstance(of, ArrayType):
        return tuple(
            _member(path.replace("*", str(i), 1), of.element, held) for i in range(of.length)
        )
    return held[path]


def _said(error: Exception) -> str:
    """What a user is told of an error: ours whole, another's first line."""
    if isinstance(error, LinnetError):
        return str(error)
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"
