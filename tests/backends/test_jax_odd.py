"""Odd programs as generated `jax.numpy`: what they mean, and how they read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.common import assert_close, flat, lowered
from backends.test_emitted import PROGRAMS
from backends.test_stablehlo import FAMILIES, family
from backends.test_state_drawn import Drawn
from linnet.core.ir import Program
from linnet.core.passes import optimize
from linnet.policy import Policy
from linnet.reference import evaluate

pytestmark = pytest.mark.slow  # importing JAX alone takes a second

Calls = Sequence[tuple[str, Sequence[object]]]
WAYS = ("source", "stablehlo", "nnx")
ENDS: list[tuple[Policy, bool]] = [("exact", False), ("exact", True), ("fast", True)]


def agree(
    program: Program,
    calls: Calls,
    weights: Mapping[str, np.ndarray],
    near: float,
    ways: Sequence[str] = WAYS,
    ends: Sequence[tuple[Policy, bool]] = ENDS,
) -> None:
    """The calls, one after another, give what the reference gives: results and state."""
    import jax

    from linnet.jax.entry import Entry, Source, zeros

    for policy, passes in ends:
        made = optimize(program, policy) if passes else program
        for way in ways:
            source = None if way == "stablehlo" else Source(made, policy)
            entries = {name: Entry(made, name, policy, source) for name in made.entries}
            types = {path: type for e in entries.values() for path, type in e.states.items()}
            state: Any = zeros(types)
            held: dict[str, Any] = {path: np.array(x) for path, x in state.items()}
            for name, inputs in calls:
                wanted = flat(evaluate(made, name, inputs, weights, held))
                if way == "nnx":
                    results, state = as_module(made, name, policy, inputs, weights, state)
                else:
                    results, state = entries[name].run(inputs, None, weights, state)
                what = f"{name} {policy} {passes} {way}"
                for a, b in zip(wanted, jax.tree.leaves(results), strict=True):
                    assert_close(np.asarray(a), np.asarray(b), near, what)
                for path, array in state.items():
                    assert_close(held[path], np.asarray(array), near, f"{path} after {what}")


def as_module(
    program: Program,
    name: str,
    policy: Policy,
    inputs: Sequence[object],
    weights: Mapping[str, Any],
    state: Mapping[str, Any],
) -> tuple[Any, dict[str, Any]]:
    """The results of the entry as an NNX module with this state, and the new one."""
    from linnet.jax.nnx import _at, module_of
    from linnet.jax.runtime import SourceFunction

    read = SourceFunction(program, name, policy, {}).parameter_paths
    function = SourceFunction(program, name, policy, {path: weights[path] for path in read})
    module = module_of(function)
    for path in function.state_paths:
        _at(module, path).set_value(state[path])
    results = module(*inputs)
    return results, {**state, **{p: _at(module, p).get_value() for p in function.state_paths}}


# ---------------------------------------------------------------- state

CELL = """module main
block Cell {
    state s: Tensor[2; f32]
    pub fn up(x: f32) -> f32 {
        let before = s[0]
        s = s * 0.5 + fill<f32>([2], x)
        return before
    }
}
"""

# Each reads the old state in a branch whose value meets the result of a call that writes it.
READ_BEFORE = {
    "once": """pub block Root {
    sub c: Cell
    pub entry main(x: f32) -> Tensor[2; f32] {
        return (if x > 0.0 { c.s * 2.0 } else { c.s }) + c.up(x)
    }
}""",
    "over cells": """pub block Root {
    sub cs: [Cell; 2]
    state total: Tensor[2; f32]
    pub entry main(x: f32) -> Tensor[2; f32] {
        static for c in cs {
            total = total * 0.5 + (if x > 0.0 { c.s * 2.0 } else { c.s }) + c.up(x)
        }
        return total
    }
}""",
    "while": """pub block Root {
    sub c: Cell
    pub entry main(x: f32) -> Tensor[2; f32] {
        var t = fill<f32>([2], x)
        var n = 0
        while n < 3 {
            t = t * 0.5 + (if x > 0.0 { c.s * 2.0 } else { c.s }) + c.up(x)
            n = n + 1
        }
        return t
    }
}""",
}


@pytest.mark.parametrize("name", READ_BEFORE)
def test_a_branch_reads_the_state_before_a_call_writes_it(name: str) -> None:
    calls = [("main", [np.float32(x)]) for x in (0.5, -0.5, 1.5)]
    agree(lowered(CELL + READ_BEFORE[name]), calls, {}, 2e-5)


ARRAYS = """module main
block Cell {
    param w: Tensor[2; f32]
    state n: Tensor[2; f32]
    state m: Tensor[2; f32]
    pub fn go(x: Tensor[2; f32]) -> Tensor[2; f32] {
        n = n + x * w
        return n + m
    }
    pub fn swap() -> f32 {
        let old = n
        n = m
        m = old
        return old[0]
    }
}
block Row<K: Dim> {
    sub cells: [Cell; K]
    sub one: Cell
    pub fn all(x: Tensor[2; f32]) -> Tensor[2; f32] {
        var y = x
        static for c in cells { y = c.go(y) * 0.5 }
        return y + one.go(x)
    }
}
pub block Root<K: Dim, R: Dim> {
    sub rows: [Row<K>; R]
    state top: Tensor[2; f32]
    pub entry main(x: Tensor[2; f32]) -> (Tensor[2; f32], Tensor[2; f32]) {
        var y = x
        static for row in rows {
            y = y + row.all(x)
            static for c in row.cells {
                top = top + c.n
                y = y + fill([2], c.swap())
            }
        }
        return (y, top)
    }
    pub entry again(x: Tensor[2; f32], n: i32) -> Tensor[2; f32] {
        var y = x
        var i: i32 = 0
        while i < n {
            static for row in rows { y = y + row.all(x) * 0.1 }
            i = i + 1
        }
        for j in 0..2 {
            static for row in rows {
                y = if cast<f32>(j) > x[0] { row.all(y) } else { y * 2.0 }
            }
        }
        return y
    }
}
"""


@pytest.mark.parametrize(("cells", "rows"), [(2, 2), (0, 2), (1, 1), (2, 0), (3, 1)])
def test_arrays_of_arrays(cells: int, rows: int) -> None:
    draw = np.random.default_rng(1)
    paths = [f"rows.{r}.cells.{k}.w" for r in range(rows) for k in range(cells)]
    paths += [f"rows.{r}.one.w" for r in range(rows)]
    weights = {path: draw.random(2).astype(np.float32) for path in paths}
    x = np.array([0.3, 0.2], np.float32)
    calls = [("main", [x]), ("main", [x / 2]), ("again", [x, np.int32(3)]), ("main", [x])]
    agree(lowered(ARRAYS, generics={"K": cells, "R": rows}), calls, weights, 2e-5)


# ---------------------------------------------------------------- names

NAMES = """module main
block lin {
    param class_: Tensor[2; f32]
    param lambda: Tensor[2; f32]
    param None: Tensor[2; f32]
    pub fn def(x: Tensor[2; f32]) -> Tensor[2; f32] { return x * lambda + class_ * None }
}
pub block Root {
    sub jnp: lin
    sub class: [lin; 2]
    state import: Tensor[2; f32]
    pub fn jax(x: Tensor[2; f32]) -> Tensor[2; f32] {
        import = import + x
        return import
    }
    pub entry lambda(self_: Tensor[2; f32]) -> Tensor[2; f32] {
        var x = jnp.def(self_)
        static for del in class { x = del.def(x) + jax(x) }
        return x + class[1].def(x)
    }
    pub entry main(np: f32, carried: f32, lax: f32, kernels: Tensor[2; f32]) -> Tensor[2; f32] {
        let partial = np * carried
        var print = kernels
        for range in 0..3 { print = print + partial + lax }
        return print
    }
}
"""


def test_names_that_python_and_the_module_have() -> None:
    paths = [
        f"{b}.{p}" for b in ("jnp", "class.0", "class.1") for p in ("class_", "lambda", "None")
    ]
    weights = {path: np.array([0.5, i], np.float32) for i, path in enumerate(paths)}
    x, one = np.array([1, 2], np.float32), np.float32(1.5)
    calls = [("lambda", [x]), ("lambda", [x]), ("main", [one, one, one, x])]
    agree(lowered(NAMES), calls, weights, 2e-5)


# ---------------------------------------------------------------- integers of 64 bits

WIDE = """module main
pub entry main(y: Tensor[4; i32], n: i32, c: bool) -> (i64, i64, i64, i64, Tensor[4; i64]) {
    let w = cast<i64>(y)
    let s = if c { cast<i64>(n) } else { 5 }
    let t = select(c, cast<i64>(n), 5)
    let m = min(cast<i64>(n), 7)
    let most = max[i] w[i]
    return (s * 1000000007, t * 1000000007, m * 1000000007, most * 3, select(w > 0, w, 3000000000))
}
pub entry compared(y: Tensor[4; i32]) -> (Tensor[4; bool], Tensor[4; bool], Tensor[4; bool]) {
    let w = cast<i64>(y)
    return (w > 3000000000, 3000000000 != w, -3000000000 < w)
}
pub entry empty<N: Dim>(y: Tensor[N; i32]) -> (i64, i64, i64) {
    let w = cast<i64>(y)
    return (max[i] w[i], min[i] w[i], sum[i] w[i])
}
"""


def test_what_does_not_fit_32_bits() -> None:
    """Choices, ends and comparisons of what fits with what does not."""
    ends = np.array([2**31 - 1, -(2**31), 7, -(2**31)], np.int32)
    calls: Any = [("main", [ends, np.int32(2**31 - 1), np.bool_(c)]) for c in (False, True)]
    calls += [("compared", [ends]), ("empty", [ends]), ("empty", [ends[:0]])]
    agree(lowered(WIDE), calls, {}, 0.0)


AHEAD = """module main
pub entry main<N: Dim>(
    y: Tensor[N; f32]
) -> (Tensor[N; i32], Tensor[N; i32], Tensor[N; u8], Tensor[N; i64], Tensor[N; f32]) {
    let big = exp(cast<f64>(iota<i64>(N)) * 100.0)
    let nan = cast<f64>(iota<i64>(N)) / 0.0
    return (cast<i32>(big), cast<i32>(nan), cast<u8>(-big), cast<i64>(big), cast<f32>(big) + y)
}
pub entry read<N: Dim>(y: Tensor[N; f32], i: i32) -> (f32, f32) {
    let far = cast<i64>(exp(cast<f64>(iota<i64>(N)) * 100.0))
    let fine = cast<f64>(iota<i64>(N)) * 1.0e-3 + 1.0e6
    return (y[far[i]], cast<f32>((fine[i] - 1.0e6) * 1.0e3))
}
"""


def test_what_numpy_works_out_ahead() -> None:
    """In 64 bits throughout, and with the language's edges: what is outside is at the ends."""
    x = np.arange(4, dtype=np.float32)
    calls: Any = [("main", [x]), *(("read", [x, np.int32(i)]) for i in (0, 1, 3))]
    agree(lowered(AHEAD), calls, {}, 1e-6)


