"""Counts code lines per room against the table in docs/architecture.md.

Code is what a reader must follow: no blank lines, comments or docstrings. Fails above the totals.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src/linnet"
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


def table() -> list[tuple[str, int]]:
    """First and second column of the table of rooms."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    part = text.split("## Rooms")[1].split("\n## ")[0]
    return [(n, int(b)) for n, b in re.findall(r"^\| *(.+?) *\| *(\d+) *\|", part, re.MULTILINE)]


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


def families() -> dict[str, int]:
    """Lines of Linnet that each family of the zoo states beyond what `std` shares."""
    lines: dict[str, int] = {}
    for file in sorted((PACKAGE / "zoo/families").rglob("*.linnet")):
        name = file.relative_to(PACKAGE / "zoo/families").parts[0]
        lines[name] = lines.get(name, 0) + linnet_lines(file.read_text(encoding="utf-8"))
    return lines


def report() -> tuple[str, list[str]]:
    """The table to print, and what is wrong."""
    lines = counted()
    text = [f"{'room':38}{'lines':>8}{'budget':>8}"]
    ceilings: dict[str, int] = {}
    totals = {
        "all Python": sum(lines.values()) - lines.get("std", 0),
        "all std": lines.get("std", 0),
    }
    for cell, budget in table():
        if cell.startswith("all "):
            ceilings[cell] = budget
            continue
        names = re.findall(r"`(\w+)`", cell)
        count = sum(lines.pop(name, 0) for name in names)
        over = f"  {count - budget} over" if count > budget else ""
        text.append(f"{' '.join(names):38}{count:8}{budget:8}{over}")
    wrong = [f"{name} stands in no room of docs/architecture.md" for name in lines]
    for name, total in totals.items():
        text.append(f"{name:38}{total:8}{ceilings[name]:8}")
        if total > ceilings[name]:
            wrong.append(f"{name}: {total} lines, above the ceiling of {ceilings[name]}")
    text += [f"zoo/families/{name:25}{count:8}" for name, count in families().items()]
    return "\n".join(text), wrong


def main() -> int:
    text, wrong = report()
    print(text)
    for line in wrong:
        print(f"size: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
