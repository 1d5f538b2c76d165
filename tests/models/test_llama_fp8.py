"""The family llama_fp8 against transformers' Llama of the dequantised weights, f32 within 1e-4.

The checkpoint is a SafeTensors file as it is published: E4M3 bytes, and bf16 scales `[Out, 1]`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnet.weights import read_bindings

from . import families
from .runners import RUNNERS, Runner

# transformers alone takes seconds to import
pytestmark = pytest.mark.slow

NAME = "llama-llama3"
ZOO = Path(__file__).parents[2] / "src" / "linnet" / "zoo"
FAMILY = ZOO / "families" / "llama_fp8"
SIZES = {"Vocab": 96, "H": 48, "Heads": 6, "KvHeads": 2, "Inner": 80, "Layers": 2, "T": "f32"}
CONSTANTS = {
    "THETA": 10000.0,
    "FACTOR": 4.0,
    "ORIGINAL_MAX_POSITION_EMBEDDINGS": 16.0,
}


@cache
def quantised() -> tuple[Any, dict[str, Any]]:
    """transformers' model, each projection's weight as FP8 stands for it, and the checkpoint."""
    import torch

    model = families.model(NAME)
    stored: dict[str, Any] = {}
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if not name.endswith("_proj.weight"):
                stored[name] = weight
                continue
            scale = (weight.abs().amax(1, keepdim=True) / 448).to(torch.bfloat16)
            stored[name] = (weight / scale.float()).to(torch.float8_e4m3fn)
            stored[f"{name}_scale"] = scale
            weight.copy_(stored[name].float() * scale.float())
    return model, stored


@pytest.fixture(scope="module", params=list(RUNNERS))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    from safetensors.torch import save_file

    place = tmp_path_factory.mktemp("fp8") / "model.safetensors"
    save_file(quantised()[1], place)
    runner: Runner = RUNNERS[request.param](
        FAMILY,
        {**SIZES, "Batch": 2, "MaxSeq": 48, "PageSize": 4},
        weights=place,
        bindings=read_bindings(ZOO / "models" / "llama-3.1-8b-instruct-fp8" / "bindings.json"),
        constants=CONSTANTS,
    )
    return runner


def expected(tokens: np.ndarray) -> np.ndarray:
    return families.logits(NAME, tokens, quantised()[0])


def close(found: Any, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


def i32(values: Any) -> np.ndarray:
    return np.asarray(values, np.int32)


def test_whole_sequences(run: Runner) -> None:
    tokens = families.tokens(1, 2, families.LENGTH)
    wanted = expected(tokens)
    close(run("forward", tokens), wanted)
    close(run("next_token", tokens), wanted[:, -1])


def test_quantising_changes_the_model() -> None:
    tokens = families.tokens(1, 2, families.LENGTH)
    assert np.abs(expected(tokens) - families.logits(NAME, tokens)).max() > 1e-2


def test_prefill_then_decode(run: Runner) -> None:
    tokens = families.tokens(2, 2, 9)
    wanted = expected(tokens)
    close(run("prefill", tokens[:, :7], 0), wanted[:, 6])
    for pos in (7, 8):
        close(run("decode", tokens[:, pos : pos + 1], pos), wanted[:, pos])


def test_rows_at_their_own_positions(run: Runner) -> None:
    first, second = families.tokens(3, 9), families.tokens(4, 9)
    padded = np.stack([first[:6], second[:6]])
    found = run("prefill_slots", padded, i32([1, 0]), i32([6, 2]))
    close(found[0], expected(first[None])[0, 5])
    close(found[1], expected(second[None])[0, 1])
    found = run("decode_rows", i32([[second[2]], [first[6]]]), i32([2, 6]))
    close(found[0], expected(second[None])[0, 2])
    close(found[1], expected(first[None])[0, 6])


def test_pages(run: Runner) -> None:
    tokens, table = families.tokens(5, 9), i32([[3, 1, 5]])
    at = np.arange(8, dtype=np.int32)
    places = table[0, at // 4] * 4 + at % 4
    found = run("prefill_paged", tokens[:8], at, np.zeros_like(at), places, i32([7]), table)
    wanted = expected(tokens[None])[0]
    close(found[0], wanted[7])
    close(run("decode_paged", i32([[tokens[8]]]), i32([8]), table)[0], wanted[8])
