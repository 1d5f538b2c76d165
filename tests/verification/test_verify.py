"""What `linnet verify` says: of models that agree, of backends that err, of what it cannot do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import linnet
from linnet import reference
from linnet.cli import main
from linnet.core.ir import Program
from linnet.diagnostics import LinnetError, PlanError
from linnet.reference import evaluate
from linnet.verification import runners, verify
from linnet.verification.report import certificate, text
from linnet.verification.runners import WAYS, Way
from linnet.weights import write_safetensors

FAMILIES = Path(linnet.__file__).parent / "zoo" / "families"
LLAMA = FAMILIES / "llama"
TINY = {"Vocab": 24, "H": 16, "Heads": 4, "KvHeads": 2, "Inner": 20, "Layers": 2, "MaxSeq": 16}
SOURCE = """module small

/// Keeps what it was shown last.
pub block Small<H: Dim, T: Float = bf16>
where H > 1
{
    param weight: Tensor[H, H; T]
    param bias: Tensor[H; T]? = none
    state rows: Tensor[4, H; T]

    /// Row `at` becomes the first of `x`, mixed.
    pub entry show<B: Dim>(x: Tensor[B, H; T], at: i32) -> Tensor[B, H; T]
    where B > 0
    {
        let mixed[b, h] = sum[k] x[b, k] * weight[h, k]
        let shifted = match bias {
            some(by) => mixed + by
            none => mixed
        }
        let here = iota<i32>(4) == at
        let kept[r, h] = select(here[r], shifted[0, h], rows[r, h])
        rows = kept
        return shifted
    }

    /// The position of the largest of each row.
    pub entry best<B: Dim>(x: Tensor[B, H; T]) -> Tensor[B; i32] {
        let score[b, h] = sum[k] x[b, k] * weight[h, k]
        let most[b] = max[h] score[b, h]
        let first[b] = min[h] select(score[b, h] == most[b], iota<i32>(H)[h], cast<i32>(H))
        return first
    }
}
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.linnet"
    path.write_text(SOURCE)
    return path


class Erring:
    """The reference as a backend, whose results and states something is done to."""

    def __init__(self, program: Program, weights: Any, errs: Any) -> None:
        self.program, self.weights, self.errs = program, weights, errs

    def run(
        self, entry: str, inputs: Sequence[Any], generics: Mapping[str, int], state: Any
    ) -> tuple[Any, dict[str, Any]]:
        states = {path: x.copy() for path, x in state.items()}
        found = evaluate(self.program, entry, inputs, self.weights, states, generics)
        return self.errs(entry, found, states) or (found, states)


class Stepping(Erring):
    """The reference, in which something is done to the value of each node."""

    def run(self, *args: Any) -> Any:
        right = reference.node_value

        def changed(node: Any, inputs: Any, sizes: Any, checked: bool = False) -> Any:
            return self.errs(node, right(node, inputs, sizes, checked))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reference, "node_value", changed)
            states = {path: x.copy() for path, x in args[3].items()}
            found = evaluate(self.program, args[0], args[1], self.weights, states, args[2])
            return found, states


def backend(monkeypatch: pytest.MonkeyPatch, errs: Any, kind: Any = Erring) -> None:
    """There is one backend: the reference with these errors."""
    way = Way(
        "erring", (), "", WAYS[0].kernels, lambda program, policy, own: kind(program, own, errs)
    )
    monkeypatch.setattr(runners, "WAYS", (way,))
    monkeypatch.setattr("linnet.verification.report.WAYS", (way,))


