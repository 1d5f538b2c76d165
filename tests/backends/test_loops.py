"""Counted loops and what they stack: the reference and PyTorch are what NumPy computes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from backends.common import agree, assert_close, flat, lowered, module
from linnet import reference
from linnet.core.ir import Function, Gather, Program
from linnet.core.rewrite import bodies, nodes_of
from linnet.diagnostics import PlanError

F = np.float32
RANDOM = np.random.default_rng(16)


def computes(
    text: str,
    inputs: Sequence[Any],
    expected: Sequence[Any],
    *,
    entry: str = "main",
    limit: float = 2e-5,
    generics: Mapping[str, int] | None = None,
) -> Program:
    """The entry gives this on the reference, and the same on PyTorch."""
    program = lowered("module m\n" + text)
    found = flat(reference.evaluate(program, entry, inputs, {}, {}, generics))
    assert len(found) == len(expected)
    for a, b in zip(expected, found, strict=True):
        assert_close(np.asarray(a), b, limit, "reference")
    agree(program, [(entry, inputs, generics or {})], limit=limit)
    return program


def floats(*shape: int) -> np.ndarray:
    return RANDOM.uniform(-1, 1, shape).astype(F)


# ---------------------------------------------------------------- scans


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_cumulative_sum(size: int) -> None:
    text = """
    pub entry main<N: Dim>(x: Tensor[N; f32]) -> (Tensor[N; f32], f32) {
        var total: f32 = 0.0
        let sums = for i in 0..N {
            total = total + x[i]
            yield total
        }
        return (sums, total)
    }
    """
    x = floats(size)
    computes(text, [x], [np.cumsum(x, dtype=F), x.sum(dtype=F)])


def test_a_recurrent_cell() -> None:
    text = """
    fn cell<H: Dim, I: Dim>(x: Tensor[I; f32], h: Tensor[H; f32], w: Tensor[H, I; f32], u: Tensor[H, H; f32]) -> Tensor[H; f32] {
        let y[a] = sum[i] w[a, i] * x[i]
        let z[a] = sum[b] u[a, b] * h[b]
        return tanh(y + z)
    }
    pub entry main<T: Dim, H: Dim, I: Dim>(x: Tensor[T, I; f32], w: Tensor[H, I; f32], u: Tensor[H, H; f32])
        -> (Tensor[T, H; f32], Tensor[H; f32]) {
        var h = fill<f32>([H], 0.0)
        let all = for t in 0..T {
            h = cell(x[t, ...], h, w, u)
            yield h
        }
        return (all, h)
    }
    """  # noqa: E501
    x, w, u = floats(5, 3), floats(4, 3), floats(4, 4)
    h, steps = np.zeros(4, F), []
    for row in x:
        h = np.tanh(w @ row + u @ h)
        steps.append(h)
    computes(text, [x, w, u], [np.stack(steps), h])


def test_power_iteration() -> None:
    text = """
    pub entry main<N: Dim, Steps: Dim>(a: Tensor[N, N; f32]) -> (Tensor[N; f32], Tensor[Steps; f32]) {
        var v = fill<f32>([N], 1.0)
        let norms = for step in 0..Steps {
            let next[i] = sum[j] a[i, j] * v[j]
            let norm = sqrt(sum[i] next[i] * next[i])
            v = next / norm
            yield norm
        }
        return (v, norms)
    }
    """  # noqa: E501
    a = floats(4, 4)
    a = a @ a.T + np.eye(4, dtype=F)
    v, norms = np.ones(4, F), []
    for _ in range(9):
        v = a @ v
        norms.append(np.linalg.norm(v))
        v = v / norms[-1]
    computes(text, [a], [v, np.array(norms, F)], generics={"Steps": 9})


def test_neighbours_are_read_without_a_clamp() -> None:
    text = """
    pub entry main<N: Dim>(x: Tensor[N; f32]) -> Tensor[N - 1; f32]
    where N > 0 {
        return for i in 1..N { yield x[i] - x[i - 1] }
    }
    """
    x = floats(6)
    program = computes(text, [x], [np.diff(x)])
    computes(text, [x[:1]], [x[:0]])
    gathers = [n for f in bodies(program.entries["main"]) for n in nodes_of(f)]
    assert all(all(n.proved) for n in gathers if isinstance(n, Gather))


# ---------------------------------------------------------------- what is yielded

DTYPES = [
    ("f16", np.float16),
    ("bf16", ml_dtypes.bfloat16),
    ("f64", np.float64),
    ("i8", np.int8),
    ("i32", np.int32),
    ("u16", np.uint16),
    ("u64", np.uint64),
]


@pytest.mark.parametrize(("name", "dtype"), DTYPES)
def test_every_dtype_is_stacked(name: str, dtype: Any) -> None:
    text = f"""
    pub entry main<N: Dim>(x: Tensor[3, N; {name}]) -> (Tensor[2, N; {name}], Tensor[3; {name}]) {{
        let rows = for i in 1..3 {{ yield x[i, ...] * cast<{name}>(i) }}
        let ones: Tensor[3; {name}] = for i in 0..3 {{ yield 1 }}
        return (rows, ones)
    }}
    """
    for size in (0, 4):
        x = np.asarray(RANDOM.uniform(0, 9, (3, size))).astype(dtype)
        rows = np.stack([x[1] * dtype(1), x[2] * dtype(2)])
        computes(text, [x], [rows, np.ones(3, dtype)], limit=1e-2 if name == "bf16" else 2e-3)


def test_bools_tuples_and_constants() -> None:
    text = """
    pub entry main<N: Dim>(x: Tensor[N; i32])
        -> (Tensor[N; bool], (Tensor[N; i64], Tensor[N, 2; i32]), Tensor[N; f32], Tensor[2, 3; i64]) {
        let (even, (at, pair)) = for i in 0..N {
            let row: Tensor[2; i32] = for j in 0..2 { yield x[i] * cast<i32>(j) }
            yield (x[i] % 2 == 0, (i, row))
        }
        let c: Tensor[N; f32] = for i in 0..N { yield 0.5 }
        let table = for i in 2..4 {
            let row = for j in 0..3 { yield 10 * i + j }
            yield row
        }
        return (even, (at, pair), c, table)
    }
    """  # noqa: E501
    for size in (0, 5):
        x = RANDOM.integers(-9, 9, size).astype(np.int32)
        pair = np.stack([x * 0, x], axis=1)
        table = np.array([[20, 21, 22], [30, 31, 32]])
        half = np.full(size, 0.5, F)
        computes(text, [x], [x % 2 == 0, np.arange(size), pair, half, table])


def test_a_range_between_two_sizes() -> None:
    text = """
    pub entry main<N: Dim, M: Dim>(x: Tensor[N; f32], y: Tensor[M; f32]) -> Tensor[N; f32]
    where M <= N {
        let rest = for i in M..N { yield x[i] * 2.0 }
        return concat(y, rest, axis = 0)
    }
    """
    x, y = floats(7), floats(7)
    for size in (0, 3, 7):
        computes(text, [x, y[:size]], [np.concatenate([y[:size], x[size:] * 2])])
    with pytest.raises(PlanError, match="main requires M <= N"):
        computes(text, [x[:2], y[:3]], [])


def test_structs_and_optionals_are_carried() -> None:
    text = """
    struct Pair<N: Dim> {
        left: Tensor[N; f32]
        right: (f32, Tensor[N; f32]?)
    }
    fn turned<N: Dim>(p: Pair<N>) -> Pair<N> {
        let (x, o) = p.right
        let y = match o {
            some(v) => v
            none => p.left
        }
        return Pair(right = (x * 0.5, some(p.left)), left = y + x)
    }
    pub entry main<N: Dim>(x: Tensor[N; f32]) -> (Pair<N>, Tensor[4; f32]) {
        var p = Pair(left = x, right = (1.0, some(x * 2.0)))
        let rights = for i in 0..4 {
            p = turned(p)
            let (right, _) = p.right
            yield right
        }
        var n = 0
        while n < 3 {
            p = turned(p)
            n = n + 1
        }
        return (p, rights)
    }
    """
    x = floats(3)
    a, b, right, rights = x, x * 2, F(1), []
    for _ in range(7):
        a, b, right = b + right, a, right / 2
        rights.append(right)
    computes(text, [x], [a, right, b, np.array(rights[:4], F)])


# ---------------------------------------------------------------- state

STATE = """
block Cell {
    param w: f32
    state held: Tensor[2; f32]
    pub fn push(x: f32) -> Tensor[2; f32] {
        let before = held
        held = held * 0.5 + fill<f32>([2], x) * w
        return before
    }
}
pub block Root<L: Dim> {
    sub cells: [Cell; L]
    sub one: Cell
    state seen: Tensor[3; f32]
    state count: i64

    pub entry main<N: Dim>(x: Tensor[N; f32]) -> (Tensor[N, 2; f32], Tensor[N, 3; f32], Tensor[N; i64]) {
        let (before, old, counts) = for i in 0..N {
            let kept = seen
            seen = seen * 0.5 + fill<f32>([3], x[i])
            count = count + i
            static for cell in cells {
                count = count + 1
                let pushed = cell.push(x[i])
                seen = seen + pushed[0]
            }
            yield (one.push(x[i]), kept, count)
        }
        return (before, old, counts)
    }
    pub entry replace() -> Tensor[3; f32] {
        let old = seen
        seen = for i in 0..3 { yield old[2 - i] }
        return old
    }
}
"""  # noqa: E501


def test_state_is_written_in_every_turn() -> None:
    program = lowered("module m\n" + STATE, generics={"L": 2})
    made = module(program)
    weights = {path: float(t) for path, t, _ in made._slots()}
    seen, count = np.zeros(3), 0
    held = {path: np.zeros(2) for path in ("cells.0", "cells.1", "one")}
    calls = [("main", [floats(4)]), ("replace", []), ("main", [floats(0)]), ("main", [floats(3)])]
    members, state = {p: t for p, t, _ in made._slots()}, {}
    for name, inputs in calls:
        found = flat(reference.evaluate(program, name, inputs, members, state))
        if name == "replace":
            assert_close(seen.astype(F), found[0], 1e-5)
            seen = seen[::-1].copy()
            continue
        before, old, counts = [], [], []
        for i, x in enumerate(inputs[0]):
            old.append(seen)
            seen, count = seen * 0.5 + x, count + i + 2
            for path in held:
                first = held[path]
                held[path] = first * 0.5 + x * weights[f"{path}.w"]
                if path != "one":
                    seen = seen + first[0]
                else:
                    before.append(first)
            counts.append(count)
        n = len(inputs[0])
        assert_close(np.array(before, F).reshape(n, 2), found[0], 1e-5)
        assert_close(np.array(old, F).reshape(n, 3), found[1], 1e-5)
        assert_close(np.array(counts, np.int64), found[2], 0)
    agree(program, calls)


def test_state_stays_in_its_buffer() -> None:
    program = lowered("module m\n" + STATE, generics={"L": 2})
    made = module(program)
    memory = [made.get_buffer_at(path).data_ptr() for path in made.state_paths]
    made.run_entry("main", [floats(4)])
    made.run_entry("replace", [])
    assert memory == [made.get_buffer_at(path).data_ptr() for path in made.state_paths]


def test_what_is_stacked_is_no_view_of_state() -> None:
    text = """
    module m
    pub block Root {
        state s: Tensor[2; f32]
        pub entry main() -> (Tensor[3, 2; f32], Tensor[3; f32]) {
            let (rows, firsts) = for i in 0..3 {
                let first = s[0]
                s = s + 1.0
                yield (s, first)
            }
            s = s * 0.0
            return (rows, firsts)
        }
    }
    """
    rows = np.array([[1, 1], [2, 2], [3, 3]], F)
    for passes in (False, True):
        found = module(lowered(text), passes=passes).run_entry("main", [])
        assert_close(rows, found[0], 0)
        assert_close(np.array([0, 1, 2], F), found[1], 0)


# ---------------------------------------------------------------- gradients

RECURRENT = """
module m
pub block Root<H: Dim>
where H > 0 {
    param w: Tensor[H, H; f32]
    pub entry main<T: Dim>(x: Tensor[T, H; f32])
        -> (Tensor[T, H; f32], Tensor[H; f32], Tensor[T, 2; f32]) {
        var h = fill<f32>([H], 0.5)
        let (all, (first, old)) = for t in 0..T {
            let before = h
            let y[i] = sum[j] w[i, j] * h[j]
            h = tanh(x[t, ...] + y)
            yield (h, (h[0] * h[0], before[0]))
        }
        let both = for t in 0..T {
            let pair = for k in 1..3 { yield first[t] * old[t] * cast<f32>(k) }
            yield pair
        }
        return (all, h, both)
    }
}
"""


@pytest.mark.parametrize("passes", [False, True])
def test_gradients_go_through_what_is_yielded_and_carried(passes: bool) -> None:
    made = module(lowered(RECURRENT, generics={"H": 3}), passes=passes)
    made.requires_grad_(True)
    x = torch.from_numpy(floats(4, 3)).requires_grad_(True)
    w, h, rows, both = made.w, torch.full((3,), 0.5), [], []
    for row in x:
        before, h = h, torch.tanh(row + w @ h)
        rows.append(h)
        both.append(h[0] * h[0] * before[0] * torch.tensor([1.0, 2.0]))
    wanted = (torch.stack(rows), h, torch.stack(both))
    found = made.main(x)
    gradients = [
        torch.autograd.grad(sum((t * t.detach().cos()).sum() for t in out), [x, w])
        for out in (wanted, found)
    ]
    for a, b in zip(*gradients, strict=True):
        assert_close(a, b, 1e-5)


def test_a_row_takes_no_gradient_of_all_rows() -> None:
    """Rows written into one tensor would each cost the whole of it on the way back."""
    text = """
    module m
    pub entry main<N: Dim, W: Dim>(x: Tensor[W; f32]) -> Tensor[N, W; f32] {
        return for i in 0..N { yield x * cast<f32>(i) }
    }
    """
    made = module(lowered(text))
    x = torch.ones(64, requires_grad=True)
    rows = made.run_entry("main", [x], {"N": 4})
    assert rows.grad_fn is not None and "Stack" in rows.grad_fn.name()
    (gradient,) = torch.autograd.grad(rows.sum(), [x])
    assert_close(np.full(64, 6, F), gradient, 0)


# ---------------------------------------------------------------- size and shape of the program


def nodes(function: Function) -> int:
    return sum(len(nodes_of(body)) for body in bodies(function))


def test_a_loop_is_as_long_as_its_source() -> None:
    text = """
    module m
    pub block Root<Steps: Dim> {
        pub entry main(x: f32) -> Tensor[Steps; f32] {
            var total = x
            return for i in 0..Steps {
                total = total * 0.5 + cast<f32>(i)
                yield total
            }
        }
    }
    """
    few, many = (lowered(text, generics={"Steps": n}) for n in (2, 2000))
    assert nodes(few.entries["main"]) == nodes(many.entries["main"])
    short, long = (module(p).generated_source() for p in (few, many))
    assert short.replace("2", "2000").count("\n") == long.count("\n")
    assert "for i in range(2000):" in long


def test_the_generated_source_reads_like_the_loop() -> None:
    text = """
    module m
    pub entry main<N: Dim>(x: Tensor[N; f32]) -> Tensor[N; f32] {
        var total: f32 = 0.0
        let sums = for i in 0..N {
            total = total + x[i]
            yield total
        }
        return sums
    }
    """
    source = module(lowered(text), "fast").generated_source()
    assert source.split("\n\n\n")[-1] == (
        "def main(x):\n"
        "    N = x.shape[0]\n"
        "    total = torch.full((), 0.0, dtype=torch.float32, device=DEVICE)\n"
        "    sums = []\n"
        "    for i in range(N):\n"
        "        total = total + x[i]\n"
        "        sums.append(total)\n"
        "    return kernels.stacked(sums, (N,), dtype=torch.float32, device=DEVICE)\n"
    )


# ---------------------------------------------------------------- calls on elements, and in order


def test_a_function_with_loops_is_called_on_elements() -> None:
    text = """
    fn halvings(x: f32) -> (i64, f32) {
        var y = x
        var n = 0
        while y > 1.0 {
            y = y * 0.5
            n = n + 1
        }
        return (n, y)
    }
    fn first(p: (i64, f32)) -> i64 {
        let (n, _) = p
        return n
    }
    block Scale {
        param w: f32
        pub fn of(x: f32) -> f32 { return x * w }
    }
    pub block Root {
        sub scale: Scale
        param c: Tensor[4; f32]
        fn poly(x: f32) -> f32 {
            var y: f32 = 0.0
            for i in 0..4 {
                y = y * x + c[i]
            }
            let powers = for i in 0..3 { yield x * cast<f32>(i) }
            let both = powers + fill<f32>([3], x)
            return y + both[2]
        }
        pub entry main<N: Dim, M: Dim>(x: Tensor[N; f32], y: Tensor[M; f32])
            -> (Tensor[N; i64], Tensor[M, N; f32], Tensor[M; f32], f32, Tensor[N; f32]) {
            let counts[i] = first(halvings(x[i]))
            let values[j, i] = poly(x[i] * y[j]) + y[j]
            let sums[j] = sum[i] poly(x[i] + y[j])
            let largest = max[i] poly(x[i])
            let scaled[i] = scale.of(x[i])
            return (counts, values, sums, largest, scaled)
        }
    }
    """
    program = lowered("module m\n" + text)
    made = module(program)
    members = {p: t for p, t, _ in made._slots()}
    for n, m in ((5, 2), (0, 2), (3, 0)):
        x, y, c = floats(n) * 9, floats(m), members["c"].numpy()

        def poly(z: np.ndarray, c: np.ndarray = c) -> np.ndarray:
            return np.polyval(c, z) + 3 * z

        with np.errstate(all="ignore"):
            counts = np.where(x > 1, np.ceil(np.log2(x)), 0).astype(np.int64)
        expected = [
            counts,
            poly(np.outer(y, x)) + y[:, None],
            poly(y[:, None] + x).sum(1),
            poly(x).max(initial=-np.inf),
            x * float(members["scale.w"]),
        ]
        found = flat(reference.evaluate(program, "main", [x, y], members))
        for a, b in zip(expected, found, strict=True):
            assert_close(np.asarray(a).astype(b.dtype), b, 2e-5)
        agree(program, [("main", [x, y])], limit=2e-5)


def test_arguments_run_in_the_order_they_are_written() -> None:
    text = """
    fn pair(a: f32, b: f32) -> f32 { return a * 10.0 + b }
    pub block Root {
        state s: f32
        fn next() -> f32 {
            s = s + 1.0
            return s
        }
        pub entry main() -> f32 { return pair(b = next(), a = next()) }
    }
    """
    computes(text, [], [F(21)])
