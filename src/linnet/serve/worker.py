"""One thread that drives an engine, and what the rest of a server asks of it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic

from linnet.diagnostics import LinnetError
from linnet.serve.engine import Engine
from linnet.serve.errors import ApiError, refused, report
from linnet.serve.metrics import Metrics
from linnet.serve.request import Completion, Request, RequestError

log = logging.getLogger("linnet.serve")

# Fields of a Request that have other names in the API.
NAMES = {"stop_ids": "stop_token_ids", "max_new_tokens": "max_tokens", "grammar": "response_format"}


@dataclass(frozen=True, slots=True)
class News:
    """Answer `choice` has one token more, and this new text; without a token, it is finished."""

    choice: int
    token: int | None
    text: str


@dataclass(eq=False, slots=True)
class Answers:
    """The answers to some requests while they grow; `completions` are there once accepted."""

    requests: Sequence[Request]
    loop: asyncio.AbstractEventLoop
    completions: list[Completion] = field(default_factory=list[Completion])
    unfinished: set[int] = field(default_factory=set[int])
    news: list[News] = field(default_factory=list[News])
    queue: asyncio.Queue[list[News] | ApiError | None] = field(default_factory=asyncio.Queue)
    last: dict[int, float] = field(default_factory=dict[int, float])
    told: dict[int, int] = field(default_factory=dict[int, int])  # characters
    closed: bool = False

    @property
    def count(self) -> int:
        """How many answers these will be."""
        return sum(request.n for request in self.requests)

    def tell(self, choice: int, token: int | None, text: str) -> None:
        """The answer's text is this now; who reads slowly holds no more than what is new in it."""
        self.news.append(News(choice, token, text[self.told.get(choice, 0) :]))
        self.told[choice] = len(text)

    async def accepted(self) -> None:
        """Returns once the engine has taken all requests; raises ApiError where it refuses one."""
        first = await self.queue.get()
        if isinstance(first, ApiError):
            raise first

    async def __aiter__(self) -> AsyncIterator[list[News]]:
        """What happens, as it happens, until all answers are finished."""
        waiting = self.count
        while waiting:
            news = await self.queue.get()
            if isinstance(news, ApiError):
                raise news
            assert news is not None
            yield news
            waiting -= sum(one.token is None for one in news)


