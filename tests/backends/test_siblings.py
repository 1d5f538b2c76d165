"""Products of one input as one, over weights side by side: which, how it reads, and that whoever
replaces, moves, copies or trains a weight gets what they would without."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import linnet.torch as lt
from backends.common import CPU, lowered
from linnet.core.ir import Program
from linnet.core.passes import optimize
from linnet.torch.emit import generate
from linnet.torch.layout import Watch
from linnet.torch.variant import Variant
from linnet.weights import write_safetensors

SOURCE = """module small
use std.nn.linear::{Linear, BiasedLinear}
use std.nn.mlp::{SwiGlu}

pub block Mixer<H: Dim> where H % 2 == 0 {
    sub q_proj: BiasedLinear<H, H, f32>
    sub k_proj: BiasedLinear<H, H / 2, f32>
    sub v_proj: BiasedLinear<H, H / 2, f32>
    pub fn forward<N: Dim>(x: Tensor[N, H; f32]) -> Tensor[N, H; f32] {
        let k = k_proj.forward(x)
        let v = v_proj.forward(x)
        return q_proj.forward(x) * concat(k, v, axis = -1)
    }
}

pub block Small<H: Dim = 4, Layers: Dim = 2> where H > 0, H % 2 == 0, Layers > 0 {
    sub mixers: [Mixer<H>; Layers]
    sub mlp: SwiGlu<H, 6, f32>
    pub entry forward<N: Dim>(x: Tensor[N, H; f32]) -> Tensor[N, H; f32] {
        var y = x
        static for mixer in mixers { y = mixer.forward(y) }
        return mlp.forward(y)
    }
    pub entry first<N: Dim>(x: Tensor[N, H; f32]) -> Tensor[N, H; f32] {
        return mixers[0].forward(x)
    }
}
"""
X = torch.linspace(-1, 1, 12).reshape(3, 4)
MIXED = "self.q_k_v_proj_weight"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.linnet"
    path.write_text(SOURCE)
    return path


@pytest.fixture(scope="module")
def program() -> Program:
    return optimize(lowered(SOURCE), "fast")


@pytest.fixture
def model(program: Program) -> lt.LinnetModule:
    return made(program)


def made(program: Program) -> lt.LinnetModule:
    """A model with weights wide enough that each of them matters."""
    module = lt.LinnetModule(program, "fast", CPU)
    module._initialise(0)
    draw = torch.Generator().manual_seed(2)
    for parameter in module.parameters():
        parameter.copy_(0.5 * torch.randn(parameter.shape, generator=draw))
    module._settle()
    return module


def plainly(model: lt.LinnetModule, x: torch.Tensor = X) -> torch.Tensor:
    """What the same weights give where each product runs by itself."""
    alone = lt.LinnetModule(model.program, "exact", CPU)
    alone._initialise(0)
    alone.copy_weights(model)
    out: torch.Tensor = alone(x)
    return out


def close(found: torch.Tensor | tuple[torch.Tensor, ...], wanted: Any) -> None:
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    for a, b in pairs:
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def lies_beside(model: lt.LinnetModule) -> bool:
    """Every mixer's weights are slices of one tensor, and the code reads it."""
    for mixer in model.mixers:
        at = mixer.q_k_v_proj_weight.data_ptr()
        for part in (mixer.q_proj, mixer.k_proj, mixer.v_proj):
            if part.weight.data_ptr() != at:
                return False
            at += part.weight.nbytes
    return MIXED in model.generated_source()


def test_it_reads_as_one_would_write_it(program: Program, golden: Any) -> None:
    golden(generate(program, "fast").text, "siblings.txt")
    for text in (
        generate(optimize(lowered(SOURCE), "exact"), "exact").text,
        generate(program, "fast", variant=Variant(siblings=False)).text,
    ):
        assert "_proj_weight" not in text and "gate_up" not in text
    apart = frozenset({"mixers.*.k_proj.bias"})
    one = generate(program, "fast", variant=Variant(apart=apart)).text
    assert MIXED not in one and "self.gate_up_weight" in one


