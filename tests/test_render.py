"""Diagnostics and their exact text and JSON."""

from __future__ import annotations

import json

import pytest

from linnet.diagnostics import Diagnostic, Edit, Help, Label
from linnet.render import render_json, render_text
from linnet.source import Source, Span


def span(source: Source, text: str, nth: int = 0) -> Span:
    """The place of a text in a source, counted from the front."""
    at = -1
    for _ in range(nth + 1):
        at = source.text.index(text, at + 1)
    return Span(source, at, at + len(text))


def finding(text: str, at: str, label: str = "", **more: object) -> Diagnostic:
    source = Source("src/a.linnet", text)
    return Diagnostic("E2207", "no", Label(span(source, at), label), **more)  # type: ignore[arg-type]


def shown(diagnostic: Diagnostic) -> str:
    """What is rendered below the header."""
    header, rest = render_text(diagnostic).split("\n", 1)
    assert header == "error[E2207]: no"
    return "\n" + rest + "\n"


FILE = Source(
    "src/a.linnet",
    "module a\n\nfn f(x: f32, y: f32) -> f32 {\n"
    "    let z = x + y\n    let w = z\n\n    return z\n}\n",
)


def test_header_place_line_and_label() -> None:
    found = Diagnostic("E2207", "`x` and `y` differ", Label(span(FILE, "x + y"), "they differ"))
    assert render_text(found) == (
        "error[E2207]: `x` and `y` differ\n"
        " --> src/a.linnet:4:13\n"
        "  |\n"
        "4 |     let z = x + y\n"
        "  |             ^^^^^ they differ"
    )


def test_a_warning_says_so() -> None:
    found = Diagnostic("W1002", "unused", Label(span(FILE, "w")))
    assert render_text(found).startswith("warning[W1002]: unused\n --> src/a.linnet:5:9\n")


def test_notes_and_help_stand_below() -> None:
    found = finding("a b\n", "b", notes=("one", "two\nlines"), help=Help("write `c`"))
    assert (
        shown(found)
        == """
 --> src/a.linnet:1:3
  |
1 | a b
  |   ^
  |
  = note: one
  = note: two
          lines
  = help: write `c`
"""
    )


def test_labels_on_one_line_stand_below_each_other() -> None:
    source = Source("src/a.linnet", "let z = f(aa, bb, cc)\n")
    related = (Label(span(source, "aa"), "first"), Label(span(source, "cc"), "third"))
    found = Diagnostic("E2207", "no", Label(span(source, "bb"), "second"), related)
    assert (
        shown(found)
        == """
 --> src/a.linnet:1:15
  |
1 | let z = f(aa, bb, cc)
  |           --  ^^  -- third
  |           |   |
  |           |   second
  |           first
"""
    )


def test_a_label_left_of_a_longer_mark_stands_below() -> None:
    source = Source("src/a.linnet", "f(a, b)\n")
    found = Diagnostic("E2207", "no", Label(span(source, "b")), (Label(span(source, "("), "open"),))
    assert (
        shown(found)
        == """
 --> src/a.linnet:1:6
  |
1 | f(a, b)
  |  -   ^
  |  |
  |  open
"""
    )


def test_the_primary_mark_covers_the_others() -> None:
    source = Source("src/a.linnet", "f(a, b)\n")
    related = (Label(span(source, "f(a, b)"), "this call"),)
    found = Diagnostic("E2207", "no", Label(span(source, "a"), "this"), related)
    assert (
        shown(found)
        == """
 --> src/a.linnet:1:3
  |
1 | f(a, b)
  | --^----
  | | |
  | | this
  | this call
"""
    )


def test_two_labels_at_one_place() -> None:
    source = Source("src/a.linnet", "f(a)\n")
    related = (Label(span(source, "a"), "other"), Label(span(source, ")")))
    found = Diagnostic("E2207", "no", Label(span(source, "a"), "main"), related)
    assert (
        shown(found)
        == """
 --> src/a.linnet:1:3
  |
1 | f(a)
  |   ^-
  |   |
  |   other
  |   main
"""
    )


