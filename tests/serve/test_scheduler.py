"""The scheduler and its pool, by any order of arrivals, passes, ends and cancellations."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from linnet.serve.pages import PagePool
from linnet.serve.scheduler import Plan, Scheduler, Sequence


class Memory:
    """What keys and values would lie in the pages: for each place, the tokens up to it."""

    def __init__(self, pool: PagePool) -> None:
        self.size = pool.size
        self.places: dict[tuple[int, int], tuple[int, ...]] = {}

    def compute(self, plan: Plan) -> None:
        """The pass of a plan, in which every token must find all before it as it left them."""
        for source, target in plan.copies:
            for at in range(self.size):
                if (source, at) in self.places:
                    self.places[target, at] = self.places[source, at]
        for chunk in plan.chunks:
            tokens, pages = chunk.sequence.tokens, chunk.sequence.pages
            for at in range(chunk.start, chunk.start + chunk.count):
                self.places[pages[at // self.size], at % self.size] = tuple(tokens[: at + 1])
        for chunk in plan.chunks:
            tokens, pages = chunk.sequence.tokens, chunk.sequence.pages
            for at in range(chunk.start + chunk.count):
                held = self.places[pages[at // self.size], at % self.size]
                assert held == tuple(tokens[: at + 1]), (at, held)


def next_token(tokens: list[int], seed: int) -> int:
    """A model of two tokens; so prompts often begin alike."""
    return random.Random(f"{seed}{tokens}").randrange(2)


class Serving(RuleBasedStateMachine):
    """Requests of a model that can be told what it will say, over few pages."""

    @initialize(
        pages=st.integers(3, 12),
        size=st.integers(1, 4),
        rows=st.integers(1, 4),
        spare=st.integers(1, 9),
        whole=st.booleans(),
    )
    def begin(self, pages: int, size: int, rows: int, spare: int, whole: bool) -> None:
        self.whole = whole
        self.longest = pages * size
        if whole:  # rows of the caches are pages that hold a whole request
            pages, self.longest = rows, 8
            size, spare = self.longest, self.longest
        self.pool = PagePool(pages, size)
        self.scheduler = Scheduler(self.pool, rows=rows, budget=rows + spare, whole=whole)
        self.memory = Memory(self.pool)
        self.alive: dict[Sequence, tuple[int, list[int]]] = {}  # its seed and its prompt
        self.idle = 0

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=9),
        new=st.integers(1, 9),
        n=st.integers(1, 3),
        seed=st.integers(0, 3),
    )
    def submit(self, prompt: list[int], new: int, n: int, seed: int) -> None:
        limit = min(len(prompt) + new, self.longest + 1 - self.whole)
        if len(prompt) >= limit:
            assert len(prompt) >= self.longest
            return
        assert self.scheduler.fits(limit)
        forks = [Sequence(list(prompt), limit) for _ in range(n - 1)]
        first = Sequence(list(prompt), limit, forks=forks)
        self.scheduler.add(first)
        for k, one in enumerate((first, *forks)):
            self.alive[one] = (seed + k, list(prompt))

    @rule(which=st.integers(0, 99))
    def cancel(self, which: int) -> None:
        if self.alive:
            one = list(self.alive)[which % len(self.alive)]
            self.scheduler.drop(one)
            del self.alive[one]

    @rule()
    def restart(self) -> None:
        self.scheduler.restart()
        self.memory.places.clear()

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.one_step()

    def one_step(self) -> None:
        oldest = self.scheduler.running[0] if self.scheduler.running else None
        plan = self.scheduler.plan()
        assert bool(plan.chunks) == bool(self.alive)
        assert plan.tokens <= self.scheduler.budget
        if oldest is not None:
            assert any(chunk.sequence is oldest for chunk in plan.chunks), "the oldest stood still"
        assert len({chunk.sequence for chunk in plan.chunks}) == len(plan.chunks)
        for chunk in plan.chunks:
            assert chunk.sequence in self.alive
            assert chunk.start == chunk.sequence.computed
            assert 0 < chunk.count <= chunk.sequence.lag
            assert chunk.ends == (chunk.count == chunk.sequence.lag)
            assert chunk.ends or not self.whole
            first, last = (
                at // self.pool.size for at in (chunk.start, chunk.start + chunk.count - 1)
            )
            written = chunk.sequence.pages[first : last + 1]
            assert all(self.pool.holders(page) == 1 for page in written), "two write in a page"
        self.memory.compute(plan)
        drawn: dict[Sequence, int] = {}
        for chunk in plan.chunks:
            for one in (chunk.sequence, *chunk.sequence.forks) if chunk.ends else ():
                drawn[one] = next_token(one.tokens, self.alive[one][0])
        self.scheduler.apply(plan, drawn)
        for one in list(drawn):
            if len(one.tokens) == one.limit:
                self.finish(one)

    def finish(self, one: Sequence) -> None:
        """It is as long as it may be, and each token is what the model says after those before."""
        seed, prompt = self.alive.pop(one)
        wanted = list(prompt)
        while len(wanted) < one.limit:
            wanted.append(next_token(wanted, seed))
        assert one.tokens == wanted
        self.scheduler.drop(one)

    @invariant()
    def balanced(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check()
            waiting = [f for one in self.scheduler.waiting for f in one.forks]
            waiting += [f for one in self.scheduler.running for f in one.forks]
            known = {*self.scheduler.running, *self.scheduler.waiting, *waiting}
            assert known == set(self.alive)

    def teardown(self) -> None:
        """Whoever is there is served to the end, in so many passes as they can need at most."""
        if not hasattr(self, "scheduler"):
            return
        passes = sum(2 * one.limit + 2 for one in self.alive) * (1 + len(self.alive))
        while self.alive and passes:
            passes -= 1
            self.one_step()
            self.balanced()
        assert not self.alive, "somebody starves"
        assert not self.scheduler.busy
        assert self.pool.free == self.pool.pages


def by_chance(seed: int) -> None:
    """A busy machine: more arrives than fits, many answers to a prompt, few cancellations."""
    draw = random.Random(seed)
    machine = Serving()
    pages, size, rows, spare = (draw.randint(*pair) for pair in ((3, 12), (1, 4), (1, 5), (1, 9)))
    machine.begin(pages=pages, size=size, rows=rows, spare=spare, whole=draw.random() < 0.15)
    for _ in range(60):
        match draw.choices(("submit", "step", "cancel", "restart"), (40, 55, 4, 1))[0]:
            case "submit":
                prompt = [draw.randrange(2) for _ in range(draw.randint(1, 9))]
                new, n, own = draw.randint(1, 9), draw.choice((1, 1, 2, 3)), draw.randrange(4)
                machine.submit(prompt=prompt, new=new, n=n, seed=own)
            case "step":
                machine.step(count=draw.randint(1, 4))
            case "cancel":
                machine.cancel(which=draw.randrange(99))
            case _:
                machine.restart()
        machine.balanced()
    machine.teardown()


@pytest.mark.parametrize("part", range(4))
def test_many_schedules(part: int) -> None:
    for seed in range(40):
        by_chance(1000 * part + seed)


@pytest.mark.slow
def test_any_order_of_events() -> None:
    run_state_machine_as_test(
        Serving, settings=settings(max_examples=200, stateful_step_count=60, deadline=None)
    )
