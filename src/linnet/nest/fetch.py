"""Weights of a card: found on this machine, else fetched whole, verified and kept in the cache."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from linnet.diagnostics import NestError
from linnet.nest.cache import cache_dir, held, replacing, write_receipt
from linnet.nest.card import Card, Mirror, Part
from linnet.nest.hub import commit_of, fetch_files, hub_folder, known_commit, page
from linnet.nest.progress import Notice, Progress, say, say_nothing, show_nothing
from linnet.nest.web import CHUNK, Unavailable, reason

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
    "modules.json",
)


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The weights of a card on this machine.

    `bindings` is the file of bindings that goes with them, `extras` the tokenizer's files and
    configuration where they lie apart from the weights, `origin` where all of it came from.
    """

    files: tuple[Path, ...]
    format: str
    bindings: Path | None
    extras: tuple[Path, ...]
    origin: str

    @property
    def cast_dtype(self) -> bool:
        """The format keeps some tensors wider than the model's dtype: GGUF its vectors in f32."""
        return self.format == "gguf"

    @property
    def text_files(self) -> tuple[Path, ...]:
        """What the tokenizer is read from: the files beside the weights, else the GGUF itself."""
        return self.files if self.format == "gguf" and not self.extras else self.extras


def local_weights(card: Card, notice: Notice | None = None) -> WeightFiles | None:
    """The card's weights as far as this machine has them whole, or None; nothing is fetched.

    Files in the card's folder of weights go first, then the cached copy of the Hub's, then each
    mirror's. A cached file that no longer is what was fetched is removed, and the notice says so.
    """
    notice = notice or say_nothing
    place = card.weights_dir
    beside = tuple(place / name for name in card.weights.files)
    if beside and all(path.is_file() for path in beside):
        extras = [place / name for name in _texts(card)]
        found = tuple(path for path in extras if path.is_file())
        return WeightFiles(beside, _format(beside), card.bindings_path, found, str(place))
    repo, revision = card.weights.repo, card.weights.revision
    commit = known_commit(repo, revision) if repo and card.weights.files else None
    if commit is not None and _whole(hub_folder(repo, commit), card.weights.files, notice):
        return _hub_files(card, commit)
    for mirror in card.weights.mirrors:
        if _whole(_mirror_folder(mirror), list(_mirror_names(mirror)), notice):
            return _mirror_files(card, mirror)
    return None


def fetch_weights(
    card: Card, progress: Progress | None = None, notice: Notice | None = None
) -> WeightFiles:
    """The card's weights, fetched if this machine lacks them: from the Hub, else from a mirror.

    Raises a NestError that lists what was tried where no place could give them. `notice` gets one
    line for each place that could not; without it they are printed to standard error.
    """
    notice = notice or say
    found = local_weights(card, notice)
    if found is not None:
        return found
    failures: list[str] = []
    places = [*([None] if card.weights.repo and card.weights.files else []), *card.weights.mirrors]
    for k, mirror in enumerate(places):
        try:
            if os.environ.get("LINNET_OFFLINE") == "1":
                raise Unavailable("not tried: LINNET_OFFLINE=1")
            if mirror is None:
                return _from_hub(card, progress or show_nothing, notice)
            return _from_mirror(card, mirror, progress or show_nothing)
        except Unavailable as failure:
            place = page(card.weights.repo) if mirror is None else mirror.label
            failures.append(f"{place}: {failure}")
            following = places[k + 1 : k + 2]
            if following and following[0] is not None:
                notice(f"{place}: {failure}; taking the mirror {following[0].label}")
    tried = failures or [
        f"{card.weights_dir}: the card names no repository, and its files do not lie there: "
        f"{', '.join(card.weights.files) or 'none named'}"
    ]
    lines = [f"cannot get the weights of {card.name}", *(f"  {line}" for line in tried)]
    lines.append(
        "  to load without them being fetched, pass weights= (--weights): a .safetensors or .gguf "
        "file, or a directory that holds them"
    )
    lines.append(f"  fetched files are kept in {cache_dir()} (LINNET_NEST_CACHE names another)")
    raise NestError("\n".join(lines))


# --- what is there ---------------------------------------------------------------------------


def _mirror_folder(mirror: Mirror) -> Path:
    return cache_dir() / mirror.kind / f"{mirror.package}-{mirror.version}"


def _hub_files(card: Card, commit: str) -> WeightFiles:
    folder = hub_folder(card.weights.repo, commit)
    files = tuple(folder / name for name in card.weights.files)
    beside = [folder / name for name in _texts(card)]
    extras = tuple(path for path in beside if path.is_file())
    origin = f"{card.weights.repo} ({commit})"
    return WeightFiles(files, _format(files), card.bindings_path, extras, origin)


def _texts(card: Card) -> Sequence[str]:
    """What lies beside the weights: the files that the card names, else the usual ones."""
    named = card.weights.tokenizer
    return TOKENIZER_FILES if named is None else named


def _whole(folder: Path, needed: Sequence[str], notice: Notice) -> bool:
    """The folder holds the needed files, and nothing in it was damaged since it was fetched."""
    whole, damaged = held(folder, notice)
    return not damaged and whole.keys() >= set(needed)


