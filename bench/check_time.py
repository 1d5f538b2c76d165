"""How long `linnet check` takes, and where the time goes.

    python bench/check_time.py [PATH ...] [--profile] [--runs 7]

Without paths: the seed's package (../shared/seed) and the llama family. Each run is a new process;
the median is printed beside that of `python -c pass`, the time that starting Python takes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
DEFAULT = [
    ROOT.parent / "shared" / "seed" / "mistral-7b-instruct-v0.3",
    ROOT / "src" / "linnet" / "zoo" / "families" / "llama",
]


def median(command: list[str], runs: int) -> float:
    """Seconds of the command, the median of several."""
    times: list[float] = []
    for _ in range(runs):
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        times.append(time.perf_counter() - started)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
    return statistics.median(times)


def profile(path: Path) -> None:
    """Time in this process by function, the costliest first."""
    from linnet.check import check
    from linnet.workspace import Workspace

    profiler = cProfile.Profile()
    profiler.enable()
    check(Workspace(), path)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(15)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--runs", type=int, default=7)
    args = parser.parse_args()
    python = median([sys.executable, "-c", "pass"], args.runs)
    print(f"python -c pass: {python:.3f} s")
    for path in args.paths or [p for p in DEFAULT if p.exists()]:
        lines = sum(len(f.read_text().splitlines()) for f in path.rglob("*.linnet"))
        seconds = median([sys.executable, "-m", "linnet", "check", str(path)], args.runs)
        print(f"{path.name}: {seconds:.3f} s for {lines} lines (and the modules they import)")
        if args.profile:
            profile(path)


if __name__ == "__main__":
    main()
