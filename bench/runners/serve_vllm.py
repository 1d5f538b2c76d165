"""vLLM's engine in this process, driven step by step, its prefix cache off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bench.job import Job
from bench.load import Stepped
from bench.runners.torch_common import DTYPES
from bench.runners.vllm_stack import prepare

__all__ = ("load", "prepare")


def load(job: Job) -> Engine:
    return Engine(job)


class Engine(Stepped):
    """The engine under its own defaults, save the most requests at a time."""

    def __init__(self, job: Job) -> None:
        import vllm
        from vllm.sampling_params import RequestOutputKind

        super().__init__(job)
        self._vllm, self._delta = vllm, RequestOutputKind.DELTA
        self.notes = ["prefix cache off"]
        self._engine: Any = vllm.LLM(
            model=job.place,
            dtype=DTYPES[job.dtype],
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            max_model_len=job.positions,
            max_num_seqs=job.concurrency,
            disable_log_stats=True,
            seed=job.seed,
        ).llm_engine
        self._sent = 0

    def submit(self, index: int, prompt: list[int], new: int) -> None:
        sampling = self._vllm.SamplingParams(
            temperature=0.0,
            max_tokens=new,
            ignore_eos=True,
            detokenize=False,
            output_kind=self._delta,
        )
        self._sent += 1
        name = f"{self._sent} {index}"  # each name once, over all rounds
        self._engine.add_request(name, {"prompt_token_ids": prompt}, sampling)

    def step(self) -> Iterable[tuple[int, Sequence[int]]]:
        for one in self._engine.step():
            yield int(one.request_id.split()[1].split("-")[0]), list(one.outputs[0].token_ids)
