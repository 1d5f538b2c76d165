"""Weights brought for each call: the same results, and no more in memory than was allowed."""

from __future__ import annotations

import copy
import gc
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import linnet.torch as lt
from linnet.diagnostics import PlanError
from linnet.loading import load_source, slots_of
from linnet.torch import offload
from linnet.weights import write_safetensors

SOURCE = """module deep
use std.nn.embedding::{Embedding}
use std.nn.linear::{Linear}

pub block Layer<H: Dim, Inner: Dim> {
    sub up: Linear<H, Inner, f32>
    sub down: Linear<Inner, H, f32>
    buffer shift: Tensor[H; f32]
    state seen: Tensor[H; f32]
    pub fn forward<B: Dim>(x: Tensor[B, H; f32], mask: Tensor[B; f32]) -> Tensor[B, H; f32] {
        let sums[h] = sum[b] x[b, h] * mask[b]
        seen = seen + sums
        return x + down.forward(tanh(up.forward(x))) + seen + shift
    }
}
pub block Deep<Vocab: Dim = 12, H: Dim = 8, Inner: Dim = 32, Layers: Dim = 4> where Layers > 3 {
    sub embedding: Embedding<Vocab, H, f32>
    sub layers: [Layer<H, Inner>; Layers]
    sub head: Embedding<Vocab, H, f32>
    param scale: Tensor[H; f32]
    pub entry forward<B: Dim>(tokens: Tensor[B; i32]) -> Tensor[B, Vocab; f32] {
        let mask = cast<f32>(iota<i32>(B)) * 0.5
        var x = embedding.forward(tokens) * scale
        static for layer in layers { x = layer.forward(x, mask) }
        let out[b, v] = sum[h] x[b, h] * head.weight[v, h]
        return out
    }
    pub entry last<B: Dim>(x: Tensor[B, H; f32]) -> Tensor[B, H; f32] {
        return layers[3].forward(x, cast<f32>(iota<i32>(B)))
    }
}
"""
TOKENS = torch.tensor([3, 1, 4, 1, 5], dtype=torch.int32)
LAYER = (2 * 8 * 32 + 32 + 8 + 8) * 4


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deep") / "deep.linnet"
    path.write_text(SOURCE)
    return path


def arrays(
    source: Path, generics: dict[str, int | str] | None = None, dtype: Any = np.float32
) -> dict[str, Any]:
    draw = np.random.default_rng(3)
    slots = slots_of(load_source(source, generics=generics).program)
    return {s.path: (0.2 * draw.standard_normal(s.shape)).astype(dtype) for s in slots}


@pytest.fixture(scope="module")
def stored(source: Path) -> Path:
    path = source.parent / "deep.safetensors"
    write_safetensors(path, arrays(source))
    return path


@pytest.fixture(scope="module")
def plain(source: Path, stored: Path) -> lt.LinnetModule:
    return lt.load(source, weights=stored)


def limit(together: int = 2, layer: int = LAYER) -> dict[str, int]:
    """What lets so many layers be there at once, beside their state."""
    return {"cpu": 4 * 8 * 4 + together * layer + 40}


def answers(model: lt.LinnetModule) -> list[Tensor]:
    model.reset_state()
    with torch.no_grad():
        found = [model.forward(TOKENS), model.forward(TOKENS[:2])]
        return [*found, model.last(torch.ones(2, model.scale.shape[0]))]


