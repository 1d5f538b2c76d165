"""The text that is generated: for people to read, formatted, the same each time."""

# ruff: noqa: E501 - Linnet sources are laid out for the eye
from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import linnet
from backends.common import lowered
from linnet.core.ir import Program
from linnet.core.passes import optimize
from linnet.core.scalars import round_float
from linnet.emit import Ex, fit, float_text, infix, prefix, snake_case
from linnet.loading import load_source
from linnet.policy import POLICIES, Policy
from linnet.torch.emit import emit
from linnet.types import DTYPES

ZOO = Path(linnet.__file__).parent / "zoo" / "families"
TINY = {"Vocab": 32, "H": 16, "Heads": 4, "KvHeads": 2, "Inner": 24, "Batch": 1, "MaxSeq": 16}

PROGRAMS = {
    "elementwise": """
        pub entry blend<N: Dim, M: Dim>(x: Tensor[N, M; f32], y: Tensor[M; f32], t: f32) -> Tensor[N, M; f32] {
            let mixed = x * t + y * (1.0 - t)
            return select(mixed > 0.5, exp(mixed), max(mixed, 0.1) / 3.0)
        }""",
    "softmax": """
        use std.nn.softmax::{softmax}
        pub entry shares<N: Dim>(x: Tensor[N, 8; bf16]) -> Tensor[N, 8; bf16] { return softmax(x) }""",
    "outer": """
        pub entry table<N: Dim, M: Dim>(a: Tensor[N; f32], b: Tensor[M; f32]) -> (Tensor[N, M; f32], Tensor[M, N, 2; f32]) {
            let product[n, m] = a[n] * b[m]
            let spread[m, n, k] = product[n, m] + cast<f32>(iota<i64>(2)[k])
            return (product, spread)
        }""",
    "gather": """
        pub entry rows<N: Dim>(x: Tensor[6, 4; f32], i: Tensor[N; i32], at: i64) -> (Tensor[N, 4; f32], Tensor[6; f32]) {
            let found[n, c] = x[i[n], c]
            return (found, x[:, at])
        }""",
    "shapes": """
        pub entry heads<B: Dim, S: Dim>(x: Tensor[B, S, 12; f32]) -> (Tensor[B, 3, S, 4; f32], Tensor[B, S, 6; f32], Tensor[B, 12; f32])
        where S > 0 {
            let split = permute(reshape(x, [B, S, 3, 4]), [0, 2, 1, 3])
            return (split, concat(x[..., 0:3], x[:, :, 9:12], axis = -1), x[:, S - 1, :])
        }""",
    "loops": """
        pub entry count<Steps: Dim>(x: Tensor[2; f32], limit: f32) -> (Tensor[2; f32], i32) {
            var y = x
            static for i in 0..Steps { y = y * 0.5 + cast<f32>(i) }
            var n: i32 = 0
            while all[k] (y[k] < limit) && n < 9 {
                y = if n % 2 == 0 { y + 1.0 } else { y * 2.0 }
                n = n + 1
            }
            return (y, n)
        }""",
    "memories": """
        use std.nn.cache::{write_at}
        pub block Memory {
            state cache: Tensor[1, 2, 8, 4; f32]
            state steps: i32
            pub fn push(x: Tensor[1, 2, 1, 4; f32]) -> Tensor[2, 4; f32] {
                cache = write_at(cache, x, steps)
                steps = steps + 1
                let total[h, d] = sum[s] cache[0, h, s, d]
                return total
            }
        }
        pub block Root {
            sub memories: [Memory; 3]
            pub entry step(x: Tensor[1, 2, 1, 4; f32]) -> Tensor[2, 4; f32] {
                var total = x[0, :, 0, :]
                static for memory in memories { total = total + memory.push(x) }
                return total + memories[1].cache[0, :, 0, :]
            }
        }""",
    "constants": """
        fn tables<S: Dim, D: Dim>(base: f32) -> (Tensor[S, D; f32], Tensor[S, D; f32]) {
            let angle[s, d] = cast<f32>(iota<i64>(S)[s]) * exp(cast<f32>(iota<i64>(D)[d]) * -log(base))
            return (cos(angle), sin(angle))
        }
        pub entry rotate<S: Dim>(x: Tensor[S, 4; f32]) -> Tensor[S, 4; f32] {
            let (c, s) = tables<S, 4>(10000.0)
            return x * c + x * s
        }
        pub entry mask<S: Dim>(x: Tensor[S, S; f32]) -> Tensor[S, S; f32] {
            let kept[i, j] = iota<i64>(S)[j] <= iota<i64>(S)[i]
            return select(kept, x, -1e30)
        }""",
    "integers": """
        pub entry mix<N: Dim>(a: Tensor[N; i32], b: Tensor[N; u32], n: i32) -> (Tensor[N; i32], Tensor[N; u32], Tensor[N; i64]) {
            return (a / n + a % 8, b * 3 + shl(b, 2), shr(cast<i64>(a), 1) & 255)
        }""",
    "attention": """
        use std.nn.attention::{attention, causal_mask}
        pub entry attend<S: Dim>(q: Tensor[1, 2, S, 4; f32], k: Tensor[1, 2, S, 4; f32], v: Tensor[1, 2, S, 4; f32]) -> Tensor[1, 2, S, 4; f32] {
            return attention(q, k, v, rsqrt(cast<f32>(4)), some(causal_mask<S, S>()))
        }""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_small_program(name: str, golden: Any) -> None:
    program = lowered(f"module {name}_program\n{PROGRAMS[name]}")
    golden(emit(optimize(program)), f"{name}.txt")


def test_canonical_bodies(golden: Any) -> None:
    texts = [emit(lowered(f"module {n}\n{PROGRAMS[n]}"), "exact") for n in ("softmax", "attention")]
    golden("\n\n".join(texts), "canonical.txt")


@cache
def family_program(layers: int) -> Program:
    sizes = {**TINY, "Layers": layers, "T": "f32"}
    return load_source(ZOO / "llama", generics=sizes).program


def family(policy: Policy, layers: int = 2) -> str:
    return emit(family_program(layers), policy)


@pytest.mark.slow
def test_the_family_reads_as_one_would_write_it() -> None:
    text = family("fast")
    for line in (
        "    for layer in self.layers:",
        "    kernels.write_span_(self.keys, k, at)",
        "    mixed = attend.span_attention(q, k, v, 0, 0.5)",
        "def generate_until(self, token, pos, eos, *, MaxNew):",
        "    while running & (count < MaxNew):",
    ):
        assert f"{line}\n" in text
    # No copies of caches, no names that say nothing, no clamps of positions that are known.
    assert "clone" not in text and not re.search(r"\b[vt]\d+\b", text)


@pytest.mark.slow
def test_the_text_does_not_grow_with_the_layers() -> None:
    assert family("fast", 2) == family("fast", 7)


@pytest.mark.slow
def test_it_is_formatted_and_has_nothing_unused(tmp_path: Path) -> None:
    for policy in POLICIES:
        (tmp_path / f"{policy}.py").write_text(family(policy))
    for name, text in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(
            emit(optimize(lowered(f"module {name}_program\n{text}")))
        )
    for options in (["format", "--check"], ["check", "--select", "E,F"]):
        command = [sys.executable, "-m", "ruff", *options, "--isolated", "--line-length", "100"]
        done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_expressions_keep_their_grouping() -> None:
    a, b, c = Ex("a"), Ex("b"), Ex("c")
    assert str(infix("-", a, infix("-", b, c))) == "a - (b - c)"
    assert str(infix("-", infix("-", a, b), c)) == "a - b - c"
    assert str(infix("*", infix("+", a, b), prefix("-", c))) == "(a + b) * -c"
    assert str(infix("<", infix("<", a, b), c)) == "(a < b) < c"
    assert str(prefix("-", infix("+", a, b)).method("abs")) == "(-(a + b)).abs()"
    assert str(infix("&", infix("==", a, b), infix("|", a, c))) == "(a == b) & (a | c)"


def test_long_statements_are_broken_inside_brackets() -> None:
    names = [f"argument_number_{i}" for i in range(9)]
    assert fit(f"result = function({', '.join(names[:4])})", 1) == [
        f"    result = function({', '.join(names[:4])})"
    ]
    called = fit(f"result = a_function_of_four({', '.join(names[:4])})", 1)
    assert called[1:] == [" " * 8 + ", ".join(names[:4]), "    )"]
    lines = fit(f"result = function({', '.join(names)})", 1)
    assert lines[1] == "        argument_number_0," and lines[-1] == "    )"
    summed = fit(f"result = {' + '.join(names)}", 0)
    assert summed[0] == "result = (" and summed[2] == "    + argument_number_1"
    compile("\n".join(summed), "text", "exec")


def test_names() -> None:
    assert snake_case("GroupedQueryAttention") == "grouped_query_attention"
    assert snake_case("SwiGlu") == "swi_glu" and snake_case("MLPBlock") == "mlp_block"


def test_the_largest_floats_are_not_printed_as_larger_ones() -> None:
    """PyTorch refuses -3.4028235e38 as an f32, though it rounds to one."""
    largest = (2 - 2**-23) * 2.0**127
    for value in (largest, -largest):
        printed = float(float_text(value, DTYPES["f32"]))
        assert abs(printed) <= largest
        assert round_float(printed, DTYPES["f32"]) == value
    assert float_text(0.1, DTYPES["f32"]) == "0.1"
