"""`linnet run` on a tiny card of its own, each way its input can be wrong, and the demo."""

from __future__ import annotations

import io
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnet.cli import main
from linnet.weights import write_safetensors

from ..models import tiny

CONTEXT = 24
CARD = """
[model]
name = "tiny"
title = "Tiny"
[source]
package = "llama"
root = "Model"
entry = "forward"
[generics]
Vocab = 96
H = 48
Heads = 6
KvHeads = 2
Inner = 80
Layers = 2
Batch = 1
MaxSeq = 24
T = "f32"
[weights]
files = ["model.safetensors"]
bindings = "bindings.json"
"""
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A card with weights and a tokenizer of one word per id beside it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("cards") / "tiny"
    folder.mkdir()
    (folder / "nest.toml").write_text(CARD)
    (folder / "bindings.json").write_text(json.dumps(tiny.NAMES))
    write_safetensors(folder / "model.safetensors", tiny.weights())
    words = {f"w{i}": i for i in range(96)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


@pytest.fixture
def card(original: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(original, tmp_path / "tiny"))


Run = Any


def also(*values: object) -> Any:
    """A case of the slow tier: each loads a model, or tries to."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `linnet run` as users do, without our checks: status, standard output and error."""
    monkeypatch.delenv("LINNET_CHECKS")

    def call(*words: object) -> tuple[int, str, str]:
        status = main(["run", *map(str, words)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert "bug in Linnet" not in err, err
        return status, out, err

    return call


PROMPT = [3, 14, 15, 92, 65]
TEXT = " ".join(f"w{i}" for i in PROMPT)


def greedy(count: int) -> list[int]:
    sequence = list(PROMPT)
    for _ in range(count):
        logits = tiny.logits(10000.0, np.array([sequence], np.int32))
        sequence.append(int(logits[0, -1].argmax()))
    return sequence[len(PROMPT) :]


@pytest.mark.slow
def test_the_answer_is_the_greedy_one(run: Run, original: Path) -> None:
    status, out, err = run(original, TEXT, "--max-new-tokens", 6)
    assert status == 0
    assert out.split() == [f"w{i}" for i in greedy(6)]
    assert "loading tiny" in err
    assert "6 tokens (length)" in err
    assert "tokens/s" in err


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "onnx"])
def test_other_backends_say_the_same(run: Run, original: Path, backend: str) -> None:
    words = [TEXT, "--max-new-tokens", 6, "--backend", backend]
    assert run(original, *words)[1].split() == [f"w{i}" for i in greedy(6)]
    status, out, _ = run(original, *words, "--threads", 1, "--temperature", 0.7, "--seed", 3)
    assert status == 0 and len(out.split()) == 6


@pytest.mark.slow
def test_a_model_larger_than_it_may_be(run: Run, original: Path) -> None:
    words = ["w1 w2", "--max-new-tokens", 4, "--max-memory"]
    status, out, err = run(original, *words, "cpu=110KiB")
    assert status == 0 and "linnet: cpu: brought for each call: " in err
    assert out == run(original, "w1 w2", "--max-new-tokens", 4)[1]
    status, _, err = run(original, *words, "cpu=10KiB")
    assert status == 1 and "cpu may hold 10.0 KiB, and with everything offloaded" in err
    status, _, err = run(original, *words, "10KiB")
    assert status == 1 and "--max-memory 10KiB: give NAME=VALUE pairs, each name once" in err


@pytest.mark.slow
def test_json_says_all(run: Run, original: Path) -> None:
    status, out, _ = run(original, TEXT, "--max-new-tokens", 4, "--json")
    document = json.loads(out)
    assert status == 0
    assert document["tokens"] == greedy(4)
    assert document["prompt_tokens"] == 5
    assert document["finish_reason"] == "length"


@pytest.mark.slow
def test_options_may_stand_before_the_prompt(run: Run, original: Path) -> None:
    status, out, _ = run(original, "--max-new-tokens", 3, TEXT, "--raw")
    assert status == 0 and len(out.split()) == 3
    assert out == run(original, TEXT, "--raw", "--max-new-tokens", 3)[1]


@pytest.mark.slow
def test_the_prompt_may_come_from_standard_input(
    run: Run, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT))
    _, out, _ = run(original, "--max-new-tokens", 3)
    assert len(out.split()) == 3
    assert out == run(original, TEXT, "--max-new-tokens", 3)[1]


@pytest.mark.slow
def test_sampling_follows_its_seed(run: Run, original: Path) -> None:
    hot = (original, TEXT, "--max-new-tokens", 12, "--temperature", 2.0)
    first, again, other = (run(*hot, "--seed", s)[1] for s in (1, 1, 2))
    assert first == again != other
    _, nearly_greedy, _ = run(*hot, "--top-k", 1)
    assert nearly_greedy.split() == [f"w{i}" for i in greedy(12)]
    _, nearly_greedy, _ = run(*hot, "--top-p", 1e-9)
    assert nearly_greedy.split() == [f"w{i}" for i in greedy(12)]


