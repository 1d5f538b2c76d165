"""Whole sessions of a real client with `linnet lsp`, over its standard streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from lsprotocol import types as lsp

from .client import editor

MANIFEST = '[package]\nname = "{name}"\nversion = "1"\nlanguage = "0.1"\n{rest}'
WRONG = "module x\n\npub fn f(x: f32) -> f32 {\n    return y\n}\n"
ASTRAL = "module x\n\npub fn f(x: f32) -> f32 {\n    return /* 𝄞é */ y\n}\n"
RIGHT = WRONG.replace("return y", "return x")


def session(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(test(**given))

    return run


def package(root: Path, rest: str = "", **texts: str) -> Path:
    (root / "src").mkdir(parents=True)
    (root / "linnet.toml").write_text(MANIFEST.format(name=root.name, rest=rest))
    for name, text in texts.items():
        (root / "src" / f"{name}.linnet").write_text(text)
    return root


@pytest.mark.slow
@session
async def test_diagnostics_follow_the_text(tmp_path: Path) -> None:
    path = tmp_path / "x.linnet"
    path.write_text(RIGHT)
    async with editor(tmp_path) as here:
        uri = here.open(path)
        assert await here.codes(uri) == []
        here.type(uri, "yy", (3, 11), (3, 12))
        [found] = await here.checked(uri)
        assert (found.code, found.severity) == ("E1201", lsp.DiagnosticSeverity.Error)
        assert found.range == lsp.Range(lsp.Position(3, 11), lsp.Position(3, 13))
        assert found.message.startswith("`yy` is not defined here")
        assert found.code_description is not None
        page = Path(unquote(urlsplit(found.code_description.href).path))
        assert page.name == "E1201.md" and page.is_file()
        here.type(uri, "x", (3, 11), (3, 13))
        assert await here.codes(uri) == []
        here.type(uri, "    let z = x\n", (3, 0))
        [found] = await here.checked(uri)
        assert (found.code, found.tags) == ("W1002", (lsp.DiagnosticTag.Unnecessary,))
        here.close(uri)
        await here.until(lambda: not here.diagnostics[uri].diagnostics)
        # places that belong to a finding
        uri = here.open(path, "module x\n\nconst A = 1\n\nconst A = 2\n")
        [found] = await here.checked(uri)
        assert found.related_information is not None
        [first] = found.related_information
        assert (first.location.uri, first.location.range.start.line) == (uri, 2)
        # no file, and characters of two units
        other = here.open("untitled:Untitled-1", WRONG)
        assert await here.codes(other) == ["E1201"]
        wide = here.open(tmp_path / "not there.linnet", ASTRAL)
        [found] = await here.checked(wide)
        assert found.range.start == lsp.Position(3, 21)
        here.type(wide, "x", (3, 21), (3, 22))
        assert await here.codes(wide) == []


@pytest.mark.slow
@session
async def test_a_file_and_those_that_import_it(tmp_path: Path) -> None:
    uses = "module p\n\nuse crate.a::{{f}}\n\npub fn g(x: f32) -> f32 {{\n    return {}(x)\n}}\n"
    root = package(tmp_path / "p", a=RIGHT, lib=uses.format("f"))
    async with editor(root, watch=True) as here:
        await here.until(lambda: here.registered is not None)
        [one] = here.registered.registrations
        assert one.method == "workspace/didChangeWatchedFiles"
        lib, a = here.open(root / "src/lib.linnet"), here.open(root / "src/a.linnet")
        assert await here.codes(lib) == await here.codes(a) == []
        here.write(a, RIGHT.replace("fn f(x: f32)", "fn f(x: i32)"))
        assert await here.codes(a) == ["E2103"]
        await here.until(lambda: here.diagnostics[lib].diagnostics)
        # closed, the file on disk counts again
        here.close(a)
        await here.until(lambda: not here.diagnostics[lib].diagnostics)
        # a file that is gone
        (root / "src/a.linnet").unlink()
        event = lsp.FileEvent(a, lsp.FileChangeType.Deleted)
        here.client.workspace_did_change_watched_files(lsp.DidChangeWatchedFilesParams([event]))
        await here.until(lambda: here.diagnostics[lib].diagnostics)
        assert [d.code for d in here.diagnostics[lib].diagnostics] == ["E1202"]
        (root / "src/a.linnet").write_text(RIGHT)
        here.client.workspace_did_change_watched_files(lsp.DidChangeWatchedFilesParams([event]))
        await here.until(lambda: not here.diagnostics[lib].diagnostics)


@pytest.mark.slow
@session
async def test_a_broken_manifest(tmp_path: Path) -> None:
    root = package(tmp_path / "p", 'colour = "red"\n', lib=WRONG)
    async with editor(root) as here:
        lib = here.open(root / "src/lib.linnet")
        manifest = (root / "linnet.toml").as_uri()
        assert await here.codes(lib) == []
        await here.until(lambda: manifest in here.diagnostics)
        assert [d.code for d in here.diagnostics[manifest].diagnostics] == ["E5001"]
        here.open(root / "linnet.toml", MANIFEST.format(name="p", rest=""))
        await here.until(lambda: not here.diagnostics[manifest].diagnostics)
        await here.until(lambda: here.diagnostics[lib].diagnostics)


@pytest.mark.slow
@session
async def test_utf8_positions(tmp_path: Path) -> None:
    async with editor(encodings=["utf-8", "utf-16"]) as here:
        chosen = here.server.capabilities.position_encoding
        assert chosen == lsp.PositionEncodingKind.Utf8
        uri = here.open(tmp_path / "x.linnet", ASTRAL)
        [found] = await here.checked(uri)
        assert found.range.start == lsp.Position(3, 24)
        here.type(uri, "x", (3, 24), (3, 25))
        assert await here.codes(uri) == []
