"""Widening quantised weights: ours beside the package `gguf`, and a whole file read both ways.

    python bench/dequantise.py [FILE.gguf ...] [--elements 4194304] [--runs 5]

Types first, in nanoseconds an element (the best of several runs, on random blocks); then each file,
all its quantised tensors in f32. Results are compared bit by bit where they are numbers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from linnet.weights import open_checkpoint
from linnet.weights.arrays import Array
from linnet.weights.dequantise import _UNPACK, dequantise


def best(work: Callable[[], object], runs: int) -> float:
    """Seconds of the fastest run: the others met something else on the machine."""
    times: list[float] = []
    for _ in range(runs):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def same(ours: Array, theirs: Array) -> bool:
    left, right = ours.reshape(-1).view(np.uint32), theirs.reshape(-1).view(np.uint32)
    return bool(((left == right) | np.isnan(theirs.reshape(-1))).all())


def one_type(name: str, elements: int, runs: int) -> str:
    """A line of the table."""
    scheme = GGMLQuantizationType[name]
    block, width = GGML_QUANT_SIZES[scheme]
    shape = (max(1, elements // 4096), 4096 // block * width)
    data = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    result = np.empty((shape[0], 4096), np.float32)
    ours = best(lambda: dequantise(data.reshape(-1), name, result.reshape(-1)), runs)
    with np.errstate(all="ignore"):
        theirs = best(lambda: dequantize(data, scheme), runs)
        note = "" if same(result, dequantize(data, scheme)) else "   DIFFERENT"
    scale = 1e9 / result.size
    return f"{name:6} {ours * scale:7.2f} {theirs * scale:7.2f}   x{theirs / ours:.1f}{note}"


def whole(path: Path, runs: int) -> None:
    """Every quantised tensor of a file; the file is in the page cache after the first time."""
    tensors = [one for one in open_checkpoint(path).tensors.values() if one.dtype is None]

    def ours() -> None:
        for one in tensors:
            one.read("f32")

    def theirs() -> None:
        for one in tensors:
            data = np.frombuffer(one.source.view(one.start, one.end), np.uint8)
            rows = data.reshape(one.shape[0], -1)
            dequantize(rows, GGMLQuantizationType[one.encoding])

    ours()
    first, second = best(ours, runs), best(theirs, runs)
    print(f"{path.name}: {len(tensors)} tensors, {first:.2f} s beside {second:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--elements", type=int, default=1 << 22)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    print(f"{'type':6} {'ours':>7} {'gguf':>7}   ns an element")
    for name in _UNPACK:
        print(one_type(name, args.elements, args.runs))
    for path in args.files:
        whole(path, args.runs)


if __name__ == "__main__":
    main()
