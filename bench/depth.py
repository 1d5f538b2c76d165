"""Lowering and generating all entries: 32 layers against 2.

    python bench/depth.py [--runs 5]

The llama family, source checked once beforehand: all entries for PyTorch; `decode` as a StableHLO
module; `decode` as generated `jax.numpy`, and that traced and lowered by JAX, whose caches are
emptied before. The two depths take turns. Printed: the medians in seconds and their ratio, which
should stay below 1.3 for PyTorch and 1.5 for the others.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from linnet import stablehlo
from linnet.check import check
from linnet.check.analysis import Analysis
from linnet.core.lower import lower
from linnet.core.passes import optimize
from linnet.jax.entry import shape_dtype
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


def module_seconds(analysis: Analysis, layers: int) -> float:
    """The same for the text of one module."""
    started = time.perf_counter()
    lowered = lower(analysis, generics={**SIZES, "Layers": layers}, entries=["decode"])
    stablehlo.emit(optimize(lowered, "fast"), "decode", {}, "fast")
    return time.perf_counter() - started


def source_seconds(analysis: Analysis, layers: int) -> float:
    """The same for generated `jax.numpy`, and for what JAX makes of it."""
    import jax

    from linnet.jax.runtime import SourceFunction

    jax.clear_caches()
    started = time.perf_counter()
    lowered = lower(analysis, generics={**SIZES, "Layers": layers}, entries=["decode"])
    f = SourceFunction(optimize(lowered, "fast"), "decode", "fast", {})
    given, state = (
        {path: jax.ShapeDtypeStruct(*shape_dtype(type)) for path, type in types.items()}
        for types in (f._entry.parameters, f._entry.states)
    )
    token = jax.ShapeDtypeStruct((1, 1), "int32")
    jax.jit(lambda p, t, s: f.apply(p, t, 5, state=s)).lower(given, token, state).as_text()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    analysis = check(Workspace(), FAMILY)
    for name, measured in (
        ("PyTorch", seconds),
        ("StableHLO", module_seconds),
        ("jax.numpy", source_seconds),
    ):
        measured(analysis, 2)
        times: dict[int, list[float]] = {2: [], 32: []}
        for _ in range(args.runs):
            for layers, found in times.items():
                found.append(measured(analysis, layers))
        shallow, deep = (statistics.median(times[n]) for n in (2, 32))
        ratio = deep / shallow
        print(f"{name}: 2 layers {shallow:.3f} s, 32 layers {deep:.3f} s: ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
