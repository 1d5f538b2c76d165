"""Operations of JAX one by one: traced, and as StableHLO, against JAX's own numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from .importing import agrees, lowered_agrees

pytestmark = pytest.mark.slow  # importing JAX alone takes a second

DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((3, 5)).astype(np.float32)
WIDE = (4 * DRAW.standard_normal((4, 6))).astype(np.float32)
WHOLE = DRAW.integers(-9, 9, (3, 5)).astype(np.int32)
IDS = np.array([[0, 2], [-1, 5], [7, -9]], np.int32)
IMAGE = DRAW.standard_normal((2, 8, 9, 4)).astype(np.float32)
KERNEL = DRAW.standard_normal((3, 3, 4, 6)).astype(np.float32)
DEPTHWISE = DRAW.standard_normal((3, 3, 1, 8)).astype(np.float32)
VOLUME = DRAW.standard_normal((2, 2, 4, 5, 3)).astype(np.float32)
SPECIAL = np.array([0.0, -0.0, 1.5, -2.5, 0.5, np.inf, -np.inf, np.nan, 3.0, -3.0], np.float32)


def conv(x: Any, w: Any, **options: Any) -> Any:
    return lax.conv_general_dilated(
        x,
        w,
        **{"window_strides": (1, 1), "padding": "SAME", **options},
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def pool(x: Any, start: float, how: Any, padding: str = "VALID") -> Any:
    return lax.reduce_window(x, start, how, (1, 3, 2, 1), (1, 2, 2, 1), padding)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "arithmetic": (lambda x, y: (x + y * 2 - x / 3, -x, abs(x), x * x), (X, X + 1)),
    "transcendental": (
        lambda x: (
            jnp.exp(x),
            jnp.log(abs(x)),
            jnp.sqrt(abs(x)),
            jnp.sin(x),
            jnp.tanh(x),
            jnp.tan(x),
        ),
        (X,),
    ),
    "small": (
        lambda x: (jnp.expm1(x), jnp.sinh(x), jnp.cosh(x), jnp.log1p(abs(x)), lax.rsqrt(abs(x))),
        (X * 1e-4,),
    ),
    "powers": (
        lambda x: (x**2, x**3, x**-2, abs(x) ** 1.5, 2.0**x, jnp.exp2(x), jnp.power(x, 4.0)),
        (X,),
    ),
    "rounding": (
        lambda x: (jnp.floor(x), jnp.ceil(x), jnp.round(x), jnp.sign(x), jnp.isfinite(x)),
        (np.concatenate([WIDE.reshape(-1), SPECIAL]),),
    ),
    "sums of what is repeated": (
        lambda x: (
            jnp.broadcast_to(x[:, :1], (3, 5)).sum(1),
            jnp.broadcast_to(x[:, :1], (3, 5)) @ jnp.broadcast_to(x[0][:, None], (5, 2)),
            jnp.broadcast_to(x[:, :1], (3, 7)) @ jnp.broadcast_to(x[0, :2], (7, 2)),
            jnp.ones((3, 5)).sum(1),
            jnp.full((2, 3), 2.0) @ jnp.full((3, 4), 0.5),
            jnp.broadcast_to(x[:1, :1], (3, 5)).max(),
        ),
        (X,),
    ),
    "extremes": (
        lambda x: (
            jnp.maximum(x, jnp.finfo(jnp.float32).min),
            jnp.minimum(x.astype(jnp.bfloat16), jnp.finfo(jnp.bfloat16).max),
            jnp.maximum(x.astype(jnp.float16), jnp.finfo(jnp.float16).min),
            x.astype(jnp.int32) + jnp.iinfo(jnp.int32).min,
            x * 1e-45 + jnp.finfo(jnp.float32).tiny,
        ),
        (X,),
    ),
    "three axes": (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 2, 1), "SAME"),
        (VOLUME, VOLUME[:, :, :3, :3, :3]),
    ),
    "precision": (
        lambda x: (
            lax.reduce_precision(x, 5, 10),
            lax.reduce_precision(x, 8, 7),
            lax.reduce_precision(x, 8, 23),
        ),
        (X,),
    ),
    "large": (lambda x: (jnp.floor(x), jnp.round(x)), (np.array([2e7, -3e9, 1e30], np.float32),)),
    "errors": (
        lambda x: (jax.scipy.special.erf(x), jax.scipy.special.erfc(x)),
        (np.linspace(-4, 4, 41, dtype=np.float32),),
    ),
    "integers": (
        lambda x, y: (x + y, x * y, x // 3, x % 3, lax.rem(x, 4), lax.div(x, 4), jnp.maximum(x, y)),
        (WHOLE, WHOLE.T.reshape(3, 5)),
    ),
    "bits": (lambda x: (x & 6, x | 1, x ^ 3, ~x, x << 2, x >> 1, x > 2), (WHOLE,)),
    "shifts": (
        lambda x, n: (
            lax.shift_right_logical(x, n),
            lax.shift_right_arithmetic(x, n),
            lax.shift_left(x, n),
        ),
        (
            np.array([-7, 5, -(2**31), 2**31 - 1, -1], np.int32),
            np.array([1, 2, 3, 31, 32], np.int32),
        ),
    ),
    "unsigned": (
        lambda x: (x >> 1, x << 1, ~x, x // 7, x % 7),
        (np.arange(9, dtype=np.uint8) * 30,),
    ),
    "bools": (
        lambda x, y: (x & y, x | y, ~x, jnp.where(x, y, ~y), x.any(0), y.all(), x.sum()),
        (X > 0, X.T.reshape(3, 5) > 0),
    ),
    "casts": (
        lambda x, i: (
            x.astype(jnp.int32),
            i.astype(jnp.float32),
            x.astype(jnp.bfloat16),
            i != 0,
            x > 0,
        ),
        (WIDE, WHOLE),
    ),
    "reductions": (
        lambda x: (x.sum(), x.mean(0), x.max(1), x.min(), jnp.prod(x, 1), x.var(1), jnp.std(x)),
        (X,),
    ),
    "where": (
        lambda x: (jnp.where(x > 0, x, 0), jnp.where(x > 0, 1.0, -1.0), jnp.clip(x, -1, 1)),
        (X,),
    ),
    "infinite": (lambda x: jnp.where(x > 0, x, -jnp.inf).max(1), (X,)),
    "shapes": (
        lambda x: (
            x.T,
            x.reshape(5, 3),
            x.reshape(-1),
            x[None, :, None],
            x.ravel()[::2],
            x[1:, ::2],
        ),
        (X,),
    ),
    "joining": (
        lambda x: (
            jnp.concatenate([x, x * 2], 1),
            jnp.stack([x, x]),
            jnp.pad(x, ((1, 2), (0, 1))),
            jnp.tile(x, (2, 1)),
            jnp.flip(x, 1),
            jnp.roll(x, 2, 1),
            jnp.repeat(x, 2, axis=0),
        ),
        (X,),
    ),
    "interior": (lambda x: lax.pad(x, 1.0, ((1, -1, 2), (-1, 2, 0))), (X,)),
    "outer": (lambda x: (x[:, :, None] * x[:, None, :], jnp.outer(x[0], x[1])), (X,)),
    "einsum": (
        lambda x, y: (
            jnp.einsum("ij,kj->ik", x, y),
            jnp.einsum("ij,ij->i", x, y),
            jnp.einsum("ij,ik->jk", x, y),
            jnp.einsum("bij,bjk->bki", jnp.stack([x, y]), jnp.stack([y.T, x.T])),
            x @ y.T @ x,
        ),
        (X, X - 1),
    ),
    "mixed product": (
        lambda x, y: jnp.matmul(x, y, preferred_element_type=jnp.float32),
        (X.astype(jnp.bfloat16), X.T.astype(jnp.bfloat16)),
    ),
    "iota": (lambda x: (jnp.arange(5) * 2 + 1, jnp.eye(4), jnp.tril(x), jnp.triu(x, 1)), (X,)),
    "take": (
        lambda x, i: (jnp.take(x, i, axis=0), x[i], jnp.take(x, i, axis=1, mode="clip"), x[:, -1]),
        (X, IDS),
    ),
    "take along": (
        lambda x, i: (jnp.take_along_axis(x, i % 5, axis=1), x[i[:, 0] % 3, i[:, 1] % 5]),
        (X, IDS),
    ),
    "slices at runtime": (
        lambda x, at: (
            lax.dynamic_slice(x, (at, 1), (2, 3)),
            lax.dynamic_slice(x, (9, at), (2, 3)),
            lax.dynamic_update_slice(x, -x[:2, :3], (at, 1)),
            lax.dynamic_index_in_dim(x, at, 1),
            lax.dynamic_update_slice(x, -x[:1], (at, 0)),
        ),
        (X, np.int32(2)),
    ),
    "scatter": (
        lambda x, i: (
            x.at[i].set(9.0),
            x.at[i, 1].set(-x[i, 0]),
            x.at[:, i].add(1.5),
            x.at[i].max(0.25),
            x.at[i].mul(2.0),
            x.at[1].set(0.0),
        ),
        (X, np.array([2, 0, 7], np.int32)),
    ),
    "argmax": (
        lambda x, i: (
            jnp.argmax(x, 1),
            jnp.argmin(x, 0),
            jnp.argmax(i, 1),
            jnp.argmax(x.at[1, 2].set(jnp.nan), 1),
        ),
        (X, WHOLE),
    ),
    "sorting": (
        lambda x, i: (
            jnp.sort(x, 0),
            jnp.argsort(i, 1),
            jnp.sort(i),
            jnp.median(x, 1),
            lax.top_k(x, 2),
        ),
        (X, WHOLE),
    ),
    "running": (
        lambda x: (
            jnp.cumsum(x, 1),
            jnp.cumprod(x, 0),
            lax.cummax(x, 1),
            lax.cumsum(x, 0, reverse=True),
        ),
        (X,),
    ),
    "convolution": (lambda x, w: conv(x, w), (IMAGE, KERNEL)),
    "strided": (lambda x, w: conv(x, w, window_strides=(2, 3)), (IMAGE, KERNEL)),
    "dilated": (
        lambda x, w: conv(x, w, rhs_dilation=(2, 1), padding=((1, 2), (0, 0))),
        (IMAGE, KERNEL),
    ),
    "transposed": (
        lambda x, w: conv(x, w, lhs_dilation=(2, 2), padding=((1, 2), (2, 1))),
        (IMAGE, KERNEL),
    ),
    "grouped": (lambda x, w: conv(x, w, feature_group_count=4), (IMAGE, DEPTHWISE)),
    "one axis": (
        lambda x, w: lax.conv_general_dilated(
            x, w, (2,), ((1, 1),), dimension_numbers=("NWC", "WIO", "NWC")
        ),
        (IMAGE[0], KERNEL[0]),
    ),
    "max pool": (lambda x: pool(x, -jnp.inf, lax.max), (IMAGE,)),
    "padded pool": (lambda x: pool(x, -jnp.inf, lax.max, "SAME"), (IMAGE,)),
    "sum pool": (lambda x: pool(x, 0.0, lax.add) / 6, (IMAGE,)),
    "softmax": (
        lambda x: (
            jax.nn.softmax(x),
            jax.nn.softmax(x, 0),
            jax.nn.log_softmax(x),
            jax.nn.logsumexp(x, 1),
        ),
        (4 * X,),
    ),
    "activations": (
        lambda x: (
            jax.nn.relu(x),
            jax.nn.sigmoid(x),
            jax.nn.silu(x),
            jax.nn.gelu(x),
            jax.nn.gelu(x, approximate=False),
            jax.nn.softplus(x),
            jax.nn.leaky_relu(x),
            jax.nn.elu(x),
        ),
        (2 * X,),
    ),
    "while": (
        lambda x: lax.while_loop(
            lambda c: c[0] < 5, lambda c: (c[0] + 1, jnp.sin(c[1]) + x), (0, x)
        ),
        (X,),
    ),
    "while by a sum": (
        lambda x: lax.while_loop(lambda c: (c * c).sum() < 900.0, lambda c: 1.5 * c + 0.1, x),
        (X,),
    ),
    "swap": (
        lambda x, y: lax.while_loop(
            lambda c: c[2] < 3, lambda c: (c[1], c[0] + 1.0, c[2] + 1), (x, y, 0)
        ),
        (X, 2 * X),
    ),
    "for": (lambda x: lax.fori_loop(2, 6, lambda i, c: c * 0.5 + i, x), (X,)),
    "scan": (lambda x: lax.scan(lambda c, row: (c + row, jnp.sin(c).sum()), x[0], x), (X,)),
    "scan backwards": (
        lambda x: lax.scan(lambda c, row: (c + row, c * row), x[0], x, reverse=True),
        (X,),
    ),
    "scan without carry": (lambda x: lax.map(lambda row: row * row.sum(), x), (X,)),
    "nested loops": (
        lambda x: lax.fori_loop(
            0, 2, lambda i, c: lax.fori_loop(0, 3, lambda j, d: d * 0.9 + i - j, c), x
        ),
        (X,),
    ),
    "cond": (
        lambda x: (
            lax.cond(
                x.sum() > 0, lambda y: y * 2, lambda y: jnp.sin(y) - y.sum(1, keepdims=True), x
            ),
            lax.cond(x[0, 0] > 100, lambda y: (y, y + 1), lambda y: (y - 1, y * y), x),
        ),
        (X,),
    ),
    "switch": (
        lambda x, k: lax.switch(k, [lambda y: y, lambda y: y * 2, lambda y: jnp.cumsum(y, 1)], x),
        (X, np.int32(7)),
    ),
    "vmap": (lambda x: jax.vmap(lambda row: jnp.outer(row, row).sum(0))(x), (X,)),
    "constants": (lambda x: (x + np.arange(5, dtype=np.float32), x * 0 + 3.0, jnp.ones(3)), (X,)),
    "unused": (lambda x, y: x, (X, X)),
}
# What XLA makes of them in StableHLO has no translation.
ONLY_TRACED = {"sorting", "running"}


@pytest.mark.parametrize("name", CASES)
def test_traced(name: str, tmp_path: Path) -> None:
    function, inputs = CASES[name]
    agrees(tmp_path, lambda _, *given: function(*given), {}, inputs)


@pytest.mark.parametrize("name", sorted(set(CASES) - ONLY_TRACED))
def test_lowered(name: str, tmp_path: Path) -> None:
    function, inputs = CASES[name]
    lowered_agrees(tmp_path, lambda _, *given: function(*given), {}, inputs)
