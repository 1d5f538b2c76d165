"""A model split over the processes of a mesh: what they say to each other, and what each holds.

`Shards.all_reduce` and `Shards.shared` are each other's gradient (Megatron's g and f).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from linnet.backends import Kernel, Kernels
from linnet.diagnostics import PlanError
from linnet.policy import Policy
from linnet.torch.kernels import KERNELS, token_log_probs
from linnet.weights.part import Part, Shard

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """This process's shard of a model, and the group of processes that hold the others.

    Its methods are kernels of `std.nn.parallel` and of the split losses; every process of the group
    runs them in the same order.
    """

    group: dist.ProcessGroup | None
    shard: Shard

    def __deepcopy__(self, memo: dict[int, object]) -> Shards:
        """A copy of the model meets the others through the same group."""
        return self

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of the shards' x; its gradient passes through."""
        return _AllReduce.apply(x, self.group)  # type: ignore[no-any-return, no-untyped-call]

    def shared(self, x: Tensor) -> Tensor:
        """x, which is the same in every shard; its gradient is the sum of the shards'."""
        if not (x.requires_grad and torch.is_grad_enabled()):
            return x
        return _Shared.apply(x, self.group)  # type: ignore[no-any-return, no-untyped-call]

    def all_gather(self, x: Tensor, *, Shards: int) -> Tensor:
        """The shards' columns side by side; the gradient of x is its own columns'."""
        if self._count("all_gather", Shards) == 1:
            return x
        return _AllGather.apply(x, self)  # type: ignore[no-any-return, no-untyped-call]

    def token_log_probs(
        self, hidden: Tensor, weight: Tensor, targets: Tensor, *, Shards: int
    ) -> Tensor:
        """The log-probability of each row's target, each shard holding its rows of the weight.

        No shard ever holds the logits of another's rows.
        """
        logits = F.linear(hidden, weight)
        if self._count("split_token_log_probs", Shards) == 1:
            return token_log_probs(logits, targets)
        return _TokenLogProbs.apply(logits, targets, self)  # type: ignore[no-any-return, no-untyped-call]

    def cross_entropy(
        self, hidden: Tensor, weight: Tensor, targets: Tensor, weights: Tensor, *, Shards: int
    ) -> Tensor:
        """The sum of `weights * -log p(targets)`; a weight of 0 removes its row."""
        loss = -self.token_log_probs(hidden, weight, targets, Shards=Shards)
        return torch.where(weights == 0, 0.0, weights * loss).sum()

    def collected(
        self, tensors: Mapping[str, Tensor], parts: Mapping[str, Part]
    ) -> dict[str, Tensor]:
        """The whole model's tensors, in the first process; in the others what they have."""
        first = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        out = dict(tensors)
        for path, tensor in tensors.items():
            if path not in parts:
                continue
            own = tensor.detach().contiguous()
            room = range(self.shard.count) if self.shard.index == 0 else ()
            received = [torch.empty_like(own) for _ in room]
            dist.gather(own, received or None, dst=first, group=self.group)
            if received:
                out[path] = torch.cat(received, parts[path].axis).cpu()
        return out

    def _count(self, op: str, shards: int) -> int:
        if shards not in (1, self.shard.count):
            raise PlanError(
                f"{op} is over {shards} shards, in a model split over {self.shard.count} devices"
            )
        return shards

    def _sum(self, x: Tensor) -> Tensor:
        dist.all_reduce(x, group=self.group)
        return x


def joined(mesh: object, device: torch.device) -> Shards:
    """This process's place in a mesh of one dimension, whose devices are the model's."""
    if not dist.is_available():
        raise PlanError("tensor_parallel needs a PyTorch with torch.distributed")
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(mesh, DeviceMesh):
        raise PlanError(
            f"tensor_parallel is of type {type(mesh).__name__}; it takes a DeviceMesh: under "
            'torchrun, torch.distributed.device_mesh.init_device_mesh("cpu", (2,))'
        )
    if not dist.is_initialized():
        raise PlanError(
            "tensor_parallel: torch.distributed is not initialised: run under torchrun, and make "
            "the mesh with torch.distributed.device_mesh.init_device_mesh"
        )
    if mesh.ndim != 1:
        sizes = ", ".join(map(str, mesh.shape))
        names = mesh.mesh_dim_names
        chosen = f'mesh["{names[-1]}"]' if names else 'mesh["tp"], of a mesh with mesh_dim_names'
        raise PlanError(
            f"tensor_parallel is a mesh of {mesh.ndim} dimensions ({sizes}); a model is split over "
            f"one of them: {chosen}"
        )
    if mesh.get_coordinate() is None:
        raise PlanError(
            f"tensor_parallel: this process, rank {dist.get_rank()}, is not in the mesh "
            f"{mesh.mesh.flatten().tolist()}"
        )
    if mesh.device_type != device.type:
        raise PlanError(
            f"tensor_parallel is a mesh of {mesh.device_type} devices and the model goes to "
            f"{device}: pass device={_own_device(mesh)!r}"
        )
    return Shards(mesh.get_group(), Shard(mesh.get_local_rank(), mesh.size()))