def test_the_values_are_those_of_separate_products(model: lt.LinnetModule) -> None:
    assert lies_beside(model)
    close(model(X), plainly(model))
    mixer = model.mixers[0]
    q, k, v = (
        nn.functional.linear(X, part.weight, part.bias)
        for part in (mixer.q_proj, mixer.k_proj, mixer.v_proj)
    )
    close(model.first(X), q * torch.cat((k, v), -1))


def test_no_weight_is_kept_twice(model: lt.LinnetModule) -> None:
    memory = [p.untyped_storage() for p in model.parameters()]
    held = {each.data_ptr(): each.nbytes() for each in memory}
    for mixer in model.mixers:
        held[mixer.q_k_v_proj_weight.data_ptr()] = mixer.q_k_v_proj_weight.nbytes
    assert sum(held.values()) == sum(p.nbytes for p in model.parameters())
    assert set(model.state_dict()) == {path for path, _ in model.named_parameters()}
    assert not any("q_k_v" in path for path in model.state_dict())


def test_what_replaces_a_weight_is_read(model: lt.LinnetModule) -> None:
    part = model.mixers[1].k_proj

    def changed(*, moved: bool = True) -> None:
        model._settle()  # as every run does first
        assert watch.moved() == moved
        close(model(X), plainly(model))
        assert lies_beside(model)
        watch.look()

    model(X)
    watch = Watch(model)
    part.weight = nn.Parameter(torch.randn(2, 4), requires_grad=False)
    changed()
    part.bias.data = torch.randn(2)
    changed()
    part.weight.data.mul_(2.0)
    changed(moved=False)
    model.load_state_dict({path: p + 1.0 for path, p in model.state_dict().items()})
    changed(moved=False)
    model.load_state_dict({path: p - 2.0 for path, p in model.state_dict().items()}, assign=True)
    changed()
    model.copy_weights({path: p * 0.5 for path, p in model.state_dict().items()})
    changed()
    model.mixers[0] = copy.deepcopy(model.mixers[1])
    changed()
    model.mlp.up = copy.deepcopy(model.mlp.gate)
    changed()
    lt.bind_weights(model, {path: p.numpy() + 1.0 for path, p in model.state_dict().items()})
    assert lies_beside(model)
    changed()
    half = {"mixers.0.q_proj.weight": np.ones((4, 4), np.float32)}
    lt.bind_weights(model, half, strict=False)
    assert lies_beside(model) and bool((model.mixers[0].q_k_v_proj_weight[:4] == 1.0).all())
    changed()


def test_a_weight_that_is_shared_goes_alone(model: lt.LinnetModule) -> None:
    model.mixers[0].k_proj.weight = model.mixers[0].v_proj.weight
    close(model(X), plainly(model))
    assert MIXED not in model.generated_source() and "gate_up" in model.generated_source()
    assert not hasattr(model.mixers[1], "q_k_v_proj_weight")
    model.mixers[0].k_proj.weight.data.zero_()
    close(model(X), plainly(model))
    model.mixers[0].k_proj.weight = nn.Parameter(torch.ones(2, 4), requires_grad=False)
    close(model(X), plainly(model))
    assert lies_beside(model)
    # One memory under two parameters is shared as well.
    model.mixers[0].k_proj.weight.data = model.mixers[1].k_proj.weight.data
    model(X)
    assert MIXED not in model.generated_source()


def test_blocks_that_share_all_weights_share_the_row(model: lt.LinnetModule) -> None:
    for name in ("q_proj", "k_proj", "v_proj"):
        model.mixers[1]._modules[name] = model.mixers[0]._modules[name]
    close(model(X), plainly(model))
    assert lies_beside(model)
    assert model.mixers[0].q_k_v_proj_weight is model.mixers[1].q_k_v_proj_weight


