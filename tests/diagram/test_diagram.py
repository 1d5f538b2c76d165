"""Drawings: what is in them, where it stands, and that they are the same each time."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from linnet.diagnostics import LinnetError, PlanError
from linnet.diagram import Graph, build, render, to_dot, to_svg, to_tikz
from linnet.diagram.layout import Picture, arranged
from linnet.ir import Program, load_program
from linnet.nest.card import ZOO

GOLDEN = Path(__file__).parent / "golden"

SMALL = """
module small

use std.nn.activations::{silu}
use std.nn.linear::{Linear}
use std.nn.norm::{RmsNorm}

block Gated<H: Dim, Inner: Dim> {
    sub gate: Linear<H, Inner, f32>
    sub up: Linear<H, Inner, f32>
    sub down: Linear<Inner, H, f32>

    pub fn forward<S: Dim>(x: Tensor[S, H; f32]) -> Tensor[S, H; f32] {
        return down.forward(silu(gate.forward(x)) * up.forward(x))
    }
}

block Layer<H: Dim, Inner: Dim> {
    sub norm: RmsNorm<H, f32>
    sub mlp: Gated<H, Inner>
    state seen: Tensor[H; f32]

    pub fn forward<S: Dim>(x: Tensor[S, H; f32]) -> Tensor[S, H; f32] {
        return added(x)
    }

    pub fn keep<S: Dim>(x: Tensor[S, H; f32]) -> Tensor[S, H; f32]
    where H > 0 {
        let most = max[s] x[s, 0]
        seen = seen * 0.5 + most
        return added(x)
    }

    fn added<S: Dim>(x: Tensor[S, H; f32]) -> Tensor[S, H; f32] {
        return x + mlp.forward(norm.forward(x))
    }
}

pub block Model<H: Dim, Inner: Dim, Layers: Dim> {
    param scale: Tensor[H; f32]
    sub layers: [Layer<H, Inner>; Layers]
    sub norm: RmsNorm<H, f32>

    pub entry forward<B: Dim, S: Dim>(x: Tensor[B, S, H; f32]) -> Tensor[B, S, H; f32] {
        var y = reshape(x, [B * S, H]) * scale
        static for layer in layers {
            y = layer.forward(y)
        }
        return reshape(norm.forward(y), [B, S, H])
    }

    pub entry keep<S: Dim>(x: Tensor[S, H; f32]) -> (Tensor[S, H; f32], Tensor[H; f32])
    where
        S > 0,
        H > 0
    {
        var y = x
        static for layer in layers {
            y = layer.keep(y)
        }
        return (y, y[0, :])
    }
}

/// Twice `x`, row by row.
pub fn twice<*S: Shape>(x: Tensor[*S; f32]) -> Tensor[*S; f32] {
    return same(x) + x
}

fn same<*S: Shape>(x: Tensor[*S; f32]) -> Tensor[*S; f32] {
    return x
}
"""


TRAIT = """
module words

use std.nn.embedding::{Embedding}
use std.nn.linear::{linear}

trait Decoder<Vocab: Dim, H: Dim> {
    fn hidden<B: Dim, S: Dim>(tokens: Tensor[B, S; i32]) -> Tensor[B, S, H; f32]

    fn head() -> Tensor[Vocab, H; f32]

    pub entry last<B: Dim, S: Dim>(tokens: Tensor[B, S; i32]) -> Tensor[B, Vocab; f32]
    where S > 0 {
        let x = hidden(tokens)
        return linear(x[:, S - 1, :], head())
    }
}

pub block Model<Words: Dim, Width: Dim> {
    impl Decoder<Words, Width>

    sub embedding: Embedding<Words, Width, f32>

    fn hidden<N: Dim, M: Dim>(tokens: Tensor[N, M; i32]) -> Tensor[N, M, Width; f32] {
        return embedding.forward(tokens)
    }

    fn head() -> Tensor[Words, Width; f32] {
        return embedding.weight
    }
}
"""

ODD = """
module odd

