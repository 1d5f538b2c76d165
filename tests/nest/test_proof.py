"""Proof of loading: what a second process finds when the files are not what they were."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from linnet import nest
from linnet.diagnostics import NestError, PlanError
from linnet.nest.__main__ import main
from linnet.weights import safetensors_index, write_safetensors

from .small_card import MANIFEST, tensors, write

FIRST, SECOND = "model.layers.0.weight", "model.layers.1.weight"


def loaded(tmp_path: Path, dtype: str = "f32", **options: object) -> tuple[Path, Path]:
    """The weights beside the card, and the proof of having loaded them."""
    directory = write(tmp_path / "small", manifest=MANIFEST.replace('"f32"', f'"{dtype}"'))
    rng = np.random.default_rng(3)
    held = {n: rng.normal(size=a.shape).astype(np.float32) for n, a in tensors().items()}
    write_safetensors(directory / "model.safetensors", held)
    proof = tmp_path / "loaded.json"
    nest.load(directory, proof=proof, **options)
    return directory / "model.safetensors", proof


def test_a_proof_says_where_every_byte_lies(tmp_path: Path) -> None:
    weights, proof = loaded(tmp_path)
    document = json.loads(proof.read_text())
    assert document["model"] == "small" and document["backend"] == "torch"
    rows = {row["path"]: row for row in document["parameters"]}
    assert list(rows) == ["table", "head", "layers.0.weight", "layers.1.weight"]
    at = safetensors_index(weights)[SECOND]
    row = rows["layers.1.weight"]
    assert (row["start"], row["end"], row["tensor"]) == (at.start, at.end, SECOND)
    assert (row["dtype"], row["shape"], row["stored_dtype"]) == ("f32", [6, 6], "f32")
    assert row["sha256"] == row["loaded_sha256"] and len(row["sha256"]) == 64
    assert rows["head"]["sha256"] == rows["table"]["sha256"]


@pytest.mark.slow
def test_a_second_process_checks_it(tmp_path: Path) -> None:
    _, proof = loaded(tmp_path, "bf16", cast_dtype=True)
    command = [sys.executable, "-m", "linnet.nest", "verify", str(proof)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == (f"{proof}: ok (small: 4 parameters from 3 tensors in 1 file)\n"), (
        done.stderr
    )
    row = json.loads(proof.read_text())["parameters"][0]
    # What was loaded is not what lies in the file, and both are proved.
    assert (row["dtype"], row["stored_dtype"]) == ("bf16", "f32")
    assert row["sha256"] != row["loaded_sha256"]


def flip(weights: Path) -> None:
    content = bytearray(weights.read_bytes())
    content[safetensors_index(weights)[SECOND].start + 5] ^= 1
    weights.write_bytes(content)


def rewrite(change: Callable[[dict[str, np.ndarray]], None]) -> Callable[[Path], None]:
    def harm(weights: Path) -> None:
        held = {name: at.read().copy() for name, at in safetensors_index(weights).items()}
        change(held)
        write_safetensors(weights, held)

    return harm


def move(held: dict[str, np.ndarray]) -> None:
    held["model.layers.1.weight"] = held.pop(SECOND)
    held[FIRST] = held.pop(FIRST)


def widen(held: dict[str, np.ndarray]) -> None:
    held[SECOND] = held[SECOND].astype(np.float64)


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (flip, f"layers.1.weight: `{SECOND}` in FILE: its bytes are not those that were loaded"),
        (rewrite(move), f"`{FIRST}` in FILE lies at "),
        (rewrite(widen), f"`{SECOND}` in FILE is f64 [6, 6], it was f32 [6, 6]"),
        (rewrite(lambda held: held.pop(FIRST) * 0), f"layers.0.weight: `{FIRST}` in FILE is gone"),
        (lambda weights: weights.unlink(), "FILE: No such file or directory"),
        (lambda weights: weights.write_bytes(weights.read_bytes()[:-4]), "cut short"),
        (lambda weights: weights.write_bytes(b"short"), "FILE: is 5 bytes long, too short"),
    ],
)
def test_what_is_not_as_it_was_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    harm: Callable[[Path], None],
    expected: str,
) -> None:
    weights, proof = loaded(tmp_path)
    harm(weights)
    assert main(["verify", str(proof)]) == 1
    printed = capsys.readouterr().out
    assert expected.replace("FILE", str(weights)) in printed
    assert printed.splitlines()[0].startswith(f"{proof}: ")


def test_what_the_model_held_is_made_anew(tmp_path: Path) -> None:
    _, proof = loaded(tmp_path)
    document = json.loads(proof.read_text())
    document["parameters"][0]["loaded_sha256"] = "0" * 64
    proof.write_text(json.dumps(document))
    (problem,) = nest.verify_loading(proof).problems
    assert problem.startswith("table: what the model held is not what `table.weight` in ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "is not valid JSON"),
        ("[]", "is no proof of loading"),
        ('{"version": 2}', "or one of another version"),
        ('{"version": 1, "files": [{}]}', "`files` is not a list of objects with path, size"),
    ],
)
def test_what_is_no_proof(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(NestError, match=expected):
        nest.verify_loading(tmp_path / "p.json")


def test_entries_that_no_loading_wrote(tmp_path: Path) -> None:
    _, proof = loaded(tmp_path)
    document = json.loads(proof.read_text())
    document["parameters"][0]["shape"] = [{}]
    document["files"].append({"path": "a\0b", "size": 1})
    proof.write_text(json.dumps(document))
    first, second = nest.verify_loading(proof).problems
    assert "embedded null byte" in first and "cannot be read as f32 [{}]" in second


def test_arrays_in_memory_prove_nothing(tmp_path: Path) -> None:
    directory = write(tmp_path / "small")
    with pytest.raises(PlanError, match="comes from an array in memory, and a proof is of files"):
        nest.load(directory, weights=tensors(), proof=tmp_path / "p.json")
    assert not (tmp_path / "p.json").exists()
