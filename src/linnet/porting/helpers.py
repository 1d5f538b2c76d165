"""Functions that the language lacks, as Linnet source: put into a module that calls them."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Each on elements of one float dtype. What they call is found by its name.
_TEXTS = """
/// The largest float of all.
fn infinity<T: Float>() -> T {
    return 1.0 / cast<T>(0)
}

/// What no number is.
fn not_a_number<T: Float>() -> T {
    return infinity<T>() - infinity<T>()
}

/// -1, 0 or 1, as x is below, at or above zero.
fn sign<*S: Shape, T: Numeric>(x: Tensor[*S; T]) -> Tensor[*S; T] {
    return select(x > 0, cast<T>(1), select(x < 0, 0 - cast<T>(1), x))
}

/// The largest whole number that is not above x.
fn floor<*S: Shape, T: Float>(x: Tensor[*S; T]) -> Tensor[*S; T] {
    let whole = cast<T>(cast<i64>(x))
    let below = select(whole > x, whole - 1.0, whole)
    return select(cast<f32>(abs(x)) < 9e18, below, x)
}

/// The smallest whole number that is not below x.
fn ceil<*S: Shape, T: Float>(x: Tensor[*S; T]) -> Tensor[*S; T] {
    return -floor(-x)
}

/// The nearest whole number, of two the even one.
fn round_half_even<*S: Shape, T: Float>(x: Tensor[*S; T]) -> Tensor[*S; T] {
    let below = floor(x)
    let rest = x - below
    let even = 2.0 * floor(below * 0.5) == below
    let half = select(even, below, below + 1.0)
    return select(rest < 0.5, below, select(rest > 0.5, below + 1.0, half))
}

/// The nearest whole number, of two the one further from zero.
fn round_half_away<*S: Shape, T: Float>(x: Tensor[*S; T]) -> Tensor[*S; T] {
    let size = abs(x)
    let below = floor(size)
    let near = select(size - below < 0.5, below, below + 1.0)
    return select(x < 0.0, -near, near)
}

/// Whether x is a number, and no infinity.
fn is_finite<*S: Shape, T: Float>(x: Tensor[*S; T]) -> Tensor[*S; bool] {
    return x - x == 0.0
}

/// `exp(x) - 1`, exact near 0 too.
fn expm1<*S: Shape, T: Float>(x: Tensor[*S; T]) -> Tensor[*S; T] {
    let half = tanh(0.5 * x)
    return select(abs(x) < 1.0, 2.0 * half / (1.0 - half), exp(x) - 1.0)
}

/// `log(1 + x)`, exact near 0 too.
fn log1p<*S: Shape, T: Float>(x: Tensor[*S; T]) -> Tensor[*S; T] {
    let whole = 1.0 + x
    let near = whole == 1.0
    let divisor = select(near, cast<T>(1), whole - 1.0)
    return select(near, x, select(abs(x) < 1.0, log(whole) * x / divisor, log(whole)))
}

/// `x` to the power of `y`, worked out in f64 and rounded once.
fn power<*S: Shape, T: Float>(x: Tensor[*S; T], y: Tensor[*S; T]) -> Tensor[*S; T] {
    let size = cast<T>(exp(cast<f64>(y) * log(cast<f64>(abs(x)))))
    let whole = floor(y) == y
    let odd = whole & (floor(0.5 * y) != 0.5 * y)
    let signed = select(x < 0.0, select(whole, select(odd, -size, size), not_a_number<T>()), size)
    return select(y == 0.0, cast<T>(1), signed)
}

/// The error function, off by less than 2e-7: a series near 0, `erfc` elsewhere.
fn erf<*S: Shape, T: Float>(x: Tensor[*S; T]) -> Tensor[*S; T] {
    let square = x * x
    let fourth = 1.0 / 42.0 - square * (1.0 / 216.0 - square / 1320.0)
    let second = 1.0 / 3.0 - square * (0.1 - square * fourth)
    let series = 1.1283791670955126 * x * (1.0 - square * second)
    return select(abs(x) < 0.5, series, 1.0 - erfc(x))
}

/// 1 less the error function, by a Chebyshev fit whose relative error is below 1.2e-7 everywhere
/// (Press, Teukolsky, Vetterling and Flannery, Numerical Recipes, 6.2).
fn erfc<*S: Shape, T: Float>(x: Tensor[*S; T]) -> Tensor[*S; T] {
    let size = abs(x)
    let t = 1.0 / (1.0 + 0.5 * size)
    let high = -0.82215223 + t * 0.17087277
    let upper = 0.27886807 + t * (-1.13520398 + t * (1.48851587 + t * high))
    let lower = 0.37409196 + t * (0.09678418 + t * (-0.18628806 + t * upper))
    let fitted = -size * size - 1.26551223 + t * (1.00002368 + t * lower)
    let tail = t * exp(fitted)
    return select(x < 0.0, 2.0 - tail, tail)
}

/// The logarithm of `softmax` over the last axis.
fn log_softmax<*S: Shape, N: Dim, T: Float>(x: Tensor[*S, N; T]) -> Tensor[*S, N; T] {
    let peak[*s] = max[n] x[*s, n]
    let centred[*s, n] = x[*s, n] - peak[*s]
    let total[*s] = sum[n] exp(centred[*s, n])
    let result[*s, n] = centred[*s, n] - log(total[*s])
    return result
}
"""

HELPERS: dict[str, str] = {
    name: text.strip("\n")
    for text in re.split(r"\n\n(?=///)", _TEXTS.strip("\n"))
    for name in re.findall(r"^fn (\w+)", text, re.MULTILINE)
}
APPROXIMATE = {
    "erf": "`erf` is a polynomial, off by less than 2e-7",
    "erfc": "`erfc` is a Chebyshev fit, off by less than 1.2e-7 of its value",
}


def texts_of(names: Iterable[str]) -> list[str]:
    """The source of the helpers and of those that they call, in the order of this file."""
    wanted, open_ = set[str](), list(names)
    while open_:
        name = open_.pop()
        if name not in wanted:
            wanted.add(name)
            open_ += [n for n in HELPERS if re.search(rf"\b{n}[<(]", HELPERS[name]) and n != name]
    return [text for name, text in HELPERS.items() if name in wanted]