def test_lines_between_are_shown_or_left_out() -> None:
    related = (Label(span(FILE, "{"), "opened here"), Label(span(FILE, "z = x"), "bound here"))
    found = Diagnostic("E2207", "no", Label(span(FILE, "return z"), "here"), related)
    assert (
        shown(found)
        == """
 --> src/a.linnet:7:5
  |
3 | fn f(x: f32, y: f32) -> f32 {
  |                             - opened here
4 |     let z = x + y
  |         ----- bound here
...
7 |     return z
  |     ^^^^^^^^ here
"""
    )
    near = (Label(span(FILE, "let w")),)
    assert (
        shown(Diagnostic("E2207", "no", Label(span(FILE, "return")), near))
        == """
 --> src/a.linnet:7:5
  |
5 |     let w = z
  |     -----
6 |
7 |     return z
  |     ^^^^^^
"""
    )


def test_another_file_has_a_snippet_of_its_own() -> None:
    other = Source("std/b.linnet", "\n" * 11 + "pub fn g(x: f32)\n")
    related = (Label(span(other, "x: f32"), "declared here"), Label(span(FILE, "x: f32"), "same"))
    found = Diagnostic("E2207", "no", Label(span(FILE, "x + y"), "here"), related, ("n",))
    assert (
        shown(found)
        == """
  --> src/a.linnet:4:13
   |
 3 | fn f(x: f32, y: f32) -> f32 {
   |      ------ same
 4 |     let z = x + y
   |             ^^^^^ here
   |
  ::: std/b.linnet:12:10
   |
12 | pub fn g(x: f32)
   |          ------ declared here
   |
   = note: n
"""
    )


def test_a_span_of_several_lines_marks_its_first_and_last() -> None:
    source = Source("src/a.linnet", "let x = f(\n    a,\n    b,\n    c,\n    d)\n")
    found = Diagnostic("E2207", "no", Label(span(source, source.text[8:-1]), "too long"))
    assert (
        shown(found)
        == """
 --> src/a.linnet:1:9
  |
1 | let x = f(
  |         ^^
...
5 |     d)
  |     ^^ too long
"""
    )


def test_a_span_up_to_a_line_start_marks_its_first_line_alone() -> None:
    source = Source("src/a.linnet", "ab cd\n   ef\n")
    found = Diagnostic("E2207", "no", Label(Span(source, 3, 8), "here"))
    assert (
        shown(found)
        == """
 --> src/a.linnet:1:4
  |
1 | ab cd
  |    ^^ here
"""
    )


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("\tx\ty", "y", ("    x    y", "         ^")),
        ("漢字 x", "x", ("漢字 x", "     ^")),
        ("漢字 x", "字", ("漢字 x", "  ^^")),
        ("e\u0301e\u0301 x", "x", ("e\u0301e\u0301 x", "   ^")),
        ("a\x00\x1b[0m x", "x", ("a\ufffd\ufffd[0m x", "       ^")),
        ("\u202ex y", "y", ("\ufffdx y", "   ^")),
        ("\ud800 y", "y", ("\ufffd y", "  ^")),
        ("x y\r\nz", "y", ("x y", "  ^")),
    ],
)
def test_marks_stand_under_what_a_terminal_shows(
    text: str, at: str, expected: tuple[str, str]
) -> None:
    line, marks = expected
    lines = render_text(finding(text, at)).split("\n")
    assert lines[3:] == [f"1 | {line}", f"  | {marks}"]


def test_an_empty_span_gets_one_mark() -> None:
    source = Source("src/a.linnet", "ab\n")
    assert render_text(Diagnostic("E1101", "no", Label(Span(source, 2, 2)))).endswith("ab\n  |   ^")
    empty = Source("src/a.linnet", "")
    assert render_text(Diagnostic("E1102", "no", Label(Span(empty, 0, 0)))) == (
        "error[E1102]: no\n --> src/a.linnet:1:1\n  |\n1 |\n  | ^"
    )
    end = Span(source, 3, 3)
    assert render_text(Diagnostic("E1101", "no", Label(end))).endswith("2:1\n  |\n2 |\n  | ^")


