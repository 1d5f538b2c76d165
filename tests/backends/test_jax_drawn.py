"""Drawn programs of loops, branches and methods around state: JAX is what the reference is."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from backends.common import lowered
from backends.test_jax_odd import ENDS, WAYS, agree
from backends.test_state_drawn import Drawn
from linnet.core.passes import optimize
from linnet.jax.emit import emit

# A turn's statements stood outside of its loop, or read what they had renamed.
ONCE_WRONG = [(41, True), (42, False), (442, True), (565, False)]


def check(seed: int, flat: bool, *ways: str) -> None:
    text = Drawn(seed, flat).text()
    calls = [("main", [np.float32(x)]) for x in (0.75, -0.5, 0.25)]
    try:
        agree(lowered(text), calls, {}, 2e-5, ways, [ENDS[0], ENDS[-1]])
    except Exception as error:
        raise AssertionError(f"seed {seed}:\n{text}") from error


@pytest.mark.parametrize(("seed", "flat"), ONCE_WRONG)
def test_drawn_state(seed: int, flat: bool) -> None:
    check(seed, flat, "source")


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_generated_source_is_python(first: int) -> None:
    for seed in range(first, first + 10):
        program = lowered(Drawn(seed, flat=seed % 3 == 0).text())
        for made in (program, optimize(program, "fast")):
            compile(emit(made, "fast"), f"seed {seed}", "exec")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 225, 25))
def test_more_drawn_state(first: int) -> None:
    for seed in range(first, first + 25):
        check(seed, seed % 2 == 0, *WAYS)
    jax.clear_caches()
