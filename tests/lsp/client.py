"""A real editor's side of the protocol, over the standard streams of `linnet lsp`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

PATIENCE = 15.0  # seconds before a test gives up; nothing waits that long


class Editor:
    """Open documents, and what the server said about them."""

    def __init__(self, client: LanguageClient) -> None:
        self.client = client
        self.texts: dict[str, str] = {}
        self.versions: dict[str, int] = {}
        self.diagnostics: dict[str, lsp.PublishDiagnosticsParams] = {}
        self.log: list[str] = []
        self.news = asyncio.Event()
        self.registered: Any = None
        self.server: Any = None

    def open(self, path: Path | str, text: str | None = None) -> str:
        """The URI of a document, opened with this text or that of its file."""
        uri = path.as_uri() if isinstance(path, Path) else path
        if text is None:
            assert isinstance(path, Path)
            text = path.read_text()
        self.texts[uri], self.versions[uri] = text, 1
        item = lsp.TextDocumentItem(uri, "linnet", 1, text)
        self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(item))
        return uri

    def type(
        self, uri: str, text: str, at: tuple[int, int], to: tuple[int, int] | None = None
    ) -> None:
        """Replace what stands between two positions."""
        area = lsp.Range(lsp.Position(*at), lsp.Position(*(to or at)))
        self.change(uri, lsp.TextDocumentContentChangePartial(area, text))

    def write(self, uri: str, text: str) -> None:
        """Replace the whole text."""
        self.texts[uri] = text
        self.change(uri, lsp.TextDocumentContentChangeWholeDocument(text))

    def change(self, uri: str, change: Any) -> None:
        self.versions[uri] += 1
        document = lsp.VersionedTextDocumentIdentifier(self.versions[uri], uri)
        self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(document, [change]))

    def close(self, uri: str) -> None:
        document = lsp.TextDocumentIdentifier(uri)
        self.client.text_document_did_close(lsp.DidCloseTextDocumentParams(document))

    async def checked(self, uri: str) -> list[lsp.Diagnostic]:
        """What was published about the newest text of a document, when all of it is checked."""
        outline = lsp.DocumentSymbolParams(lsp.TextDocumentIdentifier(uri))
        await self.client.text_document_document_symbol_async(outline)
        await self.until(
            lambda: uri in self.diagnostics and self.diagnostics[uri].version == self.versions[uri]
        )
        return list(self.diagnostics[uri].diagnostics)

    async def codes(self, uri: str) -> list[str]:
        return [str(d.code) for d in await self.checked(uri)]

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            while not holds():
                self.news.clear()
                await self.news.wait()


@contextlib.asynccontextmanager
async def editor(
    *folders: Path, encodings: list[str] | None = None, watch: bool = False
) -> AsyncIterator[Editor]:
    """An editor with a server that has been started for it; no error may have been logged."""
    client = LanguageClient("tests", "1")
    here = Editor(client)

    @client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def published(params: lsp.PublishDiagnosticsParams) -> None:
        here.diagnostics[params.uri] = params
        here.news.set()

    @client.feature(lsp.WINDOW_LOG_MESSAGE)
    def logged(params: lsp.LogMessageParams) -> None:
        if params.type == lsp.MessageType.Error:
            here.log.append(params.message)
        here.news.set()

    @client.feature(lsp.CLIENT_REGISTER_CAPABILITY)
    def register(params: lsp.RegistrationParams) -> None:
        here.registered = params
        here.news.set()

    await client.start_io(sys.executable, "-X", "faulthandler", "-m", "linnet", "lsp")
    general = lsp.GeneralClientCapabilities(
        position_encodings=[lsp.PositionEncodingKind(e) for e in encodings or ["utf-16"]]
    )
    files = lsp.DidChangeWatchedFilesClientCapabilities(dynamic_registration=watch)
    capabilities = lsp.ClientCapabilities(
        general=general, workspace=lsp.WorkspaceClientCapabilities(did_change_watched_files=files)
    )
    roots = [lsp.WorkspaceFolder(folder.as_uri(), folder.name) for folder in folders]
    here.server = await client.initialize_async(
        lsp.InitializeParams(capabilities, workspace_folders=roots)
    )
    client.initialized(lsp.InitializedParams())
    try:
        yield here
    finally:
        await client.shutdown_async(None)
        client.exit(None)
        await client.stop()
    assert not here.log, "\n".join(here.log)
