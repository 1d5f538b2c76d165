"""Packages that use each other: whose module is whose, and what is said when none is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from linnet.check import check
from linnet.check.analysis import Analysis
from linnet.core.ir import Call, OpId
from linnet.core.lower import lower, lower_function
from linnet.core.rewrite import nodes_of
from linnet.diagnostics import Diagnostic
from linnet.workspace import Workspace

MANIFEST = '[package]\nname = "{}"\nversion = "0.1.0"\nlanguage = "0.1"\n'


def package(folder: Path, name: str, files: dict[str, str], **dependencies: str) -> Path:
    """A package `folder/name` of these sources, by path below `src`."""
    root = folder / name
    (root / "src").mkdir(parents=True, exist_ok=True)
    text = MANIFEST.format(name) + "[dependencies]\n"
    text += "".join(f'{key} = {{ path = "{path}" }}\n' for key, path in dependencies.items())
    (root / "linnet.toml").write_text(text)
    for path, source in files.items():
        (root / "src" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "src" / path).write_text(source)
    return root


def said(analysis: Analysis) -> list[str]:
    """Every finding with its help, in order."""

    def text(d: Diagnostic) -> str:
        return f"{d.code} {d.message}" + (f"; {d.help.text}" if d.help else "")

    return [text(d) for d in analysis.findings.sorted()]


def scaled(name: str, by: str, use: str = "") -> str:
    return f"module {name}\n{use}\npub fn {by}(x: f32) -> f32 {{\n    return x * 2.0\n}}\n"


def test_two_packages_use_each_other_s_items(tmp_path: Path) -> None:
    calls = "\npub fn {}(x: f32) -> f32 {{\n    return {}(x)\n}}\n"
    a = package(
        tmp_path,
        "a",
        {
            "lib.linnet": "module a\nuse b::{twice}\n" + calls.format("four", "twice"),
            "low.linnet": scaled("a.low", "once"),
        },
        b="../b",
    )
    b = package(
        tmp_path,
        "b",
        {
            "lib.linnet": scaled("b", "twice"),
            "high.linnet": "module b.high\nuse a.low::{once}\n" + calls.format("thrice", "once"),
        },
        a="../a",
    )
    workspace = Workspace()
    assert said(check(workspace, a)) == said(check(workspace, b)) == []
    assert workspace.open(a).dependencies["b"] is workspace.open(b)


def test_modules_that_import_each_other_across_packages(tmp_path: Path) -> None:
    a = package(tmp_path, "a", {"lib.linnet": scaled("a", "f", "use b::{g}\n")}, b="../b")
    package(tmp_path, "b", {"lib.linnet": scaled("b", "g", "use a::{f}\n")}, a="../a")
    [finding] = said(check(Workspace(), a))
    assert finding.startswith("E1206 modules import each other: b -> a -> b; move what both need")


def test_a_package_reaches_itself_through_another(tmp_path: Path) -> None:
    """`b.x` of a module in `a` is the very module that `b` calls `crate.x`."""
    files = {
        "lib.linnet": "module a\nuse b::{make}\nuse own.kinds::{Pair}\n"
        "pub fn f(x: f32) -> Pair {\n    return make(x)\n}\n",
        "kinds.linnet": "module a.kinds\npub struct Pair {\n    left: f32\n}\n",
    }
    a = package(tmp_path, "a", files, b="../b", own="../b/../a/../a2")
    (tmp_path / "a2").symlink_to(a)
    made = (
        "module b\nuse a.kinds::{Pair}\n"
        "pub fn make(x: f32) -> Pair {\n    return Pair(left = x)\n}\n"
    )
    package(tmp_path, "b", {"lib.linnet": made}, a="../a")
    assert [d.split(";")[0] for d in said(check(Workspace(), a))] == [
        "E1202 there is no module `own.kinds`",
        "E5001 dependency `own` is this package itself",
    ]
    package(tmp_path, "a", {"lib.linnet": files["lib.linnet"].replace("own.", "crate.")}, b="../b")
    assert said(check(Workspace(), a)) == []


def test_a_diamond_and_two_names_of_one_package(tmp_path: Path) -> None:
    make = "pub fn {}(x: f32) -> Pair {{\n    return Pair(left = x)\n}}\n"
    for side in ("left", "right"):
        text = f"module {side}\nuse base::{{Pair}}\n" + make.format(f"make_{side}")
        package(tmp_path, side, {"lib.linnet": text}, base="../base")
    package(tmp_path, "base", {"lib.linnet": "module base\npub struct Pair {\n    left: f32\n}\n"})
    top = (
        "module top\nuse left::{make_left}\nuse right::{make_right}\nuse base::{Pair}\n"
        "use again::{Pair as Same}\n"
        "fn first(x: Pair) -> Same {\n    return x\n}\n"
        "pub fn f(x: f32, c: bool) -> Pair {\n"
        "    return first(if c { make_left(x) } else { make_right(x) })\n}\n"
    )
    names = {"left": "../left", "right": "../right", "base": "../base", "again": "../top/../base"}
    root = package(tmp_path, "top", {"lib.linnet": top}, **names)
    assert said(check(Workspace(), root)) == []


def test_dependencies_of_dependencies_are_not_one_s_own(tmp_path: Path) -> None:
    package(tmp_path, "c", {"lib.linnet": scaled("c", "twice")})
    package(
        tmp_path, "b", {"lib.linnet": scaled("b", "double", "use c::{twice as _t}\n")}, c="../c"
    )
    text = "module a\nuse c::{twice}\nuse b::{twice as t, double as _d}\nuse bb::{double}\n"
    a = package(tmp_path, "a", {"lib.linnet": text}, b="../b")
    begins = "a module begins with `std`, `crate` or a key of `[dependencies]`"
    assert said(check(Workspace(), a)) == [
        f"E1202 there is no module `c`; {begins}; `c` is none of them",
        "E1201 module `b` has no item `twice`",
        f"E1202 there is no module `bb`; {begins}; `bb` is none of them",
    ]


def test_an_import_is_no_export(tmp_path: Path) -> None:
    package(tmp_path, "b", {"lib.linnet": scaled("b", "double")})
    files = {
        "lib.linnet": "module a\nuse crate.mid::{double, far}\nuse crate.mid\n"
        "pub fn f(x: f32) -> f32 {\n    return mid.double(double(x)) + far(x)\n}\n",
        "mid.linnet": "module a.mid\nuse b::{double}\nuse b::{double as far}\n"
        "pub fn g(x: f32) -> f32 {\n    return far(double(x))\n}\n",
    }
    a = package(tmp_path, "a", files, b="../b")
    where = "it only imports it; import it from `b`, which declares it"
    assert said(check(Workspace(), a)) == [
        f"E1201 module `a.mid` has no item `double`; {where}",
        f"E1201 module `a.mid` has no item `far`; {where}",
        f"E1201 module `a.mid` has no item `double`; {where}",
    ]


@pytest.mark.parametrize(
    ("use", "help"),
    [
        ("crate.Shapes", "did you mean `crate.shapes`?"),
        ("crate.shape", "did you mean `crate.shapes`?"),
        ("crate.deep.heads", "did you mean `crate.deep.head`?"),
        ("crate.other.thing", "it would be `src/other/thing.linnet` of package `a`"),
        ("b.shapes", "it would be `src/shapes.linnet` of package `base`"),
        ("b.Low", "did you mean `b.low`?"),
        ("b", "it would be `src/lib.linnet` of package `base`"),
        ("Crate.shapes", "did you mean `crate`?"),
    ],
)
def test_modules_that_are_not_there(tmp_path: Path, use: str, help: str) -> None:
    package(tmp_path, "base", {"low.linnet": scaled("base.low", "low")})
    files = {
        "lib.linnet": f"module a\nuse {use}::{{x}}\n",
        "shapes.linnet": scaled("a.shapes", "double"),
        "deep/head.linnet": scaled("a.deep.head", "double"),
    }
    a = package(tmp_path, "a", files, b="../base")
    [first] = said(check(Workspace(), a / "src/lib.linnet"))
    assert first.startswith("E1202 there is no module ") and help in first


def test_an_absolute_path_and_a_link(tmp_path: Path) -> None:
    base = package(tmp_path, "base", {"lib.linnet": scaled("base", "double")})
    (tmp_path / "linked").symlink_to(base)
    text = "module a\nuse b::{double}\nuse c::{double as again}\n"
    text += "pub fn f(x: f32) -> f32 {\n    return again(double(x))\n}\n"
    a = package(tmp_path, "a", {"lib.linnet": text}, b=str(base), c="../linked")
    workspace = Workspace()
    assert said(check(workspace, a)) == []
    names = workspace.open(a).dependencies
    assert names["b"] is names["c"]


def test_a_package_within_another_s_sources_is_its_own(tmp_path: Path) -> None:
    a = package(tmp_path, "a", {"lib.linnet": "module a\nuse crate.inner.src.lib::{double}\n"})
    inner = package(a / "src", "inner", {"lib.linnet": scaled("inner", "double")})
    workspace = Workspace()
    [finding] = said(check(workspace, a))
    assert finding.startswith("E1202 there is no module `crate.inner.src.lib`")
    assert [f.name for f in workspace.files_of(workspace.open(a))] == [("crate",)]
    assert workspace.file(inner / "src/lib.linnet").package is workspace.open(inner)
    text = "module a\nuse inner::{double}\npub fn f(x: f32) -> f32 {\n    return double(x)\n}\n"
    package(tmp_path, "a", {"lib.linnet": text}, inner="src/inner")
    assert said(check(Workspace(), a)) == []


def test_unsaved_texts_of_a_dependency(tmp_path: Path) -> None:
    base = package(tmp_path, "base", {"lib.linnet": scaled("base", "double")})
    text = "module a\nuse b::{triple}\npub fn f(x: f32) -> f32 {\n    return triple(x)\n}\n"
    a = package(tmp_path, "a", {"lib.linnet": text}, b="../base")
    assert len(said(check(Workspace(), a))) == 1
    overlays: dict[str | Path, str] = {base / "src/lib.linnet": scaled("base", "triple")}
    assert said(check(Workspace(overlays), a)) == []
    overlays = {a / "linnet.toml": MANIFEST.format("a")}
    [finding] = said(check(Workspace(overlays), a))
    assert finding.startswith("E1202 there is no module `b`")


def test_a_dependency_s_mistakes_are_shown_with_its_files(tmp_path: Path) -> None:
    broken = scaled("base", "double").replace("2.0", "absent")
    base = package(tmp_path, "base", {"lib.linnet": broken})
    text = "module a\nuse b::{double}\npub fn f(x: f32) -> f32 {\n    return double(x)\n}\n"
    a = package(tmp_path, "a", {"lib.linnet": text}, b="../base")
    [finding] = check(Workspace(), a).findings.items
    assert finding.code == "E1201"
    assert finding.primary.span.source.name == str(base / "src/lib.linnet")


def test_an_op_is_its_package_s_whatever_its_module_is_called(tmp_path: Path) -> None:
    text = (
        "module std.nn.activations\n\npub op relu(x: f32) -> f32 {\n    return x\n}\n\n"
        "entry f(x: f32) -> f32 {\n    return relu(x)\n}\n"
    )
    a = package(tmp_path, "a", {"lib.linnet": text})
    (tmp_path / "std.linnet").write_text(text)
    for target, owner in ((a, "a"), (tmp_path / "std.linnet", "std (another)")):
        program = lower(check(Workspace(), target))
        [call] = [n for n in nodes_of(program.entries["f"]) if isinstance(n, Call)]
        assert call.function.op == OpId(owner, "std.nn.activations", "relu")
    std = Workspace().std.root
    assert std is not None
    analysis = check(Workspace(), std / "nn/activations.linnet")
    program = lower_function(
        analysis, "std.nn.activations", "relu", dtypes={"T": "f32"}, ranks={"S": 1}
    )
    op = program.entries["relu"].op
    assert op is not None and op.package == "std"
