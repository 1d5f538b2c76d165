"""Findings about a program: codes, labels, fixes and their collector."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from linnet.source import Span

CODES: dict[str, str] = {
    "E1001": "bad character",
    "E1002": "comment left open",
    "E1003": "bad string",
    "E1004": "reserved word as a name",
    "E1005": "bad number",
    "E1101": "unexpected token",
    "E1102": "no `module` declaration first",
    "E1103": "reserved syntax",
    "E1201": "unknown name",
    "E1202": "unknown module",
    "E1203": "private item",
    "E1204": "duplicate item",
    "E1205": "duplicate name in a list",
    "E1206": "import cycle",
    "E1207": "prelude name declared again",
    "E1208": "a name of the wrong kind",
    "E2101": "wrong type",
    "E2102": "wrong arguments",
    "E2103": "dtypes differ",
    "E2104": "operator not defined for the type",
    "E2105": "literal does not fit",
    "E2106": "not callable",
    "E2107": "no such member",
    "E2108": "assignment to what cannot be assigned",
    "E2109": "assignment changes the type",
    "E2110": "generic cannot be inferred",
    "E2111": "wrong generic arguments",
    "E2112": "dtype outside its kind",
    "E2113": "`none` without context",
    "E2114": "condition is not a bool",
    "E2115": "branches differ",
    "E2116": "logical operator on a non-scalar",
    "E2117": "impossible pattern",
    "E2118": "match is not exhaustive",
    "E2119": "recursion",
    "E2120": "missing or misplaced return",
    "E2121": "`static for` over something else",
    "E2122": "self-referential declaration",
    "E2123": "not a compile-time integer",
    "E2124": "misused `for` value or `yield`",
    "E2125": "a method that a trait requires is missing or different",
    "E2190": "not implemented yet",
    "E2201": "index extents differ",
    "E2202": "shapes differ",
    "E2203": "element counts differ",
    "E2204": "wrong number of indices",
    "E2205": "divisor may be zero",
    "E2206": "where clause not satisfied",
    "E2207": "shapes do not broadcast",
    "E2208": "negative dimension",
    "E2209": "index or slice out of bounds",
    "E2210": "bad axis",
    "E3101": "index is neither output nor reduced",
    "E3102": "reduced index stands on no axis",
    "E3103": "output index stands on no axis",
    "E3104": "expression has no meaning in index notation",
    "E3105": "index listed twice",
    "E3106": "pack where a plain index is needed",
    "E4101": "member with a type it cannot have",
    "E4102": "parameter with a value",
    "E5001": "bad manifest",
    "W1001": "unused import",
    "W1002": "unused local",
    "W1003": "unused member",
    "W1004": "a comment where a division may be meant",
    "W2001": "reshape mixes axes",
}


@dataclass(frozen=True, slots=True)
class Label:
    """A span and what to say about it (may be empty)."""

    span: Span
    text: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the text of `span` by `text`."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Help:
    """A suggestion; with edits it can be applied by machine.

    A `safe` one keeps the meaning, or is evidently what was meant: `linnet check --fix` applies it.
    """

    text: str
    edits: tuple[Edit, ...] = ()
    safe: bool = False


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The smallest sizes at which all known facts hold and the claim does not.

    `left` and `right` are the claim's two sides there, None for one that divides by zero.
    """

    claim: str
    sizes: tuple[tuple[str, int], ...]
    left: int | None
    right: int | None


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. The severity is the first letter of its code."""

    code: str
    message: str
    primary: Label
    related: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: Help | None = None
    counterexample: Counterexample | None = None

    @property
    def severity(self) -> str:
        return "error" if self.code[0] == "E" else "warning"


@dataclass(slots=True)
class Findings:
    """A mutable collector; the only way to report a problem in a user's program."""

    items: list[Diagnostic] = field(default_factory=list[Diagnostic])
    _seen: set[tuple[str, Span]] = field(
        default_factory=set[tuple[str, Span]], init=False, repr=False, compare=False
    )
    # The errors among the first so many of a list of items, which is asked for at every turn.
    _counted: tuple[list[Diagnostic] | None, int, int] = field(
        default=(None, 0, 0), init=False, repr=False, compare=False
    )

    def add(
        self,
        code: str,
        message: str,
        at: Span,
        *,
        label: str = "",
        related: tuple[Label, ...] = (),
        notes: tuple[str, ...] = (),
        help: Help | str | None = None,
        counterexample: Counterexample | None = None,
    ) -> None:
        """Record a finding; the same code at the same span is kept once."""
        assert code in CODES, code
        if (code, at) in self._seen:
            return
        self._seen.add((code, at))
        if isinstance(help, str):
            help = Help(help)
        primary = Label(at, label)
        self.items.append(Diagnostic(code, message, primary, related, notes, help, counterexample))

    def sorted(self) -> tuple[Diagnostic, ...]:
        """In source order, file by file in the order first seen."""
        files: dict[int, int] = {}
        for d in self.items:
            files.setdefault(id(d.primary.span.source), len(files))
        return tuple(
            sorted(
                self.items,
                key=lambda d: (
                    files[id(d.primary.span.source)],
                    d.primary.span.start,
                    d.primary.span.end,
                    d.code,
                ),
            )
        )

    @property
    def errors(self) -> int:
        items, upto, errors = self._counted
        if items is not self.items or upto > len(self.items):
            upto, errors = 0, 0
        errors += sum(d.severity == "error" for d in self.items[upto:])
        self._counted = (self.items, len(self.items), errors)
        return errors


class LinnetError(Exception):
    """A problem with the user's input; `diagnostics` holds findings about source, if any."""

    def __init__(self, message: str, diagnostics: tuple[Diagnostic, ...] = ()) -> None:
        super().__init__(message)
        self.diagnostics = diagnostics


class PlanError(LinnetError):
    """A program, binding or input that cannot be run as asked."""


class NotInstalledError(PlanError, ImportError):
    """Something is asked for that needs a package which is not there; it says what to install."""


@contextmanager
def installing(what: str, extras: str) -> Iterator[None]:
    """Within, a missing package is a NotInstalledError: `what` needs it, of these extras."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "linnet").split(".")[0]
        if missing == "linnet":
            raise
        raise NotInstalledError(
            f"{what} needs {missing}, which is not installed: pip install 'linnet[{extras}]'"
        ) from error


class NestError(LinnetError):
    """A card or a download that cannot be used."""


class ExportError(LinnetError):
    """A program of another framework that cannot be had as Linnet source."""


class OnnxImportError(ExportError):
    """A model of ONNX that cannot be had as Linnet source."""


class InternalError(Exception):
    """A bug in Linnet: `stage` names where, the message what."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(f"internal error in {stage}: {message}")
