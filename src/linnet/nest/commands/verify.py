"""`python -m linnet.nest verify`: a proof of loading, checked against the files."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("proof", metavar="FILE", help="what nest.load(..., proof=FILE) wrote")


def run(args: argparse.Namespace) -> int:
    from linnet.nest.commands.check import numbered
    from linnet.nest.proof import verify_loading

    found = verify_loading(args.proof)
    if found.problems:
        numbered(args.proof, found.problems)
        return 1
    print(
        f"{args.proof}: ok ({found.model}: {found.parameters} parameters from {found.tensors} "
        f"tensors in {found.files} {'file' if found.files == 1 else 'files'})"
    )
    return 0
