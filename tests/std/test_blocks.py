"""Every block of `std`, loaded with weights in memory: in PyTorch, and in the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from backends.common import assert_close
from linnet.policy import Policy, tolerance
from linnet.reference import evaluate
from linnet.syntax import tree
from linnet.torch import LinnetModule, load
from linnet.weights import as_array
from linnet.weights.arrays import DTYPES
from std.cases import F32, numbers
from std.quant_cases import drawn, mat_mul_n_bits
from std.running import module_name, modules, parsed


@dataclass(frozen=True)
class Built:
    """A block with its generics, what it takes and gives, its weights, and what must come out."""

    block: str  # "std.nn.linear.Linear"
    label: str
    generics: str
    types: str  # of the entry: generics, input and result
    weights: Mapping[str, Any]
    x: np.ndarray
    expected: np.ndarray
    near: str = "f32"  # the dtype whose tolerance holds

    def __str__(self) -> str:
        return f"{self.block.rpartition('.')[2]}-{self.label}"

    @property
    def dtype(self) -> str:
        return "f32" if "f32]" in self.types else "bf16"


def source(blocks: Sequence[Built]) -> str:
    """A block that holds all of these, with an entry for each."""
    names: dict[str, set[str]] = {}
    for built in blocks:
        module, _, name = built.block.rpartition(".")
        names.setdefault(module, set()).add(name)
    lines = ["module m", ""]
    lines += [f"use {m}::{{{', '.join(sorted(n))}}}" for m, n in sorted(names.items())]
    lines += ["", "pub block M {"]
    for i, built in enumerate(blocks):
        lines.append(f"    sub layer{i}: {built.block.rpartition('.')[2]}<{built.generics}>")
    for i, built in enumerate(blocks):
        dims, given, result = built.types.split(" -> ")
        lines += ["", f"    pub entry run{i}<{dims}>(x: Tensor{given}) -> Tensor{result} {{"]
        lines += [f"        return layer{i}.forward(x)", "    }"]
    return "\n".join([*lines, "}", ""])


WIDE = np.float64


def products(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """A linear map in f64, rounded, and then the bias."""
    product = (x.astype(WIDE) @ weight.astype(WIDE).T).astype(x.dtype)
    return product if bias is None else (product.astype(WIDE) + bias.astype(WIDE)).astype(x.dtype)


def everything() -> list[Built]:
    out: list[Built] = []
    for dtype in (F32, DTYPES["bf16"]):
        for biased in (False, True):
            out += of_linears(dtype, biased)
            out += of_convolutions(dtype, biased)
        out += of_the_others(dtype)
    return out


def of_linears(dtype: np.dtype, biased: bool) -> list[Built]:
    T = next(name for name, d in DTYPES.items() if d == dtype)
    label = f"{T}{'-bias' if biased else ''}"
    x, bias = numbers(1, (2, 3, 8), dtype), numbers(2, (5,), dtype) if biased else None
    extra = {"bias": bias} if biased else {}
    types = f"B: Dim, S: Dim -> [B, S, 8; {T}] -> [B, S, 5; {T}]"

    def linear(block: str, generics: str, weights: dict[str, Any], weight: Any) -> Built:
        expected = products(x, weight, bias)
        return Built(block, label, generics, types, {**weights, **extra}, x, expected, T)

    weight = numbers(3, (5, 8), dtype)
    scale = np.abs(numbers(4, (5,)))
    eight = drawn(5, -128, 127, (5, 8), np.int8)
    four = drawn(6, -128, 127, (5, 4), np.int8)
    halves = np.stack([four.view(np.uint8) & 15, four.view(np.uint8) >> 4], -1).reshape(5, 8)
    signed = halves.astype(np.uint8).view(np.int8).astype(ml_dtypes.int4).astype(F32)
    codes = drawn(7, 0, 0x77, (5, 8), np.uint8)
    numbers_ = codes.view(ml_dtypes.float8_e4m3fn)
    out = [
        linear("std.nn.linear.Linear", f"8, 5, {T}", {"weight": weight}, weight),
        *(
            linear("std.nn.linear.BiasedLinear", f"8, 5, {T}", {"weight": weight}, weight)
            for _ in range(biased)
        ),
        linear(
            "std.quant.Int8Linear",
            f"8, 5, {T}",
            {"weight": eight, "scale": scale},
            (eight.astype(F32) * scale[:, None]).astype(dtype),
        ),
        linear(
            "std.quant.Int4Linear",
            f"8, 5, {T}",
            {"weight": four, "scale": scale},
            (signed * scale[:, None]).astype(dtype),
        ),
    ]
    # As checkpoints store it: E4M3 numbers, and the scales on an axis more.
    for name, kind in (("f32", F32), ("bf16", DTYPES["bf16"])):
        own = scale.astype(kind)
        rows = numbers_.astype(WIDE) * own.astype(WIDE)[:, None]
        stored = {
            "weight": torch.from_numpy(codes).view(torch.float8_e4m3fn),
            "scale": own[:, None],
        }
        generics = f"8, 5, {T}" + (", bf16" if name == "bf16" else "")
        out.append(linear("std.quant.Fp8Linear", generics, stored, rows))
    for group in (2, 8):
        packed = drawn(8, 0, 255, (5, 8 // group, group // 2), np.uint8)
        zero = drawn(9, 0, 15, (5, 8 // group), np.uint8)
        scales = np.abs(numbers(10, (5, 8 // group))).astype(dtype)
        dense = mat_mul_n_bits(packed, scales, zero).astype(F32).astype(dtype)
        stored = {"weight": packed, "scale": scales, "zero": zero}
        name = "std.quant.Int4GroupLinear"
        out.append(linear(name, f"8, 5, {group}, {T}", stored, dense))
        order = np.array([3, 0, 7, 1, 5, 2, 6, 4], np.int32)
        unordered = np.empty_like(dense)
        unordered[:, order] = dense  # input order[k] meets column k
        out.append(linear(name, f"8, 5, {group}, {T}", {**stored, "order": order}, unordered))
    return out


def of_convolutions(dtype: np.dtype, biased: bool) -> list[Built]:
    T = next(name for name, d in DTYPES.items() if d == dtype)
    label = f"{T}{'-bias' if biased else ''}"
    bias = numbers(11, (5,), dtype) if biased else None

    def built(block: str, sizes: str, out: str, weight: Any, stride: Any, pad: Any) -> Built:
        one = weight.ndim == 3
        x = numbers(12, (2, 3, 7) if one else (2, 3, 7, 6), dtype)
        run = F.conv1d if one else F.conv2d
        wide = (torch.from_numpy(t.astype(WIDE)) for t in (x, weight))
        expected = run(*wide, None, stride, pad).numpy().astype(dtype)
        if bias is not None:
            shift = bias.astype(WIDE).reshape(-1, *[1] * (x.ndim - 2))
            expected = (expected.astype(WIDE) + shift).astype(dtype)
        axes = "L" if one else "H, W"
        dims = ", ".join(f"{n}: Dim" for n in ("B", *axes.split(", ")))
        types = f"{dims} -> [B, 3, {axes}; {T}] -> [B, 5, {out}; {T}]"
        weights = {"weight": weight, **({"bias": bias} if bias is not None else {})}
        return Built(f"std.nn.conv.{block}", label, f"{sizes}, {T}", types, weights, x, expected, T)

    square = numbers(13, (5, 3, 3, 3), dtype)
    out = "(H + 2 * 1 - 3) / 2 + 1, (W + 2 * 1 - 3) / 2 + 1"
    rect = "(H + 2 * 0 - 3) / 2 + 1, (W + 2 * 2 - 1) / 1 + 1"
    return [
        built("Conv2d", "3, 5, 3, 2, 1", out, square, 2, 1),
        built("Conv1d", "3, 5, 3, 2, 1", "(L + 2 - 3) / 2 + 1", square[:, :, 0], 2, 1),
        built("Conv2dRect", "3, 5, 3, 1, 2, 1, 0, 2", rect, square[..., :1], (2, 1), (0, 2)),
    ]


def of_the_others(dtype: np.dtype) -> list[Built]:
    T = next(name for name, d in DTYPES.items() if d == dtype)
    table, ids = numbers(14, (7, 4), dtype), np.array([[0, 6], [3, 3]], np.int32)
    types = f"B: Dim, S: Dim -> [B, S; i32] -> [B, S, 4; {T}]"
    found = Built(
        "std.nn.embedding.Embedding", T, f"7, 4, {T}", types, {"weight": table}, ids, table[ids]
    )
    x, weight = numbers(15, (2, 3, 8), dtype), numbers(16, (8,), dtype)
    same = f"B: Dim, S: Dim -> [B, S, 8; {T}] -> [B, S, 8; {T}]"
    wide = torch.from_numpy(x.astype(WIDE))
    normal = F.rms_norm(wide, (8,), torch.from_numpy(weight.astype(WIDE)), 1e-5).numpy()
    norm = Built(
        "std.nn.norm.RmsNorm", T, f"8, {T}", same, {"weight": weight}, x, normal.astype(dtype), T
    )
    gate, up, down = (numbers(n, s, dtype) for n, s in ((17, (6, 8)), (18, (6, 8)), (19, (8, 6))))
    into = [torch.from_numpy(t.astype(WIDE)) for t in (gate, up, down)]
    mixed = (F.silu(wide @ into[0].T) * (wide @ into[1].T)) @ into[2].T
    weights = {"gate.weight": gate, "up.weight": up, "down.weight": down}
    expected = mixed.numpy().astype(dtype)
    mlp = Built("std.nn.mlp.SwiGlu", T, f"8, 6, {T}", same, weights, x, expected, T)
    return [found, norm, mlp]


BUILT = everything()


def loaded(blocks: Sequence[Built], folder: Path, policy: Policy) -> LinnetModule:
    path = folder / "m.linnet"
    path.write_text(source(blocks))
    weights = {
        f"layer{i}.{name}": value
        for i, built in enumerate(blocks)
        for name, value in built.weights.items()
    }
    return load(path, weights=weights, numerics=policy)


def test_blocks(tmp_path: Path) -> None:
    blocks = [built for built in BUILT if built.dtype == "f32"]
    module = loaded(blocks, tmp_path, "exact")
    members = {path: as_array(tensor) for path, tensor, _ in module._slots()}
    for i, built in enumerate(blocks):
        limit = tolerance("exact", built.near)
        by_torch = module.run_entry(f"run{i}", [built.x])
        assert_close(built.expected, by_torch, limit, f"{built} in torch")
        by_numpy = evaluate(module.program, f"run{i}", [built.x], members)
        assert_close(built.expected, by_numpy, limit, f"{built} in the reference")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["exact", "equivalent", "fast"])
@pytest.mark.parametrize("built", BUILT, ids=str)
def test_block_alone(built: Built, policy: Policy, tmp_path: Path) -> None:
    module = loaded([built], tmp_path, policy)
    found = module.run_entry("run0", [built.x])
    assert_close(built.expected, found, tolerance(policy, built.near), str(built))


def test_every_public_block_is_built() -> None:
    public = {
        f"{module_name(path)}.{item.name.text}"
        for path in modules()
        for item in parsed(module_name(path)).items
        if isinstance(item, tree.Block) and item.public
    }
    # What decoders share has tests of its own: test_decoder.py, and every family's.
    shared = {name for name in public if name.startswith("std.nn.decoder.")}
    assert public - shared == {built.block for built in BUILT}
