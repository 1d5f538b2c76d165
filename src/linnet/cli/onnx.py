"""`linnet onnx`: the ONNX model that an entry becomes, as text or in a file."""

from __future__ import annotations

import argparse

from linnet.backends import BACKENDS
from linnet.cli import OK
from linnet.cli.source import add_numerics, add_optionals, add_source_arguments, opened, presence
from linnet.diagnostics import PlanError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--inline", action="store_true", help="functions written out where called")
    parser.add_argument(
        "--output", metavar="PATH", help="write the model, its parameters as inputs, to a file"
    )
    add_numerics(parser, "equivalent", "exact, equivalent (default) or fast")
    add_optionals(parser)
    add_source_arguments(parser)


def run(args: argparse.Namespace) -> int:
    found = opened(args)
    if args.entry and len(args.entry) > 1:
        raise PlanError("linnet onnx prints one entry: give --entry once")
    BACKENDS["onnx"].load()  # says what to install where ONNX is missing
    from onnx import printer

    from linnet.onnx.export import export_program

    program = found.program.lower(
        found.bound("onnx"),
        entries=found.entries,
        main=found.main,
        numerics=args.numerics,
        present=presence(args, found.program),
    )
    name = args.entry[0] if args.entry else None
    made = export_program(program, name, args.numerics, inline=args.inline)
    if args.output:
        made.save(args.output)
    else:
        print(printer.to_text(made.model))
    return OK
