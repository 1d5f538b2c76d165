"""Packages, manifests and the files behind logical paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from linnet.diagnostics import LinnetError
from linnet.workspace import Workspace

MANIFEST = '[package]\nname = "demo"\nversion = "0.2.0"\nlanguage = "0.1"\n'


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Package `demo`, which depends on `base`, and a file outside both."""
    return write(
        tmp_path,
        {
            "demo/linnet.toml": MANIFEST + '[dependencies]\nbase = { path = "../base" }\n',
            "demo/src/lib.linnet": "module demo\n",
            "demo/src/nn/gate.linnet": "module demo.gate\n",
            "base/linnet.toml": MANIFEST.replace("demo", "base-of-all"),
            "base/src/lib.linnet": "module base\n",
            "base/src/ops.linnet": "module base.ops\n",
            "alone.linnet": "module alone\n",
        },
    )


def manifest_findings(root: Path, manifest: str) -> list[tuple[str, str]]:
    """(marked text, message) of what is wrong with a manifest."""
    write(root, {"p/linnet.toml": manifest})
    workspace = Workspace()
    workspace.open(root / "p")
    found = workspace.findings.sorted()
    assert all(d.code == "E5001" for d in found)
    assert all(d.primary.span.source.name == str(root / "p/linnet.toml") for d in found)
    return [(d.primary.span.text, d.message) for d in found]


def test_open_finds_the_nearest_package(root: Path) -> None:
    workspace = Workspace()
    package = workspace.open(root / "demo")
    assert (package.name, package.version, package.root) == ("demo", "0.2.0", root / "demo")
    assert workspace.open(root / "demo/src/nn/gate.linnet") is package
    assert workspace.open(root / "demo/src/nn") is package
    assert [*package.dependencies] == ["base"]
    assert package.dependencies["base"] is workspace.open(root / "base")
    assert package.dependencies["base"].name == "base-of-all"
    assert not workspace.findings.items


def test_resolve_logical_paths(root: Path) -> None:
    workspace = Workspace()
    package = workspace.open(root / "demo")

    def found(*parts: str) -> str | None:
        module = workspace.resolve(package, parts)
        return module and f"{module.package.name}: {'.'.join(module.name)}: {module.source.text!r}"

    assert found("crate") == "demo: crate: 'module demo\\n'"
    assert found("crate", "nn", "gate") == "demo: crate.nn.gate: 'module demo.gate\\n'"
    assert found("base") == "base-of-all: crate: 'module base\\n'"
    assert found("base", "ops") == "base-of-all: crate.ops: 'module base.ops\\n'"
    for missing in [
        ("crate", "nn"),
        ("std",),
        ("other", "x"),
        ("crate", ".."),
        ("crate", "a/b"),
        (),
    ]:
        assert found(*missing) is None


def test_one_file_is_one_module(root: Path) -> None:
    workspace = Workspace()
    package = workspace.open(root / "demo")
    via_import = workspace.resolve(package, ("base", "ops"))
    assert via_import is workspace.resolve(package.dependencies["base"], ("crate", "ops"))
    assert via_import is workspace.file(root / "base/src/ops.linnet")


def test_std_root_from_argument_environment_and_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("given", "environment"):
        write(tmp_path, {f"{name}/nn/linear.linnet": f"module {name}\n", "a.linnet": "module a\n"})

    def linear(workspace: Workspace) -> str:
        found = workspace.resolve(workspace.open(tmp_path / "a.linnet"), ("std", "nn", "linear"))
        assert found is not None and found.name == ("std", "nn", "linear")
        assert found is workspace.file(found.path)
        return found.source.text

    monkeypatch.setenv("LINNET_STD", str(tmp_path / "environment"))
    assert linear(Workspace(std_root=tmp_path / "given")) == "module given\n"
    assert linear(Workspace()) == "module environment\n"
    monkeypatch.delenv("LINNET_STD")
    assert Workspace().std.root == Path(__file__).parents[1] / "src/linnet/std"
    with pytest.raises(LinnetError, match="nowhere: no such directory"):
        Workspace(std_root=tmp_path / "nowhere")


def test_file_outside_any_package(root: Path) -> None:
    workspace = Workspace()
    package = workspace.open(root / "alone.linnet")
    assert package.root is None and package is workspace.open(root / "alone.linnet")
    [module] = workspace.files_of(package)
    assert module.package is package and module.name == ("alone",)
    assert module is workspace.file(root / "alone.linnet")
    assert workspace.resolve(package, ("crate",)) is None


