"""Programs in Markdown beside what a terminal shows of them.

A fence marked `linnet` is a file named after its module; fences with a path after the word
(`linnet src/lib.linnet`, `toml linnet.toml`) that follow one another are the files of one package.
A fence marked `output` right after a program is what `linnet check` prints about it, to the last
character; `pytest --update` writes it. A program without one finds what its comments expect, as in
`linnet_md`: nothing, where there are none.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import linnet_md
from linnet.cli import main

FENCE = re.compile(r"^```(\w+)(?: (.+))?\n((?:(?!```).*\n)*?)^```$", re.MULTILINE)
MODULE = re.compile(r"^module ([\w.]+)", re.MULTILINE)


@dataclass
class Shown:
    """A program, the heading it stands under, and the place of what is printed about it."""

    title: str
    line: int
    files: dict[str, str] = field(default_factory=dict)
    output: tuple[int, int] | None = None  # where its text starts and ends in the page

    def as_spec(self) -> linnet_md.Program:
        """The program as one whose comments say what is found; it may lack its `module` line."""
        files = self.files
        if len(files) == 1:
            [text] = files.values()
            files = {"": text if MODULE.search(text) else f"module example {text}"}
        return linnet_md.Program(self.title, self.line, files)

    @property
    def target(self) -> str:
        return next(iter(self.files)) if len(self.files) == 1 else "."


def programs(text: str) -> list[Shown]:
    """Every program of a Markdown text, with its output."""
    out: list[Shown] = []
    end = 0
    for fence in FENCE.finditer(text):
        language, path, body = fence[1], fence[2], fence[3]
        follows = not text[end : fence.start()].strip() and bool(out)
        end = fence.end()
        if language == "output":
            assert follows and out[-1].output is None, f"an output without a program: {body}"
            out[-1].output = fence.span(3)
        elif language == "linnet" or (language == "toml" and path):
            joins = path and follows and out[-1].output is None and "." in out[-1].files
            if not joins:
                headings = re.findall(r"^#+ (.+)$", text[: fence.start()], re.MULTILINE)
                line = text.count("\n", 0, fence.start()) + 1
                out.append(Shown(headings[-1] if headings else "", line))
                if path:
                    out[-1].files["."] = ""  # a package, until it is complete
            out[-1].files[path or _name(body)] = body
    for program in out:
        program.files.pop(".", None)
    return out


def _name(body: str) -> str:
    module = MODULE.search(body)
    return (module[1].rpartition(".")[2] if module else "example") + ".linnet"


def check(program: Shown, folder: Path) -> str:
    """What `linnet check` prints about the program, whose files are written into `folder`."""
    return _main(program, folder, [])


def codes(program: Shown, folder: Path) -> list[str]:
    """The codes of what is found."""
    found = json.loads(_main(program, folder, ["--json"]))
    return [str(d["code"]) for d in found["diagnostics"]]


def _main(program: Shown, folder: Path, options: list[str]) -> str:
    for name, text in program.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    before = os.getcwd()
    out = io.StringIO()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out):
            main(["check", *options, program.target])
    finally:
        os.chdir(before)
    return out.getvalue()


def compare(page: Path, folder: Path, update: bool) -> list[Shown]:
    """The programs of a page, each of which shows what it says; or the page says what they show."""
    text = page.read_text(encoding="utf-8")
    found = programs(text)
    for number, program in reversed(list(enumerate(found))):
        if program.output is None:
            linnet_md.run(program.as_spec())
            continue
        seen = check(program, folder / str(number))
        start, end = program.output
        if update:
            text = text[:start] + seen + text[end:]
        else:
            wrong = f"{page.name}:{program.line}: the output differs (`pytest --update` writes it)"
            assert seen == text[start:end], wrong
    if update:
        page.write_text(text, encoding="utf-8")
    return found
