"""A card, its source and its weights as one repository of the Hub, which loads by its name alone.

Everything is laid out and checked on this machine first. Uploading is `huggingface_hub`'s work: it
knows the Hub's storage of large files, and a commit appears whole or not at all.
"""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linnet.diagnostics import NestError
from linnet.nest.card import MANIFEST, Card, find_card
from linnet.nest.checking import check
from linnet.nest.fetch import WeightFiles, local_weights
from linnet.nest.hub import endpoint, online, page, parse_repo, token
from linnet.nest.web import Unavailable

README = "README.md"
INDEX = ".safetensors.index.json"
# What the Hub's page knows as a licence; any other is `other`, with its name.
# fmt: off
_LICENSES = frozenset(
    {
        "apache-2.0", "mit", "bsd", "bsd-2-clause", "bsd-3-clause", "isc", "unlicense",
        "mpl-2.0", "gpl-2.0", "gpl-3.0", "lgpl-3.0", "agpl-3.0", "cc0-1.0", "cc-by-4.0",
        "cc-by-sa-4.0", "cc-by-nc-4.0", "openrail", "bigscience-openrail-m",
        "creativeml-openrail-m", "llama2", "llama3", "llama3.1", "llama3.2", "llama3.3",
        "gemma",
    }
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Pushed:
    """What lies on the Hub now: the repository's page, its commit, and the files of the card."""

    url: str
    commit: str
    files: tuple[str, ...]


def push(
    directory: str | Path,
    repo: str,
    *,
    private: bool = False,
    std_root: str | Path | None = None,
) -> Pushed:
    """The repository holds the card, its package's source and its weights, in one commit.

    `directory` is a card's, or its name. Nothing is sent before `check` finds nothing wrong with
    what will be there. Raises NestError with every problem, or with what the Hub answered.
    """
    if (parse_repo(repo) or ("", None))[0] != repo:
        raise NestError(f"{repo}: not the name of a repository: org/name")
    try:
        online()
        secret = token()
    except Unavailable as failure:
        raise NestError(f"{page(repo)}: {failure}") from failure
    card = find_card(directory)
    with tempfile.TemporaryDirectory(prefix="linnet-push-") as place:
        staged = Path(place) / card.name
        files = lay_out(card, staged)
        problems = check(Card.read(staged), std_root=std_root)
        if problems:
            listed = "".join(f"\n  {k}. {problem}" for k, problem in enumerate(problems, 1))
            raise NestError(f"{card.name}: not pushed, nothing was sent:{listed}")
        commit = _upload(staged, files, repo, private, secret, f"Add {card.title or card.name}")
    return Pushed(page(repo), commit, files)


def lay_out(card: Card, directory: Path) -> tuple[str, ...]:
    """The new directory holds what the repository will: the files' names. Weights are links."""
    sources: dict[str, Path] = {}
    for path in _files(card.directory):
        sources[path.relative_to(card.directory).as_posix()] = path
    if card.package is not None:
        _add_package(card, sources)
    for name, path in _weights(card).items():
        sources.setdefault(name, path)
    directory.mkdir(parents=True)
    for name, path in sources.items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path.absolute())
    for name, text in ((MANIFEST, own_manifest(card)), (README, hub_readme(card))):
        if name in sources:
            (directory / name).unlink()
            (directory / name).write_text(text, "utf-8")
    return tuple(sorted(sources))


def own_manifest(card: Card) -> str:
    """The card's nest.toml where package and weights lie beside it: the rest stays as written."""
    path = card.directory / MANIFEST
    text = path.read_text("utf-8")
    dropped = {"source": {"package"}, "weights": {"repo", "revision", "directory"}}
    wanted: dict[str, Any] = tomllib.loads(text)
    for heading, keys in dropped.items():
        wanted[heading] = {k: v for k, v in wanted.get(heading, {}).items() if k not in keys}
    kept: list[str] = []
    table = ""
    for line in text.splitlines(keepends=True):
        header = re.match(r"\s*\[+\s*([\w.\"-]+)\s*\]+", line)
        table = header[1] if header else table
        key = re.match(r"\s*([\w-]+)\s*=", line)
        if not (key and key[1] in dropped.get(table, set())):
            kept.append(line)
    changed = "".join(kept)
    try:
        found: dict[str, Any] = tomllib.loads(changed)
    except tomllib.TOMLDecodeError:
        found = {}
    if {**found, **{heading: found.get(heading, {}) for heading in dropped}} != wanted:
        raise NestError(
            f"{path}: package, repo, revision and directory must stand on a line each, below "
            "[source] and [weights]"
        )
    return changed


