"""OpenVINO GenAI's pipeline over a model that optimum-intel has converted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.job import Job, Logits, Round


def prepare(job: Job) -> str:
    import openvino
    import openvino_genai

    return f"openvino-genai {openvino_genai.__version__}, openvino {openvino.__version__}"


def load(job: Job) -> Pipeline:
    return Pipeline(job)


class Pipeline:
    """The pipeline, its prefix cache off; times are taken where its streamer is called."""

    def __init__(self, job: Job) -> None:
        import openvino as ov
        import openvino_genai as genai

        self._genai, self._job = genai, job
        self.held: int | None = None
        properties: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": job.threads,
            "INFERENCE_PRECISION_HINT": "bf16" if job.dtype == "bf16" else "f32",
            "KV_CACHE_PRECISION": job.options["cache"],
            **job.options.get("properties", {}),
        }
        self.notes = ["prefix cache off"] + [
            f"{name} {value}" for name, value in properties.items() if "NUM_THREADS" not in name
        ]
        if properties.get("ATTENTION_BACKEND") != "SDPA":
            scheduler = genai.SchedulerConfig()
            scheduler.enable_prefix_caching = False
            scheduler.max_num_batched_tokens = len(job.prompts[0]) * job.batch
            properties["scheduler_config"] = scheduler
        device = "GPU" if job.device.startswith("cuda") else "CPU"
        self._pipeline = genai.LLMPipeline(Path(job.place), device, **properties)
        ids = np.array(job.prompts, np.int64)
        self._inputs = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))

    def round(self, count: int) -> Round:
        settings = self._genai.GenerationConfig()
        settings.max_new_tokens = count
        settings.ignore_eos = True
        settings.eos_token_id = 0  # there must be one
        settings.do_sample = False
        started = time.perf_counter()
        result = self._pipeline.generate(self._inputs, settings)
        metrics = result.perf_metrics
        ended = time.perf_counter()
        first = metrics.get_ttft().mean / 1e3
        tokens = [int(one) for one in result.tokens[0]]
        return Round(first, ended - started - first, tokens)

    def logits(self) -> Logits | None:
        return None
