"""A shard's part of a stored tensor: the same numbers as of the whole, and no other byte read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.diagnostics import PlanError
from linnet.weights import Bound, RawTensor, Slot, open_checkpoint, safetensors_index
from linnet.weights.location import MappedFile, Paired
from linnet.weights.part import Part, Shard, cut, part_of, parts_between
from linnet.weights.safetensors import write_safetensors

Array = np.ndarray[Any, Any]
HEADS = 4


def drawn(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The byte ranges that are looked at from now on."""
    seen: list[tuple[int, int]] = []
    view = MappedFile.view

    def noted(self: MappedFile, start: int, end: int) -> memoryview:
        seen.append((start, end))
        return view(self, start, end)

    monkeypatch.setattr(MappedFile, "view", noted)
    return seen


@settings(deadline=None, max_examples=60)
@given(
    shape=st.lists(st.integers(1, 3), min_size=0, max_size=3),
    axis=st.integers(0, 3),
    count=st.integers(1, 4),
    dtype=st.sampled_from(["f32", "bf16", "i8"]),
)
def test_parts_of_safetensors_are_those_of_the_array(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], axis: int, count: int, dtype: str
) -> None:
    axis = min(axis, len(shape))
    sizes = (*shape[:axis], 2 * count, *shape[axis:])
    numbers = (100 * drawn(*sizes)).astype(
        {"f32": "f4", "bf16": ml_dtypes.bfloat16, "i8": "i1"}[dtype]
    )
    path = tmp_path_factory.mktemp("part") / "x.safetensors"
    write_safetensors(path, {"before": drawn(3), "x": numbers})
    at = safetensors_index(path)["x"]
    for index in range(count):
        part = part_of(at, Part(axis, index, count))
        expected = np.split(numbers, count, axis)[index]
        found = part.read()
        assert found.dtype == expected.dtype and found.shape == part.shape == expected.shape
        assert found.tobytes() == expected.tobytes() == bytes(part.raw().data)
        assert part.nbytes == expected.nbytes
        part.release()


@pytest.mark.parametrize("axis", [0, 1])
def test_only_the_parts_bytes_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, axis: int
) -> None:
    numbers = drawn(6, 8)
    write_safetensors(tmp_path / "x.safetensors", {"x": numbers})
    at = safetensors_index(tmp_path / "x.safetensors")["x"]
    seen = watched(monkeypatch)
    for index in range(2):
        part_of(at, Part(axis, index, 2)).read()
    places = [np.arange(start, end) for start, end in seen]
    assert sum(map(len, places)) == numbers.nbytes
    assert sorted(np.concatenate(places)) == list(range(at.start, at.end))


def stored(path: Path, scheme: Any = None) -> tuple[Path, dict[str, Array]]:
    """A GGUF with a projection of pairs, and one as it lies; and what is read of it."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    for name, array in (("attn_q", drawn(16, 96)), ("ffn_down", drawn(6, 64))):
        if scheme is None:
            writer.add_tensor(f"blk.0.{name}.weight", array)
        else:
            data = gguf.quants.quantize(array, scheme)
            writer.add_tensor(f"blk.0.{name}.weight", data, raw_dtype=scheme)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, {n: at.read() for n, at in open_checkpoint(path).tensors.items()}


@pytest.mark.parametrize("scheme", ["F32", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("axis", [0, 1])
def test_parts_of_gguf_are_those_of_what_is_read(tmp_path: Path, scheme: str, axis: int) -> None:
    kind = None if scheme == "F32" else gguf.GGMLQuantizationType[scheme]
    path, whole = stored(tmp_path / "x.gguf", kind)
    for name, at in open_checkpoint(path).tensors.items():
        for index in range(2):
            # 96 columns are three blocks: a half begins inside the second one.
            part = part_of(at, Part(axis, index, 2))
            expected = np.split(whole[name], 2, axis)[index]
            assert np.array_equal(part.read(), expected)
            assert np.array_equal(part.read("f16"), expected.astype(np.float16))
            assert part.nbytes <= at.nbytes * (1 if whole[name].shape[1] == 96 and axis else 0.5)
            if kind is not None:
                with pytest.raises(PlanError, match="is quantised"):
                    part.raw()


def test_parts_of_what_is_stored_another_way_round(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "gpt2")
    writer.add_tensor("blk.0.ffn_up.weight", drawn(8, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    [at] = open_checkpoint(tmp_path / "x.gguf").tensors.values()
    assert at.form is not None and np.array_equal(at.read(), drawn(8, 4).T)
    for axis in (0, 1):
        halves = [part_of(at, Part(axis, index, 2)).read() for index in range(2)]
        assert np.array_equal(np.concatenate(halves, axis), at.read())


def test_parts_of_arrays_in_memory() -> None:
    import torch

    numbers = drawn(4, 6)
    raw = RawTensor("f32", (4, 6), numbers.tobytes())
    for held in (numbers, torch.from_numpy(numbers), raw):
        [at] = open_checkpoint(
            {"x": held} if held is not raw else {"x": raw.array()}
        ).tensors.values()
        part = part_of(at, Part(1, 1, 3))
        assert np.array_equal(part.read(), numbers[:, 2:4]) and part.nbytes == numbers.nbytes / 3


def test_slots_that_share_a_tensor_share_its_part() -> None:
    [at] = open_checkpoint({"x": drawn(4, 6)}).tensors.values()
    bound = [Bound(Slot(path, (4, 6), "f32"), at, False) for path in ("a", "b", "c")]
    part = Part(0, 1, 2)
    a, b, c = cut(bound, {"a": part, "b": part})
    assert a.location is b.location and a.slot.shape == (2, 6)
    assert c.location is at and c.slot.shape == (4, 6)


def test_what_has_no_equal_runs_is_refused() -> None:
    def refused(whole: Slot, own: Slot, **fused: str) -> str:
        with pytest.raises(PlanError) as error:
            parts_between([whole], [own], Shard(0, 2), fused)
        return str(error.value)

    whole = Slot("w", (8, 6), "f32")
    assert "`w` is [8, 6], of a shard [4, 3]: one axis" in refused(whole, Slot("w", (4, 3), "f32"))
    assert "must be 2 times as long" in refused(whole, Slot("w", (7, 6), "f32"))
    assert "axis 0 is A + B, so that" in refused(whole, Slot("w", (4, 6), "f32"), w="A + B")
    at = Slot("w", (8,), "i32"), Slot("w", (4,), "i32")
    assert "numbers of i32 may be positions" in refused(*at)
    same = parts_between([whole], [whole], Shard(0, 2))
    assert same == {}


def test_heads_of_pairs_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    path, _ = stored(tmp_path / "x.gguf")
    at = next(at for at in open_checkpoint(path).tensors.values() if isinstance(at.form, Paired))
    bound = Bound(Slot("q", at.shape, "f32"), at, False)
    with pytest.raises(PlanError, match="has 4 heads, which 8 shards do not share equally"):
        cut([bound], {"q": Part(0, 0, 8)})
