"""GGUF files: names, layout and dequantisation, and every way a file can be wrong."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linnet.diagnostics import PlanError
from linnet.weights import Slot, gguf_metadata, open_checkpoint, plan_bindings, read_arrays
from weights.gguf_files import forged, info, key, text

Q4_0 = gguf.GGMLQuantizationType.Q4_0
Q8_0 = gguf.GGMLQuantizationType.Q8_0
H, HEADS, KV, VOCAB, INNER = 64, 4, 2, 8, 96


def tensor(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def interleaved(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """What llama.cpp's converter makes of a projection: halves become pairs."""
    shape = rows.shape
    return rows.reshape(heads, 2, -1, *shape[1:]).swapaxes(1, 2).reshape(shape)


def small_llama(path: Path, architecture: str = "llama") -> dict[str, np.ndarray[Any, Any]]:
    """A GGUF of one layer; returned: what should be read, by Hugging Face name."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_token_list(["<s>", "a", "é"])
    writer.add_token_scores([0.0, -1.0, -2.0])
    expected: dict[str, np.ndarray[Any, Any]] = {}

    def add(name: str, published: str, array: np.ndarray[Any, Any], scheme: Any = None) -> None:
        heads = {"attn_q": HEADS, "attn_k": KV}.get(name.split(".")[-2])
        paired = heads is not None and architecture == "llama"
        stored = interleaved(array, heads) if paired and heads is not None else array
        if scheme is None:
            writer.add_tensor(name, stored)
            expected[published] = array
            return
        data = gguf.quants.quantize(stored, scheme)
        writer.add_tensor(name, data, raw_dtype=scheme)
        back = gguf.quants.dequantize(data, scheme)
        if paired and heads is not None:
            back = back.reshape(heads, -1, 2, H).swapaxes(1, 2).reshape(back.shape)
        expected[published] = back

    layer = "model.layers.0."
    add("token_embd.weight", "model.embed_tokens.weight", tensor(0, VOCAB, H), Q8_0)
    add("blk.0.attn_norm.weight", layer + "input_layernorm.weight", tensor(1, H))
    add("blk.0.attn_q.weight", layer + "self_attn.q_proj.weight", tensor(2, H, H), Q4_0)
    add("blk.0.attn_k.weight", layer + "self_attn.k_proj.weight", tensor(3, H // 2, H), Q4_0)
    add("blk.0.attn_k.bias", layer + "self_attn.k_proj.bias", tensor(4, H // 2))
    add("blk.0.ffn_up.weight", layer + "mlp.up_proj.weight", tensor(5, INNER, H).astype("f2"))
    add("output_norm.weight", "model.norm.weight", tensor(6, H))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_names_and_layout_are_those_of_the_first_checkpoint(
    tmp_path: Path, architecture: str
) -> None:
    expected = small_llama(tmp_path / "m.gguf", architecture)
    arrays = read_arrays(tmp_path / "m.gguf")
    assert set(arrays) == set(expected)
    for name, array in expected.items():
        assert arrays[name].dtype == array.dtype
        assert np.array_equal(arrays[name], array), name


def test_an_unknown_architecture_keeps_its_names(tmp_path: Path) -> None:
    small_llama(tmp_path / "m.gguf", "falcon")
    assert "blk.0.attn_q.weight" in open_checkpoint(tmp_path).tensors


def test_metadata_is_that_of_the_library(tmp_path: Path) -> None:
    small_llama(tmp_path / "m.gguf")
    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    metadata = gguf_metadata(tmp_path / "m.gguf")
    assert metadata["tokenizer.ggml.tokens"] == ["<s>", "a", "é"]
    assert len(metadata) == len(fields) - 3  # the library counts version and counts as fields
    for name, value in metadata.items():
        assert fields[name].contents() == value


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_a_quantised_tensor_is_rounded_once_without_being_asked(tmp_path: Path, dtype: str) -> None:
    expected = small_llama(tmp_path / "m.gguf")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert checkpoint.tensors[name].dtype is None and checkpoint.tensors[name].encoding == "Q4_0"
    (bound,) = plan_bindings([Slot("q", (H, H), dtype)], checkpoint, {"q": name}, strict=False)
    rounded = expected[name].astype({"bf16": ml_dtypes.bfloat16, "f16": "f2", "f32": "f4"}[dtype])
    assert not bound.cast and np.array_equal(bound.read(), rounded)


def test_a_large_quantised_tensor_is_widened_in_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = small_llama(tmp_path / "m.gguf")
    monkeypatch.setattr("linnet.weights.dequantise.PIECE", 3 * H)
    for name, array in read_arrays(tmp_path / "m.gguf").items():
        assert np.array_equal(array, expected[name])


def test_other_tensors_keep_their_dtype(tmp_path: Path) -> None:
    small_llama(tmp_path / "m.gguf")
    name = "model.layers.0.mlp.up_proj.weight"
    slots = [Slot("up", (INNER, H), "bf16")]
    with pytest.raises(PlanError, match=r"`up` is bf16, .* is f16; cast_dtype=True converts it"):
        plan_bindings(slots, tmp_path / "m.gguf", {"up": name}, strict=False)
    slots = [Slot("embed", (VOCAB, H), "i32")]
    with pytest.raises(PlanError, match=r"`embed` is i32, .* is quantised \(Q8_0\)"):
        plan_bindings(
            slots, tmp_path / "m.gguf", {"embed": "model.embed_tokens.weight"}, strict=False
        )


# --- bad files --------------------------------------------------------------------------------


ARCHITECTURE = key("general.architecture", 8, text("llama"))
F32, Q4_1 = 0, 3

BAD = {
    "empty": (b"", "is not GGUF: it starts with b''"),
    "a pointer": (b"version https://git-lfs", "is a Git LFS pointer"),
    "another format": (b"PK\x03\x04" + b"\0" * 40, "is not GGUF: it starts with b'PK"),
    "short": (b"GGUF\x03\0\0\0", "is 8 bytes long, too short for a GGUF header"),
    "version 1": (forged([], 0, version=1), "is GGUF version 1; versions 2 and 3 are read"),
    "big-endian": (b"GGUF\0\0\0\x03" + b"\0" * 16, "is big-endian GGUF"),
    "forged key count": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
        "metadata of 1,152,921,504,606,846,976 keys",
    ),
    "forged tensor count": (
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0),
        "the description of 1,152,921,504,606,846,976 tensors",
    ),
    "forged string": (
        forged([], 0, [struct.pack("<Q", 1 << 50) + b"x" * 40]),
        "the name of metadata key 0 at byte 32 should take 1,125,899,906,842,624 bytes",
    ),
    "forged array": (
        forged([], 0, [key("k", 9, struct.pack("<IQ", 4, 1 << 50))]),
        "`k`, 1,125,899,906,842,624 values, at byte",
    ),
    "forged array of strings": (
        forged([], 0, [key("k", 9, struct.pack("<IQQ", 8, 2, 1 << 50) + b"x" * 9)]),
        "`k`: string 0 of 2 at byte",
    ),
    "endless nesting": (
        forged([], 0, [key("k", 9, struct.pack("<IQ", 9, 1) * 50)]),
        "`k` is an array of arrays, which are not read",
    ),
    "unknown value type": (forged([], 0, [key("k", 99, b"\0" * 20)]), "unknown value type 99"),
    "not UTF-8": (
        forged([], 0, [key("k", 8, struct.pack("<Q", 1) + b"\xff")]),
        "`k` is not UTF-8",
    ),
    "a key twice": (
        forged([], 0, [key("k", 0, b"\1"), key("k", 0, b"\1")]),
        "the metadata key `k` stands twice",
    ),
    "alignment": (
        forged([], 0, [key("general.alignment", 4, struct.pack("<I", 33))]),
        "`general.alignment` is 33, not a power of two",
    ),
    "too many axes": (forged([info("t", [1] * 5, F32, 0)], 32), "`t` has 5 axes"),
    "forged axes": (
        forged([text("t") + struct.pack("<I", 1 << 31)], 32),
        "`t` has 2,147,483,648 axes",
    ),
    "unknown encoding": (forged([info("t", [1], 999, 0)], 32), "`t` has the unknown encoding 999"),
    "huge": (forged([info("t", [1 << 40] * 3, F32, 0)], 32), "more than any file can hold"),
    "broken rows": (
        forged([info("t", [33, 2], Q4_1, 0)], 64),
        "`t`: rows of 33 elements; Q4_1 stores blocks of 32",
    ),
    "misaligned": (
        forged([info("t", [4], F32, 4)], 32),
        "`t` lies at offset 4, not a multiple of 32",
    ),
    "cut": (
        forged([info("t", [8], F32, 0), info("u", [8], F32, 32)], 60),
        "cut short: 156 bytes, its header describes 160; "
        "`u` (32 bytes at 128) is the first that is not whole",
    ),
    "padded": (forged([info("t", [8], F32, 0)], 96), "64 bytes too long: 160 bytes"),
    "overlap": (
        forged([info("t", [16], F32, 0), info("u", [8], F32, 32)], 64),
        "`u` and `t` overlap in 32 bytes",
    ),
    "hole": (
        forged([info("t", [8], F32, 0), info("u", [8], F32, 64)], 96),
        "32 bytes before `u` belong to no tensor",
    ),
    "twice": (
        forged([info("t", [8], F32, 0), info("t", [8], F32, 32)], 64),
        "`t` stands twice in the header",
    ),
    "heads": (
        forged(
            [info("blk.0.attn_q.weight", [1, 6], F32, 0)],
            32,
            [ARCHITECTURE, key("llama.attention.head_count", 4, struct.pack("<I", 2))],
        ),
        "`blk.0.attn_q.weight` has 6 rows, which `llama.attention.head_count` = 2 does not divide",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(tmp_path: Path, name: str) -> None:
    content, expected = BAD[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(PlanError) as caught:
        read_arrays(path)
    assert str(caught.value).startswith(f"cannot read {path}: 1 problem\n")
    assert expected in str(caught.value)


def test_a_file_cut_in_its_data_names_the_tensor_and_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    small_llama(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(PlanError, match=r"cut short: .* `output_norm.weight` \(256 bytes"):
        read_arrays(path)
    path.write_bytes(whole + b"\0" * 32)
    with pytest.raises(PlanError, match="32 bytes too long"):
        read_arrays(path)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_header_is_reported_or_read(tmp_path: Path, data: st.DataObject) -> None:
    """No change of header bytes, and no cut, gets past as an exception of another kind."""
    original = tmp_path / "original.gguf"
    if not original.exists():
        small_llama(original)
    content = bytearray(original.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(4, 800))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(8, len(content))) :]
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    try:
        arrays = read_arrays(path)
    except PlanError as error:
        assert "problem" in str(error)
        return
    # What is taken here, the format's own library takes too.
    read = {tuple(reversed(one.shape.tolist())) for one in gguf.GGUFReader(path).tensors}
    assert read == {array.shape for array in arrays.values()}
