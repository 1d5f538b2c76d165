"""Memory that the recordings of a module share for what their runs leave between two steps.

They never take place at once, and the results of one are copied before the next: what a run needs
no more serves it again, and each recording begins with all of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_SMALLEST = 1 << 12


def _uses(block: Tensor) -> int:
    """How many tensors lie in the block's memory."""
    storage: Any = block.untyped_storage()
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count


class Space:
    """Blocks of memory, from which tensors are made; mutable."""

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []
        self._idle: list[int] = []
        # The same memory once more, by its address: what lies there counts as no use.
        self._shadows: dict[int, Tensor] = {}

    @property
    def bytes(self) -> int:
        return sum(len(block) for block in self._blocks)

    def begin(self) -> int:
        """Nothing that lies here now is needed by what is recorded next; the number of blocks."""
        self._idle = [_uses(block) for block in self._blocks]
        return len(self._blocks)

    def forget(self, count: int) -> None:
        """Only the first blocks stay, as many as there were when a recording began."""
        for block in self._blocks[count:]:
            del self._shadows[block.data_ptr()]
        del self._blocks[count:], self._idle[count:]

    def has(self, tensor: Tensor) -> bool:
        """Whether the tensor, or what it is a view of, was made here."""
        return tensor.untyped_storage().data_ptr() in self._shadows

    def shadow(self, x: Any) -> Any:
        """The tensor for who calls an op again, whose use of it ends here; else what it is."""
        if not isinstance(x, Tensor) or not self.has(x):
            return x
        block = self._shadows[x.untyped_storage().data_ptr()].view(x.dtype)
        return block.as_strided(x.shape, x.stride(), x.storage_offset())

    def like(self, tensor: Tensor) -> Tensor:
        """A tensor of the same sizes, strides and dtype, whose values are any."""
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        size = (last + 1) * tensor.dtype.itemsize
        block = self._block(size)[:size].view(tensor.dtype)
        return block.as_strided(tensor.shape, tensor.stride())

    def _block(self, size: int) -> Tensor:
        """The smallest block in which nothing lies that is still needed, or a new one."""
        fitting = [
            (len(block), i)
            for i, block in enumerate(self._blocks)
            if len(block) >= size and _uses(block) == self._idle[i]
        ]
        if fitting:
            return self._blocks[min(fitting)[1]]
        # Sizes that double: who comes with a little more each time finds a block too.
        length = max(_SMALLEST, 1 << (size - 1).bit_length())
        block = torch.empty(length, dtype=torch.uint8, device="cpu")
        self._blocks.append(block)
        self._shadows[block.data_ptr()] = torch.from_numpy(block.numpy())
        self._idle.append(_uses(block))
        return block
