"""ONNX: models that pass the checker, and mean on ONNX Runtime what the nodes mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import parser, printer

from backends.common import assert_close, lowered
from backends.test_drawn import closely
from backends.test_stablehlo import FAMILIES, compare, family
from core.graphs import arrays as drawn_arrays
from core.graphs import functions
from core.graphs import program as drawn_program
from linnet.core.ir import Program
from linnet.core.passes import optimize
from linnet.inputs import demands
from linnet.ir import load_program
from linnet.onnx.entry import INEXACT, options, ort_value, to_array
from linnet.onnx.export import Exported, export_program
from linnet.policy import POLICIES, Policy, tolerance
from linnet.reference import evaluate_function
from linnet.stablehlo.emit import paths_of
from linnet.types import DTYPES as DTYPES_OF

from .test_emitted import PROGRAMS


def session(made: Exported) -> ort.InferenceSession:
    onnx.checker.check_model(made.model, full_check=True)
    return ort.InferenceSession(
        made.model.SerializeToString(),
        options(),
        providers=["CPUExecutionProvider"],
        disabled_optimizers=INEXACT,
    )


def fed(
    program: Program, name: str, made: Exported, sizes: dict[str, int], given: Sequence[Any]
) -> dict[str, Any]:
    """What the model's inputs are, from an entry's arguments in order."""
    kinds = [kind for kind, _, _ in paths_of(program.entries[name])]
    own = [x for kind, x in zip(kinds, given, strict=True) if kind == "value"]
    own += [x for kind, x in zip(kinds, given, strict=True) if kind in ("param", "buffer")]
    own += [x for kind, x in zip(kinds, given, strict=True) if kind == "state"]
    props = {p.key: p.value for p in made.model.metadata_props}
    names = [port.name for port in made.model.graph.input]
    own += [np.asarray([sizes[props[f"linnet.size.{n}"]]]) for n in names[len(own) :]]
    return {name: ort_value(np.asarray(x)) for name, x in zip(names, own, strict=True)}


def ran(made: Exported, feeds: dict[str, Any]) -> list[np.ndarray]:
    found = session(made).run_with_ort_values([port.name for port in made.outputs], feeds)
    return [to_array(value) for value in found]


def run(
    program: Program, name: str, sizes: dict[str, int], policy: Policy, given: Sequence[Any]
) -> list[Any]:
    """What ONNX Runtime makes of the model."""
    made = export_program(program, name, policy)
    return ran(made, fed(program, name, made, sizes, given))


@pytest.mark.parametrize("name", PROGRAMS)
def test_goldens(name: str, golden: Callable[..., None]) -> None:
    program = optimize(lowered("module main\n" + PROGRAMS[name]), "equivalent")
    texts = []
    for entry in program.entries:
        model = export_program(program, entry, "equivalent").model
        onnx.checker.check_model(model, full_check=True)
        text = printer.to_text(model)
        assert parser.parse_model(text).graph.output == model.graph.output
        texts.append(text)
    golden("\n".join(texts))


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_small_programs(name: str, policy: Policy) -> None:
    program = optimize(lowered("module main\n" + PROGRAMS[name]), policy)
    for entry in program.entries:
        compare(program, entry, policy, 1e-5 if name != "softmax" else 8e-3, run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *((path.name, "equivalent") for path in sorted(FAMILIES.iterdir())),
        ("llama", "exact"),
        ("llama", "fast"),
    ],
)
def test_every_entry_of_every_family(name: str, policy: Policy) -> None:
    program = family(name, policy)
    for entry in program.entries:
        compare(program, entry, policy, tolerance(policy, "f32"), run)


def test_a_product_of_a_matrix_that_is_turned_and_a_vector() -> None:
    """ONNX Runtime makes one operator of a transpose and a product, and errs with a vector."""
    program = optimize(
        lowered(
            """module main
            pub entry flat<N: Dim, M: Dim>(v: Tensor[N; f32], w: Tensor[N, M; f32])
                -> Tensor[M; f32] {
                let out[m] = sum[n] w[n, m] * v[n]
                return out
            }
            pub entry deep<N: Dim, M: Dim>(v: Tensor[N; f32], w: Tensor[M, N, 5; f32])
                -> Tensor[M, 5; f32] {
                let out[m, k] = sum[n] w[m, n, k] * v[n]
                return out
            }"""
        ),
        "exact",
    )
    for entry in program.entries:
        compare(program, entry, "exact", 2e-5, run, {"N": 7, "M": 3})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_every_entry_in_16_bits(dtype: str) -> None:
    program = load_program(FAMILIES / "llama")
    sizes: dict[str, int | str] = {"Vocab": 12, "H": 8, "Heads": 4, "KvHeads": 2, "Inner": 10}
    sizes |= {"Layers": 2, "Batch": 3, "MaxSeq": 16, "T": dtype}
    for policy in ("exact", "fast"):
        made = program.lower(program.example(sizes), numerics=policy)
        for entry in made.entries:
            compare(made, entry, policy, 4 * tolerance(policy, dtype), run)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(functions(tuple(DTYPES_OF.values())), st.data())
def test_drawn_functions(f: Any, data: st.DataObject) -> None:
    """Any operations on any dtypes, integers to the bit."""
    sizes = {"B": data.draw(st.integers(0, 2))}
    assume(all(demand.goal.holds(sizes) for demand in demands(f)))
    given = [np.asarray(data.draw(drawn_arrays(p.of, sizes, False))) for p in f.params]
    made = drawn_program(f)
    found = run(made, "f", sizes, "exact", given)
    wanted = evaluate_function(f, given, sizes)
    for a, b in zip(wanted, found, strict=True):
        assert_close(np.asarray(a), b, closely(f"torch.{b.dtype}"), "a result")