def test_files_of_lists_a_package_s_sources(root: Path) -> None:
    write(root / "demo", {"README.md": "", "src/notes.txt": "", "src/.hidden/x.linnet": ""})
    overlays = {root / "demo/src/new.linnet": "module demo.new\n"}
    workspace = Workspace(overlays)
    files = workspace.files_of(workspace.open(root / "demo"))
    names = [".".join(m.name) for m in files]
    assert names == ["crate", "crate.new", "crate.nn.gate"]
    assert files[1].source.text == "module demo.new\n"


def test_overlays_stand_for_files_and_manifests(root: Path) -> None:
    manifest = root / "demo/linnet.toml"
    overlays = {manifest: MANIFEST.replace("demo", "edited"), root / "demo/src/lib.linnet": "new"}
    workspace = Workspace(overlays)
    package = workspace.open(root / "demo")
    lib = workspace.resolve(package, ("crate",))
    assert package.name == "edited" and lib is not None and lib.source.text == "new"
    assert workspace.file(root / "demo/src/lib.linnet") is lib


def test_sources_are_named_as_users_see_them(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root / "demo")
    workspace = Workspace()
    package = workspace.open("src")
    assert package.manifest is not None and package.manifest.name == "linnet.toml"
    base = workspace.resolve(package, ("base",))
    assert base is not None and base.source.name == str(root / "base/src/lib.linnet")


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (MANIFEST + "script = 1\n", ("script", "unknown key `script` in `[package]`")),
        (MANIFEST + "[tools]\nx = 1\n", ("tools", "unknown key `tools` in a manifest")),
        (
            MANIFEST.replace('"0.1"', '"2"'),
            ("language", '"2" is not known'),
        ),
        ('[package]\nversion = "1"\nlanguage = "0.1"\n', ("package", "has no `name`")),
        ('[package]\nname = "x"\nlanguage = "0.1"\n', ("package", "has no `version`")),
        ('[package]\nname = "x"\nversion = "1"\n', ("package", "has no `language`")),
        (MANIFEST.replace('"demo"', "3"), ("name", "`name` must be a string, not an integer")),
        (MANIFEST.replace('"demo"', '""'), ("name", "`name` is empty")),
        (MANIFEST.replace("demo", "no spaces"), ("name", "`no spaces` cannot be a package's name")),
        ("", ("", "no `[package]` table")),
        ("package = 1\n", ("package", "`package` is not a table")),
        ("[package\n", ("\n", "not valid TOML")),
        ("[package]\nname =\n", ("\n", "not valid TOML")),
        (MANIFEST + "[dependencies]\nd = 1\n", ("d", "`d` is not a table with a `path`")),
        (MANIFEST + "[dependencies]\nd = {}\n", ("d", "`d` has no `path`")),
        (MANIFEST + "[dependencies.d]\npath = 2\n", ("dependencies.d", "`d` has no `path`")),
        (
            MANIFEST + '[dependencies]\nd = { path = "x", git = "y" }\n',
            ("d", "unknown key `git` in dependency `d`"),
        ),
        (MANIFEST + '[dependencies]\nstd = { path = "x" }\n', ("std", "`std` cannot name")),
        (MANIFEST + '[dependencies]\na-b = { path = "x" }\n', ("a-b", "`a-b` cannot be imported")),
        (
            MANIFEST + '[dependencies]\nd = { path = "../gone" }\n',
            ("d", "`../gone` does not exist"),
        ),
        (MANIFEST + '[dependencies]\nd = { path = "." }\n', ("d", "`d` is this package itself")),
        (MANIFEST.replace("demo", "std"), ("name", "`std` cannot be a package's name")),
        (MANIFEST + '[dependencies]\nd = { path = "src" }\n', ("d", "`src` has no linnet.toml")),
        ("dependencies = 1\n" + MANIFEST, ("dependencies", "`dependencies` is not a table")),
    ],
)
def test_bad_manifest(tmp_path: Path, manifest: str, expected: tuple[str, str]) -> None:
    (tmp_path / "p/src").mkdir(parents=True)
    [(marked, message)] = manifest_findings(tmp_path, manifest)
    assert marked == expected[0]
    assert expected[1] in message


def test_every_mistake_of_a_manifest_is_reported(tmp_path: Path) -> None:
    manifest = (
        '[package]\nname = 1\nversion = "1"\nlanguage = "7"\nbuild = "x"\n[dependencies]\nd = 1\n'
    )
    found = manifest_findings(tmp_path, manifest)
    assert [marked for marked, _ in found] == ["name", "language", "build", "d"]


