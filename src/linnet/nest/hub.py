"""The Hub: what a repository holds at a commit, its headers without the data, its files cached.

Reading is our own code and not `huggingface_hub`'s: that one compares sizes and not digests, keeps
a cache of its own layout, and cannot read a header alone. Uploading is left to it (pushing.py).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlsplit, urlunsplit

from linnet.diagnostics import NestError
from linnet.nest.cache import cache_dir, held, replacing, write_receipt
from linnet.nest.progress import Notice, Progress, say, say_nothing, show_nothing
from linnet.nest.web import Absent, Refused, Unavailable, download, read_json, read_range
from linnet.weights.checkpoint import Checkpoint, check_index, from_headers, open_checkpoint
from linnet.weights.location import Header, TensorLocation
from linnet.weights.objects import read_object
from linnet.weights.report import Report
from linnet.weights.safetensors import (
    INDEX,
    SINGLE,
    header_length,
    parse_header,
    read_header,
    read_index,
)

HUB_REPO = re.compile(
    r"(?:hf://)?(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-]+(?:/[\w.-]+)*))?", re.ASCII
)
COMMIT = re.compile(r"[0-9a-f]{40}")
CARD = "nest.toml"
# What a checkpoint or a card is made of; a repository may hold the same weights in other formats.
_KEPT = (".json", ".txt", ".model", ".jinja", ".md", ".toml", ".linnet", ".svg")


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at a commit: every file by its path, and the licence its page states."""

    repo: str
    commit: str
    files: tuple[str, ...]
    license: str | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint as far as its headers say: configuration and tensors, no data read.

    `files` are the weight files and `others` everything beside them, by their paths in the
    repository or directory; `directory` holds config.json. Problems of the files wait in
    `checkpoint.report`. Of a repository that is not all here, no tensor can be read.
    """

    name: str
    commit: str | None
    files: tuple[str, ...]
    others: tuple[str, ...]
    directory: Path
    checkpoint: Checkpoint
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    license: str | None = None


def parse_repo(text: str) -> tuple[str, str | None] | None:
    """Repository and revision of `org/name`, `hf://org/name@revision` and so on; else None."""
    match = HUB_REPO.fullmatch(text)
    return (match["repo"], match["revision"]) if match else None


def endpoint() -> str:
    """Where the Hub is: $HF_ENDPOINT, else huggingface.co."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def page(repo: str) -> str:
    """The repository's page, for a message: what an endpoint holds before its host is no part."""
    parts = urlsplit(endpoint())
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, f"{parts.path}/{repo}", "", ""))


def hub_folder(repo: str, commit: str) -> Path:
    """Where the repository's files at a commit are cached."""
    return _repo_folder(repo) / commit.replace("/", "--")


def fetch_hub(
    repo: str,
    revision: str | None = None,
    progress: Progress | None = None,
    notice: Notice | None = None,
) -> Path:
    """The directory of the repository's checkpoint or card, cached under the commit.

    A branch is looked up each time. Offline, the cached copy is taken with a notice. Weights in
    other formats, and the same ones in subfolders, are left where they are.
    """
    notice = notice or say
    with _named(repo):
        listing = list_repo(repo, revision, notice)
        names = _kept(listing)
        if not any(name.endswith((".safetensors", ".gguf")) for name in names):
            raise Unavailable(_no_weights(listing.files))
        fetch_files(repo, listing.commit, names, progress or show_nothing, notice)
    return hub_folder(repo, listing.commit)


def repository(repo: str, revision: str | None = None, notice: Notice | None = None) -> Listing:
    """What the repository holds at the commit that the revision stands for now."""
    with _named(repo):
        return list_repo(repo, revision, notice or say)


def remote_checkpoint(
    repo: str, revision: str | None = None, notice: Notice | None = None
) -> Published:
    """Configuration, headers and files of a repository's checkpoint; its data stays there."""
    notice = notice or say
    with _named(repo):
        listing = list_repo(repo, revision, notice)
        weights = weight_files(listing.files)
        if not weights:
            raise Unavailable(_no_weights(listing.files))
        asked = ("config.json",) if weights == [SINGLE] else ("config.json", INDEX)
        wanted = [name for name in asked if name in listing.files]
        fetch_files(repo, listing.commit, wanted, show_nothing, notice)
        report = Report()
        folder = hub_folder(repo, listing.commit)
        shards = read_index(folder / INDEX, report) if INDEX in wanted else None
        files = sorted(set(shards.values()) & {*listing.files}) if shards else weights
        found = headers_of(repo, listing.commit, files, report)
    if shards:
        absent = set(shards.values()) - set(files)
        found = check_index(Path(repo, INDEX), shards, absent, found)
    others = tuple(name for name in listing.files if name not in files)
    config = _config(folder) if "config.json" in wanted else {}
    name = f"{repo}@{listing.commit}"
    return Published(
        name, listing.commit, tuple(files), others, folder, found, config, listing.license
    )


