"""Weights of a loaded module as a SafeTensors file, under the names of the checkpoint they came
from or under their paths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from linnet.diagnostics import PlanError
from linnet.torch.express import TORCH_NAMES
from linnet.torch.paths import fitting
from linnet.weights import Bound, write_safetensors

NAMES = ("checkpoint", "linnet")
FLOATS = ("f64", "f32", "bf16", "f16")


@dataclass(frozen=True, slots=True)
class Origin:
    """What a checkpoint calls a weight, and the form in which it has it."""

    name: str
    shape: tuple[int, ...]
    dtype: str | None


def origins(bound: Iterable[Bound]) -> dict[str, Origin]:
    """By the paths that they fill."""
    return {
        one.slot.path: Origin(one.location.name, one.location.shape, one.location.dtype)
        for one in bound
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Stored:
    """A tensor as it goes into the file, converted when it is written and not before."""

    tensor: Tensor
    shape: tuple[int, ...]
    dtype: torch.dtype

    def detach(self) -> Tensor:
        tensor = self.tensor.detach().reshape(self.shape)
        if self.tensor.dtype is torch.uint8:
            return tensor.view(self.dtype)
        return tensor.to(self.dtype)


def save(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    origin: Mapping[str, Origin],
    *,
    names: str,
    dtype: str | None,
    include: str | Iterable[str] | None,
    metadata: Mapping[str, str],
) -> None:
    """The file holds the tensors, by path, that `include` fits; it is whole or not there."""
    place = _place(path)
    if names not in NAMES:
        raise PlanError(f"names={names!r}: choose {' or '.join(map(repr, NAMES))}")
    if dtype is not None and dtype not in FLOATS:
        raise PlanError(f"dtype={dtype!r}: floats are saved as {', '.join(FLOATS)}")
    chosen = list(tensors)
    if include is not None:
        fits = fitting("include", include, tensors, "weight")
        chosen = [p for p in tensors if any(p in found for found in fits.values())]
    stored: dict[str, _Stored] = {}
    of: dict[str, str] = {}
    for one in chosen:
        known = origin.get(one) if names == "checkpoint" else None
        name = known.name if known is not None else one
        if name not in stored:
            stored[name], of[name] = _stored(one, tensors[one], known, dtype), one
        elif not _same(stored[name].tensor, tensors[one]):
            raise PlanError(
                f"the checkpoint has one tensor `{name}` for {of[name]} and {one}, which differ by "
                "now: names='linnet' keeps both"
            )
    try:
        write_safetensors(place, stored, {"format": "pt", **metadata})
    except OSError as error:
        raise PlanError(f"{place}: cannot be written: {error.strerror or error}") from error


def _place(path: str | Path) -> Path:
    place = Path(path)
    if place.is_dir():
        raise PlanError(f"{place} is a directory: name a file in it, as {place / 'w.safetensors'}")
    if place.suffix != ".safetensors":
        raise PlanError(f"{place}: weights are saved as SafeTensors, in a file *.safetensors")
    if not place.parent.is_dir():
        raise PlanError(f"{place}: there is no directory {place.parent}")
    return place


def _stored(path: str, tensor: Tensor, known: Origin | None, dtype: str | None) -> _Stored:
    if tensor.is_meta:
        raise PlanError(f"{path} has no value to save: it is on the meta device")
    wanted = tensor.dtype
    shape = tuple(tensor.shape)
    if known is not None and math.prod(known.shape) == tensor.numel():
        shape = known.shape
    if tensor.dtype.is_floating_point:
        wanted = getattr(torch, TORCH_NAMES[dtype]) if dtype else tensor.dtype
    elif tensor.dtype is torch.uint8 and known is not None and known.dtype == "f8_e4m3":
        wanted = torch.float8_e4m3fn
    return _Stored(tensor, shape, wanted)


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(a, b)))


__all__ = ["Origin", "origins", "save"]
