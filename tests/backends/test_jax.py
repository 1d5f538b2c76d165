"""JAX: entries as functions and whole models, against PyTorch's and the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import linnet.torch
from linnet.diagnostics import PlanError
from linnet.nest import load as nest_load

from ..models import tiny

pytestmark = pytest.mark.slow  # importing JAX alone takes a second

SIZES = {**tiny.SIZES, "Batch": 2, "MaxSeq": 32}
GIVEN: dict[str, Any] = {"generics": SIZES, "weights": tiny.weights(), "bindings": tiny.NAMES}
TOKENS = np.arange(10, dtype=np.int32).reshape(2, 5)


@pytest.fixture(scope="module")
def torch_model() -> Any:
    return linnet.torch.load(tiny.FAMILY, **GIVEN)


def test_an_entry_is_a_function(torch_model: Any) -> None:
    from linnet.jax import load

    f = load(tiny.FAMILY, entry="forward", **GIVEN)
    found = f(TOKENS)
    wanted = torch_model.run_entry("forward", [TOKENS]).detach().numpy()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)
    assert f(tokens=TOKENS.tolist()).shape == found.shape
    # Inside of what JAX traces, with parameters of its own, and for other sizes.
    doubled = {path: 2 * x for path, x in f.weights.items()}
    inside = jax.jit(lambda given, tokens: f.apply(given, tokens).sum())
    assert np.allclose(inside(f.weights, TOKENS), np.sum(found), rtol=1e-5)
    assert not np.allclose(inside(doubled, TOKENS), np.sum(found), rtol=1e-2)
    assert f(TOKENS[:1, :3]).shape == (1, 3, 96)
    assert set(f.parameter_paths) == set(f.weights) and f.state_paths == ()
    assert f.stablehlo(TOKENS).startswith("module @")


def test_state_goes_in_and_comes_out(torch_model: Any) -> None:
    from linnet.jax import load

    decode = load(tiny.FAMILY, entry="decode", **GIVEN)
    wanted = torch_model.run_entry("forward", [TOKENS]).detach().numpy()
    state = None
    for at in range(5):
        found, state = decode(TOKENS[:, at : at + 1], at, state=state)
        np.testing.assert_allclose(found, wanted[:, at], rtol=0, atol=2e-5)
    assert set(state) == set(decode.state_paths)


def test_a_model_keeps_its_state(torch_model: Any) -> None:
    from linnet.jax import load_model

    model = load_model(tiny.FAMILY, **GIVEN)
    wanted = torch_model.run_entry("forward", [TOKENS]).detach().numpy()
    found = model.run_entry("prefill", [TOKENS[:, :3], 0])
    np.testing.assert_allclose(found, wanted[:, 2], rtol=0, atol=2e-5)
    found = model.run_entry("decode", {"token": TOKENS[:, 3:4], "pos": 3})
    np.testing.assert_allclose(found, wanted[:, 3], rtol=0, atol=2e-5)
    torch_model.reset_state()
    same = [
        np.asarray(each.run_entry("generate", [TOKENS[:, :1], 0], {"Steps": 20}))
        for each in (model, torch_model)
        if each.reset_state() is None
    ]
    np.testing.assert_array_equal(*same)
    model.reset_state()
    assert not any(np.any(x) for x in model.state.values())
    model.copy_weights({path: 0 * x for path, x in model.weights.items()})
    assert not np.any(model(TOKENS))
    with pytest.raises(PlanError, match=r"norm.weight is Tensor\[3; f64\], expected Tensor\[48"):
        model.copy_weights({**model.weights, "norm.weight": np.zeros(3)})


STATES = """module states

