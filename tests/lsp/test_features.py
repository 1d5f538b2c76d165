"""Each feature on small programs, in process."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from linnet.check.prelude import KINDS, PRELUDE
from linnet.lsp import complete, features, hover
from linnet.lsp.answers import fixed
from linnet.lsp.names import at
from linnet.lsp.project import Document, Project
from linnet.lsp.rename import Refused, prepare, rename
from linnet.syntax.parser import parse_text

from .texts import Opened, package

MODEL = """module m

use std.nn.linear::{linear, Linear as Dense}
use crate.shapes
use crate.shapes::{Mode, Pair, WIDTH}

/// Twice `x`.
pub fn twice<*S: Shape, T: Float>(x: Tensor[*S; T], times: i64 = 2) -> Tensor[*S; T] {
    return x + x
}

/// A network.
pub block Net<H: Dim>
where H > 0 {
    /// What it learns.
    param weight: Tensor[H, H; f32]
    state seen: i64
    sub dense: Dense<H, 2 * H, f32>

    pub entry run<B: Dim>(x: Tensor[B, H; f32], mode: Mode) -> Tensor[B, H; f32] {
        let y = twice(linear(x, weight, none))
        let (a, b) = (y, cast<i32>(y))
        var total = b
        total = total + b
        seen = seen + 1
        let wide = dense.forward(x)
        let c[i, j] = sum[k] a[i, k] * weight[k, j]
        let scaled = match mode { Mode.Fast => c Mode.Slow => c * 2.0 }
        let p = Pair(left = 1, right = 2)
        return scaled * cast<f32>(p.left + cast<i32>(WIDTH)) + reshape(wide, [B, 2 * H])[..., 0:H]
    }
}
"""
SHAPES = """module m.shapes

/// The width.
pub const WIDTH = 3 + 1

pub enum Mode { Fast, Slow }

pub struct Pair { left: i32 right: i32 }
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shapes = SHAPES.replace("left: i32 right", "\n    left: i32\n    right")
    return package(tmp_path_factory.mktemp("packages") / "p", lib=MODEL, shapes=shapes)


@pytest.fixture(scope="module")
def model(root: Path) -> Opened:
    opened = Opened(root / "src/lib.linnet")
    unit, _ = opened.home
    assert [d.message for d in unit.findings if d.severity == "error"] == []
    return opened


def test_hover(model: Opened) -> None:
    def shown(before: str, nth: int = 0) -> str:
        found = hover.hover(*model.at(before, nth))
        assert found is not None
        return found.markdown

    assert "let y: Tensor[B, H; f32]" in shown("let y")
    call = shown("= twice")
    assert "pub fn twice<*S: Shape, T: Float>" in call
    assert "here `S = [B, H]`, `T = f32`" in call
    assert "Twice `x`." in call
    assert "gives `Tensor[B, H; f32]`" in call
    assert "param weight: Tensor[H, H; f32]" in shown("(x, weight")
    assert "What it learns." in shown("(x, weight")
    assert "value: `4`" in shown("cast<i32>(WIDTH")
    assert "The width." in shown("cast<i32>(WIDTH")
    assert "pub entry run<B: Dim>" in shown("entry run")
    assert "A network." in shown("block Net")
    assert "where H > 0" in shown("block Net")
    assert "i: index over B" in shown("let c[i")
    assert "k: index over H" in shown("sum[k")
    assert "Mode.Fast" in shown("{ Mode.Fast")
    assert "left: i32" in shown("p.left")
    assert "H: Dim" in shown("Net<H")
    assert "reshape(x, shape)" in shown("+ reshape")
    assert "module m.shapes" in shown("use crate.shapes")
    assert "total + b: Tensor[B, H; i32]" in shown("= total +")
    assert hover.hover(*model.at("/// A netw")) is None


def test_prelude_is_described() -> None:
    assert hover.PRELUDE_DOCS.keys() == PRELUDE.keys()
    assert hover.KIND_DOCS.keys() == {"Tensor", *KINDS}


def target(model: Opened, before: str, nth: int = 0) -> str:
    span = features.definition(*model.at(before, nth))
    assert span is not None, before
    source = span.source
    line = source.position(span.start).line
    return f"{Path(source.name).stem}:{line} {span.text}"


