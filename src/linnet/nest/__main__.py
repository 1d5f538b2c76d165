"""`python -m linnet.nest`: fetch and list the models of the zoo."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from linnet.diagnostics import LinnetError
from linnet.nest.card import card_directories, find_card
from linnet.nest.fetch import fetch_weights
from linnet.nest.progress import TextProgress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="nest_command", required=True, metavar="COMMAND")
    pull = commands.add_parser("pull", help="fetch a model's weights; prints where they lie")
    pull.add_argument("name", metavar="NAME", help="a model of the zoo, or a card's directory")
    commands.add_parser("list", help="the models of the zoo, one a line")


def run(args: argparse.Namespace) -> int:
    if args.nest_command == "list":
        for name, directory in sorted(card_directories().items()):
            print(f"{name}\t{find_card(directory).title or name}")
        return 0
    card = find_card(args.name)
    files = fetch_weights(card, TextProgress(sys.stderr))
    print(files.files[0].parent)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; the result is its exit status: 0, 1 for errors, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m linnet.nest", description=__doc__)
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except LinnetError as error:
        print(f"linnet.nest: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("linnet.nest: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
