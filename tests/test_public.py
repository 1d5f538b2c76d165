"""The names that users import from `linnet`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import linnet
from linnet.workspace import Workspace

BAD = "module x\n\npub fn f(x: f32) -> f32 {\n    return x + absent\n}\n"


def test_check_takes_a_path_or_a_workspace(tmp_path: Path) -> None:
    file = tmp_path / "x.linnet"
    file.write_text(BAD)
    assert [d.code for d in linnet.check(file).findings.sorted()] == ["E1201"]
    unsaved = Workspace({file: BAD.replace("absent", "x")})
    assert linnet.check(unsaved, str(file)).ok
    with pytest.raises(linnet.LinnetError, match="no such file"):
        linnet.check(tmp_path / "gone.linnet")


@pytest.mark.slow
def test_check_is_one_thing_however_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "x.linnet").write_text("module x\n")
    for first in ("import linnet", "import linnet.check", "from linnet import check"):
        script = (
            f"{first}\nfrom linnet.check import check_text\nimport linnet\n"
            "from linnet import check\nassert check('x.linnet').ok and linnet.check is check"
        )
        subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)


def test_a_bad_manifest_is_a_finding_of_its_package_alone(tmp_path: Path) -> None:
    package = '[package]\nname = "p"\nversion = "1"\nlanguage = "0.1"\n'
    for name, text in (("good", package), ("bad", package + "script = 1\n")):
        (tmp_path / name / "src").mkdir(parents=True)
        (tmp_path / name / "linnet.toml").write_text(text)
        (tmp_path / name / "src/lib.linnet").write_text("module p\n")
    workspace = Workspace()
    assert [d.code for d in linnet.check(workspace, tmp_path / "bad").findings.items] == ["E5001"]
    assert linnet.check(workspace, tmp_path / "good").ok


@pytest.mark.slow
def test_every_public_name_is_there_and_nothing_heavy_comes_with_linnet() -> None:
    script = (
        "import sys\nimport linnet\nassert len(sys.modules) < 100, len(sys.modules)\n"
        "assert not {'numpy', 'torch', 'argparse', 'linnet.check'} & {*sys.modules}\n"
        "print(*(name for name in dir(linnet) if not hasattr(linnet, name)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = linnet.nothing
