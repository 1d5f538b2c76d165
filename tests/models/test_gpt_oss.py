"""Every way to run the gpt_oss family against transformers' GptOssForCausalLM, f32 within 1e-4.

The experts are MXFP4 bytes here, and in transformers the values they stand for. Sequences are
longer than the window of every other layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from . import mxfp4
from .runners import RUNNERS, Runner

# transformers alone takes seconds to import
pytestmark = pytest.mark.slow

ONE = {"Batch": 1, "MaxSeq": 64, "PageSize": 4}
THREE = {"Batch": 3, "MaxSeq": 24}
_LOADED: dict[Any, Runner] = {}


@pytest.fixture(params=list(RUNNERS))
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def model(backend: str, **sizes: int) -> Runner:
    """A fresh model: states at zero, compiled program shared between tests."""
    key = (backend, *sorted(sizes.items()))
    if key not in _LOADED:
        _LOADED[key] = RUNNERS[backend](
            mxfp4.FAMILY,
            {**mxfp4.SIZES, **sizes},
            weights=mxfp4.weights(),
            bindings=mxfp4.bindings(),
            constants=mxfp4.CONSTANTS,
        )
    runner = _LOADED[key]
    if backend == "torch":
        runner.module.reset_state()  # type: ignore[attr-defined]
    else:
        runner.state.clear()  # type: ignore[attr-defined]
    return runner


def close(found: Any, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


def i32(values: Any) -> np.ndarray:
    return np.asarray(values, np.int32)


def test_forward(backend: str) -> None:
    run = model(backend, **ONE)
    for shape in ((1, 1), (2, 40)):
        tokens = mxfp4.tokens(1, *shape)
        close(run("forward", tokens), mxfp4.logits(tokens))


def test_next_token(backend: str) -> None:
    tokens = mxfp4.tokens(2, 2, 13)
    close(model(backend, **ONE)("next_token", tokens), mxfp4.logits(tokens)[:, -1])


def test_decode_token_by_token(backend: str) -> None:
    run = model(backend, **THREE)
    tokens = mxfp4.tokens(3, 3, 12)
    wanted = mxfp4.logits(tokens)
    for pos in range(12):
        close(run("decode", tokens[:, pos : pos + 1], pos), wanted[:, pos])


def test_prefill_in_two_parts_then_decode(backend: str) -> None:
    run = model(backend, **ONE)
    tokens = mxfp4.tokens(4, 1, 32)
    wanted = mxfp4.logits(tokens)
    close(run("prefill", tokens[:, :14], 0), wanted[:, 13])
    close(run("prefill", tokens[:, 14:30], 14), wanted[:, 29])
    for pos in (30, 31):
        close(run("decode", tokens[:, pos : pos + 1], pos), wanted[:, pos])


def test_rows_at_their_own_positions(backend: str) -> None:
    """Two prompts of different lengths enter rows 2 and 0; then all rows step together."""
    run = model(backend, **THREE)
    first, second = mxfp4.tokens(5, 1, 17), mxfp4.tokens(6, 1, 14)
    padded = np.zeros((2, 14), np.int32)
    padded[0, :12], padded[1, :4] = first[0, :12], second[0, :4]
    found = run("prefill_slots", padded, i32([2, 0]), i32([12, 4]))
    close(found[0], mxfp4.logits(first)[0, 11])
    close(found[1], mxfp4.logits(second)[0, 3])
    for step in range(5):
        tokens = i32([[second[0, 4 + step]], [0], [first[0, 12 + step]]])
        found = run("decode_rows", tokens, i32([4 + step, 23, 12 + step]))
        close(found[0], mxfp4.logits(second)[0, 4 + step])
        close(found[2], mxfp4.logits(first)[0, 12 + step])


def pack(*prompts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, positions and segments of prompts laid end to end."""
    return (
        np.concatenate(prompts).astype(np.int32),
        np.concatenate([np.arange(len(p)) for p in prompts]).astype(np.int32),
        np.concatenate([np.full(len(p), i) for i, p in enumerate(prompts)]).astype(np.int32),
    )


def test_packed_prompts_and_steps(backend: str) -> None:
    run = model(backend, **THREE)
    a, b, c = mxfp4.tokens(7, 15), mxfp4.tokens(8, 7), mxfp4.tokens(9, 12)
    tokens, positions, segments = pack(a[:12], b[:4])
    rows = i32([1] * 12 + [2] * 4)
    found = run("prefill_packed", tokens, rows, positions, segments, i32([11, 15, 15]))
    close(found[0], mxfp4.logits(a[None])[0, 11])
    close(found[1], mxfp4.logits(b[None])[0, 3])
    # The third prompt enters row 0 in the same pass as a step of rows 1 and 2.
    tokens, positions, segments = pack(c[:10])
    steps = i32([[0], [a[12]], [b[4]]])
    found = run(
        "step_packed",
        tokens,
        i32([0] * 10),
        positions,
        segments,
        i32([9, 9, 9]),
        steps,
        i32([23, 12, 4]),
    )
    close(found[0], mxfp4.logits(c[None])[0, 9])
    close(found[4], mxfp4.logits(a[None])[0, 12])
    close(found[5], mxfp4.logits(b[None])[0, 4])