# ---------------------------------------------------------------- agreement


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_a_small_program_agrees_everywhere(small: Path, numerics: str, dtype: str) -> None:
    names = ["torch", "jax", "stablehlo", "onnx"] if dtype == "f32" else ["torch", "onnx"]
    report = verify(small, backends=names, numerics=numerics, generics={"H": 9, "T": dtype})
    assert report.agrees, text(report)
    step = {"f32": 2e-5, "bf16": 1e-2, "f16": 2e-3}[dtype]
    fast = {"f32": 2e-4, "bf16": 3e-2, "f16": 5e-3}[dtype]
    for outcome in report.outcomes:
        bound = (fast if numerics == "fast" else step) * 2**0.5
        assert outcome.bound == pytest.approx(bound) and outcome.worst <= bound
        assert outcome.cases[-2:] == ["past the axis", "before the axis"] or outcome.entry == "best"


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(path.name for path in FAMILIES.iterdir()))
def test_every_family_agrees_on_what_is_quick(family: str) -> None:
    """On the others in the differential tests of each backend, and for llama below."""
    wanted = {**TINY, "H": 64, "HeadDim": 16, "D": 16, "Inner": 64, "Batch": 3, "PageSize": 4}
    wanted |= {"MaxPositions": 20, "Layers": 4 if family in ("gemma3", "gpt_oss") else 2}
    known = {g.name for g in linnet.load_program(FAMILIES / family).generics()}
    generics = {name: size for name, size in wanted.items() if name in known}
    report = verify(FAMILIES / family, backends=["torch", "onnx"], generics=generics)
    assert report.agrees, text(report)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["jax", "stablehlo"])
def test_all_of_llama_agrees_in_jax(way: str) -> None:
    report = verify(LLAMA, backends=[way], generics=TINY)
    assert report.agrees and len(report.outcomes) == 17, text(report)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_llama_agrees_compiled() -> None:
    entries = ["forward", "decode", "step_paged"]
    report = verify(LLAMA, backends=["torch-compiled"], generics=TINY, entries=entries)
    assert report.agrees and len(report.outcomes) == 3, text(report)


# ---------------------------------------------------------------- indices outside an axis

WHAT = {
    "a position past the cache": {"pos": 16},
    "a position before it": {"pos": -1},
    "tokens that there are not": {"token": [24, -1, 25]},
    "both": {"pos": 16, "token": [-1, 24, 3]},
}


@pytest.mark.parametrize(
    "name",
    [
        "torch",
        "onnx",
        "jax",
        "stablehlo",
        pytest.param(
            "torch-compiled",
            marks=[pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")],
        ),
    ],
)
def test_an_index_past_its_axis_means_one_thing_in_llama(name: str) -> None:
    """`decode` gives what clamped tokens give, and what it does not write stays to the bit."""
    from linnet.core.passes import optimize
    from linnet.verification import draw

    sizes: dict[str, int | str] = {**TINY, "Batch": 3, "T": "f32"}
    loaded = linnet.load_program(LLAMA, optimize=False)
    lowered = loaded.lower(loaded.example(sizes), entries=["decode"])
    meant, made = optimize(lowered), optimize(lowered, "fast")
    own, before = draw.weights(meant, 3), draw.states(meant, 3)
    way = next(way for way in WAYS if way.name == name)
    runner = way.make(made, "fast", own)
    for changed in WHAT.values():
        at, token = changed.get("pos", 5), np.array(changed.get("token", [7, 1, 2]), np.int32)
        wanted_states = dict(before)
        inputs = [token[:, None], np.asarray(at, np.int32)]
        wanted = evaluate(meant, "decode", inputs, own, wanted_states, {})
        found, after = runner.run("decode", inputs, {}, before)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
        clamped, _ = runner.run("decode", [np.clip(token, 0, 23)[:, None], inputs[1]], {}, before)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(clamped))
        for path, old in before.items():
            new = np.asarray(after[path])
            if not 0 <= at < 16:
                np.testing.assert_array_equal(new, old, path)
                continue
            others = [p for p in range(16) if p != at]
            np.testing.assert_array_equal(new[:, :, others], old[:, :, others], path)
            np.testing.assert_allclose(new[:, :, at], wanted_states[path][:, :, at], atol=1e-5)


# ---------------------------------------------------------------- differences


