"""A run on a CPU recorded, to take place again without Python: the C kernels in one call.

Between them PyTorch's own ops are called again, each into the memory that its results had. A run
that reads numbers to decide what to do, or that leaves much behind, is not recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
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

    def __init__(self, tape: Tape, sum_record: Callable[..., tuple[bytes, bool]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape = tape
        self.sum_record = sum_record

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: nothing is compiled here, and importing what would be skipped takes seconds."""
        return False

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
        if _is_sum(func, args, named):
            tape.add(*self.sum_record(*args, results))
        elif func._schema.is_mutable:
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


def _is_sum(func: Any, args: Any, named: dict[str, Any]) -> bool:
    """A plain sum of two tensors alike, which a kernel does without a call of Python between."""
    if func is not torch.ops.aten.add.Tensor or named or len(args) != 2:
        return False
    x, y = args
    return (
        isinstance(y, Tensor)
        and x.is_cpu
        and y.is_cpu
        and x.dtype is y.dtype
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and x.shape == y.shape
        and x.is_contiguous()
        and y.is_contiguous()
    )


def _writing(func: Any) -> Any:
    """The variant of the op that writes its one result into memory it is given, or None."""
    packet = func.overloadpacket
    for name in ("out", f"{func._overloadname}_out"):
        if name not in packet.overloads():
            continue
        found = getattr(packet, name)
        *arguments, last = found._schema.arguments
        wanted = [(a.name, str(a.type)) for a in func._schema.arguments]
        if last.is_out and [(a.name, str(a.type)) for a in arguments] == wanted:
            return found
    return None


def _again(func: Any, args: Any, named: dict[str, Any], results: Any) -> Callable[[], Any]:
    """Calls the op again and puts its results where they were."""
    if func is torch.ops.aten._to_copy.default:
        return partial(results.copy_, args[0])
    writing = _writing(func) if isinstance(results, Tensor) else None
    if writing is not None:
        return partial(writing, *args, **named, out=results)

    def run() -> None:
        new = func(*args, **named)
        if isinstance(new, Tensor):
            results.copy_(new)
            return
        for old, value in zip(results, new, strict=True):
            if isinstance(old, Tensor):
                old.copy_(value)

    return run


def record(
    run: Callable[[], Any], sum_record: Callable[..., tuple[bytes, bool]]
) -> tuple[Any, Tape]:
    """The results of the run, which took place once, and what it did.

    `sum_record` gives the kernel's record for a sum of two tensors into a third.
    """
    tape = Tape()
    before, LOCAL.tape = LOCAL.tape, tape
    try:
        with _Ops(tape, sum_record):
            return run(), tape
    finally:
        LOCAL.tape = before
