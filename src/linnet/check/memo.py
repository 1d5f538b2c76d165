"""What one check leaves for the next: trees, and all that is known of modules without findings.

A module is taken over when it and everything it imports are the same files as before: its own
text and its imports are all that its findings depend on. `check` without a memo starts afresh,
and finds the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnet.check.analysis import Analysis, Local, Module
from linnet.diagnostics import Diagnostic, Findings
from linnet.source import Source
from linnet.syntax import tree
from linnet.syntax.parser import parse
from linnet.workspace import ModuleFile, Workspace

if TYPE_CHECKING:  # a Checking holds a Memo
    from linnet.check.scope import Checking

# Keyed by nodes, which belong to one module each.
_ANALYSIS = tuple(
    f.name for f in fields(Analysis) if f.name not in ("package", "modules", "roots", "findings")
)
_CHECKING = ("owners", "defaults", "divisors", "clauses", "aliases", "touched")

Table = dict[tree.Syntax, Any]
Parsed = tuple[tree.File, tuple[Diagnostic, ...]]

# What was last read of each file of the standard library, which nearly every program imports.
_STD: dict[tuple[Path, str], tuple[Source, Parsed]] = {}


def _parsed(source: Source) -> Parsed:
    own = Findings()
    return parse(source, own), tuple(own.items)


def _of_std(file: ModuleFile) -> Parsed:
    """The tree of such a file, parsed anew only where it is not the same source."""
    key = file.path, file.source.name
    source, known = _STD.get(key, (None, None))
    if known is None or source is not file.source:
        known = _parsed(file.source)
        _STD[key] = file.source, known
    return known


@dataclass(eq=False, slots=True)
class Kept:
    """A module without findings, the files it imports, and what was filled in about it."""

    module: Module
    imports: tuple[ModuleFile, ...]
    tables: dict[str, Table]
    used_imports: set[tuple[Module, str]]
    used_members: set[tuple[Module, tree.Member]]
    unused_locals: list[Local]

    def restore(self, checking: Checking) -> None:
        for name, table in self.tables.items():
            owner = checking.analysis if name in _ANALYSIS else checking
            getattr(owner, name).update(table)
        checking.used_imports |= self.used_imports
        checking.used_members |= self.used_members
        checking.all_locals += self.unused_locals


def _nothing() -> None:
    pass


def _untold(analysis: Analysis, checked: Sequence[tree.Fn]) -> None:
    pass


@dataclass(eq=False, slots=True)
class Memo:
    """Kept from check to check of one package or file.

    While a check runs, `pause` is called now and then and may raise to give it up; `first` is
    the file whose functions are checked before the others, and `early` is called when they are.
    """

    wanted: bool = True  # False where nothing will be asked of it later
    pause: Callable[[], None] = _nothing
    first: Source | None = None
    early: Callable[[Analysis], None] | None = None
    # Of the first file's functions, those to be checked before anything else, and who is told.
    soonest: Callable[[Module], Sequence[tree.Fn] | None] | None = None
    soon: Callable[[Analysis, Sequence[tree.Fn]], None] = _untold
    only: int | None = None  # of all bodies, the one of the first file that stands here
    _trees: dict[Source, Parsed] = field(default_factory=dict[Source, Parsed])
    _kept: dict[ModuleFile, Kept] = field(default_factory=dict[ModuleFile, Kept])
    _same: dict[ModuleFile, bool] = field(default_factory=dict[ModuleFile, bool])

    def glance(self, source: Source, at: int) -> Memo:
        """For a look at one body, whose check leaves nothing behind."""
        return Memo(False, first=source, only=at, _trees=dict(self._trees), _kept=self._kept)

    def skips(self, fn: tree.Fn) -> bool:
        """Whether this body need not be checked."""
        if self.only is None:
            return False
        inside = fn.span.start <= self.only <= fn.span.end
        return fn.span.source is not self.first or not inside

    def begin(self) -> None:
        self._same.clear()

    def parsed(self, file: ModuleFile, findings: Findings) -> Parsed:
        """The tree of a file and its mistakes, which are reported."""
        source = file.source
        if source not in self._trees:
            self._trees[source] = _of_std(file) if file.package.is_std else _parsed(source)
        syntax, mistakes = self._trees[source]
        for d in mistakes:
            label, at = d.primary.text, d.primary.span
            findings.add(
                d.code, d.message, at, label=label, related=d.related, notes=d.notes, help=d.help
            )
        return syntax, mistakes

    def kept(self, workspace: Workspace | None, file: ModuleFile) -> Kept | None:
        """What is known of a module, if it and all that it imports are as they were."""
        same = workspace is not None and self._is_same(workspace, file)
        return self._kept[file] if same else None

    def _is_same(self, workspace: Workspace, file: ModuleFile) -> bool:
        if file not in self._same:
            kept = self._kept.get(file)
            self._same[file] = False  # while its imports are being looked at
            self._same[file] = kept is not None and all(
                workspace.resolve(file.package, tuple(p.text for p in use.path.parts)) is target
                and self._is_same(workspace, target)
                for use, target in zip(kept.module.tree.uses, kept.imports, strict=True)
            )
        return self._same[file]

    def keep(self, checking: Checking) -> None:
        """Remember the modules of a check that has nothing to say about them (warnings aside)."""
        assert checking.workspace is not None
        found = {d.primary.span.source for d in checking.findings.items}
        fresh = {
            module.file.source: module
            for module in checking.modules.values()
            if module not in checking.reused and module.file.source not in found
        }
        tables: dict[Source, dict[str, Table]] = {source: {} for source in fresh}
        for name in (*_ANALYSIS, *_CHECKING):
            parts: defaultdict[Source, Table] = defaultdict(dict)
            owner = checking.analysis if name in _ANALYSIS else checking
            for node, value in getattr(owner, name).items():
                parts[node.span.source][node] = value
            for source in tables.keys() & parts.keys():
                tables[source][name] = parts[source]
        kept = {m.file: self._kept[m.file] for m in checking.reused}
        for source, module in fresh.items():
            imports = [
                checking.workspace.resolve(module.file.package, tuple(p.text for p in u.path.parts))
                for u in module.tree.uses
            ]
            kept[module.file] = Kept(
                module,
                tuple(file for file in imports if file is not None),
                tables[source],
                {use for use in checking.used_imports if use[0] is module},
                {use for use in checking.used_members if use[0] is module},
                [
                    local
                    for local in checking.all_locals
                    if local.decl.span.source is source and local not in checking.used_locals
                ],
            )
        self._kept = kept
        read = {module.file.source for module in checking.modules.values()}
        self._trees = {s: t for s, t in self._trees.items() if s in read}
