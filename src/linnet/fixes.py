"""Fix-its applied: findings in, new texts out. No file is read or written here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from linnet.diagnostics import Diagnostic, Edit, Findings, Help
from linnet.source import Source
from linnet.syntax.parser import parse

ROUNDS = 20  # a fix may uncover another mistake that has one; this many follow each other

Own = Callable[[Source], Path | None]  # the file that a source may be written to
Check = Callable[[Mapping[Path, str]], Sequence[Diagnostic]]  # of these texts for those files


@dataclass(frozen=True, slots=True)
class Fixed:
    """The new text of each file that changes, the findings that went, those that stay."""

    texts: dict[Path, str]
    applied: tuple[Diagnostic, ...]
    left: tuple[Diagnostic, ...]


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text with the edits made; they may not overlap."""
    for edit in sorted(edits, key=lambda e: (e.span.start, e.span.end), reverse=True):
        text = text[: edit.span.start] + edit.text + text[edit.span.end :]
    return text


def fix(check: Check, own: Own) -> Fixed:
    """Apply the safe fixes of what `check` finds, again and again until none is left.

    A file whose text would not parse afterwards keeps the one it has.
    """
    texts: dict[Path, str] = {}
    applied: list[Diagnostic] = []
    seen: set[tuple[tuple[Path, str], ...]] = set()
    found = check(texts)
    for _ in range(ROUNDS):
        changed, done = _one_round(found, own)
        state = tuple(sorted({**texts, **changed}.items()))
        if not changed or state in seen:
            break
        seen.add(state)
        texts.update(changed)
        applied.extend(done)
        found = check(texts)
    return Fixed(texts, tuple(applied), tuple(found))


def _one_round(found: Sequence[Diagnostic], own: Own) -> tuple[dict[Path, str], list[Diagnostic]]:
    """The texts after every safe fix that is in no other's way, and what they fix."""
    chosen = [(d, d.help) for d in found if d.help is not None and _applies(d.help, own)]
    spoilt: set[Source] = set()
    while True:
        edits, done = _without_overlaps([(d, h) for d, h in chosen if spoilt.isdisjoint(_in(h))])
        texts = {source: edited(source.text, own_edits) for source, own_edits in edits.items()}
        broken = {s for s, text in texts.items() if _faults(text) > _faults(s.text)}
        if not broken:
            paths = {source: path for source in texts if (path := own(source)) is not None}
            return {paths[s]: text for s, text in texts.items() if text != s.text}, done
        spoilt |= broken


def _applies(help: Help, own: Own) -> bool:
    return help.safe and bool(help.edits) and all(own(source) is not None for source in _in(help))


def _in(help: Help) -> set[Source]:
    return {edit.span.source for edit in help.edits}


def _without_overlaps(
    fixes: Sequence[tuple[Diagnostic, Help]],
) -> tuple[dict[Source, list[Edit]], list[Diagnostic]]:
    """The edits of each source; a fix of which one part is in the way waits for the next round."""
    edits: dict[Source, list[Edit]] = {}
    done: list[Diagnostic] = []
    for finding, help in fixes:
        new = [e for e in help.edits if e not in edits.get(e.span.source, ())]
        if any(_touch(e, other) for e in new for other in edits.get(e.span.source, ())):
            continue
        for edit in new:
            edits.setdefault(edit.span.source, []).append(edit)
        done.append(finding)
    return edits, done


def _touch(a: Edit, b: Edit) -> bool:
    """They change the same text, or insert at one place, so that one could spoil the other."""
    x, y = a.span, b.span
    overlap = x.start < y.end and y.start < x.end
    return overlap or x.start == y.start or x.end == y.end


def _faults(text: str) -> int:
    """How many syntax errors the text has."""
    findings = Findings()
    parse(Source("", text), findings)
    return findings.errors
