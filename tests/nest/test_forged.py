"""Configurations, headers and indexes that were made to break what reads them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnet.diagnostics import LinnetError, NestError
from linnet.loading import load_source
from linnet.nest.card import ZOO, Card
from linnet.nest.conversion import bind, convert, plan, read_directory
from linnet.nest.resolve import resolve
from linnet.weights import open_checkpoint, safetensors_index, write_safetensors

from ..models import families

LLAMA = families.TINY["llama"].stated
HUGE = 10**4000


def settings_problem(base: dict[str, Any] = LLAMA, **changes: Any) -> str:
    with pytest.raises(NestError) as caught:
        plan({**base, **changes}, "x")
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rms_norm_eps": HUGE}, "it must be a number above 0"),
        ({"rope_theta": HUGE}, "it must be a number above 0"),
        ({"rope_parameters": {"rope_theta": HUGE}}, "it must be a number above 0"),
        ({"rope_parameters": {"rope_type": "linear", "factor": HUGE}}, "needs a number above 0"),
        ({"hidden_size": HUGE}, "it must be 2,147,483,647 or less"),
        ({"num_attention_heads": 10**12}, "it must be 2,147,483,647 or less"),
        ({"num_hidden_layers": 10**9}, "it must be 4,096 or less"),
        ({"dtype": ["float32"]}, "it must be float32, float16, bfloat16"),
        ({"architectures": [["LlamaForCausalLM"]]}, "the package `llama` is LlamaForCausalLM"),
    ],
)
def test_numbers_beyond_any_model(changes: dict[str, Any], expected: str) -> None:
    assert expected in settings_problem(**changes)


@pytest.mark.parametrize(
    ("base", "key"), [("gpt2", "scale_attn_weights"), ("gemma3", "tie_word_embeddings")]
)
def test_null_is_not_true(base: str, key: str) -> None:
    assert f"`{key}` is null" in settings_problem(families.TINY[base].stated, **{key: None})


def test_a_window_that_the_language_has_no_number_for() -> None:
    text = settings_problem(families.TINY["mistral"].stated, sliding_window=1 << 31)
    assert "`sliding_window` is 2147483648: it must be 2,147,483,647 or less" in text


def test_very_many_unknown_keys() -> None:
    started = time.perf_counter()
    text = settings_problem(**{f"key{k}": 1 for k in range(50_000)}, **{"long" * 100_000: 1})
    assert "and 49,981 more keys" in text and len(text) < 10_000
    assert time.perf_counter() - started < 5  # it took minutes


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def test_a_value_of_many_levels() -> None:
    assert "`x` is a list of many levels" in settings_problem(x=deep(100_000))


def header(path: Path, entries: dict[str, Any]) -> Path:
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    return path


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ([HUGE, HUGE], "`a` has more elements than any file"),
        ([1] * 100_000, "`a` has 100,000 axes"),
    ],
)
def test_shapes_beyond_any_file(tmp_path: Path, shape: list[int], expected: str) -> None:
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}
    with pytest.raises(LinnetError, match=expected):
        safetensors_index(header(tmp_path / "x.safetensors", {"a": entry}))


def test_a_header_of_very_many_values(tmp_path: Path) -> None:
    with pytest.raises(LinnetError, match="has a header of 2,000,000 values"):
        safetensors_index(header(tmp_path / "x.safetensors", {"a": [1] * 2_000_001}))


def test_an_index_with_a_name_that_no_file_has(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "x" * 5000, "b": "\0"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert open_checkpoint(tmp_path).report.count == 2


def checkpoint(directory: Path, **config: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**LLAMA, **config}))
    write_safetensors(directory / "model.safetensors", {"x": np.zeros(2, np.float32)})
    return directory


def test_a_whole_file_goes_before_an_index_as_in_transformers(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    write_safetensors(tmp_path / "old.safetensors", {"x": np.ones(2, np.float32)})
    index = {"weight_map": {"x": "old.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    source = read_directory(tmp_path)
    assert source.files == ("model.safetensors",)
    assert open_checkpoint(tmp_path).tensors["x"].read().tolist() == [0, 0]


def test_an_adapter_beside_the_weights_would_change_the_model(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(NestError, match=r"adapter_config\.json says that an adapter changes"):
        read_directory(tmp_path)


def test_a_layer_with_a_number_of_many_digits(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    name = f"model.layers.{'9' * 5000}.input_layernorm.weight"
    write_safetensors(tmp_path / "model.safetensors", {name: np.zeros(2, np.float32)})
    source = read_directory(tmp_path)
    with pytest.raises(NestError, match="tensors that the checkpoint lacks"):
        bind(source, plan(source.config, "x"), ZOO / "families/llama", None)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"[" * 100_000, "cannot be read as JSON"),
        (b"\xff\xfe", "cannot be read as JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "cannot be read as JSON"),
        (b"[]", "is not a JSON object"),
        (b'{"x": [' + b"1," * 2_000_000 + b"1]}", "it is not read"),
    ],
)
def test_configurations_that_are_none(tmp_path: Path, content: bytes, expected: str) -> None:
    checkpoint(tmp_path)
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(NestError, match=expected):
        read_directory(tmp_path)


@pytest.mark.parametrize("name", ["x" * 5000, "~nobody-of-this-name/x", "a/" * 3000])
def test_a_long_text_in_place_of_a_model(name: str, tmp_path: Path) -> None:
    with pytest.raises(NestError):
        resolve(name)
    with pytest.raises(NestError, match="no such directory"):
        convert(name, output=tmp_path / "card")
    with pytest.raises(NestError):
        convert(tmp_path, output=tmp_path / ("x" * 5000))


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "9" * 5000, "a = '\0'"])
def test_cards_that_are_no_toml(text: str, tmp_path: Path) -> None:
    (tmp_path / "nest.toml").write_text(text)
    with pytest.raises(NestError, match="is not valid TOML"):
        Card.read(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    for name in ("model.safetensors", "x.gguf"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(LinnetError, match="it is a directory, a pipe or a device"):
        read_directory(tmp_path)
    with pytest.raises(LinnetError, match="it is a directory, a pipe or a device"):
        open_checkpoint(tmp_path / "x.gguf").report.check("x")


def test_a_card_with_more_layers_than_memory(tmp_path: Path) -> None:
    program = tmp_path / "deep.linnet"
    program.write_text(
        "module deep\n\nblock Leaf {\n    param w: Tensor[2; f32]\n}\n\n"
        "pub block Model<Layers: Dim> {\n    sub layers: [Leaf; Layers]\n\n"
        "    pub entry forward(x: Tensor[2; f32]) -> Tensor[2; f32] {\n        return x\n    }\n}\n"
    )
    with pytest.raises(LinnetError, match="there are 1,000,000,000 of it with these sizes"):
        load_source(program, generics={"Layers": 10**9}, weights={})
