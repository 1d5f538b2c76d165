"""Lowering and generating all entries: 32 layers against 2.

    python bench/depth.py [--runs 5]

The llama family, all entries, source checked once beforehand; the two depths take turns. Printed:
the medians in seconds and their ratio, which should stay below 1.3.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from linnet.check import check
from linnet.check.analysis import Analysis
from linnet.core.lower import lower
from linnet.core.passes import optimize
from linnet.torch.emit import emit
from linnet.workspace import Workspace

FAMILY = Path(__file__).parent.parent / "src" / "linnet" / "zoo" / "families" / "llama"
SIZES: dict[str, int | str] = {
    "Vocab": 32768, "H": 4096, "Heads": 32, "KvHeads": 8, "Inner": 14336, "Batch": 1,
    "MaxSeq": 4096, "T": "bf16",
}  # fmt: skip


def seconds(analysis: Analysis, layers: int) -> float:
    started = time.perf_counter()
    program = optimize(lower(analysis, generics={**SIZES, "Layers": layers}), "fast")
    emit(program, "fast")
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    analysis = check(Workspace(), FAMILY)
    seconds(analysis, 2)
    times: dict[int, list[float]] = {2: [], 32: []}
    for _ in range(args.runs):
        for layers, found in times.items():
            found.append(seconds(analysis, layers))
    shallow, deep = (statistics.median(times[n]) for n in (2, 32))
    print(f"2 layers {shallow:.3f} s, 32 layers {deep:.3f} s: ratio {deep / shallow:.2f}")


if __name__ == "__main__":
    main()
