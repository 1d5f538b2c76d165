"""Split models in two processes beside the whole model in one."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import linnet.torch
from backends.split_worker import (
    ENTRIES,
    LOSSES,
    computed,
    poisoned,
    split,
    split_by_rules,
    together,
    trained,
)
from linnet import nest
from linnet.weights import read_arrays, write_safetensors

from . import tiny

SIZES: dict[str, int | str] = {**tiny.SIZES, "Batch": 2, "MaxSeq": 16}
OWN = """
module own
use std.nn.linear::{BiasedLinear, Linear}
use std.nn.activations::{silu}

pub block Model<H: Dim, Inner: Dim> {
    sub open: BiasedLinear<H, Inner, f32>
    sub close: BiasedLinear<Inner, H, f32>
    sub head: Linear<H, Inner, f32>
    param scale: Tensor[Inner; f32]
    param shift: Tensor[H; f32]

    pub entry forward<N: Dim>(x: Tensor[N, H; f32]) -> Tensor[N, Inner; f32] {
        let opened = open.forward(x)
        let mixed = x + close.forward(silu(opened * scale) - opened)
        let length[n] = sum[i] opened[n, i] * opened[n, i]
        let scaled[n, h] = mixed[n, h] / (1.0 + length[n]) + shift[h]
        return head.forward(scaled)
    }
}
"""
# The axis of each projection that is split.
AXES = {**{f"{p}_proj": 0 for p in ("q", "k", "v", "gate", "up")}, "o_proj": 1, "down_proj": 1}
AXES |= {"lm_head": 0, "gate": 0, "up": 0, "down": 1}


def files(place: Path, tensors: Any, axes: Mapping[str, int]) -> list[Path]:
    """A checkpoint for each process that has numbers only where it is to read them."""
    paths = [place / f"{rank}.safetensors" for rank in range(2)]
    for rank, path in enumerate(paths):
        write_safetensors(path, poisoned(tensors, axes, rank))
    return paths


def beside_the_whole(load: Any, tensors: Any, place: Path, axes: Mapping[str, int] = AXES) -> None:
    torch.save(computed(load(weights=tensors, trainable=True)), place / "whole.pt")
    together(split, load, files(place, tensors, axes), place / "whole.pt")
    saved = read_arrays(place / "saved.safetensors")
    assert saved.keys() == tensors.keys()
    assert all(np.array_equal(saved[name], whole) for name, whole in tensors.items())


@pytest.mark.slow
def test_the_family_in_two_processes(tmp_path: Path) -> None:
    load = partial(
        linnet.torch.load,
        tiny.FAMILY,
        generics=SIZES,
        bindings=tiny.NAMES,
        entries=(*ENTRIES, *LOSSES),
    )
    beside_the_whole(load, tiny.weights(), tmp_path)


@pytest.mark.slow
def test_a_family_with_norms_of_heads_in_two_processes(tmp_path: Path) -> None:
    norms = {f"layers.{{i}}.attention.{p}_norm.weight": f"n.{{i}}.{p}_norm.weight" for p in "qk"}
    tensors = dict(tiny.weights())
    tensors = {name: x for name, x in tensors.items() if "layers.1" not in name}
    for p in "qk":
        tensors[f"n.0.{p}_norm.weight"] = tensors["model.norm.weight"][:8]
    load = partial(
        linnet.torch.load,
        tiny.FAMILY.parent / "qwen3",
        generics={**SIZES, "HeadDim": 8, "Layers": 1},
        bindings={**tiny.NAMES, **norms},
        entries=LOSSES,
    )
    beside_the_whole(load, tensors, tmp_path)


@pytest.mark.slow
def test_the_seeds_card_in_two_processes(seed: Path, tmp_path: Path) -> None:
    load = partial(nest.load, seed, generics=SIZES, entries=("prefill", "decode", "loss_packed"))
    beside_the_whole(load, tiny.weights(), tmp_path)


@pytest.mark.slow
def test_a_family_without_shards_in_two_processes(tmp_path: Path) -> None:
    load = partial(
        linnet.torch.load,
        tiny.FAMILY.parent / "gemma3",
        generics={**SIZES, "HeadDim": 8},
        entries=("prefill", "decode", "loss_packed"),
    )
    drawn = np.random.default_rng(2)
    tensors = {
        path: 0.2 * drawn.standard_normal(tuple(value.shape)).astype(np.float32)
        for path, value in load().named_parameters()
    }
    # The head is not among the built-in rules.
    beside_the_whole(load, tensors, tmp_path, {n: at for n, at in AXES.items() if n != "lm_head"})


@pytest.mark.slow
def test_a_model_by_rules_of_its_own_in_two_processes(tmp_path: Path) -> None:
    (tmp_path / "own.linnet").write_text(OWN)
    load = partial(
        linnet.torch.load, tmp_path / "own.linnet", generics={"H": 4, "Inner": 6}, trainable=True
    )
    torch.save(trained(load()), tmp_path / "whole.pt")
    rules = {"open.weight": "column", "head.weight": "column", "scale": 0}
    together(split_by_rules, partial(load, tp_rules=rules), tmp_path / "whole.pt")


@pytest.mark.slow
def test_the_documents_script(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "pytorch.md").read_text(encoding="utf-8")
    for name, body in re.findall(r"^```\w+ (mlp\.linnet|split\.py)\n(.*?)^```$", page, re.M | re.S):
        (tmp_path / name).write_text(body, encoding="utf-8")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    # A file for what each process prints: in one pipe their lines may mix.
    run += ["--redirects", "1", "--log-dir", str(tmp_path / "logs")]
    done = subprocess.run(
        [*run, "split.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    printed = sorted(file.read_text() for file in (tmp_path / "logs").rglob("stdout.log"))
    assert printed == ["0 (16, 8) True\n", "1 (16, 8) True\n"], done.stderr