@pytest.mark.slow
def test_the_context_bounds_what_is_generated(run: Run, original: Path) -> None:
    status, out, err = run(original, TEXT, "--max-new-tokens", 100)
    assert status == 0
    assert len(out.split()) == CONTEXT - len(PROMPT)
    assert "at most 19 new ones follow the prompt's 5" in err


@pytest.mark.slow
def test_weights_in_few_bits_and_what_stays_floats(run: Run, card: Path) -> None:
    wider = {
        name: np.concatenate([x, x[:16] if "down" not in name else x[:, :16]], int("down" in name))
        for name, x in tiny.weights().items()
        if ".mlp." in name
    }
    write_safetensors(card / "model.safetensors", {**tiny.weights(), **wider})
    manifest = (card / "nest.toml").read_text()
    (card / "nest.toml").write_text(manifest.replace("Inner = 80", "Inner = 96"))
    status, out, err = run(card, TEXT, "--dtype", "q8")
    assert status == 0 and out.split()
    assert "linnet: storage='q8': these weights stay in floats" in err
    assert "layers.*.mlp.gate.weight: has rows of 48, which are not whole blocks of 32" in err
    assert "mlp.down" not in err and "Warning" not in err


@pytest.mark.slow
def test_an_interrupt_stops_cleanly(
    run: Run, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from linnet.serve.text import Detokenizer

    push, seen = Detokenizer.push, 0

    def interrupted(self: Detokenizer, token: int) -> str:
        nonlocal seen
        seen += 1
        if seen == 4:
            raise KeyboardInterrupt
        return push(self, token)

    monkeypatch.setattr(Detokenizer, "push", interrupted)
    status, out, err = run(original, TEXT)
    assert status == 130
    assert out.split() == [f"w{i}" for i in greedy(3)]
    assert "(interrupted)" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-new-tokens", "0"], "--max-new-tokens is 0"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--temperature", "nan"], "temperature is nan"),
        (["--top-p", "0"], "top_p is 0.0"),
        (["--top-k", "-2"], "top_k is -2"),
        (["--threads", "0"], "--threads is 0"),
        (["--threads", str(10**23)], "4096 at most"),
        (["--dtype", "q5"], "--dtype is q5; choose f32, bf16, f16, f64, or q8 or q4 for weights"),
        (["--dtype", "i32"], "--dtype is i32; choose f32, bf16"),
        (["--max-memory", "4"], "--max-memory 4: give NAME=VALUE pairs"),
        (["--dtype", "q4"], "no weight of Model can be kept in blocks"),
        (["--dtype", "q8", "--numerics", "exact"], "choose 'equivalent' or 'fast'"),
        (["--backend", "tf"], "--backend is tf; choose torch, jax, onnx"),
        (["--backend", "onnx", "--dtype", "q4"], "--dtype q4 is for torch"),
        (["--backend", "jax", "--max-memory", "cpu=1GiB"], "--max-memory is for torch, not jax"),
        (["--numerics", "sloppy"], "no numerics policy is called 'sloppy'"),
        (["--weights", "/no/such/file.safetensors"], "/no/such/file.safetensors"),
        (["--std", "/no/such/std"], "/no/such/std"),
    ],
)
@pytest.mark.slow
def test_wrong_options_are_named(run: Run, original: Path, words: list[str], message: str) -> None:
    status, out, err = run(original, TEXT, *words)
    assert status == 1
    assert message in err
    assert out == ""


def test_prompts_that_cannot_be(run: Run, original: Path) -> None:
    status, _, err = run(original, " ")
    assert status == 1 and "the prompt is empty" in err
    status, _, err = run(original, " ".join(["w1"] * 24))
    assert status == 1
    assert "the prompt is 24 tokens long and the model's context holds 24" in err


def test_cards_that_cannot_be(run: Run, original: Path, tmp_path: Path) -> None:
    status, _, err = run("smollm2-135m-instrct", TEXT)
    assert status == 1 and "did you mean `smollm2-135m-instruct`" in err
    empty = tmp_path / "empty"
    empty.mkdir()
    status, _, err = run(empty, TEXT)
    assert status == 1 and "nest.toml" in err


