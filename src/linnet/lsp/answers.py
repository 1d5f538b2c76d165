"""Requests: from the protocol's places to ours, to a feature, and back."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeVar

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams

from linnet.check.analysis import Module
from linnet.diagnostics import Diagnostic, Edit, Findings, LinnetError
from linnet.fixes import fix
from linnet.lsp import complete, features, hover
from linnet.lsp import rename as renaming
from linnet.lsp.names import at
from linnet.lsp.positions import Lines
from linnet.lsp.project import Document, Project, State, Unit, packages_below
from linnet.lsp.session import Server, path_of
from linnet.source import Source, Span
from linnet.syntax import tree
from linnet.syntax.parser import parse
from linnet.workspace import SUFFIX

P = TypeVar("P")
R = TypeVar("R")
Place = tuple[State, Unit, Module, int]

SYMBOLS = {
    "function": lsp.SymbolKind.Function,
    "method": lsp.SymbolKind.Method,
    "block": lsp.SymbolKind.Class,
    "trait": lsp.SymbolKind.Interface,
    "struct": lsp.SymbolKind.Struct,
    "enum": lsp.SymbolKind.Enum,
    "variant": lsp.SymbolKind.EnumMember,
    "const": lsp.SymbolKind.Constant,
    "alias": lsp.SymbolKind.Interface,
    "member": lsp.SymbolKind.Property,
    "field": lsp.SymbolKind.Field,
}
ITEMS: dict[complete.Kind, lsp.CompletionItemKind] = {
    "keyword": lsp.CompletionItemKind.Keyword,
    "variable": lsp.CompletionItemKind.Variable,
    "parameter": lsp.CompletionItemKind.Variable,
    "index": lsp.CompletionItemKind.Variable,
    "generic": lsp.CompletionItemKind.TypeParameter,
    "member": lsp.CompletionItemKind.Property,
    "method": lsp.CompletionItemKind.Method,
    "function": lsp.CompletionItemKind.Function,
    "block": lsp.CompletionItemKind.Class,
    "trait": lsp.CompletionItemKind.Interface,
    "struct": lsp.CompletionItemKind.Struct,
    "enum": lsp.CompletionItemKind.Enum,
    "variant": lsp.CompletionItemKind.EnumMember,
    "const": lsp.CompletionItemKind.Constant,
    "alias": lsp.CompletionItemKind.Interface,
    "module": lsp.CompletionItemKind.Module,
    "field": lsp.CompletionItemKind.Field,
    "argument": lsp.CompletionItemKind.Field,
    "type": lsp.CompletionItemKind.TypeParameter,
    "prelude": lsp.CompletionItemKind.Function,
}
FIX_ALL = "source.fixAll"
MOST = 500  # of what a search finds


class Asked:
    """A server and what its answers have in common."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def place(
        self, document: lsp.TextDocumentIdentifier, position: lsp.Position | None = None
    ) -> Place | None:
        """The newest state of a document, and the offset of a position in it."""
        state = await self.server.checker.current()
        home = state.place(path_of(document.uri))
        if home is None:
            return None
        unit, module = home
        offset = 0
        if position is not None:
            lines = self.server.lines(module.file.source)
            offset = lines.offset(position.line, position.character)
        return state, unit, module, offset

    def location(self, unit: Unit, span: Span) -> lsp.Location | None:
        path = unit.paths.get(span.source)
        return lsp.Location(self.server.uri(path), self.server.range(span)) if path else None

    def edits(self, edits: Iterable[tuple[Path, Span, str]]) -> lsp.WorkspaceEdit:
        changes: dict[str, list[lsp.TextEdit]] = {}
        for path, span, text in edits:
            edit = lsp.TextEdit(self.server.range(span), text)
            changes.setdefault(self.server.uri(path), []).append(edit)
        return lsp.WorkspaceEdit(changes)

    def rewrites(self, source: Source, parts: Iterable[tuple[int, int, str]]) -> list[lsp.TextEdit]:
        return [lsp.TextEdit(self.server.range(Span(source, a, b)), new) for a, b, new in parts]


def register(server: Server) -> None:
    """Answer every request."""
    asked = Asked(server)
    for group in (_names, _writing, _files, _editing):
        group(server, asked)


def answers(server: Server, method: str, options: Any = None) -> Callable[[Any], Any]:
    """A handler of a request that is logged instead of failing: an editor asks all the time."""

    def decorate(handler: Callable[[P], Awaitable[R]]) -> Callable[[P], Awaitable[R | None]]:
        @wraps(handler)
        async def guarded(params: P) -> R | None:
            try:
                return await handler(params)
            except JsonRpcException:
                raise
            except Exception:
                server.log(f"{method}: {traceback.format_exc()}")
                return None

        server.feature(method, options)(guarded)
        return guarded

    return decorate