def headers_of(
    repo: str, commit: str, files: Sequence[str], report: Report | None = None
) -> Checkpoint:
    """The tensors of these SafeTensors files by their headers. Raises Unavailable."""
    report = report or Report()
    headers = [(Path(repo, name), _header(repo, commit, name, report)) for name in files]
    return from_headers(headers, report)


def local_checkpoint(directory: str | Path) -> Published:
    """The same of a directory, or of one weight file in it."""
    path = Path(directory)
    found = open_checkpoint(path)
    folder = path if path.is_dir() else path.parent
    files = tuple(file.relative_to(folder).as_posix() for file in found.files)
    others = tuple(
        sorted(
            other.relative_to(folder).as_posix()
            for other in folder.iterdir()
            if other.is_file() and other.name not in files
        )
    )
    return Published(str(path), None, files, others, folder, found, _config(folder))


def hub_safetensors_header(
    repo: str, filename: str, revision: str | None = None
) -> dict[str, TensorLocation]:
    """Every tensor of a SafeTensors file on the Hub: its header is read, none of its data."""
    report = Report()
    with _named(repo):
        commit = commit_of(repo, revision, say_nothing)
        header = _header(repo, commit, filename, report)
    report.check(f"cannot read {filename} of {page(repo)}")
    return header.tensors if header else {}


def weight_files(files: Collection[str]) -> list[str]:
    """The SafeTensors files of a repository's checkpoint: the whole one, else all at the top."""
    if SINGLE in files:
        return [SINGLE]
    return sorted(name for name in files if name.endswith(".safetensors") and "/" not in name)


# --- revisions --------------------------------------------------------------------------------


def list_repo(repo: str, revision: str | None, notice: Notice) -> Listing:
    """The repository's files at the commit that the revision stands for now.

    Raises Unavailable. Where the Hub cannot be reached, what is remembered of it is taken; for a
    branch, which may have moved on, the notice says so.
    """
    pinned = revision is not None and COMMIT.fullmatch(revision) is not None
    known = _remembered(repo, revision or "main")
    if pinned and known is not None:
        return known[0]
    try:
        return _ask_listing(repo, revision or "main")
    except (Absent, Refused):
        raise
    except Unavailable as failure:
        if known is None:
            raise
        notice(
            f"{page(repo)}: {failure}; taking the copy of {revision or 'main'} as of {known[1]} "
            f"({known[0].commit[:12]})"
        )
        return known[0]


def commit_of(repo: str, revision: str | None, notice: Notice) -> str:
    """The commit of a revision: a whole commit stands for itself, and nothing is asked."""
    if revision is not None and COMMIT.fullmatch(revision):
        return revision
    return list_repo(repo, revision, notice).commit


def known_commit(repo: str, revision: str | None) -> str | None:
    """The commit as far as this machine knows it; nothing is asked."""
    if revision is not None and COMMIT.fullmatch(revision):
        return revision
    known = _remembered(repo, revision or "main")
    return known[0].commit if known else None


def _ask_listing(repo: str, revision: str) -> Listing:
    online()
    url = f"{endpoint()}/api/models/{repo}/revision/{quote(revision, safe='')}"
    document = read_json(url, f"revision {revision}", token())
    try:
        commit = document["sha"]
        files = tuple(sorted(one["rfilename"] for one in document["siblings"]))
        if not COMMIT.fullmatch(commit) or not all(_below(name) for name in files):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise Unavailable(
            f"describes revision {revision} in a way that is not the Hub's (sha, siblings)"
        ) from None
    card: object = document.get("cardData")
    license = cast("dict[str, Any]", card).get("license") if isinstance(card, dict) else None
    listing = Listing(repo, commit, files, license if isinstance(license, str) else None)
    for name in {revision, commit}:
        _remember(listing, name)
    return listing


def _below(name: object) -> bool:
    """The name of a file that stays in its folder."""
    parts = Path(name).parts if isinstance(name, str) else ()
    return bool(parts) and ".." not in parts and not Path(*parts).is_absolute()


