"""What readers other than ONNX Runtime make of an export, and one file for all sizes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, ValueInfoProto, parser, printer, shape_inference

from backends.test_stablehlo import FAMILIES, family
from linnet.diagnostics import LinnetError, PlanError
from linnet.nest import load as nest_load
from linnet.nest.card import find_card
from linnet.nest.fetch import fetch_weights
from linnet.onnx import export_model, load_model
from linnet.onnx.export import Port, export_program
from linnet.weights.arrays import DTYPES

pytestmark = pytest.mark.slow

TEN = ((1, 1), (1, 2), (2, 3), (3, 1), (1, 7), (2, 11), (5, 4), (1, 31), (4, 13), (1, 64))


def inferred(model: ModelProto) -> dict[str, ValueInfoProto]:
    """What ONNX itself makes of the outputs, of which it is told the names only."""
    blank = ModelProto()
    blank.CopyFrom(model)
    for output in blank.graph.output:
        output.ClearField("type")
    found = shape_inference.infer_shapes(blank, strict_mode=True, data_prop=True)
    return {output.name: output for output in found.graph.output}


def differs(port: Port, found: ValueInfoProto) -> str | None:
    """Where ONNX knows other than we say; what it does not know is no difference."""
    tensor = found.type.tensor_type
    own = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(DTYPES[port.dtype]))
    if tensor.elem_type != own:
        return f"{port}: element type {tensor.elem_type}, not {own}"
    if not tensor.HasField("shape"):
        return None
    axes = tensor.shape.dim
    if len(axes) != len(port.shape):
        return f"{port}: {len(axes)} axes"
    for axis, said in zip(axes, port.shape, strict=True):
        if axis.HasField("dim_value") and isinstance(said, int) and axis.dim_value != said:
            return f"{port}: {axis.dim_value}, not {said}"
        if axis.HasField("dim_value") and isinstance(said, str):
            return f"{port}: {axis.dim_value}, where any {said} may be"
    return None


@pytest.mark.parametrize("name", sorted(path.name for path in FAMILIES.iterdir()))
def test_others_infer_and_read_what_we_say(name: str) -> None:
    """Every entry: inferred outputs are ours, and the text form is the whole model again."""
    program = family(name, "equivalent")
    known = 0
    for entry in program.entries:
        made = export_program(program, entry, "equivalent")
        found = inferred(made.model)
        for port in made.outputs:
            assert differs(port, found[port.name]) is None, entry
            known += found[port.name].type.tensor_type.HasField("shape")
        again = parser.parse_model(printer.to_text(made.model))
        onnx.checker.check_model(again, full_check=True)
        assert again.graph.input == made.model.graph.input, entry
        assert again.graph.output == made.model.graph.output, entry
        assert [f.name for f in again.functions] == [f.name for f in made.model.functions]
        assert [len(f.node) for f in again.functions] == [len(f.node) for f in made.model.functions]
    assert known, "ONNX inferred no shape, so that nothing was compared"


def test_a_false_shape_is_seen() -> None:
    """The comparison above tells a wrong number, a wrong rank and a wrong dtype."""
    program = family("llama", "equivalent")
    made = export_program(program, "decode", "equivalent")
    port = made.outputs[0]
    found = inferred(made.model)[port.name]
    assert differs(port, found) is None and port.shape == (3, 12)
    assert "3, not 4" in str(differs(Port(port.name, port.dtype, (4, 12)), found))
    assert "where any B may be" in str(differs(Port(port.name, port.dtype, ("B", 12)), found))
    assert "2 axes" in str(differs(Port(port.name, port.dtype, (3,)), found))
    assert "element type" in str(differs(Port(port.name, "f16", port.shape), found))


CLAUSES = """module clauses
pub block Bounded<Most: Dim> {
    pub entry both<N: Dim, M: Dim>(x: Tensor[N; f32], y: Tensor[M; f32]) -> f32
    where N > 0, N <= Most, M >= 2 * N {
        return (sum[i] x[i]) + (sum[j] y[j])
    }
}
"""


def test_a_clause_is_named_before_the_runtime_sees_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not even a session is made for sizes that a clause rules out."""
    path = tmp_path / "clauses.linnet"
    path.write_text(CLAUSES, encoding="utf-8")
    model = load_model(path, generics={"Most": 4})

    def reached(*_: object, **__: object) -> None:
        raise RuntimeError("it was reached")

    with monkeypatch.context() as patched:
        patched.setattr(ort, "InferenceSession", reached)
        for n, m, clause, why in (
            (0, 3, "N > 0", "N = 0 from axis 0 of x"),
            (5, 10, "N <= 4", "N = 5 from axis 0 of x"),
            (3, 5, "M >= 2 * N", "M = 5 from axis 0 of y"),
        ):
            with pytest.raises(PlanError, match=f"both requires {re.escape(clause)}") as refused:
                model.run_entry("both", [np.ones(n, np.float32), np.ones(m, np.float32)])
            assert why in str(refused.value)
        with pytest.raises(LinnetError, match="it was reached"):  # what is right does reach it
            model.run_entry("both", [np.ones(2, np.float32), np.ones(4, np.float32)])
    assert model.run_entry("both", [np.ones(2, np.float32), np.ones(4, np.float32)]) == 6


def test_one_file_of_the_demo_model_serves_ten_sizes(tmp_path: Path) -> None:
    """Exported once in f32, weights beside it, run by the runtime alone: what torch says in f64.

    In f32 torch itself is up to 2.2e-3 away from that: a few positions of tokens drawn at random
    carry activations that make much of every rounding, so most logits are held to far less.
    """
    card = find_card("smollm2-135m-instruct")
    generics: dict[str, int | str] = {**card.generics, "Batch": 1, "MaxSeq": 64}
    made = export_model(
        card.source_path,
        root=card.root,
        entry="forward",
        generics={**generics, "T": "f32"},
        constants=card.constants,
        weights=list(fetch_weights(card).files),
        bindings=card.bindings_path,
        cast_dtype=True,
    )
    path = tmp_path / "demo.onnx"
    made.save(path, external_threshold=0)
    del made
    onnx.checker.check_model(str(path), full_check=True)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    wide = {**generics, "T": "f64"}
    eager = nest_load(card, generics=wide, cast_dtype=True, entries=["forward"])
    draw = np.random.default_rng(0)
    vocabulary = int(card.generics["Vocab"])
    for batch, length in TEN:
        tokens = draw.integers(0, vocabulary, (batch, length)).astype(np.int32)
        (found,) = session.run(None, {"tokens": tokens})
        wanted = eager.run_entry("forward", [tokens]).detach().numpy()
        assert found.shape == wanted.shape == (batch, length, vocabulary)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-3)
        assert np.median(np.abs(found - wanted)) < 1e-4
        np.testing.assert_array_equal(found.argmax(-1), wanted.argmax(-1))
