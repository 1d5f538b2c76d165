"""The C sources of this folder as one shared library, compiled for this machine on first use."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-fopenmp")
# Nobody reads errno or floating-point traps; NaN and infinities stay what they are.
_MATH = ("-fno-math-errno", "-fno-trapping-math")


@cache
def library() -> ctypes.CDLL | None:
    """The library, or None where there is no C compiler, or LINNET_NATIVE=0 asks for none.

    It is kept in the user's cache under a name made of all that it depends on.
    """
    compiler = _compiler()
    if compiler is None:
        return None
    folder = _folder()
    if folder is None:
        return None
    path = folder / f"native-{_key(compiler)}.so"
    if path.exists() and (found := _opened(path)) is not None:
        return found
    return _opened(path) if _compile(compiler, path) else None


def _opened(path: Path) -> ctypes.CDLL | None:
    """The library at the path, or None where a file is none of ours: cut short, say."""
    try:
        found = ctypes.CDLL(str(path))
        found.linnet_run  # noqa: B018 - a name that is looked up
    except (OSError, AttributeError):
        return None
    return found


def _compiler() -> str | None:
    if os.environ.get("LINNET_NATIVE") == "0":
        return None
    names = (os.environ.get("CC"), "cc", "gcc", "clang")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def _folder() -> Path | None:
    """Where compiled code is kept: $LINNET_NATIVE_CACHE, else linnet/native in the user's cache.

    None for a user without a home.
    """
    chosen = os.environ.get("LINNET_NATIVE_CACHE")
    try:
        if chosen:
            return Path(chosen).expanduser()
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(home) / "linnet" / "native"


def _sources() -> list[Path]:
    return sorted(Path(__file__).parent.glob("*.[ch]"))


def _key(compiler: str) -> str:
    """Changes with the sources, the compiler and the processor."""
    digest = hashlib.sha256(" ".join((*_FLAGS, *_MATH, platform.machine())).encode())
    for source in _sources():
        digest.update(source.read_bytes())
    status = Path(compiler).resolve().stat()
    digest.update(f"{compiler} {status.st_size} {status.st_mtime_ns}".encode())
    digest.update(_processor())
    return digest.hexdigest()[:20]


def _processor() -> bytes:
    """What tells processors apart for which different code is made."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().split(b"\n\n")[0].splitlines()
    except OSError:
        return platform.processor().encode()
    kept = (b"flags", b"Features", b"model name", b"model\t")
    return b"\n".join(line for line in lines if line.startswith(kept))


def _compile(compiler: str, path: Path) -> bool:
    """The library lies at the path, whole, unless something stands in the way."""
    sources = [str(source) for source in _sources() if source.suffix == ".c"]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            command = [compiler, *_FLAGS, *_MATH, *sources, "-o", str(made), "-lm"]
            done = subprocess.run(command, capture_output=True, timeout=300, check=False)
            if done.returncode:
                return False
            made.replace(path)
    except (OSError, subprocess.SubprocessError):
        return False
    return True
