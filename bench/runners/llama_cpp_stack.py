"""llama.cpp through llama-cpp-python's functions of its C interface; a GGUF file."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np

from bench.job import Job, Logits, Round

_CACHE_TYPES = {"f32": 0, "f16": 1, "bf16": 30}


def prepare(job: Job) -> str:
    import llama_cpp

    return f"llama-cpp-python {llama_cpp.__version__}"


def load(job: Job) -> Context:
    return Context(job)


class Context:
    """A model and its context; tokens are chosen by NumPy's argmax of the logits in place."""

    def __init__(self, job: Job) -> None:
        import llama_cpp

        self._lib: Any = llama_cpp
        self._job = job
        lib = self._lib
        self._quiet = lib.llama_log_callback(lambda level, text, data: None)
        lib.llama_log_set(self._quiet, ctypes.c_void_p(0))
        lib.llama_backend_init()
        options = lib.llama_model_default_params()
        options.n_gpu_layers = 999 if job.device.startswith("cuda") else 0
        self._model = lib.llama_model_load_from_file(job.place.encode(), options)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {job.place}")
        self._context = self._made(lib)
        self._vocabulary = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        flash = "on" if job.options.get("flash") else "off"
        cache = job.options.get("cache", "f16")
        self.notes = [f"flash attention {flash}, caches {cache}"]
        self.held: int | None = None
        self._weights = int(lib.llama_model_size(self._model))
        self._last: Any = None
        if job.batch > 1:
            self.notes.append("one sequence each in a batch")

    def _made(self, lib: Any) -> Any:
        job = self._job
        options = lib.llama_context_default_params()
        options.n_ctx = job.positions * job.batch
        options.n_batch = options.n_ctx
        options.n_ubatch = len(job.prompts[0])
        options.n_seq_max = job.batch
        options.n_threads = options.n_threads_batch = job.threads
        options.flash_attn_type = 1 if job.options.get("flash") else 0
        options.type_k = options.type_v = _CACHE_TYPES[job.options.get("cache", "f16")]
        context = lib.llama_init_from_model(self._model, options)
        if not context:
            raise RuntimeError("llama.cpp cannot make a context of this size")
        return context

    def round(self, count: int) -> Round:
        lib, job = self._lib, self._job
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        length = len(job.prompts[0])
        batch = lib.llama_batch_init(length * job.batch, 0, job.batch)
        try:
            started = time.perf_counter()
            token = self._decode(batch, job.prompts, 0)
            tokens = [token[0]]
            first = time.perf_counter()
            for position in range(length, length + count - 1):
                token = self._decode(batch, [[one] for one in token], position)
                tokens.append(token[0])
            ended = time.perf_counter()
        finally:
            lib.llama_batch_free(batch)
        return Round(first - started, ended - first, tokens)

    def _decode(self, batch: Any, rows: list[list[int]], position: int) -> list[int]:
        """The most likely token after each row."""
        lib, at, asked = self._lib, 0, []
        for row, ids in enumerate(rows):
            for k, token in enumerate(ids):
                batch.token[at] = token
                batch.pos[at] = position + k
                batch.n_seq_id[at] = 1
                batch.seq_id[at][0] = row
                batch.logits[at] = int(k == len(ids) - 1)
                at += 1
            asked.append(at - 1)
        batch.n_tokens = at
        if code := lib.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode gave {code}")
        found = [self._logits(index) for index in asked]
        if self._last is None:
            self._last = found[0].copy()
        return [int(one.argmax()) for one in found]

    def _logits(self, index: int) -> Logits:
        pointer = self._lib.llama_get_logits_ith(self._context, index)
        return np.ctypeslib.as_array(pointer, (self._vocabulary,))

    def logits(self) -> Logits | None:
        found: Logits = self._last
        return found
