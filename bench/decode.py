"""Decoding of the demo model in f32: ours and transformers eager, side by side.

    python bench/decode.py [--new 128] [--rounds 5] [--threads 2] [--numerics fast]

Both read the same GGUF file and get the same prompt; batch 1, greedy, a cache of exactly the
positions needed. The two take turns (A B A B) in one process; the first round warms up and is not
counted. Printed: median tokens/s of each after the first token, median time to the first token,
their ratios, and how many tokens agree. What limits: one token reads every weight once, so tokens/s
times the bytes of the weights is the bandwidth that was reached.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from demo_tokens import MODEL, PROMPT, transformers_model

from linnet import nest
from linnet.nest.card import find_card
from linnet.nest.fetch import fetch_weights
from linnet.serve.text import Text

Run = Callable[[], tuple[float, float, list[int]]]


def ours(ids: list[int], count: int, numerics: str) -> tuple[Any, Run]:
    """Seconds to the first token, tokens/s after it, tokens."""
    model = nest.load(
        MODEL, generics={"T": "f32", "MaxSeq": len(ids) + count, "Batch": 1}, numerics=numerics
    )

    def run() -> tuple[float, float, list[int]]:
        model.reset_state()
        started = time.perf_counter()
        token = int(
            model.run_entry("prefill", [torch.tensor([ids], dtype=torch.int32), 0]).argmax()
        )
        first = time.perf_counter()
        tokens = [token]
        for k in range(count - 1):
            step = torch.tensor([[token]], dtype=torch.int32)
            token = int(model.run_entry("decode", [step, len(ids) + k]).argmax())
            tokens.append(token)
        return first - started, (count - 1) / (time.perf_counter() - first), tokens

    return model, run


def theirs(gguf: Any, ids: list[int], count: int) -> Run:
    model = transformers_model(gguf)

    def run() -> tuple[float, float, list[int]]:
        started = time.perf_counter()
        out = model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        token = int(out.logits[0, -1].argmax())
        first = time.perf_counter()
        tokens = [token]
        for _ in range(count - 1):
            out = model(torch.tensor([[token]]), cache=out.cache, use_cache=True)
            token = int(out.logits[0, -1].argmax())
            tokens.append(token)
        return first - started, (count - 1) / (time.perf_counter() - first), tokens

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--numerics", default="fast")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    gguf = fetch_weights(find_card(MODEL)).files[0]
    ids = Text.load([gguf]).encode_chat([{"role": "user", "content": PROMPT}])
    model, mine = ours(ids, args.new, args.numerics)
    runs: dict[str, Run] = {"linnet": mine, "transformers": theirs(gguf, ids, args.new)}
    first: dict[str, list[float]] = {name: [] for name in runs}
    rate: dict[str, list[float]] = {name: [] for name in runs}
    tokens: dict[str, list[int]] = {}
    with torch.inference_mode():
        for lap in range(args.rounds + 1):
            for name, run in runs.items():
                to_first, per_second, tokens[name] = run()
                if lap:
                    first[name].append(to_first)
                    rate[name].append(per_second)
    size = sum(p.nbytes for p in {id(p): p for p in model.parameters()}.values())
    for name in runs:
        speed = statistics.median(rate[name])
        print(
            f"{name:13} {speed:6.1f} tokens/s ({speed * size / 1e9:.1f} GB/s of weights), "
            f"first token {1e3 * statistics.median(first[name]):.0f} ms"
        )
    ratio = statistics.median(rate["linnet"]) / statistics.median(rate["transformers"])
    prompt = statistics.median(first["transformers"]) / statistics.median(first["linnet"])
    pairs = list(zip(*tokens.values(), strict=True))
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), args.new)
    print(f"decode {ratio:.2f} times, prompt {prompt:.2f} times; {same} of {args.new} tokens agree")


if __name__ == "__main__":
    main()
