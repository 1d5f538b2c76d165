"""The import that a name which means nothing may be waiting for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from linnet.check.scope import Scope
from linnet.diagnostics import Edit, Help
from linnet.source import Source, Span
from linnet.syntax import tree
from linnet.workspace import ModuleFile

_PUBLIC = re.compile(r"^pub (\w+) (\w+)", re.MULTILINE)
_KINDS = {
    "call": ("fn", "op", "entry", "struct"),
    "type": ("block", "struct", "enum", "type"),
    "trait": ("trait",),
    "value": ("const", "enum"),
}


def that_brings(scope: Scope, name: str, place: str) -> Help | None:
    """The import of a name that just one module of `std` or of the own package makes public.

    `place` says what may stand there: a `call`, a `type`, a `trait` or a `value`.
    """
    kinds = _KINDS[place]
    homes = [f for kind, f in _homes(scope).get(name, ()) if kind in kinds]
    homes = [*dict.fromkeys(homes)]
    own = scope.module.file
    if len(homes) != 1 or homes[0] is own or name in scope.module.imports:
        return None
    path = ".".join(homes[0].name)
    edit = _edit(scope.module.tree, path, name)
    safe = path.startswith("std.")
    return Help(f"import it: `use {path}::{{{name}}}`", (edit,) if edit else (), safe)


def _homes(scope: Scope) -> dict[str, list[tuple[str, ModuleFile]]]:
    """What each public name is declared as, and where, in the modules a file may import."""
    package = scope.module.file.package
    found = scope.checking.public.get(package)
    if found is None:
        found = scope.checking.public[package] = {}
        for file in _files(scope):
            for kind, name in _PUBLIC.findall(file.source.text):
                found.setdefault(name, []).append((kind, file))
    return found


def _files(scope: Scope) -> Iterator[ModuleFile]:
    """The modules whose items a file may import, but for those of other packages."""
    workspace = scope.checking.workspace
    package = scope.module.file.package
    if workspace is None:
        return
    yield from workspace.files_of(workspace.std)
    if package is not workspace.std and package.root is not None:
        yield from workspace.files_of(package)


def _edit(file: tree.File, path: str, name: str) -> Edit | None:
    """Adds the name to the list of its module's `use` line, or a line among the sorted ones."""
    for use in file.uses:
        if use.path.text == path and use.names:
            return _listed(use.names, name)
    line = f"use {path}::{{{name}}}"
    after = [use for use in file.uses if use.path.text < path]
    if after:
        return _insert(file.source, after[-1].span.end, f"\n{line}")
    if file.uses:
        return _insert(file.source, file.uses[0].span.start, f"{line}\n")
    if file.module is None:
        return None
    return _insert(file.source, file.module.span.end, f"\n\n{line}")


def _listed(names: Sequence[tree.UseName], name: str) -> Edit:
    for each in names:
        if each.name.text > name:
            return _insert(each.span.source, each.span.start, f"{name}, ")
    last = names[-1].span
    return _insert(last.source, last.end, f", {name}")


def _insert(source: Source, at: int, text: str) -> Edit:
    return Edit(Span(source, at, at), text)
