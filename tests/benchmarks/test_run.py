"""Weights in the forms that methods read, and the whole command on a tiny card."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bench.gguf_file import write_gguf
from bench.run import main

from linnet.weights import open_checkpoint

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("program", ["run", "serving", "soak"])
def test_a_python_without_linnet_is_told_so(program: str) -> None:
    command = [sys.executable, "-S", "-m", f"bench.{program}"]
    told = subprocess.run(command, cwd=ROOT, env={}, capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert told.stderr.startswith(f"bench.{program}: {sys.executable} has no Linnet; use ")


@pytest.mark.parametrize(
    ("storage", "error"), [("f32", 0.0), ("bf16", 2**-7), ("q8", 0.02), ("q4", 0.3)]
)
def test_a_gguf_file_holds_the_checkpoint(checkpoint: Path, storage: str, error: float) -> None:
    """Linnet's own reader gives the Hub's names and order back."""
    place = checkpoint / "model.gguf"
    write_gguf(checkpoint, place, storage)
    expected, found = open_checkpoint(checkpoint / "model.safetensors"), open_checkpoint(place)
    assert set(found.tensors) == set(expected.tensors)
    for name, at in expected.tensors.items():
        array, other = at.read("f32"), found.tensors[name].read("f32")
        assert np.abs(array - other).max() <= error * np.abs(array).max(), name


@pytest.mark.slow
def test_the_command(card: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """transformers and ours on the same random weights: rows, files, and the same logits."""
    out = tmp_path / "out"
    asked = ["--random", "--no-probe", "--prompt", "12", "--new", "4", "--iters", "1"]
    asked += ["--warmup", "0", "--threads", "1", "--cache", str(tmp_path / "cache")]
    asked += ["--methods", "transformers-eager,linnet-torch", "--out", str(out), "--imports", "1"]
    assert main([str(card), *asked]) == 0
    found = json.loads((out / "bench.json").read_text())
    assert [row["error"] for row in found["methods"]] == [None, None]
    theirs, ours = (row["metrics"] for row in found["methods"])
    assert found["reference"] == "transformers-eager"
    assert found["methods"][1]["max_abs_diff"] < 1e-5
    assert theirs["first_token"] == ours["first_token"]
    assert ours["decode_tok_s"] > 0 and ours["peak_memory_mib"] > 0
    values = 96 * 64 + 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96 + 2 * 64)
    caches = 2 * 2 * 2 * 16 * 16
    assert ours["weights_caches_mib"] == pytest.approx(4 * (values + caches) / 2**20, abs=0.01)
    imports = found["imports"]
    assert imports["ratio"] == pytest.approx(imports["linnet_torch_s"] / imports["torch_s"], 0.01)
    assert (out / "bench.svg").read_text().startswith("<svg ")
    assert "linnet-torch" in capsys.readouterr().out
