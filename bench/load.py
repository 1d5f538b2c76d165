"""Many requests, so many in flight at any time: as one is answered the next is sent."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from bench.job import Job, Logits, Served


class Serving(ABC):
    """What runners that serve have in common; `serve` answers the prompts of a round."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.process = os.getpid()
        self.notes: list[str] = []
        self.held: int | None = None
        self._lap = 0

    @abstractmethod
    def serve(self, prompts: list[list[int]], new: int, concurrency: int) -> Served:
        """Each is answered with `new` tokens, `concurrency` of them at any time."""

    def round(self, count: int) -> Served:
        prompts, new, concurrency = self.job.asked(count, self._lap)
        self._lap += 1
        return self.serve(prompts, new, concurrency)

    def logits(self) -> Logits | None:
        return None


class Stepped(Serving):
    """An engine in this process that is driven step by step."""

    @abstractmethod
    def submit(self, index: int, prompt: list[int], new: int) -> None:
        """The request waits or runs from here on."""

    @abstractmethod
    def step(self) -> Iterable[tuple[int, Sequence[int]]]:
        """One step further: for requests that have new tokens, which."""

    def serve(self, prompts: list[list[int]], new: int, concurrency: int) -> Served:
        return drive(self, prompts, new, concurrency)


class Lacking(Exception):
    """An answer that is not as long as it was asked for."""


def drive(engine: Stepped, prompts: Sequence[list[int]], new: int, concurrency: int) -> Served:
    """All prompts answered with exactly `new` tokens each, `concurrency` in flight."""
    count = len(prompts)
    answers: list[list[int]] = [[] for _ in prompts]
    times: list[list[tuple[float, int]]] = [[] for _ in prompts]
    submitted: list[float] = []
    running: set[int] = set()
    started = time.perf_counter()
    while running or len(submitted) < count:
        while len(running) < concurrency and len(submitted) < count:
            index = len(submitted)
            submitted.append(time.perf_counter() - started)
            engine.submit(index, prompts[index], new)
            running.add(index)
        came = list(engine.step())
        now = time.perf_counter() - started
        for index, tokens in came:
            answers[index] += tokens
            times[index].append((now, len(tokens)))
            if len(answers[index]) >= new:
                running.discard(index)
    return _checked(Served(submitted, times, answers), new)


Stream = Callable[[list[int], int], Iterator[tuple[Sequence[int], int]]]
"""Sends a prompt and asks for so many tokens; gives ids (where they are told) and how many."""


def clients(stream: Stream, prompts: Sequence[list[int]], new: int, concurrency: int) -> Served:
    """The same from outside: each of `concurrency` clients sends its next as it has an answer."""
    count = len(prompts)
    found = Served([0.0] * count, [[] for _ in prompts], [[] for _ in prompts])
    waiting = iter(range(count))
    lock = threading.Lock()
    failures: list[Exception] = []
    started = time.perf_counter()

    def client() -> None:
        try:
            while not failures:
                with lock:
                    index = next(waiting, None)
                if index is None:
                    return
                found.submitted[index] = time.perf_counter() - started
                for tokens, number in stream(prompts[index], new):
                    found.times[index].append((time.perf_counter() - started, number))
                    found.answers[index].extend(tokens)
        except Exception as error:  # raised again where the clients are waited for
            failures.append(error)

    threads = [threading.Thread(target=client) for _ in range(min(concurrency, count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return _checked(found, new)


def _checked(found: Served, new: int) -> Served:
    for index, times in enumerate(found.times):
        number = sum(many for _, many in times)
        if number != new:
            raise Lacking(f"request {index} was answered with {number} tokens, not {new}")
    return found


def events(port: int, path: str, body: dict[str, Any], timeout: float) -> Iterator[Any]:
    """The events of a stream from a server on this machine, as they come, up to `[DONE]`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        head = {"Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body), head)
        response = connection.getresponse()
        if response.status != 200:
            said = response.read().decode(errors="replace")
            raise RuntimeError(f"{path} answered {response.status}: {said[:300]}")
        for line in response:
            name, _, value = line.decode().strip().partition(": ")
            if name != "data":
                continue
            if value == "[DONE]":
                return
            yield json.loads(value)
    finally:
        connection.close()


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_for(port: int, path: str, seconds: float, alive: Callable[[], bool]) -> None:
    """The server answers with 200, or a RuntimeError says that it does not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not alive():
            raise RuntimeError("the server ended before it answered")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.1)
    raise RuntimeError(f"the server did not answer within {seconds:g} s")
