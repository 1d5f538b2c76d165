"""Each operator of ONNX that is translated gives ONNX Runtime's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from porting.onnx_importing import model_of, same

RNG = np.random.default_rng(5)
WHOLE = RNG.standard_normal((2, 3, 4)).astype(np.float32)
IMAGE = RNG.standard_normal((2, 4, 9, 7)).astype(np.float32)

# What is computed from x, a Tensor[2, 3, 4; f32], and as which type; opsets in which it is.
UNARY = [
    "Abs(x)", "Neg(x)", "Exp(x)", "Sqrt(Abs(x))", "Sin(x)", "Cos(x)", "Tanh(x)", "Erf(x)",
    "Floor(x)", "Ceil(x)", "Round(x)", "Sign(x)", "Reciprocal(x)", "Relu(x)", "Sigmoid(x)",
    "Softplus(x)", "Mish(x)", "Elu <alpha = 0.5> (x)", "Selu(x)", "Celu <alpha = 0.7> (x)",
    "LeakyRelu <alpha = 0.1> (x)", "HardSigmoid(x)", "HardSwish(x)", "Clip(x, low, high)",
    "Softmax <axis = 1> (x)", "LogSoftmax(x)", "ReduceMean <axes = [1]> (x)",
    "ReduceMax <axes = [-1], keepdims = 0> (x)", "ReduceL2 <axes = [0, 2]> (x)",
    "ReduceLogSumExp <axes = [1]> (x)", "ReduceSum <keepdims = 0> (x)", "CumSum(x, one)",
    "Transpose <perm = [2, 0, 1]> (x)", "Flatten(x)", "Pow(x, two)", "Tan(x)", "Trilu(x)",
    "Trilu <upper = 0> (x, one)", "Gelu(x)", 'Gelu <approximate = "tanh"> (x)',
]  # fmt: skip


@pytest.mark.parametrize("text", UNARY)
def test_of_one_tensor(text: str, tmp_path: Path) -> None:
    opset = 20 if "Gelu" in text or "Mish" in text else 17
    inner, nodes = text, ""
    if text == "Sqrt(Abs(x))":
        inner, nodes = "Sqrt(t)", "t = Abs(x)"
    model = model_of(
        f"""<ir_version: 8, opset_import: ["" : {opset}]>
        main (float[B, 3, 4] x) => (float y)
        <float low = {{-0.5}}, float high = {{0.75}}, int64 one = {{1}}, float two = {{3}}>
        {{ {nodes}
           y = {inner} }}"""
    )
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    same(model, tmp_path / "one", {"x": WHOLE})


OLD = [  # a form that older opsets have
    (9, "Clip <min = -0.5, max = 0.5> (x)"),
    (9, "Unsqueeze <axes = [0, 3]> (x)"),
    (9, "Slice <starts = [1], ends = [-1], axes = [2]> (x)"),
    (9, "Pad <pads = [0, 1, 0, 0, 0, 2], value = 1.5> (x)"),
    (9, "Softmax <axis = 1> (x)"),
    (9, "Dropout <ratio = 0.5> (x)"),
    (7, "ReduceSum <axes = [1], keepdims = 0> (x)"),
    (12, "Squeeze <axes = [0]> (t)"),
]


@pytest.mark.parametrize(("opset", "text"), OLD)
def test_older_forms(opset: int, text: str, tmp_path: Path) -> None:
    model = model_of(
        f"""<ir_version: 4, opset_import: ["" : {opset}]>
        main (float[2, 3, 4] x) => (float y)
        {{ t = Unsqueeze <axes = [0]> (x)
           y = {text} }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    same(model, tmp_path / "old", {"x": WHOLE})


IMAGES: list[tuple[str, dict[str, tuple[int, ...]]]] = [
    ("Conv <pads = [1, 1, 1, 1]> (x, w, b)", {"w": (6, 4, 3, 3), "b": (6,)}),
    ("Conv <strides = [2, 1], pads = [1, 0, 0, 2]> (x, w)", {"w": (6, 4, 3, 2)}),
    ("Conv <group = 2, dilations = [2, 2]> (x, w)", {"w": (6, 2, 3, 3)}),
    ('Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w)', {"w": (3, 4, 3, 3)}),
    ("ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w, b)",
     {"w": (4, 3, 4, 4), "b": (3,)}),
    ("ConvTranspose <group = 2, output_padding = [1, 0], strides = [2, 1]> (x, w)",
     {"w": (4, 3, 3, 3)}),
    ("MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x)", {}),
    ("MaxPool <kernel_shape = [3, 2], strides = [2, 2], ceil_mode = 1> (x)", {}),
    ("AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x)", {}),
    ("AveragePool <kernel_shape = [2, 3], strides = [2, 2], pads = [1, 1, 1, 1], "
     "count_include_pad = 1> (x)", {}),
    ("GlobalAveragePool(x)", {}),
    ("GlobalMaxPool(x)", {}),
    ("BatchNormalization(x, w, b, m, v)", {"w": (4,), "b": (4,), "m": (4,), "v": (4,)}),
    ("InstanceNormalization(x, w, b)", {"w": (4,), "b": (4,)}),
    ("DepthToSpace <blocksize = 2> (x)", {}),
    ('DepthToSpace <blocksize = 2, mode = "CRD"> (x)', {}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "shapes"), IMAGES)
def test_of_images(text: str, shapes: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        name: np.abs(RNG.standard_normal(shape)).astype(np.float32) + (name == "v")
        for name, shape in shapes.items()
    }
    model = model_of(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[B, 4, 9, 7] x) => (float y) {{ y = {text} }}""",
        **arrays,
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    same(model, tmp_path / "image", {"x": IMAGE}, tolerance=2e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "place", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
)
def test_resizing(mode: str, place: str, tmp_path: Path) -> None:
    model = model_of(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[1, 2, 9, 7] x) => (float y)
        <int64[4] sizes = {{1, 2, 5, 14}}>
        {{ y = Resize <mode = "{mode}", coordinate_transformation_mode = "{place}">
                     (x, , , sizes) }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    same(model, tmp_path / "resized", {"x": IMAGE[:1, :2]}, tolerance=1e-4)


def test_scaling_pixels_by_a_whole_number_serves_all_sizes(tmp_path: Path) -> None:
    model = model_of(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[1, 2, H, W] x) => (float y)
        <float[4] scales = {1, 1, 2, 3}>
        { y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",
                      nearest_mode = "floor"> (x, , scales) }"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    feeds = [{"x": IMAGE[:1, :2]}, {"x": IMAGE[:1, :2, :2, :3].copy()}]
    assert "Tensor[1, 2, 2 * H, 3 * W; f32]" in same(model, tmp_path / "scaled", *feeds)


MOVES = [  # with indices, and a second tensor
    "Gather <axis = 1> (x, at)", "Gather <axis = -1> (x, flat)",
    "GatherElements <axis = 1> (x, same)",
    "GatherND(x, pairs)", "Tile(x, times)", "Where(mask, x, c)", "Concat <axis = 1> (x, x)",
    "MatMul(x, w)", "Einsum <equation = \"bij,jk->bki\"> (x, w)", "Expand(x, wide)",
    "ScatterND(x, rows, c)", "ScatterElements <axis = 1> (x, turns, c)",
    "Mod <fmod = 1> (x, w2)", "Max(x, c)", "Sum(x, x, c)",
    "ArgMax <axis = 1, keepdims = 0> (x)", "Slice(x, starts, ends, axes, steps)",
    "Pad <mode = \"reflect\"> (x, pads)", "Pad <mode = \"edge\"> (x, pads)",
]  # fmt: skip


@pytest.mark.parametrize("text", MOVES)
def test_of_several_tensors(text: str, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "at": np.array([[0, -1], [2, 1]]),
        "flat": np.array([3, 0, -4]),
        "same": RNG.integers(-3, 3, (2, 3, 4)),
        "turns": RNG.permuted(np.tile(np.array([[0], [1], [-1]]), (2, 1, 4)), axis=1),
        "pairs": np.array([[0, -1], [1, 2], [-1, 0]]),
        "times": np.array([1, 2, 3]),
        "mask": RNG.integers(0, 2, (2, 3, 4)).astype(bool),
        "c": RNG.standard_normal((2, 3, 4)).astype(np.float32),
        "w": RNG.standard_normal((4, 5)).astype(np.float32),
        "w2": np.array([1.5, 0.25, 2, 3], np.float32),
        "rows": np.array([[1], [-2]]),
        "wide": np.array([5, 1, 3, 1]),
        "starts": np.array([-1, 1]),
        "ends": np.array([-(1 << 62), 100]),
        "axes": np.array([2, 1]),
        "steps": np.array([-1, 1]),
        "pads": np.array([0, 1, 2, 0, 0, 1]),
    }
    given = "5, 3" if "wide" in text else "2, 3"
    arrays = {name: array for name, array in arrays.items() if f"{name}" in text}
    x = np.repeat(WHOLE[:1], 1, 0) if "wide" in text else WHOLE
    if "wide" in text:
        arrays = {"wide": np.array([5, 3, 4])}
    model = model_of(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[{"1, 3" if "wide" in text else given}, 4] x) => (float y) {{ y = {text} }}""",
        **arrays,
    )
    if "ArgMax" in text:
        model.graph.output[0].type.tensor_type.elem_type = 7
    model.graph.output[0].type.tensor_type.ClearField("shape")
    same(model, tmp_path / "moved", {"x": x})


