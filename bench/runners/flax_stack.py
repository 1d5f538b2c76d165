"""A Llama written by hand in Flax NNX, as its guides have it: jitted, its cache donated."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.job import Job, Logits, Round
from bench.runners.jax_common import DTYPES, set_up, timed


def prepare(job: Job) -> str:
    import flax

    return f"flax {flax.__version__}, {set_up(job)}"


def load(job: Job) -> Stack:
    return Stack(job)


def model_of(folder: Path, dtype: str) -> Any:
    """The model of a checkpoint's directory with its weights, as an NNX module."""
    import jax
    import jax.numpy as jnp
    from flax import nnx
    from safetensors.flax import load_file

    config = json.loads((folder / "config.json").read_text())
    width, heads = config["hidden_size"], config["num_attention_heads"]
    groups, inner = config["num_key_value_heads"], config["intermediate_size"]
    depth = width // heads
    kind = jnp.dtype(DTYPES[dtype])

    def linear(taken: int, made: int) -> Any:
        own = {"use_bias": False, "dtype": kind, "param_dtype": kind}
        return nnx.Linear(taken, made, rngs=nnx.Rngs(0), **own)

    def norm(size: int) -> Any:
        own = {"epsilon": config["rms_norm_eps"], "dtype": kind, "param_dtype": kind}
        return nnx.RMSNorm(size, rngs=nnx.Rngs(0), **own)

    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    frequencies = theta ** -(np.arange(0, depth, 2, dtype=np.float64) / depth)

    def turned(x: Any, positions: Any) -> Any:
        """Rotary positions of `[B, S, N, D]`."""
        angles = positions[:, None].astype(jnp.float32) * frequencies.astype(np.float32)
        cos, sin = (f(angles)[:, None, :] for f in (jnp.cos, jnp.sin))
        a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)

    class Attention(nnx.Module):
        def __init__(self) -> None:
            self.q, self.k = linear(width, heads * depth), linear(width, groups * depth)
            self.v, self.o = linear(width, groups * depth), linear(heads * depth, width)

        def __call__(self, x: Any, cache: Any, at: Any) -> Any:
            rows, count, _ = x.shape
            positions = at + jnp.arange(count)
            q = turned(self.q(x).reshape(rows, count, heads, depth), positions)
            k = turned(self.k(x).reshape(rows, count, groups, depth), positions)
            v = self.v(x).reshape(rows, count, groups, depth)
            keys, values = (
                jax.lax.dynamic_update_slice(old, new, (0, at, 0, 0))
                for old, new in zip(cache, (k, v), strict=True)
            )
            seen = jnp.arange(keys.shape[1]) <= positions[:, None]
            mixed = jax.nn.dot_product_attention(q, keys, values, mask=seen[None, None])
            return self.o(mixed.reshape(rows, count, heads * depth)), (keys, values)

    class Layer(nnx.Module):
        def __init__(self) -> None:
            self.before, self.after = norm(width), norm(width)
            self.attention = Attention()
            self.gate, self.up, self.down = (
                linear(width, inner), linear(width, inner), linear(inner, width),
            )  # fmt: skip

        def __call__(self, x: Any, cache: Any, at: Any) -> Any:
            mixed, cache = self.attention(self.before(x), cache, at)
            x = x + mixed
            y = self.after(x)
            return x + self.down(jax.nn.silu(self.gate(y)) * self.up(y)), cache

    class Model(nnx.Module):
        def __init__(self) -> None:
            self.embed = nnx.Embed(
                config["vocab_size"], width, dtype=kind, param_dtype=kind, rngs=nnx.Rngs(0)
            )
            self.layers = nnx.List([Layer() for _ in range(config["num_hidden_layers"])])
            self.norm = norm(width)
            tied = config.get("tie_word_embeddings", False)
            self.head = None if tied else linear(width, config["vocab_size"])

        def __call__(self, ids: Any, caches: Any, at: Any) -> Any:
            """The logits after the last token `[B, V]`, and the caches."""
            x, new = self.embed(ids), []
            for layer, cache in zip(self.layers, caches, strict=True):
                x, cache = layer(x, cache, at)
                new.append(cache)
            x = self.norm(x[:, -1])
            return (self.embed.attend(x) if self.head is None else self.head(x)), new

        def caches(self, rows: int, positions: int) -> Any:
            zeros = partial(jnp.zeros, (rows, positions, groups, depth), kind)
            return [(zeros(), zeros()) for _ in self.layers]

    model = nnx.eval_shape(Model)
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
    names = {
        "before.scale": "input_layernorm.weight", "after.scale": "post_attention_layernorm.weight",
        **{f"attention.{n}.kernel": f"self_attn.{n}_proj.weight" for n in "qkvo"},
        **{f"{n}.kernel": f"mlp.{n}_proj.weight" for n in ("gate", "up", "down")},
    }  # fmt: skip
    own = {"embed.embedding": "model.embed_tokens.weight", "norm.scale": "model.norm.weight"}
    own["head.kernel"] = "lm_head.weight"
    for i in range(config["num_hidden_layers"]):
        own |= {f"layers.{i}.{a}": f"model.layers.{i}.{b}" for a, b in names.items()}
    graph, state = nnx.split(model)
    flat = dict(nnx.to_flat_state(state))
    for path, leaf in flat.items():
        name = ".".join(map(str, path))
        array = tensors[own[name]].astype(kind)
        leaf.set_value(array.T.copy() if name.endswith(".kernel") else array)
    return nnx.merge(graph, nnx.from_flat_state(flat.items()))


class Stack:
    """The model; a step chooses its token inside what is compiled."""

    def __init__(self, job: Job) -> None:
        import jax
        import jax.numpy as jnp
        from flax import nnx

        self._job = job
        self.notes: list[str] = []
        self._model = model_of(Path(job.place), job.dtype)
        graph, self._state = nnx.split(self._model)

        @partial(jax.jit, donate_argnums=2)
        def step(state: Any, ids: Any, caches: Any, at: Any) -> Any:
            logits, caches = nnx.merge(graph, state)(ids, caches, at)
            return logits, logits.argmax(-1)[:, None].astype(jnp.int32), caches

        self._step = step
        self._caches: Any = None
        self._ids = jnp.asarray(job.prompts, jnp.int32)
        held = jax.tree.leaves((self._state, self._model.caches(job.batch, job.positions)))
        self.held: int | None = sum(x.nbytes for x in held)
        self._last: Any = None

    def round(self, count: int) -> Round:
        self._caches = self._model.caches(self._job.batch, self._job.positions)
        return timed(self._job, count, lambda: self._next(self._ids, 0), self._next)

    def _next(self, ids: Any, position: int) -> Any:
        logits, token, self._caches = self._step(self._state, ids, self._caches, position)
        if self._last is None:
            self._last = np.asarray(logits[0], np.float32)
        return token

    def step(self) -> tuple[Any, Any, Any]:
        """What is compiled, its weights, and empty caches."""
        return self._step, self._state, self._model.caches(self._job.batch, self._job.positions)

    def logits(self) -> Logits | None:
        found: Logits = self._last
        return found
