"""Problems gathered before anything is read, and their one report."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from linnet.diagnostics import PlanError

LIMIT = 20
_LONG, _COMPARED = 200, 300


@dataclass(slots=True)
class Report:
    """A mutable list of problems by group; nothing is raised until all of them are known."""

    groups: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def add(self, group: str, problem: str) -> None:
        """The problem is listed under its group, groups in the order they first appear."""
        self.groups.setdefault(group, []).append(problem)

    def extend(self, other: Report) -> None:
        """Every problem of `other` is listed here too."""
        for group, problems in other.groups.items():
            self.groups.setdefault(group, []).extend(problems)

    @property
    def count(self) -> int:
        return sum(map(len, self.groups.values()))

    def text(self, title: str) -> str:
        """A headline and at most LIMIT problems, shared fairly between the groups."""
        plural = "problem" if self.count == 1 else "problems"
        lines = [f"{title}: {self.count} {plural}"]
        for (group, problems), shown in zip(self.groups.items(), self._shares(), strict=True):
            lines.append(f"  {group}:" if len(problems) == 1 else f"  {group} ({len(problems)}):")
            lines += [f"    {problem}" for problem in problems[:shown]]
            if len(problems) > shown:
                lines.append(f"    and {len(problems) - shown} more")
        return "\n".join(lines)

    def _shares(self) -> list[int]:
        """How many problems each group may show: small groups whole, large ones what is left."""
        sizes = [len(problems) for problems in self.groups.values()]
        shares = [0] * len(sizes)
        left = LIMIT
        while left > 0 and shares != sizes:
            for k, size in enumerate(sizes):
                if shares[k] < size and left > 0:
                    shares[k] += 1
                    left -= 1
        return shares

    def check(self, title: str) -> None:
        """No problem was added, or a PlanError lists them."""
        if self.count:
            raise PlanError(self.text(title))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` with the nearest known name, or nothing."""
    if len(name) > _LONG:
        return ""
    # Names much longer or shorter are not near, and comparing very many would take seconds.
    near_in_length = (one for one in known if abs(len(one) - len(name)) <= len(name))
    few = list(islice(near_in_length, _COMPARED))
    near = difflib.get_close_matches(name, few, n=1, cutoff=0.7)
    return f"; did you mean `{near[0]}`?" if near else ""
