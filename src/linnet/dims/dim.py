"""Dimensions: integer polynomials over atoms, in a normal form.

Equality of two `Dim`s is equality of normal forms: it claims that they are the same size everywhere
when it holds and nothing when it does not. Truth is only ever what `linnet.dims.prove` answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from operator import attrgetter, eq, ge, gt, le, lt, ne
from typing import Literal

from linnet.diagnostics import LinnetError

TERMS = 500  # products in one dimension; a few are what programs have
KEY = 10_000  # characters of its text
FACTORS = 400  # factors of one product
DEEPEST = 60  # operations within each other
LARGEST = 2**256  # numbers in it

AtomOp = Literal["name", "/", "%", "min", "max"]
RelationOp = Literal["==", "!=", "<", "<=", ">", ">="]


class TooLarge(LinnetError):
    """A dimension that has more parts than can be computed with in good time."""

    def __init__(self) -> None:
        super().__init__(
            f"a size is too large to compute with: multiplied out it has over {TERMS} products, or"
            " its factors, its numbers or the operations within each other are too many"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """A factor that cannot be multiplied out: a name, or an operation the polynomial cannot hold.

    `args` keeps the written order; the arguments of `min` and `max` compare in any order.
    """

    op: AtomOp
    name: str = ""
    args: tuple[Dim, ...] = ()
    key: str = field(init=False, repr=False)
    """Text that two atoms share exactly when they are equal: cheap to hash, compare and order."""
    depth: int = field(init=False, repr=False)
    """How many operations stand within each other."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self._make_key())
        inner = (atom.depth for arg in self.args for atom in arg.atoms())
        object.__setattr__(self, "depth", 1 + max(inner, default=0))

    def _make_key(self) -> str:
        if self.op == "name":
            return self.name
        keys = [arg.key for arg in self.args]
        if self.op in ("min", "max"):
            keys.sort()
            return f"{self.op}({','.join(keys)})"
        return f"({keys[0]}{self.op}{keys[1]})"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Atom) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """The atom's value at these sizes; ZeroDivisionError where it has none."""
        match self.op:
            case "name":
                return sizes[self.name]
            case "/":
                return self.args[0].evaluate(sizes) // self.args[1].evaluate(sizes)
            case "%":
                return self.args[0].evaluate(sizes) % self.args[1].evaluate(sizes)
            case "min":
                return min(arg.evaluate(sizes) for arg in self.args)
            case "max":
                return max(arg.evaluate(sizes) for arg in self.args)

    def __str__(self) -> str:
        match self.op:
            case "name":
                return self.name
            case "min" | "max":
                return f"{self.op}({', '.join(str(arg) for arg in self.args)})"
            case _:
                left, right = self.args
                return f"{_as_factor(left, first=True)} {self.op} {_as_factor(right, first=False)}"


Monomial = tuple[Atom, ...]
"""A product of atoms; the empty one is 1."""

