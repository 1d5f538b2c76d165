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
SOURCE = """module probe

use std.nn.decoder::{Alone, KvCache, Packed, Paged, Pass, Span, Steps, within}
use std.nn.rope::{rope_frequencies, rope_tables}

pub block Probe {
    sub cache: KvCache<2, 6, 3, 16, f32, 4>

    pub entry alone<S: Dim>(q: Tensor[2, 4, S, 6; f32], k: Tensor[2, 2, S, 6; f32],
        v: Tensor[2, 2, S, 6; f32], mask: Tensor[S, S; bool]) -> Tensor[2, 4, S, 6; f32] {
        let alone = Alone<S>(mask = mask)
        let pass = Pass<2, S, 0, 0, 0, 3, 16>(positions = iota<i32>(S), alone = some(alone))
        return cache.attend(q, k, v, 0.5, within(pass, 4))
    }

    pub entry span<S: Dim>(q: Tensor[3, 4, S, 6; f32], k: Tensor[3, 2, S, 6; f32],
        v: Tensor[3, 2, S, 6; f32], at: i32, seen: Tensor[S, 16; bool])
        -> Tensor[3, 4, S, 6; f32] where S > 0 {
        let span = Span<3, S, 3, 16>(at = at, seen = seen)
        let pass = Pass<3, S, 0, 0, 0, 3, 16>(positions = iota<i32>(S) + at, span = some(span))
        return cache.attend(q, k, v, 0.5, within(pass, 4))
    }

    pub entry steps(q: Tensor[1, 4, 3, 6; f32], k: Tensor[1, 2, 3, 6; f32],
        v: Tensor[1, 2, 3, 6; f32], at: Tensor[3; i32], seen: Tensor[3, 16; bool])
        -> Tensor[1, 4, 3, 6; f32] {
        let pass = Pass<1, 3, 0, 0, 0, 3, 16>(
            positions = at, steps = some(Steps<1, 3, 3, 16>(seen = seen)))
        return cache.attend(q, k, v, 0.5, within(pass, 4))
    }

    pub entry paged<P: Dim, Rows: Dim, Pages: Dim>(q: Tensor[1, 4, P, 6; f32],
        k: Tensor[1, 2, P, 6; f32], v: Tensor[1, 2, P, 6; f32], at: Tensor[P; i32],
        rows: Tensor[P; i32], slots: Tensor[P; i32], table: Tensor[Rows, Pages; i32])
        -> Tensor[1, 4, P, 6; f32] {
        let paged = Paged<1, P, Rows, Pages>(rows = rows, slots = slots, table = table)
        let pass = Pass<1, P, 0, Rows, Pages, 3, 16>(positions = at, paged = some(paged))
        return cache.attend(q, k, v, 0.5, within(pass, 4))
    }

    pub entry tables<N: Dim>(at: Tensor[N; i32]) -> (Tensor[N, 6; f32], Tensor[N, 6; f32]) {
        return rope_tables(at, rope_frequencies<6>(10000.0))
    }
}
"""
PLAIN, SINKS = "within(pass, 4))", "within(pass, 4), some(iota<f32>(4) - 1.0))"


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
        path, source = folder / "probe.linnet", SOURCE.replace(PLAIN, SINKS if sinks else PLAIN)
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


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "sinks"])
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


def test_rows_that_use_no_cache(model: Model) -> None:
    q, k, v = drawn(2, 9)
    found = model("alone", q, k, v, np.tril(np.ones((9, 9), bool)))
    for row in range(2):
        close(found[row], attention(q[row], k[row], v[row], np.arange(9), model.sinks))


def test_spans_then_steps_of_each_row(model: Model) -> None:
    q, k, v = drawn(BATCH, 12)
    wanted = np.stack(
        [attention(q[b], k[b], v[b], np.arange(12), model.sinks) for b in range(BATCH)]
    )
    position = np.arange(LENGTH)
    for start, stop in ((0, 5), (5, 6), (6, 10)):
        part = (..., slice(start, stop), slice(None))
        seen = position[None] <= np.arange(start, stop)[:, None]
        close(model("span", q[part], k[part], v[part], start, seen), wanted[part])
    for at in (10, 11):
        q1, k1, v1 = (x[:, :, at].transpose(1, 0, 2)[None] for x in (q, k, v))
        seen = np.broadcast_to(position <= at, (BATCH, LENGTH))
        found = model(
            "steps",
            *map(np.ascontiguousarray, (q1, k1, v1)),
            np.full(3, at, np.int32),
            np.array(seen),
        )
        close(found[0].transpose(1, 0, 2), wanted[:, :, at])


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
