"""Language constructs mean in PyTorch what they mean in the reference, edges included."""

# ruff: noqa: E501 - Linnet sources are laid out for the eye
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import linnet.torch
from backends.common import CPU, agree, assert_close, lowered, module
from linnet import reference
from linnet.diagnostics import PlanError
from linnet.policy import Policy, tolerance
from linnet.torch import LinnetModule

I32 = np.int32
F = np.float32


def run(text, *calls, **options):  # type: ignore[no-untyped-def]
    return agree(lowered("module m\n" + text), list(calls), **options)


def test_gathers_clamp_and_put_their_axes_first() -> None:
    text = """
    pub entry one<N: Dim>(x: Tensor[3, 4, 5; f32], i: Tensor[N; i32], j: i64)
        -> (Tensor[N, 4, 5; f32], Tensor[3, N, 5; f32], Tensor[3, 4; f32], Tensor[N, N, 4; f32]) {
        let front[n, b, c] = x[i[n], b, c]
        let middle[a, n, c] = x[a, i[n], c]
        let column[a, b] = x[a, b, j]
        let both[n, m, b] = x[i[n], b, i[m]]
        return (front, middle, column, both)
    }
    pub entry scalar(x: Tensor[3, 4; f32], i: i32, j: u8) -> (Tensor[4; f32], Tensor[3; f32], f32) {
        return (x[i, :], x[:, j], x[j, i])
    }
    pub entry narrow(x: Tensor[6; f32], i: Tensor[3; u8], j: Tensor[3; i16], k: Tensor[3; u64])
        -> (Tensor[3; f32], Tensor[3; f32], Tensor[3; f32]) {
        let a[n] = x[i[n]]
        let b[n] = x[j[n]]
        let c[n] = x[k[n]]
        return (a, b, c)
    }
    pub entry diagonal(x: Tensor[4, 4; f32], i: Tensor[4; i64]) -> (Tensor[4; f32], f32, Tensor[4; f32]) {
        let walked[n] = x[n, n]
        let chosen[n] = x[n, i[n]]
        return (walked, sum[n] x[n, n], chosen)
    }
    """
    x = np.arange(60, dtype=F).reshape(3, 4, 5)
    i = np.array([2, -1, 9, 0], I32)
    run(
        text,
        ("one", [x, i, 3]),
        ("one", [x, i[:0], -7]),
        ("scalar", [x[0, :3, :4].copy(), 1, 2]),
        ("scalar", [x[0, :3, :4].copy(), -3, 200]),
        (
            "narrow",
            [
                np.arange(6, dtype=F),
                np.array([0, 5, 255], np.uint8),
                np.array([-1, 3, 999], np.int16),
                np.array([0, 4, 2**64 - 1], np.uint64),
            ],
        ),
        ("diagonal", [x[0, :4, :4].copy(), np.array([3, 0, -5, 7])]),
    )


def test_checked_indices_name_the_access() -> None:
    text = """module m
    pub entry pick(x: Tensor[3; f32], i: Tensor[2; i32], j: i32) -> (Tensor[2; f32], f32) {
        let found[n] = x[i[n]]
        return (found, x[j])
    }"""
    made = LinnetModule(lowered(text), "fast", CPU, checked=True)
    x = np.array([1, 2, 3], F)
    found, one = made.pick(x, np.array([0, 2], I32), 1)
    assert found.tolist() == [1, 3] and one.item() == 2
    with pytest.raises(PlanError, match=r"`x\[i\[n\]\]`.*index 3 lies outside 0\.\.2"):
        made.pick(x, np.array([0, 3], I32), 1)
    with pytest.raises(PlanError, match=r"`x\[j\]`.*index -1 lies outside"):
        made.pick(x, np.array([0, 1], I32), -1)