_atom_key: Callable[[Atom], str] = attrgetter("key")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Dim:
    """A sum of coefficient times product: sorted, like terms collected, without zeros.

    `written` holds the same products in the order the user wrote them, for printing alone.
    Build one with `Dim.of` and the operators; `//` and `%` mean the language's `/` and `%`.
    """

    terms: tuple[tuple[Monomial, int], ...]
    written: tuple[Monomial, ...]
    key: str = field(init=False)
    _names: frozenset[str] | None = field(init=False, default=None)
    _divisors: tuple[Dim, ...] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        text = "+".join(
            f"{coefficient}*{'*'.join([atom.key for atom in product])}"
            for product, coefficient in self.terms
        )
        object.__setattr__(self, "key", text)

    @staticmethod
    def of(value: int | str | Dim) -> Dim:
        """The dimension a constant, a name, or a dimension stands for."""
        if isinstance(value, Dim):
            return value
        return _of_constant(value) if isinstance(value, int) else _of_name(value)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Dim) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def constant(self) -> int | None:
        """The value, when it is the same at all sizes by its form."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None

    def names(self) -> frozenset[str]:
        """Every name in the dimension, those inside divisions and `min`/`max` included."""
        if self._names is None:
            found: set[str] = set()
            for atom in self.atoms():
                if atom.op == "name":
                    found.add(atom.name)
                for arg in atom.args:
                    found |= arg.names()
            object.__setattr__(self, "_names", frozenset(found))
        assert self._names is not None
        return self._names

    def atoms(self) -> Iterable[Atom]:
        """The atoms of the products, outermost ones only, repeated as they stand."""
        return (atom for product, _ in self.terms for atom in product)

    def divisors(self) -> tuple[Dim, ...]:
        """Every divisor in the dimension, inner ones first, each once."""
        if self._divisors is None:
            found: dict[Dim, None] = {}
            for product in self.written:
                for atom in product:
                    for arg in atom.args:
                        found.update(dict.fromkeys(arg.divisors()))
                    if atom.op in ("/", "%"):
                        found[atom.args[1]] = None
            object.__setattr__(self, "_divisors", tuple(found))
        assert self._divisors is not None
        return self._divisors

    def coefficients(self) -> Iterable[tuple[Monomial, int]]:
        """The terms as they are written."""
        lookup = dict(self.terms)
        return ((product, lookup[_sorted(product)]) for product in self.written)

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """The value at these sizes; ZeroDivisionError where a division has none."""
        total = 0
        for product, coefficient in self.terms:
            for atom in product:
                coefficient *= atom.evaluate(sizes)
            total += coefficient
        return total

    def substitute(self, sizes: Mapping[str, Dim | int]) -> Dim:
        """The dimension with each of these names replaced everywhere."""
        if self.names().isdisjoint(sizes):
            return self
        total = ZERO
        for product, coefficient in self.coefficients():
            value = Dim.of(coefficient)
            for atom in product:
                value = value * _substitute_atom(atom, sizes)
            total = total + value
        return total

    def __add__(self, other: Dim | int) -> Dim:
        right = Dim.of(other)
        if not right.terms:
            return self
        if not self.terms:
            return right
        return _collect([*self.coefficients(), *right.coefficients()])

    def __radd__(self, other: int) -> Dim:
        return Dim.of(other) + self

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim | int) -> Dim:
        return self + Dim.of(other) * -1

    def __rsub__(self, other: int) -> Dim:
        return Dim.of(other) - self

    def __mul__(self, other: Dim | int) -> Dim:
        right = Dim.of(other)
        if right.key == ONE.key or not self.terms:
            return self
        if self.key == ONE.key or not right.terms:
            return right
        if len(self.terms) * len(right.terms) > 4 * TERMS:
            raise TooLarge
        return _collect(
            (a + b, m * n) for a, m in self.coefficients() for b, n in right.coefficients()
        )

    def __rmul__(self, other: int) -> Dim:
        return Dim.of(other) * self

    def __floordiv__(self, other: Dim | int) -> Dim:
        right = Dim.of(other)
        by = right.constant
        if by is None or by <= 0:
            return _fold(self, right) or _apply("/", self, right)
        return _divide(self, by)

    def __rfloordiv__(self, other: int) -> Dim:
        return Dim.of(other) // self

    def __mod__(self, other: Dim | int) -> Dim:
        right = Dim.of(other)
        by = right.constant
        if by is None or by <= 0:
            folded = _fold(self, right)
            return _apply("%", self, right) if folded is None else self - folded * right
        return _remainder(self, by)

    def __rmod__(self, other: int) -> Dim:
        return Dim.of(other) % self

    def __str__(self) -> str:
        return _print_sum(self)

    def __repr__(self) -> str:
        return f"<{self}>"


def dim_min(a: Dim | int, b: Dim | int) -> Dim:
    """The smaller of two dimensions."""
    a, b = Dim.of(a), Dim.of(b)
    difference = (a - b).constant
    if difference is not None:
        return a if difference <= 0 else b
    return _apply("min", a, b)


def dim_max(a: Dim | int, b: Dim | int) -> Dim:
    """The larger of two dimensions."""
    a, b = Dim.of(a), Dim.of(b)
    difference = (a - b).constant
    if difference is not None:
        return a if difference >= 0 else b
    return _apply("max", a, b)


@dataclass(frozen=True, slots=True)
class Relation:
    """A comparison of two dimensions: a `where` clause, or something to prove."""

    op: RelationOp
    left: Dim
    right: Dim

    def negated(self) -> Relation:
        """The relation that holds exactly where this one does not."""
        return Relation(_NEGATED[self.op], self.left, self.right)

    def substitute(self, sizes: Mapping[str, Dim | int]) -> Relation:
        """The relation with each of these names replaced everywhere."""
        return Relation(self.op, self.left.substitute(sizes), self.right.substitute(sizes))

    def names(self) -> frozenset[str]:
        """Every name on either side."""
        return self.left.names() | self.right.names()

    def divisors(self) -> tuple[Dim, ...]:
        """Every divisor on either side, inner ones first, each once."""
        return tuple(dict.fromkeys(self.left.divisors() + self.right.divisors()))

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it is true at these sizes; it is not where something is divided by zero."""
        try:
            return _COMPARE[self.op](self.left.evaluate(sizes), self.right.evaluate(sizes))
        except ZeroDivisionError:
            return False

    def __str__(self) -> str:
        return f"{self.left} {self.op} {self.right}"


