"""The engine on tiny models: whoever is served beside whom, it answers as the model alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import linnet.jax
import linnet.torch
from linnet.diagnostics import InternalError, LinnetError
from linnet.serve import Completion, Engine, Request, RequestError

from ..models import tiny
from .decoders import CLOSE, LONGEST, PAGE, VOCAB, decoder, greedy, lone_logits, pool, rows

PROMPT = [5, 17, 3, 80, 41, 9, 9, 22, 63]


def engines() -> dict[str, Callable[[], Engine]]:
    """Ways to serve, most of them short of something."""
    return {
        "paged": lambda: Engine(pool(40), rows=6, max_len=LONGEST, pack=24),
        "few pages": lambda: Engine(pool(13), rows=6, max_len=LONGEST, pack=24),
        "small chunks": lambda: Engine(pool(40), rows=4, max_len=LONGEST, pack=3),
        "apart": lambda: Engine(pool(40), rows=4, max_len=LONGEST, pack=24, mix=False),
        "as on a device": as_on_a_device,
        "not recorded": lambda: Engine(pool(40), rows=3, max_len=LONGEST, graphs=False),
        "rows": lambda: Engine(rows(3), paged=False),
        "rows apart": lambda: Engine(rows(3), paged=False, mix=False),
    }


def as_on_a_device() -> Engine:
    """Steps beside prompts go through `step_paged`."""
    engine = Engine(pool(40), rows=6, max_len=LONGEST, pack=24)
    engine.driver.packs_steps = False
    return engine


@pytest.fixture(params=engines())
def engine(request: pytest.FixtureRequest) -> Engine:
    made: Engine = engines()[request.param]()
    return made


def traffic(draw: random.Random) -> list[Request]:
    """Requests of which some begin alike, or want several answers."""
    stems = [[draw.randrange(VOCAB) for _ in range(LONGEST)] for _ in range(3)]
    requests: list[Request] = []
    for _ in range(draw.randint(1, 9)):
        own = [draw.randrange(VOCAB) for _ in range(draw.randint(1, 12))]
        prompt = draw.choice(stems)[: draw.choice((0, 4, 9, 20))] + own
        n = draw.choice((1, 1, 1, 2, 3))
        requests.append(Request(prompt, draw.randint(1, 14), n=n))
    return requests


def serve(engine: Engine, requests: list[Request], draw: random.Random) -> list[Completion]:
    """The answers to requests that come at any time, of which some are cancelled."""
    firsts: list[Completion] = []
    left, finished = list(requests), list[Completion]()
    while left or engine.busy:
        while left and draw.random() < 0.5:
            firsts.append(engine.submit(left.pop()))
        finished += engine.step()
        engine.check()
        if firsts and draw.random() < 0.03:
            engine.cancel(draw.choice(draw.choice(firsts).choices))
    answers = [one for first in firsts for one in first.choices]
    told = [one for one in answers if one.reason != "cancelled"]
    assert sorted(map(id, told)) == sorted(map(id, finished)), "each is told of once"
    return answers


def check_answers(answers: list[Completion]) -> None:
    for one in answers:
        assert one.reason in ("length", "cancelled")
        assert one.reason == "cancelled" or len(one.tokens) == one.request.max_new_tokens
        greedy(one.request.prompt, one.tokens)


def schedule(engine: Engine, seed: int) -> None:
    draw = random.Random(seed)
    check_answers(serve(engine, traffic(draw), draw))
    assert not engine.load.pages_held


@pytest.mark.slow
def test_answers_are_those_of_the_model_alone(engine: Engine) -> None:
    schedule(engine, 7)


@pytest.mark.slow
def test_hundreds_of_schedules(engine: Engine) -> None:
    for seed in range(40):
        schedule(engine, seed)


@pytest.mark.slow
@pytest.mark.parametrize(("kept", "paged"), [("bf16", True), ("f16", True), ("bf16", False)])
def test_keys_and_values_of_fewer_bits(kept: str, paged: bool) -> None:
    sizes = {"Batch": 1, "MaxSeq": 14 * PAGE, "PageSize": PAGE} if paged else {"Batch": 3}
    model = decoder(**{"MaxSeq": LONGEST, **sizes, "Kv": kept})
    caches = [x.dtype for name, x in model.named_buffers() if ".cache." in name]
    assert caches == 4 * [getattr(torch, "bfloat16" if kept == "bf16" else "float16")]
    draw = random.Random(11)
    engine = Engine(model, rows=6 if paged else None, max_len=LONGEST, paged=paged)
    for one in serve(engine, traffic(draw), draw):
        greedy(one.request.prompt, one.tokens, kept=kept)


@pytest.mark.slow
@pytest.mark.parametrize("paged", [True, False])
def test_a_model_of_jax_is_served_alike(paged: bool) -> None:
    sizes = {"Batch": 1, "MaxSeq": 14 * PAGE, "PageSize": PAGE} if paged else {"Batch": 3}
    generics = {**tiny.SIZES, "MaxSeq": LONGEST, **sizes}
    load = {"weights": tiny.weights(), "bindings": tiny.NAMES}
    model = linnet.jax.load_model(tiny.FAMILY, generics=generics, **load)
    engine = Engine(model, rows=6 if paged else None, max_len=LONGEST, paged=paged, pack=24)
    for seed in (7, 8):
        schedule(engine, seed)
    engine.load_weights(linnet.jax.load_model(tiny.FAMILY, generics=generics, **load))
    engine.reset()
    schedule(engine, 7)


def test_pages_run_out_and_are_found_again() -> None:
    engine = Engine(pool(13), rows=6, max_len=LONGEST, pack=24)
    requests = [Request([*PROMPT, k], 20, n=2) for k in range(4)]
    answers, stats = engine.run(requests)
    check_answers(answers)
    assert stats.preemptions
    assert stats.generated_tokens == 8 * 20
    assert stats.prompt_tokens == 4 * 10


def test_a_prompt_that_was_seen_is_not_computed_again() -> None:
    engine = Engine(pool(40), rows=4, max_len=LONGEST)
    _, first = engine.run([Request(PROMPT, 8)])
    (again,), second = engine.run([Request(PROMPT, 8)])
    assert (first.cached_tokens, second.cached_tokens) == (0, 8)
    assert again.cached == 8
    greedy(PROMPT, again.tokens)
    # What was said is found too, by the next turn of a conversation.
    said = [*PROMPT, *again.tokens]
    (more,), third = engine.run([Request([*said, 1, 2], 4)])
    assert third.cached_tokens == 16
    greedy([*said, 1, 2], more.tokens)


def test_same_seed_same_text_beside_anyone() -> None:
    drawn = {"temperature": 1.0, "top_k": 40, "top_p": 0.9}
    alone, _ = Engine(pool(40), rows=1).run([Request(PROMPT, 12, seed=3, **drawn)])
    engine = Engine(pool(40), rows=6, pack=5)
    others = [Request([k, 2, k], 9, seed=k, temperature=2.0) for k in range(5)]
    among, _ = engine.run([*others, Request(PROMPT, 12, seed=2, n=2, **drawn)])
    assert among[-1].tokens == alone[0].tokens
    assert among[-2].tokens != alone[0].tokens


def test_logprobs_are_the_models(engine: Engine) -> None:
    (answer, *_), _ = engine.run([Request(PROMPT, 6, logprobs=3), Request(PROMPT[::-1], 9)])
    logits = lone_logits(0, *PROMPT, *answer.tokens)[len(PROMPT) - 1 : -1]
    wanted = torch.from_numpy(logits).double().log_softmax(-1).numpy()
    own = wanted[np.arange(6), answer.tokens]
    np.testing.assert_allclose(answer.logprobs, own, rtol=0, atol=CLOSE)
    for row, top in zip(wanted, answer.top_logprobs, strict=True):
        best = np.sort(row)[::-1][:3]
        np.testing.assert_allclose([chance for _, chance in top], best, rtol=0, atol=CLOSE)
        np.testing.assert_allclose([row[token] for token, _ in top], best, rtol=0, atol=CLOSE)


def test_what_ends_an_answer() -> None:
    engine = Engine(pool(40), rows=4, max_len=20)
    (whole,), _ = engine.run([Request(PROMPT, 6)])
    third = whole.tokens[2]
    first = whole.tokens.index(third)
    answers, _ = engine.run(
        [
            Request(PROMPT, 6, eos=frozenset({third})),
            Request(PROMPT, 6, stop_ids=[third]),
            Request(PROMPT, 50),
            Request(PROMPT, 1, n=2),
        ]
    )
    assert [one.reason for one in answers] == ["eos", "stop", "cache", "length", "length"]
    assert answers[0].tokens == answers[1].tokens == whole.tokens[: first + 1]
    assert len(answers[2].tokens) == 20 - len(PROMPT)
    times = [answers[0].submitted, answers[0].admitted, answers[0].first_token, answers[0].finished]
    assert None not in times
    assert times == sorted(times)  # type: ignore[type-var]


def test_each_token_is_told_as_it_comes() -> None:
    engine, told = Engine(pool(40), rows=4), list[tuple[int, int]]()

    def on_token(completion: Completion, token: int) -> None:
        assert completion.tokens[-1] == token
        told.append((completion.choice, token))
        if len(completion.tokens) == 3 and completion.choice == 1:
            engine.cancel(completion, "enough")

    answers, _ = engine.run([Request(PROMPT, 5, n=2, on_token=on_token)])
    assert [one.reason for one in answers] == ["length", "enough"]
    for one in answers:
        assert [token for choice, token in told if choice == one.choice] == one.tokens


def test_one_bad_request_leaves_nothing_of_the_others() -> None:
    engine = Engine(pool(40), rows=4)
    with pytest.raises(RequestError, match="empty"):
        engine.run([Request(PROMPT, 3, n=2), Request([], 3)])
    assert (engine.busy, engine.load.waiting, engine.stats.requests) == (False, 0, 1)


def test_what_a_callback_raises_takes_no_token_from_anyone() -> None:
    def on_token(completion: Completion, token: int) -> None:
        if len(completion.tokens) == 2:
            raise KeyError(token)

    engine = Engine(pool(40), rows=4)
    first = engine.submit(Request(PROMPT, 5, n=2, on_token=on_token))
    raised, answers = 0, [*first.choices, engine.submit(Request(PROMPT[2:], 5))]
    while engine.busy:
        try:
            engine.step()
        except KeyError:
            raised += 1
    assert raised == 1
    check_answers(answers)


def test_a_form_that_breaks_down_ends_one_answer_alone() -> None:
    class Form:
        finished = False

        def start(self) -> Form:
            return self

        def allowed(self) -> list[int]:
            return [0xFFFFFFFF] * (VOCAB // 32 + 1)

        def accept(self, token: int) -> None:
            raise InternalError("grammar", f"token {token} is too much")

    engine = Engine(pool(40), rows=4)
    (bad, good), _ = engine.run([Request(PROMPT, 5, grammar=Form()), Request(PROMPT, 5)])
    assert (bad.reason, good.reason) == ("error", "length")
    assert bad.error is not None and "too much" in bad.error
    greedy(PROMPT, good.tokens)


@pytest.mark.slow
def test_new_weights_between_two_steps() -> None:
    engine = Engine(decoder(Batch=1, MaxSeq=120, PageSize=4), rows=2)
    answer = engine.submit(Request(PROMPT, 8))
    for _ in range(4):
        engine.step()
    before = list(answer.tokens)
    engine.load_weights(decoder(3, Batch=1, MaxSeq=120, PageSize=4))
    while engine.busy:
        engine.step()
    greedy(PROMPT, before)
    assert answer.tokens[: len(before)] == before
    greedy([*PROMPT, *before], answer.tokens[len(before) :], seed=3)
    (again,), _ = engine.run([Request(PROMPT, 8)])
    greedy(PROMPT, again.tokens, seed=3)


@pytest.mark.slow
def test_logits_that_are_no_numbers_end_one_answer_alone() -> None:
    broken = decoder(Batch=1, MaxSeq=56, PageSize=4)
    with torch.no_grad():
        broken.get_parameter("embedding.weight")[7] = float("nan")
    engine = Engine(broken, rows=4, max_len=24)
    (bad, good), _ = engine.run([Request([*PROMPT, 7], 5), Request(PROMPT, 5)])
    assert (bad.reason, bad.tokens) == ("error", [])
    assert bad.error == "a logit is not a number, so that none can be drawn"
    greedy(PROMPT, good.tokens)
    engine.check()
    for taken in range(1, 8):  # what the bad one's pages held disturbs nobody who has them next
        (bad, *_), _ = engine.run([Request([7] * 19, 5, n=2)])
        (again,), _ = engine.run([Request(PROMPT[:taken], 5)])
        assert (again.reason, bad.reason) == ("length", "error")
        greedy(again.request.prompt, again.tokens)
        engine.check()


def test_reset_leaves_nothing() -> None:
    engine = Engine(pool(40), rows=2)
    answer = engine.submit(Request(PROMPT, 5, n=3))
    engine.step()
    engine.reset()
    assert (engine.busy, engine.load.pages_held, engine.load.pages_reusable) == (False, 0, 0)
    assert answer.reason == "reset"
    (again,), stats = engine.run([Request(PROMPT, 5)])
    assert stats.cached_tokens == 0
    greedy(PROMPT, again.tokens)


def test_warmup_serves_nobody(engine: Engine) -> None:
    engine.run([Request(PROMPT, 3)])
    engine.warmup([1, 20])
    (answer,), _ = engine.run([Request(PROMPT, 5)])
    greedy(PROMPT, answer.tokens)


@pytest.mark.parametrize(
    ("wrong", "field", "message"),
    [
        ({"prompt": []}, "prompt", "the prompt is empty"),
        ({"prompt": [VOCAB]}, "prompt", f"token {VOCAB} of the prompt is not below {VOCAB}"),
        ({"prompt": [1] * 20}, "prompt", "the prompt is 20 tokens long"),
        ({"max_new_tokens": 0}, "max_new_tokens", "it must be 1 or more"),
        ({"n": 0}, "n", "n is 0"),
        ({"logprobs": -1}, "logprobs", "logprobs is -1"),
        ({"stop": ["."]}, "stop", "stop strings need text"),
        ({"temperature": -1.0}, "temperature", "temperature is -1.0"),
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias", f"token {VOCAB}"),
    ],
)
def test_a_request_that_cannot_be_served(wrong: dict[str, Any], field: str, message: str) -> None:
    engine = Engine(pool(40), rows=2, max_len=20)
    with pytest.raises(RequestError, match=message) as raised:
        engine.submit(Request(**{"prompt": PROMPT, "max_new_tokens": 3, **wrong}))
    assert raised.value.field == field
    assert not engine.busy


def test_a_model_that_cannot_serve(tmp_path: Path) -> None:
    with pytest.raises(LinnetError, match="the first page is nobody's"):
        Engine(decoder(Batch=1, MaxSeq=4, PageSize=4))
    for model in (pool(40), rows(3)):
        with pytest.raises(LinnetError, match=r"max_len is 999: .* hold (160|48) tokens"):
            Engine(model, max_len=999)
    source = tmp_path / "plain.linnet"
    source.write_text("module plain\n\npub entry same(x: f32) -> f32 {\n    return x\n}\n")
    with pytest.raises(LinnetError, match="neither `decode_paged` nor `decode_rows`"):
        Engine(linnet.torch.load(source))
