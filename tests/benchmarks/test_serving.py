"""The load of a serving run, and what its figures are."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from bench.gguf_file import write_gguf
from bench.job import Job, Served, recorded
from bench.load import Lacking, Stepped, clients, events, free_port, wait_for
from bench.methods import SERVING, UnknownMethod, method, methods, serving_methods
from bench.record import Measured
from bench.served import Load, document, gaps, limit, part, same, waits
from bench.serving import main, prompts_of
from bench.table import serving_table
from bench.traffic import Sizes

SIZES = Sizes(100, 64, 2, 4, 2, 16, 96, True)


def job(prompts: list[list[int]], new: int, concurrency: int) -> Job:
    return Job(
        key="a",
        runner="",
        dtype="f32",
        place="",
        prompts=prompts,
        new=new,
        threads=1,
        device="cpu",
        logits="",
        concurrency=concurrency,
    )


class Counting(Stepped):
    """Each request that runs has a token a step, the sum of its prompt."""

    def __init__(self, job: Job, short: bool = False) -> None:
        super().__init__(job)
        self.running: dict[int, list[int]] = {}
        self.most = 0
        self.short = short
        self.prompts: list[list[int]] = []

    def submit(self, index: int, prompt: list[int], new: int) -> None:
        self.running[index] = [sum(prompt)] * new
        self.prompts.append(prompt)
        self.most = max(self.most, len(self.running))

    def step(self) -> Iterable[tuple[int, Sequence[int]]]:
        for index, left in list(self.running.items()):
            size = 2 if self.short and index == 1 else 1
            yield index, [left.pop()] * size
            if not left:
                del self.running[index]


def test_as_many_in_flight_as_asked() -> None:
    prompts = [[k, k + 1] for k in range(7)]
    engine = Counting(job(prompts, 5, 3))
    warm = engine.round(1)
    assert [len(one) for one in warm.answers] == [5, 5, 5]  # the first few prompts
    engine.most = 0
    found = engine.round(5)
    assert engine.most == 3
    assert found.answers == [[2 * k + 1] * 5 for k in range(7)]
    assert engine.prompts[3:] == [[k + 1, k] for k in range(7)]  # turned: no prefix of before
    assert all(len(times) == 5 for times in found.times)
    assert found.submitted == sorted(found.submitted) and len(found.submitted) == 7
    read = recorded(json.loads(json.dumps(found.record())))
    assert isinstance(read, Served) and read.answers == found.answers
    assert read.seconds == found.seconds


def test_answers_have_the_length_that_was_asked() -> None:
    with pytest.raises(Lacking, match=r"request 1 was answered with \d+ tokens, not 5"):
        Counting(job([[1], [2], [3]], 5, 2), short=True).round(5)


def test_clients_send_their_next_when_they_are_answered() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def stream(prompt: list[int], new: int) -> Iterator[tuple[Sequence[int], int]]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        yield prompt, 1
        with lock:
            running -= 1
        yield (), new - 1

    found = clients(stream, [[k] for k in range(20)], 4, 3)
    assert 1 <= most <= 3
    assert found.answers == [[k] for k in range(20)]
    assert all(sum(number for _, number in times) == 4 for times in found.times)

    def failing(prompt: list[int], new: int) -> Iterator[tuple[Sequence[int], int]]:
        if prompt == [5]:
            raise RuntimeError("the server is gone")
        yield prompt, new

    with pytest.raises(RuntimeError, match="the server is gone"):
        clients(failing, [[k] for k in range(20)], 4, 3)


@contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.replace(b"PROMPT", str(asked["prompt"]).encode()))

        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_events_of_a_stream() -> None:
    body = b'data: {"tokens": PROMPT}\n\n: a comment\n\ndata: {"tokens": []}\n\ndata: [DONE]\n\nx'
    with answering(body) as port:
        wait_for(port, "/health", 10, lambda: True)
        found = list(events(port, "/completion", {"prompt": [4, 5]}, 10))
    assert found == [{"tokens": [4, 5]}, {"tokens": []}]
    with answering(b"no room", 429) as port, pytest.raises(RuntimeError, match="429: no room"):
        list(events(port, "/completion", {"prompt": []}, 10))


def test_a_server_that_does_not_come() -> None:
    with pytest.raises(RuntimeError, match="the server ended before it answered"):
        wait_for(free_port(), "/health", 10, lambda: False)
    with pytest.raises(RuntimeError, match=r"did not answer within 0\.05 s"):
        wait_for(free_port(), "/health", 0.05, lambda: True)


def test_the_prompts() -> None:
    prompts = prompts_of(1097, 64, 64, 256, 49152)
    assert sum(map(len, prompts)) == 10_146 and len(prompts) == 64
    assert min(map(len, prompts)) >= 64 and max(map(len, prompts)) <= 256
    assert prompts == prompts_of(1097, 64, 64, 256, 49152) != prompts_of(1, 64, 64, 256, 49152)


def served(first: float, step: float, answers: list[list[int]]) -> Served:
    """Two requests of three tokens; the second's last two came together."""
    times = [
        [(first, 1), (first + step, 1), (first + 2 * step, 1)],
        [(first + 1, 1), (first + 3 * step, 2)],
    ]
    return Served([0.0, 0.5], times, answers)


