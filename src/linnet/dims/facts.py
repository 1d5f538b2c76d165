"""Facts: what a scope knows about its dimensions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from linnet.dims.dim import Dim, Relation, TooLarge
from linnet.dims.linear import Effort
from linnet.dims.search import models
from linnet.dims.system import EFFORT, System


@dataclass(frozen=True, slots=True)
class Proved:
    """The goal holds at all sizes that satisfy the facts, and divides by nothing but positives."""


@dataclass(frozen=True, slots=True)
class Refuted:
    """These sizes satisfy the facts and break the goal."""

    sizes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Unproved:
    """Neither a proof nor a counterexample was found; each suggestion would make it provable."""

    suggestions: tuple[Relation, ...]


Verdict = Proved | Refuted | Unproved


@dataclass(slots=True)
class Memo:
    """What has been worked out about facts; all of it follows from them."""

    parent: Facts | None = None  # facts that these extend
    system: System | None = None
    samples: tuple[dict[str, int], ...] | None = None
    positive: dict[Dim, bool] = field(default_factory=dict[Dim, bool])
    proved: dict[Relation, bool] = field(default_factory=dict[Relation, bool])
    costs: dict[Relation, int] = field(default_factory=dict[Relation, int])  # of failed proofs
    answers: dict[Relation, Verdict] = field(default_factory=dict[Relation, Verdict])
    having: dict[str, list[int]] | None = None  # name: positions of the relations that have it
    groups: dict[str, int] | None = None  # name: the group of names that relations join it to


@dataclass(frozen=True, slots=True)
class Facts:
    """Relations that hold in a scope; every name is also non-negative."""

    relations: tuple[Relation, ...] = ()
    memo: Memo = field(default_factory=Memo, compare=False, repr=False)

    @staticmethod
    def of(relations: Iterable[Relation] = ()) -> Facts:
        """Facts that hold these relations, each once."""
        return _facts(tuple(dict.fromkeys(relations)))

    def extend(self, relations: Iterable[Relation]) -> Facts:
        """These facts and more."""
        extended = Facts.of((*self.relations, *relations))
        if extended is not self and extended.memo.parent is None:
            extended.memo.parent = self
        return extended

    @property
    def system(self) -> System:
        """The facts worked into each other; to be forked before anything is added."""
        memo = self.memo
        if memo.system is None:
            parent = memo.parent
            try:
                if parent is None:
                    memo.system = System.of(self.relations)
                else:
                    memo.system = parent.system.fork(Effort(EFFORT // 4))
                    memo.system.learn(self.relations[len(parent.relations) :])
            except TooLarge:
                memo.system = System()  # it knows less
        return memo.system

    @property
    def having(self) -> dict[str, list[int]]:
        """Where the relations with a name stand; those without any under no name."""
        if self.memo.having is None:
            found: dict[str, list[int]] = {"": []}
            for i, relation in enumerate(self.relations):
                for name in relation.names() or ("",):
                    found.setdefault(name, []).append(i)
            self.memo.having = found
        return self.memo.having

    def chosen(self, positions: Iterable[int]) -> Facts:
        """The relations at these positions, in their order."""
        return Facts.of(self.relations[i] for i in sorted(positions))

    def bearing(self, names: Iterable[str]) -> Facts:
        """The relations that share names with these, through others too."""
        groups = self._groups
        wanted = {groups[name] for name in names if name in groups}
        if wanted and len(wanted) == len({*groups.values()}):
            return self
        of_names = (
            i for name, group in groups.items() if group in wanted for i in self.having[name]
        )
        return self.chosen({*self.having[""], *of_names})

    @property
    def _groups(self) -> dict[str, int]:
        if self.memo.groups is None:
            found: dict[str, int] = {}
            for start in self.having:
                waiting = [start] if start and start not in found else []
                while waiting:
                    name = waiting.pop()
                    if name not in found:
                        found[name] = self.having[start][0]
                        for i in self.having[name]:
                            waiting.extend(self.relations[i].names() - found.keys())
            self.memo.groups = found
        return self.memo.groups

    @property
    def samples(self) -> tuple[dict[str, int], ...]:
        """Some sizes of all the facts' names that satisfy them; none if none were found."""
        if self.memo.samples is None:
            self.memo.samples = tuple(models(self.relations))
        return self.memo.samples


@lru_cache(maxsize=512)
def _facts(relations: tuple[Relation, ...]) -> Facts:
    return Facts(relations)
