"""HTTP for large files: resumed where a connection is cut, verified whole, parts read by range."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

import linnet
from linnet.nest.progress import Progress, size_text

CHUNK = 1 << 20
CONNECT_SECONDS = 6.0
READ_SECONDS = 30.0
# A server that is busy is asked again, as often and for as long as this.
TRIES = 4
PATIENCE_SECONDS = 60.0
BUSY = frozenset({429, 500, 502, 503, 504})
# What the Hub states of a file before it sends the reader elsewhere for the bytes.
STATED = ("x-linked-etag", "x-linked-size", "x-repo-commit")


class Unavailable(Exception):
    """A place could not give what it was asked for; the message says why, without its name."""


class Absent(Unavailable):
    """The place answers, and does not have the file."""


class Refused(Unavailable):
    """The place answers, and does not give this to whoever asks."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An open answer; `headers` by lower-case name, what redirects stated of the file included."""

    stream: Any
    status: int
    headers: Mapping[str, str]

    @property
    def total(self) -> int | None:
        """The bytes of the whole file, as far as the server states them."""
        if self.status in (206, 416):
            total = self.headers.get("content-range", "").rpartition("/")[2]
        else:
            total = self.headers.get("x-linked-size") or self.headers.get("content-length") or ""
        return int(total) if total.isdigit() else None

    @property
    def start(self) -> int | None:
        """The position of the answer's first byte in the file; None where it is not stated."""
        if self.status != 206:
            return 0
        match = re.match(r"bytes (\d+)-", self.headers.get("content-range", ""))
        return int(match[1]) if match else None

    @property
    def digest(self) -> str:
        """The stated digest: SHA-256 for large files, the git blob's SHA-1 for small ones."""
        stated = self.headers.get("x-linked-etag") or self.headers.get("etag") or ""
        stated = stated.removeprefix("W/").strip('"')
        return stated if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", stated) else ""

    @property
    def validator(self) -> str:
        """The tag that a later request can continue by; empty where there is none."""
        tag = self.headers.get("etag", "")
        return "" if tag.startswith("W/") else tag


