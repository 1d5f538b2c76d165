"""The size report counts code only, and every room keeps within the ceilings."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def size() -> ModuleType:
    spec = importlib.util.spec_from_file_location("size_report", ROOT / "tools/size.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_python_lines(size: ModuleType) -> None:
    text = '''"""A module
of two lines."""

import os  # counted

# not counted
def f(
    a,
):
    """Doc."""
    text = """counted

    twice and the empty line within"""
    return text


class C:
    """Doc."""
'''
    assert size.python_lines(text) == 1 + 3 + 3 + 1 + 1


def test_linnet_lines(size: ModuleType) -> None:
    text = """// no
module a /* no /* nested */
still no */ use b
/// doc

const s = "// counted /*"
/* no */ // no
const t = 1 // yes
"""
    assert size.linnet_lines(text) == 4


@pytest.mark.slow
def test_every_room_is_in_the_table_and_within_the_ceilings(size: ModuleType) -> None:
    text, wrong = size.report()
    assert not wrong, f"{text}\n{wrong}"


def test_ceilings_and_unknown_rooms_fail(size: ModuleType, tmp_path: Path) -> None:
    package = tmp_path / "src/linnet"
    (package / "std").mkdir(parents=True)
    (package / "std/a.linnet").write_text("module a\n" * 4)
    (package / "dims.py").write_text("x = 1\n" * 10)
    (package / "attic.py").write_text("x = 1\n")
    (tmp_path / "docs").mkdir()
    rows = "| `dims` | 10 | |\n| `std` | 3 | |\n| all Python | 10 | |\n| all std | 3 | |\n"
    (tmp_path / "docs/architecture.md").write_text(f"## Rooms\n\n{rows}")
    size.ROOT, size.PACKAGE = tmp_path, package
    text, wrong = size.report()
    assert wrong == [
        "attic stands in no room of docs/architecture.md",
        "all Python: 11 lines, above the ceiling of 10",
        "all std: 4 lines, above the ceiling of 3",
    ]
    assert "1 over" in text
