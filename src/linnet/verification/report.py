"""A report as text for a terminal, and as a certificate: plain data, ready for JSON."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any

from linnet import __version__, backends
from linnet.core.ir import Call
from linnet.inputs import place_of
from linnet.source import Span
from linnet.verification.compare import Difference, printed
from linnet.verification.draw import Case
from linnet.verification.locate import Place
from linnet.verification.runners import WAYS
from linnet.verification.verify import Failure, Outcome, Report

VERSION = 1
AS_A_WHOLE = (
    "each step, run apart, is what the reference makes of its operands: roundings add up, or it "
    "goes wrong only as a whole"
)
UNSETTLED = (
    "a tie: each step is what the reference makes of its operands, and the reference itself moves "
    "as far when its weights move by one rounding"
)


# ---------------------------------------------------------------- text


def text(report: Report) -> str:
    """What was compared with what, a row for each entry; then every failure, whole."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    subject, count = report.subject, sum(len(each) for each in report.cases.values())
    size = "as its card says" if report.full else "made small"
    own = f"weights of {', '.join(subject.origin)}" if subject.origin else "drawn weights"
    yield f"{subject.name}, {size}, {own}, numerics {report.policy}"
    yield f"  {_listed(subject.generics)}"
    if subject.constants:
        yield f"  {_listed(subject.constants)}"
    entries = "1 entry" if len(report.cases) == 1 else f"{len(report.cases)} entries"
    yield f"  {entries}, {count} cases; the worst difference of each entry:"
    yield ""
    yield from _table(report)
    yield ""
    yield f"  {_bounds(report)}"
    for name, why in report.absent.items():
        yield f"  not run: {name}, since {why}"
    for name, why in report.refused.items():
        yield f"  not an entry at these sizes: {name}: {why}"
    for name in report.untried:
        yield f"  NOT TRIED: {name}: no inputs were found that its clauses and std's ops allow"
    for outcome in report.outcomes:
        for tie in outcome.ties:
            yield from ("", *_failed(report, outcome, tie))
        if outcome.failure is not None:
            yield from ("", *_failed(report, outcome, outcome.failure))
    yield ""
    failed = len(report.failures)
    if report.agrees:
        backends = ", ".join(way.name for way in report.ways)
        yield f"agrees with the reference on {backends}"
    else:
        tried = len(report.outcomes)
        yield f"DIFFERS: {failed} of {tried} entries on backends"


def _listed(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items()) or "no generics"