def test_two_models_that_share_weights_leave_each_other_alone(program: Program) -> None:
    one, two = made(program), made(program)
    for mine, other in zip(one.mixers, two.mixers, strict=True):
        for name in ("q_proj", "k_proj", "v_proj"):
            other._modules[name] = mine._modules[name]
    wanted = one(X)
    address = one.mixers[0].q_proj.weight.data_ptr()
    two(X)
    assert MIXED not in two.generated_source()
    close(one(X), wanted)
    assert one.mixers[0].q_proj.weight.data_ptr() == address and lies_beside(one)


def test_gradients_reach_each_weight(model: lt.LinnetModule) -> None:
    wanted = model(X)
    model.mixers[0].q_proj.weight.requires_grad_(True)
    with torch.no_grad():
        close(model(X), wanted)
    out = model(X)
    assert MIXED not in model.generated_source() and "gate_up" in model.generated_source()
    out.sum().backward()
    assert model.mixers[0].q_proj.weight.grad is not None
    assert model.mixers[0].k_proj.weight.grad is None
    address = model.mixers[1].k_proj.weight.data_ptr()
    assert len(model.set_trainable(True)) == len(list(model.parameters()))
    assert model.mixers[1].k_proj.weight.data_ptr() == address  # which is no file's, nor given
    model(X).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    model.requires_grad_(False)
    close(model(X), wanted)
    assert lies_beside(model)
    x = X.clone().requires_grad_(True)
    model(x).sum().backward()
    assert x.grad is not None and bool(x.grad.abs().sum() > 0)


