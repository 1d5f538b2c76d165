"""Weights from files lie in memory that the system backs with large pages, and are the file's."""

from __future__ import annotations

import mmap
import re
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import linnet.torch as lt
from linnet.torch import pages
from linnet.torch.pages import PAGE, Room, array_of
from linnet.weights import write_safetensors

SOURCE = """module wide
use std.nn.linear::{Linear, BiasedLinear}
use std.nn.mlp::{SwiGlu}

pub block Wide<H: Dim = 32, T: Float = f32> where H > 0 {
    sub mlp: SwiGlu<H, 64, T>
    sub out: BiasedLinear<H, 3, T>
    pub entry forward<N: Dim>(x: Tensor[N, H; T]) -> Tensor[N, 3; T] {
        return out.forward(mlp.forward(x))
    }
}
"""
SHAPES = {
    "mlp.gate.weight": (64, 32),
    "mlp.up.weight": (64, 32),
    "mlp.down.weight": (32, 64),
    "out.weight": (3, 32),
    "out.bias": (3,),
}
linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such pages")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "wide.linnet"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    numbers = np.random.default_rng(0)
    path = tmp_path / "wide.safetensors"
    write_safetensors(path, {n: numbers.normal(size=s).astype("f4") for n, s in SHAPES.items()})
    return path


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of any size are worth large pages."""
    monkeypatch.setattr(pages, "SMALLEST", 1)


def in_large_pages(tensors: Iterable[Tensor]) -> list[bool]:
    """Whether the system has been asked for large pages where each tensor lies."""
    mapped = re.findall(
        r"^([0-9a-f]+)-([0-9a-f]+) .*?^VmFlags:(.*?)$",
        Path("/proc/self/smaps").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    asked = [
        (int(start, 16), int(end, 16)) for start, end, flags in mapped if "hg" in flags.split()
    ]
    return [any(start <= t.data_ptr() < end for start, end in asked) for t in tensors]


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters())


@linux
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_weights_of_a_file(source: Path, weights: Path, any_size: None, dtype: str) -> None:
    options: dict[str, Any] = {"weights": weights, "generics": {"T": dtype}, "cast_dtype": True}
    module = lt.load(source, **options)
    found = tensors_of(module)
    assert set(found) == set(SHAPES)
    assert all(in_large_pages(found.values()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LINNET_LARGE_PAGES", "0")
        plain = lt.load(source, **options)
    assert not any(in_large_pages(tensors_of(plain).values()))
    for path, tensor in tensors_of(plain).items():
        assert torch.equal(found[path], tensor), path
    x = torch.randn(5, 32).to(found["out.weight"].dtype)
    assert torch.equal(module.forward(x), plain.forward(x))


@linux
def test_blocks_of_few_bits(source: Path, weights: Path, any_size: None) -> None:
    module = lt.load(source, weights=weights, storage="q8")
    data = {name: buffer for name, buffer in module.named_buffers() if name.endswith(".data")}
    assert set(data) == {f"{path}.data" for path in SHAPES if path != "out.bias"}
    assert all(in_large_pages(data.values()))


@linux
def test_what_trains_is_not_copied_again(source: Path, weights: Path, any_size: None) -> None:
    module = lt.load(source, weights=weights)
    before = {path: tensor.data_ptr() for path, tensor in tensors_of(module).items()}
    module.set_trainable()
    assert {path: tensor.data_ptr() for path, tensor in tensors_of(module).items()} == before
    kept = weights.read_bytes()
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.add_(1)
    assert weights.read_bytes() == kept


def test_arrays_that_are_given_stay_where_they_are(source: Path, any_size: None) -> None:
    given = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    module = lt.load(source, weights=given)
    assert tensors_of(module)["out.weight"].data_ptr() == given["out.weight"].ctypes.data


@linux
def test_a_room() -> None:
    room = Room(3 * pages.SMALLEST)
    sizes = [(3,), (2, 5), (PAGE,), (pages.SMALLEST // 4 + 1,), (0,)]
    found = [room.empty(size, torch.float32) for size in sizes]
    assert found[-1] is None  # nothing lies nowhere
    spans = []
    for tensor, size in zip(found[:-1], sizes, strict=False):
        assert tensor is not None
        assert tuple(tensor.shape) == size
        assert tensor.data_ptr() % 64 == 0
        assert room.has(tensor)
        assert not tensor.any()
        spans.append((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes))
    spans.sort()
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert not room.has(torch.ones(3))
    halves = room.empty((4,), torch.bfloat16)
    assert halves is not None
    array_of(halves, "bf16")[...] = 1.5
    assert halves.tolist() == [1.5] * 4


@linux
def test_tensors_keep_their_memory() -> None:
    room = Room(pages.SMALLEST)
    tensor = room.copied(torch.arange(1000))
    assert room.has(tensor)
    del room
    assert tensor.tolist() == list(range(1000))


@pytest.mark.parametrize("why", ["few", "asked", "full"])
def test_no_room(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "asked":
        monkeypatch.setenv("LINNET_LARGE_PAGES", "0")
    if why == "full":
        monkeypatch.setattr(pages, "free_memory", lambda device: 2 * pages.SMALLEST - 1)
    room = Room(pages.SMALLEST - (why == "few"))
    assert room.empty((4,), torch.float32) is None
    given = torch.ones(4)
    assert room.copied(given) is given


@linux
def test_large_pages_that_the_system_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Refusing)
    assert Room(pages.SMALLEST).empty((4, 4), torch.float32) is None
