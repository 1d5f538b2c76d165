"""`linnet embed` on a tiny card of its own, and each way its input can be wrong."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnet.cli import main
from linnet.nest.card import find_card
from linnet.weights import read_bindings, write_safetensors

CARD = """
[model]
name = "tiny"
title = "Tiny"
[source]
package = "bert"
root = "Model"
entry = "forward"
[generics]
Vocab = 40
MaxPositions = 12
TypeVocab = 2
D = 16
Heads = 2
Inner = 24
Layers = 2
[constants]
FIRST_POSITION = 2
[weights]
files = ["model.safetensors"]
bindings = "bindings.json"
"""
SIZES = {"Vocab": 40, "MaxPositions": 12, "TypeVocab": 2, "D": 16, "Inner": 24}
Run = Any


def tensors() -> dict[str, np.ndarray]:
    """A checkpoint under MiniLM's names."""
    draw = np.random.default_rng(3)
    shapes: dict[str, tuple[int, ...]] = {}
    bindings = read_bindings(find_card("all-MiniLM-L6-v2").bindings_path or "")
    rows = {"word": "Vocab", "position": "MaxPositions", "token_type": "TypeVocab"}
    for path, name in bindings.items():
        part = path.split(".")[-2]
        out = SIZES[rows.get(part, "Inner" if part == "intermediate" else "D")]
        inner = SIZES["Inner" if path == "layers.{i}.output.dense.weight" else "D"]
        vector = path.endswith("bias") or part == "norm"
        for i in range(2 if "{i}" in name else 1):
            shapes[name.replace("{i}", str(i))] = (out,) if vector else (out, inner)
    return {n: draw.standard_normal(s).astype(np.float32) * 0.3 for n, s in shapes.items()}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A card with weights and a tokenizer beside it that pads and cuts to 6 tokens by itself."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    folder = tmp_path_factory.mktemp("cards") / "tiny"
    folder.mkdir()
    (folder / "nest.toml").write_text(CARD)
    bindings = find_card("all-MiniLM-L6-v2").bindings_path
    assert bindings is not None
    shutil.copy(bindings, folder / "bindings.json")
    write_safetensors(folder / "model.safetensors", tensors())
    words = {"[CLS]": 0, "[SEP]": 1, "[PAD]": 2, "[UNK]": 3, **{f"w{i}": i for i in range(4, 40)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    tokenizer.enable_padding(length=6, pad_id=2, pad_token="[PAD]")
    tokenizer.enable_truncation(6)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def card(original: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(original, tmp_path / "tiny"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `linnet` as users do, without our checks: status, standard output and error."""
    monkeypatch.delenv("LINNET_CHECKS")

    def call(*words: object) -> tuple[int, str, str]:
        status = main([*map(str, words)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert "bug in Linnet" not in err, err
        return status, out, err

    return call


def expected(texts: list[list[int]]) -> np.ndarray:
    """The reference's vectors, each text alone."""
    from linnet.loading import load_source
    from linnet.reference import evaluate
    from linnet.weights import read_bound

    card = find_card("all-MiniLM-L6-v2")
    loaded = load_source(
        card.source_path,
        generics={**SIZES, "Heads": 2, "Layers": 2},
        constants={"FIRST_POSITION": 2},
        entries=["embed"],
        weights=tensors(),
        bindings=card.bindings_path,
    )
    members = {s.path: array for slots, array in read_bound(loaded.bound or []) for s in slots}
    rows: list[np.ndarray] = []
    for words in texts:
        tokens = np.array([[0, *words, 1]], np.int32)
        given = [tokens, np.zeros_like(tokens)]
        rows.append(evaluate(loaded.program, "embed", given, members, {}, {})[0])
    return np.stack(rows)


@pytest.mark.slow
def test_texts_of_every_length_and_of_standard_input(
    run: Run, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("w9 w8 w7\n\nw30 w31 w32 w33 w34 w35\n"))
    status, out, err = run("embed", original, "w5 w6", "-", "w6 w5", "--json")
    document = json.loads(out)
    assert status == 0 and "loading tiny" in err
    assert document["dimensions"] == 16 and document["model"] == str(original)
    rows = document["texts"]
    assert [row["text"] for row in rows[:3]] == ["w5 w6", "w9 w8 w7", ""]
    assert [row["tokens"] for row in rows] == [4, 5, 2, 8, 4]
    assert {row["cut"] for row in rows} == {0}
    found = np.array([row["vector"] for row in rows])
    wanted = expected([[5, 6], [9, 8, 7], [], [30, 31, 32, 33, 34, 35], [6, 5]])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_lines_of_numbers_and_the_matrix(run: Run, original: Path) -> None:
    status, out, _ = run("embed", original, "w5 w6", "w7", "--threads", 1)
    found = np.array([[float(n) for n in line.split()] for line in out.splitlines()])
    assert status == 0
    np.testing.assert_allclose(found, expected([[5, 6], [7]]), rtol=0, atol=1e-5)
    status, out, _ = run("embed", original, "w5 w6", "w7", "--similarity")
    head, *rows = out.splitlines()
    assert head.split() == ["1", "2"]
    cosine = f"{float(found[0] @ found[1]):.4f}"
    assert [row.split() for row in rows] == [
        ["1", "1.0000", cosine, "w5", "w6"],
        ["2", cosine, "1.0000", "w7"],
    ]


@pytest.mark.slow
def test_long_texts_are_cut_with_a_notice(run: Run, card: Path) -> None:
    long = " ".join(f"w{i}" for i in range(4, 34))
    status, out, err = run("embed", card, "w5", long, "--json", "--similarity")
    row = json.loads(out)["texts"][1]
    assert status == 0
    assert (row["tokens"], row["cut"]) == (10, 22)  # 12 positions, of which 2 come before the first
    assert err.startswith(
        "linnet: text 2 has 32 tokens and the model takes 10: the rest is cut off"
    )
    assert "(w4 w5" in err and "...)" in err
    wanted = expected([[5], list(range(4, 12))])
    np.testing.assert_allclose(row["vector"], wanted[1], rtol=0, atol=1e-5)
    assert json.loads(out)["similarity"][0][1] == round(float(wanted[0] @ wanted[1]), 6)
    (card / "sentence_bert_config.json").write_text('{"max_seq_length": 5}')
    _, _, err = run("embed", card, "w5 w6 w7", "w5 w6 w7 w8")
    assert "text 2 has 6 tokens and the model takes 5" in err and "text 1" not in err


@pytest.mark.slow
def test_weights_that_lie_elsewhere_and_another_dtype(
    run: Run, original: Path, card: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(original, tmp_path / "other"))
    (card / "model.safetensors").unlink()
    (card / "tokenizer.json").unlink()
    _, exact, _ = run("embed", card, "w5 w6", "--weights", other)
    status, out, _ = run("embed", card, "w5 w6", "--weights", other, "--dtype", "bf16")
    a, b = (np.array([float(n) for n in text.split()]) for text in (exact, out))
    assert status == 0 and 0 < np.abs(a - b).max() < 0.05


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["w5", "--threads", "0"], "--threads is 0"),
        (["w5", "--threads", str(10**23)], "4096 at most"),
        (["w5", "--dtype", "f23"], "--dtype is f23; choose f32, bf16, f16, f64, or q8 or q4"),
        (["w5", "--numerics", "sloppy"], "no numerics policy is called 'sloppy'"),
        (["w5", "--weights", "/no/such/place"], "/no/such/place"),
        (["w5", "--weights", "x" * 5000], "no such file or directory"),
        (["-"], "there is no text to embed: standard input is empty"),
    ],
)
def test_wrong_options_are_named(
    run: Run, original: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    status, out, err = run("embed", original, *words)
    assert (status, out) == (1, "") and message in err


@pytest.mark.slow
def test_tokenizers_that_do_not_fit(run: Run, card: Path) -> None:
    manifest = (card / "nest.toml").read_text()
    (card / "nest.toml").write_text(manifest.replace("Vocab = 40\nM", "Vocab = 39\nM"))
    status, _, err = run("embed", card, "w5")
    assert status == 1 and "has 40 tokens, tiny has Vocab = 39: it is another model's" in err
    (card / "sentence_bert_config.json").write_text('{"max_seq_length": "long"}')
    (card / "nest.toml").write_text(manifest)
    status, _, err = run("embed", card, "w5")
    assert status == 1 and "max_seq_length is 'long', not a number of tokens" in err
    (card / "sentence_bert_config.json").write_text("[5]")
    status, _, err = run("embed", card, "w5")
    assert status == 1 and "sentence_bert_config.json: is not a JSON object" in err
    (card / "tokenizer.json").unlink()
    status, _, err = run("embed", card, "w5")
    assert status == 1 and "no tokenizer" in err


def test_a_checkpoint_that_pools_otherwise_is_refused(run: Run, card: Path) -> None:
    (card / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (card / "1_Pooling/config.json").write_text(json.dumps(modes))
    assert run("embed", card, "w5")[0] == 0
    modes = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (card / "1_Pooling/config.json").write_text(json.dumps(modes))
    status, out, err = run("embed", card, "w5")
    assert (status, out) == (1, "")
    assert "1_Pooling/config.json: `pooling_mode_cls_token` is true" in err
    assert "`embed` of tiny takes the mean" in err


@pytest.mark.slow
def test_what_else_a_text_goes_through_is_refused(run: Run, card: Path) -> None:
    (card / "1_Pooling").mkdir()
    (card / "1_Pooling/config.json").write_text('{"pooling_mode": "cls"}')
    assert '`pooling_mode` is "cls"' in run("embed", card, "w5")[2]
    (card / "1_Pooling/config.json").write_text('{"pooling_mode": "mean"}')
    path = "sentence_transformers.models."
    modules = [{"idx": 0, "type": f"{path}Transformer"}, {"idx": 1, "type": f"{path}Dense"}]
    (card / "modules.json").write_text(json.dumps(modules))
    assert "modules.json: has a module Dense, which `embed`" in run("embed", card, "w5")[2]


@pytest.mark.slow
def test_texts_are_made_small_where_the_checkpoint_says_so(run: Run, card: Path) -> None:
    (card / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    assert run("embed", card, "W5 w6")[1] == run("embed", card, "w5 w6")[1] != ""


def test_a_decoder_is_refused_before_anything_is_fetched(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINNET_NEST_CACHE", str(tmp_path))
    monkeypatch.setenv("LINNET_OFFLINE", "1")
    status, _, err = run("embed", "smollm2-135m-instruct", "w5")
    assert status == 1
    assert "smollm2-135m-instruct is not for sentence vectors: it has no entry embed" in err
    assert "for text generation with it: linnet run smollm2-135m-instruct TEXT" in err
    assert "models for sentence vectors: all-MiniLM-L6-v2" in err


def test_an_encoder_is_refused_by_run(run: Run, original: Path) -> None:
    status, out, err = run("run", original, "w5")
    assert (status, out) == (1, "")
    assert "tiny is not for text generation: it has no entry prefill, only forward, embed\n" in err
    assert "for sentence vectors with it: linnet embed tiny TEXT" in err
