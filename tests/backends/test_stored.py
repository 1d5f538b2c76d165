"""Programs whose weights are kept in blocks: which ones, from what, and what they compute."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import linnet.torch as lt
from linnet.diagnostics import PlanError
from linnet.loading import load_source
from linnet.policy import tolerance
from linnet.reference import evaluate
from linnet.torch.blocks import Blocks, dense
from linnet.torch.stored import StorageWarning
from linnet.weights import expand_bindings, open_checkpoint
from models.tiny import FAMILY, NAMES
from weights.gguf_files import write_gguf

SOURCE = """module small
use std.nn.linear::{Linear, BiasedLinear, linear}
use std.nn.embedding::{Embedding}
use std.nn.loss::{linear_cross_entropy}
use std.nn.norm::{RmsNorm}

pub block Layer<H: Dim, Inner: Dim, T: Float> {
    sub up: BiasedLinear<H, Inner, T>
    sub down: Linear<Inner, H, T>
    pub fn forward<*S: Shape>(x: Tensor[*S, H; T]) -> Tensor[*S, H; T] {
        return x + down.forward(up.forward(x))
    }
}

pub block Small<V: Dim = 40, H: Dim = 64, Inner: Dim = 96, Layers: Dim = 2, T: Float = f32> {
    sub embedding: Embedding<V, H, T>
    sub layers: [Layer<H, Inner, T>; Layers]
    sub head: Linear<H, V, T>
    param doubled: Tensor[8, H; T]
    param rows: Tensor[8, H; T]
    param scale: Tensor[H; T]

    fn weight() -> Tensor[V, H; T] { return head.weight }
    fn run<*S: Shape>(tokens: Tensor[*S; i32]) -> Tensor[*S, H; T] {
        var x = embedding.forward(tokens)
        static for layer in layers { x = layer.forward(x) }
        let scaled[*s, h] = x[*s, h] * scale[h]
        return scaled
    }

    pub entry forward<B: Dim, S: Dim>(tokens: Tensor[B, S; i32]) -> Tensor[B, S, V; T] {
        return linear(run(tokens), weight())
    }
    pub entry loss<N: Dim>(
        tokens: Tensor[N; i32], targets: Tensor[N; i64], weights: Tensor[N; f32],
    ) -> f32 {
        return linear_cross_entropy(run(tokens), weight(), targets, weights)
    }
    pub entry eight<N: Dim>(x: Tensor[N, H; T]) -> Tensor[N, 8; T] {
        return linear(x, doubled + doubled) + linear(x, rows)
    }
}
"""
PATHS = [
    "embedding.weight",
    "head.weight",
    *(f"layers.{i}.{part}.weight" for i in range(2) for part in ("up", "down")),
    "rows",
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "small.linnet"
    path.write_text(SOURCE)
    return path


def drawn(source: Path, **generics: int) -> dict[str, np.ndarray]:
    """A checkpoint of the program, by path."""
    draw = np.random.default_rng(3)
    module = lt.load(source, generics=generics)
    return {
        path: (0.3 * draw.standard_normal(tuple(held.shape))).astype(np.float32)
        for path, held in module.state_dict().items()
    }


def stored(module: lt.LinnetModule) -> dict[str, str]:
    """The format of each path that is in blocks."""
    named = module.named_modules(remove_duplicate=False)
    return {path: held.format for path, held in named if isinstance(held, Blocks)}


def widened(module: lt.LinnetModule, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The checkpoint with the numbers that the module's blocks stand for."""
    held = dict(module.named_modules(remove_duplicate=False))
    return {
        path: dense(held[path]).float().numpy() if path in stored(module) else array
        for path, array in weights.items()
    }


