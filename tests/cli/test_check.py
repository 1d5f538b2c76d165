"""Transcripts of `linnet check`: what a person sees, and the exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from linnet.cli import main

Terminal = Callable[..., str]
Golden = Callable[..., None]

GOOD = """module good

pub fn twice<*S: Shape>(x: Tensor[*S; f32]) -> Tensor[*S; f32] {
    return x + x
}
"""
BROKEN = """module broken

pub fn heads<B: Dim, H: Dim, Heads: Dim>(x: Tensor[B, H; f32]) -> Tensor[B, Heads, H / Heads; f32]
    where Heads > 0
{
    return reshape(x, [B, Heads, H / Heads])
}

pub fn other(x: f32) -> f32 {
    return x + absent
}
"""
WARNS = """module warns

pub fn same(x: f32) -> f32 {
    let unused = x + x
    return x
}
"""
MANIFEST = '[package]\nname = "demo"\nversion = "0.1.0"\nlanguage = "0.1"\n'
PACKAGE = {
    "demo/linnet.toml": MANIFEST + '[dependencies]\nbase = { path = "../base" }\n',
    "demo/src/lib.linnet": "module demo\n\nuse base::{twice}\nuse crate.part::{thrice}\n\n"
    "pub fn six(x: f32) -> f32 {\n    return twice(thrice(x))\n}\n",
    "demo/src/part.linnet": "module demo.part\n\npub fn thrice(x: f32) -> f32 {\n"
    "    return x * 3.0\n}\n",
    "base/linnet.toml": MANIFEST.replace("demo", "base"),
    "base/src/lib.linnet": "module base\n\npub fn twice(x: f32) -> f32 {\n    return x + x\n}\n",
}


def test_files_and_folders(terminal: Terminal, golden: Golden) -> None:
    files = {"good.linnet": GOOD, "more/broken.linnet": BROKEN, "more/.hidden/x.linnet": "?"}
    lines = ["linnet check good.linnet", "linnet check .", "linnet check good.linnet more"]
    golden(terminal(files, *lines))


def test_warnings_fail_under_strict_only(terminal: Terminal, golden: Golden) -> None:
    lines = ["linnet check warns.linnet", "linnet check --strict warns.linnet"]
    golden(terminal({"warns.linnet": WARNS}, *lines))


def test_a_package_and_what_it_depends_on(terminal: Terminal, golden: Golden) -> None:
    lines = [f"linnet check {path}" for path in ("demo", "demo/src", "demo/linnet.toml", ".")]
    golden(terminal(PACKAGE, *lines))


def test_a_package_s_mistakes(terminal: Terminal, golden: Golden) -> None:
    """A mistake in a dependency is reported once; a bad manifest is reported alone."""
    files = PACKAGE | {"base/src/lib.linnet": BROKEN}
    manifest = PACKAGE["demo/linnet.toml"].replace("../base", "../gone") + "[scripts]\nx = 1\n"
    seen = terminal(files, "linnet check .")
    golden(seen + "\n" + terminal({"demo/linnet.toml": manifest}, "linnet check demo"))


def test_several_syntax_errors(terminal: Terminal, golden: Golden) -> None:
    text = "module x\n\nfn a( {\n}\n\nfn b(x: f32) -> f32 {\n    return x +\n}\n\nconst = 1\n"
    golden(terminal({"x.linnet": text}, "linnet check x.linnet"))


def test_wrong_paths(terminal: Terminal, golden: Golden) -> None:
    lines = ["gone.linnet", "README.md", "empty/..", "--std gone good.linnet"]
    files = {"good.linnet": GOOD, "README.md": "", "empty/x.txt": ""}
    golden(terminal(files, *(f"linnet check {line}" for line in lines), "linnet check empty"))


def test_another_standard_library(terminal: Terminal, golden: Golden) -> None:
    files = {
        "mine/tiny.linnet": "module std.tiny\n\npub fn id(x: f32) -> f32 {\n    return x\n}\n",
        "x.linnet": "module x\n\nuse std.tiny::{id}\n\npub fn f(x: f32) -> f32 {\n"
        "    return id(x)\n}\n",
    }
    golden(terminal(files, "linnet check --std mine x.linnet", "linnet check x.linnet"))


def test_bytes_that_are_not_utf8(terminal: Terminal, golden: Golden, tmp_path: Path) -> None:
    (tmp_path / "x.linnet").write_bytes(b"module x\n\n// caf\xe9\n")
    golden(terminal({}, "linnet check x.linnet"))


def test_json(terminal: Terminal, golden: Golden, capsys: pytest.CaptureFixture[str]) -> None:
    golden(terminal({"broken.linnet": BROKEN}, "linnet check --json broken.linnet"))
    assert main(["check", "--json", "broken.linnet"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["version"] == 1
    assert document["summary"] == {"errors": 2, "warnings": 0}
    first, second = document["diagnostics"]
    assert (first["code"], second["code"]) == ("E2203", "E1201")
    start = second["location"]["start"]
    assert (start["line"], start["column"]) == (10, 16)
    assert BROKEN.encode()[start["offset"] :].startswith(b"absent")


def test_a_link_to_nothing_is_no_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.linnet").write_text(GOOD)
    (tmp_path / ".#good.linnet").symlink_to("nobody@nowhere.1")  # an editor's lock
    assert main(["check", str(tmp_path)]) == 0
    assert main(["fmt", "--check", str(tmp_path)]) == 0
    assert "no findings in 1 file" in capsys.readouterr().out
