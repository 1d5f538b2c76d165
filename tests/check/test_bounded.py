"""Short programs whose sizes, tuples or facts would take minutes to work out."""

from __future__ import annotations

from functools import partial

import pytest

from effort import calls
from linnet.check import check_text
from linnet.check.analysis import Analysis
from linnet.diagnostics import Findings
from linnet.source import Source, Span

SUM = "(" + " + ".join(f"A{i}" for i in range(12)) + ")"
GENERICS = ", ".join(f"A{i}: Dim" for i in range(20))
FACTORS = " * ".join(f"(A{i} + 1)" for i in range(20))


MOST = 10_000_000  # calls: a few seconds


def checked(text: str) -> Analysis:
    """What is found about the text, with a bounded amount of work."""
    found: list[Analysis] = []
    work = calls(lambda: found.append(check_text(text)))
    assert work < MOST, work
    return found[0]


def lets(first: str, each: str, count: int) -> str:
    lines = "".join(f"    {each.format(i=i, j=i + 1)}\n" for i in range(count))
    return (
        f"fn f<N: Dim, M: Dim>(c: bool, x0: Tensor[N; f32]) -> f32 {{\n{first}{lines}"
        "    return 1.0\n}\n"
    )


TOO_LARGE = {
    "the power of a sum": f"fn f<{GENERICS}>(x: Tensor[{' * '.join([SUM] * 8)}; f32]) -> f32 {{\n"
    "    return 1.0\n}\n",
    "a product of sums": f"fn f<{GENERICS}>(x: Tensor[{FACTORS}; f32]) -> f32 {{\n"
    "    return 1.0\n}\n",
    "an element count": f"fn f<{GENERICS}>(x: Tensor[{FACTORS.replace(' * ', ', ')}; f32]) -> f32 "
    "{\n    let _y = reshape(x, [A0])\n    return 1.0\n}\n",
    "doubled lengths": lets("", "let x{j} = concat(x{i}, x{i}, axis = 0)", 300),
    "squares of squares": lets("    let n0 = N + 1\n", "let n{j} = n{i} * n{i} + N", 30),
    "quotients in quotients": lets("    let n0 = N + 1\n", "let n{j} = n{i} / (M + 1) + n{i}", 99),
    "doubled tuples": lets("", "let x{j} = (x{i}, x{i})", 10),
    "aliases of tuples": "type T0 = (f32, f32)\n"
    + "".join(f"type T{i + 1} = (T{i}, T{i})\n" for i in range(99)),
    "a product of very many": f"fn f<N: Dim>(x: Tensor[{', '.join(['N'] * 2500)}; f32]) -> f32 {{\n"
    "    let _y = reshape(x, [N])\n    return 1.0\n}\n",
    "a constant": "const C0 = 3\n" + "".join(f"const C{i + 1} = C{i} * C{i}\n" for i in range(40)),
}


@pytest.mark.parametrize("name", TOO_LARGE)
@pytest.mark.slow
def test_what_is_too_large_is_reported_once(name: str) -> None:
    found = [d.code for d in checked(f"module m\n\n{TOO_LARGE[name]}").findings.items]
    assert [code for code in found if code.startswith("E")] == ["E2190"]


@pytest.mark.slow
def test_operations_deep_within_each_other_are_compared_in_good_time() -> None:
    def nested(k: int) -> str:
        return "A" if k == 0 else f"(({nested(k - 1)}) + B{k % 7}) / (B{(k + 1) % 7} + 1)"

    generics = ", ".join(f"B{k}: Dim" for k in range(7))
    analysis = checked(
        f"module m\n\nfn f<A: Dim, {generics}>(x: Tensor[{nested(40)}; f32]) -> "
        f"Tensor[{nested(39)}; f32] {{\n    return x\n}}\n"
    )
    assert [d.code for d in analysis.findings.items] == ["E2202"]


@pytest.mark.slow
def test_hundreds_of_hard_failures_are_all_reported() -> None:
    one = (
        "fn go{i}<A: Dim, B: Dim, C: Dim>(x: Tensor[A * A + B; f32]) -> Tensor[C * C + {i}; f32]\n"
        "where A * A + B * B == C * C + {i}, A % (B + 1) == C % 3 {{\n    return x\n}}\n"
    )
    analysis = checked("module m\n\n" + "".join(one.format(i=i) for i in range(90)))
    assert [d.code for d in analysis.findings.items] == ["E2202"] * 90


def test_a_near_name_is_not_looked_for_among_very_long_ones() -> None:
    long = "ab" * 100
    lines = "".join(f"    let {long}{i} = x\n    let _{i} = b{long}{i}a\n" for i in range(60))
    analysis = checked(f"module m\n\nfn f(x: f32) -> f32 {{\n{lines}    return x\n}}\n")
    assert sum(d.code == "E1201" for d in analysis.findings.items) == 60


def nested_blocks(n: int) -> str:
    """Blocks that each hold the one before."""
    one = "block B{i}<H: Dim> {{\n    sub one: B{before}<H>\n}}\n"
    return "block B0<H: Dim> {}\n" + "".join(one.format(i=i, before=i - 1) for i in range(1, n))


def test_work_grows_with_the_blocks() -> None:
    small, large = (
        calls(partial(check_text, f"module m\n\n{nested_blocks(n)}")) for n in (25, 200)
    )
    assert large < 10 * small


def test_errors_are_not_counted_again() -> None:
    findings, source = Findings(), Source("m", "x" * 500)
    for at in range(500):
        findings.add("E1201", "no", Span(source, at, at + 1))
        assert findings.errors == at + 1
    assert calls(lambda: findings.errors) < 20
    findings.add("W1002", "unused", Span(source, 0, 1))
    assert findings.errors == 500
    findings.items = findings.items[:3]
    assert findings.errors == 3
