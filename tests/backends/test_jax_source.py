"""Generated `jax.numpy`: readable, pure, and what the nodes mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import linnet.torch
from backends.common import assert_close, flat, lowered
from backends.test_drawn import closely, either_infinity
from backends.test_emitted import PROGRAMS
from backends.test_kernels import FLOATS, calling, inputs_of, the_op
from backends.test_stablehlo import FAMILIES, compare, family
from core.graphs import arrays as drawn_arrays
from core.graphs import functions
from core.graphs import program as drawn_program
from linnet.backends import Sample
from linnet.core.ir import Program
from linnet.core.passes import optimize
from linnet.diagnostics import PlanError
from linnet.inputs import demands
from linnet.policy import POLICIES, Policy, tolerance
from linnet.reference import evaluate, evaluate_function
from linnet.torch import kernels as K
from linnet.types import DTYPES
from models import tiny

SIZES = {**tiny.SIZES, "Batch": 2, "MaxSeq": 32}
GIVEN: dict[str, Any] = {"generics": SIZES, "weights": tiny.weights(), "bindings": tiny.NAMES}
TOKENS = np.arange(10, dtype=np.int32).reshape(2, 5)

pytestmark = pytest.mark.slow  # importing JAX alone takes a second


def run(
    program: Program, name: str, sizes: dict[str, int], policy: Policy, given: Sequence[Any]
) -> list[Any]:
    """What the generated source gives."""
    from linnet.jax.entry import Entry, Source

    compiled = Entry(program, name, policy, Source(program, policy)).compiled(sizes)
    return [np.asarray(x) for x in compiled(*given)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_goldens(name: str, golden: Callable[..., None]) -> None:
    from linnet.jax.emit import emit

    program = optimize(lowered("module main\n" + PROGRAMS[name]), "equivalent")
    golden(emit(program, "equivalent"))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_small_programs(name: str, policy: Policy) -> None:
    program = optimize(lowered("module main\n" + PROGRAMS[name]), policy)
    for entry in program.entries:
        compare(program, entry, policy, 1e-5 if name != "softmax" else 8e-3, run)


@pytest.mark.parametrize("op", K.KERNELS)
def test_an_op_is_what_its_body_says(op: str) -> None:
    for seed, sample in enumerate(K.KERNELS[op][0].samples):
        for dtype in FLOATS[:2]:
            function = the_op(op, sample, dtype)
            program = calling(function, sample)
            for policy in POLICIES:
                arrays = inputs_of(function, sample, seed, "plain")
                wanted = evaluate(program, "run", arrays)
                found = run(program, "run", {}, policy, arrays)
                for a, b in zip(flat(wanted), found, strict=True):
                    near = max(tolerance("equivalent", dtype), tolerance(policy, "f32"))
                    assert_close(np.asarray(a), b, near, f"{op} {dtype} {sample} {policy}")


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *((path.name, "equivalent") for path in sorted(FAMILIES.iterdir())),
        ("llama", "exact"),
        ("llama", "fast"),
        ("gpt_oss", "fast"),
    ],
)
def test_every_entry_of_every_family(name: str, policy: Policy) -> None:
    program = family(name, policy)
    for entry in program.entries:
        compare(program, entry, policy, tolerance(policy, "f32"), run)


@settings(max_examples=150, deadline=None)
@given(functions(tuple(DTYPES.values())), st.data())
def test_drawn_functions(f: Any, data: st.DataObject) -> None:
    """Any operations on any dtypes, integers to the bit."""
    sizes = {"B": data.draw(st.integers(0, 2))}
    assume(all(demand.goal.holds(sizes) for demand in demands(f)))
    given = [np.asarray(data.draw(drawn_arrays(p.of, sizes, False))) for p in f.params]
    found = run(drawn_program(f), "f", sizes, "exact", given)
    wanted = evaluate_function(f, given, sizes)
    for a, b in zip(wanted, found, strict=True):
        a, b = either_infinity(f, a), either_infinity(f, b)
        assert_close(a, b, closely(str(b.dtype)), "a result")


# ---------------------------------------------------------------- what JAX sees through


def packed(draw: np.random.Generator) -> dict[str, Any]:
    """Two prompts end to end, and what is to come after each token."""
    return {
        "tokens": draw.integers(0, 96, 9).astype(np.int32),
        "positions": np.array([0, 1, 2, 3, 4, 0, 1, 2, 3], np.int32),
        "segments": np.array([0] * 5 + [1] * 4, np.int32),
        "targets": draw.integers(0, 96, 9).astype(np.int64),
        "weights": draw.random(9).astype(np.float32),
    }


def test_gradients_are_those_of_torch() -> None:
    import jax

    from linnet.jax import load_source

    batch = packed(np.random.default_rng(3))
    model = linnet.torch.load(tiny.FAMILY, trainable=True, **GIVEN)
    loss = model.run_entry("loss_packed", batch)
    loss.backward()
    loss = loss.detach()
    wanted = {name: p.grad.numpy() for name, p in model.named_parameters()}
    f = load_source(tiny.FAMILY, entry="loss_packed", **GIVEN)
    assert f.state_paths == ()

    def of(parameters: Any, batch: Any) -> Any:
        return f.apply(parameters, **batch)

    for way in (jax.value_and_grad(of), jax.jit(jax.value_and_grad(of))):
        value, found = way(f.parameters, batch)
        assert abs(float(value) - float(loss)) < 1e-4 * abs(float(loss))
        assert found.keys() == wanted.keys()
        for path, gradient in wanted.items():
            assert_close(gradient, np.asarray(found[path]), 1e-4, path)
    # Activations made again, and a batch of batches.
    again = jax.grad(jax.checkpoint(of))(f.parameters, batch)
    assert_close(wanted["norm.weight"], np.asarray(again["norm.weight"]), 1e-4, "checkpoint")
    two = [packed(np.random.default_rng(seed)) for seed in (3, 4)]
    stacked = {name: np.stack([each[name] for each in two]) for name in batch}
    each = [float(of(f.parameters, one)) for one in two]
    mapped = jax.vmap(of, (None, 0))(f.parameters, stacked)
    np.testing.assert_allclose(np.asarray(mapped), each, rtol=1e-5)
    rows = jax.vmap(jax.grad(of), (None, 0))(f.parameters, stacked)["norm.weight"]
    assert_close(wanted["norm.weight"], np.asarray(rows)[0], 1e-4, "a gradient for each row")


def test_a_function_of_source_is_one_of_stablehlo() -> None:
    """All that `load` offers; and the source is there to be read."""
    from linnet.jax import load, load_source

    f, g = (way(tiny.FAMILY, entry="decode", **GIVEN) for way in (load, load_source))
    one, state = f(TOKENS[:, :1], 0)
    two, same = g(TOKENS[:, :1], 0)
    assert_close(np.asarray(one), np.asarray(two), 2e-5, "decode")
    for path in state:
        assert_close(np.asarray(state[path]), np.asarray(same[path]), 2e-5, path)
    assert g.parameters.keys() == set(g.parameter_paths)
    assert g.parameters_for(TOKENS[:, :1], 0).keys() == g.parameters.keys()
    text = g.generated_source()
    assert "def decoder_layer_forward(self, x, " in text and "@jax.jit" in text
    assert "for layer, layer_keys, layer_values in zip(self.layers, keys, values" in text


def test_layers_are_traced_once() -> None:
    import jax

    from linnet.jax import load_source

    sizes: list[int] = []
    for layers in (2, 12):
        f = load_source(tiny.FAMILY, entry="forward", generics={**SIZES, "Layers": layers})
        given = {
            path: jax.ShapeDtypeStruct([int(str(a)) for a in type.shape], np.float32)
            for path, type in f._entry.parameters.items()
        }
        text = jax.jit(lambda p, f=f: f.apply(p, TOKENS)).lower(given).as_text()
        sizes.append(text.count("dot_general"))
    assert sizes[0] == sizes[1]


def test_a_model_of_source_keeps_its_state() -> None:
    from linnet.jax import load_model

    one, two = (load_model(tiny.FAMILY, generated=way, **GIVEN) for way in (False, True))
    for model in (one, two):
        model.run_entry("prefill", [TOKENS[:, :3], 0])
    steps = [
        np.asarray(m.run_entry("generate", [TOKENS[:, 3:4], 3], {"Steps": 9})) for m in (one, two)
    ]
    np.testing.assert_array_equal(*steps)
    for path, array in one.state.items():
        assert_close(np.asarray(array), np.asarray(two.state[path]), 2e-5, path)


KEYS = """module keys

