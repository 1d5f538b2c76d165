"""Forged and cut files: one clear error, in no time and no memory; and bytes flipped anywhere."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnet.diagnostics import LinnetError
from linnet.serve.vocabulary import tokenizer_of
from linnet.weights import config_of, open_checkpoint, read_arrays
from linnet.weights.gguf import _Cursor
from weights.gguf_files import forged, info, key, text, write_gguf

F32 = 0
GB = 1 << 30
Files = dict[str, tuple[bytes, int, str]]


def array(item: int, count: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", item, count) + values


def head(keys: int, tensors: int, rest: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + rest


def overlapping(count: int) -> bytes:
    return forged([info(f"t{k}", [8], F32, 0) for k in range(count)], 32)


# What the file begins with, how large it is made (sparsely), and what is said of it.
FORGED: Files = {
    "4 billion bytes in an array": (
        head(1, 0, key("k", 9, array(0, 1 << 32))),
        5 * GB,
        "`k`, 4,294,967,296 values, are more than are read: a header may hold 2,097,152",
    ),
    "a billion numbers that the file lacks": (
        head(1, 0, key("k", 9, array(12, 1 << 30))),
        0,
        "`k`, 1,073,741,824 values, at byte 49 should take 8,589,934,592 bytes, 0 are left",
    ),
    "endless empty strings": (
        head(1, 0, key("k", 9, array(8, 1 << 29))),
        5 * GB,
        "`k`, 536,870,912 values, are more than are read",
    ),
    "two million empty strings, then zeros": (
        head(1, 0, key("k", 9, array(8, (1 << 21) - 1))),
        GB,
        "1,056,964,544 bytes too long: 1,073,741,824 bytes, its header describes 16,777,280",
    ),
    "strings over many pages": (
        head(1, 0, key("k", 9, array(8, 1 << 20, struct.pack("<Q", 1 << 26)))),
        5 * GB,
        "`k`: string 0 of 1,048,576 at byte 49 passes the 33,554,432 bytes that a header's strings",
    ),
    "a string of 4 GB": (
        head(1, 0, key("k", 8, struct.pack("<Q", 1 << 32))),
        5 * GB,
        "`k` is 4,294,967,296 bytes long; at most 67,108,864 are read",
    ),
    "a key of 1 GB": (
        head(1, 0, struct.pack("<Q", GB)),
        2 * GB,
        "the name of metadata key 0 is 1,073,741,824 bytes long; at most 1,024 are read",
    ),
    "a tensor's name of 1 GB": (
        head(0, 1, struct.pack("<Q", GB)),
        2 * GB,
        "the name of tensor 0 is 1,073,741,824 bytes long; at most 1,024 are read",
    ),
    "a million keys": (
        head(1 << 20, 0, b""),
        GB,
        "has 1,048,576 metadata keys; at most 16,384 are read",
    ),
    "a million tensors": (
        head(0, 1 << 20, b""),
        GB,
        "has 1,048,576 tensors; at most 32,768 are read",
    ),
    "tensors one above the other": (overlapping(1 << 13), 0, "overlap in 32 bytes"),
    "two to the 63rd": (
        forged([info("t", [1 << 63], F32, 0)], 32),
        0,
        "`t` has the sizes [9223372036854775808]: more than any file can hold",
    ),
    "a tensor of exabytes": (
        forged([info("t", [1 << 30, 1 << 28], F32, 0)], 32),
        GB,
        "`t` (1,152,921,504,606,846,976 bytes at 96) is the first that is not whole",
    ),
    "an offset past all bytes": (
        forged([info("t", [8], F32, (1 << 64) - 32)], 32),
        0,
        "`t` (32 bytes at 18,446,744,073,709,551,648) is the first that is not whole",
    ),
    "rows of nothing": (
        forged([info("t", [0, 4], 3, 0)], 32),
        0,
        "`t`: rows of 0 elements; Q4_1 stores blocks of 32",
    ),
    "a huge alignment": (
        forged([], 0, [key("general.alignment", 4, struct.pack("<I", 1 << 31))]),
        0,
        "cut short: 64 bytes, its header describes 2,147,483,648",
    ),
    "an alignment that is text": (
        forged([], 0, [key("general.alignment", 8, text("32"))]),
        0,
        "`general.alignment` is '32', not a power of two",
    ),
    "an architecture that is a list": (
        forged([], 0, [key("general.architecture", 9, array(4, 1, b"\1\0\0\0"))]),
        0,
        "`general.architecture` is [1], not a string",
    ),
    "arrays in arrays": (
        head(1, 0, key("k", 9, array(9, 1 << 20))),
        GB,
        "`k` is an array of arrays, which are not read",
    ),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), 0, "is big-endian GGUF"),
    "version 1": (b"GGUF" + struct.pack("<III", 1, 0, 0) + b"\0" * 16, 0, "is GGUF version 1"),
    "version 4": (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), 0, "is GGUF version 4"),
}

PROGRAM = """
import json, re, resource, sys, time
from linnet.diagnostics import PlanError
from linnet.weights import read_arrays

