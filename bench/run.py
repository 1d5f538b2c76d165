"""python -m bench.run MODEL...: every method on the same weights, tokens and threads, in turns.

Prints a table, and writes bench.json and bench.svg. docs/benchmarks.md says what each figure means.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench import peers, record
from bench.chart import chart
from bench.imports import import_times
from bench.methods import FLOATS, Method, UnknownMethod, methods
from bench.prepare import Prepared, prepare
from bench.probe import probed
from bench.record import Measured, Workload
from bench.start import Asked, start
from bench.table import table
from bench.traffic import sizes_of
from bench.turns import take_turns
from linnet.diagnostics import LinnetError
from linnet.nest.card import Card
from linnet.nest.resolve import resolve


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    add = made.add_argument
    add("models", nargs="+", metavar="MODEL", help="cards by name, or checkpoints")
    add("--methods", default="all", help="keys with commas, such as linnet-torch-q4; default: all")
    add("--dtype", help="of keys without one: f32, bf16, f16; default f32, on a device the card's")
    add("--device", default="cpu", help="cpu (default) or cuda")
    add("--prompt", type=int, default=512, help="tokens of the prompt (%(default)s)")
    add("--new", type=int, default=128, help="tokens after it (%(default)s)")
    add("--batch", type=int, default=1, help="rows (%(default)s)")
    add("--warmup", type=int, default=1, help="rounds that are not counted (%(default)s)")
    add("--iters", type=int, default=5, help="rounds that are, in turns (%(default)s)")
    add("--threads", type=int, default=os.cpu_count() or 1, help="of every method (%(default)s)")
    add("--timeout", type=float, default=3600, help="seconds of a method in all (%(default)s)")
    add("--seed", type=int, default=0, help="of the prompt, and of random weights")
    add("--random", action="store_true", help="random weights at the card's size, not fetched")
    add("--merge", action="store_true", help="keep the other rows that bench.json has")
    add("--out", type=Path, help="where bench.json goes; default: in the cache folder")
    add("--cache", type=Path, help="of environments and prepared weights")
    add("--no-probe", action="store_true", help="no bandwidth and product rate, so no shares")
    add("--imports", type=int, default=0, metavar="N", help="time importing linnet.torch N times")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    if args.cache is not None:
        os.environ["LINNET_BENCH_CACHE"] = str(args.cache.resolve())
    try:
        _check(args)
        for model in args.models:
            found = measure(model, args)
            print(table(found))
    except (LinnetError, UnknownMethod, peers.PeerError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


def _check(args: argparse.Namespace) -> None:
    for name in ("prompt", "new", "batch", "iters", "threads"):
        if getattr(args, name) < 1:
            raise LinnetError(f"--{name} is {getattr(args, name)}; it must be 1 or more")
    if args.warmup < 0:
        raise LinnetError(f"--warmup is {args.warmup}; it must be 0 or more")
    if args.dtype is not None and args.dtype not in FLOATS:
        raise LinnetError(f"--dtype is {args.dtype}; choose {', '.join(FLOATS)}")
    if args.device != "cpu":
        check_device(args.device)


def check_device(device: str) -> None:
    """Raises a LinnetError where PyTorch cannot use the device."""
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise LinnetError(f"--device {device} cannot be used: {why}") from error


def measure(model: str, args: argparse.Namespace) -> dict[str, Any]:
    """The model's bench.json and bench.svg are written; gives what the first holds."""
    card = resolve(model)
    _check_card(card, args)
    dtype = args.dtype or ("f32" if args.device == "cpu" else own_dtype(card))
    chosen = methods(args.methods, dtype, args.device)
    prepared = prepare(card, peers.cache() / "models", dtype if args.random else None, args.seed)
    workload = _workload(args, dtype)
    found = _measured(chosen, prepared, workload, args)
    place: Path = args.out or peers.cache() / "results" / card.name
    if len(args.models) > 1 and args.out is not None:
        place = place / card.name
    found = record.write(place, found, args.merge)
    (place / "bench.svg").write_text(chart(found))
    say(f"written: {place / record.FILE}, {place / 'bench.svg'}")
    return found


def _check_card(card: Card, args: argparse.Namespace) -> None:
    """The card makes text, and the prompt and what follows fit in its context."""
    context = card.generics.get("MaxSeq", card.generics.get("MaxPositions"))
    if "MaxSeq" not in card.generics or not isinstance(context, int):
        raise LinnetError(f"{card.name} makes no text, and prompts and tokens are what is measured")
    if args.prompt + args.new > context:
        raise LinnetError(
            f"--prompt {args.prompt} and --new {args.new} are {args.prompt + args.new} positions; "
            f"the context of {card.name} holds {context}"
        )


def _workload(args: argparse.Namespace, dtype: str) -> Workload:
    return Workload(
        device=args.device,
        prompt=args.prompt,
        new=args.new,
        batch=args.batch,
        warmup=args.warmup,
        iters=args.iters,
        seed=args.seed,
        threads=args.threads,
        dtype=dtype,
        random=args.random,
    )


def _measured(
    chosen: Sequence[Method], prepared: Prepared, workload: Workload, args: argparse.Namespace
) -> dict[str, Any]:
    """Every method measured beside what the machine allows."""
    sizes = sizes_of(prepared.checkpoint())
    probe: dict[str, Any] = {}
    if not args.no_probe:
        say("measuring bandwidth and product rate")
        kinds = sorted({one.dtype for one in chosen})
        probe = probed(args.device, args.threads, kinds)
    shape = (args.batch, args.prompt)
    prompts = np.random.default_rng(args.seed).integers(0, sizes.vocabulary, shape).tolist()
    rows = [Measured(one) for one in chosen]
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="linnet-bench-") as folder:
        asked = Asked(prompts, args.new, args.threads, args.device, args.seed)
        turns = [
            (one, partial(start, one.method, prepared, asked, Path(folder) / f"{k}.npy"))
            for k, one in enumerate(rows)
        ]
        take_turns(turns, args.warmup, args.iters, args.timeout, say)
        load.append(os.getloadavg()[0])
        if args.imports:
            say("timing imports")
        imports = import_times(args.imports) if args.imports else None
        return record.document(rows, workload, sizes, probe, load, imports)


def own_dtype(card: Card) -> str:
    """What the card computes in, where that is a float that is measured."""
    own = str(card.generics.get("T", "bf16"))
    return own if own in FLOATS else "bf16"


def say(line: str) -> None:
    """A line of progress."""
    print(f"bench: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
