"""The StableHLO that Linnet writes itself, imported back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnet.jax import import_stablehlo, load

from ..models import tiny
from .importing import assert_same, checked, evaluated

pytestmark = pytest.mark.slow

TOKENS = np.arange(10, dtype=np.int32).reshape(2, 5)
CALLS: dict[str, tuple[Any, ...]] = {
    "forward": (TOKENS,),
    "prefill": (TOKENS, np.int32(3)),
    "decode": (TOKENS[:, :1], np.int32(4)),
}


@pytest.mark.parametrize("entry", CALLS)
def test_a_tiny_llama_comes_back(entry: str, tmp_path: Path) -> None:
    f = load(
        tiny.FAMILY,
        entry=entry,
        generics={**tiny.SIZES, "Batch": 2, "MaxSeq": 16},
        weights=tiny.weights(),
        bindings=tiny.NAMES,
        numerics="equivalent",
    )
    draw = np.random.default_rng(0)
    state = {path: draw.standard_normal((2, 2, 16, 8)).astype(np.float32) for path in f.state_paths}
    module = f.stablehlo(*CALLS[entry])
    result = import_stablehlo(module, f.weights, output=tmp_path / "llama")
    text = checked(result)
    if not state:
        assert "static for layer in layers" in text and "rms_norm(" in text
        assert_same(evaluated(result, CALLS[entry]), [f(*CALLS[entry])])
        return
    assert sum("is an input" in note for note in result.notes) == len(state)
    logits, new = f(*CALLS[entry], state=state)
    found = evaluated(result, [*CALLS[entry], *state.values()])
    assert_same(found, [logits, *(new[path] for path in f.state_paths)])
