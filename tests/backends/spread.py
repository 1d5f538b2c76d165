"""Run in a process with 8 devices: each check by its name, an error where it fails."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

sys.path.insert(0, str(Path(__file__).parents[1]))

from backends.common import assert_close
from linnet.diagnostics import PlanError
from linnet.jax import load_model, load_source
from models import tiny

SIZES: dict[str, Any] = {**tiny.SIZES, "Batch": 4, "MaxSeq": 16}
GIVEN: dict[str, Any] = {"weights": tiny.weights(), "bindings": tiny.NAMES}
TOKENS = np.arange(20, dtype=np.int32).reshape(4, 5)


def mesh(*shape: int, names: tuple[str, ...] = ("model",)) -> Any:
    count = int(np.prod(shape))
    return jax.make_mesh(shape, names, devices=jax.devices()[:count])


def refused(problem: str, run: Any) -> None:
    try:
        run()
    except PlanError as error:
        assert problem in str(error), str(error)
        return
    raise AssertionError(f"not refused: {problem}")


def steps(model: Any) -> list[np.ndarray]:
    """Some entries, one after the other, that write the caches and read them."""
    found = [model.run_entry("forward", [TOKENS])]
    found += [model.run_entry("prefill", [TOKENS[:, :3], 0])]
    found += [model.run_entry("decode", [TOKENS[:, at : at + 1], at]) for at in (3, 4)]
    return [np.asarray(x) for x in found]


def alike(model: Any) -> None:
    whole = load_model(tiny.FAMILY, generics=SIZES, **GIVEN)
    for a, b in zip(steps(whole), steps(model), strict=True):
        assert_close(a, b, 2e-5)
    for path, array in whole.state.items():
        assert_close(np.asarray(array), np.asarray(model.state[path]), 2e-5, path)


def shards() -> None:
    """A model with `Shards` is one program on each device, with real collectives."""
    model = load_model(tiny.FAMILY, generics=SIZES, mesh=mesh(2), **GIVEN)
    gate = model.placement["layers.1.mlp.gate.weight"]
    assert gate.spec == P("model") and model.weights["layers.1.mlp.gate.weight"].shape == (80, 48)
    assert model.placement["layers.0.attention.o_proj.weight"].spec == P(None, "model")
    assert model.placement["layers.0.attention.cache.keys"].spec == P(None, "model")
    assert model.placement["norm.weight"].spec == P()
    alike(model)
    text = model._entries["decode"].source.text("decode")
    assert 'SHARDS = Shards("model")' in text and "SHARDS.all_reduce(" in text
    alike(load_model(tiny.FAMILY, generics=SIZES, mesh=mesh(2, 2, names=("x", "tp")), **GIVEN))


def gradients() -> None:
    """Of a loss that no device holds all logits of."""
    draw = np.random.default_rng(3)
    batch = {
        "tokens": draw.integers(0, 96, 9).astype(np.int32),
        "positions": np.arange(9, dtype=np.int32),
        "segments": np.zeros(9, np.int32),
        "targets": draw.integers(-3, 99, 9),
        "weights": draw.random(9).astype(np.float32),
    }
    one, two = (
        load_source(tiny.FAMILY, entry="loss_packed", generics=SIZES, mesh=over, **GIVEN)
        for over in (None, mesh(2))
    )
    assert "SHARDS.token_log_probs" in two.generated_source()
    for way in (jax.value_and_grad, lambda f: jax.jit(jax.value_and_grad(f))):
        (a, wanted), (b, found) = (
            way(lambda p, f=f: f.apply(p, **batch))(f.parameters) for f in (one, two)
        )
        assert abs(float(a) - float(b)) < 1e-4 * abs(float(a))
        for path, gradient in wanted.items():
            assert_close(np.asarray(gradient), np.asarray(found[path]), 1e-4, path)


RULES: dict[str, Any] = {
    "layers.*.*_proj.weight": (None, "model"),
    "layers.*.mlp.*.weight": P(("data", "model")),
    "*.cache.*": ("data",),
    "tokens": ("data", None),
    "lm_head.weight": None,
}


def rules() -> None:
    """Weights, caches and inputs lie where rules say."""
    over = mesh(4, 2, names=("data", "model"))
    model = load_model(tiny.FAMILY, generics=SIZES, mesh=over, rules=RULES, **GIVEN)
    placed = {path: at.spec for path, at in model.placement.items()}
    assert placed["layers.0.attention.q_proj.weight"] == P(None, "model")
    assert placed["layers.0.mlp.up.weight"] == P(("data", "model"))
    assert placed["norm.weight"] == P() == placed["lm_head.weight"]
    alike(model)
    assert model.placement["layers.0.attention.cache.keys"].spec == P("data")
    model.reset_state()
    assert model.placement["layers.0.attention.cache.keys"].spec == P("data")
    later = load_model(tiny.FAMILY, generics=SIZES, **GIVEN)
    later.shard(over, RULES)
    assert later.placement["layers.0.mlp.up.weight"].spec == P(("data", "model"))
    alike(later)
    f = load_source(tiny.FAMILY, entry="forward", generics=SIZES, mesh=over, rules=RULES, **GIVEN)
    whole = load_source(tiny.FAMILY, entry="forward", generics=SIZES, **GIVEN)
    inside = jax.jit(lambda p, x: f.apply(p, x))(f.parameters, TOKENS)
    assert_close(np.asarray(whole(TOKENS)), np.asarray(inside), 2e-5)


WIDE = """module wide