@pytest.mark.parametrize(
    ("storage", "format", "numerics"),
    [
        ("q4", "Q4_0", "fast"),
        ("q8", "Q8_0", "equivalent"),
        pytest.param("q4", "Q4_0", "equivalent", marks=pytest.mark.slow),
        pytest.param("q8", "Q8_0", "fast", marks=pytest.mark.slow),
    ],
)
def test_a_program_computes_with_the_numbers_of_its_blocks(
    source: Path, storage: str, format: str, numerics: Any
) -> None:
    weights = drawn(source)
    module = lt.load(source, weights=weights, storage=storage, numerics=numerics)
    assert stored(module) == dict.fromkeys(PATHS, format)
    assert not any(path in PATHS for path, _ in module.named_parameters())
    program = load_source(source, weights=weights).program
    members = widened(module, weights)
    tokens = np.array([[1, 5, 39], [0, 2, 7]], np.int32)
    targets, shares = np.array([4, -1, 2]), np.array([1, 0.5, 0], np.float32)
    calls: list[tuple[str, list[Any]]] = [
        ("forward", [tokens]),
        ("loss", [tokens[0], targets.clip(0), shares]),
        ("eight", [np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)]),
    ]
    for entry, inputs in calls:
        wanted = np.asarray(evaluate(program, entry, inputs, members))
        got = module.run_entry(entry, [torch.from_numpy(x) for x in inputs]).numpy()
        assert np.abs(got - wanted).max() <= tolerance(numerics, "f32") * np.abs(wanted).max()


def test_the_source_says_what_is_read_in_blocks(source: Path) -> None:
    module = lt.load(source, storage="q4")
    text = module.generated_source()
    assert "blocks.embedding(tokens, self.embedding.weight)" in text
    assert "blocks.linear(x, self.up.weight, bias=self.up.bias)" in text
    assert "kernels.linear_cross_entropy" in text and "blocks.dense(" in text
    assert "kernels.linear(x, self.doubled + self.doubled)" in text
    assert "blocks.linear(x, self.rows)" in module.generated_source("eight")
    assert "blocks" not in lt.load(source).generated_source()


def test_products_of_one_input_are_one_call(tmp_path: Path) -> None:
    path = tmp_path / "sides.linnet"
    path.write_text(
        """module sides
use std.nn.linear::{BiasedLinear}
use std.nn.mlp::{swiglu}
pub block Sides<H: Dim = 32> {
    sub q: BiasedLinear<H, 8, f32>
    sub k: BiasedLinear<H, 4, f32>
    param gate: Tensor[64, H; f32]
    param up: Tensor[64, H; f32]
    param down: Tensor[H, 64; f32]
    pub entry forward<N: Dim>(x: Tensor[N, H; f32]) -> (Tensor[N, 8; f32], Tensor[N, 4; f32]) {
        let y = swiglu(x, gate, up, down)
        return (q.forward(y), k.forward(y))
    }
}
"""
    )
    weights = drawn(path)
    program = load_source(path, weights=weights).program
    x = np.random.default_rng(2).standard_normal((3, 32)).astype(np.float32)
    for numerics, run in (("fast", "blocks.linears("), ("equivalent", "blocks.linears_f32(")):
        module = lt.load(path, weights=weights, storage="q8", numerics=numerics)
        assert len(stored(module)) == 5
        text = module.generated_source()
        assert f"{run}x, (self.gate, self.up))" in text and text.count(run) == 2
        wanted = evaluate(program, "forward", [x], widened(module, weights))
        for got, one in zip(module(torch.from_numpy(x)), wanted, strict=True):
            largest = np.abs(one).max()
            assert np.abs(got.numpy() - one).max() <= tolerance(numerics, "f32") * largest


@pytest.mark.slow
def test_without_weights_blocks_are_made_of_random_numbers(source: Path) -> None:
    one, two = (lt.load(source, storage="q8", seed=seed) for seed in (0, 1))
    same = lt.load(source, storage="q8", seed=0)
    tokens = torch.tensor([[1, 2]], dtype=torch.int32)
    assert torch.equal(one(tokens), same(tokens)) and one(tokens).abs().max() > 0
    assert not torch.equal(one(tokens), two(tokens))