def eager(compile: object) -> bool:
    """False: a split model runs as generated source, and is asked for nothing else."""
    if compile is not None and compile is not False:
        raise PlanError(
            f"compile={compile!r} with tensor_parallel: a split model runs as generated source; "
            "leave one of them out"
        )
    return False


def world() -> Shards:
    """This process's place among all of them."""
    return Shards(None, Shard(dist.get_rank(), dist.get_world_size()))


def _own_device(mesh: DeviceMesh) -> str:
    if mesh.device_type == "cpu":
        return "cpu"
    return f"{mesh.device_type}:{torch.get_device_module(mesh.device_type).current_device()}"


# ---------------------------------------------------------------- collectives


class _AllReduce(torch.autograd.Function):
    """The sum over a group; the gradient as it comes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        # Not in place: what is summed may be read again.
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Shared(torch.autograd.Function):
    """The value as it is; the gradient summed over a group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _AllGather(torch.autograd.Function):
    """The columns of all shards; the gradient of the own ones."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shards: Shards) -> Tensor:
        ctx.shards, ctx.width = shards, x.shape[1]
        count = shards.shard.count
        flat = x.contiguous()
        parts = [torch.empty_like(flat) for _ in range(count)]
        dist.all_gather(parts, flat, group=shards.group)
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        first = ctx.shards.shard.index * ctx.width
        return grad[:, first : first + ctx.width], None


class _TokenLogProbs(torch.autograd.Function):
    """Log-probabilities of targets by the largest logit and the sum over the shards' columns."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, shards: Shards) -> Tensor:
        wide, width = logits.float(), logits.shape[1]
        first = shards.shard.index * width
        peak = wide.amax(1) if width else wide.new_full(wide.shape[:1], float("-inf"))
        dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=shards.group)
        centred = wide - peak[:, None]
        own = targets.clamp(0, width * shards.shard.count - 1) - first
        mine = (own >= 0) & (own < width)
        column = torch.where(mine, own, 0)[:, None]
        chosen = torch.where(mine, centred.gather(1, column)[:, 0], 0.0)
        # One message: the chosen logit, and the sum of the exponents.
        both = shards._sum(torch.stack((chosen, centred.exp().sum(1))))
        normal = both[1].log()
        ctx.save_for_backward(centred, normal, mine, column)
        ctx.dtype = logits.dtype
        return both[0] - normal

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        centred, normal, mine, column = ctx.saved_tensors
        share = -(centred - normal[:, None]).exp() * grad[:, None]
        own = torch.where(mine, grad, 0.0)[:, None]
        return share.scatter_add(1, column, own).to(ctx.dtype), None, None


# ---------------------------------------------------------------- the kernels


_OPS: dict[str, tuple[Policy, str, tuple[str, ...]]] = {
    "std.nn.parallel::all_reduce": ("exact", "all_reduce", ()),
    "std.nn.parallel::shared": ("exact", "shared", ()),
    "std.nn.parallel::all_gather": ("exact", "all_gather", ("Shards",)),
    "std.nn.loss::split_token_log_probs": ("equivalent", "token_log_probs", ("Shards",)),
    "std.nn.loss::split_cross_entropy": ("equivalent", "cross_entropy", ("Shards",)),
}
# The ops that communicate, in place of what they are on one device.
SPLIT_KERNELS: Kernels = {
    **KERNELS,
    **{op: (Kernel(policy, f"SHARDS.{run}", (), dims=d),) for op, (policy, run, d) in _OPS.items()},
}
