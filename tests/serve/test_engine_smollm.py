"""The engine on the small card's real weights: greedy answers are those of the model alone, in f32.

Fetched on first use (93 MB). Only LINNET_OFFLINE=1 without a cached copy skips these tests.
"""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
import torch

from linnet import nest
from linnet.nest.card import find_card
from linnet.nest.fetch import fetch_weights, local_weights
from linnet.serve import Completion, Engine, Request, Text

pytestmark = pytest.mark.slow
CARD = find_card("smollm2-135m-instruct")
CLOSE = 1e-4
"""Two logits so near to each other may change places with the shape of a pass."""

SYSTEM = {"role": "system", "content": "You are a helpful assistant. Answer in one short sentence."}
QUESTIONS = [
    "Why is the sky blue?",
    "Name three primes above ten, and say why each of them is one.",
    "Translate to French: the bird sings in the morning. 🐦",
    "Write a line of Python that reverses a string.",
    "What is the capital of Norway, and what lies around it?",
]
NEW = 20


@pytest.fixture(scope="module")
def model() -> Any:
    """A pool of eleven pages of 8 positions: too few for all questions at once."""
    if local_weights(CARD) is None and os.environ.get("LINNET_OFFLINE") == "1":
        pytest.skip(f"LINNET_OFFLINE=1, and the weights of {CARD.name} are not cached")
    return nest.load(
        CARD,
        generics={"T": "f32", "Batch": 1, "MaxSeq": 96, "PageSize": 8},
        cast_dtype=True,
        entries=["forward", "prefill_paged", "decode_paged", "step_paged"],
    )


@pytest.fixture(scope="module")
def text() -> Text:
    return Text.load(fetch_weights(CARD).text_files)


@pytest.fixture(scope="module")
def prompts(text: Text) -> list[list[int]]:
    """Chats that begin with the same system message."""
    return [text.encode_chat([SYSTEM, {"role": "user", "content": one}]) for one in QUESTIONS]


def check(model: Any, answer: Completion) -> None:
    """Each token is the likeliest one, up to where the two best are within CLOSE of each other."""
    prompt = answer.request.prompt
    given = torch.tensor([[*prompt, *answer.tokens]], dtype=torch.int32)
    with torch.inference_mode():
        logits = model.run_entry("forward", [given])[0, len(prompt) - 1 : -1].numpy()
    for row, token in zip(logits, answer.tokens, strict=True):
        if row.argmax() != token:
            assert row.max() - row[token] < CLOSE, (answer.tokens, row.argmax())
            return


def test_greedy_answers_are_those_of_the_model_alone(
    model: Any, text: Text, prompts: list[list[int]]
) -> None:
    engine = Engine(model, text=text, rows=4, pack=48)
    draw = random.Random(0)
    waiting = [Request(prompt, NEW) for prompt in prompts]
    waiting.append(Request(prompts[0][:20], NEW, n=2))
    answers: list[Completion] = []
    while waiting or engine.busy:
        if waiting and draw.random() < 0.4:
            answers += engine.submit(waiting.pop()).choices
        engine.step()
        engine.check()
    assert engine.stats.preemptions
    assert engine.stats.cached_tokens
    for one in answers:
        check(model, one)
        whole = text.decode(one.tokens)
        assert one.text == whole.rstrip("\ufffd")
    alone, _ = Engine(model, text=text, rows=1).run([Request(prompts[0], NEW)])
    [same] = [one for one in answers if one.request.prompt == prompts[0]]
    assert alone[0].tokens == same.tokens
    assert alone[0].text == same.text


def test_stop_strings_end_the_text_and_never_show(
    model: Any, text: Text, prompts: list[list[int]]
) -> None:
    engine = Engine(model, text=text, rows=4)
    (whole,), _ = engine.run([Request(prompts[0], NEW)])
    stop = whole.text[9:14]  # begins and ends inside tokens
    seen: list[str] = []
    request = Request(prompts[0], NEW, stop=[stop], on_token=lambda one, _: seen.append(one.text))
    (answer,), _ = engine.run([request])
    assert answer.reason == "stop"
    assert answer.text == whole.text[: whole.text.index(stop)]
    assert all(answer.text.startswith(one) for one in seen)


def test_a_drawn_text_is_the_seeds(model: Any, text: Text, prompts: list[list[int]]) -> None:
    engine = Engine(model, text=text, rows=4, pack=48)
    asked = Request(prompts[1], NEW, temperature=0.8, top_p=0.95, top_k=50, seed=11)
    (alone,), _ = engine.run([asked])
    engine.pool.forget()
    others = [Request(prompts[k], NEW, temperature=1.5, seed=k) for k in (0, 2, 3)]
    *_, among = engine.run([*others, asked])[0]
    assert among.tokens == alone.tokens
    assert np.unique(among.tokens).size > 3