block Model<N: Dim> {
    pub entry forward<S: Dim>(x: Tensor[S; f32]) -> Tensor[S; f32] {
        var y = x
        static for i in 0..N / 2 {
            y = y + y
        }
        static for i in 0..N % 2 {
            y = y * y
        }
        return y
    }
}
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Program:
    path = tmp_path_factory.mktemp("small") / "small.linnet"
    path.write_text(SMALL.lstrip())
    return load_program(path)


@pytest.fixture(scope="module")
def llama() -> Program:
    return load_program(ZOO / "families/llama/src/lib.linnet")


def labels(graph: Graph, group: str | None = None) -> list[str]:
    return [node.label for node in graph.nodes if group is None or node.group == group]


def edges(graph: Graph) -> set[tuple[str, str, str]]:
    names = {node.id: node.label for node in graph.nodes}
    return {(names[e.src], names[e.dst], e.label) for e in graph.edges}


# ---------------------------------------------------------------- what is in them


def test_blocks_are_closed_until_they_are_opened(small: Program) -> None:
    closed = build(small)
    assert closed.title == "small: Model.forward"
    assert labels(closed) == ["x", "× scale", "Layer", "norm", "result"]
    assert [group.label for group in closed.groups] == ["× Layers"]
    opened = build(small, expand=1)
    assert [group.label for group in opened.groups] == ["Layer × Layers"]
    assert labels(opened, opened.groups[0].id) == ["norm", "mlp", "+"]
    # A block that is one operation stays a box at any depth.
    inside = build(small, expand=9)
    assert [g.label for g in inside.groups] == ["Layer × Layers", "mlp: Gated"]
    assert labels(inside, inside.groups[1].id) == ["gate", "silu", "up", "×", "down"]
    assert inside.groups[1].parent == inside.groups[0].id


def test_shapes_are_as_the_source_writes_them(small: Program) -> None:
    graph = build(small, expand=1)
    assert ("× scale", "norm", "[B * S, H]") in edges(graph)
    assert ("× scale", "+", "[B * S, H]") in edges(graph)  # the skip connection
    assert ("norm", "result", "[B, S, H]") in edges(graph)
    assert [n.sublabel for n in graph.nodes if n.kind in ("input", "output")] == [
        "Tensor[B, S, H; f32]",
        "Tensor[B, S, H; f32]",
    ]
    bound = build(small, expand=1, generics={"H": 8, "Inner": 16, "Layers": 3})
    assert [group.label for group in bound.groups] == ["Layer × 3"]
    assert bound.sizes == "H 8 · Inner 16 · Layers 3"


def test_parameters_and_arithmetic_on_request(small: Program) -> None:
    graph = build(small, params=True, generics={"H": 8, "Inner": 16, "Layers": 3})
    assert ("scale", "×", "[H]") in edges(graph)
    assert {n.label: n.sublabel for n in graph.nodes}["Layer"] == "392 parameters"
    plain = build(small, expand=1, arithmetic=False)
    assert labels(plain) == ["x", "norm", "mlp", "norm", "result"]
    assert ("mlp", "norm", "[B * S, H]") in edges(plain)


def test_states_are_boxes_that_are_written_back(small: Program) -> None:
    closed = build(small, "keep")
    assert ("Layer.keep", "state seen") in [(n.label, n.sublabel) for n in closed.nodes]
    assert [n.label for n in closed.nodes if n.kind == "output"] == ["result 1", "result 2"]
    assert "[0, :]" in labels(closed)
    opened = build(small, "keep", expand=1)
    states = [n.label for n in opened.nodes if n.kind == "state"]
    assert states == ["seen", "seen (next)"]
    assert ("+", "seen (next)", "[H]") in edges(opened)


