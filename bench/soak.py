"""python -m bench.soak [MODEL]: mixed traffic against a real server, and whether it stays right.

Short and long prompts, streams and whole answers, clients that go away, bad requests, several
answers, stop strings, structured output. At the end: no answer of status 5xx, every greedy answer
as it is alone, memory flat, nothing held; then the server is killed, and serves again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.load import free_port, wait_for
from bench.memory import held_kib
from bench.soak_traffic import KINDS, Api, Case, Wrong, cases, letters_of, reference
from bench.turns import project
from linnet.diagnostics import LinnetError

WARM = 0.25
"""The share of the time after which memory must not grow."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    add = made.add_argument
    add("model", nargs="?", default="smollm2-135m-instruct", metavar="MODEL")
    add("--minutes", type=float, default=10, help="of traffic (%(default)s)")
    add("--clients", type=int, default=8, help="at the same time (%(default)s)")
    add("--batch", type=int, default=6, help="rows of the server (%(default)s)")
    add("--max-seq", type=int, default=384, help="tokens of a request (%(default)s)")
    add("--pool", type=int, default=1024, help="positions of the server's caches (%(default)s)")
    add("--new", type=int, default=24, help="tokens of a greedy answer (%(default)s)")
    add("--dtype", default="f32", help="of the server (%(default)s)")
    add("--threads", type=int, default=os.cpu_count() or 1, help="of the server (%(default)s)")
    add("--tolerance", type=float, default=32, help="MiB that it may grow by (%(default)s)")
    add("--seed", type=int, default=0, help="of the traffic")
    add("--log", type=Path, help="where the server's own messages go; default: nowhere")
    return made


class Server:
    """`linnet serve` as a process of its own."""

    def __init__(self, args: argparse.Namespace, log: Path) -> None:
        self.port = free_port()
        python, variables = project()
        self._command = [python, "-m", "linnet", "serve", args.model, "--port", str(self.port)]
        self._command += ["--batch", str(args.batch), "--max-seq", str(args.max_seq)]
        self._command += ["--pool", str(args.pool), "--dtype", args.dtype, "--name", "soaked"]
        self._command += ["--threads", str(args.threads)]
        self._variables = {**os.environ, **variables, "OMP_NUM_THREADS": str(args.threads)}
        self._log = log
        self.start()

    def start(self) -> None:
        """It answers."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            wait_for(self.port, "/health", 600, self.alive)
        except RuntimeError as error:
            self.kill()
            lines = self._log.read_text(errors="replace").splitlines() or ["it said nothing"]
            raise LinnetError(f"{error}: {lines[-1]}") from error

    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """It is gone at once."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        """It was asked to end, and has; gives its status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL


@dataclass(slots=True)
class Found:
    """What the traffic came to."""

    done: Counter[str] = field(default_factory=Counter[str])
    statuses: Counter[int] = field(default_factory=Counter[int])
    wrong: list[str] = field(default_factory=list[str])
    memory: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """Seconds since the start, and KiB."""

    def course(self, seconds: float) -> list[int]:
        """MiB at the start, after each tenth of the time, and at the end."""
        marks = [seconds * k / 10 for k in range(11)]
        nearest = (min(self.memory, key=lambda one: abs(one[0] - mark)) for mark in marks)
        return [k // 1024 for _, k in nearest] if self.memory else []

    def growth(self, seconds: float) -> float:
        """MiB more at the end than after warming up: medians of a tenth of the time each."""
        early = [k for at, k in self.memory if WARM <= at / seconds <= WARM + 0.1]
        late = [k for at, k in self.memory if at / seconds >= 0.9]
        return (median(late) - median(early)) / 1024 if early and late else float("nan")


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="linnet-soak-") as folder:
        try:
            return _soak(args, args.log or Path(folder) / "server.log")
        except LinnetError as error:
            print(f"soak: {error}", file=sys.stderr)
            return 1


