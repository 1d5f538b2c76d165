"""`linnet explain`: the page of a code, or which kernel each op call of a program gets."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from linnet.cli import OK, USAGE, color
from linnet.cli.source import add_numerics, add_optionals, add_source_arguments, source_file
from linnet.diagnostics import CODES, InternalError

PAGES = files("linnet") / "explain"
EPILOG = """\
Without a word: every code and what it stands for. With a file, a package or a card: which kernel of
the backend each call of an op gets under each numerics policy, and why it gets no other.
"""

_BOLD, _CODE, _DIM, _RESET = "\x1b[1m", "\x1b[36m", "\x1b[2m", "\x1b[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("--backend", default="torch", metavar="NAME", help="default: torch")
    add_numerics(parser, None, "this policy alone: exact, equivalent or fast")
    parser.add_argument("--json", action="store_true", help="a program's report as JSON")
    add_optionals(parser)
    add_source_arguments(parser, "CODE|FILE", "a code, such as E2201; or a program")


def run(args: argparse.Namespace) -> int:
    if args.file is None and not args.bind:
        for code, title in CODES.items():
            print(f"{code}  {title}")
        return OK
    word = source_file(args)
    code = word.upper()
    if code in CODES:
        text = page(code)
        print("\n".join(_styled(text)) if color(args, sys.stdout) else text, end="")
        return OK
    if not Path(word).exists() and word not in _cards():
        print(f"linnet explain: no code, file or card {word}{_hint(code)}", file=sys.stderr)
        return USAGE
    from linnet.cli.choices import explain

    print(explain(args))
    return OK


def _cards() -> Collection[str]:
    from linnet.nest.card import card_directories

    return card_directories()


def page(code: str) -> str:
    """The page of a code, as Markdown."""
    file = PAGES / f"{code}.md"
    if not file.is_file():
        raise InternalError("explain", f"{code} ({CODES[code]}) has no page")
    return file.read_text(encoding="utf-8")


def _hint(word: str) -> str:
    """Codes that were meant: by their digits, by nearness, or by a word of their title."""
    near = [code for code in CODES if code[1:] == word]
    near = near or get_close_matches(word, CODES, 3, 0.75)
    near = near or [code for code, title in CODES.items() if word.lower() in title.lower()][:3]
    if near:
        return f"; did you mean {' or '.join(f'{code} ({CODES[code]})' for code in near)}?"
    return "; `linnet explain` alone lists them"


def _styled(text: str) -> Iterator[str]:
    """Markdown for a terminal: headings bold, code coloured, the fences themselves faint."""
    fenced = False
    for line in text.split("\n"):
        if line.startswith("```"):
            fenced = not fenced
            yield f"{_DIM}{line}{_RESET}"
        elif fenced:
            yield f"{_CODE}{line}{_RESET}" if line else ""
        elif line.startswith("#"):
            yield f"{_BOLD}{line.lstrip('# ')}{_RESET}"
        else:
            yield re.sub(r"`([^`]+)`", rf"{_CODE}\1{_RESET}", line)
