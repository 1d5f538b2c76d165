"""Who advances in the next pass, by how much, and over which pages: no tensors, no clock.

There are no phases. A sequence has tokens, of which the first `computed` have their keys and values
in its pages; every pass computes some of the rest, and where it computes the last one, a new token
can be drawn. A prompt in chunks, a step of one token, and a sequence that starts again after it
lost its pages are all this one subtraction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from linnet.serve.pages import START, PagePool, chained


@dataclass(slots=True, eq=False)
class Sequence:
    """The tokens of one answer, the prompt's first, and the pages for those computed.

    It never gets more than `limit` tokens. `forks` are further answers to the same prompt, which
    begin when this one has its first token.
    """

    tokens: list[int]
    limit: int
    forks: list[Sequence] = field(default_factory=list["Sequence"])
    computed: int = 0
    pages: list[int] = field(default_factory=list[int])
    digests: list[bytes] = field(default_factory=list[bytes])
    arrival: int = -1
    cached: int = 0

    @property
    def lag(self) -> int:
        """How many tokens have no keys and values yet."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start` to `start + count` of a sequence; `ends`: a token is drawn after them."""

    sequence: Sequence
    start: int
    count: int
    ends: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """One pass: first pages are copied, from and to, then the chunks are computed."""

    chunks: tuple[Chunk, ...]
    copies: tuple[tuple[int, int], ...] = ()

    @property
    def tokens(self) -> int:
        return sum(chunk.count for chunk in self.chunks)


