"""transformers' continuous batching, and its generate over fixed batches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.job import Job, Served
from bench.load import Serving, Stepped, drive
from bench.runners.torch_common import DTYPES
from bench.runners.transformers_stack import prepare

__all__ = ("load", "prepare")


def load(job: Job) -> Static | Continuous:
    return Static(job) if job.options.get("static") else Continuous(job)


class _Model(Serving):
    """The model from the checkpoint's directory."""

    def __init__(self, job: Job) -> None:
        import torch
        import transformers

        super().__init__(job)
        self._torch: Any = torch
        self._transformers: Any = transformers
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            job.place, dtype=getattr(torch, DTYPES[job.dtype])
        )
        self._model.eval()

    def _settings(self, new: int) -> Any:
        """Greedy, and no token ends an answer."""
        return self._transformers.GenerationConfig(
            do_sample=False, max_new_tokens=new, pad_token_id=0, eos_token_id=-1
        )


class Static(_Model):
    """As many prompts as may be in flight, padded on the left; then the next ones."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.notes.append("the next batch starts when the last answer of one is done")

    def serve(self, prompts: list[list[int]], new: int, concurrency: int) -> Served:
        found = Served([], [], [])
        started = time.perf_counter()
        for at in range(0, len(prompts), concurrency):
            self._batch(prompts[at : at + concurrency], new, started, found)
        return found

    def _batch(self, prompts: list[list[int]], new: int, started: float, found: Served) -> None:
        torch = self._torch
        begun = time.perf_counter() - started
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(one)) + one for one in prompts])
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
        times: list[float] = []

        def noted(ids: Any, scores: Any, **rest: Any) -> Any:
            times.append(time.perf_counter() - started)
            return torch.zeros(len(ids), dtype=torch.bool)

        with torch.inference_mode():
            whole = self._model.generate(
                ids,
                attention_mask=mask,
                generation_config=self._settings(new),
                stopping_criteria=self._transformers.StoppingCriteriaList([noted]),
            )
        found.submitted.extend([begun] * len(prompts))
        found.times.extend([[(second, 1) for second in times]] * len(prompts))
        found.answers.extend(whole[:, longest:].tolist())


class Continuous(_Model, Stepped):
    """Its manager with streaming of tokens; it computes in a thread of its own."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._manager: Any = None

    def serve(self, prompts: list[list[int]], new: int, concurrency: int) -> Served:
        with self._managed(prompts, new, concurrency):
            return drive(self, prompts, new, concurrency)

    @contextmanager
    def _managed(self, prompts: list[list[int]], new: int, concurrency: int) -> Iterator[None]:
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        page, length = 32, max(map(len, prompts)) + new
        batching = ContinuousBatchingConfig(
            page_size=page,
            num_blocks=concurrency * (length // page + 2),
            max_batch_tokens=512,
            max_requests_per_batch=concurrency,
            allow_block_sharing=False,
        )
        with self._model.continuous_batching_context_manager(
            generation_config=self._settings(new), continuous_batching_config=batching
        ) as manager:
            self._manager, self._seen = manager, dict[int, int]()
            yield

    def submit(self, index: int, prompt: list[int], new: int) -> None:
        self._manager.add_request(prompt, str(index), max_new_tokens=new, streaming=True)

    def step(self) -> Iterable[tuple[int, Sequence[int]]]:
        """What has come until now, at least one answer's."""
        found = self._manager.get_result(timeout=1)
        if found is None and not self._manager.is_running():
            raise RuntimeError("continuous batching ended by itself")
        while found is not None:
            if found.error is not None:
                raise RuntimeError(found.error)
            index = int(found.request_id)
            seen = self._seen.get(index, 0)
            self._seen[index] = len(found.generated_tokens)
            yield index, found.generated_tokens[seen:]
            if self._manager.output_router.output_queue.empty():
                return
            found = self._manager.get_result(timeout=0)
