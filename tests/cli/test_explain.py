"""`linnet explain`: pages of codes, and what is said where there is none."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from linnet.backends import BACKENDS, Backend, choices
from linnet.cli import explain, main
from linnet.diagnostics import CODES
from linnet.ir import load_program
from linnet.policy import POLICIES, Policy

Terminal = Callable[..., str]
Golden = Callable[..., None]

PAGE = """# E2201: index extents differ

Two axes share `i`.

```linnet
let c[i] = a[i]
```
"""


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(explain, "PAGES", tmp_path)
    (tmp_path / "E2201.md").write_text(PAGE)
    return tmp_path


def test_transcript(pages: Path, terminal: Terminal, golden: Golden) -> None:
    words = ("e2201", "2201", "E220", "broadcast", "nothing")
    golden(terminal({}, *(f"linnet explain {word}" for word in words)))


def test_every_page_that_is_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    for code, title in CODES.items():
        assert main(["explain", code]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"# {code}: {title}\n") and "## Fixed" in shown


def test_alone_it_lists_every_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed == [f"{code}  {title}" for code, title in CODES.items()]


def test_a_terminal_gets_colours(
    pages: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["explain", "E2201"]) == 0
    styled = capsys.readouterr().out
    assert "\x1b[1mE2201: index extents differ\x1b[0m" in styled
    assert "`" not in styled.split("```")[0]
    assert main(["explain", "E2201", "--no-color"]) == 0
    assert capsys.readouterr().out == PAGE


PROGRAM = """module small

use std.nn.linear::{Linear}
use std.nn.parallel::{all_gather}
use std.nn.activations::{sigmoid}
use std.linalg::{matmul}

pub block Small<H: Dim, Shards: Dim, T: Float>
where
    H > 0,
    Shards > 0
{
    sub layers: [Linear<H, H, T>; 2]

    entry forward<B: Dim>(x: Tensor[B, H; T]) -> Tensor[B, H * Shards; T] {
        var y = x
        static for layer in layers {
            y = sigmoid(layer.forward(y))
        }
        return all_gather<B, H, Shards, T>(half(y))
    }

    entry square(x: Tensor[H, H; T]) -> Tensor[H, H; T] {
        return matmul(x, x)
    }
}

op half<B: Dim, H: Dim, T: Float>(x: Tensor[B, H; T]) -> Tensor[B, H; T] {
    return x * 0.5
}
"""


def test_programs(terminal: Terminal, golden: Golden) -> None:
    words = (
        "small.linnet",
        "--bind H=8 Shards=1 T=f32 small.linnet",
        "--optionals present --numerics fast --entry forward small.linnet",
        "--numerics exact --json --entry square small.linnet",
        "--backend reference --bind Shards=2 T=bf16 small.linnet",
        "--backend jxa small.linnet",
        "--numerics loose small.linnet",
        "--bind H=0 small.linnet",
        "gone.linnet",
    )
    golden(terminal({"small.linnet": PROGRAM}, *(f"linnet explain {word}" for word in words)))


def test_a_framework_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.linnet").write_text(PROGRAM)
    backend = Backend("absent_framework.linnet", "nothing", "absent")
    monkeypatch.setitem(BACKENDS, "torch", backend)
    assert main(["explain", str(tmp_path / "small.linnet")]) == 1
    assert capsys.readouterr().err.endswith(
        "needs absent_framework, which is not installed: pip install 'linnet[absent]'\n"
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_a_call_gets_what_the_generated_source_runs(policy: Policy, tmp_path: Path) -> None:
    from linnet.torch import KERNELS
    from linnet.torch.emit import emit

    (tmp_path / "small.linnet").write_text(PROGRAM)
    program = load_program(tmp_path / "small.linnet").lower(
        {"H": 8, "Shards": 1, "T": "f32"}, numerics=policy
    )
    runs = {c.kernel.run for c in choices(KERNELS, program, policy) if c.kernel and c.kernel.run}
    written = set(re.findall(r"\b(?:kernels|F|torch)\.\w+(?=\()", emit(program, policy)))
    named = {kernel.run for several in KERNELS.values() for kernel in several}
    # An op's body may be written with the same functions of PyTorch.
    assert runs <= written & named if policy == "exact" else runs == written & named
    assert bool(runs) == (policy != "exact")


def test_every_page_belongs_to_a_code() -> None:
    folder = Path(str(explain.PAGES))
    names = {file.stem for file in folder.glob("*.md")} if folder.is_dir() else set()
    assert names <= CODES.keys(), names - CODES.keys()
    for name in sorted(names):
        assert explain.page(name).startswith("#")
