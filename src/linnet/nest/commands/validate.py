"""`python -m linnet.nest validate`: the validation figures of a card."""

from __future__ import annotations

import argparse
import json
import math
import sys

from linnet.diagnostics import LinnetError
from linnet.nest.progress import TextProgress
from linnet.nest.resolve import resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "The model's first layers run in f32 here and in transformers, on the same tensors and "
        "tokens. Exit status 1 where the difference is above the tolerance or an argmax differs. "
        "Needs transformers, and for a GGUF file accelerate and gguf."
    )
    parser.add_argument("name", metavar="MODEL", help="a model of the zoo, or a card's directory")
    parser.add_argument(
        "--layers", default="2", metavar="N", help="the first N layers (2), or all of them: all"
    )
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="positions (64)")
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument("--weights", metavar="PATH", help="a local checkpoint")
    weights.add_argument(
        "--random", action="store_true", help="random weights of the card's shapes: no download"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of what is drawn")
    parser.add_argument("--numerics", default="fast", help="exact, equivalent or fast (default)")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-3,
        metavar="X",
        help="the difference allowed, as a part of the largest value (1e-3)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="processor threads to use")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(args: argparse.Namespace) -> int:
    import torch

    from linnet.nest.validate import validate

    layers = None if args.layers == "all" else _layers(args.layers)
    if args.tokens < 2:
        raise LinnetError(f"--tokens is {args.tokens}; it must be 2 or more")
    if not (args.tolerance > 0 and math.isfinite(args.tolerance)):
        raise LinnetError(f"--tolerance is {args.tolerance}; it must be above 0, finite")
    if args.threads is not None:
        if args.threads < 1:
            raise LinnetError(f"--threads is {args.threads}; it must be 1 or more")
        torch.set_num_threads(args.threads)
    progress = TextProgress(sys.stderr)
    found = validate(
        resolve(args.name, progress=progress),
        layers=layers,
        tokens=args.tokens,
        weights=args.weights,
        random=args.random,
        seed=args.seed,
        numerics=args.numerics,
        tolerance=args.tolerance,
        progress=progress,
    )
    if args.json:
        print(json.dumps(found.document(), ensure_ascii=False, indent=2))
    else:
        print(found.text())
    return 1 if found.problems else 0


def _layers(written: str) -> int:
    if not written.isdecimal() or int(written) < 1:
        raise LinnetError(f"--layers is {written!r}; it must be 1 or more, or `all`")
    return int(written)
