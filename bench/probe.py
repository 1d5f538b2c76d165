"""python -m bench.probe [--threads N] [--device D] [--dtypes f32,bf16]: what limits a machine.

Memory bandwidth is that of reading: the sum of a vector much larger than the caches, by as many
threads as the methods have (a C program of a few lines where a compiler is at hand, else PyTorch's
sum), in pages of 4 KB and in large ones where the system gives them: the better counts. The product
rate is that of the best of a few large matrix products in each dtype. Best of several each, since a
limit is what the machine can do, not what it does when it is disturbed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.methods import FLOATS

SOURCE = r"""
#define _GNU_SOURCE
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int count, char **arguments) {
    long n = atol(arguments[1]) / 8, threads = atol(arguments[2]), repeats = atol(arguments[3]);
    uint64_t *data = aligned_alloc(1 << 21, (size_t)n * 8), total = 0;
    double best = 0;
    if (!data) return 1;
#ifdef MADV_HUGEPAGE
    if (count > 4) madvise(data, (size_t)n * 8, MADV_HUGEPAGE);
#endif
    omp_set_num_threads((int)threads);
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i++) data[i] = (uint64_t)i;
    for (long k = 0; k < repeats; k++) {
        double started = now();
#pragma omp parallel for schedule(static) reduction(+ : total)
        for (long i = 0; i < n; i++) total += data[i];
        double rate = (double)n * 8 / (now() - started);
        if (rate > best) best = rate;
    }
    printf("%.0f %lu\n", best, (unsigned long)total);
    return 0;
}
"""
_SIZE = 1 << 29
_REPEATS = 9


def bandwidth(device: str, threads: int) -> dict[str, float]:
    """Bytes read in a second; `bandwidth_small_pages` where it makes a difference which pages."""
    if device == "cpu" and (found := _compiled(threads)) is not None:
        small, large = found
        return {"bandwidth": max(small, large), "bandwidth_small_pages": small}
    import torch

    _use(torch, device, threads)
    data = torch.ones(_SIZE // 4 * (1 if device == "cpu" else 8), device=device)
    return {"bandwidth": data.nbytes / _best(lambda: data.sum(), device)}


def product_rate(device: str, threads: int, dtype: str) -> float | None:
    """Floating-point operations in a second of a large product; None where it takes too long."""
    import torch

    from bench.runners.torch_common import DTYPES

    _use(torch, device, threads)
    kind = getattr(torch, DTYPES[dtype])
    size = 1024 if device == "cpu" else 8192
    # A small one first: some processors have no instructions for a dtype and take minutes.
    one = torch.ones(128, 128, device=device, dtype=kind)
    if _best(lambda: one @ one, device) * (size / 128) ** 3 > 20:
        return None
    a, b = (torch.ones(size, size, device=device, dtype=kind) for _ in range(2))
    return 2 * size**3 / _best(lambda: a @ b, device)


def probed(device: str, threads: int, dtypes: list[str]) -> dict[str, Any]:
    """What was measured: `bandwidth` and, for each dtype and f32, the product rate; in seconds."""
    # Numbers of 16 bits can be multiplied as f32, which is what limits where that is faster.
    kinds = sorted({*dtypes, "f32"})
    rates = {dtype: product_rate(device, threads, dtype) for dtype in kinds}
    return {**bandwidth(device, threads), "product": rates}


def _use(torch: Any, device: str, threads: int) -> None:
    if device == "cpu":
        torch.set_num_threads(threads)


def _best(run: Callable[[], object], device: str) -> float:
    """The least seconds of several runs."""
    from bench.runners.torch_common import synchronize

    run()
    seconds: list[float] = []
    for _ in range(_REPEATS):
        synchronize(device)
        started = time.perf_counter()
        run()
        synchronize(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _compiled(threads: int) -> tuple[float, float] | None:
    """By the C program, in small pages and in large ones; None where it cannot be made."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), "")
    if not compiler:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "read.c", Path(folder) / "read"
        source.write_text(SOURCE)
        flags = ["-O3", "-march=native", "-fopenmp", "-o", str(program)]
        try:
            subprocess.run([compiler, str(source), *flags], check=True, capture_output=True)
            asked = [str(program), str(_SIZE), str(threads), str(_REPEATS)]
            small, large = (
                subprocess.run(way, check=True, capture_output=True, text=True, timeout=120)
                for way in (asked, [*asked, "large"])
            )
            return float(small.stdout.split()[0]), float(large.stdout.split()[0])
        except (OSError, ValueError, IndexError, subprocess.SubprocessError):
            return None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.probe", description=__doc__)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="(%(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--dtypes", default="f32,bf16", help="with commas (%(default)s)")
    args = parser.parse_args(arguments)
    dtypes = [one.strip() for one in args.dtypes.split(",")]
    if args.threads < 1:
        parser.error(f"--threads is {args.threads}; it must be 1 or more")
    for one in dtypes:
        if one not in FLOATS:
            parser.error(f"--dtypes has {one!r}; choose of {', '.join(FLOATS)}")
    for line in lines_of(probed(args.device, args.threads, dtypes)):
        print(line)
    return 0


def lines_of(found: dict[str, Any]) -> list[str]:
    """A line for each figure."""
    small = found.get("bandwidth_small_pages")
    beside = "" if small is None else f" ({small / 1e9:.1f} in pages of 4 KB)"
    lines = [f"memory is read at {found['bandwidth'] / 1e9:.1f} GB/s{beside}"]
    for dtype, rate in found["product"].items():
        told = "too slow to measure" if rate is None else f"{rate / 1e9:.1f} GFLOP/s"
        lines.append(f"products in {dtype}: {told}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
