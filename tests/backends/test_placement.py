"""Where the units of a program go: the arithmetic, and what is said where they do not fit."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import linnet.torch as lt
from linnet.diagnostics import PlanError
from linnet.loading import load_source, slots_of
from linnet.torch import placement as placing
from linnet.torch.placement import Placement, Unit, from_map, listed, plan, shown, size_of
from linnet.weights import write_safetensors

CPU, A, B, C = (torch.device(name) for name in ("cpu", "cuda:0", "cuda:1", "cuda:2"))
# Nothing below runs on them.
UNITS = [
    Unit("embedding", {"e": 40}, filed=True),
    *(Unit(f"layers.{i}", {f"l{i}": 20}, state=5, filed=True) for i in range(4)),
    Unit("norm", {"n": 1}, filed=True),
    Unit("lm_head", {"h": 40}, filed=True),
]


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three CUDA devices are there, for planning."""

    def named(given: object, where: str) -> torch.device:
        if str(given) in ("cuda:0", "cuda:1", "cuda:2"):
            return torch.device(str(given))
        return real(given, where)

    real = placing.device_named
    monkeypatch.setattr(placing, "device_named", named)


def test_devices_are_filled_in_order() -> None:
    found = plan(UNITS, {A: 90, B: 90, C: 60})
    assert found.slots == {
        "embedding": 0,
        "layers.0": 0,
        "layers.1": 0,
        "layers.2": 1,
        "layers.3": 1,
        "norm": 1,
        "lm_head": 2,
    }
    assert found.offloaded == () and not found.trivial and found.home == A
    assert found.device_of("layers.2.mlp.up.weight", CPU) == B
    assert found.flags() == (
        *("--place", "layers.2=1", "--place", "layers.3=1", "--place", "norm=1"),
        *("--place", "lm_head=2"),
    )
    assert found.describe() == (
        "cuda:0: embedding, layers.0 to layers.1: 80 bytes weights, 10 bytes state\n"
        "cuda:1: layers.2 to layers.3, norm: 41 bytes weights, 10 bytes state\n"
        "cuda:2: lm_head: 40 bytes weights"
    )


def test_what_fits_on_one_device_is_left_alone() -> None:
    found = plan(UNITS, {A: 181, B: 1})
    assert found.trivial and found.flags() == () and set(found.slots.values()) == {0}


def test_the_rest_is_offloaded_to_the_last_device() -> None:
    found = plan(UNITS, {A: 60, B: 110}, host=1000)
    # On B: 20 of state, and room for the two largest neighbours that are brought.
    assert found.slots["embedding"] == 0 and found.slots["layers.0"] == 1
    assert found.ahead and "layers.0" not in found.offloaded
    kept = [u for u in UNITS if found.slots[u.path] == 1 and u.path not in found.offloaded]
    away = [u for u in UNITS if u.path in found.offloaded]
    pairs = max(a.bytes + b.bytes for a, b in pairwise(away))
    assert sum(u.bytes for u in kept) + 20 + pairs <= 110
    assert found.held == set(found.offloaded)
    assert found.flags()[-2:] == ("--offload", found.offloaded[-1])


@pytest.mark.parametrize("budget", range(60, 190, 5))
def test_a_budget_is_kept_whatever_it_is(budget: int) -> None:
    found = plan(UNITS, {CPU: budget})
    away = [u.bytes for u in UNITS if u.path in found.offloaded]
    kept = sum(u.bytes for u in UNITS if u.path not in found.offloaded)
    pairs = [a + b for a, b in pairwise(away)] if found.ahead else []
    assert kept + 20 + max([0, *away, *pairs]) <= budget
    assert found.held == set()  # a CPU reads the file