@pytest.mark.parametrize("policy", ["exact", "fast"])
def test_checked_indices_are_not_left_to_a_kernel_that_clamps(policy: Policy) -> None:
    text = """module m
    use std.nn.embedding::{embedding}
    use std.nn.linear::{linear}
    pub entry look(ids: Tensor[2; i32], t: Tensor[3, 4; f32], w: Tensor[4, 4; f32])
        -> Tensor[2, 4; f32] {
        return linear(embedding(ids, t), w)
    }"""
    made = LinnetModule(lowered(text), policy, CPU, checked=True)
    table, weight = np.ones((3, 4), F), np.eye(4, dtype=F)
    assert made.look(np.array([0, 2], I32), table, weight).tolist() == [[1] * 4] * 2
    with pytest.raises(PlanError, match=r"`table\[ids\[\*s\], h\]`.*index 3 lies outside 0\.\.2"):
        made.look(np.array([0, 3], I32), table, weight)
    assert policy == "exact" or "kernels.linear" in made.generated_source()


def test_an_empty_axis_is_refused_and_other_empty_axes_are_fine() -> None:
    text = """
    pub entry pick<N: Dim>(x: Tensor[N; f32], i: i32) -> f32 { return x[i] }
    pub entry ends<N: Dim, M: Dim>(x: Tensor[N, M; f32], k: Tensor[N; i16], b: Tensor[N; bool])
        -> (Tensor[M; f32], Tensor[N; f32], f32, i16, bool, bool, f32) {
        let most[m] = max[n] x[n, m]
        let least[n] = min[m] x[n, m]
        return (most, least, sum[n, m] x[n, m], max[n] k[n], any[n] b[n], all[n] b[n], prod[n, m] x[n, m])
    }"""
    x = np.zeros((0, 3), F)
    run(
        text,
        ("ends", [x, np.zeros(0, np.int16), np.zeros(0, bool)]),
        ("ends", [x.T.copy(), np.zeros(3, np.int16), np.ones(3, bool)]),
        ("ends", [np.ones((2, 3), F) * 2, np.array([3, -4], np.int16), np.array([True, False])]),
    )
    made = module(lowered("module m\n" + text))
    with pytest.raises(PlanError, match="size 0"):
        made.pick(np.zeros(0, F), 0)


def test_conversions_at_their_edges() -> None:
    dtypes = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool", "f16", "bf16", "f64"]
    results = ", ".join(f"Tensor[N; {d}]" for d in dtypes)
    text = f"""
    pub entry wide<N: Dim>(x: Tensor[N; f32]) -> ({results}) {{
        return ({", ".join(f"cast<{d}>(x)" for d in dtypes)})
    }}
    pub entry back<N: Dim>(x: Tensor[N; u64], y: Tensor[N; i64])
        -> (Tensor[N; f32], Tensor[N; f64], Tensor[N; i8], Tensor[N; u16], Tensor[N; u64], Tensor[N; bf16]) {{
        return (cast<f32>(x), cast<f64>(x), cast<i8>(y), cast<u16>(y), cast<u64>(y), cast<bf16>(x))
    }}
    pub entry double<N: Dim>(x: Tensor[N; f64]) -> (Tensor[N; i64], Tensor[N; u64], Tensor[N; u32]) {{
        return (cast<i64>(x), cast<u64>(x), cast<u32>(x))
    }}"""
    edges = [0, -0.0, 0.9, -0.9, 1.5, -1.5, 127, 128, -128, -129, 255, 256, 32767, 40000, 65535.5]
    edges += [2.0**31, 2.0**31 - 128, -(2.0**31), 2.0**32, 2.0**53, 2.0**63, 2.0**64, -1e30, 3e9]
    x = np.array([*edges, np.inf, -np.inf, np.nan, 1e38, 2.0**63 * 1.5], F)
    whole = [0, 1, 2**53 + 1, 2**63, 2**63 + 1025, 2**64 - 1, 2**64 - 1024, 2**40 + 1]
    signed = [0, -1, 127, 128, -129, 65535, 65536, -(2**63)]
    doubles = [
        2.0**53 + 2,
        2.0**63 - 1024,
        2.0**63,
        2.0**64 - 2048,
        2.0**64,
        -1.0,
        np.nan,
        4294967295.5,
    ]
    calls = [
        ("wide", [x]),
        ("back", [np.array(whole, np.uint64), np.array(signed, np.int64)]),
        ("double", [np.array([*doubles, -np.inf, 1e300])]),
    ]
    run(text, *calls, limit=0.0)