def _soak(args: argparse.Namespace, log: Path) -> int:
    server = Server(args, log)
    try:
        api = Api(server.port)
        every = cases(letters_of(api, args.max_seq - args.new), args.new)
        for case in every:
            reference(api, case)
        _say(f"{len(every)} prompts were answered alone")
        found = Found(statuses=api.statuses)
        _traffic(args, server, api, every, found)
        problems = _judged(args, server, api, every, found)
    finally:
        if server.alive():
            server.kill()
    for one, count in Counter(problems).most_common():
        print(f"wrong: {one}" + f" ({count} times)" * (count > 1))
    print("soak: nothing is wrong" if not problems else f"soak: {len(problems)} wrong")
    return 1 if problems else 0


def _traffic(
    args: argparse.Namespace, server: Server, api: Api, every: list[Case], found: Found
) -> None:
    """Clients ask one thing after the other, each at random, until the time is over."""
    seconds = 60 * args.minutes
    started = time.monotonic()
    names = [name for name, (weight, _) in KINDS.items() for _ in range(weight)]

    def client(number: int) -> None:
        draw = random.Random(f"{args.seed} {number}")
        while time.monotonic() - started < seconds and server.alive():
            name = draw.choice(names)
            try:
                KINDS[name][1](api, draw, every)
                found.done[name] += 1
            except Wrong as error:
                found.wrong.append(f"{name}: {error}")
            except Exception as error:  # a client that cannot go on is a finding too
                found.wrong.append(f"{name}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=client, args=(k,)) for k in range(args.clients)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        at = time.monotonic() - started
        if at < seconds:
            found.memory.append((at, held_kib(server.process.pid)))
        time.sleep(min(1.0, seconds / 60))
    _say(", ".join(f"{count} {name}" for name, count in sorted(found.done.items())))
    _say(f"statuses: {dict(sorted(found.statuses.items()))}")


def _judged(
    args: argparse.Namespace, server: Server, api: Api, every: list[Case], found: Found
) -> list[str]:
    """What is wrong, after traffic, and after the server is killed and started again."""
    problems = list(found.wrong)
    problems += [f"{n} answers of status {s}" for s, n in found.statuses.items() if s >= 500]
    missing = [name for name in KINDS if not found.done[name]]
    if missing:
        problems.append(f"never done: {', '.join(missing)}")
    problems += _books(api)
    growth = found.growth(60 * args.minutes)
    _say(f"memory in MiB, a tenth of the time apart: {found.course(60 * args.minutes)}")
    _say(f"memory grew by {growth:.1f} MiB after warming up; {args.tolerance:g} are allowed")
    if not growth <= args.tolerance:
        problems.append(f"memory grew by {growth:.1f} MiB, more than {args.tolerance:g}")
    asking = threading.Thread(target=lambda: _ignored(api, every[0]))
    asking.start()
    time.sleep(0.05)
    server.kill()
    asking.join()
    server.start()
    if (again := api.greedy(every[0])) != every[0].text:
        problems.append(f"after it was killed it answers {again!r}, not {every[0].text!r}")
    _say("killed and started again, it serves")
    if status := server.end():
        problems.append(f"SIGTERM ended it with status {status}")
    return problems


def _ignored(api: Api, case: Case) -> None:
    """An answer that is broken off."""
    with contextlib.suppress(Exception):
        api.greedy(case)


def _books(api: Api) -> list[str]:
    """Nothing runs, waits or holds a page soon after the last client has left."""
    names = ("linnet_queue", "linnet_running", "linnet_cache_pages_held")
    deadline = time.monotonic() + 30
    while True:
        measured = api.metrics()
        held = {name: measured[name] for name in names if measured[name]}
        if not held or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    told = {name: measured[name] for name in measured if "prefix_hit" in name or "preempt" in name}
    _say(f"of the server: {told}")
    failed = [name for name in measured if name.startswith('linnet_http_responses_total{code="5')]
    return [f"{name} is {value:g} at the end" for name, value in held.items()] + [
        f"the server counts {measured[name]:g} of {name}" for name in failed
    ]


def _say(line: str) -> None:
    print(f"soak: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
