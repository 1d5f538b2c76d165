"""A method that computes nothing, for workers: how it behaves is in the job's options."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from bench.job import Job, Logits, Round


def prepare(job: Job) -> str:
    return "fake 1.0"


def load(job: Job) -> Fake:
    print("this is no answer")  # what frameworks print is kept from the answers
    if job.options.get("fails") == "load":
        raise ValueError("these weights\ncannot be read")
    return Fake(job)


class Fake:
    def __init__(self, job: Job) -> None:
        self.notes = ["made up"]
        self.held: int | None = 1 << 20
        self._job, self._rounds = job, 0

    def round(self, count: int) -> Round:
        if count > 1:
            self._rounds += 1
            with Path(self._job.options["log"]).open("a") as log:
                log.write(self._job.key)
        match self._job.options.get("fails"):
            case "round" if self._rounds == 2:
                raise RuntimeError("out of memory")
            case "signal" if self._rounds == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit" if self._rounds == 1:
                print("one line\nno room", file=sys.stderr, flush=True)
                os._exit(3)
            case "slow" if self._rounds == 1:
                time.sleep(60)
        held = np.ones(8 << 20, np.float64)  # 64 MiB
        tokens = [int(held[0])] * count
        return Round(0.25, 0.5 * self._rounds * (count > 1), tokens)

    def logits(self) -> Logits | None:
        return np.array([0.5, float(self._job.seed)], np.float32)
