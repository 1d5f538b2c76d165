"""From a keystroke in the seed's attention.linnet to its published diagnostics, with a real client.

    python bench/lsp_keystroke.py [ROUNDS]

Each round types one character inside a function (which makes a mistake), takes it back, adds a
line to a body, takes it back, and changes a signature and back. `first` is until the diagnostics
of that version are published; `settled` until every file that could be concerned is checked too;
`corrected` says how often the first were not the last. The second part says where the time goes.
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
        self.answers = 0

        @self.client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(params: lsp.PublishDiagnosticsParams) -> None:
            waiting = self.answer
            mine = params.uri == self.uri and params.version == self.version
            self.answers += mine
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

    async def replace(self, at: int, end: int, new: str) -> tuple[float, float, bool, int]:
        """Milliseconds to the first diagnostics of the new text, and until all is checked.

        Also whether others followed, and how many there are.
        """

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
        self.answers = 0
        found = await self.answer
        first = (time.perf_counter() - start) * 1000
        outline = lsp.DocumentSymbolParams(lsp.TextDocumentIdentifier(self.uri))
        await self.client.text_document_document_symbol_async(outline)
        settled = (time.perf_counter() - start) * 1000
        return first, settled, self.answers > 1, len(found)


Strokes = dict[str, list[tuple[float, float, bool]]]


async def measure(rounds: int) -> Strokes:
    here = Timed()
    await here.start(SEED.resolve())
    times: Strokes = {}
    for _ in range(rounds):
        for name, before, typed, mistake in STROKES:
            at = here.text.index(before) + len(before)
            new = typed if typed is not None else "1\nlet mixed = "
            *took, found = await here.replace(at, at, new)
            assert (found > 0) == mistake or typed is None, (name, found)
            times.setdefault(name, []).append((took[0], took[1], took[2]))
            await asyncio.sleep(0.05)
            *took, found = await here.replace(at, at + len(new), "")
            assert found == 0, found
            times.setdefault(name + ", taken back", []).append((took[0], took[1], took[2]))
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
    from linnet.lsp.guess import edited
    from linnet.source import Source
    from linnet.syntax import lex, parse_text
    from linnet.workspace import Workspace

    path = SEED.resolve()
    text = path.read_text()
    workspace, memo = Workspace(), Memo()
    analysis = check(workspace, workspace.open(path), memo=memo)
    tree = next(m.tree for m in analysis.modules.values() if m.file.path == path)
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
        soon: list[float] = []
        old = tree
        memo.early = lambda _, early=early: early.append(time.perf_counter())
        memo.soonest = lambda module, old=old: edited(old, module.tree)
        memo.soon = lambda *_, soon=soon: soon.append(time.perf_counter())
        start = time.perf_counter()
        analysis = check(workspace, package, memo=memo)
        end = time.perf_counter()
        tree = next(m.tree for m in analysis.modules.values() if m.file.path == path)
        spots["the file parsed, declared, the edited body checked"] = soon[0] - start
        spots["its other bodies"] = early[0] - soon[0]
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
    print(f"{'':34} {'first: median':>14} {'p90':>5} {'settled: median':>16} {'corrected':>10}")
    everything = [stroke for each in times.values() for stroke in each]
    for name, each in [*times.items(), ("all", everything)]:
        first, settled = sorted(s[0] for s in each), statistics.median(s[1] for s in each)
        median, p90 = statistics.median(first), first[int(len(first) * 0.9)]
        corrected = sum(s[2] for s in each)
        print(
            f"{name:34} {median:11.0f} ms {p90:5.0f} {settled:13.0f} ms"
            f" {corrected:6} of {len(each)}"
        )
    print()
    for name, took in parts(rounds).items():
        print(f"{name:52} {took:6.1f} ms")


if __name__ == "__main__":
    main()
