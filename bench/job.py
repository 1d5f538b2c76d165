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
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def positions(self) -> int:
        return len(self.prompts[0]) + self.new

    @property
    def batch(self) -> int:
        return len(self.prompts)

    def text(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Round:
    """One generation: seconds to the first token, seconds after it, the first row's tokens."""

    first: float
    rest: float
    tokens: list[int]


class Runner(Protocol):
    """A loaded method."""

    notes: list[str]
    """Conditions of the measurement that a reader must know."""

    held: int | None
    """Bytes of the weights and caches as the method keeps them, where it can say."""

    def round(self, count: int) -> Round:
        """The prompts from empty caches and `count` tokens after them, timed."""
        ...

    def logits(self) -> Logits | None:
        """The first row's logits after the prompt, where the method gives them."""
        ...
