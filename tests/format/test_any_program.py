"""Whatever the program and its layout: same tree, same comments, stable; and in linear work."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import calls
from format.programs import disturbed, program
from format.properties import formatted
from linnet.syntax import layout
from linnet.syntax.depth import MAX_DEPTH
from linnet.syntax.format import format_text
from linnet.syntax.tokens import KEYWORDS, SIGNS

HERE = Path(__file__).parent
SOURCES = HERE.parent.parent / "src/linnet"
TEXTS = [
    path.read_text(encoding="utf-8")
    for path in [
        HERE.parent / "syntax/whole.linnet",
        *sorted((HERE / "before").glob("*.linnet")),
        *sorted(SOURCES.rglob("*.linnet")),
    ]
]
SMALL = [text for text in TEXTS if len(text) < 5000]

relaxed = settings(deadline=None, max_examples=20)
seeds = st.integers(0, 2**32)
rates = st.sampled_from([0.0, 0.01, 0.1, 0.4])
columns = st.sampled_from([100, 100, 60, 25])


def formatted_within(text: str, columns: int) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "COLUMNS", columns)
        return formatted(text)


@relaxed
@given(st.sampled_from(SMALL), seeds, rates, columns)
@pytest.mark.slow
def test_any_layout(text: str, seed: int, rate: float, columns: int) -> None:
    formatted_within(disturbed(text, Random(seed), rate), columns)


@settings(relaxed, max_examples=30)
@given(seeds, rates, columns)
@pytest.mark.slow
def test_any_program(seed: int, rate: float, columns: int) -> None:
    random = Random(seed)
    text = program(random)
    formatted_within(disturbed(text, random, rate), columns)


@pytest.mark.slow
def test_line_breaks_and_spaces_do_not_matter() -> None:
    """Apart from empty lines: the same tokens on one line come out the same."""
    for text in SMALL[:8]:
        once = disturbed(text, Random(0), 0.0)
        other = disturbed(text, Random(1), 0.0)
        assert without_blanks(formatted(once)) == without_blanks(formatted(other))


def without_blanks(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


@pytest.mark.slow
def test_long_sources_in_any_layout(seed: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted((seed / "src").glob("*.linnet"))]
    for number, text in enumerate([*texts, *(t for t in TEXTS if t not in SMALL)]):
        for rate in (0.02, 0.3):
            formatted(disturbed(text, Random(number), rate))


# ---------------------------------------------------------------- texts that are no programs

WORDS = [*sorted(KEYWORDS | SIGNS), "a", "b", "1", "sum", "// c\n", "/* c */", "\n", '"', "/*", "#"]


@relaxed
@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=100))
def test_any_characters(text: str) -> None:
    sound(text)
    sound("module m\n// " + text)


@settings(relaxed, max_examples=60)
@given(st.lists(st.sampled_from(WORDS), max_size=30), st.sampled_from(["", "fn f() { let x = a "]))
def test_any_words(words: list[str], before: str) -> None:
    sound(f"module m\n{before}" + " ".join(words))
    sound(f"module m\n{before}" + " ".join(words) + "}")


def sound(text: str) -> None:
    """What has no syntax error is formatted, and nothing else."""
    after, findings = format_text(text)
    assert (after is None) == bool(findings.items)
    if after is not None:
        assert formatted(text) == after


# ---------------------------------------------------------------- depth and work

NESTS = {
    "parentheses": ("(", "x", ")"),
    "calls": ("f(", "x", ")"),
    "generics": ("f<[", "x", "]>(y)"),
    "subscripts": ("x[", "0", "]"),
    "ifs": ("if a { ", "x", " } else { y }"),
    "else ifs": ("if a { x } else ", "{ y }", ""),
    "arms": ("match a { _ => ", "x", " }"),
    "prefixes": ("-", "x", ""),
    "sums": ("", "x", " + x"),
    "chained calls": ("", "x", "(a)"),
}


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
def test_as_deep_as_trees_go(nest: tuple[str, str, str]) -> None:
    before, middle, after = nest
    times = MAX_DEPTH - 4 if before in ("-", "") or "else if" in before else MAX_DEPTH // 2 - 2
    formatted(f"module m\nconst X = {before * times}{middle}{after * times}\n")


REPEATS = [
    "fn f(a: T) -> T { return a }\n",
    "const A = f(a, b) + g<H>(c)[0]\n",
    "// c\n",
    "/* c */ ",
    "const A = [1 // c\n, 2,]\n",
    "/* c\n d */ const A = 1 ",
]


@pytest.mark.parametrize("repeat", REPEATS)
def test_work_and_size_are_linear(repeat: str) -> None:
    """Eight times the text is about eight times the work: far from a quadratic formatter's 64."""
    count = 300 // len(repeat)
    small, large = ("module m\n" + repeat * n for n in (count, 8 * count))
    assert work(large) < 12 * work(small)
    assert len(format_text(large)[0] or "") < 9 * len(format_text(small)[0] or "")


@pytest.mark.parametrize("opened", ["f(", "["])
def test_work_is_linear_within_a_line(opened: str) -> None:
    closed = ")" if opened == "f(" else "]"
    small, large = (
        f"module m\nconst X = {opened}{'g(a)(b)[c] + d, ' * n}x{closed}" for n in (15, 120)
    )
    assert work(large) < 12 * work(small)


def work(text: str) -> int:
    """How much it is to format the text, which has no mistake."""
    assert not format_text(text)[1].items
    return calls(partial(format_text, text))
