"""Every function of `std` against implementations that share nothing with its source."""

from __future__ import annotations

import numpy as np
import pytest

from linnet.diagnostics import PlanError
from linnet.policy import Policy, tolerance
from linnet.syntax import tree
from linnet.weights import dtype_name
from std.cases import Case, everything
from std.running import analysed, module_name, modules, parsed, run, run_jax, run_onnx, run_torch

CASES = everything()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case) -> None:
    compare(np.asarray(run(case)), case.expected, case.tolerance)


@pytest.mark.parametrize("case", {case.op: case for case in reversed(CASES)}.values(), ids=str)
def test_in_torch(case: Case) -> None:
    compare(run_torch(case, "exact"), case.expected, case.tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case_in_torch(case: Case) -> None:
    compare(run_torch(case, "exact"), case.expected, case.tolerance)
    compare(run_torch(case, "fast"), case.expected, within(case, "fast"))


@pytest.mark.slow
@pytest.mark.parametrize("case", {case.op: case for case in reversed(CASES)}.values(), ids=str)
def test_in_jax(case: Case) -> None:
    # XLA's elementary functions are its own, and it adds to a product without rounding that first.
    own = case.tolerance or case.op.startswith("std.nn.rope.")
    limit = within(case, "equivalent") if own else 0
    for way in ("source", "stablehlo"):
        compare(run_jax(case, "exact", way), case.expected, limit)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case_in_jax(case: Case) -> None:
    compare(run_jax(case, "fast", "source"), case.expected, within(case, "fast"))
    compare(run_jax(case, "equivalent", "stablehlo"), case.expected, within(case, "equivalent"))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case_in_onnx(case: Case) -> None:
    # ONNX Runtime's elementary functions and its order of sums are its own.
    limit = within(case, "equivalent") if case.tolerance else 0
    compare(run_onnx(case, "exact"), case.expected, limit)
    compare(run_onnx(case, "fast"), case.expected, within(case, "fast"))


def within(case: Case, policy: Policy) -> float:
    """How near a case's result must be under a policy."""
    if case.expected.dtype.kind in "iub":
        return case.tolerance
    dtypes = [case.expected.dtype, *(x.dtype for x in case.inputs.values() if x is not None)]
    narrow = [name for dtype in dtypes if (name := dtype_name(dtype)) in ("bf16", "f16")]
    return max(case.tolerance, tolerance(policy, narrow[0] if narrow else "f32"))


def compare(found: np.ndarray, expected: np.ndarray, limit: float) -> None:
    """Equal bits, NaN as NaN, where the limit is 0; else close, relative to the largest value."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if limit == 0:
        assert np.array_equal(found, expected, equal_nan=expected.dtype.kind not in "iub")
        return
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    assert np.array_equal(found[~finite], expected[~finite], equal_nan=True)
    off = np.abs(found[finite] - expected[finite])
    if off.size:
        assert off.max() <= limit * np.abs(expected[finite]).max()


@pytest.mark.parametrize(("op", "sizes"), [("conv2d", {}), ("max_pool2d", {"K": 3})], ids=str)
def test_a_window_that_does_not_fit_is_refused(op: str, sizes: dict[str, int]) -> None:
    for height, found in ((2, "indexes an axis of size 0 (H + 2 * Pad - K + 1"), (1, "is -1")):
        inputs = {"x": np.zeros((1, 2, height, 5), np.float32)}
        if op == "conv2d":
            inputs["weight"] = np.zeros((4, 2, 3, 3), np.float32)
        module = "conv" if op == "conv2d" else "pool"
        generics = {**sizes, "Stride": 2, "Pad": 0}
        case = Case(f"std.nn.{module}.{op}", "too small", inputs, np.zeros(0), generics)
        for attempt in (run, lambda case: run_torch(case, "exact"), lambda c: run_torch(c, "fast")):
            with pytest.raises(PlanError) as refused:
                attempt(case)
            text = str(refused.value)
            assert found in text and "H + 2 * Pad - K + 1" in text
            assert f"H = {height} from axis 2 of x" in text and "K = 3" in text


def test_every_public_function_has_cases() -> None:
    public = {
        f"{module_name(path)}.{item.name.text}"
        for path in modules()
        for item in parsed(module_name(path)).items
        if isinstance(item, tree.Fn) and item.public
    }
    # These stand in test_decoder.py: two results, and a struct.
    elsewhere = {"std.nn.rope.rope_tables", "std.nn.decoder.within"}
    assert public - elsewhere == {case.op for case in CASES}


@pytest.mark.parametrize("module", [module_name(path) for path in modules()])
def test_module_checks_without_a_finding(module: str) -> None:
    assert not analysed(module).findings.items


@pytest.mark.parametrize("module", [module_name(path) for path in modules()])
def test_public_items_say_what_they_do(module: str) -> None:
    file = parsed(module)
    assert file.module is not None and file.module.text == module
    for item in file.items:
        assert item.docs or not item.public, f"{module}.{item.name.text} has no documentation"
        if isinstance(item, tree.Block):
            for method in item.methods:
                assert method.docs or not method.public, f"{item.name.text}.{method.name.text}"
