"""A help with edits can be applied: what it is about is gone, and the program still parses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from linnet.check import check_text
from linnet.diagnostics import Diagnostic, Edit, Help, Label
from linnet.fixes import fix
from linnet.source import Source, Span
from linnet.syntax.parser import parse_text
from linnet_md import programs

FILES = sorted((Path(__file__).parent.parent / "spec").glob("*.md"))


@cache
def fixable(file: Path) -> list[tuple[str, Diagnostic]]:
    """Each program of a file with each of its findings that has a fix."""
    texts = [program.files[""] for program in programs(file) if "" in program.files]
    return [
        (text, finding)
        for text in texts
        for finding in check_text(text).findings.sorted()
        if finding.help is not None and finding.help.edits
    ]


def applied(text: str, finding: Diagnostic) -> str:
    assert finding.help is not None
    for edit in sorted(finding.help.edits, key=lambda e: e.span.start, reverse=True):
        text = text[: edit.span.start] + edit.text + text[edit.span.end :]
    return text


def count(text: str, finding: Diagnostic, line: int) -> tuple[int, int]:
    """Findings that say the same on that line, and syntax errors."""
    found = check_text(text).findings.sorted()
    same = [
        d for d in found if (d.code, d.message, place(d)) == (finding.code, finding.message, line)
    ]
    return len(same), sum(d.code.startswith("E11") for d in found)


def line_after(finding: Diagnostic) -> int:
    """The line of a finding's place once its fix is applied."""
    assert finding.help is not None
    moved = [e for e in finding.help.edits if e.span.end <= finding.primary.span.start]
    return place(finding) + sum(e.text.count("\n") - e.span.text.count("\n") for e in moved)


def place(finding: Diagnostic) -> int:
    span = finding.primary.span
    return span.source.position(span.start).line


def settled(text: str) -> tuple[str, tuple[Diagnostic, ...]]:
    """The text with the safe fixes applied until none is left, and what remains."""
    path = Path("program.linnet")

    def check(texts: Mapping[Path, str]) -> tuple[Diagnostic, ...]:
        return check_text(texts.get(path, text)).findings.sorted()

    fixed = fix(check, lambda source: path)
    return fixed.texts.get(path, text), fixed.left


@pytest.mark.slow
def test_there_are_many() -> None:
    assert len({finding.code for file in FILES for _, finding in fixable(file)}) >= 15


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.slow
def test_a_fix_fixes(file: Path) -> None:
    for text, finding in fixable(file):
        same, syntax = count(text, finding, place(finding))
        after = applied(text, finding)
        same_after, syntax_after = count(after, finding, line_after(finding))
        fixed = same_after < same and syntax_after == syntax - finding.code.startswith("E11")
        assert fixed, f"{finding.code} in\n{text}\nis, with its fix,\n{after}"


# ---------------------------------------------------------------- the safe ones, together


PROGRAMS = {f"{f.stem}-{p}": p.files[""] for f in FILES for p in programs(f) if "" in p.files}


@pytest.mark.slow
def test_safe_fixes_end_and_break_nothing() -> None:
    changed = 0
    for text in PROGRAMS.values():
        after, left = settled(text)
        changed += after != text
        assert not any(d.help is not None and d.help.safe for d in left), after
        assert parse_text(after)[1].errors <= parse_text(text)[1].errors, after
        before = [d.code for d in check_text(text).findings.items]
        assert len(left) <= len(before) or "E1" in "".join(before), after
    assert changed >= 5


def test_every_kind_of_safe_fix_at_once() -> None:
    text = """module m

use std.nn.linear::{Linear, linear}
use std.nn.norm::{RmsNorm}

# the first
fn f<B: Dim>(a: Tensor[B; bool], b: Tensor[B; f32]) -> Tensor[B; f32]? {
    let c = silu(b);
    let d = select(!a && b < 1.0, b, c);
    return gelu(d)
}
block Q<H: Dim> {
    param p: f32?
    sub l: Linear<H, H, f32>
    pub fn f<B: Dim>(x: Tensor[B, H; f32]) -> Tensor[B, H; f32] {
        return match p { some(q) => l.forward(x) * q none => l.forward(x) }
    }
}
"""
    after, left = settled(text)
    assert not left
    assert (
        after
        == """module m

use std.nn.activations::{gelu, silu}
use std.nn.linear::{Linear}

// the first
fn f<B: Dim>(a: Tensor[B; bool], b: Tensor[B; f32]) -> Tensor[B; f32]? {
    let c = silu(b)
    let d = select((a == false) & (b < 1.0), b, c)
    return some(gelu(d))
}
block Q<H: Dim> {
    param p: f32? = none
    sub l: Linear<H, H, f32>
    pub fn f<B: Dim>(x: Tensor[B, H; f32]) -> Tensor[B, H; f32] {
        return match p { some(q) => l.forward(x) * q none => l.forward(x) }
    }
}
"""
    )


def test_a_fix_that_would_not_parse_is_left_out() -> None:
    source = Source("a.linnet", "module a\n\nfn f() -> i32 {\n    return 1\n}\n")
    path = Path("a.linnet")

    def found(texts: Mapping[Path, str]) -> list[Diagnostic]:
        if texts:
            return []
        words = {"return": "return (", "1": "2"}
        spans = [
            Span(source, at, at + len(old)) for old in words if (at := source.text.index(old)) >= 0
        ]
        return [
            Diagnostic("W1002", "m", Label(s), help=Help("h", (Edit(s, words[s.text]),), True))
            for s in spans
        ]

    fixed = fix(found, lambda _: path)
    assert not fixed.texts and not fixed.applied


def test_files_that_are_not_ones_own_stay() -> None:
    findings = check_text(next(iter(PROGRAMS.values()))).findings.sorted()
    assert not fix(lambda _: findings, lambda _: None).texts


def test_two_fixes_of_one_place_follow_each_other() -> None:
    source = Source("a.linnet", "module a\n")
    path = Path("a.linnet")

    def found(texts: Mapping[Path, str]) -> list[Diagnostic]:
        text = texts.get(path, source.text)
        now = Source("a.linnet", text)
        at = Span(now, len(text), len(text))
        wanted = [f"// {name}\n" for name in "abc" if f"// {name}\n" not in text]
        return [
            Diagnostic("W1001", w, Label(at), help=Help("add", (Edit(at, w),), True))
            for w in wanted
        ]

    fixed = fix(found, lambda _: path)
    assert fixed.texts == {path: "module a\n// a\n// b\n// c\n"}
    assert [d.message for d in fixed.applied] == ["// a\n", "// b\n", "// c\n"]


def test_clauses_that_help_only_together_are_said_together() -> None:
    """`Heads % K == 0` proves nothing while `K` may be 0."""
    text = """module a

block Inner<K: Dim, Q: Dim, D: Dim>
where
    K > 0,
    Q % K == 0,
    D % 2 == 0
{
    param weight: Tensor[D; f32]
}

block Outer<H: Dim, Heads: Dim, K: Dim>
where Heads > 0 {
    sub inner: Inner<K, Heads, H / Heads>
}
"""
    [finding] = check_text(text).findings.sorted()
    assert finding.help is not None
    assert finding.help.text == "add `where K > 0, Heads % K == 0, H / Heads % 2 == 0`"
    after = check_text(applied(text, finding)).findings.sorted()
    assert not [found for found in after if found.code.startswith("E")], after
