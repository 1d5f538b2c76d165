"""What quantised weights and experts must give, by `gguf`, `ml_dtypes`, torch or a layout's words.

Experts are multiplied one row at a time in f64, which shares nothing with running all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import torch
from gguf import GGMLQuantizationType, dequantize

from std.cases import BF16, F16, F32, FLOATS, ROUNDING, Case, i32, numbers, tensor, wide


def drawn(seed: int, low: int, high: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """Integers from low to high, both included."""
    return np.random.default_rng(seed).integers(low, high, shape, dtype, endpoint=True)


# --- mixtures ---------------------------------------------------------------------------------


def moe() -> Iterator[Case]:
    """Every case of `std.nn.moe`."""
    for dtype in FLOATS:
        yield from expert_cases("std.nn.moe.", f"{dtype}", numbers(1, (5, 3, 6), dtype), dtype, 4)
    yield from expert_cases("std.nn.moe.", "one expert", numbers(1, (5, 3, 6)), F32, 1)
    yield from expert_cases("std.nn.moe.", "no rows", numbers(1, (0, 3, 6)), F32, 4)
    # Rounded to bf16 the products would be 256 and 0, and their sum 256.
    x = np.array([256, 1], BF16).reshape(1, 2, 1)
    inputs = {
        "x": x,
        "weight": np.ones((1, 1, 1), BF16),
        "experts": np.zeros((1, 2), np.int64),
        "weights": np.array([[1, 3]], BF16),
    }
    yield Case("std.nn.moe.combine_experts", "one rounding", inputs, np.array([[260]], BF16))


def expert_cases(prefix: str, label: str, x: Any, dtype: Any, count: int) -> Iterator[Case]:
    rows, picked, width = x.shape
    weight = numbers(2, (count, 4, width), dtype)
    experts = drawn(3, 0, count - 1, (rows, picked), np.int64)
    if rows:
        experts[0] = [0, count - 1, count - 1]
    weights = numbers(4, (rows, picked), dtype)
    yield from each_expert(prefix, label, x, weight, experts, weights, {"weight": weight})
    outside = np.where(experts == 0, -3, np.where(experts == count - 1, 2**40, experts))
    label += " outside is clamped"
    inside = np.clip(outside, 0, count - 1)
    for case in each_expert(prefix, label, x, weight, inside, weights, {"weight": weight}):
        case.inputs["experts"] = outside
        yield case


def each_expert(
    prefix: str, label: str, x: Any, weight: Any, experts: Any, weights: Any, stored: dict[str, Any]
) -> Iterator[Case]:
    """The three forms: an input for each expert, one for all of a row, and their weighted sum."""
    rows, picked, _ = x.shape
    own, shared = np.zeros((2, rows, picked, weight.shape[1]))
    for r in range(rows):
        for k in range(picked):
            matrix = wide(weight[experts[r, k]])
            own[r, k], shared[r, k] = matrix @ wide(x[r, k]), matrix @ wide(x[r, 0])
    mixed = np.einsum("rk,rko->ro", wide(weights), own)
    names = {"own": "linear_experts", "shared": "linear_experts_shared", "mixed": "combine_experts"}
    given = {**stored, "experts": experts}
    if "blocks" in stored:
        names = {"own": "experts", "shared": "linear_experts_shared", "mixed": "combine_experts"}
        one = {"x": x[:, :1], **given}
        op = f"{prefix}experts_shared"
        yield Case(op, label, one, shared.astype(x.dtype), {}, ROUNDING[x.dtype])
    tolerance = ROUNDING[x.dtype]
    yield Case(prefix + names["own"], label, {"x": x, **given}, own.astype(x.dtype), {}, tolerance)
    inputs = {"x": x[:, 0], **given}
    yield Case(prefix + names["shared"], label, inputs, shared.astype(x.dtype), {}, tolerance)
    inputs = {"x": x, **given, "weights": weights}
    yield Case(prefix + names["mixed"], label, inputs, mixed.astype(x.dtype), {}, tolerance)


# --- quantised weights ------------------------------------------------------------------------


def quant() -> Iterator[Case]:
    """Every case of `std.quant`."""
    yield from int8()
    yield from int4()
    yield from int4_groups()
    yield from mxfp4()
    yield from mxfp4_experts()
    yield from fp8()


def int8() -> Iterator[Case]:
    op = "std.quant.dequantize_int8"
    q = np.arange(-128, 128, dtype=np.int8).reshape(2, 4, 32)
    scale = np.abs(numbers(5, (2, 4)))
    for dtype in FLOATS:
        expected = (q.astype(F32) * scale[..., None]).astype(dtype)
        yield Case(op, f"{dtype}", {"q": q, "scale": scale}, expected, {"T": dtype})
    row = {"q": q[0, 0], "scale": scale[0, 0]}
    expected = q[0, 0].astype(F32) * scale[0, 0]
    yield Case(op, "one row", row, expected, {"T": F32})
    nothing = {"q": q[0, :, :0], "scale": scale[0]}
    yield Case(op, "no inputs", nothing, np.zeros((4, 0), F32), {"T": F32})


def int4() -> Iterator[Case]:
    every = np.arange(256, dtype=np.uint8).view(np.int8).reshape(4, 64)
    # ml_dtypes reads the same halves: a signed 4-bit number by its low bits.
    halves = np.stack([every.view(np.uint8) & 15, every.view(np.uint8) >> 4], -1)
    values = halves.view(np.int8).astype(ml_dtypes.int4).astype(np.int8).reshape(4, 128)
    assert values[0, 2:4].tolist() == [1, 0] and set(values.ravel()) == set(range(-8, 8))
    yield Case("std.quant.unpack_int4", "every byte", {"packed": every}, values)
    nothing = {"packed": every[:, :0]}
    yield Case("std.quant.unpack_int4", "no bytes", nothing, np.zeros((4, 0), np.int8))
    scale = np.abs(numbers(6, (4,)))
    for dtype in FLOATS:
        expected = (values.astype(F32) * scale[:, None]).astype(dtype)
        inputs = {"packed": every, "scale": scale}
        yield Case("std.quant.dequantize_int4", f"{dtype}", inputs, expected, {"T": dtype})


def mat_mul_n_bits(packed: Any, scale: Any, zero: Any) -> np.ndarray:
    """The weight [N, K] of ONNX Runtime's MatMulNBits with 4 bits, written out one input at a time.

    `packed` is [N, blocks, bytes], an input's bits at byte i / 2, the lower ones for even i.
    """
    outputs, blocks, width = packed.shape
    weight = np.zeros((outputs, blocks * width * 2))
    for n in range(outputs):
        for k in range(weight.shape[1]):
            block, i = divmod(k, 2 * width)
            byte = int(packed[n, block, i // 2])
            code = byte % 16 if i % 2 == 0 else byte // 16
            weight[n, k] = (code - int(zero[n, block])) * float(scale[n, block])
    return weight


def int4_groups() -> Iterator[Case]:
    for out, groups, half in ((3, 2, 4), (2, 3, 1), (1, 1, 16)):
        packed = drawn(7, 0, 255, (out, groups, half), np.uint8)
        zero = drawn(8, 0, 15, (out, groups), np.uint8)
        for dtype in FLOATS:
            scale = np.abs(numbers(9, (out, groups))).astype(dtype)
            weight = mat_mul_n_bits(packed, scale, zero).astype(F32).astype(dtype)
            stored = {"packed": packed, "scale": scale, "zero": zero}
            label = f"{dtype} {out} {groups} {half}"
            yield Case("std.quant.dequantize_int4_groups", label, stored, weight)
            x = numbers(10, (2, 3, groups * 2 * half), dtype)
            bias = numbers(11, (out,), dtype)
            product = (wide(x) @ wide(weight).T).astype(dtype)
            op = "std.quant.linear_int4_groups"
            given = {"x": x, **stored, "bias": None}
            yield Case(op, label, given, product, {}, ROUNDING[dtype])
            shifted = (wide(product) + wide(bias)).astype(dtype)
            given = {"x": x, **stored, "bias": bias}
            yield Case(op, f"{label} bias", given, shifted, {}, ROUNDING[dtype])
    for dtype in FLOATS:
        x = numbers(12, (2, 3, 5), dtype)
        order = i32(3, 0, 4, 1, 2)
        yield Case(
            "std.quant.take_inputs", f"{dtype}", {"x": x, "order": order}, x[..., [3, 0, 4, 1, 2]]
        )
    outside = {"x": x[0, 0], "order": i32(-1, 5, 2, 2**31 - 1, -(2**31))}
    yield Case("std.quant.take_inputs", "outside is clamped", outside, x[0, 0, [0, 4, 2, 4, 0]])


def mxfp4_values(blocks: Any, scales: Any) -> np.ndarray:
    """By `ml_dtypes`: E2M1 numbers times an E8M0 scale, in f64."""
    halves = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    codes = halves.view(ml_dtypes.float4_e2m1fn)
    return wide(codes) * wide(scales.view(ml_dtypes.float8_e8m0fnu))[..., None]


def gguf_values(blocks: Any, scales: Any) -> np.ndarray:
    """By `gguf`, whose block is the scale and then, in byte i, elements i and i + 16."""
    halves = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    bytes = halves[..., :16] | halves[..., 16:] << 4
    rows = np.concatenate([scales[..., None], bytes], -1).astype(np.uint8)
    rows = rows.reshape(*rows.shape[:-2], -1)
    return dequantize(rows, GGMLQuantizationType.MXFP4)


def mxfp4() -> Iterator[Case]:
    op = "std.quant.dequantize_mxfp4"
    every = np.arange(256, dtype=np.uint8).reshape(1, 4, 4, 16)
    scales = np.array([127, 128, 126, 120, 66, 70, 190, 180, 127, 130, 60, 10, 200, 255, 0, 127])
    scales = scales.astype(np.uint8).reshape(1, 4, 4)
    held = np.clip(scales, 66, 190)  # beyond, a scale counts as the last one
    expected = mxfp4_values(every, held)
    assert np.array_equal(expected.reshape(1, 4, 128), gguf_values(every, held))
    for dtype in FLOATS:
        with np.errstate(over="ignore"):
            values = expected.reshape(1, 4, 128).astype(dtype)
        generics = {"T": dtype}
        yield Case(op, f"{dtype}", {"blocks": every, "scales": scales}, values, generics)
    nothing = {"blocks": every[:, :0], "scales": scales[:, :0]}
    yield Case(op, "no rows", nothing, np.zeros((1, 0, 128), F32), {"T": F32})


def mxfp4_experts() -> Iterator[Case]:
    for dtype, count in ((F32, 4), (BF16, 4), (F16, 4), (F32, 1)):
        blocks = drawn(13, 0, 255, (count, 5, 2, 16), np.uint8)
        scales = drawn(14, 122, 128, (count, 5, 2), np.uint8)
        weight = mxfp4_values(blocks, scales).reshape(count, 5, 64)
        x, weights = numbers(15, (6, 3, 64), dtype), numbers(16, (6, 3), dtype)
        experts = drawn(17, 0, count - 1, (6, 3), np.int64)
        experts[0] = [0, count - 1, count - 1]
        stored = {"blocks": blocks, "scales": scales}
        label = f"{dtype} {count} experts"
        yield from each_expert("std.quant.mxfp4_", label, x, weight, experts, weights, stored)
        outside = np.where(experts == 0, -1, np.where(experts == count - 1, count, experts))
        inside = np.clip(outside, 0, count - 1)
        label += " outside is clamped"
        for case in each_expert("std.quant.mxfp4_", label, x, weight, inside, weights, stored):
            case.inputs["experts"] = outside
            yield case


def fp8() -> Iterator[Case]:
    every = np.arange(256, dtype=np.uint8)
    by_torch = torch.from_numpy(every).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(by_torch, every.view(ml_dtypes.float8_e4m3fn).astype(F32), equal_nan=True)
    assert np.flatnonzero(np.isnan(by_torch)).tolist() == [0x7F, 0xFF]
    values = by_torch.copy()
    values[[0x7F, 0xFF]] = [480, -480]
    yield Case("std.quant.decode_fp8", "every byte", {"bits": every}, values)
    cube = {"bits": every.reshape(2, 16, 8)}
    yield Case("std.quant.decode_fp8", "three axes", cube, values.reshape(2, 16, 8))
    yield Case("std.quant.decode_fp8", "one", {"bits": every[0xBF]}, np.array(-1.875, F32))

    op = "std.quant.linear_fp8"
    weight = drawn(18, 0, 0x77, (4, 6), np.uint8) | drawn(19, 0, 1, (4, 6), np.uint8) << 7
    for dtype in FLOATS:
        for kind in (F32, BF16):
            scale = np.abs(numbers(20, (4,))).astype(kind)
            x, bias = numbers(21, (2, 3, 6), dtype), numbers(22, (4,), dtype)
            rows = wide(values[weight]) * wide(scale)[:, None]
            product = (tensor(x) @ torch.from_numpy(rows).T).numpy().astype(dtype)
            inputs = {"x": x, "weight": weight, "scale": scale}
            label = f"{dtype} scaled in {kind}"
            yield Case(op, label, inputs, product, {}, ROUNDING[dtype])
            shifted = (wide(product) + wide(bias)).astype(dtype)
            inputs = {**inputs, "bias": bias}
            yield Case(op, f"{label} bias", inputs, shifted, {}, ROUNDING[dtype])