def test_definition(model: Opened) -> None:
    assert target(model, "return x") == "lib:8 x"
    assert target(model, "= twice") == "lib:8 twice"
    assert target(model, "(x, weight") == "lib:16 weight"
    assert target(model, "seen = seen") == "lib:17 seen"
    assert target(model, "(linear").startswith("linear:")
    assert target(model, "use std.nn.linear") == "linear:1 std.nn.linear"
    assert target(model, "dense.forward").startswith("linear:")
    assert target(model, "use crate.shapes") == "shapes:1 m.shapes"
    assert target(model, "{Mode") == "shapes:6 Mode"
    assert target(model, "mode: Mode") == "shapes:6 Mode"
    assert target(model, "Mode.Slow") == "shapes:6 Slow"
    assert target(model, "p.left") == "shapes:9 left"
    assert target(model, "Pair(left") == "shapes:9 left"
    assert target(model, "(WIDTH") == "shapes:4 WIDTH"
    assert target(model, "a[i, k") == "lib:27 k"
    assert target(model, "match mode") == "lib:20 mode"
    assert target(model, "2 * H") == "lib:13 H"
    assert features.definition(*model.at("cast")) is None


def test_references_and_highlights(model: Opened) -> None:
    found = at(*model.at("total"))
    assert found is not None
    lines = [
        o.span.source.position(o.span.start).line
        for o in features.references(model.state, found.key)
    ]
    assert lines == [23, 24, 24]
    assert [w for _, w in features.highlights(*model.at("total"))] == [True, True, False]
    width = at(*model.at("(WIDTH"))
    assert width is not None
    files = {Path(o.span.source.name).stem for o in features.references(model.state, width.key)}
    assert files == {"lib", "shapes"}


# ---------------------------------------------------------------- renaming


def renamed(opened: Opened, place: tuple, new: str) -> dict[str, str]:
    unit, module, offset = place
    read = {path: Document(source.text) for source, path in unit.paths.items()}
    places = rename(opened.state, lambda path: read[path], unit, module, offset, new)
    out = {path: doc.text for path, doc in read.items()}
    for p in sorted(places, key=lambda p: -p.span.start):
        out[p.path] = out[p.path][: p.span.start] + new + out[p.path][p.span.end :]
    return {path.stem: text for path, text in out.items() if text != read[path].text}


def test_rename(model: Opened) -> None:
    text = renamed(model, model.at("let y"), "doubled")
    assert text == {
        "lib": MODEL.replace("let y ", "let doubled ").replace(
            "(y, cast<i32>(y))", "(doubled, cast<i32>(doubled))"
        )
    }
    both = renamed(model, model.at("(WIDTH"), "BREADTH")
    assert both["lib"] == MODEL.replace("WIDTH", "BREADTH")
    assert "const BREADTH" in both["shapes"]
    assert renamed(model, model.at("p.left"), "first")["lib"].count("first") == 2
    assert renamed(model, model.at("as Dense"), "Layer")["lib"] == MODEL.replace("Dense", "Layer")
    assert "times" not in renamed(model, model.at("times"), "count")["lib"]


