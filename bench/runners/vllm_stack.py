"""vLLM's engine in this process, its prefix cache off."""

from __future__ import annotations

import os
import time
from typing import Any

from bench.job import Job, Logits, Round


def prepare(job: Job) -> str:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # else its memory is another process's
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    import vllm

    return f"vllm {vllm.__version__}"


def load(job: Job) -> Engine:
    return Engine(job)


class Engine:
    """The engine gives no times of single tokens: a generation of one is the time to the first."""

    def __init__(self, job: Job) -> None:
        import vllm

        self._job, self._vllm = job, vllm
        self.held: int | None = None
        self.notes = ["prefix cache off", "time to first token: a generation of one"]
        self._engine: Any = vllm.LLM(
            model=job.place,
            dtype={"f32": "float32", "bf16": "bfloat16", "f16": "float16"}[job.dtype],
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            max_model_len=job.positions,
            max_num_seqs=job.batch,
            disable_log_stats=True,
            seed=job.seed,
        )

    def round(self, count: int) -> Round:
        first, tokens = self._generate(1)
        if count == 1:
            return Round(first, 0.0, tokens)
        whole, tokens = self._generate(count)
        return Round(first, whole - first, tokens)

    def _generate(self, count: int) -> tuple[float, list[int]]:
        sampling = self._vllm.SamplingParams(
            temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False
        )
        prompts = [{"prompt_token_ids": ids} for ids in self._job.prompts]
        started = time.perf_counter()
        found = self._engine.generate(prompts, sampling, use_tqdm=False)
        return time.perf_counter() - started, list(found[0].outputs[0].token_ids)

    def logits(self) -> Logits | None:
        return None