def test_integer_arithmetic_at_its_edges() -> None:
    for dtype in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"):
        info = np.iinfo({"i": "int", "u": "uint"}[dtype[0]] + dtype[1:])
        text = f"""
        pub entry all_of<N: Dim>(a: Tensor[N; {dtype}], b: Tensor[N; {dtype}]) -> ({", ".join([f"Tensor[N; {dtype}]"] * 13)}, Tensor[N; bool]) {{
            return (a + b, a - b, a * b, a / b, a % b, shl(a, b), shr(a, b), min(a, b), max(a, b), a & b, a ^ b, a / 3, 7 % b, a < b)
        }}"""
        low, high = int(info.min), int(info.max)
        values = [low, low + 1, high, high - 1, 0, 1, 2, 3, 7, info.bits - 1, info.bits]
        values += [-1, -7] if low else []
        grid = np.array([(a, b) for a in values for b in values], dtype=info.dtype)
        run(text, ("all_of", [grid[:, 0].copy(), grid[:, 1].copy()]), policies=("exact",))


def test_float_edges() -> None:
    text = """
    pub entry all_of<N: Dim>(a: Tensor[N; f32], b: Tensor[N; f32])
        -> (Tensor[N; f32], Tensor[N; f32], Tensor[N; f32], Tensor[N; f32], Tensor[N; bool], Tensor[N; f32]) {
        return (a / b, a % b, min(a, b), max(a, b), a == b, 3.0 / max(a, 0.1))
    }
    pub entry halves<N: Dim>(a: Tensor[N; bf16]) -> (Tensor[N; bf16], Tensor[N; bf16], Tensor[N; bf16]) {
        return (a * 0.1, 3.0 / a, a + 0.3)
    }"""
    values = [0.0, -0.0, 1.0, -2.5, 7.25, np.inf, -np.inf, np.nan, 1e-30]
    grid = np.array([(a, b) for a in values for b in values], F)
    made = run(text, ("all_of", [grid[:, 0].copy(), grid[:, 1].copy()]), policies=("exact",))[0]
    x = torch.tensor([0.3, 1.7, -5.0, 33.0]).bfloat16()
    wanted = reference.evaluate(made.program, "halves", [x])
    for a, b in zip(wanted, made.halves(x), strict=True):
        assert np.array_equal(np.asarray(a, F), b.float().numpy())


def test_control_flow() -> None:
    text = """
    pub entry collatz(start: i64) -> (i64, i64) {
        var n = start
        var steps: i64 = 0
        while n != 1 && steps < 200 {
            n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 }
            steps = steps + 1
        }
        return (n, steps)
    }
    pub entry fibonacci<N: Dim>() -> (i32, i32) {
        var a: i32 = 0
        var b: i32 = 1
        static for i in 0..N {
            let next = a + b
            a = b
            b = next
        }
        return (a, b)
    }
    pub entry nested<N: Dim>(x: Tensor[N; f32]) -> Tensor[N; f32] {
        var y = x
        static for i in 2..N {
            var scale: f32 = 1.0
            static for j in 0..3 {
                scale = scale + cast<f32>(i * j)
            }
            y = y * scale + cast<f32>(i)
        }
        return y
    }
    pub entry bubble(a: i32, b: i32, flag: bool) -> (i32, i32, f32) {
        let ordered = if a < b && flag { (a, b) } else { (b, a) }
        let (low, high) = ordered
        let f = if !flag || low == high { 1.5 } else { cast<f32>(high) }
        return (low, high, f)
    }
    pub entry never(x: Tensor[2; f32]) -> Tensor[2; f32] {
        var y = x
        while (sum[i] y[i]) < 0.0 { y = y + 1.0 }
        return y
    }"""
    run(
        text,
        ("collatz", [27]),
        ("collatz", [1]),
        ("fibonacci", [], {"N": 10}),
        ("fibonacci", [], {"N": 0}),
        ("nested", [np.ones(4, F)]),
        ("bubble", [3, 5, True]),
        ("bubble", [3, 5, False]),
        ("bubble", [5, 5, True]),
        ("never", [np.array([-3, 1], F)]),
        ("never", [np.array([3, 1], F)]),
    )