pub block Model {
    param p: Tensor[2; f64]
    state a: Tensor[2; f64]
    pub entry peek(x: Tensor[2; f64]) -> Tensor[2; f64] { return a + x * p }
    pub entry put(x: Tensor[2; f64]) -> Tensor[2; f64] {
        a = x
        return x
    }
}
"""


def test_what_a_model_holds_stays_whole(tmp_path: Path) -> None:
    from linnet.jax import load_model

    file = tmp_path / "states.linnet"
    file.write_text(STATES)
    given = np.array([1.0, 2.0])
    model = load_model(file, weights={"p": given})
    for _ in range(2):  # a state that is only read is not given away
        np.testing.assert_array_equal(model.run_entry("peek", [given]), given * given)
    model.copy_weights(load_model(file, weights={"p": 2 * given}))
    np.testing.assert_array_equal(model.run_entry("peek", [given]), 2 * given * given)
    with pytest.raises(PlanError, match="put: a model keeps its state itself"):
        jax.jit(lambda: model.run_entry("put", [given])[0])()
    kept = dict(model.state)
    model.run_entry("put", [given])
    np.testing.assert_array_equal(model.run_entry("peek", [0 * given]), given)
    with pytest.raises(PlanError, match="a is no longer there: a later call took its memory"):
        model.state = kept
    with pytest.raises(PlanError, match="a is missing"):
        model.state = {}
    model.state = {"a": 3 * given}
    np.testing.assert_array_equal(model.run_entry("peek", [0 * given]), 3 * given)


@pytest.mark.parametrize("generated", [False, True])
def test_what_is_given_to_a_model_stays_the_givers(tmp_path: Path, generated: bool) -> None:
    """A call takes the memory of its own states alone."""
    from linnet.jax import load_model

    file = tmp_path / "states.linnet"
    file.write_text(STATES)
    given: dict[str, Any] = {"weights": {"p": np.array([1.0, 2.0])}, "generated": generated}
    one, two = (load_model(file, **given) for _ in range(2))
    first = np.array([3.0, 4.0])
    one.run_entry("put", [first])
    two.state = one.state
    two.run_entry("put", [first + 1])
    np.testing.assert_array_equal(one.run_entry("peek", [0 * first]), first)
    one.run_entry("put", [one.state["a"]])
    np.testing.assert_array_equal(one.state["a"], first)
    with pytest.raises(PlanError, match="put: a model keeps its state itself"):
        jax.vmap(lambda x: one.run_entry("put", [x]))(np.ones((3, 2), np.float32))
    with pytest.raises(PlanError, match="a model or arrays by path are expected, not a NoneType"):
        one.copy_weights(None)  # type: ignore[arg-type]


SEVERAL = """module several

pub block Several {
    param w: Tensor[2; f32]
    state a: Tensor[2; f32]
    state b: Tensor[2; i64]

    pub entry step(x: Tensor[2; f32]) -> Tensor[2; f32] {
        a = a + x * w
        b = b + 1
        return a
    }

    pub entry look(x: Tensor[2; f32]) -> Tensor[2; f32] { return a + x }

    pub entry plain(x: Tensor[2; f32]) -> Tensor[2; f32] { return x * w }
}
"""


@pytest.mark.parametrize("way", ["load", "load_source"])
def test_states_of_other_entries_are_handed_on(tmp_path: Path, way: str) -> None:
    import linnet.jax

    file = tmp_path / "several.linnet"
    file.write_text(SEVERAL)
    x = np.array([1.0, 2.0], np.float32)

    def entry(name: str) -> Any:
        return getattr(linnet.jax, way)(file, weights={"w": x}, entry=name)

    step, look, plain = map(entry, ("step", "look", "plain"))
    _, state = step(x)
    found, after = look(x, state=state)
    np.testing.assert_array_equal(found, x * x + x)
    assert after.keys() == state.keys() == {"a", "b"}
    _, state = step(x, state=after)
    assert np.asarray(state["b"]).tolist() == [2, 2]
    with pytest.raises(PlanError, match="there is no c"):
        look(x, state={**state, "c": x})
    with pytest.raises(PlanError, match="plain has no state, and is given 1"):
        plain(x, state=[1])
    with pytest.raises(PlanError, match="w is a NoneType, expected"):
        plain.apply({"w": None}, x)
    with pytest.raises(
        PlanError, match="weights are a path, several, or arrays by name, not a int"
    ):
        getattr(linnet.jax, way)(file, weights=3)


def test_a_compiled_module_says_what_jax_cannot_do_with_it(tmp_path: Path) -> None:
    from linnet.jax import load

    file = tmp_path / "several.linnet"
    file.write_text(SEVERAL)
    x = np.array([1.0, 2.0], np.float32)
    f = load(file, weights={"w": x}, entry="plain")
    with pytest.raises(PlanError, match=r"no derivative: linnet.jax.load_source gives"):
        jax.grad(lambda given: f.apply(given, x).sum())(f.weights)
    with pytest.raises(PlanError, match=r"jax.vmap cannot see into: linnet.jax.load_source"):
        jax.vmap(f)(np.stack([x, x]))
    # Where no derivative is asked for there is none to miss.
    held = jax.grad(lambda y: (y * jax.lax.stop_gradient(f(y))).sum())(jax.numpy.asarray(x))
    np.testing.assert_array_equal(held, x * x)


WIDE = """module wide

