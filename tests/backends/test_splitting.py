"""Programs without `Shards` split by rules: what follows from them, and what is refused.

Two processes run what is made in `models/test_split.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import linnet.torch
from backends.split_worker import mesh
from linnet.core.ir import Program
from linnet.core.verify import verify
from linnet.diagnostics import PlanError
from linnet.loading import load_source
from linnet.torch.emit import generate
from linnet.torch.splitting import split
from linnet.torch.variant import Variant
from linnet.weights.part import Shard

ATTENTION = """
module attention
use std.nn.attention::{grouped_attention, merge_heads, split_heads}
use std.nn.cache::{write_span}
use std.nn.linear::{Linear}

pub block Layer<H: Dim, Heads: Dim, KvHeads: Dim, D: Dim, MaxSeq: Dim>
where Heads % KvHeads == 0, KvHeads > 0, MaxSeq > 0 {
    sub q_proj: Linear<H, Heads * D, f32>
    sub k_proj: Linear<H, KvHeads * D, f32>
    sub v_proj: Linear<H, KvHeads * D, f32>
    sub o_proj: Linear<Heads * D, H, f32>
    state keys: Tensor[1, KvHeads, MaxSeq, D; f32]
    state values: Tensor[1, KvHeads, MaxSeq, D; f32]

    pub fn forward<S: Dim>(x: Tensor[1, S, H; f32], at: i32) -> Tensor[1, S, H; f32]
    where S > 0 {
        let q = split_heads<1, S, Heads, D, f32>(q_proj.forward(x))
        keys = write_span(keys, split_heads<1, S, KvHeads, D, f32>(k_proj.forward(x)), at)
        values = write_span(values, split_heads<1, S, KvHeads, D, f32>(v_proj.forward(x)), at)
        let mixed = grouped_attention(q, keys, values, 0.5, some(fill<bool>([S, MaxSeq], true)))
        return x + o_proj.forward(merge_heads(mixed))
    }
}
pub block Model<H: Dim, Heads: Dim, KvHeads: Dim, D: Dim, MaxSeq: Dim, Layers: Dim>
where Heads % KvHeads == 0, KvHeads > 0, MaxSeq > 0 {
    sub layers: [Layer<H, Heads, KvHeads, D, MaxSeq>; Layers]

    pub entry prefill<S: Dim>(x: Tensor[1, S, H; f32], at: i32) -> Tensor[1, S, H; f32]
    where S > 0 {
        var y = x
        static for layer in layers {
            y = layer.forward(y, at)
        }
        return y
    }
}
"""
SIZES = {"H": 10, "Heads": 4, "KvHeads": 2, "D": 4, "MaxSeq": 8, "Layers": 3}
TWO = Shard(1, 2)
SMALL = """
module small
use std.nn.linear::{{Linear, linear}}
use std.nn.softmax::{{softmax}}

