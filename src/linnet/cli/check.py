"""`linnet check`: every finding about files, packages and folders of them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from linnet.check import check
from linnet.cli import ERRORS, OK, USAGE, color
from linnet.diagnostics import Diagnostic, Findings
from linnet.render import render_json, render_text
from linnet.source import Source
from linnet.workspace import MANIFEST, SUFFIX, ModuleFile, Package, Workspace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--strict", action="store_true", help="exit 1 on warnings too")
    parser.add_argument(
        "--fix", action="store_true", help="apply the fixes that are certain, then check again"
    )
    add_targets(parser)


def add_targets(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--std", metavar="DIR", help="the standard library to check against")
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a .linnet file, a package, or a folder of them"
    )


def run(args: argparse.Namespace) -> int:
    checked = of_arguments(args, "check")
    if checked is None:
        return USAGE
    fixed: list[Diagnostic] = []
    unwritten = False
    if args.fix:
        fixed, unwritten = _fix(args, checked)
        checked = Checked.of(args.paths, args.std)
    if args.json:
        document = render_json(checked.findings)
        if args.fix:
            document["fixed"] = render_json(fixed)["diagnostics"]
        print(json.dumps(document, indent=2))
    else:
        for finding in fixed:
            print(_what_was_fixed(finding))
        print_findings(args, checked.findings)
        print(f"{_fixes(len(fixed))}{checked.summary()}")
    return ERRORS if unwritten or checked.fails(args.strict) else OK


# ---------------------------------------------------------------- what is checked


@dataclass
class Checked:
    """What the paths of a command line name, and the findings about it.

    `nothing` are the paths that name nothing.
    """

    files: dict[Source, Path] = field(default_factory=dict[Source, Path])
    std: Path | None = None
    findings: tuple[Diagnostic, ...] = ()
    nothing: list[Path] = field(default_factory=list[Path])

    @staticmethod
    def of(
        paths: Sequence[str], std: str | None, texts: Mapping[Path, str] | None = None
    ) -> Checked:
        """Check files, packages and folders; `texts` stand for files that hold something else."""
        overlays: dict[str | Path, str] = dict(texts.items()) if texts else {}
        workspace = Workspace(overlays, std_root=std)
        out = Checked(std=workspace.std.root)
        targets: list[Package | ModuleFile] = []
        for path in map(Path, paths):
            found = list(_targets(workspace, path))
            targets.extend(found)
            if not found:
                out.nothing.append(path)
        if not out.nothing:
            out.findings = _check(workspace, targets)
            files = (file for target in targets for file in _files(workspace, target))
            out.files = {file.source: file.path for file in files}
        return out

    def fails(self, strict: bool) -> bool:
        return any(d.severity == "error" for d in self.findings) or (strict and bool(self.findings))

    def summary(self) -> str:
        errors = sum(d.severity == "error" for d in self.findings)
        warnings = len(self.findings) - errors
        counts = [counted(n, word) for n, word in ((errors, "error"), (warnings, "warning")) if n]
        return f"{' and '.join(counts) or 'no findings'} in {counted(len(self.files), 'file')}"


def of_arguments(args: argparse.Namespace, command: str) -> Checked | None:
    """What the command line asks to check; None when it is wrong, which is said."""
    if args.std and not Path(args.std).is_dir():
        print(f"linnet {command}: --std {args.std}: no such directory", file=sys.stderr)
        return None
    checked = Checked.of(args.paths, args.std)
    for path in checked.nothing[:1]:
        nothing = f"no {SUFFIX} file here" if path.exists() else "no such file or directory"
        print(f"linnet {command}: {path}: {nothing}", file=sys.stderr)
    return None if checked.nothing else checked


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


# ---------------------------------------------------------------- fixes


def _fix(args: argparse.Namespace, first: Checked) -> tuple[list[Diagnostic], bool]:
    """What was fixed in the files named, which are written; and whether one could not be."""
    from linnet.cli.fmt import replace_file
    from linnet.fixes import fix

    checked = first

    def check_again(texts: Mapping[Path, str]) -> tuple[Diagnostic, ...]:
        nonlocal checked
        if texts:
            checked = Checked.of(args.paths, args.std, texts)
        return checked.findings

    def own(source: Source) -> Path | None:
        path = checked.files.get(source)
        within_std = path is not None and first.std is not None and first.std in path.parents
        return None if within_std else path

    fixed = fix(check_again, own)
    lost: set[str] = set()
    for path, text in fixed.texts.items():
        before = next(s for s, p in first.files.items() if p == path)
        try:
            if path.read_bytes() != before.text.encode():
                raise OSError(0, "it changed meanwhile, or is not UTF-8")
            replace_file(Path(os.path.realpath(path)), text.encode())
        except OSError as e:
            print(f"linnet check: {path}: not fixed: {e.strerror}", file=sys.stderr)
            lost.add(before.name)
    return [d for d in fixed.applied if d.primary.span.source.name not in lost], bool(lost)


def _what_was_fixed(finding: Diagnostic) -> str:
    span = finding.primary.span
    assert finding.help is not None
    line = span.source.position(span.start).line
    what = f"{finding.message}; {finding.help.text}"
    return f"fixed {span.source.name}:{line}: {finding.code} {what}"


def _fixes(count: int) -> str:
    return f"{count} fixed; " if count else ""


# ---------------------------------------------------------------- text


def print_findings(args: argparse.Namespace, findings: Sequence[Diagnostic]) -> None:
    for diagnostic in findings:
        print(render_text(diagnostic, color=color(args, sys.stdout)), end="\n\n")


def counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