def test_rows_that_are_no_whole_blocks_stay_floats_and_are_named_once(source: Path) -> None:
    with pytest.warns(StorageWarning) as told:
        module = lt.load(source, generics={"Inner": 40}, storage="q4")
    assert [str(one.message).splitlines() for one in told] == [
        [
            "storage='q4': these weights stay in floats",
            "  layers.*.down.weight: has rows of 40, which are not whole blocks of 32",
        ]
    ]
    assert sorted(stored(module)) == sorted(p for p in PATHS if "down" not in p)
    module(torch.tensor([[1, 2]], dtype=torch.int32))


def test_a_weight_that_is_read_in_another_way_too_stays_floats(tmp_path: Path) -> None:
    path = tmp_path / "both.linnet"
    path.write_text(
        """module both
use std.nn.linear::{linear}
pub block Both {
    param a: Tensor[4, 32; f32]
    param b: Tensor[4, 32; f32]
    pub entry forward(x: Tensor[3, 32; f32]) -> Tensor[3, 4; f32] {
        return linear(x, a) + linear(x + b[0, ...], b)
    }
}
"""
    )
    with pytest.warns(StorageWarning, match="b: another operation reads it too"):
        assert stored(lt.load(path, storage="q4")) == {"a": "Q4_0"}


def test_checked_indices_read_a_table_of_floats(source: Path) -> None:
    module = lt.load(source, storage="q4", checked=True)
    assert "embedding.weight" not in stored(module) and "rows" in stored(module)
    with pytest.raises(PlanError, match=r"index 40 lies outside 0\.\.39"):
        module(torch.tensor([[40]], dtype=torch.int32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"storage": "q5"}, "storage='q5': choose 'q4', 'q8', or None"),
        ({"storage": "q4", "numerics": "exact"}, "choose 'equivalent' or 'fast'"),
        ({"storage": "q4", "trainable": "layers.*"}, "in blocks of few bits are fixed"),
        ({"storage": "q4", "generics": {"H": 48, "Inner": 40}}, "no weight of Small can be kept"),
        ({"storage": "q4", "generics": {"T": "f64"}}, "no weight of Small can be kept"),
    ],
)
def test_what_cannot_be_is_refused(source: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        lt.load(source, **options)


@pytest.mark.slow
def test_blocks_do_not_change(source: Path, tmp_path: Path) -> None:
    weights, module = drawn(source), lt.load(source, storage="q4")
    for act in (
        lambda: module.set_trainable("scale"),
        lambda: module.add_lora("rows"),
        lambda: module.save_weights(tmp_path / "saved.safetensors"),
        lambda: module.copy_weights(lt.load(source)),
        lambda: lt.bind_weights(module, weights),
    ):
        with pytest.raises(PlanError, match="in blocks of few bits are fixed: load the model with"):
            act()
    assert not module.trains() and not list(tmp_path.glob("*.safetensors"))


def test_the_example_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).parents[2] / "docs" / "pytorch.md"
    section = page.read_text("utf-8").split("## Weights in few bits")[1].split("\n## ")[0]
    program, code, shown = re.findall(
        r"```(?:linnet|python [^\n]*|text)\n(.*?)```", section, re.DOTALL
    )
    (tmp_path / "scorer.linnet").write_text(program)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out == shown


# ---------------------------------------------------------------- files

SIZES = {"Vocab": 64, "H": 256, "Heads": 4, "KvHeads": 2, "Inner": 64, "Layers": 1, "T": "f32"}
METADATA: dict[str, Any] = {
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
}


def checkpoint() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(5)
    h, kv, inner, vocab = 256, 128, 64, 64
    layer = "model.layers.0"
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, h),
        "model.norm.weight": (h,),
        f"{layer}.input_layernorm.weight": (h,),
        f"{layer}.post_attention_layernorm.weight": (h,),
        f"{layer}.self_attn.q_proj.weight": (h, h),
        f"{layer}.self_attn.k_proj.weight": (kv, h),
        f"{layer}.self_attn.v_proj.weight": (kv, h),
        f"{layer}.self_attn.o_proj.weight": (h, h),
        f"{layer}.mlp.gate_proj.weight": (inner, h),
        f"{layer}.mlp.up_proj.weight": (inner, h),
        f"{layer}.mlp.down_proj.weight": (h, inner),
    }
    return {n: (0.2 * draw.standard_normal(s)).astype(np.float32) for n, s in shapes.items()}


