"""`linnet check`: every finding about files, packages and folders of them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from linnet.check import check
from linnet.cli import ERRORS, OK, USAGE, color
from linnet.diagnostics import Diagnostic, Findings
from linnet.render import render_json, render_text
from linnet.workspace import MANIFEST, SUFFIX, ModuleFile, Package, Workspace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--strict", action="store_true", help="exit 1 on warnings too")
    parser.add_argument("--std", metavar="DIR", help="the standard library to check against")
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a .linnet file, a package, or a folder of them"
    )


def run(args: argparse.Namespace) -> int:
    if args.std and not Path(args.std).is_dir():
        print(f"linnet check: --std {args.std}: no such directory", file=sys.stderr)
        return USAGE
    workspace = Workspace(std_root=args.std)
    targets: list[Package | ModuleFile] = []
    for path in map(Path, args.paths):
        found = list(_targets(workspace, path))
        if not found:
            nothing = f"no {SUFFIX} file here" if path.exists() else "no such file or directory"
            print(f"linnet check: {path}: {nothing}", file=sys.stderr)
            return USAGE
        targets.extend(found)
    findings = _check(workspace, targets)
    errors = sum(d.severity == "error" for d in findings)
    if args.json:
        print(json.dumps(render_json(findings), indent=2))
    else:
        for diagnostic in findings:
            print(render_text(diagnostic, color=color(args, sys.stdout)), end="\n\n")
        files = sum(len(_files(workspace, target)) for target in targets)
        print(_summary(files, errors, len(findings) - errors))
    return ERRORS if errors or (args.strict and findings) else OK


def _targets(workspace: Workspace, path: Path) -> Iterator[Package | ModuleFile]:
    """What a path on the command line asks to check: a file, a package, or all of them below it."""
    if path.is_file():
        if path.name == MANIFEST:
            yield workspace.open(path.parent)
        elif path.suffix == SUFFIX:
            yield workspace.file(path)
        return
    if path.name == "src" and (path.parent / MANIFEST).is_file():
        yield workspace.open(path)
        return
    for place, folders, files in os.walk(path):
        here = Path(place)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if here.resolve() == workspace.std.root:
            yield workspace.std
            folders.clear()
            continue
        if MANIFEST in files:
            yield workspace.open(here)
            folders[:] = [name for name in folders if name != "src"]
        paths = (here / name for name in sorted(files) if name.endswith(SUFFIX))
        yield from (workspace.file(path) for path in paths if path.is_file())  # no broken links


def _check(workspace: Workspace, targets: list[Package | ModuleFile]) -> tuple[Diagnostic, ...]:
    """Each finding once, in source order; a package with a bad manifest has only that reported."""
    bad = {d.primary.span.source for d in workspace.findings.items if d.code == "E5001"}
    found: list[Diagnostic] = []
    for target in targets:
        package = target if isinstance(target, Package) else target.package
        if package.manifest not in bad:
            found.extend(check(workspace, target).findings.items)
    found[:0] = workspace.findings.items  # complete only now: modules are read while checking
    unique = {(d.code, d.primary.span): d for d in reversed(found)}
    return Findings([*reversed(unique.values())]).sorted()


def _files(workspace: Workspace, target: Package | ModuleFile) -> tuple[ModuleFile, ...]:
    return workspace.files_of(target) if isinstance(target, Package) else (target,)


def _summary(files: int, errors: int, warnings: int) -> str:
    counts = [_count(n, word) for n, word in ((errors, "error"), (warnings, "warning")) if n]
    return f"{' and '.join(counts) or 'no findings'} in {_count(files, 'file')}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
