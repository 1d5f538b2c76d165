"""`python -m linnet.nest pull`: a model's card, source and weights on this machine."""

from __future__ import annotations

import argparse
import sys

from linnet.nest.fetch import fetch_weights
from linnet.nest.progress import TextProgress
from linnet.nest.resolve import resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="a model of the zoo, a card's directory, or org/name@revision"
    )


def run(args: argparse.Namespace) -> int:
    progress = TextProgress(sys.stderr)
    files = fetch_weights(resolve(args.name, progress=progress), progress)
    print(files.files[0].parent)
    return 0
