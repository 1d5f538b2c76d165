"""Source text to printed IR, before and after the passes; and what it evaluates to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from linnet.check import check_text
from linnet.core.ir import Gather, Program
from linnet.core.lower import lower
from linnet.core.passes import optimize
from linnet.core.print import program_text
from linnet.core.rewrite import bodies, nodes_of
from linnet.core.verify import verify
from linnet.diagnostics import PlanError
from linnet.inputs import demands
from linnet.reference import evaluate

SOURCES: dict[str, str] = {
    "notation": """
entry f<B: Dim, S: Dim>(x: Tensor[B, S, 8; bf16], w: Tensor[3, 8; bf16]) -> Tensor[B, S, 3; bf16] {
    let y[b, s, o] = sum[h] x[b, s, h] * w[o, h]
    return y + 1.0
}
""",
    "lookup": """
entry f<B: Dim, V: Dim>(
    table: Tensor[V, 4; f32], ids: Tensor[B; i32], at: i64,
) -> (Tensor[B, 4; f32], f32) {
    let rows[b, h] = table[ids[b], h]
    let trace = sum[i] table[at, i] * table[at, i]
    return (rows, trace)
}
""",
    "shapes": """
entry f<B: Dim, D: Dim>(x: Tensor[B, 2 * D; f32]) -> Tensor[B, 2, D; f32] where D > 0 {
    let left = x[..., 0:D]
    let right = x[..., D:2 * D]
    let turned = concat(-right, left, axis = -1)
    return reshape(turned, [B, 2, D])
}
""",
    "control": """
entry f(n: i64, x: Tensor[4; f32]) -> (i64, Tensor[4; f32]) {
    var i = 0
    var y = x
    while i < n {
        y = y * 2.0
        i = i + 1
    }
    static for k in 0..3 {
        y = y + cast<f32>(k)
    }
    let z = if i > 2 { y } else { -y }
    return (i, z)
}
""",
    "loops": """
entry f<N: Dim, M: Dim>(x: Tensor[N, 4; f32]) -> (Tensor[N - M, 4; f32], Tensor[N - M; i64], i64)
where M <= N {
    var total = 0
    let (rows, (at, _)) = for i in M..N {
        let table = for j in 0..3 { yield i * j }
        total = total + table[1]
        yield (x[i, ...] * 2.0, (i, total))
    }
    return (rows, at, total)
}
""",
    "layers": """
block Layer<H: Dim> {
    param weight: Tensor[H; f32]
    state seen: Tensor[H; f32]

    pub fn forward<B: Dim>(x: Tensor[B, H; f32]) -> Tensor[B, H; f32] where B > 0 {
        seen = seen + x[0, ...]
        return x * weight
    }
}

