"""All Linnet there is (std, the zoo, the seed, the documents) is clean and in its one style."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import linnet
from linnet.check import check
from linnet.render import render_text
from linnet.syntax.format import format_text
from linnet.workspace import Workspace
from shown import MODULE, programs

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(linnet.__file__).parent
ZOO = sorted(manifest.parent for manifest in (HOME / "zoo").rglob("linnet.toml"))
FILES = sorted([*(HOME / "std").rglob("*.linnet"), *(HOME / "zoo").rglob("*.linnet")])
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def assert_clean(workspace: Workspace, folder: Path) -> None:
    found = check(workspace, workspace.std if folder == workspace.std.root else folder)
    assert not found.findings.items, render_text(found.findings.sorted())


def formatted(text: str) -> str:
    out, findings = format_text(text)
    assert out is not None, render_text(findings.sorted())
    return out


def test_the_standard_library_has_no_findings() -> None:
    workspace = Workspace()
    assert_clean(workspace, workspace.std.root)


@pytest.mark.parametrize("package", ZOO, ids=[p.name for p in ZOO])
@pytest.mark.slow
def test_a_package_of_the_zoo_has_no_findings(package: Path) -> None:
    assert_clean(Workspace(), package)


@pytest.mark.parametrize("file", FILES, ids=[str(f.relative_to(HOME)) for f in FILES])
def test_a_file_of_ours_is_in_the_one_style(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert formatted(text) == text


def test_the_seed_has_no_findings(seed: Path) -> None:
    assert_clean(Workspace(), seed)


@pytest.mark.slow
def test_the_formatted_seed_is_stable_and_has_no_findings(seed: Path, tmp_path: Path) -> None:
    shutil.copytree(seed / "src", tmp_path / "src")
    shutil.copy(seed / "linnet.toml", tmp_path)
    files = sorted((tmp_path / "src").rglob("*.linnet"))
    assert files
    for file in files:
        text = formatted(file.read_text(encoding="utf-8"))
        assert formatted(text) == text
        file.write_text(text, encoding="utf-8")
    assert_clean(Workspace(), tmp_path)


@pytest.mark.parametrize("document", DOCUMENTS, ids=[d.name for d in DOCUMENTS])
def test_programs_of_a_document_are_in_the_one_style(document: Path) -> None:
    for program in programs(document.read_text(encoding="utf-8")):
        for name, text in program.files.items():
            if name.endswith(".linnet") and "// error: E1" not in text:
                whole = text if MODULE.search(text) else f"module example\n\n{text}"
                assert formatted(whole) == whole, f"{document.name}:{program.line}"
