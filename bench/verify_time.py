"""How long `linnet verify` takes, backend by backend.

    python bench/verify_time.py [MODEL] [--backends torch,onnx]

The seconds of each backend alone, one after another, in this process: what they compile is compiled
anew, so caches of earlier runs should be empty (TORCHINDUCTOR_CACHE_DIR is a new folder here).
`linnet verify` runs the frameworks beside each other, and takes the time of the slowest at least.
"""

from __future__ import annotations

import argparse
import os
import tempfile

from linnet.verification import verify
from linnet.verification.runners import WAYS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--backends", default=",".join(w.name for w in WAYS if not w.missing))
    args = parser.parse_args()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
    for name in args.backends.split(","):
        report = verify(args.model, backends=[name])
        cases = sum(len(outcome.cases) for outcome in report.outcomes)
        verdict = "agrees" if report.agrees else "DIFFERS"
        print(f"{name}: {report.seconds:.1f} s, {cases} cases, {verdict}", flush=True)


if __name__ == "__main__":
    main()