BINDINGS = {**NAMES, "lm_head.weight": "model.embed_tokens.weight"}


def of_file(path: Path, storage: str | None) -> lt.LinnetModule:
    generics = {**SIZES, "MaxSeq": 16, "Batch": 1}
    return lt.load(
        FAMILY,
        generics=generics,
        root="Model",
        weights=path,
        bindings=BINDINGS,
        entries=["forward"],
        storage=storage,
    )


@pytest.mark.parametrize(
    ("scheme", "storage", "format"),
    [
        ("Q4_1", "q4", "Q4_1"),
        pytest.param("Q4_0", "q8", "Q4_0", marks=pytest.mark.slow),
        pytest.param("Q8_0", "q4", "Q4_0", marks=pytest.mark.slow),
        ("Q5_0", "q8", "Q8_0"),
    ],
)
@pytest.mark.slow
def test_a_files_own_blocks_are_kept(
    tmp_path: Path, scheme: str, storage: str, format: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", METADATA, checkpoint(), scheme)
    module = of_file(path, storage)
    formats = stored(module)
    assert set(formats.values()) == {format} and len(formats) == 9
    assert module.embedding.weight is module.lm_head.weight
    held = dict(module.named_modules(remove_duplicate=False))
    read = {name: at.read() for name, at in open_checkpoint(path).tensors.items()}
    names = expand_bindings(BINDINGS, formats)
    for member, tensor in names.items():
        difference = np.abs(dense(held[member]).numpy() - read[tensor]).max()
        # Other blocks than the file's are a second rounding.
        step = 0 if format == scheme else 1 / 127 if storage == "q8" else 1 / 7
        assert difference <= step * np.abs(read[tensor]).max()
    logits = module.forward(torch.tensor([[3, 9, 60, 1]], dtype=torch.int32))
    assert logits.isfinite().all()


@pytest.mark.slow
def test_bytes_are_used_as_they_lie_in_the_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", METADATA, checkpoint(), "Q4_0")
    module = of_file(path, "q4")
    layer = module.layers[0]
    data = layer.mlp.down.weight.data
    assert data.numpy().tobytes() in path.read_bytes()
    # What the file interleaves for rotary positions is put in order, row by row.
    rows = layer.attention.q_proj.weight.data
    assert rows.numpy().tobytes() not in path.read_bytes()
    data[0, 0] += 1  # a copy of the page, not the file
    assert data.numpy().tobytes() not in path.read_bytes()


@pytest.mark.slow
def test_the_demo_in_its_files_four_bits() -> None:
    from linnet.nest.load import load

    generics: dict[str, int | str] = {"MaxSeq": 32, "Batch": 1, "T": "f32"}
    entries = ["prefill", "decode"]
    name = "smollm2-135m-instruct"
    few, floats = (
        load(name, generics=generics, cast_dtype=True, entries=entries, storage=storage)
        for storage in ("q4", None)
    )
    held = {id(m): m for m in few.modules() if isinstance(m, Blocks)}.values()
    assert sum(m.data.nbytes for m in held) < 100e6
    assert {m.format for m in held} == {"Q4_1", "Q8_0"}  # the file's own
    prompt = torch.arange(100, 112, dtype=torch.int32)[None]
    got, wanted = few.prefill(prompt, 0), floats.prefill(prompt, 0)
    for position in range(12, 20):
        difference = (got - wanted).abs().max()
        assert difference <= 1e-3 * wanted.abs().max()
        first, second = wanted.topk(2).values[0]
        token = wanted.argmax(-1)
        # Tokens that are told apart by more than the difference are the same.
        assert first - second <= 2 * difference or got.argmax(-1) == token
        step = token.int()[:, None]
        got, wanted = few.decode(step, position), floats.decode(step, position)