def test_of_a_long_line_the_part_around_the_mark_is_shown() -> None:
    text = "a" * 500 + "HERE" + "b" * 500
    lines = render_text(finding(text, "HERE", "this")).split("\n")
    assert lines[3] == "1 | …" + "a" * 40 + "HERE" + "b" * 76 + "…"
    assert lines[4] == "  | " + " " * 41 + "^^^^ this"
    lines = render_text(finding("HERE" + text, "HERE")).split("\n")
    assert lines[3] == "1 | HERE" + "a" * 116 + "…"
    lines = render_text(finding("a" * 500 + "LAST", "LAST")).split("\n")
    assert lines[3:] == ["1 | …" + "a" * 116 + "LAST", "  | " + " " * 117 + "^^^^"]


def test_messages_cannot_disturb_a_terminal() -> None:
    source = Source("a\x1b.linnet", "x")
    found = Diagnostic("E1001", "bad \x1b[2J\u202e", Label(span(source, "x"), "a\nb"))
    assert render_text(found) == (
        "error[E1001]: bad \ufffd[2J\ufffd\n --> a\ufffd.linnet:1:1\n  |\n1 | x\n  | ^ a b"
    )


def test_several_are_separated_by_a_blank_line() -> None:
    one = finding("a b\n", "a")
    assert render_text([one, one]) == render_text(one) + "\n\n" + render_text(one)
    assert render_text([]) == ""


def test_color_adds_only_styles() -> None:
    related = (Label(span(FILE, "x: f32"), "declared"),)
    found = Diagnostic(
        "E2207", "no", Label(span(FILE, "x + y"), "here"), related, ("n",), Help("h")
    )
    colored = render_text(found, color=True)
    assert colored.startswith("\x1b[1;31merror[E2207]\x1b[0m\x1b[1m: no\x1b[0m\n")
    assert "\x1b[1;31m^^^^^ here\x1b[0m" in colored and "\x1b[1;34m------" in colored
    for style in ("1;31", "1;33", "1;34", "1;36", "1", "0"):
        colored = colored.replace(f"\x1b[{style}m", "")
    assert colored == render_text(found)


def test_json_document() -> None:
    source = Source("src/ä.linnet", "// é\nlet x = y;\n")
    semicolon = span(source, ";")
    found = [
        Diagnostic(
            "E1101",
            "no semicolons",
            Label(semicolon, "here"),
            (Label(span(source, "let"), "statement"),),
            ("a note",),
            Help("remove it", (Edit(semicolon, ""),)),
        ),
        Diagnostic("W1002", "unused", Label(span(source, "x"))),
    ]

    def place(start: tuple[int, int, int], end: tuple[int, int, int]) -> dict[str, object]:
        names = ("line", "column", "offset")
        return {
            "file": "src/ä.linnet",
            "start": dict(zip(names, start)),
            "end": dict(zip(names, end)),
        }

    document = render_json(found)
    assert document == {
        "version": 1,
        "diagnostics": [
            {
                "code": "E1101",
                "severity": "error",
                "message": "no semicolons",
                "label": "here",
                "location": place((2, 10, 15), (2, 11, 16)),
                "related": [{"label": "statement", "location": place((2, 1, 6), (2, 4, 9))}],
                "notes": ["a note"],
                "help": {
                    "message": "remove it",
                    "edits": [{"location": place((2, 10, 15), (2, 11, 16)), "text": ""}],
                    "safe": False,
                },
                "counterexample": None,
            },
            {
                "code": "W1002",
                "severity": "warning",
                "message": "unused",
                "label": "",
                "location": place((2, 5, 10), (2, 6, 11)),
                "related": [],
                "notes": [],
                "help": None,
                "counterexample": None,
            },
        ],
        "summary": {"errors": 1, "warnings": 1},
    }
    assert json.loads(json.dumps(document)) == document
    assert render_json([]) == {
        "version": 1,
        "diagnostics": [],
        "summary": {"errors": 0, "warnings": 0},
    }
