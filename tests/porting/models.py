"""Small models in Flax's two styles, to be imported."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class Mlp(nn.Module):
    """Three layers of different widths."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.relu(nn.Dense(16)(x))
        x = nn.gelu(nn.Dense(12)(x))
        return nn.softmax(nn.Dense(5)(x))


def rope(x: Any, cos: Any, sin: Any) -> Any:
    """Rotates halves of the last axis of `[B, S, H, D]`."""
    a, b = jnp.split(x, 2, axis=-1)
    rotated = jnp.concatenate([-b, a], axis=-1)
    return x * cos + rotated * sin


def tables(length: int, width: int) -> tuple[Any, Any]:
    """The cosines and sines of positions, `[S, 1, D]`."""
    positions = jnp.arange(length)
    frequencies = 10000.0 ** (-jnp.arange(0, width, 2) / width)
    angles = positions[:, None] * frequencies
    angles = jnp.concatenate([angles, angles], axis=-1)[:, None, :]
    return jnp.cos(angles), jnp.sin(angles)


def attend(q: Any, k: Any, v: Any) -> Any:
    """Causal attention of `[B, S, H, D]`."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool))
    scores = jnp.where(mask, scores, -1e30)
    weights = nn.softmax(scores)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


class Attention(nn.Module):
    heads: int

    @nn.compact
    def __call__(self, x: Any, cos: Any, sin: Any) -> Any:
        batch, length, width = x.shape
        q = nn.Dense(width, use_bias=False, name="query")(x)
        k = nn.Dense(width, use_bias=False, name="key")(x)
        v = nn.Dense(width, use_bias=False, name="value")(x)
        q, k, v = (y.reshape(batch, length, self.heads, width // self.heads) for y in (q, k, v))
        mixed = attend(rope(q, cos, sin), rope(k, cos, sin), v)
        merged = mixed.reshape(batch, length, width)
        return nn.Dense(width, use_bias=False, name="out")(merged)


class Layer(nn.Module):
    heads: int

    @nn.compact
    def __call__(self, x: Any, cos: Any, sin: Any) -> Any:
        width = x.shape[-1]
        attended = Attention(self.heads, name="attention")(
            nn.RMSNorm(name="attention_norm")(x), cos, sin
        )
        x = x + attended
        h = nn.RMSNorm(name="mlp_norm")(x)
        gate = nn.Dense(2 * width, use_bias=False, name="gate")(h)
        up = nn.Dense(2 * width, use_bias=False, name="up")(h)
        down = nn.Dense(width, use_bias=False, name="down")(nn.silu(gate) * up)
        return x + down


class Decoder(nn.Module):
    """A decoder whose output head is its embedding."""

    vocab: int = 50
    width: int = 16
    heads: int = 2
    layers: int = 3

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        embed = nn.Embed(self.vocab, self.width, name="embed")
        x = embed(tokens)
        cos, sin = tables(tokens.shape[1], self.width // self.heads)
        for i in range(self.layers):
            x = Layer(self.heads, name=f"layers_{i}")(x, cos, sin)
        x = nn.RMSNorm(name="norm")(x)
        return embed.attend(x)


class NnxAttention(nnx.Module):
    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.heads = heads
        self.query, self.key, self.value, self.out = (
            nnx.Linear(width, width, use_bias=False, rngs=rngs) for _ in range(4)
        )

    def __call__(self, x: Any, cos: Any, sin: Any) -> Any:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q = self.query(x).reshape(shape)
        k = self.key(x).reshape(shape)
        v = self.value(x).reshape(shape)
        mixed = attend(rope(q, cos, sin), rope(k, cos, sin), v)
        return self.out(mixed.reshape(x.shape))


class NnxLayer(nnx.Module):
    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.attention_norm = nnx.RMSNorm(width, rngs=rngs)
        self.attention = NnxAttention(width, heads, rngs)
        self.mlp_norm = nnx.RMSNorm(width, rngs=rngs)
        self.gate = nnx.Linear(width, 2 * width, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(width, 2 * width, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(2 * width, width, use_bias=False, rngs=rngs)

    def __call__(self, x: Any, cos: Any, sin: Any) -> Any:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        h = self.mlp_norm(x)
        return x + self.down(nnx.silu(self.gate(h)) * self.up(h))


class NnxDecoder(nnx.Module):
    """The same decoder, its layers a list."""

    def __init__(self, rngs: nnx.Rngs, width: int = 16, heads: int = 2, layers: int = 3) -> None:
        self.head_width = width // heads
        self.embed = nnx.Embed(50, width, rngs=rngs)
        self.layers = nnx.List([NnxLayer(width, heads, rngs) for _ in range(layers)])
        self.norm = nnx.RMSNorm(width, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        cos, sin = tables(tokens.shape[1], self.head_width)
        for layer in self.layers:
            x = layer(x, cos, sin)
        x = self.norm(x)
        return self.embed.attend(x)


class ConvNet(nn.Module):
    """Convolutions, batch norms with what training has counted, pooling, a head."""

    @nn.compact
    def __call__(self, image: Any) -> Any:
        for i in range(2):
            image = nn.Conv(8 * (i + 1), (3, 3), name=f"conv_{i}")(image)
            image = nn.BatchNorm(use_running_average=True, name=f"norm_{i}")(image)
            image = nn.max_pool(nn.relu(image), (2, 2), strides=(2, 2))
        pooled = image.mean(axis=(1, 2))
        return nn.Dense(10, name="head")(pooled)


class Encoder(nn.Module):
    """Flax's own attention, with a mask for each row, norms with biases, exact gelu."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        mask = nn.make_causal_mask(x[..., 0])
        for i in range(2):
            h = nn.LayerNorm(name=f"attention_norm_{i}")(x)
            x = x + nn.MultiHeadDotProductAttention(4, name=f"attention_{i}")(h, h, mask=mask)
            h = nn.LayerNorm(name=f"mlp_norm_{i}")(x)
            wide = nn.gelu(nn.Dense(64, name=f"up_{i}")(h), approximate=False)
            x = x + nn.Dense(16, name=f"down_{i}")(wide)
        return nn.LayerNorm(name="norm")(x)


