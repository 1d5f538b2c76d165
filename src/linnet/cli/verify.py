"""`linnet verify`: every entry of a model on every backend, compared with the reference."""

from __future__ import annotations

import argparse
import json
import sys

from linnet.cli import ERRORS, OK, USAGE
from linnet.cli.source import add_numerics, bindings

EPILOG = """\
MODEL is a card's name or directory, a package or a .linnet file. At small sizes, with weights
drawn from a seed, unless --full. Backends: torch, torch-compiled, jax, stablehlo, onnx; all that
are installed without --backends. Exit status: 0 all agree, 1 some differ, 2 a wrong command line.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    # `--generics H=8 MODEL`: what comes after --generics is sorted out in `_model`.
    parser.add_argument("model", metavar="MODEL", nargs="?", help="what to verify")
    parser.add_argument(
        "--backends", metavar="NAME,...", type=_names, help="these, which must be installed"
    )
    parser.add_argument("--entries", metavar="NAME,...", type=_names, help="these entries alone")
    add_numerics(parser, "fast", "exact, equivalent or fast (default, as loaders have it)")
    parser.add_argument(
        "--generics",
        metavar="NAME=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="sizes and dtypes to verify at, such as MaxSeq=128 T=bf16",
    )
    parser.add_argument("--root", metavar="BLOCK", help="the root block, where there are several")
    parser.add_argument("--full", action="store_true", help="at the card's sizes, with its weights")
    parser.add_argument("--weights", metavar="PATH", help="with --full: a local checkpoint instead")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of weights and inputs")
    parser.add_argument("--std", metavar="DIR", help="another standard library")
    parser.add_argument("--json", action="store_true", help="a certificate, as JSON")


def run(args: argparse.Namespace) -> int:
    from linnet.verification import verify
    from linnet.verification.report import certificate, text

    report = verify(
        _model(args),
        backends=args.backends,
        entries=args.entries,
        numerics=args.numerics,
        generics=bindings(args.generics),
        root=args.root,
        full=args.full,
        weights=args.weights,
        seed=args.seed,
        std_root=args.std,
        told=lambda line: print(f"linnet: {line}", file=sys.stderr, flush=True),
    )
    if args.json:
        print(json.dumps(certificate(report), indent=2, ensure_ascii=False))
    else:
        print(text(report), end="")
    return OK if report.agrees else ERRORS


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _model(args: argparse.Namespace) -> str:
    """MODEL, also where it stands after the values of --generics; without one, usage and exit 2."""
    if args.model is None and args.generics and "=" not in args.generics[-1]:
        args.model = args.generics.pop()
    if args.model is None:
        print("linnet verify: no MODEL; linnet verify --help", file=sys.stderr)
        raise SystemExit(USAGE)
    model: str = args.model
    return model
