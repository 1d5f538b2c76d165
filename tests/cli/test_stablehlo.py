"""`linnet stablehlo`: an entry as a module, and what is said where that cannot be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from linnet.cli import main

from .test_torch import SMALL

Terminal = Callable[..., str]
Golden = Callable[..., None]


def test_transcript(terminal: Terminal, golden: Golden) -> None:
    words = (
        "--entry wide --bind H=4 B=2 small.linnet",
        "--numerics fast --entry forward --bind H=4 T=bf16 B=1 small.linnet",
        "--entry wide --bind H=4 small.linnet",
        "--entry wide --bind H=4 B=-1 small.linnet",
        "--entry wide --bind H=4 B=1 G=4 small.linnet",
        "--entry wide --entry forward --bind H=4 B=1 small.linnet",
        "--bind H=4 B=1 small.linnet",
    )
    golden(terminal({"small.linnet": SMALL}, *(f"linnet stablehlo {word}" for word in words)))


ADDED = """module added

pub entry add<B: Dim, N: Dim>(x: Tensor[B, 2; f32], y: Tensor[B * 2; f32]) -> Tensor[N; i64] {
    return iota(N) + B
}
"""


def test_sizes_that_stay_dynamic(terminal: Terminal, golden: Golden) -> None:
    words = (
        "--dynamic B --entry wide --bind H=4 small.linnet",
        "--dynamic b --entry wide --bind H=4 small.linnet",
        "--dynamic B --entry wide --bind H=4 B=2 small.linnet",
        "--dynamic B,H --entry wide --bind H=4 small.linnet",
        "--dynamic B,N added.linnet",
        "--dynamic B --bind N=3 -- added.linnet",
        "--dynamic B added.linnet",
    )
    files = {"small.linnet": SMALL, "added.linnet": ADDED}
    golden(terminal(files, *(f"linnet stablehlo {word}" for word in words)))


def test_the_seeds_command(seed: object, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = (
        "Vocab=32768 H=4096 Heads=32 KvHeads=8 Inner=14336 Layers=32 Batch=1 MaxSeq=32768 T=bf16 "
        "B=1 S=8"
    )
    binds = [word for size in sizes.split() for word in ("--bind", size)]
    assert (
        main(
            ["stablehlo", "--root", "Model", "--entry", "forward", *binds, f"{seed}/src/lib.linnet"]
        )
        == 0
    )
    out, err = capsys.readouterr()
    assert not err and out.startswith("module @") and "tensor<1x8x32768xbf16>" in out
    assert out.count("func.func private") < 40 and 'linnet.path = "layers.31.' in out
