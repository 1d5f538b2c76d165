"""Entries whose where clauses are false of the sizes that their block is bound to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from linnet.check import check_text
from linnet.core.ir import Program
from linnet.core.lower import lower, main_module, refusals, root_block
from linnet.diagnostics import PlanError
from linnet.reference import evaluate

TEXT = """module m

pub block Model<H: Dim, Heads: Dim = 0> {
    sub heads: [Head<H>; Heads]

    pub entry plain<N: Dim>(x: Tensor[N, H; f32]) -> Tensor[N, H; f32] {
        return 2.0 * x
    }

    pub entry headed<N: Dim>(x: Tensor[N, H; f32]) -> Tensor[N, H; f32]
    where
        N > 0,
        Heads == 1
    {
        return heads[0].forward(x)
    }
}

block Head<H: Dim> {
    param weight: Tensor[H; f32]

    pub fn forward<N: Dim>(x: Tensor[N, H; f32]) -> Tensor[N, H; f32] {
        return x * weight
    }
}
"""
REFUSAL = "Model.headed requires Heads == 1, which does not hold with Heads = 0"


def program(**options: Any) -> Program:
    return lower(check_text(TEXT), **{"generics": {"H": 3}, **options})


def test_an_entry_that_the_sizes_rule_out_is_left_out_and_says_why() -> None:
    without = program()
    assert list(without.entries) == ["plain"]
    x = np.ones((2, 3), np.float32)
    assert np.array_equal(evaluate(without, "plain", [x]), 2 * x)
    with pytest.raises(PlanError, match=REFUSAL):
        evaluate(without, "headed", [x])


def test_asking_for_it_is_an_error() -> None:
    with pytest.raises(PlanError, match=REFUSAL):
        program(entries=["plain", "headed"])
    with pytest.raises(PlanError, match=REFUSAL):
        program(main="headed")


def test_which_entries_sizes_rule_out() -> None:
    analysis = check_text(TEXT)
    block = root_block(analysis, main_module(analysis), "Model")
    assert block is not None
    assert refusals(analysis, block, {"H": 3}) == {"headed": REFUSAL}
    assert refusals(analysis, block, {"H": 3, "Heads": 1}) == {}
    assert refusals(analysis, block, {"H": 3, "Heads": 2}).keys() == {"headed"}


def test_it_is_there_with_other_sizes() -> None:
    having = program(generics={"H": 3, "Heads": 1})
    assert list(having.entries) == ["plain", "headed"] and not having.refused
    x = np.ones((2, 3), np.float32)
    weight = np.arange(3, dtype=np.float32)
    assert np.array_equal(evaluate(having, "headed", [x], {"heads.0.weight": weight}), x * weight)


def test_a_module_of_torch_says_why_too(tmp_path: Any) -> None:
    import linnet.torch

    (tmp_path / "m.linnet").write_text(TEXT)
    module = linnet.torch.load(tmp_path / "m.linnet", generics={"H": 3})
    assert module.entries == ("plain",) and not hasattr(module, "headed")
    with pytest.raises(AttributeError, match=REFUSAL):
        _ = module.headed
    with pytest.raises(PlanError, match=REFUSAL):
        module.run_entry("headed", [])