# ---------------------------------------------------------------- names


def _names(server: Server, asked: Asked) -> None:
    @answers(server, lsp.TEXT_DOCUMENT_HOVER)
    async def _hover(params: lsp.HoverParams) -> lsp.Hover | None:
        place = await asked.place(params.text_document, params.position)
        found = hover.hover(*place[1:]) if place else None
        if found is None:
            return None
        text = lsp.MarkupContent(lsp.MarkupKind.Markdown, found.markdown)
        return lsp.Hover(text, server.range(found.span))

    @answers(server, lsp.TEXT_DOCUMENT_DEFINITION)
    async def _definition(params: lsp.DefinitionParams) -> lsp.Location | None:
        place = await asked.place(params.text_document, params.position)
        span = features.definition(*place[1:]) if place else None
        return asked.location(place[1], span) if place and span else None

    @answers(server, lsp.TEXT_DOCUMENT_REFERENCES)
    async def _references(params: lsp.ReferenceParams) -> list[lsp.Location]:
        place = await asked.place(params.text_document, params.position)
        found = at(*place[1:]) if place else None
        if place is None or found is None:
            return []
        all_paths = {s: p for unit in place[0].units for s, p in unit.paths.items()}
        return [
            lsp.Location(server.uri(all_paths[o.span.source]), server.range(o.span))
            for o in features.references(place[0], found.key)
            if params.context.include_declaration or not o.declares
        ]

    @answers(server, lsp.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT)
    async def _highlight(params: lsp.DocumentHighlightParams) -> list[lsp.DocumentHighlight]:
        place = await asked.place(params.text_document, params.position)
        kinds = (lsp.DocumentHighlightKind.Read, lsp.DocumentHighlightKind.Write)
        return [
            lsp.DocumentHighlight(server.range(span), kinds[written])
            for span, written in (features.highlights(*place[1:]) if place else ())
        ]

    @answers(server, lsp.TEXT_DOCUMENT_PREPARE_RENAME)
    async def _prepare(params: lsp.PrepareRenameParams) -> lsp.PrepareRenamePlaceholder | None:
        place = await asked.place(params.text_document, params.position)
        if place is None:
            return None
        try:
            found = renaming.prepare(*place[1:])
        except renaming.Refused as e:
            raise JsonRpcInvalidParams(str(e)) from None
        return lsp.PrepareRenamePlaceholder(server.range(found.span), found.span.text)

    @answers(server, lsp.TEXT_DOCUMENT_RENAME, lsp.RenameOptions(prepare_provider=True))
    async def _rename(params: lsp.RenameParams) -> lsp.WorkspaceEdit | None:
        place = await asked.place(params.text_document, params.position)
        if place is None:
            return None
        state, unit, module, offset = place

        def read(path: Path) -> Document:
            return Document(
                next(s.text for u in state.units for s, p in u.paths.items() if p == path)
            )

        def work() -> list[renaming.Place]:
            return renaming.rename(state, read, unit, module, offset, params.new_name)

        try:
            places = await server.checker.aside(work)
        except renaming.Refused as e:
            raise JsonRpcInvalidParams(str(e)) from None
        return asked.edits((p.path, p.span, params.new_name) for p in places)


# ---------------------------------------------------------------- while writing


def _writing(server: Server, asked: Asked) -> None:
    triggers = lsp.CompletionOptions(trigger_characters=[".", ":", "{"])

    @answers(server, lsp.TEXT_DOCUMENT_COMPLETION, triggers)
    async def _complete(params: lsp.CompletionParams) -> lsp.CompletionList:
        place = await asked.place(params.text_document, params.position)
        if place is None:
            return lsp.CompletionList(False, [])
        state, _, module, offset = place
        project, path = server.checker.project, module.file.path
        found = await server.checker.aside(lambda: complete.complete(project, state, path, offset))
        order = sorted(found, key=lambda p: (p.rank, p.label))
        return lsp.CompletionList(False, [_item(p, i) for i, p in enumerate(order)])

    options = lsp.SignatureHelpOptions(trigger_characters=["(", ","])

    @answers(server, lsp.TEXT_DOCUMENT_SIGNATURE_HELP, options)
    async def _signature(params: lsp.SignatureHelpParams) -> lsp.SignatureHelp | None:
        place = await asked.place(params.text_document, params.position)
        if place is None:
            return None
        state, _, module, offset = place
        project, path = server.checker.project, module.file.path
        found = await server.checker.aside(
            lambda: complete.signature_at(project, state, path, offset)
        )
        return _signature_help(found, server.encoding) if found else None


