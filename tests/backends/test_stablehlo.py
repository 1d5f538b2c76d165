"""StableHLO: text that is the same each time, parses, and means what the nodes mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import linnet
from backends.common import assert_close, flat, lowered
from backends.test_drawn import closely, either_infinity
from backends.test_kernels import FLOATS, calling, inputs_of, the_op
from core.graphs import arrays as drawn_arrays
from core.graphs import functions
from core.graphs import program as drawn_program
from linnet.core.ir import Program
from linnet.core.passes import optimize
from linnet.inputs import bind_sizes, demands
from linnet.ir import load_program
from linnet.policy import POLICIES, Policy, tolerance
from linnet.reference import evaluate, evaluate_function
from linnet.stablehlo import emit
from linnet.stablehlo.emit import paths_of, results_of, written_by
from linnet.stablehlo.kernels import KERNELS
from linnet.stablehlo.text import dense
from linnet.torch import kernels as K
from linnet.types import BF16, BOOL, F16, F32, F64, I8
from linnet.types import DTYPES as DTYPES_OF
from linnet.weights import DTYPES

from .test_emitted import PROGRAMS

FAMILIES = Path(linnet.__file__).parent / "zoo" / "families"
SIZES = {"N": 3, "M": 2, "B": 2, "S": 5, "Steps": 3, "P": 6, "Rows": 3, "Pages": 4}


def sizes_of(program: Program, name: str) -> dict[str, int]:
    entry = program.entries[name]
    return bind_sizes(entry, {dim: SIZES.get(dim, 2) for dim in entry.dims}, name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_goldens(name: str, golden: Callable[..., None]) -> None:
    program = optimize(lowered("module main\n" + PROGRAMS[name]), "equivalent")
    golden("\n".join(emit(program, one, sizes_of(program, one)) for one in program.entries))


def test_numbers_are_read_back_exactly() -> None:
    assert [dense(x, F32) for x in (1.0, -0.0, 1e-05, 1e20, float("inf"))] == [
        *("1.0", "-0.0", "1.0e-05", "1.0e+20", "0x7F800000")
    ]
    assert [dense(float("nan"), dtype) for dtype in (F16, BF16, F64)] == [
        *("0x7E00", "0x7FC0", "0x7FF8000000000000")
    ]
    assert [dense(-3, I8), dense(True, BOOL)] == ["-3", "true"]


def run(
    program: Program,
    name: str,
    sizes: dict[str, int],
    policy: Policy,
    given: Sequence[Any],
    text: str = "",
) -> list[Any]:
    """What XLA makes of the module, which is `text` where that is given, at these sizes."""
    import jax

    from linnet.jax.exported import aval, callable_of

    function = program.entries[name]
    types = [type for _, _, type in paths_of(function)], results_of(function)
    with jax.enable_x64(True):
        taken, made = (
            [aval([axis.evaluate(sizes) for axis in t.shape], str(t.dtype)) for t in each]  # type: ignore[union-attr]
            for each in types
        )
        text = text or emit(program, name, sizes, policy)
        call = callable_of(name, text, taken, made)
        return [np.asarray(x) for x in jax.jit(call)(*given)]


# Ops that PyTorch has kernels for have sizes to try; the others are tried through entries.


@pytest.mark.slow
@pytest.mark.parametrize("op", K.KERNELS)
def test_an_op_is_what_its_body_says(op: str) -> None:
    for seed, sample in enumerate(K.KERNELS[op][0].samples):
        for dtype in FLOATS[:2]:
            function = the_op(op, sample, dtype)
            program = calling(function, sample)
            for policy in ("exact", "fast") if op in KERNELS else ("equivalent",):
                arrays = inputs_of(function, sample, seed, "plain")
                wanted = evaluate(program, "run", arrays)
                found = run(program, "run", {}, policy, arrays)
                for a, b in zip(flat(wanted), found, strict=True):
                    near = max(tolerance("equivalent", dtype), tolerance("equivalent", "f32"))
                    assert_close(np.asarray(a), b, near, f"{op} {dtype} {sample}")


def given_for(program: Program, name: str, sizes: dict[str, int], seed: int) -> list[np.ndarray]:
    """Small numbers for everything that the entry takes."""
    draw = np.random.default_rng(seed)
    arrays: list[np.ndarray] = []
    for _, _, type in paths_of(program.entries[name]):
        shape = [axis.evaluate(sizes) for axis in type.shape]  # type: ignore[union-attr]
        to = DTYPES[str(type.dtype)]
        if str(type.dtype) == "bool":
            arrays.append(draw.random(shape) < 0.5)
        elif type.dtype.is_float:  # type: ignore[union-attr]
            arrays.append((0.3 * draw.standard_normal(shape)).astype(to))
        else:
            arrays.append(np.asarray(draw.integers(0, 2, shape)).astype(to))
    return arrays


def compare(
    program: Program,
    name: str,
    policy: Policy,
    near: float,
    run: Callable[..., Any] = run,
    sizes: dict[str, int] | None = None,
) -> None:
    """What runs computes what the reference does."""
    sizes = sizes_of(program, name) if sizes is None else sizes
    arrays = given_for(program, name, sizes, 1)
    kinds = paths_of(program.entries[name])
    own = [x for (kind, _, _), x in zip(kinds, arrays, strict=True) if kind == "value"]
    members = {
        p: x for (kind, p, _), x in zip(kinds, arrays, strict=True) if kind in ("param", "buffer")
    }
    state = {p: x.copy() for (kind, p, _), x in zip(kinds, arrays, strict=True) if kind == "state"}
    wanted = flat(evaluate(program, name, own, members, state, sizes))
    found = run(program, name, sizes, policy, arrays)
    written = [state[path] for path in written_by(program.entries[name])]
    for a, b in zip([*wanted, *written], found, strict=True):
        assert_close(np.asarray(a), b, near, f"{name} {policy} {sizes}")


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_small_programs(name: str, policy: Policy) -> None:
    program = optimize(lowered("module main\n" + PROGRAMS[name]), policy)
    for entry in program.entries:
        compare(program, entry, policy, 1e-5 if name != "softmax" else 8e-3)


def family(name: str, policy: Policy) -> Program:
    program = load_program(FAMILIES / name)
    wanted = {"Vocab": 12, "H": 8, "Heads": 4, "KvHeads": 2, "Inner": 10, "Layers": 2, "Batch": 3}
    wanted |= {"MaxSeq": 16, "PageSize": 4, "MaxPositions": 20, "Positions": 20}
    if name == "gpt_oss":
        wanted = {
            "H": 64,
            "HeadDim": 16,
            "Inner": 32,
            **{k: v for k, v in wanted.items() if k not in ("H", "Inner")},
        }
    known = {generic.name for generic in program.generics()}
    given: dict[str, int | str] = {k: v for k, v in wanted.items() if k in known}
    return program.lower(program.example({**given, "T": "f32"}), numerics=policy)


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
        compare(program, entry, policy, tolerance(policy, "f32"))


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
        a, b = either_infinity(f, a), either_infinity(f, b)
        assert_close(a, b, closely(str(b.dtype)), "a result")