pub block Model<H: Dim, Layers: Dim> {
    param scale: Tensor[H; f32]? = none
    sub layers: [Layer<H>; Layers]

    pub entry forward<B: Dim>(x: Tensor[B, H; f32]) -> Tensor[B, H; f32] where B > 0 {
        var y = x
        static for layer in layers {
            y = layer.forward(y)
        }
        return match scale {
            some(s) => y * s
            none => y
        }
    }
}
""",
}  # fmt: skip


def program(name: str, **options: Any) -> Program:
    analysis = check_text(f"module {name}\n{SOURCES[name]}", f"{name}.linnet")
    assert analysis.findings.items == []
    lowered = lower(analysis, **options)
    verify(lowered)
    return lowered


@pytest.mark.parametrize("name", ["notation", "lookup", "shapes", "control", "loops"])
def test_source_to_ir(name: str, golden: Any) -> None:
    before = program(name)
    text = program_text(before) + "\n----- optimized\n\n" + program_text(optimize(before))
    golden(SOURCES[name] + "\n----- lowered\n\n" + text, f"{name}.txt")


@pytest.mark.parametrize("present", [False, True])
def test_a_block_is_lowered_once_for_all_its_layers(present: bool, golden: Any) -> None:
    p = program("layers", generics={"H": 2, "Layers": 3}, present=lambda path: present)
    golden(program_text(p), f"layers-{'with' if present else 'without'}-scale.txt")


def test_the_programs_mean_what_they_say() -> None:
    for improve in (lambda p: p, optimize):
        x = np.arange(4, dtype=np.float32)
        count, out = evaluate(improve(program("control")), None, [3, x])
        assert count == 3 and out.tolist() == [3, 11, 19, 27]
        count, out = evaluate(improve(program("control")), None, [0, x])
        assert count == 0 and out.tolist() == [-3, -4, -5, -6]

        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        rows, at, total = evaluate(improve(program("loops")), None, [x], generics={"M": 1})
        assert rows.tolist() == (x[1:] * 2).tolist() and at.tolist() == [1, 2] and total == 3
        rows, at, total = evaluate(improve(program("loops")), None, [x], generics={"M": 3})
        assert rows.shape == (0, 4) and at.shape == (0,) and total == 0

        table = np.arange(12, dtype=np.float32).reshape(3, 4)
        ids = np.array([2, 9], np.int32)
        rows, trace = evaluate(improve(program("lookup")), None, [table, ids, 1])
        np.testing.assert_array_equal(rows, table[[2, 2]])
        assert trace == 16 + 25 + 36 + 49

        halves = np.arange(12, dtype=np.float32).reshape(2, 6)
        turned = evaluate(improve(program("shapes")), None, [halves])
        assert turned[1].tolist() == [[-9, -10, -11], [6, 7, 8]]

        p = improve(program("layers", generics={"H": 2, "Layers": 3}, present=lambda path: True))
        members = {f"layers.{i}.weight": np.full(2, i + 1, np.float32) for i in range(3)}
        members["scale"] = np.array([1, 10], np.float32)
        state: dict[str, np.ndarray] = {}
        out = evaluate(p, None, [np.ones((2, 2), np.float32)], members, state)
        assert out.tolist() == [[6, 60], [6, 60]]
        assert {k: v.tolist() for k, v in state.items()} == {
            "layers.0.seen": [1, 1],
            "layers.1.seen": [1, 1],
            "layers.2.seen": [2, 2],
        }


def test_an_empty_axis_under_a_runtime_index_is_refused_by_name() -> None:
    p = program("lookup")
    with pytest.raises(PlanError) as caught:
        evaluate(p, None, [np.zeros((0, 4), np.float32), np.zeros(2, np.int32), 0])
    assert str(caught.value) == (
        "f: the access `table[ids[b], h]` at lookup.linnet:6:22 indexes an axis of size 0 "
        "(V with V = 0 from axis 0 of table)"
    )


def test_depth_costs_nothing() -> None:
    texts = [program_text(program("layers", generics={"H": 2, "Layers": n})) for n in (2, 64)]
    assert len(texts[0].splitlines()) == len(texts[1].splitlines())


@pytest.mark.parametrize(
    ("step", "expected", "state"),
    [
        ("let u = c.up(x) acc = acc * 10.0 + cs[1].s", 11.0, [1, 1, 1]),
        ("let u = c.up(x) acc = acc * 10.0 + second()", 11.0, [1, 1, 1]),
        ("let u = cs[2].up(x) acc = acc * 10.0 + c.s", 3.0, [0, 0, 3]),
        ("static for d in cs { let u = d.up(x) acc = acc * 2.0 + c.s }", 543.0, [3, 3, 3]),
    ],
)
def test_a_loop_over_subs_sees_what_its_body_wrote_by_another_path(
    step: str, expected: float, state: list[int]
) -> None:
    text = """module m
    block C {
        state s: f32
        pub fn up(x: f32) -> f32 { s = s + x
            return s }
    }
    pub block Root {
        sub cs: [C; 3]
        fn second() -> f32 { return cs[1].s }
        pub entry go(x: f32) -> f32 {
            var acc: f32 = 0.0
            static for c in cs { STEP }
            return acc
        }
    }"""
    lowered = lower(check_text(text.replace("STEP", step)))
    kept: dict[str, Any] = {}
    assert float(evaluate(lowered, "go", [np.float32(1)], {}, kept)) == expected
    assert [float(kept[f"cs.{i}.s"]) for i in range(3)] == state


COUNTED = """
module m
entry f<N: Dim>(x: Tensor[N; f32], n: i64) -> f32 where N > 0 {
    var total: f32 = 0.0
    var k = 0
    for i in INDICES {
        let more = if total > 1.0 { x[INDEX] } else { 0.0 }
        let inner = for j in 0..2 { yield more * cast<f32>(j) }
        total = total + inner[0]
        k = i
    }
    return total
}
"""


@pytest.mark.parametrize(
    ("indices", "index", "proved"),
    [
        ("0..N", "i", True),
        ("0..2 * N", "i", False),
        ("1..N", "i - 1", True),
        ("0..N", "i + 1", False),
        ("0..N", "max(i - 3, 0)", True),
        ("0..N", "k", False),  # carried: it may be anything
        ("0..N", "n", False),
    ],
)
def test_what_a_loop_counts_is_known_in_it(indices: str, index: str, proved: bool) -> None:
    """In branches and inner loops too, and before any pass: what sizes are taken depends on it."""
    text = COUNTED.replace("INDICES", indices).replace("INDEX", index)
    analysis = check_text(text, "m.linnet")
    assert analysis.findings.errors == 0
    lowered = lower(analysis)
    found = [
        node.proved
        for body in bodies(lowered.entries["f"])
        for node in nodes_of(body)
        if isinstance(node, Gather) and "x" in str(node.span and node.span.text)
    ]
    assert found == [(proved,)]
    assert (len(demands(lowered.entries["f"])) == 0) is proved
    verify(optimize(lowered))
