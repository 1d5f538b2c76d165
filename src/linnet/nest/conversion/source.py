"""What a checkpoint states of itself: its `config.json` and where its tensors lie; no data."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linnet.diagnostics import NestError
from linnet.nest.hub import Published, local_checkpoint, page, parse_repo, remote_checkpoint
from linnet.nest.progress import Notice
from linnet.weights import Checkpoint, open_checkpoint
from linnet.weights.gguf_config import config_of

CONFIG = "config.json"
ADAPTER = "adapter_config.json"
_LICENSE = re.compile(r"^license: *[\"']?([\w.+-]+)[\"']? *$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint's settings and the headers of its weights.

    `directory` holds the files of a local one; `repo` and `revision` (a commit) name one of the
    Hub. `files` are the weights, relative to either.
    """

    label: str
    config: dict[str, Any]
    checkpoint: Checkpoint
    files: tuple[str, ...]
    directory: Path | None = None
    repo: str = ""
    revision: str | None = None
    license: str | None = None


def read_source(
    source: str | Path, revision: str | None = None, notice: Notice | None = None
) -> Source:
    """The checkpoint in a directory or GGUF file, or else of the Hub: `org/name@revision`."""
    named = parse_repo(source) if isinstance(source, str) else None
    if named is None or os.path.exists(source):
        if revision is not None:
            raise NestError(
                f"{source}: a local checkpoint has no revision: --revision is for the Hub"
            )
        path = Path(source)
        return read_gguf(path) if path.suffix == ".gguf" else read_directory(path)
    repo, stated = named
    if None not in (revision, stated) and revision != stated:
        raise NestError(f"{source}: the revision is stated twice, {stated} and {revision}")
    return of_repo(repo, remote_checkpoint(repo, revision or stated, notice))


def of_repo(repo: str, published: Published) -> Source:
    """The checkpoint of a repository, as far as its headers say."""
    if not published.config:
        raise NestError(f"{page(repo)}: not a checkpoint: it has no {CONFIG}")
    _no_adapter(page(repo), published)
    published.checkpoint.report.check(f"cannot read {published.name}")
    return Source(
        published.name,
        published.config,
        published.checkpoint,
        published.files,
        repo=repo,
        revision=published.commit,
        license=published.license,
    )


def read_directory(directory: str | Path) -> Source:
    """The checkpoint in a directory: its configuration and the headers of its SafeTensors files.

    Raises NestError where the directory is not a checkpoint, PlanError where its files are broken.
    """
    place = Path(os.path.realpath(os.path.expanduser(directory)))
    if not os.path.isdir(place):
        raise NestError(f"{directory}: no such directory")
    if not (place / CONFIG).is_file():
        raise NestError(
            f"{place}: not a checkpoint: it has no {CONFIG}\n"
            f"  a checkpoint is a directory with {CONFIG} and *.safetensors, as transformers' "
            "save_pretrained writes it"
        )
    if not any(place.glob("*.safetensors")):
        others = sorted(path.name for path in place.glob("*.bin")) or ["none"]
        raise NestError(
            f"{place}: holds no .safetensors file (other weights: {', '.join(others)})\n"
            "  save the model again with transformers: "
            'model.save_pretrained("DIR", safe_serialization=True)'
        )
    found = local_checkpoint(place)
    _no_adapter(str(place), found)
    found.checkpoint.report.check(f"cannot read {place}")
    return Source(
        place.name,
        found.config,
        found.checkpoint,
        found.files,
        directory=place,
        license=_license(place),
    )


def read_gguf(file: Path) -> Source:
    """The checkpoint that a GGUF file was made from, by its metadata and header."""
    checkpoint = open_checkpoint(file)
    place = Path(os.path.realpath(file))
    license = checkpoint.metadata.get("general.license")
    return Source(
        place.stem,
        config_of(checkpoint),
        checkpoint,
        (place.name,),
        directory=place.parent,
        license=license if isinstance(license, str) else None,
    )


def _no_adapter(where: str, found: Published) -> None:
    """The checkpoint is a model of its own, and not one that an adapter changes."""
    if ADAPTER in found.others:
        raise NestError(
            f"{where}: {ADAPTER} says that an adapter changes the model, and transformers applies "
            "it as it loads\n  merge it into the weights (peft: merge_and_unload) and save those, "
            f"or remove {ADAPTER} to convert the model without it"
        )


def _license(directory: Path) -> str | None:
    """The licence that the front matter of a model's README names."""
    readme = directory / "README.md"
    if not readme.is_file():
        return None
    text = readme.read_text("utf-8", "replace")
    front = text.split("\n---", 1)[0] if text.startswith("---") else ""
    found = _LICENSE.search(front)
    return found[1] if found else None
