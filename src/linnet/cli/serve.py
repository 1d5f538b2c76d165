"""`linnet serve`: a model behind OpenAI's API, for many requests at once."""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from linnet.cli.model import (
    FLOATS,
    add_dtype,
    backend_options,
    check_loading,
    loaded,
    open_model,
)
from linnet.diagnostics import LinnetError

if TYPE_CHECKING:
    from linnet.serve.engine import Engine
    from linnet.serve.memory import Demand, Pool

EPILOG = """\
Clients find the API at http://HOST:PORT/v1, people a page to talk to at http://HOST:PORT/. The
memory for all requests is taken at the start: for --pool positions, or for as many as --batch
requests of --max-seq tokens can use and are free. SIGTERM and Ctrl-C let running requests finish; a
second one ends at once.
"""
USUAL = 2048
# Bits that a weight takes in blocks, with what a block says of itself.
_BLOCKS = {"q8": 8.5, "q4": 5.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "model", metavar="MODEL", help="a model of the zoo, a card, or a checkpoint"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="0.0.0.0: for all who reach this machine (default: 127.0.0.1, itself only)",
    )
    parser.add_argument(
        "--port", type=int, default=8000, metavar="N", help="0: any free one (default: 8000)"
    )
    parser.add_argument("--name", help="what the API calls the model; default: the card's name")
    size = parser.add_argument_group("size")
    size.add_argument(
        "--batch", type=int, default=32, metavar="N", help="requests at once (default: 32)"
    )
    size.add_argument(
        "--max-seq",
        type=int,
        metavar="N",
        help="most tokens of a request, prompt and answer (default: the card's, at most 2048)",
    )
    size.add_argument(
        "--pool",
        type=int,
        metavar="POSITIONS",
        help="tokens in the caches, of all requests together",
    )
    size.add_argument(
        "--max-queue",
        type=int,
        default=256,
        metavar="N",
        help="answers that may wait (default: 256)",
    )
    size.add_argument(
        "--warmup",
        type=int,
        nargs="+",
        default=[],
        metavar="LENGTH",
        help="prompts of so many tokens are prepared for",
    )
    model = parser.add_argument_group("model")
    add_dtype(model)
    model.add_argument("--kv-dtype", metavar="DTYPE", help="of the caches (default: the model's)")
    model.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1, ...")
    model.add_argument(
        "--backend", default="torch", help="what runs the model: torch (default), jax or onnx"
    )
    model.add_argument("--numerics", default="fast", help="exact, equivalent or fast (default)")
    model.add_argument("--threads", type=int, metavar="N", help="processor threads to use")
    model.add_argument("--weights", metavar="PATH", help="a local checkpoint instead")
    model.add_argument("--tokenizer", metavar="PATH", help="a local tokenizer.json or its folder")
    model.add_argument("--std", metavar="DIR", help="another standard library")
    access = parser.add_argument_group("access")
    access.add_argument("--api-key", metavar="KEY", help="what clients must send")
    access.add_argument(
        "--cors", action="append", default=[], metavar="ORIGIN", help="pages that may ask; * is all"
    )
    access.add_argument(
        "--max-body", type=int, default=4 << 20, metavar="BYTES", help="of a request (4 MiB)"
    )
    access.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="that an answer may take (no limit)"
    )


def run(args: argparse.Namespace) -> int:
    _check(args)
    from linnet.nest.progress import TextProgress
    from linnet.nest.resolve import resolve
    from linnet.serve.http import Limits, Server, bind

    listening = bind(args.host, args.port)
    with listening:
        card = resolve(args.model, progress=TextProgress(sys.stderr))
        opened = open_model(args, card, args.tokenizer)
        engine = _engine(args, opened)
        name = args.name or card.name
        server = Server(
            engine,
            opened.text,
            name=name,
            listening=listening,
            api_key=args.api_key,
            max_queue=args.max_queue,
            limits=Limits(body=args.max_body, seconds=args.timeout),
            cors=tuple(args.cors),
        )
        print(f"linnet: a page to talk to it is at {server.address}/", file=sys.stderr)
        print(f"serving {name} at {server.address}/v1", flush=True)
        with _logged():
            server.serve_forever(signals=True)
    return 0


@contextmanager
def _logged() -> Iterator[None]:
    """What the server says goes to standard error, as the command's other lines do."""
    log, handler = logging.getLogger("linnet.serve"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("linnet: %(asctime)s %(message)s", "%H:%M:%S"))
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]


