"""How fast products over weights in blocks read memory: GB/s for each format and number of rows.

    python -m bench.blocks [--threads N] [--columns K] [--megabytes M]

Each figure is the best and the median of several runs over a weight larger than the caches, beside
the same product over f32 (`torch`: F.linear) and what the machine reads (`memory`: a sum).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from statistics import median

import torch
from torch.nn import functional as F

from linnet.torch import blocks, native
from linnet.torch.blocks import FORMATS, Blocks

RUNS = 15
ROWS = (1, 2, 4, 8, 64)


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """The least and the median seconds of a run."""
    run()
    seconds: list[float] = []
    for _ in range(RUNS):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds), median(seconds)


def drawn(format: str, size: int, columns: int) -> Blocks:
    """Blocks of any bits whose scales are small and finite, of about this many bytes."""
    numbers, width = FORMATS[format]
    per_row = columns // numbers
    rows = size // (per_row * width)
    data = torch.randint(0, 256, (rows, per_row, width), dtype=torch.uint8)
    at = 208 if format == "Q6_K" else 0
    data[..., at : at + 2] = torch.tensor([0.01], dtype=torch.float16).view(torch.uint8)
    if format == "Q4_1":
        data[..., 2:4] = data[..., :2]
    return Blocks(format, (rows, columns), torch.float32, data.reshape(rows, -1))


def line(name: str, rows: int, size: int, numbers: int, run: Callable[[], object]) -> None:
    least, middle = timed(run)
    rate = 2 * rows * numbers / least / 1e9
    print(
        f"{name:<10} {rows:>4} rows  {size / least / 1e9:6.1f} GB/s best "
        f"{size / middle / 1e9:6.1f} median  {rate:7.1f} GFLOP/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--columns", type=int, default=1536)
    parser.add_argument("--megabytes", type=int, default=96)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    size, columns = given.megabytes << 20, given.columns
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    print(f"threads {given.threads}, native {native.available()}, load average {load}")
    held = torch.ones(size // 4)
    line("memory", 1, size, size // 4, held.sum)
    weight = held[: size // 4 // columns * columns].reshape(-1, columns)
    with torch.inference_mode():
        for rows in ROWS:
            x = torch.randn(rows, columns)
            line("torch f32", rows, weight.nbytes, weight.numel(), lambda x=x: F.linear(x, weight))
        for format in FORMATS:
            stored = drawn(format, size, columns)
            numbers = stored.shape.numel()
            for rows in ROWS:
                x = torch.randn(rows, columns)
                line(
                    format,
                    rows,
                    stored.data.nbytes,
                    numbers,
                    lambda x=x, stored=stored: blocks.linear(x, stored),
                )


if __name__ == "__main__":
    main()
