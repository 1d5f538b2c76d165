"""Sources and their trees: the whole grammar, precedence, where `<`, `(` and `sum[` bind."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import Golden
from linnet.diagnostics import Findings
from linnet.source import Source
from linnet.syntax import lex, parse_text, tree
from linnet.syntax.tokens import Token
from syntax.dump import check_tree, dump

HERE = Path(__file__).parent


def parse_clean(text: str, name: str = "<text>") -> tree.File:
    file, findings = parse_text(text, name)
    assert [d.message for d in findings.sorted()] == []
    check_tree(file)
    return file


def expression(text: str) -> str:
    file = parse_clean(f"module m\nconst X = {text}\n")
    (item,) = file.items
    assert isinstance(item, tree.Const)
    return dump(item.value)


def statements(text: str) -> list[str]:
    file = parse_clean(f"module m\nfn f() {{ {text} }}\n")
    (item,) = file.items
    assert isinstance(item, tree.Fn)
    return [dump(s) for s in item.body]


def test_every_form(golden: Golden) -> None:
    text = (HERE / "whole.linnet").read_text(encoding="utf-8")
    golden(dump(parse_clean(text)) + "\n")


def test_seed_tree(golden: Golden, seed: Path) -> None:
    golden(dump(parse_clean((seed / "src/rope.linnet").read_text(encoding="utf-8"))) + "\n")


def test_all_sources_parse_clean(seed: Path) -> None:
    shipped = (HERE.parent.parent / "src/linnet").rglob("*.linnet")
    for path in [*shipped, *(seed / "src").rglob("*.linnet")]:
        parse_clean(path.read_text(encoding="utf-8"), str(path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a || b && c == d < e | f ^ g & h + i * j",
         "(a || (b && (c == (d < (e | (f ^ (g & (h + (i * j)))))))))"),
        ("a * b + c & d ^ e | f < g == h && i || j",
         "(((((((((a * b) + c) & d) ^ e) | f) < g) == h) && i) || j)"),
        ("a - b - c", "((a - b) - c)"),
        ("a / b % c * d", "(((a / b) % c) * d)"),
        ("a == b != c", "((a == b) != c)"),
        ("a < b >= c", "((a < b) >= c)"),
        ("-a * !b", "((- a) * (! b))"),
        ("- - +a.b[0](c)", "(- (- (+ a.b[0](c))))"),
        ("-9223372036854775808", "(- 9223372036854775808)"),
        ("0xff + 0b1010 + 1_000 + 007", "(((255 + 10) + 1000) + 7)"),
        ("1.5 + 1e-5 + 3.141_592 + 2E3", "(((1.5 + 1e-05) + 3.141592) + 2000.0)"),
        ("a - -1", "(a - (- 1))"),
        ("(a, b)", "tuple(a, b)"),
        ("(a,)", "tuple(a)"),
        ("(a)", "paren(a)"),
        ("()", "tuple()"),
        ("[2, 0, 1]", "shape[2, 0, 1]"),
        ("[]", "shape[]"),
        ("some((a, b))", "some(tuple(a, b))"),
    ],
)  # fmt: skip
def test_operators_and_literals(text: str, expected: str) -> None:
    assert expression(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f<T>(x)", "f<T>(x)"),
        ("a.f<T, 2 * H>(x)", "a.f<T, (2 * H)>(x)"),
        ("a < b", "(a < b)"),
        ("a < b > c", "((a < b) > c)"),
        ("a < b > (c)", "a<b>(c)"),
        ("f(a < b, c > d)", "f((a < b), (c > d))"),
        ("f(a < b, c > (d))", "f(a<b, c>(d))"),
        ("a < b && c > (d)", "((a < b) && (c > paren(d)))"),
        ("a < f<T>(x)", "(a < f<T>(x))"),
        ("f<(a < b)>(x)", "f<paren((a < b))>(x)"),
        ("f<min(A, B), max<i64>(C)>(x)", "f<min(A, B), max<i64>(C)>(x)"),
        ("f<[B, *S], -1>()", "f<shape[B, *S], (- 1)>()"),
        ("f<H | 1, H & 2>(x)", "f<(H | 1), (H & 2)>(x)"),
        ("3 < b > (c)", "((3 < b) > paren(c))"),
        ("a[b < c]", "a[(b < c)]"),
        ("a[i < n : m > (k)]", "a[(i < n):(m > paren(k)):]"),
        ("if a < b { c } else { d > (e) }", "if((a < b), c, (d > paren(e)))"),
        ("cast<f32>(x)\n< y", "(cast<f32>(x) < y)"),
    ],
)
def test_less_than_or_generics(text: str, expected: str) -> None:
    assert expression(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sum[k] a[k] * b[k] + c", "(sum[k] ((a[k] * b[k]) + c))"),
        ("a + sum[i, j] b == c || d", "(a + (sum[i, j] ((b == c) || d)))"),
        ("max<f32>[k] x[k]", "(max<f32>[k] x[k])"),
        ("max<f32>(a, b)", "max<f32>(a, b)"),
        ("min(a, b) + sum", "(min(a, b) + sum)"),
        ("all < b", "(all < b)"),
        ("prod[*s] x[*s]", "(prod[*s] x[*s])"),
        ("-sum[i] a[i] - b", "(- (sum[i] (a[i] - b)))"),
        ("(sum[i] a[i]) - b", "(paren((sum[i] a[i])) - b)"),
        ("any[i] if a[i] { b } else { c }", "(any[i] if(a[i], b, c))"),
        ("f<sum[i] a[i] + 1>(x)", "f<(sum[i] (a[i] + 1))>(x)"),
        ("sum[i] max[j] a[i, j]", "(sum[i] (max[j] a[i, j]))"),
    ],
)
def test_reductions(text: str, expected: str) -> None:
    assert expression(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x[:]", "x[::]"),
        ("x[1:]", "x[1::]"),
        ("x[:1]", "x[:1:]"),
        ("x[a::2]", "x[a::2]"),
        ("x[: : 2]", "x[::2]"),
        ("x[a:b:c, ..., *S, 0]", "x[a:b:c, ..., *S, 0]"),
        ("x[a, b,]", "x[a, b]"),
        ("x[0].y(1)[2]", "x[0].y(1)[2]"),
    ],
)
def test_indices(text: str, expected: str) -> None:
    assert expression(text) == expected


def test_arms_end_where_the_next_pattern_begins() -> None:
    text = "match x { A => f(a) (b, c) => g (d) (e,) => h some(i) => j none => k M.L => l _ => m }"
    assert expression(text) == (
        "match(x: 'A=>f(a); tuple('b, 'c)=>g(d); tuple('e)=>h; some('i)=>j; none=>k; M.L=>l; _=>m;)"
    )


def test_statements_need_no_separators() -> None:
    assert statements("let a = b c = d e = -f while g { } return return h == i") == [
        "let 'a = b",
        "c = d",
        "e = (- f)",
        "while g",
        "return",
        "return (h == i)",
    ]


def test_a_return_without_value_before_an_assignment() -> None:
    assert statements("return x = 1") == ["return", "x = 1"]


def test_line_breaks_mean_nothing() -> None:
    text = (HERE / "whole.linnet").read_text(encoding="utf-8")
    lexed = [t.text for t in parse_tokens(text)]
    one_line = " ".join(lexed)
    file_a, file_b = parse_clean(text), parse_clean(one_line)
    assert [strip(dump(i)) for i in file_a.items] == [strip(dump(i)) for i in file_b.items]


def parse_tokens(text: str) -> tuple[Token, ...]:

    return lex(Source("t", text), Findings())[0]


def strip(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.strip().startswith("docs "))


@pytest.mark.parametrize(
    ("comment", "docs"),
    [
        ("/// one", "one"),
        ("///one\n///  two\n", "one\n two"),
        ("/// a\n// plain\n/// b\n", "a\nb"),
        ("/** a */", "a"),
        ("/**\n * a\n *   b\n */", "a\n  b"),
        ("/// a\r\n/// b\r\n", "a\nb"),
        ("//// not", ""),
        ("/*** not */", ""),
        ("/**/", ""),
        ("// not", ""),
        ("/* not */", ""),
    ],
)
def test_documentation_comments(comment: str, docs: str) -> None:
    file = parse_clean(f"module m\n{comment}\npub fn f() {{ }}\nfn g() {{ }}\n")
    assert [item.docs for item in file.items] == [docs, ""]


def test_comments_are_kept_with_their_places() -> None:
    text = "module m // a\n/* b /* c */ d */ const X = 1 /// e\r\n"
    file = parse_clean(text)
    assert [c.text for c in file.comments] == ["// a", "/* b /* c */ d */", "/// e"]
    assert all(c.span.text == c.text for c in file.comments)


def test_a_function_knows_its_closing_brace() -> None:
    file = parse_clean("module m\nfn f() { return 1 }  // }")
    (item,) = file.items
    assert isinstance(item, tree.Fn)
    assert (item.end.text, item.end.end) == ("}", item.span.end)


def test_spans_cover_what_was_written() -> None:
    file = parse_clean("module m\nconst X = (a + b) * -c[0 : n].d\n")
    (item,) = file.items
    assert isinstance(item, tree.Const) and isinstance(item.value, tree.Binary)
    assert item.span.text == "const X = (a + b) * -c[0 : n].d"
    assert item.value.op_span.text == "*"
    assert item.value.left.span.text == "(a + b)"
    assert item.value.right.span.text == "-c[0 : n].d"


def test_a_byte_order_mark_is_passed_over() -> None:
    assert dump(parse_clean("\ufeffmodule m\n")) == "module m"
