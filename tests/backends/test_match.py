"""`match` on enums known only at run time: bindings, nested patterns, element by element."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

import linnet.torch
from linnet.check import check_text
from linnet.core.lower import lower
from linnet.reference import evaluate

SOURCE = """
module m
enum Mode { A, B, C }
fn pick(m: Mode, x: f32) -> f32 {
    return match m {
        A => x
        B => x * 2.0
        other => last(other, x)
    }
}
fn last(m: Mode, x: f32) -> f32 {
    return match m {
        Mode.C => x * 3.0
        _ => 0.0
    }
}
fn two(p: (Mode, Mode)?, x: f32) -> f32 {
    return match p {
        some((A, B)) => x + 1.0
        some((other, B)) => pick(other, x) + 10.0
        some(_) => x + 100.0
        none => -x
    }
}
pub entry run(m: Mode, n: Mode, x: f32) -> (f32, f32, f32, f32, f32) {
    let known = two(some((Mode.A, Mode.B)), x)
    return (pick(m, x), pick(Mode.C, x), two(some((m, n)), x), two(none, x), known)
}
pub entry rows<N: Dim>(m: Mode, x: Tensor[N; f32]) -> Tensor[N; f32] {
    let y[i] = pick(m, x[i])
    return y
}
"""


def pick(m: int, x: float) -> float:
    return (m + 1) * x


def test_every_combination_of_variants(tmp_path: Path) -> None:
    analysis = check_text(SOURCE)
    assert not analysis.findings.items
    program = lower(analysis)
    (tmp_path / "m.linnet").write_text(SOURCE)
    module = linnet.torch.load(tmp_path / "m.linnet")
    x = 5.0
    for m, n in itertools.product(range(3), range(3)):
        both = x + 1 if (m, n) == (0, 1) else pick(m, x) + 10 if n == 1 else x + 100
        wanted = [pick(m, x), pick(2, x), both, -x, x + 1]
        inputs = [np.int32(m), np.int32(n), np.float32(x)]
        assert [float(v) for v in evaluate(program, "run", inputs)] == wanted
        assert [float(v) for v in module.run_entry("run", [m, n, x])] == wanted
    row = np.arange(4, dtype=np.float32)
    for m in range(3):
        found = evaluate(program, "rows", [np.int32(m), row])
        np.testing.assert_array_equal(found, (m + 1) * row)
