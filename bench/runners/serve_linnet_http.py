"""Ours: `linnet serve` as a process of its own, and clients of its OpenAI API."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence

from bench.job import Job, Served
from bench.load import Serving, clients, events, free_port, wait_for
from bench.runners.serve_linnet import pool_of


def prepare(job: Job) -> str:
    import linnet

    return f"linnet {linnet.__version__}"


def load(job: Job) -> Server:
    return Server(job)


class Server(Serving):
    """The server's process; ends with this one."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._port = free_port()
        command = [sys.executable, "-m", "linnet", "serve", job.options["card"]]
        command += ["--port", str(self._port), "--device", job.device]
        command += ["--dtype", job.options.get("storage", job.dtype), "--threads", str(job.threads)]
        command += ["--batch", str(job.concurrency), "--max-seq", str(job.positions)]
        command += ["--pool", str(pool_of(job))]
        if job.options["random"]:  # else its own, which have the same values
            command += ["--weights", job.place]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        self.process = server.pid
        wait_for(self._port, "/health", 300, lambda: server.poll() is None)
        self.notes += ["by HTTP", f"pool of {pool_of(job)} positions"]

    def serve(self, prompts: list[list[int]], new: int, concurrency: int) -> Served:
        return clients(self._stream, prompts, new, concurrency)

    def _stream(self, prompt: list[int], new: int) -> Iterator[tuple[Sequence[int], int]]:
        """How many tokens a chunk has it does not tell: what is left counts with the last one."""
        body = {
            "prompt": prompt,
            "max_tokens": new,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        count = 0
        for event in events(self._port, "/v1/completions", body, 600):
            if event.get("usage"):
                yield (), event["usage"]["completion_tokens"] - count
            elif event["choices"][0]["text"]:
                count += 1
                yield (), 1
