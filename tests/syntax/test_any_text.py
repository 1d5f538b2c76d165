"""Whatever the text, parsing ends with a sound tree, in work proportional to the length."""

from __future__ import annotations

import functools
import inspect
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import calls
from linnet.diagnostics import Findings
from linnet.source import Source
from linnet.syntax import lex, parse_text, tree
from linnet.syntax.depth import MAX_DEPTH
from linnet.syntax.tokens import KEYWORDS, RESERVED_WORDS, SIGNS
from syntax.dump import check_tree, children, dump

WHOLE = Path(__file__).with_name("whole.linnet").read_text(encoding="utf-8")

relaxed = settings(
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def parse_sound(text: str) -> Findings:
    """Parse, and check what must hold for every text."""
    return parse_checked(text)[1]


def parse_checked(text: str) -> tuple[tree.File, Findings]:
    file, findings = parse_text(text)
    check_tree(file)
    for d in findings.items:
        spans = [d.primary.span, *(r.span for r in d.related)]
        spans += [e.span for e in d.help.edits] if d.help is not None else []
        assert all(0 <= s.start <= s.end <= len(text) for s in spans)
        assert d.message and d.message == d.message.strip()
    if not findings.items:
        assert not any(isinstance(n, tree.BadExpr | tree.BadType) for n in walk(file))
    return file, findings


def walk(root: tree.Syntax) -> list[tree.Syntax]:
    nodes = [root]
    for node in nodes:
        nodes.extend(children(node))
    return nodes


@relaxed
@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=200))
def test_any_characters(text: str) -> None:
    parse_sound(text)


WORDS = [
    *sorted(KEYWORDS | RESERVED_WORDS | SIGNS),
    *("a", "b", "Tensor", "sum", "max", "T", "_", "f32", "Dim", "and", "not", "def"),
    *("0", "1", "9223372036854775808", "1.5", '"s"', '"', "'", "/*", "*/", "// c\n", "/// d\n"),
    *("\n", "#", "@", "≤", "é", ";"),
]
soup = st.lists(st.sampled_from(WORDS), max_size=80)


@relaxed
@given(soup, st.sampled_from(["", "module m\n", "module m\nfn f() {\n", "module m\nblock B {\n"]))
def test_any_words(words: list[str], before: str) -> None:
    parse_sound(before + " ".join(words))


@pytest.fixture(scope="module")
def texts(seed: Path) -> list[str]:
    return [
        WHOLE,
        *(p.read_text(encoding="utf-8") for p in sorted((seed / "src").glob("*.linnet"))),
    ]


def test_cuts_of_every_form() -> None:
    for at in range(0, len(WHOLE), 53):
        parse_sound(WHOLE[:at])


@settings(relaxed, max_examples=8)
@given(st.data())
def test_cuts_of_the_seed(texts: list[str], data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(texts))
    at = data.draw(st.integers(0, len(text)))
    parse_sound(text[:at])
    parse_sound("module m\n" + text[at:])


@functools.cache
def pieces(text: str) -> list[str]:
    """The text cut at every token: what stands before each, with its white space."""
    tokens, _ = lex(Source("t", text), Findings())
    starts = [t.start for t in tokens]
    return [text[a:b] for a, b in zip([0, *starts], [*starts, len(text)])]


@relaxed
@given(st.data())
def test_a_token_taken_out_doubled_replaced_or_put_in(data: st.DataObject) -> None:
    parts = list(pieces(WHOLE))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(parts) - 1))
        word = " " + data.draw(st.sampled_from(WORDS)) + " "
        change = data.draw(st.sampled_from(["out", "double", "replace", "in", "swap"]))
        if change == "out":
            parts[at] = ""
        elif change == "double":
            parts[at] += " " + parts[at]
        elif change == "replace":
            parts[at] = word
        elif change == "in":
            parts[at] += word
        else:
            other = data.draw(st.integers(0, len(parts) - 1))
            parts[at], parts[other] = parts[other], parts[at]
    parse_sound("".join(parts))


@pytest.mark.slow  # a parse for each token
def test_one_missing_token_gives_few_findings() -> None:
    """A mistake stays near where it is: no cascade through the rest of the file."""
    whole = pieces(WHOLE)
    many = {}
    for at in range(1, len(whole)):
        parts = [*whole[:at], " ", *whole[at + 1 :]]
        count = len(parse_sound("".join(parts)).items)
        if count > 3:
            many["".join(whole[at - 1 : at + 2])] = count
    # The bracket that opens an index before `...`, and the brace that opens a trait with a `where`.
    assert len(many) <= 2 and max(many.values()) <= 8, many


