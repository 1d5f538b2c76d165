"""`python -m linnet.serve MODEL` is `linnet serve MODEL`."""

import sys

from linnet.cli import main

raise SystemExit(main(["serve", *sys.argv[1:]]))
