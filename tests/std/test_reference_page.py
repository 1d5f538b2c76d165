"""docs/std.md says what the sources of `std` say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from std.running import module_name, modules, parsed

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("std_reference", ROOT / "tools/std_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_tool_writes(tool: ModuleType) -> None:
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), "run tools/std_reference.py"


def test_every_public_item_stands_in_its_module_with_its_signature(tool: ModuleType) -> None:
    page = tool.PAGE.read_text(encoding="utf-8")
    for path in modules():
        name = module_name(path)
        part = page.split(f"## `{name}`\n")[1].split("\n## ")[0]
        rows = [line for line in part.splitlines() if line.startswith("| ")][2:]
        public = [item for item in parsed(name).items if item.public]
        assert len(rows) == len(public)
        for row, item in zip(rows, public, strict=True):
            shown, signature, meaning = row.removeprefix("| ").removesuffix(" |").split(" | ")
            assert shown == item.name.text and meaning.endswith(".")
            # The declaration up to its body, without white space and commas at line ends.
            own = "".join(item.span.text.split()).removeprefix("pub")
            own = own.replace(",)", ")").replace(",>", ">").replace(",]", "]")
            first = signature.split("<br>")[0].strip("`")
            assert own.startswith("".join(first.split())), (own, first)
