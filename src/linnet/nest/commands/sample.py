"""`python -m linnet.nest sample`: samples.json beside a card, from a real run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from linnet.diagnostics import LinnetError, NestError
from linnet.nest.progress import TextProgress
from linnet.nest.resolve import resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Both models answer greedily in f32, up to an end token. Needs transformers, and for a "
        "GGUF file accelerate and gguf."
    )
    parser.add_argument("name", metavar="MODEL", help="a model of the zoo, or a card's directory")
    parser.add_argument("--prompt", metavar="TEXT", help="what to ask, or with --raw to continue")
    parser.add_argument("--raw", action="store_true", help="no chat template")
    parser.add_argument(
        "--max-new-tokens", type=int, default=128, metavar="N", help="at most N (128)"
    )
    parser.add_argument("--weights", metavar="PATH", help="a local checkpoint instead")
    parser.add_argument("--numerics", default="fast", help="exact, equivalent or fast (default)")
    parser.add_argument("--threads", type=int, metavar="N", help="processor threads to use")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="default: samples.json beside the card; - prints it"
    )


def run(args: argparse.Namespace) -> int:
    import torch

    from linnet.nest.sample import FILE, text_sample

    for option in ("max_new_tokens", "threads"):
        value = getattr(args, option)
        if value is not None and value < 1:
            name = option.replace("_", "-")
            raise LinnetError(f"--{name} is {value}; it must be 1 or more")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    progress = TextProgress(sys.stderr)
    card = resolve(args.name, progress=progress)
    sample = text_sample(
        card,
        prompt=args.prompt,
        count=args.max_new_tokens,
        raw=args.raw,
        weights=args.weights,
        numerics=args.numerics,
        progress=progress,
    )
    document = json.dumps(sample, ensure_ascii=False, indent=2) + "\n"
    if args.output == "-":
        print(document, end="")
        return 0
    path = Path(args.output) if args.output else card.directory / FILE
    try:
        path.write_text(document, "utf-8")
    except OSError as error:
        raise NestError(f"{path}: cannot be written: {error.strerror or error}") from error
    print(f"{path}: {sample['agreeing_prefix']} of {sample['tokens']} tokens agree")
    return 0
