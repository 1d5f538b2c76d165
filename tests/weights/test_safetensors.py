"""SafeTensors files and their index: what is read, and every way a file can be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linnet.diagnostics import PlanError
from linnet.weights import (
    DTYPES,
    RawTensor,
    iter_safetensors,
    open_checkpoint,
    read_arrays,
    safetensors_files,
    safetensors_index,
    write_safetensors,
)
from linnet.weights.safetensors import STORED

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(4, dtype=np.int64),
    "c": np.array(True),
}


def raw(header: object, data: bytes = b"") -> bytes:
    """A file of this header, whether it is right or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: object, start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


GOOD = {"a": entry("F32", [2, 3], 0, 24), "b": entry("F32", [2], 24, 32)}


def problem(tmp_path: Path, content: bytes) -> str:
    """What reading a file of this content reports."""
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(PlanError) as caught:
        safetensors_index(path)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    safetensors.numpy.save_file(ARRAYS, path, metadata={"format": "np"})
    found = safetensors_index(path)
    assert set(found) == set(ARRAYS)
    location = found["a"]
    assert (location.dtype, location.shape, location.nbytes) == ("f32", (2, 3), 24)
    assert location.end - location.start == 24 and location.file == path
    for name, array in read_arrays(path).items():
        assert array.dtype == ARRAYS[name].dtype and array.shape == ARRAYS[name].shape
        assert np.array_equal(array, ARRAYS[name])


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write_safetensors(path, ARRAYS, {"made": "here"})
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata() == {"made": "here"}
        assert set(file.keys()) == set(ARRAYS)
        for name, array in ARRAYS.items():
            assert np.array_equal(file.get_tensor(name), array)
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_returns_as_it_went(tmp_path: Path, dtype: str) -> None:
    array = np.arange(6).reshape(3, 2).astype(DTYPES[dtype])
    write_safetensors(tmp_path / "w.safetensors", {"x": array})
    ((name, back),) = iter_safetensors(tmp_path / "w.safetensors")
    assert name == "x" and back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()