def hub_readme(card: Card) -> str:
    """The card's README below what the Hub's page reads: licence, library and tags."""
    path = card.directory / README
    text = path.read_text("utf-8") if path.is_file() else ""
    if text.startswith("---\n"):
        return text
    stated = (card.license or "other").lower()
    known = stated if stated in _LICENSES else "other"
    lines = ["---", f"license: {known}"]
    if known == "other" and card.license:
        lines.append(f"license_name: {_plain(card.license)}")
    lines += ["library_name: linnet", "tags:", "- linnet", *(f"- {_plain(t)}" for t in card.tags)]
    if card.weights.repo:
        lines.append(f"base_model: {card.weights.repo}")
    return "\n".join([*lines, "---", "", text])


def _plain(text: str) -> str:
    """A word for the front matter, which needs no quotes."""
    return re.sub(r"[^\w.+-]+", "-", text.strip()).strip("-").lower()


def _files(directory: Path) -> list[Path]:
    """Every file below the directory but hidden ones, and none that leads out of it."""
    found: list[Path] = []
    for path in sorted(directory.rglob("*")):
        parts = path.relative_to(directory).parts
        if any(part.startswith(".") or part == "__pycache__" for part in parts):
            continue
        if path.is_symlink() and not path.resolve().is_relative_to(directory.resolve()):
            raise NestError(f"{path}: leads out of the card's directory, and is not pushed")
        if path.is_file():
            found.append(path)
    return found


def _add_package(card: Card, sources: dict[str, Path]) -> None:
    """The family's package lies where the card's own would."""
    package = card.package_dir
    manifest = package / "linnet.toml"
    try:
        depends = tomllib.loads(manifest.read_text("utf-8")).get("dependencies", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise NestError(f"{manifest}: cannot be read: {error}") from error
    if depends:
        raise NestError(
            f"{manifest}: the package needs {', '.join(depends)}, which would not be in the "
            "repository: a card is pushed with one package and std"
        )
    for path in _files(package):
        name = path.relative_to(package).as_posix()
        if name in sources:
            raise NestError(
                f"{card.directory / name}: the package {card.package} has such a file too, and in "
                "the repository they would be one"
            )
        sources[name] = path


def _weights(card: Card) -> dict[str, Path]:
    """The weights and what lies beside them, by name: on this machine, as the card names them."""
    found = local_weights(card)
    if found is None or found.format != "safetensors":
        have = f"; there is {found.origin}" if found else ""
        raise NestError(
            f"{card.name}: its weights are not on this machine as SafeTensors{have}: "
            f"python -m linnet.nest pull {card.name}"
        )
    names = dict(zip(card.weights.files, found.files))
    if len(names) != len(found.files) or any(not str(p).endswith(n) for n, p in names.items()):
        raise NestError(
            f"{card.name}: [weights] names {', '.join(card.weights.files)}; the weights on this "
            f"machine are {', '.join(path.name for path in found.files)} of {found.origin}"
        )
    return names | _beside(found, next(iter(names)))


def _beside(found: WeightFiles, first: str) -> dict[str, Path]:
    """Tokenizer, configuration and index, in the folder that the weights' names start from."""
    folder = Path(str(found.files[0]).removesuffix(first))
    extras = {path.relative_to(folder).as_posix(): path for path in found.extras}
    indexes = {path.name: path for path in folder.glob(f"*{INDEX}")}
    return extras | indexes


def _upload(
    staged: Path, files: tuple[str, ...], repo: str, private: bool, secret: str | None, message: str
) -> str:
    """The files are the repository's next commit: its name."""
    try:
        from huggingface_hub import CommitOperationAdd, HfApi
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError as error:
        raise NestError(
            "pushing needs huggingface_hub, which is not installed: pip install 'linnet[nest]'"
        ) from error
    api = HfApi(endpoint=endpoint(), token=secret, library_name="linnet")
    operations = [
        CommitOperationAdd(path_in_repo=name, path_or_fileobj=os.path.realpath(staged / name))
        for name in files
    ]
    try:
        api.create_repo(repo, private=private, repo_type="model", exist_ok=True)
        commit = api.create_commit(
            repo, operations, commit_message=message, repo_type="model", revision="main"
        )
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        said = str(error.server_message or str(error).splitlines()[0])
        fix = "; HF_TOKEN must hold a token that may write there" if status in (401, 403) else ""
        raise NestError(f"{page(repo)}: answers {status}: {_without(said, secret)}{fix}") from error
    except Exception as error:  # whatever its HTTP library raises where nobody answers
        said = ": ".join(filter(None, [str(error), str(error.__cause__ or "")]))
        raise NestError(f"{page(repo)}: not pushed: {_without(said, secret)}") from error
    return str(commit.oid)


def _without(text: str, secret: str | None) -> str:
    return text.replace(secret, "...") if secret else text
