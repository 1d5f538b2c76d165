"""Counts code lines per room against the table in docs/architecture.md.

Code is what a reader must follow: no blank lines, comments or docstrings. Fails above the totals.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src/linnet"
CEILINGS = {"Python": 18_000, "std": 1_800}
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def python_lines(text: str) -> int:
    """Lines that hold a token of code, docstrings left out."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                if isinstance(first.value.value, str) and first.end_lineno is not None:
                    lines.difference_update(range(first.lineno, first.end_lineno + 1))
    return len(lines)


def linnet_lines(text: str) -> int:
    """Lines that hold anything but space and comments; block comments nest, strings do not."""
    kept: list[str] = []
    depth = 0
    for piece in re.findall(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*|\*/|\n|.', text):
        if piece == "/*":
            depth += 1
        elif piece == "*/" and depth:
            depth -= 1
        elif piece == "\n" or (not depth and not piece.startswith("//")):
            kept.append(piece)
    return sum(bool(line.strip()) for line in "".join(kept).split("\n"))


def rooms() -> Iterator[tuple[list[str], int]]:
    """Names and line budget of each room of the table."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = text.split("## Rooms")[1].split("\n## ")[0]
    for names, budget in re.findall(r"^\| *(`.+?`) *\| *(\d+) *\|", table, re.MULTILINE):
        yield re.findall(r"`(\w+)`", names), int(budget)


def counted() -> dict[str, int]:
    """Code lines per top-level name of the package: `dims`, `workspace`, `std`."""
    lines: dict[str, int] = {}
    for file in sorted(PACKAGE.rglob("*")):
        name = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if file.suffix == ".py":
            count = python_lines
        elif file.suffix == ".linnet" and name == "std":
            count = linnet_lines
        else:
            continue
        lines[name] = lines.get(name, 0) + count(file.read_text(encoding="utf-8"))
    return lines


def report() -> tuple[str, list[str]]:
    """The table to print, and what is wrong."""
    lines = counted()
    rows: list[tuple[str, int, int]] = []
    for names, budget in rooms():
        rows.append((" ".join(names), sum(lines.pop(name, 0) for name in names), budget))
    wrong = [f"{name} stands in no room of docs/architecture.md" for name in lines]
    std = sum(count for name, count, _ in rows if name == "std")
    totals = {"Python": sum(count for _, count, _ in rows) - std, "std": std}
    text = [f"{'room':24}{'lines':>8}{'budget':>8}"]
    for name, count, budget in rows:
        over = f"  {count - budget} over" if count > budget else ""
        text.append(f"{name:24}{count:8}{budget:8}{over}")
    for name, total in totals.items():
        text.append(f"{'all ' + name:24}{total:8}{CEILINGS[name]:8}")
        if total > CEILINGS[name]:
            wrong.append(f"{total} lines of {name} are above the ceiling of {CEILINGS[name]}")
    return "\n".join(text), wrong


def main() -> int:
    text, wrong = report()
    print(text)
    for line in wrong:
        print(f"size: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
