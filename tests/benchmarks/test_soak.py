"""Half a minute of mixed traffic on a tiny model, and what a soak must notice."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from bench.soak import Found, main
from bench.soak_traffic import KINDS, Api, Case, Wrong, cases
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.conftest import write_checkpoint
from serve.test_text import CHATML, VOCABULARY


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint with a tokenizer whose tokens are bytes."""
    folder = write_checkpoint(tmp_path / "model", len(VOCABULARY), 512)
    tokenizer = Tokenizer(models.BPE({token: k for k, token in enumerate(VOCABULARY)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.slow
def test_half_a_minute(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--minutes", "0.5", "--clients", "4", "--batch", "3", "--threads", "1"]
    status = main([str(model), *asked, "--max-seq", "256", "--pool", "512", "--new", "16"])
    told = capsys.readouterr().out
    assert status == 0 and "soak: nothing is wrong" in told, told


def test_a_wrong_answer_is_noticed() -> None:
    case = Case("hello", 4, "abcdef", ties=(3,))
    case.check("abcdef")
    case.check("abcxyz")  # from a near tie on another answer is as good
    for other in ("abXdef", "ab", ""):
        with pytest.raises(Wrong, match="alone with 'abcdef'"):
            case.check(other)


def test_memory_that_grows_is_noticed() -> None:
    found = Found(memory=[(float(k), 1 << 20) for k in range(100)])
    assert found.growth(100) == 0.0 and found.course(100) == [1024] * 11
    found.memory = [(float(k), (1 << 20) + (k << 10)) for k in range(100)]
    assert found.growth(100) == pytest.approx(64.5, abs=1)
    assert not Found().growth(100) <= 32  # nothing measured is no pass


def test_prompts_fit_and_some_begin_alike() -> None:
    every = cases(240, 16)
    assert all(0 < len(case.prompt) <= 240 for case in every)
    assert len({case.prompt for case in every}) == len(every)
    assert every[-1].prompt[:100] == every[-2].prompt[:100]


class Scripted(Api):
    """A server that always answers the same."""

    def __init__(self, status: int, document: object) -> None:
        super().__init__(0)
        self._said = status, document

    def ask(self, path: str, body: object = None, method: str = "POST") -> tuple[int, object]:
        return self._said


@pytest.mark.parametrize(
    ("name", "status", "document", "told"),
    [
        ("whole", 200, {"choices": [{"text": "other", "index": 0}]}, "alone with 'right'"),
        ("whole", 500, {"error": {"message": "a bug"}}, "answered 500"),
        ("several", 200, {"choices": [{"text": "right", "index": 1}]}, "n=3 has the choices"),
        ("stopped", 200, {"choices": [{"text": "right", "index": 0}]}, "has the stop string"),
        ("structured", 200, {"choices": [{"text": "right", "index": 0}]}, "has not the form"),
        ("refused", 200, {"choices": []}, "answered 200, not 40"),
        ("looked at", 503, {}, "/health answered 503"),
    ],
)
def test_each_kind_checks(name: str, status: int, document: object, told: str) -> None:
    every = [Case(f"prompt {k}", 8, "right") for k in range(6)]
    with pytest.raises(Wrong, match=told):
        KINDS[name][1](Scripted(status, document), random.Random(1), every)


def test_statuses_are_counted() -> None:
    assert Api(1).statuses == Counter()