class Worker:
    """Drives an engine from a thread of its own; everything else may be called from any thread.

    At most `max_queue` answers wait beside those that the engine has rows for. An engine that
    raises has failed: `failure` says why, and whatever is asked from then on is refused.
    """

    def __init__(self, engine: Engine, metrics: Metrics, *, max_queue: int = 256) -> None:
        self.engine = engine
        self.metrics = metrics
        self.max_queue = max_queue
        self.failure: str | None = None
        self.draining = False
        self.open = 0
        self._answers: dict[Completion, tuple[Answers, int]] = {}
        self._told: dict[Answers, None] = {}
        self._commands: list[Callable[[], None]] = []
        self._doing: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._stopped = False
        self._seconds = 1.0
        self._thread = threading.Thread(target=self._run, name="linnet-engine", daemon=True)

    # ------------------------------------------------ from any thread

    def start(self) -> None:
        """The engine runs from here on."""
        self._thread.start()

    def stop(self) -> None:
        """The thread ends after the step that it is in."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def drain(self) -> None:
        """No new requests from here on."""
        self.draining = True

    def refusal(self) -> ApiError | None:
        """Why no request is taken at all, or None."""
        if self.failure is not None:
            return ApiError(503, f"the engine has failed: {self.failure}", code="engine_failed")
        if self.draining or self._stopped:
            return ApiError(503, "the server is shutting down", code="shutting_down")
        return None

    def submit(self, requests: Sequence[Request]) -> Answers:
        """The answers to requests; called in an event loop, which hears what becomes of them.

        Raises ApiError where there is no room (429), or no engine (503).
        """
        answers = Answers(requests, asyncio.get_running_loop())
        with self._changed:
            refusal = self.refusal()
            if refusal is not None:
                raise refusal
            if self.open >= self.engine.slots + self.max_queue:
                raise ApiError(
                    429,
                    f"the queue is full: {self.open} answers are being made or wait, and "
                    f"{self.max_queue} may wait; try again later",
                    code="queue_full",
                    headers={"retry-after": str(self._retry_after())},
                )
            self.open += answers.count
            self._commands.append(partial(self._submit, answers))
            self._changed.notify()
        return answers

    def cancel(self, answers: Answers) -> None:
        """Nothing more is made of what is unfinished, from the next step on."""
        with self._changed:
            self._commands.append(partial(self._cancel, answers))
            self._changed.notify()

    def _retry_after(self) -> int:
        """Seconds until about a quarter of the rows are free: what requests take of late."""
        return max(1, min(60, round(self._seconds / 4)))

    # ------------------------------------------------ in the thread

    def _run(self) -> None:
        try:
            while self._turn():
                self._tell()
        except Exception as error:
            self._fail(error)

    def _turn(self) -> bool:
        """One step, after what was asked since the last; False when the thread is to end."""
        with self._changed:
            while not (self._commands or self._stopped or self.engine.busy):
                self._changed.wait()
            if self._stopped:
                return False
            self._doing, self._commands = self._commands, []
        while self._doing:
            self._doing[0]()
            del self._doing[0]
        if self.engine.busy:
            for completion in self.engine.step():
                self._finished(completion)
        self.metrics.load = self.engine.load
        return True

    def _submit(self, answers: Answers) -> None:
        error: ApiError | None = None
        base = 0
        for request in answers.requests:
            noting = replace(request, on_token=partial(self._token, answers, base))
            try:
                first = self.engine.submit(noting)
            except RequestError as refusal:
                error = refused(refusal, NAMES)
            except LinnetError as refusal:
                error = ApiError(400, str(refusal), code="invalid_value")
            except Exception as bug:
                report("a request was not taken", bug)
                error = ApiError(500, f"the engine could not take it: {type(bug).__name__}: {bug}")
            if error is not None:
                self._cancel(answers)
                self._call(answers, [error])
                return
            for completion in first.choices:
                self._answers[completion] = (answers, base + completion.choice)
            answers.completions += first.choices
            base += request.n
        answers.unfinished.update(range(base))
        self._call(answers, [None])

    def _cancel(self, answers: Answers) -> None:
        if answers.closed:
            return
        for completion in answers.completions:
            if self._answers.pop(completion, None) is not None:
                self.engine.cancel(completion)
                self.metrics.requests.labels("cancelled").inc()
        self._close(answers)

    def _close(self, answers: Answers) -> None:
        answers.closed = True
        with self._changed:
            self.open -= answers.count

    def _token(self, answers: Answers, base: int, completion: Completion, token: int) -> None:
        now = monotonic()
        choice = base + completion.choice
        before = answers.last.get(choice)
        answers.last[choice] = now
        self.metrics.token(now - (completion.submitted if before is None else before), not before)
        answers.tell(choice, token, completion.text)
        self._told[answers] = None

    def _finished(self, completion: Completion) -> None:
        answers, choice = self._answers.pop(completion, (None, 0))
        if answers is None:
            return
        seconds = (completion.finished or monotonic()) - completion.submitted
        self._seconds += 0.1 * (seconds - self._seconds)
        self.metrics.finished(completion, seconds)
        answers.tell(choice, None, completion.text)
        answers.unfinished.discard(choice)
        self._told[answers] = None
        if not answers.unfinished:
            self._close(answers)

    def _tell(self) -> None:
        """What happened in a step goes to those who asked, all at once."""
        told, self._told = list(self._told), {}
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Answers, list[News]]]] = {}
        for answers in told:
            news, answers.news = answers.news, []
            by_loop.setdefault(answers.loop, []).append((answers, news))
        for loop, batch in by_loop.items():
            _in(loop, partial(_deliver, batch))

    def _call(self, answers: Answers, what: list[ApiError | None]) -> None:
        _in(answers.loop, partial(_deliver, [(answers, one) for one in what]))

    def _fail(self, error: Exception) -> None:
        """Whoever waits hears of it; nobody waits in vain."""
        report("the engine has failed", error)
        with self._changed:
            self.failure = f"{type(error).__name__}: {error}"
            waiting = {answers: None for answers, _ in self._answers.values()}
            for command in (*self._doing, *self._commands):
                if isinstance(command, partial) and command.func == self._submit:
                    waiting[command.args[0]] = None
            self._commands.clear()
            self.open = 0
        refusal = self.refusal()
        assert refusal is not None
        for answers in waiting:
            answers.closed = True
            self._call(answers, [refusal])


def _deliver(batch: Sequence[tuple[Answers, list[News] | ApiError | None]]) -> None:
    for answers, what in batch:
        answers.queue.put_nowait(what)


def _in(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """The call is made in the loop, unless that has ended: then nobody listens."""
    if not loop.is_closed():
        try:
            loop.call_soon_threadsafe(call)
        except RuntimeError:  # it was closed since
            log.debug("an event loop has ended before its answers")
