"""`python -m linnet.nest check`: the problems of cards, numbered; or that there are none."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cards", metavar="DIR", nargs="+", help="a card's directory or its name")
    parser.add_argument("--no-hub", action="store_true", help="leave the published weights alone")
    parser.add_argument("--no-exports", action="store_true", help="do not try the backends")
    parser.add_argument("--std", metavar="DIR", help="another standard library")


def run(args: argparse.Namespace) -> int:
    from linnet.nest.checking import check, read_card

    status = 0
    for name in args.cards:
        card, problems = read_card(name)
        if card is not None:
            name = card.name
            problems += check(
                card, std_root=args.std, hub=not args.no_hub, exports=not args.no_exports
            )
        if not problems:
            print(f"{name}: ok", flush=True)
            continue
        status = 1
        numbered(name, problems)
    return status


def numbered(name: str, problems: Sequence[str]) -> None:
    """Every problem is printed, below how many there are."""
    plural = "problem" if len(problems) == 1 else "problems"
    print(f"{name}: {len(problems)} {plural}")
    for k, problem in enumerate(problems, 1):
        first, *rest = problem.splitlines()
        print(f"  {k}. {first}", *(f"     {line}" for line in rest), sep="\n", flush=True)
