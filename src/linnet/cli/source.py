"""The program that a command line names: a file, a package or a card, its root and its generics."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from linnet.check import check
from linnet.check.analysis import Analysis
from linnet.cli import USAGE
from linnet.diagnostics import LinnetError, NestError, PlanError
from linnet.ir import Program, Value, parse_binding, program_of
from linnet.policy import POLICIES
from linnet.workspace import MANIFEST, Workspace

if TYPE_CHECKING:
    from linnet.nest.card import Card

CARD = "nest.toml"


FILE_HELP = "a .linnet file, a package, a card's directory or its name"


def add_source_arguments(
    parser: argparse.ArgumentParser, metavar: str = "FILE", help: str = FILE_HELP
) -> None:
    """FILE and the options that say which program of it is meant."""
    # `--bind H=8 FILE`: what comes after --bind is sorted out in `source_file`.
    parser.add_argument("file", metavar=metavar, nargs="?", help=help)
    add_program_options(parser)


def add_program_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", metavar="BLOCK", help="the root block, where there are several")
    parser.add_argument(
        "--entry", metavar="NAME", action="append", help="this entry alone; may be repeated"
    )
    parser.add_argument(
        "--bind",
        metavar="NAME=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="values of the root block's generics, such as H=8 T=bf16",
    )
    parser.add_argument("--std", metavar="DIR", help="another standard library")


def add_numerics(parser: argparse.ArgumentParser, default: str | None, help: str) -> None:
    parser.add_argument(
        "--numerics", "--policy", choices=POLICIES, default=default, metavar="POLICY", help=help
    )


def add_optionals(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--optionals",
        choices=("present", "absent"),
        default="absent",
        help="whether optional members are there (default: absent)",
    )
    parser.add_argument(
        "--absent-file",
        metavar="FILE",
        help="all optional members are there but those whose paths are lines of FILE",
    )


def presence(args: argparse.Namespace, program: Program) -> Callable[[str], bool]:
    """Which optional members are there, by path, as `add_optionals` says it."""
    if args.absent_file is None:
        there: bool = args.optionals == "present"
        return lambda path: there
    try:
        text = Path(args.absent_file).read_text("utf-8")
    except OSError as error:
        raise PlanError(f"cannot read {args.absent_file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{args.absent_file} is no text in UTF-8") from error
    absent = {line.strip() for line in text.splitlines() if line.strip()}
    known = program.optionals()
    for path in sorted(absent.difference(known)):
        listed = f"they are {', '.join(known)}" if known else "there are none"
        raise PlanError(f"{args.absent_file}: {path} is no optional member; {listed}")
    return lambda path: path not in absent


@dataclass(frozen=True, slots=True)
class Opened:
    """A program, and what the command line and a card bind in it."""

    program: Program
    given: dict[str, Value]
    entries: list[str] | None
    main: str | None

    def bound(self, command: str) -> dict[str, Value]:
        """A value for every generic; sizes that nobody gave are chosen, and that is said."""
        values = self.program.example(self.given)
        chosen = {name: value for name, value in values.items() if name not in self.given}
        if chosen:
            listed = ", ".join(f"{name}={value}" for name, value in chosen.items())
            print(
                f"linnet {command}: without a value, so chosen to fit: {listed} (--bind sets them)",
                file=sys.stderr,
            )
        return values


def source_file(args: argparse.Namespace) -> str:
    """FILE, also where it stands after the values of --bind; without one, usage and exit 2."""
    if args.file is None and args.bind and "=" not in args.bind[-1]:
        args.file = args.bind.pop()
    if args.file is None:
        print(f"linnet {args.command}: no FILE; linnet {args.command} --help", file=sys.stderr)
        raise SystemExit(USAGE)
    file: str = args.file
    return file


def opened(args: argparse.Namespace) -> Opened:
    """The program of a command line that has `add_source_arguments`."""
    place = source_file(args)
    given = bindings(args.bind)
    card = card_of(place)
    if card is not None:
        values = {**card.generics, **given}
        analysis = check(Workspace(std_root=args.std), card.source_path, constants=card.constants)
        return _opened(args, analysis, args.root or card.root, values, card.entry)
    analysis = check(Workspace(std_root=args.std), place)
    return _opened(args, analysis, args.root, given, None)


def bindings(words: list[str]) -> dict[str, Value]:
    """NAME=VALUE words as values by name; a name is bound once."""
    out: dict[str, Value] = {}
    for word in words:
        name, value = parse_binding(word)
        if name in out:
            raise PlanError(f"--bind {word}: {name} is bound twice")
        out[name] = value
    return out


def card_of(place: str) -> Card | None:
    """The card that FILE names; None where it is a source file or a package."""
    if Path(place).exists() and not (Path(place) / CARD).is_file():
        if (Path(place) / "config.json").is_file() and not (Path(place) / MANIFEST).is_file():
            raise LinnetError(
                f"{place}: a checkpoint, which holds no program: `linnet nest convert {place} "
                "-o DIR` makes a card of it"
            )
        return None
    from linnet.nest.card import find_card

    try:
        return find_card(place)
    except NestError:
        if Path(place).exists():
            raise
        raise LinnetError(f"{place}: no such file or directory, and no card's name") from None


def source_path(args: argparse.Namespace) -> Path:
    """The file or the package that FILE names, a card's included."""
    place = source_file(args)
    card = card_of(place)
    return Path(place) if card is None else card.source_path


def _opened(
    args: argparse.Namespace,
    analysis: Analysis,
    root: str | None,
    given: dict[str, Value],
    main: str | None,
) -> Opened:
    errors = tuple(d for d in analysis.findings.sorted() if d.severity == "error")
    if errors:
        plural = "an error" if len(errors) == 1 else f"{len(errors)} errors"
        raise LinnetError(f"{args.file} has {plural}", errors)
    program = program_of(analysis, root=root)
    entries: list[str] | None = args.entry
    for name in entries or ():
        program.entry(name)
    if entries is not None and main not in entries:
        main = None
    return Opened(program, given, entries, main)