def _repo_folder(repo: str) -> Path:
    return cache_dir() / "hub" / repo.replace("/", "--")


def _remember(listing: Listing, revision: str) -> None:
    document = {
        "commit": listing.commit,
        "files": listing.files,
        "license": listing.license,
        "asked": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    with replacing(_ref(listing.repo, revision)) as file:
        file.write(json.dumps(document, indent=2).encode() + b"\n")


def _remembered(repo: str, revision: str) -> tuple[Listing, str] | None:
    """What the revision stood for when it was last asked, and when that was."""
    try:
        document: Any = json.loads(_ref(repo, revision).read_text("utf-8"))
        files = tuple(document["files"])
        return Listing(repo, document["commit"], files, document["license"]), document["asked"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _ref(repo: str, revision: str) -> Path:
    return _repo_folder(repo) / "refs" / f"{quote(revision, safe='')}.json"


# --- files ------------------------------------------------------------------------------------


def fetch_files(
    repo: str,
    commit: str,
    names: Sequence[str],
    progress: Progress,
    notice: Notice,
    *,
    optional: Collection[str] = (),
) -> list[str]:
    """These files lie in the commit's folder, fetched where they did not; the optional may lack.

    Raises Unavailable. Whole files count from the moment they are there, whatever follows.
    """
    folder = hub_folder(repo, commit)
    there, _ = held(folder, notice)
    found: list[str] = []
    for name in names:
        if name not in there:
            online()
            try:
                digest = download(
                    file_url(repo, commit, name), folder / name, name, progress, token()
                )
            except Absent:
                if name not in optional:
                    raise
                continue
            write_receipt(folder, f"{page(repo)} at {commit}", {name: digest})
        found.append(name)
    return found


def file_url(repo: str, revision: str, name: str) -> str:
    """Where a file's bytes are."""
    return f"{endpoint()}/{repo}/resolve/{quote(revision, safe='')}/{quote(name)}"


def online() -> None:
    """The user allows the network and names a Hub that can be asked, or it is Unavailable."""
    for name in ("LINNET_OFFLINE", "HF_HUB_OFFLINE"):
        if os.environ.get(name) == "1":
            raise Unavailable(f"not tried: {name}=1")
    parts = urlsplit(endpoint())
    try:
        named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number
        named = False
    if not named or "@" in parts.netloc:
        raise Unavailable(
            "not tried: HF_ENDPOINT is not an address such as https://huggingface.co, without a "
            "user's name or password"
        )


def token() -> str | None:
    """The user's token, from HF_TOKEN; messages never hold it."""
    value = os.environ.get("HF_TOKEN", "").strip()
    if not re.fullmatch(r"[!-~]*", value):
        raise Unavailable("not tried: HF_TOKEN holds a space or character that no token has")
    return value or None


def _header(repo: str, commit: str, name: str, report: Report) -> Header | None:
    """A SafeTensors file's header, from the cached copy if it is whole, else by ranges."""
    folder = hub_folder(repo, commit)
    if name in held(folder, say_nothing)[0]:
        return read_header(folder / name, report)
    online()
    label, url = Path(repo, name), file_url(repo, commit, name)
    start, size = read_range(url, name, 0, 8, token())
    if size is None:
        raise Unavailable(f"does not say how large {name} is")
    length = header_length(label, start, size, report)
    if length is None:
        return None
    header, _ = read_range(url, name, 8, length, token())
    return parse_header(label, header, size, report)


def _kept(listing: Listing) -> list[str]:
    """The files of a checkpoint or a card, small ones first."""
    small = [name for name in listing.files if name.endswith(_KEPT)]
    if CARD in listing.files:
        return small + [name for name in listing.files if name.endswith(".safetensors")]
    return small + (
        weight_files(listing.files) or [n for n in listing.files if n.endswith(".gguf")]
    )


def _no_weights(files: Collection[str]) -> str:
    others = [name for name in files if name.endswith((".bin", ".pt", ".pth", ".gguf", ".h5"))]
    instead = f"; it has {', '.join(sorted(others)[:3])}" if others else ""
    return f"holds no .safetensors file{instead}"


def _config(folder: Path) -> dict[str, Any]:
    """The directory's config.json; nothing where there is none."""
    path = folder / "config.json"
    return read_object(path, NestError) if path.exists() else {}


@contextmanager
def _named(repo: str) -> Iterator[None]:
    """What is unavailable is an error for the user, with the repository's name."""
    try:
        yield
    except Unavailable as failure:
        raise NestError(f"{page(repo)}: {failure}") from failure
