"""Measurements: programs to run by hand, and `python -m bench.run`. Nothing imports them."""

import sys
from importlib.util import find_spec

# Peers' programs run where Linnet is not installed.
_STARTED = next((b for a, b in zip(sys.orig_argv, sys.orig_argv[1:]) if a == "-m"), "")
if _STARTED in ("bench.run", "bench.serving", "bench.soak") and find_spec("linnet") is None:
    sys.exit(
        f"{_STARTED}: {sys.executable} has no Linnet; use .venv/bin/python after `make demo`, or "
        "pip install '.[torch,serve]'"
    )
