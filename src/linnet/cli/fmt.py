"""`linnet fmt`: files, folders of them or standard input in Linnet's one style."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from linnet.cli import ERRORS, OK, USAGE, color
from linnet.render import render_text
from linnet.syntax.format import format_text
from linnet.workspace import SUFFIX

STDIN = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if anything would change"
    )
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a .linnet file, a folder of them, or - for standard input to standard output",
    )


def run(args: argparse.Namespace) -> int:
    if args.paths == [STDIN]:
        return _standard_input(args)
    files: dict[str, Path] = {}  # each once, by its real path
    for path in map(Path, args.paths):
        found = list(_files(path))
        if not found:
            print(f"linnet fmt: {_nothing(path)}", file=sys.stderr)
            return USAGE
        for file in found:
            files.setdefault(os.path.realpath(file), file)
    return max([_file(file, args) for file in files.values()], default=OK)


def _files(path: Path) -> Iterator[Path]:
    """The sources that a path on the command line names; hidden folders are left out."""
    if path.suffix == SUFFIX and path.is_file():
        yield path
    for place, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (Path(place, name) for name in sorted(names) if name.endswith(SUFFIX))
        yield from (path for path in paths if path.is_file())  # an editor's lock is a broken link


def _nothing(path: Path) -> str:
    if str(path) == STDIN:
        return f"`{STDIN}` (standard input) stands alone, not among other paths"
    if path.is_dir():
        return f"{path}: no {SUFFIX} file here"
    return f"{path}: " + (f"not a {SUFFIX} file" if path.exists() else "no such file or directory")


def _standard_input(args: argparse.Namespace) -> int:
    data = sys.stdin.buffer.read()
    formatted = _formatted("<stdin>", data, args)
    if formatted is None:
        return ERRORS
    if args.check:
        return _changed("<stdin>") if formatted != data else OK
    sys.stdout.flush()
    sys.stdout.buffer.write(formatted)  # bytes: a source is UTF-8, whatever the terminal is
    return OK


def _file(path: Path, args: argparse.Namespace) -> int:
    try:
        data = path.read_bytes()
        formatted = _formatted(str(path), data, args)
        if formatted is None:
            return ERRORS
        if formatted == data:
            return OK
        if not args.check:
            replace_file(Path(os.path.realpath(path)), formatted)
    except OSError as e:
        print(f"linnet fmt: {path}: {e.strerror}", file=sys.stderr)
        return ERRORS
    changed = _changed(str(path))
    return changed if args.check else OK


def _changed(name: str) -> int:
    print(name)
    return ERRORS


def _formatted(name: str, data: bytes, args: argparse.Namespace) -> bytes | None:
    """The formatted source; None if it cannot be, which is reported on standard error."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        print(
            f"linnet fmt: {name}:{line}: byte 0x{data[e.start]:02x} is not UTF-8; left as it is: "
            "save it as UTF-8",
            file=sys.stderr,
        )
        return None
    formatted, findings = format_text(text, name)
    if formatted is None:
        for diagnostic in findings.sorted():
            shown = render_text(diagnostic, color=color(args, sys.stderr))
            print(shown, end="\n\n", file=sys.stderr)
        print(f"linnet fmt: {name}: left as it is, for its syntax errors", file=sys.stderr)
        return None
    return formatted.encode("utf-8")


def replace_file(path: Path, data: bytes) -> None:
    """The file holds `data`, with the mode it had: at no moment anything else, or less."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        shutil.copymode(path, name)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
