"""Passes leave the meaning of drawn functions as it was; what they make is well formed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from core.graphs import FLOATS, arrays, function, functions, program
from linnet.core.contract import contract
from linnet.core.passes import optimize
from linnet.core.print import function_text
from linnet.core.simplify import simplify
from linnet.core.verify import verify_function
from linnet.dims import Dim
from linnet.inputs import demands
from linnet.policy import tolerance
from linnet.reference import evaluate_function
from linnet.types import BOOL, I8, I32, I64, U8, U64, TensorType

EXACT = (BOOL, I8, U8, I32, I64, U64)


def run(f, data, special=False):  # type: ignore[no-untyped-def]
    sizes = {"B": data.draw(st.integers(0, 2))}
    # A call whose sizes leave nothing to index is refused before it runs.
    assume(all(demand.goal.holds(sizes) for demand in demands(f)))
    inputs = [data.draw(arrays(p.of, sizes, special)) for p in f.params]
    return inputs, sizes


@settings(max_examples=30, deadline=None)
@given(functions(EXACT), st.data())
def test_integers_and_bools_are_bit_equal(f, data):  # type: ignore[no-untyped-def]
    verify_function(f)
    better = contract(simplify(f))
    verify_function(better)
    inputs, sizes = run(f, data)
    before = evaluate_function(f, inputs, sizes)
    after = evaluate_function(better, inputs, sizes)
    for a, b in zip(before, after, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@settings(max_examples=25, deadline=None)
@given(functions(FLOATS, sums=False), st.data())
def test_floats_are_bit_equal_after_simplify(f, data):  # type: ignore[no-untyped-def]
    better = simplify(f)
    verify_function(better)
    inputs, sizes = run(f, data, special=True)
    before = evaluate_function(f, inputs, sizes)
    after = evaluate_function(better, inputs, sizes)
    for a, b in zip(before, after, strict=True):
        a, b = a.astype(np.float64), b.astype(np.float64)
        np.testing.assert_array_equal(a, b)
        zeros = a == 0
        np.testing.assert_array_equal(np.signbit(a[zeros]), np.signbit(b[zeros]))


@settings(max_examples=25, deadline=None)
@given(functions(FLOATS), st.data())
def test_floats_stay_within_the_tolerance_after_all_passes(f, data):  # type: ignore[no-untyped-def]
    after = optimize(program(f)).entries["f"]
    inputs, sizes = run(f, data)
    wanted = evaluate_function(f, inputs, sizes)
    for a, b in zip(wanted, evaluate_function(after, inputs, sizes), strict=True):
        a, b = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b)
        scale = np.max(np.abs(a[finite]), initial=1.0)
        # Values here are exact in every dtype until sums of them are rounded.
        assert np.all(np.abs(a[finite] - b[finite]) <= 10 * scale * tolerance("exact", "bf16"))


@settings(max_examples=12, deadline=None)
@given(functions((I32,)))
def test_passes_are_done_when_they_say_so(f):  # type: ignore[no-untyped-def]
    once = contract(simplify(f))
    assert function_text(contract(simplify(once))) == function_text(once)
    assert simplify(once) is once


def test_a_symbolic_size_is_what_it_is_bound_to():  # type: ignore[no-untyped-def]
    from linnet.core.build import Builder

    b = Builder()
    x = b.param("x", TensorType((Dim.of("B"), Dim.of(3)), I64))
    f = function([b.size(Dim.of("B") * 3, I64), b.iota(Dim.of("B") * 3, I64)], [x], names=("B",))
    size, count = evaluate_function(f, [np.zeros((2, 3), np.int64)], {"B": 2})
    assert size == 6 and list(count) == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(functions((*EXACT, *FLOATS)), st.data())
def test_more_of_the_same(f, data):  # type: ignore[no-untyped-def]
    better = contract(simplify(f))
    verify_function(better)
    inputs, sizes = run(f, data)
    after = evaluate_function(better, inputs, sizes)
    for a, b in zip(evaluate_function(f, inputs, sizes), after, strict=True):
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
