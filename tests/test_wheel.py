"""A wheel built here works in a clean environment: no dependency, std and zoo inside."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = """module x

use std.nn.activations::{relu}

pub fn twice<*S: Shape>(x: Tensor[*S; f32]) -> Tensor[*S; f32] {
    return relu(x) + relu(x)
}
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [file] = folder.glob("linnet-*-py3-none-any.whl")
    return file


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("linnet/")}
    files = (path for path in (ROOT / "src/linnet").rglob("*") if path.is_file())
    wanted = {str(f.relative_to(ROOT / "src")) for f in files if "__pycache__" not in f.parts}
    assert held == wanted
    assert "linnet/py.typed" in held


@pytest.mark.slow
def test_a_clean_environment_checks_a_file(wheel: Path, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LINNET_STD")}

    def run(*words: str | Path) -> str:
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", "clean")
    run("clean/bin/python", "-m", "pip", "install", "--no-index", "--quiet", wheel)
    (tmp_path / "x.linnet").write_text(SOURCE)
    assert run("clean/bin/linnet", "check", "--strict", "x.linnet") == "no findings in 1 file\n"
    place = run("clean/bin/python", "-c", "import linnet; print(*linnet.__path__)").strip()
    assert Path(place).is_relative_to(tmp_path / "clean")
    assert run("clean/bin/linnet", "check", "--strict", Path(place) / "std").startswith(
        "no findings"
    )