pub block Model<H: Dim, Inner: Dim> where Inner > 0 {{
    sub up: Linear<H, 2 * Inner, f32>
    sub down: Linear<2 * Inner, H, f32>
    pub entry forward<N: Dim>(x: Tensor[N, H; f32]) -> {body}
}}
"""


def written(place: Path, text: str) -> Path:
    (place / f"{text.split()[1]}.linnet").write_text(text, encoding="utf-8")
    return place / f"{text.split()[1]}.linnet"


def program(path: Path, sizes: Any = SIZES) -> Program:
    return load_source(path, generics=sizes, policy="fast").program


def test_what_rules_name_splits_what_it_meets(tmp_path: Path) -> None:
    whole = program(written(tmp_path, ATTENTION))
    made, parts = split(whole, None, TWO)
    verify(made)
    assert {path: part.axis for path, part in parts.items() if path.startswith("layers.2")} == {
        **{f"layers.2.{name}_proj.weight": 0 for name in "qkv"},
        "layers.2.o_proj.weight": 1,
    }
    assert all(part.index == 1 and part.count == 2 for part in parts.values())
    types = {entry.path: str(entry.type) for entry in made.manifest.entries}
    assert types["layers.*.keys"] == types["layers.*.values"] == "Tensor[1, 1, 8, 4; f32]"
    text = generate(made, "fast", variant=Variant(split=True)).text
    assert text.count("SHARDS.all_reduce(") == text.count("SHARDS.shared(") == 1
    # The ops are there for their kernels, at the sizes of one device.
    assert "attend.attention(" in text and "kernels.write_span_(" in text
    assert made.generics == whole.generics and made.entries["prefill"].returns is not None


def test_heads_that_do_not_divide(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as error:
        split(program(written(tmp_path, ATTENTION)), None, Shard(0, 4))
    assert "prefill: an axis of 2 is not shared equally by 4 devices" in str(error.value)


def small(tmp_path: Path, body: str) -> Program:
    return program(written(tmp_path, SMALL.format(body=body)), {"H": 4, "Inner": 3})


LINEAR = "Tensor[N, H; f32] { return down.forward(up.forward(x)) }"
REFUSED = {
    "positions on a split axis": (
        "Tensor[N, 2 * Inner; f32] {\n let y = up.forward(x)\n let at = iota<i64>(2 * Inner)\n"
        "let z[n, i] = y[n, i] * cast<f32>(at[i])\n return z }",
        "is needed split along axis",
    ),
    "halves of a split axis": (
        "Tensor[N, Inner; f32] {\n let y = up.forward(x)\n"
        "return y[:, 0:Inner] * y[:, Inner:2 * Inner] }",
        "takes a run of axis 1 of [N, 6], which is split: several parts side by side need weights",
    ),
    "the largest of a split axis": (
        "Tensor[N, 2 * Inner; f32] { return softmax(up.forward(x)) }",
        "is split along axis 1, and is needed whole",
    ),
    "heads that a run cuts through": (
        "Tensor[N, Inner; f32] {\n let y = reshape(up.forward(x), [N, Inner, 2])\n"
        "return y[:, :, 0] }",
        "an axis of 3 is not shared equally by 2 devices",
    ),
}


@pytest.mark.parametrize("body, reason", REFUSED.values(), ids=REFUSED)
def test_what_needs_other_devices_numbers_is_refused(
    tmp_path: Path,
    body: str,
    reason: str,
) -> None:
    with pytest.raises(PlanError) as error:
        split(small(tmp_path, body), {"up.weight": "column"}, TWO)
    assert "Model cannot be split over 2 devices by these rules: forward:" in str(error.value)
    assert reason in str(error.value)


def test_rules_that_are_wrong(tmp_path: Path) -> None:
    made = small(tmp_path, LINEAR)

    def message(**rules: Any) -> str:
        with pytest.raises(PlanError) as error:
            split(made, {k.replace("_", "."): v for k, v in rules.items()}, TWO)
        return str(error.value)

    assert "'middle.weight' fits no parameter; there are up.weight, " in message(
        middle_weight="column"
    )
    assert "'up.weight' is 'columns'; a rule is 'column' (axis 0)" in message(up_weight="columns")
    assert "up.weight is [6, 4], which has no axis 2 to split" in message(up_weight=2)
    assert "tp_rules split nothing" in message(up_weight="replicate")
    text = message(up_weight="column", down_weight="replicate")
    assert "forward needs down.weight split along axis 1, by the rules it is whole" in text
    assert "would need its input x split along axis 1" in message(up_weight="row")
    with pytest.raises(
        PlanError, match=r"up.weight is \[6, 4\]: axis 0 is not shared equally by 4"
    ):
        split(made, {"up.weight": "column"}, Shard(0, 4))


def test_loading_with_rules(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL.format(body=LINEAR))
    sizes = {"H": 4, "Inner": 3}
    with mesh(1, 2) as two:
        model = linnet.torch.load(path, generics=sizes, tensor_parallel=two)
        assert tuple(model.up.weight.shape) == (3, 4) and tuple(model.down.weight.shape) == (4, 3)
    with pytest.raises(PlanError, match="tp_rules are for models without Shards on a mesh: there"):
        linnet.torch.load(path, generics=sizes, tp_rules={"up.weight": "column"})
