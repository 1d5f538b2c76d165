"""Every entry of the llama family and of the seed's package against transformers' Mistral.

Tiny random models in f32; logits agree within 1e-4, tokens exactly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import tiny
from .runners import RUNNERS, Runner

TOLERANCE = {"rtol": 0, "atol": 1e-4}
THETA = {"family": 10000.0, "seed": 1000000.0}


# transformers alone takes seconds to import
pytestmark = pytest.mark.slow


@pytest.fixture(params=["family", "seed"])
def source(request: pytest.FixtureRequest) -> tuple[str, Path]:
    if request.param == "family":
        return "family", tiny.FAMILY
    seed: Path = request.getfixturevalue("seed")
    return "seed", seed


@pytest.fixture(params=list(RUNNERS))
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


_LOADED: dict[Any, Runner] = {}

# Two sizes serve every test: one row, paged or not, and three rows.
ONE = {"Batch": 1, "MaxSeq": 48, "PageSize": 4}
THREE = {"Batch": 3, "MaxSeq": 16}


def model(source: tuple[str, Path], backend: str, **sizes: int) -> Runner:
    """A fresh model: states at zero, compiled program shared between tests."""
    kind, path = source
    key = (kind, backend, *sorted(sizes.items()))
    if key not in _LOADED:
        _LOADED[key] = RUNNERS[backend](
            path,
            {**tiny.SIZES, **sizes},
            weights=tiny.weights(),
            bindings=tiny.NAMES,
        )
    runner = _LOADED[key]
    if backend == "torch":
        runner.module.reset_state()  # type: ignore[attr-defined]
    else:
        runner.state.clear()  # type: ignore[attr-defined]
    return runner


def expected(source: tuple[str, Path], tokens: np.ndarray) -> np.ndarray:
    return tiny.logits(THETA[source[0]], tokens)


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, **TOLERANCE)


def i32(values: Any) -> np.ndarray:
    return np.asarray(values, np.int32)


def test_forward(source: tuple[str, Path], backend: str) -> None:
    run = model(source, backend, **ONE)
    for shape in ((1, 1), (2, 9), (3, 5)):
        tokens = tiny.tokens(1, *shape)
        close(run("forward", tokens), expected(source, tokens))


def test_next_token(source: tuple[str, Path], backend: str) -> None:
    run = model(source, backend, **ONE)
    tokens = tiny.tokens(2, 2, 7)
    close(run("next_token", tokens), expected(source, tokens)[:, -1])


def test_decode_token_by_token(source: tuple[str, Path], backend: str) -> None:
    run = model(source, backend, **THREE)
    tokens = tiny.tokens(3, 3, 8)
    wanted = expected(source, tokens)
    for pos in range(8):
        close(run("decode", tokens[:, pos : pos + 1], pos), wanted[:, pos])


def test_prefill_in_two_parts_then_decode(source: tuple[str, Path], backend: str) -> None:
    run = model(source, backend, **ONE)
    tokens = tiny.tokens(4, 1, 12)
    wanted = expected(source, tokens)
    close(run("prefill", tokens[:, :6], 0), wanted[:, 5])
    close(run("prefill", tokens[:, 6:10], 6), wanted[:, 9])
    for pos in (10, 11):
        close(run("decode", tokens[:, pos : pos + 1], pos), wanted[:, pos])


def test_rows_at_their_own_positions(source: tuple[str, Path], backend: str) -> None:
    """Two prompts of different lengths enter rows 2 and 0; then all rows step together."""
    run = model(source, backend, **THREE)
    first, second = tiny.tokens(5, 1, 9), tiny.tokens(6, 1, 6)
    padded = np.zeros((2, 6), np.int32)
    padded[0, :4], padded[1, :3] = first[0, :4], second[0, :3]
    found = run("prefill_slots", padded, i32([2, 0]), i32([4, 3]))
    close(found[0], expected(source, first)[0, 3])
    close(found[1], expected(source, second)[0, 2])
    for step in range(3):
        tokens = i32([[second[0, 3 + step]], [0], [first[0, 4 + step]]])
        found = run("decode_rows", tokens, i32([3 + step, 15, 4 + step]))
        close(found[0], expected(source, second)[0, 3 + step])
        close(found[2], expected(source, first)[0, 4 + step])


def pack(*prompts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, positions and segments of prompts laid end to end."""
    return (
        np.concatenate(prompts).astype(np.int32),
        np.concatenate([np.arange(len(p)) for p in prompts]).astype(np.int32),
        np.concatenate([np.full(len(p), i) for i, p in enumerate(prompts)]).astype(np.int32),
    )


def test_packed_prompts_and_steps(source: tuple[str, Path], backend: str) -> None:
    run = model(source, backend, **THREE)
    a, b, c = tiny.tokens(7, 8), tiny.tokens(8, 5), tiny.tokens(9, 6)
    tokens, positions, segments = pack(a[:5], b[:2])
    # One token of padding: a segment of its own, written where nothing reads.
    tokens, positions = np.append(tokens, i32(0)), np.append(positions, i32(15))
    segments, rows = np.append(segments, i32(2)), i32([1] * 5 + [2] * 2 + [0])
    found = run("prefill_packed", tokens, rows, positions, segments, i32([4, 6, 6]))
    close(found[0], expected(source, a[None])[0, 4])
    close(found[1], expected(source, b[None])[0, 1])
    # The third prompt enters row 0 in the same pass as a step of rows 1 and 2.
    tokens, positions, segments = pack(c[:4])
    found = run(
        "step_packed",
        tokens,
        i32([0] * 4),
        positions,
        segments,
        i32([3, 3, 3]),
        i32([[0], [a[5]], [b[2]]]),
        i32([15, 5, 2]),
    )
    close(found[0], expected(source, c[None])[0, 3])
    close(found[4], expected(source, a[None])[0, 5])
    close(found[5], expected(source, b[None])[0, 2])
    found = run("decode_rows", i32([[c[4]], [a[6]], [b[3]]]), i32([4, 6, 3]))
    close(found[0], expected(source, c[None])[0, 4])
    close(found[1], expected(source, a[None])[0, 6])
    close(found[2], expected(source, b[None])[0, 3])


