"""The server: what an editor asks, answered from the newest state; a handler is a few lines."""

from __future__ import annotations

import gc

from lsprotocol import types as lsp

from linnet.lsp import answers
from linnet.lsp.positions import UTF8, UTF16, UTF32
from linnet.lsp.session import Server, path_of
from linnet.workspace import MANIFEST, SUFFIX


def make(std_root: str | None = None) -> Server:
    """A server with all its handlers."""
    server = Server(std_root)
    _documents(server)
    answers.register(server)
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

    ours = lsp.FileOperationRegistrationOptions(
        [
            lsp.FileOperationFilter(lsp.FileOperationPattern(pattern))
            for pattern in (f"**/*{SUFFIX}", f"**/{MANIFEST}")
        ]
    )

    @server.feature(lsp.WORKSPACE_DID_RENAME_FILES, ours)
    def did_rename_files(params: lsp.RenameFilesParams) -> None:
        server.checker.changed(None)

    @server.feature(lsp.WORKSPACE_DID_DELETE_FILES, ours)
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
