"""A run on a CPU recorded, to take place again without Python: the C kernels in one call.

Between them PyTorch's own ops are called again, each into the memory that its results had. A run
that reads numbers to decide what to do, or that leaves much behind, is not recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map

from linnet.torch.native.space import Space

# What recorded runs leave behind stays in memory: that of a few hundred tokens does no harm.
LARGEST = 256 << 20
_READING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)

Kernel = tuple[bytes, bool]
"""The record of a C kernel, and whether it is little work."""
Step = Kernel | Callable[[], Any]


class _Local(threading.local):
    tape: Tape | None = None


LOCAL = _Local()


class Tape:
    """What a run did, in order; mutable while it is recorded."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.held: list[Any] = []
        self.whole = True
        self._before = space.begin()
        self._steps: list[Step | None] = []
        self._bytes = 0
        # Steps that depend on nothing, by the address of what they made.
        self._constant: dict[int, int] = {}

    @property
    def steps(self) -> list[Step]:
        """What is to take place again."""
        return [step for step in self._steps if step is not None]

    def add(self, step: Step) -> None:
        """A kernel ran, or something else that is called again."""
        self._steps.append(step)

    def hold(self, *results: Any) -> None:
        """The memory of these stays theirs."""
        for result in results:
            if isinstance(result, Tensor):
                self.held.append(result)
                self._bytes += result.nbytes
        self.weigh()

    def keep(self, *views: Any) -> None:
        """These lie in the memory of others, and live as long as the recording."""
        self.held += [x for x in views if isinstance(x, Tensor) and not self.space.has(x)]

    def once(self, step: Step, result: Tensor) -> None:
        """The result is the same every time, unless something is written into it."""
        self.hold(result)
        self._constant[result.untyped_storage().data_ptr()] = len(self._steps)
        self._steps.append(step)

    def changed(self, tensors: Iterator[Tensor]) -> None:
        """Something was written into these."""
        for tensor in tensors:
            self._constant.pop(tensor.untyped_storage().data_ptr(), None)

    def end(self) -> None:
        """The run is over."""
        for at in self._constant.values():
            self._steps[at] = None

    def weigh(self) -> None:
        """A recording that takes too much memory is none."""
        if self._bytes + self.space.bytes > LARGEST:
            self.give_up()

    def give_up(self) -> None:
        """The run goes on, and is not recorded."""
        if self.whole:
            self.space.forget(self._before)
        self.whole = False
        self._steps.clear()
        self._constant.clear()
        self.held.clear()


def keep(*tensors: Tensor) -> None:
    """A recording that is being made keeps the tensors, whose addresses kernels were given."""
    if LOCAL.tape is not None and LOCAL.tape.whole:
        LOCAL.tape.keep(*tensors)


def reads() -> None:
    """A number was read, on which what follows may hang: no recording would be right."""
    if LOCAL.tape is not None:
        LOCAL.tape.give_up()


@contextmanager
def unrecorded() -> Iterator[None]:
    """What takes place meanwhile is part of no recording, and its results are nobody else's."""
    before, LOCAL.tape = LOCAL.tape, None
    try:
        if before is None:
            yield
        else:
            with _disable_current_modes():
                yield
    finally:
        LOCAL.tape = before


class _Ops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what PyTorch's ops do while it is on, and puts their results into the tape's space."""

    def __init__(self, tape: Tape, sum_record: Callable[..., Kernel]) -> None:
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
        if _reads(func, args):
            tape.give_up()
        elif func._schema.is_mutable:
            tape.add(partial(func, *self._shadows(args), **self._shadows(named)))
            tape.changed(_tensors((args, list(named.values()))))
        elif not isinstance(results, Tensor):
            several = results if isinstance(results, (tuple, list)) else ()
            if func.is_view:
                tape.keep(*several)
            else:
                tape.hold(*several)
                given = self._shadows(args), self._shadows(named)
                tape.add(_again(func, *given, results))
        elif func.is_view or _is_part(results, args):
            tape.keep(results)
        elif func.overloadpacket in _CONSTANT:
            tape.once(_again(func, args, named, results), results)
        else:
            return self._computed(func, args, named, results)
        return results

    def _computed(self, func: Any, args: Any, named: dict[str, Any], results: Tensor) -> Tensor:
        """The result in the tape's space, where it will be each time."""
        tape = self.tape
        if not results.is_cpu or type(results) is not Tensor or not results.numel():
            tape.hold(results)
            own = results
        else:
            own = tape.space.like(results)
            tape.weigh()
        if not tape.whole:
            return results
        if func.overloadpacket in _EMPTY:
            return own
        if own is not results:
            own.copy_(results)
        if _is_sum(func, args, named):
            tape.add(self.sum_record(*args, own))
        else:
            again = func, self._shadows(args), self._shadows(named), tape.space.shadow(own)
            tape.add(_again(*again))
        return own

    def _shadows(self, given: Any) -> Any:
        """Arguments for a call that takes place again."""
        return tree_map(self.tape.space.shadow, given)


def _tensors(given: Any) -> Iterator[Tensor]:
    """Every tensor among arguments."""
    for x in given:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, (tuple, list)):
            yield from _tensors(x)


def _is_part(result: Tensor, args: Any) -> bool:
    """Whether the result lies in the memory of an argument."""
    address = result.untyped_storage().data_ptr()
    return any(x.untyped_storage().data_ptr() == address for x in _tensors(args)) and address != 0


def _reads(func: Any, args: Any) -> bool:
    """Whether numbers decide the shape of the result, or are the result."""
    if func is torch.ops.aten.index.Tensor:  # only a mask's do
        return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
    return any(tag in func.tags for tag in _READING)


_CONSTANT = {
    torch.ops.aten.arange,
    torch.ops.aten.full,
    torch.ops.aten.ones,
    torch.ops.aten.scalar_tensor,
    torch.ops.aten.zeros,
}
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
    run: Callable[[], Any], sum_record: Callable[..., Kernel], space: Space
) -> tuple[Any, Tape]:
    """The results of the run, which took place once, and what it did.

    `sum_record` gives the kernel's record for a sum of two tensors into a third; `space` is the
    memory of all recordings of whom the run belongs to.
    """
    tape = Tape(space)
    before, LOCAL.tape = LOCAL.tape, tape
    try:
        with _Ops(tape, sum_record):
            results = run()
    finally:
        LOCAL.tape = before
    tape.end()
    return results, tape