def _mirror_files(card: Card, mirror: Mirror) -> WeightFiles:
    file, *extras = (_mirror_folder(mirror) / name for name in _mirror_names(mirror))
    own = card.directory / mirror.bindings if mirror.bindings else card.bindings_path
    return WeightFiles((file,), mirror.format, own, tuple(extras), mirror.label)


def _mirror_names(mirror: Mirror) -> dict[str, tuple[tuple[Part, ...], str]]:
    """By its name in the cache, what each of the mirror's files is joined of, and its digest."""
    files = {mirror.file: (mirror.pieces, mirror.sha256)}
    for path, digest in mirror.tokenizer.items():
        files[path] = (Part(mirror.package, path),), digest
    return {Path(path).name: found for path, found in files.items()}


def _format(files: Sequence[Path]) -> str:
    return "gguf" if files[0].suffix == ".gguf" else "safetensors"


# --- the Hub ----------------------------------------------------------------------------------


def _from_hub(card: Card, progress: Progress, notice: Notice) -> WeightFiles:
    weights = card.weights
    commit = commit_of(weights.repo, weights.revision, notice)
    # Small files first: a place that cannot be reached fails before anything large is begun.
    names = [*_texts(card), *weights.files]
    optional = _texts(card) if weights.tokenizer is None else ()
    fetch_files(weights.repo, commit, names, progress, say_nothing, optional=optional)
    return _hub_files(card, commit)


# --- mirrors ----------------------------------------------------------------------------------


def _from_mirror(card: Card, mirror: Mirror, progress: Progress) -> WeightFiles:
    """The mirror's files in the cache: wheels are unpacked, never installed, none of them run."""
    accepted = re.split(r"[\s,]+", os.environ.get("LINNET_ACCEPT_TERMS", ""))
    if mirror.terms is not None and card.name not in accepted:
        raise Unavailable(
            f"not tried: its use is under terms of its own, {mirror.terms}; "
            f"LINNET_ACCEPT_TERMS={card.name} says that you accept them"
        )
    folder, digests = _mirror_folder(mirror), dict[str, str]()
    names = _mirror_names(mirror)
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=cache_dir()) as place:
            wheels: dict[str, Path] = {}
            for package in dict.fromkeys(
                part.package for parts, _ in names.values() for part in parts
            ):
                wheels[package] = _pip_download(
                    package, mirror, Path(place) / str(len(wheels)), progress
                )
            for name, (parts, digest) in names.items():
                _unpack(
                    [(wheels[part.package], part.file) for part in parts], digest, folder / name
                )
                digests[name] = digest
    except OSError as error:
        raise Unavailable(f"cannot be kept in {cache_dir()}: {reason(error)}") from error
    write_receipt(folder, mirror.label, digests)
    return _mirror_files(card, mirror)


def _pip_download(package: str, mirror: Mirror, place: Path, progress: Progress) -> Path:
    """The wheel, fetched by the user's own pip with the user's own configuration."""
    wheels, scratch, log = place / "wheels", place / "tmp", place / "log"
    scratch.mkdir(parents=True)
    options = "--no-deps --no-cache-dir --only-binary=:all: --disable-pip-version-check"
    command = [
        *(sys.executable, "-m", "pip", "download", *options.split()),
        *("--retries=1", "--progress-bar=off", "--no-input", "-d", str(wheels)),
        f"{package}=={mirror.version}",
    ]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    what = f"{package} {mirror.version} ({mirror.kind})"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        try:
            while process.poll() is None:
                progress(what, _largest(place), _announced(log))
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    text = log.read_text("utf-8", "replace")
    if process.returncode:
        raise Unavailable(f"pip could not fetch it: {_pipreason(text)}")
    found = list(wheels.glob("*.whl"))
    if len(found) != 1:
        raise Unavailable(f"pip fetched {[path.name for path in found]}, not one wheel")
    size = found[0].stat().st_size
    progress(what, size, size)
    return found[0]


def _largest(place: Path) -> int:
    """The bytes of the wheel so far: pip fetches one copy and moves it at the end."""
    sizes = [0]
    for path in place.rglob("*.whl"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:
            continue  # moved away between listing and looking
    return max(sizes)


def _announced(log: Path) -> int | None:
    """The size that pip prints beside the file's name."""
    match = re.search(r"\(([\d.]+) ([kMG]?)B\)", log.read_text("utf-8", "replace"))
    if match is None:
        return None
    return int(float(match[1]) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[match[2]])


def _pipreason(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it printed nothing"])[-1]


def _unpack(parts: Sequence[tuple[Path, str]], stated: str, path: Path) -> None:
    """The wheels' files lie joined at the path, with the digest that the card states."""
    digest = hashlib.sha256()
    with replacing(path) as file:
        for wheel, name in parts:
            for chunk in _unpacked(wheel, name):
                file.write(chunk)
                digest.update(chunk)
        if digest.hexdigest() != stated:
            raise Unavailable(
                f"{parts[0][1] if len(parts) == 1 else path.name} has the digest "
                f"{digest.hexdigest()}, the card states {stated}"
            )


def _unpacked(wheel: Path, name: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(name) as member:
            while chunk := member.read(CHUNK):
                yield chunk
    except KeyError:
        raise Unavailable(f"{wheel.name} has no {name}") from None
    except (zipfile.BadZipFile, EOFError) as error:
        raise Unavailable(f"{wheel.name} is damaged: {error}") from error
