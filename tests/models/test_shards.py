"""The split model: at `Shards = 2` both packages lower, verify, and hold half of what is split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from linnet.check import check
from linnet.core.lower import lower
from linnet.core.verify import verify
from linnet.diagnostics import PlanError
from linnet.workspace import Workspace

from . import tiny

SPLIT: dict[str, int | str] = {**tiny.SIZES, "Batch": 1, "MaxSeq": 16}


def shapes(source: Path, shards: int, own: Mapping[str, int | str] | None = None) -> dict[str, str]:
    generics = {**SPLIT, **(own or {}), "Shards": shards}
    program = lower(check(Workspace(), source), generics=generics)
    verify(program)
    return {e.path: str(e.type) for e in program.manifest.entries}


def halves(source: Path, own: Mapping[str, int | str] | None = None) -> None:
    whole, half = shapes(source, 1, own), shapes(source, 2, own)
    layer = "layers.*.attention"
    assert whole[f"{layer}.q_proj.weight"] == "Tensor[48, 48; f32]"
    assert half[f"{layer}.q_proj.weight"] == "Tensor[24, 48; f32]"
    assert half[f"{layer}.k_proj.weight"] == "Tensor[8, 48; f32]"
    assert half[f"{layer}.o_proj.weight"] == "Tensor[48, 24; f32]"
    keys = half.get(f"{layer}.cache.keys") or half[f"{layer}.cache_k"]  # the seed's own name
    assert keys == "Tensor[1, 1, 16, 8; f32]"
    assert half["layers.*.mlp.down.weight"] == "Tensor[48, 40; f32]"
    assert half["lm_head.weight"] == "Tensor[48, 48; f32]"
    assert half["norm.weight"] == whole["norm.weight"]


@pytest.mark.slow
def test_the_family_splits() -> None:
    halves(tiny.FAMILY)


@pytest.mark.slow
@pytest.mark.parametrize("family, own", [("qwen2", {}), ("qwen3", {"HeadDim": 8})])
def test_the_families_beside_it_split(family: str, own: dict[str, int | str]) -> None:
    halves(tiny.FAMILY.parent / family, own)


@pytest.mark.slow
def test_the_seed_splits(seed: Path) -> None:
    halves(seed)


def test_shards_that_do_not_divide_the_heads_are_refused() -> None:
    with pytest.raises(PlanError, match=r"Model requires .* which does not hold with"):
        shapes(tiny.FAMILY, 4)
