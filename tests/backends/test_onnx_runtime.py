"""Models on ONNX Runtime and models in files: what they say, and what they refuse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import linnet.torch
from backends.common import assert_close, lowered
from linnet.core.passes import optimize
from linnet.diagnostics import LinnetError, PlanError
from linnet.nest import load as nest_load
from linnet.onnx import OnnxModel, export_function, export_model, load_model
from linnet.onnx.entry import Entry
from linnet.onnx.export import export_program
from linnet.policy import Policy, tolerance
from linnet.reference import evaluate
from linnet.weights.arrays import DTYPES

from ..models import tiny

pytestmark = pytest.mark.slow

SIZES = {**tiny.SIZES, "Batch": 2, "MaxSeq": 32}
GIVEN: dict[str, Any] = {"generics": SIZES, "weights": tiny.weights(), "bindings": tiny.NAMES}
TEN = ((1, 1), (1, 2), (2, 3), (3, 1), (1, 7), (2, 11), (5, 4), (1, 31), (7, 13), (1, 32))
TOKENS = np.arange(10, dtype=np.int32).reshape(2, 5)


@pytest.fixture(scope="module")
def torch_model() -> Any:
    return linnet.torch.load(tiny.FAMILY, **GIVEN)


@pytest.fixture(scope="module")
def model() -> OnnxModel:
    return load_model(tiny.FAMILY, **GIVEN)


def test_entries_share_weights_and_state(model: OnnxModel, torch_model: Any) -> None:
    wanted = torch_model.run_entry("forward", [TOKENS]).detach().numpy()
    np.testing.assert_allclose(model.run_entry("forward", [TOKENS]), wanted, rtol=0, atol=2e-5)
    np.testing.assert_allclose(
        model.run_entry("forward", {"tokens": TOKENS.tolist()}), wanted, rtol=0, atol=2e-5
    )
    model.reset_state()
    model.run_entry("prefill", [TOKENS[:, :3], 0])
    for at in (3, 4):
        found = model.run_entry("decode", [TOKENS[:, at : at + 1], at])
        np.testing.assert_allclose(found, wanted[:, at], rtol=0, atol=2e-5)
    kept = model.state
    assert set(kept) == set(model.state_paths) and all(
        x[:, :, 5:].max() == 0 for x in kept.values()
    )
    # What was kept is what it was, whatever runs meanwhile.
    model.reset_state()
    assert all(not x.any() for x in model.state.values())
    views = model.state_views
    next(iter(views.values()))[0, 0, 0] = 1
    assert next(iter(model.state.values())).sum() == 8
    model.reset_state()
    assert any(x.any() for x in kept.values())
    model.state = kept
    again = model.run_entry("decode", [TOKENS[:, 4:], 4])
    np.testing.assert_allclose(again, wanted[:, 4], rtol=0, atol=2e-5)
    assert model.providers == ("CPUExecutionProvider",)
    assert model.generics["MaxSeq"] == 32 and "decode" in model.entries


def test_positions_outside_write_nothing(model: OnnxModel) -> None:
    """Decoding where the caches end leaves every row as it was."""
    model.reset_state()
    model.run_entry("prefill", [TOKENS, 0])
    before = model.state
    for at in (SIZES["MaxSeq"], -1, 2**31 - 1):
        model.run_entry("decode", [TOKENS[:, :1], at])
        assert all(np.array_equal(x, before[path]) for path, x in model.state.items())


def test_weights_are_copied(model: OnnxModel) -> None:
    other = load_model(tiny.FAMILY, entries=["forward"], **GIVEN)
    doubled = {path: (2 * x).astype(x.dtype) for path, x in other.weights.items()}
    wanted = other.run_entry("forward", [TOKENS])
    other.copy_weights(doubled)
    assert np.abs(other.run_entry("forward", [TOKENS]) - wanted).max() > 1e-2
    other.copy_weights(model)
    np.testing.assert_array_equal(other.run_entry("forward", [TOKENS]), wanted)
    with pytest.raises(PlanError, match="cannot copy the weights") as refused:
        other.copy_weights({})
    assert "embedding.weight is missing, expected Tensor[96, 48; f32]" in str(refused.value)


def test_one_file_serves_ten_sizes(tmp_path: Path) -> None:
    """Weights beside the file, read by the runtime alone."""
    made = export_model(tiny.FAMILY, entry="forward", numerics="equivalent", **GIVEN)
    path = tmp_path / "model.onnx"
    made.save(path, external_threshold=1000)
    assert {p.name for p in tmp_path.iterdir()} == {"model.onnx", "model.onnx.data"}
    onnx.checker.check_model(str(path), full_check=True)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    eager = linnet.torch.load(tiny.FAMILY, **GIVEN)
    draw = np.random.default_rng(0)
    for batch, length in TEN:
        tokens = draw.integers(0, 96, (batch, length)).astype(np.int32)
        (found,) = session.run(None, {"tokens": tokens})
        wanted = eager.run_entry("forward", [tokens]).detach().numpy()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)
    (none,) = session.run(None, {"tokens": np.zeros((0, 3), np.int32)})
    assert none.shape == (0, 3, 96)
    # The same bytes within the file.
    made.save(tmp_path / "whole.onnx")
    whole = ort.InferenceSession(str(tmp_path / "whole.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(whole.run(None, {"tokens": tokens})[0], found)


def test_what_a_model_says_of_itself() -> None:
    made = export_model(tiny.FAMILY, entry="decode", **GIVEN)
    assert [str(port) for port in made.inputs[:2]] == [
        "token: Tensor[2, 1; i32]",
        "pos: Tensor[; i32]",
    ]
    props = {p.key: p.value for p in made.model.metadata_props}
    assert props["linnet.entry"] == "decode" and props["linnet.numerics"] == "equivalent"
    states = [key for key in props if key.startswith("linnet.state.")]
    new = {props[key] for key in props if key.startswith("linnet.next_state.")}
    assert {props[key] for key in states} == new and len(new) == 2 * tiny.SIZES["Layers"]
    assert props["linnet.path.layers.1.mlp.up.weight"] == "layers.1.mlp.up.weight"
    names = [port.name for port in made.inputs]
    assert names[2:] == [key.removeprefix("linnet.state.") for key in states]
    assert [t.name for t in made.model.graph.initializer] == [p.name for p in made.parameters]
    functions = {f.name for f in made.model.functions}
    assert "DecoderLayer_forward" in functions
    calls = [n.op_type for f in made.model.functions for n in f.node]
    assert calls.count("DecoderLayer_forward") == tiny.SIZES["Layers"]
    forward = export_model(tiny.FAMILY, entry="forward", generics=SIZES)
    assert str(forward.inputs[0]) == "tokens: Tensor[B, S; i32]"
    assert [p.name for p in forward.model.graph.input][1:] == [p.name for p in forward.parameters]
    inlined = export_model(tiny.FAMILY, entry="forward", inline=True, **GIVEN)
    onnx.checker.check_model(inlined.model, full_check=True)
    assert not inlined.model.functions
    session = ort.InferenceSession(inlined.model.SerializeToString())
    called = export_model(tiny.FAMILY, entry="forward", **GIVEN).model.SerializeToString()
    one, other = (s.run(None, {"tokens": TOKENS}) for s in (session, ort.InferenceSession(called)))
    np.testing.assert_allclose(one[0], other[0], rtol=0, atol=2e-6)


def test_a_function_is_exported(tmp_path: Path) -> None:
    path = tmp_path / "f.linnet"
    path.write_text(
        "module f\npub fn halves<N: Dim>(x: Tensor[2 * N; f32]) -> (Tensor[N; f32], Tensor[N; f32])"
        " { return (x[0:N], x[N:2 * N]) }\n",
        encoding="utf-8",
    )
    made = export_function(path, "halves")
    assert [str(port) for port in made.inputs] == ["x: Tensor[2 * N; f32]", "N: Tensor[1; i64]"]
    session = ort.InferenceSession(made.model.SerializeToString())
    x = np.arange(6, dtype=np.float32)
    found = session.run(None, {"x": x, "N": np.array([3])})
    assert [y.tolist() for y in found] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(PlanError, match=r"no .*thirds"):
        export_function(path, "thirds")


NORMS = """module main
use std.nn.norm::{rms_norm, layer_norm}
use std.nn.activations::{sigmoid, gelu}
pub entry normed<N: Dim>(x: Tensor[N, 8; T], w: Tensor[8; T], b: Tensor[8; T])
    -> (Tensor[N, 8; T], Tensor[N, 8; T], Tensor[N, 8; T], Tensor[N, 8; T]) {
    let both = layer_norm(x, w, some(b), eps = 1e-6)
    return (rms_norm(x, w, eps = 1e-6), both, layer_norm(x, w), gelu(sigmoid(x)))
}
"""


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("policy", ["equivalent", "fast"])
def test_operators_are_what_the_bodies_say(dtype: str, policy: Policy) -> None:
    program = optimize(lowered(NORMS.replace("T]", f"{dtype}]")), policy)
    draw = np.random.default_rng(1)
    given = [draw.standard_normal(s).astype(DTYPES[dtype]) for s in ((5, 8), (8,), (8,))]
    made = export_program(program, "normed", policy)
    kinds = {n.op_type for f in (*made.model.functions, made.model.graph) for n in f.node}
    native = {"RMSNormalization", "LayerNormalization"} & kinds
    assert len(native) == (2 if dtype == "f32" or (policy == "fast" and dtype != "f64") else 0)
    found, _ = Entry(program, "normed", policy, ["CPUExecutionProvider"]).run(given, None, {}, {})
    wanted = evaluate(program, "normed", given)
    for a, b in zip(wanted, found, strict=True):
        near = max(tolerance(policy, dtype), tolerance(policy, "f32"))
        assert_close(a, b, near, f"{dtype} {policy}")


def test_mistakes_are_named(model: OnnxModel, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no entry nope"):
        model.run_entry("nope", [])
    with pytest.raises(PlanError, match="forward: tokens is f32, expected Tensor"):
        model.run_entry("forward", [TOKENS.astype(np.float32)])
    with pytest.raises(PlanError, match=r"decode: token has 3 on axis 0, expected 2"):
        model.run_entry("decode", [np.zeros((3, 1), np.int32), 0])
    with pytest.raises(PlanError, match="forward has no input token; did you mean tokens"):
        model.run_entry("forward", {"token": TOKENS})
    with pytest.raises(PlanError, match="forward: tokens is of type object"):
        model.run_entry("forward", [object()])
    with pytest.raises(PlanError, match=r"prefill requires .* does not hold with"):
        model.run_entry("prefill", [np.zeros((2, 0), np.int32), 0])
    with pytest.raises(PlanError, match="load_model needs weights; there are none for embedding"):
        load_model(tiny.FAMILY, generics=SIZES)
    with pytest.raises(PlanError, match="no provider CPUProvider; did you mean CPUExecution"):
        load_model(tiny.FAMILY, providers=["CPUProvider"], **GIVEN)
    with pytest.raises(PlanError, match="there is no option colour"):
        load_model(tiny.FAMILY, colour="red", **GIVEN)
    with pytest.raises(PlanError, match="cannot have this state"):
        model.state = {}
    made = export_model(tiny.FAMILY, entry="forward", **GIVEN)
    with pytest.raises(PlanError, match="cannot write"):
        made.save(tmp_path / "missing" / "model.onnx", external_threshold=0)
    with pytest.raises(PlanError, match="no entry nope"):
        export_model(tiny.FAMILY, entry="nope", **GIVEN)
    assert not list(tmp_path.iterdir())


def test_the_runtime_that_fails_says_so_in_one_error(model: OnnxModel) -> None:
    """What the runtime refuses for reasons of its own is an error of the language's."""
    huge = np.zeros((2, 1), np.int32)
    entry = Entry(model.program, "forward", "fast", ["CPUExecutionProvider"])
    values = dict(model._weights)
    values["embedding.weight"] = ort.OrtValue.ortvalue_from_numpy(np.zeros((2, 2), np.float32))
    with pytest.raises(LinnetError, match="forward: ONNX Runtime cannot run it"):
        entry.run([huge], None, values, {})