def test_packages_may_depend_on_each_other(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "c"), ("c", "a")):
        text = MANIFEST.replace("demo", name)
        text += f'[dependencies]\n{other} = {{ path = "../{other}" }}\n'
        write(tmp_path, {f"{name}/linnet.toml": text})
    workspace = Workspace()
    a = workspace.open(tmp_path / "a")
    assert a.dependencies["b"].dependencies["c"].dependencies["a"] is a
    assert not workspace.findings.items


def test_a_shared_dependency_is_no_cycle(tmp_path: Path) -> None:
    uses = {"top": ["left", "right"], "left": ["base"], "right": ["base"], "base": []}
    for name, others in uses.items():
        text = MANIFEST.replace("demo", name) + "[dependencies]\n"
        text += "".join(f'{other} = {{ path = "../{other}" }}\n' for other in others)
        write(tmp_path, {f"{name}/linnet.toml": text})
    workspace = Workspace()
    top = workspace.open(tmp_path / "top").dependencies
    assert top["left"].dependencies["base"] is top["right"].dependencies["base"]
    assert not workspace.findings.items


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "x.linnet").write_bytes("module x // é ".encode() + b"\xff\xfe\n")
    workspace = Workspace()
    text = workspace.file(tmp_path / "x.linnet").source.text
    workspace.file(tmp_path / "x.linnet")
    [finding] = workspace.findings.items
    assert finding.code == "E1001" and "byte 0xff is not UTF-8" in finding.message
    assert finding.primary.span.start == text.index("\ufffd")


def test_missing_and_foreign_files(root: Path) -> None:
    workspace = Workspace()
    with pytest.raises(LinnetError, match=r"gone\.linnet: no such file"):
        workspace.open(root / "gone.linnet")
    with pytest.raises(LinnetError, match=r"README\.md: not a \.linnet file"):
        workspace.file(root / "README.md")
    with pytest.raises(LinnetError, match=r"not in a package \(no linnet\.toml"):
        workspace.open(root)
    (root / "dir.linnet").mkdir()
    with pytest.raises(LinnetError, match=r"dir\.linnet"):
        workspace.file(root / "dir.linnet")


def test_unreadable_file(root: Path) -> None:
    lib = root / "demo/src/lib.linnet"
    lib.unlink()
    lib.symlink_to("/proc/self/mem")  # a file that even root cannot read from its start
    workspace = Workspace()
    with pytest.raises(LinnetError, match=r"lib\.linnet: cannot be read: "):
        workspace.resolve(workspace.open(root / "demo"), ("crate",))


def test_renewed_reads_what_is_there_now(tmp_path: Path) -> None:
    """A file's text, an unsaved one, the file's again, another, and none."""
    path = tmp_path / "x.linnet"
    path.write_text("module a\n")
    first = Workspace()
    on_disk = first.file(path)
    edited = first.renewed({path: "module b\n"})
    assert edited.file(path).source.text == "module b\n"
    assert edited.renewed({path: "module b\n"}).file(path) is edited.file(path)
    closed = edited.renewed({})
    assert closed.file(path).source.text == "module a\n"
    again = closed.renewed({})
    assert again.file(path) is closed.file(path)
    path.write_text("module longer\n")
    assert again.renewed({}).file(path).source.text == "module longer\n"
    path.unlink()
    with pytest.raises(LinnetError):
        again.renewed({}).file(path)
    assert on_disk.source.text == "module a\n"


def test_renewed_keeps_packages_until_a_manifest_changes(tmp_path: Path) -> None:
    for name, rest in (("a", '[dependencies]\nb = { path = "../b" }\n'), ("b", "")):
        (tmp_path / name / "src").mkdir(parents=True)
        manifest = f'[package]\nname = "{name}"\nversion = "1"\nlanguage = "0.1"\n{rest}'
        (tmp_path / name / "linnet.toml").write_text(manifest)
    first = Workspace()
    package = first.open(tmp_path / "a")
    second = first.renewed({})
    assert second.open(tmp_path / "a") is package
    assert second.open(tmp_path / "b") is package.dependencies["b"]
    manifest = tmp_path / "b/linnet.toml"
    third = second.renewed({manifest: manifest.read_text().replace("1", "2")})
    assert third.open(tmp_path / "a") is not package
    assert third.open(tmp_path / "a").dependencies["b"].version == "2"
    manifest.unlink()
    fourth = third.renewed({})
    assert fourth.open(tmp_path / "a").dependencies == {}
    assert [d.code for d in fourth.findings.items] == ["E5001"]
