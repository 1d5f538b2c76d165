"""Weights kept in blocks of few bits, as GGUF files hold them, and the ops that read them so.

A block is a run of one row: its numbers in 4, 6 or 8 bits, with what scales them. Generated code
calls `linear` and `embedding` where a weight may be stored in this way; nothing keeps its floats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from linnet.torch import kernels, native

# Elements widened at once where there is no native kernel: 4 MB in f32.
PIECE = 1 << 20


class Blocks(nn.Module):
    """A matrix in blocks: where a float one would be a parameter, this stands in the tree.

    `data` has the bytes, `[rows, bytes]`: a buffer, which is saved and loaded as `PATH.data`.
    `dtype` is the program's, which rows have that are read one by one.
    """

    data: Tensor

    def __init__(self, format: str, shape: tuple[int, int], dtype: torch.dtype, data: Tensor):
        super().__init__()
        self.format = format
        self.kind = list(FORMATS).index(format)  # the kernels' number for it
        self.shape = torch.Size(shape)
        self.dtype = dtype
        self.register_buffer("data", data)

    @property
    def device(self) -> torch.device:
        return self.data.device

    def floats(self, start: int, stop: int) -> Tensor:
        """These rows in f32, as GGML widens them."""
        return widen(self.data[start:stop], self.format)

    def extra_repr(self) -> str:
        return f"{self.format}, {list(self.shape)}, {self.dtype}"


Weight = Tensor | Blocks

# ---------------------------------------------------------------- ops


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T`, x as 16-bit numbers with a scale for every 32, then the bias."""
    return _linear(x, weight, bias, wide=False)


