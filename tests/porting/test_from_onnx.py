"""Models of ONNX become Linnet: names, sizes, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from linnet.onnx import OnnxImportError, import_onnx
from porting.onnx_importing import checked, members, model_of, same

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


# ---------------------------------------------------------------- names


def test_numbered_tensors_are_named_by_the_node_that_reads_them(tmp_path: Path) -> None:
    """As PyTorch's older exporter leaves them: `onnx::MatMul_7`, turned around."""
    model = model_of(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[batch, 8] x) => (float[batch, 4] y) {
            h = MatMul (x, w)
            y = Add (encoder__layer__0__dense__bias, h)
        }""",
        encoder__layer__0__dense__bias=floats(4),
    )
    model.graph.node[0].name = "/encoder/layer.0/dense/MatMul"
    model.graph.node[0].input[1] = "onnx::MatMul_7"
    model.graph.initializer.append(onnx.numpy_helper.from_array(floats(8, 4), "onnx::MatMul_7"))
    result = import_onnx(model, output=tmp_path / "named")
    assert set(members(result)) == {
        "encoder.layer_0.dense.weight",
        "encoder.layer_0.dense.bias",
    }
    assert members(result)["encoder.layer_0.dense.weight"].shape == (4, 8)
    same(model, tmp_path / "again", {"x": floats(2, 8)})


def test_a_slice_to_a_size_becomes_a_where_clause(tmp_path: Path) -> None:
    model = model_of(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[N, 3] x) => (float[N, 3] y)
        <int64[1] at = {0}, int64[1] one = {1}>
        { s = Shape (x)
          n = Slice (s, at, one)
          p = Slice (table, at, n)
          y = Add (x, p) }""",
        table=floats(6, 3),
    )
    text = same(model, tmp_path / "cut", {"x": floats(6, 3)}, {"x": floats(1, 3)})
    assert "N <= 6" in text


# ---------------------------------------------------------------- what cannot be read


def small() -> onnx.ModelProto:
    return model_of(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[n, 8] x) => (float[n, 4] y) { y = MatMul (x, w) }""",
        w=floats(8, 4),
    )


def refused(model: Any, place: Path, **options: Any) -> str:
    """The error's text; nothing was written."""
    before = sorted(place.parent.iterdir())
    with pytest.raises(OnnxImportError) as caught:
        import_onnx(model, output=place, **options)
    assert sorted(place.parent.iterdir()) == before
    return str(caught.value)


def test_every_operator_without_a_translation_is_named_with_its_nodes(tmp_path: Path) -> None:
    model = model_of(
        """<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]>
        main (float[n] x) => (float[n] z) {
            a = com.acme.Wobble (x)
            b = NonZero (a)
            c = com.acme.Wobble (x)
            z = Add (x, c)
        }"""
    )
    model.graph.node[0].name, model.graph.node[2].name = "first", "second"
    told = refused(model, tmp_path / "out")
    assert "com.acme.Wobble: there is no translation: in `first`, `second`" in told
    assert "NonZero: there is no translation: in the one that gives `b`" in told


def test_external_data_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(small(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    same(path, tmp_path / "whole", {"x": floats(2, 8)})
    data = tmp_path / "w.bin"
    data.write_bytes(data.read_bytes()[:-40])
    assert "`w` should be bytes 0 to 128, and the file ends after 88" in refused(
        path, tmp_path / "out"
    )
    data.unlink()
    assert "there is no such file" in refused(path, tmp_path / "out")


def test_files_that_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    assert "model.onnx: No such file" in refused(path, tmp_path / "out")
    path.write_bytes(b"these are words and no model")
    assert "model.onnx: this is no model of ONNX" in refused(path, tmp_path / "out")
    path.write_bytes(small().SerializeToString()[:-60])
    assert "model.onnx: this is no model of ONNX" in refused(path, tmp_path / "out")
    assert "model is a int, expected a path or an onnx.ModelProto" in refused(3, tmp_path / "out")


@pytest.mark.parametrize("opset", [6, 99])
def test_opsets_that_are_not_read(opset: int, tmp_path: Path) -> None:
    model = small()
    model.opset_import[0].version = opset
    assert f"the model is in opset {opset} of ONNX; those from 7 to" in refused(
        model, tmp_path / "out"
    )


def test_places_and_names_that_cannot_be(tmp_path: Path) -> None:
    place = tmp_path / "used"
    place.mkdir()
    (place / "mine.txt").write_text("keep")
    assert "is there already" in refused(small(), place)
    assert "root_name 'model'" in refused(small(), tmp_path / "out", root_name="model")
    assert "module_name 'My Model'" in refused(small(), tmp_path / "out", module_name="My Model")


def test_sizes_and_dtypes_that_cannot_be(tmp_path: Path) -> None:
    model = small()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert "the input `x` has no shape" in refused(model, tmp_path / "out")
    model = small()
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.STRING
    assert "the input `x`: the dtype STRING has no counterpart" in refused(model, tmp_path / "out")


def test_names_that_stand_in_each_others_way(tmp_path: Path) -> None:
    """A tensor may be called as a module of others, or as another but for its punctuation."""
    model = model_of(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[n, 3] x) => (float[n, 3] y) {
            a = Mul (x, part)
            b = Add (a, part__bias)
            y = Sub (b, slashed)
        }""",
        part=floats(3),
        part__bias=floats(3),
        slashed=floats(3),
    )
    model.graph.node[2].input[1] = "part/bias"
    model.graph.initializer[2].name = "part/bias"
    same(model, tmp_path / "names", {"x": floats(2, 3)})


def test_an_input_that_nothing_reads_is_still_given(tmp_path: Path) -> None:
    model = model_of(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[n, 3] x, int64[m] ids) => (float[n, 3] y) { y = Neg (x) }"""
    )
    result = import_onnx(model, output=tmp_path / "unread")
    assert "x: Tensor[N, 3; f32], ids: Tensor[M; i64]" in checked(result)


def test_graphs_that_are_no_valid_ones(tmp_path: Path) -> None:
    model = model_of(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[n] x, float[m] y, float[2, 3] z) => (float[n] r) {
            a = Add (x, y)
            b = MaxPool (z)
            c = MatMul (z, z)
            r = Sum (a, b, c)
        }"""
    )
    told = refused(model, tmp_path / "out")
    assert "Add: shapes do not broadcast: [N] and [M]: in the one that gives `a`" in told
    assert "MaxPool: it does not take what it is given, Tensor[2, 3; f32]" in told
    assert "MatMul: what it multiplies does not fit together: [2, 3] and [2, 3]" in told
    model.graph.node[0].input[0] = "nowhere"
    assert "it reads `nowhere`, which nothing makes" in refused(model, tmp_path / "out")
