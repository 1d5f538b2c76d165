"""Workers take turns, and one that fails leaves a row with its error."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from bench.job import Job
from bench.methods import method
from bench.record import Measured
from bench.turns import ROOT, Start, take_turns

HERE = Path(__file__).parent


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def start(key: str, log: Path, fails: str | None = None) -> Start:
    options = {"log": str(log), "fails": fails}
    job = Job(
        key=key,
        runner="fake_runner",
        dtype="f32",
        place="",
        prompts=[[1, 2, 3]],
        new=5,
        threads=1,
        device="cpu",
        logits=str(log.parent / f"{key}.npy"),
        seed=3,
        options=options,
    )
    return Start(sys.executable, {"PYTHONPATH": f"{ROOT}:{HERE}"}, job)


def test_rounds_in_turns(log: Path) -> None:
    one, other = (Measured(method(key, "f32")) for key in ("linnet-torch", "llamacpp"))
    asked = [(one, partial(start, "a", log)), (other, partial(start, "b", log))]
    take_turns(asked, 1, 2, 60, lambda line: None)
    assert log.read_text() == "ababab"
    for measured in (one, other):
        assert measured.error is None
        assert [each.rest for each in measured.rounds] == [1.0, 1.5]  # the first is not counted
        assert [len(each.tokens) for each in measured.rounds] == [5, 5]
        assert measured.version == "fake 1.0" and measured.notes == ["made up"]
        assert measured.held == 1 << 20
        assert 60 << 10 < measured.peak_kib < 100 << 10
        assert measured.load_s is not None and measured.start_to_first_token_s is not None
        assert measured.load_s < measured.start_to_first_token_s
        assert measured.logits is not None and np.load(measured.logits).tolist() == [0.5, 3.0]


@pytest.mark.slow
def test_failures_are_rows(log: Path) -> None:
    keys = {
        "load": "ValueError: these weights cannot be read",
        "round": "RuntimeError: out of memory",
        "signal": "ended by SIGKILL",
        "exit": "ended with status 3: no room",
        "slow": "took longer than 3 s (--timeout)",
    }
    rows = {kind: Measured(method("linnet-torch", "f32")) for kind in [*keys, "whole", "unmade"]}

    def unmade() -> Start:
        raise OSError("no such environment")

    asked = [(rows[kind], partial(start, kind, log, kind)) for kind in keys]
    asked += [(rows["unmade"], unmade), (rows["whole"], partial(start, "w", log))]
    take_turns(asked, 0, 2, 3, lambda line: None)
    assert {kind: rows[kind].error for kind in keys} == keys
    assert rows["unmade"].error == "OSError: no such environment"
    assert rows["whole"].error is None and len(rows["whole"].rounds) == 2
