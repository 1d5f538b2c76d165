"""`python -m linnet.diagram`: the same as `linnet diagram`."""

from __future__ import annotations

import sys

from linnet.cli import main

if __name__ == "__main__":
    sys.exit(main(["diagram", *sys.argv[1:]]))