def same(one: lt.LinnetModule, other: lt.LinnetModule) -> None:
    for a, b in zip(answers(one), answers(other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_the_same_results(source: Path, stored: Path, plain: lt.LinnetModule) -> None:
    model = lt.load(source, weights=stored, device_map="auto", max_memory=limit())
    # The frame reads the head and the root's own parameter itself.
    assert {"layers.0", "layers.3", "embedding", "head"} <= set(model.placement.offloaded)
    same(plain, model)
    running = model._running
    assert running is not None and running.most == 2 and not running.present
    assert "brought for each call: embedding, layers.0 to layers.3" in model.placement.describe()


def test_one_at_a_time(source: Path, stored: Path, plain: lt.LinnetModule) -> None:
    model = lt.load(source, weights=stored, device_map="auto", max_memory=limit(1))
    assert not model.placement.ahead
    same(plain, model)
    assert model._running is not None and model._running.most == 1


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.slow
def test_no_more_in_memory_than_allowed(
    source: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """Converted weights are copies: those alive are counted, block by block."""
    path = source.parent / "half.safetensors"
    write_safetensors(path, arrays(source, dtype=np.float16))
    plain = lt.load(source, weights=path, cast_dtype=True)
    model = lt.load(
        source, weights=path, cast_dtype=True, device_map="auto", max_memory=limit(together)
    )
    alive: list[tuple[str, weakref.ref[Tensor]]] = []
    most = 0

    def fetch(one: offload.Source) -> Tensor:
        nonlocal most
        tensor = real(one)
        alive.append((one.path, weakref.ref(tensor)))
        there = {p[:8] for p, ref in alive if p.startswith("layers") and ref() is not None}
        most = max(most, len(there))
        return tensor

    real = offload.Source.fetch
    monkeypatch.setattr(offload.Source, "fetch", fetch)
    same(plain, model)
    assert most == together
    assert len(alive) >= 2 * (4 * 3 + 2)
    gc.collect()
    assert [p for p, ref in alive if ref() is not None] == []


@pytest.mark.slow
def test_a_mapped_file_is_given_back(source: Path, tmp_path: Path) -> None:
    """Large enough that pages can be counted: what the file takes of this process's memory."""
    generics: dict[str, int | str] = {"H": 64, "Inner": 4096}
    path = tmp_path / "large.safetensors"
    write_safetensors(path, arrays(source, generics))
    layer = 2 * 64 * 4096 * 4
    memory = {"cpu": 2 * layer + (4 + 4) * 64 * 4}
    model = lt.load(source, generics=generics, weights=path, device_map="auto", max_memory=memory)
    seen: list[int] = []
    space = model._code.space
    inner = space["layer_forward"]

    def looking(*given: Any) -> Any:
        out = inner(*given)
        seen.append(resident(path))
        return out

    space["layer_forward"] = looking
    inner = inner.__wrapped__
    for unit in model._running.units.values():  # type: ignore[union-attr]
        assert not unit.entered
    space["layer_forward"] = model._running.method(looking, space)  # type: ignore[union-attr]
    answers(model)
    assert len(seen) == 9 and min(seen) >= 0.9 * layer
    assert max(seen) < 2.5 * layer
    assert resident(path) < layer / 2


def resident(path: Path) -> int:
    """The bytes of a mapped file that this process has in memory."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0] and ":" not in line.split(" ")[0]:
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_weights_that_no_file_holds(source: Path) -> None:
    plain = lt.load(source, seed=4)
    model = lt.load(source, seed=4, device_map="auto", max_memory=limit())
    assert model.placement.offloaded
    same(plain, model)
    given = {path: tensor.numpy() for path, tensor in plain.state_dict().items()}
    same(plain, lt.load(source, weights=given, device_map="auto", max_memory=limit()))


def test_a_tied_head(source: Path, tmp_path: Path) -> None:
    weights = arrays(source)
    del weights["head.weight"]
    path = tmp_path / "tied.safetensors"
    write_safetensors(path, weights)
    bindings = {p: p for p in weights} | {"head.weight": "embedding.weight"}
    plain = lt.load(source, weights=path, bindings=bindings)
    memory = {"cpu": limit(1)["cpu"] + 12 * 8 * 4}  # and room for the embedding
    model = lt.load(source, weights=path, bindings=bindings, device_map="auto", max_memory=memory)
    assert set(model.placement.offloaded) == {f"layers.{i}" for i in range(4)}
    same(plain, model)
    assert model.head.weight is model.embedding.weight


def test_the_module_is_what_it_was(source: Path, stored: Path, plain: lt.LinnetModule) -> None:
    model = lt.load(source, weights=stored, device_map="auto", max_memory=limit())
    states = zip(plain.state_dict().items(), model.state_dict().items(), strict=True)
    for (path, one), (other, two) in states:
        assert path == other and torch.equal(one, two)
    assert {p for p, _ in plain.named_parameters()} == {p for p, _ in model.named_parameters()}
    assert torch.equal(model.layers[1].up.weight, plain.layers[1].up.weight)
    lt.load(source).copy_weights(model)
    for refused in (
        lambda: model.copy_weights(plain),
        lambda: lt.bind_weights(model, stored),
        lambda: model.set_trainable("layers.*"),
        lambda: model.to("cpu"),
        lambda: copy.deepcopy(model),
        lambda: model._put("layers.0.up.weight", torch.nn.Parameter(torch.zeros(32, 8))),
    ):
        with pytest.raises(PlanError, match=r"offloaded|placed"):
            refused()
    same(plain, model)


@pytest.mark.parametrize("mode", ["inductor", "reduce-overhead"])
def test_it_is_not_compiled(source: Path, stored: Path, mode: str) -> None:
    options: dict[str, Any] = {"device_map": "auto", "max_memory": limit()}
    said = f"compile='{mode}': a module that device_map has placed .* brought for each call"
    with pytest.raises(PlanError, match=said):
        lt.load(source, weights=stored, compile=mode, **options)
    model = lt.load(source, weights=stored, **options)
    with pytest.raises(PlanError, match=said):
        model.run_entry("forward", [TOKENS], compile=mode)


def test_an_error_leaves_it_as_it_was(
    source: Path, stored: Path, plain: lt.LinnetModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = lt.load(source, weights=stored, device_map="auto", max_memory=limit())
    running = model._running
    assert running is not None
    with monkeypatch.context() as patch:
        patch.setattr(torch, "tanh", lambda x: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            answers(model)
    assert not running.present and not running.depth
    same(plain, model)


FAMILIES = Path(lt.__file__).parents[1] / "zoo" / "families"
SIZES: dict[str, int | str] = {
    **{"Vocab": 32, "H": 16, "Heads": 2, "Inner": 24, "Layers": 3, "T": "f32"},
    **{"Batch": 1, "MaxSeq": 12, "PageSize": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "also"),
    [
        ("llama", {"KvHeads": 1}),
        ("qwen2", {"KvHeads": 1}),
        ("qwen3", {"KvHeads": 1, "HeadDim": 8}),
        ("phi3", {"KvHeads": 1}),
        ("gpt2", {"MaxPositions": 12}),
    ],
)
def test_families(family: str, also: dict[str, int | str], tmp_path: Path) -> None:
    generics = {**SIZES, **also}
    source, weights = FAMILIES / family, tmp_path / "w.safetensors"
    write_safetensors(weights, arrays(source, generics))
    options: dict[str, Any] = {
        "generics": generics,
        "weights": weights,
        "entries": ["forward", "prefill", "decode"],
    }
    plain = lt.load(source, **options)
    units = {unit.path: unit for unit in plain.placement.units}
    layers = [path for path in units if path[-2:] in (".0", ".1", ".2")]
    need = sum(u.state for u in units.values()) + 2 * max(u.bytes for u in units.values())
    model = lt.load(source, **options, device_map="auto", max_memory={"cpu": need + 100})
    assert set(layers) <= set(model.placement.offloaded) and len(layers) == 3
    tokens = torch.tensor([[3, 1, 4, 1, 5]], dtype=torch.int32)
    with torch.no_grad():
        for entry, inputs in (
            ("forward", (tokens,)),
            ("prefill", (tokens, 0)),
            ("decode", (tokens[:, :1], 5)),
            ("decode", (tokens[:, 1:2], 6)),
        ):
            one, two = (m.run_entry(entry, inputs) for m in (plain, model))
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
    assert model._running is not None and model._running.most == 2


def test_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).parents[2] / "docs" / "pytorch.md"
    section = page.read_text().split("\n## Bigger than one device\n")[1].split("\n## ")[0]
    fences = {f[1]: f[2] for f in re.finditer(r"^```(.*)\n((?:(?!```).*\n)*)```$", section, re.M)}
    (tmp_path / "deep.linnet").write_text(fences["linnet deep.linnet"])
    monkeypatch.chdir(tmp_path)
    exec(compile(fences["python deep.py"], "deep.py", "exec"), {})
    assert capsys.readouterr().out == fences["text"]
