"""What importing linnet.torch costs beside importing torch: medians of processes in turns.

Its names are imported on first use, so that is measured too.
"""

from __future__ import annotations

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


def main() -> int:
    found = import_times(7)
    print(
        f"import torch {found['torch_s']:.2f} s, linnet.torch too {found['linnet_torch_s']:.2f} s: "
        f"{found['ratio']:.2f} times; with its first use {found['used_s']:.2f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