def test_times_of_requests_and_tokens() -> None:
    one = served(1.0, 2.0, [[1, 2, 3], [4, 5, 6]])
    assert waits(one) == [1.0, 1.5]
    assert gaps(one) == [2.0, 2.0, 5.0, 0.0]
    assert one.seconds == 7.0 and one.rest == 6.0
    ordered = [float(k) for k in range(1, 101)]
    assert [part(ordered, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert part([3.0], 0.5) == part([3.0], 0.99) == 3.0
    assert same([[1, 2], [3, 5]], [[1, 2], [3, 4]]) == 0.5
    assert same([[], []], [[1, 2], [3, 4]]) is None


def test_rows_of_a_serving_run() -> None:
    load = Load("cpu", 2, 2, 8, 10, 3, 2, 1, 2, "f32", False, [8, 10])
    rows = [
        Measured(method(key, "f32", SERVING))
        for key in ("serve-openvino", "serve-linnet-torch", "serve-linnet-http", "serve-vllm")
    ]
    answers = [[1, 2, 3], [4, 5, 6]]
    for one, step in zip(rows, (2.0, 1.0, 1.5)):
        one.add(served(1.0, step, answers))
        one.add(served(1.0, step, answers if step != 1.0 else [[1, 2, 3], [4, 5, 7]]))
        one.peak_kib, one.version, one.load_s = 3 << 20, "1.0", 0.5
    rows[2].served[-1] = served(1.0, 1.5, [[], []])
    rows[3].error = "ModuleNotFoundError: vllm"
    product = {"product": {"f32": 1e6}}
    found = document(rows, load, SIZES, product, [0.1, 0.2])
    assert found["workload"]["serve_prompt_tokens"] == 18
    theirs, ours, http, failed = (one["metrics"] for one in found["methods"])
    assert failed == {} and found["methods"][3]["error"] == "ModuleNotFoundError: vllm"
    assert theirs["serve_tok_s"] == round(6 / 7, 2) and ours["serve_tok_s"] == 1.5
    assert theirs["serve_s"] == 7.0 and theirs["serve_ttft_ms"] == 1000.0
    assert theirs["serve_ttft_p99_ms"] == 1500.0 and theirs["peak_memory_mib"] == 3072.0
    assert theirs["serve_itl_ms"] == 2000.0 and theirs["serve_itl_p99_ms"] == 5000.0
    assert theirs["serve_same"] == 1.0 and ours["serve_same"] == 0.5 and "serve_same" not in http
    matrices = 2 * (2 * 64 * 16 * 6 + 3 * 64 * 96)
    attention = sum(2 * 2 * 4 * 16 * length * (length + 1) for length in (10, 12))
    flops = 2 * (matrices * (10 + 12) + 100 * 64 * 6) + attention
    best = limit(rows[0].method, load, SIZES, product)
    assert best is not None and best == pytest.approx(6e6 / flops)
    assert theirs["serve_share"] == pytest.approx(6 / 7 / best, abs=1e-3)
    assert limit(rows[0].method, load, SIZES, {}) is None
    text = serving_table(found)
    assert "f32 serving: serve-linnet-torch is 1.74 times serve-openvino" in text
    assert "serve-vllm: ModuleNotFoundError: vllm" in text


def test_methods_that_serve() -> None:
    every = serving_methods("all", "f32")
    assert [one.key for one in every][:2] == ["serve-openvino", "serve-vllm"]
    assert all(one.storage == "f32" for one in every)
    q4, same_one = serving_methods("serve-llamacpp-q4,serve-linnet-torch-bf16", "f32")
    assert (q4.storage, q4.cache, q4.dtype) == ("q4", "f16", "f32")
    assert same_one.dtype == same_one.cache == "bf16"
    assert not any(one.key.startswith("serve") for one in methods("all", "f32", "cpu"))
    with pytest.raises(UnknownMethod, match="no method 'llamacpp'"):
        serving_methods("llamacpp", "f32")
    with pytest.raises(UnknownMethod, match="has no q4 weights"):
        serving_methods("serve-vllm-q4", "f32")


def test_a_vocabulary_goes_along(checkpoint: Path, tmp_path: Path) -> None:
    import gguf

    source = tmp_path / "words.gguf"
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "é"])
    writer.add_token_types([1, 1, 3])
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    write_gguf(checkpoint, tmp_path / "model.gguf", "f32", source)
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    found = {name: field.contents() for name, field in fields.items() if "tokenizer" in name}
    assert found == {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "é"],
        "tokenizer.ggml.token_type": [1, 1, 3],
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--new", "0"], "--new is 0; it must be 1 or more"),
        (["--prompt-max", "3"], "--prompt-max is 3; it must be --prompt-min or more"),
        (["--dtype", "f64"], "--dtype is f64; choose f32, bf16, f16"),
        (["--prompt-max", "9000"], "9064 positions"),
    ],
)
def test_arguments(asked: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smollm2-135m-instruct", "--no-probe", *asked]) == 1
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_the_command(
    card: Path, small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers in both ways on the same random weights: rows, files, and the same answers."""
    out = tmp_path / "out"
    asked = ["--methods", "serve-transformers,serve-transformers-static", "--out", str(out)]
    assert main([str(card), *asked, *small]) == 0
    found = json.loads((out / "bench.json").read_text())
    assert [row["error"] for row in found["methods"]] == [None, None]
    for row in found["methods"]:
        assert row["metrics"]["serve_tok_s"] > 0 and row["metrics"]["serve_same"] == 1.0
    assert found["workload"]["serve_requests"] == 5
    assert np.isfinite(found["methods"][0]["metrics"]["serve_ttft_p99_ms"])
    assert (out / "bench.svg").read_text().startswith("<svg ")
    assert "serve-transformers-static" in capsys.readouterr().out
