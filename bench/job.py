"""What a worker is asked to do, and what it answers: the records between the command and it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Job:
    """One method on one workload.

    `runner` is the module that runs it, `place` what it loads. Paths are absolute.
    """

    key: str
    runner: str
    dtype: str
    place: str
    prompts: list[list[int]]
    new: int
    threads: int
    device: str
    logits: str
    seed: int = 0
    concurrency: int = 1
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def positions(self) -> int:
        return max(map(len, self.prompts)) + self.new

    @property
    def batch(self) -> int:
        return len(self.prompts)

    def asked(self, count: int, lap: int) -> tuple[list[list[int]], int, int]:
        """What is served in a round: prompts, tokens after each, how many are in flight.

        A first round, of one token, is there to warm up: a few tokens after the first prompts.
        Prompts are turned by a token each round, so that nothing kept of another round helps.
        """
        turned = [ids[lap % len(ids) :] + ids[: lap % len(ids)] for ids in self.prompts]
        if count < self.new:
            return turned[: self.concurrency], min(self.new, 8), self.concurrency
        return turned, count, self.concurrency

    def text(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Round:
    """One generation: seconds to the first token, seconds after it, the first row's tokens."""

    first: float
    rest: float
    tokens: list[int]

    def record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Served:
    """Many requests answered: for each, when it was submitted and when its tokens came.

    `times` has, for each request, a pair for each time that something of its answer came: the
    second, and how many tokens it was. `answers` are their ids, where the method tells them.
    Seconds count from the submission of the first.
    """

    submitted: list[float]
    times: list[list[tuple[float, int]]]
    answers: list[list[int]]

    def record(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def tokens(self) -> list[int]:
        """The first request's."""
        return self.answers[0]

    @property
    def seconds(self) -> float:
        """Until the last token of all."""
        return max(each[-1][0] for each in self.times)

    @property
    def rest(self) -> float:
        """From the first request's first token to the end."""
        return self.seconds - self.times[0][0][0]


def recorded(answer: dict[str, Any]) -> Round | Served:
    """The round that `record` was written of."""
    return Served(**answer) if "times" in answer else Round(**answer)


class Runner(Protocol):
    """A loaded method.

    One that serves from another process than its worker has that process's id as `process`.
    """

    notes: list[str]
    """Conditions of the measurement that a reader must know."""

    held: int | None
    """Bytes of the weights and caches as the method keeps them, where it can say."""

    def round(self, count: int) -> Round | Served:
        """The prompts from empty caches and `count` tokens after them, timed."""
        ...

    def logits(self) -> Logits | None:
        """The first row's logits after the prompt, where the method gives them."""
        ...
