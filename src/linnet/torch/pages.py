"""Memory in large pages for weights on a CPU, where the system has them.

A processor looks the address of every page up: with pages of 2 MB instead of 4 KB it does so once
for 512, and reads weights from memory faster (`python -m bench.probe` shows by how much).
"""

from __future__ import annotations

import math
import mmap
import os

import torch
from torch import Tensor

from linnet.torch.placement import free_memory
from linnet.weights.arrays import DTYPES, Array

PAGE = 2 << 20
# A few MB are read from the processor's caches anyway.
SMALLEST = 16 << 20
# What is replaced gives its memory back with all that lies in the same chunk.
_CHUNK = 64 << 20
_LINE = 64  # bytes: where a tensor begins, a line of the caches does


class Room:
    """Memory for tensors that are filled one after another; each keeps what it lies in alive.

    There is none for fewer bytes than pay, for more than half of what the machine has left (files
    stay mapped then, and take none), where the system has none to give, or with
    LINNET_LARGE_PAGES=0.
    """

    def __init__(self, expected: int) -> None:
        free = free_memory(torch.device("cpu"))
        fits = free is None or expected <= free // 2
        self._left = expected if expected >= SMALLEST and fits and large_pages() else 0
        self._chunk: mmap.mmap | None = None
        self._at = self._end = 0
        self._chunks: list[tuple[int, int]] = []  # addresses: this holds no memory

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
        """A tensor to be filled, or None where there is no room."""
        size = math.prod(shape) * dtype.itemsize
        if self._left <= 0 or not size:
            return None
        start = -(-self._at // _LINE) * _LINE
        if self._chunk is None or start + size > self._end:
            if not self._more(max(size, min(_CHUNK, self._left))):
                self._left = 0
                return None
            start = self._at
        assert self._chunk is not None
        self._at = start + size
        self._left -= size
        count = math.prod(shape)
        return torch.frombuffer(self._chunk, dtype=dtype, count=count, offset=start).view(shape)

    def has(self, tensor: Tensor) -> bool:
        """Whether the tensor lies in here."""
        start = tensor.data_ptr()
        return any(first <= start < end for first, end in self._chunks)

    def copied(self, tensor: Tensor) -> Tensor:
        """The tensor's values in here; the tensor itself where there is no room."""
        own = self.empty(tuple(tensor.shape), tensor.dtype) if tensor.is_cpu else None
        return tensor if own is None else own.copy_(tensor)

    def _more(self, size: int) -> bool:
        """A chunk that begins where a large page can; what is not touched takes no memory.

        False where the system refuses: a limit of the process, or a kernel without large pages.
        """
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            chunk = mmap.mmap(-1, size + PAGE, flags=flags)
            chunk.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            return False
        self._chunk = chunk
        address = torch.frombuffer(chunk, dtype=torch.uint8, count=1).data_ptr()
        self._at = -address % PAGE
        self._end = self._at + size
        self._chunks.append((address, address + size + PAGE))
        return True


def large_pages() -> bool:
    """Whether the system gives large pages to who asks, and the user has nothing against it."""
    return hasattr(mmap, "MADV_HUGEPAGE") and os.environ.get("LINNET_LARGE_PAGES") != "0"


def array_of(tensor: Tensor, dtype: str) -> Array:
    """The tensor, on a CPU and contiguous, of the language's dtype, as an array in its memory."""
    data = tensor.reshape(-1).view(torch.uint8).numpy()
    return data.view(DTYPES[dtype]).reshape(tuple(tensor.shape))