PAGE = Path(__file__).resolve().parents[2] / "docs/onnx.md"
FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)


def test_the_page_shows_what_happens(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """Its program is written, its Python run, in order; `--update` rewrites what that prints."""
    monkeypatch.chdir(tmp_path)
    said, space = "", dict[str, object]()

    def happens(fence: re.Match[str]) -> str:
        nonlocal said
        kind, body = fence.groups()
        if kind.startswith("linnet "):
            Path(kind.split()[1]).write_text(body, encoding="utf-8")
        elif kind == "python":
            exec(compile(body, str(PAGE), "exec"), space)
            said = capsys.readouterr().out
            assert said
        elif kind == "text":
            body = said
        return f"```{kind}\n{body}```"

    text = PAGE.read_text(encoding="utf-8")
    found = FENCE.sub(happens, text)
    if request.config.getoption("--update"):
        PAGE.write_text(found, encoding="utf-8")
    assert found == PAGE.read_text(encoding="utf-8"), "`pytest --update` accepts what happens"


def test_the_demo_says_on_onnx_runtime_what_it_says_in_torch() -> None:
    """72 greedy tokens in f32."""
    tokens = np.array([[504, 3575, 282, 4649, 314]], np.int32)
    generics = {"T": "f32", "Batch": 1, "MaxSeq": 128}
    said: list[list[int]] = []
    for backend in ("onnx_model", "torch"):
        model = nest_load(
            "smollm2-135m-instruct",
            backend=backend,
            generics=generics,
            cast_dtype=True,
            entries=["prefill", "decode"],
        )
        logits = np.asarray(model.run_entry("prefill", [tokens, 0]))
        answer = [int(logits.argmax())]
        for at in range(5, 76):
            token = np.array([[answer[-1]]], np.int32)
            logits = np.asarray(model.run_entry("decode", [token, at]))
            answer.append(int(logits.argmax()))
        said.append(answer)
    assert said[0] == said[1] and len(said[0]) == 72
