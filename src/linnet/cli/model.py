"""What `linnet run` and `linnet chat` share: a model's arguments, its text, an answer's tokens."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linnet.diagnostics import LinnetError
from linnet.policy import policy_named

# What `--dtype` may be: the model's dtype, or how weights are kept, the program as it is.
FLOATS = ("f32", "bf16", "f16", "f64")
_STORAGES = ("q8", "q4")


def add_model_arguments(parser: argparse.ArgumentParser, new_tokens: int) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a model of the zoo, a card, or a checkpoint"
    )
    parser.add_argument(
        "--max-new-tokens", type=int, default=new_tokens, metavar="N", help="at most N in an answer"
    )
    add_dtype(parser)
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="of the K most likely")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="of the likeliest P")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the sampling noise")
    parser.add_argument(
        "--backend", default="torch", help="what runs the model: torch (default), jax or onnx"
    )
    parser.add_argument("--numerics", default="fast", help="exact, equivalent or fast (default)")
    parser.add_argument("--threads", type=int, metavar="N", help="processor threads to use")
    parser.add_argument(
        "--device-map",
        metavar="MAP",
        help="auto, or where each part runs: layers.*=cuda:1,=cuda:0 (the rest without a path)",
    )
    parser.add_argument(
        "--max-memory",
        metavar="SIZES",
        help="what the model may take: cuda:0=20GiB,cpu=8GiB; the rest is brought for each call",
    )
    parser.add_argument("--weights", metavar="PATH", help="a local checkpoint instead")
    parser.add_argument("--std", metavar="DIR", help="another standard library")


def add_dtype(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--dtype",
        metavar="DTYPE",
        help="f32, bf16, f16 or f64 (default: the card's); q8 or q4: weights in blocks of so many "
        "bits",
    )


@dataclass(slots=True)
class Answer:
    """What was generated, and how long it took. Seconds; tokens/s after the first token."""

    prompt_tokens: int
    tokens: list[int] = field(default_factory=list[int])
    text: str = ""
    reason: str = "length"
    load_seconds: float = 0.0
    first_token_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return (len(self.tokens) - 1) / self.decode_seconds if self.decode_seconds > 0 else 0.0

    def follow(self, tokens: Iterator[int], ends: frozenset[int]) -> Iterator[int]:
        """The tokens as they come, up to an end token; their number and times are noted."""
        started = time.perf_counter()
        first = 0.0
        for token in tokens:
            now = time.perf_counter()
            first = first or now
            self.first_token_seconds = first - started
            if token in ends:
                self.reason = "eos"
                return
            self.tokens.append(token)
            self.decode_seconds = now - first
            yield token

    def figures(self) -> str:
        """One line: how many tokens, why it ended, how fast."""
        plural = "token" if len(self.tokens) == 1 else "tokens"
        rate = f", {self.tokens_per_second:.1f} tokens/s" if len(self.tokens) > 1 else ""
        return (
            f"linnet: {len(self.tokens)} {plural} ({self.reason}), first after "
            f"{self.first_token_seconds:.2f} s{rate}"
        )


@dataclass(frozen=True, slots=True)
class Opened:
    """A card, its weights where they were fetched, and its text."""

    card: Any
    files: Any
    text: Any


def check_arguments(args: argparse.Namespace) -> Any:
    """How tokens are chosen; raises LinnetError naming the option that is out of range."""
    from linnet.serve.sampling import Sampling

    sampling = Sampling(args.temperature, args.top_k, args.top_p, args.seed)
    sampling.check()
    if args.max_new_tokens < 1:
        raise LinnetError(f"--max-new-tokens is {args.max_new_tokens}; it must be 1 or more")
    check_loading(args)
    return sampling


def check_loading(args: argparse.Namespace) -> None:
    """Raises LinnetError naming an option of loading that is wrong, before anything is fetched."""
    if args.threads is not None and not 1 <= args.threads <= 4096:
        raise LinnetError(f"--threads is {args.threads}; it must be 1 or more, and 4096 at most")
    if args.dtype is not None and args.dtype not in (*FLOATS, *_STORAGES):
        raise LinnetError(
            f"--dtype is {args.dtype}; choose {', '.join(FLOATS)}, or {' or '.join(_STORAGES)} "
            "for weights in blocks of so many bits"
        )
    policy_named(args.numerics)
    _placing(args)
    check_backend(args)


def open_model(args: argparse.Namespace, card: Any, tokenizer: str | None = None) -> Opened:
    """The card's files, fetched where this machine lacks them, and its text as the card states.

    The text is that of `tokenizer`, where it names another place.
    """
    from linnet.nest.entries import needing
    from linnet.nest.fetch import fetch_weights
    from linnet.nest.progress import TextProgress
    from linnet.nest.text import load_text

    if args.weights is not None and not Path(args.weights).exists():
        raise LinnetError(f"--weights {args.weights}: no such file or directory")
    with needing(card, ("prefill",), fetches=args.weights is None, std_root=args.std):
        files = None if args.weights is not None else fetch_weights(card, TextProgress(sys.stderr))
        place = args.weights if files is None else list(files.text_files)
        return Opened(card, files, load_text(card, tokenizer or place))


def load_model(
    args: argparse.Namespace, opened: Opened, positions: int, entries: Sequence[str]
) -> tuple[Any, float]:
    """The model with caches for exactly these positions, and the seconds it took."""
    from linnet.nest.entries import needing

    card = opened.card
    generics = {"MaxSeq": positions, "Batch": 1}
    sized: dict[str, int | str] = {k: v for k, v in generics.items() if k in card.generics}
    with needing(card, entries, fetches=False, std_root=args.std):
        return loaded(args, card, opened.files, sized, entries, **backend_options(args))


# Backend -> how `nest.load` calls it where all entries are needed.
MODELS = {"torch": "torch", "jax": "jax_model", "onnx": "onnx_model"}


def backend_options(args: argparse.Namespace) -> dict[str, Any]:
    """The loader's options for the backend of a command line."""
    options: dict[str, Any] = {"backend": MODELS[args.backend]}
    if args.backend == "onnx" and args.threads is not None:
        options["threads"] = args.threads
    return options


