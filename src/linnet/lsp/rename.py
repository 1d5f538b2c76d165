"""Renaming: every place that changes, and a refusal where the program would mean something else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from linnet.check.analysis import ItemName, Module, ModuleName, PreludeName
from linnet.diagnostics import Diagnostic
from linnet.lsp.features import references
from linnet.lsp.names import Key, Occurrence, at, declared, is_prelude, name_of, occurrences
from linnet.lsp.project import Document, Project, State, Unit
from linnet.source import Span
from linnet.syntax.tokens import KEYWORDS, RESERVED_WORDS
from linnet.workspace import SUFFIX


class Refused(Exception):
    """Why a name cannot be renamed, or not so."""


@dataclass(frozen=True, slots=True)
class Place:
    path: Path
    span: Span


def prepare(unit: Unit, module: Module, offset: int) -> Occurrence:
    """The name that would be renamed, or a refusal."""
    found = at(unit, module, offset)
    if found is None:
        raise Refused("there is no name here that could be renamed")
    name = found.span.text
    match found.meaning:
        case PreludeName():
            raise Refused(f"`{name}` is a prelude name and means the same everywhere")
        case ModuleName():
            raise Refused(f"`{name}` is a module; its name is that of its file")
        case _:
            pass
    span = declared(found.meaning)
    assert span is not None
    home = next((m for m in unit.analysis.modules.values() if m.file.source is span.source), None)
    std = unit.workspace.std
    if home is not None and home.file.package is std and module.file.package is not std:
        if not _is_alias(found):
            raise Refused(
                f"`{name}` belongs to the standard library; import it under another name: "
                f"`{{{name_of(found.meaning)} as ...}}`"
            )
    return found


def _is_alias(found: Occurrence) -> bool:
    """Whether the name here is another one than the declaration's, given by `as`."""
    return isinstance(found.meaning, ItemName) and found.span.text != name_of(found.meaning)


def places(state: State, unit: Unit, module: Module, found: Occurrence) -> list[Place]:
    """Where the name stands: everywhere, or, for a name given by `as`, in its file."""
    name = found.span.text
    if _is_alias(found):
        chosen: Iterable[Occurrence] = (o for o in occurrences(unit, module) if o.key == found.key)
    else:
        chosen = references(state, found.key)
    spans = [o.span for o in chosen if o.span.text == name]
    paths = {source: path for u in state.units for source, path in u.paths.items()}
    return [Place(paths[span.source], span) for span in spans]


def rename(
    state: State,
    read: Callable[[Path], Document],
    unit: Unit,
    module: Module,
    offset: int,
    new: str,
) -> list[Place]:
    """The places to write the new name; refused if the program would no longer be the same."""
    found = prepare(unit, module, offset)
    old = found.span.text
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", new):
        raise Refused(f"`{new}` is not a name: letters, digits and `_`, not a digit first")
    if new in KEYWORDS or new in RESERVED_WORDS:
        raise Refused(f"`{new}` is a word of the language")
    if is_prelude(new):
        raise Refused(f"`{new}` is a prelude name and means the same everywhere")
    where = places(state, unit, module, found)
    root = unit.workspace.std.root
    if module.file.package is not unit.workspace.std and root is not None:
        if any(place.path.is_relative_to(root) for place in where):
            raise Refused(f"`{old}` is required by a trait of the standard library")
    if new == old:
        return []
    before, after = _around(state, where, read, new)
    fresh = Project(unit.workspace.std.root)
    renamed = fresh.check({path: doc for path, doc in after.items() if path.suffix == SUFFIX})
    _compare(before, renamed, where, old, new)
    return where


def _around(
    state: State, where: list[Place], read: Callable[[Path], Document], new: str
) -> tuple[State, dict[Path, Document]]:
    """What is open and what changes, as it would be afterwards."""
    documents = dict(state.documents)
    for path in {place.path for place in where}:
        documents.setdefault(path, read(path))
    after = dict(documents)
    for path in {place.path for place in where}:
        text = documents[path].text
        own = sorted((p.span for p in where if p.path == path), key=lambda s: -s.start)
        for span in own:
            text = text[: span.start] + new + text[span.end :]
        after[path] = Document(text)
    return state, after


def _compare(before: State, after: State, where: list[Place], old: str, new: str) -> None:
    """Refuse where something is found that was not before, or a name means something else."""
    known = Counter(_kinds(before))
    for path, findings in after.findings().items():
        for d in findings:
            kind = (path, d.code)
            if d.severity == "error":
                if known[kind] == 0:
                    line = d.primary.span.source.position(d.primary.span.start).line
                    raise Refused(
                        f"`{old}` cannot become `{new}`: {d.message} ({path.name}, line {line})"
                    )
                known[kind] -= 1
    shift = len(new) - len(old)
    starts = {
        path: sorted(p.span.start for p in where if p.path == path)
        for path in {p.path for p in where}
    }
    for unit in before.units:
        now = next((u for u in after.units if u.key == unit.key), None)
        if now is None:
            continue
        for module in unit.analysis.modules.values():
            path = module.file.path
            other = now.module(path)
            if other is None:
                continue
            moved = _meanings(unit, module, unit.paths, starts, shift)
            found = _meanings(now, other, now.paths, {}, 0)
            for place in moved.keys() & found.keys():
                if moved[place] != found[place]:
                    line = other.file.source.position(place).line
                    raise Refused(
                        f"`{old}` cannot become `{new}`: `{new}` already means something else "
                        f"in {path.name}, line {line}"
                    )


def _kinds(state: State) -> list[tuple[Path, str]]:
    found: list[tuple[Path, str]] = []
    for path, diagnostics in state.findings().items():
        found += [(path, d.code) for d in diagnostics if _is_error(d)]
    return found


def _is_error(d: Diagnostic) -> bool:
    return d.severity == "error"


def _meanings(
    unit: Unit,
    module: Module,
    paths: object,
    starts: dict[Path, list[int]],
    shift: int,
) -> dict[int, object]:
    """Where each name of a file will stand, and where what it means will be declared."""
    by_name = {source.name: path for source, path in unit.paths.items()}

    def moved(path: Path | None, at: int) -> int:
        return at + shift * sum(start < at for start in starts.get(path, ())) if path else at

    out: dict[int, object] = {}
    for o in occurrences(unit, module):
        key: Key = o.key
        path = by_name.get(key[0])
        target = (key[0], moved(path, key[1]) if key[1] > 0 else key[1])
        out[moved(module.file.path, o.span.start)] = target
    return out