class Residual(nn.Module):
    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        return x + nn.Dense(16)(nn.tanh(nn.Dense(16)(x))), None


class Scanned(nn.Module):
    """Layers that `nn.scan` stacks and `nn.remat` computes again."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        own = {"params": True}
        layers = nn.scan(nn.remat(Residual), variable_axes={"params": 0}, split_rngs=own, length=3)
        x, _ = layers(name="layers")(x, None)
        return nn.Dense(3, name="head")(x)


class Recurrent(nn.Module):
    """Cells over time."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.RNN(nn.LSTMCell(8))(x), nn.RNN(nn.GRUCell(8))(x)


class Experts(nn.Module):
    """Two of four experts for each token."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        w = self.param("w", nn.initializers.normal(), (4, 16, 16))
        gates = nn.softmax(nn.Dense(4, name="router")(x))
        shares, chosen = jax.lax.top_k(gates, 2)
        mixed = jnp.einsum("bsd,bskde->bske", x, w[chosen])
        return (mixed * shares[..., None]).sum(2)


class Pixels(nn.Module):
    """Grouped, strided and transposed convolutions, norms of groups, padded pooling."""

    @nn.compact
    def __call__(self, image: Any) -> Any:
        image = nn.Conv(8, (3, 3), feature_group_count=4, strides=2)(image)
        image = nn.GroupNorm(2)(image)
        image = nn.avg_pool(nn.swish(image), (2, 2), strides=(2, 2), padding="SAME")
        image = nn.ConvTranspose(4, (3, 3), strides=(2, 2))(image)
        return nn.InstanceNorm()(image).reshape(image.shape[0], -1)


def varied(params: Any, seed: int = 0) -> Any:
    """The parameters with numbers drawn anew, none of them what it starts as."""
    leaves, tree = jax.tree_util.tree_flatten(params)
    draw = np.random.default_rng(seed)
    return tree.unflatten(
        [
            (0.3 * draw.standard_normal(x.shape) + 0.5 * (x.ndim == 1)).astype(x.dtype)
            ** (1 if x.ndim > 1 else 2)
            for x in leaves
        ]
    )
