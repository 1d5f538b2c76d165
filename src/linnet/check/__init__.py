"""Checking: names, types, shapes, literals, state; one pass over each function, for all sizes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from linnet.check import blocks, consts, declare, effects, scope, stmts, unused
from linnet.check.analysis import Analysis
from linnet.source import Source
from linnet.syntax import tree
from linnet.workspace import ModuleFile, Package, Workspace

__all__ = ["Analysis", "check", "check_text"]

Scalar = bool | int | float


def check(
    workspace: Workspace,
    target: str | Path | Package | ModuleFile,
    *,
    constants: Mapping[str, Scalar] | None = None,
) -> Analysis:
    """Everything that is found out about a file or a package, and about what it imports.

    A directory stands for its whole package. `constants` replaces values of the package's typed
    `pub const` scalars, by name; one that cannot be replaced raises LinnetError.
    """
    if isinstance(target, str | Path):
        given = Path(target)
        target = workspace.open(given) if given.is_dir() else workspace.file(given)
    if isinstance(target, Package):
        files: tuple[ModuleFile, ...] = workspace.files_of(target)
        return _check(workspace, target, files, constants or {})
    return _check(workspace, target.package, (target,), constants or {})


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
) -> Analysis:
    analysis = Analysis(package)
    checking = scope.Checking(analysis, workspace, constants)
    for file in files:
        analysis.roots.append(scope.load(checking, file))
    modules = list(checking.modules.values())
    own = {
        name: item
        for module in modules
        if module.file.package is package
        for name, item in module.items.items()
        if isinstance(item, tree.Const)
    }
    checking.own_constants = set(own.values())
    for module in modules:
        declare.register(checking, module)
    for module in modules:
        declare.declare(checking, module)
    declare.check_structs(checking)
    consts.check_replacements(checking, own)
    blocks.check_instances(checking)
    for signature in list(analysis.signatures.values()):
        stmts.function(checking, signature)
    effects.compute(checking)
    read = {module.file.source for module in modules} | {package.manifest}
    read |= {module.file.package.manifest for module in modules}
    analysis.findings.items.extend(
        d for d in workspace.findings.items if d.primary.span.source in read
    )
    if analysis.ok:
        unused.warn(checking)
    return analysis


class _Check(ModuleType):
    """The module is also the public function `linnet.check`, since both have that name."""

    def __call__(
        self, place: str | Path | Workspace, target: str | Path | Package | ModuleFile = "."
    ) -> Analysis:
        """`linnet.check(path)`, or `linnet.check(workspace, path)` for one with unsaved texts."""
        return check(place, target) if isinstance(place, Workspace) else check(Workspace(), place)


sys.modules[__name__].__class__ = _Check