def test_swapping_variables_in_a_loop() -> None:
    text = """
    pub entry twist<N: Dim>(x: Tensor[2; f32], y: Tensor[2; f32]) -> (Tensor[2; f32], Tensor[2; f32]) {
        var a = x
        var b = y
        static for i in 0..N {
            let t = a
            a = b
            b = t
        }
        return (a, b + 1.0)
    }"""
    made = run(text, ("twist", [np.ones(2, F), np.zeros(2, F)], {"N": 3}))[-1]
    assert "a, b = b, a\n" in made.generated_source()


def test_products_of_every_layout() -> None:
    text = """
    pub entry all_of<B: Dim, M: Dim, N: Dim, K: Dim>(
        a: Tensor[M, K; f32], b: Tensor[K, N; f32], c: Tensor[B, M, K; f32], d: Tensor[B, N, K; f32],
        v: Tensor[K; f32],
    ) -> (Tensor[M, N; f32], Tensor[N, M; f32], Tensor[B, M, N; f32], Tensor[B, M, M; f32],
          Tensor[M; f32], f32, Tensor[B, N; f32], Tensor[M, B, N; f32], f32) {
        let plain[m, n] = sum[k] a[m, k] * b[k, n]
        let turned[n, m] = sum[k] b[k, n] * a[m, k]
        let batched[x, m, n] = sum[k] c[x, m, k] * d[x, n, k]
        let gram[x, m, n] = sum[k] c[x, m, k] * c[x, n, k]
        let vector[m] = sum[k] a[m, k] * v[k]
        let folded[x, n] = sum[m, k] c[x, m, k] * d[x, n, k]
        let spread[m, x, n] = sum[k] a[m, k] * d[x, n, k]
        return (plain, turned, batched, gram, vector, sum[k] v[k] * v[k], folded, spread,
                sum[m, k] a[m, k] * a[m, k])
    }
    pub entry whole(a: Tensor[2, 3; i32], b: Tensor[3, 2; i32], c: Tensor[2, 3; u32], d: Tensor[3, 2; u64])
        -> (Tensor[2, 2; i32], Tensor[2, 2; u32], Tensor[3, 3; u64]) {
        let x[i, j] = sum[k] a[i, k] * b[k, j]
        let y[i, j] = sum[k] c[i, k] * c[j, k]
        let z[i, j] = sum[k] d[i, k] * d[j, k]
        return (x, y, z)
    }"""
    draw = np.random.default_rng(0)

    def f(*shape):  # type: ignore[no-untyped-def]
        return draw.standard_normal(shape).astype(F)

    big = draw.integers(-(2**31), 2**31, (2, 3))
    run(
        text,
        ("all_of", [f(3, 4), f(4, 5), f(2, 3, 4), f(2, 5, 4), f(4)]),
        ("all_of", [f(3, 0), f(0, 5), f(2, 3, 0), f(2, 5, 0), f(0)]),
        (
            "whole",
            [big.astype(I32), big.T.astype(I32), big.astype(np.uint32), big.T.astype(np.uint64)],
        ),
        limit=1e-5,
    )


def test_scalars_keep_their_dtype() -> None:
    text = """
    fn scaled<N: Dim>(x: Tensor[N; f32], by: f32) -> Tensor[N; f32] { return x * by }
    fn root(x: f32) -> f32 { return sqrt(x) * 2.0 }
    fn both<N: Dim>(x: Tensor[N; f32], by: f32) -> Tensor[N; f32] { return scaled(x, by) + root(by) }
    pub entry run<N: Dim>(x: Tensor[N; f32], by: f32)
        -> (Tensor[N; f32], Tensor[N; f32], f32, Tensor[2, N; f32], f32, i32, Tensor[N; i64]) {
        let most = max(0.1, cast<f32>(N))
        return (
            both(x, 0.3), both(x, by), root(0.3), fill<f32>([2, N], by), most,
            cast<i32>(N) * 2, iota<i64>(N) + N,
        )
    }
    pub entry chosen(c: bool, d: Tensor[3; bool]) -> (f32, Tensor[3; i32], Tensor[3; f64]) {
        return (select(c, 1.5, 2.5), select(d, 1, 2), select(d, 0.1, 0.2))
    }"""
    made = run(text, ("run", [np.ones(3, F), 0.7]), ("chosen", [True, np.array([1, 0, 1], bool)]))
    assert "scaled(x, by)" in made[0].generated_source()


