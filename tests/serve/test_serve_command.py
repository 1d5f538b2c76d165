"""`linnet serve` as a process: the demo model, signals, and a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2 as httpx
import pytest
from openai import OpenAI

from linnet.cli import main

MODEL = "smollm2-135m-instruct"
WEB = httpx.Client(verify=False, trust_env=False, timeout=120)
SIZES = ("--max-seq", "256", "--batch", "4", "--threads", "1", "--dtype", "f32")


@contextmanager
def process(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of the demo model and its address; it is killed if it still runs at the end."""
    command = [sys.executable, "-m", "linnet.serve", MODEL, *SIZES, *options]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert running.stdout is not None
        line = running.stdout.readline()
        assert line.startswith(f"serving {MODEL} at http://127.0.0.1:"), line
        yield running, line.split(" at ")[1].strip()
    finally:
        running.kill()
        running.communicate()


@pytest.fixture(scope="module", autouse=True)
def web() -> Iterator[None]:
    with WEB:
        yield


def ask(address: str, **options: Any) -> Any:
    with OpenAI(base_url=address, api_key="none", max_retries=0) as client:
        return client.completions.create(
            model=MODEL, prompt="The capital of France is", temperature=0, **options
        )


@pytest.mark.slow
def test_a_server_that_is_asked_to_end_finishes_first() -> None:
    with process("--port", "0") as (running, address):
        assert ask(address, max_tokens=2).choices[0].text == " Paris."
        port = address.rpartition(":")[2].removesuffix("/v1")
        with WEB.stream(
            "POST",
            f"{address}/completions",
            json={"prompt": "Once", "max_tokens": 100, "stream": True, "ignore_eos": True},
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            running.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            refused = WEB.post(f"{address}/completions", json={"prompt": "x"})
            assert refused.status_code == 503
            events = [line for line in lines if line.startswith("data: ")]
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2][6:])["choices"][0]["finish_reason"] == "length"
        assert running.wait(30) == 0
    # Killed in the middle of work, it starts again on the same port.
    with (
        process("--port", port) as (running, address),
        WEB.stream(
            "POST", f"{address}/completions", json={"prompt": "Once", "stream": True}
        ) as stream,
    ):
        next(stream.iter_lines())
        running.kill()
    with process("--port", port) as (running, address):
        assert ask(address, max_tokens=2).choices[0].text == " Paris."
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 0


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "onnx"])
def test_others_serve_too(backend: str) -> None:
    with process("--port", "0", "--backend", backend) as (running, address):
        assert ask(address, max_tokens=2).choices[0].text == " Paris."
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0


@pytest.mark.slow
def test_a_second_signal_ends_at_once() -> None:
    with (
        process("--port", "0", "--max-seq", "2048") as (running, address),
        WEB.stream(
            "POST",
            f"{address}/completions",
            json={"prompt": "Once", "max_tokens": 2000, "stream": True, "ignore_eos": True},
        ) as stream,
    ):
        lines = stream.iter_lines()  # kept: dropped, it would hang up
        next(lines)
        running.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert running.poll() is None
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("nosuchmodel",), "no card `nosuchmodel`"),
        ((MODEL, "--port", "99999"), "65535"),
        ((MODEL, "--batch", "0"), "--batch is 0"),
        ((MODEL, "--timeout", "0"), "--timeout is 0.0"),
        ((MODEL, "--backend", "tf"), "--backend is tf; choose torch, jax, onnx"),
        ((MODEL, "--backend", "jax", "--device", "cuda"), "JAX_PLATFORMS says where JAX computes"),
        ((MODEL, "--backend", "jax", "--dtype", "q4"), "--dtype q4 is for torch"),
        ((MODEL, "--backend", "onnx", "--device", "cuda"), "ONNX Runtime computes on the CPU"),
        ((MODEL, "--dtype", "f8"), "--dtype is f8"),
        ((MODEL, "--kv-dtype", "f8"), "--kv-dtype is f8"),
        ((MODEL, "--api-key", ""), "--api-key"),
        (("bert-base-uncased", "--port", "0"), "not for text generation"),
        ((MODEL, "--port", "0", "--weights", "/nope"), "--weights /nope: no such file"),
    ],
)
def test_a_mistake_is_one_line(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], problem: str
) -> None:
    assert main(["serve", *options]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("linnet: ") and problem in said.err
