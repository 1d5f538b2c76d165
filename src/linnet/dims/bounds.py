"""Lower and upper bounds of variables, and what they say of polynomials."""

from __future__ import annotations

from linnet.dims.poly import UNIT, Mono, Poly, quotient, substitute

LARGEST = 2**40  # bounds beyond this are not kept


class Bounds:
    """An interval for each variable; one without a lower bound may be negative."""

    __slots__ = ("absurd", "changes", "high", "low")

    def __init__(self) -> None:
        self.low: dict[str, int] = {}
        self.high: dict[str, int] = {}
        self.absurd = False  # some variable has no value left
        self.changes = 0

    def copy(self) -> Bounds:
        """The same bounds, to change apart."""
        twin = Bounds()
        twin.low, twin.high = dict(self.low), dict(self.high)
        twin.absurd, twin.changes = self.absurd, self.changes
        return twin

    # What is bounded

    def positive(self, name: str) -> bool:
        """Whether the variable is at least 1."""
        return self.low.get(name, 0) > 0

    def free(self, mono: Mono) -> bool:
        """Whether the product of shifted variables may be negative."""
        return any(name not in self.low for name in mono)

    def shift(self, p: Poly) -> Poly:
        """The polynomial in variables that are measured from their lower bounds."""
        moved: dict[str, Poly] = {}
        for mono in p:
            for name in mono:
                low = self.low.get(name)
                if low and name not in moved:
                    moved[name] = {(name,): 1, UNIT: low}
        return substitute(p, moved) if moved else p

    def nonnegative(self, p: Poly) -> bool:
        """Whether the polynomial is at least 0, as its shifted terms show."""
        low = self.low
        for mono, coefficient in self.shift(p).items():
            if coefficient < 0 or any(name not in low for name in mono):
                return False
        return True

    def floor(self, p: Poly) -> int | None:
        """A number that the polynomial is never below, if one is easily seen."""
        low = self.least(p)
        return max(0, low or 0) if self.nonnegative(p) else low

    def least(self, p: Poly) -> int | None:
        """The sum of the lower bounds of the terms."""
        total = 0
        for mono, coefficient in p.items():
            bound = self._product_low(mono) if coefficient > 0 else self._product_high(mono)
            if bound is None:
                return None
            total += coefficient * bound
        return total

    def _most(self, mono: Mono, coefficient: int) -> int | None:
        """The upper bound of a term."""
        bound = self._product_high(mono) if coefficient > 0 else self._product_low(mono)
        return None if bound is None else coefficient * bound

    def _product_low(self, mono: Mono) -> int | None:
        total = 1
        for name in mono:
            low = self.low.get(name)
            if low is None or (low < 0 and len(mono) > 1):
                return None
            total *= low
        return total

    def _product_high(self, mono: Mono) -> int | None:
        total = 1
        for name in mono:
            high = self.high.get(name)
            if high is None or (len(mono) > 1 and self.low.get(name, -1) < 0):
                return None
            total *= high
        return total

    # Narrowing

    def raise_low(self, name: str, low: int) -> None:
        """The variable is at least this."""
        if abs(low) <= LARGEST and (name not in self.low or self.low[name] < low):
            self.low[name] = low
            self._changed(name)

    def lower_high(self, name: str, high: int) -> None:
        """The variable is at most this."""
        if abs(high) <= LARGEST and (name not in self.high or self.high[name] > high):
            self.high[name] = high
            self._changed(name)

    def _changed(self, name: str) -> None:
        self.changes += 1
        if name in self.low and name in self.high and self.low[name] > self.high[name]:
            self.absurd = True

    def narrow(self, p: Poly) -> None:
        """Bounds each variable of a polynomial that is at least 0 by the others' bounds."""
        changes, most, total, unbounded = -1, dict[Mono, int | None](), 0, 0
        for mono, coefficient in p.items():
            if not mono:
                continue
            if changes != self.changes:
                changes, most = self.changes, {m: self._most(m, c) for m, c in p.items()}
                total = sum(high for high in most.values() if high is not None)
                unbounded = sum(high is None for high in most.values())
            own = most[mono]
            if unbounded > (own is None):  # the other terms have no upper bound
                continue
            low = (own or 0) - total
            if coefficient > 0:
                self._narrow_below(mono, -(-low // coefficient))
            else:
                self._narrow_above(mono, -low // -coefficient)

    def _narrow_below(self, mono: Mono, low: int) -> None:
        if len(mono) == 1:
            self.raise_low(mono[0], low)
        elif low > 0 and all(self.low.get(name, -1) >= 0 for name in mono):
            for name in mono:
                self.raise_low(name, 1)

    def _narrow_above(self, mono: Mono, high: int) -> None:
        if len(mono) == 1:
            self.lower_high(mono[0], high)
            return
        for name in mono:
            others = self._product_low(quotient(mono, (name,)) or UNIT)
            if others and others > 0 and high >= 0 and self.low.get(name, -1) >= 0:
                self.lower_high(name, high // others)
