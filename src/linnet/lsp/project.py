"""What the open files belong to, checked again when a text has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from linnet.check import check
from linnet.check.analysis import Analysis, Module
from linnet.check.memo import Memo
from linnet.diagnostics import Diagnostic, LinnetError
from linnet.lsp.guess import carried, edited
from linnet.source import Source
from linnet.syntax import tree
from linnet.workspace import MANIFEST, SUFFIX, ModuleFile, Package, Workspace

if TYPE_CHECKING:
    from linnet.lsp.names import Occurrence

Key = tuple[Path, bool]  # the root of a package, or a file (True) that is checked on its own


@dataclass(frozen=True, slots=True)
class Document:
    """The text of an open file, and the client's number for it."""

    text: str
    version: int | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Unit:
    """A package, or a file outside any, as it was last checked."""

    key: Key
    analysis: Analysis
    workspace: Workspace
    findings: tuple[Diagnostic, ...]  # if `guessed`, of one file, and not certain
    paths: Mapping[Source, Path]  # of all that was read for it
    guessed: bool = False
    names: dict[Module, list[Occurrence]] = field(default_factory=dict[Module, "list[Occurrence]"])

    def module(self, path: Path) -> Module | None:
        """The checked module in a file."""
        return next((m for m in self.analysis.modules.values() if m.file.path == path), None)

    def imported(self, module: Module, parts: Iterable[str]) -> Module | None:
        """The module that a path in a `use` line means."""
        file = self.workspace.resolve(module.file.package, tuple(parts))
        return next((m for m in self.analysis.modules.values() if m.file is file), None)


@dataclass(frozen=True, eq=False, slots=True)
class State:
    """Every unit with an open file, checked at one moment; `troubles` are for the log."""

    workspace: Workspace
    units: tuple[Unit, ...] = ()
    homes: Mapping[Path, Unit] = field(default_factory=dict[Path, Unit])
    documents: Mapping[Path, Document] = field(default_factory=dict[Path, Document])
    troubles: tuple[str, ...] = ()

    def place(self, path: Path) -> tuple[Unit, Module] | None:
        """The unit and the module of an open file."""
        unit = self.homes.get(path)
        module = unit.module(path) if unit is not None else None
        return (unit, module) if unit is not None and module is not None else None

    def findings(self) -> dict[Path, list[Diagnostic]]:
        """What was found, by file, each once."""
        found: dict[Path, list[Diagnostic]] = {}
        seen: set[tuple[Path, int, int, str]] = set()
        for unit in self.units:
            for d in unit.findings:
                span = d.primary.span
                path = unit.paths.get(span.source)
                if path is None or (path, span.start, span.end, d.code) in seen:
                    continue
                seen.add((path, span.start, span.end, d.code))
                found.setdefault(path, []).append(d)
        return found


Early = Callable[[Unit], None]


