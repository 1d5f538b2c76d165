"""The Hub's client, against a server on this machine that plays the tricks of networks."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import numpy as np
import pytest

from linnet import nest
from linnet.diagnostics import NestError, PlanError
from linnet.nest import hub as client
from linnet.nest import web
from linnet.nest.card import Card, Weights
from linnet.nest.fetch import fetch_weights
from linnet.nest.progress import show_nothing
from linnet.nest.web import Unavailable, download
from linnet.weights import Slot, plan_bindings, read_arrays, write_safetensors

from .conftest import ARRAY
from .hub_server import COMMIT, NEXT, Hub

pytestmark = pytest.mark.usefixtures("own_cache")
NAME = "model.safetensors"
BIG = bytes(range(256)) * 20000  # 5.12 MB: several reads


def get(hub: Hub, path: Path, name: str = NAME) -> str:
    return download(client.file_url("org/small", COMMIT, name), path, name, show_nothing)


# --- resuming ---------------------------------------------------------------------------------


def test_a_cut_connection_goes_on_where_it_ended(tmp_path: Path, hub: Hub) -> None:
    hub.put(NAME, BIG)
    hub.cut[NAME] = [3_000_000, 1, 1_000_000]
    assert get(hub, tmp_path / "f") == hashlib.sha256(BIG).hexdigest()
    assert (tmp_path / "f").read_bytes() == BIG
    fetched = [span for path, span in zip(hub.asked, hub.ranges) if path.startswith("cdn/")]
    assert fetched == [None, "bytes=3000000-", "bytes=3000001-", "bytes=4000001-"]
    assert hub.sent == len(BIG)
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_later_call_goes_on_with_what_is_left(tmp_path: Path, hub: Hub) -> None:
    hub.put(NAME, BIG)
    hub.cut[NAME] = [2_000_000] + [0] * web.TRIES
    with pytest.raises(Unavailable, match=r"broke off after 2,000,000 of 5,120,000 bytes"):
        get(hub, tmp_path / "f")
    assert not (tmp_path / "f").exists()
    get(hub, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == BIG and hub.sent == len(BIG)


@pytest.mark.parametrize("how", ["changed", "no ranges", "no tag", "weak tag", "wrong range"])
def test_what_cannot_be_continued_starts_over(tmp_path: Path, hub: Hub, how: str) -> None:
    hub.put(NAME, BIG)
    hub.cut[NAME] = [2_000_000] + [0] * web.TRIES
    if how.endswith("tag"):
        hub.tags[NAME] = {"no tag": "", "weak tag": 'W/"x"'}[how]
    with pytest.raises(Unavailable):
        get(hub, tmp_path / "f")
    final = BIG
    match how:
        case "changed":
            final = BIG[::-1]
            hub.put(NAME, final)
        case "no ranges":
            hub.no_ranges.add(NAME)
        case "wrong range":
            hub.wrong_ranges[NAME] = "bytes 0-3119999/5120000"
        case _:
            assert not list(tmp_path.glob(".*.part*"))
    assert get(hub, tmp_path / "f") == hashlib.sha256(final).hexdigest()
    assert (tmp_path / "f").read_bytes() == final


def test_a_harmed_part_is_fetched_again_once(tmp_path: Path, hub: Hub) -> None:
    hub.put(NAME, BIG)
    hub.cut[NAME] = [2_000_000] + [0] * web.TRIES
    with pytest.raises(Unavailable):
        get(hub, tmp_path / "f")
    part = tmp_path / ".f.part"
    part.write_bytes(b"?" + part.read_bytes()[1:])
    get(hub, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == BIG
    hub.lies.add(NAME)
    with pytest.raises(Unavailable, match="arrived damaged: its digest is not the stated"):
        get(hub, tmp_path / "g")
    assert not list(tmp_path.glob(".*"))


def test_two_processes_do_not_share_a_part(tmp_path: Path, hub: Hub) -> None:
    fcntl = pytest.importorskip("fcntl")
    hub.put(NAME, BIG)
    with (tmp_path / ".f.part").open("wb") as other:
        other.write(b"of another process")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        get(hub, tmp_path / "f")
        assert (tmp_path / ".f.part").read_bytes() == b"of another process"
    assert (tmp_path / "f").read_bytes() == BIG


@pytest.mark.slow
def test_a_slow_server_counts_as_cut(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "READ_SECONDS", 0.2)
    hub.slow[NAME] = 0.5
    with pytest.raises(Unavailable, match="timed out"):
        get(hub, tmp_path / "f")


# --- busy servers, refusals, the token ----------------------------------------------------------


def test_a_busy_server_is_asked_again_when_it_says(
    tmp_path: Path, hub: Hub, waits: list[float]
) -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    hub.status[NAME] = [(429, {"Retry-After": "7"}), (503, {}), (429, {"Retry-After": soon})]
    get(hub, tmp_path / "f")
    assert waits[:2] == [7.0, 2.0] and 0 < waits[2] <= 30
    hub.status[NAME] = [(429, {"Retry-After": "3600"})]
    with pytest.raises(Unavailable, match="answers 429 and wants to be asked in 3,600 s"):
        get(hub, tmp_path / "f")
    hub.status[NAME] = [(429, {"Retry-After": "never"})] * web.TRIES
    with pytest.raises(Unavailable, match=r"answers 429 .* for model\.safetensors"):
        get(hub, tmp_path / "f")
    assert len(waits) == 2 + web.TRIES


@pytest.mark.parametrize(
    ("status", "code", "token", "expected"),
    [
        (401, "", "", "refuses model.safetensors (401); HF_TOKEN gives access to gated models"),
        (403, "GatedRepo", "", "(403): the model is gated; HF_TOKEN gives access"),
        (403, "GatedRepo", "t0ken", "gated; HF_TOKEN is set, and its account has no access"),
        (401, "RepoNotFound", "", "has no such repository, or a private one; HF_TOKEN gives"),
        (404, "RevisionNotFound", "", "has no such revision"),
        (404, "EntryNotFound", "", "has no model.safetensors"),
        (418, "", "", "answers 418"),
    ],
)
def test_refusals_say_what_to_do(
    hub: Hub, status: int, code: str, token: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    hub.status[NAME] = [(status, {"X-Error-Code": code})]
    with pytest.raises(NestError) as caught:
        nest.hub_safetensors_header("org/small", NAME, COMMIT)
    assert str(caught.value).startswith(f"{hub.url}/org/small: ") and expected in str(caught.value)
    assert "t0ken" not in str(caught.value)


def test_the_token_goes_to_the_hub_alone(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    moved = f"org/small/resolve/{COMMIT}/config.json"
    hub.files["new/home/config.json"] = hub.files.pop(moved)
    hub.moved[moved] = f"{hub.url}/new/home/config.json"
    fetch_weights(card(tmp_path, "main"))
    sent = dict(zip(hub.asked, hub.tokens))
    assert sent.pop(f"cdn/org/small/resolve/{COMMIT}/{NAME}") is None
    # A repository that was renamed is still on the Hub.
    assert "new/home/config.json" in sent and set(sent.values()) == {"Bearer secret"}


@pytest.mark.parametrize("value", ["sec ret", "sécret", "sec\nret"])
def test_no_message_holds_the_token(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", value)
    with pytest.raises(NestError, match="HF_TOKEN holds a space or character") as caught:
        fetch_weights(card(tmp_path, COMMIT))
    assert value not in str(caught.value) and hub.asked == []


def test_no_message_holds_what_stands_before_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://user:word@hub.local:8080/base/")
    assert client.page("org/small") == "https://hub.local:8080/base/org/small"


@pytest.mark.parametrize(
    "endpoint",
    ["hub.local", "ftp://hub.local", "http://", "http://hub:word", "https://user:word@hub.local"],
)
def test_a_hub_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(NestError, match="HF_ENDPOINT is not an address such as") as caught:
        nest.remote_checkpoint("org/small")
    assert "user:word" not in str(caught.value)


# --- headers ----------------------------------------------------------------------------------


def test_a_header_is_read_without_the_data(tmp_path: Path, hub: Hub) -> None:
    write_safetensors(
        tmp_path / NAME, {"a": np.zeros((300, 400), np.float32), "b": np.zeros(7, np.int64)}
    )
    hub.put(NAME, (tmp_path / NAME).read_bytes())
    header = nest.hub_safetensors_header("org/small", NAME, COMMIT)
    assert {name: (one.dtype, one.shape) for name, one in header.items()} == {
        "a": ("f32", (300, 400)),
        "b": ("i64", (7,)),
    }
    length = int.from_bytes(hub.files[f"org/small/resolve/{COMMIT}/{NAME}"][:8], "little")
    assert hub.ranges[1::2] == ["bytes=0-7", f"bytes=8-{7 + length}"]
    assert hub.sent == 8 + length
    assert not list(tmp_path.glob("cache/hub/*/*/*"))


def test_a_server_without_ranges_is_read_no_further_than_the_header(hub: Hub) -> None:
    hub.no_ranges.add(NAME)
    assert nest.hub_safetensors_header("org/small", NAME, COMMIT)["x"].shape == (12,)


def cut_file(hub: Hub) -> None:
    hub.put(NAME, hub.files[f"org/small/resolve/{COMMIT}/{NAME}"][:-4])


@pytest.mark.parametrize(
    ("harm", "kind", "expected"),
    [
        (cut_file, PlanError, "cut short: 108 bytes, its header describes 112"),
        (lambda hub: hub.put(NAME, b""), PlanError, "is 0 bytes long, too short"),
        (lambda hub: hub.put(NAME, b"version https://git-lfs"), PlanError, "Git LFS pointer"),
        (lambda hub: hub.put(NAME, b"\xff" * 64), PlanError, "its header should be 18,446,744"),
        (
            lambda hub: hub.wrong_ranges.update({NAME: "bytes 4-11/112"}),
            NestError,
            "answers 'bytes 4-11/112' where bytes 0 to 7 of model.safetensors were asked for",
        ),
        (lambda hub: hub.cut.update({NAME: [3] * 9}), NestError, "broke off after 3 of 8 bytes"),
    ],
)
def test_headers_that_cannot_be(
    hub: Hub, harm: Callable[[Hub], None], kind: type[Exception], expected: str
) -> None:
    harm(hub)
    with pytest.raises(kind) as caught:
        nest.hub_safetensors_header("org/small", NAME, COMMIT)
    assert expected in str(caught.value) and NAME in str(caught.value)


def test_a_cut_header_is_read_again(hub: Hub) -> None:
    hub.cut[NAME] = [3, 8, 5]
    assert nest.hub_safetensors_header("org/small", NAME, COMMIT)["x"].dtype == "f32"


# --- checkpoints ------------------------------------------------------------------------------


def shard(hub: Hub, tmp_path: Path, repo: str = "org/big") -> None:
    """Two shards with their index, a tokenizer, and the same weights in another format."""
    hub.branches[f"{repo}@main"] = COMMIT
    names = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    for tensor, name in names.items():
        write_safetensors(tmp_path / name, {tensor: ARRAY})
        hub.put(name, (tmp_path / name).read_bytes(), repo)
    hub.put("model.safetensors.index.json", json.dumps({"weight_map": names}).encode(), repo)
    hub.put("config.json", b'{"model_type": "llama"}', repo)
    hub.put("tokenizer.json", b"{}", repo)
    for name in ("pytorch_model.bin", "original/model.safetensors", "onnx/model.onnx"):
        hub.put(name, b"large", repo)


def test_a_checkpoint_is_known_by_its_headers(tmp_path: Path, hub: Hub) -> None:
    hub.card_data = {"license": "apache-2.0"}
    shard(hub, tmp_path)
    found = nest.remote_checkpoint("org/big")
    assert found.commit == COMMIT and found.name == f"org/big@{COMMIT}"
    assert found.files == ("model-1.safetensors", "model-2.safetensors")
    assert "tokenizer.json" in found.others and "pytorch_model.bin" in found.others
    assert found.config == {"model_type": "llama"} and found.license == "apache-2.0"
    places = {n: (t.dtype, t.shape, str(t.file)) for n, t in found.checkpoint.tensors.items()}
    assert places == {
        "a": ("f32", (12,), "org/big/model-1.safetensors"),
        "b": ("f32", (12,), "org/big/model-2.safetensors"),
    }
    assert not found.checkpoint.report.count
    slots = [Slot("x.a", (12,), "f32"), Slot("x.b", (13,), "f32")]
    with pytest.raises(PlanError, match=r"`x\.b` is \[13\], `b` in org/big/model-2"):
        plan_bindings(slots, found.checkpoint, {"x.a": "a", "x.b": "b"})


def test_a_directory_is_known_the_same_way(tmp_path: Path, hub: Hub) -> None:
    shard(hub, tmp_path)
    directory = nest.fetch_hub("org/big", notice=pytest.fail)
    found, remote = nest.local_checkpoint(directory), nest.remote_checkpoint("org/big")
    assert found.files == remote.files and found.config == remote.config and not found.commit
    assert found.checkpoint.tensors.keys() == remote.checkpoint.tensors.keys()
    single = nest.local_checkpoint(directory / "model-1.safetensors")
    assert single.files == ("model-1.safetensors",) and single.config == remote.config


def test_an_index_that_is_wrong_is_reported(tmp_path: Path, hub: Hub) -> None:
    shard(hub, tmp_path)
    names = {"a": "model-1.safetensors", "c": "model-1.safetensors", "d": "gone.safetensors"}
    hub.put("model.safetensors.index.json", json.dumps({"weight_map": names}).encode(), "org/big")
    report = nest.remote_checkpoint("org/big").checkpoint.report
    assert report.groups["index"] == [
        "org/big/model.safetensors.index.json: names gone.safetensors for 1 tensors; there is no "
        "such file",
        "org/big/model.safetensors.index.json: `c` should lie in model-1.safetensors, which lacks "
        "it",
    ]


def test_weights_in_other_formats_are_named(hub: Hub) -> None:
    hub.put("pytorch_model.bin", b"x", "org/old")
    hub.branches["org/old@main"] = COMMIT
    for ask in (nest.remote_checkpoint, nest.fetch_hub):
        with pytest.raises(NestError, match=r"org/old: holds no \.safetensors file; it has pyt"):
            ask("org/old")


def test_a_damaged_config_is_named(hub: Hub) -> None:
    hub.put("config.json", b"[]")
    with pytest.raises(NestError, match=r"config\.json: is not a JSON object"):
        nest.remote_checkpoint("org/small")


# --- revisions and the cache --------------------------------------------------------------------


def card(tmp_path: Path, revision: str | None) -> Card:
    return Card(tmp_path / "card", "small", weights=Weights("org/small", revision, (NAME,)))


def test_a_branch_is_cached_under_its_commit(tmp_path: Path, hub: Hub, own_cache: Path) -> None:
    hub.branches["org/small@feature/x"] = COMMIT
    for revision in (None, "main", "feature/x", COMMIT):
        directory = nest.fetch_hub("org/small", revision, notice=pytest.fail)
        assert directory == own_cache / "hub/org--small" / COMMIT
    assert hub.asked.count(f"cdn/org/small/resolve/{COMMIT}/{NAME}") == 1
    assert fetch_weights(card(tmp_path, "feature/x")).files == (directory / NAME,)
    # The branch moves on.
    write_safetensors(tmp_path / "next", {"x": ARRAY + 1})
    hub.put(NAME, (tmp_path / "next").read_bytes(), commit=NEXT)
    hub.branches["org/small@main"] = NEXT
    assert nest.fetch_hub("org/small") == own_cache / "hub/org--small" / NEXT
    assert np.array_equal(read_arrays(own_cache / "hub/org--small" / NEXT)["x"], ARRAY + 1)
    assert np.array_equal(read_arrays(directory)["x"], ARRAY)


def test_offline_the_copy_is_taken_with_a_notice(
    hub: Hub, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = nest.fetch_hub("org/small")
    nest.remote_checkpoint("org/small")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for ask in (nest.fetch_hub, nest.remote_checkpoint):
        notices: list[str] = []
        ask("org/small", notice=notices.append)
        assert (
            len(notices) == 1
            and "Connection refused; taking the copy of main as of 20" in (notices[0])
        )
        assert COMMIT[:12] in notices[0]
    # A commit cannot have moved on: nothing is said and nothing asked.
    assert nest.fetch_hub("org/small", COMMIT, notice=pytest.fail) == directory
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    nest.fetch_hub("org/small", notice=notices.append)
    assert "not tried: HF_HUB_OFFLINE=1; taking the copy" in notices[-1]
    with pytest.raises(NestError, match="org/other: not tried: HF_HUB_OFFLINE=1"):
        nest.fetch_hub("org/other")


def test_a_damaged_copy_is_fetched_again(hub: Hub) -> None:
    path = nest.fetch_hub("org/small") / NAME
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, (1, 1))
    notices: list[str] = []
    nest.fetch_hub("org/small", notice=notices.append)
    assert len(notices) == 1 and "its digest differs" in notices[0]
    assert np.array_equal(read_arrays(path)["x"], ARRAY)


@pytest.mark.parametrize(
    ("revision", "repo", "expected"),
    [("v9", "org/small", "has no such revision"), (None, "org/none", "has no such repository")],
)
def test_what_the_hub_does_not_have(
    hub: Hub, revision: str | None, repo: str, expected: str
) -> None:
    with pytest.raises(NestError, match=f"{repo}: {expected}"):
        nest.fetch_hub(repo, revision)


def test_a_listing_cannot_reach_outside_its_folder(hub: Hub) -> None:
    hub.put("../../evil.json", b"{}")
    with pytest.raises(NestError, match="in a way that is not the Hub's"):
        nest.fetch_hub("org/small")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", ("org/name", None)),
        ("hf://org/name", ("org/name", None)),
        ("hf://org/name@refs/pr/1", ("org/name", "refs/pr/1")),
        ("org/name@c0ffee", ("org/name", "c0ffee")),
        ("name", None),
        ("a/b/c", None),
        ("/org/name", None),
    ],
)
def test_names_of_repositories(text: str, expected: tuple[str, str | None] | None) -> None:
    assert client.parse_repo(text) == expected
