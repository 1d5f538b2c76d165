"""KerasHub's model on JAX from a checkpoint's directory; its step with a cache, jitted."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.job import Job, Logits, Round
from bench.runners.jax_common import DTYPES, set_up, timed


def prepare(job: Job) -> str:
    os.environ["KERAS_BACKEND"] = "jax"
    version = set_up(job)
    import keras
    import keras_hub

    return f"keras-hub {keras_hub.__version__}, keras {keras.__version__}, {version}"


def load(job: Job) -> Stack:
    return Stack(job)


class Stack:
    """`call_with_cache`, which its `generate` runs in a loop, with the cache donated."""

    def __init__(self, job: Job) -> None:
        import jax
        import jax.numpy as jnp
        import keras
        import keras_hub

        self._job = job
        self.notes: list[str] = []
        kind = DTYPES[job.dtype]
        # Its converter leaves out what norms are kept away from zero by.
        config = json.loads((Path(job.place) / "config.json").read_text())
        own = {"layer_norm_epsilon": config["rms_norm_eps"], "dtype": kind}
        backbone = keras_hub.models.Backbone.from_preset(job.place, **own)
        model = keras_hub.models.Llama3CausalLM(backbone=backbone, preprocessor=None)
        variables = model.variables
        self._weights = [one.value for one in variables]
        shape = (
            job.batch, backbone.num_layers, 2, job.positions, backbone.num_key_value_heads,
            backbone.hidden_dim // backbone.num_query_heads,
        )  # fmt: skip
        self._empty = partial(jnp.zeros, shape, jnp.dtype(kind))

        @partial(jax.jit, donate_argnums=2)
        def step(weights: Any, ids: Any, cache: Any, at: Any) -> Any:
            with keras.StatelessScope(list(zip(variables, weights, strict=True))):
                logits, _, cache = model.call_with_cache(ids, cache, at)
            last = logits[:, -1]
            return last, last.argmax(-1)[:, None].astype(jnp.int32), cache

        self._step = step
        self._cache: Any = None
        self._ids = jnp.asarray(job.prompts, jnp.int32)
        self.held: int | None = sum(x.nbytes for x in (*self._weights, self._empty()))
        self._last: Any = None

    def round(self, count: int) -> Round:
        self._cache = self._empty()
        return timed(self._job, count, lambda: self._next(self._ids, 0), self._next)

    def _next(self, ids: Any, position: int) -> Any:
        logits, token, self._cache = self._step(self._weights, ids, self._cache, position)
        if self._last is None:
            self._last = np.asarray(logits[0], np.float32)
        return token

    def step(self) -> tuple[Any, Any, Any]:
        """What is compiled, its weights, and an empty cache."""
        return self._step, self._weights, self._empty()

    def logits(self) -> Logits | None:
        found: Logits = self._last
        return found
