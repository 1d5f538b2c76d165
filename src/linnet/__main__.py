"""`python -m linnet` is the `linnet` command."""

from linnet.cli import main

raise SystemExit(main())
