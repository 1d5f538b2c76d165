"""What every function of `std` must give, from implementations that share nothing with its source.

A case names a function, gives its inputs by parameter name, and says what must come out. A
tolerance of 0 asks for equal bits (NaN equal to NaN); any other is relative to the largest value.
Expected values come from plain NumPy in f64, from torch in f64, or, where the documentation says in
which dtype each step rounds, from the steps written out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F

F32 = np.dtype(np.float32)
F16 = np.dtype(np.float16)
BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = (F32, BF16, F16)
# One rounding of a dtype, and in f32 a few: what another order of summation may change.
ROUNDING = {F32: 2e-6, BF16: 4e-3, F16: 5e-4}

FIXTURES = Path(__file__).parent.parent / "fixtures"


@dataclass(frozen=True)
class Case:
    op: str  # "std.nn.cache.write_at"
    label: str
    inputs: dict[str, Any]  # arrays, NumPy scalars, or None for `none`
    expected: np.ndarray
    generics: dict[str, int] = field(default_factory=dict)  # those that the inputs do not fix
    tolerance: float = 0.0

    def __str__(self) -> str:
        return f"{self.op.removeprefix('std.').removeprefix('nn.')}-{self.label}".replace(" ", "-")


def numbers(seed: int, shape: tuple[int, ...], dtype: np.dtype = F32, scale: float = 1.0) -> Any:
    """Normal numbers in a dtype, the same for the same seed."""
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(dtype)


def wide(x: np.ndarray) -> np.ndarray:
    """The same values in f64."""
    return np.asarray(x).astype(np.float64)


def tensor(x: np.ndarray) -> torch.Tensor:
    """The same values as an f64 torch tensor."""
    return torch.from_numpy(wide(x))


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def everything() -> list[Case]:
    """Every case of every module."""
    from std import attention_cases, cache_cases, conv_cases, quant_cases

    tables: list[Callable[[], Iterator[Case]]] = [
        linalg,
        random,
        activations,
        softmax,
        decoding,
        embedding,
        linear,
        mlp,
        norm,
        rope,
        loss,
        parallel,
        cache_cases.cache,
        attention_cases.attention,
        conv_cases.conv,
        conv_cases.pool,
        conv_cases.resize,
        quant_cases.moe,
        quant_cases.quant,
    ]
    return [case for table in tables for case in table()]


# --- linalg -----------------------------------------------------------------------------------


def linalg() -> Iterator[Case]:
    a, b = numbers(1, (5,)), numbers(2, (5,))
    m, n = numbers(3, (3, 4)), numbers(4, (4, 2))
    p, q = numbers(5, (2, 3, 4, 5)), numbers(6, (2, 3, 5, 2))

    def product(op: str, label: str, a: Any, b: Any, tolerance: float = ROUNDING[F32]) -> Case:
        expected = np.asarray(wide(a) @ wide(b)).astype(a.dtype)
        return Case(f"std.linalg.{op}", label, {"a": a, "b": b}, expected, {}, tolerance)

    yield product("dot", "f32", a, b)
    yield product("dot", "empty", a[:0], b[:0], 0.0)
    yield product("dot", "i64", np.arange(4), np.arange(4) - 7, 0.0)
    wraps = {"a": np.array([100, 100], np.int8), "b": np.array([2, 2], np.int8)}
    yield Case("std.linalg.dot", "i8 wraps", wraps, np.array(-112, np.int8))
    for dtype in (BF16, F16):
        ulp = float(np.asarray(ml_dtypes.finfo(dtype).eps, np.float64))
        # With x = 1 + ulp, x * x - (1 + 2 ulp) is ulp^2 unless the product is rounded first.
        x = np.array([1 + ulp, 1 + 2 * ulp], dtype)
        y = np.array([1 + ulp, -1], dtype)
        yield Case("std.linalg.dot", f"{dtype} product", {"a": x, "b": y}, np.array(ulp**2, dtype))
        # 2 / ulp absorbs each 1 unless the sum is kept in f32.
        x = np.array([2 / ulp] + [1] * 16, dtype)
        y = np.ones(17, dtype)
        total = np.array(2 / ulp + 16, dtype)
        yield Case("std.linalg.dot", f"{dtype} sum", {"a": x, "b": y}, total)

    outer = {"a": a, "b": b[:3]}
    yield Case("std.linalg.outer", "f32", outer, np.multiply.outer(a, b[:3]))
    x, y = numbers(7, (3,), BF16), numbers(8, (2,), BF16)
    rounded = (wide(x)[:, None] * wide(y)).astype(BF16)
    yield Case("std.linalg.outer", "bf16", {"a": x, "b": y}, rounded)

    yield product("matmul", "f32", m, n)
    yield product("matmul", "bf16", m.astype(BF16), n.astype(BF16), ROUNDING[BF16])
    yield product("matmul", "nothing summed", m[:, :0], n[:0], 0.0)
    yield product("matmul", "no rows", m[:0], n, 0.0)
    yield product(
        "matmul", "i32", np.arange(6, dtype=np.int32).reshape(2, 3), i32(1, 2, -3)[:, None], 0.0
    )
    yield product("batched_matmul", "two batch axes", p, q)
    yield product("batched_matmul", "no batch axis", m, n)
    yield Case("std.linalg.transpose", "f32", {"x": m}, m.T)
    yield Case("std.linalg.transpose", "bool", {"x": m > 0}, (m > 0).T)


# --- random -----------------------------------------------------------------------------------


def random_values() -> dict[str, Any]:
    """`values.json`: what `jax.random` gives."""
    values: dict[str, Any] = json.loads((FIXTURES / "random" / "values.json").read_text())
    return values


def random() -> Iterator[Case]:
    values = random_values()
    words = lambda case: np.array(case["words"], np.int64)  # noqa: E731
    key = lambda case: np.array(case["key"], np.int64)  # noqa: E731
    cipher = values["threefry2x32"]
    for i, case in enumerate(cipher):
        inputs = {"key": key(case), "counter": np.array([case["counter"]], np.int64)}
        yield Case("std.random.threefry2x32", f"published {i}", inputs, words(case)[None])
    for case in values["bits"]:
        n = len(case["words"])
        yield Case("std.random.bits", f"{n}", {"key": key(case)}, words(case), {"N": n})
    for case in values["split"]:
        n = len(case["words"])
        yield Case("std.random.split", f"{n}", {"key": key(case)}, words(case), {"N": n})
    for i, case in enumerate(values["fold_in"]):
        inputs = {"key": key(case), "data": np.int32(case["data"])}
        yield Case("std.random.fold_in", f"{i} {case['data']}", inputs, words(case))
    for case in values["uniform"]:
        n = len(case["values"])
        for dtype in FLOATS:
            expected = np.array(case["values"], F32).astype(dtype)
            generics = {"N": n, "T": dtype}
            yield Case("std.random.uniform", f"{n} {dtype}", {"key": key(case)}, expected, generics)
    for case in values["uniform"]:
        drawn = np.array(case["values"])
        if len(drawn) % 2 == 0:
            n = len(drawn) // 2
            expected = np.sqrt(-2 * np.log(1 - drawn[:n])) * np.cos(2 * np.pi * drawn[n:])
            for dtype in (F32, BF16):
                yield Case(
                    "std.random.normal",
                    f"{n} {dtype}",
                    {"key": key(case)},
                    expected.astype(dtype),
                    {"N": n, "T": dtype},
                    2e-6 if dtype == F32 else ROUNDING[dtype],
                )
    yield from categorical(values)


def categorical(values: dict[str, Any]) -> Iterator[Case]:
    def chosen(logits: np.ndarray, drawn: list[float]) -> np.ndarray:
        u = np.array(drawn).reshape(logits.shape)
        u = np.where(u == 0, 2.0**-24, u)
        return np.argmax(wide(logits) - np.log(-np.log(1 - u)), axis=1).astype(np.int32)

    for case in values["uniform"]:
        if len(case["values"]) % 4 == 0:
            rows = len(case["values"]) // 4
            for dtype in (F32, BF16):
                logits = numbers(rows, (rows, 4), dtype, 2.0)
                inputs = {"key": np.array(case["key"], np.int64), "logits": logits}
                expected = chosen(logits, case["values"])
                yield Case("std.random.categorical", f"{rows} rows {dtype}", inputs, expected)
    # A uniform of 0 must not win against a logit of 30.
    [case] = values["uniform_zero"]
    logits = np.full((1, len(case["values"])), 30, F32)
    logits[0, case["zero"]] = 0
    inputs = {"key": np.array(case["key"], np.int64), "logits": logits}
    expected = chosen(logits, case["values"])
    assert expected[0] != case["zero"]
    yield Case("std.random.categorical", "a uniform of 0", inputs, expected)


# --- elementwise ------------------------------------------------------------------------------


def activations() -> Iterator[Case]:
    edges = np.array([-np.inf, -30, -4, -1.5, -0.5, 0, 0.25, 3, 8, 30, np.inf, np.nan])
    for dtype in FLOATS:
        x = edges.astype(dtype)
        relu = np.where(np.isnan(x), x, np.maximum(np.nan_to_num(wide(x), posinf=np.inf), 0))
        yield Case("std.nn.activations.relu", f"{dtype}", {"x": x}, relu.astype(dtype))

        # sigmoid and silu round after every step; f16 overflows to infinity on the way to 0.
        x = x[:-1]
        with np.errstate(over="ignore"):
            below = (1 + wide(np.exp(-wide(x)).astype(dtype))).astype(dtype)
        sigmoid = (1 / wide(below)).astype(dtype)
        tolerance = ROUNDING[F32] if dtype == F32 else 0.0
        yield Case("std.nn.activations.sigmoid", f"{dtype}", {"x": x}, sigmoid, {}, tolerance)
        x, share = x[1:-1], sigmoid[1:-1]
        silu = (wide(x) * wide(share)).astype(dtype)
        yield Case("std.nn.activations.silu", f"{dtype}", {"x": x}, silu, {}, tolerance)
        gated = (wide(silu) * wide(x)).astype(dtype)
        given = {"gate": x, "up": x}
        yield Case("std.nn.activations.silu_gated", f"{dtype}", given, gated, {}, tolerance)

        x = numbers(9, (2, 3, 50), dtype, 3.0)
        gelu = F.gelu(tensor(x), approximate="tanh").numpy().astype(dtype)
        yield Case("std.nn.activations.gelu", f"{dtype}", {"x": x}, gelu, {}, ROUNDING[dtype])
        gelu = F.gelu(tensor(x)).numpy().astype(dtype)
        yield Case("std.nn.activations.gelu_erf", f"{dtype}", {"x": x}, gelu, {}, ROUNDING[dtype])
    # One rounding at the end: steps in bf16 would miss some of these.
    x = numbers(35, (200,), BF16)
    for name, form in (("gelu", "tanh"), ("gelu_erf", "none")):
        gelu = F.gelu(tensor(x), approximate=form).numpy().astype(BF16)
        yield Case(f"std.nn.activations.{name}", "one rounding", {"x": x}, gelu)
    for name in ("relu", "sigmoid", "silu", "gelu", "gelu_erf"):
        nothing = np.zeros((2, 0), F32)
        yield Case(f"std.nn.activations.{name}", "empty", {"x": nothing}, nothing)
    none = {"gate": nothing, "up": nothing}
    yield Case("std.nn.activations.silu_gated", "empty", none, nothing)
    half = {"x": np.zeros((), F32)}
    yield Case("std.nn.activations.sigmoid", "a scalar", half, np.array(0.5, F32))


def softmax() -> Iterator[Case]:
    op = "std.nn.softmax.softmax"
    for dtype in FLOATS:
        x = numbers(10, (2, 3, 7), dtype, 4.0)
        expected = torch.softmax(tensor(x), -1).numpy().astype(dtype)
        yield Case(op, f"{dtype}", {"x": x}, expected, {}, ROUNDING[dtype])
    large = np.array([1e30, 1e30, -1e30], F32)
    yield Case(op, "large", {"x": large}, np.array([0.5, 0.5, 0], F32))
    yield Case(op, "equal", {"x": np.full((2, 4), -1e30, F32)}, np.full((2, 4), 0.25, F32))
    yield Case(op, "one class", {"x": np.array([[3.5]], F32)}, np.ones((1, 1), F32))
    yield Case(op, "no rows", {"x": np.zeros((0, 4), F32)}, np.zeros((0, 4), F32))


def decoding() -> Iterator[Case]:
    op = "std.nn.decoding.argmax"

    def case(label: str, x: Any, expected: Any) -> Case:
        return Case(op, label, {"x": x}, np.array(expected, np.int32))

    nan, inf = np.nan, np.inf
    x = numbers(11, (3, 4, 9))
    yield case("f32", x, np.argmax(x, -1))
    yield case("vector", x[0, 0], np.argmax(x[0, 0]))
    yield case("first of equals", np.array([[1, 3, 3, 0], [2, 2, 2, 2]], F32), [1, 0])
    yield case("first NaN", np.array([[1, nan, 9, nan], [nan, inf, 0, 0]], F32), [1, 0])
    yield case("infinities", np.array([[-inf, -inf], [-inf, inf]], F32), [0, 1])
    yield case("bf16 ties", np.array([0, 1, 1], BF16), 1)
    yield case("f16 NaN", np.array([0, 1, nan], F16), 2)
    yield case("i32", np.array([[5, -7], [-7, -7]], np.int32), [0, 0])
    yield case("u8", np.array([0, 255, 255], np.uint8), 1)
    yield case("lowest i64", np.full(3, np.iinfo(np.int64).min), 0)
    yield case("no rows", np.zeros((0, 3), F32), np.zeros(0))


# --- layers -----------------------------------------------------------------------------------


def embedding() -> Iterator[Case]:
    op = "std.nn.embedding.embedding"
    table = numbers(12, (5, 3))
    ids = np.array([[0, 4, 2], [2, 1, 0]], np.int32)
    yield Case(op, "f32", {"ids": ids, "table": table}, table[ids])
    half = table.astype(BF16)
    yield Case(op, "one bf16 id", {"ids": np.array(3, np.int32), "table": half}, half[3])
    outside = {"ids": i32(-1, 5, 2**31 - 1, -(2**31)), "table": table}
    yield Case(op, "outside is clamped", outside, table[[0, 4, 4, 0]])
    nothing = {"ids": np.zeros((2, 0), np.int32), "table": table}
    yield Case(op, "no ids", nothing, np.zeros((2, 0, 3), F32))


def linear() -> Iterator[Case]:
    op = "std.nn.linear.linear"
    for dtype in FLOATS:
        x, weight = numbers(13, (2, 3, 6), dtype), numbers(14, (4, 6), dtype)
        bias = numbers(15, (4,), dtype)
        product = (wide(x) @ wide(weight).T).astype(dtype)
        inputs = {"x": x, "weight": weight}
        yield Case(op, f"{dtype}", inputs, product, {}, ROUNDING[dtype])
        shifted = (wide(product) + wide(bias)).astype(dtype)
        yield Case(op, f"{dtype} bias", {**inputs, "bias": bias}, shifted, {}, ROUNDING[dtype])
        yield Case(op, f"{dtype} none", {**inputs, "bias": None}, product, {}, ROUNDING[dtype])
    # Kept in f32 the sum is 261, which rounds to 260, and 260 + 1 rounds to 260 again. A sum kept
    # in bf16 would stay at 256, and a bias added before the rounding would give 262.
    x = np.array([256, 1, 1, 1, 1, 1], BF16)
    inputs = {"x": x, "weight": np.ones((1, 6), BF16), "bias": np.ones(1, BF16)}
    yield Case(op, "bf16 steps", inputs, np.array([260], BF16))
    nothing = {"x": np.zeros((2, 0), F32), "weight": np.zeros((3, 0), F32)}
    yield Case(op, "no inputs", nothing, np.zeros((2, 3), F32))
    one = {"x": np.array([1, 2], F32), "weight": np.array([[3, 4]], F32)}
    yield Case(op, "a vector", one, np.array([11], F32))


def mlp() -> Iterator[Case]:
    for dtype in FLOATS:
        x = numbers(16, (2, 3, 4), dtype)
        gate, up = numbers(17, (6, 4), dtype), numbers(18, (6, 4), dtype)
        down = numbers(19, (4, 6), dtype)
        hidden = F.silu(tensor(x) @ tensor(gate).T) * (tensor(x) @ tensor(up).T)
        expected = (hidden @ tensor(down).T).numpy().astype(dtype)
        inputs = {"x": x, "gate_weight": gate, "up_weight": up, "down_weight": down}
        # Four roundings on the way in the narrow dtypes.
        tolerance = ROUNDING[dtype] * (1 if dtype == F32 else 4)
        yield Case("std.nn.mlp.swiglu", f"{dtype}", inputs, expected, {}, tolerance)


def norm() -> Iterator[Case]:
    for dtype in FLOATS:
        x, weight, bias = (
            numbers(20, (2, 3, 8), dtype),
            numbers(21, (8,), dtype),
            numbers(22, (8,), dtype),
        )
        tolerance = ROUNDING[dtype] * (1 if dtype == F32 else 2)
        for eps in (1e-5, 1e-2):
            given = {} if eps == 1e-5 else {"eps": np.float32(eps)}
            label = f"{dtype} eps {eps}"
            expected = F.rms_norm(tensor(x), (8,), tensor(weight), eps).numpy().astype(dtype)
            inputs = {"x": x, "weight": weight, **given}
            yield Case("std.nn.norm.rms_norm", label, inputs, expected, {}, tolerance)
            normal = F.layer_norm(tensor(x), (8,), tensor(weight), tensor(bias), eps)
            inputs = {"x": x, "weight": weight, "bias": bias, **given}
            expected = normal.numpy().astype(dtype)
            yield Case("std.nn.norm.layer_norm", label, inputs, expected, {}, tolerance)
        plain = F.layer_norm(tensor(x), (8,), tensor(weight)).numpy().astype(dtype)
        inputs = {"x": x, "weight": weight}
        yield Case("std.nn.norm.layer_norm", f"{dtype} no bias", inputs, plain, {}, tolerance)

        x = numbers(23, (2, 6, 3, 5), dtype)
        weight, bias = numbers(24, (6,), dtype), numbers(25, (6,), dtype)
        mean, variance = (
            numbers(26, (6,), dtype),
            np.abs(numbers(27, (6,), dtype)) + np.array(0.5, dtype),
        )
        normal = F.batch_norm(*map(tensor, (x, mean, variance, weight, bias)), eps=1e-5)
        inputs = {"x": x, "mean": mean, "variance": variance, "weight": weight, "bias": bias}
        expected = normal.numpy().astype(dtype)
        yield Case("std.nn.norm.batch_norm", f"{dtype}", inputs, expected, {}, ROUNDING[dtype])
        for groups, eps in ((1, 1e-6), (2, 1e-6), (6, 1e-6), (3, 1e-2)):
            normal = F.group_norm(tensor(x), groups, tensor(weight), tensor(bias), eps)
            given = {} if eps == 1e-6 else {"eps": np.float32(eps)}
            inputs = {"x": x, "weight": weight, "bias": bias, **given}
            expected = normal.numpy().astype(dtype)
            label, generics = f"{dtype} {groups} groups", {"Groups": groups}
            yield Case("std.nn.norm.group_norm", label, inputs, expected, generics, tolerance)
    yield from norm_rounding()


def norm_rounding() -> Iterator[Case]:
    """Where each step of a norm rounds, on sums that are exact in f32."""
    x = np.array([[1, 2, 3, 4], [0, -8, 5, 1]], BF16)
    weight, bias = np.array([0.3, 1.7, -2.2, 0.9], BF16), np.array([0.1, 3, -5, 64], BF16)
    for op in ("rms_norm", "layer_norm"):
        values = x.astype(F32)
        if op == "layer_norm":
            values = values - values.mean(-1, keepdims=True, dtype=F32)
        square = (values * values).sum(-1, keepdims=True, dtype=F32) / F32.type(4)
        scaled = (values / np.sqrt(square + F32.type(1e-5))).astype(BF16)
        expected = (wide(scaled) * wide(weight)).astype(BF16)
        inputs = {"x": x, "weight": weight}
        if op == "layer_norm":
            expected = (wide(expected) + wide(bias)).astype(BF16)
            inputs["bias"] = bias
        yield Case(f"std.nn.norm.{op}", "bf16 steps", inputs, expected)


def rope() -> Iterator[Case]:
    for dtype in FLOATS:
        x = numbers(28, (2, 3, 4, 6), dtype)
        turned = np.concatenate([-x[..., 3:], x[..., :3]], -1)
        yield Case("std.nn.rope.rotate_half", f"{dtype}", {"x": x}, turned)
        angle = np.random.default_rng(29).uniform(0, 7, (2, 4, 3))
        angle = np.concatenate([angle, angle], -1)
        cosines, sines = np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)

        def rotated(cosines: np.ndarray, sines: np.ndarray) -> np.ndarray:
            straight = (wide(x) * wide(cosines)).astype(x.dtype)  # noqa: B023
            across = (wide(turned) * wide(sines)).astype(x.dtype)  # noqa: B023
            return (wide(straight) + wide(across)).astype(x.dtype)  # noqa: B023

        inputs = {"x": x, "cos_table": cosines[0], "sin_table": sines[0]}
        expected = rotated(cosines[0], sines[0])
        yield Case("std.nn.rope.rope", f"{dtype}", inputs, expected)
        # Element i turns with element i + D / 2: a complex number turned by the angle.
        if dtype == F32:
            pairs = wide(x[..., :3]) + 1j * wide(x[..., 3:])
            pairs = pairs * np.exp(1j * angle[0, :, :3])
            expected = np.concatenate([pairs.real, pairs.imag], -1).astype(F32)
            yield Case("std.nn.rope.rope", "complex", inputs, expected, {}, 2e-6)
        inputs = {"x": x, "cos_rows": cosines, "sin_rows": sines}
        expected = rotated(cosines[:, None], sines[:, None])
        yield Case("std.nn.rope.rope_rows", f"{dtype}", inputs, expected)
    for base, width in ((10000.0, 8), (5e5, 6)):
        frequency = base ** (-np.arange(width // 2) * 2 / width)
        inputs = {"base": np.float32(base)}
        label = f"{base} {width}"
        yield Case(
            "std.nn.rope.rope_frequencies", label, inputs, frequency.astype(F32), {"D": width}, 6e-8
        )
    # transformers' "llama3" scaling, on wavelengths of 6 to 45,000 positions.
    for factor, original, low, high in (
        (8.0, 8192.0, 1.0, 4.0),
        (4.0, 64.0, 1.0, 8.0),
        (2.0, 0.0, 1.0, 4.0),
    ):
        plain = 10000.0 ** (-np.arange(8) / 8)
        wavelength = 2 * np.pi / plain
        smooth = (original / wavelength - low) / (high - low)
        slowed = np.where(
            wavelength > original / low,
            plain / factor,
            (1 - smooth) * plain / factor + smooth * plain,
        )
        slowed = np.where(
            (wavelength < original / high) & (wavelength <= original / low), plain, slowed
        )
        given = {"base": 1e4, "factor": factor, "original": original, "low": low, "high": high}
        inputs = {name: np.float32(value) for name, value in given.items()}
        label = f"{factor} {original}"
        yield Case(
            "std.nn.rope.slowed_frequencies", label, inputs, slowed.astype(F32), {"D": 16}, 3e-7
        )
    nothing = np.zeros((2, 0), F32)
    yield Case("std.nn.rope.rotate_half", "no width", {"x": nothing}, nothing)


# --- losses -----------------------------------------------------------------------------------


def loss() -> Iterator[Case]:
    for dtype in FLOATS:
        logits = numbers(30, (6, 9), dtype, 3.0)
        targets = np.array([0, 8, 3, 3, 5, 1], np.int64)
        weights = np.array([1, 0.5, 0, 2, 0.25, 0], F32)
        hidden, head = numbers(31, (6, 4), dtype), numbers(32, (9, 4), dtype)
        yield from loss_cases(f"{dtype}", logits, targets, weights, hidden, head)

    op = "std.nn.loss.log_softmax"
    cube = numbers(33, (2, 3, 5), F32, 50.0)
    expected = torch.log_softmax(tensor(cube), -1).numpy().astype(F32)
    yield Case(op, "three axes", {"logits": cube}, expected, {}, 2e-6)
    large = np.array([[1e30, 0, 1e30]], F32)
    expected = np.array([[-math.log(2), -1e30, -math.log(2)]], F32)
    yield Case(op, "large", {"logits": large}, expected, {}, 2e-6)

    # A weight of 0 removes its row, whatever the row holds.
    logits = np.array([[1, 2], [np.nan, 1], [-np.inf, 3]], F32)
    inputs = {"logits": logits, "targets": np.array([1, 0, 0]), "weights": np.array([1, 0, 0], F32)}
    expected = np.array(math.log1p(math.exp(-1)), F32)
    yield Case("std.nn.loss.cross_entropy", "removed rows", inputs, expected, {}, 2e-6)
    inputs = {"logits": logits[:0], "targets": np.zeros(0, np.int64), "weights": np.zeros(0, F32)}
    yield Case("std.nn.loss.cross_entropy", "no rows", inputs, np.array(0, F32))
    certain = np.array([[-np.inf, 5, -np.inf], [0, -1e30, 0]], F32)
    expected = np.array([0, math.log(2)], F32)
    yield Case("std.nn.loss.entropy", "probability 0", {"logits": certain}, expected, {}, 2e-6)


def loss_cases(
    label: str,
    logits: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray,
    hidden: np.ndarray,
    head: np.ndarray,
) -> Iterator[Case]:
    def chosen(logits: np.ndarray) -> np.ndarray:
        return -F.cross_entropy(tensor(logits), torch.from_numpy(targets), reduction="none").numpy()

    def case(name: str, inputs: dict[str, Any], expected: Any, shards: int | None = None) -> Case:
        generics = {} if shards is None else {"Shards": shards}
        tag = label if shards is None else f"{label} {shards} shards"
        value = np.asarray(expected).astype(F32)
        # The fused heads round their logits to the dtype of the hidden states.
        tolerance = 3e-6 if "logits" in inputs else 3 * ROUNDING[hidden.dtype]
        return Case(f"std.nn.loss.{name}", tag, inputs, value, generics, tolerance)

    total = lambda log_probs: -np.sum(wide(weights) * log_probs)  # noqa: E731
    every = torch.log_softmax(tensor(logits), -1).numpy()
    yield case("log_softmax", {"logits": logits}, every)
    yield case("entropy", {"logits": logits}, -np.sum(np.exp(every) * every, -1))
    yield case("token_log_probs", {"logits": logits, "targets": targets}, chosen(logits))
    inputs = {"logits": logits, "targets": targets, "weights": weights}
    yield case("cross_entropy", inputs, total(chosen(logits)))

    fused = {"hidden": hidden, "weight": head, "targets": targets}
    log_probs = chosen((wide(hidden) @ wide(head).T).astype(hidden.dtype))
    yield case("linear_token_log_probs", fused, log_probs)
    yield case("linear_cross_entropy", {**fused, "weights": weights}, total(log_probs))
    yield case("split_token_log_probs", fused, log_probs, 1)
    yield case("split_cross_entropy", {**fused, "weights": weights}, total(log_probs), 1)
    # One device stands for every shard: each column appears twice, which halves each probability.
    yield case("split_token_log_probs", fused, log_probs - math.log(2), 2)
    halved = total(log_probs - math.log(2))
    yield case("split_cross_entropy", {**fused, "weights": weights}, halved, 2)


def parallel() -> Iterator[Case]:
    for dtype in FLOATS:
        x = numbers(34, (2, 3), dtype)
        yield Case("std.nn.parallel.all_reduce", f"{dtype}", {"x": x}, x)
        yield Case("std.nn.parallel.shared", f"{dtype}", {"x": x[0, 0]}, np.asarray(x[0, 0]))
        for shards in (1, 3):
            label, generics = f"{dtype} {shards}", {"Shards": shards}
            expected = np.concatenate([x] * shards, 1)
            yield Case("std.nn.parallel.all_gather", label, {"x": x}, expected, generics)
