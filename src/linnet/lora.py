"""Low-rank adapters (Hu et al., arXiv:2106.09685): their names and first values, for all backends.

A weight `W` `[Out, In]` with an adapter counts as `W + alpha / rank * up @ down`, where `down` is
`[rank, In]` and `up` is `[Out, rank]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

DOWN, UP = "lora_a", "lora_b"
# What adapters' paths fit.
PATTERNS = (f"*{DOWN}", f"*{UP}")


def adapter_names(weight: str) -> tuple[str, str]:
    """The names of `down` and `up` of a weight: `w.lora_a` beside `w.weight`, `w_lora_a` of `w`."""
    block, _, name = weight.rpartition(".")
    own = "" if name == "weight" else f"{name}_"
    before = f"{block}." if block else ""
    return f"{before}{own}{DOWN}", f"{before}{own}{UP}"


def is_adapter(path: str) -> bool:
    """Whether the path is that of an adapter's tensor."""
    name = path.rpartition(".")[2]
    return any(name == end or name.endswith(f"_{end}") for end in (DOWN, UP))


def initial_down(rank: int, width: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """`[rank, width]` of f32, uniform within 1 / sqrt(width) of zero; `up` begins as zeros."""
    bound = width**-0.5 if width else 0.0
    return rng.uniform(-bound, bound, (rank, width)).astype("float32")
