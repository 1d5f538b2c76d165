"""Checking: names, types, shapes, literals, state; one pass over each function, for all sizes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from linnet.check import blocks, consts, declare, divisions, effects, scope, stmts, unused
from linnet.check.analysis import Analysis, Module, Signature
from linnet.check.memo import Memo
from linnet.source import Source
from linnet.syntax import tree
from linnet.syntax.depth import deep_stack
from linnet.workspace import ModuleFile, Package, Workspace, refuse_text

__all__ = ["Analysis", "check", "check_text"]

Scalar = bool | int | float


def check(
    workspace: Workspace,
    target: str | Path | Package | ModuleFile,
    *,
    constants: Mapping[str, Scalar] | None = None,
    memo: Memo | None = None,
) -> Analysis:
    """Everything that is found out about a file or a package, and about what it imports.

    A directory stands for its whole package. `constants` replaces values of the package's typed
    `pub const` scalars, by name; one that cannot be replaced raises LinnetError. A `memo` of
    checks of the same target, in workspaces renewed from one another, saves work.
    """
    assert not (constants and memo)
    if isinstance(target, str | Path):
        refuse_text(target)
        given = Path(target)
        target = workspace.open(given) if given.is_dir() else workspace.file(given)
    if isinstance(target, Package):
        files: tuple[ModuleFile, ...] = workspace.files_of(target)
        return _check(workspace, target, files, constants or {}, memo)
    return _check(workspace, target.package, (target,), constants or {}, memo)


def check_text(
    text: str, name: str = "<text>", *, constants: Mapping[str, Scalar] | None = None
) -> Analysis:
    """`check` of a text that is no file; it can import `std`."""
    package = Package(Path(name).stem, "", None, None)
    file = ModuleFile((Path(name).stem,), Source(name, text), package, Path(name))
    return _check(Workspace(), package, (file,), constants or {})


def _check(
    workspace: Workspace,
    package: Package,
    files: tuple[ModuleFile, ...],
    constants: Mapping[str, Scalar],
    memo: Memo | None = None,
) -> Analysis:
    checking = scope.Checking(Analysis(package), workspace, constants, memo or Memo(wanted=False))
    checking.memo.begin()
    with deep_stack():
        _run(checking, files)
    return checking.analysis


def _run(checking: scope.Checking, files: tuple[ModuleFile, ...]) -> None:
    """Modules, declarations, bodies, effects, warnings: each step needs the ones before it."""
    analysis = checking.analysis
    for file in files:
        analysis.roots.append(scope.load(checking, file))
    modules = list(checking.modules.values())
    own = {
        name: item
        for module in modules
        if module.file.package is analysis.package
        for name, item in module.items.items()
        if isinstance(item, tree.Const)
    }
    checking.own_constants = set(own.values())
    fresh = [module for module in modules if module not in checking.reused]
    for module in fresh:
        declare.register(checking, module)
    fresh.sort(key=lambda module: module.file.source is not checking.memo.first)
    checked: set[tree.Fn] = set()
    for module in fresh:
        declare.declare(checking, module)
        if module is fresh[0]:
            checked = _soonest(checking, module)
    declare.check_structs(checking)
    consts.check_replacements(checking, own)
    blocks.check_instances(checking)
    _bodies(checking, checked)
    effects.compute(checking)
    if checking.memo.wanted:
        checking.memo.keep(checking)
    _add_findings_of_files(checking)
    if analysis.ok:
        unused.warn(checking)
        divisions.warn(checking)
    else:
        findings = analysis.findings
        findings.items = [d for d in findings.items if d.severity == "error"]


def _soonest(checking: scope.Checking, module: Module) -> set[tree.Fn]:
    """Check the functions that the memo wants to know about before all else, if it does."""
    memo = checking.memo
    imported = all(file in {m.file for m in checking.reused} for file in _imports(checking, module))
    if module.file.source is not memo.first or memo.soonest is None or not imported:
        return set()
    wanted = memo.soonest(module)
    if wanted is None:
        return set()
    for fn in wanted:
        if fn in checking.analysis.signatures:
            stmts.function(checking, checking.analysis.signatures[fn])
    memo.soon(checking.analysis, wanted)
    return set(wanted)


def _imports(checking: scope.Checking, module: Module) -> list[ModuleFile | None]:
    assert checking.workspace is not None
    resolve = checking.workspace.resolve
    package = module.file.package
    return [resolve(package, tuple(p.text for p in u.path.parts)) for u in module.tree.uses]


def _bodies(checking: scope.Checking, checked: set[tree.Fn]) -> None:
    """Check every other function that is not taken over; the memo's first file comes first."""
    memo = checking.memo
    rest: list[Signature] = []
    for signature in list(checking.analysis.signatures.values()):
        if signature.module in checking.reused or memo.skips(signature.fn):
            continue
        if signature.fn in checked:
            continue
        if signature.module.file.source is memo.first:
            memo.pause()
            stmts.function(checking, signature)
        else:
            rest.append(signature)
    if memo.early is not None:
        memo.early(checking.analysis)
    for signature in rest:
        memo.pause()
        stmts.function(checking, signature)


def _add_findings_of_files(checking: scope.Checking) -> None:
    """What is wrong with the manifests and encodings of what was checked."""
    assert checking.workspace is not None
    files = checking.modules
    read = {file.source for file in files} | {file.package.manifest for file in files}
    read.add(checking.analysis.package.manifest)
    checking.findings.items.extend(
        d for d in checking.workspace.findings.items if d.primary.span.source in read
    )


class _Check(ModuleType):
    """The module is also the public function `linnet.check`, since both have that name."""

    def __call__(
        self, place: str | Path | Workspace, target: str | Path | Package | ModuleFile = "."
    ) -> Analysis:
        """`linnet.check(path)`, or `linnet.check(workspace, path)` for one with unsaved texts."""
        return check(place, target) if isinstance(place, Workspace) else check(Workspace(), place)


sys.modules[__name__].__class__ = _Check
