"""ONNX Runtime GenAI's generator over a model that its own builder has made."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.job import Job, Logits, Round


def prepare(job: Job) -> str:
    import onnxruntime
    import onnxruntime_genai

    return (
        f"onnxruntime-genai {onnxruntime_genai.__version__}, onnxruntime {onnxruntime.__version__}"
    )


def load(job: Job) -> Generator:
    return Generator(job)


class Generator:
    """A new generator each round: its cache has room for the round's positions, and is shared."""

    def __init__(self, job: Job) -> None:
        import onnxruntime_genai as genai

        self._genai, self._job = genai, job
        self.held: int | None = None
        self.notes: list[str] = []
        self._last: Any = None
        place = Path(job.place)
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            for file in place.iterdir():
                (Path(folder) / file.name).symlink_to(file)
            config = Path(folder) / "genai_config.json"
            told = json.loads(config.read_text())
            told["model"]["decoder"]["session_options"]["intra_op_num_threads"] = job.threads
            config.unlink()
            config.write_text(json.dumps(told))
            self._model = genai.Model(folder)

    def round(self, count: int) -> Round:
        job = self._job
        settings = self._genai.GeneratorParams(self._model)
        settings.set_search_options(
            max_length=job.positions,
            min_length=job.positions,
            batch_size=job.batch,
            do_sample=False,
        )
        ids = np.asarray(job.prompts, np.int32)
        started = time.perf_counter()
        generator = self._genai.Generator(self._model, settings)
        generator.append_tokens(ids)
        if self._last is None:
            self._last = np.asarray(generator.get_logits(), np.float32).reshape(job.batch, -1)[0]
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(count - 1):
            generator.generate_next_token()
        ended = time.perf_counter()
        begin = job.positions - job.new
        tokens = [int(one) for one in generator.get_sequence(0)[begin : begin + count]]
        return Round(first - started, ended - first, tokens)

    def logits(self) -> Logits | None:
        found: Logits = self._last
        return found
