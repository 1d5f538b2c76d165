"""`linnet explain FILE`: which kernel each call of an op gets, and why it gets no other."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from linnet.backends import BACKENDS, Choice, Kernels, choices
from linnet.cli.source import Opened, opened, presence
from linnet.core.passes import optimize
from linnet.diagnostics import PlanError
from linnet.ir import Value, place
from linnet.policy import POLICIES, Policy, policy_named
from linnet.source import Source

# How many ways to bind what has no value are compared.
EXAMPLES = 2

Key = tuple[bool, str, int, str, str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What calls at one place get: a kernel by the name it is printed as, or None for the body."""

    kernel: str | None
    refused: tuple[tuple[str, str], ...]  # kernel and reason, the most preferred first
    known: bool  # the backend has kernels of the op

    def __str__(self) -> str:
        if self.kernel is None:
            return "its body" if self.known else "its body: no kernel for it"
        return self.kernel or "its argument, unchanged"


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the source where an op is called; outcomes by policy, with the sizes they need.

    Several outcomes of one policy: calls of several dtypes, sizes or optional arguments are made
    there.
    """

    place: str
    op: str
    outcomes: dict[Policy, tuple[tuple[Outcome, tuple[str, ...]], ...]]


def explain(args: argparse.Namespace) -> str:
    """The report that a command line asks for."""
    found = opened(args)
    policies = [policy_named(args.numerics)] if args.numerics else list(POLICIES)
    name = args.backend
    if name not in BACKENDS:
        raise PlanError(f"--backend {name}: no such backend; there are {', '.join(BACKENDS)}")
    # A backend without a table runs every body as it is.
    kernels: Kernels = getattr(BACKENDS[name].load(), "KERNELS", {})
    bindings = _bindings(found)
    sites = _sites(found, kernels, policies, bindings, presence(args, found.program))
    if args.json:
        return json.dumps(_document(name, found, bindings, sites), indent=2)
    return "\n".join(_lines(name, found, bindings, sites))


def _bindings(found: Opened) -> list[dict[str, Value]]:
    """The sizes to look at: those given, or a few that satisfy the where clauses."""
    out: list[dict[str, Value]] = []
    for example in found.program.examples(found.given):
        if example not in out:
            out.append(example)
        if len(out) == EXAMPLES:
            break
    return out


def _sites(
    found: Opened,
    kernels: Kernels,
    policies: list[Policy],
    bindings: list[dict[str, Value]],
    present: Callable[[str], bool],
) -> list[Site]:
    analysis = found.program.analysis
    own = {m.file.source for m in analysis.modules.values() if m.file.package is analysis.package}
    seen: dict[Key, dict[Policy, dict[Outcome, list[str]]]] = {}
    for values in bindings:
        lowered = replace(found.program, optimize=False).lower(
            values, entries=found.entries, main=found.main, present=present
        )
        chosen = {n: v for n, v in values.items() if n not in found.given}
        sizes = " ".join(f"{name}={value}" for name, value in chosen.items())
        for policy in policies:
            for choice in choices(kernels, optimize(lowered, policy), policy):
                outcomes = seen.setdefault(_key(choice, own), {}).setdefault(policy, {})
                outcomes.setdefault(_outcome(kernels, choice), []).append(sizes)
    sites: list[Site] = []
    for (*_, where, op), by_policy in sorted(seen.items(), key=lambda item: item[0]):
        result: dict[Policy, tuple[tuple[Outcome, tuple[str, ...]], ...]] = {}
        for policy, outcomes in by_policy.items():
            # An outcome of every example hangs on no size.
            result[policy] = tuple(
                (outcome, () if len(set(sizes)) == len(bindings) else tuple(dict.fromkeys(sizes)))
                for outcome, sizes in outcomes.items()
            )
        sites.append(Site(where or "in what the compiler added", op, result))
    return sites


def _key(choice: Choice, own: Collection[Source]) -> Key:
    """Where a call stands and its op, so that the package's own files come first, in order."""
    span, op = choice.call.span, str(choice.call.function.op)
    if span is None:
        return (True, "", 0, "", op)
    return (span.source not in own, span.source.name, span.start, place(span), op)


def _outcome(kernels: Kernels, choice: Choice) -> Outcome:
    op = choice.call.function.op
    assert op is not None
    known = op.package == "std" and str(op) in kernels
    several = [r.kernel.run for r in choice.refused]
    several += [choice.kernel.run] if choice.kernel is not None else []
    refused = tuple(
        (
            f"{r.kernel.run} ({r.kernel.policy})"
            if several.count(r.kernel.run) > 1
            else r.kernel.run,
            r.reason,
        )
        for r in choice.refused
    )
    kernel = None if choice.kernel is None else choice.kernel.run
    return Outcome(kernel, refused, known)


# ---------------------------------------------------------------- text


def _lines(
    backend: str, found: Opened, bindings: list[dict[str, Value]], sites: list[Site]
) -> Iterator[str]:
    yield f"kernels of {backend} for {found.program.root or found.program.name}"
    chosen = [n for n in bindings[0] if n not in found.given]
    if chosen:
        yield f"without a value: {', '.join(chosen)}; what hangs on them says so (--bind sets them)"
    if not sites:
        yield from ("", "no call of an op")
    for site in sites:
        yield from ("", f"{site.place}  {site.op}")
        groups = [
            (outcomes, [policy for policy, _ in policies])
            for outcomes, policies in groupby(site.outcomes.items(), key=lambda item: item[1])
        ]
        width = max(len(", ".join(policies)) for _, policies in groups)
        for outcomes, policies in groups:
            label = ", ".join(policies)
            for outcome, sizes in outcomes:
                hangs = f"  with {' or '.join(sizes)}" if sizes and sizes != ("",) else ""
                yield f"  {label:<{width}}  {outcome}{hangs}"
                label = ""
                for kernel, reason in outcome.refused:
                    yield f"  {'':<{width}}    not {kernel or 'its argument'}: {reason}"


def _document(
    backend: str, found: Opened, bindings: list[dict[str, Value]], sites: list[Site]
) -> dict[str, Any]:
    return {
        "version": 1,
        "backend": backend,
        "program": found.program.root or found.program.name,
        "bindings": found.given,
        "examples": bindings,
        "calls": [
            {
                "location": site.place,
                "op": site.op,
                "choices": [
                    {
                        "numerics": policy,
                        "kernel": outcome.kernel,
                        "refused": [{"kernel": k, "reason": r} for k, r in outcome.refused],
                        "with": [size for size in sizes if size],
                    }
                    for policy, outcomes in site.outcomes.items()
                    for outcome, sizes in outcomes
                ],
            }
            for site in sites
        ],
    }
