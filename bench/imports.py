"""python -m bench.imports [--runs N]: what importing linnet.torch costs beside importing torch.

Medians of processes in turns. Its names are imported on first use, so that is measured too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

from bench.turns import project

_CODES = {
    "torch": "import torch",
    "linnet_torch": "import torch, linnet.torch",
    "used": "import torch, linnet.torch; linnet.torch.load",
}


def import_times(runs: int) -> dict[str, float]:
    """Seconds of a process that imports torch, of ones with linnet.torch too, and their ratio."""
    python, variables = project()
    seconds: dict[str, list[float]] = {name: [] for name in _CODES}
    for lap in range(runs + 1):
        for name, code in _CODES.items():
            started = time.perf_counter()
            subprocess.run([python, "-c", code], env={**os.environ, **variables}, check=True)
            if lap:  # the first reads the files from disk
                seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    found = {f"{name}_s": round(value, 3) for name, value in medians.items()}
    return {**found, "ratio": round(medians["linnet_torch"] / medians["torch"], 3)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.imports", description=__doc__)
    parser.add_argument("--runs", type=int, default=7, help="processes of each (%(default)s)")
    args = parser.parse_args(arguments)
    if args.runs < 1:
        parser.error(f"--runs is {args.runs}; it must be 1 or more")
    print(
        f"bench: {len(_CODES) * (args.runs + 1)} processes, some seconds each",
        file=sys.stderr,
        flush=True,
    )
    found = import_times(args.runs)
    print(
        f"import torch {found['torch_s']:.2f} s, linnet.torch too {found['linnet_torch_s']:.2f} s: "
        f"{found['ratio']:.2f} times; with its first use {found['used_s']:.2f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
