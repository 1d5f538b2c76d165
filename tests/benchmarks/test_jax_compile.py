"""What is compiled in `bench.jax_compile`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from bench.jax_compile import WAYS, without_functions
from bench.peers import PEERS

import linnet
from linnet.loading import load_source
from linnet.reference import evaluate
from linnet.stablehlo import emit
from linnet.stablehlo.emit import paths_of
from linnet.weights import DTYPES

FAMILY = Path(linnet.__file__).parent / "zoo" / "families" / "llama"
SIZES: dict[str, int | str] = {
    "Vocab": 16, "H": 8, "Heads": 2, "KvHeads": 1, "Inner": 12, "Layers": 2, "Batch": 1,
    "MaxSeq": 6, "T": "f32",
}  # fmt: skip


def test_a_program_without_functions_means_the_same() -> None:
    program = load_source(FAMILY, generics=SIZES, entries=["decode"]).program
    whole = without_functions(program)
    called = [
        set(re.findall(r"func.call @([a-z_]+)", emit(one, "decode", {}, "fast", device="cpu")))
        for one in (program, whole)
    ]
    assert "decoder_layer_forward" in called[0]
    assert called[1] <= {"linear", "linear_"}  # a kernel writes those of one narrow row only
    draw = np.random.default_rng(0)
    given: dict[str, dict[str, np.ndarray]] = {"param": {}, "state": {}}
    for kind, path, type in paths_of(program.entries["decode"]):
        if kind in given:
            shape = [int(axis.evaluate({})) for axis in type.shape]  # type: ignore[union-attr]
            given[kind][path] = draw.standard_normal(shape).astype(DTYPES[str(type.dtype)])
    inputs = [np.array([[3]], np.int32), 2]
    logits: list[np.ndarray] = []
    for each in (whole, program):
        state = {path: x.copy() for path, x in given["state"].items()}
        logits.append(evaluate(each, "decode", inputs, given["param"], state))
    near = 2e-5 * float(np.abs(logits[1]).max())
    np.testing.assert_allclose(logits[0], logits[1], rtol=0, atol=near)


def test_every_way_has_an_environment() -> None:
    assert {way.peer for way in WAYS.values()} <= {None, *PEERS}
