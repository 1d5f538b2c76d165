"""`linnet lsp`: the language server, for editors to start."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from linnet.cli import OK, USAGE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--std", metavar="DIR", help="the standard library to check against")
    parser.add_argument(
        "--stdio", action="store_true", help="talk over standard input and output (it always does)"
    )


def run(args: argparse.Namespace) -> int:
    if args.std and not Path(args.std).is_dir():
        print(f"linnet lsp: --std {args.std}: no such directory", file=sys.stderr)
        return USAGE
    from linnet.lsp.server import run as serve

    serve(args.std)
    return OK
