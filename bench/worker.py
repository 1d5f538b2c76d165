"""A method in a process of its own: loads, says so, then runs one round for each request.

The job is the first line of standard input; each further line asks for a round. Answers are lines
of JSON on standard output, which nothing else is written to. This runs in a peer's environment too:
it needs NumPy and nothing of Linnet.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from typing import IO, Any

import numpy as np

from bench.job import Job
from bench.memory import DeviceMemory, peak_kib, reset_peak


def main() -> int:
    requests, answers = sys.stdin, _own_output()
    started = float(os.environ["BENCH_STARTED"])
    job = Job(**json.loads(requests.readline()))
    try:
        serve(job, requests, answers, started)
    except Exception as error:  # whatever a framework raises is this method's row
        _say(answers, {"error": _described(error)})
        return 1
    return 0


def serve(job: Job, requests: IO[str], answers: IO[str], started: float) -> None:
    """Every request is answered."""
    module = import_module(job.runner)
    version = module.prepare(job)
    before = reset_peak()
    device = DeviceMemory(job.device)
    loading = time.perf_counter()
    runner = module.load(job)
    load_s = time.perf_counter() - loading
    first = runner.round(1)
    to_first = time.time() - started - first.rest
    # A server that is a process of its own is measured whole, and so is what serves in this one.
    process = getattr(runner, "process", None)
    if process is not None:
        before = 0
    logits = runner.logits()
    if logits is not None:
        np.save(job.logits, logits)
    ready = {
        "ready": {
            "load_s": load_s,
            "start_to_first_token_s": to_first,
            "version": version,
            "logits": logits is not None,
            "held": runner.held,
            "notes": runner.notes,
        }
    }
    _say(answers, ready)
    for line in requests:
        if not line.strip():
            break
        answer = {
            "record": runner.round(job.new).record(),
            "peak_kib": max(0, peak_kib(process) - before),
            "device_mib": device.used_mib(),
        }
        _say(answers, {"round": answer})


def _own_output() -> IO[str]:
    """Standard output for answers; whatever a framework prints goes to standard error."""
    kept = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return kept


def _say(answers: IO[str], what: dict[str, Any]) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


def _described(error: Exception) -> str:
    """The error on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{type(error).__name__}: {text}"[:600]


if __name__ == "__main__":
    sys.exit(main())
