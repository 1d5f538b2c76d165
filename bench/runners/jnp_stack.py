"""A Llama written by hand in jax.numpy: one jitted step over arrays as the checkpoint has them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.job import Job, Logits, Round
from bench.runners.jax_common import DTYPES, set_up, timed


def prepare(job: Job) -> str:
    return set_up(job)


def load(job: Job) -> Stack:
    return Stack(job)


@dataclass(frozen=True, slots=True)
class Sizes:
    """A Llama as its configuration states it."""

    width: int
    layers: int
    heads: int
    key_heads: int
    epsilon: float
    theta: float
    tied: bool

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def sizes_of(place: Path) -> Sizes:
    """The sizes of the checkpoint in this directory."""
    config: dict[str, Any] = json.loads((place / "config.json").read_text())
    return Sizes(
        width=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        key_heads=config["num_key_value_heads"],
        epsilon=config["rms_norm_eps"],
        theta=config.get("rope_theta") or config["rope_parameters"]["rope_theta"],
        tied=config.get("tie_word_embeddings", False),
    )


class Stack:
    """The step's parameters are a dict, its caches a list whose memory it takes."""

    def __init__(self, job: Job) -> None:
        import jax
        import jax.numpy as jnp
        from safetensors.flax import load_file

        self._job = job
        self.notes: list[str] = []
        sizes, dtype = sizes_of(Path(job.place)), DTYPES[job.dtype]
        self._weights = {
            name: array.astype(dtype)
            for file in sorted(Path(job.place).glob("*.safetensors"))
            for name, array in load_file(file).items()
        }
        shape = (job.batch, sizes.key_heads, job.positions, sizes.head_width)
        self._empty: Any = lambda: [
            (jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(sizes.layers)
        ]
        self._caches: Any = None
        self._step = jax.jit(partial(step, sizes), donate_argnums=1)
        self._ids = jnp.asarray(job.prompts, jnp.int32)
        held = jax.tree.leaves((self._weights, self._empty()))
        self.held: int | None = sum(x.nbytes for x in held)
        self._last: Any = None

    def round(self, count: int) -> Round:
        self._caches = self._empty()
        return timed(self._job, count, lambda: self._next(self._ids, 0), self._next)

    def _next(self, ids: Any, position: int) -> Any:
        token, logits, self._caches = self._step(self._weights, self._caches, ids, position)
        if self._last is None:
            self._last = np.asarray(logits[0], np.float32)
        return token

    def logits(self) -> Logits | None:
        found: Logits = self._last
        return found


def step(sizes: Sizes, weights: Any, caches: Any, ids: Any, position: Any) -> Any:
    """Tokens `[B, S]` through all layers: the next ones, the last position's logits, the caches."""
    import jax
    import jax.numpy as jnp

    rows, count = ids.shape
    x = weights["model.embed_tokens.weight"][ids]
    at = position + jnp.arange(count)
    turns = sizes.theta ** (-jnp.arange(0, sizes.head_width, 2) / sizes.head_width)
    angles = jnp.tile(at[:, None] * turns, 2)
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    seen = jnp.arange(caches[0][0].shape[2]) <= at[:, None]

    def norm(x: Any, name: str) -> Any:
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + sizes.epsilon)
        return wide.astype(x.dtype) * weights[f"{name}.weight"]

    def heads(x: Any, name: str) -> Any:
        made = x @ weights[f"{name}.weight"].T
        return made.reshape(rows, count, -1, sizes.head_width).swapaxes(1, 2)

    def turned(x: Any) -> Any:
        low, high = jnp.split(x, 2, -1)
        return x * cos + jnp.concatenate([-high, low], -1) * sin

    written = []
    for k, (keys, values) in enumerate(caches):
        own = f"model.layers.{k}"
        h = norm(x, f"{own}.input_layernorm")
        query, key, value = (heads(h, f"{own}.self_attn.{n}_proj") for n in "qkv")
        keys = jax.lax.dynamic_update_slice_in_dim(keys, turned(key), position, 2)
        values = jax.lax.dynamic_update_slice_in_dim(values, value, position, 2)
        written.append((keys, values))
        query = turned(query).reshape(rows, sizes.key_heads, -1, count, sizes.head_width)
        f32: Any = jnp.float32
        scores = jnp.einsum("bhgqd,bhkd->bhgqk", query, keys, preferred_element_type=f32)
        scores = jnp.where(seen, scores * sizes.head_width**-0.5, -1e30)
        mixed = jnp.einsum(
            "bhgqk,bhkd->bhgqd",
            jax.nn.softmax(scores, -1).astype(x.dtype),
            values,
            preferred_element_type=f32,
        ).astype(x.dtype)
        mixed = mixed.reshape(rows, sizes.heads, count, -1).swapaxes(1, 2)
        mixed = mixed.reshape(rows, count, sizes.width)
        x = x + mixed @ weights[f"{own}.self_attn.o_proj.weight"].T
        h = norm(x, f"{own}.post_attention_layernorm")
        gate, up = (h @ weights[f"{own}.mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        x = x + (jax.nn.silu(gate) * up) @ weights[f"{own}.mlp.down_proj.weight"].T
    head = weights["model.embed_tokens.weight" if sizes.tied else "lm_head.weight"]
    logits = norm(x[:, -1], "model.norm") @ head.T
    return logits.argmax(-1, keepdims=True).astype(jnp.int32), logits, written
