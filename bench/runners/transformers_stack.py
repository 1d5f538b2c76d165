"""transformers' model from a checkpoint's directory, eager or compiled over a static cache."""

from __future__ import annotations

import time
from typing import Any

from bench.job import Job, Logits, Round
from bench.runners.torch_common import DTYPES, set_up, synchronize


def prepare(job: Job) -> str:
    import transformers

    return f"transformers {transformers.__version__}, {set_up(job)}"


def load(job: Job) -> Stack:
    return Stack(job)


class Stack:
    """The model; its decoding loop is transformers' own calls, the argmax on the device."""

    def __init__(self, job: Job) -> None:
        import torch
        import transformers

        self.notes: list[str] = []
        self._torch: Any = torch
        self._job = job
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            job.place, dtype=getattr(torch, DTYPES[job.dtype])
        )
        self._model.eval()
        self._model.to(job.device)
        # Made as the tokens after it are: compiled code tells tensors of this mode from others.
        with torch.inference_mode():
            self._ids: Any = torch.tensor(job.prompts, device=job.device)
        self._cache: Any = None
        self._call: Any = self._model
        self._last: Any = None
        self.held: int | None = None
        if job.options.get("compile"):
            self._compile(transformers)

    def _compile(self, transformers: Any) -> None:
        """One compiled forward, over a cache of fixed size and address."""
        self._cache = transformers.StaticCache(
            config=self._model.config, max_cache_len=self._job.positions
        )
        # The cache has its tensors before anything is compiled: else a prompt compiles twice.
        with self._torch.inference_mode():
            self._model(self._ids[:, :1], cache=self._cache, use_cache=True)
        mode = "reduce-overhead" if self._job.device.startswith("cuda") else "default"
        self._call = self._torch.compile(self._model, mode=mode, fullgraph=True)
        self.notes.append(f"torch.compile, {mode} mode, static cache of {self._job.positions}")

    def round(self, count: int) -> Round:
        torch = self._torch
        with torch.inference_mode():
            if self._cache is not None:
                self._cache.reset()
            synchronize(self._job.device)
            started = time.perf_counter()
            token, cache = self._next(self._ids, self._cache)
            tokens = [token]
            synchronize(self._job.device)
            first = time.perf_counter()
            for _ in range(count - 1):
                token, cache = self._next(token, cache)
                tokens.append(token)
            synchronize(self._job.device)
            ended = time.perf_counter()
            found = torch.cat(tokens, 1)[0].tolist()
        return Round(first - started, ended - first, found)

    def _next(self, ids: Any, cache: Any) -> tuple[Any, Any]:
        if self._job.options.get("compile") and self._job.device.startswith("cuda"):
            self._torch.compiler.cudagraph_mark_step_begin()
        out = self._call(ids, cache=cache, use_cache=True, logits_to_keep=1)
        if self._last is None:
            self._last = out.logits[0, -1].float().cpu().numpy()
        # A copy: a captured graph writes the next step's logits over these.
        return out.logits[:, -1].argmax(-1, keepdim=True).clone(), out.cache

    def logits(self) -> Logits | None:
        found: Logits = self._last
        return found
