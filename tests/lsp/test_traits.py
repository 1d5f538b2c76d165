"""Traits in an editor: what they provide is the block's, what they require has one name."""

from __future__ import annotations

from pathlib import Path

import pytest

from linnet.lsp import complete, features, hover
from linnet.lsp.names import at
from linnet.lsp.project import Document
from linnet.lsp.rename import Refused, rename

from .texts import Opened, package

TRAITS = """module p.traits

/// Pools rows.
pub trait Pooled<H: Dim, T: Float> {
    /// One row for each.
    fn rows<N: Dim>(ids: Tensor[N; i32]) -> Tensor[N, H; T]

    /// All rows together.
    pub entry pooled<N: Dim>(ids: Tensor[N; i32]) -> Tensor[H; T] {
        let x = rows(ids = ids)
        let total[h] = sum[n] x[n, h]
        return total
    }
}
"""
LIB = """module p.lib

use crate.traits::{Pooled}

pub block Table<V: Dim, D: Dim>
where V > 0 {
    impl Pooled<D, f32>

    param weight: Tensor[V, D; f32]

    fn rows<N: Dim>(ids: Tensor[N; i32]) -> Tensor[N, D; f32] {
        let x[n, d] = weight[ids[n], d]
        return x
    }

    pub fn twice<N: Dim>(ids: Tensor[N; i32]) -> Tensor[D; f32] {
        return pooled(ids) * 2.0
    }
}

pub block Root {
    sub table: Table<4, 2>

    pub entry forward<N: Dim>(ids: Tensor[N; i32]) -> Tensor[2; f32] {
        return table.pooled(ids)
    }
}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return package(tmp_path_factory.mktemp("packages") / "p", lib=LIB, traits=TRAITS)


@pytest.fixture(scope="module")
def opened(root: Path) -> Opened:
    found = Opened(root / "src/lib.linnet")
    assert [d.message for d in found.home[0].findings if d.severity == "error"] == []
    return found


def test_hover_and_definition(opened: Opened) -> None:
    def shown(before: str) -> str:
        found = hover.hover(*opened.at(before))
        assert found is not None
        return found.markdown

    assert "pub trait Pooled<H: Dim, T: Float>" in shown("impl Pooled")
    assert "Pools rows." in shown("impl Pooled")
    assert "pub entry pooled" in shown("return pooled")
    assert "gives `Tensor[D; f32]`" in shown("return pooled")
    assert "All rows together." in shown("table.pooled")
    span = features.definition(*opened.at("table.pooled"))
    assert span is not None and Path(span.source.name).stem == "traits" and span.text == "pooled"


def renamed(opened: Opened, before: str, new: str) -> dict[str, str]:
    unit, module, offset = opened.at(before)
    read = {path: Document(source.text) for source, path in unit.paths.items()}
    places = rename(opened.state, lambda path: read[path], unit, module, offset, new)
    out = {path: doc.text for path, doc in read.items()}
    for p in sorted(places, key=lambda p: -p.span.start):
        out[p.path] = out[p.path][: p.span.start] + new + out[p.path][p.span.end :]
    return {path.stem: text for path, text in out.items() if text != read[path].text}


def test_what_a_trait_requires_is_renamed_with_it(opened: Opened) -> None:
    found = at(*opened.at("fn rows"))
    assert found is not None
    places = features.references(opened.state, found.key)
    assert sorted(Path(o.span.source.name).stem for o in places) == ["lib", "traits", "traits"]
    assert renamed(opened, "fn rows", "picked") == {
        "lib": LIB.replace("fn rows", "fn picked"),
        "traits": TRAITS.replace("fn rows", "fn picked").replace("rows(ids", "picked(ids"),
    }
    both = renamed(opened, "rows<N: Dim>(ids", "which")
    assert both["lib"].count("which") == 2 and "rows(which = ids)" in both["traits"]
    assert "which: Tensor[N; i32]) -> Tensor[N, H" in both["traits"]
    with pytest.raises(Refused, match="provides it"):
        renamed(opened, "fn twice", "pooled")


@pytest.mark.parametrize(
    ("old", "new", "has", "lacks"),
    [
        ("table.pooled(ids)", "table.|", "pooled twice", "forward"),
        ("return pooled(ids)", "return po|", "pooled rows weight", "forward"),
        ("impl Pooled<D, f32>", "impl |", "Pooled", "Table f32"),
        ("impl Pooled<D, f32>", "im|", "impl param sub", "let"),
        ("sub table: Table<4, 2>", "sub table: |", "Table", "Pooled"),
    ],
)
def test_completion(root: Path, old: str, new: str, has: str, lacks: str) -> None:
    opened = Opened(root / "src/lib.linnet", LIB.replace(old, new))
    found = {
        p.label for p in complete.complete(opened.project, opened.state, opened.path, opened.offset)
    }
    assert set(has.split()) <= found and not set(lacks.split()) & found


def test_outline_folds_and_colours(root: Path, opened: Opened) -> None:
    traits = Opened(root / "src/traits.linnet")
    unit, module = traits.home
    [outline] = features.outline(module.tree)
    assert (outline.kind, [o.name.text for o in outline.inside]) == ("trait", ["rows", "pooled"])
    assert features.folds(module.tree) == [(3, 12, "code"), (8, 11, "code")]
    colours = {(s.text, kind) for s, kind, _ in features.colours(unit, module)}
    assert {("Pooled", "interface"), ("trait", "keyword"), ("rows", "method")} <= colours
    words = {(s.text, kind) for s, kind, _ in features.colours(*opened.home)}
    assert {("Pooled", "interface"), ("impl", "keyword")} <= words
