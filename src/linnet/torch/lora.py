"""Low-rank adapters beside frozen weights: what generated code calls, which weights may have one,
and how they come and go."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from linnet.core.ir import (
    Call,
    Element,
    For,
    Function,
    If,
    Node,
    Permute,
    Program,
    Reshape,
    Result,
    functions_of,
    operands,
)
from linnet.diagnostics import PlanError
from linnet.emit import ordered
from linnet.lora import adapter_names, initial_down, is_adapter
from linnet.torch.paths import fitting

if TYPE_CHECKING:
    from linnet.torch.training import Training

LINEAR = "std.nn.linear::linear"
# The file's metadata: alpha by the weight's path.
ALPHA = "linnet.lora_alpha"
_SCALES = "_lora_scales"  # of a block: by the names of its adapted weights


# ---------------------------------------------------------------- what generated code calls


def linear(
    x: Tensor, block: nn.Module, bias: Tensor | None = None, *, name: str = "weight"
) -> Tensor:
    """`x @ weight.T`, what the weight's adapter adds to it, and the bias."""
    weight = block._parameters[name]
    assert weight is not None
    product: Tensor = F.linear(x, weight)
    scale = getattr(block, _SCALES, {}).get(name)
    if scale is not None:
        down, up = _parts(block, name)
        low = F.linear(x.to(down.dtype), down)
        product = product + (F.linear(low, up) * scale).to(product.dtype)
    return product if bias is None else product + bias


def weight(block: nn.Module, *, name: str = "weight") -> Tensor:
    """The weight with its adapter, if it has one, as one matrix."""
    own = block._parameters[name]
    assert own is not None
    scale = getattr(block, _SCALES, {}).get(name)
    if scale is None:
        return own
    down, up = _parts(block, name)
    whole: Tensor = own.to(down.dtype) + (up @ down) * scale
    return whole.to(own.dtype)


def _parts(block: nn.Module, name: str) -> tuple[Tensor, Tensor]:
    down, up = (block._parameters[part] for part in adapter_names(name))
    assert down is not None and up is not None
    return down, up


# ---------------------------------------------------------------- which weights may have one


def linear_weights(program: Program) -> set[str]:
    """The manifest's paths of the params that are the weight of a `linear`, or a view of one."""
    search = _Search()
    found: set[str] = set()
    for function in program.entries.values():
        for i in search.reaching(function)[0]:
            param = function.params[i]
            if param.kind == "param":
                found.add(param.name)
    return found


class _Search:
    """Which params of a function become the weight of a `linear`, and which its results view."""

    def __init__(self) -> None:
        self._known: dict[Function, tuple[frozenset[int], list[frozenset[int]]]] = {}

    def reaching(self, function: Function) -> tuple[frozenset[int], list[frozenset[int]]]:
        if function not in self._known:
            self._known[function] = self._look(function)
        return self._known[function]

    def _look(self, function: Function) -> tuple[frozenset[int], list[frozenset[int]]]:
        none = frozenset[int]()
        views: dict[Node, frozenset[int]] = {
            p: frozenset((i,)) for i, p in enumerate(function.params)
        }
        weights: set[int] = set()
        for node in ordered(function.results):
            given = [views.get(x, none) for x in operands(node)]
            match node:
                case Permute(x) | Reshape(x) | Element(x):
                    views[node] = views.get(x, none)
                case Result(Call(callee, inputs), index) if index < len(callee.value_results):
                    of = [views.get(x, none) for x in inputs]
                    for i in self.reaching(callee)[1][index]:
                        views[node] = views.get(node, none) | of[i]
                case Result(If(_, then, other) as branch, index):
                    of = [views.get(x, none) for x in operands(branch)][1:]
                    for body in (then, other):
                        for i in self.reaching(body)[1][index]:
                            views[node] = views.get(node, none) | of[i]
                case Call(callee) if str(callee.op) == LINEAR:
                    weights |= given[1]
                case _:
                    for callee in functions_of(node):
                        # A loop's counter is no operand; a condition is none of its branches'.
                        first = 1 if isinstance(node, For) else 0
                        own = given[len(given) - len(callee.params) + first :]
                        for i in self.reaching(callee)[0]:
                            weights |= own[i - first] if i >= first else none
        return frozenset(weights), [views.get(r, none) for r in function.results]


# ---------------------------------------------------------------- how they come and go


