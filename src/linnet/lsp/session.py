"""One editor's session: its documents, what it was told about them, and places in its terms."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from lsprotocol import types as lsp
from pygls.exceptions import FeatureRequestError
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path

import linnet
from linnet import __version__
from linnet.diagnostics import CODES, Diagnostic
from linnet.lsp.checking import Checker
from linnet.lsp.positions import UTF16, Lines, edited
from linnet.lsp.project import Document, Project, State, Unit
from linnet.source import Source, Span
from linnet.workspace import SUFFIX, real

PAGES = Path(linnet.__file__).parent / "explain"  # what `linnet explain CODE` shows
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
        if source is not FeatureRequestError:  # whoever asked is told why there is no answer
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
        if errors or unit.guessed:
            self._publish((unit,), path, document, own if unit.guessed else errors)

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
            lsp.CodeDescription((PAGES / f"{d.code}.md").as_uri()),
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
