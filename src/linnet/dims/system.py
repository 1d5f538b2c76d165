"""What a set of facts says, in the form proofs are made from.

Every operation that is not a polynomial becomes a variable: a floor division, which also gives `%`,
a `min`, a `max`. Then
- an equality becomes a rule that replaces a variable, or a product, by what it equals; so does a
  divisibility fact `a % b == 0`, which says `a == b * (a / b)`;
- everything else is a polynomial that is at least 0, and bounds on single variables.
The facts are worked into each other until nothing changes, so their order does not matter.

A fact is used only once all its divisors are proved positive by the others: none becomes positive
by standing under a division bar.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from functools import lru_cache

from linnet.dims.bounds import LARGEST, Bounds
from linnet.dims.dim import Atom, Dim, Relation, RelationOp
from linnet.dims.linear import DEGREE, Effort, impossible
from linnet.dims.poly import (
    UNIT,
    Frozen,
    Mono,
    Poly,
    add,
    as_constant,
    common,
    common_mono,
    constant,
    content,
    divide,
    freeze,
    lead,
    mentions,
    mul,
    quotient,
    scaled,
    substitute,
    text,
    tight,
    times,
    variable,
    without,
)

ROUNDS = 8  # of working facts into each other
STEPS = 80  # equalities made into rules in a round
PRODUCT_RULES = 10  # completed to at most this many
FACTS = 80  # inequalities kept at once
TERMS = 60  # of a polynomial; longer ones are not used as facts
EFFORT = 60_000  # spent on working facts into each other, and on each goal

Part = tuple[str, Poly, Poly]
"""An operation that became a variable: "/", "min" or "max", and its two operands."""


class System:
    """Facts worked into each other. Made by `System.of`; changed only by those who forked it."""

    __slots__ = (
        "_base",
        "_false",
        "_index",
        "at_least",
        "bounds",
        "effort",
        "equalities",
        "nonzero",
        "parts",
        "products",
        "rules",
        "unsettled",
        "waiting",
    )

    def __init__(self) -> None:
        self.rules: dict[str, Poly] = {}  # variable: what it equals, free of other rules' variables
        self.products: list[tuple[Mono, int, Poly]] = []  # coefficient * product == polynomial
        self.parts: dict[str, Part] = {}
        self.bounds = Bounds()
        self.at_least: dict[Frozen, Poly] = {}  # each is >= 0
        self.equalities: list[Poly] = []  # each is 0, still to be made into a rule
        self.nonzero: list[Poly] = []
        self.unsettled: list[str] = []  # parts whose sign is not yet known
        self.waiting: tuple[Relation, ...] = ()  # facts whose divisors may be 0 or less
        self.effort = Effort(EFFORT)
        self._index: dict[tuple[str, Frozen, Frozen], str] = {}
        self._base: tuple[int, list[Poly]] | None = None  # with the count of changes of bounds
        self._false = False

    @staticmethod
    def of(relations: Iterable[Relation]) -> System:
        """The system of these facts."""
        system = System()
        system.learn(relations)
        return system

    def fork(self, effort: Effort) -> System:
        """A copy to change, which may spend this effort."""
        twin = System()
        twin.effort = effort
        twin.rules = dict(self.rules)
        twin.products = list(self.products)
        twin.parts = dict(self.parts)
        twin.bounds = self.bounds.copy()
        twin.at_least = dict(self.at_least)
        twin.equalities = list(self.equalities)
        twin.nonzero = list(self.nonzero)
        twin.unsettled = list(self.unsettled)
        twin.waiting = self.waiting
        twin._false = self._false
        twin._index = dict(self._index)
        twin._base = self._base
        return twin

    @property
    def absurd(self) -> bool:
        """Whether no sizes satisfy the facts."""
        return self._false or self.bounds.absurd

    # Learning

    def learn(self, relations: Iterable[Relation]) -> None:
        """Adds facts, each once its divisors are known to be positive, and works them in."""
        waiting = [*self.waiting, *relations]
        waiting.sort(key=lambda r: (len(r.divisors()), r.left.key, r.right.key))
        while waiting:
            blocked: list[Relation] = []
            for relation in waiting:
                if all(self.positive(divisor) for divisor in relation.divisors()):
                    self.state(relation)
                else:
                    blocked.append(relation)
            self.settle()
            if len(blocked) == len(waiting):
                break
            waiting = blocked
        self.waiting = tuple(waiting)

    def state(self, relation: Relation) -> None:
        """Adds a fact whose divisors are positive; `settle` must follow."""
        difference = add(self.poly(relation.left), self.poly(relation.right), -1)
        op, p = standard(relation.op, difference)
        if op == "==":
            self.equalities.append(p)
        elif op == "!=":
            self.nonzero.append(p)
        else:
            self.claim(p)

    def claim(self, p: Poly) -> None:
        """Adds the fact that the polynomial is at least 0; `settle` must follow."""
        p = tight(p)
        value = as_constant(p)
        if value is not None:
            self._false = self._false or value < 0
        elif len(p) - (UNIT in p) == 1 and len(lead(p)) == 1:
            self.bounds.narrow(p)  # kept as a bound, also when the variable is replaced
        elif not _unwieldy(p) and len(self.at_least) < FACTS:
            self.at_least[freeze(p)] = p
            self._base = None

    def settle(self) -> None:
        """Works the facts into each other until nothing changes."""
        for _ in range(ROUNDS):
            before = self._measure()
            self._solve()
            self._renew_parts()
            self._settle_signs()
            self._renew_inequalities()
            self._bound()
            self.effort.left -= self._size() ** 2 // 50
            if self.absurd or self.effort.left < 0:
                return
            if not self.equalities and before == self._measure() and not self._settle_hard():
                return

    def _size(self) -> int:
        """How much there is to work through, once."""
        parts = sum(len(a) + len(b) for _, a, b in self.parts.values())
        return parts + sum(map(len, self.at_least.values())) + sum(map(len, self.rules.values()))

    def _measure(self) -> tuple[object, ...]:
        return (
            len(self.rules),
            len(self.products),
            len(self.nonzero),
            tuple(self.at_least),
            self.bounds.changes,
        )

    # Dimensions as polynomials

    def poly(self, dim: Dim) -> Poly:
        """The dimension as a polynomial, reduced by the rules; its divisors must be positive."""
        result: Poly = {}
        for product, coefficient in dim.terms:
            term: Poly = {UNIT: coefficient}
            for atom in product:
                term = mul(term, self._atom(atom))
            for mono, amount in term.items():
                result[mono] = result.get(mono, 0) + amount
        result = {mono: amount for mono, amount in result.items() if amount}
        return self.reduce(result)

    def _atom(self, atom: Atom) -> Poly:
        if atom.op == "name":
            self.bounds.low.setdefault(atom.name, 0)
            rule = self.rules.get(atom.name)
            return variable(atom.name) if rule is None else rule
        a, b = (self.poly(arg) for arg in atom.args)
        if atom.op in ("min", "max"):
            value = self.extreme(atom.op, a, b)
        else:
            whole = self.quotient(a, b)
            rest = add(a, mul(whole, b), -1)
            value = whole if atom.op == "/" else rest
            if self.parts.get(_alone(whole)) != ("/", a, b):
                # The form that the value took may hide how it lies between its neighbours.
                self._expect(rest)
                self._expect(add(add(b, constant(-1)), rest, -1))
        if natural(atom) or (atom.op == "/" and self.bounds.nonnegative(a)):
            self._expect(value)
        return value

    def _expect(self, p: Poly) -> None:
        """Adds the fact that the polynomial is at least 0, unless that is seen at once."""
        if not self.bounds.nonnegative(p):
            self.claim(p)

    def reduce(self, p: Poly) -> Poly:
        """An equal polynomial in which no rule applies."""
        p = substitute(p, self.rules)
        if not self.products:
            return p
        for _ in range(20):
            step = self._product_step(p)
            if step is None:
                return p
            p = substitute(step, self.rules)
        return p

    def _product_step(self, p: Poly) -> Poly | None:
        for top, by, value in self.products:
            for mono, coefficient in p.items():
                if coefficient % by == 0:
                    rest = quotient(mono, top)
                    if rest is not None:
                        change = add(value, {top: by}, -1)
                        return add(p, times(change, rest), coefficient // by)
        return None

    def quotient(self, num: Poly, den: Poly, *, unnest: bool = True) -> Poly:
        """The floor division of reduced polynomials, `den` positive where it is defined at all."""
        if not den:
            return self._part("/", num, den)  # by zero: a value of which nothing is known
        whole, rest = divide(num, den)
        if len(den) > 1 and _negatives(rest) > _negatives(num):
            whole, rest = {}, num  # `A / (A + B)` is plainer than `1 + -B / (A + B)`
        shared = common_mono([*rest, *den]) if rest else UNIT
        if shared:
            rest, den = without(rest, shared), without(den, shared)
        # (g * a + r) / (g * b) is a / b for 0 <= r < g and g * b > 0.
        by = content([*den.values(), *(c for mono, c in rest.items() if mono)])
        if by > 1:
            den = {mono: c // by for mono, c in den.items()}
            rest = {mono: c // by for mono, c in rest.items() if c // by}
            return add(whole, self.quotient(rest, den, unnest=unnest))
        if not rest:
            return whole
        if shared and as_constant(den) is not None:
            return add(whole, self.quotient(rest, den, unnest=unnest))
        nested = self._unnest(rest, den) if unnest else None
        if nested is not None:
            return add(whole, nested)
        return add(whole, self._part("/", rest, den))

    def _unnest(self, num: Poly, den: Poly) -> Poly | None:
        """`(a / b + r) / c` as `(a + b * r) / (b * c)`, when one inexact division stands in it."""
        inner = [
            mono[0]
            for mono, coefficient in num.items()
            if coefficient == 1 and len(mono) == 1 and self.parts.get(mono[0], ("",))[0] == "/"
        ]
        if len(inner) != 1 or not self.bounds.nonnegative(den):
            return None
        _, a, b = self.parts[inner[0]]
        b = self.reduce(b)
        if len(b) * max(len(num), len(den)) > TERMS:
            return None
        total = self.reduce(add(a, mul(b, add(num, variable(inner[0]), -1))))
        if not b or mentions(total, inner):
            return None
        return self.quotient(total, self.reduce(mul(b, den)), unnest=False)

    def extreme(self, op: str, a: Poly, b: Poly) -> Poly:
        """The smaller ("min") or larger ("max") of two reduced polynomials."""
        operands = sorted([*self._operands(op, a), *self._operands(op, b)], key=freeze)
        result = operands[0]
        for operand in operands[1:]:
            difference = add(result, operand, -1)
            if self.bounds.nonnegative(difference):
                result = operand if op == "min" else result
            elif self.bounds.nonnegative(scaled(difference, -1)):
                result = result if op == "min" else operand
            else:
                result = self._part(op, result, operand)
        return result

    def _operands(self, op: str, p: Poly) -> list[Poly]:
        """What the polynomial is the minimum or maximum of: itself, if it is neither."""
        inner, a, b = self.parts.get(_alone(p), ("", {}, {}))
        if inner == op:
            return [*self._operands(op, a), *self._operands(op, b)]
        return [p]

    def _part(self, op: str, a: Poly, b: Poly) -> Poly:
        """The variable that stands for an operation, made on its first use."""
        key = (op, freeze(a), freeze(b))
        name = self._index.get(key)
        if name is None:
            name = f"({text(a)} {op} {text(b)})"
            self._index[key] = name
            if name not in self.parts:
                self.parts[name] = (op, a, b)
                self.unsettled.append(name)
                self._base = None
                if op != "/" or b:
                    self._settle_sign(name)
        return self.reduce(variable(name))

    # Signs

    def positive(self, dim: Dim) -> bool:
        """Whether the dimension is proved positive; its own divisors need not be."""
        value = dim.constant
        if value is not None:
            return value > 0
        if not all(self.positive(divisor) for divisor in dim.divisors()):
            return False
        p = add(self.poly(dim), constant(-1))
        return self.bounds.nonnegative(p) or self.refutes(p)

    # Equalities become rules

    def _solve(self) -> None:
        waiting = self.equalities
        self.equalities = []
        changed: Container[str] | None = None  # variables that have new rules; None if any may have
        for _ in range(STEPS):
            waiting = [
                p if changed is not None and not mentions(p, changed) else self._simplified(p)
                for p in waiting
            ]
            waiting = [p for p in waiting if p]
            if not waiting or self.absurd:
                return
            # The simplest first: a short equality makes the others shorter.
            p = min(waiting, key=_complexity)
            waiting.remove(p)
            rules, products = set(self.rules), list(self.products)
            self._solve_one(p)
            changed = self.rules.keys() - rules if products == self.products else None
            if self.equalities:
                waiting.extend(map(self._simplified, self.equalities))
                self.equalities = []

    def _solve_one(self, p: Poly) -> None:
        """Makes a rule of the simplified equality `p == 0`."""
        by = content(c for mono, c in p.items() if mono)
        if by == 0 or p.get(UNIT, 0) % by:
            self._false = True
        elif not _unwieldy(p):
            name = self._eliminable(p)
            if name is not None:
                self._replace(name, scaled(add(p, {(name,): p[(name,)]}, -1), -p[(name,)]))
            elif not self._replace_multiples(p):
                self._add_product(p)

    def _simplified(self, p: Poly) -> Poly:
        """A reduced polynomial that is 0 where `p` is, without factors that cannot be 0."""
        p = self.reduce(p)
        if not p:
            return p
        shared = tuple(name for name in common_mono(p) if self.bounds.positive(name))
        if shared:
            p = without(p, shared)
        by = content(p.values())
        return {mono: c // by for mono, c in p.items()} if by > 1 else p

    def _eliminable(self, p: Poly) -> str | None:
        """A variable that the equality `p == 0` gives as a polynomial in the others."""
        best: tuple[int, bool, str] | None = None
        for mono, coefficient in p.items():
            if len(mono) != 1 or coefficient not in (1, -1):
                continue
            name = mono[0]
            if sum(name in other for other in p) > 1:
                continue
            negative = sum(c * coefficient > 0 for m, c in p.items() if m != mono)
            rank = (negative, name not in self.parts, name)
            if best is None or rank < best:
                best = rank
        return best and best[2]

    def _replace(self, name: str, value: Poly) -> None:
        """Adds the rule that the variable is this polynomial, which does not mention it."""
        one = {name: value}
        self.rules = {key: substitute(rule, one) for key, rule in self.rules.items()}
        self.rules[name] = value
        kept = [rule for rule in self.products if not _stands_in(name, rule)]
        for top, by, rule in self.products:
            if _stands_in(name, (top, by, rule)):
                self.equalities.append(add({top: by}, rule, -1))
        self.products = kept
        low, high = self.bounds.low.get(name), self.bounds.high.get(name)
        if low is not None:
            self.claim(add(value, constant(-low)))
        if high is not None:
            self.claim(add(constant(high), value, -1))
        self._base = None

    def _replace_multiples(self, p: Poly) -> bool:
        """`m * x == n * y` with coprime `m`, `n` says `x == n * t` and `y == m * t`."""
        if len(p) != 2 or any(len(mono) != 1 for mono in p):
            return False
        (((x,), m), ((y,), n)) = sorted(p.items())
        if (m > 0) == (n > 0):
            return False
        m, n = abs(m), abs(n)
        part = self.quotient(variable(y), constant(m))
        if mentions(part, {y, x}):
            return False
        self._replace(y, scaled(part, m))
        self._replace(x, scaled(part, n))
        return True

    def _add_product(self, p: Poly) -> None:
        """Adds the rule that the leading product is the rest, and what follows with the others."""
        top = lead(p)
        if p[top] < 0:
            p = scaled(p, -1)
        by = p[top]
        value = scaled(add(p, {top: by}, -1), -1)
        for other in list(self.products):
            if other[1] % by == 0 and quotient(other[0], top) is not None:
                self.products.remove(other)
                self.equalities.append(add({other[0]: other[1]}, other[2], -1))
        if len(self.products) < PRODUCT_RULES:
            for other_top, other_by, other_value in self.products:
                shared = common(top, other_top)
                if shared and by == other_by == 1 and len(top) + len(other_top) <= DEGREE + 1:
                    left = times(value, quotient(other_top, shared) or UNIT)
                    right = times(other_value, quotient(top, shared) or UNIT)
                    self.equalities.append(add(left, right, -1))
            self.products.append((top, by, value))

    # Working rules into the rest

    def _renew_parts(self) -> None:
        for name, (op, a, b) in list(self.parts.items()):
            new_a, new_b = self.reduce(a), self.reduce(b)
            decided = op != "/" and self._decided(new_a, new_b)
            if new_a == a and new_b == b and not decided:
                continue
            self._index.pop((op, freeze(a), freeze(b)), None)
            del self.parts[name]
            value = self.quotient(new_a, new_b) if op == "/" else self.extreme(op, new_a, new_b)
            if name in self.parts:
                continue  # an operation of the same name: it is this one
            difference = add(self.reduce(variable(name)), self.reduce(value), -1)
            if difference:
                self.equalities.append(difference)

    def _decided(self, a: Poly, b: Poly) -> bool:
        """Whether it is seen at once which of the polynomials is the smaller one."""
        return any(self.bounds.nonnegative(add(x, y, -1)) for x, y in ((a, b), (b, a)))

    def _settle_signs(self) -> None:
        for name in self.unsettled:
            if name in self.parts and name not in self.bounds.low:
                self._settle_sign(name)
        self.unsettled = [name for name in self.unsettled if name not in self.bounds.low]

    def _settle_hard(self) -> bool:
        """Settles the sign of one operation whose operands' signs need a proof."""
        return any(name in self.parts and self._settle_by_proof(name) for name in self.unsettled)

    def _settle_by_proof(self, name: str) -> bool:
        op, a, b = self.parts[name]
        for least in (1, 0) if op == "min" else (0,):
            if op == "max":
                known = self._reaches(a, least) or self._reaches(b, least)
            else:
                known = self._reaches(a, least) and (op == "/" or self._reaches(b, least))
            if known:
                self.bounds.raise_low(name, least)
                return True
        return False

    def _reaches(self, p: Poly, least: int) -> bool:
        p = add(p, constant(-least))
        return self.bounds.nonnegative(p) or self.refutes(p, thorough=False)

    def _settle_sign(self, name: str) -> None:
        """Gives the variable of an operation the lower bound of its operands, if they have one."""
        op, a, b = self.parts[name]
        bounds = self.bounds
        first, second = bounds.floor(a), bounds.floor(b)
        known = [low for low in (first, second) if low is not None]
        by = as_constant(b)
        if op == "min" and len(known) == 2:
            bounds.raise_low(name, min(known))
        elif op == "max" and known:
            bounds.raise_low(name, max(known))
        elif op == "/" and first is not None and by is not None and by > 0:
            bounds.raise_low(name, first // by)
        elif op == "/" and first is not None and first >= 0:
            more = add(a, b, -1)
            bounds.raise_low(name, 1 if bounds.nonnegative(more) else 0)
            if bounds.nonnegative(add(scaled(more, -1), constant(-1))):
                bounds.lower_high(name, 0)

    def _renew_inequalities(self) -> None:
        for key, p in list(self.at_least.items()):
            reduced = self._slimmed(self.reduce(p))
            if self.bounds.nonnegative(reduced):
                del self.at_least[key]  # it says no more than the bounds do
            elif reduced != p:
                del self.at_least[key]
                self.claim(reduced)
        for p in list(self.at_least.values()):
            if freeze(scaled(p, -1)) in self.at_least:
                self.equalities.append(p)
        kept: list[Poly] = []
        for p in self.nonzero:
            p = self.reduce(p)
            if not p:
                self._false = True
            elif self.bounds.nonnegative(p):
                self.claim(add(p, constant(-1)))
            elif self.bounds.nonnegative(scaled(p, -1)):
                self.claim(add(scaled(p, -1), constant(-1)))
            elif as_constant(p) is None:
                kept.append(p)
        self.nonzero = kept

    def _slimmed(self, p: Poly) -> Poly:
        """A polynomial that is at least 0 exactly where `p` is, without positive factors."""
        shared = tuple(name for name in common_mono(p) if self.bounds.positive(name)) if p else UNIT
        return without(p, shared) if shared else p

    # Bounds of single variables

    def _bound(self) -> None:
        bounds = self.bounds
        for _ in range(6):
            before = bounds.changes
            for p in [*self.at_least.values(), *self._ruled(), *self._defining()]:
                bounds.narrow(p)
                if bounds.absurd:
                    return
            if bounds.changes == before:
                break
        for name, high in bounds.high.items():
            if bounds.low.get(name) == high and name not in self.rules:
                self.equalities.append({(name,): 1, **constant(-high)})

    def _ruled(self) -> Iterator[Poly]:
        """The product rules as polynomials that are at least 0."""
        for top, by, value in self.products:
            p = add({top: by}, value, -1)
            yield p
            yield scaled(p, -1)

    # Inequalities

    def base(self) -> list[Poly]:
        """Shifted polynomials that are at least 0: the stated facts and those of each operation."""
        if self._base is None or self._base[0] != self.bounds.changes:
            found: dict[Frozen, Poly] = {}
            for p in [*self.at_least.values(), *self._ruled(), *self._defining()]:
                shifted = tight(self.bounds.shift(p))
                if any(c < 0 or self.bounds.free(mono) for mono, c in shifted.items()):
                    found.setdefault(freeze(shifted), shifted)
            self._base = (self.bounds.changes, list(found.values()))
        return self._base[1]

    def _defining(self) -> Iterator[Poly]:
        """What holds of each operation's variable by its meaning."""
        for name, (op, a, b) in self.parts.items():
            value = self.reduce(variable(name))
            if op == "min":
                yield add(a, value, -1)
                yield add(b, value, -1)
            elif op == "max":
                yield add(value, a, -1)
                yield add(value, b, -1)
            elif b:
                rest = add(a, mul(b, value), -1)
                yield rest
                yield add(add(b, constant(-1)), rest, -1)
        for name, high in self.bounds.high.items():
            if name not in self.rules:
                yield add(constant(high), variable(name), -1)

    def refutes(self, p: Poly, *, thorough: bool = True) -> bool:
        """Whether `p < 0` contradicts the facts, so that `p >= 0` follows from them."""
        if self.absurd:
            return True
        opposite = add(scaled(self.bounds.shift(p), -1), constant(-1))
        return impossible(opposite, self.base(), self.bounds.free, self.effort, thorough=thorough)


def standard(op: RelationOp, p: Poly) -> tuple[RelationOp, Poly]:
    """The comparison of `p` with 0 as one of `==`, `!=`, `>=`."""
    match op:
        case ">":
            return ">=", add(p, constant(-1))
        case "<=":
            return ">=", scaled(p, -1)
        case "<":
            return ">=", add(scaled(p, -1), constant(-1))
        case _:
            return op, p


@lru_cache(maxsize=4096)
def natural(of: Dim | Atom) -> bool:
    """Whether it is at least 0 by its shape, given that its divisors are positive."""
    if isinstance(of, Dim):
        return all(c > 0 and all(map(natural, product)) for product, c in of.terms)
    match of.op:
        case "/" | "max":
            return natural(of.args[0]) or (of.op == "max" and natural(of.args[1]))
        case "min":
            return natural(of.args[0]) and natural(of.args[1])
        case _:
            return True


def _alone(p: Poly) -> str:
    """The variable that the polynomial is; no name if it is something else."""
    [mono, *others] = p or [UNIT]
    return mono[0] if len(mono) == 1 and not others and p[mono] == 1 else ""


def _negatives(p: Poly) -> int:
    return sum(coefficient < 0 for coefficient in p.values())


def _stands_in(name: str, rule: tuple[Mono, int, Poly]) -> bool:
    return name in rule[0] or mentions(rule[2], (name,))


def _complexity(p: Poly) -> tuple[int, int, Frozen]:
    return (len(p), sum(map(len, p)), freeze(p))


def _unwieldy(p: Poly) -> bool:
    """Whether the polynomial is too large to reason with in good time."""
    return len(p) > TERMS or any(len(m) > 2 * DEGREE or abs(c) > LARGEST for m, c in p.items())