@dataclass(frozen=True, slots=True)
class Adapter:
    """A weight's adapter: what it adds is of this rank, times alpha / rank."""

    rank: int
    alpha: float

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def adaptable(module: Training, patterns: str | Iterable[str]) -> list[str]:
    """The weights that fit and can have an adapter: matrices of a `linear` that no other path
    shares. Each pattern fits one at least."""
    linears = linear_weights(module.program)
    general = {
        path: entry.path for entry in module.program.manifest.entries for path in entry.expanded()
    }
    held = dict(module.named_parameters(remove_duplicate=False))
    paths = [path for path in held if not is_adapter(path)]
    sharing: dict[int, list[str]] = {}
    for path in paths:
        sharing.setdefault(id(held[path]), []).append(path)
    chosen: set[str] = set()
    for pattern, fits in fitting("add_lora", patterns, paths, "weight").items():
        reasons = {p: _unfit(p, general.get(p), linears, held[p], sharing) for p in fits}
        reasons |= {p: f"{p} is split over devices" for p in fits if p in module.parts}
        fit = [path for path, reason in reasons.items() if reason is None]
        if not fit:
            raise PlanError(f"add_lora: {pattern!r} fits no weight to adapt: {reasons[fits[0]]}")
        chosen.update(fit)
    return [path for path in paths if path in chosen]


def _unfit(
    path: str,
    general: str | None,
    linears: set[str],
    weight: Tensor,
    sharing: Mapping[int, list[str]],
) -> str | None:
    """Why the weight cannot have an adapter."""
    if general not in linears or weight.ndim != 2:
        return f"{path} is not the matrix of a linear"
    if not weight.is_floating_point():
        return f"{path} is of {str(weight.dtype).removeprefix('torch.')}"
    others = [other for other in sharing[id(weight)] if other != path]
    return f"{path} is one tensor with {others[0]}, which would change too" if others else None


def check_size(rank: object, alpha: object) -> None:
    if not isinstance(rank, Integral) or isinstance(rank, bool) or rank < 1:
        raise PlanError(f"add_lora: rank is {rank!r}, expected a whole number from 1 on")
    if (
        not isinstance(alpha, Real)
        or isinstance(alpha, bool)
        or not 0 < float(alpha) < float("inf")
    ):
        raise PlanError(f"add_lora: alpha is {alpha!r}, expected a number above 0")


def attach(block: nn.Module, name: str, adapter: Adapter, down: Tensor, up: Tensor) -> None:
    """The block's weight has the adapter, in f32 where the weight is narrower."""
    weight = block._parameters[name]
    assert weight is not None
    dtype = torch.promote_types(weight.dtype, torch.float32)
    for part, tensor in zip(adapter_names(name), (down, up), strict=True):
        value = tensor.to(weight.device, dtype)
        block._parameters[part] = nn.Parameter(value, requires_grad=True)
    setattr(block, _SCALES, {**getattr(block, _SCALES, {}), name: adapter.scale})


def detach(block: nn.Module, name: str) -> None:
    """The block's weight has no adapter."""
    for part in adapter_names(name):
        del block._parameters[part]
    scales = {n: s for n, s in getattr(block, _SCALES).items() if n != name}
    setattr(block, _SCALES, scales)


def first_values(
    shape: Iterable[int], rank: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Down and up of a new adapter, which adds nothing yet."""
    rows, width = shape
    return torch.from_numpy(initial_down(rank, width, rng)), torch.zeros(rows, rank)


# ---------------------------------------------------------------- files of adapters


def metadata(adapters: Mapping[str, Adapter]) -> dict[str, str]:
    alphas = {path: adapter.alpha for path, adapter in adapters.items()}
    return {ALPHA: json.dumps(alphas)} if alphas else {}


def read(path: str | Path, names: Mapping[str, str]) -> dict[str, tuple[Adapter, Tensor, Tensor]]:
    """The adapters of a file that `save_weights` wrote, by the paths of their weights, which
    `names` calls by the checkpoint's names."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            alphas = json.loads((file.metadata() or {}).get(ALPHA, "null"))
            keys = list(file.keys())
            tensors = {key: file.get_tensor(key) for key in keys if is_adapter(key)}
    except (OSError, SafetensorError, ValueError) as error:
        raise PlanError(f"{path}: cannot be read as a file of adapters: {error}") from error
    if not isinstance(alphas, dict) or not tensors:
        raise PlanError(
            f"{path}: has no adapters that save_weights(..., include=linnet.lora.PATTERNS) wrote"
        )
    found: dict[str, tuple[Adapter, Tensor, Tensor]] = {}
    for weight, alpha in alphas.items():
        if weight not in names:
            raise PlanError(f"{path}: has an adapter of {weight}, which this model lacks")
        for known in (weight, names[weight]):
            down, up = (tensors.get(part) for part in adapter_names(known))
            if down is not None and up is not None:
                found[weight] = Adapter(down.shape[0], float(alpha)), down, up
    return found