def test_a_row_that_nothing_writes_must_not_move(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by a bit: the difference is far below what is allowed where something is written."""

    def errs(entry: str, found: Any, states: dict[str, Any]) -> None:
        if "rows" in states:
            states["rows"][3, 1] = np.nextafter(states["rows"][3, 1], np.float32(9))

    backend(monkeypatch, errs)
    report = verify(small, generics={"H": 8, "T": "f32"}, entries=["show"])
    (outcome,) = report.failures
    assert outcome.failure is not None
    assert outcome.failure.where == "state rows where nothing is written"
    assert outcome.failure.difference.at == (3, 1)
    assert "state rows where nothing is written differs at [3, 1]" in text(report)


def test_a_decision_between_equals_is_a_tie(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is right within rounding, and another position is the largest."""

    def rounding(node: Any, value: Any) -> Any:
        if type(node).__name__ == "Cast" and str(node.dtype) == "bf16" and value.ndim == 2:
            value = value.copy()
            for row in value:  # the two largest change places by less than is allowed
                second, first = np.argsort(row)[-2:]
                if row[first] - row[second] < 1e-2 * np.abs(row.astype(np.float32)).max():
                    row[first], row[second] = row[second], row[first]
        return value

    backend(monkeypatch, rounding, Stepping)
    report = verify(small, generics={"H": 300, "T": "bf16"}, entries=["best"])
    (outcome,) = report.outcomes
    assert report.agrees and outcome.ties, text(report)
    place = outcome.ties[0].place
    assert place is not None and place.kind == "decision"
    assert "a tie: " in text(report) and "tie" in text(report).split("allowed")[0]


def test_a_backend_that_gives_nothing_fails(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def errs(entry: str, found: Any, states: Any) -> None:
        raise (
            RuntimeError("the device is on fire\nand more") if entry == "best" else PlanError("no")
        )

    backend(monkeypatch, errs)
    report = verify(small, generics={"H": 8})
    said = text(report)
    assert "show on erring, case `1`, B=1: it gives nothing\n  no\n" in said
    assert "  RuntimeError: the device is on fire\n" in said and "and more" not in said
    assert "DIFFERS: 2 of 2" in said and said.count("FAILS") == 2


def test_results_of_another_shape_or_dtype(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend(monkeypatch, lambda entry, found, states: (found[:1].astype(np.float64), states))
    report = verify(small, generics={"H": 8, "T": "f32"}, entries=["show"])
    failure = report.outcomes[0].failure
    assert failure is not None
    assert failure.difference.what == "[1, 8] of f32 and [1, 8] of f64"


def test_a_difference_without_a_step_is_a_failure(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is off although no step is: what the entry gives is not what it gives in parts."""
    calls = 0

    def errs(entry: str, found: Any, states: Any) -> Any:
        nonlocal calls
        calls += 1
        return (found + np.float32(0.01), states) if calls == 1 else None

    backend(monkeypatch, errs)
    report = verify(small, generics={"H": 8, "T": "f32"}, entries=["show"])
    assert not report.agrees and "each step, run apart, is what" in text(report)


# ---------------------------------------------------------------- what cannot be done


def test_a_backend_that_is_not_installed(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is listed; naming it says what to install."""
    gone = replace(WAYS[2], needs=("a_package_that_is_not_there",))
    monkeypatch.setattr(runners, "WAYS", (WAYS[0], gone))
    report = verify(small, generics={"H": 4})
    assert report.agrees and [way.name for way in report.ways] == ["torch"]
    assert "not run: jax, since a_package_that_is_not_there is not installed" in text(report)
    message = r"backend jax needs a_package.*not installed: pip install 'linnet\[jax\]'"
    with pytest.raises(PlanError, match=message):
        verify(small, backends=["torch", "jax"], generics={"H": 4})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backends": ["jaxx"]}, "no backend jaxx; did you mean jax"),
        ({"entries": ["shows"]}, "has no entry shows; did you mean show"),
        ({"generics": {"Hh": 3}}, "has no generic Hh"),
        ({"generics": {"H": 1}}, "requires"),
        ({"numerics": "slow"}, "no numerics policy is called 'slow'"),
        ({"weights": "w.safetensors"}, "verify it in full"),
    ],
)
def test_a_wrong_request_says_what_is_wrong(
    small: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LinnetError, match=message):
        verify(small, **{"backends": ["torch"], **options})


def test_a_model_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(LinnetError, match="no card `smollm`"):
        verify("smollm")
    with pytest.raises(LinnetError, match="no such file or directory, and no card's name"):
        verify(tmp_path / "gone.linnet")
    (tmp_path / "bad.linnet").write_text("module bad\nentry f(x: f32) -> f32 { return y }\n")
    with pytest.raises(LinnetError, match="the source has 1 error"):
        verify(tmp_path / "bad.linnet")


def test_in_full_with_weights_of_a_file(small: Path, tmp_path: Path) -> None:
    """Names, shapes and dtypes are checked as loading checks them."""
    weight = np.random.default_rng(0).standard_normal((5, 5)).astype(np.float32)
    write_safetensors(tmp_path / "w.safetensors", {"weight": weight})
    sizes = {"H": 5, "T": "f32"}
    given = {"weights": tmp_path / "w.safetensors", "full": True, "backends": ["torch"]}
    report = verify(small, generics=sizes, **given)
    assert report.agrees and report.subject.weights.keys() == {"weight"}
    np.testing.assert_array_equal(report.subject.weights["weight"], weight)
    made = certificate(report)
    assert made["weights"]["files"] == [str(tmp_path / "w.safetensors")]
    assert made["weights"]["seed"] is None and made["model"]["full"] is True
    with pytest.raises(PlanError, match="weight"):
        verify(small, generics={"H": 6, "T": "f32"}, **given)


# ---------------------------------------------------------------- the command


def test_the_certificate(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same run gives the same document, with all that was compared."""
    line = ["verify", str(small), "--backends", "torch,onnx", "--json", "--generics", "H=6"]
    documents = []
    for _ in range(2):
        assert main(line) == 0
        documents.append(capsys.readouterr().out)
    assert documents[0] == documents[1]
    made = json.loads(documents[0])
    assert made["version"] == 1 and made["verdict"] == "agrees" and made["numerics"] == "fast"
    assert made["model"]["name"] == "small.linnet" and made["model"]["generics"] == {
        "H": 6,
        "T": "f32",
    }
    assert len(made["model"]["sha256"]) == len(made["weights"]["sha256"]) == 64
    assert made["weights"]["elements"] == 42 and made["weights"]["files"] == []
    assert made["backends"].keys() == {"torch", "onnx"}
    assert made["backends"]["onnx"].keys() == {"onnxruntime", "onnx"}
    show, best = made["entries"]
    assert (show["name"], best["name"]) == ("show", "best")
    assert [case["name"] for case in show["cases"]][-1] == "before the axis"
    assert show["cases"][-1]["outside"] == {"at": -1}
    for found in show["backends"].values():
        assert found["verdict"] == "agrees" and found["failure"] is None and found["ties"] == []
        assert found["worst_result"] <= found["bound"] and found["cases"] == 5
    other = main([*line[:-1], "H=6", "--seed", "1"])
    assert other == 0
    changed = json.loads(capsys.readouterr().out)
    assert changed["weights"]["sha256"] != made["weights"]["sha256"]
    assert changed["model"]["sha256"] == made["model"]["sha256"]


def test_a_difference_is_status_1_and_in_the_certificate(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    backend(monkeypatch, lambda node, x: -x if type(node).__name__ == "Dot" else x, Stepping)
    assert main(["verify", str(small), "--json", "--generics", "H=6", "T=f32"]) == 1
    made = json.loads(capsys.readouterr().out)
    assert made["verdict"] == "differs"
    failure = made["entries"][0]["backends"]["erring"]["failure"]
    assert failure["case"] == "1" and failure["where"] == "its result"
    assert failure["worst"] > failure["bound"] and len(failure["at"]) == 2
    step = failure["step"]
    assert step["worst"] == pytest.approx(2.0)
    assert step["kind"] == "step" and step["location"].startswith(str(small))
    assert step["line"] == "let mixed[b, h] = sum[k] x[b, k] * weight[h, k]"
    best = made["entries"][1]["backends"]["erring"]["failure"]
    assert best["worst"] is None and best["wanted"] != best["found"]


def test_wrong_command_lines(capsys: pytest.CaptureFixture[str], small: Path) -> None:
    for line in (["verify"], ["verify", "--generics", "H=3"], ["verify", str(small), "--fulll"]):
        assert main(line) == 2, line
    assert "no MODEL" in capsys.readouterr().err
    assert main(["verify", "--backends", "torch", "--generics", "H=3", str(small)]) == 0
    capsys.readouterr()
    assert main(["verify", str(small), "--backends", "numpy"]) == 1
    assert "linnet: no backend numpy" in capsys.readouterr().err
