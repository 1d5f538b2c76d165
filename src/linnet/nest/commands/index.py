"""`python -m linnet.nest index`: the catalogue of a zoo as JSON."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", metavar="ROOT", help="a zoo (models/ below it), or cards' folder")
    parser.add_argument("-o", "--output", metavar="FILE", help="write it there, not to stdout")
    parser.add_argument("--std", metavar="DIR", help="another standard library")


def run(args: argparse.Namespace) -> int:
    from linnet.nest.cache import replacing
    from linnet.nest.catalogue import index_text

    text = index_text(args.root, args.std)
    if args.output is None:
        sys.stdout.write(text)
        return 0
    with replacing(Path(args.output)) as file:
        file.write(text.encode())
    return 0