def _table(report: Report) -> Iterator[str]:
    found = {(o.entry, o.way): o for o in report.outcomes}
    names = [way.name for way in report.ways]
    first = max(map(len, ("entry", *report.cases)))
    widths = [max(len(name), 9) for name in names]

    def row(title: str, cells: list[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"  {title.ljust(first)}  {'  '.join(padded)}".rstrip()

    yield row("entry", names)
    for entry in report.cases:
        yield row(entry, [_cell(found.get((entry, name))) for name in names])


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return "-"
    if outcome.failure is not None:
        return "FAILS" if outcome.failure.error and outcome.failure.place is None else "DIFFERS"
    worst = max(outcome.worst, outcome.worst_state)
    return (printed(worst) if worst else "equal") + " tie" * bool(outcome.ties)


def _bounds(report: Report) -> str:
    bounds = sorted({outcome.bound for outcome in report.outcomes})
    listed = " and ".join(f"{bound:.2g}" for bound in bounds)
    return f"allowed: {listed} of the largest number; integers and what is not written are equal"


def _failed(report: Report, outcome: Outcome, failure: Failure) -> Iterator[str]:
    way, case, place = outcome.way, failure.case, failure.place
    tie = place is not None and place.kind == "decision"
    sizes = f", {_listed(case.sizes)}" if case.sizes else ""
    past = f", {_listed(case.past)}" if case.past else ""
    head = f"{outcome.entry} on {way}, case `{case.name}`{sizes}{past}"
    if failure.where == "error":
        yield f"{head}: it gives nothing"
        yield f"  {failure.error}"
        return
    yield f"{head}: {failure.where} {_said(failure.difference, failure.bound)}"
    if place is None:
        why = failure.error or (UNSETTLED if failure.unsettled else AS_A_WHOLE)
        yield f"  {why}"
        return
    yield f"  in {' > '.join((outcome.entry, *place.path))}"
    what = f"{place.what}{_kernel(report, way, place.call)}"
    if tie:
        yield f"  a tie: {what} decides between numbers that are equal but for rounding"
    else:
        yield f"  {what} {_said(place.difference, place.bound)}"
    if place.span is not None:
        yield f"  {place_of(place.span)}"
        yield f"      {_line(place.span)}"


def _said(apart: Difference, bound: float) -> str:
    if apart.what:
        return f"is {apart.what}, the first as the reference has it"
    at = f" at {list(apart.at)}" if apart.at else ""
    values = f"{apart.wanted} expected, {apart.found} found"
    if not isfinite(apart.worst):
        return f"differs{at}: {values}"
    return f"is off by {printed(apart.worst)} of the largest ({bound:.2g} allowed){at}: {values}"


def _line(span: Span) -> str:
    """The text of the line where the span begins."""
    number = span.source.position(span.start).line
    return span.source.text.split("\n")[number - 1].strip()


def _kernel(report: Report, name: str, call: Call | None) -> str:
    """The native kernel that the backend runs in place of the call's body."""
    chosen = kernel_of(report, name, call)
    return f" (native: {chosen})" if chosen else ""


def kernel_of(report: Report, name: str, call: Call | None) -> str:
    """What a kernel of the call is called; empty where its body runs."""
    if call is None or call.function.op is None:
        return ""
    way = next(way for way in WAYS if way.name == name)
    table: Any = getattr(import_module(way.kernels[0]), way.kernels[1])
    table = table() if callable(table) else table
    known: Any = table.get(str(call.function.op), ())
    if not isinstance(known, tuple):  # StableHLO's, which write operations instead of calls
        return name
    kernel, _ = backends.choose(table, call, report.policy)
    return kernel.run if kernel is not None else ""


# ---------------------------------------------------------------- certificate


def certificate(report: Report) -> dict[str, Any]:
    """The report as plain data; nothing of it hangs on when it was made or how long it took."""
    subject = report.subject
    return {
        "version": VERSION,
        "verdict": "agrees" if report.agrees else "differs",
        "linnet": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "model": {
            "name": subject.name,
            "card": subject.card,
            "full": report.full,
            "generics": dict(subject.generics),
            "constants": dict(subject.constants),
            "sha256": subject.model,
        },
        "weights": {
            "files": [Path(name).name for name in subject.origin],
            "seed": None if subject.origin else report.seed,
            "elements": sum(array.size for array in subject.weights.values()),
            "sha256": subject.weights_digest,
        },
        "numerics": report.policy,
        "seed": report.seed,
        "backends": {way.name: way.versions for way in report.ways},
        "not_run": dict(report.absent),
        "not_entries": dict(report.refused),
        "entries": [_entry(report, name, cases) for name, cases in report.cases.items()],
    }


def _entry(report: Report, name: str, cases: list[Case]) -> dict[str, Any]:
    return {
        "name": name,
        "cases": [
            {"name": case.name, "sizes": case.sizes, "outside": case.past, "seed": case.seed}
            for case in cases
        ],
        "backends": {
            outcome.way: _outcome(report, outcome)
            for outcome in report.outcomes
            if outcome.entry == name
        },
    }


def _outcome(report: Report, outcome: Outcome) -> dict[str, Any]:
    failure = outcome.failure
    return {
        "verdict": "differs" if failure is not None else "agrees",
        "bound": outcome.bound,
        "worst_result": outcome.worst,
        "worst_state": outcome.worst_state,
        "cases": len(outcome.cases),
        "ties": [_failure(report, outcome, tie) for tie in outcome.ties],
        "failure": None if failure is None else _failure(report, outcome, failure),
    }


def _failure(report: Report, outcome: Outcome, failure: Failure) -> dict[str, Any]:
    place = failure.place
    return {
        "case": failure.case.name,
        "where": failure.where,
        "error": failure.error or None,
        "unsettled": failure.unsettled,
        **_apart(failure.difference),
        "bound": failure.bound,
        "step": None if place is None else _place(report, outcome, place),
    }


def _place(report: Report, outcome: Outcome, place: Place) -> dict[str, Any]:
    return {
        "kind": place.kind,
        "path": list(place.path),
        "what": place.what,
        "native": kernel_of(report, outcome.way, place.call) or None,
        "location": None if place.span is None else place_of(place.span),
        "line": None if place.span is None else _line(place.span),
        **_apart(place.difference),
        "bound": place.bound,
    }


def _apart(found: Difference) -> dict[str, Any]:
    """A difference that is no number, as that of integers, is null."""
    worst = found.worst if isfinite(found.worst) else None
    return {
        "worst": worst,
        "at": list(found.at),
        "wanted": found.wanted or None,
        "found": found.found or None,
        "types": found.what or None,
    }
