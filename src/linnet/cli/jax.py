"""`linnet jax`: the `jax.numpy` source that a program becomes."""

from __future__ import annotations

import argparse

from linnet.backends import BACKENDS
from linnet.cli import OK
from linnet.cli.source import add_numerics, add_optionals, add_source_arguments, opened, presence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numerics(parser, "equivalent", "exact, equivalent (default) or fast")
    add_optionals(parser)
    add_source_arguments(parser)


def run(args: argparse.Namespace) -> int:
    found = opened(args)
    BACKENDS["jax"].load()  # says what to install where JAX is missing
    from linnet.jax.emit import emit

    program = found.program.lower(
        found.bound("jax"),
        entries=found.entries,
        main=found.main,
        numerics=args.numerics,
        present=presence(args, found.program),
    )
    print(emit(program, args.numerics), end="")
    return OK
