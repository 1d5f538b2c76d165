"""Our own operators on ONNX Runtime: each is what the op's body says, in every dtype it takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backends.common import assert_close
from linnet.onnx import load_model, native
from linnet.onnx.export import export_program
from linnet.policy import tolerance
from linnet.reference import evaluate
from linnet.weights.arrays import DTYPES

USES = """
use std.nn.linear::{linear}
use std.nn.norm::{rms_norm}
use std.nn.rope::{rope}
use std.nn.activations::{silu_gated}
use std.nn.attention::{rows_attention, span_attention}
use std.nn.cache::{write_at, write_rows, write_span, write_tokens}
"""
# An entry's inputs and result, its body, the operators that it becomes, and arguments to try:
# shapes of floats, numbers, or lists of numbers.
CASES = {
    "linear": (
        "<N: Dim>(x: Tensor[N, 5; T], w: Tensor[3, 5; T]) -> Tensor[N, 3; T]",
        "return linear(x, w)",
        {"linear"},
        [((4, 5), (3, 5)), ((0, 5), (3, 5)), ((1, 5), (3, 5)), ((40, 5), (3, 5))],
    ),
    "linear of a vector": (
        "(x: Tensor[7; T], w: Tensor[3, 7; T], b: Tensor[3; T]) -> Tensor[3; T]",
        "return linear(x, w, some(b))",
        {"linear"},
        [((7,), (3, 7), (3,))],
    ),
    "several at once": (
        "<N: Dim>(x: Tensor[2, N, 5; T], a: Tensor[3, 5; T], b: Tensor[4, 5; T],"
        " c: Tensor[4, 5; T], d: Tensor[4; T]) -> Tensor[2, N, 4; T]",
        "let one = linear(x, a)\nlet other = linear(x, b, some(d))\nlet third = linear(x, c)\n"
        "let fourth = linear(x, b)\nlet total[i, n] = sum[j] one[i, n, j]\n"
        "let wide[i, n, k] = total[i, n] + other[i, n, k] * third[i, n, k] - fourth[i, n, k]\n"
        "return wide",
        {"linear_3", "linear"},
        [((2, 3, 5), (3, 5), (4, 5), (4, 5), (4,)), ((2, 9, 5), (3, 5), (4, 5), (4, 5), (4,))],
    ),
    "more axes than an operator takes": (
        "(x: Tensor[1, 2, 1, 1, 2, 1, 1, 1, 5; T], w: Tensor[3, 5; T])"
        " -> Tensor[1, 2, 1, 1, 2, 1, 1, 1, 3; T]",
        "return linear(x, w)",
        set[str](),
        [((1, 2, 1, 1, 2, 1, 1, 1, 5), (3, 5))],
    ),
    "as many as it takes": (
        "(x: Tensor[1, 2, 1, 2, 1, 1, 1, 5; T], w: Tensor[3, 5; T])"
        " -> Tensor[1, 2, 1, 2, 1, 1, 1, 3; T]",
        "return linear(x, w)",
        {"linear"},
        [((1, 2, 1, 2, 1, 1, 1, 5), (3, 5))],
    ),
    "nothing to sum": (
        "(x: Tensor[2, 0; T], w: Tensor[3, 0; T]) -> Tensor[2, 3; T]",
        "return linear(x, w)",
        {"linear"},
        [((2, 0), (3, 0))],
    ),
    "rms_norm": (
        "<N: Dim>(x: Tensor[N, 8; T], w: Tensor[8; T]) -> Tensor[N, 8; T]",
        "return rms_norm(x, w, eps = 1e-3)",
        {"rms_norm"},
        [((3, 8), (8,)), ((0, 8), (8,))],
    ),
    "rope": (
        "<S: Dim>(x: Tensor[2, 3, S, 8; T], c: Tensor[S, 8; T], s: Tensor[S, 8; T])"
        " -> Tensor[2, 3, S, 8; T]",
        "return rope(x, c, s)",
        {"rope"},
        [((2, 3, 5, 8), (5, 8), (5, 8)), ((2, 3, 0, 8), (0, 8), (0, 8))],
    ),
    "silu_gated": (
        "<N: Dim>(x: Tensor[N, 9; T], y: Tensor[N, 9; T]) -> Tensor[N, 9; T]",
        "return silu_gated(x, y)",
        {"silu_gated"},
        [((1, 9), (1, 9)), ((4, 9), (4, 9)), ((0, 9), (0, 9))],
    ),
    "span_attention": (
        "<Q: Dim>(q: Tensor[2, 4, Q, 16; T], k: Tensor[2, 2, 70, 16; T],"
        " v: Tensor[2, 2, 70, 16; T], at: i32) -> Tensor[2, 4, Q, 16; T]",
        "return span_attention(q, k, v, at, 0.3)",
        {"span_attention"},
        [
            ((2, 4, n, 16), (2, 2, 70, 16), (2, 2, 70, 16), at)
            for n in (0, 1, 3, 5, 20)
            for at in (0, 11, 65, 69, 70, -1, -30, 2**31 - 1, -(2**31))
        ],
    ),
    "rows_attention": (
        "(q: Tensor[3, 4, 1, 16; T], k: Tensor[3, 2, 70, 16; T], v: Tensor[3, 2, 70, 16; T],"
        " at: Tensor[3; i32]) -> Tensor[3, 4, 1, 16; T]",
        "return rows_attention(q, k, v, at, 0.3)",
        {"span_attention"},
        [
            ((3, 4, 1, 16), (3, 2, 70, 16), (3, 2, 70, 16), at)
            for at in ([0, 69, 11], [70, -1, 2**31 - 1], [-(2**31), 5, 64])
        ],
    ),
    "write_at": (
        "(c: Tensor[2, 3, 5, 4; T], x: Tensor[2, 3, 1, 4; T], at: i32) -> Tensor[2, 3, 5, 4; T]",
        "return write_at(c, x, at)",
        {"write_span"},
        [((2, 3, 5, 4), (2, 3, 1, 4), at) for at in (0, 4, 5, -1, 2**31 - 1)],
    ),
    "write_span": (
        "<N: Dim>(c: Tensor[2, 3, 5, 4; T], x: Tensor[2, 3, N, 4; T], at: i32)"
        " -> Tensor[2, 3, 5, 4; T]\nwhere N > 0",
        "return write_span(c, x, at)",
        {"write_span"},
        [((2, 3, 5, 4), (2, 3, n, 4), at) for n in (1, 3, 8) for at in (0, 3, 5, -2, -(2**31))],
    ),
    "write_rows": (
        "(c: Tensor[3, 2, 5, 4; T], x: Tensor[3, 2, 1, 4; T], at: Tensor[3; i32])"
        " -> Tensor[3, 2, 5, 4; T]",
        "return write_rows(c, x, at)",
        {"write_rows"},
        [((3, 2, 5, 4), (3, 2, 1, 4), at) for at in ([0, 4, 2], [5, -1, 1], [7, 7, -(2**31)])],
    ),
    "write_tokens": (
        "<P: Dim>(c: Tensor[3, 2, 5, 4; T], x: Tensor[1, 2, P, 4; T], r: Tensor[P; i32],"
        " at: Tensor[P; i32]) -> Tensor[3, 2, 5, 4; T]",
        "return write_tokens(c, x, r, at)",
        {"write_tokens"},
        [
            ((3, 2, 5, 4), (1, 2, 4, 4), [0, 2, 2, 1], [4, 0, 1, 2]),
            ((3, 2, 5, 4), (1, 2, 4, 4), [3, -1, 0, 1], [0, 0, 5, -1]),
        ],
    ),
}
DRAW = np.random.default_rng(5)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("name", CASES)
def test_operators_are_what_the_bodies_say(name: str, dtype: str, tmp_path: Path) -> None:
    head, body, operators, calls = CASES[name]
    path = tmp_path / "m.linnet"
    text = f"module m{USES}\npub entry run{head} {{\n{body}\n}}\n".replace("; T]", f"; {dtype}]")
    path.write_text(text, encoding="utf-8")
    model = load_model(path)
    for given in calls:
        arrays = [_array(one, dtype) for one in given]
        found = model.run_entry("run", arrays)
        wanted = evaluate(model.program, "run", arrays)
        assert_close(wanted, found, tolerance("fast", dtype), f"{name} {given}")
    made = export_program(
        model.program, "run", "fast", inline=True, kernels=native.WITH_NATIVE
    ).model
    own = [node.op_type for node in made.graph.node if node.domain == native.DOMAIN]
    assert {kind.removesuffix(f"_{dtype}") for kind in own} == operators


def _array(one: object, dtype: str) -> np.ndarray:
    if isinstance(one, tuple):
        return DRAW.standard_normal(one).astype(DTYPES[dtype])
    return np.asarray(one, np.int32)


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators of ONNX are there still, and give the same."""
    head, body, _, calls = CASES["several at once"]
    path = tmp_path / "m.linnet"
    text = f"module m{USES}\npub entry run{head} {{\n{body}\n}}\n".replace("; T]", "; f32]")
    path.write_text(text, encoding="utf-8")
    arrays = [_array(one, "f32") for one in calls[0]]
    with_them = load_model(path).run_entry("run", arrays)
    monkeypatch.setattr(native.native, "library", lambda: None)
    assert_close(with_them, load_model(path, threads=1).run_entry("run", arrays), 1e-5)
