"""Ops that StableHLO has more for than their bodies: close to them on any sizes and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.common import assert_close, flat
from backends.test_kernels import FLOATS, calling, the_op
from backends.test_stablehlo import run
from linnet.backends import Sample
from linnet.policy import POLICIES, Policy, tolerance
from linnet.reference import evaluate
from linnet.stablehlo import emit
from linnet.stablehlo.experts import LARGEST
from linnet.stablehlo.kernels import KERNELS
from linnet.weights import DTYPES

Arrays = Mapping[str, np.ndarray]
CONVOLUTIONS = ("conv1d", "conv2d", "conv2d_rect")
MIXTURES = ("linear_experts", "linear_experts_shared", "combine_experts")


def check(
    op: str,
    sizes: dict[str, int],
    policy: Policy,
    *,
    dtype: str = "f32",
    absent: tuple[str, ...] = (),
    given: Arrays | None = None,
    seed: int = 0,
) -> str:
    """The module of a call computes what the body says; its text."""
    sample = Sample(sizes, absent=absent)
    function = the_op(op, sample, dtype)
    program = calling(function, sample)
    draw = np.random.default_rng(seed)
    arrays: list[np.ndarray] = []
    for param in function.params:
        shape = tuple(axis.evaluate(sizes) for axis in param.of.shape)  # type: ignore[union-attr]
        if given is not None and param.name in given:
            arrays.append(given[param.name])
        elif param.name == "experts":  # some of them outside
            arrays.append(draw.integers(-2, sizes["E"] + 2, shape))
        else:
            arrays.append(draw.uniform(-1, 1, shape).astype(DTYPES[dtype]))
    text = emit(program, "run", {}, policy)
    wanted = flat(evaluate(program, "run", arrays))
    found = run(program, "run", {}, policy, arrays, text)
    for a, b in zip(wanted, found, strict=True):
        near = tolerance(policy, dtype) if dtype != "f64" else tolerance(policy, "f32")
        assert_close(np.asarray(a), b, near, f"{op} {dtype} {sizes} {policy}")
    return text


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[str, dict[str, int]]:
    op = draw(st.sampled_from(CONVOLUTIONS))
    few = st.integers(0, 3)
    sizes = {"B": draw(few), "Cin": draw(few), "Cout": draw(few)}

    def along(axis: str, kernel: str, stride: str, pad: str) -> None:
        sizes.setdefault(kernel, draw(st.integers(1, 4)))
        sizes.setdefault(stride, draw(st.integers(1, 3)))
        sizes.setdefault(pad, draw(few))
        sizes[axis] = draw(st.integers(max(sizes[kernel] - 2 * sizes[pad], 0), 8))

    match op:
        case "conv1d":
            along("L", "K", "Stride", "Pad")
        case "conv2d":
            along("H", "K", "Stride", "Pad")
            along("W", "K", "Stride", "Pad")
        case _:
            along("H", "KH", "StrideH", "PadH")
            along("W", "KW", "StrideW", "PadW")
    return op, sizes


def overlaps(sizes: dict[str, int]) -> bool:
    return any(
        sizes[f"Stride{axis}"] < sizes[f"K{axis}"] for axis in ("", "H", "W") if f"K{axis}" in sizes
    )


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    convolutions(), st.sampled_from(FLOATS), st.sampled_from(POLICIES), st.booleans(), st.integers()
)
def test_drawn_convolutions(
    drawn: tuple[str, dict[str, int]], dtype: str, policy: Policy, biased: bool, seed: int
) -> None:
    op, sizes = drawn
    absent = () if biased else ("bias",)
    text = check(f"std.nn.conv::{op}", sizes, policy, dtype=dtype, absent=absent, seed=abs(seed))
    assert ("stablehlo.convolution" in text) == (policy != "exact" and overlaps(sizes))


def test_a_convolution() -> None:
    sizes = {"B": 2, "Cin": 3, "Cout": 4, "H": 6, "W": 5, "K": 3, "Stride": 2, "Pad": 1}
    assert "stablehlo.convolution" in check("std.nn.conv::conv2d", sizes, "equivalent")


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(st.data(), st.sampled_from(MIXTURES), st.sampled_from(FLOATS), st.sampled_from(POLICIES))
def test_drawn_mixtures(data: st.DataObject, op: str, dtype: str, policy: Policy) -> None:
    small, some = st.integers(0, 3), st.integers(1, 9)
    sizes = {"R": data.draw(st.integers(0, 40)), "K": data.draw(small), "E": data.draw(some)}
    sizes |= {"In": data.draw(small), "Out": data.draw(some)}
    text = check(f"std.nn.moe::{op}", sizes, policy, dtype=dtype, seed=data.draw(st.integers(0, 9)))
    grouped = all(sizes.values()) and 2 * sizes["K"] <= sizes["E"]
    assert ("stablehlo.while" in text) == (policy != "exact" and grouped)


def chosen(kind: str, rows: int, each: int, experts: int) -> np.ndarray:
    """Which experts the rows use."""
    match kind:
        case "one":
            return np.full((rows, each), experts - 1)
        case "in turn":
            return np.arange(rows * each).reshape(rows, each) % experts
        case "outside":
            return np.where(np.arange(rows * each) % 2, -5, experts + 7).reshape(rows, each)
        case _:
            return np.sort(np.random.default_rng(1).integers(0, experts, (rows, each)), 0)[::-1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one", "in turn", "outside", "sorted"])
@pytest.mark.parametrize("op", MIXTURES)
def test_rows_among_experts(op: str, kind: str) -> None:
    """A block filled to its last row, an expert with every row, experts without any."""
    for rows in (1, 4, 5, 33, LARGEST * 4):
        sizes = {"R": rows, "K": 2, "E": 4, "In": 3, "Out": 5}
        given = {"experts": chosen(kind, rows, 2, 4)}
        check(f"std.nn.moe::{op}", sizes, "equivalent", given=given)


@pytest.mark.slow
def test_a_row_is_its_own() -> None:
    """What is infinite or no number in one row, or in a matrix that nobody chose, stays there."""
    sizes = {"R": 40, "K": 2, "E": 5, "In": 3, "Out": 4}
    draw = np.random.default_rng(0)
    x = draw.uniform(-1, 1, (40, 3)).astype(np.float32)
    weight = draw.uniform(-1, 1, (5, 4, 3)).astype(np.float32)
    x[7, 1], x[8, 2], weight[4] = np.nan, np.inf, np.inf
    given = {"x": x, "weight": weight, "experts": draw.integers(0, 4, (40, 2))}
    check("std.nn.moe::linear_experts_shared", sizes, "equivalent", given=given)
    weight[3] = np.inf  # it is chosen, and by few: its block is filled up with zeros
    with np.errstate(invalid="ignore"):
        check("std.nn.moe::linear_experts_shared", sizes, "equivalent", given=given)


@pytest.mark.slow
@pytest.mark.parametrize(
    "op", ["mxfp4_experts", "mxfp4_linear_experts_shared", "mxfp4_combine_experts"]
)
def test_packed_matrices(op: str) -> None:
    """They are made one by one where few are used, else all at once."""
    draw = np.random.default_rng(0)
    given = {
        "blocks": draw.integers(0, 256, (9, 6, 2, 16)).astype(np.uint8),
        "scales": draw.integers(120, 130, (9, 6, 2)).astype(np.uint8),
    }
    for rows, count in ((1, 1), (20, 9)):
        sizes = {"R": rows, "K": 2, "E": 9, "Out": 6, "G": 2}
        for dtype in ("f32", "bf16"):
            text = check(f"std.quant::{op}", sizes, "equivalent", dtype=dtype, given=given)
            calls = [line for line in text.splitlines() if "func.call @dequantize_mxfp4(" in line]
            assert len(calls) == 1 and "stablehlo.while" in text
            assert f"(tensor<{count}x6x2x16xui8>, tensor<{count}x6x2xui8>)" in calls[0]


def test_a_mixture() -> None:
    sizes = {"R": 9, "K": 2, "E": 5, "In": 3, "Out": 4}
    assert "stablehlo.while" in check("std.nn.moe::combine_experts", sizes, "equivalent")


def test_every_row_of_the_table_has_a_test() -> None:
    named = {f"std.nn.conv::{op}" for op in CONVOLUTIONS} | {f"std.nn.moe::{op}" for op in MIXTURES}
    assert {op for op in KERNELS if not op.startswith("std.nn.cache::")} == named


def test_sizes_that_stay_dynamic_are_left_to_the_body() -> None:
    from linnet.check import check_text
    from linnet.core.lower import lower

    text = """module main
use std.nn.moe::{linear_experts}
pub entry main<R: Dim>(x: Tensor[R, 2, 3; f32], w: Tensor[4, 5, 3; f32], e: Tensor[R, 2; i64]) -> Tensor[R, 2, 5; f32] {
    return linear_experts(x, w, e)
}
"""  # noqa: E501
    program: Any = lower(check_text(text))
    assert "stablehlo.while" in emit(program, "main", {"R": 3}, "equivalent")
    assert "stablehlo.while" not in emit(program, "main", {}, "equivalent", ["R"])