def test_shape_arithmetic_is_folded_into_sizes(tmp_path: Path) -> None:
    model = model_of(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[batch, seq, 12] x) => (float y)
        <int64 zero = {0}, int64 first = {1}, int64[1] at = {0}, int64[1] three = {3},
         int64[1] rest = {-1}>
        { s = Shape(x)
          b = Gather(s, zero)
          q = Gather(s, first)
          b1 = Unsqueeze(b, at)
          q1 = Unsqueeze(q, at)
          wide = Concat <axis = 0> (b1, q1, three, rest)
          heads = Reshape(x, wide)
          turned = Transpose <perm = [0, 2, 1, 3]> (heads)
          back = Concat <axis = 0> (b1, rest, q1)
          y = Reshape(turned, back) }"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    feeds = [{"x": RNG.standard_normal((b, s, 12)).astype(np.float32)} for b, s in ((2, 5), (1, 1))]
    text = same(model, tmp_path / "shapes", *feeds)
    assert "forward<Batch: Dim, Seq: Dim>" in text


def test_a_branch_and_a_known_one(tmp_path: Path) -> None:
    model = model_of(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[N] x) => (float[N] y)
        <float zero = {0}>
        { total = ReduceSum <keepdims = 0> (x)
          up = Greater(total, zero)
          y = If <then_branch = yes () => (float[N] a) { a = Exp(x) },
                  else_branch = no () => (float[N] b) { b = Neg(x) }> (up) }"""
    )
    feeds = [{"x": np.array(v, np.float32)} for v in ([1, 2, 3], [-1, -2, 0])]
    assert "if " in same(model, tmp_path / "branch", *feeds)


LOOPS = [  # what a turn says of going on, and what the loop is told
    ("going = Identity(c)", "limit, , x"),
    ("s = ReduceSum <keepdims = 0> (next)  going = Less(s, most)", "limit, yes, x"),
    ("s = ReduceSum <keepdims = 0> (next)  going = Less(s, most)", ", yes, x"),
]


@pytest.mark.parametrize(("going", "given"), LOOPS)
def test_loops(going: str, given: str, tmp_path: Path) -> None:
    model = model_of(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[N] x) => (float[N] y)
        <int64 limit = {{4}}, bool yes = {{1}}, float most = {{40}}, float[1] two = {{2}}>
        {{ y = Loop <body = turn (int64 i, bool c, float[N] v) => (bool going, float[N] next) {{
              next = Mul(v, two)
              {going}
           }}> ({given}) }}"""
    )
    text = same(model, tmp_path / "loop", {"x": np.array([1, 3, 0.5], np.float32)})
    assert ("for " if "Identity" in going else "while ") in text
