"""The methods: a key is a way of running a model, and after a dash how its weights are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

FLOATS = ("f32", "bf16", "f16")
STORAGES = (*FLOATS, "q8", "q4")
WIDTHS = {"f32": 4.0, "bf16": 2.0, "f16": 2.0, "u8": 1.0, "q8": 34 / 32, "q4": 18 / 32}
"""Bytes of one value; of those in blocks, as Q8_0 and Q4_0 have them."""

Needs = Literal["checkpoint", "gguf", "gguf with words", "openvino", "genai", "linnet"]


class UnknownMethod(Exception):
    """A key that names no method; says which there are."""


@dataclass(frozen=True, slots=True)
class Family:
    """A way of running a model: whose it is, in which environment, and which form it reads.

    `peer` is the environment of its own that it runs in; None is the project's.
    """

    label: str
    kind: Literal["reference", "linnet"]
    runner: str
    needs: Needs
    peer: str | None = None
    storages: tuple[str, ...] = STORAGES
    options: dict[str, Any] = field(default_factory=dict[str, Any])


FAMILIES: dict[str, Family] = {
    "transformers-eager": Family(
        "transformers, eager",
        "reference",
        "bench.runners.transformers_stack",
        "checkpoint",
        storages=FLOATS,
    ),
    "transformers-compile": Family(
        "transformers, compiled, static cache",
        "reference",
        "bench.runners.transformers_stack",
        "checkpoint",
        storages=FLOATS,
        options={"compile": True},
    ),
    "llamacpp": Family(
        "llama.cpp", "reference", "bench.runners.llama_cpp_stack", "gguf", "llamacpp"
    ),
    "llamacpp-flash": Family(
        "llama.cpp, flash attention",
        "reference",
        "bench.runners.llama_cpp_stack",
        "gguf",
        "llamacpp",
        options={"flash": True},
    ),
    "openvino": Family(
        "OpenVINO GenAI", "reference", "bench.runners.openvino_stack", "openvino", "openvino"
    ),
    "genai": Family(
        "ONNX Runtime GenAI",
        "reference",
        "bench.runners.genai_stack",
        "genai",
        "genai",
        ("f32",),
    ),
    "flax": Family(
        "Flax NNX by hand, jitted",
        "reference",
        "bench.runners.flax_stack",
        "checkpoint",
        "flax",
        FLOATS,
    ),
    "jnp": Family(
        "jax.numpy by hand, jitted",
        "reference",
        "bench.runners.jnp_stack",
        "checkpoint",
        "flax",
        FLOATS,
    ),
    "kerashub": Family(
        "KerasHub on JAX",
        "reference",
        "bench.runners.keras_hub_stack",
        "checkpoint",
        "kerashub",
        FLOATS,
    ),
    "vllm": Family("vLLM", "reference", "bench.runners.vllm_stack", "checkpoint", "vllm", FLOATS),
    "linnet-jax": Family(
        "Linnet JAX, StableHLO", "linnet", "bench.runners.linnet_jax", "linnet", storages=FLOATS
    ),
    "linnet-jax-source": Family(
        "Linnet JAX, generated source",
        "linnet",
        "bench.runners.linnet_jax",
        "linnet",
        storages=FLOATS,
        options={"generated": True},
    ),
    "linnet-onnx": Family(
        "Linnet ONNX Runtime",
        "linnet",
        "bench.runners.linnet_onnx",
        "linnet",
        storages=FLOATS,
    ),
    "linnet-torch": Family(
        "Linnet PyTorch",
        "linnet",
        "bench.runners.linnet_torch",
        "linnet",
        options={"compile": False},
    ),
    "linnet-inductor": Family(
        "Linnet PyTorch, compiled",
        "linnet",
        "bench.runners.linnet_torch",
        "linnet",
        options={"compile": "inductor"},
    ),
    "linnet-cudagraphs": Family(
        "Linnet PyTorch, one graph a step",
        "linnet",
        "bench.runners.linnet_torch",
        "linnet",
        options={"compile": "reduce-overhead"},
    ),
}

SERVING: dict[str, Family] = {
    "serve-openvino": Family(
        "OpenVINO GenAI, continuous batching",
        "reference",
        "bench.runners.serve_openvino",
        "openvino",
        "openvino",
    ),
    "serve-vllm": Family(
        "vLLM, its engine", "reference", "bench.runners.serve_vllm", "checkpoint", "vllm", FLOATS
    ),
    "serve-transformers": Family(
        "transformers, continuous batching",
        "reference",
        "bench.runners.serve_transformers",
        "checkpoint",
        storages=FLOATS,
    ),
    "serve-transformers-static": Family(
        "transformers, static batches",
        "reference",
        "bench.runners.serve_transformers",
        "checkpoint",
        storages=FLOATS,
        options={"static": True},
    ),
    "serve-llamacpp": Family(
        "llama.cpp, its server",
        "reference",
        "bench.runners.serve_llama_cpp",
        "gguf with words",
        "llamaserver",
    ),
    "serve-linnet-torch": Family(
        "Linnet PyTorch, its engine", "linnet", "bench.runners.serve_linnet", "linnet"
    ),
    "serve-linnet-http": Family(
        "Linnet PyTorch, its server", "linnet", "bench.runners.serve_linnet_http", "linnet"
    ),
}
"""The ways of serving many requests at once."""


@dataclass(frozen=True, slots=True)
class Method:
    """One row: a family and how weights are stored; `key` is as it was asked for.

    `dtype` is what is computed in: with weights in blocks of few bits, the run's.
    """

    key: str
    family: Family
    storage: str
    dtype: str

    @property
    def label(self) -> str:
        return f"{self.family.label}, {self.storage}"

    @property
    def cache(self) -> str:
        """What keys and values are kept in: as wide as the model, but what the peer would choose.

        With weights in few bits that is f16 in llama.cpp and 8 bits in OpenVINO.
        """
        if self.storage in FLOATS:
            return self.storage
        own = {"gguf": "f16", "gguf with words": "f16", "openvino": "u8"}
        return own.get(self.family.needs, self.dtype)


def method(key: str, default: str, families: Mapping[str, Family] = FAMILIES) -> Method:
    """The method of this key; one without a storage has the default."""
    name, storage = key, default
    head, _, last = key.rpartition("-")
    if last in STORAGES and head:
        name, storage = head, last
    family = families.get(name)
    if family is None:
        raise UnknownMethod(
            f"there is no method {key!r}: choose {', '.join(families)}, "
            f"each with -{', -'.join(STORAGES)} for other weights than --dtype's"
        )
    if storage not in family.storages:
        raise UnknownMethod(
            f"{key}: {family.label} has no {storage} weights here, but {', '.join(family.storages)}"
        )
    return _made(key, family, storage, default)


def _made(key: str, family: Family, storage: str, default: str) -> Method:
    return Method(key, family, storage, storage if storage in FLOATS else default)


def methods(asked: str, default: str, device: str) -> list[Method]:
    """Those of a list with commas, each once; `all` is everything that this device can run."""
    return _listed(asked, default, FAMILIES, _all(default, device))


def serving_methods(asked: str, default: str) -> list[Method]:
    """The same of the ways of serving; `all` is each of them in the default dtype."""
    every = [_made(name, one, default, default) for name, one in SERVING.items()]
    return _listed(asked, default, SERVING, every)


def _listed(
    asked: str, default: str, families: Mapping[str, Family], every: list[Method]
) -> list[Method]:
    keys = [one.strip() for one in asked.split(",") if one.strip()]
    found: dict[tuple[int, str], Method] = {}
    for key in keys:
        for one in every if key == "all" else [method(key, default, families)]:
            found.setdefault((id(one.family), one.storage), one)
    return list(found.values())


def _all(default: str, device: str) -> list[Method]:
    """Every family in the default dtype, and on a CPU in bf16 and 4 bits too."""
    storages = [default] if device != "cpu" else list(dict.fromkeys([default, "bf16", "q4"]))
    left_out = {"vllm", "openvino"} if device != "cpu" else set[str]()
    return [
        _made(name if storage == default else f"{name}-{storage}", family, storage, default)
        for storage in storages
        for name, family in FAMILIES.items()
        if storage in family.storages and name not in left_out
    ]