def test_raw_tensors_are_written_and_read_without_an_array(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    held = np.array([[1.5, -2.0]], ml_dtypes.bfloat16)
    write_safetensors(path, {"x": RawTensor("bf16", (1, 2), held.tobytes())})
    stored = safetensors_index(path)["x"].raw()
    assert (stored.dtype, stored.shape, bytes(stored.data)) == ("bf16", (1, 2), held.tobytes())
    assert np.array_equal(stored.array(), held)


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write_safetensors(path, ARRAYS)
    before = path.read_bytes()

    class Failing:
        shape, dtype = (2,), "float32"

        def __array__(self, *_: object, **__: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_safetensors(path, {"x": Failing()})
    assert path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


def test_a_tensor_without_elements_takes_no_place(tmp_path: Path) -> None:
    content = raw({"a": entry("F32", [0, 3], 0, 0), "b": entry("U8", [2], 0, 2)}, b"xy")
    (tmp_path / "w.safetensors").write_bytes(content)
    assert read_arrays(tmp_path / "w.safetensors")["a"].shape == (0, 3)


BAD = {
    "empty": (b"", "is 0 bytes long, too short for SafeTensors"),
    "seven bytes": (b"\x01" * 7, "is 7 bytes long, too short"),
    "header beyond the end": (
        (1 << 40).to_bytes(8, "little") + b"{}",
        "its header should be 1,099,511,627,776 bytes long, the file has 10 in all",
    ),
    "a pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
        "is a Git LFS pointer of 64 bytes, not the weights",
    ),
    "not JSON": (raw(b"{nonsense"), "its header is not valid JSON"),
    "not UTF-8": (raw(b'{"\xff": 1}'), "its header is not valid JSON"),
    "nested beyond reason": (raw(b"[" * 100_000), "its header is not valid JSON"),
    "a list": (raw([]), "its header is not a JSON object"),
    "metadata": (raw({"__metadata__": {"a": 1}}), "`__metadata__` is not an object of strings"),
    "twice": (
        raw(b'{"a": %s, "a": %s}' % ((json.dumps(entry("U8", [1], 0, 1)).encode(),) * 2), b"x"),
        "`a` stands twice in the header",
    ),
    "unknown dtype": (raw({"a": entry("F128", [1], 0, 16)}, b"x" * 16), "has the dtype 'F128'"),
    "negative size": (raw({"a": entry("U8", [-1], 0, 1)}, b"x"), "has the shape [-1]"),
    "boolean size": (raw({"a": entry("U8", [True], 0, 1)}, b"x"), "has the shape [True]"),
    "reversed offsets": (raw({"a": entry("U8", [1], 1, 0)}, b"x"), "has the offsets [1, 0]"),
    "three offsets": (
        raw({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 1]}}, b"x"),
        "has the offsets [0, 1, 1]",
    ),
    "bytes and shape disagree": (
        raw({"a": entry("F32", [2, 3], 0, 20)}, b"x" * 20),
        "`a`: F32 [2, 3] takes 24 bytes, its offsets [0, 20] give it 20",
    ),
    "cut": (
        raw(GOOD, b"x" * 30),
        "cut short: 166 bytes, its header describes 168; "
        "`b` (8 bytes at 160) is the first that is not whole",
    ),
    "padded": (raw(GOOD, b"x" * 40), "8 bytes too long: 176 bytes, its header describes 168"),
    "overlap": (
        raw({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, b"x" * 12),
        "`b` and `a` overlap in 4 bytes",
    ),
    "hole": (
        raw({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, b"x" * 12),
        "4 bytes before `b` belong to no tensor",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(tmp_path: Path, name: str) -> None:
    content, expected = BAD[name]
    assert expected in problem(tmp_path, content)


def test_all_problems_of_a_file_stand_in_one_report(tmp_path: Path) -> None:
    header = {
        "a": entry("F32", [2], 0, 8),
        "b": entry("F32", [2], 4, 12),
        "c": entry("F99", [2], 12, 20),
        "d": entry("F32", [3], 20, 28),
        "e": entry("F32", [2], 28, 36),
    }
    text = problem(tmp_path, raw(header, b"x" * 30))
    assert "5 problems" not in text and "4 problems" in text
    for expected in ("overlap", "'F99'", "`d`: F32 [3] takes 12 bytes", "cut short"):
        assert expected in text


def library_takes(path: Path) -> bool:
    """The format's own library reads the file, and in dtypes that we have."""
    try:
        with safetensors.safe_open(path, framework="np") as file:
            names = file.keys()
            return {file.get_slice(name).get_dtype() for name in names} <= set(STORED)
    except (OSError, ValueError, safetensors.SafetensorError):
        return False


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_file_is_reported_or_right(tmp_path: Path, data: st.DataObject) -> None:
    """After any change of bytes or cut, what is taken is what the format's own library takes."""
    content = bytearray(raw(GOOD, bytes(range(32))))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    for _ in range(data.draw(st.integers(0, 3))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    try:
        arrays = read_arrays(path)
    except PlanError:
        assert not library_takes(path)
        return
    assert library_takes(path)
    assert sum(array.nbytes for array in arrays.values()) == len(content) - 8 - content[0]


# --- several files ----------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path: Path) -> Callable[..., Path]:
    """A directory of two shards with an index of these entries."""

    def make(**weight_map: str) -> Path:
        write_safetensors(tmp_path / "one.safetensors", {"a": ARRAYS["a"], "b": ARRAYS["b"]})
        write_safetensors(tmp_path / "two.safetensors", {"c": ARRAYS["c"]})
        index = {"metadata": {"total_size": 57}, "weight_map": weight_map}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        return tmp_path

    return make


ONE, TWO = "one.safetensors", "two.safetensors"


def index_problem(directory: Path) -> str:
    with pytest.raises(PlanError) as caught:
        read_arrays(directory)
    return str(caught.value).replace(f"{directory}/", "")


def test_a_directory_with_an_index(shards: Callable[..., Path]) -> None:
    directory = shards(a=ONE, b=ONE, c=TWO)
    write_safetensors(directory / "consolidated.safetensors", ARRAYS)  # not named by the index
    assert set(read_arrays(directory)) == set(ARRAYS)
    assert set(read_arrays(directory / "model.safetensors.index.json")) == set(ARRAYS)
    assert safetensors_files(directory) == (directory / ONE, directory / TWO)


def test_every_entry_of_the_index_is_checked(shards: Callable[..., Path]) -> None:
    text = index_problem(shards(a=TWO, c=TWO, d=ONE, e="three.safetensors"))
    assert "names three.safetensors for 1 tensors; there is no such file" in text
    assert "`a` should lie in two.safetensors, it lies in one.safetensors" in text
    assert "`d` should lie in one.safetensors, which lacks it" in text
    assert "does not list `b` of one.safetensors" in text
    assert "4 problems" in text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "is not a JSON object"),
        ('{"weight_map": {"a": "../one.safetensors"}}', "`a` lies in '../one.safetensors'"),
        ('{"weight_map": {"a": 3}}', "`a` lies in 3, not the name of a file"),
    ],
)
def test_bad_indexes(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    assert expected in index_problem(tmp_path)


def test_several_files_may_not_hold_the_same_tensor(tmp_path: Path) -> None:
    paths = [tmp_path / ONE, tmp_path / TWO]
    for path in paths:
        write_safetensors(path, {"a": ARRAYS["a"]})
    with pytest.raises(PlanError, match=r"`a` lies in .*one.safetensors and again in .*two"):
        read_arrays(paths)


def test_places_without_weights(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"holds no \.safetensors and no \.gguf"):
        open_checkpoint(tmp_path)
    with pytest.raises(PlanError, match=r"no such weight file: .*gone\.safetensors"):
        open_checkpoint(tmp_path / "gone.safetensors")
    (tmp_path / "w.bin").write_bytes(b"")
    with pytest.raises(PlanError, match=r"not a weight file: .*w\.bin"):
        open_checkpoint(tmp_path / "w.bin")


def test_arrays_in_memory_stand_for_a_checkpoint() -> None:
    location = open_checkpoint({"x": ARRAYS["a"]}).tensors["x"]
    assert location.read() is ARRAYS["a"]
    with pytest.raises(PlanError, match="`x` is a list, not an array"):
        read_arrays({"x": [1, 2]})
