"""`linnet lint`: `check --strict` and `fmt --check` in one."""

from __future__ import annotations

import argparse
import json

from linnet.cli import ERRORS, OK, USAGE
from linnet.cli.check import add_targets, counted, of_arguments, print_findings
from linnet.render import render_json
from linnet.syntax.format import format_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    add_targets(parser)


def run(args: argparse.Namespace) -> int:
    """Print the findings and the files that `linnet fmt` would change; either makes it fail."""
    checked = of_arguments(args, "lint")
    if checked is None:
        return USAGE
    unformatted = [
        source.name
        for source in sorted(checked.files, key=lambda source: source.name)
        if format_text(source.text, source.name)[0] not in (None, source.text)
    ]
    if args.json:
        document = {**render_json(checked.findings), "unformatted": unformatted}
        print(json.dumps(document, indent=2))
    else:
        print_findings(args, checked.findings)
        for name in unformatted:
            print(f"{name}: not in the one style; `linnet fmt {name}` rewrites it\n")
        also = f"; {counted(len(unformatted), 'file')} to format" if unformatted else ""
        print(f"{checked.summary()}{also}")
    return ERRORS if unformatted or checked.fails(strict=True) else OK