def _check(args: argparse.Namespace) -> None:
    """Raises LinnetError naming an option that is out of range, before anything is fetched."""
    check_loading(args)
    for name, least in (("batch", 1), ("max_queue", 0), ("max_body", 1024), ("pool", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            option = name.replace("_", "-")
            raise LinnetError(f"--{option} is {value}; it must be {least} or more")
    if args.timeout is not None and not args.timeout > 0:
        raise LinnetError(f"--timeout is {args.timeout}; it must be above 0")
    if args.kv_dtype is not None and args.kv_dtype not in FLOATS:
        raise LinnetError(f"--kv-dtype is {args.kv_dtype}; choose {', '.join(FLOATS)}")
    if args.device != "cpu" and args.backend == "jax":
        raise LinnetError("--device is for torch; JAX_PLATFORMS says where JAX computes")
    if args.device != "cpu" and args.backend == "onnx":
        raise LinnetError("--device is for torch; ONNX Runtime computes on the CPU here")
    if args.api_key is not None and not (args.api_key.isascii() and args.api_key.strip()):
        raise LinnetError("--api-key must be ASCII text, and not empty")


def _engine(args: argparse.Namespace, opened: Any) -> Engine:
    """The model with caches of the size that was decided, behind an engine."""
    from linnet.nest.entries import entries_of, require_entries
    from linnet.serve.engine import PAGED, Engine

    card = opened.card
    max_len = _max_len(args, card.generics.get("MaxSeq"))
    has = entries_of(card, args.std)
    require_entries(card, ("prefill",), args.std)
    paged = all(name in has for name in PAGED)
    if not paged and args.pool is not None:
        raise LinnetError(f"--pool: {card.name} has no entries over pages, only rows of --max-seq")
    rows = [
        n for n in ("decode_rows", "prefill_packed", "step_packed", "prefill_slots") if n in has
    ]
    program = card.program(args.std)
    dtypes = _dtypes(args, program, card)
    pool = _pool(args, card, program, dtypes, max_len, paged)
    for line in pool.describe().splitlines():
        print(f"linnet: {line}", file=sys.stderr)
    generics = {"Batch": 1 if paged else args.batch, "MaxSeq": pool.positions if paged else max_len}
    sized: dict[str, int | str] = {k: v for k, v in generics.items() if k in card.generics}
    entries = PAGED if paged else tuple(rows)
    where = {"device": args.device} if args.backend == "torch" else backend_options(args)
    model, _ = loaded(args, card, opened.files, {**sized, **dtypes}, entries, **where)
    engine = Engine(
        model, text=opened.text, paged=paged, rows=args.batch if paged else None, max_len=max_len
    )
    if args.warmup:
        engine.warmup(args.warmup)
    return engine


def _max_len(args: argparse.Namespace, most: int | str | None) -> int:
    """How many tokens a request may have."""
    context = most if isinstance(most, int) else None
    wanted: int = min(context or USUAL, USUAL) if args.max_seq is None else args.max_seq
    if wanted < 2 or (context is not None and wanted > context):
        limit = "" if context is None else f" and at most the model's {context}"
        raise LinnetError(f"--max-seq is {wanted}; it must be 2 or more{limit}")
    for length in args.warmup:
        if not 1 <= length < wanted:
            raise LinnetError(
                f"--warmup {length}: prompts have 1 to {wanted - 1} tokens, fewer than --max-seq"
            )
    return wanted


def _pool(
    args: argparse.Namespace,
    card: Any,
    program: Any,
    dtypes: dict[str, str],
    max_len: int,
    paged: bool,
) -> Pool:
    """What is free goes to the caches, as far as they can use it."""
    from linnet.serve.memory import pool_of
    from linnet.torch.placement import device_named, free_memory

    demand = _demand(args, card, program, dtypes, paged, max_len)
    free = free_memory(device_named(args.device, "--device"))
    return pool_of(demand, rows=args.batch, max_len=max_len, wanted=args.pool, free=free)


def _demand(
    args: argparse.Namespace,
    card: Any,
    program: Any,
    dtypes: dict[str, str],
    paged: bool,
    max_len: int,
) -> Demand:
    """What the card's program says of its weights and caches."""
    from linnet.nest.parameters import bound_tensors, card_bindings, card_slots
    from linnet.serve.memory import Demand
    from linnet.types import DTYPES

    storage = _BLOCKS.get(args.dtype)
    generics = {**card.generics, **dtypes, "Batch": 1, "MaxSeq": max_len}
    caches = [row for row in program.parameters(generics) if row.kind == "state"]
    slots = {slot.path: slot for slot in card_slots(card, program)}
    tensors = bound_tensors(slots.values(), card_bindings(card))
    stored = {name: slots[path] for path, name in tensors.items()}
    weights = 0.0
    for slot in stored.values():
        bits = DTYPES[
            slot.dtype if slot.dtype != card.generics.get("T") else dtypes.get("T", slot.dtype)
        ].bits
        weights += math.prod(slot.shape) * (storage if storage and len(slot.shape) == 2 else bits)
    sizes = {g.name: g.default for g in program.generics()}
    page = int(card.generics.get("PageSize") or sizes.get("PageSize") or 1) if paged else max_len
    position = sum(row.nbytes or 0 for row in caches) // max_len
    return Demand(round(weights / 8), max(1, position), page)


def _dtypes(args: argparse.Namespace, program: Any, card: Any) -> dict[str, str]:
    """What --dtype and --kv-dtype bind: the generics `T` and `Kv`, as std's decoders have them."""
    own = {} if args.dtype is None or args.dtype in _BLOCKS else {"T": args.dtype}
    wanted = args.kv_dtype
    if wanted is None:
        return own
    if any(generic.name == "Kv" for generic in program.generics()):
        return {**own, "Kv": wanted}
    states = program.parameters({**card.generics, **own})
    there = {row.dtype for row in states if row.kind == "state"}
    if there != {wanted}:
        raise LinnetError(
            f"--kv-dtype is {wanted}: the caches of {card.name} are {', '.join(sorted(there))}, "
            "and its block has no generic `Kv: Float` for std.nn.decoder's KvCache"
        )
    return own
