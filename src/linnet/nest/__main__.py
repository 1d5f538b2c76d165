"""`python -m linnet.nest`: the models of the zoo, fetched, checked and made."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from linnet.diagnostics import LinnetError
from linnet.nest.commands import COMMANDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="nest_command", required=True, metavar="COMMAND")
    for name, (module, line) in COMMANDS.items():
        command = commands.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        import_module(module).add_arguments(command)


def run(args: argparse.Namespace) -> int:
    command: Any = import_module(COMMANDS[args.nest_command][0])
    status: int = command.run(args)
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; the result is its exit status: 0, 1 for errors, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m linnet.nest", description=__doc__)
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except LinnetError as error:
        print(f"linnet.nest: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("linnet.nest: stopped", file=sys.stderr)
        return 130
    except Exception as error:
        if os.environ.get("LINNET_DEBUG") == "1":
            raise
        print(
            f"linnet.nest: {type(error).__name__}: {error}\nThis is a bug in Linnet; please report "
            "it with this command line. LINNET_DEBUG=1 shows where it happened.",
            file=sys.stderr,
        )
        return 70


if __name__ == "__main__":
    sys.exit(main())