def test_too_little_is_said_with_the_sizes() -> None:
    with pytest.raises(PlanError) as caught:
        plan(UNITS, {CPU: 59})
    assert str(caught.value) == (
        "cpu may hold 59 bytes, and with everything offloaded that can be it still holds 60 bytes: "
        "40 bytes for the weights of embedding while it runs and 20 bytes for state, which stays\n"
        "  embedding: 40 bytes weights\n"
        "  layers.0 to layers.3: 20 bytes weights and 5 bytes state each\n"
        "  norm: 1 byte weights\n"
        "  lm_head: 40 bytes weights\n"
        "allow more with max_memory, spread the units over more devices, or bind smaller generics "
        "(Batch and MaxSeq size the state, a narrower dtype the weights)"
    )
    with pytest.raises(PlanError) as caught:
        plan(UNITS, {A: 65, B: 60}, offload=False)
    first, *rest = str(caught.value).splitlines()
    assert first == (
        "offload=False, and the model needs 161 bytes for weights, 20 bytes for state; "
        "allowed and filled:"
    )
    assert rest[0] == "  cuda:0: 65 bytes; fits: embedding, layers.0"
    assert rest[1] == "  cuda:1: 60 bytes; fits: layers.1 to layers.2, norm"


def test_memory_for_what_no_file_holds() -> None:
    units = [Unit(u.path, u.weights, u.state) for u in UNITS]
    with pytest.raises(PlanError, match=r"offloaded weights take .* are allowed: they are in no"):
        plan(units, {A: 60}, host=100)
    # From files, what memory does not hold is read.
    assert plan(UNITS, {A: 60}, host=100).held < set(plan(UNITS, {A: 60}, host=100).offloaded)


def test_a_shared_tensor_counts_once_on_a_device() -> None:
    tied = [*UNITS[:-1], Unit("lm_head", {"e": 40}, filed=True)]
    assert plan(tied, {CPU: 141}).trivial
    assert not plan(UNITS, {CPU: 141}).trivial


# ---------------------------------------------------------------- mappings


def mapped(mapping: dict[str, object], **options: object) -> Placement:
    return from_map(UNITS, mapping, **options)  # type: ignore[arg-type]


def test_the_longest_match_wins() -> None:
    found = mapped({"": "cuda:0", "layers": "cuda:1", "layers.2": "cuda:2", "layers.[3]": A})
    names = {path: str(found.device_of(path, CPU)) for path in found.slots}
    assert names == {
        "embedding": "cuda:0",
        "layers.0": "cuda:1",
        "layers.1": "cuda:1",
        "layers.2": "cuda:2",
        "layers.3": "cuda:0",
        "norm": "cuda:0",
        "lm_head": "cuda:0",
    }