@pytest.mark.parametrize(
    ("before", "new", "why"),
    [
        ("let y", "x", "already means something else"),
        ("let y", "for", "a word of the language"),
        ("let y", "reshape", "prelude name"),
        ("let y", "2y", "is not a name"),
        ("(x, weight", "seen", "declared twice"),
        ("+ reshape", "shape", "prelude name"),
        ("(linear", "lin", "standard library"),
        ("use crate.shapes", "forms", "its name is that of its file"),
        ("{ Mode.Fast", "Slow", "declared twice"),
    ],
)
def test_rename_refuses(model: Opened, before: str, new: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        renamed(model, model.at(before), new)


def test_prepare_rename(model: Opened) -> None:
    assert prepare(*model.at("let y")).span.text == "y"
    with pytest.raises(Refused, match="no name here"):
        prepare(*model.at("+ 1\n"))


# ---------------------------------------------------------------- completion


def offered(root: Path, old: str, new: str) -> dict[str, complete.Proposal]:
    """What is proposed at the `|` when a line of the model is replaced."""
    assert old in MODEL
    opened = Opened(root / "src/lib.linnet", MODEL.replace(old, new))
    found = complete.complete(opened.project, opened.state, opened.path, opened.offset)
    return {p.label: p for p in found}


@pytest.mark.parametrize(
    ("old", "new", "has", "lacks"),
    [
        ("let wide = dense.forward(x)", "let wide = dense.|", "forward weight", "x let"),
        ("let wide = dense.forward(x)", "let wide = dense.fo|(x)", "forward", "seen"),
        ("p.left +", "p.| +", "left right", "forward"),
        ("{ Mode.Fast =>", "{ Mode.| =>", "Fast Slow", "x"),
        ("return scaled *", "return sca|", "scaled y a b weight seen H B twice cast Mode", "use"),
        ("return scaled *", "re|", "return let", "use reshape"),
        ("seen = seen + 1", "se|", "seen total let var", "use pub"),
        ("= sum[k] a[i, k]", "= sum[k] a[i, |]", "i j k", ""),
        ("p.left +", "shapes.|", "WIDTH Mode Pair", "left"),
        ("use crate.shapes\n", "use crate.|\n", "shapes", "std"),
        ("use crate.shapes\n", "use |\n", "std crate", "shapes"),
        ("use crate.shapes\n", "use std.nn.|\n", "linear norm attention", "crate"),
        ("use crate.shapes\n", "use crate.shapes::{|}\n", "Mode Pair WIDTH", ""),
        ("{Mode, Pair", "{Mode, |", "Pair WIDTH", "Mode"),
        ("mode: Mode)", "mode: |)", "f32 Tensor Mode Pair Dense", "twice WIDTH"),
        ("state seen: i64", "state seen: Ten|", "Tensor i64", "twice"),
        ("state seen: i64", "state seen: Tensor[|; f32]", "H", ""),
        ("state seen: i64", "sta|", "state param sub pub", "let"),
        ("twice(linear(x, weight, none))", "twice(x, |)", "times =  x", ""),
        ("Pair(left = 1, right = 2)", "Pair(left = 1, |)", "right = ", "left = "),
        ("/// A network.", "pu|", "pub fn block use", "let"),
        ("let y = twice", "let |", "", "x y"),
        ("let y = twice", "let y = // tw|", "", "twice"),
        ("<B: Dim>", "<B: |>", "Dim Shape Float", "twice"),
        ("let wide = dense.forward(x)", "while see| {", "seen total", ""),
    ],
)
def test_completion(root: Path, old: str, new: str, has: str, lacks: str) -> None:
    found = offered(root, old, new)
    wanted = [
        w.replace("~", " ") for w in has.replace(" = ", "~=~").replace(" =  ", "~=~ ").split()
    ]
    assert [w for w in wanted if w not in found] == [], sorted(found)
    assert [w for w in lacks.split() if w in found] == []


def test_completion_says_what_things_are(root: Path) -> None:
    found = offered(root, "return scaled *", "return sca|")
    assert found["scaled"].detail == "Tensor[B, H; f32]"
    assert found["twice"].detail.startswith("pub fn twice<")
    assert found["twice"].docs == "Twice `x`."
    assert found["weight"].detail == "param weight: Tensor[H, H; f32]"


@pytest.mark.parametrize(
    ("new", "label", "active"),
    [
        ("let y = twice(|", "pub fn twice<*S: Shape, T: Float>(x: ", 0),
        ("let y = twice(x, |)", "pub fn twice", 1),
        ("let y = twice(linear(x, |", "pub op linear", 1),
        ("let y = twice(linear(x, weight, none), |", "pub fn twice", 1),
        ("let y = twice(times = |", "pub fn twice", 1),
        ("let y = dense.forward(|", "pub fn forward", 0),
        ("let y = reshape(x, |", "reshape(x, shape)", 1),
        ("let y = Pair(left = 1, right = |)", "Pair(left: i32, right: i32)", 1),
    ],
)
def test_signature_help(root: Path, new: str, label: str, active: int) -> None:
    old = "let y = twice(linear(x, weight, none))"
    opened = Opened(root / "src/lib.linnet", MODEL.replace(old, new))
    found = complete.signature_at(opened.project, opened.state, opened.path, opened.offset)
    assert found is not None
    assert found.label.startswith(label)
    assert found.active == active
    start, end = found.parameters[active]
    assert found.label[start - 1] in "( " and found.label[end] in ",)"


# ---------------------------------------------------------------- whole files


def test_outline_and_search(model: Opened) -> None:
    _, module = model.home
    twice, net = features.outline(module.tree)
    assert (twice.name.text, twice.kind, twice.detail) == ("twice", "function", "fn")
    assert [(o.name.text, o.kind) for o in net.inside] == [
        ("weight", "member"),
        ("seen", "member"),
        ("dense", "member"),
        ("run", "method"),
    ]
    found = features.search("rn", iter([module.tree]))
    assert [(o.name.text, holder) for o, holder in found] == [("run", "Net")]
    assert features.search("zzz", iter([module.tree])) == []


def test_folds(model: Opened) -> None:
    _, module = model.home
    assert features.folds(module.tree) == [
        (2, 4, "imports"),
        (7, 8, "code"),
        (13, 30, "code"),
        (19, 29, "code"),
    ]
    text = "module x\n\n// a\n// b\n// c\n\n/* d\n*/\nconst A = 1\n"
    file, _ = parse_text(text)
    assert features.folds(file) == [(2, 4, "comment"), (6, 7, "comment")]


def test_colours(model: Opened) -> None:
    unit, module = model.home
    found = {(span.text, kind): m for span, kind, m in features.colours(unit, module)}
    for word, kind in [
        ("module", "keyword"),
        ("twice", "function"),
        ("Net", "class"),
        ("weight", "property"),
        ("H", "typeParameter"),
        ("Tensor", "type"),
        ("f32", "type"),
        ("x", "parameter"),
        ("y", "variable"),
        ("k", "variable"),
        ("sum", "keyword"),
        ("shapes", "namespace"),
        ("Mode", "enum"),
        ("Fast", "enumMember"),
        ("Pair", "struct"),
        ("left", "property"),
        ("run", "method"),
        ("2.0", "number"),
        ("/// A network.", "comment"),
        ("reshape", "function"),
    ]:
        assert (word, kind) in found, (word, kind)
    assert "defaultLibrary" in found["f32", "type"]
    ends = [(s.start, s.end) for s, _, _ in features.colours(unit, module)]
    assert all(a[1] <= b[0] for a, b in pairwise(ends))


def test_hints(model: Opened) -> None:
    unit, module = model.home
    text = model.text
    shown = {
        text[text.rfind(" ", 0, at) + 1 : at]: hint
        for at, hint in features.hints(unit, module, 0, len(text))
    }
    assert shown["y"] == ": Tensor[B, H; f32]"
    assert shown["b"] == shown["b)"[:1]] == ": Tensor[B, H; i32]"
    assert shown["total"] == ": Tensor[B, H; i32]"
    assert shown["j]"] == ": Tensor[B, H; f32]"
    assert shown["p"] == ": Pair"
    assert features.hints(unit, module, 0, 10) == []


def test_formatting() -> None:
    text = "module x\n\n\nfn f( )->i32 {\n return 1\n}\n"
    parts = features.formatted(text)
    assert parts is not None
    for start, end, new in reversed(parts):
        text = text[:start] + new + text[end:]
    assert text == "module x\n\nfn f() -> i32 {\n    return 1\n}\n"
    assert features.formatted(text) == []
    assert features.formatted("module x\n\nfn f( {") is None


def test_fixes(tmp_path: Path) -> None:
    text = "module x\n\npub fn f(value: f32) -> f32 {\n    return valeu\n}\n"
    opened = Opened(tmp_path / "x.linnet", text)
    unit, module = opened.home
    at = text.index("valeu")
    [fix] = features.fixes(unit, module.file.source, at, at)
    assert fix.title == "Did you mean `value`?"
    assert [(e.span.text, e.text) for e in fix.edits] == [("valeu", "value")]
    assert features.fixes(unit, module.file.source, 0, 3) == []


def test_fix_all(tmp_path: Path) -> None:
    text = "module x\n\nuse std.nn.linear::{linear}\n\npub fn f(x: f32) -> f32 {\n    return x\n}\n"
    opened = Opened(tmp_path / "x.linnet", text)
    assert fixed(opened.state, opened.path) == text.replace("use std.nn.linear::{linear}\n", "")


def test_packages_that_use_each_other(tmp_path: Path) -> None:
    """A dependency's unsaved text counts in what uses it; names lead into it and back."""
    one = "module one\n\npub fn f(x: f32) -> f32 {\n    return x\n}\n"
    two = "module two\n\nuse one::{f}\n\npub fn g(x: f32) -> f32 {\n    return f(x)\n}\n"
    package(tmp_path / "one", a=one)
    two = two.replace("use one::", "use one.a::")
    package(tmp_path / "two", '[dependencies]\none = { path = "../one" }\n', lib=two)
    a, lib = (tmp_path / "one/src/a.linnet").resolve(), (tmp_path / "two/src/lib.linnet").resolve()
    project = Project()
    state = project.check({lib: Document(two), a: Document(one)}, lib)
    assert state.findings() == {}
    assert len(state.units) == 2
    home = state.place(lib)
    assert home is not None
    span = features.definition(*home, two.index("f(x)\n"))
    assert span is not None and home[0].paths[span.source] == a
    found = at(*home, two.index("f(x)\n"))
    assert found is not None
    assert len(list(features.references(state, found.key))) == 3
    read = {path: Document(text) for path, text in ((a, one), (lib, two))}
    places = rename(state, lambda path: read[path], *home, two.index("f(x)\n"), "first")
    assert sorted(p.path.name for p in places) == ["a.linnet", "lib.linnet", "lib.linnet"]
    state = project.check({lib: Document(two), a: Document(one.replace("f32", "i32"))}, a)
    assert {d.code for d in state.findings()[lib]} == {"E2103"}
    assert project.check({lib: Document(two)}, lib).findings() == {}