pub entry twice<N: Dim>(x: Tensor[N; i64], y: Tensor[N; f64]) -> (Tensor[N; i64], Tensor[N; f64]) {
    return (x * 2, y * 0.5)
}
"""


def test_numbers_of_64_bits_stay_so(tmp_path: Path) -> None:
    from linnet.jax import load

    file = tmp_path / "wide.linnet"
    file.write_text(WIDE)
    f = load(file)
    integers, floats = f(np.array([2**40, -1]), np.array([1e-300, 3.0]))
    assert integers.dtype == np.int64 and list(np.asarray(integers)) == [2**41, -2]
    assert floats.dtype == np.float64 and list(np.asarray(floats)) == [5e-301, 1.5]
    assert not jax.config.jax_enable_x64
    # Integers of 32 bits are the widest that JAX makes unasked, and fit.
    integers, _ = f(jax.numpy.full(3, 2**31 - 1, "int32"), np.zeros(3))
    assert integers.dtype == np.int64 and list(np.asarray(integers)) == [2**32 - 2] * 3
    with pytest.raises(PlanError, match=r"y is f32, expected .* pass a NumPy array"):
        f(np.zeros(3, "i8"), jax.numpy.zeros(3, "float32"))


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (lambda f: f(TOKENS.astype("i8")), r"forward: tokens is i64, expected Tensor\[B, S; i32\]"),
        (lambda f: f(TOKENS[0]), "tokens has 1 axis"),
        (lambda f: f(), "forward takes 1 input"),
        (lambda f: f("text"), "tokens is a str"),
        (lambda f: f([[1, 2], [3]]), "tokens is not a rectangle"),
        (lambda f: f(TOKENS, state={"a": 1}), "forward has no state"),
        (lambda f: f(TOKENS, tokens=TOKENS), "forward: tokens is given twice"),
        (lambda f: f.apply(None, TOKENS), "arrays by path are expected, not a NoneType"),
        (
            lambda f: f.apply({**f.weights, "norm.wait": 1}, TOKENS),
            "there is no norm.wait; did you mean norm.weight",
        ),
        (
            lambda f: f.apply({}, TOKENS),
            r"embedding.weight is missing, expected Tensor\[96, 48; f32",
        ),
        (
            lambda f: f.apply({**f.weights, "norm.weight": np.zeros(3, "f")}, TOKENS),
            r"norm.weight is Tensor\[3; f32\], expected Tensor\[48; f32\]",
        ),
    ],
)
def test_mistakes_are_named_before_xla_sees_them(run: Callable[[Any], Any], problem: str) -> None:
    from linnet.jax import load

    f = load(tiny.FAMILY, entry="forward", **GIVEN)
    with pytest.raises(PlanError, match=problem):
        run(f)


def test_what_cannot_be_loaded() -> None:
    from linnet.jax import load, load_model

    with pytest.raises(PlanError, match="has no entry nope"):
        load(tiny.FAMILY, entry="nope", **GIVEN)
    with pytest.raises(PlanError, match="Model needs values for"):
        load(tiny.FAMILY, generics={"H": 48}, entry="forward")
    with pytest.raises(PlanError, match="there is no option colour"):
        load(tiny.FAMILY, colour="red", **GIVEN)
    with pytest.raises(PlanError, match="load_model needs weights; there are none for embedding"):
        load_model(tiny.FAMILY, generics=SIZES)
    decode = load(tiny.FAMILY, entry="decode", **GIVEN)
    with pytest.raises(PlanError, match=r"layers.0.attention.cache.keys is missing, expected"):
        decode(TOKENS[:, :1], 0, state={})


def test_the_demo_says_in_jax_what_it_says_in_torch() -> None:
    """72 greedy tokens in f32."""
    tokens = np.array([[504, 3575, 282, 4649, 314]], np.int32)
    generics = {"T": "f32", "Batch": 1, "MaxSeq": 128}
    said: list[list[int]] = []
    for backend in ("jax_model", "torch"):
        model = nest_load(
            "smollm2-135m-instruct",
            backend=backend,
            generics=generics,
            cast_dtype=True,
            entries=["prefill", "decode"],
        )
        logits = np.asarray(model.run_entry("prefill", [tokens, 0]))
        answer = [int(logits.argmax())]
        for at in range(5, 76):
            token = np.array([[answer[-1]]], np.int32)
            logits = np.asarray(model.run_entry("decode", [token, at]))
            answer.append(int(logits.argmax()))
        said.append(answer)
    assert said[0] == said[1] and len(said[0]) == 72
