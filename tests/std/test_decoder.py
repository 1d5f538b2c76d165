"""`std.nn.decoder`: each way in which a pass meets the cache, windowed, against plain attention.

All of it without and with sinks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import linnet.torch
from linnet.check import check_text
from linnet.core.lower import lower
from linnet.reference import evaluate

WINDOW = 4
HEADS, KV, WIDTH, BATCH, LENGTH = 4, 2, 6, 3, 16
SINKS = ", some(iota<f32>(4) - 1.0)"
SOURCE = """module probe

use std.nn.decoder::{KvCache, Packed, PackedAndSteps, Paged, Pass, Slots, Span, Steps, within}
use std.nn.rope::{rope_frequencies, rope_tables}

pub block Probe {
    sub cache: KvCache<2, 6, 3, 16, f32, 4>

    pub entry whole<S: Dim>(q: Tensor[2, 4, S, 6; f32], k: Tensor[2, 2, S, 6; f32],
        v: Tensor[2, 2, S, 6; f32]) -> Tensor[2, 4, S, 6; f32] {
        let pass = Pass<2, S, 0, 0, 0, 3, 16>(positions = iota<i32>(S))
        return cache.attend(q, k, v, 0.5, within(pass, 4)SINKS)
    }

    pub entry slots<S: Dim>(q: Tensor[2, 4, S, 6; f32], k: Tensor[2, 2, S, 6; f32],
        v: Tensor[2, 2, S, 6; f32], slots: Tensor[2; i32]) -> Tensor[2, 4, S, 6; f32] where S > 0 {
        let pass = Pass<2, S, 0, 0, 0, 3, 16>(
            positions = iota<i32>(S), slots = some(Slots<2, S>(slots = slots)))
        return cache.attend(q, k, v, 0.5, within(pass, 4)SINKS)
    }

    pub entry span<S: Dim>(q: Tensor[3, 4, S, 6; f32], k: Tensor[3, 2, S, 6; f32],
        v: Tensor[3, 2, S, 6; f32], at: i32) -> Tensor[3, 4, S, 6; f32] where S > 0 {
        let pass = Pass<3, S, 0, 0, 0, 3, 16>(
            positions = iota<i32>(S) + at, span = some(Span<3, S, 3>(at = at)))
        return cache.attend(q, k, v, 0.5, within(within(pass, 4), 5)SINKS)
    }

    pub entry steps(q: Tensor[1, 4, 3, 6; f32], k: Tensor[1, 2, 3, 6; f32],
        v: Tensor[1, 2, 3, 6; f32], at: Tensor[3; i32]) -> Tensor[1, 4, 3, 6; f32] {
        let pass = Pass<1, 3, 0, 0, 0, 3, 16>(
            positions = at, steps = some(Steps<1, 3, 3>(at = at)))
        return cache.attend(q, k, v, 0.5, within(pass, 4)SINKS)
    }

    pub entry packed<P: Dim>(q: Tensor[1, 4, P, 6; f32], k: Tensor[1, 2, P, 6; f32],
        v: Tensor[1, 2, P, 6; f32], at: Tensor[P; i32], segments: Tensor[P; i32])
        -> Tensor[1, 4, P, 6; f32] {
        let pass = Pass<1, P, 0, 0, 0, 3, 16>(
            positions = at, packed = some(Packed<1, P>(segments = segments)))
        return cache.attend(q, k, v, 0.5, within(pass, 4)SINKS)
    }

    pub entry packed_rows<P: Dim>(q: Tensor[1, 4, P, 6; f32], k: Tensor[1, 2, P, 6; f32],
        v: Tensor[1, 2, P, 6; f32], at: Tensor[P; i32], segments: Tensor[P; i32],
        rows: Tensor[P; i32]) -> Tensor[1, 4, P, 6; f32] {
        let packed = Packed<1, P>(segments = segments, rows = some(rows))
        let pass = Pass<1, P, 0, 0, 0, 3, 16>(positions = at, packed = some(packed))
        return cache.attend(q, k, v, 0.5, within(pass, 4)SINKS)
    }

    pub entry both<P: Dim>(q: Tensor[1, 4, P + 3, 6; f32], k: Tensor[1, 2, P + 3, 6; f32],
        v: Tensor[1, 2, P + 3, 6; f32], at: Tensor[P + 3; i32], segments: Tensor[P; i32],
        rows: Tensor[P + 3; i32]) -> Tensor[1, 4, P + 3, 6; f32] {
        let both = PackedAndSteps<1, P + 3, P, 3>(segments = segments, rows = rows)
        let pass = Pass<1, P + 3, P, 0, 0, 3, 16>(positions = at, packed_and_steps = some(both))
        return cache.attend(q, k, v, 0.5, within(pass, 4)SINKS)
    }

    pub entry paged<P: Dim, Rows: Dim, Pages: Dim>(q: Tensor[1, 4, P, 6; f32],
        k: Tensor[1, 2, P, 6; f32], v: Tensor[1, 2, P, 6; f32], at: Tensor[P; i32],
        rows: Tensor[P; i32], slots: Tensor[P; i32], table: Tensor[Rows, Pages; i32])
        -> Tensor[1, 4, P, 6; f32] {
        let paged = Paged<1, P, Rows, Pages>(rows = rows, slots = slots, table = table)
        let pass = Pass<1, P, 0, Rows, Pages, 3, 16>(positions = at, paged = some(paged))
        return cache.attend(q, k, v, 0.5, within(pass, 4)SINKS)
    }

    pub entry tables<N: Dim>(at: Tensor[N; i32]) -> (Tensor[N, 6; f32], Tensor[N, 6; f32]) {
        return rope_tables(at, rope_frequencies<6>(10000.0))
    }
}
"""


def attention(q: Any, k: Any, v: Any, positions: Any, sinks: bool) -> np.ndarray:
    """`[H, S, D]` over keys `[KV, S, D]` at the same positions: causal, within the window, f64."""
    out = np.zeros(q.shape)
    at = np.asarray(positions)
    seen = (at[None] <= at[:, None]) & (at[:, None] - at[None] < WINDOW)
    for head in range(q.shape[0]):
        key, value = (x[head // (HEADS // KV)].astype(np.float64) for x in (k, v))
        scores = np.where(seen, q[head].astype(np.float64) @ key.T * 0.5, -1e30)
        weights = np.exp(scores)
        idle = np.exp(head - 1.0) if sinks else 0.0
        out[head] = weights / (weights.sum(-1, keepdims=True) + idle) @ value
    return out


class Model:
    """The probe on the reference and on PyTorch, which must agree."""

    def __init__(self, folder: Path, sinks: bool) -> None:
        self.sinks = sinks
        path, source = folder / "probe.linnet", SOURCE.replace("SINKS", SINKS if sinks else "")
        path.write_text(source)
        self.torch = linnet.torch.load(path, numerics="equivalent")
        self.program = lower(check_text(source))
        self.state: dict[str, Any] = {}

    def __call__(self, entry: str, *inputs: Any, **sizes: int) -> Any:
        import torch

        found = evaluate(self.program, entry, list(inputs), {}, self.state, sizes)
        given = [torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in inputs]
        other = self.torch.run_entry(entry, given)
        np.testing.assert_allclose(other, found, rtol=0, atol=2e-6)
        return found


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, marks=pytest.mark.slow), True],
    ids=["plain", "sinks"],
)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("decoder"), request.param)


@pytest.fixture
def model(loaded: Model) -> Model:
    """The model with its caches at zero."""
    loaded.state.clear()
    loaded.torch.reset_state()
    return loaded


def drawn(rows: int, length: int) -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(rows * 100 + length)
    shapes = (rows, HEADS, length, WIDTH), (rows, KV, length, WIDTH), (rows, KV, length, WIDTH)
    q, k, v = (draw.standard_normal(s).astype(np.float32) for s in shapes)
    return q, k, v


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6)


def by_row(found: Any) -> Any:
    """`[1, H, B, D]` as `[B, H, D]`."""
    return found[0].transpose(1, 0, 2)


def of_rows(x: Any, at: Any) -> Any:
    """Position `at[b]` of each row b of `[B, H, S, D]`, packed: `[1, H, B, D]`."""
    return np.ascontiguousarray(np.stack([x[b, :, p] for b, p in enumerate(at)], 1)[None])


def packed(x: Any, lengths: Any) -> Any:
    """The first `lengths[b]` positions of each row of `[B, H, S, D]`, packed: `[1, H, P, D]`."""
    return np.concatenate([x[b, :, :n] for b, n in enumerate(lengths)], 1)[None]


def test_whole_sequences_use_no_cache(model: Model) -> None:
    q, k, v = drawn(2, 9)
    found = model("whole", q, k, v)
    for row in range(2):
        close(found[row], attention(q[row], k[row], v[row], np.arange(9), model.sinks))


def every(q: Any, k: Any, v: Any, sinks: bool) -> np.ndarray:
    """What each row of a batch gives at every position."""
    rows = zip(q, k, v, strict=True)
    return np.stack([attention(*row, np.arange(q.shape[2]), sinks) for row in rows])


def test_spans_then_steps_of_each_row(model: Model) -> None:
    q, k, v = drawn(BATCH, 12)
    wanted = every(q, k, v, model.sinks)
    for start, stop in ((0, 5), (5, 6), (6, 10)):
        part = (..., slice(start, stop), slice(None))
        close(model("span", q[part], k[part], v[part], start), wanted[part])
    for at in ([10, 10, 10], [11, 11, 11], [11, 3, 8]):
        found = model("steps", *(of_rows(x, at) for x in (q, k, v)), np.array(at, np.int32))
        close(by_row(found), by_row(of_rows(wanted, at)))


def test_prompts_in_slots_then_steps(model: Model) -> None:
    q, k, v = drawn(BATCH, 8)
    wanted = every(q, k, v, model.sinks)
    prompts = ([2, 0], slice(None), slice(0, 6))
    found = model("slots", q[prompts], k[prompts], v[prompts], np.array([2, 0], np.int32))
    close(found, wanted[prompts])
    at = [6, 0, 4]
    found = model("steps", *(of_rows(x, at) for x in (q, k, v)), np.array(at, np.int32))
    close(by_row(found), by_row(of_rows(wanted, at)))


def test_packed_prompts_then_steps_beside_others(model: Model) -> None:
    """With padding, a segment in two places, and a row that has no request."""
    q, k, v = drawn(BATCH, 9)
    wanted, lengths = every(q, k, v, model.sinks), (7, 5, 0)
    given = [packed(x, lengths) for x in (q, k, v)]
    at = np.concatenate([np.arange(n) for n in lengths]).astype(np.int32)
    rows = np.repeat(np.arange(BATCH), lengths).astype(np.int32)
    close(model("packed", *given, at, rows), packed(wanted, lengths))
    mixed = np.argsort(at, kind="stable")
    found = model("packed", *(x[:, :, mixed] for x in given), at[mixed], rows[mixed])
    close(found, packed(wanted, lengths)[:, :, mixed])
    padding = [np.concatenate([x, x[:, :, :3]], 2) for x in given]
    places, rows = np.append(at, [15] * 3).astype(np.int32), np.append(rows, [2] * 3)
    rows = rows.astype(np.int32)
    found = model("packed_rows", *padding, places, rows, rows)
    close(found[:, :, :12], packed(wanted, lengths))

    steps, prompt = [7, 5, 15], [x[2:, :, :4] for x in (q, k, v)]
    turns = [of_rows(x, [7, 5, 0]) for x in (q, k, v)]
    both = [np.concatenate(pair, 2) for pair in zip(prompt, turns, strict=True)]
    places = np.array([*range(4), *steps], np.int32)
    rows = np.array([2, 2, 2, 2, 0, 1, 2], np.int32)
    found = model("both", *both, places, np.zeros(4, np.int32), rows)
    close(found[:, :, :4], wanted[2:, :, :4])
    close(by_row(found)[4:6], by_row(of_rows(wanted, [7, 5, 0]))[:2])
    at = [8, 6, 4]
    found = model("steps", *(of_rows(x, at) for x in (q, k, v)), np.array(at, np.int32))
    close(by_row(found), by_row(of_rows(wanted, at)))


def test_pages_in_chunks(model: Model) -> None:
    table = np.array([[3, 1, 2], [2, 0, 3]], np.int32)
    q, k, v = drawn(1, 10)
    wanted = attention(q[0], k[0], v[0], np.arange(10), model.sinks)
    for start, stop in ((0, 6), (6, 7), (7, 10)):
        at = np.arange(start, stop, dtype=np.int32)
        slots = table[0, at // 4] * 4 + at % 4
        part = (..., slice(start, stop), slice(None))
        found = model("paged", q[part], k[part], v[part], at, np.zeros_like(at), slots, table)
        close(found[0], wanted[part])


def test_rotary_tables_keep_their_digits_far_out(model: Model) -> None:
    """Against f64: the angle of position 100,000 is rounded to f32 once, no frequency twice."""
    at = np.array([0, 1, 77, 4096, 100_000], np.int32)
    cosines, sines = model("tables", at)
    frequency = (10000.0 ** (-np.arange(3) / 3)).astype(np.float32)
    angle = (at[:, None].astype(np.float32) * frequency).astype(np.float64)
    close(cosines, np.cos(np.concatenate([angle, angle], -1)))
    close(sines, np.sin(np.concatenate([angle, angle], -1)))
