"""What the methods on JAX share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from bench.job import Job, Round

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def set_up(job: Job) -> str:
    """JAX is imported and has as many processors as the job has threads; gives its version."""
    if job.device == "cpu" and hasattr(os, "sched_setaffinity"):
        own = sorted(os.sched_getaffinity(0))[: job.threads]
        os.sched_setaffinity(0, own)
    import jax

    return f"jax {jax.__version__}"


def timed(
    job: Job, count: int, prompt: Callable[[], Any], step: Callable[[Any, int], Any]
) -> Round:
    """A round: the prompt's next token `[B, 1]`, then a step for each token at its position."""
    import jax.numpy as jnp

    started = time.perf_counter()
    token = prompt().block_until_ready()
    first = time.perf_counter()
    tokens = [token]
    begin = job.positions - job.new
    for position in range(begin, begin + count - 1):
        token = step(token, position)
        tokens.append(token)
    token.block_until_ready()
    ended = time.perf_counter()
    return Round(first - started, ended - first, jnp.concatenate(tokens, 1)[0].tolist())
