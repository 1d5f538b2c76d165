"""A run on a CPU recorded, to take place again without Python: the C kernels in one call.

Between them PyTorch's own ops are called again, each into the memory that its results had. A run
that reads numbers to decide what to do, or that leaves much behind, is not recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Intermediate results of a recorded run stay in memory: those of a step do no harm.
LARGEST = 64 << 20
_READING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class _Local(threading.local):
    tape: Tape | None = None


LOCAL = _Local()


class Tape:
    """What a run did, in order; mutable while it is recorded."""

    def __init__(self) -> None:
        self.parts: list[list[tuple[bytes, bool]] | Callable[[], Any]] = []
        self.held: list[Any] = []
        self.bytes = 0
        self.whole = True

    def add(self, record: bytes, little: bool) -> None:
        """A kernel ran; `little`: it is no work for several threads."""
        last = self.parts[-1] if self.parts else None
        if isinstance(last, list):
            last.append((record, little))
        else:
            self.parts.append([(record, little)])

    def hold(self, *results: Any) -> None:
        """The memory of these stays theirs."""
        for result in results:
            if isinstance(result, Tensor):
                self.held.append(result)
                self.bytes += result.nbytes
        if self.bytes > LARGEST:
            self.give_up()

    def give_up(self) -> None:
        """The run goes on, and is not recorded."""
        self.whole = False
        self.parts.clear()
        self.held.clear()


def keep(*tensors: Tensor) -> None:
    """A recording that is being made keeps the tensors, whose addresses kernels were given."""
    if LOCAL.tape is not None and LOCAL.tape.whole:
        LOCAL.tape.hold(*tensors)


def reads() -> None:
    """A number was read, on which what follows may hang: no recording would be right."""
    if LOCAL.tape is not None:
        LOCAL.tape.give_up()


class _Ops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what PyTorch's ops do while it is on."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape = tape

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        results = func(*args, **named)
        tape = self.tape
        if not tape.whole:
            return results
        if any(tag in func.tags for tag in _READING):
            tape.give_up()
            return results
        several = isinstance(results, (tuple, list))
        tape.hold(*(results if several else (results,)))
        if not tape.whole or func.is_view or func.overloadpacket in _EMPTY:
            return results
        if func._schema.is_mutable:
            tape.parts.append(lambda: func(*args, **named))
        else:
            tape.parts.append(_again(func, args, named, results))
        return results


_EMPTY = {
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.empty_strided,
    torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
}


def _again(func: Any, args: Any, named: dict[str, Any], results: Any) -> Callable[[], None]:
    """Calls the op again and puts its results where they were."""

    def run() -> None:
        new = func(*args, **named)
        if isinstance(new, Tensor):
            results.copy_(new)
            return
        for old, value in zip(results, new, strict=True):
            if isinstance(old, Tensor):
                old.copy_(value)

    return run


def record(run: Callable[[], Any]) -> tuple[Any, Tape]:
    """The results of the run, which took place once, and what it did."""
    tape = Tape()
    before, LOCAL.tape = LOCAL.tape, tape
    try:
        with _Ops(tape):
            return run(), tape
    finally:
        LOCAL.tape = before
