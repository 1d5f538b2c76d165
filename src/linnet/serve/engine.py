"""The engine: many requests over one model, a pass at a time."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from linnet.diagnostics import InternalError, LinnetError
from linnet.serve.driver import Driver, driver_of
from linnet.serve.pages import NOBODYS, PagePool
from linnet.serve.passes import PagedPasses, Passes, RowPasses
from linnet.serve.request import Completion, Load, Matcher, Request, RequestError, Stats
from linnet.serve.sampling import Draw, DrawError, Drawn, draw
from linnet.serve.scheduler import Plan, Scheduler, Sequence
from linnet.serve.text import Detokenizer, Text

PAGED = ("prefill_paged", "decode_paged", "step_paged")


@dataclass(slots=True, eq=False)
class _Answer:
    """A completion that is under way, and what its next token needs."""

    completion: Completion
    sequence: Sequence
    capped: bool  # its limit is the cache's, not the request's
    matcher: Matcher | None
    stream: Detokenizer | None
    ends: frozenset[int]


class Engine:
    """Requests answered side by side by one model: submit them, then step until nobody is busy.

    `model` is one that `linnet.torch.load` or `linnet.jax.load_model` made, or `linnet.nest.load`
    by them. Where it has the entries over pages, its caches are one pool (`Batch = 1`, `MaxSeq`
    positions, of which the first page is nobody's) for up to `rows` requests at once, each of at
    most `max_len` tokens; prompts may share pages and come in chunks, so that a pass has at most
    `pack` tokens. Else (`paged=False`) each request has a row of the caches. `mix` lets running
    requests advance in the passes that admit prompts, `graphs` records passes that come again and
    again, `pad` is the id that fills up what is not used, `max_group` the most prompts of one
    `prefill_slots`. With `text`, completions have text, and requests may name stop strings. One
    thread at a time may use an engine.
    """

    def __init__(
        self,
        model: Any,
        *,
        text: Text | None = None,
        paged: bool | None = None,
        rows: int | None = None,
        max_len: int | None = None,
        pack: int | None = None,
        mix: bool = True,
        graphs: bool = True,
        pad: int = 0,
        max_group: int = 8,
    ) -> None:
        driver = driver_of(model, graphs)
        self.driver = driver
        self.text = text
        positions, batch = (_size(driver, name) for name in ("MaxSeq", "Batch"))
        most = driver.pack if pack is None else pack
        has_pages = all(name in driver.entries for name in PAGED) and batch == 1
        self.paged = has_pages if paged is None else paged
        if self.paged:
            _require(driver, PAGED)
            size = _size(driver, "PageSize")
            pages = positions // size - 1
            self.slots = rows or 32
            self.max_len = _longest(max_len, pages * size)
            if pages < 1:
                raise LinnetError(
                    f"MaxSeq is {positions} and PageSize {size}: the first page is nobody's, so "
                    f"MaxSeq must be {2 * size} or more"
                )
            columns = -(-self.max_len // size)
            self._passes: Passes = PagedPasses(driver, size, columns, self.slots, pad, mix)
        else:
            _require(driver, ("decode_rows",))
            if not {"prefill_packed", "prefill_slots"} & set(driver.entries):
                _require(driver, ("prefill_packed",))
            self.slots = batch
            self.max_len = _longest(max_len, positions)
            size, pages = positions, batch
            self._passes = RowPasses(driver, batch, positions - 1, pad, mix, max_group)
            most = max(most, self.max_len) + self.slots
        if not self.max_len > 1 or self.slots < 1 or most < 1:
            raise LinnetError(
                f"rows is {self.slots}, max_len {self.max_len} and pack {most}: a request needs a "
                "row, two positions or more, and passes of at least a token"
            )
        self.pool = PagePool(pages, size)
        self._scheduler = Scheduler(
            self.pool, rows=self.slots, budget=max(most, self.slots + 1), whole=not self.paged
        )
        self._answers: dict[Sequence, _Answer] = {}
        self._over: list[Completion] = []
        self.stats = Stats()

    # ------------------------------------------------ requests

    @property
    def busy(self) -> bool:
        """Whether a step has something to do."""
        return bool(self._answers or self._over)

    @property
    def load(self) -> Load:
        """What it holds at the moment."""
        running, pool = len(self._scheduler.running), self.pool
        held = pool.pages - pool.free
        return Load(len(self._answers) - running, running, pool.pages, held, pool.reusable)

    def submit(self, request: Request) -> Completion:
        """The first answer to the request, which waits now; `choices` has all of them.

        Raises RequestError, which names the field, for what can never be served.
        """
        self._check(request)
        seed = secrets.randbits(32) if request.seed is None else request.seed
        now = time.monotonic()
        made = [
            Completion(request, request.sampling(seed + k), k, submitted=now)
            for k in range(request.n)
        ]
        limit = min(len(request.prompt) + request.max_new_tokens, self.max_len)
        sequences = [Sequence(list(request.prompt), limit) for _ in made]
        sequences[0].forks = sequences[1:]
        for completion, sequence in zip(made, sequences, strict=True):
            completion.choices = tuple(made)
            self._answers[sequence] = _Answer(
                completion,
                sequence,
                limit < len(request.prompt) + request.max_new_tokens,
                request.grammar.start() if request.grammar else None,
                self.text.stream(tuple(request.stop)) if self.text else None,
                frozenset((*request.eos, *request.stop_ids)),
            )
        self._scheduler.add(sequences[0])
        self.stats.requests += 1
        self.stats.prompt_tokens += len(request.prompt)
        return made[0]

    def _check(self, request: Request) -> None:
        length, vocab = len(request.prompt), self.driver.vocab
        if not length:
            raise RequestError("the prompt is empty: it needs a token at least")
        for token in request.prompt:
            if not 0 <= token < vocab:
                raise RequestError(f"token {token} of the prompt is not below {vocab}")
        if length >= self.max_len:
            raise RequestError(
                f"the prompt is {length} tokens long; prompt and answer may be {self.max_len} "
                f"together, so shorten it to {self.max_len - 1} or fewer"
            )
        if request.max_new_tokens < 1:
            raise RequestError(
                f"max_new_tokens is {request.max_new_tokens}; it must be 1 or more",
                "max_new_tokens",
            )
        if request.n < 1:
            raise RequestError(f"n is {request.n}; it must be 1 or more", "n")
        if request.logprobs is not None and not 0 <= request.logprobs <= vocab:
            raise RequestError(
                f"logprobs is {request.logprobs}; it must be from 0 to {vocab}", "logprobs"
            )
        if request.stop and self.text is None:
            raise RequestError(
                "stop strings need text: give the engine a tokenizer (`Engine(model, text=...)`), "
                "or name stop_ids",
                "stop",
            )
        if "" in request.stop:
            raise RequestError("a stop string is empty", "stop")
        sampling = request.sampling(0)
        sampling.check()
        for token in sampling.logit_bias:
            if token >= vocab:
                raise RequestError(
                    f"logit_bias names token {token}; tokens are below {vocab}", "logit_bias"
                )

    def cancel(self, completion: Completion, reason: str = "cancelled") -> None:
        """The answer ends where it is, and its pages are free; one that is over stays as it is."""
        for answer in self._answers.values():
            if answer.completion is completion:
                self._end(answer, reason)
                self._over.remove(completion)  # who cancels knows of it
                return

    def run(self, requests: Iterable[Request]) -> tuple[list[Completion], Stats]:
        """All answers, in the order of requests and their choices, and what it took."""
        before, self.stats = self.stats, Stats()
        started = time.monotonic()
        firsts: list[Completion] = []
        try:
            for request in requests:
                firsts.append(self.submit(request))
            while self.busy:
                self.step()
        except BaseException:  # nobody else asks for these
            for one in [one for first in firsts for one in first.choices]:
                self.cancel(one)
            raise
        finally:
            stats, self.stats = self.stats, before
            stats.seconds = time.monotonic() - started
            _add(self.stats, stats)
        return [one for first in firsts for one in first.choices], stats

    # ------------------------------------------------ a step

    def step(self) -> list[Completion]:
        """One pass of the model for whoever is next; the answers that are over with it."""
        preempted = self._scheduler.preemptions
        plan = self._scheduler.plan()
        self.stats.preemptions += self._scheduler.preemptions - preempted
        if plan.chunks:
            self._admit(plan)
            if plan.copies:
                self.driver.copy_pages(plan.copies, self.pool.size)
            logits = self._passes.compute(plan)
            ending = [chunk.sequence for chunk in plan.chunks if chunk.ends]
            answers = [
                (row, self._answers[one])
                for row, sequence in enumerate(ending)
                for one in (sequence, *sequence.forks)
            ]
            drawn, failed = self._draw(logits, answers)
            tokens = {answer.sequence: one.token for answer, one in drawn}
            self._scheduler.apply(plan, {answer.sequence: 0 for answer, _ in failed} | tokens)
            self.stats.steps += 1
            self.stats.prefills += any(chunk.count > 1 for chunk in plan.chunks)
            self._fail(failed)
            self._take_all(drawn)
        over, self._over = self._over, []
        return over

    def _admit(self, plan: Plan) -> None:
        now = time.monotonic()
        for chunk in plan.chunks:
            completion = self._answers[chunk.sequence].completion
            if completion.admitted is None:
                completion.admitted = now
                completion.cached = chunk.sequence.cached
                self.stats.cached_tokens += completion.cached

    def _draw(
        self, logits: Any, answers: list[tuple[int, _Answer]]
    ) -> tuple[list[tuple[_Answer, Drawn]], list[tuple[_Answer, str]]]:
        """A token for each answer from its row of the logits; and those without one, and why."""
        failed: list[tuple[_Answer, str]] = []
        while answers:
            draws = [
                Draw(
                    answer.completion.sampling,
                    len(answer.completion.request.prompt) + len(answer.completion.tokens),
                    answer.completion.request.prompt,
                    answer.completion.tokens,
                    answer.matcher,
                    answer.completion.request.logprobs,
                )
                for _, answer in answers
            ]
            rows = [row for row, _ in answers]
            own = logits if rows == list(range(len(logits))) else logits[rows]
            try:
                drawn = draw(own, draws)
            except DrawError as error:
                failed += [(answers[at][1], why) for at, why in error.reasons.items()]
                answers = [one for at, one in enumerate(answers) if at not in error.reasons]
                continue
            return [(answer, one) for (_, answer), one in zip(answers, drawn, strict=True)], failed
        return [], failed

    def _fail(self, failed: list[tuple[_Answer, str]]) -> None:
        """The answers are over, and what no number is leaves the pages with them.

        A query does not see what is not written yet of a page, yet may count it as 0 times that.
        """
        pages = [page for answer, _ in failed for page in answer.sequence.pages]
        for answer, message in failed:
            answer.completion.error = message
            self._end(answer, "error")
        if pages and self.paged:
            free = self.pool.forget_free(pages)
            self.driver.clear_pages([NOBODYS, *free], self.pool.size)

    def _take_all(self, drawn: list[tuple[_Answer, Drawn]]) -> None:
        """Each answer has its token; then what a callback raised is raised."""
        now = time.monotonic()
        raised: BaseException | None = None
        for answer, one in drawn:
            try:
                self._take(answer, one, now)
            except BaseException as error:
                raised = raised or error
        if raised is not None:
            raise raised

    def _take(self, answer: _Answer, drawn: Drawn, now: float) -> None:
        """The token belongs to the answer, which may end with it."""
        completion, request = answer.completion, answer.completion.request
        if completion.reason is not None:
            return  # a callback of an earlier answer cancelled this one
        if completion.first_token is None:
            completion.first_token = now
            completion.admitted = completion.admitted or now  # an answer to a prompt that ran
        completion.tokens.append(drawn.token)
        self.stats.generated_tokens += 1
        if request.logprobs is not None:
            assert drawn.logprob is not None
            completion.logprobs.append(drawn.logprob)
            completion.top_logprobs.append(drawn.top)
        reason = self._reason(answer, drawn.token)
        if reason is not None:
            self._end(answer, reason)
        if request.on_token is not None:
            request.on_token(completion, drawn.token)

    def _reason(self, answer: _Answer, token: int) -> str | None:
        """Why the answer ends with the token, if it does; its text grows by what is settled."""
        request = answer.completion.request
        if token in answer.ends:
            return "eos" if token in request.eos else "stop"
        if answer.stream is not None:
            answer.completion.text += answer.stream.push(token)
            if answer.stream.stopped is not None:
                return "stop"
        if answer.matcher is not None:
            try:
                answer.matcher.accept(token)
            except (LinnetError, InternalError) as error:  # it fails alone
                answer.completion.error = str(error)
                return "error"
            if answer.matcher.finished:
                return "eos"
        if len(answer.sequence.tokens) < answer.sequence.limit:
            return None
        return "cache" if answer.capped else "length"

    def _end(self, answer: _Answer, reason: str) -> None:
        completion = answer.completion
        completion.reason = reason
        completion.finished = time.monotonic()
        if answer.stream is not None:
            completion.text += answer.stream.finish()
        self._scheduler.drop(answer.sequence)
        del self._answers[answer.sequence]
        self._over.append(completion)

    # ------------------------------------------------ the whole

    def warmup(self, prompt_lengths: Iterable[int] = ()) -> None:
        """What steps, and passes of prompts of these lengths, build or record once is there."""
        self._passes.warm(prompt_lengths)

    def reset(self) -> None:
        """No request is left, no page is held or remembered, and the statistics begin again."""
        for answer in list(self._answers.values()):
            self._end(answer, "reset")
        self._over = []
        self.pool.forget()
        self.driver.reset()
        self.stats = Stats()

    def load_weights(self, model: Any) -> None:
        """The weights become those of another model of the same source, between two steps.

        Requests that run are computed again up to where they are, and go on from there.
        """
        self.driver.copy_weights(model)
        self._scheduler.restart()

    def check(self) -> None:
        """Raises AssertionError unless the books balance."""
        self._scheduler.check()


def _size(driver: Driver, name: str) -> int:
    size = driver.sizes.get(name)
    if not isinstance(size, int):
        raise LinnetError(
            f"the model has no generic {name}: an engine needs a decoder with caches, as "
            "`std.nn.decoder::Decoder` has them"
        )
    return size


def _longest(max_len: int | None, positions: int) -> int:
    """The most tokens of a request, prompt and answer."""
    if max_len is not None and max_len > positions > 0:
        raise LinnetError(
            f"max_len is {max_len}: the model was loaded with caches that hold {positions} tokens "
            "of a request; give MaxSeq more, or leave max_len out"
        )
    return positions if max_len is None else max_len


def _require(driver: Driver, names: Iterable[str]) -> None:
    missing = [name for name in names if name not in driver.entries]
    if missing:
        raise LinnetError(
            f"the model has no entry {' or '.join(missing)}, which serving needs; load it with "
            "them (`entries=`), or implement `std.nn.decoder::Decoder`, which has all"
        )


def _add(total: Stats, more: Stats) -> None:
    for name in Stats.__slots__:
        setattr(total, name, getattr(total, name) + getattr(more, name))