def test_a_cache_that_is_read_and_written_at_once_has_two_heads(llama: Program) -> None:
    graph = build(llama, "decode", expand=4)
    names = {n.id: n.label for n in graph.nodes}
    both = [(names[e.src], names[e.dst]) for e in graph.edges if e.both]
    assert both == [("keys", "write_span"), ("values", "write_span")]


def test_a_free_function_and_what_only_changes_the_form(small: Program) -> None:
    graph = build(small, "twice")
    assert labels(graph) == ["x", "+", "result"]
    assert edges(graph) == {("x", "+", "[*S]"), ("+", "result", "[*S]")}


def test_an_entry_that_a_trait_provides(tmp_path: Path) -> None:
    path = tmp_path / "words.linnet"
    path.write_text(TRAIT.lstrip())
    graph = build(load_program(path))
    assert graph.title == "words: Model.last"
    assert labels(graph) == ["tokens", "embedding", "[:, S - 1, :]", "linear", "result"]
    assert ("embedding", "[:, S - 1, :]", "[B, S, Width]") in edges(graph)
    assert ("linear", "result", "[B, Words]") in edges(graph)
    assert {n.label: n.sublabel for n in graph.nodes}["linear"] == "embedding.weight"


def test_a_loop_that_never_runs_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "odd.linnet"
    path.write_text(ODD.lstrip())
    program = load_program(path)
    frames = {n: [g.label for g in build(program, generics={"N": n}).groups] for n in (4, 5)}
    assert frames == {4: ["× 2"], 5: ["× 2", "× 1"]}
    graph = build(program, generics={"N": 4})
    assert labels(graph) == ["x", "+", "result"]
    assert edges(graph) == {("x", "+", "[S]"), ("+", "result", "[S]")}
    assert [g.label for g in build(program).groups] == ["× N / 2", "× N % 2"]


def test_what_cannot_be_drawn_is_said(small: Program) -> None:
    for arguments, words in [
        ({"entry": "forwards"}, "no entry forwards; did you mean forward?"),
        ({"format": "png"}, "no format 'png': choose svg, dot, tikz"),
        ({"theme": "blue"}, "no theme 'blue': choose light or dark"),
        ({"expand": -1}, "expand is -1"),
        ({"generics": {"K": 1}}, "Model has no generic K"),
    ]:
        with pytest.raises(PlanError, match=re.escape(words)):
            render(small, **arguments)


# ---------------------------------------------------------------- where it stands


def test_nothing_lies_over_anything_else(small: Program, llama: Program) -> None:
    """Boxes, frames and texts are apart, and no line runs through a box."""
    drawn = [(small, "forward"), (small, "keep")]
    drawn += [(llama, e) for e in ("forward", "decode", "step_packed", "step_paged", "sample")]
    for program, entry in drawn:
        for expand in (0, 1, 2):
            graph = build(program, entry, expand=expand)
            for problem in overlaps(arranged(graph)):
                pytest.fail(f"{graph.title}, expand={expand}: {problem}")


@pytest.mark.slow
def test_nothing_lies_over_anything_else_in_any_program_shown(tmp_path: Path) -> None:
    """Every entry and function of what the specification and the documents show."""
    root, drawn = Path(__file__).resolve().parents[2], 0
    for page in sorted([*(root / "tests/spec").glob("*.md"), *(root / "docs").glob("*.md")]):
        for text in re.findall(
            r"^```linnet[^\n]*\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
        ):
            path = tmp_path / "x.linnet"
            path.write_text(text if "\nmodule" in f"\n{text}" else f"module example\n{text}")
            try:
                program = load_program(path)
            except LinnetError:
                continue  # a page shows mistakes too, and parts of packages
            for one in (*program.entries(), *program.functions):
                if sum(one.name == e.name for e in program.entries()) < 2:
                    graph = build(program, one.name, expand=1, params=True)
                    assert not (found := overlaps(arranged(graph))), f"{page.name}: {found}\n{text}"
                    assert to_tikz(graph) and to_dot(graph)
                    drawn += 1
    assert drawn > 200


