"""Training a loaded program: what takes gradients, gradients through state, autocast, layers that
run again for the backward pass."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import linnet.torch as lt
from linnet.diagnostics import PlanError
from linnet.torch.touched import changed_states, touches_state

SOURCE = """module net
use std.nn.linear::{Linear}
use std.nn.activations::{silu}
use std.nn.cache::{write_span}

pub block Layer<H: Dim, T: Float> {
    param norm: Tensor[H; T]
    sub up: Linear<H, 2 * H, T>
    sub down: Linear<2 * H, H, T>
    pub fn forward<*S: Shape>(x: Tensor[*S, H; T]) -> Tensor[*S, H; T] {
        return x + down.forward(silu(up.forward(x * norm)))
    }
}

pub block Memory<H: Dim, T: Float> {
    sub inward: Linear<H, H, T>
    state memory: Tensor[H; T]
    /// The memory moves on, from itself and from x.
    pub fn step(x: Tensor[H; T]) -> Tensor[H; T] {
        let before = memory
        memory = tanh(inward.forward(x) + memory * 0.5)
        return memory * before + x
    }
}

pub block Net<H: Dim = 4, Layers: Dim = 2, T: Float = f32> where H > 0 {
    sub layers: [Layer<H, T>; Layers]
    sub cells: [Memory<H, T>; 2]
    sub head: Linear<H, H, T>
    param codes: Tensor[3; i32]
    buffer shift: Tensor[H; T]
    state seen: Tensor[1, 1, 8, H; T]

    pub entry forward<S: Dim>(x: Tensor[S, H; T]) -> Tensor[S, H; T] {
        var y = x + shift
        static for layer in layers { y = layer.forward(y) }
        return head.forward(y)
    }
    /// One step of each cell, and what the cache has seen.
    pub entry step(x: Tensor[H; T], at: i32) -> (Tensor[H; T], Tensor[H; T]) {
        var y = x
        static for cell in cells { y = cell.step(y) }
        seen = write_span(seen, reshape(y, [1, 1, 1, H]), at)
        let total[h] = sum[s] seen[0, 0, s, h]
        return (y, total)
    }
    /// Three steps in one call.
    pub entry unroll(xs: Tensor[3, H; T]) -> Tensor[H; T] {
        var out = fill<T>([H], 0.0)
        for i in 0..3 {
            var y = xs[i, :]
            static for cell in cells { y = cell.step(y) }
            seen = write_span(seen, reshape(y, [1, 1, 1, H]), cast<i32>(i) * 2)
            out = out + y
        }
        let total[h] = sum[s] seen[0, 0, s, h]
        return out * total
    }
    pub entry passing(x: Tensor[H; T]) -> Tensor[H; T] {
        let kept = seen
        seen = fill<T>([1, 1, 8, H], 0.0)
        seen = kept
        return x
    }
    pub entry reading(x: Tensor[H; T]) -> Tensor[H; T] {
        let total[h] = sum[s] seen[0, 0, s, h]
        return x + total
    }
    pub entry coded(at: i32) -> i32 { return codes[at] }
}
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("net") / "net.linnet"
    path.write_text(SOURCE)
    return path


