"""What stands for a model: a card's name or directory, or a checkpoint that a card is made for."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import linnet
from linnet.diagnostics import NestError
from linnet.nest.cache import cache_dir
from linnet.nest.card import MANIFEST, Card, find_card
from linnet.nest.hub import fetch_hub, parse_repo, remote_checkpoint, repository
from linnet.nest.progress import Notice, Progress

if TYPE_CHECKING:
    from linnet.nest.conversion import Source

CONFIG = "config.json"


def resolve(
    name_or_dir: str | Path | Card,
    notice: Notice | None = None,
    progress: Progress | None = None,
) -> Card:
    """The card that is meant; one made from a checkpoint is kept in the cache.

    A directory without a card that has a config.json is a checkpoint as transformers saves it, a
    GGUF file is one too; `org/name`, or `hf://org/name@revision`, is a checkpoint or a card of the
    Hub.
    """
    if isinstance(name_or_dir, Card):
        return name_or_dir
    place = Path(os.path.expanduser(name_or_dir))
    if os.path.isfile(place / CONFIG) and not os.path.isfile(place / MANIFEST):
        from linnet.nest.conversion import read_directory

        return converted(read_directory(place), notice)
    if place.suffix == ".gguf" and os.path.isfile(place):
        from linnet.nest.conversion import read_gguf

        return converted(read_gguf(place), notice)
    named = parse_repo(name_or_dir) if isinstance(name_or_dir, str) else None
    if named is not None and not os.path.exists(place):
        return _of_repo(*named, notice, progress)
    return find_card(name_or_dir)


def _of_repo(
    repo: str, revision: str | None, notice: Notice | None, progress: Progress | None
) -> Card:
    """The repository's own card, else one made from its configuration and headers."""
    listing = repository(repo, revision, notice)
    if MANIFEST in listing.files:
        return Card.read(fetch_hub(repo, listing.commit, progress, notice))
    from linnet.nest.conversion import of_repo

    return converted(of_repo(repo, remote_checkpoint(repo, listing.commit, notice)), notice)


def converted(source: Source, notice: Notice | None = None) -> Card:
    """The card of a checkpoint: the cached one, if it was made from the same by this version."""
    name = source.repo.rpartition("/")[2] or source.label
    folder = cache_dir() / "converted" / _digest(source) / name
    if (folder / MANIFEST).is_file():
        try:
            return Card.read(folder)
        except NestError:
            shutil.rmtree(folder, ignore_errors=True)  # damaged; it is made again
    from linnet.nest.conversion import convert_source

    try:
        convert_source(source, folder, notice=notice)
    except NestError:
        if not (folder / MANIFEST).is_file():  # else another process has made it meanwhile
            raise
    return Card.read(folder)


def _digest(source: Source) -> str:
    """Of all that a card is made from."""
    headers = {
        name: [str(at.file), at.dtype or at.encoding, list(at.shape)]
        for name, at in source.checkpoint.tensors.items()
    }
    origin = [linnet.__version__, str(source.directory), source.repo, source.revision]
    text = json.dumps([origin, source.config, headers, source.files, source.license])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
