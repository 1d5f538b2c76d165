"""Whole models of JAX as packages: their text, and the same numbers on every backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export, lax

import linnet.torch
from linnet.jax import export_linnet, import_stablehlo, load
from linnet.weights import as_array, read_bindings

from . import models
from .importing import (
    agrees,
    assert_same,
    checked,
    compiled,
    evaluated,
    lowered_agrees,
    shaped,
    text_of,
)

pytestmark = pytest.mark.slow

DRAW = np.random.default_rng(1)
TOKENS = DRAW.integers(0, 50, (2, 7)).astype(np.int32)
IMAGE = DRAW.standard_normal((2, 8, 8, 3)).astype(np.float32)
FOUR = DRAW.standard_normal((2, 8, 8, 4)).astype(np.float32)
Golden = Callable[[str, str], None]


def symbols(text: str) -> tuple[Any, ...]:
    return export.symbolic_shape(text)


def made(model: Any, example: Any) -> Any:
    return models.varied(model.init(jax.random.key(0), example))


@pytest.fixture(scope="module")
def decoder() -> tuple[Any, Any]:
    model = models.Decoder()
    return model.apply, made(model, TOKENS)


def test_an_mlp(tmp_path: Path, golden: Golden) -> None:
    model, x = models.Mlp(), DRAW.standard_normal((3, 8)).astype(np.float32)
    example = (shaped((*symbols("B"), 8), jnp.float32),)
    text = agrees(tmp_path, model.apply, made(model, x), (x,), example, runs=(evaluated, compiled))
    golden(text, "mlp.linnet")


def test_a_linen_decoder(decoder: Any, tmp_path: Path, golden: Golden) -> None:
    example = (shaped(symbols("B, S"), jnp.int32),)
    text = agrees(tmp_path, *decoder, (TOKENS,), example, runs=(evaluated, compiled))
    golden(text, "decoder.linnet")
    assert text.count("layer.forward(") == 1 and "sub layers: [Layer; 3]" in text


def test_other_sizes_and_ids_that_are_no_tokens(decoder: Any, tmp_path: Path) -> None:
    apply, params = decoder
    result = export_linnet(
        apply, params, (shaped(symbols("B, S"), jnp.int32),), output=tmp_path / "decoder"
    )
    for tokens in (TOKENS[:1, :3], np.array([[-1, 50, 3], [0, -51, 49]], np.int32)):
        assert_same(evaluated(result, [tokens]), [apply(params, tokens)])


def test_torch_runs_it_too(decoder: Any, tmp_path: Path) -> None:
    apply, params = decoder
    result = export_linnet(
        apply, params, (shaped(symbols("B, S"), jnp.int32),), output=tmp_path / "decoder"
    )
    module = linnet.torch.load(
        result.source, weights=result.weights, bindings=result.bindings, numerics="equivalent"
    )
    found = as_array(module.run_entry(result.entry, [TOKENS]))
    assert_same([found], [apply(params, TOKENS)])


def test_an_nnx_decoder(tmp_path: Path) -> None:
    graph, state = nnx.split(models.NnxDecoder(nnx.Rngs(0)))
    state = models.varied(state)

    def forward(params: Any, tokens: Any) -> Any:
        return nnx.merge(graph, params)(tokens)

    example = (shaped(symbols("B, S"), jnp.int32),)
    text = agrees(tmp_path, forward, state, (TOKENS,), example, runs=(evaluated, compiled))
    assert "sub layers: [Layer; 3]" in text and text.count("rms_norm(") == 3
    names = read_bindings(tmp_path / "traced/bindings.json")
    assert names["layers.2.attention.query.weight"] == "layers.2.attention.query.kernel"


def test_a_conv_net(tmp_path: Path, golden: Golden) -> None:
    model = models.ConvNet()
    params = made(model, IMAGE)
    example = (shaped((*symbols("B"), 8, 8, 3), jnp.float32),)
    golden(agrees(tmp_path, model.apply, params, (IMAGE,), example), "conv_net.linnet")
    lowered_agrees(tmp_path, model.apply, params, (IMAGE,))


def test_a_decoder_of_stablehlo(decoder: Any, tmp_path: Path) -> None:
    apply, params = decoder
    text = lowered_agrees(tmp_path, apply, params, (TOKENS,))
    assert "sub layers: [Layer; 3]" in text and "attention_of(" in text


def test_an_exported_function(decoder: Any, tmp_path: Path) -> None:
    apply, params = decoder
    exported = export.export(jax.jit(apply, keep_unused=True))(params, TOKENS)
    module = exported.mlir_module_serialized
    result = import_stablehlo(module, params, output=tmp_path / "portable")
    assert_same(evaluated(result, [TOKENS]), [apply(params, TOKENS)])


def test_layers_that_differ_stay_apart(tmp_path: Path) -> None:
    params = {
        f"layer_{i}": {"w": DRAW.standard_normal((4, 4)).astype(np.float32)} for i in range(3)
    }

    def differs(params: Any, x: Any) -> Any:
        for i in range(3):
            x = jnp.tanh(x @ params[f"layer_{i}"]["w"])
            x = x + 1 if i == 1 else x
        return x

    def chained(params: Any, x: Any) -> Any:
        for i in range(3):
            x = jnp.tanh(x @ params[f"layer_{i}"]["w"])
        return x.sum()

    x = DRAW.standard_normal((2, 4)).astype(np.float32)
    text = agrees(tmp_path / "a", differs, params, (x,))
    assert "static for" not in text and "layer_1.w" in text
    text = agrees(tmp_path / "b", chained, params, (x,))
    assert "static for layer in layers" in text and "sub layers: [Layer; 3]" in text


def test_ten_layers_are_in_order(tmp_path: Path) -> None:
    params = {f"h{i}": {"b": DRAW.standard_normal(4).astype(np.float32)} for i in range(12)}

    def chained(params: Any, x: Any) -> Any:
        for i in range(12):
            x = jnp.sin(x * 2 + params[f"h{i}"]["b"])
        return x

    assert "static for" in agrees(tmp_path, chained, params, (np.ones(4, np.float32),))


def test_layers_in_layers(tmp_path: Path) -> None:
    params = [
        {"inner": [{"w": DRAW.standard_normal((4, 4)).astype(np.float32)} for _ in range(2)]}
        for _ in range(3)
    ]

    def stages(params: Any, x: Any) -> Any:
        for stage in params:
            for layer in stage["inner"]:
                x = jnp.tanh(x @ layer["w"])
            x = x / 2
        return x

    x = np.ones((2, 4), np.float32)
    text = agrees(tmp_path, lambda p, x: stages(p["stages"], x), {"stages": params}, (x,))
    assert text.count("static for") == 2


def test_caches_go_in_and_out(tmp_path: Path) -> None:
    params = {"layers": [{"w": DRAW.standard_normal((4, 4)).astype(np.float32)} for _ in range(3)]}

    def step(params: Any, x: Any, caches: Any, at: Any) -> Any:
        new = []
        for layer, cache in zip(params["layers"], caches, strict=True):
            cache = lax.dynamic_update_slice(cache, (x @ layer["w"])[None], (at, 0))
            x = x + jax.nn.softmax(cache @ x) @ cache
            new.append(cache)
        return x, new

    inputs = (np.ones(4, np.float32), [np.zeros((5, 4), np.float32)] * 3, np.int32(2))
    agrees(tmp_path, step, params, inputs)


def test_a_scan_over_stacked_layers(tmp_path: Path) -> None:
    params = {
        "layers": {
            "w": DRAW.standard_normal((3, 4, 4)).astype(np.float32),
            "b": DRAW.standard_normal((3, 4)).astype(np.float32),
        }
    }

    def forward(params: Any, x: Any) -> Any:
        def layer(x: Any, own: Any) -> Any:
            y = jnp.tanh(x @ own["w"] + own["b"])
            return y, y.sum(-1)

        return lax.scan(layer, x, params["layers"])

    x = DRAW.standard_normal((2, 4)).astype(np.float32)
    example = (shaped((*symbols("B"), 4), jnp.float32),)
    text = agrees(tmp_path, forward, params, (x,), example, runs=(evaluated, compiled))
    assert "for i in 0..3" in text


def test_layer_norm_and_no_note_of_what_is_exact(tmp_path: Path) -> None:
    params = {"g": DRAW.standard_normal(6).astype(np.float32), "b": np.ones(6, np.float32)}

    def exact(params: Any, x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        y = centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return y * params["g"] + params["b"]

    def fast(params: Any, x: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        var = jnp.maximum(0.0, (x * x).mean(-1, keepdims=True) - mean * mean)
        return (x - mean) * lax.rsqrt(var + 1e-5) * params["g"]

    x = DRAW.standard_normal((3, 6)).astype(np.float32)
    for name, function, notes in (("exact", exact, 0), ("fast", fast, 2)):
        own = params if name == "exact" else {"g": params["g"], "b": params["b"]}
        result = export_linnet(function, own, (x,), output=tmp_path / name)
        assert "layer_norm(" in checked(result)
        assert len(result.notes) == notes
        assert_same(evaluated(result, [x]), [function(own, x)])


def test_constraints_become_clauses(tmp_path: Path) -> None:
    scope = export.SymbolicScope(["mod(S, 2) == 0", "S <= 512"])
    size = export.symbolic_shape("S", scope=scope)
    x = np.arange(6, dtype=np.float32)

    def pairs(_: Any, x: Any) -> Any:
        return x.reshape(x.shape[0] // 2, 2).sum(1), x[-1]

    text = agrees(tmp_path, pairs, {}, (x,), (shaped(size, jnp.float32),))
    assert "S % 2 == 0" in text and "S <= 512" in text and "S > 0" in text


def test_what_is_captured_is_a_buffer(tmp_path: Path) -> None:
    table = DRAW.standard_normal((4, 3)).astype(np.float32)
    x = np.ones(4, np.float32)
    text = agrees(
        tmp_path, lambda _, x: x @ jnp.asarray(table), {}, (x,), runs=(evaluated, compiled)
    )
    assert "buffer constant: Tensor[4, 3; f32]" in text


def test_half_precision(tmp_path: Path) -> None:
    def forward(params: Any, x: Any) -> Any:
        return jax.nn.silu(x @ params["w"]) * 2

    x = DRAW.standard_normal((3, 8))
    for dtype, limit in ((jnp.bfloat16, 2e-2), (jnp.float16, 4e-3)):
        params = {"w": np.asarray(DRAW.standard_normal((8, 5)), dtype)}
        agrees(tmp_path / dtype.__name__, forward, params, (np.asarray(x, dtype),), limit=limit)


def test_wide_numbers(tmp_path: Path) -> None:
    with jax.enable_x64(True):
        x = DRAW.standard_normal((3, 4))
        text = agrees(
            tmp_path,
            lambda p, x: (jnp.exp(x @ p["w"]), jnp.argsort(x, 1)),
            {"w": DRAW.standard_normal((4, 4))},
            (x,),
            limit=1e-12,
        )
    assert "f64" in text


def test_shapes_alone_write_no_weights(tmp_path: Path) -> None:
    params = {"w": shaped((4, 2), jnp.float32)}
    result = export_linnet(
        lambda p, x: x @ p["w"], params, (shaped((3, 4), jnp.float32),), output=tmp_path / "m"
    )
    assert result.weights is None and "param w: Tensor[4, 2; f32]" in checked(result)
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
        "bindings.json",
        "linnet.toml",
        "src",
    ]


def test_weights_may_lie_elsewhere(tmp_path: Path) -> None:
    params = {"w": np.ones((4, 2), np.float32)}
    x = np.ones((3, 4), np.float32)
    result = export_linnet(
        lambda p, x: x @ p["w"],
        params,
        (x,),
        output=tmp_path / "m",
        weights=tmp_path / "w.safetensors",
        module_name="product",
        root_name="Product",
    )
    assert result.weights == tmp_path / "w.safetensors" and result.weights.is_file()
    assert (result.module, result.root, result.entry) == ("product", "Product", "forward")
    assert text_of(result).startswith("module product\n") and "block Product" in text_of(result)
    found = load(result.source, weights=result.weights, bindings=result.bindings)(x)
    assert_same([found], [x @ params["w"]])


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (models.Encoder, ["attention_rows(", "layer_norm(", "gelu_erf("]),
        (models.Scanned, ["for i in 0..3"]),
        (models.Recurrent, ["for i in 0..6"]),
        (models.Experts, ["softmax("]),
    ],
)
def test_modules_of_flax(model: Any, words: list[str], tmp_path: Path) -> None:
    x = DRAW.standard_normal((2, 6, 16)).astype(np.float32)
    apply, params = model().apply, made(model(), x)
    text = agrees(tmp_path / "fixed", apply, params, (x,), limit=2e-5)
    assert all(word in text for word in words)
    lowered_agrees(tmp_path / "module", apply, params, (x,), limit=2e-5)
    if model is not models.Recurrent:  # whose loop over time needs a number
        example = (shaped((*symbols("B, S"), 16), jnp.float32),)
        agrees(tmp_path / "symbolic", apply, params, (x,), example, limit=2e-5)


def test_pixels_of_flax(tmp_path: Path) -> None:
    model = models.Pixels()
    params = made(model, FOUR)
    agrees(tmp_path, model.apply, params, (FOUR,), limit=2e-5)
    lowered_agrees(tmp_path, model.apply, params, (FOUR,), limit=2e-5)


@pytest.mark.parametrize("fill", [-1e30, -1e9, float(np.finfo(np.float32).min), -np.inf, -100.0])
@pytest.mark.parametrize("order", ["bqhd,bkhd->bhqk", "bqhd,bkhd->bqhk"])
def test_attention(fill: float, order: str, tmp_path: Path) -> None:
    def attend(_: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = jnp.einsum(order, q, k) * 0.25
        if order == "bqhd,bkhd->bhqk":
            weights = jax.nn.softmax(jnp.where(mask, scores, fill))
            return jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        weights = jax.nn.softmax(jnp.where(mask[:, None, :], scores, fill))
        return jnp.einsum("bqhk,bkhd->bqhd", weights, v)

    q, k, v = (DRAW.standard_normal((2, n, 3, 4)).astype(np.float32) for n in (5, 6, 6))
    mask = DRAW.random((5, 6)) > 0.5
    mask[1], mask[2] = False, True  # a query that sees nothing, and one that sees all
    text = agrees(tmp_path, attend, {}, (q, k, v, mask))
    known = fill in (-1e30, -1e9) or (fill < -1e38 and fill > -np.inf)
    assert ("attention(" in text) == (known and order == "bqhd,bkhd->bhqk")