def ask(
    url: str, name: str, *, token: str | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """The answer to a request for what messages call `name`; a busy server is asked again.

    No answer within seconds counts as unreachable. The token goes to the URL's own host alone.
    """
    attempt = 0
    while True:
        attempt += 1
        outcome = _once(url, token, headers or {})
        if not isinstance(outcome, urllib.error.HTTPError):
            return outcome
        outcome.close()
        if outcome.code == 416 and headers and "Range" in headers:
            return Answer(None, 416, _lower(outcome.headers))
        if outcome.code not in BUSY or attempt == TRIES:
            raise _failure(outcome, name, token)
        wait = _wait(outcome.headers.get("Retry-After"), attempt)
        if wait > PATIENCE_SECONDS:
            raise Unavailable(f"answers {outcome.code} and wants to be asked in {wait:,.0f} s")
        time.sleep(wait)


def read_json(url: str, name: str, token: str | None = None) -> Any:
    """The JSON document at the URL."""
    try:
        with closing(ask(url, name, token=token).stream) as stream:
            return json.loads(stream.read())
    except (OSError, HTTPException) as error:
        raise Unavailable(f"{name} broke off: {reason(error)}") from error
    except ValueError as error:
        raise Unavailable(f"{name} is not JSON: {error}") from error


def read_range(
    url: str, name: str, start: int, count: int, token: str | None = None
) -> tuple[bytes, int | None]:
    """The file's bytes from `start`, at most `count`, and the size of it all; no more is read."""
    wanted = {"Range": f"bytes={start}-{start + count - 1}"}
    for attempt in range(1, TRIES + 1):
        answer = ask(url, name, token=token, headers=wanted)
        if answer.status == 416:
            return b"", answer.total
        with closing(answer.stream) as stream:
            if answer.start is None or answer.start not in (0, start):
                raise Unavailable(
                    f"answers {answer.headers.get('content-range')!r} where bytes {start:,} to "
                    f"{start + count - 1:,} of {name} were asked for"
                )
            # A server that knows no ranges sends all of it: what lies before is passed over.
            skipped = start - answer.start
            try:
                data = _exactly(stream, skipped + count)[skipped:]
            except (OSError, HTTPException) as error:
                if attempt == TRIES:
                    raise Unavailable(f"{name} broke off: {reason(error)}") from error
                continue
        whole = answer.total is not None and start + len(data) == answer.total
        if len(data) == count or whole:
            return data, answer.total
    raise Unavailable(f"{name} broke off after {len(data):,} of {count:,} bytes")


def download(url: str, path: Path, name: str, progress: Progress, token: str | None = None) -> str:
    """The file at the URL lies at the path, size and digest as the server states them: its SHA-256.

    What a cut connection left is continued, now or by a later call, as long as the server says by
    its tag that the file is the same; else it starts over.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _partial(path) as part:
        resumed = bool(part.size)
        stalled = 0
        while True:
            before = part.size
            problem = _continue(part, url, name, progress, token)
            if not problem:
                damage = part.damage(name)
                if not damage:
                    part.keep(path)
                    return str(part.sha256.hexdigest())
                part.restart()
                if not resumed:
                    raise Unavailable(damage)
                resumed, stalled = False, 0  # the older part may be what is wrong
                continue
            stalled = 0 if part.size > before else stalled + 1
            if stalled == TRIES:
                raise Unavailable(problem)


def reason(error: Exception) -> str:
    """Why a connection failed, in the system's words."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or type(cause).__name__


# --- a download under way ---------------------------------------------------------------------


@dataclass(slots=True)
class _Part:
    """A file as far as it has come; what the server stated of it lies beside it as JSON."""

    file: IO[bytes]
    place: Path
    validator: str = ""
    stated: str = ""
    total: int | None = None
    size: int = 0
    sha256: Any = field(default_factory=hashlib.sha256)
    git: Any = field(default_factory=hashlib.sha1)

    @property
    def notes(self) -> Path:
        return self.place.with_name(self.place.name + ".json")

    def resume(self) -> None:
        """What an earlier call left counts, where its notes say what file it is a part of."""
        try:
            notes: Any = json.loads(self.notes.read_text("utf-8"))
            validator, stated, total = notes["validator"], notes["stated"], notes["total"]
        except (OSError, ValueError, KeyError, TypeError):
            return self.restart()
        self.begin(str(validator), str(stated), total if isinstance(total, int) else None)
        self.file.seek(0)
        while chunk := self.file.read(CHUNK):
            self._count(chunk)

    def restart(self) -> None:
        """Nothing of the file is there."""
        self.begin("", "", None)
        self.file.truncate(0)

    def begin(self, validator: str, stated: str, total: int | None) -> None:
        """The file is the one that the server states so; no byte of it counts yet."""
        self.validator, self.stated, self.total = validator, stated, total
        self.size = 0
        self.sha256, self.git = hashlib.sha256(), hashlib.sha1(f"blob {total}\0".encode())

    def note(self) -> None:
        """A later call can continue from here."""
        notes = {"validator": self.validator, "stated": self.stated, "total": self.total}
        self.notes.write_text(json.dumps(notes) + "\n", "utf-8")

    def write(self, chunk: bytes) -> None:
        self.file.write(chunk)
        self._count(chunk)

    def damage(self, name: str) -> str:
        """How what arrived differs from what was stated; empty where it does not."""
        actual = {64: self.sha256, 40: self.git}.get(len(self.stated))
        if actual is not None and actual.hexdigest() != self.stated:
            return f"{name} arrived damaged: its digest is not the stated {self.stated}"
        return ""

    def keep(self, path: Path) -> None:
        """The whole file takes the path's place."""
        self.file.flush()
        os.chmod(self.place, 0o644)
        os.replace(self.place, path)
        self.notes.unlink(missing_ok=True)

    def leave(self) -> None:
        """What can be continued stays for a later call, all else is removed."""
        self.file.flush()
        if not self.size or not self.validator:
            self.place.unlink(missing_ok=True)
            self.notes.unlink(missing_ok=True)

    def _count(self, chunk: bytes) -> None:
        self.sha256.update(chunk)
        self.git.update(chunk)
        self.size += len(chunk)


@contextmanager
def _partial(path: Path) -> Iterator[_Part]:
    """The unfinished file beside the path, ours alone: one that another process writes is not."""
    place = path.with_name(f".{path.name}.part")
    file = _alone(place)
    if file is None:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        file, place = os.fdopen(handle, "w+b"), Path(name)
    with file:
        part = _Part(file, place)
        part.resume()
        try:
            yield part
        finally:
            part.leave()


def _alone(place: Path) -> IO[bytes] | None:
    """The file, locked until it is closed; None where another process holds it."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system: a file of one's own each time
        return None
    file = os.fdopen(os.open(place, os.O_RDWR | os.O_CREAT, 0o644), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Moved to its final place between opening and locking: no longer an unfinished file.
        if os.stat(place).st_ino == os.fstat(file.fileno()).st_ino:
            return file
    except OSError:
        pass
    file.close()
    return None


def _continue(part: _Part, url: str, name: str, progress: Progress, token: str | None) -> str:
    """As much more of the file as one answer gives; why it is not whole, or nothing."""
    headers: dict[str, str] = {}
    if part.size and part.validator and part.size != part.total:
        headers = {"Range": f"bytes={part.size}-", "If-Range": part.validator}
    elif part.size and part.size == part.total:
        return ""
    answer = ask(url, name, token=token, headers=headers)
    if answer.status == 416:
        part.restart()
        return f"{name} cannot be continued: the server has fewer bytes of it"
    with closing(answer.stream) as stream:
        if answer.status != 206:
            part.restart()
            part.begin(answer.validator, answer.digest, answer.total)
            part.note()
        elif not _continues(answer, part):
            part.restart()
            return f"{name} cannot be continued: the server answers with other bytes than asked for"
        part.file.seek(part.size)
        free = shutil.disk_usage(part.place.parent).free
        if part.total is not None and part.total - part.size > free:
            raise Unavailable(
                f"{name} takes {size_text(part.total - part.size)}, "
                f"{part.place.parent} has {size_text(free)} free"
            )
        problem = _copy(stream, part, name, progress)
    if problem or part.total is None or part.size == part.total:
        return problem
    if part.size > part.total:
        part.restart()
    return f"{name} broke off after {part.size:,} of {part.total:,} bytes"


def _copy(stream: Any, part: _Part, name: str, progress: Progress) -> str:
    """What the connection gives is part of the file; why it ended early, or nothing."""
    while True:
        try:
            chunk = stream.read(CHUNK)
        except (OSError, HTTPException) as error:
            return f"{name} broke off after {part.size:,} bytes: {reason(error)}"
        if not chunk:
            return ""
        try:
            part.write(chunk)
        except OSError as error:
            raise Unavailable(f"{part.place.parent}: cannot be written: {reason(error)}") from error
        progress(name, part.size, part.total)


def _continues(answer: Answer, part: _Part) -> bool:
    """The answer goes on where the part ends, in the same file."""
    same = answer.headers.get("etag") in (None, part.validator)
    linked = answer.headers.get("x-linked-etag") is None or answer.digest == part.stated
    return same and linked and answer.start == part.size and answer.total == part.total


def _exactly(stream: Any, count: int) -> bytes:
    """The next `count` bytes, fewer where the stream ends."""
    data = b""
    while len(data) < count and (chunk := stream.read(min(CHUNK, count - len(data)))):
        data += chunk
    return data


# --- one request ------------------------------------------------------------------------------


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Keeps what is stated of a file on the way, and the token from every other host."""

    def __init__(self, url: str, token: str | None) -> None:
        self.origin = _origin(url)
        self.token = token
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
        for name in STATED:
            if name in headers:
                self.headers[name] = str(headers[name])
        following = super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
        if following is not None and self.token and _origin(newurl) == self.origin:
            _authorize(following, self.token)
        return following


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urllib.parse.urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname or "", port


def _authorize(request: urllib.request.Request, token: str) -> None:
    # Not a redirected header: whether the next host may have it is decided there.
    request.add_unredirected_header("Authorization", f"Bearer {token}")


def _once(
    url: str, token: str | None, headers: Mapping[str, str]
) -> Answer | urllib.error.HTTPError:
    agent = {"User-Agent": f"linnet/{linnet.__version__}"}
    request = urllib.request.Request(url, headers={**agent, **headers})
    if token:
        _authorize(request, token)
    redirects = _Redirects(url, token)
    opener = urllib.request.build_opener(redirects)
    outcome: list[Any] = []

    def get() -> None:
        try:
            outcome.append(opener.open(request, timeout=READ_SECONDS))
        except (OSError, HTTPException, ValueError) as error:
            outcome.append(error)

    # Looking up a name has no timeout of its own, so a thread that may be left behind asks.
    asking = threading.Thread(target=get, daemon=True)
    asking.start()
    asking.join(CONNECT_SECONDS)
    if not outcome:
        raise Unavailable(f"cannot be reached: no answer within {CONNECT_SECONDS:.0f} seconds")
    answer = outcome[0]
    if isinstance(answer, urllib.error.HTTPError):
        return answer
    if isinstance(answer, Exception):
        raise Unavailable(f"cannot be reached: {reason(answer)}")
    return Answer(answer, answer.status, _lower(answer.headers) | redirects.headers)


def _failure(error: urllib.error.HTTPError, name: str, token: str | None) -> Unavailable:
    """What the status means for whoever wanted the file."""
    detail = error.headers.get("X-Error-Code", "")
    match (error.code, detail):
        case (_, "GatedRepo"):
            return Refused(f"refuses {name} ({error.code}): the model is gated; {_access(token)}")
        case (401, "RepoNotFound"):
            return Refused(f"has no such repository, or a private one; {_access(token)}")
        case (401 | 403, _):
            return Refused(f"refuses {name} ({error.code}); {_access(token)}")
        case (404, "RepoNotFound"):
            return Absent("has no such repository")
        case (404, "RevisionNotFound"):
            return Absent("has no such revision")
        case (404, _):
            return Absent(f"has no {name}")
    return Unavailable(f"answers {error.code} {error.reason} for {name}")


def _access(token: str | None) -> str:
    if token:
        return "HF_TOKEN is set, and its account has no access: ask for it on the model's page"
    return "HF_TOKEN gives access to gated models"


def _wait(stated: str | None, attempt: int) -> float:
    """The seconds to wait before the next attempt: the server's, else longer each time."""
    if stated is None:
        return float(2 ** (attempt - 1))
    if stated.strip().isdigit():
        return float(stated)
    try:
        until = parsedate_to_datetime(stated)
    except ValueError:
        return float(2 ** (attempt - 1))
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


def _lower(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
