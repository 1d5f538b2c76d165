"""Run by test_placed.py, in a process of its own: PyTorch has one name for pretended devices.

Arguments: a source, and the weights of its program.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from pretend import Pretending, pretended

import linnet.torch as lt
from linnet.diagnostics import PlanError

TOKENS = torch.tensor([3, 1, 4, 1, 5], dtype=torch.int32)
ONE, TWO, THREE = (f"pretend:{i}" for i in range(3))
SPREAD = {"": ONE, "layers.1": TWO, "layers.2": TWO, "layers.3": THREE}


def answers(model: lt.LinnetModule) -> list[torch.Tensor]:
    model.reset_state()
    tokens, width = TOKENS.to(model.device), model.scale.shape[0]
    ones = torch.ones(2, width).to(model.device)
    out = [model.forward(tokens), model.forward(tokens[:2]), model.last(ones)]
    assert all(x.device == model.device for x in out), [x.device for x in out]
    return [x.cpu() for x in out]


def same(expected: list[torch.Tensor], model: lt.LinnetModule) -> None:
    for a, b in zip(expected, answers(model), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def moves_of(mode: Pretending, model: lt.LinnetModule) -> list[tuple[str, str]]:
    tokens = TOKENS.to(model.device)
    mode.moves.clear()
    model.forward(tokens)
    return list(mode.moves)


def main(source: str, weights: str) -> None:
    def load(**options: Any) -> lt.LinnetModule:
        return lt.load(source, weights=weights, **options)

    with torch.no_grad():
        expected = answers(load())
        with pretended() as mode:
            # An accelerator alone holds everything.
            same(expected, load(device_map={"": ONE}))
            spread(expected, mode, load)
            brought(expected, mode, load)
            auto(expected, load)
            under_inference(load)
    gradients(load)


def spread(expected: list[torch.Tensor], mode: Pretending, load: Any) -> None:
    model = load(device_map=SPREAD)
    devices = {path: str(t.device) for path, t in model.state_dict(keep_vars=True).items()}
    assert devices["embedding.weight"] == devices["scale"] == ONE
    assert devices["layers.2.up.weight"] == TWO and devices["layers.3.shift"] == THREE
    assert str(model.get_buffer_at("layers.3.seen").device) == THREE
    same(expected, model)
    # To each device the activations and the mask once, and the last ones home.
    assert moves_of(mode, model) == [(ONE, TWO)] * 2 + [(TWO, THREE), (ONE, THREE), (THREE, ONE)]
    # A head elsewhere draws the activations to it; a frame's weight is not moved.
    model = load(device_map={**SPREAD, "head": TWO, "scale": THREE})
    same(expected, model)
    try:
        model.forward(TOKENS)
    except PlanError as error:
        assert f"is on cpu, the model on {ONE}" in str(error)
    else:
        raise AssertionError("inputs elsewhere")


def brought(expected: list[torch.Tensor], mode: Pretending, load: Any) -> None:
    held = {"": ONE, "layers.1": "cpu", "layers.2": "cpu", "head": "cpu"}
    model = load(device_map=held)
    assert model.placement.offloaded == ("layers.1", "layers.2", "head")
    same(expected, model)
    assert str(model.get_buffer_at("layers.1.seen").device) == ONE
    weights = 2 * 5 + 1  # of two layers, and the head
    assert moves_of(mode, model) == [("cpu", ONE)] * weights, mode.moves
    # Without offloading, what is on the CPU runs there.
    model = load(device_map=held, offload=False)
    assert model.placement.offloaded == () and str(model.layers[1].up.weight.device) == "cpu"
    same(expected, model)
    # Ids on an accelerator, and the table they look up on the CPU.
    same(expected, load(device_map={"": ONE, "embedding": "cpu", "layers.0": TWO}, offload=False))
    assert ("cpu", ONE) in moves_of(mode, model) and (ONE, "cpu") in mode.moves


def auto(expected: list[torch.Tensor], load: Any) -> None:
    memory = {ONE: 3000, TWO: 6000, "cpu": 1 << 20}
    model = load(device_map="auto", max_memory=memory)
    assert [str(d) for d in model.placement.devices] == [ONE, TWO]
    assert model.placement.offloaded and set(model.placement.slots.values()) == {0, 1}
    assert model.placement.held == set(model.placement.offloaded)
    same(expected, model)
    # Host memory that does not hold them leaves them in their file.
    model = load(device_map="auto", max_memory={**memory, "cpu": 10})
    assert not model.placement.held
    same(expected, model)


def under_inference(load: Any) -> None:
    model = load(device_map=SPREAD)
    with torch.inference_mode():
        once = model.forward(TOKENS.to(model.device)).cpu()
        again = model.forward(TOKENS.to(model.device)).cpu()
    assert not torch.equal(once, again)  # the state has moved on


def gradients(load: Any) -> None:
    plain, tokens = load(trainable=True), TOKENS
    plain.forward(tokens).square().sum().backward()
    expected = {path: p.grad for path, p in plain.named_parameters()}
    model = load(device_map={"": "cpu"}, trainable=True)
    model.forward(tokens).square().sum().backward()
    for path, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[path])


main(*sys.argv[1:])
