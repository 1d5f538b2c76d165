"""What convolution, pooling and resizing must give: PyTorch's own in f64, or written-out pixels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch.nn.functional as F

from std.cases import BF16, F16, F32, FLOATS, ROUNDING, Case, numbers, tensor, wide

# H, W, K, Stride, Pad: a plain one, K = 1, strides above the kernel, Pad = 0 with a window that
# fits once and with pixels left over, padding wider than the kernel, and an even kernel.
SQUARE = (
    (5, 6, 3, 1, 1),
    (4, 3, 1, 1, 0),
    (7, 8, 1, 3, 0),
    (9, 7, 2, 3, 1),
    (3, 3, 3, 2, 0),
    (6, 8, 3, 4, 0),
    (2, 1, 2, 2, 3),
    (1, 1, 3, 1, 1),
    (7, 5, 4, 2, 1),
)


def conv() -> Iterator[Case]:
    """Every case of `std.nn.conv`."""
    yield from padding()
    yield from starts()
    for H, W, K, stride, pad in SQUARE:
        x, weight = numbers(H + W, (2, 3, H, W)), numbers(K, (4, 3, K, K))
        label = f"{H}x{W} K{K} S{stride} P{pad}"
        yield case("conv2d", label, x, weight, None, Stride=stride, Pad=pad)
        yield case("conv1d", label, x[:, :, 0], weight[:, :, 0], None, Stride=stride, Pad=pad)
    sizes = {"StrideH": 1, "StrideW": 3, "PadH": 0, "PadW": 2}
    yield case("conv2d_rect", "f32", numbers(1, (2, 3, 5, 7)), numbers(2, (4, 3, 2, 4)), **sizes)
    for dtype in FLOATS:
        x, weight = numbers(3, (2, 5, 6, 7), dtype), numbers(4, (3, 5, 3, 3), dtype)
        bias = numbers(5, (3,), dtype)
        pad = {"Stride": 2, "Pad": 1}
        yield case("conv2d", f"{dtype} bias", x, weight, bias, **pad)
        yield case("conv1d", f"{dtype} bias", x[:, :, 0], weight[:, :, 0], bias, **pad)
        sizes = {"StrideH": 2, "StrideW": 1, "PadH": 1, "PadW": 0}
        yield case("conv2d_rect", f"{dtype} bias", x, weight[..., :1], bias, **sizes)
    x, weight = numbers(6, (0, 3, 5, 5)), numbers(7, (4, 3, 3, 3))
    yield case("conv2d", "empty batch", x, weight, **pad)
    inputs = {"x": np.zeros((2, 0, 5, 5), F32), "weight": np.zeros((4, 0, 3, 3), F32)}
    yield Case("std.nn.conv.conv2d", "no channels", inputs, np.zeros((2, 4, 3, 3), F32), pad)
    # Kept in f32 the sum is 261, which rounds to 260, and 260 + 1 to 260 again.
    x = np.array([256, 1, 1, 1, 1, 1], BF16).reshape(1, 6, 1, 1)
    inputs = {"x": x, "weight": np.ones((1, 6, 1, 1), BF16), "bias": np.ones(1, BF16)}
    expected = np.full((1, 1, 1, 1), 260, BF16)
    yield Case("std.nn.conv.conv2d", "bf16 steps", inputs, expected, {"Stride": 1, "Pad": 0})


def case(op: str, label: str, x: Any, weight: Any, bias: Any = None, **sizes: int) -> Case:
    """A convolution as PyTorch gives it in f64, the bias added after the rounding."""
    one = op == "conv1d"
    stride = tuple(v for k, v in sizes.items() if k.startswith("Stride"))
    pad = tuple(v for k, v in sizes.items() if k.startswith("Pad"))
    run = F.conv1d if one else F.conv2d
    product = run(tensor(x), tensor(weight), None, stride, pad).numpy().astype(x.dtype)
    if bias is not None:
        shift = wide(bias)[:, None] if one else wide(bias)[:, None, None]
        product = (wide(product) + shift).astype(x.dtype)
    inputs = {"x": x, "weight": weight, "bias": bias}
    return Case(f"std.nn.conv.{op}", label, inputs, product, dict(sizes), ROUNDING[x.dtype])


def padding() -> Iterator[Case]:
    for dtype in FLOATS:
        x = numbers(10, (2, 3, 4, 5), dtype)
        for pad in (0, 2):
            label, both = f"{dtype} {pad}", ((pad, pad),)
            expected = np.pad(x, ((0, 0), (0, 0), *both, *both))
            yield Case("std.nn.conv.zero_pad", label, {"x": x}, expected, {"P": pad})
            expected = np.pad(x[0], ((0, 0), (0, 0), *both))
            yield Case("std.nn.conv.zero_pad1d", label, {"x": x[0]}, expected, {"P": pad})
            expected = np.pad(x, ((0, 0), (0, 0), (1, 1), *both))
            sizes = {"PadH": 1, "PadW": pad}
            yield Case("std.nn.conv.zero_pad_rect", label, {"x": x}, expected, sizes)
    nothing = {"x": np.zeros((1, 1, 0, 0), F32)}
    yield Case("std.nn.conv.zero_pad", "no pixels", nothing, np.zeros((1, 1, 2, 2), F32), {"P": 1})


def starts() -> Iterator[Case]:
    op = "std.nn.conv.window_starts"
    for n, k, stride in ((5, 3, 1), (7, 2, 3), (4, 4, 9), (6, 1, 2)):
        expected = np.array([at for at in range(0, n, stride) if at + k <= n])
        sizes = {"N": n, "K": k, "Stride": stride}
        yield Case(op, f"{n} {k} {stride}", {}, expected, sizes)


def pool() -> Iterator[Case]:
    """Every case of `std.nn.pool`."""
    op = "std.nn.pool.max_pool2d"
    for H, W, K, stride, pad in SQUARE:
        for dtype in FLOATS:
            x = numbers(11, (2, 3, H, W), dtype)
            with np.errstate(over="ignore"):  # -infinity in f16
                lowest = np.float32(-1e30).astype(dtype)
            around = ((0, 0), (0, 0), (pad, pad), (pad, pad))
            edge = np.pad(x, around, constant_values=lowest)
            windows = np.lib.stride_tricks.sliding_window_view(edge, (K, K), (2, 3))
            expected = windows[:, :, ::stride, ::stride].max((-2, -1))
            label = f"{H}x{W} K{K} S{stride} P{pad} {dtype}"
            sizes = {"K": K, "Stride": stride, "Pad": pad}
            yield Case(op, label, {"x": x}, expected, sizes)
            if pad <= K // 2:
                expected = F.max_pool2d(tensor(x), K, stride, pad).numpy().astype(dtype)
                yield Case(op, f"{label} torch", {"x": x}, expected, sizes)
    inf, nan = np.inf, np.nan
    x = np.array([[-inf, -inf, 0], [-inf, nan, inf]], F32).reshape(1, 1, 2, 3)
    expected = np.array([[-1e30, -1e30, 0, 0], [-1e30, nan, nan, inf], [-1e30, nan, nan, inf]], F32)
    sizes = {"K": 2, "Stride": 1, "Pad": 1}
    yield Case(op, "infinities and NaN", {"x": x}, expected[None, None], sizes)

    op = "std.nn.pool.global_average_pool2d"
    for dtype in FLOATS:
        x = numbers(12, (2, 3, 5, 4), dtype)
        expected = wide(x).mean((2, 3)).astype(dtype)
        yield Case(op, f"{dtype}", {"x": x}, expected, {}, ROUNDING[dtype])
    # A sum kept in bf16 would stay at 256.
    x = np.array([256, 1, 1, 1, 1, 1, 1, 1], BF16).reshape(1, 1, 2, 4)
    yield Case(op, "bf16 sum", {"x": x}, np.array([[263 / 8]], BF16))
    x = np.full((1, 1, 4, 4), 60000, F16)
    yield Case(op, "f16 sum", {"x": x}, np.array([[60000]], F16))
    yield Case(op, "one pixel", {"x": x[:, :, :1, :1]}, x[:, :, 0, 0])
    yield Case(op, "empty batch", {"x": x[:0]}, np.zeros((0, 1), F16))
    yield Case(op, "no pixels", {"x": x[:, :, :0]}, np.array([[np.nan]], F16))


def resize() -> Iterator[Case]:
    """Every case of `std.nn.resize`."""
    op = "std.nn.resize.upsample_nearest2d"
    for dtype in FLOATS:
        x = numbers(13, (2, 3, 4, 5), dtype)
        for scale in (1, 2, 3):
            expected = F.interpolate(tensor(x), scale_factor=scale, mode="nearest").numpy()
            label = f"{dtype} {scale}"
            yield Case(op, label, {"x": x}, expected.astype(dtype), {"Scale": scale})
    yield Case(op, "empty batch", {"x": x[:0]}, np.zeros((0, 3, 8, 10), F16), {"Scale": 2})