pub block Wide {
    param w: Tensor[2, 2; f32]
    state count: Tensor[2; i64]

    pub entry step(n: i64, x: Tensor[2; f32]) -> Tensor[2; i64] {
        count = count + n
        return count
    }
}
"""


def wide() -> None:
    """Integers of 64 bits on a mesh, in states that two models do not share."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "wide.linnet"
        file.write_text(WIDE)
        own: Any = {"mesh": mesh(2), "rules": {"count": ("model",)}}
        weights = {"w": np.eye(2, dtype=np.float32)}
        one, two = (load_model(file, weights=weights, **own) for _ in range(2))
        x = np.ones(2, np.float32)
        one.run_entry("step", [2**40, x])
        two.state = one.state
        for model in (one, two):
            found = model.run_entry("step", {"n": np.int64(1), "x": x})
            assert np.asarray(found).tolist() == [2**40 + 1] * 2
            assert model.placement["count"].spec == P("model")


def mistakes() -> None:
    over = mesh(4, 2, names=("data", "model"))

    def with_rules(**own: Any) -> Any:
        given = {name.replace("__", "."): rule for name, rule in own.items()}
        return load_model(tiny.FAMILY, generics=SIZES, mesh=over, rules=given, **GIVEN)

    refused(
        "rules: norm.wait is no parameter, state or input; did you mean norm.weight",
        lambda: with_rules(norm__wait=("data",)),
    )
    for rules_ in ([("norm.weight", ("data",))], {3: ("data",)}):
        refused(
            "rules give mesh axes by patterns of paths",
            lambda given=rules_: load_model(
                tiny.FAMILY, generics=SIZES, mesh=over, rules=given, **GIVEN
            ),
        )
    refused(
        "rules: lm_head.weight: mesh axis data stands twice in ('data', 'data')",
        lambda: with_rules(lm_head__weight=("data", "data")),
    )
    refused(
        "rules: norm.weight: the mesh has no axis modle, only data, model; did you mean model?",
        lambda: with_rules(norm__weight=("modle",)),
    )
    refused(
        "rules: norm.weight has 1 axis [48], its rule 2",
        lambda: with_rules(norm__weight=("data", None)),
    )
    refused(
        "norm.weight has 'model'; a rule gives a mesh axis, or None, for each axis",
        lambda: with_rules(norm__weight="model"),
    )
    three = mesh(5)
    refused(
        "norm.weight: axis 0 has 48, which the 5 devices of mesh axis model do not divide",
        lambda: load_model(
            tiny.FAMILY, generics=SIZES, mesh=three, rules={"norm.weight": ("model",)}, **GIVEN
        ),
    )
    refused(
        "rules place arrays on a mesh: give mesh too",
        lambda: load_model(tiny.FAMILY, generics=SIZES, rules={}, **GIVEN),
    )
    refused(
        "mesh is a jax.sharding.Mesh, not a int",
        lambda: load_model(tiny.FAMILY, generics=SIZES, mesh=8, **GIVEN),
    )
    refused(
        "binds Shards to its 4 devices",
        lambda: load_model(tiny.FAMILY, generics=SIZES, mesh=mesh(4), **GIVEN),
    )
    refused(
        "the mesh has the axes a, b: name the one that Shards are split over shards, model",
        lambda: load_model(tiny.FAMILY, generics=SIZES, mesh=mesh(2, 2, names=("a", "b")), **GIVEN),
    )
    model = with_rules(tokens=("data", None))
    refused(
        "tokens: axis 0 has 3, which the 4 devices of mesh axis data do not divide",
        lambda: model.run_entry("forward", [TOKENS[:3]]),
    )
    split = load_model(tiny.FAMILY, generics=SIZES, mesh=mesh(2), **GIVEN)
    refused("Model is split over a mesh already, by its Shards", lambda: split.shard(over, RULES))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
        print(name, "holds")