Rect = tuple[str, float, float, float, float]


def overlaps(picture: Picture) -> list[str]:
    boxes: list[Rect] = [
        (b.node.label, b.x - b.width / 2, b.y - b.height / 2, b.x + b.width / 2, b.y + b.height / 2)
        for b in picture.boxes
    ]
    notes: list[Rect] = [
        (n.text, n.x, n.y - 9, n.x + 6.4 * len(n.text), n.y + 2) for n in picture.notes
    ]
    frames: list[Rect] = [
        (f.group.label, f.x, f.y, f.x + f.width, f.y + f.height) for f in picture.frames
    ]
    found = [
        f"{a[0]} and {b[0]}"
        for a, b in itertools.combinations([*boxes, *notes], 2)
        if a[1] < b[3] and b[1] < a[3] and a[2] < b[4] and b[2] < a[4]
    ]
    for frame, other in itertools.product(frames, [*boxes, *notes, *frames]):
        inside = frame[1] <= other[1] and other[3] <= frame[3]
        inside &= frame[2] <= other[2] and other[4] <= frame[4]
        around = other[1] <= frame[1] and frame[3] <= other[3]
        around &= other[2] <= frame[2] and frame[4] <= other[4]
        apart = frame[3] < other[1] or other[3] < frame[1]
        apart |= frame[4] < other[2] or other[4] < frame[2]
        if not (inside or around or apart):
            found.append(f"the frame {frame[0]} and {other[0]}")
    for (x, y), rect in itertools.product(points(picture), [*boxes, *notes]):
        if rect[1] + 1 < x < rect[3] - 1 and rect[2] + 1.5 < y < rect[4] - 1.5:
            found.append(f"a line at {x:.0f}, {y:.0f} and {rect[0]}")
    for rect in [*boxes, *frames, *notes]:
        if rect[1] < -0.1 or rect[2] < -0.1 or rect[3] > picture.width + 0.1:
            found.append(f"{rect[0]} is outside")
    return found


def points(picture: Picture) -> list[tuple[float, float]]:
    """Places along every line."""
    found: list[tuple[float, float]] = []
    for route in picture.routes:
        x = y = 0.0
        for op, values in route.commands:
            *inner, ex, ey = values
            for step in range(1, 21) if op != "M" else ():
                t = step / 20
                if op == "L":
                    found.append((x + (ex - x) * t, y + (ey - y) * t))
                else:
                    (x1, y1, x2, y2), u = inner, 1 - t
                    found.append(
                        (
                            u**3 * x + 3 * u * u * t * x1 + 3 * u * t * t * x2 + t**3 * ex,
                            u**3 * y + 3 * u * u * t * y1 + 3 * u * t * t * y2 + t**3 * ey,
                        )
                    )
            x, y = ex, ey
    return found


# ---------------------------------------------------------------- text


@pytest.mark.parametrize(("format", "name"), [("svg", "svg"), ("dot", "dot"), ("tikz", "tex")])
def test_the_text_is_as_it_was(
    small: Program, format: str, name: str, request: pytest.FixtureRequest
) -> None:
    text = render(small, "forward", format, expand=2, generics={"Layers": 4})
    assert render(small, "forward", format, expand=2, generics={"Layers": 4}) == text
    golden = GOLDEN / f"small.{name}"
    if request.config.getoption("--update"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), "`pytest --update` accepts it"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_svg_stands_alone_and_is_at_most_900_wide(llama: Program, theme: str) -> None:
    for entry in ("forward", "step_paged"):
        text = to_svg(build(llama, entry, expand=2), theme)
        root = ElementTree.fromstring(text)
        assert float(root.attrib["width"]) <= 900
        assert "href" not in text and "url(" not in text.replace("url(#h)", "")
        assert text.count("http") == 1  # the name of the SVG namespace
