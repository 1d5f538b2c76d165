"""Bindings: which tensor fills which parameter, and the one report of everything wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from linnet.diagnostics import PlanError
from linnet.weights import (
    Slot,
    apply_bindings,
    as_array,
    expand_bindings,
    open_checkpoint,
    paths_by_tensor,
    plan_bindings,
    read_bindings,
    read_bound,
    write_bindings,
    write_safetensors,
)

Arrays = dict[str, np.ndarray[Any, Any]]


def zeros(**shapes: tuple[int, ...]) -> Arrays:
    return {name.replace("__", "."): np.zeros(s, np.float32) for name, s in shapes.items()}


def refusal(*args: Any, **options: Any) -> str:
    with pytest.raises(PlanError) as caught:
        plan_bindings(*args, **options)
    return str(caught.value)


MODEL: Arrays = {
    "model.embed_tokens.weight": np.arange(8, dtype=np.float32).reshape(4, 2),
    **{f"model.layers.{k}.norm.weight": np.full(2, k, np.float32) for k in range(12)},
}
SLOTS = [
    Slot("embedding.weight", (4, 2), "f32"),
    *[Slot(f"layers.{k}.norm.weight", (2,), "f32") for k in range(12)],
    Slot("lm_head.weight", (4, 2), "f32"),
]
PATTERNS = {
    "embedding.weight": "model.embed_tokens.weight",
    "lm_head.weight": "model.embed_tokens.weight",
    "layers.{i}.norm.weight": "model.layers.{i}.norm.weight",
}


def test_without_bindings_paths_are_names() -> None:
    (bound,) = plan_bindings([Slot("a.b", (2,), "f32")], zeros(a__b=(2,)))
    assert (bound.slot.path, bound.location.name, bound.cast) == ("a.b", "a.b", False)


def test_placeholders_stand_for_positions() -> None:
    bound = plan_bindings(SLOTS, MODEL, PATTERNS)
    assert [one.slot for one in bound] == SLOTS
    assert [one.location.name for one in bound[1:13]] == [
        f"model.layers.{k}.norm.weight" for k in range(12)
    ]


def test_a_written_out_map_is_the_same_thing(tmp_path: Path) -> None:
    written = expand_bindings(PATTERNS, [slot.path for slot in SLOTS])
    assert len(written) == 14 and "{i}" not in str(written)
    write_bindings(tmp_path / "bindings.json", written)
    assert read_bindings(tmp_path / "bindings.json") == written
    names = [one.location.name for one in plan_bindings(SLOTS, MODEL, PATTERNS)]
    for bindings in (written, tmp_path / "bindings.json", str(tmp_path / "bindings.json")):
        assert [one.location.name for one in plan_bindings(SLOTS, MODEL, bindings)] == names


def test_several_placeholders_and_one_used_twice() -> None:
    paths = ["s.1.b.2.w", "s.1.b.11.w", "t.3.3", "t.3.4"]
    bindings = {"s.{i}.b.{j}.w": "x.{j}.{i}", "t.{i}.{i}": "y.{i}"}
    assert expand_bindings(bindings, paths) == {
        "s.1.b.2.w": "x.2.1",
        "s.1.b.11.w": "x.11.1",
        "t.3.3": "y.3",
    }


def test_a_written_out_path_goes_before_a_pattern() -> None:
    paths = ["layers.0.w", "layers.1.w"]
    for bindings in (
        {"layers.{i}.w": "l.{i}", "layers.0.w": "first"},
        {"layers.0.w": "first", "layers.{i}.w": "l.{i}"},
    ):
        assert expand_bindings(bindings, paths) == {"layers.0.w": "first", "layers.1.w": "l.1"}


def test_a_shared_tensor_is_read_once() -> None:
    groups = list(read_bound(plan_bindings(SLOTS, MODEL, PATTERNS)))
    assert len(groups) == 13
    slots, array = groups[0]
    assert [slot.path for slot in slots] == ["embedding.weight", "lm_head.weight"]
    assert array is MODEL["model.embed_tokens.weight"]
    assert [slots[0].path for slots, _ in groups[1:]] == [slot.path for slot in SLOTS[1:13]]


def test_e4m3_numbers_fill_a_slot_of_bytes(tmp_path: Path) -> None:
    held = {"x": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).reshape(16, 16)}
    write_safetensors(tmp_path / "x.safetensors", held)
    for stored in (held, open_checkpoint(tmp_path / "x.safetensors")):
        (bound,) = plan_bindings([Slot("x", (16, 16), "u8")], stored)
        assert not bound.cast
        assert np.array_equal(bound.read(), np.arange(256, dtype=np.uint8).reshape(16, 16))
    other = {"x": np.zeros(4, ml_dtypes.float8_e5m2)}
    assert "`x` is u8, `x` in <memory> is f8_e5m2" in refusal([Slot("x", (4,), "u8")], other)
    assert "`x` is i8, `x` in <memory> is f8_e4m3" in refusal([Slot("x", (16, 16), "i8")], held)


def test_a_tensor_keeps_its_bits_whatever_its_dtype() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        assert np.array_equal(as_array(codes.view(dtype)).view(np.uint8), np.arange(256))
    words = torch.arange(2**15, dtype=torch.int16).reshape(2, -1).T
    assert np.array_equal(as_array(words.view(torch.bfloat16)).view(np.int16), words.numpy())
    assert as_array(torch.zeros((), dtype=torch.bfloat16)).shape == ()


def test_one_more_axis_of_one_at_the_end_is_no_difference() -> None:
    held = {"x": np.arange(4, dtype=np.float32).reshape(4, 1)}
    slots = [Slot("x", (4,), "f32"), Slot("y", (4, 1), "f32")]
    groups = list(read_bound(plan_bindings(slots, held, {"x": "x", "y": "x"})))
    assert [array.shape for _, array in groups] == [(4,), (4, 1)]
    assert all(np.array_equal(array.ravel(), [0, 1, 2, 3]) for _, array in groups)
    assert "`x` is [4], `x` in <memory> is [1, 4]" in refusal(
        [Slot("x", (4,), "f32")], {"x": np.zeros((1, 4), np.float32)}
    )
    assert "`x` is [2, 2]" in refusal([Slot("x", (2, 2), "f32")], held)


def test_conversion_only_where_it_is_allowed() -> None:
    held = {"x": np.array([1.00390625, 3.0e38], np.float32)}
    slots = [Slot("x", (2,), "bf16")]
    assert "`x` is bf16, `x` in <memory> is f32; cast_dtype=True converts it" in refusal(
        slots, held
    )
    (bound,) = plan_bindings(slots, held, cast_dtype=True)
    assert bound.cast
    assert np.array_equal(bound.read(), held["x"].astype(ml_dtypes.bfloat16))
    for stored, wanted in (("int32", "f32"), ("float32", "i32"), ("int32", "i64")):
        text = refusal([Slot("x", (1,), wanted)], {"x": np.zeros(1, stored)}, cast_dtype=True)
        assert f"`x` is {wanted}, " in text and "cast_dtype" not in text


def test_optional_slots_may_stay_empty() -> None:
    slots = [Slot("w", (2,), "f32"), Slot("b", (2,), "f32", optional=True)]
    assert [one.slot.path for one in plan_bindings(slots, zeros(w=(2,)))] == ["w"]
    bindings = {"w": "weight", "b": "bias"}
    assert len(plan_bindings(slots, zeros(weight=(2,)), bindings)) == 1
    assert len(plan_bindings(slots, zeros(weight=(2,), bias=(2,)), bindings)) == 2
    text = refusal(slots, zeros(weight=(2,), bias=(3,)), bindings)
    assert "`b` is [2], `bias` in <memory> is [3]" in text


def test_everything_wrong_stands_in_one_report(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write_safetensors(
        path,
        {
            "embed.weight": np.zeros((2, 4), np.float32),
            "layers.0.up_proj.weight": np.zeros(3, np.float16),
            "layers.1.upp.weight": np.zeros(3, np.float32),
            "head.bias": np.zeros(1, np.float32),
        },
    )
    with path.open("ab") as file:
        file.write(b"\0" * 5)
    slots = [
        Slot("embedding", (4, 2), "f32"),
        Slot("layers.0.up", (3,), "f32"),
        Slot("layers.1.up", (3,), "f32"),
        Slot("norm", (3,), "f32"),
    ]
    bindings = {
        "embedding": "embed.weight",
        "layers.{i}.up": "layers.{i}.up_proj.weight",
        "embeding": "embed.weight",
        "blocks.{i}.up": "blocks.{i}",
    }
    text = refusal(slots, path, bindings).replace(str(path), "W")
    assert text == (
        "cannot bind W: 9 problems\n"
        "  files:\n"
        "    W: 5 bytes too long: 355 bytes, its header describes 350\n"
        "  bindings of no parameter (2):\n"
        "    `embeding`; did you mean `embedding`?\n"
        "    `blocks.{i}.up`; no parameter's path has this form\n"
        "  shapes:\n"
        "    `embedding` is [4, 2], `embed.weight` in W is [2, 4] (transposed?)\n"
        "  dtypes:\n"
        "    `layers.0.up` is f32, `layers.0.up_proj.weight` in W is f16; "
        "cast_dtype=True converts it\n"
        "  missing tensors (2):\n"
        "    `layers.1.up_proj.weight` [3] for `layers.1.up`; did you mean `layers.1.upp.weight`?\n"
        "    `norm` [3] (no binding names this path)\n"
        "  tensors that nothing binds (strict=False ignores them) (2):\n"
        "    `layers.1.upp.weight` [3] in W\n"
        "    `head.bias` [1] in W"
    )


def test_without_strict_missing_and_extra_tensors_pass_and_wrong_ones_do_not() -> None:
    slots = [Slot("a", (2,), "f32"), Slot("b", (2,), "f32")]
    held = zeros(a=(2,), c=(2,))
    assert [one.slot.path for one in plan_bindings(slots, held, strict=False)] == ["a"]
    assert plan_bindings(slots, held, {"a": "a", "gone.{i}": "x.{i}"}, strict=False)
    assert "`a` is [2]" in refusal(slots, zeros(a=(3,)), strict=False)


def test_tables_that_models_compute_are_not_extra() -> None:
    held = zeros(w=(2,), model__layers__0__self_attn__rotary_emb__inv_freq=(8,))
    held |= zeros(h__0__attn__bias=(1, 1, 8, 8), h__0__attn__masked_bias=())
    held |= zeros(embeddings__position_ids=(1, 8))
    assert len(plan_bindings([Slot("w", (2,), "f32")], held)) == 1
    # A bias of that name that is no mask is a weight.
    assert "`h.0.attn.bias` [8]" in refusal(
        [Slot("w", (2,), "f32")], zeros(w=(2,), h__0__attn__bias=(8,))
    )


def test_another_model_altogether_is_said_in_a_line() -> None:
    slots = [Slot(f"layers.{k}.w", (2,), "f32") for k in range(30)]
    biases = [Slot(f"layers.{k}.b", (2,), "f32", optional=True) for k in range(30)]
    text = refusal(slots + biases, zeros(x=(2,)))
    assert "none of the 30 that the program needs: it asks for `layers.0.w`" in text
    assert "the weights in memory holds `x`" in text


def test_a_long_report_is_cut_fairly() -> None:
    slots = [Slot(f"s{k}", (2,), "f32") for k in range(50)] + [Slot("w", (2,), "f32")]
    held = zeros(w=(3,)) | {f"t{k}": np.zeros(2, np.float32) for k in range(50)}
    text = refusal(slots, held)
    assert text.startswith("cannot bind the weights in memory: 101 problems\n")
    assert "missing tensors (50):" in text and "`w` is [2]" in text
    assert text.count("and 40 more") == 1 and text.count("and 41 more") == 1
    assert len(text.splitlines()) == 1 + 3 + 20 + 2


def test_tensors_of_unreadable_files_are_not_called_missing(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", zeros(a=(2,)))
    (tmp_path / "b.safetensors").write_bytes(b"")
    text = refusal([Slot("a", (3,), "f32"), Slot("b", (2,), "f32")], tmp_path)
    assert "too short" in text and "`a` is [3]" in text and "2 problems" in text


def test_tensors_of_an_absent_shard_are_not_called_missing_besides(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "one.safetensors", zeros(a=(2,)))
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    slots = [Slot(name, (2,), "f32") for name in "abc"]
    text = refusal(slots, tmp_path)
    assert "names two.safetensors for 1 tensors; there is no such file" in text
    assert "missing tensors:\n    `c` [2]" in text and "2 problems" in text


@pytest.mark.parametrize(
    ("bindings", "expected"),
    [
        ({"x.{i}": "y.{j}"}, "`x.{i}` -> `y.{j}`: {j} does not stand in the path"),
        ({"x.0": "y.{i}"}, "`x.0` -> `y.{i}`: {i} does not stand in the path"),
        (
            {"x.{i}": "y.{i}", "{a}.0": "z", "x.{k}": "z.{k}"},
            "`x.0` is bound to `y.0` and to `z.0`",
        ),
    ],
)
def test_bad_patterns(bindings: dict[str, str], expected: str) -> None:
    assert expected in refusal([Slot("x.0", (1,), "f32")], zeros(y__0=(1,)), bindings)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "is not valid JSON"),
        ("[]", "bindings are one object from Linnet path to tensor name"),
        ('{"a": 1}', "`a` is bound to 1, not a tensor name"),
        ('{"a": "x", "a": "y"}', "`a` is bound twice"),
    ],
)
def test_bad_binding_files(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "bindings.json"
    path.write_text(content)
    assert f"{path}: {expected}" in refusal([], {}, path)
    with pytest.raises(PlanError) as caught:
        read_bindings(path)
    assert f"{path}: {expected}" in str(caught.value)


def test_the_seeds_bindings_are_its_patterns_written_out(seed: Path) -> None:
    written = read_bindings(seed / "bindings.json")
    patterns = {
        key.replace(".0.", ".{i}."): name.replace(".0.", ".{i}.")
        for key, name in written.items()
        if ".0." in key or "layers" not in key
    }
    assert len(patterns) == 12 and len(written) == 291
    assert expand_bindings(patterns, written) == written


def test_maps_turned_and_applied() -> None:
    assert paths_by_tensor(PATTERNS)["model.embed_tokens.weight"] == (
        "embedding.weight",
        "lm_head.weight",
    )
    applied = apply_bindings(MODEL, PATTERNS)
    assert set(applied) == {slot.path for slot in SLOTS}
    assert applied["embedding.weight"] is applied["lm_head.weight"]
    assert applied["layers.11.norm.weight"] is MODEL["model.layers.11.norm.weight"]
    with pytest.raises(PlanError, match=r"`a` is bound to `model.embed_token.weight`, which is no"):
        apply_bindings(MODEL, {"a": "model.embed_token.weight"})


def test_frameworks_tensors_are_taken_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    held = {"x": torch.tensor([1.5, -2.0]).bfloat16(), "y": torch.arange(3, dtype=torch.int32)}
    checkpoint = open_checkpoint(held)
    assert checkpoint.tensors["x"].dtype == "bf16" and checkpoint.tensors["x"].source is held["x"]
    slots = [Slot("x", (2,), "bf16"), Slot("y", (3,), "i32")]
    x, y = (one.read() for one in plan_bindings(slots, checkpoint))
    assert x.dtype == ml_dtypes.bfloat16 and x.tolist() == [1.5, -2.0] and y.tolist() == [0, 1, 2]
