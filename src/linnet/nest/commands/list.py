"""`python -m linnet.nest list`: the models that a name can reach."""

from __future__ import annotations

import argparse

from linnet.nest.card import card_directories, find_card


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(args: argparse.Namespace) -> int:
    for name, directory in sorted(card_directories().items()):
        print(f"{name}\t{find_card(directory).title or name}")
    return 0
