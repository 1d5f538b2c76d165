"""How many positions the caches of a server get: decided before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from linnet.diagnostics import LinnetError

RESERVE = 0.1
"""Of the free memory, what is left for activations and for everybody else."""
_LENGTHS = (256, 1024, 4096, 16384, 65536)


@dataclass(frozen=True, slots=True)
class Demand:
    """What a model takes: bytes of its weights, and bytes of the caches for one position."""

    weights: int
    position: int
    page: int = 1  # positions come in pages of so many


@dataclass(frozen=True, slots=True)
class Pool:
    """Positions of the caches that all requests share, the first page being nobody's."""

    positions: int
    rows: int
    max_len: int
    demand: Demand

    @property
    def usable(self) -> int:
        """Pages that requests can have."""
        return self.positions // self.demand.page - 1

    def fitting(self, length: int) -> int:
        """How many requests of so many tokens, prompt and answer, fit at once."""
        return min(self.rows, self.usable // -(-length // self.demand.page))

    def describe(self) -> str:
        """The sizes, and what fits."""
        lengths = [length for length in _LENGTHS if length < self.max_len] + [self.max_len]
        fits = ", ".join(f"{self.fitting(length)} of {length}" for length in lengths)
        size = shown(self.positions * self.demand.position)
        return (
            f"caches for {self.positions} positions in pages of {self.demand.page} ({size}), "
            f"beside {shown(self.demand.weights)} of weights\n"
            f"requests that fit at once, by tokens of prompt and answer: {fits}"
        )


def pool_of(
    demand: Demand, *, rows: int, max_len: int, wanted: int | None, free: int | None
) -> Pool:
    """The pool for up to `rows` requests of at most `max_len` tokens.

    It has `wanted` positions, or as many as can be used at once and fit in what is free. Raises
    LinnetError with the sizes where that is too few for one request, or does not fit.
    """
    page = demand.page
    one = (-(-max_len // page) + 1) * page
    room = None if free is None else int(free * (1 - RESERVE)) - demand.weights
    if wanted is None:
        most = (-(-max_len // page) * rows + 1) * page
        fitting = most if room is None else room // demand.position // page * page
        positions = min(most, fitting)
        if positions < one:
            raise LinnetError(
                f"one request of {max_len} tokens does not fit: {_account(demand, free, one)}; "
                "lower --max-seq, or --dtype"
            )
        return Pool(positions, rows, max_len, demand)
    positions = -(-wanted // page) * page
    if positions < one:
        raise LinnetError(
            f"--pool {wanted} is too small: a request of --max-seq {max_len} needs {one} positions "
            f"(pages of {page}, and one page beside them)"
        )
    if room is not None and positions * demand.position > room:
        raise LinnetError(
            f"--pool {wanted} does not fit: {_account(demand, free, positions)}; at most "
            f"{max(0, room // demand.position // page * page)} positions do"
        )
    return Pool(positions, rows, max_len, demand)


def _account(demand: Demand, free: int | None, positions: int) -> str:
    caches = shown(positions * demand.position)
    return (
        f"the weights take {shown(demand.weights)} and caches for {positions} positions {caches}, "
        f"of {shown(free or 0)} that are free, a tenth of which is kept for the work itself"
    )


def shown(size: float) -> str:
    """Bytes, in the largest unit that leaves a number of at least 1."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
