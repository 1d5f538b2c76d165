"""`linnet explain`: the page of a code."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.resources import files

from linnet.cli import OK, USAGE, color
from linnet.diagnostics import CODES, InternalError

PAGES = files("linnet") / "explain"
EPILOG = "Without a code: every code and what it stands for."

_BOLD, _CODE, _DIM, _RESET = "\x1b[1m", "\x1b[36m", "\x1b[2m", "\x1b[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("what", nargs="?", metavar="CODE", help="a code, such as E2201")


def run(args: argparse.Namespace) -> int:
    if args.what is None:
        for code, title in CODES.items():
            print(f"{code}  {title}")
        return OK
    code = args.what.upper()
    if code not in CODES:
        print(f"linnet explain: no code {args.what}{_hint(code)}", file=sys.stderr)
        return USAGE
    text = page(code)
    print("\n".join(_styled(text)) if color(args, sys.stdout) else text, end="")
    return OK


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
