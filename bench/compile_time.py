"""Compiling with "inductor": 30 layers against 2, which share their code.

    python bench/compile_time.py [--rounds 3] [--layers 2 30] [--entry prefill]

Each measurement is a process of its own with empty caches of torch.compile, on the llama family at
small sizes with random weights; the depths take turns (A B A B). Measured is the first call of the
entry minus a second one, which compiles nothing. Printed: the medians in seconds and their ratio,
which should stay below 1.5.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FAMILY = Path(__file__).parent.parent / "src" / "linnet" / "zoo" / "families" / "llama"
SIZES: dict[str, int | str] = {
    "Vocab": 512, "H": 64, "Heads": 4, "KvHeads": 2, "Inner": 160, "Batch": 1, "MaxSeq": 128,
    "T": "f32",
}  # fmt: skip


def measure(layers: int, entry: str) -> float:
    """Seconds that the first call takes above the second, in this process."""
    import torch

    import linnet.torch

    model = linnet.torch.load(
        FAMILY, generics={**SIZES, "Layers": layers}, entries=[entry], compile="inductor"
    )
    inputs = [torch.ones(1, 1 if entry == "decode" else 17, dtype=torch.int32), 0]
    taken = []
    with torch.inference_mode():
        for _ in range(2):
            started = time.perf_counter()
            model.run_entry(entry, inputs)
            taken.append(time.perf_counter() - started)
    return taken[0] - taken[1]


def apart(layers: int, entry: str) -> float:
    """`measure` in a fresh process with fresh caches."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": cache,
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        }
        command = [sys.executable, __file__, "--one", str(layers), "--entry", entry]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, nargs=2, default=(2, 30))
    parser.add_argument("--entry", choices=("prefill", "decode"), default="prefill")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(measure(args.one, args.entry))
        return
    times: dict[int, list[float]] = {layers: [] for layers in args.layers}
    for _ in range(args.rounds):
        for layers, found in times.items():
            found.append(apart(layers, args.entry))
    shallow, deep = (statistics.median(times[layers]) for layers in args.layers)
    print(
        f"{args.entry}: {args.layers[0]} layers {shallow:.1f} s, {args.layers[1]} layers "
        f"{deep:.1f} s: ratio {deep / shallow:.2f}"
    )


if __name__ == "__main__":
    main()
