"""`linnet torch`: the PyTorch source that a program becomes."""

from __future__ import annotations

import argparse

from linnet.backends import BACKENDS
from linnet.cli import OK
from linnet.cli.source import add_numerics, add_optionals, add_source_arguments, opened, presence
from linnet.core.ir import Program


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numerics(parser, "equivalent", "exact, equivalent (default) or fast")
    add_optionals(parser)
    parser.add_argument(
        "--place",
        metavar="PATH=SLOT",
        action="append",
        default=[],
        help="a unit on the device of that number; may be repeated",
    )
    parser.add_argument(
        "--offload",
        metavar="PATH",
        action="append",
        default=[],
        help="a unit whose weights are brought for each call; may be repeated",
    )
    add_source_arguments(parser)


def run(args: argparse.Namespace) -> int:
    found = opened(args)
    BACKENDS["torch"].load()  # says what to install where PyTorch is missing
    from linnet.torch.emit import emit

    program = found.program.lower(
        found.bound("torch"),
        entries=found.entries,
        main=found.main,
        numerics=args.numerics,
        present=presence(args, found.program),
    )
    text = emit(program, args.numerics)
    if args.place or args.offload:
        text = _placed(text, program, args.place, args.offload)
    print(text, end="")
    return OK


def _placed(text: str, program: Program, places: list[str], offloaded: list[str]) -> str:
    """The source, with a word on where its units are when it runs as the flags say."""
    from linnet.torch.placement import from_flags, listed, units_of

    units = units_of(program, [], [])
    slots, away = from_flags(units, places, offloaded)
    said: list[str] = []
    for slot in sorted(set(slots.values())):
        names = listed([path for path, its in slots.items() if its == slot])
        said.append(f"Device {slot}: {names}.")
    said += [f"Brought for each call: {listed(away)}."] if away else []
    said.append("A call of a unit's method takes its arguments, and DEVICE, to the unit's device.")
    first, rest = text.split("\n", 1)
    return "\n".join([first, "", *(f"# {line}" for line in said), rest])