def test_optional_members_and_sub_arrays() -> None:
    text = """
    use std.nn.linear::{Linear}
    pub block Deep { sub inner: [Linear<2, 2, f32>; 2] param scale: Tensor[2; f32]? = none
        pub fn go(x: Tensor[2; f32]) -> Tensor[2; f32] {
            var y = x
            static for l in inner { y = l.forward(y) }
            return match scale { some(s) => y * s none => y }
        }
    }
    pub block Root { sub deep: [Deep; 3] sub last: Linear<2, 2, f32>
        pub entry forward(x: Tensor[2; f32]) -> Tensor[2; f32] {
            var y = x
            static for d in deep {
                static for l in d.inner { y = y + l.forward(y) }
                y = d.go(y)
            }
            return last.forward(y + deep[1].inner[0].forward(x)) + deep[0].inner[1].weight[0, :]
        }
    }""".replace("; 2] param", "; 2]\nparam").replace("; 3] sub", "; 3]\nsub")
    for present in (lambda path: True, lambda path: False, lambda path: path.endswith("bias")):
        program = lowered("module m\n" + text, present=present)
        made = agree(program, [("forward", [np.array([1, -2], F)])])[0]
        assert ("deep.0.scale" in made.state_dict()) == present("deep.*.scale")
        assert "for d in self.deep:" in made.generated_source()


def test_members_named_like_methods_of_modules() -> None:
    text = """
    use std.nn.linear::{Linear}
    pub block Root {
        param half: Tensor[2; f32]
        sub modules: [Linear<2, 2, f32>; 2]
        sub lambda: Linear<2, 2, f32>
        buffer type_: Tensor[2; f32]
        state train: Tensor[2; f32]
        pub entry eval(x: Tensor[2; f32]) -> Tensor[2; f32] {
            var y = x * half + type_
            static for m in modules { y = m.forward(y) }
            train = train + lambda.forward(y)
            return train
        }
    }"""
    made = agree(lowered("module m\n" + text), [("eval", [np.ones(2, F)])] * 2)[0]
    assert set(made.state_dict()) >= {"half", "modules.0.weight", "lambda.weight", "type_"}
    assert made.train(False) is made


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["exact", "equivalent", "fast"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_a_whole_model_stays_within_its_policy(dtype: str, policy: Policy) -> None:
    """A tiny decoder in every float dtype: the difference does not pile up past the tolerance."""
    family = Path(linnet.__file__).parent / "zoo" / "families" / "llama"
    sizes = {"Vocab": 64, "H": 48, "Heads": 6, "KvHeads": 2, "Inner": 96, "Layers": 2}
    sizes |= {"Batch": 2, "MaxSeq": 16}
    made = linnet.torch.load(family, generics={**sizes, "T": dtype}, numerics=policy)
    draw = torch.Generator().manual_seed(0)
    for parameter in made.parameters():
        noise = torch.randn(parameter.shape, generator=draw) * 0.2
        parameter.copy_(1 + noise / 2 if parameter.ndim == 1 else noise)
    members = {path: tensor for path, tensor, _ in made._slots()}
    state: dict[str, np.ndarray] = {}
    tokens = np.random.default_rng(0).integers(0, 64, (2, 7)).astype(I32)
    for entry, inputs in [
        ("forward", [tokens]),
        ("prefill", [tokens[:, :5].copy(), 0]),
        ("decode", [tokens[:, 5:6].copy(), 5]),
        ("decode_rows", [tokens[:, 6:7].copy(), np.array([6, 4], I32)]),
    ]:
        wanted = reference.evaluate(made.program, entry, inputs, members, state)
        found = made.run_entry(entry, inputs)
        assert_close(wanted, found, tolerance(policy, dtype), f"{entry}, {policy}, {dtype}")
