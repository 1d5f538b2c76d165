"""The passes, in order, and the one function that runs them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from linnet.core.contract import contract
from linnet.core.inline import inline
from linnet.core.ir import Program
from linnet.core.rewrite import Change, map_functions
from linnet.core.rows import narrow
from linnet.core.simplify import simplify
from linnet.core.untouched import drop_untouched
from linnet.core.verify import verify
from linnet.diagnostics import InternalError

ALL = frozenset({"exact", "equivalent", "fast"})


@dataclass(frozen=True, slots=True)
class Pass:
    """A change of programs that keeps their meaning under these policies."""

    name: str
    run: Callable[[Program], Program]
    policies: frozenset[str] = ALL


def _each(change: Change) -> Callable[[Program], Program]:
    return lambda program: map_functions(program, change)


PASSES: tuple[Pass, ...] = (
    Pass("untouched", drop_untouched),
    Pass("inline", inline),
    Pass("simplify", _each(simplify)),
    Pass("contract", _each(contract)),
    # A product of fewer rows may sum in another order.
    Pass("narrow", narrow, frozenset({"equivalent", "fast"})),
)


def optimize(program: Program, policy: str = "exact", *, after: str | None = None) -> Program:
    """The program after every pass of the policy, or after the one named.

    Under LINNET_CHECKS=1 the program is verified before and after each of them.
    """
    if policy not in ALL or (after is not None and after not in [p.name for p in PASSES]):
        raise InternalError("passes", f"no policy {policy} or no pass {after}")
    checks = os.environ.get("LINNET_CHECKS") == "1"
    if checks:
        verify(program, "before the passes")
    for step in PASSES:
        if policy in step.policies:
            program = step.run(program)
            if checks:
                verify(program, f"after {step.name}")
        if step.name == after:
            break
    return program
