"""Ours: a card loaded by linnet.nest on PyTorch, its prefill and decode entries."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from bench.job import Job, Logits, Round
from bench.runners.torch_common import set_up, synchronize

ENTRIES = ("prefill", "decode")


def prepare(job: Job) -> str:
    import linnet
    import linnet.torch

    return f"linnet {linnet.__version__}, {set_up(job)}"


def load(job: Job) -> Entries:
    return Entries(job)


def model_of(job: Job, generics: dict[str, Any], entries: Sequence[str]) -> Any:
    """The card's model with the job's weights."""
    from linnet.nest import load as load_card

    asked = ("compile", "storage", "bindings")
    options = {name: job.options[name] for name in asked if job.options.get(name) is not None}
    return load_card(
        job.options["card"],
        generics={"T": job.dtype, **generics},
        weights=job.place,
        cast_dtype=True,
        device=job.device,
        entries=entries,
        **options,
    )


def held_by(model: Any) -> int:
    """Bytes of its weights and caches."""
    members = [*model.parameters(), *model.buffers()]
    return sum({m.data_ptr(): m.nbytes for m in members}.values())


class Entries:
    """The model; tokens are chosen on the device, and no step waits for the host."""

    def __init__(self, job: Job) -> None:
        import torch

        self._torch, self._job = torch, job
        self.notes: list[str] = []
        self._model = model_of(job, {"MaxSeq": job.positions, "Batch": job.batch}, ENTRIES)
        self.held: int | None = held_by(self._model)
        # Made as the tokens after it are: compiled code tells tensors of this mode from others.
        with torch.inference_mode():
            self._ids: Any = torch.tensor(job.prompts, dtype=torch.int32, device=job.device)
        self._last: Any = None

    def round(self, count: int) -> Round:
        torch, job = self._torch, self._job
        with torch.inference_mode():
            self._model.reset_state()
            synchronize(job.device)
            started = time.perf_counter()
            token = self._next("prefill", self._ids, 0)
            tokens = [token]
            synchronize(job.device)
            first = time.perf_counter()
            for position in range(job.positions - job.new, job.positions - job.new + count - 1):
                token = self._next("decode", token, position)
                tokens.append(token)
            synchronize(job.device)
            ended = time.perf_counter()
            found = torch.cat(tokens, 1)[0].tolist()
        return Round(first - started, ended - first, found)

    def _next(self, entry: str, ids: Any, position: int) -> Any:
        logits = self._model.run_entry(entry, [ids, position])
        if self._last is None:
            self._last = logits[0].float().cpu().numpy()
        return logits.argmax(-1, keepdim=True).to(self._torch.int32)

    def logits(self) -> Logits | None:
        found: Logits = self._last
        return found
