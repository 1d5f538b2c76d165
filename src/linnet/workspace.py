"""Packages on disk or in an editor; the only place where the front end reads files.

Nothing but `.linnet` files and `linnet.toml` manifests is ever read, and each file once, so that
spans into it are shared.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linnet.diagnostics import Diagnostic, Findings, LinnetError
from linnet.source import Source, Span

MANIFEST = "linnet.toml"
SUFFIX = ".linnet"
LANGUAGE = "0.1"
PACKAGE_NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
NAME_RULE = "letters, digits, `_` and `-`, not a digit first"
PACKAGE_KEYS = ("name", "version", "language")
TOML_KINDS: dict[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    list: "an array",
    dict: "a table",
}


@dataclass(frozen=True, eq=False, slots=True)
class Package:
    """A folder with a manifest, the standard library, or (`root` None) a file on its own."""

    name: str
    version: str
    root: Path | None
    manifest: Source | None
    dependencies: dict[str, Package] = field(default_factory=dict[str, "Package"])

    @property
    def is_std(self) -> bool:
        """The standard library: it alone is a folder without a manifest."""
        return self.root is not None and self.manifest is None


@dataclass(frozen=True, eq=False, slots=True)
class ModuleFile:
    """A source file and its logical name within its package: `crate`, `crate.a.b`, `std.x.y`."""

    name: tuple[str, ...]
    source: Source
    package: Package
    path: Path


Stamp = tuple[int, int, int]  # of a file: when it was written, its size, its number

# Files of the standard library by the name they are shown by: every workspace has the same ones.
_STD: dict[tuple[Path, str], tuple[Stamp, Source]] = {}


@dataclass(frozen=True, slots=True)
class _Before:
    """What an earlier workspace had read."""

    sources: Mapping[Path, Source] = field(default_factory=dict[Path, Source])
    read: Mapping[Path, tuple[Stamp, Source]] = field(
        default_factory=dict[Path, tuple[Stamp, Source]]
    )
    modules: Mapping[Path, ModuleFile] = field(default_factory=dict[Path, ModuleFile])
    packages: Mapping[Path, Package] = field(default_factory=dict[Path, Package])
    findings: Sequence[Diagnostic] = ()


class Workspace:
    """Finds packages and modules; `overlays` are unsaved texts that stand for files.

    `findings` collects what is wrong with manifests and encodings; the packages and modules are
    there all the same, with what could be made of them.
    """

    def __init__(
        self, overlays: Mapping[str | Path, str] | None = None, std_root: str | Path | None = None
    ) -> None:
        given = std_root or os.environ.get("LINNET_STD")
        root = real(given or Path(__file__).parent / "std")
        if given and not root.is_dir():
            raise LinnetError(f"{given}: no such directory (the standard library, as given)")
        self.findings = Findings()
        self.std = Package("std", LANGUAGE, root, None)
        self._overlays = {real(path): text for path, text in (overlays or {}).items()}
        self._sources: dict[Path, Source] = {}
        self._packages: dict[Path, Package] = {}  # by root
        self._alone: dict[Path, Package] = {}  # by file
        self._modules: dict[Path, ModuleFile] = {}
        self._stamped: dict[Path, tuple[Stamp, Source]] = {}
        self._before = _Before()

    def renewed(self, overlays: Mapping[Path, str]) -> Workspace:
        """The same files as they are now; what has not changed keeps its sources and modules.

        So whatever was found out about a module holds as long as it is the same module.
        """
        new = Workspace({str(path): text for path, text in overlays.items()}, self.std.root)
        old = self._before
        new.std = self.std
        new._alone = self._alone
        new._before = _Before(
            {**old.sources, **self._sources},
            {**old.read, **self._stamped},
            {**old.modules, **self._modules},
            {**old.packages, **self._packages},
            self.findings.items,
        )
        return new

    @property
    def overlays(self) -> Mapping[Path, str]:
        """The unsaved texts."""
        return self._overlays

    def open(self, path: str | Path) -> Package:
        """The package that a file or a directory belongs to."""
        path = real(path)
        if not self._is_file(path) and not path.is_dir():
            raise LinnetError(f"{path}: no such file or directory")
        if self._in_std(path):
            return self.std
        folders = path.parents if self._is_file(path) else (path, *path.parents)
        for folder in folders:
            if self._is_file(folder / MANIFEST):
                return self._package(folder)
        if self._is_file(path):
            return self._alone.setdefault(path, Package(path.stem, "", None, None))
        raise LinnetError(f"{path}: not in a package (no {MANIFEST} here or in a folder above)")

    def file(self, path: str | Path) -> ModuleFile:
        """The module in a file, within its package."""
        path = real(path)
        if not path.suffix and not self._is_file(path):
            raise LinnetError(f"{path}: no such file or directory")
        if path.suffix != SUFFIX:
            raise LinnetError(f"{path}: not a {SUFFIX} file")
        return self._module(path, self.open(path))

    def resolve(self, package: Package, parts: tuple[str, ...]) -> ModuleFile | None:
        """The module that a logical path means inside `package`; None where there is none."""
        if not parts or not all(part.isidentifier() for part in parts):
            return None
        head, rest = parts[0], parts[1:]
        if head == "std":
            owner: Package | None = self.std
        elif head == "crate":
            owner = package
        else:
            owner = package.dependencies.get(head)
        if owner is None or owner.root is None:
            return None
        folder = owner.root if owner is self.std else owner.root / "src"
        if owner is self.std and not rest:
            return None
        path = folder.joinpath(*rest).with_suffix(SUFFIX) if rest else folder / f"lib{SUFFIX}"
        if not self._is_file(path) or self._in_another(path, folder):
            return None
        return self._module(path, owner)

    def files_of(self, package: Package) -> tuple[ModuleFile, ...]:
        """Every source file of a package, in the order of their paths."""
        if package.root is None:
            return tuple(self._module(p, package) for p, q in self._alone.items() if q is package)
        folder = package.root if package is self.std else package.root / "src"
        paths = {
            path
            for path in self._overlays
            if path.suffix == SUFFIX and folder in path.parents
            if not self._in_another(path, folder)
        }
        return tuple(self._module(path, package) for path in sorted(paths | set(_walk(folder))))

    # --- modules ------------------------------------------------------------------------------

    def _module(self, path: Path, package: Package) -> ModuleFile:
        if path not in self._modules:
            source = self._source(path)
            old = self._before.modules.get(path)
            if old is None or old.source is not source or old.package is not package:
                old = ModuleFile(self._logical_name(path, package), source, package, path)
            self._modules[path] = old
        return self._modules[path]

    def _logical_name(self, path: Path, package: Package) -> tuple[str, ...]:
        if package.root is None:
            return (path.stem,)
        if package is self.std:
            return ("std", *path.relative_to(package.root).with_suffix("").parts)
        src = package.root / "src"
        parts = path.relative_to(src if src in path.parents else package.root).with_suffix("").parts
        return ("crate",) if parts == ("lib",) and src in path.parents else ("crate", *parts)

    def _in_another(self, path: Path, folder: Path) -> bool:
        """Whether a package of its own, below `folder`, holds the file."""
        above = path.relative_to(folder).parents
        return any(self._is_file(folder / part / MANIFEST) for part in above if part.parts)

    def _in_std(self, path: Path) -> bool:
        assert self.std.root is not None
        return path == self.std.root or self.std.root in path.parents

    # --- files --------------------------------------------------------------------------------

    def _is_file(self, path: Path) -> bool:
        return path in self._overlays or path.is_file()

    def _source(self, path: Path) -> Source:
        """The file's text; bytes that are not UTF-8 are replaced, and reported once."""
        if path in self._sources:
            return self._sources[path]
        old = self._before.sources.get(path)
        if path in self._overlays:
            text = self._overlays[path]
            source = old if old is not None and old.text == text else Source(shown(path), text)
        else:
            source = self._read(path, old)
        self._sources[path] = source
        return source

    def _read(self, path: Path, old: Source | None) -> Source:
        """The file's text, read again only if the file has changed."""
        name = shown(path)
        try:
            at = path.stat()
            stamp = (at.st_mtime_ns, at.st_size, at.st_ino)
            read = self._before.read.get(path) or _STD.get((path, name))
            # What stands for bytes that are not UTF-8 is reported by each workspace anew.
            if read is not None and read[0] == stamp and "\ufffd" not in read[1].text:
                self._stamped[path] = read
                return read[1]
            data = path.read_bytes()
        except OSError as e:
            raise LinnetError(f"{name}: cannot be read: {e.strerror}") from e
        source = Source(name, data.decode("utf-8", "replace"))
        if old is not None and old.text == source.text:
            source = old
        self._report_encoding(source, data)
        self._stamped[path] = stamp, source
        if self._in_std(path):
            _STD[path, name] = stamp, source
        return source

    def _report_encoding(self, source: Source, data: bytes) -> None:
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as e:
            start = len(data[: e.start].decode("utf-8"))
            self.findings.add(
                "E1001",
                f"byte 0x{data[e.start]:02x} is not UTF-8; a {SUFFIX} file is UTF-8 text",
                Span(source, start, start + 1),
                help="save the file as UTF-8",
            )

    # --- manifests ----------------------------------------------------------------------------

    def _package(self, root: Path) -> Package:
        """The package at `root`; packages may depend on each other in a circle, modules may not."""
        if root not in self._packages:
            source = self._source(root / MANIFEST)
            if self._unchanged(root, source):
                return self._packages[root]
            manifest = _Manifest(source, self.findings)
            manifest.check()
            package = Package(manifest.name or root.name, manifest.version, root, source)
            self._packages[root] = package  # before its dependencies, which may need it
            for name, place in manifest.dependencies():
                if dependency := self._dependency(manifest, root, name, place):
                    package.dependencies[name] = dependency
        return self._packages[root]

    def _unchanged(self, root: Path, manifest: Source) -> bool:
        """Whether the package of an earlier workspace still stands; it is then taken over.

        It does when no manifest has changed among all those that it depends on.
        """
        old = self._before.packages.get(root)
        if old is None or old.manifest is not manifest:
            return False
        if any(d.code == "E5001" for d in self._before.findings):
            return False  # what a faulty manifest names may be there by now
        reached = {root: old}
        waiting = [old]
        while waiting:
            for dependency in waiting.pop().dependencies.values():
                folder = dependency.root
                assert folder is not None
                if folder in reached:
                    continue
                if not self._is_file(folder / MANIFEST):
                    return False
                if self._source(folder / MANIFEST) is not dependency.manifest:
                    return False
                reached[folder] = dependency
                waiting.append(dependency)
        self._packages.update(reached)
        return True

    def _dependency(self, manifest: _Manifest, root: Path, name: str, place: str) -> Package | None:
        folder = real(root / place)
        if folder == root:
            message = f"dependency `{name}` is this package itself; its modules are `crate.x`"
            manifest.report(message, name, "dependencies")
        elif not self._is_file(folder / MANIFEST):
            found = "does not exist" if not folder.exists() else "is not a directory"
            found = "has no linnet.toml" if folder.is_dir() else found
            looked = shown(folder / MANIFEST)
            message = f"dependency `{name}`: `{place}` {found}; looked for `{looked}`"
            manifest.report(message, name, "dependencies")
        else:
            return self._package(folder)
        return None


