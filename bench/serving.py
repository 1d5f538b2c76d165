"""python -m bench.serving MODEL: many requests at once, by our engine and server and by others.

Every method answers the same prompts with as many tokens, the same number of requests in flight,
in turns. Prints a table, and writes bench.json and bench.svg. docs/benchmarks.md says what each
figure means.
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
from bench.methods import FLOATS, Method, UnknownMethod, serving_methods
from bench.prepare import Prepared, prepare
from bench.probe import probed
from bench.record import Measured
from bench.run import check_device, own_dtype, say
from bench.served import Load, document
from bench.start import Asked, start
from bench.table import serving_table
from bench.traffic import sizes_of
from bench.turns import take_turns
from linnet.diagnostics import LinnetError
from linnet.nest.card import Card
from linnet.nest.resolve import resolve

SEED = 1097
"""With it 64 prompts of 64 to 256 tokens have 10,146 in all."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.serving", description=__doc__)
    add = made.add_argument
    add("model", metavar="MODEL", help="a card by name, or a checkpoint")
    add("--methods", default="all", help="keys with commas, as serve-llamacpp-q4; default: all")
    add("--dtype", help="of keys without one: f32, bf16, f16; default f32, on a device the card's")
    add("--device", default="cpu", help="cpu (default) or cuda")
    add("--requests", type=int, default=64, help="in all (%(default)s)")
    add("--concurrency", type=int, default=16, help="in flight at any time (%(default)s)")
    add("--prompt-min", type=int, default=64, help="tokens of the shortest prompt (%(default)s)")
    add("--prompt-max", type=int, default=256, help="tokens of the longest (%(default)s)")
    add("--new", type=int, default=64, help="tokens of each answer (%(default)s)")
    add("--iters", type=int, default=3, help="rounds, in turns (%(default)s)")
    add("--threads", type=int, default=os.cpu_count() or 1, help="of every method (%(default)s)")
    add("--timeout", type=float, default=3600, help="seconds of a method in all (%(default)s)")
    add("--seed", type=int, default=SEED, help="of lengths and tokens, and of random weights")
    add("--random", action="store_true", help="random weights at the card's size, not fetched")
    add("--merge", action="store_true", help="keep the other rows that bench.json has")
    add("--out", type=Path, help="where bench.json goes; default: in the cache folder")
    add("--cache", type=Path, help="of environments and prepared weights")
    add("--no-probe", action="store_true", help="no product rate, so no shares")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    if args.cache is not None:
        os.environ["LINNET_BENCH_CACHE"] = str(args.cache.resolve())
    try:
        _check(args)
        print(serving_table(measure(args)))
    except (LinnetError, UnknownMethod, peers.PeerError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


def _check(args: argparse.Namespace) -> None:
    for name in ("requests", "concurrency", "prompt_min", "new", "iters", "threads"):
        if getattr(args, name) < 1:
            option = name.replace("_", "-")
            raise LinnetError(f"--{option} is {getattr(args, name)}; it must be 1 or more")
    if args.prompt_max < args.prompt_min:
        raise LinnetError(f"--prompt-max is {args.prompt_max}; it must be --prompt-min or more")
    if args.dtype is not None and args.dtype not in FLOATS:
        raise LinnetError(f"--dtype is {args.dtype}; choose {', '.join(FLOATS)}")
    if args.device != "cpu":
        check_device(args.device)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The model's bench.json and bench.svg are written; gives what the first holds."""
    card = resolve(args.model)
    _check_card(card, args)
    dtype = args.dtype or ("f32" if args.device == "cpu" else own_dtype(card))
    chosen = serving_methods(args.methods, dtype)
    prepared = prepare(card, peers.cache() / "models", dtype if args.random else None, args.seed)
    found = _measured(chosen, prepared, args, dtype)
    place: Path = args.out or peers.cache() / "results" / f"{card.name}-serving"
    found = record.write(place, found, args.merge)
    (place / "bench.svg").write_text(chart(found))
    say(f"written: {place / record.FILE}, {place / 'bench.svg'}")
    return found


def _check_card(card: Card, args: argparse.Namespace) -> None:
    """The card makes text, and the longest prompt and its answer fit in its context."""
    context = card.generics.get("MaxSeq")
    if not isinstance(context, int):
        raise LinnetError(f"{card.name} makes no text, and prompts and tokens are what is measured")
    if args.prompt_max + args.new > context:
        raise LinnetError(
            f"--prompt-max {args.prompt_max} and --new {args.new} are {args.prompt_max + args.new} "
            f"positions; the context of {card.name} holds {context}"
        )


def _measured(
    chosen: Sequence[Method], prepared: Prepared, args: argparse.Namespace, dtype: str
) -> dict[str, Any]:
    """Every method measured beside what the machine allows."""
    sizes = sizes_of(prepared.checkpoint())
    probe: dict[str, Any] = {}
    if not args.no_probe:
        say("measuring bandwidth and product rate")
        probe = probed(args.device, args.threads, sorted({one.dtype for one in chosen}))
    prompts = prompts_of(
        args.seed, args.requests, args.prompt_min, args.prompt_max, sizes.vocabulary
    )
    load = Load(
        device=args.device,
        requests=args.requests,
        concurrency=args.concurrency,
        prompt_min=args.prompt_min,
        prompt_max=args.prompt_max,
        new=args.new,
        iters=args.iters,
        seed=args.seed,
        threads=args.threads,
        dtype=dtype,
        random=args.random,
        prompts=list(map(len, prompts)),
    )
    say(f"{len(prompts)} prompts, {sum(load.prompts)} tokens in all")
    rows = [Measured(one) for one in chosen]
    loads = [os.getloadavg()[0]]
    asked = Asked(prompts, args.new, args.threads, args.device, args.seed, args.concurrency)
    with tempfile.TemporaryDirectory(prefix="linnet-bench-") as folder:
        turns = [
            (one, partial(start, one.method, prepared, asked, Path(folder) / f"{k}.npy"))
            for k, one in enumerate(rows)
        ]
        take_turns(turns, 0, args.iters, args.timeout, say)
        loads.append(os.getloadavg()[0])
        return document(rows, load, sizes, probe, loads)


def prompts_of(
    seed: int, requests: int, shortest: int, longest: int, vocabulary: int
) -> list[list[int]]:
    """Prompts of random lengths, both bounds included, and random tokens."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(shortest, longest + 1, requests)
    return [draw.integers(0, vocabulary, length).tolist() for length in lengths]


if __name__ == "__main__":
    sys.exit(main())
