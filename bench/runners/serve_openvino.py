"""OpenVINO GenAI's continuous batching, driven step by step, its prefix cache off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.job import Job
from bench.load import Stepped
from bench.runners.openvino_stack import prepare

__all__ = ("load", "prepare")


def load(job: Job) -> Pipeline:
    return Pipeline(job)


class Pipeline(Stepped):
    """The pipeline; up to its own default of 256 tokens are computed in a step."""

    def __init__(self, job: Job) -> None:
        import openvino as ov
        import openvino_genai as genai

        super().__init__(job)
        self._ov, self._genai = ov, genai
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_seqs = job.concurrency
        properties: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": job.threads,
            "INFERENCE_PRECISION_HINT": "bf16" if job.dtype == "bf16" else "f32",
            "KV_CACHE_PRECISION": job.options["cache"],
        }
        self.notes = ["prefix cache off", f"steps of {scheduler.max_num_batched_tokens} tokens"]
        self.notes += [f"{name} {value}" for name, value in properties.items() if "NUM" not in name]
        self._pipeline = genai.ContinuousBatchingPipeline(
            Path(job.place), scheduler, "CPU", properties
        )
        self._handles: dict[int, Any] = {}
        self._settings: dict[int, Any] = {}

    def submit(self, index: int, prompt: list[int], new: int) -> None:
        ids = self._ov.Tensor(np.array([prompt], np.int64))
        self._handles[index] = self._pipeline.add_request(index, ids, self._setting(new))

    def _setting(self, new: int) -> Any:
        if new not in self._settings:
            settings = self._genai.GenerationConfig()
            settings.max_new_tokens = new
            settings.ignore_eos = True
            settings.set_eos_token_id(0)  # there must be one
            settings.do_sample = False
            self._settings[new] = settings
        return self._settings[new]

    def step(self) -> Iterable[tuple[int, Sequence[int]]]:
        self._pipeline.step()
        for index, handle in list(self._handles.items()):
            if handle.can_read():
                (output,) = handle.read().values()
                yield index, [int(one) for one in output.generated_ids]
            elif handle.get_status().name != "RUNNING":
                del self._handles[index]