class Scheduler:
    """Sequences that wait and sequences that run, at most `rows` of them.

    A pass computes at most `budget` tokens, which is more than there are rows. Running sequences
    come first: those that want one token, then the others in the order of their arrival; what is
    left of the budget admits those that wait, the longest waiting first. Where no page is left, the
    latest arrival gives up its pages and waits again, before all others. So the earliest arrival
    always advances, and nobody starves. With `whole`, a prompt is computed in one pass.
    """

    def __init__(self, pool: PagePool, *, rows: int, budget: int, whole: bool = False) -> None:
        assert budget > rows
        self.pool = pool
        self.rows = rows
        self.budget = budget
        self.whole = whole
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in the order of their arrival
        self.preemptions = 0
        self._arrivals = 0

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def fits(self, limit: int) -> bool:
        """Whether a sequence of so many tokens can ever be finished."""
        return self._pages(limit - 1) <= self.pool.pages

    def add(self, sequence: Sequence) -> None:
        """The sequence waits, after all others."""
        for one in (sequence, *sequence.forks):
            one.arrival = self._arrivals
            self._arrivals += 1
        self.waiting.append(sequence)

    def drop(self, sequence: Sequence) -> None:
        """The sequence is over: it neither runs nor waits, and holds nothing.

        Forks of it that have not begun go on without it.
        """
        if sequence in self.running:
            self.running.remove(sequence)
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        for other in (*self.running, *self.waiting):
            if sequence in other.forks:
                other.forks.remove(sequence)
        heirs, sequence.forks = sequence.forks, []
        if heirs:
            first = heirs[0]
            first.forks = heirs[1:]
            self._await(first)
        self._let_go(sequence)

    # ------------------------------------------------ what comes next

    def plan(self) -> Plan:
        """The next pass; without chunks, there is nothing to do."""
        chunks: dict[Sequence, Chunk] = {}
        copies: dict[Sequence, tuple[int, int]] = {}
        budget = self.budget
        for sequence in sorted(self.running, key=lambda one: (one.lag > 1, one.arrival)):
            if sequence not in self.running:
                continue  # it gave up its pages for another one
            count = self._count(sequence, budget)
            if not count or not self._reach(sequence, count, chunks, copies):
                continue
            chunks[sequence] = self._chunk(sequence, count)
            budget = self.budget - sum(chunk.count for chunk in chunks.values())
        while self.waiting and len(self.running) < self.rows and budget:
            sequence = self.waiting[0]
            found = self._found(sequence)
            count = self._count(sequence, budget, len(found) * self.pool.size)
            if not count or not self._room(sequence, found):
                break
            self._admit(self.waiting.popleft(), found)
            reached = self._reach(sequence, count, chunks, copies)
            assert reached, "room was looked for"
            chunks[sequence] = self._chunk(sequence, count)
            budget -= count
        assert chunks or not self.busy, "somebody always advances"
        return Plan(tuple(chunks.values()), tuple(copies.values()))

    def _count(self, sequence: Sequence, budget: int, computed: int | None = None) -> int:
        """How many of its tokens are computed next."""
        lag = len(sequence.tokens) - (sequence.computed if computed is None else computed)
        if self.whole and lag > budget:
            return 0
        return min(lag, budget)

    def _chunk(self, sequence: Sequence, count: int) -> Chunk:
        return Chunk(sequence, sequence.computed, count, count == sequence.lag)

    def _pages(self, positions: int) -> int:
        """How many pages hold so many positions."""
        return -(-positions // self.pool.size)

    def _reach(
        self,
        sequence: Sequence,
        count: int,
        chunks: dict[Sequence, Chunk],
        copies: dict[Sequence, tuple[int, int]],
    ) -> bool:
        """The sequence has pages of its own for `count` more tokens, others giving way to it.

        False where it gave way itself.
        """
        at = sequence.computed // self.pool.size
        if at < len(sequence.pages) and self.pool.holders(sequence.pages[at]) > 1:
            if not self._free_one(sequence, chunks, copies):
                return False
            # Its holders may have given way just now: then nothing is copied.
            if self.pool.holders(sequence.pages[at]) > 1:
                shared, own = sequence.pages[at], self.pool.take()
                self.pool.release([shared])
                sequence.pages[at] = own
                copies[sequence] = (shared, own)
        while len(sequence.pages) < self._pages(sequence.computed + count):
            if not self._free_one(sequence, chunks, copies):
                return False
            sequence.pages.append(self.pool.take())
        return True

    def _free_one(
        self,
        sequence: Sequence,
        chunks: dict[Sequence, Chunk],
        copies: dict[Sequence, tuple[int, int]],
    ) -> bool:
        """A page is free, the latest arrivals giving way; False where that is the sequence."""
        while not self.pool.free:
            last = self.running[-1]
            self._preempt(last)
            chunks.pop(last, None)
            copies.pop(last, None)
            if last is sequence:
                return False
        return True

    # ------------------------------------------------ coming and going

    def _found(self, sequence: Sequence) -> list[int]:
        """The pages that hold what the sequence begins with, but for its last token."""
        size, found = self.pool.size, list[int]()
        for digest in self._digests(sequence, (len(sequence.tokens) - 1) // size):
            page = self.pool.find(digest)
            if page is None:
                break
            found.append(page)
        return found

    def _digests(self, sequence: Sequence, pages: int) -> Iterator[bytes]:
        """The digests of its first pages of tokens, which stay as they are."""
        size, known = self.pool.size, sequence.digests
        for at in range(pages):
            if at == len(known):
                before = known[-1] if known else START
                known.append(chained(before, sequence.tokens[at * size : (at + 1) * size]))
            yield known[at]

    def _room(self, sequence: Sequence, found: list[int]) -> bool:
        """Whether all of its tokens find room beside what runs, and what that soon needs.

        Who is let in on the last page is the first to give it up again.
        """
        taken = sum(map(self.pool.is_free, found))
        soon = sum(self._pages(one.limit - 1) > len(one.pages) for one in self.running)
        wanted = self._pages(len(sequence.tokens)) - len(found)
        return wanted + soon <= self.pool.free - taken

    def _admit(self, sequence: Sequence, found: list[int]) -> None:
        sequence.pages = [self.pool.share(page) for page in found]
        sequence.computed = sequence.cached = len(found) * self.pool.size
        self._run(sequence)

    def _run(self, sequence: Sequence) -> None:
        self.running.append(sequence)
        self.running.sort(key=lambda one: one.arrival)

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self.running.remove(sequence)
        self._let_go(sequence)
        self._await(sequence)

    def _await(self, sequence: Sequence) -> None:
        """The sequence waits, where its arrival places it."""
        later = (k for k, one in enumerate(self.waiting) if one.arrival > sequence.arrival)
        self.waiting.insert(next(later, len(self.waiting)), sequence)

    def _let_go(self, sequence: Sequence) -> None:
        """Its pages are no longer its own; the last ones are the first to be taken again."""
        self.pool.release(reversed(sequence.pages))
        sequence.pages = []
        sequence.computed = 0

    # ------------------------------------------------ what a pass has done

    def apply(self, plan: Plan, drawn: Mapping[Sequence, int]) -> None:
        """The chunks are computed, and the tokens that were drawn stand at the ends.

        Forks of a sequence that has its first token begin with it: on its pages where a row is
        free, else they wait. `drawn` has their tokens too.
        """
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if sequence not in self.running:
                continue  # it was dropped meanwhile
            sequence.computed = chunk.start + chunk.count
            before, full = (at // self.pool.size for at in (chunk.start, sequence.computed))
            digests = list(self._digests(sequence, full)) if full > before else []
            for at in range(before, full):
                self.pool.remember(sequence.pages[at], digests[at])
            if not chunk.ends:
                continue
            forks, sequence.forks = sequence.forks, []
            for fork in forks:
                self._fork(sequence, fork)
                fork.tokens.append(drawn[fork])
            sequence.tokens.append(drawn[sequence])

    def restart(self) -> None:
        """Everything is computed again, from the first token on: the weights are others now."""
        while self.running:
            self._preempt(self.running[-1])
        self.pool.forget()

    def _fork(self, sequence: Sequence, fork: Sequence) -> None:
        fork.digests = list(sequence.digests[: len(fork.tokens) // self.pool.size])
        if len(self.running) < self.rows and not self.whole:
            fork.pages = [self.pool.share(page) for page in sequence.pages]
            fork.computed = sequence.computed
            self._run(fork)
        else:
            self._await(fork)

    def check(self) -> None:
        """Raises AssertionError unless the books balance and every sequence has what it needs."""
        everyone = [*self.running, *self.waiting]
        assert len(set(map(id, everyone))) == len(everyone)
        self.pool.check(sequence.pages for sequence in everyone)
        assert len(self.running) <= self.rows
        for group in (self.running, list(self.waiting)):
            assert [one.arrival for one in group] == sorted(one.arrival for one in group)
        for sequence in self.waiting:
            assert not sequence.pages
            assert not sequence.computed
        for sequence in self.running:
            assert 0 <= sequence.computed <= len(sequence.tokens) <= sequence.limit
            assert len(sequence.pages) * self.pool.size >= sequence.computed