def damaged(card: Path, how: str) -> None:
    """One thing wrong with the weights."""
    path = card / "model.safetensors"
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    name = "model.layers.1.mlp.up_proj.weight"

    def rewrite(changed: dict[str, Any]) -> None:
        text = json.dumps(changed).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    match how:
        case "cut":
            path.write_bytes(data[:-100])
        case "padded":
            path.write_bytes(data + b"\0" * 8)
        case "overlapping":
            start, end = header[name]["data_offsets"]
            header[name]["data_offsets"] = [start - 4, end - 4]
            rewrite(header)
        case "wrong shape":
            header[name]["shape"] = header[name]["shape"][::-1]
            rewrite(header)
        case "missing" | "extra" | "wrong dtype":
            arrays: dict[str, Any] = dict(tiny.weights())
            if how == "missing":
                del arrays[name]
            elif how == "extra":
                arrays["model.surprise.weight"] = np.zeros((2, 3), np.float32)
            else:
                arrays[name] = arrays[name].astype(np.float16)
            write_safetensors(path, arrays)


@pytest.mark.parametrize(
    ("how", "messages"),
    [
        ("cut", ["model.safetensors", "cut short"]),
        also("padded", ["model.safetensors", "8 bytes too long"]),
        also("overlapping", ["model.layers.1.mlp.up_proj.weight", "overlap"]),
        ("wrong shape", ["layers.1.mlp.up.weight", "[80, 48]", "[48, 80]"]),
        also("wrong dtype", ["layers.1.mlp.up.weight", "f32", "f16", "cast_dtype"]),
        ("missing", ["missing tensors", "model.layers.1.mlp.up_proj.weight"]),
        also("extra", ["model.surprise.weight", "[2, 3]"]),
    ],
)
@pytest.mark.slow
def test_damaged_weights_are_refused_whole(
    run: Run, card: Path, how: str, messages: list[str]
) -> None:
    damaged(card, how)
    status, out, err = run(card, TEXT)
    assert status == 1
    assert out == ""
    for message in messages:
        assert message in err, err


@pytest.mark.slow
def test_a_missing_weight_file_is_named_with_what_was_tried(run: Run, card: Path) -> None:
    (card / "model.safetensors").unlink()
    status, _, err = run(card, TEXT)
    assert status == 1
    assert "cannot get the weights of tiny" in err
    assert "model.safetensors" in err


@pytest.mark.parametrize(
    ("line", "replacement", "message"),
    [
        ("Heads = 6", "Heads = 5", "Model requires"),
        also("KvHeads = 2", "KvHeads = 0", "Model requires"),
        also("Layers = 2", "Layers = -1", "`Layers` is -1, not a size"),
        ("Layers = 2", "Layerz = 2", "Model has no generic Layerz; did you mean Layers?"),
        also("Inner = 80\n", "", "Model needs values for Inner"),
        also('root = "Model"', 'root = "Modle"', "has no block Modle; did you mean Model?"),
        also('T = "f32"', "T = 32", "T is a dtype"),
        ('package = "llama"', 'package = "lama"', "lama"),
        ("[weights]", "[constants]\nTHETTA = 1.0\n[weights]", "THETTA"),
    ],
)
@pytest.mark.slow
def test_cards_that_do_not_fit_their_source(
    run: Run, card: Path, line: str, replacement: str, message: str
) -> None:
    text = (card / "nest.toml").read_text()
    assert line in text
    (card / "nest.toml").write_text(text.replace(line, replacement))
    status, _, err = run(card, TEXT)
    assert status == 1
    assert message in err, err


def test_a_source_with_errors_is_shown(run: Run, card: Path) -> None:
    (card / "src").mkdir()
    (card / "linnet.toml").write_text('[package]\nname = "m"\nversion = "1.0"\nlanguage = "0.1"\n')
    source = """module m
pub block Model<H: Dim> {
    param w: Tensor[H; f32]
    pub entry prefill<S: Dim>(x: Tensor[S; f32]) -> Tensor[S; f32] {
        return x + w
    }
}
"""
    (card / "src" / "lib.linnet").write_text(source)
    text = (card / "nest.toml").read_text().replace('package = "llama"\n', "")
    (card / "nest.toml").write_text(text)
    status, _, err = run(card, TEXT)
    assert status == 1
    assert "E2207" in err and "return x + w" in err
    assert "with H = " in err


@pytest.mark.slow
def test_the_demo_says_what_transformers_says(run: Run) -> None:
    """72 tokens in f32 on the real weights; the fixture is made by bench/demo_tokens.py."""
    fixture = Path(__file__).parent.parent / "fixtures" / "demo.json"
    wanted = json.loads(fixture.read_text())
    status, out, _ = run(
        wanted["model"], wanted["prompt"], "--dtype", "f32", "--max-new-tokens", 72, "--json"
    )
    document = json.loads(out)
    assert status == 0
    assert document["prompt_tokens"] == len(wanted["prompt_ids"])
    assert document["tokens"] == wanted["tokens"]
    assert document["text"] == wanted["text"]
