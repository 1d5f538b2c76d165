"""When to check: soon after a change, in a thread, the newest text, one check at a time."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from linnet.lsp.project import Document, Project, State, Unit

T = TypeVar("T")

DELAY = 0.03  # seconds without a keystroke before a check begins
PATIENCE = 0.5  # seconds without a result after which a check is no longer given up for a newer one
TIDY_EVERY = 20  # checks between two collections of garbage, which wait for a quiet moment


class Superseded(Exception):
    """There is a newer text."""


class Checker:
    """Runs the checks of a project on one thread; everything else here is on the loop's.

    `done` is called with each new state, `early` with what is known of the file being edited
    when the rest is still being checked, `failed` with the traceback of a bug of ours.
    """

    def __init__(
        self,
        project: Project,
        documents: Callable[[], Mapping[Path, Document]],
        done: Callable[[State], None],
        early: Callable[[Unit, Path, Document], None],
        failed: Callable[[str], None],
    ) -> None:
        self.project = project
        self.documents = documents
        self.done, self.early, self.failed = done, early, failed
        self.state = State(project.workspace)
        self.wanted = 0  # counts the changes
        self.reached = 0  # the change that `state` has seen
        self.first: Path | None = None
        self._thread = ThreadPoolExecutor(1, "check")
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._running = False
        self._task: asyncio.Future[None] | None = None  # kept, or it may be collected
        self._stop = threading.Event()
        self._last_result = time.monotonic()
        self._changed = asyncio.Event()
        self._checks = 0

    def changed(self, first: Path | None, delay: float = DELAY) -> None:
        """Something is different: check when nothing has happened for a moment."""
        if self._closed:
            return
        self.wanted += 1
        self.first = first or self.first
        if self._running and time.monotonic() - self._last_result < PATIENCE:
            self._stop.set()
        self._wait(delay)

    async def current(self) -> State:
        """The state of the texts as they are now."""
        wanted = self.wanted
        while self.reached < wanted:
            if self._timer is not None:
                self._wait(0.0)
            changed = self._changed
            await changed.wait()
        return self.state

    async def aside(self, work: Callable[[], T]) -> T:
        """The result of some work on the checking thread, ahead of a check that has begun."""
        if self._running:
            self._stop.set()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        self._closed = True
        self._stop.set()
        if self._timer is not None:
            self._timer.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _wait(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay, self._start)

    def _start(self) -> None:
        self._timer = None
        if self._running or self._closed:
            return  # a running one is followed by another when it ends
        self._running = True
        self._stop.clear()
        self._task = asyncio.ensure_future(self._run(self.wanted, dict(self.documents())))

    async def _run(self, number: int, documents: Mapping[Path, Document]) -> None:
        loop = asyncio.get_running_loop()
        first = self.first

        def early(unit: Unit) -> None:
            assert first is not None
            if not self._stop.is_set():
                loop.call_soon_threadsafe(self.early, unit, first, documents[first])

        def pause() -> None:
            if self._stop.is_set():
                raise Superseded

        def check() -> State:
            return self.project.check(documents, first, pause=pause, early=early)

        try:
            self.state = await loop.run_in_executor(self._thread, check)
            self.done(self.state)
            self._reach(number)
        except Superseded:
            pass
        except Exception:  # what was known before stays
            if self._closed:
                return
            self.failed(traceback.format_exc())
            self._reach(number)
        self._running = False
        if self.reached < self.wanted and self._timer is None:
            self._start()
        elif self._checks >= TIDY_EVERY and not self._closed:
            self._checks = 0
            self._thread.submit(gc.collect)

    def _reach(self, number: int) -> None:
        self.reached = number
        self._last_result = time.monotonic()
        self._checks += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
