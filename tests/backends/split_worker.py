"""What each of two processes does in the tests of split models: it runs the model that it holds a
shard of, and compares with what the whole model gave.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

COUNT = 2
# How far sums in another order may be from those of one process, in f32.
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
Case = Callable[..., None]


def together(case: Case, *arguments: Any) -> None:
    """The case runs in two processes, each of which is told its mesh; what fails there, fails."""
    import torch.multiprocessing as mp

    mp.spawn(_one, (os.getpid(), case, arguments), COUNT)


def _one(rank: int, parent: int, case: Case, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    place = f"file:///tmp/linnet-split-{parent}"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=COUNT)
    try:
        case(init_device_mesh("cpu", (COUNT,)), *arguments)
    finally:
        dist.destroy_process_group()


@contextmanager
def mesh(rank: int, *sizes: int, names: tuple[str, ...] | None = None) -> Iterator[DeviceMesh]:
    """The mesh as the process of that rank sees it, without the others."""
    count = int(torch.tensor(sizes).prod())
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
    try:
        yield init_device_mesh("cpu", sizes, mesh_dim_names=names)
    finally:
        dist.destroy_process_group()


def poisoned(tensors: Mapping[str, np.ndarray], axes: Mapping[str, int], rank: int) -> Any:
    """The tensors with no number left in what other ranks hold."""
    out: dict[str, np.ndarray] = {}
    for name, whole in tensors.items():
        stem = name.split(".")[-2]
        out[name] = whole
        if stem in axes:
            out[name] = np.full_like(whole, np.nan)
            extent = whole.shape[axes[stem]] // COUNT
            run: list[slice] = [slice(None)] * whole.ndim
            run[axes[stem]] = slice(rank * extent, (rank + 1) * extent)
            out[name][tuple(run)] = whole[tuple(run)]
    return out


ENTRIES = ("forward", "prefill", "decode", "decode_rows", "prefill_packed", "generate")
LOSSES = ("loss_packed", "log_probs_packed")


def computed(model: Any) -> dict[str, Any]:
    """What a decoder's entries give for some inputs, and the gradients of its loss."""
    draw = np.random.default_rng(4)
    ids = torch.from_numpy(draw.integers(0, 96, (2, 5)).astype(np.int32))
    row, of = ids[:, :1].contiguous(), torch.tensor([6, 3], dtype=torch.int32)
    packed = ids.flatten()[:7].contiguous()
    at = torch.tensor([0, 1, 2, 3, 0, 1, 2], dtype=torch.int32)
    segments = torch.tensor([0, 0, 0, 0, 1, 1, 1], dtype=torch.int32)
    targets = torch.from_numpy(draw.integers(0, 96, (7,)))
    weights = torch.tensor([0.25, 0.25, 0.0, 0.5, 0.125, 0.125, 0.25])
    calls: list[tuple[str, tuple[Any, ...], dict[str, int]]] = [
        ("forward", (ids,), {}),
        ("prefill", (ids, 0), {}),
        ("decode", (row, 5), {}),
        ("decode_rows", (row, of), {}),
        ("prefill_packed", (packed, segments, at, segments, torch.tensor([3, 6]).int()), {}),
        ("decode_rows", (row, of), {}),
        ("generate", (row, 7), {"Steps": 4}),
        ("log_probs_packed", (packed, at, segments, targets), {}),
    ]
    out: dict[str, Any] = {}
    with torch.no_grad():
        for number, (name, inputs, sizes) in enumerate(calls):
            if name in model.entries:
                out[f"{number} {name}"] = model.run_entry(name, inputs, sizes)
    loss = model.loss_packed(packed, at, segments, targets, weights)
    loss.backward()
    gradients = {path: parameter.grad for path, parameter in model.named_parameters()}
    return {**out, "loss": loss.detach(), "gradients": gradients}


def split(mesh: DeviceMesh, load: Callable[..., Any], files: list[Path], expected: Path) -> None:
    """The shards give what the whole model gives, each gradient or its part included."""
    model = load(weights=files[mesh.get_local_rank()], trainable=True, tensor_parallel=mesh)
    model.save_weights(expected.with_name("saved.safetensors"))
    compare(model, computed, expected)


def compare(model: Any, run: Callable[[Any], dict[str, Any]], expected: Path) -> None:
    """What the shard computes is what the whole model did, of gradients the part that it holds."""
    assert model.parts and all(part.count == COUNT for part in model.parts.values())
    found, whole = run(model), torch.load(expected)
    gradients, of = found.pop("gradients"), whole.pop("gradients")
    torch.testing.assert_close(found, whole, **CLOSE)
    assert gradients.keys() == of.keys()
    for path, gradient in gradients.items():
        part = model.parts.get(path)
        same = part.cut(of[path]) if part is not None else of[path]
        torch.testing.assert_close(gradient, same, **CLOSE, msg=lambda m, p=path: f"{p}: {m}")


def trained(model: Any) -> dict[str, Any]:
    """What `forward` gives, and the gradients of the sum of its squares, that of x among them."""
    x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
    y = model(x)
    y.square().sum().backward()
    gradients = {path: parameter.grad for path, parameter in model.named_parameters()}
    return {"y": y.detach(), "x": x.grad, "gradients": gradients}


def split_by_rules(mesh: DeviceMesh, load: Callable[..., Any], expected: Path) -> None:
    """The shards compute and learn what the whole model does."""
    compare(load(tensor_parallel=mesh), trained, expected)
