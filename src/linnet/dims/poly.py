"""Integer polynomials over named variables, as the solver computes with them.

A monomial is the sorted tuple of its variables, the empty one being 1; a polynomial maps monomials
to coefficients that are not zero. Functions return new ones and never change their arguments.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from math import gcd

from linnet.dims.dim import TooLarge

Mono = tuple[str, ...]
Poly = dict[Mono, int]
Frozen = tuple[tuple[Mono, int], ...]

UNIT: Mono = ()
MOST = 4000  # products of terms formed in one multiplication


def constant(value: int) -> Poly:
    """The polynomial that is this number."""
    return {UNIT: value} if value else {}


def variable(name: str) -> Poly:
    """The polynomial that is this variable."""
    return {(name,): 1}


def as_constant(p: Poly) -> int | None:
    """The number the polynomial is, if it is one."""
    if not p:
        return 0
    return p.get(UNIT) if len(p) == 1 else None


def add(p: Poly, q: Poly, scale: int = 1) -> Poly:
    """`p + scale * q`."""
    result = dict(p)
    for mono, coefficient in q.items():
        total = result.get(mono, 0) + scale * coefficient
        if total:
            result[mono] = total
        else:
            result.pop(mono, None)
    return result


def scaled(p: Poly, scale: int) -> Poly:
    """`scale * p`."""
    return {mono: scale * coefficient for mono, coefficient in p.items()} if scale else {}


def times(p: Poly, mono: Mono, scale: int = 1) -> Poly:
    """`scale * mono * p`."""
    if not mono:
        return p if scale == 1 else scaled(p, scale)
    return {join(m, mono): scale * coefficient for m, coefficient in p.items()}


def mul(p: Poly, q: Poly) -> Poly:
    """`p * q`."""
    if len(p) == 1:
        p, q = q, p
    if len(q) == 1:
        [(mono, coefficient)] = q.items()
        return times(p, mono, coefficient)
    if len(p) * len(q) > MOST:
        raise TooLarge
    result: Poly = {}
    for mono, coefficient in q.items():
        for other, weight in p.items():
            product = join(other, mono)
            result[product] = result.get(product, 0) + weight * coefficient
    return {mono: coefficient for mono, coefficient in result.items() if coefficient}


def join(a: Mono, b: Mono) -> Mono:
    """The product of two monomials."""
    if not a:
        return b
    return tuple(sorted(a + b)) if b else a


def quotient(a: Mono, b: Mono) -> Mono | None:
    """`a / b`, if `b` divides `a`."""
    if len(b) > len(a):
        return None
    rest = list(a)
    for name in b:
        if name not in rest:
            return None
        rest.remove(name)
    return tuple(rest)


def common(a: Mono, b: Mono) -> Mono:
    """The greatest common divisor of two monomials."""
    rest = list(b)
    shared: list[str] = []
    for name in a:
        if name in rest:
            rest.remove(name)
            shared.append(name)
    return tuple(shared)


def order(mono: Mono) -> tuple[int, Mono]:
    """Sorts monomials, divisors before products; multiplying both by a third keeps the order."""
    return (len(mono), mono)


def lead(p: Poly) -> Mono:
    """The last monomial in that order."""
    return max(p, key=order)


def freeze(p: Poly) -> Frozen:
    """A hashable form, equal for equal polynomials."""
    return tuple(sorted(p.items())) if len(p) > 1 else tuple(p.items())


def text(p: Poly) -> str:
    """A name for the polynomial, different for different ones."""
    return "+".join(f"{c}*{'*'.join(m)}" if m else str(c) for m, c in freeze(p)) or "0"


def variables(p: Poly) -> set[str]:
    """The variables in the polynomial."""
    return {name for mono in p for name in mono}


def content(coefficients: Iterable[int]) -> int:
    """The greatest number that divides all of them; 0 if all are 0."""
    return gcd(*coefficients)


def common_mono(monos: Iterable[Mono]) -> Mono:
    """The greatest monomial that divides all of them."""
    shared: Mono | None = None
    for mono in monos:
        shared = mono if shared is None else common(shared, mono)
        if not shared:
            return UNIT
    return shared or UNIT


def without(p: Poly, mono: Mono) -> Poly:
    """The polynomial divided by a monomial that divides it."""
    return {rest: c for m, c in p.items() if (rest := quotient(m, mono)) is not None}


def tight(p: Poly) -> Poly:
    """The strongest polynomial over the integers that is at least 0 where `p` is."""
    by = content(c for mono, c in p.items() if mono)
    return {mono: c // by for mono, c in p.items() if c // by} if by > 1 else p


def substitute(p: Poly, values: Mapping[str, Poly]) -> Poly:
    """The polynomial with these variables replaced."""
    if not mentions(p, values):
        return p
    result: Poly = {}
    for mono, coefficient in p.items():
        term: Poly = {UNIT: coefficient}
        kept: Mono = mono
        for at, name in enumerate(mono):
            value = values.get(name)
            if value is not None:
                if kept is mono:
                    kept = mono[:at]
                term = mul(term, value)
            elif kept is not mono:
                kept = (*kept, name)
        for other, weight in term.items():
            product = tuple(sorted(other + kept)) if other and kept else other or kept
            total = result.get(product, 0) + weight
            if total:
                result[product] = total
            else:
                del result[product]
        if len(result) > MOST:
            raise TooLarge
    return result


def mentions(p: Poly, names: Container[str]) -> bool:
    """Whether one of these variables stands in the polynomial."""
    for mono in p:
        for name in mono:
            if name in names:
                return True
    return False


def divide(num: Poly, den: Poly) -> tuple[Poly, Poly]:
    """`whole, rest` with `num == whole * den + rest`; `rest` is 0 if `den` divides `num`.

    The rest is the same for all `num` that differ by a multiple of `den`, provided that the leading
    coefficient is 1 or -1 or `den` is a single term.
    """
    top = lead(den)
    by = den[top]
    whole: Poly = {}
    rest = num
    done: set[Mono] = set()
    while True:
        candidates = [m for m in rest if m not in done and len(m) >= len(top)]
        if not candidates:
            return whole, rest
        mono = max(candidates, key=order)
        done.add(mono)
        factor = quotient(mono, top)
        times_by = 0 if factor is None else rest[mono] // by
        if factor is not None and times_by:
            step = {factor: times_by}
            whole = add(whole, step)
            rest = add(rest, mul(den, step), -1)
