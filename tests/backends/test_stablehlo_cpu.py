"""Ops as they are written for a CPU: what their bodies say, block after block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends.common import assert_close, flat
from backends.test_kernels import calling, inputs_of, the_op
from linnet.backends import Sample
from linnet.core.ir import Program
from linnet.policy import Policy, tolerance
from linnet.reference import evaluate
from linnet.stablehlo import cpu, emit
from linnet.stablehlo.emit import paths_of, results_of
from linnet.torch.kernels import KERNELS

ATTENTIONS = ("std.nn.attention::span_attention", "std.nn.attention::rows_attention")
LINEAR = "std.nn.linear::linear"
ONE_ROW = {"S_0": 1, "S_1": 1, "In": 24, "Out": 7}


def run(program: Program, policy: Policy, given: list[np.ndarray]) -> tuple[str, list[Any]]:
    """The module for a CPU, and what XLA makes of it."""
    import jax

    from linnet.jax.exported import aval, callable_of

    entry = program.entries["run"]
    text = emit(program, "run", {}, policy, device="cpu")
    types = [type for _, _, type in paths_of(entry)], results_of(entry)
    with jax.enable_x64(True):
        taken, made = (
            [aval([axis.evaluate({}) for axis in t.shape], str(t.dtype)) for t in each]  # type: ignore[union-attr]
            for each in types
        )
        call = callable_of("run", text, taken, made)
        return text, [np.asarray(x) for x in jax.jit(call)(*given)]


def compared(
    op: str, sample: Sample, dtype: str, kept: str | None, policy: Policy, seed: int
) -> str:
    function = the_op(op, sample, dtype, kept)
    program = calling(function, sample)
    arrays = inputs_of(function, sample, seed, "plain")
    text, found = run(program, policy, arrays)
    # What keys are kept in is what they are rounded to where weights meet them.
    near = max(tolerance(policy, dtype), tolerance(policy, kept or dtype))
    for a, b in zip(flat(evaluate(program, "run", arrays)), found, strict=True):
        assert_close(np.asarray(a), b, near, f"{op} {dtype} {kept} {policy} {sample}")
    return text


@pytest.mark.slow
@pytest.mark.parametrize("block", (2, 4, 128))  # of 9 keys: the last one overlaps, or fits
@pytest.mark.parametrize("op", ATTENTIONS)
def test_attention_in_blocks(op: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "BLOCK", block)
    monkeypatch.setattr(cpu, "QUERIES", 2 * block)
    for seed, sample in enumerate(KERNELS[op][0].samples):
        text = compared(op, sample, "f32", None, "equivalent", seed)
        assert ("stablehlo.while" in text) == all(sample.dims.values())  # else nothing is there


@pytest.mark.slow
@pytest.mark.parametrize("policy", ("equivalent", "fast"))
@pytest.mark.parametrize(
    ("dtype", "kept"), (("f32", None), ("bf16", None), ("f16", None), ("f32", "bf16"))
)
@pytest.mark.parametrize("op", ATTENTIONS)
def test_attention_of_every_float(
    op: str, dtype: str, kept: str | None, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "BLOCK", 3)
    for seed, sample in enumerate(KERNELS[op][0].samples[:6]):
        compared(op, sample, dtype, kept, policy, seed)


def test_a_product_of_many_narrow_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "MANY", 6)
    for absent in ((), ("bias",)):
        sample = Sample({**ONE_ROW, "S_0": 2, "S_1": 3}, absent)
        for dtype in ("bf16", "f16"):
            text = compared(LINEAR, sample, dtype, None, "equivalent", 3)
            assert f"tensor<7x24x{dtype}>) -> tensor<7x24xf32>" in text


def test_a_product_of_one_narrow_row() -> None:
    for dtype in ("bf16", "f16"):
        for absent in ((), ("bias",)):
            text = compared(LINEAR, Sample(ONE_ROW, absent), dtype, None, "equivalent", 3)
            assert "stablehlo.transpose" in text
    assert "transpose" not in compared(LINEAR, Sample(ONE_ROW), "f32", None, "equivalent", 3)
    more = Sample({**ONE_ROW, "S_1": 3})
    assert "transpose" not in compared(LINEAR, more, "bf16", None, "equivalent", 3)


def test_only_what_a_policy_allows_and_a_cpu_runs() -> None:
    sample = KERNELS[ATTENTIONS[0]][0].samples[0]
    program = calling(the_op(ATTENTIONS[0], sample, "f32"), sample)
    assert "stablehlo.while" in emit(program, "run", {}, "equivalent", device="cpu")
    for policy, device in (("exact", "cpu"), ("equivalent", None), ("fast", "gpu")):
        assert "stablehlo.while" not in emit(program, "run", {}, policy, device=device)  # type: ignore[arg-type]
    wide = calling(the_op(ATTENTIONS[0], sample, "f64"), sample)
    assert "stablehlo.while" not in emit(wide, "run", {}, "equivalent", device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ("f32", "bf16", "f16", "f64"))
@pytest.mark.parametrize("count", (1, 2, 3, 5, 6))
def test_what_is_written_to_a_cache(dtype: str, count: int) -> None:
    """At every place, inside, outside and across both ends: the bits are those of the body."""
    sample = Sample({"B": 2, "H": 2, "S": 5, "N": count, "D": 3})
    names = ["write_span", *(["write_at"] if count == 1 else [])]
    for name in names:
        function = the_op(f"std.nn.cache::{name}", sample, dtype, None)
        program = calling(function, sample)
        cache, value, _ = inputs_of(function, sample, 0, "plain")
        places = [*range(-count - 1, 7), 2**31 - 1, -(2**31), 2**31 - count]
        for place in places:
            given = [cache, value, np.array(place, np.int32)]
            text, (found,) = run(program, "exact", given)
            (wanted,) = flat(evaluate(program, "run", given))
            np.testing.assert_array_equal(np.asarray(wanted), found, f"{name} at {place}")
            assert ("stablehlo.scatter" in text) == (count > 5)
