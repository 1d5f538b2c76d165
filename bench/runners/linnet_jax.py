"""Ours: a card loaded by linnet.nest on JAX, its prefill and decode entries."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.job import Job, Logits, Round
from bench.runners.jax_common import set_up, timed


def prepare(job: Job) -> str:
    import linnet
    import linnet.jax

    return f"linnet {linnet.__version__}, {set_up(job)}"


def load(job: Job) -> Entries:
    return Entries(job)


class Entries:
    """The model; tokens are chosen by JAX, and no step waits for them."""

    def __init__(self, job: Job) -> None:
        import jax
        import jax.numpy as jnp

        from linnet.nest import load as load_card

        self._job = job
        self.notes: list[str] = []
        bindings = job.options.get("bindings")
        self._model = load_card(
            job.options["card"],
            backend="jax_model",
            generics={"T": job.dtype, "MaxSeq": job.positions, "Batch": job.batch},
            weights=job.place,
            cast_dtype=True,
            entries=("prefill", "decode"),
            generated=job.options.get("generated", False),
            **({"bindings": bindings} if bindings is not None else {}),
        )
        arrays = {id(x): x for x in (*self._model.weights.values(), *self._model.state.values())}
        self.held: int | None = sum(x.nbytes for x in arrays.values())
        self._chosen = jax.jit(lambda logits: logits.argmax(-1)[:, None].astype(jnp.int32))
        self._ids = np.asarray(job.prompts, np.int32)
        self._last: Any = None

    def round(self, count: int) -> Round:
        self._model.reset_state()
        return timed(self._job, count, lambda: self._next("prefill", self._ids, 0), self._step)

    def _step(self, token: Any, position: int) -> Any:
        return self._next("decode", token, position)

    def _next(self, entry: str, ids: Any, position: int) -> Any:
        logits = self._model.run_entry(entry, [ids, position])
        if self._last is None:
            self._last = np.asarray(logits[0], np.float32)
        return self._chosen(logits)

    def logits(self) -> Logits | None:
        found: Logits = self._last
        return found
