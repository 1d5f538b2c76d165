"""Sources with mistakes and everything the parser says about them.

`mistakes.txt` holds the cases: a name, the source, and after `---` one line for each finding and
the names of the items that were still read. `pytest --update` rewrites what follows `---`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from linnet.diagnostics import Diagnostic, Edit, Findings
from linnet.source import Span
from linnet.syntax import parse_text, tree
from syntax.dump import check_tree

FILE = Path(__file__).with_name("mistakes.txt")


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    expected: str


def read_cases() -> list[Case]:
    with FILE.open(encoding="utf-8", newline="") as f:
        chunks = f.read().split("### ")[1:]
    cases = []
    for chunk in chunks:
        name, rest = chunk.split("\n", 1)
        text, expected = rest.split("\n---", 1)
        cases.append(Case(name, text, expected.strip("\n")))
    return cases


CASES = read_cases()


def place(span: Span) -> str:
    start, end = span.source.position(span.start), span.source.position(span.end)
    stop = f"{end.column}" if start.line == end.line else f"{end.line}:{end.column}"
    return f"{start.line}:{start.column}-{stop}"


def edit_text(edit: Edit) -> str:
    return f"{place(edit.span)} {edit.text!r}"


def finding_lines(d: Diagnostic) -> list[str]:
    label = f" ({d.primary.text})" if d.primary.text else ""
    lines = [f"{place(d.primary.span)} {d.code} {d.message}{label}"]
    lines += [f"    at {place(r.span)}: {r.text}" for r in d.related]
    lines += [f"    note: {note}" for note in d.notes]
    if d.help is not None:
        edits = "".join(f" [{edit_text(e)}]" for e in d.help.edits)
        lines.append(f"    help: {d.help.text}{edits}")
    return lines


def report(file: tree.File, findings: Findings) -> str:
    lines = [line for d in findings.sorted() for line in finding_lines(d)]
    names = [item.name.text for item in file.items]
    return "\n".join([*lines, "items: " + " ".join(names)])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_mistakes(case: Case, pytestconfig: pytest.Config) -> None:
    file, findings = parse_text(case.text)
    check_tree(file)
    assert findings.errors > 0
    found = report(file, findings)
    if pytestconfig.getoption("--update"):
        update(case, found)
    else:
        assert found == case.expected


def update(case: Case, found: str) -> None:
    cases = [
        Case(c.name, c.text, found if c.name == case.name else c.expected) for c in read_cases()
    ]
    text = "\n\n".join(f"### {c.name}\n{c.text}\n---\n{c.expected}" for c in cases)
    with FILE.open("w", encoding="utf-8", newline="") as f:
        f.write(text + "\n")


def apply(text: str, edits: list[Edit]) -> str:
    for edit in sorted(edits, key=lambda e: (e.span.start, e.span.end), reverse=True):
        text = text[: edit.span.start] + edit.text + text[edit.span.end :]
    return text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_edits_mend_their_findings(case: Case) -> None:
    """Applying every edit leaves only the findings that offered none, and makes none new."""
    _, findings = parse_text(case.text)
    mended = [d for d in findings.items if d.help is not None and d.help.edits]
    rest = [d.message for d in findings.sorted() if d not in mended]
    edits = [e for d in mended if d.help is not None for e in d.help.edits]
    after = [d.message for d in parse_text(apply(case.text, edits))[1].sorted()]
    assert after == rest


def test_a_broken_value_still_declares_its_name() -> None:
    file, _ = parse_text("module m\nfn f() {\n    let x = 1 +\n    var y: = 2\n    return x\n}\n")
    (function,) = file.items
    assert isinstance(function, tree.Fn)
    let, var, result = function.body
    assert isinstance(let, tree.Let) and isinstance(let.value, tree.BadExpr)
    assert isinstance(var, tree.Var) and isinstance(var.type, tree.BadType)
    assert isinstance(result, tree.Return)


def test_a_broken_parameter_spares_the_others() -> None:
    file, findings = parse_text("module m\nfn f(a: f32, b: 3, c: f32) -> f32 { return a }\n")
    (function,) = file.items
    assert isinstance(function, tree.Fn)
    assert [p.name.text for p in function.params] == ["a", "b", "c"]
    assert isinstance(function.params[1].type, tree.BadType)
    assert findings.errors == 1


def test_a_broken_argument_keeps_its_place() -> None:
    file, _ = parse_text("module m\nconst X = f(a, b +, c)\n")
    (const,) = file.items
    assert isinstance(const, tree.Const) and isinstance(const.value, tree.Call)
    kinds = [type(arg.value) for arg in const.value.args]
    assert kinds == [tree.Name, tree.BadExpr, tree.Name]


def test_findings_stand_in_source_order_in_one_file() -> None:
    text = "\n".join(case.text for case in CASES)
    findings = parse_text(text)[1].sorted()
    assert [d.primary.span.start for d in findings] == sorted(
        d.primary.span.start for d in findings
    )
    assert len(findings) > 100


def test_a_lookalike_sign_in_the_wrong_place_is_one_finding() -> None:
    _, findings = parse_text("module m\nfn f() {\n    let x ≤ 3\n    return x\n}\n")
    assert [(d.code, place(d.primary.span)) for d in findings.sorted()] == [("E1001", "3:11-12")]
