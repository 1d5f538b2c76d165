"""The layer table of docs/architecture.md holds for every import, and checking needs no arrays."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
ALONE = {"serve.scheduler", "serve.pages"}  # import each other and serve.request only
FILES = sorted((SRC / "linnet").rglob("*.py"))


def rows() -> dict[str, tuple[int, int]]:
    """Module or package name -> (layer, row), from the table in docs/architecture.md."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = text.split("## Layers")[1].split("\n## ")[0]
    found: dict[str, tuple[int, int]] = {}
    for number, row in enumerate(re.findall(r"^\| *(\d+) *\| *(.+?) *\|$", table, re.MULTILINE)):
        for name in re.findall(r"`([\w.]+)`", row[1]):
            assert name not in found, f"{name} stands in two rows"
            found[name] = (int(row[0]), number)
    return found


ROWS = rows()


def module_name(file: Path) -> str:
    """`check.scope` for src/linnet/check/scope.py; `__init__` for the top package itself."""
    parts = file.relative_to(SRC / "linnet").with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


NAMES = {module_name(file) for file in FILES}


def row_of(name: str) -> tuple[int, int] | None:
    while name and name not in ROWS:
        name = name.rpartition(".")[0]
    return ROWS.get(name)


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """(line, module of Linnet) for each import in a file, wherever it stands.

    The public names of `linnet` itself are a table; what type checkers read instead is left out.
    """
    package = ["linnet", *file.relative_to(SRC / "linnet").parts[:-1]]
    tree = ast.parse(file.read_text(encoding="utf-8"))
    if file == SRC / "linnet/__init__.py":
        tree.body = [node for node in tree.body if not is_type_checking(node)]
    for node in statements(tree):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            # `from linnet.core import ir` imports the module core.ir, not a name of core
            targets = [f"{source}.{alias.name}" for alias in node.names]
            targets = sorted({t if is_module(t) else source for t in targets})
        for target in targets:
            if target.split(".")[0] == "linnet":
                yield node.lineno, target.partition(".")[2] or "__init__"


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Everything in which a statement can stand: all that is no expression."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from statements(child)


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def is_module(dotted: str) -> bool:
    return dotted.startswith("linnet.") and dotted.partition(".")[2] in NAMES


def problems(file: Path) -> Iterator[str]:
    name = module_name(file)
    mine = row_of(name)
    if mine is None:
        yield f"{name} stands in no row of the layer table"
        return
    for line, target in imports(file):
        other = row_of(target)
        where = f"{file.relative_to(ROOT)}:{line}: {name} imports {target}"
        if name in ALONE and target not in {*ALONE, "serve.request"}:
            yield f"{where}: it may import only serve.request and pages"
        elif other is None:
            yield f"{where}, which stands in no row of the layer table"
        elif other[0] > mine[0]:
            yield f"{where}: layer {mine[0]} from layer {other[0]}"
        elif other[0] == mine[0] and other[1] != mine[1]:
            yield f"{where}: both on layer {mine[0]}, in different rows"


def test_every_import_goes_down() -> None:
    assert not (found := [problem for file in FILES for problem in problems(file)]), found


def test_every_name_of_the_table_exists() -> None:
    missing = [name for name in ROWS if name not in NAMES]
    assert not missing, f"in the layer table, but not in src/linnet: {missing}"


@pytest.mark.parametrize(
    ("name", "code", "problem"),
    [
        ("check/x.py", "from linnet.syntax.tree import File", None),
        ("check/x.py", "def f():\n    import linnet.cli", "layer 3 from layer 9"),
        ("check/x.py", "from linnet import nest", "layer 3 from layer 7"),
        ("check/x.py", "from linnet.core.print import text", "different rows"),
        ("check/x.py", "from linnet.core import rules", None),
        ("check/x.py", "from ..core import print", "different rows"),
        ("check/x.py", "from . import scope", None),
        ("serve/pages.py", "from linnet.source import Span", "only serve.request"),
        ("novel.py", "", "in no row"),
    ],
)
def test_the_test_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, problem: str | None
) -> None:
    here = sys.modules[__name__]
    for key, value in (("ROOT", tmp_path), ("SRC", tmp_path / "src")):
        monkeypatch.setitem(here.__dict__, key, value)
    monkeypatch.setitem(here.__dict__, "NAMES", {*ROWS, "check.scope"})
    file = tmp_path / "src/linnet" / name
    file.parent.mkdir(parents=True)
    file.write_text(code)
    found = list(problems(file))
    assert len(found) == (0 if problem is None else 1)
    assert all(problem is not None and problem in line for line in found)


def test_checking_imports_no_array_library(tmp_path: Path) -> None:
    (tmp_path / "x.linnet").write_text(
        "module x\n\npub fn twice<*S: Shape>(x: Tensor[*S; f32]) -> Tensor[*S; f32] "
        "{\n    return x + x\n}\n"
    )
    script = (
        "import sys\nfrom linnet.cli import main\nstatus = main(['check', 'x.linnet'])\n"
        "print(status, *sorted({'numpy', 'torch', 'jax', 'onnx', 'ml_dtypes'} & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "no findings in 1 file\n0\n", done.stdout + done.stderr
