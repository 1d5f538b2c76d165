"""Transcripts of `linnet inspect`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from linnet.cli import main

Terminal = Callable[..., str]
Golden = Callable[..., None]

SMALL = """module small

use std.nn.activations::{relu}

pub const SCALE = 2.5

/// One matrix.
pub block Small<H: Dim, N: Dim, T: Float = f32>
where H % 2 == 0
{
    sub parts: [Part<H, T>; N]
    state seen: Tensor[H; T]

    entry forward<B: Dim>(x: Tensor[B, H; T]) -> Tensor[B, H; T]
    where B > 0
    {
        var y = x
        static for part in parts {
            y = part.forward(y)
        }
        let first[h] = y[0, h]
        seen = first
        return y
    }
}

block Part<H: Dim, T: Float> {
    param weight: Tensor[H, H; T]
    param bias: Tensor[H; T]? = none

    pub fn forward<B: Dim>(x: Tensor[B, H; T]) -> Tensor[B, H; T] {
        let mixed[b, h] = sum[k] x[b, k] * weight[h, k]
        return relu(mixed)
    }
}
"""
BROKEN = "module broken\n\nfn f(x: f32 -> f32 {\n    return x +\n}\n"
FREE = (
    "module free\n\nentry f<N: Dim>(x: Tensor[N; f32]) -> f32 {\n    return sum[i] x[i] / 2.0\n}\n"
)


def test_summary_entries_and_parameters(terminal: Terminal, golden: Golden) -> None:
    words = (
        "",
        "--entries ",
        "--parameters ",
        "--parameters --bind H=8 ",
        "--parameters --bind H=8 N=3 T=bf16 ",
        "--parameters --json --bind H=8 N=3 ",
        "--entries --json --entry forward ",
    )
    golden(terminal({"small.linnet": SMALL}, *(f"linnet inspect {w}small.linnet" for w in words)))


def test_tokens_and_trees(terminal: Terminal, golden: Golden) -> None:
    files = {"free.linnet": FREE, "broken.linnet": BROKEN}
    lines = [f"linnet inspect {w} {file}" for file in files for w in ("--tokens", "--ast")]
    golden(terminal(files, *lines))


def test_nodes(terminal: Terminal, golden: Golden) -> None:
    files = {"small.linnet": SMALL, "free.linnet": FREE}
    words = (
        "free.linnet",
        "free.linnet -O",
        "free.linnet --spans",
        "--after simplify small.linnet",
    )
    golden(terminal(files, *(f"linnet inspect --core-ir {w}" for w in words)))


def test_wrong_command_lines(terminal: Terminal, golden: Golden) -> None:
    words = (
        "",
        "absent.linnet",
        "small.toml",
        "broken.linnet",
        "--core-ir --after nothing small.linnet",
        "-O small.linnet",
        "--tokens --json small.linnet",
        "--root Other small.linnet",
        "--entry forwards small.linnet",
        "--parameters --bind H=3 N=1 small.linnet",
        "--parameters --bind H=3 H=4 small.linnet",
        "--parameters --bind H small.linnet",
    )
    files = {"small.linnet": SMALL, "broken.linnet": BROKEN, "small.toml": ""}
    golden(terminal(files, *(f"linnet inspect {w}".rstrip() for w in words)))


@pytest.mark.parametrize("flag", ["--tokens", "--ast"])
def test_a_package_s_files(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    manifest = '[package]\nname = "p"\nversion = "1"\nlanguage = "0.1"\n'
    (tmp_path / "linnet.toml").write_text(manifest)
    (tmp_path / "src/lib.linnet").write_text("module p\n")
    (tmp_path / "src/more.linnet").write_text("module p.more\n")
    assert main(["inspect", flag, "."]) == 0
    out = capsys.readouterr().out
    assert out.startswith("// src/lib.linnet\n") and "\n\n// src/more.linnet\n" in out


def test_cards(capsys: pytest.CaptureFixture[str]) -> None:
    name = "smollm2-135m-instruct"
    assert main(["inspect", "--parameters", "--json", name]) == 0
    document = json.loads(capsys.readouterr().out)
    # Its head is a tensor of its own here; published, it is the embedding's.
    assert document["totals"]["param"]["elements"] == 134_515_008 + 49152 * 576
    assert main(["inspect", "--parameters", "--bind", "Layers=2", "--", name]) == 0
    assert "Tensor[576; bf16] x 2\n" in capsys.readouterr().out


def test_a_checkpoint_is_no_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main(["inspect", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"linnet: {tmp_path}: a checkpoint, which holds no program: `linnet nest convert "
        f"{tmp_path} -o DIR` makes a card of it\n"
    )
