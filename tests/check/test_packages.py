"""Whole packages: the seed, the standard library and our families check with no finding."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

import linnet
from linnet.check import check
from linnet.check.analysis import Analysis
from linnet.check.blocks import manifest, roots
from linnet.render import render_text
from linnet.syntax import tree
from linnet.workspace import Workspace

SOURCES = Path(linnet.__file__).parent
FAMILIES = sorted(p.parent for p in (SOURCES / "zoo/families").glob("*/linnet.toml"))


def clean(place: Path) -> Analysis:
    analysis = check(Workspace(), place)
    assert not analysis.findings.items, "\n".join(map(render_text, analysis.findings.sorted()))
    return analysis


def test_the_standard_library() -> None:
    assert "std.nn.attention" in clean(SOURCES / "std").modules


@pytest.mark.parametrize("family", FAMILIES, ids=lambda p: p.name)
@pytest.mark.slow
def test_families(family: Path) -> None:
    clean(family)


@pytest.fixture(scope="module")
def seed_analysis(seed: Path) -> Analysis:
    return clean(seed)


def test_the_seeds_manifest(seed_analysis: Analysis) -> None:
    module = seed_analysis.modules["llama"]
    (model,) = roots(seed_analysis, module)
    assert model.name.text == "Model"
    entries = {e.path: e for e in manifest(seed_analysis, model)}
    assert list(entries)[:3] == [
        "embedding.weight",
        "layers.*.attention_norm.weight",
        "layers.*.attention.q_proj.weight",
    ]
    query = entries["layers.*.attention.q_proj.weight"]
    assert str(query.type) == "Tensor[Heads / Shards * (H / Heads), H; T]"
    assert [str(n) for n in query.lengths] == ["Layers"]
    assert (query.kind, query.optional) == ("param", False)
    assert entries["layers.*.attention.q_proj.bias"].optional
    cache = entries["layers.*.attention.cache_k"]
    assert cache.kind == "state"
    assert str(cache.type) == "Tensor[Batch, KvHeads / Shards, MaxSeq, H / Heads; T]"
    assert len(entries) == 22


@pytest.mark.parametrize("order", ["reversed", "shuffled"])
def test_clauses_in_any_order(seed: Path, order: str) -> None:
    def reordered(found: re.Match[str]) -> str:
        clauses = [c.strip() for c in found[1].split(",\n")]
        if order == "reversed":
            clauses.reverse()
        else:
            Random(7).shuffle(clauses)
        return "where\n" + ",\n".join(clauses) + "\n{"

    overlays: dict[str | Path, str] = {}
    for file in (seed / "src").glob("*.linnet"):
        text = file.read_text(encoding="utf-8")
        overlays[file], count = re.subn(r"where\n([^{]*)\n\{", reordered, text)
        assert count or "block" not in text
    analysis = check(Workspace(overlays), seed)
    assert not analysis.findings.items, "\n".join(map(render_text, analysis.findings.sorted()))


def test_the_seeds_effects(seed_analysis: Analysis) -> None:
    module = seed_analysis.modules["llama"]
    model = module.items["Model"]
    assert isinstance(model, tree.Block)
    caches = {"layers.*.attention.cache_k", "layers.*.attention.cache_v"}
    by_name = {fn.name.text: seed_analysis.effects[fn] for fn in model.methods}
    assert not by_name["forward"].writes and not by_name["forward"].reads
    for entry in ("decode", "prefill_slots", "step_paged", "generate_until"):
        assert by_name[entry].writes == by_name[entry].reads == caches
    assert by_name["loss_packed"].members >= {"lm_head.weight", "layers.*.mlp.up.weight"}
    assert by_name["hidden_packed"].members < by_name["loss_packed"].members