def check_backend(args: argparse.Namespace) -> None:
    """Raises LinnetError for a backend that is not there, or that cannot do what is asked of it."""
    if args.backend not in MODELS:
        raise LinnetError(f"--backend is {args.backend}; choose {', '.join(MODELS)}")
    if args.backend != "torch":
        if args.dtype in _STORAGES:
            other = f"with --backend {args.backend} weights lie whole"
            raise LinnetError(f"--dtype {args.dtype} is for torch; {other}")
        for option in ("device_map", "max_memory"):
            if getattr(args, option, None) is not None:
                raise LinnetError(f"--{option.replace('_', '-')} is for torch, not {args.backend}")
    from linnet.nest.load import loader

    loader(MODELS[args.backend])  # what is not installed is said before weights are fetched


def loaded(
    args: argparse.Namespace,
    card: Any,
    files: Any,
    generics: dict[str, int | str],
    entries: Sequence[str],
    **options: Any,
) -> tuple[Any, float]:
    """The model, of its own files or of --weights, and the seconds it took; both are told."""
    from linnet.nest.load import load

    storage = args.dtype if args.dtype in _STORAGES else None
    dtype = None if storage else args.dtype
    print(f"linnet: loading {card.name} ...", end="", file=sys.stderr, flush=True)
    started = time.perf_counter()
    try:
        if args.backend == "torch" and args.threads is not None:
            import torch

            torch.set_num_threads(args.threads)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("default", UserWarning)
            model = load(
                card,
                generics=generics if dtype is None else {**generics, "T": dtype},
                weights=args.weights if files is None else list(files.files),
                bindings=card.bindings_path if files is None else files.bindings,
                entries=entries,
                numerics=args.numerics,
                std_root=args.std,
                cast_dtype=args.dtype is not None or (files is not None and files.cast_dtype),
                **({"storage": storage} if storage else {}),
                **_placing(args),
                **options,
            )
    except BaseException:
        print(file=sys.stderr)  # the line that was begun, before what went wrong
        raise
    seconds = time.perf_counter() - started
    print(f" {seconds:.1f} s", file=sys.stderr)
    if _placing(args):
        for line in model.placement.describe().splitlines():
            print(f"linnet: {line}", file=sys.stderr)
    for one in told:
        print(f"linnet: {one.message}", file=sys.stderr)
    return model, seconds


def _placing(args: argparse.Namespace) -> dict[str, Any]:
    """The loader's options for a model that is spread over devices, or brought piece by piece."""
    given, sizes = getattr(args, "device_map", None), getattr(args, "max_memory", None)
    if given is None and sizes is None:
        return {}
    chosen: Any = given or "auto"
    if "=" in chosen:
        chosen = _pairs("--device-map", chosen)
    limits = None if sizes is None else _pairs("--max-memory", sizes)
    return {"device_map": chosen, "max_memory": limits}


def _pairs(option: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (x.strip() for x in part.rpartition("="))
        if not equals or not value or name in found:
            raise LinnetError(f"{option} {text}: give NAME=VALUE pairs, each name once")
        found[name] = value
    return found
