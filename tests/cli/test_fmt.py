"""Transcripts of `linnet fmt`, and what becomes of the files."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from linnet.cli import main

Terminal = Callable[..., str]
Golden = Callable[..., None]

UGLY = "module ugly\npub fn f( x:f32 )->f32 {return x}   // same\n"
PRETTY = "module ugly\n\npub fn f(x: f32) -> f32 {\n    return x\n} // same\n"
BROKEN = "module broken\nfn f( x: f32 {\n}\nconst = 1\n"
FILES = {"a.linnet": UGLY, "more/b.linnet": PRETTY, "more/c.linnet": UGLY, "more/.d/e.linnet": "?"}


def test_files_and_folders(terminal: Terminal, golden: Golden, tmp_path: Path) -> None:
    lines = ["--check .", "--check more/b.linnet", "a.linnet", ". more a.linnet", ".", "--check ."]
    golden(terminal(FILES, *(f"linnet fmt {line}" for line in lines)))
    for name in ("a.linnet", "more/b.linnet", "more/c.linnet"):
        assert (tmp_path / name).read_text() == PRETTY
    assert (tmp_path / "more/.d/e.linnet").read_text() == "?"


def test_a_check_changes_nothing(terminal: Terminal, tmp_path: Path) -> None:
    terminal(FILES, "linnet fmt --check .")
    assert {name: (tmp_path / name).read_text() for name in FILES} == FILES


def test_files_that_cannot_be_formatted(terminal: Terminal, golden: Golden, tmp_path: Path) -> None:
    """They are reported and left as they are; the others are formatted."""
    (tmp_path / "b.linnet").write_bytes(b"module b\n// caf\xe9\nconst  A = 1\n")
    files = {"a.linnet": BROKEN, "c.linnet": UGLY}
    golden(terminal(files, "linnet fmt --check .", "linnet fmt ."))
    assert (tmp_path / "a.linnet").read_text() == BROKEN
    assert (tmp_path / "b.linnet").read_bytes() == b"module b\n// caf\xe9\nconst  A = 1\n"
    assert (tmp_path / "c.linnet").read_text() == PRETTY


def test_wrong_paths(terminal: Terminal, golden: Golden, tmp_path: Path) -> None:
    """Nothing is formatted where a path is wrong."""
    lines = ["gone.linnet", "README.md", "empty", "a.linnet gone.linnet", "a.linnet -", ""]
    files = {"a.linnet": UGLY, "README.md": "", "empty/x.txt": ""}
    golden(terminal(files, *(f"linnet fmt {line}" for line in lines)))
    assert (tmp_path / "a.linnet").read_text() == UGLY


def test_a_file_s_mode_and_its_links_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "a.linnet", tmp_path / "link.linnet"
    file.write_text(UGLY)
    file.chmod(0o640)
    link.symlink_to(file)
    assert main(["fmt", str(link), str(file)]) == 0
    assert file.read_text() == PRETTY
    assert file.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["a.linnet", "link.linnet"]


def test_a_formatted_file_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "a.linnet"
    file.write_text(PRETTY)
    before = file.stat()
    assert main(["fmt", str(tmp_path)]) == 0
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_failed_write_leaves_the_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.linnet"
    file.write_text(UGLY)

    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert main(["fmt", str(file)]) == 1
    assert capsys.readouterr().err == f"linnet fmt: {file}: No space left on device\n"
    assert file.read_text() == UGLY
    assert os.listdir(tmp_path) == ["a.linnet"]


@pytest.mark.parametrize(
    ("words", "text", "out", "status"),
    [
        (["-"], UGLY.encode(), PRETTY, 0),
        (["-"], "module m\r\n// é\r\n".encode(), "module m\n\n// é\n", 0),
        (["--check", "-"], UGLY.encode(), "<stdin>\n", 1),
        (["--check", "-"], PRETTY.encode(), "", 0),
        (["-"], BROKEN.encode(), "", 1),
        (["-"], b"module m\n// \xff\n", "", 1),
    ],
)
def test_standard_input(
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
    words: list[str],
    text: bytes,
    out: str,
    status: int,
) -> None:
    """The output is UTF-8, whatever the terminal is."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="ascii"))
    assert main(["fmt", *words]) == status
    printed, errors = capfdbinary.readouterr()
    assert printed.decode() == out
    assert bool(errors) == (text in (BROKEN.encode(), b"module m\n// \xff\n"))
