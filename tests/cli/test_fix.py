"""Transcripts of `linnet check --fix` and `linnet lint`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

Terminal = Callable[..., str]
Golden = Callable[..., None]

SLOPPY = """module sloppy

use std.nn.norm::{RmsNorm, rms_norm}

pub fn f<B: Dim, H: Dim>(x: Tensor[B, H; f32], w: Tensor[H; f32]) -> Tensor[B, H; f32]? {
    let y = silu(rms_norm(x, w, 1e-5));
    return y + absent
}
"""
MANIFEST = '[package]\nname = "demo"\nversion = "0.1.0"\nlanguage = "0.1"\n'
PACKAGE = {
    "demo/linnet.toml": MANIFEST + '[dependencies]\nbase = { path = "../base" }\n',
    "demo/src/lib.linnet": "module demo\n\nuse base::{twice}\n\n"
    "pub fn six(x: f32) -> f32 {\n    return twice(thrice(x));\n}\n",
    "demo/src/part.linnet": "module demo.part\n\npub fn thrice(x: f32) -> f32 {\n"
    "    return x * 3.0;\n}\n",
    "base/linnet.toml": MANIFEST.replace("demo", "base"),
    "base/src/lib.linnet": "module base\n\npub fn twice(x: f32) -> f32 {\n    return x + x;\n}\n",
}


def test_fixes_and_what_is_left(terminal: Terminal, golden: Golden) -> None:
    shown = terminal({"sloppy.linnet": SLOPPY}, *["linnet check --fix sloppy.linnet"] * 2)
    golden(f"{shown}\n{Path('sloppy.linnet').read_text()}")


def test_a_package_and_not_its_dependencies(terminal: Terminal, golden: Golden) -> None:
    shown = terminal(PACKAGE, "linnet check --fix demo")
    golden(shown)
    texts = {name: Path(name).read_text() for name in PACKAGE}
    changed = {name for name, text in texts.items() if text != PACKAGE[name]}
    assert changed == {"demo/src/lib.linnet", "demo/src/part.linnet"}


def test_the_standard_library_is_never_changed(terminal: Terminal) -> None:
    std = {"lib/nn/x.linnet": "module std.nn.x\n\npub fn f(x: f32) -> f32 {\n    return x;\n}\n"}
    shown = terminal(std, "linnet check --fix --std lib lib")
    assert "1 error in 1 file" in shown and "fixed" not in shown
    assert Path("lib/nn/x.linnet").read_text() == std["lib/nn/x.linnet"]


def test_json(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    shown = terminal({"sloppy.linnet": SLOPPY}, "linnet check --fix --json sloppy.linnet")
    document = json.loads(shown.partition("\n")[2].rpartition("[status")[0])
    assert [d["code"] for d in document["fixed"]] == ["E1201", "E1101"]
    assert document["summary"] == {"errors": 1, "warnings": 0}
    assert all(d["help"]["safe"] for d in document["fixed"])


def test_bytes_and_modes_survive(terminal: Terminal) -> None:
    terminal({"a.linnet": SLOPPY, "b.linnet": ""})
    text = SLOPPY.replace("\n", "\r\n").replace("pub fn", "// naïve\r\npub fn").encode()
    Path("a.linnet").write_bytes(text)
    Path("a.linnet").chmod(0o640)
    Path("b.linnet").write_bytes(b"module b\n// \xff\nfn f(x: f32) -> f32 {\n    return x;\n}\n")
    before = Path("b.linnet").read_bytes()
    shown = terminal({}, "linnet check --fix a.linnet", "linnet check --fix b.linnet")
    after = Path("a.linnet").read_bytes()
    assert b"naive".replace(b"i", "ï".encode()) in after and b";\r\n" not in after
    assert (
        after.count(b"\r\n") >= text.count(b"\r\n") and os.stat("a.linnet").st_mode & 0o777 == 0o640
    )
    assert Path("b.linnet").read_bytes() == before
    assert "b.linnet: not fixed: it changed meanwhile, or is not UTF-8" in shown


def test_a_file_that_cannot_be_written(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("linnet.cli.fmt.replace_file", refuse)
    shown = terminal({"a.linnet": SLOPPY}, "linnet check --fix a.linnet")
    assert "a.linnet: not fixed: Permission denied" in shown and "[status 1]" in shown
    assert Path("a.linnet").read_text() == SLOPPY


def test_lint(terminal: Terminal, golden: Golden) -> None:
    files = {
        "good.linnet": "module good\n\npub fn f(x: f32) -> f32 {\n    return x\n}\n",
        "bad.linnet": "module bad\n\npub fn f(x: f32) -> f32 { let y = x\n    return x }\n",
        "worse.linnet": "module worse\n\npub fn f(x: f32) -> f32 {\n  return y }\n",
    }
    lines = ["good.linnet", "bad.linnet", ".", "--json bad.linnet", "absent.linnet"]
    golden(terminal(files, *(f"linnet lint {line}" for line in lines)))