def _signature_help(found: hover.Signature, encoding: str) -> lsp.SignatureHelp:
    lines = Lines(found.label.replace("\n", " "), encoding)
    parameters = [
        lsp.ParameterInformation((lines.position(start)[1], lines.position(end)[1]))
        for start, end in found.parameters
    ]
    docs = lsp.MarkupContent(lsp.MarkupKind.Markdown, found.docs) if found.docs else None
    active = found.active if found.active is not None else len(parameters)
    label = lsp.SignatureInformation(found.label, docs, parameters, active)
    return lsp.SignatureHelp([label], 0, active)


def _item(p: complete.Proposal, order: int) -> lsp.CompletionItem:
    docs = lsp.MarkupContent(lsp.MarkupKind.Markdown, p.docs) if p.docs else None
    return lsp.CompletionItem(
        p.label,
        kind=ITEMS[p.kind],
        detail=p.detail or None,
        documentation=docs,
        sort_text=f"{order:05}",
        insert_text=p.insert or p.label,
    )


# ---------------------------------------------------------------- whole files


def _files(server: Server, asked: Asked) -> None:
    @answers(server, lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    async def _symbols(params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
        place = await asked.place(params.text_document)
        return [_symbol(server, o) for o in features.outline(place[2].tree)] if place else []

    @answers(server, lsp.WORKSPACE_SYMBOL)
    async def _search(params: lsp.WorkspaceSymbolParams) -> list[lsp.WorkspaceSymbol]:
        state = await server.checker.current()
        files = await server.checker.aside(lambda: dict(_all_files(state, server.folders)))
        found = features.search(params.query, (file for _, file in files.values()))
        paths = {file.source: path for path, file in files.values()}
        return [
            lsp.WorkspaceSymbol(
                lsp.Location(server.uri(paths[o.span.source]), server.range(o.name.span)),
                o.name.text,
                SYMBOLS[o.kind],
                container_name=holder or None,
            )
            for o, holder in found[:MOST]
        ]

    @answers(server, lsp.TEXT_DOCUMENT_FOLDING_RANGE)
    async def _folds(params: lsp.FoldingRangeParams) -> list[lsp.FoldingRange]:
        place = await asked.place(params.text_document)
        kinds: dict[Literal["code", "comment", "imports"], lsp.FoldingRangeKind | None] = {
            "code": None,
            "comment": lsp.FoldingRangeKind.Comment,
            "imports": lsp.FoldingRangeKind.Imports,
        }
        return [
            lsp.FoldingRange(first, last, kind=kinds[kind])
            for first, last, kind in (features.folds(place[2].tree) if place else ())
        ]

    legend = lsp.SemanticTokensLegend(list(features.TOKEN_TYPES), list(features.TOKEN_MODIFIERS))
    whole = lsp.SemanticTokensRegistrationOptions(legend, full=True)

    @answers(server, lsp.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, whole)
    async def _tokens(params: lsp.SemanticTokensParams) -> lsp.SemanticTokens:
        place = await asked.place(params.text_document)
        found = features.colours(*place[1:3]) if place else []
        return lsp.SemanticTokens(list(_encoded(server, found)))

    @answers(server, lsp.TEXT_DOCUMENT_INLAY_HINT)
    async def _hints(params: lsp.InlayHintParams) -> list[lsp.InlayHint]:
        place = await asked.place(params.text_document)
        if place is None:
            return []
        lines = server.lines(place[2].file.source)
        start = lines.offset(params.range.start.line, params.range.start.character)
        end = lines.offset(params.range.end.line, params.range.end.character)
        return [
            lsp.InlayHint(lsp.Position(*lines.position(at)), text, lsp.InlayHintKind.Type)
            for at, text in features.hints(place[1], place[2], start, end)
        ]


def _symbol(server: Server, o: features.Outline) -> lsp.DocumentSymbol:
    return lsp.DocumentSymbol(
        o.name.text,
        SYMBOLS[o.kind],
        server.range(o.span),
        server.range(o.name.span),
        o.detail or None,
        children=[_symbol(server, inner) for inner in o.inside],
    )


def _all_files(state: State, folders: list[Path]) -> Iterator[tuple[Path, tuple[Path, tree.File]]]:
    """The trees of the packages that are open or in the folders of the editor, std apart."""
    for unit in state.units:
        for module in unit.analysis.modules.values():
            if module.file.package is not state.workspace.std:
                yield module.file.path, (module.file.path, module.tree)
    workspace = state.workspace.renewed(state.workspace.overlays)
    for folder in packages_below(folders):
        with suppress(LinnetError):  # a file that cannot be read
            for file in workspace.files_of(workspace.open(folder)):
                yield file.path, (file.path, parse(file.source, Findings()))


def _encoded(server: Server, colours: list[features.Colour]) -> Iterator[int]:
    """The protocol's numbers: each token relative to the one before."""
    types = {name: i for i, name in enumerate(features.TOKEN_TYPES)}
    bits = {name: 1 << i for i, name in enumerate(features.TOKEN_MODIFIERS)}
    last_line = last_start = 0
    for span, kind, modifiers in colours:
        lines = server.lines(span.source)
        line, start = lines.position(span.start)
        _, end = lines.position(span.end)
        yield from (
            line - last_line,
            start - last_start if line == last_line else start,
            end - start,
            types[kind],
            sum(bits[m] for m in modifiers),
        )
        last_line, last_start = line, start


# ---------------------------------------------------------------- changes


def _editing(server: Server, asked: Asked) -> None:
    @answers(server, lsp.TEXT_DOCUMENT_FORMATTING)
    async def _format(params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit] | None:
        path = path_of(params.text_document.uri)
        document = server.documents.get(path)
        if document is None or path.suffix != SUFFIX:
            return None
        parts = features.formatted(document.text)
        return None if parts is None else asked.rewrites(Source(str(path), document.text), parts)

    kinds = [lsp.CodeActionKind.QuickFix, lsp.CodeActionKind.SourceFixAll]
    options = lsp.CodeActionOptions(kinds, resolve_provider=True)

    @answers(server, lsp.TEXT_DOCUMENT_CODE_ACTION, options)
    async def _actions(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        place = await asked.place(params.text_document)
        if place is None:
            return []
        _, unit, module, _ = place
        only = [str(getattr(kind, "value", kind)) for kind in params.context.only or ()]
        found: list[lsp.CodeAction] = []
        if not only or any(lsp.CodeActionKind.QuickFix.value.startswith(k) for k in only):
            source = module.file.source
            lines = server.lines(source)
            ends = [
                lines.offset(p.line, p.character) for p in (params.range.start, params.range.end)
            ]
            found += [
                _quick_fix(server, asked, unit, f) for f in features.fixes(unit, source, *ends)
            ]
        asked_for = any(FIX_ALL.startswith(kind) for kind in only)
        if asked_for or (not only and _has_safe_fixes(unit, module)):
            action = lsp.CodeAction(
                "Apply every safe fix in this file",
                lsp.CodeActionKind.SourceFixAll,
                data={"uri": params.text_document.uri},
            )
            if asked_for:
                action = await _fix_all(server, asked, action)
            if not asked_for or action.edit is not None:
                found.append(action)
        return found

    @answers(server, lsp.CODE_ACTION_RESOLVE)
    async def _resolve(action: lsp.CodeAction) -> lsp.CodeAction:
        return await _fix_all(server, asked, action) if action.edit is None else action


def _quick_fix(server: Server, asked: Asked, unit: Unit, f: features.Fix) -> lsp.CodeAction:
    return lsp.CodeAction(
        f.title,
        lsp.CodeActionKind.QuickFix,
        [server.diagnostic(f.finding, dict(unit.paths))],
        is_preferred=f.safe,
        edit=asked.edits(
            (unit.paths[e.span.source], e.span, e.text)
            for e in f.edits
            if e.span.source in unit.paths
        ),
    )


def _has_safe_fixes(unit: Unit, module: Module) -> bool:
    def safe(edits: Iterable[Edit]) -> bool:
        return all(edit.span.source is module.file.source for edit in edits)

    return any(
        d.help is not None and d.help.safe and d.help.edits and safe(d.help.edits)
        for d in unit.findings
    )


async def _fix_all(server: Server, asked: Asked, action: lsp.CodeAction) -> lsp.CodeAction:
    """The action with what `linnet check --fix` would do to the file."""
    document = lsp.TextDocumentIdentifier(str((action.data or {}).get("uri")))
    place = await asked.place(document)
    if place is None:
        return action
    state, _, module, _ = place
    path = module.file.path

    def work() -> str | None:
        return fixed(state, path)

    text = await server.checker.aside(work)
    if text is not None:
        old = module.file.source
        action.edit = lsp.WorkspaceEdit(
            {document.uri: asked.rewrites(old, features.changes(old.text, text))}
        )
    return action


def fixed(state: State, path: Path) -> str | None:
    """The text of an open file after every safe fix in it; None if there is none."""
    project = Project(state.workspace.std.root)
    paths: dict[Source, Path] = {}

    def check(texts: Any) -> list[Diagnostic]:
        documents = {p: Document(texts.get(p, d.text)) for p, d in state.documents.items()}
        checked = project.check(documents, path)
        home = checked.homes.get(path)
        if home is None:
            return []
        paths.update(home.paths)
        return list(home.findings)

    return fix(check, lambda source: path if paths.get(source) == path else None).texts.get(path)