def peak():
    with open("/proc/self/status") as file:
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", file.read())[1]) * 1024

found = {}
for path in sys.argv[1:]:
    before, start = peak(), time.process_time()
    try:
        read_arrays(path)
        said = "nothing"
    except PlanError as error:
        said = str(error)
    found[path] = [said, time.process_time() - start, peak() - before]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_forged_files_cost_nothing(tmp_path: Path) -> None:
    """Each is refused within a second of the processor's and 50 MB, and names what is wrong."""
    paths: dict[str, Path] = {}
    for k, (name, (content, size, _)) in enumerate(FORGED.items()):
        paths[name] = tmp_path / f"{k}.gguf"
        paths[name].write_bytes(content)
        if size:
            with paths[name].open("r+b") as file:
                file.truncate(size)
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, paths.values())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, tuple[str, float, int]] = json.loads(run.stdout)
    for name, (_, _, expected) in FORGED.items():
        said, seconds, _ = found[str(paths[name])]
        assert said.startswith(f"cannot read {paths[name]}: "), (name, said)
        assert expected in said, (name, said)
        assert seconds < 1.0, (name, seconds)
    # A peak hides what stays below it: all of them together stay below what one may take.
    assert sum(memory for _, _, memory in found.values()) < 50 << 20, found


# --- a whole file, cut or changed anywhere ----------------------------------------------------


def whole(path: Path, kind: str) -> bytes:
    """A small file with all of a header's parts, and a vocabulary of the kind."""
    pieces = ["<unk>", "<s>", "</s>", "a", "b", "ab", "▁", *(f"<0x{k:02X}>" for k in range(8))]
    vocabulary: dict[str, Any] = {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 4, *[6] * 8],
        "tokenizer.ggml.scores": [-float(k) for k in range(len(pieces))],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": "{{ messages }}",
    }
    keys = {
        "context_length": 64,
        "embedding_length": 32,
        "block_count": 1,
        "feed_forward_length": 64,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    metadata = {f"llama.{name}": value for name, value in keys.items()} | vocabulary
    numbers = np.random.default_rng(0).standard_normal
    tensors = {
        "model.embed_tokens.weight": numbers((15, 32)).astype(np.float32),
        "model.layers.0.self_attn.q_proj.weight": numbers((32, 32)).astype(np.float32),
        "model.norm.weight": np.ones(32, np.float32),
    }
    raw = {"rope_freqs.weight": np.ones(8, np.float32)}
    return write_gguf(path, "llama", metadata, tensors, "Q8_0", raw).read_bytes()


def everything(path: Path) -> None:
    """All that a file is asked for."""
    checkpoint = open_checkpoint(path)
    checkpoint.report.check("cannot read it")
    dict(checkpoint.metadata)
    with np.errstate(all="ignore"):
        read_arrays(checkpoint)
    tokenizer_of(checkpoint.metadata, str(path)).encode("ab a<s>é")
    config_of(checkpoint)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_whole_file_is_right(tmp_path: Path, kind: str) -> None:
    whole(tmp_path / "m.gguf", kind)
    everything(tmp_path / "m.gguf")


def test_a_file_cut_between_any_of_its_parts_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = whole(tmp_path / "m.gguf", "llama")
    parts: set[int] = set()
    need = _Cursor.need

    def noted(cursor: _Cursor, count: int, what: str) -> None:
        parts.update((cursor.position, cursor.position + count))
        need(cursor, count, what)

    with monkeypatch.context() as patch:
        patch.setattr(_Cursor, "need", noted)
        start = open_checkpoint(tmp_path / "m.gguf").tensors["model.embed_tokens.weight"].start
    bounds = {part for part in parts if part < start} | {*range(30), start, len(content) - 1}
    assert len(bounds) > 120
    path = tmp_path / "cut.gguf"
    for size in sorted(bounds | {bound + 1 for bound in bounds} - {len(content)}):
        path.write_bytes(content[:size])
        said = open_checkpoint(path).report.text("")
        expected = "is not GGUF" if size < 4 else "too short" if size < 24 else "cut short"
        assert expected in said, (size, said)
        if size >= start:
            assert "is the first that is not whole" in said and "bytes at" in said


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.slow
def test_flipped_bytes_are_read_or_refused(tmp_path: Path, kind: str) -> None:
    """No change gets past as an exception of another kind; many are refused."""
    content = whole(tmp_path / "m.gguf", kind)
    path = tmp_path / "changed.gguf"
    dice = random.Random(0)
    refused = 0
    for _ in range(400):
        changed = bytearray(content)
        for _ in range(dice.randint(1, 3)):
            # Most in the header, where there is most to be wrong about.
            where = dice.randrange(4, len(changed) if dice.random() < 0.1 else 1700)
            changed[where] = dice.choice((0, 1, 8, 9, 0x7F, 0xFF, dice.randrange(256)))
        path.write_bytes(changed)
        try:
            everything(path)
        except LinnetError:
            refused += 1
    assert 100 < refused < 400
