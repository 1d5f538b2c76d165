"""Every function of `std` against implementations that share nothing with its source."""

from __future__ import annotations

import numpy as np
import pytest

from linnet.syntax import tree
from std.cases import Case, everything
from std.running import analysed, module_name, modules, parsed, run

CASES = everything()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case) -> None:
    found, expected = np.asarray(run(case)), case.expected
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if case.tolerance == 0:
        assert np.array_equal(found, expected, equal_nan=expected.dtype.kind not in "iub")
        return
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    assert np.array_equal(found[~finite], expected[~finite], equal_nan=True)
    off = np.abs(found[finite] - expected[finite])
    if off.size:
        assert off.max() <= case.tolerance * np.abs(expected[finite]).max()


def test_every_public_function_has_cases() -> None:
    public = {
        f"{module_name(path)}.{item.name.text}"
        for path in modules()
        for item in parsed(module_name(path)).items
        if isinstance(item, tree.Fn) and item.public
    }
    assert public == {case.op for case in CASES}


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
