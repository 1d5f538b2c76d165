"""`linnet run`: one answer from a model, streamed to the terminal."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from linnet.diagnostics import LinnetError

EPILOG = """\
The prompt is read from standard input when it is not given. The answer goes to standard output;
progress and tokens/s go to standard error. Greedy unless --temperature is above 0.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("model", metavar="MODEL", help="a model of the zoo, or a card's directory")
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="what to ask")
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="at most N")
    parser.add_argument("--dtype", metavar="DTYPE", help="f32, bf16 or f16; default: the card's")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="of the K most likely")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="of the likeliest P")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the sampling noise")
    parser.add_argument("--numerics", default="fast", help="exact, equivalent or fast (default)")
    parser.add_argument("--threads", type=int, metavar="N", help="processor threads to use")
    parser.add_argument("--weights", metavar="PATH", help="a local checkpoint instead")
    parser.add_argument("--raw", action="store_true", help="no chat template: continue the prompt")
    parser.add_argument("--json", action="store_true", help="one JSON document at the end instead")
    parser.add_argument("--std", metavar="DIR", help="another standard library")


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


def run(args: argparse.Namespace) -> int:
    from linnet.nest.card import find_card
    from linnet.nest.fetch import TextProgress, WeightFiles, fetch_weights
    from linnet.serve.sampling import Sampling
    from linnet.serve.text import Text

    sampling = Sampling(args.temperature, args.top_k, args.top_p, args.seed)
    sampling.check()
    if args.max_new_tokens < 1:
        raise LinnetError(f"--max-new-tokens is {args.max_new_tokens}; it must be 1 or more")
    if args.threads is not None and args.threads < 1:
        raise LinnetError(f"--threads is {args.threads}; it must be 1 or more")
    card = find_card(args.model)
    prompt = args.prompt if args.prompt is not None else sys.stdin.read()
    if not prompt.strip():
        raise LinnetError("the prompt is empty: give one, or pipe it to standard input")
    files: WeightFiles | None = None
    if args.weights is None:
        files = fetch_weights(card, TextProgress(sys.stderr))
    text = Text.load(list(files.text_files) if files is not None else args.weights)
    if args.raw:
        ids = text.encode(prompt)
    else:
        ids = text.encode_chat([{"role": "user", "content": prompt}])
    count = _room(card.generics.get("MaxSeq"), len(ids), args.max_new_tokens)
    answer = Answer(len(ids))
    model = _load(args, card, files, len(ids) + count, answer)
    stream = text.stream()
    interrupted = False
    try:
        for token in _tokens(model, ids, count, sampling, text.eos, answer):
            piece = stream.push(token)
            answer.text += piece
            if not args.json:
                print(piece, end="", flush=True)
    except KeyboardInterrupt:
        interrupted, answer.reason = True, "interrupted"
    rest = stream.finish()
    answer.text += rest
    _report(args, answer, rest)
    return 130 if interrupted else 0


def _room(context: int | str | None, prompt: int, wanted: int) -> int:
    """How many tokens may be generated; the prompt must leave room for one."""
    if not isinstance(context, int):
        return wanted
    if prompt + 1 > context:
        raise LinnetError(
            f"the prompt is {prompt} tokens long and the model's context holds {context}: "
            f"shorten the prompt to {context - 1} tokens or fewer"
        )
    if prompt + wanted > context:
        print(
            f"linnet: the context holds {context} tokens, so at most {context - prompt} new ones "
            f"follow the prompt's {prompt}",
            file=sys.stderr,
        )
    return min(wanted, context - prompt)


def _load(args: argparse.Namespace, card: Any, files: Any, positions: int, answer: Answer) -> Any:
    """The model with caches for exactly these positions."""
    from linnet.nest.load import load

    print(f"linnet: loading {card.name} ...", end="", file=sys.stderr, flush=True)
    started = time.perf_counter()
    try:
        import torch

        if args.threads is not None:
            torch.set_num_threads(args.threads)
        generics: dict[str, int | str] = {"MaxSeq": positions, "Batch": 1}
        if args.dtype is not None:
            generics["T"] = args.dtype
        model = load(
            card,
            generics={k: v for k, v in generics.items() if k in card.generics or k == "T"},
            weights=args.weights if files is None else list(files.files),
            bindings=card.bindings_path if files is None else files.bindings,
            entries=("prefill", "decode"),
            numerics=args.numerics,
            std_root=args.std,
            cast_dtype=args.dtype is not None or (files is not None and files.cast_dtype),
        )
    except BaseException:
        print(file=sys.stderr)
        raise
    answer.load_seconds = time.perf_counter() - started
    print(f" {answer.load_seconds:.1f} s", file=sys.stderr)
    return model


def _tokens(
    model: Any, ids: list[int], count: int, sampling: Any, eos: frozenset[int], answer: Answer
) -> Iterator[int]:
    """The generated tokens one by one, end tokens left out, times noted as they come."""
    import torch

    from linnet.serve.sampling import draw_numpy

    def choose(logits: torch.Tensor, position: int) -> int:
        if sampling.temperature == 0:
            return int(logits[0].argmax())
        return draw_numpy(logits[0].float().numpy(), sampling, position)

    started = time.perf_counter()
    with torch.inference_mode():
        prompt = torch.tensor([ids], dtype=torch.int32)
        token = choose(model.run_entry("prefill", [prompt, 0]), len(ids))
        first = time.perf_counter()
        answer.first_token_seconds = first - started
        for k in range(count):
            if token in eos:
                answer.reason = "eos"
                return
            answer.tokens.append(token)
            answer.decode_seconds = time.perf_counter() - first
            yield token
            if k + 1 < count:
                step = torch.tensor([[token]], dtype=torch.int32)
                token = choose(model.run_entry("decode", [step, len(ids) + k]), len(ids) + k + 1)


def _report(args: argparse.Namespace, answer: Answer, rest: str) -> None:
    if args.json:
        document = {
            "version": 1,
            "model": args.model,
            "text": answer.text,
            "tokens": answer.tokens,
            "prompt_tokens": answer.prompt_tokens,
            "generated_tokens": len(answer.tokens),
            "finish_reason": answer.reason,
            "load_seconds": round(answer.load_seconds, 3),
            "first_token_seconds": round(answer.first_token_seconds, 4),
            "decode_seconds": round(answer.decode_seconds, 4),
            "tokens_per_second": round(answer.tokens_per_second, 2),
        }
        print(json.dumps(document, ensure_ascii=False, indent=2))
        return
    print(rest, flush=True)
    plural = "token" if len(answer.tokens) == 1 else "tokens"
    rate = f", {answer.tokens_per_second:.1f} tokens/s" if len(answer.tokens) > 1 else ""
    print(
        f"linnet: {len(answer.tokens)} {plural} ({answer.reason}), first after "
        f"{answer.first_token_seconds:.2f} s{rate}",
        file=sys.stderr,
    )
