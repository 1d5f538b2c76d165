"""Every request of the protocol in one session with a real client."""

from __future__ import annotations

from pathlib import Path

import pytest
from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException

from linnet.lsp.features import TOKEN_TYPES

from .client import editor
from .test_features import MODEL, SHAPES, package
from .test_session import session


@pytest.mark.slow
@session
async def test_every_request(tmp_path: Path) -> None:
    root = package(tmp_path / "p", lib=MODEL, shapes=SHAPES)
    async with editor(root) as here:
        uri = here.open(root / "src/lib.linnet")
        document, client = lsp.TextDocumentIdentifier(uri), here.client
        shapes = (root / "src/shapes.linnet").as_uri()

        def at(before: str) -> lsp.Position:
            offset = MODEL.index(before) + len(before)
            line = MODEL.count("\n", 0, offset)
            return lsp.Position(line, offset - MODEL.rfind("\n", 0, offset) - 1)

        assert await here.codes(uri) == ["W1001"]
        shown = await client.text_document_hover_async(lsp.HoverParams(document, at("let y")))
        assert shown is not None and "Tensor[B, H; f32]" in shown.contents.value  # type: ignore[union-attr]
        place = await client.text_document_definition_async(
            lsp.DefinitionParams(document, at("(WIDTH"))
        )
        assert isinstance(place, lsp.Location)
        assert (place.uri, place.range.start.line) == (shapes, 3)
        found = await client.text_document_references_async(
            lsp.ReferenceParams(lsp.ReferenceContext(False), document, at("(WIDTH"))
        )
        assert found is not None and {f.uri for f in found} == {uri}
        marks = await client.text_document_document_highlight_async(
            lsp.DocumentHighlightParams(document, at("total"))
        )
        assert marks is not None and len(marks) == 3
        ready = await client.text_document_prepare_rename_async(
            lsp.PrepareRenameParams(document, at("(WIDTH"))
        )
        assert isinstance(ready, lsp.PrepareRenamePlaceholder) and ready.placeholder == "WIDTH"
        with pytest.raises(JsonRpcException, match="prelude"):
            await client.text_document_prepare_rename_async(
                lsp.PrepareRenameParams(document, at("+ reshape"))
            )
        edit = await client.text_document_rename_async(
            lsp.RenameParams(document, at("(WIDTH"), "BREADTH")
        )
        assert edit is not None and edit.changes is not None
        assert {uri, shapes} == edit.changes.keys()
        with pytest.raises(JsonRpcException, match="a word of the language"):
            await client.text_document_rename_async(
                lsp.RenameParams(document, at("(WIDTH"), "while")
            )
        signature = await client.text_document_signature_help_async(
            lsp.SignatureHelpParams(document, at("twice(linear(x, "))
        )
        assert signature is not None and signature.active_parameter == 1
        outline = await client.text_document_document_symbol_async(
            lsp.DocumentSymbolParams(document)
        )
        assert outline is not None and [s.name for s in outline] == ["twice", "Net"]
        everywhere = await client.workspace_symbol_async(lsp.WorkspaceSymbolParams("wid"))
        assert everywhere is not None and [s.name for s in everywhere] == ["WIDTH"]
        assert await client.text_document_folding_range_async(lsp.FoldingRangeParams(document))
        tokens = await client.text_document_semantic_tokens_full_async(
            lsp.SemanticTokensParams(document)
        )
        assert tokens is not None and len(tokens.data) % 5 == 0
        assert TOKEN_TYPES[tokens.data[3]] == "keyword" and list(tokens.data[:3]) == [0, 0, 6]
        whole = lsp.Range(lsp.Position(0, 0), lsp.Position(99, 0))
        hints = await client.text_document_inlay_hint_async(lsp.InlayHintParams(document, whole))
        assert hints is not None and ": Pair" in [h.label for h in hints]

        # a text that does not parse
        here.type(uri, "        let z = dense.\n", (20, 0))
        listed = await client.text_document_completion_async(
            lsp.CompletionParams(document, lsp.Position(20, 22))
        )
        assert isinstance(listed, lsp.CompletionList)
        assert {"forward", "weight"} <= {item.label for item in listed.items}
        options = lsp.FormattingOptions(4, True)
        assert not await client.text_document_formatting_async(
            lsp.DocumentFormattingParams(document, options)
        )
        here.type(uri, "        let   z = x\n", (20, 0), (21, 0))
        edits = await client.text_document_formatting_async(
            lsp.DocumentFormattingParams(document, options)
        )
        assert edits is not None
        assert "        let z = x\n" in [e.new_text for e in edits]

        # fixes
        here.type(uri, "        let z = mod\n", (20, 0), (21, 0))
        [wrong] = await here.checked(uri)
        actions = await client.text_document_code_action_async(
            lsp.CodeActionParams(document, wrong.range, lsp.CodeActionContext([wrong]))
        )
        assert actions is not None
        [fix] = [a for a in actions if a.kind == lsp.CodeActionKind.QuickFix]
        assert isinstance(fix, lsp.CodeAction) and fix.edit is not None and fix.edit.changes
        assert fix.edit.changes[uri][0].new_text == "mode"
        here.type(uri, "use std.nn.norm::{rms_norm}\n", (2, 0))
        here.type(uri, "        let _z = x\n", (21, 0), (22, 0))
        assert await here.codes(uri) == ["W1001", "W1001"]
        context = lsp.CodeActionContext([], only=[lsp.CodeActionKind.SourceFixAll])
        actions = await client.text_document_code_action_async(
            lsp.CodeActionParams(document, whole, context)
        )
        assert actions is not None and len(actions) == 1
        [everything] = actions
        assert isinstance(everything, lsp.CodeAction)
        assert everything.edit is not None and everything.edit.changes is not None
        removed = everything.edit.changes[uri]
        assert [(e.range.start.line, e.range.end.line, e.new_text) for e in removed] == [
            (2, 3, ""),
            (4, 5, ""),
        ]
        offered = await client.text_document_code_action_async(
            lsp.CodeActionParams(document, whole, lsp.CodeActionContext([]))
        )
        assert offered is not None
        [lazy] = [a for a in offered if a.kind == lsp.CodeActionKind.SourceFixAll]
        assert isinstance(lazy, lsp.CodeAction) and lazy.edit is None
        full = await client.code_action_resolve_async(lazy)
        assert full.edit is not None


@pytest.mark.slow
@session
async def test_a_file_typed_letter_by_letter(tmp_path: Path) -> None:
    """As fast as it goes; completion is asked for now and then; the end is what a check says."""
    root = package(tmp_path / "p", lib="", shapes=SHAPES)
    text = MODEL[: MODEL.index("/// A network")]
    async with editor(root) as here:
        uri = here.open(root / "src/lib.linnet", "")
        document = lsp.TextDocumentIdentifier(uri)
        line = column = 0
        for i, char in enumerate(text):
            here.type(uri, char, (line, column))
            line, column = (line + 1, 0) if char == "\n" else (line, column + 1)
            if i % 60 == 59:
                place = lsp.Position(line, column)
                await here.client.text_document_completion_async(
                    lsp.CompletionParams(document, place)
                )
        assert sorted(await here.codes(uri)) == ["W1001"] * 6
