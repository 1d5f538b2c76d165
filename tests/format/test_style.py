"""The one style, by example: what a text becomes, and that it then stays so."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

import linnet
from conftest import Golden
from format.properties import formatted

HERE = Path(__file__).parent
SOURCES = HERE.parent.parent / "src/linnet"
BEFORE = [*sorted((HERE / "before").glob("*.linnet")), HERE.parent / "syntax/whole.linnet"]


@pytest.mark.parametrize("path", BEFORE, ids=lambda path: path.stem)
def test_before_and_after(path: Path, golden: Golden) -> None:
    golden(formatted(path.read_text(encoding="utf-8")), name=path.name)


@pytest.mark.slow
def test_the_seed_gets_its_indentation_back(seed: Path) -> None:
    """Its lines are ours, but for generic arguments of a call, which it breaks at an operator."""
    for path in sorted((seed / "src").glob("*.linnet")):
        text = path.read_text(encoding="utf-8")
        after = formatted(text)
        lines = [line.strip() for line in after.splitlines() if line.strip()]
        if path.stem == "attention":
            assert squeezed(after) == squeezed(text)
            assert len(set(text.splitlines()) - set(lines)) == 6
        else:
            assert lines == text.splitlines()


def squeezed(text: str) -> str:
    return "".join(text.split()).replace(",>", ">")


# What stands in a function's body, a line each: before (joined by "\n") and after.
BODIES = {
    "spaces": ("let  x=a+b *  c\ny=-x", "let x = a + b * c\ny = -x"),
    "slices": ("let x = a[ 1 : b+1 , : , ... , : : 2 ]", "let x = a[1:b + 1, :, ..., ::2]"),
    "a list joins": ("let x = f(\na,\nb\n)", "let x = f(a, b)"),
    "a trailing comma stays": (
        "let x = f(a, b,)",
        """
        let x = f(
            a,
            b,
        )
        """,
    ),
    "a tuple of one": ("let (x,) = (\na,\n)", "let (x,) = (a,)"),
    "a comma that is no list": ("let x = some(a,)", "let x = some(a)"),
    "names in calls": ("let x = f(a,axis=- 1)", "let x = f(a, axis = -1)"),
    "generics and comparisons": (
        "let x = f < T , [ *S ] > ( y ) < z",
        "let x = f<T, [*S]>(y) < z",
    ),
    "statements on one line": (
        "let x = a y = b return x",
        """
        let x = a
        y = b
        return x
        """,
    ),
    "an if on one line": (
        "let x = if a {\nb\n} else {\nc\n}",
        "let x = if a { b } else { c }",
    ),
    "a match never is": (
        "let x = match m { some(y) => y none => a }",
        """
        let x = match m {
            some(y) => y
            none => a
        }
        """,
    ),
    "an empty loop": ("while a {\n\n}", "while a {}"),
    "loops and their values": (
        "for i in 0 .. n-1 { x=i } let (a,b)=for i in 0..n{// first\nlet y=i yield(y,1)}",
        """
        for i in 0..n - 1 {
            x = i
        }
        let (a, b) = for i in 0..n { // first
            let y = i
            yield (y, 1)
        }
        """,
    ),
    "literals as written": (
        'let x = f(0xFF, 1_000, 1E-5, "\\u{1F600}")',
        'let x = f(0xFF, 1_000, 1E-5, "\\u{1F600}")',
    ),
    "comments at the ends of lines": (
        "let x = a//one\n\n\n//two\ny = b /* three */",
        """
        let x = a //one

        //two
        y = b /* three */
        """,
    ),
    "a comment breaks its list": (
        "let x = f(a, // one\nb)",
        """
        let x = f(
            a, // one
            b,
        )
        """,
    ),
    "a comment before a comma": (
        "let x = f(a // one\n, b /* two */)",
        """
        let x = f(
            a, // one
            b /* two */,
        )
        """,
    ),
    "a comment inside a line": (
        "let x = f(/* of */ a, b /* and */)",
        "let x = f(/* of */ a, b /* and */)",
    ),
    "a comment before a bracket": (
        "let x = [a,\n// end\n]",
        """
        let x = [
            a,
            // end
        ]
        """,
    ),
    "a comment in empty brackets": ("let x = f( /* none */ )", "let x = f(/* none */)"),
    "a comment before an operator": (
        "let x = a // one\n+ b",
        """
        let x =
            a + // one
            b
        """,
    ),
    "a comment before a value": (
        "let x =\n// why\nf(a)",
        """
        let x =
            // why
            f(a)
        """,
    ),
    "a comment before an equals sign": (
        "let x // why\n= a",
        """
        let x = // why
            a
        """,
    ),
    "a comment of several lines": (
        "let x = a\n        /* one\n             two\n         */\nreturn x",
        """
        let x = a
        /* one
             two
         */
        return x
        """,
    ),
    "a comment with stars": (
        "    /* one\n* two\n      */ return x",
        """
        /* one
         * two
         */ return x
        """,
    ),
    "comments around else": (
        "let x = if a { b } // one\nelse { // two\nc }",
        """
        let x = if a {
            b
        } // one
        else { // two
            c
        }
        """,
    ),
}


@pytest.mark.parametrize(("before", "after"), BODIES.values(), ids=BODIES)
def test_bodies(before: str, after: str) -> None:
    text = formatted(f"module m\nfn f() {{\n{before}\n}}\n")
    body = textwrap.dedent(text.removeprefix("module m\n\nfn f() {\n").removesuffix("}\n"))
    assert body == textwrap.dedent(after).strip("\n") + "\n"


def test_a_file_s_edges() -> None:
    assert formatted("module m") == "module m\n"
    assert formatted("\ufeff\r\n// a \t\r\nmodule m\r\n\r\n\r\n// b\r\n") == (
        "// a\nmodule m\n\n// b\n"
    )


def test_a_clause_over_the_limit_gets_lines_of_its_own() -> None:
    head = "module m\n\nfn f<A: Dim>(x: f32) -> f32\nwhere"
    fits = "A * " * 20 + "A == 0"
    assert formatted(f"{head} {fits} {{\n}}\n") == f"{head} {fits} {{}}\n"
    long = "A * " * 22 + "A == 0"
    assert formatted(f"{head} {long}, {{}}\n") == f"{head}\n    {long}\n{{}}\n"


def test_the_public_function() -> None:
    assert linnet.format("module m\nconst A=1") == "module m\n\nconst A = 1\n"
    broken = "module m\nconst  A="
    assert linnet.format(broken) == broken
