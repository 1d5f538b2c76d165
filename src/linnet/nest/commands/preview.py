"""`python -m linnet.nest preview`: drawings of cards' main entries."""

from __future__ import annotations

import argparse

from linnet.diagnostics import NestError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="a card's name or folder, or one of cards")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="one drawing there, not both beside the card"
    )
    parser.add_argument("--expand", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument(
        "--theme", choices=("light", "dark"), default="light", help="of FILE; default: light"
    )
    parser.add_argument("--std", metavar="DIR", help="another standard library")


def run(args: argparse.Namespace) -> int:
    from linnet.diagram import save
    from linnet.nest.preview import cards_at, drawing, write_previews

    cards = cards_at(args.directory)
    if args.output is None:
        for card in cards:
            for path in write_previews(card, args.expand, std_root=args.std):
                print(path)
        return 0
    if len(cards) > 1:
        raise NestError(f"-o {args.output}: {args.directory} has {len(cards)} cards, not one")
    save(drawing(cards[0], args.theme, args.expand, std_root=args.std), args.output)
    return 0
