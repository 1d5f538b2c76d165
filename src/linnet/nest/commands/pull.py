"""`python -m linnet.nest pull`: a model's weights on this machine."""

from __future__ import annotations

import argparse
import sys

from linnet.nest.card import find_card
from linnet.nest.fetch import fetch_weights
from linnet.nest.progress import TextProgress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a model of the zoo, or a card's directory")


def run(args: argparse.Namespace) -> int:
    files = fetch_weights(find_card(args.name), TextProgress(sys.stderr))
    print(files.files[0].parent)
    return 0
