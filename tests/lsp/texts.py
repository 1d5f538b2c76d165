"""Files with marks in them, checked in process: `‹x›` marks a place by the name inside."""

from __future__ import annotations

from pathlib import Path

from linnet.check.analysis import Module
from linnet.lsp.project import Document, Project, State, Unit

MANIFEST = '[package]\nname = "{name}"\nversion = "1"\nlanguage = "0.1"\n{rest}'
SHARED = Path(__file__).parents[2].parent / "shared"
SEED = SHARED / "seed/mistral-7b-instruct-v0.3/src"
SRC = Path(__file__).parents[2] / "src/linnet"
LLAMA = SRC / "zoo/families/llama/src"


def package(root: Path, rest: str = "", **texts: str) -> Path:
    """A package with these modules on disk."""
    (root / "src").mkdir(parents=True)
    (root / "linnet.toml").write_text(MANIFEST.format(name=root.name, rest=rest))
    for name, text in texts.items():
        (root / "src" / f"{name}.linnet").write_text(text)
    return root


class Opened:
    """One file open in an editor; `|` in its text is where the cursor is."""

    def __init__(self, path: Path, text: str | None = None) -> None:
        marked = path.read_text() if text is None else text
        self.path = path.resolve()
        self.offset = max(marked.find("|"), 0) if text is not None else 0
        self.text = marked.replace("|", "", 1) if text is not None else marked
        self.project = Project()
        self.state: State = self.project.check({self.path: Document(self.text)}, self.path)

    @property
    def home(self) -> tuple[Unit, Module]:
        found = self.state.place(self.path)
        assert found is not None
        return found

    def here(self) -> tuple[Unit, Module, int]:
        return (*self.home, self.offset)

    def at(self, before: str, nth: int = 0) -> tuple[Unit, Module, int]:
        """The place just after the nth occurrence of some text."""
        at = -1
        for _ in range(nth + 1):
            at = self.text.index(before, at + 1)
        return (*self.home, at + len(before))