# ---------------------------------------------------------------- as text


def test_families_as_a_person_would_write_them(tmp_path: Path) -> None:
    """Formatted, nothing unused, undefined or too long."""
    from linnet.jax.emit import emit

    made: dict[str, str] = {}
    for policy in ("exact", "fast"):
        for name in sorted(path.name for path in FAMILIES.iterdir()):
            made[f"{name}_{policy}"] = emit(family(name, policy), policy)
        for name, text in {**PROGRAMS, **ODD}.items():
            program = lowered(text if name in ODD else f"module {name}_program\n{text}")
            made[f"small_{name}_{policy}"] = emit(optimize(program, policy), policy)
        for seed in range(60):
            program = lowered(Drawn(seed, flat=seed % 2 == 0).text())
            made[f"drawn_{seed}_{policy}"] = emit(optimize(program, policy), policy)
    for name, text in made.items():
        (tmp_path / f"{name}.py").write_text(text)
    # What a drawn program computes in vain has a name too.
    drawn = f"{tmp_path}/drawn_*:F841"
    chosen = ["check", "--select", "E,F,I,W", "--per-file-ignores", drawn]
    for options in (["format", "--check"], chosen):
        always = ["--isolated", "--no-cache", "--line-length", "100"]
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *options, *always, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_long_lists_of_names_are_broken() -> None:
    from linnet.emit import fit

    names = [f"a_rather_long_name_{i}" for i in range(5)]
    listed = ", ".join(names)
    inside = [f"        {name}," for name in names]
    assert fit(f"{listed} = carried", 1) == ["    (", *inside, "    ) = carried"]
    calls = ["    f(", *inside, "    ),", "    0,"]
    assert fit(f"return f({listed}), 0", 0) == ["return (", *calls, ")"]


