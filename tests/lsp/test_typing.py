"""No half-typed text may break anything: every request is answered at every step."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from linnet.check import check
from linnet.diagnostics import Findings
from linnet.lsp import complete, features, hover
from linnet.lsp.names import declared, occurrences
from linnet.lsp.project import Document, Project, Unit
from linnet.lsp.rename import Refused, prepare
from linnet.syntax import lex
from linnet.syntax.tokens import NAME, REDUCTIONS
from linnet.workspace import Workspace

from .test_features import MODEL, SHAPES, package
from .texts import LLAMA, SEED, SRC

FILES = [SRC / "std/random.linnet", LLAMA / "rope.linnet"]
MORE_FILES = [
    *(path.resolve() for path in sorted(SEED.glob("*.linnet"))),
    LLAMA / "layer.linnet",
    *(SRC / "std/nn" / f"{name}.linnet" for name in ("attention", "cache", "conv", "norm", "moe")),
    SRC / "std/quant.linnet",
]

WORDS = REDUCTIONS | {"axis"}  # names that need not be declared


def ask_everything(project: Project, path: Path, text: str, at: int) -> None:
    """Every request at one place of a text."""
    state = project.check({path: Document(text)}, path)
    assert state.troubles == ()
    home = state.place(path)
    assert home is not None
    unit, module = home
    hover.hover(unit, module, at)
    features.definition(unit, module, at)
    features.highlights(unit, module, at)
    features.outline(module.tree)
    features.folds(module.tree)
    features.colours(unit, module)
    features.hints(unit, module, 0, len(text))
    features.fixes(unit, module.file.source, at, at)
    features.formatted(text)
    try:
        found = prepare(unit, module, at)
        assert any(o.span == found.span for o in features.references(state, found.key))
    except Refused:
        pass
    complete.complete(project, state, path, at)
    complete.signature_at(project, state, path, at)


@pytest.mark.slow
def test_a_file_typed_from_its_first_letter(tmp_path: Path) -> None:
    root = package(tmp_path / "p", shapes=SHAPES)
    path, project = root / "src/lib.linnet", Project()
    rng = random.Random(7)
    steps = sorted(rng.sample(range(len(MODEL)), 16))
    for end in steps:
        ask_everything(project, path, MODEL[:end], end)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.slow
def test_parts_that_vanish(tmp_path: Path, seed: int) -> None:
    root = package(tmp_path / "p", shapes=SHAPES)
    path, project = root / "src/lib.linnet", Project()
    rng = random.Random(seed)
    text = MODEL
    for _ in range(6):
        at = rng.randrange(len(text))
        text = text[:at] + text[at + rng.randrange(12) :]
        if rng.random() < 0.3:
            text = text[:at] + rng.choice('(){}[]<>.,:=𝄞\u2028\r\x00"') + text[at:]
        ask_everything(project, path, text, min(at, len(text)))
        text = MODEL if len(text) < len(MODEL) // 2 else text


@pytest.mark.parametrize(
    "path",
    [*FILES, *(pytest.param(path, marks=pytest.mark.slow) for path in MORE_FILES)],
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
@pytest.mark.slow
def test_every_name_of_a_real_file(path: Path) -> None:
    """Each word that is a name means something, is found from its declaration, and is coloured."""
    project = Project()
    state = project.check({path: Document(path.read_text())}, path)
    home = state.place(path)
    assert home is not None
    unit, module = home
    coloured = {(s.start, s.end) for s, _, _ in features.colours(unit, module)}

    known = {(o.span.start, o.span.end) for o in occurrences(unit, module)}
    tokens, _ = lex(module.file.source, Findings())
    heads = [module.tree.module, *(u.path for u in module.tree.uses)]
    skipped = [p.span for p in heads if p is not None]
    for token in tokens:
        inside = any(s.start <= token.start < s.end for s in skipped)
        if token.kind == NAME and not inside and token.text not in WORDS:
            where = module.file.source.position(token.start)
            assert (token.start, token.end) in known, (token.text, where)
            assert (token.start, token.end) in coloured
    for o in occurrences(unit, module):
        span = declared(o.meaning)
        assert o.declares == (span == o.span)
    for o in occurrences(unit, module)[::7]:
        assert hover.hover(unit, module, o.span.start) is not None


def test_the_state_is_that_of_a_fresh_check(tmp_path: Path) -> None:
    root = package(tmp_path / "p", shapes=SHAPES)
    path, project = root / "src/lib.linnet", Project()
    for end in range(900, len(MODEL), 300):
        state = project.check({path: Document(MODEL[:end])}, path, early=lambda unit: None)
        workspace = Workspace({path: MODEL[:end]})
        fresh = check(workspace, workspace.open(root)).findings.items
        [unit] = state.units
        assert {(d.code, d.message, d.primary.span.start) for d in unit.findings} == {
            (d.code, d.message, d.primary.span.start) for d in fresh
        }


def test_what_is_told_first_is_what_is_found(tmp_path: Path) -> None:
    """An edit in a body: what is told before everything is checked stands, also after others."""
    two = MODEL + MODEL[MODEL.index("/// Twice") : MODEL.index("/// A network")].replace(
        "twice", "thrice"
    ).replace("return x + x", "let y = x + x\n    return y")
    root = package(tmp_path / "p", shapes=SHAPES)
    path, project = root / "src/lib.linnet", Project()
    project.check({path: Document(two)}, path)
    text, guesses = two, 0
    for old, new in [
        ("return x + x", "return xx + x"),
        ("let y = x + x\n", "let y = x + z\n"),
        ("let y = twice(", "let y = twicee("),
        ("return xx + x", "return x + x + x"),
        ("x + z\n", "x + x\n"),
        ("twicee(", "twice("),
        ("var total = b", "var total = b\n\n"),
        ("return y", "return y("),
        ("return y(", "return y"),
    ]:
        assert old in text
        text = text.replace(old, new, 1)
        told: list[set[tuple[str, str, int]]] = []

        def early(unit: Unit, told: list[set[tuple[str, str, int]]] = told) -> None:
            if unit.guessed:
                told.append({(d.code, d.message, d.primary.span.start) for d in unit.findings})

        state = project.check({path: Document(text)}, path, early=early)
        found = state.findings().get(path, [])
        final = {(d.code, d.message, d.primary.span.start) for d in found}
        errors = {f for f in final if f[0][0] == "E"}
        for guess in told:
            guesses += 1
            assert {f for f in guess if f[0][0] == "E"} == errors
    assert guesses >= 8
    # another declaration: nothing is told before it is known
    told = []
    text = text.replace("fn thrice", "fn thriced")
    project.check({path: Document(text)}, path, early=early)
    assert told == []
