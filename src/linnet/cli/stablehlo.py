"""`linnet stablehlo`: the StableHLO module that an entry becomes."""

from __future__ import annotations

import argparse

from linnet.cli import OK
from linnet.cli.source import add_numerics, add_optionals, add_source_arguments, opened, presence
from linnet.diagnostics import PlanError
from linnet.inputs import bind_sizes, find_entry
from linnet.stablehlo import check_dynamic, emit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numerics(parser, "equivalent", "exact, equivalent (default) or fast")
    add_optionals(parser)
    parser.add_argument(
        "--dynamic",
        metavar="NAME,...",
        action="append",
        default=[],
        help="dimensions of the entry that the module reads from its arguments, such as B,S",
    )
    add_source_arguments(parser)


def run(args: argparse.Namespace) -> int:
    found = opened(args)
    if args.entry and len(args.entry) > 1:
        raise PlanError("linnet stablehlo prints one entry: give --entry once")
    generics = {generic.name for generic in found.program.generics()}
    own = {name: value for name, value in found.given.items() if name not in generics}
    for dim in own:
        del found.given[dim]
    program = found.program.lower(
        found.bound("stablehlo"),
        entries=found.entries,
        main=found.main,
        numerics=args.numerics,
        present=presence(args, found.program),
    )
    name = args.entry[0] if args.entry else None
    entry = find_entry(program, name)
    dynamic = [dim for words in args.dynamic for dim in words.replace(",", " ").split()]
    check_dynamic(program, entry, name or program.main, own, dynamic)
    sizes = bind_sizes(entry, own, name or program.main, dynamic)  # type: ignore[arg-type]
    print(emit(program, name, sizes, args.numerics, dynamic), end="")
    return OK
