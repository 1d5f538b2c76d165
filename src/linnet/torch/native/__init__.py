"""Kernels in C for a CPU: products with weights in any form, attention over what is written, norms.

A call is a record of integers: the op, how many arguments it has, and the arguments (addresses,
strides, sizes). One record runs alone, or many at once after each other, which is how a captured
step runs (`linnet.torch.native.tape`).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import groupby
from typing import Any, cast

import torch
from torch import Tensor

from linnet.native import library
from linnet.torch.native.space import Space
from linnet.torch.native.tape import LOCAL, Kernel, keep, reads, record, unrecorded

__all__ = [
    "KIND",
    "Space",
    "available",
    "bits",
    "has_matrix_units",
    "keep",
    "library",
    "reads",
    "replayed",
    "run",
    "takes",
    "unrecorded",
]

KIND: dict[torch.dtype, int] = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# The places in OPS of run.c.
LINEAR, RMS_NORM, ROPE, SILU_GATED, ADD, ATTEND, ATTENDED, PUT_SPAN, ROWS = range(9)
BLOCKS, BLOCK_ROWS, PROMPT, PACKED, PAGED, PAGED_WHOLE, PUT_TOKENS = range(9, 16)

# Waking other threads takes as long as this much work.
_ALONE = 1 << 16
_LITTLE = 1 << 32  # in a record's count, as in run.c

_pack: dict[int, Callable[..., bytes]] = {n: struct.Struct(f"={n + 2}q").pack for n in range(40)}


@cache
def _entry() -> Callable[[bytes, int, int], None] | None:
    found = library()
    if found is None:
        return None
    found.linnet_run.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
    found.linnet_run.restype = None
    entry: Callable[[bytes, int, int], None] = found.linnet_run
    return entry


def available() -> bool:
    """Whether the kernels are there: a compiler was found."""
    return _entry() is not None


def takes(*tensors: Tensor) -> bool:
    """Whether a kernel may run on these: floats on a CPU, no gradient wanted, nothing traced."""
    first = tensors[0]
    if first.dtype not in KIND or torch.compiler.is_compiling():
        return False
    for tensor in tensors:
        if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
            return False
        # Between devices of a placed module, operands may lie apart.
        if not tensor.is_cpu:
            return False
        if tensor.requires_grad and torch.is_grad_enabled():
            return False
    # Under vmap and the like a tensor stands for many.
    return torch._C._functorch.peek_interpreter_stack() is None and available()


@cache
def has_matrix_units(dtype: torch.dtype) -> bool:
    """Whether the processor multiplies matrices of these 16-bit floats in hardware."""
    features = torch.cpu.get_capabilities()
    wanted = {
        torch.bfloat16: ("amx_bf16", "avx512_bf16"),
        torch.float16: ("amx_fp16", "avx512_fp16"),
    }
    return any(features.get(name, False) for name in wanted.get(dtype, ()))


def run(work: int, op: int, *arguments: int) -> None:
    """The op has run; `work` is about how many numbers it reads or multiplies."""
    entry: Any = _entry()
    record, little = _record(work, op, arguments)
    entry(record, len(arguments) + 2, little)
    tape = LOCAL.tape
    if tape is not None and tape.whole:
        tape.add((record, little))


def _record(work: int, op: int, arguments: Sequence[int]) -> tuple[bytes, bool]:
    """What the library is given, and whether it is little work."""
    count, little = len(arguments), work < _ALONE
    return _pack[count](op, count | _LITTLE if little else count, *arguments), little


def _sum_record(x: Tensor, y: Tensor, out: Tensor) -> tuple[bytes, bool]:
    arguments = (x.data_ptr(), y.data_ptr(), out.data_ptr(), KIND[x.dtype], x.numel())
    return _record(x.numel(), ADD, arguments)


def replayed(
    run: Callable[[], Any], space: Space | None = None
) -> tuple[Any, Callable[[], None] | None]:
    """The results of the run, which took place once, and what lets it take place again into them.

    None where it cannot be recorded: it reads numbers to decide by, or leaves much behind. What it
    leaves lies in `space`, which whatever runs in between may use.
    """
    results, tape = record(run, _sum_record, space or Space())
    if not tape.whole:
        return results, None
    entry: Any = _entry()
    steps: list[Callable[[], Any]] = []
    for kernels, part in groupby(tape.steps, lambda step: isinstance(step, tuple)):
        if not kernels:
            steps += cast(Iterable[Callable[[], Any]], part)
            continue
        records, little = zip(*cast(Iterable[Kernel], part), strict=True)
        together = b"".join(records)
        steps.append(partial(entry, together, len(together) // 8, all(little)))

    def replay(_held: object = (tape.held, tape.space)) -> None:
        """What kernels write into lives as long as this."""
        for step in steps:
            step()

    return results, replay


def run_several(work: int, op: int, calls: Sequence[Sequence[int]]) -> None:
    """The op has run with each of these arguments, one after another; `work` is that of all."""
    entry: Any = _entry()
    records = [_record(work, op, arguments) for arguments in calls]
    together = b"".join(record for record, _ in records)
    entry(together, len(together) // 8, work < _ALONE)
    tape = LOCAL.tape
    if tape is not None and tape.whole:
        for record, little in records:
            tape.add((record, little))


@cache
def bits(x: float) -> int:
    """The f32 as its bits."""
    return int.from_bytes(struct.pack("<f", x), "little")
