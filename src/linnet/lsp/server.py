"""The server: what an editor asks, answered from the newest state; a handler is a few lines."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path

from linnet import __version__
from linnet.diagnostics import CODES, Diagnostic
from linnet.lsp.checking import Checker
from linnet.lsp.positions import UTF8, UTF16, UTF32, Lines, edited
from linnet.lsp.project import Document, Project, State, Unit
from linnet.source import Source, Span
from linnet.workspace import MANIFEST, SUFFIX, real

DOCS = "https://github.com/linnet-lang/linnet/blob/main/src/linnet/explain/{code}.md"
UNNECESSARY = ("W1001", "W1002", "W1003")


class Server(LanguageServer):
    """The open documents, what was published about them, and the checker."""

    def __init__(self, std_root: str | None = None) -> None:
        super().__init__("linnet", __version__, lsp.TextDocumentSyncKind.Incremental)
        self.encoding = UTF16
        self.documents: dict[Path, Document] = {}
        self.uris: dict[Path, str] = {}  # as the client spells them
        self.published: dict[Path, lsp.PublishDiagnosticsParams] = {}
        self.folders: list[Path] = []
        self.watches = False
        self._lines: dict[Source, Lines] = {}
        self.checker = Checker(
            Project(std_root), lambda: self.documents, self.publish, self.publish_early, self.log
        )

    # --- places -------------------------------------------------------------------------------

    def uri(self, path: Path) -> str:
        return self.uris.get(path) or from_fs_path(str(path)) or ""

    def lines(self, source: Source) -> Lines:
        if source not in self._lines:
            self._lines[source] = Lines(source.text, self.encoding)
        return self._lines[source]

    def range(self, span: Span) -> lsp.Range:
        lines = self.lines(span.source)
        start, end = lines.position(span.start), lines.position(span.end)
        return lsp.Range(lsp.Position(*start), lsp.Position(*end))

    def log(self, text: str) -> None:
        """A bug of ours, for whoever reports it; the server goes on."""
        self.window_log_message(lsp.LogMessageParams(lsp.MessageType.Error, text))

    def report_server_error(self, error: Exception, source: type) -> None:
        self.log(f"{source.__name__}: {type(error).__name__}: {error}")

    # --- documents ----------------------------------------------------------------------------

    def opened(self, document: lsp.TextDocumentItem) -> None:
        path = path_of(document.uri)
        self.documents[path] = Document(document.text, document.version)
        self.uris[path] = document.uri
        self.checker.changed(path, 0.0)

    def changed(self, params: lsp.DidChangeTextDocumentParams) -> None:
        path = path_of(params.text_document.uri)
        text = self.documents.get(path, Document("")).text
        for change in params.content_changes:
            if isinstance(change, lsp.TextDocumentContentChangePartial):
                start, end = change.range.start, change.range.end
                places = (start.line, start.character), (end.line, end.character)
                text = edited(text, *places, change.text, self.encoding)
            else:
                text = change.text
        self.documents[path] = Document(text, params.text_document.version)
        self.checker.changed(path)

    def closed(self, uri: str) -> None:
        path = path_of(uri)
        self.documents.pop(path, None)
        self.uris.pop(path, None)
        self.checker.changed(None)

    # --- findings -----------------------------------------------------------------------------

    def publish(self, state: State) -> None:
        """Tell the client what is different from what it was told before."""
        self._lines = {}
        for trouble in state.troubles:
            self.window_log_message(lsp.LogMessageParams(lsp.MessageType.Warning, trouble))
        found = state.findings()
        for path in sorted({*found, *self.published, *state.documents}):
            self._publish(state.units, path, state.documents.get(path), found.get(path, []))

    def publish_early(self, unit: Unit, path: Path, document: Document) -> None:
        """What is wrong in the file being edited, before the files that use it are checked."""
        own = [d for d in unit.findings if unit.paths.get(d.primary.span.source) == path]
        errors = [d for d in own if d.severity == "error"]
        if errors:
            self._publish((unit,), path, document, errors)

    def _publish(
        self,
        units: tuple[Unit, ...],
        path: Path,
        document: Document | None,
        found: list[Diagnostic],
    ) -> None:
        paths = {source: p for unit in units for source, p in unit.paths.items()}
        shown = [self.diagnostic(d, paths) for d in found]
        version = document.version if document is not None else None
        params = lsp.PublishDiagnosticsParams(self.uri(path), shown, version)
        if params == self.published.get(path):
            return
        self.published[path] = params
        if not shown and document is None:
            del self.published[path]
        self.text_document_publish_diagnostics(params)

    def diagnostic(self, d: Diagnostic, paths: dict[Source, Path]) -> lsp.Diagnostic:
        parts = [d.message]
        if d.primary.text:
            parts[0] += f" ({d.primary.text})"
        parts += [f"note: {note}" for note in d.notes]
        if d.help is not None:
            parts.append(f"help: {d.help.text}")
        error = d.severity == "error"
        related = [
            lsp.DiagnosticRelatedInformation(
                lsp.Location(self.uri(paths[label.span.source]), self.range(label.span)), label.text
            )
            for label in d.related
            if label.span.source in paths
        ]
        return lsp.Diagnostic(
            self.range(d.primary.span),
            "\n".join(parts),
            lsp.DiagnosticSeverity.Error if error else lsp.DiagnosticSeverity.Warning,
            d.code,
            lsp.CodeDescription(DOCS.format(code=d.code)),
            "linnet",
            [lsp.DiagnosticTag.Unnecessary] if d.code in UNNECESSARY else None,
            related or None,
            {"title": CODES[d.code]},
        )


def path_of(uri: str) -> Path:
    """The file that a URI names; a document without a file gets a name of its own."""
    if urlsplit(uri).scheme == "file":
        return real(to_fs_path(uri) or unquote(urlsplit(uri).path))
    name = re.sub(r"\W+", "_", unquote(uri)).strip("_")
    return Path("/", f"untitled {quote(urlsplit(uri).scheme)}", name + SUFFIX)


def make(std_root: str | None = None) -> Server:
    """A server with all its handlers."""
    server = Server(std_root)
    _documents(server)
    return server


def run(std_root: str | None = None) -> None:
    """Serve an editor over standard input and output until it says to stop."""
    gc.disable()  # trees are full of cycles and live on; the checker collects in quiet moments
    gc.freeze()
    make(std_root).start_io()


def _documents(server: Server) -> None:
    @server.feature(lsp.INITIALIZE)
    def initialize(params: lsp.InitializeParams) -> None:
        general = params.capabilities.general
        offered = list(general.position_encodings or ()) if general else []
        chosen = next((e for e in offered if e in (UTF8, UTF16, UTF32)), UTF16)
        server.encoding = str(getattr(chosen, "value", chosen))
        roots = [f.uri for f in params.workspace_folders or ()]
        roots = roots or ([params.root_uri] if params.root_uri else [])
        server.folders = [path_of(uri) for uri in roots]
        workspace = params.capabilities.workspace
        watching = workspace.did_change_watched_files if workspace else None
        server.watches = bool(watching and watching.dynamic_registration)

    @server.feature(lsp.INITIALIZED)
    async def initialized(params: lsp.InitializedParams) -> None:
        if not server.watches:
            return
        watchers = [
            lsp.FileSystemWatcher(glob_pattern=pattern)
            for pattern in (f"**/*{SUFFIX}", f"**/{MANIFEST}")
        ]
        await server.client_register_capability_async(
            lsp.RegistrationParams(
                [
                    lsp.Registration(
                        "watch",
                        lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES,
                        lsp.DidChangeWatchedFilesRegistrationOptions(watchers),
                    )
                ]
            )
        )

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def did_open(params: lsp.DidOpenTextDocumentParams) -> None:
        server.opened(params.text_document)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def did_change(params: lsp.DidChangeTextDocumentParams) -> None:
        server.changed(params)

    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE)
    def did_save(params: lsp.DidSaveTextDocumentParams) -> None:
        server.checker.changed(None)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(params: lsp.DidCloseTextDocumentParams) -> None:
        server.closed(params.text_document.uri)

    @server.feature(lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def did_change_files(params: lsp.DidChangeWatchedFilesParams) -> None:
        server.checker.changed(None)

    @server.feature(lsp.WORKSPACE_DID_RENAME_FILES)
    def did_rename_files(params: lsp.RenameFilesParams) -> None:
        server.checker.changed(None)

    @server.feature(lsp.WORKSPACE_DID_DELETE_FILES)
    def did_delete_files(params: lsp.DeleteFilesParams) -> None:
        server.checker.changed(None)

    @server.feature(lsp.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    def did_change_folders(params: lsp.DidChangeWorkspaceFoldersParams) -> None:
        gone = {path_of(folder.uri) for folder in params.event.removed}
        kept = [folder for folder in server.folders if folder not in gone]
        server.folders = kept + [path_of(folder.uri) for folder in params.event.added]

    @server.feature(lsp.SHUTDOWN)
    def shutdown(params: None) -> None:
        server.checker.close()
