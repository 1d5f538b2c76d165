"""Text: tokenizers from tokenizer.json and GGUF, chat templates, text as tokens arrive."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from linnet.diagnostics import LinnetError
from linnet.serve.text import ChatError, Detokenizer, Text
from linnet.serve.vocabulary import tokenizer_of

MESSAGES = [{"role": "user", "content": "hi"}]
# One token per byte, as byte-level vocabularies begin; then a merge and two control tokens.
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
VOCABULARY = [*BYTES, "hi", "<|begin|>", "<|end|>", "<tool>"]
BEGIN, END = 257, 258
CHATML = "{% for m in messages %}{{ bos_token + m.role + ':' + m.content + eos_token }}{% endfor %}"


def byte_level(**changes: Any) -> dict[str, Any]:
    kinds = [1] * 257 + [3, 3, 4]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": VOCABULARY,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ["h i"],
        "tokenizer.ggml.bos_token_id": BEGIN,
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.chat_template": CHATML,
    } | changes


def write_gguf(path: Path, metadata: dict[str, Any]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.add_tensor("t", np.zeros(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@cache
def text() -> Text:
    return Text(tokenizer_of(byte_level(), "m.gguf"), frozenset({END}), CHATML)


# --- where the tokenizer comes from -----------------------------------------------------------


def test_a_gguf_has_all_of_it(tmp_path: Path) -> None:
    extra = {"tokenizer.ggml.eot_token_id": 256, "tokenizer.ggml.add_bos_token": True}
    path = write_gguf(tmp_path / "m.gguf", byte_level() | extra)
    for place in (path, str(tmp_path), [path]):
        read = Text.load(place)
        assert read.eos == {END, 256}
        assert read.special == {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
        assert read.encode("hi") == [BEGIN, 256] and read.encode("hi", special=False) == [256]
        assert read.render_chat(MESSAGES) == "<|begin|>user:hi<|end|>"
        ids = read.encode_chat(MESSAGES)
        assert ids[0] == BEGIN and ids[-2:] == [256, END]
        assert read.decode(ids) == "user:hi"
        assert read.decode(ids, skip_special=False) == "<|begin|>user:hi<|end|>"


def test_user_tokens_are_whole_and_stay_in_the_text() -> None:
    assert text().encode("a<tool>") == [VOCABULARY.index("a"), 259]
    assert text().decode([259, BEGIN]) == "<tool>"


@pytest.fixture
def hub_files(tmp_path: Path) -> Path:
    """A directory as the Hub has it."""
    vocabulary = {token: k for k, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("h", "i")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {
        "bos_token": "<|begin|>",
        "eos_token": {"content": "<|end|>", "lstrip": False},
        "chat_template": CHATML,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text('{"eos_token_id": 0}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [258, 256]}')
    return tmp_path


def test_a_directory_of_the_hub(hub_files: Path) -> None:
    (hub_files / "model.safetensors").write_bytes(b"")
    files = [hub_files / "model.safetensors"]
    for place in (hub_files, hub_files / "tokenizer.json", files, sorted(hub_files.iterdir())):
        read = Text.load(place)
        assert read.eos == {258, 256}
        assert read.encode("hi") == [256]
        assert read.render_chat(MESSAGES) == "<|begin|>user:hi<|end|>"


def test_a_template_in_a_file_of_its_own(hub_files: Path) -> None:
    (hub_files / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert Text.load(hub_files).render_chat(MESSAGES) == "hi!"


def test_the_default_of_several_templates(hub_files: Path) -> None:
    config = {
        "chat_template": [
            {"name": "tool_use", "template": "no"},
            {"name": "default", "template": "yes"},
        ]
    }
    (hub_files / "tokenizer_config.json").write_text(json.dumps(config))
    assert Text.load(hub_files).render_chat(MESSAGES) == "yes"


def test_the_models_own_configuration_where_there_is_none_for_generation(hub_files: Path) -> None:
    (hub_files / "generation_config.json").unlink()
    assert Text.load(hub_files).eos == {0, 258}
    (hub_files / "config.json").unlink()
    (hub_files / "tokenizer_config.json").unlink()
    read = Text.load(hub_files)
    assert read.eos == frozenset() and read.template is None


def test_without_a_tokenizer_it_says_so(hub_files: Path) -> None:
    with pytest.raises(LinnetError, match="no such file or directory to read a tokenizer from"):
        Text.load(hub_files / "gone")
    (hub_files / "tokenizer.json").write_text("{}")
    with pytest.raises(LinnetError, match=r"tokenizer\.json: is not a tokenizer"):
        Text.load(hub_files)
    (hub_files / "tokenizer.json").unlink()
    for place in (hub_files, [hub_files / "config.json"]):
        with pytest.raises(LinnetError, match=r"no tokenizer: neither tokenizer\.json nor") as said:
            Text.load(place)
        assert f" in {hub_files}\n" in str(said.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": None}, "carries no vocabulary"),
        ({"model": "rwkv"}, "its vocabulary is of the kind 'rwkv'; known are 'gpt2' and 'llama'"),
        ({"pre": "tekken"}, "splits words by the scheme 'tekken'; known are default, gpt-2"),
        ({"merges": None}, "`tokenizer.ggml.merges` is missing or not a list of pairs"),
        ({"model": "llama"}, "`tokenizer.ggml.scores` is missing or not one per token"),
    ],
)
def test_vocabularies_that_are_not_known(changes: dict[str, Any], expected: str) -> None:
    metadata = byte_level() | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    with pytest.raises(LinnetError) as caught:
        tokenizer_of(metadata, "m.gguf")
    assert expected in str(caught.value) and str(caught.value).startswith("m.gguf: ")


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ("gpt-2", "It|'s|Ġ2024|ĠIT|'|S"),
        ("smollm", "It|'s|Ġ|2|0|2|4|ĠIT|'|S"),
        ("llama-bpe", "It|'s|Ġ|202|4|ĠIT|'S"),
        ("qwen2", "It|'s|Ġ|2|0|2|4|ĠIT|'S"),
    ],
)
def test_words_split_as_the_scheme_says(scheme: str, words: str) -> None:
    tokenizer = tokenizer_of(byte_level(**{"tokenizer.ggml.pre": scheme}), "m.gguf")
    found = tokenizer.pre_tokenizer.pre_tokenize_str("It's 2024 IT'S")
    assert "|".join(piece for piece, _ in found) == words


def test_sentence_pieces_merge_by_their_scores() -> None:
    pieces = ["<unk>", "<s>", "</s>", *[f"<0x{k:02X}>" for k in range(256)]]
    scored = {"▁": -9.0, "a": -9.0, "b": -9.0, "c": -9.0, "ab": -2.0, "bc": -1.0, "▁a": -3.0}
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*pieces, *scored],
        "tokenizer.ggml.scores": [0.0] * len(pieces) + list(scored.values()),
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(scored),
        "tokenizer.ggml.bos_token_id": 1,
    }
    read = Text(tokenizer_of(metadata, "m.gguf"), frozenset(), None)
    names = [*pieces, *scored]
    assert [names[k] for k in read.encode("abc")] == ["<s>", "▁a", "bc"]
    assert [names[k] for k in read.encode("é", special=False)] == ["▁", "<0xC3>", "<0xA9>"]
    for written in ("abc", "é", " abc", "a  b"):
        ids = read.encode(written)
        assert read.decode(ids) == written
        stream = read.stream()
        assert "".join(map(stream.push, ids)) + stream.finish() == written


# --- the chat template ------------------------------------------------------------------------


def render(template: str, messages: Any = MESSAGES, **variables: Any) -> str:
    return Text(text().tokenizer, frozenset(), template, {}, "here").render_chat(
        messages, **variables
    )


def test_templates_have_what_published_ones_use() -> None:
    assert render("{% if add_generation_prompt %}go{% endif %}") == "go"
    assert render("{{ add_generation_prompt }}", add_generation_prompt=False) == "False"
    assert render("{{ tools is none }} {{ x }}", x=3) == "True 3"
    assert render("{{ {'b': 'é<', 'a': 1} | tojson }}") == '{"b": "é<", "a": 1}'
    assert render("{{ [1] | tojson(indent=1) }}") == "[\n 1\n]"
    assert (
        render("{% for k in range(9) %}{% if k == 2 %}{% break %}{% endif %}{{ k }}{% endfor %}")
        == "01"
    )
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"
    assert render("{% generation %}x{% endgeneration %}y") == "xy"
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10


def test_refusals_are_bad_requests() -> None:
    with pytest.raises(ChatError, match="the chat template of here refuses: only users"):
        render("{{ raise_exception('only users') }}")
    with pytest.raises(ValueError, match="refuses"):
        render("{{ 'x' + messages[0].content }}", [{"role": "user", "content": None}])
    with pytest.raises(ChatError, match="refuses"):
        render("{{ messages[0].missing.deeper }}")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__ }}",
        "{% for k in range(999999999) %}x{% endfor %}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(template: str) -> None:
    with pytest.raises(ChatError):
        render(template + "{{ undefined.x }}" if "append" not in template else template)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "ended"),
        ("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(1) }}", "recursion"),
        ("{{ 'x' * 10 ** 10 }}", "too large"),
        ("{{ 10 ** 10 ** 10 }}", "too large"),
        ("{% for a in messages %}" * 30 + "{% endfor %}" * 30, "is not valid: too many"),
    ],
)
def test_a_template_that_would_not_end(
    template: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("linnet.serve.text.SECONDS", 0.2 if expected == "ended" else 9.0)
    with pytest.raises(LinnetError, match=expected):
        render(template)
    assert render("{{ 'ab' * 3 ~ 2 * 3 ** 2 }}") == "ababab18"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("chat_template.jinja", b"\xff", r"chat_template\.jinja: cannot be read"),
        ("tokenizer_config.json", b"[" * 100_000, "cannot be read as JSON"),
        ("generation_config.json", b"\xff{}", "cannot be read as JSON"),
    ],
)
def test_files_that_cannot_be_read(
    hub_files: Path, name: str, content: bytes, expected: str
) -> None:
    (hub_files / name).write_bytes(content)
    with pytest.raises(LinnetError, match=expected):
        Text.load(hub_files)


def test_odd_entries_of_the_files_name_nothing(hub_files: Path) -> None:
    config = {"bos_token": {}, "chat_template": [{"name": []}, 1]}
    (hub_files / "tokenizer_config.json").write_text(json.dumps(config))
    (hub_files / "generation_config.json").write_text('{"eos_token_id": [-1, 1, true]}')
    read = Text.load(hub_files)
    assert read.special.get("bos_token") in (None, "") and read.template is None
    assert read.eos == {1}


def test_a_text_that_is_no_unicode() -> None:
    with pytest.raises(LinnetError, match="the text is not valid UTF-8"):
        text().encode("a\udcff")


def test_a_broken_template_is_the_checkpoints_fault() -> None:
    with pytest.raises(LinnetError, match=r"the chat template of here is not valid: .*line 2"):
        render("\n{% if %}")
    with pytest.raises(
        LinnetError, match=r"m\.gguf has no chat template; give the model plain text"
    ):
        Text(text().tokenizer, frozenset(), None, {}, "m.gguf").render_chat(MESSAGES)


# --- text as tokens arrive --------------------------------------------------------------------


def test_tokens_that_give_no_text_are_not_read_again_and_again(monkeypatch: Any) -> None:
    read, sizes = text(), list[int]()
    decode = Text.decode

    def counting(self: Text, ids: list[int], **options: Any) -> str:
        sizes.append(len(ids))
        return decode(self, ids, **options)

    monkeypatch.setattr(Text, "decode", counting)
    inside = VOCABULARY.index("Ģ")  # a byte that begins no character
    given = [END] * 90 + [inside] * 90 + read.encode("é hi") + [END] * 90 + read.encode("🙂")
    told = "".join(pieces(read.stream(), given))
    assert max(sizes) < 80
    assert told.endswith("é hi🙂") and set(told[:-5]) == {"\ufffd"}


def pieces(stream: Detokenizer, ids: list[int]) -> list[str]:
    return [*map(stream.push, ids), stream.finish()]


def test_characters_come_whole() -> None:
    read = text()
    ids = read.encode("né🙂!")
    assert len(ids) == 8
    assert pieces(read.stream(), ids) == ["n", "", "é", "", "", "", "🙂", "!", ""]


def test_special_tokens_show_nothing() -> None:
    read = text()
    assert pieces(read.stream(), [BEGIN, 256, END]) == ["", "hi", "", ""]


def test_half_a_character_at_the_end_is_left_out() -> None:
    read = text()
    ids = read.encode("a🙂")
    assert pieces(read.stream(), ids[:-1]) == ["a", "", "", "", ""]


def test_stop_strings_end_the_text_and_are_not_shown() -> None:
    read = text()
    stream = read.stream(["END", "\n\n"])
    shown = pieces(stream, read.encode("ab EN\nEND more"))
    assert shown == ["a", "b", " ", "", "", "EN", "\n", "", "", *[""] * 6]
    assert stream.stopped == "END"


def test_what_a_stop_string_held_back_comes_at_the_end() -> None:
    read = text()
    stream = read.stream(["END"])
    assert pieces(stream, read.encode("xEN")) == ["x", "", "", "EN"]
    assert stream.stopped is None and stream.finish() == ""


def test_the_earliest_stop_string_counts() -> None:
    read = text()
    stream = read.stream(["ihi", "hi"])
    assert "".join(pieces(stream, read.encode("ahihi"))) == "a"
    assert stream.stopped == "hi"


@settings(max_examples=50, deadline=None)
@given(written=st.text(max_size=30), cut=st.integers(0, 60))
@pytest.mark.slow
def test_what_comes_is_the_text_itself(written: str, cut: int) -> None:
    read = text()
    ids = read.encode(written)
    assert "".join(pieces(read.stream(), ids)) == written.rstrip("\ufffd")
    shown = "".join(pieces(read.stream(), ids[:cut]))
    assert written.startswith(shown)
    if cut < len(ids):  # a token holds at least a byte, and at most one character is held back
        assert len(written) - len(shown) <= len(ids) - cut + 1


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 259), max_size=30), stop=st.text("hi🙂", min_size=1, max_size=3))
def test_any_tokens_show_what_decoding_them_at_once_does(ids: list[int], stop: str) -> None:
    read = text()
    whole = read.decode(ids)
    assert "".join(pieces(read.stream(), ids)) == whole.rstrip("\ufffd")
    stopped = "".join(pieces(read.stream([stop]), ids))
    expected = whole[: whole.index(stop)] if stop in whole else whole.rstrip("\ufffd")
    assert stopped == expected
