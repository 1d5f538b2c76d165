"""What an edit within bodies means for a file's findings, before everything is checked again.

If nothing outside bodies has changed, only the bodies that did can have other findings; what was
found elsewhere moves along. Recursion, unused names and the like are known only later, so what is
told here may be corrected by the check that follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from linnet.diagnostics import Diagnostic, Edit, Help, Label
from linnet.source import Source, Span
from linnet.syntax import tree


def edited(old: tree.File, new: tree.File) -> list[tree.Fn] | None:
    """The functions with another text; None if something outside of bodies is different."""
    if _outside(old) != _outside(new):
        return None
    before = {_text(fn) for fn in functions(old)}
    return [fn for fn in functions(new) if _text(fn) not in before]


def functions(file: tree.File) -> list[tree.Fn]:
    """The functions and methods of a file, in source order."""
    out: list[tree.Fn] = []
    for item in file.items:
        if isinstance(item, tree.Fn):
            out.append(item)
        elif isinstance(item, tree.Block):
            out.extend(item.methods)
    return sorted(out, key=lambda fn: fn.span.start)


def _text(fn: tree.Fn) -> str:
    return fn.span.text


def _outside(file: tree.File) -> list[str]:
    """The text between the bodies."""
    parts: list[str] = []
    at = 0
    for fn in functions(file):
        body = _body_start(fn)
        if body > at:
            parts.append(file.source.text[at:body])
            at = fn.span.end
    parts.append(file.source.text[at:])
    return parts


def _body_start(fn: tree.Fn) -> int:
    parts: list[tree.Syntax] = [fn.name, *fn.generics, *fn.params, *fn.where]
    if fn.result is not None:
        parts.append(fn.result)
    end = max(part.span.end for part in parts)
    brace = fn.span.source.text.find("{", end, fn.span.end)
    return brace if brace >= 0 else fn.span.end


def carried(
    found: Sequence[Diagnostic],
    before: Sequence[Diagnostic],
    old: Source,
    new: Source,
    checked: Iterable[Span],
    others_fail: bool,
) -> tuple[Diagnostic, ...]:
    """The findings of a file: those so far, and those of before outside of what was checked."""
    spans = list(checked)
    move = _Moved(old, new)
    out = {(d.code, d.primary.span): d for d in found if d.primary.span.source is new}
    for d in before:
        if d.primary.span.source is not old or d.code < "E12":  # the parser's are all new
            continue
        moved = move.diagnostic(d)
        if moved is None or any(_inside(moved.primary.span, span) for span in spans):
            continue
        out.setdefault((moved.code, moved.primary.span), moved)
    ordered = sorted(out.values(), key=lambda d: (d.primary.span.start, d.primary.span.end, d.code))
    errors = tuple(d for d in ordered if d.severity == "error")
    return errors if errors or others_fail else tuple(ordered)


def _inside(span: Span, whole: Span) -> bool:
    return whole.start <= span.start and span.end <= whole.end


class _Moved:
    """Places of a text in another that differs from it in one stretch."""

    def __init__(self, old: Source, new: Source) -> None:
        self.old, self.new = old, new
        a, b = old.text, new.text
        same = min(len(a), len(b))
        self.start = next((i for i in range(same) if a[i] != b[i]), same)
        tail = 0
        while tail < same - self.start and a[-1 - tail] == b[-1 - tail]:
            tail += 1
        self.end = len(a) - tail
        self.shift = len(b) - len(a)

    def span(self, span: Span) -> Span | None:
        if span.source is not self.old:
            return span
        if span.end <= self.start:
            return Span(self.new, span.start, span.end)
        if span.start >= self.end:
            return Span(self.new, span.start + self.shift, span.end + self.shift)
        return None

    def diagnostic(self, d: Diagnostic) -> Diagnostic | None:
        """The finding in the new text; None if the edit goes through where it stands."""
        at = self.span(d.primary.span)
        if at is None:
            return None
        related = [
            Label(span, label.text)
            for label in d.related
            if (span := self.span(label.span)) is not None
        ]
        help = d.help
        if help is not None and help.edits:
            edits = [
                Edit(span, edit.text)
                for edit in help.edits
                if (span := self.span(edit.span)) is not None
            ]
            whole = len(edits) == len(help.edits)
            help = replace(help, edits=tuple(edits)) if whole else Help(help.text)
        return replace(d, primary=Label(at, d.primary.text), related=tuple(related), help=help)
