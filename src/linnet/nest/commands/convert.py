"""`python -m linnet.nest convert`: a card for a checkpoint."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="a checkpoint: a directory, or org/name")
    parser.add_argument(
        "-o", "--output", metavar="DIR", required=True, help="the card's directory: new, or empty"
    )
    parser.add_argument("--revision", metavar="REV", help="a commit, tag or branch of the Hub's")
    parser.add_argument("--dtype", metavar="DTYPE", help="T: f32, bf16 or f16; default: as stated")
    parser.add_argument(
        "--ignore",
        metavar="KEY",
        action="append",
        default=[],
        help="an unknown key of the configuration that does not change the model; repeatable",
    )


def run(args: argparse.Namespace) -> int:
    from linnet.nest.conversion import convert

    directory = convert(
        args.source,
        output=args.output,
        revision=args.revision,
        dtype=args.dtype,
        ignore=args.ignore,
        notice=lambda line: print(f"linnet.nest: {line}", file=sys.stderr),
    )
    print(directory)
    return 0
