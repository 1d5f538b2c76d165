"""`nest.check`: every problem of a card, and none of one that is as it should be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from linnet.core.ir import Program
from linnet.diagnostics import PlanError
from linnet.nest import checking
from linnet.nest.__main__ import main
from linnet.nest.card import Card, card_directories
from linnet.nest.checking import check

from .hub_server import Hub
from .small_card import BINDINGS, MANIFEST, README, SOURCE, publish, tensors, write

pytestmark = pytest.mark.usefixtures("own_cache")


def problems(tmp_path: Path, *, hub: bool = False, exports: bool = False, **files: str) -> str:
    card = Card.read(write(tmp_path / "small", **files))
    return "\n".join(check(card, hub=hub, exports=exports))


def test_a_card_as_it_should_be(
    tmp_path: Path, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(hub, tmp_path)
    directory = write(tmp_path / "small")
    assert main(["check", str(directory)]) == 0
    assert capsys.readouterr().out == "small: ok\n"
    # The headers were read, and no data: 3 tensors of 6, 36 and 36 numbers.
    assert hub.sent < hub.files[next(iter(hub.large))].__len__() - 78 * 4 + 100
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('name = "small"', 'name = "big"', "[model] name is 'big', its directory is 'small'"),
        ('title = "Small"\n', "", "[model] has no `title`"),
        ('summary = "A small model."', 'summary = " "', "[model] has no `summary`"),
        ('license = "MIT"\n', "", "[model] has no `license`"),
        ("huggingface =", "homepage =", "[links] has no `huggingface`"),
        ('files = ["model.safetensors"]\n', "", "[weights] names no `files`"),
        ("model.safetensors", "model.bin", "holds model.bin, which is no .safetensors file"),
        ("[source]", '[text]\ntemplate = "t"\n[source]', "`template` is t, which does not lie"),
        ("[source]", '[source]\npath = "src/x.linnet"', "[source] means"),
        ('root = "Model"', 'root = "Modell"', "has no block Modell"),
        ('entry = "forward"', 'entry = "backward"', "small has no entry backward"),
        ("N = 6\n", "", "Model needs values for N"),
        ("N = 6\n", "N = 6\nM = 6\n", "Model has no generic M"),
        ("N = 6\n", "N = 1\n", "which does not hold with N = 1"),
        ('T = "f32"', "T = 3", "T"),
        ("SCALE = 2.0", "SCAL = 2.0", "SCAL"),
        ("SCALE = 2.0", "SCALE = true", "SCALE"),
        ("S = 3\n", "", "[check] has no value for S: Dim of forward"),
        ("S = 3\n", "S = 3\nB = 1\n", "[check] binds B; the generics of forward are: S"),
    ],
)
def test_problems_of_the_manifest(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in MANIFEST
    found = problems(tmp_path, manifest=MANIFEST.replace(old, new, 1))
    assert expected in found and found.count("\n") <= 1


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"readme": "# Small\n\nToo little."}, "README.md: has 20 characters; a card's page has"),
        (
            {"source": SOURCE.replace("x * table", "x * tables").replace("x, weight", "x, wait")},
            "src/lib.linnet:15: E1201: ",
        ),
        ({"bindings": "[]"}, "bindings.json: "),
        (
            {"bindings": BINDINGS.replace('"head"', '"heads"')},
            "bindings.json: bindings of no parameter: `heads`; did you mean `head`?",
        ),
        (
            {"bindings": BINDINGS.replace('layers.{i}.weight":', 'layers.{i}.weigh":')},
            "bindings.json: bindings of no parameter: `layers.{i}.weigh`; did you mean",
        ),
        (
            {"bindings": '{"table": "t", "layers.0.weight": "w"}'},
            "bindings.json: names no tensor for head, layers.1.weight",
        ),
    ],
)
def test_problems_of_the_files(tmp_path: Path, changed: dict[str, str], expected: str) -> None:
    assert expected in problems(tmp_path, **changed)


def test_every_finding_is_a_problem_of_its_own(tmp_path: Path) -> None:
    source = SOURCE.replace("x * table", "x * tables").replace("x, weight", "x, wait")
    found = problems(tmp_path, source=source).splitlines()
    assert len(found) == 2 and all("E1201" in line for line in found)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    directory = write(tmp_path / "small")
    for name in ("README.md", "bindings.json"):
        (directory / name).unlink()
    found = check(Card.read(directory), hub=False)
    assert found[0] == "README.md: there is none beside the card"
    assert "bindings.json: cannot be read" in found[1] and len(found) == 2


def test_problems_of_the_weights(tmp_path: Path, hub: Hub) -> None:
    held = tensors()
    held["model.layers.0.weight"] = held["model.layers.0.weight"][:5]
    held["model.layers.1.weight"] = held["model.layers.1.weight"].astype(np.float16)
    held["model.layers.2.weight"] = held.pop("table.weight")
    publish(hub, tmp_path, held)
    found = problems(tmp_path, hub=True).splitlines()
    assert [line.partition(": ")[0] for line in found] == ["weights"] * 5
    at = "in org/small/model.safetensors is"
    assert f"`layers.0.weight` is [6, 6], `model.layers.0.weight` {at} [5, 6]" in found[0]
    assert f"`layers.1.weight` is f32, `model.layers.1.weight` {at} f16" in found[1]
    assert "missing tensors: `table.weight` [6] for `table`" in found[2]
    assert "nothing binds" in found[4] and "`model.layers.2.weight` [6]" in found[4]


def test_optional_parameters_may_be_there(tmp_path: Path, hub: Hub) -> None:
    held = tensors() | {f"model.layers.{k}.bias": np.zeros(6, np.float32) for k in range(2)}
    publish(hub, tmp_path, held)
    assert "nothing binds" in problems(tmp_path, hub=True)
    bound = BINDINGS.replace("\n}", ',\n  "layers.{i}.bias": "model.layers.{i}.bias"\n}')
    assert problems(tmp_path, hub=True, exports=True, bindings=bound) == ""


def test_tensors_that_the_card_leaves(tmp_path: Path, hub: Hub) -> None:
    publish(hub, tmp_path, tensors() | {"pooler.weight": np.zeros(6, np.float32)})
    assert "nothing binds" in problems(tmp_path, hub=True)
    manifest = MANIFEST.replace("[weights]", '[weights]\nunread = ["pooler.*"]')
    assert problems(tmp_path, hub=True, manifest=manifest) == ""


def test_a_hub_that_has_no_such_weights(tmp_path: Path, hub: Hub) -> None:
    hub.files.clear()
    assert problems(tmp_path, hub=True) == f"weights: {hub.url}/org/small: has no model.safetensors"


def test_problems_of_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = MANIFEST.replace("S = 3", "S = 7")
    found = problems(tmp_path, exports=True, manifest=manifest)
    assert found.startswith("exports: forward: forward requires S <= 6, which does not hold with S")
    monkeypatch.setitem(checking.EXPORTS, "torch", (__name__, "refuse"))
    assert problems(tmp_path, exports=True) == "exports: torch: a Model program is refused"


def refuse(program: Program, policy: str) -> str:
    raise PlanError(f"a {program.name} program is refused")


def test_a_tokenizer_that_is_none(tmp_path: Path, hub: Hub) -> None:
    publish(hub, tmp_path)
    hub.put("tokenizer.json", b"{}")
    assert problems(tmp_path, hub=True) == ""
    manifest = MANIFEST.replace("[generics]", "[text]\nchat = false\n\n[generics]")
    found = problems(tmp_path, hub=True, manifest=manifest)
    assert found.startswith("text: ") and "tokenizer.json: is not a tokenizer" in found


def test_problems_are_numbered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path / "small")
    bad = write(tmp_path / "bad", manifest=MANIFEST.replace("title", "titel"), readme="")
    worse = write(tmp_path / "worse", readme="")
    assert main(["check", "--no-hub", "--no-exports", *map(str, (bad, worse, good))]) == 1
    assert capsys.readouterr().out == (
        f"{bad}: 1 problem\n"
        f"  1. {bad}/nest.toml: [model]: unknown key `titel`; did you mean `title`?\n"
        "small: 2 problems\n"
        "  1. nest.toml: [model] name is 'small', its directory is 'worse'\n"
        "  2. README.md: has 0 characters; a card's page has 200 or more\n"
        "small: ok\n"
    )


@pytest.mark.slow
def test_every_card_of_the_zoo() -> None:
    assert len(README) >= checking.SHORTEST
    found = {
        name: check(Card.read(directory), hub=False)
        for name, directory in card_directories().items()
    }
    assert found and {name: listed for name, listed in found.items() if listed} == {}