def equal(a: Dim | int, b: Dim | int) -> Relation:
    """The claim that two dimensions are one size."""
    return Relation("==", Dim.of(a), Dim.of(b))


_NEGATED: dict[RelationOp, RelationOp] = {
    "==": "!=",
    "!=": "==",
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
}
_COMPARE: dict[RelationOp, Callable[[int, int], bool]] = {
    "==": eq,
    "!=": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}


def _sorted(product: Monomial) -> Monomial:
    return product if len(product) < 2 else tuple(sorted(product, key=_atom_key))


def _collect(terms: Iterable[tuple[Monomial, int]]) -> Dim:
    """The sum of these terms; each product keeps the place and order in which it first stands."""
    sums: dict[Monomial, int] = {}
    written: dict[Monomial, Monomial] = {}
    for product, coefficient in terms:
        ordered = _sorted(product)
        if ordered in sums:
            sums[ordered] += coefficient
        else:
            sums[ordered] = coefficient
            written[ordered] = product
    kept = [(product, coefficient) for product, coefficient in sums.items() if coefficient]
    shown = tuple(written[product] for product, _ in kept)
    if len(kept) > 1:
        kept.sort(key=_term_key)
    return _bounded(Dim(tuple(kept), shown))


def _bounded(dim: Dim) -> Dim:
    if len(dim.terms) > TERMS or len(dim.key) > KEY:
        raise TooLarge
    if any(abs(n) > LARGEST or len(product) > FACTORS for product, n in dim.terms):
        raise TooLarge
    return dim


def _term_key(term: tuple[Monomial, int]) -> tuple[str, ...]:
    return tuple([atom.key for atom in term[0]])


@lru_cache(maxsize=1024)
def _of_constant(value: int) -> Dim:
    return Dim((((), int(value)),), ((),)) if value else Dim((), ())


@lru_cache(maxsize=4096)
def _of_name(name: str) -> Dim:
    return _of_atom(Atom("name", name))


def _apply(op: AtomOp, a: Dim, b: Dim) -> Dim:
    atom = Atom(op, args=(a, b))
    if atom.depth > DEEPEST:
        raise TooLarge
    return _bounded(_of_atom(atom))


def _of_atom(atom: Atom) -> Dim:
    return Dim((((atom,), 1),), ((atom,),))


ZERO = _of_constant(0)
ONE = _of_constant(1)