use std.random::{bits, split, fold_in, uniform}

type Key = Tensor[2; i64]

pub block Draw {
    param scale: Tensor[9; f32]

    pub entry draw(key: Key) -> (Tensor[7; i64], Tensor[3, 2; i64], Key, Tensor[9; f32]) {
        return (bits<7>(key), split<3>(key), fold_in(key, -5), uniform<9, f32>(key) * scale)
    }
}
"""


@pytest.mark.parametrize("way", ["load", "load_source", "load_nnx", "load_model"])
def test_random_numbers_are_those_of_jax(way: str, tmp_path: Path) -> None:
    """Bit for bit, and JAX's configuration stays as it is."""
    import jax

    import linnet.jax

    file = tmp_path / "keys.linnet"
    file.write_text(KEYS)
    words = np.array([17, 2**32 - 3])
    f = getattr(linnet.jax, way)(file, weights={"scale": np.ones(9, np.float32)})
    drawn, keys, folded, uniform = f(words)
    key = jax.random.wrap_key_data(words.astype(np.uint32), impl="threefry2x32")
    assert np.asarray(drawn).tolist() == np.asarray(jax.random.bits(key, (7,))).tolist()
    data = jax.random.key_data
    assert np.asarray(keys).tolist() == np.asarray(data(jax.random.split(key, 3))).tolist()
    own = jax.random.fold_in(key, np.int32(-5))
    assert np.asarray(folded).tolist() == np.asarray(data(own)).tolist()
    np.testing.assert_array_equal(np.asarray(uniform), np.asarray(jax.random.uniform(key, (9,))))
    assert not jax.config.jax_enable_x64


