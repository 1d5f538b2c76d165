"""Flax NNX: the source's blocks as modules, whose weights and states NNX handles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import linnet.torch
from backends.common import assert_close, flat, lowered
from backends.test_stablehlo import family, given_for, sizes_of
from linnet.diagnostics import PlanError
from linnet.policy import POLICIES, tolerance
from linnet.reference import evaluate
from linnet.stablehlo.emit import paths_of, written_by
from models import tiny

pytestmark = pytest.mark.slow  # importing JAX alone takes a second

SIZES = {**tiny.SIZES, "Batch": 2, "MaxSeq": 32}
GIVEN: dict[str, Any] = {"generics": SIZES, "weights": tiny.weights(), "bindings": tiny.NAMES}
TOKENS = np.arange(10, dtype=np.int32).reshape(2, 5)


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    model = linnet.torch.load(tiny.FAMILY, **GIVEN)
    found: np.ndarray = model.run_entry("forward", [TOKENS]).detach().numpy()
    return found


def test_blocks_are_modules(logits: np.ndarray) -> None:
    from flax import nnx

    from linnet.jax import load_nnx

    model = load_nnx(tiny.FAMILY, entry="forward", **GIVEN)
    assert_close(logits, np.asarray(model(TOKENS)), 2e-5, "a call")
    assert type(model).__name__ == "Model"
    names = [type(model.layers[1]).__name__, type(model.layers[0].attention.q_proj).__name__]
    assert names == ["DecoderLayer", "Linear"]
    assert model.layers[0].mlp.gate.weight.shape == (80, 48)
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    flat = {".".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(params)}
    assert len(flat) == 2 * 9 + 3 and "layers.1.attention.k_proj.weight" in flat
    again = nnx.merge(graph, params, rest)
    assert_close(logits, np.asarray(nnx.jit(lambda m, x: m(x))(again, TOKENS)), 2e-5, "nnx.jit")
    doubled = nnx.merge(graph, nnx.map_state(lambda path, x: 2 * x, params), rest)
    assert np.abs(np.asarray(doubled(TOKENS)) - logits).max() > 1e-2


def test_states_are_updated(logits: np.ndarray) -> None:
    from flax import nnx

    from linnet.jax import load_nnx

    model = load_nnx(tiny.FAMILY, entry="decode", **GIVEN)
    step = nnx.jit(lambda m, token, at: m(token, at))
    for at in range(5):
        run = step if at % 2 else model
        found = run(model, TOKENS[:, at : at + 1], at) if at % 2 else model(TOKENS[:, [at]], at)
        assert_close(logits[:, at], np.asarray(found), 2e-5, f"position {at}")
    assert np.asarray(model.layers[0].attention.cache.keys[...]).any()
    model.reset_state()
    assert not np.asarray(model.layers[0].attention.cache.keys[...]).any()


def test_every_entry_of_llama() -> None:
    """As modules of NNX, states in and out, against the reference."""
    from linnet.jax.nnx import module_of
    from linnet.jax.runtime import SourceFunction

    for policy in POLICIES:
        program = family("llama", policy)
        for name, entry in program.entries.items():
            sizes = sizes_of(program, name)
            arrays = given_for(program, name, sizes, 1)
            kinds = list(zip(paths_of(entry), arrays, strict=True))
            values = [x for (kind, _, _), x in kinds if kind == "value"]
            weights = {path: x for (kind, path, _), x in kinds if kind in ("param", "buffer")}
            state = {path: x.copy() for (kind, path, _), x in kinds if kind == "state"}
            model = module_of(SourceFunction(program, name, policy, weights))
            for path, array in state.items():
                variable_at(model, path).set_value(array)
            dims = {dim: sizes[dim] for dim in entry.dims}
            found = model(*values, generics=dims)
            wanted = evaluate(program, name, values, weights, state, dims)
            for a, b in zip(flat(wanted), flat(found), strict=True):
                assert_close(np.asarray(a), np.asarray(b), tolerance(policy, "f32"), name)
            for path in written_by(entry):
                new = np.asarray(variable_at(model, path).get_value())
                assert_close(state[path], new, tolerance(policy, "f32"), f"{name} {path}")


def variable_at(model: Any, path: str) -> Any:
    for part in path.split("."):
        model = model[int(part)] if part.isdecimal() else getattr(model, part)
    return model


def test_gradients_and_checkpoints(tmp_path: Path, logits: np.ndarray) -> None:
    import jax
    import optax
    import orbax.checkpoint as ocp
    from flax import nnx

    from linnet.jax import load_nnx, load_source, to_nnx

    f = load_source(tiny.FAMILY, entry="forward", **GIVEN)
    model = load_nnx(tiny.FAMILY, entry="forward", **GIVEN)
    wanted = jax.grad(lambda p: (f.apply(p, TOKENS) ** 2).mean())(f.parameters)
    found = nnx.grad(lambda m: (m(TOKENS) ** 2).mean())(model)
    for path, leaf in nnx.to_flat_state(found):
        name = ".".join(map(str, path))
        assert_close(np.asarray(wanted[name]), np.asarray(leaf[...]), 1e-5, name)
    state = nnx.state(model)
    with ocp.StandardCheckpointer() as keeper:
        keeper.save(tmp_path / "kept", nnx.to_pure_dict(state))
    optimizer = nnx.Optimizer(model, optax.sgd(0.5), wrt=nnx.Param)
    optimizer.update(model, found)
    assert np.abs(np.asarray(model(TOKENS)) - logits).max() > 1e-4
    with ocp.StandardCheckpointer() as keeper:
        pure = keeper.restore(tmp_path / "kept", nnx.to_pure_dict(state))
    nnx.replace_by_pure_dict(state, pure)
    nnx.update(model, state)
    assert_close(logits, np.asarray(model(TOKENS)), 2e-5, "restored")
    twin = to_nnx(f)
    assert_close(logits, np.asarray(twin(TOKENS)), 2e-5, "to_nnx")
    assert "def decoder_layer_forward(self" in twin.generated_source()


def test_mistakes_are_named() -> None:
    from linnet.jax import load_nnx, load_source, to_nnx

    with pytest.raises(PlanError, match="an NNX module needs weights; there are none for embed"):
        load_nnx(tiny.FAMILY, entry="forward", generics=SIZES)
    with pytest.raises(PlanError, match=r"to_nnx takes what .* gives, not a dict"):
        to_nnx({})  # type: ignore[arg-type]
    model = load_nnx(tiny.FAMILY, entry="forward", **GIVEN)
    with pytest.raises(PlanError, match="forward: tokens has 1 axis"):
        model(TOKENS[0])
    model.norm.weight.set_value(np.zeros(3, np.float32))
    with pytest.raises(PlanError, match=r"norm.weight is Tensor\[3; f32\], expected Tensor\[48"):
        model(TOKENS)
    assert load_source(tiny.FAMILY, entry="forward", **GIVEN).parameters.keys()


COUNTED = """module counted