def test_a_path_inside_a_unit_may_agree_with_it() -> None:
    mapped({"": "cuda:0", "layers.*": "cuda:1", "layers.1.mlp": "cuda:1"})


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ({"layers": "cuda:0"}, "embedding has no device: name it, or give the rest one with ''"),
        ({"": "cuda:0", "layer": "cuda:1"}, "'layer' is no member of the program; did you mean"),
        (
            {"": "cuda:0", "layers.1.mlp": "cuda:1"},
            "'layers.1.mlp' would split layers.1 over cuda:0 and cuda:1: a unit lies on one device",
        ),
        ({"": "disk"}, '"disk" is no device: weights that fit nowhere are read from their file'),
        ({"": "cuda:7"}, r"device_map\[''\]: the device 'cuda:7' cannot be used"),
        ({"": "gpu"}, r"device_map\[''\]: the device 'gpu' cannot be used"),
        ({"": "meta"}, "it holds no values"),
    ],
)
def test_a_wrong_mapping(mapping: dict[str, object], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        mapped(mapping)


def test_the_cpu_beside_accelerators_holds_what_is_brought() -> None:
    mapping: dict[str, object] = {"": "cuda:0", "layers.2": "cpu", "layers.3": "cpu"}
    found = mapped(mapping)
    assert found.offloaded == ("layers.2", "layers.3") and set(found.slots.values()) == {0}
    found = mapped(mapping, offload=False)
    assert found.offloaded == () and found.device_of("layers.2", A) == CPU


def test_a_mapping_under_a_limit() -> None:
    found = mapped({"": "cpu"}, budgets={CPU: 110})
    assert found.offloaded and found.slots["lm_head"] == 0
    with pytest.raises(PlanError, match="offload=False, and the model needs"):
        mapped({"": "cpu"}, budgets={CPU: 110}, offload=False)


# ---------------------------------------------------------------- sizes and programs


@pytest.mark.parametrize(
    ("given", "size"),
    [(5, 5), ("10", 10), ("2KiB", 2048), ("1.5 GiB", 3 << 29), ("80GB", 80 * 10**9), ("3m", 3e6)],
)
def test_sizes(given: object, size: float) -> None:
    assert size_of(given, "max_memory['cpu']") == size


@pytest.mark.parametrize("given", ["", "much", -1, 2.5, True, None, "GiB", "1 PB"])
def test_no_sizes(given: object) -> None:
    with pytest.raises(PlanError, match=r"max_memory\['cpu'\] is .*: give bytes, or text such as"):
        size_of(given, "max_memory['cpu']")


def test_names_of_many() -> None:
    assert listed(["a", "l.0", "l.1", "l.2", "m.0", "m.2", "z"]) == "a, l.0 to l.2, m.0, m.2, z"
    assert [shown(n) for n in (1, 2047, 5 << 20, 3 << 40)] == [
        "1 byte",
        "2.0 KiB",
        "5.0 MiB",
        "3.0 TiB",
    ]


SOURCE = """module nested
use std.nn.linear::{Linear}

pub block Inner<H: Dim> {
    sub experts: [Linear<H, H, f32>; 2]
    state count: i32
    pub fn forward<B: Dim>(x: Tensor[B, H; f32]) -> Tensor[B, H; f32] {
        count = count + 1
        var y = x
        static for expert in experts { y = expert.forward(y) }
        return y
    }
}
pub block Trunk<H: Dim, Layers: Dim> {
    sub first: Linear<H, H, f32>
    sub layers: [Inner<H>; Layers]
    pub fn forward<B: Dim>(x: Tensor[B, H; f32]) -> Tensor[B, H; f32] {
        var y = first.forward(x)
        static for layer in layers { y = layer.forward(y) }
        return y
    }
}
pub block Nested<H: Dim = 4, Layers: Dim = 3> {
    sub trunk: Trunk<H, Layers>
    sub head: Linear<H, H, f32>
    param scale: Tensor[H; f32]
    pub entry forward<B: Dim>(x: Tensor[B, H; f32]) -> Tensor[B, H; f32] {
        return head.forward(trunk.forward(x)) * scale
    }
}
"""


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nested") / "nested.linnet"
    path.write_text(SOURCE)
    return path


def test_the_units_of_a_program(nested: Path) -> None:
    program = load_source(nested).program
    units = placing.units_of(program, [], [])
    assert [(u.path, u.bytes, u.state, u.filed) for u in units] == [
        ("trunk.first", 64, 0, False),
        ("trunk.layers.0", 128, 4, False),
        ("trunk.layers.1", 128, 4, False),
        ("trunk.layers.2", 128, 4, False),
        ("head", 64, 0, False),
        ("scale", 16, 0, False),
    ]


def test_loading_says_it_before_reading(
    nested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "free_memory", lambda device: 500)
    with pytest.raises(PlanError) as caught:
        lt.load(nested)
    assert str(caught.value).startswith(
        "Nested does not fit on cpu: 540 bytes must be allocated (528 bytes for weights, 12 bytes "
        "for state), 500 bytes are free\n  trunk.first: 64 bytes weights\n"
    )
    # What lies in a file, in the right form, takes no memory of its own.
    monkeypatch.setattr(placing, "free_memory", lambda device: 20)
    slots = slots_of(load_source(nested).program)
    arrays = {slot.path: np.ones(slot.shape, np.float32) for slot in slots}
    write_safetensors(tmp_path / "w.safetensors", arrays)
    assert lt.load(nested, weights=tmp_path / "w.safetensors").placement.trivial
    half = {path: array.astype(np.float16) for path, array in arrays.items()}
    with pytest.raises(PlanError, match="668 bytes must be allocated"):
        lt.load(nested, weights=half, cast_dtype=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_memory": {"cpu": 1}}, 'max_memory goes with device_map: add device_map="auto"'),
        ({"device_map": "balanced"}, "device_map='balanced': it is \"auto\", or a mapping"),
        ({"device_map": "auto", "max_memory": "1GiB"}, "max_memory='1GiB': it maps devices to"),
        ({"device_map": "auto", "max_memory": {"cpu": "?"}}, "is '[?]': give bytes, or text"),
        ({"device_map": "auto", "max_memory": {5: 1}}, r"max_memory\[5\]: the device 5 cannot"),
        ({"device_map": "auto", "offload": "yes"}, "offload='yes': it is True or False"),
    ],
)
def test_options_that_say_nothing(nested: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        lt.load(nested, **options)  # type: ignore[arg-type]
