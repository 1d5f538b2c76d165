"""The cache of fetched files: what lies there whole, by the receipts that were written for it."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from linnet.nest.progress import Notice

RECEIPT = "receipt.json"


def cache_dir() -> Path:
    """Where fetched files are kept: $LINNET_NEST_CACHE, else linnet/nest in the user's cache."""
    chosen = os.environ.get("LINNET_NEST_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "linnet" / "nest"


def held(folder: Path, notice: Notice) -> tuple[dict[str, str], set[str]]:
    """The files of a cache folder that still are what was fetched, with their SHA-256, and those
    that no longer are: the notice says how, and they are to be fetched again.
    """
    whole: dict[str, str] = {}
    damaged: set[str] = set()
    for name, entry in _entries(folder).items():
        problem = _damage(folder / name, entry)
        if problem:
            notice(f"{folder / name}: {problem}; it is fetched again")
            damaged.add(name)
        else:
            whole[name] = entry["sha256"]
    return whole, damaged


def write_receipt(folder: Path, origin: str, digests: Mapping[str, str]) -> None:
    """The folder's files count as whole from here on, those of an earlier receipt too."""
    files = {
        name: {
            "size": (folder / name).stat().st_size,
            "mtime_ns": (folder / name).stat().st_mtime_ns,
            "sha256": digest,
        }
        for name, digest in digests.items()
    }
    with replacing(folder / RECEIPT) as file:
        document = {"origin": origin, "files": _entries(folder) | files}
        file.write(json.dumps(document, indent=2).encode() + b"\n")


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes the path's place when it is whole, and vanishes otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _entries(folder: Path) -> dict[str, dict[str, Any]]:
    """The receipt's files; a receipt that cannot be read speaks of none."""
    try:
        files: Any = json.loads((folder / RECEIPT).read_text("utf-8"))["files"]
        return {name: entry for name, entry in files.items() if _is_entry(entry)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _is_entry(entry: Any) -> bool:
    kinds = {"size": int, "mtime_ns": int, "sha256": str}
    return isinstance(entry, dict) and all(isinstance(entry.get(k), t) for k, t in kinds.items())


def _damage(path: Path, entry: dict[str, Any]) -> str:
    """How a cached file differs from what was fetched; empty where it does not.

    A file untouched since it was verified is not read again: its size and time stand for it.
    """
    try:
        status = path.stat()
    except OSError:
        return "the cached file is gone"
    if status.st_size != entry["size"]:
        return f"the cached file has {status.st_size:,} bytes, {entry['size']:,} were fetched"
    if status.st_mtime_ns != entry["mtime_ns"] and digest_of(path) != entry["sha256"]:
        return "the cached file is not what was fetched (its digest differs)"
    return ""