def test_positions_do_not_change_the_tree() -> None:
    """The same tokens, wide apart, give the same tree."""
    wide = "\n\n".join(pieces(WHOLE))
    assert (
        dump(parse_text(wide)[0]).split("\ncomment")[0]
        == (dump(parse_text(WHOLE)[0]).split("\ncomment")[0])
    )


# ---------------------------------------------------------------- depth

NESTS = {
    "parentheses": ("(", "x", ")"),
    "tuples": ("(", "x", ",)"),
    "lists": ("[", "x", "]"),
    "calls": ("f(", "x", ")"),
    "generic calls": ("f<[", "x", "]>(y)"),
    "subscripts": ("x[", "0", "]"),
    "some": ("some(", "x", ")"),
    "if": ("if a { ", "x", " } else { y }"),
    "else if": ("if a { x } else ", "{ y }", ""),
    "conditions": ("if ", "a", " { x } else { y }"),
    "match": ("match ", "a", " { _ => x }"),
    "arms": ("match a { _ => ", "x", " }"),
    "prefixes": ("-", "x", ""),
    "nots": ("not ", "x", ""),
    "reductions": ("sum[i] ", "x", ""),
    "sums": ("", "x", " + x"),
    "right sums": ("x + (", "x", ")"),
    "fields": ("", "x", ".y"),
    "chained calls": ("", "x", "()"),
    "selves": ("self.", "x", ""),
}


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
@pytest.mark.parametrize("times", [MAX_DEPTH // 2 - 2, MAX_DEPTH + 1, 500])
def test_deep_expressions(nest: tuple[str, str, str], times: int) -> None:
    before, middle, after = nest
    text = f"module m\nconst X = {before * times}{middle}{after * times}\nconst Y = 1\n"
    file, findings = parse_checked(text)
    deep = [d.code for d in findings.items if "levels deep" in d.message]
    if before == "self." or times < MAX_DEPTH:
        assert deep == []
    else:
        assert deep == ["E1101"]
    others = times if before in ("self.", "not ") else 0
    assert len(findings.items) - len(deep) <= others
    assert [i.name.text for i in file.items] == ["X", "Y"]


@pytest.mark.parametrize("times", [MAX_DEPTH // 2 - 2, 700])
@pytest.mark.parametrize(
    ("before", "middle", "after"),
    [("(", "f32", ",)"), ("[", "f32", "; 2]"), ("", "f32", "?"), ("A<[", "x", "]>")],
)
def test_deep_types(before: str, middle: str, after: str, times: int) -> None:
    findings = parse_sound(f"module m\ntype T = {before * times}{middle}{after * times}\n")
    if before != "A<[":  # which is a mistake for another reason
        assert len(findings.items) == (times > MAX_DEPTH)


@pytest.mark.parametrize("times", [MAX_DEPTH - 10, 700])
def test_deep_patterns_and_loops(times: int) -> None:
    pattern = "(" * times + "x" + ",)" * times
    loops = "while a { " * times + "}" * times
    findings = parse_sound(f"module m\nfn f() {{ let {pattern} = x }}\nfn g() {{ {loops} }}\n")
    assert len(findings.items) == (times > MAX_DEPTH)


def test_parsing_needs_little_stack_of_its_caller() -> None:
    limit = sys.getrecursionlimit()
    text = "module m\nconst X = " + "(" * 190 + "x" + ")" * 190

    def below(frames: int) -> int:
        return below(frames - 1) if frames else len(parse_text(text)[1].items)

    used = len(inspect.stack())
    assert below(limit - used - 40) == 0
    assert sys.getrecursionlimit() == limit


# ---------------------------------------------------------------- work

REPEATS = [
    "(", ")", "[", "{", "}", "<", "a<", "f(a,", "f(a b,", "if ", "if a {", "match x {", "/*",
    "/*\n", '"', '"\n', '"\\', "'", "a.", "a.b(c)", "x = y\n", "let x = \n", "- ", "x?", "fn f<",
    "fn f(", "1.2.3", "1_", ";", "#\n", "@", "@ ", "é", "≤", "let a = (1\n", "block B {",
    "use a.\n", "self.", "some(", "sum[i] ", "A<[", "///\n", "where a,", "pub ", ", ",
    "f(a = 1, 2, ", "f<a,", "f<a>(", "struct S { a, ", "static for i in a { ", "a + ", "1 ",
    "é ", "\\", "\x00", "=",
]  # fmt: skip


@pytest.mark.parametrize("repeat", REPEATS)
@pytest.mark.slow
def test_work_is_linear(repeat: str) -> None:
    """Eight times the text is about eight times the work: far from a quadratic parser's 64."""
    before = "module m\nfn f() {\nlet z = "
    count = max(1, 120 // len(repeat))
    small, large = (calls(partial(parse_text, before + repeat * n)) for n in (count, 8 * count))
    assert large < 12 * small
