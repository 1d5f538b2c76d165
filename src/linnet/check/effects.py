"""State that functions read and write through their calls, and recursion."""

from __future__ import annotations

from linnet.check.analysis import Effects
from linnet.check.scope import Called, Checking, Scope
from linnet.source import Span
from linnet.syntax import tree

_NONE = Effects(frozenset(), frozenset(), frozenset())


def compute(checking: Checking) -> None:
    """Fill in the effects of every function; a call that closes a cycle is reported."""
    finding = _Finding(checking)
    for fn in checking.touched:
        finding.effects(fn, checking.analysis.signatures[fn].block)
    for info in checking.analysis.blocks.values():
        for fn in info.methods.values():
            finding.effects(fn, info.block)
    for scope, e, called in checking.lifted:
        writes = finding.effects(called.fn, called.block or scope.block).writes
        if writes:
            name = called.fn.name.text
            state = isinstance(scope.block, tree.Trait) and called.block is None
            what = "may write state, in" if state else "writes the state"
            what = f"{what} `{min(writes)}`"
            scope.report("E3104", f"`{name}` {what}; it cannot be called on single elements", e)


class _Finding:
    def __init__(self, checking: Checking) -> None:
        self.checking = checking
        self.analysis = checking.analysis
        self.open: list[tuple[tree.Fn, tree.Block | None]] = []
        self.calls: list[Called] = []  # by which all but the first of these were reached
        self.recursive: set[frozenset[tree.Fn]] = set()

    def effects(self, fn: tree.Fn, block: tree.Block | None) -> Effects:
        """What `fn` touches in this block, as paths below it."""
        fn = self._meant(fn, block)
        if fn.required:
            return Effects(frozenset(), frozenset({fn.name.text}), frozenset())
        home = self.analysis.signatures[fn].block if fn in self.analysis.signatures else block
        done = self.analysis.effects
        if block is not None and home is not block:
            done = self.analysis.blocks[block].effects
        if fn in done:
            return done[fn]
        touched = self.checking.touched.get(fn)
        if touched is None:
            return _NONE
        self.open.append((fn, block))
        reads, writes, members = set(touched.reads), set(touched.writes), set(touched.members)
        for call in touched.calls:
            of = call.block or (block if call.prefix is not None else None)
            callee = self._meant(call.fn, of)
            if (callee, of) in self.open:
                self._recursion(callee, call)
                continue
            self.calls.append(call)
            below = self.effects(callee, of)
            self.calls.pop()
            if call.prefix is not None:
                reads |= {call.prefix + path for path in below.reads}
                writes |= {call.prefix + path for path in below.writes}
                members |= {call.prefix + path for path in below.members}
        self.open.pop()
        found = Effects(frozenset(reads), frozenset(writes), frozenset(members))
        done[fn] = found
        return found

    def _meant(self, fn: tree.Fn, block: tree.Block | None) -> tree.Fn:
        """The block's own method for one that its trait requires."""
        if not fn.required or block is None or isinstance(block, tree.Trait):
            return fn
        return self.analysis.blocks[block].methods.get(fn.name.text, fn)

    def _recursion(self, fn: tree.Fn, call: Called) -> None:
        """Reported at a call in the block at hand: a trait knows nothing of its blocks."""
        names = [f for f, _ in self.open]
        start = names.index(fn)
        chain, block = names[start:], self.open[start][1]
        if frozenset(chain) in self.recursive:
            return
        self.recursive.add(frozenset(chain))
        calls = [*self.calls[start:], call]
        own = [c for c in calls if block is not None and _within(c.span, block.span)]
        at = (own or [call])[-1]
        signature = self.analysis.signatures[fn]
        scope = Scope(self.checking, signature.module)
        what = "calls itself" if len(chain) == 1 else "calls itself through others"
        scope.report(
            "E2119",
            f"`{fn.name.text}` {what}: {' -> '.join(f.name.text for f in [*chain, fn])}",
            at.span,
            help="use a `while` loop; no function calls itself",
        )


def _within(inner: Span, outer: Span) -> bool:
    return inner.source is outer.source and outer.start <= inner.start and inner.end <= outer.end
