"""Pretend accelerators: tensors that say they are on "pretend:1" and keep their values on the CPU.

Every operation checks that its operands are on one device, as a real accelerator would, and is then
computed on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

CPU = torch.device("cpu")
# In inference mode, `to` itself arrives.
_MOVES = ("aten._to_copy.", "aten.copy_.", "aten.to.")


class OnDevice(Tensor):
    """A tensor whose values are `held`, on a device that is not there."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> OnDevice:
        made: OnDevice = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=device,
        )
        made.held = held
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnDevice({self.held}, {self.device})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class Pretending(TorchDispatchMode):
    """What is created on an accelerator is pretended to be there."""

    def __init__(self) -> None:
        super().__init__()
        self.moves: list[tuple[str, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) == "aten._to_copy.default" and (kwargs or {}).get("device") is not None:
            self.moves.append((str(args[0].device), str(kwargs["device"])))
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
    devices = {t.device for t in tensors if t.dim() or t.device != CPU}
    asked = kwargs.get("device")
    if len(devices) > 1 and not str(func).startswith(_MOVES):
        raise RuntimeError(f"{func} met tensors on {sorted(map(str, devices))}")
    device = torch.device(asked) if asked is not None else next(iter(devices), CPU)
    if str(func) == "aten.copy_.default":
        device = args[0].device
    plain_args, plain = tree_map_only(OnDevice, lambda t: t.held, (args, kwargs))
    if asked is not None:
        plain["device"] = CPU
        plain.pop("pin_memory", None)
    out = func(*plain_args, **plain)
    if device == CPU:
        return out
    known = {id(t.held): t for t in tensors if isinstance(t, OnDevice) and t.device == device}
    return tree_map_only(
        Tensor, lambda t: known[id(t)] if id(t) in known else OnDevice(t, device), out
    )


@cache
def _registered() -> None:
    """PyTorch knows the name of the devices."""
    backend_registration._setup_privateuseone_for_python_backend("pretend")


@contextmanager
def pretended(count: int = 2) -> Iterator[Pretending]:
    """Inside, `pretend:0` to `pretend:{count - 1}` can be named."""
    _registered()
    mode = Pretending()
    with mode:
        yield mode
