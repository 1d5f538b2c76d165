"""bench.json, its table and its drawing, from rows made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from bench import imports, peers, probe, record
from bench.chart import chart
from bench.job import Round
from bench.memory import used_by
from bench.methods import UnknownMethod, method, methods
from bench.peers import ggml_flags
from bench.record import Measured, Workload
from bench.run import main
from bench.table import table
from bench.traffic import Sizes, limits

# SmolLM2 135M.
SIZES = Sizes(49152, 576, 30, 9, 3, 64, 1536, True)
WORKLOAD = Workload("cpu", 512, 128, 1, 1, 3, 0, 2, "f32", False)
PROBE = {"bandwidth": 23e9, "product": {"f32": 190e9, "bf16": None}}
ROW = {"method", "kind", "metrics", "max_abs_diff", "notes", "error", "key"}


def measured(
    key: str, first: float, rest: float, folder: Path, logits: list[float] | None = None
) -> Measured:
    one = Measured(method(key, "f32"), load_s=1.5, start_to_first_token_s=4.0, version="v 1")
    one.rounds = [Round(first * k, rest * k, [7] * 128) for k in (1.0, 1.2, 0.5)]
    one.peak_kib = 600 << 10
    if logits is not None:
        one.logits = folder / f"{key}.npy"
        np.save(one.logits, np.array(logits, np.float32))
    return one


@pytest.fixture
def found(tmp_path: Path) -> dict[str, Any]:
    failed = Measured(method("vllm", "f32"), error="no <such> package & more")
    rows = [
        measured("llamacpp", 1.4, 3.5, tmp_path, [1.0, 2.25, 0.0]),
        measured("transformers-eager-bf16", 0.5, 9.0, tmp_path, [1.0, 2.0, 0.0]),
        measured("transformers-eager", 1.0, 8.0, tmp_path, [1.0, 2.0, 0.5]),
        measured("linnet-torch", 0.7, 3.2, tmp_path, [1.0, 2.0, 0.5]),
        measured("openvino", 0.6, 4.0, tmp_path),
        failed,
    ]
    return record.document(rows, WORKLOAD, SIZES, PROBE, [0.1, 0.9], {"ratio": 1.05})


def test_the_form_of_the_file(found: dict[str, Any]) -> None:
    again = json.loads(json.dumps(found))
    assert again == found
    assert set(found) == {"date", "environment", "workload", "methods", "reference", "imports"}
    assert all(isinstance(value, str) for value in found["environment"].values())
    assert {"python", "machine", "linnet", "bandwidth"} <= set(found["environment"])
    assert found["environment"]["products bf16"] == "too slow to measure"
    assert found["workload"]["prompt_tokens"] == 512 and found["workload"]["new_tokens"] == 128
    assert all(set(row) == ROW for row in found["methods"])
    assert [row["kind"] for row in found["methods"]].count("linnet") == 1
    assert found["reference"] == "transformers-eager"


def test_metrics_and_differences(found: dict[str, Any]) -> None:
    rows = {row["key"]: row for row in found["methods"]}
    own = rows["linnet-torch"]["metrics"]
    assert own["ttft_ms"] == 700.0
    assert own["decode_tok_s"] == round(127 / 3.2, 2)
    assert own["peak_memory_mib"] == 600.0
    assert own["first_token"] == 7
    differences = {key: row["max_abs_diff"] for key, row in rows.items()}
    assert differences == {
        "llamacpp": 0.5,
        "transformers-eager-bf16": 0.5,
        "transformers-eager": 0.0,
        "linnet-torch": 0.0,
        "openvino": None,
        "vllm": None,
    }
    assert rows["vllm"]["metrics"] == {} and rows["vllm"]["error"] == "no <such> package & more"


def test_shares_are_of_what_the_machine_allows(found: dict[str, Any]) -> None:
    assert SIZES.read_per_token("f32") == pytest.approx(538e6, rel=1e-3)
    assert SIZES.caches("f32", 576, 1) == 2 * 30 * 3 * 64 * 4 * 576
    assert SIZES.prompt_flops(512, 1) == pytest.approx(118e9, rel=0.01)
    best = limits(SIZES, "f32", "f32", 512, 128, 1, 23e9, 190e9)
    assert best.decode_tok_s == pytest.approx(41, abs=0.5)
    assert best.ttft_ms == pytest.approx(620, abs=5)
    own = next(row for row in found["methods"] if row["key"] == "linnet-torch")["metrics"]
    assert own["decode_share"] == pytest.approx(127 / 3.2 / best.decode_tok_s, abs=1e-3)
    assert own["ttft_share"] == pytest.approx(best.ttft_ms / 700, abs=1e-3)
    bf16 = next(row for row in found["methods"] if row["key"] == "transformers-eager-bf16")
    # Its own product rate could not be measured: f32's is what such numbers can be multiplied at.
    assert bf16["metrics"]["ttft_share"] == pytest.approx(best.ttft_ms / 500, abs=1e-3)
    batch = limits(SIZES, "f32", "f32", 512, 128, 8, 23e9, 190e9)
    assert batch.decode_tok_s is not None and batch.decode_tok_s > 5 * best.decode_tok_s


def test_held_bytes_are_the_methods_own_or_by_size(tmp_path: Path) -> None:
    one = measured("linnet-torch-q4", 1.0, 1.0, tmp_path)
    by_size = 18 / 32 * SIZES.read_per_token("f32") / 4 + SIZES.caches("f32", 640, 1)
    assert record.held(one, WORKLOAD, SIZES) == pytest.approx(by_size)
    one.held = 5
    assert record.held(one, WORKLOAD, SIZES) == 5


def test_the_table(found: dict[str, Any]) -> None:
    lines = table(found).splitlines()
    assert lines[0].split()[0] == "method"
    by_key = {line.split()[0]: line for line in lines}
    assert by_key["linnet-torch"].split()[1:3] == ["700", "89"]
    assert "vllm: no <such> package & more" in lines
    assert "f32 prompt: linnet-torch is 0.86 times openvino" in lines
    assert "f32 decode: linnet-torch is 1.09 times llamacpp" in lines


def test_the_reference_is_the_widest(found: dict[str, Any], tmp_path: Path) -> None:
    rows = [measured(f"linnet-torch-{kind}", 1.0, 1.0, tmp_path, [1.0]) for kind in ("q4", "bf16")]
    assert record.reference_of(rows) is rows[1]
    assert record.reference_of(rows[:1]) is rows[0]
    assert record.reference_of([measured("vllm", 1.0, 1.0, tmp_path)]) is None
    said = "max diff: of the first token's logits, from those of transformers-eager"
    assert said in table(found).splitlines()


def test_what_a_peer_pulls_in_and_cannot_use_goes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []

    def call(command: list[str], variables: dict[str, str]) -> None:
        calls.append(command[1:])
        if "venv" in command:
            Path(command[-1]).mkdir()

    monkeypatch.setenv("LINNET_BENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(peers, "_call", call)
    peers.install("openvino")
    venv, installs, removes, *modules = calls
    assert venv[:2] == ["-m", "venv"] and installs[:3] == ["-m", "pip", "install"]
    assert removes == ["-m", "pip", "uninstall", "--quiet", "--yes", "torchvision"]
    assert [one[-1] for one in modules] == ["import openvino_genai", "import optimum.intel"]
    assert (tmp_path / "openvino" / ".ready").is_file()


def test_what_the_probe_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.lines_of(PROBE) == [
        "memory is read at 23.0 GB/s",
        "products in f32: 190.0 GFLOP/s",
        "products in bf16: too slow to measure",
    ]
    pages = probe.lines_of({"bandwidth": 23e9, "bandwidth_small_pages": 2e10, "product": {}})
    assert pages == ["memory is read at 23.0 GB/s (20.0 in pages of 4 KB)"]
    with pytest.raises(SystemExit):
        probe.main(["--dtypes", "q4"])
    with pytest.raises(SystemExit):
        imports.main(["--runs", "0"])
    said = capsys.readouterr().err
    assert "--dtypes has 'q4'; choose of f32, bf16, f16" in said
    assert "--runs is 0; it must be 1 or more" in said


def test_the_drawing(found: dict[str, Any]) -> None:
    found["methods"][0]["notes"] = 'a < b & "c"'
    drawing = ElementTree.fromstring(chart(found))
    space = "{http://www.w3.org/2000/svg}"
    texts = [text.text for text in drawing.iter(f"{space}text")]
    assert texts.count("linnet-torch") == 4  # one for each metric that it has
    assert "vllm" not in texts
    bars = list(drawing.iter(f"{space}rect"))
    assert [bar.get("class") for bar in bars[:5]] == [
        "reference", "best", "reference", "linnet", "reference",
    ]  # fmt: skip
    widths = [float(bar.get("width") or 0) for bar in bars[:5]]
    assert widths[1] / widths[0] == pytest.approx(0.5 / 1.4, abs=1e-3)


def test_rows_are_kept_with_merge(found: dict[str, Any], tmp_path: Path) -> None:
    record.write(tmp_path / "out", found, merge=True)
    one = measured("llamacpp", 9.0, 9.0, tmp_path)
    more = measured("linnet-torch-q4", 9.0, 9.0, tmp_path)
    new = record.document([more, one], WORKLOAD, SIZES, {}, [], None)
    merged = record.write(tmp_path / "out", new, merge=True)
    assert merged == json.loads((tmp_path / "out" / "bench.json").read_text())
    keys = [row["key"] for row in merged["methods"]]
    assert keys == [row["key"] for row in found["methods"]] + ["linnet-torch-q4"]
    assert merged["methods"][0]["metrics"]["ttft_ms"] == 9000.0
    assert merged["reference"] == "transformers-eager"
    assert record.write(tmp_path / "out", new, merge=False) == new


def test_keys() -> None:
    assert method("linnet-torch", "bf16").storage == "bf16"
    assert method("linnet-torch-q4", "bf16").storage == "q4"
    assert method("linnet-torch-q4", "bf16").dtype == "bf16"
    assert method("linnet-torch-f16", "bf16").dtype == "f16"
    assert method("llamacpp-flash-q8", "f32").family.options == {"flash": True}
    with pytest.raises(UnknownMethod, match=r"no method 'linnet-tvm'.*linnet-inductor"):
        method("linnet-tvm", "f32")
    with pytest.raises(UnknownMethod, match=r"transformers-eager-q4: .* has no q4 weights"):
        method("transformers-eager-q4", "f32")
    once = methods("linnet-torch, linnet-torch-f32,openvino-q4", "f32", "cpu")
    assert [one.key for one in once] == ["linnet-torch", "openvino-q4"]
    everything = {one.key for one in methods("all", "f32", "cpu")}
    assert {"transformers-eager", "linnet-cudagraphs-bf16", "llamacpp-q4"} <= everything
    assert "transformers-compile-q4" not in everything
    assert {one.storage for one in methods("all", "bf16", "cuda")} == {"bf16"}


def test_the_drivers_list_of_processes() -> None:
    listed = "17, 14512\n 4, 20\n17, 8\n18, [N/A]\n"
    assert used_by(17, listed) == 14520
    assert used_by(18, listed) is None and used_by(19, listed) is None


def test_llama_cpp_is_built_without_amx() -> None:
    found = ggml_flags(frozenset(["fpu", "avx2", "fma", "f16c", "avx512f", "amx_tile", "amx_int8"]))
    assert found == ["GGML_AVX2", "GGML_AVX512", "GGML_F16C", "GGML_FMA"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prompt", "0"], "--prompt is 0; it must be 1 or more"),
        (["--dtype", "q4"], "--dtype is q4; choose f32, bf16, f16"),
        (["--methods", "linnet"], "there is no method 'linnet'"),
        (["--warmup", "-1"], "--warmup is -1; it must be 0 or more"),
        (["--device", "cuba"], "--device cuba cannot be used: "),
        (["--prompt", "8192", "--new", "8"], "8200 positions; the context of smollm2-135m"),
    ],
)
def test_arguments_that_cannot_be(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["smollm2-135m-instruct", *arguments]) == 1
    assert said in capsys.readouterr().err


def test_a_card_without_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bert-base-uncased"]) == 1
    assert "bert-base-uncased makes no text" in capsys.readouterr().err
