"""Ours: a card loaded by linnet.nest on ONNX Runtime, its prefill and decode entries."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bench.job import Job, Logits, Round


def prepare(job: Job) -> str:
    import onnxruntime

    import linnet
    import linnet.onnx.runtime  # what loads a model is imported before memory is measured

    assert linnet.onnx.runtime
    return f"linnet {linnet.__version__}, onnxruntime {onnxruntime.__version__}"


def load(job: Job) -> Entries:
    return Entries(job)


class Entries:
    """The model; the caches stay where the runtime has them, logits come as NumPy's."""

    def __init__(self, job: Job) -> None:
        from linnet.nest import load as load_card

        self._job = job
        self.notes: list[str] = []
        bindings = job.options.get("bindings")
        self._model = load_card(
            job.options["card"],
            backend="onnx_model",
            generics={"T": job.dtype, "MaxSeq": job.positions, "Batch": job.batch},
            weights=job.place,
            cast_dtype=True,
            entries=("prefill", "decode"),
            threads=job.threads,
            **({"bindings": bindings} if bindings is not None else {}),
        )
        self.held: int | None = self._model.nbytes
        self._ids = np.asarray(job.prompts, np.int32)
        self._last: Any = None

    def round(self, count: int) -> Round:
        job = self._job
        self._model.reset_state()
        started = time.perf_counter()
        token = self._next("prefill", self._ids, 0)
        first = time.perf_counter()
        tokens = [token]
        begin = job.positions - job.new
        for position in range(begin, begin + count - 1):
            token = self._next("decode", token, position)
            tokens.append(token)
        ended = time.perf_counter()
        return Round(first - started, ended - first, [int(one[0, 0]) for one in tokens])

    def _next(self, entry: str, ids: Any, position: int) -> Any:
        logits = self._model.run_entry(entry, [ids, position])
        if self._last is None:
            self._last = np.asarray(logits[0], np.float32)
        return logits.argmax(-1)[:, None].astype(np.int32)

    def logits(self) -> Logits | None:
        found: Logits = self._last
        return found
