"""Programs drawn at random, and real ones with other spaces, lines and comments between tokens."""

from __future__ import annotations

from functools import cache
from random import Random

from linnet.diagnostics import Findings
from linnet.source import Source
from linnet.syntax import lex
from linnet.syntax.exprs import BINDING

SPACES = [" ", " ", " ", "  ", "\t", "\n", "\n", "\r\n", " \n\n\n\t"]
COMMENTS = [
    "// c{}\n",
    "/// d{}\n",
    "/* b{} */",
    "/** d{} */",
    "/* b{}\n   b */",
    "/* b{}\n * b\n */",
]
COMMENTS += ["//\n", "/**/", "/* a /* b{} */ */"]


@cache
def words(text: str) -> list[str]:
    """Its tokens, without the comments."""
    tokens, _ = lex(Source("t", text), Findings())
    return [token.text for token in tokens[:-1]]


def disturbed(text: str, random: Random, rate: float) -> str:
    """The same tokens with other gaps, of which about `rate` hold comments."""
    parts: list[str] = []
    for word in words(text):
        parts.append(random.choice(SPACES))
        while random.random() < rate:
            comment = random.choice(COMMENTS).format(random.randrange(1000))
            parts += [comment, random.choice(SPACES)]
        parts.append(word)
    ends = ["", "\n", " // end", "\n/* end */\n\n"]
    return "".join(parts) + (random.choice(ends) if rate else "")


# ---------------------------------------------------------------- programs

OPERATORS = list(BINDING)
NAMES = ["a", "batch", "query_heads", "x", "scale"]


def program(random: Random) -> str:
    """A text that parses, of random expressions in every kind of place."""
    body = "\n".join(statement(random, 2) for _ in range(random.randint(1, 4)))
    return (
        f"module m const X: {type_(random, 1)} = {expression(random, 3)}\n"
        f"struct P<{name(random)}: Dim{comma(random)}> where {tight(random, 1)} > "
        f"{tight(random, 1)}{comma(random)} {{ {name(random)}: {type_(random, 1)} "
        f"y: {type_(random, 1)} = {expression(random, 1)} }}\n"
        f"fn f<{name(random)}: Dim = {tight(random, 1)}{comma(random)}>"
        f"(x: {type_(random, 2)} = {expression(random, 2)}{comma(random)})"
        f" -> {type_(random, 2)} where {tight(random, 1)} == {tight(random, 2)}{comma(random)}"
        f" {{ {body} return {expression(random, 3)} }}"
    )


def statement(random: Random, depth: int) -> str:
    value = expression(random, depth)
    forms = [
        f"let {name(random)} = {value}",
        f"let ({name(random)}, some({name(random)}){comma(random)}): {type_(random, 1)} = {value}",
        f"let {name(random)}[i, *s{comma(random)}] = sum[k] {value}",
        f"x = {value}",
    ]
    if depth:
        forms.append(f"for i in a..{tight(random, 1)} {{ {statement(random, depth - 1)} }}")
        forms.append(f"let {name(random)} = {loop(random, depth)}")
        forms.append(f"while {value} {{ {statement(random, depth - 1)} }}")
        forms.append(f"static for i in 0..{tight(random, 1)} {{ {statement(random, depth - 1)} }}")
    return random.choice(forms)


def loop(random: Random, depth: int) -> str:
    body = f"{statement(random, depth - 1)} yield {expression(random, depth - 1)}"
    return f"for i in {tight(random, 1)}..n {{ {body} }}"


def expression(random: Random, depth: int) -> str:
    if depth == 0 or random.random() < 0.1:
        return random.choice([*NAMES, "1", "2.5", "none", "true", "a.b.c", '"text"'])
    value = expression(random, depth - 1)
    forms = [
        f"{primary(random, depth - 1)} {random.choice(OPERATORS)} {primary(random, depth - 1)} "
        f"{random.choice(OPERATORS)} {primary(random, depth - 1)}",
        f"if {value} {{ {expression(random, depth - 1)} }} else {{ {value} }}",
        f"if {name(random)} {{ {value} }} else if {value} {{ a }} else {{ b }}",
        f"match {name(random)} {{ some(v) => {value} none => {expression(random, depth - 1)} }}",
        f"{random.choice(['sum', 'max<f32>'])}[k{comma(random)}] {value}",
        primary(random, depth),
    ]
    return random.choice(forms)


def primary(random: Random, depth: int) -> str:
    if depth == 0:
        return name(random)
    value = expression(random, depth - 1)
    forms = [
        f"({value})",
        f"{random.choice('-!+')}{primary(random, depth - 1)}",
        f"({value}, {name(random)}{comma(random)})",
        f"({value},)",
        f"[{value}, *S{comma(random)}]",
        f"some({value})",
        f"{name(random)}({value}, axis = {value}{comma(random)})",
        f"f<{tight(random, depth - 1)}, [B, *S]{comma(random)}>({value})",
        f"{primary(random, depth - 1)}[{value}, {name(random)}:{value}, ::2, ...{comma(random)}]",
        f"{primary(random, depth - 1)}.field()",
        f"f({loop(random, 1)}{comma(random)})",
    ]
    return random.choice(forms)


def tight(random: Random, depth: int) -> str:
    """An expression for generics, clauses and bounds."""
    if depth == 0:
        return name(random)
    sign = random.choice("+-*/%")
    return f"{tight(random, depth - 1)} {sign} ({tight(random, depth - 1)})"


def type_(random: Random, depth: int) -> str:
    if depth == 0:
        return random.choice(["f32", "T", "a.Record"])
    inner = type_(random, depth - 1)
    forms = [
        f"Tensor[{tight(random, depth - 1)}, *S; f32]",
        f"({inner}, {type_(random, depth - 1)}{comma(random)})",
        f"({inner},)",
        f"[{inner}; {tight(random, depth)}]",
        f"Layer<{tight(random, depth)}, T{comma(random)}>?",
    ]
    return random.choice(forms)


def name(random: Random) -> str:
    return random.choice(NAMES)


def comma(random: Random) -> str:
    return random.choice(["", "", ","])
