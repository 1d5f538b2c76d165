"""Ours: linnet.serve's engine in this process, driven step by step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bench.job import Job, Served
from bench.load import Stepped
from bench.runners.linnet_torch import held_by, model_of, prepare

__all__ = ("load", "prepare")

PAGE = 64
"""Positions of a page, as cards have it."""


def load(job: Job) -> InProcess:
    return InProcess(job)


def pool_of(job: Job) -> int:
    """Positions of a pool in which all that is in flight fits, and the first page, nobody's."""
    return PAGE * (1 + job.concurrency * -(-job.positions // PAGE))


class InProcess(Stepped):
    """The engine over pages, a row for each request in flight."""

    def __init__(self, job: Job) -> None:
        from linnet.serve.engine import PAGED, Engine
        from linnet.serve.request import Request

        super().__init__(job)
        model = model_of(job, {"MaxSeq": pool_of(job), "Batch": 1}, PAGED)
        self.held = held_by(model)
        self._request = Request
        self._engine: Any = Engine(model, rows=job.concurrency, max_len=job.positions)
        self._engine.warmup(map(len, job.prompts))
        self._came: list[tuple[int, list[int]]] = []
        self.notes += [f"pool of {pool_of(job)} positions", "no prefix is found again"]

    def serve(self, prompts: list[list[int]], new: int, concurrency: int) -> Served:
        self._engine.reset()
        return super().serve(prompts, new, concurrency)

    def submit(self, index: int, prompt: list[int], new: int) -> None:
        def came(completion: Any, token: int) -> None:
            self._came.append((index, [token]))

        self._engine.submit(self._request(prompt, new, id=index, on_token=came))

    def step(self) -> Iterable[tuple[int, Sequence[int]]]:
        self._engine.step()
        came, self._came = self._came, []
        return came
