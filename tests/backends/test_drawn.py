"""Drawn functions mean in PyTorch what they mean in the reference."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from backends.common import CPU, assert_close, flat
from core.graphs import FLOATS, arrays, functions, program
from linnet.core.ir import Binary, Reduce
from linnet.core.passes import optimize
from linnet.core.rewrite import nodes_of
from linnet.core.simplify import simplify
from linnet.inputs import demands
from linnet.policy import tolerance
from linnet.reference import _PLAIN, evaluate_function
from linnet.torch import LinnetModule
from linnet.torch.runtime import _tensor_of
from linnet.types import BOOL, DTYPES, F32, I8, I16, I32, I64, U8, U16, U32, U64

SIGNED = (BOOL, I8, I16, I32, I64, U8)
UNSIGNED = (U16, U32, U64, BOOL, I64)


def compare(f, data, special, limits):  # type: ignore[no-untyped-def]
    sizes = {"B": data.draw(st.integers(0, 2))}
    # A call whose sizes leave nothing to index is refused before it runs.
    assume(all(demand.goal.holds(sizes) for demand in demands(f)))
    inputs = [data.draw(arrays(p.of, sizes, special)) for p in f.params]
    made = LinnetModule(program(f), "exact", CPU)
    entry = made._code.entries["f"]
    run = made._code.space[entry.function]
    tensors = [_tensor_of(np.asarray(x)) for x in inputs]
    named = {python: sizes[dim] for dim, python in entry.dims.items()}
    found = flat(run(*tensors, **named))
    try:
        same(evaluate_function(f, inputs, sizes), found, limits)
    except AssertionError:
        try:
            with pytest.MonkeyPatch.context() as patch:
                for op in ("min", "max"):
                    patch.setitem(_PLAIN, op, partial(other_zero, _PLAIN[op]))
                same(evaluate_function(f, inputs, sizes), found, limits)
        except AssertionError:
            print(made.generated_source(), inputs)
            raise


def same(wanted, found, limits):  # type: ignore[no-untyped-def]
    for a, b in zip(wanted, found, strict=True):
        assert_close(a, b, limits(str(b.dtype)), "a result")


def other_zero(op, a, b):  # type: ignore[no-untyped-def]
    """`min` and `max` may give either zero of 0 and -0, which a division shows: here the other."""
    value = op(a, b)
    differ = (value == 0) & (np.signbit(a) != np.signbit(b))
    return np.where(differ, -value, value).astype(value.dtype)


def exactly(dtype: str) -> float:
    return 0.0


def either_infinity(f: Any, x: Any) -> np.ndarray:
    """`x`, its infinities positive where f divides and sums: a sum of -0 alone is 0 or -0."""
    array = np.asarray(x)
    nodes = nodes_of(f)
    sums = any(isinstance(node, Reduce) and node.op == "sum" for node in nodes)
    divides = any(isinstance(node, Binary) and node.op == "div" for node in nodes)
    if sums and divides and np.issubdtype(array.astype(np.float64).dtype, np.floating):
        return np.where(np.isinf(array.astype(np.float64)), np.abs(array), array)
    return array


def closely(dtype: str) -> float:
    short = {"torch.float16": "f16", "torch.bfloat16": "bf16"}.get(dtype, "f32")
    # One rounding more or less at every step of a drawn chain.
    return 5 * tolerance("exact", short)


@settings(max_examples=60, deadline=None)
@given(functions(SIGNED), st.data())
@pytest.mark.slow
def test_integers_are_equal(f, data):  # type: ignore[no-untyped-def]
    compare(f, data, False, exactly)


@settings(max_examples=40, deadline=None)
@given(functions(UNSIGNED), st.data())
@pytest.mark.slow
def test_wide_unsigned_integers_are_equal(f, data):  # type: ignore[no-untyped-def]
    compare(f, data, False, exactly)


@settings(max_examples=60, deadline=None)
@given(functions(FLOATS), st.data())
def test_floats_are_close(f, data):  # type: ignore[no-untyped-def]
    compare(f, data, False, closely)


@settings(max_examples=30, deadline=None)
@given(functions((F32, I32)), st.data())
@pytest.mark.slow
def test_after_all_passes_too(f, data):  # type: ignore[no-untyped-def]
    compare(optimize(program(f)).entries["f"], data, False, closely)


@settings(max_examples=30, deadline=None)
@given(functions(tuple(DTYPES.values())), st.data())
def test_mixed_dtypes(f, data):  # type: ignore[no-untyped-def]
    compare(simplify(f), data, False, closely)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(functions(tuple(DTYPES.values())), st.data())
def test_more_of_the_same(f, data):  # type: ignore[no-untyped-def]
    compare(f, data, False, closely)
