"""Drawn programs of loops, structs and state: JAX and ONNX Runtime are what the reference is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

from backends import test_values_drawn as values
from backends.common import assert_close, flat, lowered
from backends.test_jax_odd import ENDS, WAYS, agree
from backends.test_onnx import fed, session
from backends.test_state_drawn import Drawn
from linnet.core.ir import Program
from linnet.core.passes import optimize
from linnet.inputs import Given, bind_entry, flat_inputs
from linnet.jax.emit import emit
from linnet.jax.entry import shape_dtype
from linnet.onnx.entry import to_array
from linnet.onnx.export import export_program
from linnet.policy import Policy
from linnet.reference import evaluate
from linnet.stablehlo.emit import paths_of, written_by
from linnet.weights.arrays import DTYPES, dtype_name

# A turn's statements stood outside of its loop, or read what they had renamed.
ONCE_WRONG = [(41, True), (42, False), (442, True), (565, False)]


def check(seed: int, flat: bool, *ways: str) -> None:
    text = Drawn(seed, flat).text()
    calls = [("main", [np.float32(x)]) for x in (0.75, -0.5, 0.25)]
    try:
        agree(lowered(text), calls, {}, 2e-5, ways, [ENDS[0], ENDS[-1]])
    except Exception as error:
        raise AssertionError(f"seed {seed}:\n{text}") from error


@pytest.mark.parametrize(("seed", "flat"), ONCE_WRONG)
def test_drawn_state(seed: int, flat: bool) -> None:
    check(seed, flat, "source")


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_generated_source_is_python(first: int) -> None:
    for seed in range(first, first + 10):
        program = lowered(Drawn(seed, flat=seed % 3 == 0).text())
        for made in (program, optimize(program, "fast")):
            compile(emit(made, "fast"), f"seed {seed}", "exec")


def drawn_values(seed: int) -> tuple[Program, list[tuple[str, list[Any]]]]:
    text, _ = values.Drawn(seed).texts()
    calls = [("main", [x, v, flags, values.mapping(q)]) for x, v, flags, q in values.inputs(seed)]
    return lowered(text, generics={"N": values.N}), calls


@pytest.mark.slow
@pytest.mark.parametrize("first", (0, 10, 20))  # 0 and 6 read an axis that is empty in no turn
def test_drawn_values(first: int) -> None:
    for seed in range(first, first + 10):
        program, calls = drawn_values(seed)
        try:
            agree(program, calls, {}, 2e-5, WAYS[:2], [ENDS[seed % 2 - 1]])
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    jax.clear_caches()


def in_onnx(program: Program, policy: Policy, calls: Sequence[tuple[str, list[Any]]]) -> None:
    """The calls, one after another, on ONNX Runtime: results and state."""
    entry, made = program.entries["main"], export_program(program, "main", policy)
    running, names = session(made), [port.name for port in made.outputs]
    types = {path: type for kind, path, type in paths_of(entry) if kind == "state"}
    state = {path: np.zeros(*shape_dtype(type)) for path, type in types.items()}
    held: dict[str, Any] = {path: x.copy() for path, x in state.items()}
    for _, inputs in calls:
        wanted = flat(evaluate(program, "main", inputs, {}, held))
        leaves = zip(flat_inputs(entry, inputs, "main"), entry.values, strict=True)
        given = [np.asarray(x, DTYPES[str(p.of.dtype)]) for x, p in leaves]  # type: ignore[union-attr]
        shapes: list[Given] = [(x.shape, dtype_name(x.dtype) or "") for x in given]
        sizes = bind_entry(entry, shapes, None, "main")
        feeds = fed(program, "main", made, sizes, [*given, *state.values()])
        found = [to_array(x) for x in running.run_with_ort_values(names, feeds)]
        for a, b in zip(wanted, found, strict=False):
            assert_close(np.asarray(a), b, 2e-5, policy)
        state |= zip(written_by(entry), found[len(wanted) :], strict=True)
        for path, array in state.items():
            assert_close(held[path], array, 2e-5, path)


@pytest.mark.slow
def test_drawn_programs_in_onnx() -> None:
    for seed in range(60):
        state = [("main", [np.float32(x)]) for x in (0.75, -0.5, 0.25)]
        for program, calls in (
            (lowered(Drawn(seed, seed % 2 == 0).text()), state),
            drawn_values(seed),
        ):
            try:
                in_onnx(program, "exact", calls)
                in_onnx(optimize(program, "fast"), "fast", calls)
            except Exception as error:
                raise AssertionError(f"seed {seed}") from error


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 175, 25))
def test_more_drawn_state(first: int) -> None:
    for seed in range(first, first + 25):
        check(seed, seed % 2 == 0, *WAYS)
    jax.clear_caches()