def test_paged(backend: str) -> None:
    """Pages of 4 positions in a pool of 64; page 0 is nobody's."""
    run = model(backend, **ONE)
    a, b, c = mxfp4.tokens(10, 16), mxfp4.tokens(11, 9), mxfp4.tokens(12, 11)
    table = i32([[5, 2, 7, 10], [1, 9, 3, 11], [4, 6, 8, 12]])

    def slots(row: int, positions: np.ndarray) -> list[int]:
        return [int(table[row, p // 4]) * 4 + int(p) % 4 for p in positions]

    tokens, positions, segments = pack(a[:11], b[:5])
    where = slots(0, positions[:11]) + slots(1, positions[11:])
    found = run("prefill_paged", tokens, positions, segments, i32(where), i32([10, 15, 15]), table)
    close(found[0], mxfp4.logits(a[None])[0, 10])
    close(found[1], mxfp4.logits(b[None])[0, 4])
    found = run("decode_paged", i32([[a[11]], [b[5]], [0]]), i32([11, 5, 0]), table)
    close(found[0], mxfp4.logits(a[None])[0, 11])
    close(found[1], mxfp4.logits(b[None])[0, 5])
    # Row 0 goes on in a chunk of two, row 2's prompt enters, and every row steps.
    chunk = i32([*a[12:14], *c[:10]])
    at = i32([12, 13, *range(10)])
    found = run(
        "step_paged",
        chunk,
        at,
        i32([0, 0] + [2] * 10),
        i32(slots(0, at[:2]) + slots(2, at[2:])),
        i32([1, 11, 11]),
        i32([[a[14]], [b[6]], [c[10]]]),
        i32([14, 6, 10]),
        table,
    )
    close(found[0], mxfp4.logits(a[None])[0, 13])
    close(found[1], mxfp4.logits(c[None])[0, 9])
    close(found[3], mxfp4.logits(a[None])[0, 14])
    close(found[4], mxfp4.logits(b[None])[0, 6])
    close(found[5], mxfp4.logits(c[None])[0, 10])


def test_generate(backend: str) -> None:
    run = model(backend, **ONE)
    sequence = list(mxfp4.tokens(13, 10))
    run("prefill", i32([sequence[:-1]]), 0)
    found = run("generate", i32([[sequence[-1]]]), 9, Steps=4)
    for _ in range(4):
        sequence.append(int(mxfp4.logits(i32([sequence]))[0, -1].argmax()))
    assert found.tolist() == [sequence[10:]]


def test_packed_training_entries(backend: str) -> None:
    import torch

    run = model(backend, **ONE)
    a, b = mxfp4.tokens(15, 12), mxfp4.tokens(16, 5)
    tokens, positions, segments = pack(a, b)
    logits = np.concatenate([mxfp4.logits(p[None])[0] for p in (a, b)])
    targets = np.concatenate([np.roll(p, -1) for p in (a, b)]).astype(np.int64)
    chosen = torch.log_softmax(torch.from_numpy(logits), -1).numpy()
    chosen = np.take_along_axis(chosen, targets[:, None], 1)[:, 0]
    weights = np.random.default_rng(3).random(17).astype(np.float32)
    close(run("log_probs_packed", tokens, positions, segments, targets), chosen)
    loss = run("loss_packed", tokens, positions, segments, targets, weights)
    np.testing.assert_allclose(np.asarray(loss), -(weights * chosen).sum(), rtol=1e-5)
    hidden = run("hidden_packed", tokens, positions, segments)
    close(hidden @ mxfp4.weights()["lm_head.weight"].T, logits)


def test_equal_ratings_choose_the_lower_expert(backend: str) -> None:
    """Experts 1 and 3 are rated alike: with one of the two places taken by 4, 1 gets the other."""
    weights = dict(mxfp4.weights())
    for name in [name for name in weights if name.endswith("router.weight")]:
        weights[name] = np.zeros_like(weights[name])
        bias = i32([0, 1, 0, 1, 2]).astype(np.float32)
        weights[name.replace("weight", "bias")] = bias
    lower = dict(weights)
    for name in [name for name in weights if ".experts." in name]:
        lower[name] = np.array(weights[name])
        lower[name][[0, 2, 3]] = lower[name][[2, 3, 0]]  # whatever is not chosen
    tokens = mxfp4.tokens(17, 1, 6)
    runs = [
        RUNNERS[backend](
            mxfp4.FAMILY,
            {**mxfp4.SIZES, **ONE},
            weights=arrays,
            bindings=mxfp4.bindings(),
            constants=mxfp4.CONSTANTS,
            entries=["forward"],
        )("forward", tokens)
        for arrays in (weights, lower)
    ]
    np.testing.assert_array_equal(*runs)
    assert np.abs(runs[0] - model(backend, **ONE)("forward", tokens)).max() > 1e-3