TURNS = """module main
pub block Root {
    param w: Tensor[4; f32]
    pub entry main<N: Dim>(x: Tensor[N; f32], far: i64) -> f32 where N <= 4 {
        var t: f32 = 0.0
        for i in 0..N { t = t + x[i] * x[N - 1 - i] * w[min(i, far)] }
        let y = for i in 0..N { yield cast<f32>(cast<f64>(w[i]) * 0.5) }
        return t + sum[i] y[i]
    }
}
"""


ODD = {"names": NAMES, "wide": WIDE, "ahead": AHEAD, "turns": TURNS}


def test_gradients_through_counted_positions(tmp_path: Path) -> None:
    """JAX's gradients are made outside of what asks for 64 bits."""
    import jax

    from linnet.jax import load_source

    file = tmp_path / "turns.linnet"
    file.write_text(TURNS)
    x = np.array([0.5, 2.0, -1.0, 4.0], np.float32)
    f = load_source(file, weights={"w": x + 1})
    for way in (jax.grad, lambda g: jax.jit(jax.grad(g)), lambda g: jax.grad(jax.checkpoint(g))):
        found = way(lambda w: f.apply({"w": w}, x, 2))(f.parameters["w"])
        wanted = x * x[::-1] + np.array([0.0, 0.0, x[3] * x[0], -x[3] * x[0]]) + 0.5
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6)