class _Manifest:
    """A manifest's text and values, and where in the text a key stands."""

    def __init__(self, source: Source, findings: Findings) -> None:
        self.source = source
        self.findings = findings
        self.values: dict[str, Any] = {}
        self.name = self.version = ""

    def check(self) -> None:
        """Read the values; everything wrong in `[package]` and the keys is reported."""
        try:
            self.values = tomllib.loads(self.source.text)
        except tomllib.TOMLDecodeError as e:
            self.findings.add("E5001", f"not valid TOML: {e}", self._toml_error(str(e)))
            return
        for key in sorted(self.values.keys() - {"package", "dependencies"}):
            self.unknown(key, "", ("package", "dependencies"))
        package = self.values.get("package")
        if not isinstance(package, dict):
            found = "no `[package]` table" if package is None else "`package` is not a table"
            form = f'write `[package]` with `name`, `version` and `language = "{LANGUAGE}"`'
            self.report(found, "package", "", help=form)
            return
        for key in sorted(package.keys() - set(PACKAGE_KEYS)):
            self.unknown(key, "package", PACKAGE_KEYS)
        name, version, language = (self._text(package, key) for key in PACKAGE_KEYS)
        self.version = version or ""
        if name is not None and name in ("std", "crate"):
            self.report(f"`{name}` cannot be a package's name: it is taken", "name", "package")
        elif name is not None and re.fullmatch(PACKAGE_NAME, name):
            self.name = name
        elif name is not None:
            self.report(f"`{name}` cannot be a package's name: {NAME_RULE}", "name", "package")
        if language not in (None, LANGUAGE):
            message = f'language version "{language}" is not known; this Linnet reads "{LANGUAGE}"'
            self.report(message, "language", "package")

    def dependencies(self) -> Iterator[tuple[str, str]]:
        """Name and path of each well-formed dependency; the others are reported."""
        table = self.values.get("dependencies", {})
        if not isinstance(table, dict):
            self.report("`dependencies` is not a table", "dependencies", "")
            return
        for name, value in table.items():
            form = f'write `{name} = {{ path = "../{name}" }}`'
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                message = f"`{name}` cannot be imported: a dependency's name is an identifier"
                self.report(message, name, "dependencies")
            elif name in ("std", "crate"):
                message = f"`{name}` cannot name a dependency: `{name}.x` has its own meaning"
                self.report(message, name, "dependencies")
            elif not isinstance(value, dict):
                message = f"dependency `{name}` is not a table with a `path`"
                self.report(message, name, "dependencies", help=form)
            elif extra := sorted(value.keys() - {"path"}):
                message = f"unknown key `{extra[0]}` in dependency `{name}`; it has only `path`"
                self.report(message, name, "dependencies")
            elif not isinstance(value.get("path"), str):
                message = f"dependency `{name}` has no `path` that is a string"
                self.report(message, name, "dependencies", help=form)
            else:
                yield name, value["path"]

    def report(self, message: str, key: str, table: str, *, help: str | None = None) -> None:
        self.findings.add("E5001", message, self._place(key, table), help=help)

    def unknown(self, key: str, table: str, known: tuple[str, ...]) -> None:
        where = f"in `[{table}]`" if table else "in a manifest"
        names = ", ".join(f"`{name}`" for name in known)
        self.report(f"unknown key `{key}` {where}; known are {names}", key, table)

    def _text(self, package: dict[str, Any], key: str) -> str | None:
        value = package.get(key)
        if isinstance(value, str) and value:
            return value
        example = {"name": "my_model", "version": "0.1.0", "language": LANGUAGE}[key]
        if key not in package:
            message, key_at, table = f"`[package]` has no `{key}`", "package", ""
        elif value == "":
            message, key_at, table = f"`{key}` is empty", key, "package"
        else:
            kind = TOML_KINDS.get(type(value), "a date or time")
            message, key_at, table = f"`{key}` must be a string, not {kind}", key, "package"
        self.report(message, key_at, table, help=f'write `{key} = "{example}"`')
        return None

    def _place(self, key: str, table: str) -> Span:
        """Where `key` of `table` stands; the first line where it cannot be found."""
        current, at = "", 0
        for line in self.source.text.splitlines(keepends=True):
            header = re.match(r"\s*\[+\s*([^\[\]]+?)\s*\]", line)
            if header:
                current = header[1].replace('"', "")
                dotted = f"{table}.{key}".lstrip(".")
                if current == dotted or current.startswith(dotted + "."):
                    return Span(self.source, at + header.start(1), at + header.end(1))
            else:
                prefix = "" if current == table else re.escape(table) + r"\s*\.\s*"
                pattern = rf"\s*{prefix}([\"']?{re.escape(key)}[\"']?)\s*[.=]"
                found = re.match(pattern, line) if current in ("", table) else None
                if found:
                    return Span(self.source, at + found.start(1), at + found.end(1))
            at += len(line)
        text = self.source.text
        return Span(self.source, 0, text.find("\n") if "\n" in text else len(text))

    def _toml_error(self, message: str) -> Span:
        """The character that the TOML parser names, or the end of the text."""
        if found := re.search(r"line (\d+), column (\d+)", message):
            start = self.source.line_starts()[int(found[1]) - 1] + int(found[2]) - 1
            return Span(self.source, start, min(start + 1, len(self.source.text)))
        return Span(self.source, len(self.source.text), len(self.source.text))


def shown(path: Path) -> str:
    """A path as users see it: relative below the working directory, else absolute."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def refuse_text(path: str | Path) -> None:
    """A program's own text is no path, and is told so in a line."""
    if "\n" in str(path):
        first = str(path).strip().partition("\n")[0][:60]
        raise LinnetError(
            f"`{first}` and what follows it is text, and a path is expected: write the program to "
            f"a {SUFFIX} file"
        )


def real(path: str | Path) -> Path:
    """The one spelling of a path that everything is keyed by: absolute, links followed."""
    return Path(os.path.realpath(path))


def _walk(folder: Path) -> Iterator[Path]:
    """The `.linnet` files below a folder; hidden folders and packages below it are left out."""
    for place, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and not Path(place, name, MANIFEST).is_file()
        ]
        paths = (Path(place, name) for name in files if name.endswith(SUFFIX))
        yield from (path for path in paths if path.is_file())  # no link to nothing