def linear_f32(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T`, an f32 x as it is, summed in f32 and rounded once, then the bias."""
    return _linear(x, weight, bias, wide=x.dtype is torch.float32)


def linears(
    x: Tensor, weights: Sequence[Weight], bias: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """`linear` with each of the weights, in one call."""
    return _linears(x, weights, bias, wide=False)


def linears_f32(
    x: Tensor, weights: Sequence[Weight], bias: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """`linear_f32` with each of the weights, in one call."""
    return _linears(x, weights, bias, wide=x.dtype is torch.float32)


def embedding(ids: Tensor, table: Weight) -> Tensor:
    """Rows of the table; an id outside it reads the nearest row."""
    ids = ids.clamp(0, table.shape[0] - 1)
    if not isinstance(table, Blocks):
        return F.embedding(ids, table)
    if table.data.is_cpu and native.available() and not torch.compiler.is_compiling():
        return _rows(ids.long().contiguous(), table)
    rows = table.data[ids.flatten()]
    return widen(rows, table.format).to(table.dtype).reshape(*ids.shape, table.shape[1])


def _linear(x: Tensor, weight: Weight, bias: Tensor | None, *, wide: bool) -> Tensor:
    if not isinstance(weight, Blocks):
        return kernels.linear(x, weight, bias)
    if native.takes(x) and weight.data.is_cpu:
        (product,) = _native(x, (weight,), wide)
    else:
        product = _product(x, weight)
    return product if bias is None else product + bias


def _linears(
    x: Tensor, weights: Sequence[Weight], bias: Sequence[Tensor] | None, *, wide: bool
) -> list[Tensor]:
    stored = [weight for weight in weights if isinstance(weight, Blocks) and weight.data.is_cpu]
    if len(stored) < len(weights) or not native.takes(x):
        shifts: Sequence[Tensor | None] = bias or [None] * len(weights)
        return [_linear(x, w, b, wide=wide) for w, b in zip(weights, shifts, strict=True)]
    products = _native(x, stored, wide)
    return products if bias is None else [y + b for y, b in zip(products, bias, strict=True)]


def _native(x: Tensor, weights: Sequence[Blocks], wide: bool) -> list[Tensor]:
    """The products by a kernel that reads the blocks as they lie."""
    if x.stride(-1) != 1 or not (x.ndim == 2 or x.is_contiguous()):
        x = x.contiguous()
    shape, dtype = x.shape[:-1], x.dtype
    rows, width = shape.numel(), x.shape[-1]
    kind = native.KIND[dtype]
    step = (x.stride(0) if x.ndim == 2 else width) * dtype.itemsize
    outs = [x.new_empty((*shape, weight.shape[0])) for weight in weights]
    calls = [
        (
            x.data_ptr(),
            kind,
            step,
            rows,
            weight.data.data_ptr(),
            weight.kind,
            weight.data.stride(0),
            weight.shape[0],
            width,
            out.data_ptr(),
            weight.shape[0],
            wide,
        )
        for weight, out in zip(weights, outs, strict=True)
    ]
    work = rows * width * sum(weight.shape[0] for weight in weights) // 4
    native.run_several(work, native.BLOCKS, calls)
    return outs


def _rows(ids: Tensor, table: Blocks) -> Tensor:
    width = table.shape[1]
    out = ids.new_empty((*ids.shape, width), dtype=table.dtype)
    native.run(
        out.numel(),
        native.BLOCK_ROWS,
        ids.data_ptr(),
        ids.numel(),
        table.data.data_ptr(),
        table.kind,
        table.data.stride(0),
        width,
        out.data_ptr(),
        native.KIND[table.dtype],
    )
    return out


def dense(weight: Weight) -> Tensor:
    """The matrix in floats, for as long as the caller holds it."""
    if not isinstance(weight, Blocks):
        return weight
    result = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
    for start, rows in _pieces(weight):
        result[start : start + len(rows)] = rows
    return result


def _product(x: Tensor, weight: Blocks) -> Tensor:
    """The product over floats of a few rows at a time."""
    wide = x.float()
    result = x.new_empty(*x.shape[:-1], weight.shape[0])
    for start, rows in _pieces(weight):
        result[..., start : start + len(rows)] = F.linear(wide, rows)
    return result


def _pieces(weight: Blocks) -> Iterator[tuple[int, Tensor]]:
    """The first row and the floats of a few rows after another."""
    rows, columns = weight.shape
    step = max(1, PIECE // max(1, columns))
    for start in range(0, rows, step):
        yield start, weight.floats(start, min(rows, start + step))


# ---------------------------------------------------------------- formats


def widen(data: Tensor, format: str) -> Tensor:
    """The numbers that rows of blocks stand for, in f32, bit for bit as GGML widens them."""
    rows = len(data)
    _, width = FORMATS[format]
    numbers = _WIDEN[format](data.reshape(rows, -1, width) if rows else data.reshape(0, 1, width))
    return numbers.reshape(rows, data.shape[1] // width * FORMATS[format][0])


# Numbers and bytes of a block; the order is that of native/blocks.c.
FORMATS: dict[str, tuple[int, int]] = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q8_0": (32, 34),
    "Q6_K": (256, 210),
}


def _half(blocks: Tensor, at: int) -> Tensor:
    """The f16 number at a byte of every block, in f32: `[rows, blocks, 1]`."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """The low halves of the bytes, then the high ones."""
    return torch.cat((packed & 15, packed >> 4), -1)


def _q4_0(blocks: Tensor) -> Tensor:
    return (_nibbles(blocks[..., 2:]).float() - 8) * _half(blocks, 0)


def _q4_1(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[..., 4:]).float() * _half(blocks, 0) + _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[..., 2:].contiguous().view(torch.int8).float() * _half(blocks, 0)


def _q6_k(blocks: Tensor) -> Tensor:
    """Two halves of 128 numbers, four bits of each in one part and two in another."""
    lead = blocks.shape[:-1]
    low = _nibbles(blocks[..., :128].reshape(*lead, 2, 64)).reshape(*lead, 2, 4, 32)
    high = blocks[..., 128:192].reshape(*lead, 2, 1, 32)
    shift = torch.tensor([[0], [2], [4], [6]], dtype=torch.uint8, device=blocks.device)
    levels = low | ((high >> shift & 3) << 4)
    scales = blocks[..., 192:208].contiguous().view(torch.int8).float() * _half(blocks, 208)
    return (levels.float() - 32).reshape(*scales.shape, 16) * scales[..., None]


_WIDEN: dict[str, Callable[[Tensor], Tensor]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
    "Q6_K": _q6_k,
}
