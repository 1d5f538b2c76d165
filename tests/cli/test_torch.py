"""`linnet torch`: generated source, which Python reads."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from linnet.backends import BACKENDS, Backend
from linnet.cli import main

Terminal = Callable[..., str]
Golden = Callable[..., None]

SMALL = """module small

use std.nn.linear::{Linear}

pub block Small<H: Dim, T: Float = f32> {
    sub first: Linear<H, 2 * H, T>
    sub second: Linear<2 * H, H, T>

    entry forward<B: Dim>(x: Tensor[B, H; T]) -> Tensor[B, H; T] {
        return second.forward(first.forward(x))
    }

    entry wide<B: Dim>(x: Tensor[B, H; T]) -> Tensor[B, 2 * H; T] {
        return first.forward(x)
    }
}
"""


def test_transcript(terminal: Terminal, golden: Golden) -> None:
    words = (
        "small.linnet",
        "--numerics exact --entry wide --bind H=4 small.linnet",
        "--optionals present --entry wide --bind H=4 T=bf16 small.linnet",
        "--bind G=4 small.linnet",
    )
    golden(terminal({"small.linnet": SMALL}, *(f"linnet torch {word}" for word in words)))


def test_a_card(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--entry", "next_token", "--bind", "Layers=2"]
    assert main(["torch", "smollm2-135m-instruct", *words]) == 0
    out, err = capsys.readouterr()
    functions = [n.name for n in ast.parse(out).body if isinstance(n, ast.FunctionDef)]
    assert "next_token" in functions and not err


def test_without_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.linnet").write_text(SMALL)
    monkeypatch.setitem(BACKENDS, "torch", Backend("absent_torch", "nothing", "torch"))
    assert main(["torch", str(tmp_path / "small.linnet")]) == 1
    assert capsys.readouterr().err.endswith("not installed: pip install 'linnet[torch]'\n")


def test_where_units_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "small.linnet"
    source.write_text(SMALL)
    words = ["torch", "--bind", "H=4", "--place", "second=1", "--offload", "first", str(source)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[2:6] == [
        "# Device 0: first.",
        "# Device 1: second.",
        "# Brought for each call: first.",
        "# A call of a unit's method takes its arguments, and DEVICE, to the unit's device.",
    ]
    ast.parse(out)
    for flags, said in (
        (["--place", "second"], "--place second: give a unit and a device's number"),
        (["--place", "secnd=1"], "--place secnd=1: 'secnd' is no unit of the program"),
        (["--offload", "second.weight"], "'second.weight' is no unit of the program"),
    ):
        assert main(["torch", "--bind", "H=4", *flags, str(source)]) == 1
        assert said in capsys.readouterr().err
