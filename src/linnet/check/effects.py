"""State that functions read and write through their calls, and recursion."""

from __future__ import annotations

from linnet.check.analysis import Effects
from linnet.check.scope import Called, Checking, Scope
from linnet.syntax import tree


def compute(checking: Checking) -> None:
    """Fill in the effects of every function; a call that closes a cycle is reported."""
    finding = _Finding(checking)
    for fn in checking.touched:
        finding.effects(fn)
    for scope, e, fn in checking.lifted:
        writes = checking.analysis.effects[fn].writes
        if writes:
            scope.report(
                "E3104",
                f"`{fn.name.text}` writes the state `{min(writes)}`; it cannot be called on "
                "single elements",
                e,
            )


class _Finding:
    def __init__(self, checking: Checking) -> None:
        self.checking = checking
        self.done = checking.analysis.effects
        self.open: list[tree.Fn] = []

    def effects(self, fn: tree.Fn) -> Effects:
        """What `fn` touches, as paths below its own block."""
        if fn in self.done:
            return self.done[fn]
        touched = self.checking.touched.get(fn)
        if touched is None:
            return Effects(frozenset(), frozenset(), frozenset())
        self.open.append(fn)
        reads, writes, members = set(touched.reads), set(touched.writes), set(touched.members)
        for call in touched.calls:
            if call.fn in self.open:
                self._recursion(call.fn, call)
                continue
            below = self.effects(call.fn)
            if call.prefix is not None:
                reads |= {call.prefix + path for path in below.reads}
                writes |= {call.prefix + path for path in below.writes}
                members |= {call.prefix + path for path in below.members}
        self.open.pop()
        found = Effects(frozenset(reads), frozenset(writes), frozenset(members))
        self.done[fn] = found
        return found

    def _recursion(self, fn: tree.Fn, call: Called) -> None:
        chain = self.open[self.open.index(fn) :]
        names = " -> ".join(f.name.text for f in [*chain, fn])
        signature = self.checking.analysis.signatures[fn]
        scope = Scope(self.checking, signature.module)
        what = "calls itself" if len(chain) == 1 else "calls itself through others"
        scope.report(
            "E2119",
            f"`{fn.name.text}` {what}: {names}",
            call.span,
            help="use a `while` loop; no function calls itself",
        )
