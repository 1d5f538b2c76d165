"""Tokens from logits: the batch against the reference, the reference against what it should be."""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from linnet.serve.sampling import (
    Draw,
    DrawError,
    Sampling,
    _changed,
    _kept,
    _on_device,
    _pick,
    draw,
    draw_jax,
    draw_numpy,
    draw_torch,
    gumbel,
    lowbias32,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Only:
    """A grammar's state that allows the tokens it was given."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens
        self.finished = False

    def allowed(self) -> list[int]:
        words = [0] * (max(self.tokens, default=0) // 32 + 1)
        for token in self.tokens:
            words[token // 32] |= 1 << token % 32
        return words

    def accept(self, token: int) -> None: ...


def naive(logits: torch.Tensor, one: Draw) -> int:
    """What `Sampling` says, step by step, over all tokens and in 64 bits."""
    changed = changed_naively(logits.float().numpy(), one)
    if one.sampling.temperature == 0:
        return int(changed.argmax())
    with np.errstate(over="ignore"):
        scores = (changed.astype(np.float64) - float(changed.max())) / one.sampling.temperature
    ids = np.array(kept_naively(scores, one.sampling))
    noisy = np.full(len(scores), -np.inf)
    noisy[ids] = scores[ids] + gumbel(one.sampling.key, one.position, ids)
    return int(noisy.argmax())


def changed_naively(logits: np.ndarray, one: Draw) -> np.ndarray:
    sampling = one.sampling
    changed = logits.copy()
    for token in {*one.prompt, *one.answer}:
        factor = np.float32(sampling.repetition_penalty)
        changed[token] = changed[token] / factor if changed[token] > 0 else changed[token] * factor
    for token in {*one.answer, *sampling.logit_bias}:
        times = list(one.answer).count(token)
        shift = -(sampling.presence_penalty * (times > 0) + sampling.frequency_penalty * times)
        changed[token] += np.float32(shift + sampling.logit_bias.get(token, 0.0))
    if one.matcher is not None:
        words = one.matcher.allowed()
        for token in range(len(changed)):
            if token // 32 >= len(words) or not words[token // 32] >> token % 32 & 1:
                changed[token] = -np.inf
    return changed


def kept_naively(scores: np.ndarray, sampling: Sampling) -> list[int]:
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    order = order[: sampling.top_k or None]
    chances = np.exp(scores[order])
    kept: list[int] = []
    for token, before in zip(order, np.cumsum(chances) - chances):
        if before < sampling.top_p * chances.sum() or sampling.top_p == 1:
            kept.append(token)
    return [token for token in kept if np.exp(scores[token]) >= sampling.min_p]


@st.composite
def draws(pick: st.DrawFn, vocab: int) -> Draw:
    token = st.integers(0, vocab - 1)
    strength = st.sampled_from([0.0, 0.0, 0.5, -1.5])
    sampling = Sampling(
        temperature=pick(st.sampled_from([0.0, 0.3, 1.0, 1.0, 4.0, 1e-30])),
        top_k=pick(st.sampled_from([0, 0, 1, 5, vocab, vocab + 3])),
        top_p=pick(st.sampled_from([1.0, 1.0, 0.95, 0.5, 1e-9])),
        min_p=pick(st.sampled_from([0.0, 0.0, 0.1, 1.0])),
        seed=pick(st.integers(0, 2**64 - 1)),
        repetition_penalty=pick(st.sampled_from([1.0, 1.0, 1.3, 0.7])),
        presence_penalty=pick(strength),
        frequency_penalty=pick(strength),
        logit_bias=pick(
            st.dictionaries(token, st.sampled_from([-100.0, 2.5, 100.0, -math.inf]), max_size=3)
        ),
    )
    # Token 0 has no bias, so that something is always left.
    sampling.logit_bias.pop(0, None)  # type: ignore[attr-defined]
    return Draw(
        sampling,
        position=pick(st.integers(0, 5000)),
        prompt=pick(st.lists(token, max_size=6)),
        answer=pick(st.lists(token, max_size=6)),
        matcher=pick(
            st.none() | st.builds(Only, st.lists(token, max_size=20).map(lambda some: [0, *some]))
        ),
        logprobs=pick(st.sampled_from([None, None, 0, 3])),
    )


@given(st.data())
@settings(max_examples=25, deadline=None)
@pytest.mark.slow
def test_a_batch_draws_as_the_reference_does_in_any_company(data: st.DataObject) -> None:
    vocab = data.draw(st.sampled_from([1, 2, 40, 333]))
    seed = data.draw(st.integers(0, 1000))
    coarse = data.draw(st.booleans())
    ones = data.draw(st.lists(draws(vocab), min_size=1, max_size=5))
    dtype = data.draw(st.sampled_from(DTYPES))
    logits = torch.randn(len(ones), vocab, generator=torch.Generator().manual_seed(seed)) * 4
    logits = (logits.round() if coarse else logits).to(dtype)
    tokens = [one.token for one in draw(logits, ones)]
    assert tokens == [naive(row, one) for row, one in zip(logits, ones)]
    assert tokens == [one.token for one in _on_device(logits, ones)]
    order = data.draw(st.permutations(range(len(ones))))
    shuffled = draw(logits[list(order)], [ones[k] for k in order])
    assert [one.token for one in shuffled] == [tokens[k] for k in order]
    first = ones[0]
    alone = draw_torch(
        logits[0], first.sampling, first.position, first.prompt, first.answer, first.matcher
    )
    assert alone == tokens[0]


@pytest.mark.parametrize("spread", [1.0, 9.0])
def test_flat_and_peaked_rows_of_many_tokens_draw_as_the_reference_does(spread: float) -> None:
    # In a flat one thousands of tokens are needed to reach p, and many are equal.
    generator = torch.Generator().manual_seed(1)
    kinds = [{}, {}, {"top_k": 300, "top_p": 0.9}, {"top_k": 20}, {"top_p": 0.97}, {"min_p": 0.01}]
    for dtype in (torch.float32, torch.bfloat16):
        logits = (torch.randn(12, 2000, generator=generator) * spread).to(dtype)
        ones = [Draw(Sampling(1 + k % 2, seed=k, **kinds[k % 6]), k) for k in range(12)]
        found = [one.token for one in draw(logits, ones)]
        assert found == [naive(row, one) for row, one in zip(logits, ones)]
        assert found == [one.token for one in _on_device(logits, ones)]


def test_most_rows_are_settled_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(logits: np.ndarray, sampling: Sampling, position: int) -> int:
        asked.append(position)
        return _pick(logits, sampling, position)

    monkeypatch.setattr("linnet.serve.sampling._pick", counted)
    logits = torch.randn(64, 2000, generator=torch.Generator().manual_seed(2)) * 3
    kinds = [{}, {"top_k": 50}, {"top_p": 0.9}, {"top_k": 50, "top_p": 0.95, "min_p": 0.01}]
    _on_device(logits, [Draw(Sampling(1.0, seed=k, **kinds[k % 4]), k) for k in range(64)])
    assert len(asked) <= 2


def test_arrays_of_numpy_are_drawn_from_too() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(8)).bfloat16()
    ones = [Draw(Sampling(k / 2, seed=k, top_k=9), k, logprobs=2) for k in range(3)]
    assert draw(logits.float().numpy(), ones) == draw(logits, ones)
    array = logits.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    assert draw(array, ones) == draw(logits, ones)


@pytest.mark.slow  # jax takes seconds to import
def test_jax_draws_as_numpy_does() -> None:
    import jax.numpy as jnp

    logits = torch.randn(200, generator=torch.Generator().manual_seed(9)) * 3
    for seed in range(30):
        sampling = Sampling(seed % 3, top_k=seed % 7, top_p=0.9, seed=seed, presence_penalty=0.5)
        for dtype, tensor in ((jnp.float32, logits), (jnp.bfloat16, logits.bfloat16())):
            array = jnp.asarray(logits.numpy()).astype(dtype)
            drawn = draw_jax(array, sampling, seed, [1, 2], [3, seed])
            assert drawn == draw_torch(tensor, sampling, seed, [1, 2], [3, seed])
            assert drawn == draw_numpy(tensor.float().numpy(), sampling, seed, [1, 2], [3, seed])


def test_the_noise_is_what_the_document_says() -> None:
    def hashed(x: int) -> int:
        x = ((x ^ x >> 16) * 0x7FEB352D) & 0xFFFFFFFF
        x = ((x ^ x >> 15) * 0x846CA68B) & 0xFFFFFFFF
        return x ^ x >> 16

    key, position = 0xDEADBEEF, 77
    word = [hashed(token ^ hashed(position ^ hashed(key))) for token in range(9)]
    expected = [-math.log(-math.log(((one >> 9) + 0.5) / 2**23)) for one in word]
    np.testing.assert_allclose(gumbel(key, position, np.arange(9)), expected, rtol=1e-12)
    assert lowbias32(np.array([0, 1], np.uint32)).tolist() == [hashed(0), hashed(1)]


def test_ties_go_to_the_lowest_id() -> None:
    for dtype in DTYPES:
        logits = torch.zeros(2, 5000, dtype=dtype)
        logits[:, [4321, 17, 999]] = 1.0
        ones = [Draw(Sampling(), 0), Draw(Sampling(temperature=1.0, top_k=1), 0)]
        assert [one.token for one in draw(logits, ones)] == [17, 17]


# --- what is drawn ----------------------------------------------------------------------------


def expected_chances(logits: np.ndarray, temperature: float) -> np.ndarray:
    scaled = np.exp((logits - logits.max()) / temperature)
    return scaled / scaled.sum()


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_tokens_come_as_often_as_softmax_says(temperature: float) -> None:
    count = 1000
    logits = torch.tensor([1.0, 0.0, 2.0, -1.0, 0.5, 2.0, -3.0])
    chances = expected_chances(logits.double().numpy(), temperature)
    for by_seed in (True, False):
        ones = [
            Draw(Sampling(temperature, seed=k if by_seed else 5), 3 if by_seed else k)
            for k in range(count)
        ]
        tokens = [one.token for one in draw(logits.expand(count, -1), ones)]
        found = np.bincount(tokens, minlength=len(chances))
        assert chisquare(found, chances * count).pvalue > 1e-4


def test_filtered_tokens_come_as_often_as_their_softmax_says() -> None:
    count = 1000
    logits = torch.tensor([1.0, 0.0, 2.0, -1.0, 0.5, 2.5, -3.0, 0.7])
    ones = [Draw(Sampling(1.5, top_k=5, top_p=0.9, seed=k), 9) for k in range(count)]
    tokens = [one.token for one in draw(logits.expand(count, -1), ones)]
    chances = expected_chances(logits.double().numpy(), 1.5)
    best = np.argsort(-chances)[:5]
    assert np.cumsum(chances[best] / chances[best].sum())[3] >= 0.9  # the fifth is left out
    kept = best[:4]
    assert set(tokens) == set(kept.tolist())
    found = np.bincount(tokens, minlength=8)[kept]
    assert chisquare(found, chances[kept] / chances[kept].sum() * count).pvalue > 1e-4


def kept_tokens(logits: torch.Tensor, sampling: Sampling) -> set[int]:
    return set(_kept(logits.numpy(), int(logits.argmax()), sampling).tolist())


@pytest.mark.slow  # their library takes seconds to import
def test_filters_and_penalty_are_those_of_transformers() -> None:
    from transformers import (
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    for seed in range(20):
        logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(seed)) * 3
        for chosen in (
            {"top_k": 20},
            {"top_p": 0.8},
            {"min_p": 0.05},
            {"top_k": 30, "top_p": 0.7},
            {"top_p": 0.9, "min_p": 0.02},
        ):
            # In their order too: penalty, temperature, top-k, top-p, min-p.
            prompt = [1, 5, 5, 77, *range(100, 200)]
            theirs = RepetitionPenaltyLogitsProcessor(1.2)(torch.tensor([prompt]), logits.clone())
            theirs = theirs / 1.3
            for name, warper in (
                ("top_k", TopKLogitsWarper),
                ("top_p", TopPLogitsWarper),
                ("min_p", MinPLogitsWarper),
            ):
                if name in chosen:
                    theirs = warper(chosen[name])(torch.tensor([prompt]), theirs)
            sampling = Sampling(1.3, repetition_penalty=1.2, **chosen)
            changed = _changed(logits, [0], [Draw(sampling, 0, prompt)])
            expected = set(torch.isfinite(theirs[0]).nonzero()[:, 0].tolist())
            assert kept_tokens(changed[0], sampling) == expected


def test_every_kept_token_is_drawn_and_no_other() -> None:
    logits = torch.randn(40, generator=torch.Generator().manual_seed(3))
    sampling = [Sampling(3.0, top_k=12, top_p=0.9, min_p=0.2, seed=k) for k in range(800)]
    found = draw(logits.expand(800, -1), [Draw(one, 4) for one in sampling])
    assert {one.token for one in found} == kept_tokens(logits, sampling[0])


# --- penalties, bias, grammar -----------------------------------------------------------------


def test_penalties_are_those_of_a_plain_reading() -> None:
    vocab = 60
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(5)) * 2
    prompt, answer = [3, 9, 9, 20], [7, 7, 9, 41, 7]
    sampling = Sampling(
        repetition_penalty=1.7,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        logit_bias={5: 1.25, 7: -0.5},
    )
    expected = logits[0].tolist()
    for token in {*prompt, *answer}:
        expected[token] *= 1 / 1.7 if expected[token] > 0 else 1.7
    for token in range(vocab):
        times = answer.count(token)
        expected[token] -= 0.4 * (times > 0) + 0.3 * times
        expected[token] += sampling.logit_bias.get(token, 0.0)
    found = _changed(logits, [0], [Draw(sampling, 9, prompt, answer)])
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-5, atol=1e-6)
    assert draw(logits, [Draw(sampling, 9, prompt, answer)])[0].token == int(found.argmax())


def test_penalties_change_which_token_is_drawn() -> None:
    logits = torch.tensor([[5.0, 4.9, 4.0, -1.0]])
    cases = [
        (Sampling(), 0),
        (Sampling(presence_penalty=0.2), 1),
        (Sampling(frequency_penalty=0.2), 1),
        (Sampling(repetition_penalty=1.3), 2),
        (Sampling(logit_bias={3: 100.0}), 3),
        (Sampling(logit_bias={0: -math.inf}), 1),
    ]
    for sampling, token in cases:
        assert draw(logits, [Draw(sampling, 3, [1], [0])])[0].token == token


def test_only_what_a_grammar_allows_is_drawn() -> None:
    logits = torch.randn(200, 100, generator=torch.Generator().manual_seed(6))
    some = [3, 31, 32, 64, 99]
    ones = [Draw(Sampling(k % 2, seed=k), 1, matcher=Only(some)) for k in range(200)]
    tokens = {one.token for one in draw(logits, ones)}
    assert tokens == set(some)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_without_a_token_name_their_rows(temperature: float) -> None:
    logits = torch.zeros(5, 40)
    logits[1, 7] = math.nan
    logits[3] = -math.inf
    ones = [Draw(Sampling(temperature, seed=k), k) for k in range(5)]
    for way in (draw, _on_device):
        with pytest.raises(DrawError, match="row 1 of the logits: a logit is not a numb") as error:
            way(logits, ones)
        assert error.value.rows == (1, 3)
    with pytest.raises(DrawError, match="row 0 of the logits: no token may come next"):
        draw(torch.zeros(1, 4), [Draw(Sampling(temperature), 0, matcher=Only([]))])
    with pytest.raises(DrawError, match="a logit is infinite"):
        draw(torch.tensor([[math.inf, 0.0]]), [Draw(Sampling(temperature), 0)])
    with pytest.raises(DrawError, match="not a number"):
        draw_numpy(np.array([0, math.nan]), Sampling(temperature), 0)


def test_a_bias_beyond_the_vocabulary_names_its_row() -> None:
    bad = Draw(Sampling(logit_bias={40: 1.0}), 0)
    for way in (draw, _on_device):
        with pytest.raises(DrawError, match=r"token 40 .* tokens 0 to 39") as error:
            way(torch.zeros(2, 40), [Draw(Sampling(), 0), bad])
        assert error.value.rows == (1,)


# --- log-probabilities ------------------------------------------------------------------------


def test_logprobs_are_those_of_the_model() -> None:
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(7)) * 3
    logits[1, 10:200] = logits[1].max() + 1
    expected = logits.log_softmax(1)
    settings = Sampling(0.5, top_k=3, logit_bias={5: 9.0}, seed=1)
    found = draw(
        logits,
        [Draw(settings, 2, logprobs=4), Draw(Sampling(), 2, logprobs=20)] + [Draw(Sampling(), 2)],
    )
    for row, one in enumerate(found[:2]):
        assert one.logprob == pytest.approx(float(expected[row, one.token]), abs=1e-5)
        best = sorted(range(300), key=lambda token: (-float(logits[row, token]), token))
        assert [token for token, _ in one.top] == best[: (4, 20)[row]]
        for token, value in one.top:
            assert value == pytest.approx(float(expected[row, token]), abs=1e-5)
    assert found[0].token == 5
    assert found[2].logprob is None and found[2].top == []
    assert draw(logits, [Draw(Sampling(), 2, logprobs=0)] * 3)[0].top == []
    wide = [Draw(Sampling(), 2, logprobs=k) for k in (2, 150, 400)]
    for one, other in zip(draw(logits, wide), _on_device(logits, wide)):
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        np.testing.assert_allclose([v for _, v in one.top], [v for _, v in other.top], atol=1e-5)
