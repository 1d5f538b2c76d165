"""Models of ONNX become Linnet: names, sizes, errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from porting.onnx_importing import model_of, same

RNG = np.random.default_rng(3)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_an_mlp_becomes_blocks_that_a_person_would_write(tmp_path: Path) -> None:
    model = model_of(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[batch, 8] x) => (float[batch, 4] y) {
            h = Gemm <transB = 1> (x, fc1__weight, fc1__bias)
            a = Relu (h)
            y = Gemm <transB = 1> (a, fc2__weight, fc2__bias)
        }""",
        fc1__weight=floats(16, 8),
        fc1__bias=floats(16),
        fc2__weight=floats(4, 16),
        fc2__bias=floats(4),
    )
    text = same(model, tmp_path / "mlp", {"x": floats(3, 8)}, {"x": floats(1, 8)})
    assert "entry forward<Batch: Dim>(x: Tensor[Batch, 8; f32]) -> Tensor[Batch, 4; f32]" in text
    assert "sub fc1: Linear<16, 8>" in text
    assert "fc2.forward(relu(fc1.forward(x)))" in text
