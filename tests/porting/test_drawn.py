"""Random programs of jax.numpy: what is imported gives the same numbers, traced and lowered."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax

from .importing import agrees, lowered_agrees

pytestmark = pytest.mark.slow

Value = Any
# What each step does with one or two earlier values, and a number to choose by.
ONE: tuple[Callable[[Value, int], Value], ...] = (
    lambda x, n: jnp.tanh(x) + n,
    lambda x, n: -x * 0.5,
    lambda x, n: jnp.exp(-abs(x)),
    lambda x, n: jnp.where(x > n % 2, x, x * x * 0.1),
    lambda x, n: x.T,
    lambda x, n: x.reshape(-1),
    lambda x, n: x.reshape(1, *x.shape),
    lambda x, n: x.sum(axis=n % x.ndim if x.ndim else None) * 0.3,
    lambda x, n: x.max(axis=n % x.ndim, keepdims=True) if x.ndim else x,
    lambda x, n: x.mean(axis=tuple(range(x.ndim))[: n % 3 + 1]),
    lambda x, n: x[n % x.shape[0]] if x.ndim else x,
    lambda x, n: x[..., n % x.shape[-1] :] if x.ndim else x,
    lambda x, n: x[::2] if x.ndim else x,
    lambda x, n: jnp.flip(x, n % x.ndim) if x.ndim else x,
    lambda x, n: jnp.concatenate([x, x * 2], n % x.ndim) if x.ndim else x,
    lambda x, n: jnp.pad(x, [(n % 2, 1)] * x.ndim),
    lambda x, n: jnp.expand_dims(x, n % (x.ndim + 1)),
    lambda x, n: jnp.broadcast_to(x, (2, *x.shape)),
    lambda x, n: jax.nn.softmax(x) if x.ndim else x,
    lambda x, n: jax.nn.silu(x),
    lambda x, n: jax.nn.relu(x),
    lambda x, n: jax.nn.gelu(x),
    lambda x, n: jnp.floor(x * 1.7) * 0.2,
    lambda x, n: jnp.take(x, jnp.array([0, n % 2]), axis=0, mode="clip") if x.ndim else x,
    lambda x, n: x.at[..., 0].set(0.25) if x.ndim else x,
    lambda x, n: lax.fori_loop(0, n % 3, lambda i, c: c * 0.9 + i, x),
    lambda x, n: lax.cond(x.sum() > n, jnp.sin, jnp.cos, x),
    lambda x, n: lax.scan(lambda c, row: (c * 0.5 + row, c), x[0], x)[n % 2] if x.ndim else x,
)
TWO: tuple[Callable[[Value, Value], Value], ...] = (
    lambda x, y: x + y if fits(x, y) else x,
    lambda x, y: x * y if fits(x, y) else y,
    lambda x, y: jnp.maximum(x, y) if fits(x, y) else x - 1,
    lambda x, y: x / (abs(y) + 1) if fits(x, y) else x,
    lambda x, y: jnp.where(x > y, x, y) if fits(x, y) else x,
    lambda x, y: jnp.tanh(x @ y) if multiplies(x, y) else y,
    lambda x, y: jnp.tensordot(x, y, 0) * 0.1 if x.size * y.size < 200 else x,
    lambda x, y: x - y.mean(),
)


def fits(x: Value, y: Value) -> bool:
    """The two broadcast."""
    return all(a == b or 1 in (a, b) for a, b in zip(x.shape[::-1], y.shape[::-1], strict=False))


def multiplies(x: Value, y: Value) -> bool:
    return x.ndim == 2 and y.ndim == 2 and x.shape[1] == y.shape[0]


Step = tuple[int, int, int, int]
steps = st.lists(st.tuples(*(st.integers(0, 99) for _ in range(4))), min_size=1, max_size=7)


def program(steps: list[Step]) -> Callable[..., Any]:
    """A function of parameters and one input, by the numbers of each step."""

    def run(params: Any, x: Any) -> Any:
        values = [x, params["w"], params["b"]]
        for which, first, second, number in steps:
            a, b = values[-1 - first % len(values)], values[-1 - second % len(values)]
            if which % 2:
                made = ONE[number % len(ONE)](a, which)
            else:
                made = TWO[number % len(TWO)](a, b)
            values.append(made if made.size and made.size < 2000 else a)
        return values[-1], values[len(values) // 2]

    return run


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=steps, seed=st.integers(0, 9), lowered=st.booleans())
def test_random_programs(steps: list[Step], seed: int, lowered: bool) -> None:
    draw = np.random.default_rng(seed)
    params = {
        "w": draw.standard_normal((3, 4)).astype(np.float32),
        "b": draw.standard_normal(4).astype(np.float32),
    }
    x = draw.standard_normal((2, 3)).astype(np.float32)
    compare = lowered_agrees if lowered else agrees
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), program(steps), params, (x,), limit=2e-5)