def _substitute_atom(atom: Atom, sizes: Mapping[str, Dim | int]) -> Dim:
    if atom.op == "name":
        return Dim.of(sizes.get(atom.name, atom.name))
    left, right = (arg.substitute(sizes) for arg in atom.args)
    match atom.op:
        case "/":
            return left // right
        case "%":
            return left % right
        case "min":
            return dim_min(left, right)
        case "max":
            return dim_max(left, right)


def _fold(left: Dim, right: Dim) -> Dim | None:
    """The quotient of two constants, where the divisor is not zero."""
    a, b = left.constant, right.constant
    return Dim.of(a // b) if a is not None and b else None


def _divide(left: Dim, by: int) -> Dim:
    """`left / by` for a positive `by`, with its whole multiples taken out of the division."""
    whole: list[tuple[Monomial, int]] = []
    rest: list[tuple[Monomial, int]] = []
    for product, coefficient in left.coefficients():
        if coefficient % by == 0:
            whole.append((product, coefficient // by))
        else:
            rest.append((product, coefficient))
    if all(not product for product, _ in rest):
        whole.extend((product, coefficient // by) for product, coefficient in rest)
        return _collect(whole)
    shared = gcd(by, *(coefficient for _, coefficient in rest))
    numerator = _collect((product, coefficient // shared) for product, coefficient in rest)
    inner = _nested(numerator, by // shared)
    return _collect([*whole, *inner.coefficients()])


def _nested(numerator: Dim, by: int) -> Dim:
    """`numerator / by`, where `a / b / c` is written `a / (b * c)` for positive constants."""
    if len(numerator.terms) == 1:
        product, coefficient = numerator.terms[0]
        if coefficient == 1 and len(product) == 1 and product[0].op == "/":
            inner, outer = product[0].args
            if outer.constant is not None and outer.constant > 0:
                return _divide(inner, outer.constant * by)
    return _apply("/", numerator, Dim.of(by))


def _remainder(left: Dim, by: int) -> Dim:
    """`left % by` for a positive `by`, without the whole multiples of `by` in `left`."""
    rest = [(product, c) for product, c in left.coefficients() if c % by]
    if all(not product for product, _ in rest):
        return Dim.of(sum(c for _, c in rest) % by)
    return _apply("%", _collect(rest), Dim.of(by))


def _print_sum(dim: Dim) -> str:
    terms = list(dim.coefficients())
    if not terms:
        return "0"
    # `H - K`, not `-K + H`.
    first = next((i for i, (_, coefficient) in enumerate(terms) if coefficient > 0), 0)
    terms.insert(0, terms.pop(first))
    text = _print_term(*terms[0])
    for product, coefficient in terms[1:]:
        sign = "-" if coefficient < 0 else "+"
        text += f" {sign} {_print_term(product, abs(coefficient))}"
    return text


def _print_term(product: Monomial, coefficient: int) -> str:
    if not product:
        return str(coefficient)
    factors: list[str] = []
    if coefficient not in (1, -1):
        factors.append(str(coefficient))
    for atom in product:
        bare = atom.op not in ("/", "%") or not factors
        factors.append(str(atom) if bare else f"({atom})")
    text = " * ".join(factors)
    return f"-{_guard(product[0], text)}" if coefficient == -1 else text


def _guard(first: Atom, text: str) -> str:
    """The text to put after a minus sign, which binds tighter than `/` and `%`."""
    return f"({text})" if first.op in ("/", "%") else text


def _as_factor(dim: Dim, *, first: bool) -> str:
    """The dimension as an operand of `/` or `%`, in parentheses where they are needed."""
    text = str(dim)
    if len(dim.terms) > 1 or text.startswith("-"):
        return f"({text})"
    if first or not dim.terms:
        return text
    product, coefficient = dim.terms[0]
    single = not product or (coefficient == 1 and len(product) == 1)
    plain = single and (not product or product[0].op not in ("/", "%"))
    return text if plain else f"({text})"