FREE = """module free

/// Twice.
pub fn twice<N: Dim, T: Float>(x: Tensor[N; T]) -> Tensor[N; T] {
    return x + x
}

pub fn count<N: Dim>(x: i32) -> i32 { return x + N }
"""


def test_a_free_function(tmp_path: Path) -> None:
    import jax

    from linnet.jax import load_function

    file = tmp_path / "free.linnet"
    file.write_text(FREE)
    twice = load_function(file, "twice", dtypes={"T": "f32"})
    assert np.asarray(twice(np.ones(3, np.float32))).tolist() == [2.0] * 3
    assert float(jax.grad(lambda x: twice(x).sum())(jax.numpy.ones(2))[0]) == 2.0
    assert twice.inputs == (("x", "Tensor[N; f32]"),) and "return x + x" in twice.generated_source()
    assert int(load_function(file, "count")(3, N=4)) == 7
    count = load_function(file, "count")
    assert int(count(x=3, N=4)) == int(count(3, generics={"N": 4})) == 7
    with pytest.raises(PlanError, match="twice has no dtype generic Q; there is T"):
        load_function(file, "twice", dtypes={"T": "f32", "Q": "f32"})
    with pytest.raises(PlanError, match="count has no optional parameter x; there is none"):
        load_function(file, "count", absent="x")
    with pytest.raises(PlanError, match="count has no pack S; there is none"):
        load_function(file, "count", ranks={"S": 1})
    with pytest.raises(PlanError, match="free has 2 functions"):
        load_function(file)
    with pytest.raises(PlanError, match="there is no option colour; there are absent, dtypes"):
        load_function(file, "count", colour=1)


def test_kernels_are_of_ops_that_are_tried() -> None:
    from linnet.jax.kernels import KERNELS

    assert KERNELS.keys() <= K.KERNELS.keys()


@pytest.mark.parametrize("fused", [False, True])
def test_products_of_16_bits(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row, some, and many, on a CPU and elsewhere."""
    from linnet.jax import kernels

    monkeypatch.setattr(kernels, "fused", lambda: fused)
    monkeypatch.setattr(kernels, "MANY", 8)
    for rows in (0, 1, 3, 8):
        for absent in ((), ("bias",)):
            sample = Sample({"S_0": rows, "S_1": 1, "In": 24, "Out": 7}, absent)
            function = the_op("std.nn.linear::linear", sample, "bf16")
            program = calling(function, sample)
            arrays = inputs_of(function, sample, rows, "plain")
            (wanted,) = flat(evaluate(program, "run", arrays))
            (found,) = run(program, "run", {}, "equivalent", arrays)
            assert_close(np.asarray(wanted), found, 1e-2, f"{rows} rows")


def test_attention_as_jax_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU runs: `jax.nn.dot_product_attention`."""
    from linnet.jax import kernels

    monkeypatch.setattr(kernels, "fused", lambda: True)
    names = ("attention", "grouped_attention_rows", "span_attention", "packed_attention")
    for op in (f"std.nn.attention::{name}" for name in names):
        for seed, sample in enumerate(K.KERNELS[op][0].samples):
            function = the_op(op, sample, "f32")
            program = calling(function, sample)
            arrays = inputs_of(function, sample, seed, "plain")
            (wanted,) = flat(evaluate(program, "run", arrays))
            (found,) = run(program, "run", {}, "fast", arrays)
            assert_close(np.asarray(wanted), found, 2e-5, f"{op} {sample}")
