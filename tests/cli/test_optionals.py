"""Which optional members are there: on the command line, and where weights have them or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime as ort
import pytest

from linnet.diagnostics import PlanError
from linnet.onnx import export_model

Terminal = Callable[..., str]

SOURCE = """module scales

block Layer {
    param gain: Tensor[2; f32]? = none
    param shift: Tensor[2; f32]? = none

    pub fn forward(x: Tensor[2; f32]) -> Tensor[2; f32] {
        let y = match gain {
            some(g) => x * g
            none => x
        }
        return match shift {
            some(s) => y + s
            none => y
        }
    }
}

pub block Scales {
    sub layers: [Layer; 2]

    pub entry forward(x: Tensor[2; f32]) -> Tensor[2; f32] {
        var y = x
        static for layer in layers {
            y = layer.forward(y)
        }
        return y
    }
}
"""
GAINS = {f"layers.{i}.gain": np.float32([2 + i, 3 + i]) for i in range(2)}
SHIFTS = {f"layers.{i}.shift": np.float32([10, 20 * i]) for i in range(2)}


@pytest.mark.parametrize(
    ("optionals", "weights", "expected"),
    [
        ("auto", {}, [1, 2]),
        ("auto", GAINS, [6, 24]),
        ("auto", {**GAINS, **SHIFTS}, [46, 44]),
        ("present", {**GAINS, **SHIFTS}, [46, 44]),
        ("absent", {**GAINS, **SHIFTS}, [1, 2]),
    ],
)
def test_exported(
    tmp_path: Path,
    optionals: Literal["auto", "present", "absent"],
    weights: dict[str, Any],
    expected: list[int],
) -> None:
    path = tmp_path / "scales.linnet"
    path.write_text(SOURCE, encoding="utf-8")
    made = export_model(path, weights=weights, optionals=optionals)
    (found,) = ort.InferenceSession(made.model.SerializeToString()).run(
        None, {"x": np.float32([1, 2])}
    )
    np.testing.assert_array_equal(found, np.float32(expected))


def test_without_weights_they_are_inputs(tmp_path: Path) -> None:
    path = tmp_path / "scales.linnet"
    path.write_text(SOURCE, encoding="utf-8")
    assert not export_model(path).parameters
    names = {port.name for port in export_model(path, optionals="present").parameters}
    assert len(names) == 4
    with pytest.raises(PlanError, match="expected one of auto, present, absent"):
        export_model(path, optionals="maybe")  # type: ignore[arg-type]


def test_what_must_be_present_and_is_not(tmp_path: Path) -> None:
    path = tmp_path / "scales.linnet"
    path.write_text(SOURCE, encoding="utf-8")
    with pytest.raises(PlanError, match=r"layers\.0\.shift"):
        export_model(path, weights=GAINS, optionals="present")


@pytest.mark.parametrize("command", ["torch", "jax", "onnx", "stablehlo"])
def test_absent_file(terminal: Terminal, command: str) -> None:
    files = {"scales.linnet": SOURCE, "absent.txt": "layers.*.shift\n\n", "wrong.txt": "layers\n"}
    shown = terminal(
        files,
        f"linnet {command} --absent-file absent.txt scales.linnet",
        f"linnet {command} --absent-file wrong.txt scales.linnet",
        f"linnet {command} --absent-file gone.txt scales.linnet",
    )
    made, wrong, gone = shown.split("$ linnet")[1:]
    assert "gain" in made
    assert "shift" not in made
    assert "[status 0]" in made
    assert (
        "wrong.txt: layers is no optional member; they are layers.*.gain, layers.*.shift" in wrong
    )
    assert "cannot read gone.txt: No such file" in gone