class Project:
    """Checks what is open; what one check found out is used by the next."""

    def __init__(self, std_root: str | Path | None = None) -> None:
        self.workspace = Workspace(std_root=std_root)
        self.memos: dict[Key, Memo] = {}
        self.units: Mapping[Key, Unit] = {}  # as they were last

    def check(
        self,
        documents: Mapping[Path, Document],
        first: Path | None = None,
        *,
        pause: Callable[[], None] = lambda: None,
        early: Early | None = None,
    ) -> State:
        """The state of these open files; `first` is the file that its user is looking at.

        `early` gets the unit of that file when the file itself is checked, and even before, with
        what an edit within bodies most likely means (see `guess`). `pause` is called now
        and then, and may raise to give up; then the project is as it was.
        """
        workspace = self.workspace.renewed({p: d.text for p, d in documents.items()})
        targets: dict[Key, Package | ModuleFile] = {}
        keys: dict[Path, Key] = {}
        troubles: list[str] = []
        for path in sorted(documents, key=lambda path: (path != first, path)):
            try:
                key, target = _target(workspace, path)
            except LinnetError as e:
                troubles.append(str(e))
                continue
            keys[path], targets[key] = key, target
        units: dict[Key, Unit] = {}
        for key, target in targets.items():
            memo = self.memos.setdefault(key, Memo())
            memo.pause = pause
            memo.first, memo.early, memo.soonest = None, None, None
            if first is not None and keys.get(first) == key and first.suffix == SUFFIX:
                self._tell_early(memo, workspace, key, first, early)
            try:
                units[key] = _unit(key, workspace, check(workspace, target, memo=memo))
            except LinnetError as e:
                troubles.append(str(e))
        self.workspace = workspace
        self.memos = {key: self.memos[key] for key in units}
        self.units = units
        homes = {path: units[key] for path, key in keys.items() if key in units}
        return State(workspace, tuple(units.values()), homes, documents, tuple(troubles))

    def _tell_early(
        self, memo: Memo, workspace: Workspace, key: Key, first: Path, early: Early | None
    ) -> None:
        source = workspace.file(first).source
        memo.first = source
        if early is None:
            return
        memo.early = lambda analysis: early(_unit(key, workspace, analysis))
        before = self.units.get(key)
        old = before.module(first) if before is not None else None
        if before is None or old is None:
            return

        def soon(analysis: Analysis, checked: Sequence[tree.Fn]) -> None:
            unit = _unit(key, workspace, analysis)
            others = any(
                d.severity == "error" and d.primary.span.source is not old.file.source
                for d in before.findings
            )
            spans = [fn.span for fn in checked]
            found = carried(unit.findings, before.findings, old.file.source, source, spans, others)
            early(replace(unit, findings=found, guessed=True))

        memo.soonest = lambda module: edited(old.tree, module.tree)
        memo.soon = soon

    def look(self, state: State, path: Path, text: str, at: int) -> tuple[Unit, Module] | None:
        """One open file with another text; of its bodies only the one at `at` is checked."""
        home = state.homes.get(path)
        if home is None:
            return None
        workspace = state.workspace.renewed({**state.workspace.overlays, path: text})
        try:
            file = workspace.file(path)
            memo = self.memos[home.key].glance(file.source, at) if home.key in self.memos else None
            unit = _unit(home.key, workspace, check(workspace, file, memo=memo))
        except LinnetError:
            return None
        module = unit.module(path)
        return (unit, module) if module is not None else None


def _target(workspace: Workspace, path: Path) -> tuple[Key, Package | ModuleFile]:
    """What is checked because a file is open: its package if it is one of its modules."""
    if path.name == MANIFEST:
        return (path.parent, False), workspace.open(path.parent)
    file = workspace.file(path)
    root = file.package.root
    if root is not None and any(own is file for own in workspace.files_of(file.package)):
        return (root, False), file.package
    return (path, True), file


def _unit(key: Key, workspace: Workspace, analysis: Analysis) -> Unit:
    files = [module.file for module in analysis.modules.values()]
    paths = {file.source: file.path for file in files}
    packages = {analysis.package, *(file.package for file in files)}
    for package in list(packages):
        packages.update(package.dependencies.values())
    for package in packages:
        if package.manifest is not None and package.root is not None:
            paths[package.manifest] = package.root / MANIFEST
    return Unit(key, analysis, workspace, _findings(workspace, analysis, paths), paths)


def _findings(
    workspace: Workspace, analysis: Analysis, paths: Mapping[Source, Path]
) -> tuple[Diagnostic, ...]:
    """What was found; under a manifest with mistakes nothing else can be trusted."""
    broken = [
        d for d in workspace.findings.items if d.code == "E5001" and d.primary.span.source in paths
    ]
    own = {d.primary.span.source for d in broken}
    if analysis.package.manifest in own:
        return tuple(broken)
    return (*broken, *(d for d in analysis.findings.items if d.code != "E5001"))


def packages_below(folders: Iterable[Path], limit: int = 200) -> Iterator[Path]:
    """The packages in some folders, hidden ones and those of other tools left out."""
    todo = list(folders)
    while todo and limit > 0:
        folder = todo.pop()
        limit -= 1
        if (folder / MANIFEST).is_file():
            yield folder
        try:
            below = sorted(folder.iterdir())
        except OSError:
            continue
        skipped = ("node_modules", "target", "build", "src", "__pycache__", "venv")
        todo += [f for f in below if f.name[0] != "." and f.name not in skipped and f.is_dir()]