def test_paged(source: tuple[str, Path], backend: str) -> None:
    """Pages of 4 positions in a pool of 48; page 0 is nobody's."""
    run = model(source, backend, **ONE)
    a, b, c = tiny.tokens(10, 11), tiny.tokens(11, 8), tiny.tokens(12, 7)
    table = i32([[5, 2, 7], [1, 9, 3], [4, 6, 8]])

    def slots(row: int, positions: np.ndarray) -> list[int]:
        return [int(table[row, p // 4]) * 4 + int(p) % 4 for p in positions]

    tokens, positions, segments = pack(a[:6], b[:5])
    where = slots(0, positions[:6]) + slots(1, positions[6:])
    found = run("prefill_paged", tokens, positions, segments, i32(where), i32([5, 10, 10]), table)
    close(found[0], expected(source, a[None])[0, 5])
    close(found[1], expected(source, b[None])[0, 4])
    found = run("decode_paged", i32([[a[6]], [b[5]], [0]]), i32([6, 5, 0]), table)
    close(found[0], expected(source, a[None])[0, 6])
    close(found[1], expected(source, b[None])[0, 5])
    # Row 0 goes on in a chunk of two, row 2's prompt enters, rows 1 and (idle) others step.
    chunk = np.concatenate([a[7:9], c[:6]]).astype(np.int32)
    at = i32([7, 8, *range(6)])
    rows = i32([0, 0] + [2] * 6)
    where = slots(0, at[:2]) + slots(2, at[2:])
    idle = table.copy()
    step_table = np.array(idle)
    found = run(
        "step_paged",
        chunk,
        at,
        rows,
        i32(where),
        i32([1, 7, 7]),
        i32([[a[9]], [b[6]], [c[6]]]),
        i32([9, 6, 6]),
        step_table,
    )
    close(found[0], expected(source, a[None])[0, 8])
    close(found[1], expected(source, c[None])[0, 5])
    close(found[3], expected(source, a[None])[0, 9])
    close(found[4], expected(source, b[None])[0, 6])
    close(found[5], expected(source, c[None])[0, 6])


def greedy(source: tuple[str, Path], prompt: np.ndarray, count: int) -> list[int]:
    """Tokens chosen one at a time from transformers' logits."""
    sequence = list(prompt)
    for _ in range(count):
        sequence.append(int(expected(source, i32([sequence]))[0, -1].argmax()))
    return sequence[len(prompt) :]


def test_generate(source: tuple[str, Path], backend: str) -> None:
    run = model(source, backend, **ONE)
    prompt = tiny.tokens(13, 6)
    wanted = greedy(source, prompt, 5)
    run("prefill", prompt[None, :-1], 0)
    found = run("generate", i32([[prompt[-1]]]), 5, Steps=5)
    assert found.tolist() == [wanted]


def test_generate_until(source: tuple[str, Path], backend: str) -> None:
    run = model(source, backend, **ONE)
    prompt = tiny.tokens(14, 6)
    wanted = greedy(source, prompt, 6)
    stop = next(i for i, t in enumerate(wanted) if t not in wanted[:i] and i >= 2)
    run("prefill", prompt[None, :-1], 0)
    found, count = run("generate_until", i32([[prompt[-1]]]), 5, wanted[stop], MaxNew=9)
    assert int(count) == stop + 1
    assert found.tolist() == [wanted[: stop + 1] + [0] * (8 - stop)]


def test_packed_training_entries(source: tuple[str, Path], backend: str) -> None:
    import torch

    run = model(source, backend, **ONE)
    a, b = tiny.tokens(15, 7), tiny.tokens(16, 5)
    tokens, positions, segments = pack(a, b)
    logits = np.concatenate([expected(source, p[None])[0] for p in (a, b)])
    targets = np.concatenate([np.roll(p, -1) for p in (a, b)]).astype(np.int64)
    chosen = torch.log_softmax(torch.from_numpy(logits), -1).numpy()
    chosen = np.take_along_axis(chosen, targets[:, None], 1)[:, 0]
    weights = np.random.default_rng(3).random(12).astype(np.float32)
    weights[[6, 11]] = 0
    close(run("log_probs_packed", tokens, positions, segments, targets), chosen)
    loss = run("loss_packed", tokens, positions, segments, targets, weights)
    close(np.asarray(loss), np.asarray(-(weights * chosen).sum()))
    hidden = run("hidden_packed", tokens, positions, segments)
    head = tiny.weights()["lm_head.weight"]
    close(hidden @ head.T, logits)


def test_sample_draws_the_same_tokens_everywhere(source: tuple[str, Path]) -> None:
    prompt = tiny.tokens(17, 5)
    drawn = []
    for backend in RUNNERS:
        run = model(source, backend, **THREE)
        run("prefill", np.stack([prompt[:-1], prompt[1:], prompt[1:]]), 0)
        key, last = np.array([7, 11], np.int64), i32([[prompt[-1]], [prompt[0]], [prompt[1]]])
        found = run("sample", last, 4, key, np.float32(1.5), Steps=12)
        drawn.append(found.tolist())
    assert all(d == drawn[0] for d in drawn)
    assert len(set(drawn[0][0])) > 1, "a temperature of 1.5 draws more than one token"