@pytest.mark.slow
def test_weights_given_for_one_call(model: lt.LinnetModule) -> None:
    wanted = model(X)
    given = {path: p * 2 for path, p in model.named_parameters()}
    out = torch.func.functional_call(model, given, (X,))
    close(model(X), wanted)
    assert lies_beside(model)
    model.copy_weights(given)
    close(model(X), out)

    def total(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        result: torch.Tensor = torch.func.functional_call(model, weights, (X,)).sum()
        return result

    slopes = torch.func.grad(total)(given)
    assert all(bool(slope.abs().sum() > 0) for slope in slopes.values())


def test_what_is_kept_apart(model: lt.LinnetModule) -> None:
    model._layout.keep_apart(["mixers.0.q_proj.weight"])
    close(model(X), plainly(model))
    assert MIXED not in model.generated_source()


def test_copies_and_moves(model: lt.LinnetModule) -> None:
    wanted = model(X)
    other = copy.deepcopy(model)
    assert lies_beside(other)  # before it has run
    addresses = {p.data_ptr() for p in model.parameters()}
    assert not any(p.data_ptr() in addresses for p in other.parameters())
    with torch.no_grad():
        other.mixers[0].q_proj.weight.zero_()
    close(model(X), wanted)
    close(other(X), plainly(other))
    shallow = copy.copy(model)
    close(shallow(X), wanted)
    moved = model._apply(torch.clone)
    close(moved(X), wanted)
    assert lies_beside(moved)
    moved.mixers[0].k_proj.weight = nn.Parameter(torch.ones(2, 4), requires_grad=False)
    with torch.inference_mode():
        moved(X)
    moved.mixers[0].requires_grad_(True)
    moved(X).sum().backward()
    assert moved.mixers[0].q_proj.weight.grad is not None


def test_a_checkpoint_is_read_to_where_it_lies(
    model: lt.LinnetModule, source: Path, tmp_path: Path
) -> None:
    write_safetensors(
        tmp_path / "w.safetensors", {p: t.numpy() for p, t in model.state_dict().items()}
    )
    read = lt.load(source, weights=tmp_path / "w.safetensors")
    assert lies_beside(read)
    close(read(X), model(X))
    # Tied in the bindings: the slots share a parameter, and run by themselves.
    names = {path: path for path in model.state_dict()}
    names["mixers.0.k_proj.weight"] = "mixers.0.v_proj.weight"
    tied = lt.load(source, weights=tmp_path / "w.safetensors", bindings=names, strict=False)
    assert tied.mixers[0].k_proj.weight is tied.mixers[0].v_proj.weight
    assert MIXED not in tied.generated_source()
    close(tied(X), plainly(tied))


ORDER = """module order
use std.linalg::{transpose}
use std.nn.linear::{linear}
use std.nn.mlp::{swiglu}
pub block Root {
    param a: Tensor[3, 4; f32]
    param b: Tensor[2, 4; f32]
    param c: Tensor[2, 4; f32]
    param share: Tensor[2, 4; f32]
    param memory: Tensor[2, 4; f32]
    state seen: Tensor[4; f32]
    sub deep: Inner
    BODY
}
pub block Inner {
    param left_weight: Tensor[2, 4; f32]
    param right_weight: Tensor[3, 4; f32]
}
"""


def ran(body: str, *inputs: torch.Tensor) -> str:
    """The source of a body, whose values are those of the exact policy."""
    program = optimize(lowered(ORDER.replace("BODY", body)), "fast")
    fast, exact = (lt.LinnetModule(program, policy, CPU) for policy in ("fast", "exact"))
    fast._initialise(1)
    exact._initialise(1)
    for _ in range(2):
        for name in fast.entries:
            close(fast.run_entry(name, inputs), exact.run_entry(name, inputs))
    for path in fast.state_paths:
        close(fast.get_buffer_at(path), exact.get_buffer_at(path))
    return fast.generated_source()


def test_which_calls_go_together() -> None:
    x, y = torch.ones(2, 4), torch.full((2, 4), 2.0)
    pair = "x: Tensor[2, 4; f32], y: Tensor[2, 4; f32]"
    # The order is the declared one; another input, or a weight that another entry has in a larger
    # group, goes alone.
    source = ran(
        f"""pub entry one({pair}) -> (Tensor[2, 2; f32], Tensor[2, 3; f32], Tensor[2, 2; f32]) {{
            return (linear(x, c), linear(x, a), linear(y, b))
        }}
        pub entry two({pair}) -> (Tensor[2, 2; f32], Tensor[2, 3; f32], Tensor[2, 2; f32]) {{
            return (linear(x, c), linear(x, a), linear(x, b))
        }}""",
        x,
        y,
    )
    assert "a, b, c = kernels.linear(x, self.a_b_c).split((3, 2, 2), -1)" in source
    assert (
        "kernels.linear(x, self.c), kernels.linear(x, self.a), kernels.linear(y, self.b)" in source
    )
    # Members of a sub block lie in that block.
    source = ran(
        f"""pub entry one({pair}) -> (Tensor[2, 2; f32], Tensor[2, 3; f32]) {{
            return (linear(x, deep.left_weight), linear(x, deep.right_weight))
        }}""",
        x,
        y,
    )
    assert "return kernels.linear(x, self.deep.left_right_weight).split((2, 3), -1)" in source
    # What nn.Module has by that name is not taken.
    source = ran(
        f"""pub entry one({pair}) -> (Tensor[2, 2; f32], Tensor[2, 2; f32]) {{
            return (linear(x, share), linear(x, memory))
        }}""",
        x,
        y,
    )
    assert "kernels.linear(x, self.share_memory_).chunk(2, -1)" in source


def test_an_op_that_holds_products_of_one_input() -> None:
    source = ran(
        """pub entry one(x: Tensor[4; f32], d: Tensor[4, 2; f32]) -> Tensor[4; f32] {
            return swiglu(x, b, c, d) + swiglu(x, share, memory, d)
        }
        pub entry given(x: Tensor[4; f32], d: Tensor[4, 2; f32]) -> Tensor[4; f32] {
            return swiglu(x, transpose(d), c, d)
        }""",
        torch.tensor([1.0, 2.0, 3.0, 4.0]),
        torch.ones(4, 2),
    )
    assert "kernels.linear(x, self.b_c_share_memory).chunk(4, -1)" in source
    assert "kernels.swiglu(x, transpose(d), self.c, d)" in source


def test_state_that_is_written_between_the_calls() -> None:
    source = ran(
        """pub entry one(x: Tensor[4; f32]) -> (Tensor[3; f32], Tensor[2; f32], Tensor[4; f32]) {
            let before = linear(seen, a)
            seen = seen + x
            let after = linear(seen, b)
            let old = linear(x, c)
            seen = seen * 2.0
            return (before, after + linear(x, share) + old, seen)
        }""",
        torch.tensor([1.0, 2.0, 3.0, 4.0]),
    )
    assert "kernels.linear(x, self.c_share).chunk(2, -1)" in source


def test_branches_and_loops() -> None:
    source = ran(
        """pub entry one(x: Tensor[4; f32]) -> Tensor[2; f32] {
            var y = linear(x, b)
            var n: i32 = 0
            while n < 3 {
                y = if all[i] (y[i] < 0.5) { linear(x, b) + linear(x, c) } else { y * 0.5 }
                n = n + 1
            }
            return y
        }""",
        torch.tensor([1.0, 2.0, 3.0, 4.0]),
    )
    assert "kernels.linear(x, self.b_c).chunk(2, -1)" in source


def test_finding_them_does_not_depend_on_the_layers() -> None:
    few, many = (optimize(lowered(SOURCE, generics={"Layers": n}), "fast") for n in (2, 40))
    assert generate(few, "fast") == generate(many, "fast")


def test_the_page_shows_what_is_generated() -> None:
    page = (Path(__file__).parents[2] / "docs" / "pytorch.md").read_text()
    section = page.split("## Products of one input\n")[1]
    text, shown = (
        section.split(f"```{word}\n")[1].split("```")[0] for word in ("linnet", "python")
    )
    program = optimize(lowered(f"module gated\n{text}"), "fast")
    assert shown in generate(program, "fast").text


@pytest.mark.slow
def test_one_compiled_function_serves_every_block(model: lt.LinnetModule) -> None:
    compiled: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    mixer = torch.compile(model._code.space["mixer_forward"], backend=backend, fullgraph=True)
    plain = model._code.space["mixer_forward"]
    with torch.no_grad():
        for _ in range(2):
            for block in model.mixers:
                close(mixer(block, X), plain(block, X))
            model.mixers[1].q_proj.weight = nn.Parameter(torch.ones(4, 4), requires_grad=False)
            model(X)
    assert len(compiled) == 1


PEAK = """
import re, sys
import linnet.torch, torch

def peak():
    with open("/proc/self/status") as file:
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", file.read())[1]) * 1024

source, weights = sys.argv[1:]
generics = {"H": 512, "Layers": 24}
linnet.torch.load(source, generics={"Layers": 2})(torch.ones(2, 4))
before = peak()
model = linnet.torch.load(source, generics=generics, weights=weights)
assert "q_k_v_proj_weight" in model.generated_source()
model(torch.ones(1, 512))
print(peak() - before, sum(p.nbytes for p in model.parameters()))
"""


@pytest.mark.slow
def test_loading_keeps_the_peak_near_one_copy(source: Path, tmp_path: Path) -> None:
    wide = lt.load(source, generics={"H": 512, "Layers": 24})
    weights = {path: tensor.numpy() for path, tensor in wide.state_dict().items()}
    write_safetensors(tmp_path / "w.safetensors", weights)
    del wide
    arguments = [sys.executable, "-c", PEAK, str(source), str(tmp_path / "w.safetensors")]
    run = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    grown, kept = map(int, run.stdout.split())
    assert kept > 48 << 20 and grown < kept + (16 << 20)
