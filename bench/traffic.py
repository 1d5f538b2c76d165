"""What a model must read for a token and compute for a prompt, from its configuration."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.methods import WIDTHS


@dataclass(frozen=True, slots=True)
class Sizes:
    """A decoder's sizes as its configuration states them."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    key_heads: int
    head_width: int
    inner: int
    tied: bool

    @property
    def matrices(self) -> int:
        """Weights of the layers' matrices; the vectors of norms are too few to count."""
        attention = 2 * self.width * self.head_width * (self.heads + self.key_heads)
        return self.layers * (attention + 3 * self.width * self.inner)

    @property
    def head(self) -> int:
        return self.vocabulary * self.width

    def weights(self, storage: str) -> float:
        """Bytes of all weights."""
        return WIDTHS[storage] * (self.matrices + self.head * (1 if self.tied else 2))

    def read_per_token(self, storage: str) -> float:
        """Bytes of the weights that one step reads: of the table of tokens, the output head's."""
        return WIDTHS[storage] * (self.matrices + self.head)

    def caches(self, kind: str, positions: float, batch: int) -> float:
        """Bytes of the keys and values of so many positions."""
        each = 2 * self.layers * self.key_heads * self.head_width
        return batch * positions * each * WIDTHS[kind]

    def prompt_flops(self, length: int, batch: int) -> float:
        """Operations of a prompt: each position meets those before it; the last one the head."""
        return batch * self.flops(length, 1)

    def flops(self, length: int, headed: int) -> float:
        """Operations of so many positions, each after those before it; `headed` meet the head."""
        products = 2 * (self.matrices * length + self.head * headed)
        attention = 2 * self.layers * self.heads * self.head_width * length * (length + 1)
        return float(products + attention)


def sizes_of(checkpoint: Path) -> Sizes:
    """The sizes that the directory's configuration states."""
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    width = config.get("hidden_size") or config["n_embd"]
    heads = config.get("num_attention_heads") or config["n_head"]
    gpt2 = config["model_type"] == "gpt2"
    inner = config.get("intermediate_size") or config.get("n_inner") or 4 * width
    return Sizes(
        vocabulary=config["vocab_size"],
        width=width,
        layers=config.get("num_hidden_layers") or config["n_layer"],
        heads=heads,
        key_heads=config.get("num_key_value_heads") or heads,
        head_width=config.get("head_dim") or width // heads,
        inner=inner * 2 // 3 if gpt2 else inner,  # GPT-2 has two matrices where others have three
        tied=config.get("tie_word_embeddings", gpt2),
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """The best that a device's measured bandwidth and product rate allow."""

    decode_tok_s: float | None
    ttft_ms: float | None


def limits(
    sizes: Sizes,
    storage: str,
    cache: str,
    prompt: int,
    new: int,
    batch: int,
    bytes_per_s: float | None,
    flops_per_s: float | None,
) -> Limits:
    """Decoding reads the weights and the written caches for every token; a prompt computes."""
    cached = sizes.caches(cache, prompt + new / 2, batch)
    read = sizes.read_per_token(storage) + cached
    return Limits(
        batch * bytes_per_s / read if bytes_per_s else None,
        1e3 * sizes.prompt_flops(prompt, batch) / flops_per_s if flops_per_s else None,
    )
