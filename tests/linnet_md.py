"""Linnet programs in Markdown, checked against the comments in them.

A heading starts a case. A fence marked `linnet` is a program of its own; fences with a path after
the word (`linnet src/lib.linnet`, `toml linnet.toml`) are the files of one package, checked
together, up to a path that was there before. A program without a `module` line gets one, unless it
is marked `raw`. In a manifest, expectations stand behind `#`.

    // error: E2207 "part of the message, a note or the help"     a finding that starts on this line
    // warning: W1002                                            likewise
    // type: Tensor[N; f32]              the type bound on this line, which need not be used

Every finding must be expected, and every expectation met.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from linnet.check import check, check_text
from linnet.check.analysis import Analysis, Local
from linnet.diagnostics import Diagnostic
from linnet.workspace import Workspace

EXPECTED = re.compile(r'(?://|#)\s*(error|warning):\s*([EW]\d{4})(?:\s+"([^"]*)")?')
TYPE = re.compile(r"//\s*type:\s*(.+?)\s*$", re.MULTILINE)


@dataclass
class Program:
    """The files of a program by path; one without a path is a text on its own."""

    title: str
    line: int
    files: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.line}-{re.sub(r'[^A-Za-z0-9]+', '-', self.title).strip('-')}"


@cache
def programs(path: Path) -> list[Program]:
    """Every program of a Markdown file."""
    out: list[Program] = []
    package: Program | None = None
    title, fence, start, body = "", None, 0, []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if fence is None and line.startswith("#"):
            title, package = line.lstrip("# "), None
        elif fence is None and line.startswith("```"):
            fence, start, body = line[3:].split(), number, []
        elif fence is not None and line.startswith("```"):
            language, words = (fence[0] if fence else ""), fence[1:]
            text = "\n".join(body) + "\n"
            named = [w for w in words if w != "raw"]
            if language == "linnet" and not named:
                alone = text if "raw" in words or _has_module(text) else f"module test {text}"
                out.append(Program(title, start, {"": alone}))
            elif language in ("linnet", "toml"):
                if package is None or named[0] in package.files:
                    package = Program(title, start)
                    out.append(package)
                package.files[named[0]] = text
            fence = None
        elif fence is not None:
            body.append(line)
    return out


def _has_module(text: str) -> bool:
    lines = (line.strip() for line in text.splitlines())
    return next((line.startswith("module ") for line in lines if line[:2] not in ("", "//")), False)


def run(program: Program) -> None:
    """Check a program and compare what is found with what it expects."""
    if "" in program.files:
        _compare(check_text(program.files[""]), {"<text>": program.files[""]})
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in program.files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        workspace = Workspace()
        package = next((n for n in program.files if n == "linnet.toml"), None)
        analysis = check(workspace, root if package else root / next(iter(program.files)))
        _compare(analysis, {str((root / n).resolve()): t for n, t in program.files.items()})


def _compare(analysis: Analysis, files: dict[str, str]) -> None:
    wanted = [
        (name, number, code, text or "")
        for name, source in files.items()
        for number, line in enumerate(source.splitlines(), 1)
        for _, code, text in EXPECTED.findall(line)
    ]
    typed = {
        (name, number)
        for name, source in files.items()
        for number, line in enumerate(source.splitlines(), 1)
        if TYPE.search(line)
    }
    findings = [
        d for d in analysis.findings.sorted() if d.code != "W1002" or _place(d) not in typed
    ]
    problems: list[str] = []
    for name, number, code, text in wanted:
        found = next((d for d in findings if _place(d) == (name, number) and d.code == code), None)
        if found is None:
            problems.append(f"line {number}: expected {code} {text!r}")
            continue
        findings.remove(found)
        if text not in _words(found):
            problems.append(f"line {number}: {text!r} is not in {_words(found)!r}")
    problems += [f"line {_place(d)[1]}: unexpected {d.code} {_words(d)}" for d in findings]
    problems += _wrong_types(analysis, files)
    shown = "\n".join(f"{n}:\n{t}" for n, t in files.items())
    assert not problems, "\n".join([*problems, shown])


def _place(d: Diagnostic) -> tuple[str, int]:
    span = d.primary.span
    return str(Path(span.source.name).resolve()) if span.source.name != "<text>" else "<text>", (
        span.source.position(span.start).line
    )


def _words(d: Diagnostic) -> str:
    parts = [d.message, *d.notes, *([f"help: {d.help.text}"] if d.help else [])]
    return " / ".join(parts)


def _wrong_types(analysis: Analysis, files: dict[str, str]) -> list[str]:
    bound: dict[tuple[str, int], list[str]] = {}
    for node, symbol in analysis.symbols.items():
        if isinstance(symbol, Local) and symbol.decl is node:
            source = node.span.source
            line = source.position(node.span.start).line
            name = source.name if source.name == "<text>" else str(Path(source.name).resolve())
            bound.setdefault((name, line), []).append(str(symbol.type))
    out: list[str] = []
    for name, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            for wanted in TYPE.findall(line):
                found = ", ".join(bound.get((name, number), ["nothing"]))
                if found != wanted:
                    out.append(f"line {number}: the type is {found}, expected {wanted}")
    return out