pub block Counted {
    param w: Tensor[2; f32]
    state count: Tensor[2; i64]

    pub entry step(x: Tensor[2; f32]) -> Tensor[2; f32] {
        count = count + 4294967296
        return x * w
    }
}
"""


def test_states_of_64_bits_and_what_is_no_variable(tmp_path: Path) -> None:
    from flax import nnx

    from linnet.jax import load_nnx

    file = tmp_path / "counted.linnet"
    file.write_text(COUNTED)
    x = np.ones(2, np.float32)
    model = load_nnx(file, weights={"w": x})
    for run in (lambda m: m(x), nnx.jit(lambda m: m(x))):
        run(model)
    assert np.asarray(model.count[...]).tolist() == [2**33] * 2
    model.reset_state()
    assert np.asarray(model.count[...]).tolist() == [0, 0]
    assert np.asarray(model.count[...]).dtype == np.int64
    model.w = np.ones(2, np.float32)
    with pytest.raises(PlanError, match=r"w is a ndarray, expected an nnx.Variable: set a new"):
        model(x)
    del model.w
    with pytest.raises(PlanError, match=r"w is gone, expected an nnx.Variable"):
        model(x)


def test_members_called_like_what_modules_have() -> None:
    """`train`, `_entry`, `__class__`: another name in the module, the path as it is."""
    from flax import nnx

    from linnet.jax.nnx import LinnetNNX, module_of
    from linnet.jax.runtime import SourceFunction

    names = sorted({*dir(LinnetNNX()), "_entry", "_entry_", "train_", "__len__", "__private"})
    params = "\n".join(f"    param {name}: Tensor[2; f32]" for name in names)
    inner = "\n".join(f"    sub {name}: Cell" for name in names)
    total = " + ".join(f"{name} * {i}.0" for i, name in enumerate(names))
    calls = " + ".join(f"{name}.up(x)" for name in names)
    cell = """block Cell {
    state s: Tensor[2; f32]
    pub fn up(x: Tensor[2; f32]) -> Tensor[2; f32] {
        s = s + x
        return s
    }
}"""
    text = f"""module main
{cell}
block Held {{
{params}
    pub fn total(x: Tensor[2; f32]) -> Tensor[2; f32] {{ return x * ({total}) }}
}}
pub block Root {{
    sub train: Held
{inner.replace("    sub train: Cell", "    sub _object__state_2: Cell")}
    pub entry main(x: Tensor[2; f32]) -> Tensor[2; f32] {{
        return train.total(x) + {calls.replace("train.up(x)", "_object__state_2.up(x)")}
    }}
}}
"""
    program = lowered(text)
    weights = {f"train.{n}": np.array([i, 1], np.float32) for i, n in enumerate(names)}
    x = np.array([1, 2], np.float32)
    model = module_of(SourceFunction(program, "main", "exact", weights))
    state: dict[str, Any] = {}
    for _ in range(2):
        wanted = evaluate(program, "main", [x], weights, state)
        assert_close(np.asarray(wanted), np.asarray(model(x)), 1e-6, "a call")
    assert model.train_.train_.shape == (2,) and callable(model.train)
    model.eval()
    again = nnx.merge(*nnx.split(model))
    again.reset_state()
    first = evaluate(program, "main", [x], weights, {})
    assert_close(np.asarray(first), np.asarray(nnx.jit(lambda m: m(x))(again)), 1e-6, "merged")
