"""From a keystroke in the seed's attention.linnet to its published diagnostics, with a real client.

    python bench/lsp_keystroke.py [ROUNDS]

Each round types one character inside a function (which makes a mistake), takes it back, adds a
line to a body, takes it back, and changes a signature and back. It waits for the diagnostics of
every version before it types on. The second part says where the time of one check goes.
"""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import sys
import time
from pathlib import Path

from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

ROOT = Path(__file__).resolve().parent.parent
SEED = ROOT.parent / "shared/seed/mistral-7b-instruct-v0.3/src/attention.linnet"

# What is typed, where: the text before the cursor, what is put there, whether it is a mistake.
STROKES = (
    ("a letter in a name", "let mixed = group", "q", True),
    ("a space", "let mixed =", " ", False),
    ("a new `let`", "let mixed = ", None, False),
    ("a letter in a signature", "pub fn decode(x", "q", True),
)


class Timed:
    def __init__(self) -> None:
        self.client = LanguageClient("bench", "1")
        self.text = ""
        self.version = 1
        self.answer: asyncio.Future[list[lsp.Diagnostic]] | None = None
        self.uri = ""

        @self.client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(params: lsp.PublishDiagnosticsParams) -> None:
            waiting = self.answer
            mine = params.uri == self.uri and params.version == self.version
            if waiting is not None and not waiting.done() and mine:
                waiting.set_result(list(params.diagnostics))

    async def start(self, path: Path) -> None:
        await self.client.start_io(sys.executable, "-m", "linnet", "lsp")
        await self.client.initialize_async(
            lsp.InitializeParams(
                lsp.ClientCapabilities(), workspace_folders=[lsp.WorkspaceFolder(path.as_uri(), "")]
            )
        )
        self.client.initialized(lsp.InitializedParams())
        self.uri, self.text = path.as_uri(), path.read_text()
        self.answer = asyncio.get_running_loop().create_future()
        item = lsp.TextDocumentItem(self.uri, "linnet", self.version, self.text)
        self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(item))
        await self.answer

    async def replace(self, at: int, end: int, new: str) -> tuple[float, int]:
        """Milliseconds until the diagnostics of the new text, and how many there are."""

        def position(offset: int) -> lsp.Position:
            line = self.text.count("\n", 0, offset)
            return lsp.Position(line, offset - self.text.rfind("\n", 0, offset) - 1)

        change = lsp.TextDocumentContentChangePartial(lsp.Range(position(at), position(end)), new)
        self.text = self.text[:at] + new + self.text[end:]
        self.version += 1
        self.answer = asyncio.get_running_loop().create_future()
        document = lsp.VersionedTextDocumentIdentifier(self.version, self.uri)
        start = time.perf_counter()
        self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(document, [change]))
        found = await self.answer
        return (time.perf_counter() - start) * 1000, len(found)


async def measure(rounds: int) -> dict[str, list[float]]:
    here = Timed()
    await here.start(SEED.resolve())
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, before, typed, mistake in STROKES:
            at = here.text.index(before) + len(before)
            new = typed if typed is not None else "1\nlet mixed = "
            took, found = await here.replace(at, at, new)
            assert (found > 0) == mistake or typed is None, (name, found)
            times.setdefault(name, []).append(took)
            await asyncio.sleep(0.05)
            took, found = await here.replace(at, at + len(new), "")
            assert found == 0, found
            times.setdefault(name + ", taken back", []).append(took)
            await asyncio.sleep(0.05)
    await here.client.shutdown_async(None)
    here.client.exit(None)
    await here.client.stop()
    return times


def parts(rounds: int) -> dict[str, float]:
    """Where a check's milliseconds go, in process: medians."""
    from linnet.check import check
    from linnet.check.memo import Memo
    from linnet.diagnostics import Findings
    from linnet.lsp.checking import DELAY
    from linnet.source import Source
    from linnet.syntax import lex, parse_text
    from linnet.workspace import Workspace

    path = SEED.resolve()
    text = path.read_text()
    workspace, memo = Workspace(), Memo()
    check(workspace, workspace.open(path), memo=memo)
    found: dict[str, list[float]] = {}
    for i in range(rounds):
        spots = {}
        changed = text.replace("let mixed =", "let mixed =" + " " * (i + 1), 1)
        start = time.perf_counter()
        lex(Source("x", changed), Findings())
        spots["(lexing alone)"] = time.perf_counter() - start
        start = time.perf_counter()
        parse_text(changed)
        spots["(lexing and parsing alone)"] = time.perf_counter() - start
        start = time.perf_counter()
        workspace = workspace.renewed({path: changed})
        package = workspace.open(path)
        workspace.files_of(package)
        spots["finding out what has changed"] = time.perf_counter() - start
        memo.first = workspace.file(path).source
        early: list[float] = []
        memo.early = lambda _, early=early: early.append(time.perf_counter())
        start = time.perf_counter()
        check(workspace, package, memo=memo)
        end = time.perf_counter()
        spots["the file itself, parsed and checked"] = early[0] - start
        spots["the files that import it"] = end - early[0]
        for name, took in spots.items():
            found.setdefault(name, []).append(took * 1000)
    out = {"waiting for another keystroke": DELAY * 1000}
    out.update({name: statistics.median(times) for name, times in found.items()})
    return out


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    load = os.getloadavg()[0]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load:.1f}")
    times = asyncio.run(measure(rounds))
    everything = sorted(t for each in times.values() for t in each)
    for name, each in [*times.items(), ("all", everything)]:
        p90 = sorted(each)[int(len(each) * 0.9)]
        print(f"{name:40} median {statistics.median(each):6.0f} ms   p90 {p90:6.0f} ms")
    print()
    for name, took in parts(rounds).items():
        print(f"{name:40} {took:6.1f} ms")


if __name__ == "__main__":
    main()
