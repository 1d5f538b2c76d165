"""`linnet diagram`: an entry's architecture as a drawing."""

from __future__ import annotations

import argparse

from linnet.cli import OK
from linnet.cli.source import add_source_arguments, opened
from linnet.diagnostics import PlanError
from linnet.diagram import FORMATS, render, save
from linnet.diagram.colours import THEMES

EPILOG = """\
Blocks are boxes, with the shapes that flow between them in the source's names; a loop over blocks
is a frame marked with how often it runs. Without --entry: `forward`, or the only entry. --entry
also names a free function.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "--expand",
        type=int,
        default=1,
        metavar="N",
        help="how many levels of blocks are opened (default: 1)",
    )
    parser.add_argument("--params", action="store_true", help="weights too, and how many there are")
    parser.add_argument(
        "--no-arithmetic",
        dest="arithmetic",
        action="store_false",
        help="leave out what works element by element",
    )
    parser.add_argument("--format", choices=FORMATS, default="svg", help="default: svg")
    parser.add_argument("--theme", choices=THEMES, default="light", help="default: light")
    parser.add_argument("-o", "--output", metavar="FILE", help="write there, not to the terminal")
    add_source_arguments(parser)


def run(args: argparse.Namespace) -> int:
    named: list[str] = args.entry or []
    if len(named) > 1:
        raise PlanError(f"one drawing shows one entry, not {len(named)}: {', '.join(named)}")
    args.entry = None  # a free function may be named too, which `opened` does not look for
    found = opened(args)
    text = render(
        found.program,
        named[0] if named else found.main,
        args.format,
        args.expand,
        args.theme,
        params=args.params,
        arithmetic=args.arithmetic,
        generics=found.given,
    )
    if args.output is None:
        print(text, end="")
    else:
        save(text, args.output)
    return OK
