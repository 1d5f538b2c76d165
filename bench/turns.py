"""Methods in processes of their own, taking turns: A B A B, one computing at a time."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.job import Job, Round, Served, recorded
from bench.record import Measured

ROOT = Path(__file__).resolve().parent.parent
_LAST_LINES = 400


class Failed(Exception):
    """A worker that gave no answer; says why."""


@dataclass(frozen=True, slots=True)
class Start:
    """How a method's worker is started: an interpreter, variables, and the job."""

    python: str
    variables: Mapping[str, str]
    job: Job


Say = Callable[[str], None]
Make = Callable[[], Start]


def take_turns(
    asked: Sequence[tuple[Measured, Make]], warmup: int, iters: int, timeout: float, say: Say
) -> None:
    """Every method is measured, or has its error.

    All are loaded first, one after the other, and stay: a round of each follows the last of the
    other's. `timeout` is how many seconds a method may take, its turns together.
    """
    workers: list[tuple[Measured, Worker]] = []
    try:
        for measured, make in asked:
            say(f"{measured.method.key}: loading")
            worker = _guarded(measured, partial(_loaded, measured, make, timeout))
            if worker is not None:
                workers.append((measured, worker))
            elif measured.error:
                say(f"{measured.method.key}: {measured.error}")
        for lap in range(warmup + iters):
            for measured, worker in list(workers):
                found = _guarded(measured, partial(_round, measured, worker))
                if found is None:
                    say(f"{measured.method.key}: {measured.error}")
                    worker.end()
                    workers.remove((measured, worker))
                elif lap >= warmup:
                    measured.add(found)
            say(f"round {lap + 1} of {warmup + iters} done")
    finally:
        for _, worker in workers:
            worker.end()


def _guarded(measured: Measured, run: Callable[[], Any]) -> Any:
    """What it gives; None where it failed, and then the row has the error."""
    try:
        return run()
    except Exception as error:  # a row says what went wrong; the other rows go on
        text = " ".join(str(error).split()) or type(error).__name__
        measured.error = text if isinstance(error, Failed) else f"{type(error).__name__}: {text}"
        measured.error = measured.error[:600]
        return None


def _loaded(measured: Measured, make: Make, timeout: float) -> Worker:
    start = make()
    worker = Worker(start, timeout)
    try:
        ready = worker.answer("ready")
    except BaseException:
        worker.end()
        raise
    measured.load_s = ready["load_s"]
    measured.start_to_first_token_s = ready["start_to_first_token_s"]
    measured.version = ready["version"]
    measured.notes = [*measured.notes, *ready["notes"]]
    measured.held = ready["held"]
    measured.logits = Path(start.job.logits) if ready["logits"] else None
    return worker


def _round(measured: Measured, worker: Worker) -> Round | Served:
    worker.ask()
    answer = worker.answer("round")
    measured.peak_kib = max(measured.peak_kib, answer["peak_kib"])
    if answer["device_mib"] is not None:
        measured.device_mib = max(measured.device_mib or 0, answer["device_mib"])
    return recorded(answer["record"])


class Worker:
    """A process that was given its job; its answers are read up to a deadline."""

    def __init__(self, start: Start, timeout: float) -> None:
        self._timeout = self._left = timeout
        self._log = Path(start.job.logits).with_suffix(".log")
        threads = str(start.job.threads)
        variables = {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            **start.variables,
            "BENCH_STARTED": repr(time.time()),
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [start.python, "-m", "bench.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **variables},
                start_new_session=True,
            )
        self._pending = b""
        self._send(start.job.text())

    def ask(self) -> None:
        """One more round is asked for."""
        self._send("round")

    def answer(self, kind: str) -> Any:
        """The next answer, which is of this kind."""
        started = time.monotonic()
        try:
            line = self._line(started + self._left)
        finally:
            self._left -= time.monotonic() - started
        found = json.loads(line)
        if "error" in found:
            raise Failed(found["error"])
        return found[kind]

    def end(self) -> None:
        """The process and what it started are gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self._why()) from None

    def _line(self, deadline: float) -> bytes:
        stream = self._process.stdout
        assert stream is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise Failed(f"took longer than {self._timeout:g} s (--timeout)")
                some = os.read(stream.fileno(), 1 << 16)
                if not some:
                    raise Failed(self._why())
                self._pending += some
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _why(self) -> str:
        """Why the process ended: its signal, or the last line that it wrote."""
        code = self._process.wait()
        if code < 0:
            return f"ended by {signal.Signals(-code).name}"
        text = self._log.read_text(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f"ended with status {code}: {lines[-1][:_LAST_LINES] if lines else 'no message'}"


def project() -> tuple[str, dict[str, str]]:
    """The project's own interpreter, which sees `bench` and `linnet`."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return sys.executable, {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
