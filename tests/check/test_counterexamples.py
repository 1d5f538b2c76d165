"""The sizes that a finding shows really satisfy what is known and really break the claim."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path

import pytest

import linnet
import shown
from dims.reader import relation
from linnet.check import check_text
from linnet.check.analysis import Analysis
from linnet.diagnostics import Diagnostic
from linnet.dims import Dim, Facts, Refuted, Relation, prove
from linnet_md import programs

TESTS = Path(__file__).parent.parent
SIZES = re.compile(r"\bwith ((?:\*?\w+ = \d+(?:, )?)+)")


# Every spec that has a finding about sizes, and the page of each.
SPECS = [p for p in sorted((TESTS / "spec").glob("*.md")) if "error: E22" in p.read_text("utf-8")]
PAGES = sorted((Path(linnet.__file__).parent / "explain").glob("E22*.md"))


def texts(file: Path) -> Iterator[tuple[str, str]]:
    """Every program of a spec or page that is one file."""
    if file in SPECS:
        for spec in programs(file):
            if "" in spec.files:
                yield f"{file.stem}-{spec}", spec.files[""]
    else:
        for i, each in enumerate(shown.programs(file.read_text(encoding="utf-8"))):
            if len(each.files) == 1:
                yield f"{file.stem}-{i}", next(iter(each.files.values()))


def known(analysis: Analysis, finding: Diagnostic) -> tuple[Relation, ...]:
    """The facts where a finding stands: those of the function, or block, around it."""
    span = finding.primary.span
    around = [
        (s.fn.span.end - s.fn.span.start, s.facts)
        for s in analysis.signatures.values()
        if s.fn.span.start <= span.start and span.end <= s.fn.span.end
    ] or [
        (0, info.facts)
        for info in analysis.blocks.values()
        if info.block.span.start <= span.start and span.end <= info.block.span.end
    ]
    return min(around, key=lambda found: found[0])[1] if around else ()


@cache
def found_with_sizes(file: Path) -> list[tuple[str, Analysis, Diagnostic]]:
    """Every finding in the programs of a file that shows sizes."""
    return [
        (f"{finding.code}-{name}", analysis, finding)
        for name, text in texts(file)
        for analysis in [check_text(text)]
        for finding in analysis.findings.sorted()
        if finding.counterexample is not None
    ]


def value(side: Dim, sizes: dict[str, int]) -> int | None:
    try:
        return side.evaluate(sizes)
    except ZeroDivisionError:
        return None


@pytest.mark.slow
def test_every_kind_of_obligation_has_some() -> None:
    wanted = {f"E220{n}" for n in "12356789"}
    assert wanted <= {d.code for file in SPECS + PAGES for _, _, d in found_with_sizes(file)}


@pytest.mark.parametrize("file", SPECS + PAGES, ids=lambda file: file.stem)
def test_the_sizes_reproduce_the_mismatch_and_no_smaller_ones_do(file: Path) -> None:
    for name, analysis, finding in found_with_sizes(file):
        print(name)  # shown where it fails
        they_reproduce_the_mismatch(analysis, finding)
        no_smaller_ones_do(analysis, finding)


def they_reproduce_the_mismatch(analysis: Analysis, finding: Diagnostic) -> None:
    found = finding.counterexample
    assert found is not None
    sizes = dict(found.sizes)
    claim = relation(found.claim)
    for fact in known(analysis, finding):
        if fact.names() <= sizes.keys():
            assert fact.holds(sizes), (fact, sizes)
    assert claim.names() <= sizes.keys()
    assert not claim.holds(sizes)
    assert (found.left, found.right) == (value(claim.left, sizes), value(claim.right, sizes))
    if not claim.names():  # numbers alone: E2206 then says which sizes of the callee they are
        return
    shown_sizes = [m for text in (finding.message, *finding.notes) for m in SIZES.findall(text)]
    assert shown_sizes
    for listed in shown_sizes:
        for pair in listed.strip(", ").split(", "):
            size_name, number = pair.split(" = ")
            assert sizes[size_name] == int(number), listed


def no_smaller_ones_do(analysis: Analysis, finding: Diagnostic) -> None:
    found = finding.counterexample
    assert found is not None
    sizes, claim = dict(found.sizes), relation(found.claim)
    facts = [f for f in known(analysis, finding) if f.names() <= sizes.keys()]
    total = sum(sizes.values())
    if not sizes or 0 in sizes.values() or total > 12 or len(sizes) > 5:
        return
    for values in product(range(1, total), repeat=len(sizes)):
        smaller = dict(zip(sorted(sizes), values, strict=True))
        if sum(values) < total or (sum(values) == total and values < tuple(sizes.values())):
            broken = not claim.holds(smaller) and None not in (
                value(claim.left, smaller),
                value(claim.right, smaller),
            )
            assert not (broken and all(f.holds(smaller) for f in facts)), smaller


Z = "B / 2000000000"  # 0 at all sizes that are searched
UNPROVED = {
    "E2201": f"return sum[i] x[i] * iota<f32>(A + {Z})[i]",
    "E2202": f"let y: Tensor[A + {Z}; f32] = x  return 1.0",
    "E2203": f"let y = reshape(x, [A + {Z}])  return 1.0",
    "E2206": f"return g<{Z}>()",
    "E2207": f"return sum[i] (x + fill<f32>([A + {Z}], 1.0))[i]",
    "E2209": f"let y = x[{Z}:A]  return 1.0",
}


@pytest.mark.parametrize("code", UNPROVED)
def test_a_claim_that_is_merely_unproved_asks_for_a_clause(code: str) -> None:
    """No sizes are shown, and with the clause of the help the claim holds."""
    callee = "fn g<N: Dim>() -> f32\nwhere N < 1 {\n    return 1.0\n}\n"
    head = "fn f<A: Dim, B: Dim>(x: Tensor[A; f32]) -> f32 {"
    text = f"module a\n{callee}{head}\n{UNPROVED[code]}\n}}\n"
    [finding] = [d for d in check_text(text).findings.items if d.code == code]
    assert finding.counterexample is None
    assert "not prove" in " ".join([finding.message, *finding.notes]).replace("be proved", "prove")
    assert finding.help is not None
    [edit] = finding.help.edits
    after = text[: edit.span.start] + edit.text + text[edit.span.end :]
    assert code not in {d.code for d in check_text(after).findings.items}, after


@pytest.mark.parametrize(
    ("given", "goal"),
    [
        ("N > 0", "A * N == B"),
        ("H % Heads == 0, Heads > 1", "H / Heads * 2 == H"),
        ("A + B == 7", "A == B"),
        ("A > 2, B >= A, C == A + B", "C < 9"),
        ("A * B == 12, A > 1, B > 1", "A > B"),
    ],
)
def test_the_smallest_by_trying_all(given: str, goal: str) -> None:
    known_facts, claim = [relation(part) for part in given.split(", ")], relation(goal)
    answer = prove(Facts.of(known_facts), claim)
    assert isinstance(answer, Refuted)
    names = sorted(answer.sizes)
    best = min(
        (sum(values), values)
        for values in product(range(1, 15), repeat=len(names))
        if all(f.holds(dict(zip(names, values, strict=True))) for f in known_facts)
        and not claim.holds(dict(zip(names, values, strict=True)))
    )
    assert tuple(answer.sizes[n] for n in names) == best[1]
