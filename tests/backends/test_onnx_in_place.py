"""Caches that are written where they lie: which ones, and that nobody can tell."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from linnet.onnx import load_model, native
from linnet.onnx.alias import in_place
from linnet.onnx.export import export_program
from linnet.reference import evaluate

HEAD = """module m
use std.nn.cache::{write_at, write_rows, write_slots, write_span, write_tokens}
pub block Root {
    state seen: Tensor[2, 1, 4, 2; f32]
    state other: Tensor[2, 1, 4, 2; f32]

    pub entry forward(x: Tensor[2, 1, 1, 2; f32], at: i32) -> Tensor[2, 1, 4, 2; f32] {
"""
TAIL = "\n    }\n}\n"
BODIES = {
    "written": ("seen = write_at(seen, x, at)\nreturn seen", {"seen"}),
    "both": (
        "seen = write_at(seen, x, at)\nother = write_at(other, x + 1.0, at)\nreturn seen + other",
        {"seen", "other"},
    ),
    "twice": ("seen = write_at(seen, x, at)\nseen = write_at(seen, x, at + 1)\nreturn seen", set()),
    "read before": ("let old = seen\nseen = write_at(seen, x, at)\nreturn old + 0.0", set()),
    "read before, then after": (
        "let old = seen * 2.0\nseen = write_at(seen, x, at)\nreturn old + seen",
        set(),
    ),
    "written from itself": (
        "let first = seen[:, :, 0:1, :] * 1.0\nseen = write_at(seen, first + x, at)\nreturn seen",
        set(),
    ),
    "exchanged": (
        "let old = seen\nseen = write_at(other, x, at)\nother = old\nreturn seen",
        set(),
    ),
    "copied": ("seen = write_at(seen, x, at)\nother = seen\nreturn seen", {"seen"}),
    "rows": (
        "seen = write_rows(seen, x, fill<i32>([2], at))\nreturn seen",
        {"seen"},
    ),
    "chosen": ("seen = if at > 1 { write_at(seen, x, at) } else { seen }\nreturn seen", set()),
}


def source(body: str) -> str:
    return HEAD + body + TAIL


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(tempfile.mkdtemp())


@pytest.mark.parametrize("name", BODIES)
def test_where_it_lies(name: str, folder: Path) -> None:
    body, expected = BODIES[name]
    path = folder / "m.linnet"
    path.write_text(source(body), encoding="utf-8")
    program = load_model(path).program
    made = export_program(program, None, "fast", inline=True, kernels=native.WITH_NATIVE)
    props = {p.key: p.value for p in made.model.metadata_props}
    inputs = {v: k.removeprefix("linnet.state.") for k, v in props.items() if ".state." in k}
    outputs = {
        v: k.removeprefix("linnet.next_state.") for k, v in props.items() if ".next_state." in k
    }
    found = in_place(made.model, [(inputs[path], outputs[path]) for path in outputs])
    assert {path for path, output in outputs.items() if output in found} == expected


@pytest.mark.parametrize("name", BODIES)
def test_nobody_can_tell(name: str, folder: Path) -> None:
    """Three calls after each other, positions outside among them, are what the reference says."""
    file = folder / "m.linnet"
    file.write_text(source(BODIES[name][0]), encoding="utf-8")
    model = load_model(file)
    draw = np.random.default_rng(3)
    state: dict[str, np.ndarray] = {}
    for at in (0, 3, 1, -1, 4):
        x = draw.standard_normal((2, 1, 1, 2)).astype(np.float32)
        wanted = evaluate(model.program, "forward", [x, at], {}, state)
        np.testing.assert_array_equal(model(x, at), wanted)
        for path, held in model.state.items():
            np.testing.assert_array_equal(held, state[path], err_msg=path)
