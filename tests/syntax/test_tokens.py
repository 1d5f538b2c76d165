"""Texts and their tokens: kinds, values, places, and what the lexer reports by itself."""

from __future__ import annotations

import pytest

from linnet.diagnostics import Findings
from linnet.source import Source
from linnet.syntax import lex
from linnet.syntax.tokens import KEYWORDS, RESERVED_WORDS, SIGNS, Token


def lexed(text: str) -> tuple[list[Token], list[str]]:
    findings = Findings()
    tokens, _ = lex(Source("t", text), findings)
    assert tokens[-1].kind == "end"
    assert all(text[t.start : t.end] == t.text for t in tokens)
    return list(tokens[:-1]), [f"{d.code} {d.primary.span.text}" for d in findings.sorted()]


def kinds(text: str) -> str:
    tokens, found = lexed(text)
    assert found == []
    return " ".join(t.kind for t in tokens)


@pytest.mark.parametrize("sign", sorted(SIGNS))
def test_every_sign_is_a_token_of_its_own_kind(sign: str) -> None:
    assert kinds(sign) == sign
    assert kinds(f"a{sign} b") == f"name {sign} name"


@pytest.mark.parametrize("word", sorted(KEYWORDS))
def test_every_keyword(word: str) -> None:
    assert kinds(word) == word
    assert kinds(f"{word}_ _{word} {word.upper()} {word}0") == "name name name name"


@pytest.mark.parametrize("word", sorted(RESERVED_WORDS))
def test_every_reserved_word(word: str) -> None:
    assert kinds(word) == "reserved"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a->b=>c::d", "name -> name => name :: name"),
        ("a<=b>=c==d!=e&&f||g", "name <= name >= name == name != name && name || name"),
        ("0..n", "int .. name"),
        ("0...n", "int ... name"),
        ("x[...,1:2]", "name [ ... , int : int ]"),
        ("t.0.1", "name . float"),
        ("a.b.c", "name . name . name"),
        ("A<B<C>>(x)", "name < name < name > > ( name )"),
        ("T?=none", "name ? = none"),
        ("B<T>= none", "name < name >= none"),
        ("1.5e3.x", "float . name"),
        ("1.foo", "int . name"),
        ("_", "name"),
        ("a/b//c", "name / name"),
        ("a/* / */b", "name name"),
        ("a/*/* */*/b", "name name"),
        ("a\t\r\n\f\vb", "name name"),
    ],
)
def test_longest_match(text: str, expected: str) -> None:
    assert kinds(text) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("42", 42),
        ("1_000", 1000),
        ("007", 7),
        ("0xff", 255),
        ("0xDEAD_beef", 0xDEADBEEF),
        ("0b1010", 10),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", 2**63),
        ("0" * 5000 + "7", 7),
        ("1.5", 1.5),
        ("1e-5", 1e-5),
        ("2E+3", 2000.0),
        ("3.141_592", 3.141592),
        ("1_0.0_1e1_0", 10.01e10),
        ("1e-999", 0.0),
        ('""', ""),
        ('"a b"', "a b"),
        (r'"\n\t\\\""', '\n\t\\"'),
        (r'"\u{e9}\u{1F600}\u{10FFFF}"', "é😀\U0010ffff"),
        ('"// /* ö"', "// /* ö"),
    ],
)
def test_literal_values(text: str, value: object) -> None:
    (token,), found = lexed(text)
    assert found == []
    assert (token.value, type(token.value)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "found", "kinds"),
    [
        ("1.", ["E1005 1."], "float"),
        ("x[1.]", ["E1005 1."], "name [ float ]"),
        (".5", ["E1005 .5"], "float"),
        ("(.5e3)", ["E1005 .5e3"], "( float )"),
        ("1.e5", ["E1005 1.e5"], "float"),
        ("0x", ["E1005 0x"], "int"),
        ("0b2", ["E1005 0b2"], "int"),
        ("0xfg", ["E1005 0xfg"], "int"),
        ("1__0", ["E1005 1__0"], "int"),
        ("1_", ["E1005 1_"], "int"),
        ("1f32", ["E1005 1f32"], "float"),
        ("3i64", ["E1005 3i64"], "int"),
        ("1.2.3", ["E1005 1.2.3"], "float"),
        ("1e999", ["E1005 1e999"], "float"),
        ('"abc', ['E1003 "abc'], "string"),
        ('"abc\n"', ['E1003 "abc', 'E1003 "'], "string string"),
        ('"abc\\"', ['E1003 "abc\\"'], "string"),
        ('"abc\\', ['E1003 "abc\\'], "string"),
        (r'"\q"', [r"E1003 \q"], "string"),
        (r'"\u{}\u{1234567}\u41"', [r"E1003 \u{}", r"E1003 \u{1234567}", r"E1003 \u"], "string"),
        ("'a'", ["E1003 'a'"], "string"),
        ("'", ["E1001 '"], "bad"),
        ("a # b\nc", ["E1001 #"], "name name"),
        ("a;b", [], "name ; name"),
        ("größe", ["E1001 öß"], "name"),
        ("a\u00a0b", ["E1001 \u00a0"], "name name"),
        ("a ≠ b", ["E1001 ≠"], "name != name"),
        ("a @@ b", ["E1001 @@"], "name bad name"),
        ("\x00\ud800", ["E1001 \x00\ud800"], "bad"),
        ("/* /* */", ["E1002 /*"], ""),
        ("\ufeffa\ufeff", ["E1001 \ufeff"], "name bad"),
    ],
)
def test_what_the_lexer_reports(text: str, found: list[str], kinds: str) -> None:
    tokens, reported = lexed(text)
    assert reported == found
    assert " ".join(t.kind for t in tokens) == kinds


def test_unprintable_characters_are_named_by_number() -> None:
    findings = Findings()
    lex(Source("t", "\x00"), findings)
    lex(Source("t", "\x01\x02\x03\x04\x05"), findings)
    assert [d.message for d in findings.items] == [
        "U+0000 is not part of the language",
        "U+0001 U+0002 U+0003 U+0004 … is not part of the language",
    ]