def made(source: Path, **options: Any) -> lt.LinnetModule:
    """The model in f64, its weights wide enough that everything counts."""
    model = lt.load(source, generics={"T": "f64"}, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.mul_(20)
    return model


def floats(*shape: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw, dtype=torch.float64)


def differences(run: Callable[[], Tensor], x: Tensor) -> Tensor:
    """The gradient of a sum by central differences of the values."""
    out = torch.empty_like(x)
    with torch.no_grad():
        for i in np.ndindex(*x.shape):
            kept = x[i].clone()
            values = []
            for step in (1e-5, -1e-5):
                x[i] = kept + step
                values.append(run().sum())
            x[i] = kept
            out[i] = (values[0] - values[1]) / 2e-5
    return out


def agrees(model: lt.LinnetModule, run: Callable[[], Tensor]) -> None:
    """Every parameter's gradient of the run is that of differences."""
    held = {path: p for path, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(run().sum(), list(held.values()), allow_unused=True)
    assert any(g is not None and g.abs().max() > 1e-2 for g in found)
    for (path, parameter), gradient in zip(held.items(), found, strict=True):
        wanted = differences(run, parameter)
        given = torch.zeros_like(wanted) if gradient is None else gradient
        torch.testing.assert_close(given, wanted, rtol=1e-6, atol=1e-6, msg=path)


# ---------------------------------------------------------------- what trains


def test_what_trains(source: Path) -> None:
    model = lt.load(source)
    assert not model.trains()
    floats = [p for p, held in model.named_parameters() if held.is_floating_point()]
    assert model.set_trainable(True) == floats and len(floats) == 9 and model.trains()
    chosen = model.set_trainable(["layers.*.norm", "head.weight"])
    assert chosen == ["layers.0.norm", "layers.1.norm", "head.weight"]
    assert [p for p, held in model.named_parameters() if held.requires_grad] == chosen
    assert model.set_trainable("layers.1.*")[0] == "layers.1.norm"
    assert model.set_trainable(False) == [] and not model.trains()
    model = lt.load(source, trainable="*.up.weight")
    assert [p for p, held in model.named_parameters() if held.requires_grad] == [
        "layers.0.up.weight",
        "layers.1.up.weight",
    ]


def test_patterns_that_choose_nothing_are_refused(source: Path) -> None:
    model = lt.load(source, trainable="head.weight")
    for pattern, match in [
        (
            "layers.*.nrom",
            r"no parameter's path fits 'layers.\*.nrom'; did you mean layers.\*.norm",
        ),
        ("layers.0", r"'layers.0' is a block, not a parameter: its own are 'layers.0.\*'"),
        ("zzz", "no parameter's path fits 'zzz'; there are codes, layers.0.norm"),
        ("codes", "trainable: codes is of int32, and only floats take gradients"),
        ("cod*", r"what 'cod\*' fits \(codes\) is of int32"),
        ("shift", "no parameter's path fits 'shift'"),
        (["head.weight", 3], "3 is no path or pattern"),
    ]:
        with pytest.raises(PlanError, match=match):
            model.set_trainable(pattern)  # type: ignore[arg-type]
    # What was refused changed nothing.
    assert [p for p, held in model.named_parameters() if held.requires_grad] == ["head.weight"]
    with pytest.raises(PlanError, match=r"did you mean head\.weight"):
        lt.load(source, trainable="head.wieght")


@pytest.mark.slow
def test_training_leaves_the_given_arrays_alone(source: Path) -> None:
    weights = {p: t.clone() for p, t in lt.load(source).state_dict().items()}
    kept = copy.deepcopy(weights)
    model = lt.load(source, weights=weights, trainable=True)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(1)
    for path, tensor in weights.items():
        assert torch.equal(tensor, kept[path])


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("numerics", ["exact", "equivalent", "fast"])
@pytest.mark.slow
def test_gradients_are_those_of_differences(source: Path, numerics: str) -> None:
    model = made(source, numerics=numerics, trainable=True)
    x = floats(3, 4)
    agrees(model, lambda: model(x).square())


@pytest.mark.slow
def test_gradients_flow_through_state_within_a_call(source: Path) -> None:
    model = made(source, trainable=True)
    xs = floats(3, 4)

    def run() -> Tensor:
        for path in model.state_paths:
            state = model.get_buffer_at(path)
            state.copy_(torch.linspace(-1, 1, state.numel()).reshape(state.shape))
        return torch.as_tensor(model.unroll(xs))

    agrees(model, run)
    x = xs[0].clone().requires_grad_(True)
    model.set_trainable(False)
    (gradient,) = torch.autograd.grad(model.step(x, 2)[1].sum(), x)
    assert gradient.abs().max() > 1e-2


@pytest.mark.slow
def test_states_are_the_same_with_gradients_and_without(source: Path) -> None:
    model, twin = made(source, trainable=True), made(source)
    xs = floats(3, 4)
    places = [model.get_buffer_at(path).data_ptr() for path in model.state_paths]
    for _ in range(2):
        assert torch.equal(model.unroll(xs), twin.unroll(xs))
        for a, b in zip(model.step(xs[1], 7), twin.step(xs[1], 7), strict=True):
            assert torch.equal(a, b)
        for path in model.state_paths:
            state = model.get_buffer_at(path)
            assert torch.equal(state, twin.get_buffer_at(path)) and not state.requires_grad
    # In the same memory, which a captured graph may know.
    assert places == [model.get_buffer_at(path).data_ptr() for path in model.state_paths]


def test_a_state_that_is_only_passed_on_is_not_written(source: Path) -> None:
    model = made(source, optimize=False)
    changed = {name: changed_states(entry) for name, entry in model.program.entries.items()}
    assert changed["forward"] == changed["coded"] == frozenset()
    assert changed["unroll"] == changed["step"] == {"seen", "cells.*.memory"}
    assert not changed["passing"] and model.program.entries["passing"].writes
    assert not touches_state(model.program.entries["passing"])
    # What is read and not written runs as it is.
    assert not changed["reading"] and touches_state(model.program.entries["reading"])
    # The passes leave it without the state.
    assert not any(p.kind == "state" for p in made(source).program.entries["passing"].params)


def test_a_call_that_fails_leaves_the_states_as_they_were(source: Path) -> None:
    model = made(source, trainable=True)
    model.step(floats(4), 0)
    before = {path: model.get_buffer_at(path).clone() for path in model.state_paths}
    kept, model.cells[1].inward = model.cells[1].inward, torch.nn.Identity()
    with pytest.raises(AttributeError):
        model.step(floats(4, seed=1), 1)
    model.cells[1].inward = kept
    for path, tensor in before.items():
        assert torch.equal(model.get_buffer_at(path), tensor)


def test_without_gradients_the_state_is_written_in_place(source: Path) -> None:
    model = made(source, trainable=True)
    with torch.no_grad():
        model.step(floats(4), 0)
    assert model._rebinding is None
    model.step(floats(4), 0)
    assert model._rebinding is not None
    assert ".copy_(" not in model._rebinding.text and "write_span_(" not in model._rebinding.text
    assert ".copy_(" in model.generated_source() and "write_span_(" in model.generated_source()


# ---------------------------------------------------------------- autocast


def test_autocast_while_gradients_are_recorded(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = lt.load(source, trainable=True, amp="bf16")
    x = floats(3, 4).float()
    seen: list[torch.dtype] = []
    original = torch.nn.functional.linear

    def spy(*args: Any) -> Tensor:
        out = original(*args)
        seen.append(out.dtype)
        return out

    monkeypatch.setattr(torch.nn.functional, "linear", spy)
    y = model(x)
    assert model.amp == "bf16" and y.dtype == torch.float32 and set(seen) == {torch.bfloat16}
    y.sum().backward()
    assert model.head.weight.grad.dtype == torch.float32
    seen.clear()
    with torch.no_grad():
        exact = model(x)
    # What records no gradient may run in C.
    assert torch.bfloat16 not in seen and exact.dtype == torch.float32
    torch.testing.assert_close(y, exact, rtol=0.05, atol=0.02)
    model.amp = None
    torch.testing.assert_close(model(x), exact, rtol=1e-5, atol=1e-5)
    assert set(seen) == {torch.float32}


@pytest.mark.slow
def test_autocast_that_makes_no_sense_is_refused(source: Path) -> None:
    with pytest.raises(PlanError, match="amp is 'fp8'; products run in bf16 or f16"):
        lt.load(source, amp="fp8")
    with pytest.raises(PlanError, match=r"needs weights in f32.*layers.0.norm is bfloat16"):
        lt.load(source, generics={"T": "bf16"}, amp="bf16")


# ---------------------------------------------------------------- layers that run again


def kept_bytes(run: Callable[[], Tensor]) -> int:
    """The memory of the tensors that the graph keeps for the backward pass."""
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        held = run()
    assert held.requires_grad
    return sum(kept.values())


def test_checkpointed_layers_keep_less_and_give_the_same(source: Path) -> None:
    model = lt.load(source, generics={"Layers": 6}, trainable=True)
    x = floats(64, 4).float()
    parameters = [p for p in model.parameters() if p.requires_grad]

    def gradients() -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(model(x).square().sum(), parameters, allow_unused=True)

    wanted, before = gradients(), kept_bytes(lambda: model(x))
    model.set_checkpointing()
    assert "training.checkpointed(layer_forward, layer, y)" in model.generated_source()
    for a, b in zip(wanted, gradients(), strict=True):
        assert (a is None and b is None) or torch.equal(a, b)  # type: ignore[arg-type]
    # Of a layer only its input: the widest of some ten tensors.
    assert kept_bytes(lambda: model(x)) < before / 4
    with torch.no_grad():
        assert not model(x).requires_grad
    # Layers with state run once.
    assert "training.checkpointed(memory_step" not in model.generated_source()
    model.set_checkpointing(False)
    assert "checkpointed" not in model.generated_source()


def test_no_layers_to_run_again_is_said(tmp_path: Path) -> None:
    path = tmp_path / "plain.linnet"
    path.write_text(
        "module plain\n\npub block Plain {\n    param w: Tensor[2; f32]\n"
        "    pub entry forward(x: Tensor[2; f32]) -> Tensor[2; f32] { return x * w }\n}\n"
    )
    model = lt.load(path, trainable=True)
    with pytest.raises(PlanError, match="no entry runs a block of an array"):
        model.set_checkpointing()
    model(torch.ones(2)).sum().backward()
