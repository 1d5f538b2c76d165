"""The small card's real weights and tokenizer, from its mirror or the cache, beside transformers.

Fetched on first use (93 MB). Only LINNET_OFFLINE=1 without a cached copy skips these tests.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnet.nest.card import find_card
from linnet.nest.fetch import WeightFiles, fetch_weights, local_weights
from linnet.serve.text import Text
from linnet.weights import Slot, open_checkpoint, plan_bindings, read_bound

pytestmark = pytest.mark.slow
CARD = find_card("smollm2-135m-instruct")
# The Hub's file has another precision: what is compared here is the mirror's, wherever it runs.
MIRRORED = replace(CARD, weights=replace(CARD.weights, repo="", files=()))
QUESTION = [{"role": "user", "content": "Explain in two sentences why the sky is blue."}]


@pytest.fixture(scope="module")
def files() -> WeightFiles:
    if local_weights(MIRRORED) is None and os.environ.get("LINNET_OFFLINE") == "1":
        pytest.skip(f"LINNET_OFFLINE=1, and the weights of {CARD.name} are not cached")
    return fetch_weights(MIRRORED)


@pytest.fixture(scope="module")
def text(files: WeightFiles) -> Text:
    return Text.load(files.text_files)


@pytest.fixture(scope="module")
def theirs(files: WeightFiles) -> Any:
    """The tokenizer that transformers makes of the same file."""
    from transformers import AutoTokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = files.files[0]
        return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def slots() -> list[Slot]:
    """What the program of the card asks for, written out by hand, in f32."""
    h, inner, kv, vocab = 576, 1536, 192, 49152
    layer = {
        "attention_norm": (h,),
        "attention.q_proj": (h, h),
        "attention.k_proj": (kv, h),
        "attention.v_proj": (kv, h),
        "attention.o_proj": (h, h),
        "mlp_norm": (h,),
        "mlp.gate": (inner, h),
        "mlp.up": (inner, h),
        "mlp.down": (h, inner),
    }
    paths: dict[str, tuple[int, ...]] = {"embedding.weight": (vocab, h)}
    for k in range(30):
        paths |= {f"layers.{k}.{name}.weight": shape for name, shape in layer.items()}
    paths |= {"norm.weight": (h,), "lm_head.weight": (vocab, h)}
    return [Slot(path, shape, "f32") for path, shape in paths.items()]


def test_every_tensor_is_what_transformers_reads(files: WeightFiles) -> None:
    from transformers import AutoModelForCausalLM

    bound = plan_bindings(slots(), open_checkpoint(files.files), files.bindings)
    names = {one.slot.path: one.location.name for one in bound}
    path: Path = files.files[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)
    reference = model.state_dict()
    count = 0
    for group, array in read_bound(bound):
        for slot in group:
            assert np.array_equal(reference[names[slot.path]].numpy(), array), slot.path
        count += array.size
    assert count == 134_515_008


def test_half_precision_asks_for_a_conversion_of_the_norms_alone(files: WeightFiles) -> None:
    halves = [Slot(slot.path, slot.shape, "bf16") for slot in slots()]
    bound = plan_bindings(halves, files.files, files.bindings, cast_dtype=True)
    assert sum(one.cast for one in bound) == 61  # the vectors, which GGUF keeps in f32


TEXTS = [
    "Hello, world! It's 2024, and I'LL pay 3.14159 for it.",
    "  leading and   several spaces\n\n\ttabs\r\n",
    "Grüße, naïve café — “quotes” … 日本語のテキスト 🙂👩‍👩‍👧‍👦",
    "def f(x):\n    return x**2 + 10_000\n",
    "<|im_start|>system\nx<|im_end|>\n<|endoftext|>",
    "",
    " ",
    "a" * 300,
]


@pytest.mark.parametrize("written", TEXTS)
def test_ids_and_text_are_those_of_transformers(text: Text, theirs: Any, written: str) -> None:
    ids = text.encode(written)
    assert ids == theirs.encode(written)
    assert text.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    stream = text.stream()
    assert "".join(map(stream.push, ids)) + stream.finish() == text.decode(ids)


def test_the_chat_template_and_its_system_prompt(text: Text, theirs: Any) -> None:
    rendered = text.render_chat(QUESTION)
    assert rendered.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert rendered == theirs.apply_chat_template(
        QUESTION, add_generation_prompt=True, tokenize=False
    )
    assert text.encode_chat(QUESTION) == theirs.encode(rendered, add_special_tokens=False)
    assert text.eos == {theirs.eos_token_id} == {2}
    own = [{"role": "system", "content": "Be brief."}, *QUESTION]
    assert text.render_chat(own) == theirs.apply_chat_template(
        own, add_generation_prompt=True, tokenize=False
    )
