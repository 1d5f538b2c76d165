"""Pushing a card, and loading what was pushed, against a Hub on this machine."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from linnet import nest
from linnet.diagnostics import NestError
from linnet.nest import card as cards
from linnet.nest.__main__ import main
from linnet.nest.card import Card
from linnet.nest.pushing import hub_readme, lay_out, own_manifest
from linnet.weights import write_safetensors

from .hub_server import COMMIT, Hub
from .small_card import MANIFEST, PACKAGE, README, SOURCE, tensors, write

# huggingface_hub hands a file to its HTTP library in a way that this one calls old.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
FAMILY = MANIFEST.replace("[source]\n", '[source]\npackage = "family"\n')


@pytest.fixture(autouse=True)
def uploads(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub speaks plain LFS, which a small server can take, and shows no bars."""
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "t0k3n")
    disable_progress_bars()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A card of a family of the zoo, its weights and a configuration beside it."""
    monkeypatch.setattr(cards, "ZOO", tmp_path / "zoo")
    family = tmp_path / "zoo/families/family"
    (family / "src").mkdir(parents=True)
    (family / "linnet.toml").write_text(PACKAGE)
    (family / "src/lib.linnet").write_text(SOURCE)
    made = write(tmp_path / "small", manifest=FAMILY)
    for name in ("linnet.toml", "src/lib.linnet"):
        (made / name).unlink()
    write_safetensors(made / "model.safetensors", tensors())
    (made / "config.json").write_text("{}")
    (made / ".secret").write_text("not for the Hub")
    return made


def test_what_is_pushed_loads_by_its_name(
    directory: Path, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", str(directory), "me/small", "--private"]) == 0
    commit = hub.branches["me/small@main"]
    assert capsys.readouterr().out == f"{hub.url}/me/small at {commit}: 7 files\n"
    assert hub.made["me/small"]["visibility"] == "private"
    held = {path.rpartition(f"{commit}/")[2] for path in hub.files if "me/small" in path}
    assert held == {
        "README.md",
        "bindings.json",
        "config.json",
        "linnet.toml",
        "model.safetensors",
        "nest.toml",
        "src/lib.linnet",
    }
    # The family is not needed any more.
    (cards.ZOO / "families/family/src/lib.linnet").unlink()
    model = nest.load("me/small")
    assert model.generics["N"] == 6
    assert np.array_equal(model.state_dict()["table"].numpy(), tensors()["table.weight"])
    assert main(["pull", "me/small"]) == 0
    assert capsys.readouterr().out.rstrip().endswith(f"hub/me--small/{commit}")
    assert nest.load("hf://me/small@main").generics == model.generics
    assert nest.check(nest.resolve("me/small")) == []
    proof = directory.parent / "loaded.json"
    nest.load("me/small", proof=proof)
    assert nest.verify_loading(proof).problems == ()


def test_shards_go_with_their_index(
    directory: Path, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "model.safetensors").unlink()
    held = tensors()
    shards = {name: f"model-{k}.safetensors" for k, name in enumerate(held)}
    for name, shard in shards.items():
        write_safetensors(directory / shard, {name: held[name]})
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    listed = json.dumps(list(shards.values()))
    edit("nest.toml", '["model.safetensors"]', listed)(directory)
    assert main(["push", str(directory), "me/shards"]) == 0, capsys.readouterr().err
    found = nest.remote_checkpoint("me/shards")
    assert found.files == tuple(shards.values()) and not found.checkpoint.report.count
    model = nest.load("me/shards")
    assert np.array_equal(model.state_dict()["table"].numpy(), held["table.weight"])


def test_the_pushed_card_is_checked_by_itself(directory: Path, tmp_path: Path) -> None:
    files = lay_out(Card.read(directory), tmp_path / "staged/small")
    assert ".secret" not in files
    staged = Card.read(tmp_path / "staged/small")
    assert staged.package is None and staged.weights.repo == "" and not staged.weights.revision
    assert nest.check(staged) == []


def test_a_second_push_is_a_second_commit(directory: Path, hub: Hub) -> None:
    from linnet.nest.pushing import push

    first = push(directory, "me/small")
    (directory / "README.md").write_text(README + "More.")
    second = push(directory, "me/small")
    assert first.commit != second.commit == hub.branches["me/small@main"]
    assert b"More." in hub.files[f"me/small/resolve/{second.commit}/README.md"]


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        text = (directory / name).read_text()
        assert old in text
        (directory / name).write_text(text.replace(old, new))

    return change


def link_out(directory: Path) -> None:
    (directory / "notes.txt").symlink_to("/etc/hostname")


def other_weights(directory: Path) -> None:
    write_safetensors(directory / "model.safetensors", {"x": np.zeros(3, np.float32)})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (edit("nest.toml", 'title = "Small"\n', ""), "[model] has no `title`"),
        (edit("nest.toml", "N = 6", "N = 7"), "shapes: `table` is [7]"),
        (edit("bindings.json", '"head"', '"heads"'), "bindings of no parameter: `heads`"),
        (other_weights, "missing tensors"),
        (lambda d: (d / "README.md").unlink(), "README.md: there is none beside the card"),
        (lambda d: (d / "model.safetensors").unlink(), "its weights are not on this machine as"),
        (link_out, "notes.txt: leads out of the card's directory"),
        (lambda d: (d / "linnet.toml").write_text(PACKAGE), "the package family has such a file"),
    ],
)
def test_nothing_is_sent_before_all_is_checked(
    directory: Path,
    hub: Hub,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Path], object],
    expected: str,
) -> None:
    change(directory)
    assert main(["push", str(directory), "me/small"]) == 1
    assert expected in capsys.readouterr().err
    assert not hub.made and not hub.stored and not any("preupload" in path for path in hub.asked)


def test_a_package_with_dependencies_is_not_self_contained(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = cards.ZOO / "families/family/linnet.toml"
    manifest.write_text(PACKAGE + '\n[dependencies]\nother = "../other"\n')
    assert main(["push", str(directory), "me/small"]) == 1
    assert "the package needs other, which would not be in the repository" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("where", "status", "expected"),
    [
        ("create", 401, "me/small: answers 401: "),
        ("create", 403, "HF_TOKEN must hold a token that may write there"),
        ("main", 400, "me/small: answers 400: "),
    ],
)
def test_what_the_hub_refuses_is_said(
    directory: Path,
    hub: Hub,
    capsys: pytest.CaptureFixture[str],
    where: str,
    status: int,
    expected: str,
) -> None:
    hub.status[where] = [(status, {})] * 9
    assert main(["push", str(directory), "me/small"]) == 1
    printed = capsys.readouterr().err
    assert expected in printed and "t0k3n" not in printed and "Traceback" not in printed
    assert "me/small@main" not in hub.branches


def test_without_network_or_by_choice(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["push", str(directory), "me/small"]) == 1
    assert "me/small: not tried: HF_HUB_OFFLINE=1" in capsys.readouterr().err
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert main(["push", str(directory), "me/small"]) == 1
    assert "127.0.0.1:9/me/small: not pushed: " in capsys.readouterr().err


@pytest.mark.parametrize("repo", ["small", "hf://me/small", "me/small@main", "a/b/c"])
def test_names_that_are_none(directory: Path, repo: str) -> None:
    from linnet.nest.pushing import push

    with pytest.raises(NestError, match="not the name of a repository: org/name"):
        push(directory, repo)


# --- the manifest and the README ----------------------------------------------------------------


def test_the_rest_of_the_manifest_stays_as_written(tmp_path: Path) -> None:
    text = (
        FAMILY.replace("[generics]", "# Sizes.\n[generics] # here")
        + 'cast_dtype = true\ndirectory = "/tmp/x"\n\n[weights.copies]\nrepo = "table.weight"\n'
        + '\n[[weights.mirrors]]\nkind = "pip"\npackage = "p"\nversion = "1"\nfile = "f"\n'
        + f'sha256 = "{"0" * 64}"\nformat = "gguf"\n\n[notes]\nrepo = "kept"\n'
    )
    changed = own_manifest(Card.read(write(tmp_path / "small", manifest=text)))
    lost = set(text.splitlines()) - set(changed.splitlines())
    assert lost == {
        'package = "family"',
        'repo = "org/small"',
        f'revision = "{COMMIT}"',
        'directory = "/tmp/x"',
    }
    assert tomllib.loads(changed)["weights"]["mirrors"][0]["package"] == "p"


def test_a_manifest_that_is_written_another_way_is_refused(tmp_path: Path) -> None:
    text = MANIFEST.replace('[source]\nroot = "Model"\nentry = "forward"\n', "").replace(
        "[model]", 'source = { package = "family" }\n[model]'
    )
    card = Card.read(write(tmp_path / "small", manifest=text))
    with pytest.raises(NestError, match="must stand on a line each, below"):
        own_manifest(card)


@pytest.mark.parametrize(
    ("license", "lines"),
    [
        ("Apache-2.0", ["license: apache-2.0"]),
        ("CreativeML Open RAIL++-M", ["license: other", "license_name: creativeml-open-rail++-m"]),
    ],
)
def test_the_readme_of_the_hub(tmp_path: Path, license: str, lines: list[str]) -> None:
    card = Card.read(write(tmp_path / "small", manifest=MANIFEST.replace("MIT", license)))
    text = hub_readme(card)
    head, _, rest = text.removeprefix("---\n").partition("\n---\n\n")
    assert head.splitlines() == [
        *lines,
        "library_name: linnet",
        "tags:",
        "- linnet",
        "- text-generation",
        "base_model: org/small",
    ]
    assert rest == README
    (tmp_path / "small/README.md").write_text(text)
    assert hub_readme(card) == text
