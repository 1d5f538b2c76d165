"""A check with a memo finds exactly what a fresh one finds, whatever was edited in between."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from linnet.check import check
from linnet.check.memo import Memo
from linnet.source import Span
from linnet.workspace import Workspace

SEED = Path(__file__).parents[2].parent / "shared/seed/mistral-7b-instruct-v0.3/src"
LLAMA = Path(__file__).parents[2] / "src/linnet/zoo/families/llama/src"

SMALL = {
    "lib.linnet": (
        "module small\n\nuse crate.a::{twice, N, Pair}\nuse crate.b\n"
        "use crate.c::{Steps}\nuse std.nn.linear::{linear}\n\n"
        "pub block Net<H: Dim> {\n    impl Steps<H>\n"
        "    param weight: Tensor[H, H; f32]\n    state seen: i64\n"
        "    pub entry run<B: Dim>(x: Tensor[B, H; f32]) -> Tensor[B, H; f32] {\n"
        "        seen = seen + 1\n        let y = twice(linear(x, weight, none))\n"
        "        return b.half(y)\n    }\n"
        "    fn step(x: Tensor[H; f32]) -> Tensor[H; f32] {\n        return x * 2.0\n    }\n"
        "}\n\npub const M = N + 1\n"
    ),
    "c.linnet": (
        "module small.c\n\npub trait Steps<H: Dim> {\n"
        "    fn step(x: Tensor[H; f32]) -> Tensor[H; f32]\n\n"
        "    pub entry two(x: Tensor[H; f32]) -> Tensor[H; f32] {\n"
        "        return step(step(x))\n    }\n}\n"
    ),
    "a.linnet": (
        "module small.a\n\npub const N = 4\n\npub struct Pair {\n    left: i32\n    right: i32\n}\n"
        "\n"
        "pub type Row = Tensor[N; f32]\n\n"
        "pub fn twice<*S: Shape>(x: Tensor[*S; f32]) -> Tensor[*S; f32] {\n    return x + x\n}\n"
    ),
    "b.linnet": (
        "module small.b\n\nuse crate.a::{Row, twice}\n\n"
        "pub fn half<*S: Shape>(x: Tensor[*S; f32]) -> Tensor[*S; f32] {\n    return x / 2.0\n}\n\n"
        "pub fn row(x: Row) -> Row {\n    let y = twice(x)\n    return y\n}\n"
    ),
}


def shown(workspace: Workspace, target: Path, memo: Memo | None) -> list[str]:
    """Everything about each finding, in an order that does not depend on that of checking."""

    def at(span: Span) -> str:
        return f"{span.source.name}:{span.start}-{span.end}"

    return sorted(
        f"{at(d.primary.span)} {d.code} {d.message} {d.primary.text} {d.notes} "
        f"{[(at(label.span), label.text) for label in d.related]} "
        f"{d.help and (d.help.text, [(at(e.span), e.text) for e in d.help.edits])}"
        for d in check(workspace, workspace.open(target), memo=memo).findings.items
    )


def edits(texts: dict[Path, str], rng: random.Random) -> Iterator[Path]:
    """One small change after another, each to one file; some are taken back."""
    words = ["x", "H", "f32", "return", "}", "(", "let y = x", "N", " ", "pub ", "use crate.a\n"]
    while True:
        path = rng.choice(sorted(texts))
        before = texts[path]
        spots = [m.start() for m in re.finditer(r"\b", before)] or [0]
        at, other = rng.choice(spots), rng.choice(spots)
        kind = rng.randrange(4)
        if kind == 0:
            texts[path] = before[:at] + rng.choice(words) + before[at:]
        elif kind == 1:
            texts[path] = before[: min(at, other)] + before[max(at, other) :]
            texts[path] = texts[path] if abs(at - other) < 30 else before[:at] + before[at + 1 :]
        elif kind == 2:
            texts[path] = before.replace("\n    return", "\n    let unused = 1\n    return", 1)
        else:
            texts[path] = before[:at] + " " + before[at:]
        yield path
        if rng.random() < 0.7:
            texts[path] = before
            yield path


def compare(package: Path, texts: dict[Path, str], rounds: int, seed: int) -> None:
    memo, kept = Memo(), Workspace(dict(texts))
    steps = edits(texts, random.Random(seed))
    for _ in range(rounds):
        assert shown(kept, package, memo) == shown(Workspace(dict(texts)), package, None)
        next(steps)
        kept = kept.renewed(dict(texts))


def package(folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "linnet.toml").write_text(
        '[package]\nname = "small"\nversion = "1"\nlanguage = "0.1"\n'
    )
    for name, text in SMALL.items():
        (folder / "src" / name).write_text(text)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_small_package(tmp_path: Path, seed: int) -> None:
    package(tmp_path)
    assert check(Workspace(), tmp_path).ok
    compare(tmp_path, {tmp_path / "src" / name: text for name, text in SMALL.items()}, 15, seed)


def test_a_block_is_checked_again_over_a_trait_that_is_not(tmp_path: Path) -> None:
    """What a trait calls is known of one that is taken over: a circle through it is found."""
    package(tmp_path)
    memo, workspace = Memo(), Workspace()
    assert check(workspace, workspace.open(tmp_path), memo=memo).ok
    lib = tmp_path / "src/lib.linnet"
    for new, codes in [("two(x)", ["E2119"]), ("x * 3.0", []), ("x + two(x)", ["E2119"])]:
        edited = {lib: SMALL["lib.linnet"].replace("x * 2.0", new)}
        workspace = workspace.renewed(edited)
        found = shown(workspace, tmp_path, memo)
        assert found == shown(Workspace(edited), tmp_path, None)
        assert [line.split()[1] for line in found if line.split()[1][0] == "E"] == codes


@pytest.mark.parametrize(
    ("source", "rounds"),
    [
        pytest.param(LLAMA, 4, marks=pytest.mark.slow),
        pytest.param(SEED, 25, marks=pytest.mark.slow),
    ],
    ids=["llama", "seed"],
)
def test_real_packages(source: Path, rounds: int) -> None:
    texts = {path.resolve(): path.read_text() for path in source.glob("*.linnet")}
    compare(source, texts, rounds, 1)


def test_what_did_not_change_is_the_same() -> None:
    """A module and the types in it are taken over by identity, and its text is read once."""
    memo, workspace = Memo(), Workspace()
    first = check(workspace, workspace.open(LLAMA), memo=memo)
    edited = LLAMA / "layer.linnet"
    workspace = workspace.renewed({edited: edited.read_text() + "\n"})
    second = check(workspace, workspace.open(LLAMA), memo=memo)
    changed = {name for name, module in second.modules.items() if first.modules[name] is not module}
    assert changed == {"llama.layer", "llama"}
    assert first.package is second.package
