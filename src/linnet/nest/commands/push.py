"""`python -m linnet.nest push`: a card as a repository of the Hub."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("card", metavar="DIR", help="a card's directory or its name")
    parser.add_argument("repo", metavar="REPO", help="org/name, made if it does not exist")
    parser.add_argument("--private", action="store_true", help="make it a private one")
    parser.add_argument("--std", metavar="DIR", help="another standard library")


def run(args: argparse.Namespace) -> int:
    from linnet.nest.pushing import push

    pushed = push(args.card, args.repo, private=args.private, std_root=args.std)
    print(f"{pushed.url} at {pushed.commit}: {len(pushed.files)} files")
    return 0
