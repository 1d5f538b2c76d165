"""Proof of loading: which bytes of which files became which parameters, for anyone to check.

A proof is written by the process that loaded a model; `verify_loading` reads the files again, in
any other, and compares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

import linnet
from linnet.diagnostics import LinnetError, NestError, PlanError
from linnet.nest.cache import replacing
from linnet.weights import Bound, Checkpoint, Slot, TensorLocation, as_array, open_checkpoint
from linnet.weights.arrays import Array
from linnet.weights.location import MappedFile

VERSION = 1


@dataclass(frozen=True, slots=True)
class Verified:
    """What a proof speaks of, and every way in which it is not so (any more)."""

    model: str
    parameters: int
    tensors: int
    files: int
    problems: tuple[str, ...]


def write_proof(
    path: str | Path,
    bound: Sequence[Bound],
    held: dict[str, Any] | None,
    about: dict[str, Any],
) -> None:
    """The file says of each parameter where its bytes lie, and their digest; `about` goes first.

    `held` are the parameters of the model by path, where it can give them: their digest in memory
    is written too, so that what was made of the bytes can be checked and not only they.
    """
    memory = [one.slot.path for one in bound if not isinstance(one.location.source, MappedFile)]
    if memory:
        raise PlanError(
            f"proof={str(path)!r}: `{memory[0]}` comes from an array in memory, and a proof is of "
            "files: pass weights as .safetensors or .gguf files"
        )
    digests: dict[tuple[Path, int, int], str] = {}
    parameters = [_parameter(one, held, digests) for one in bound]
    files = dict.fromkeys(one.location.file.absolute() for one in bound)
    document = {
        "version": VERSION,
        "linnet": linnet.__version__,
        **about,
        "files": [{"path": str(file), "size": file.stat().st_size} for file in files],
        "parameters": parameters,
    }
    with replacing(Path(path)) as file:
        file.write(json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n")


def verify_loading(path: str | Path) -> Verified:
    """Every file of the proof read again, and all that differs from what it says.

    The tensors' places come from the files' headers, their digests from their bytes, and what the
    model held is made of them anew.
    """
    document = _read(Path(path))
    problems: list[str] = []
    opened: dict[str, Checkpoint | None] = {}
    for entry in document["files"]:
        opened[entry["path"]] = _open(entry, problems)
    seen: set[tuple[str, str]] = set()
    for entry in document["parameters"]:
        seen.add((entry["file"], entry["tensor"]))
        checkpoint = opened.get(entry["file"])
        if checkpoint is not None:
            problem = _difference(entry, checkpoint)
            if problem:
                problems.append(f"{entry['path']}: {problem}")
    count = len(document["parameters"])
    return Verified(document.get("model", ""), count, len(seen), len(opened), tuple(problems))


# --- writing ----------------------------------------------------------------------------------


def _parameter(
    one: Bound, held: dict[str, Any] | None, digests: dict[tuple[Path, int, int], str]
) -> dict[str, Any]:
    at, slot = one.location, one.slot
    place = (at.file, at.start, at.end)
    if place not in digests:
        digests[place] = _stored_digest(at)
    loaded = held.get(slot.path) if held is not None else None
    return {
        "path": slot.path,
        "dtype": slot.dtype,
        "shape": list(slot.shape),
        "file": str(at.file.absolute()),
        "tensor": at.name,
        "start": at.start,
        "end": at.end,
        "stored_dtype": at.dtype or at.encoding,
        "stored_shape": list(at.shape),
        "sha256": digests[place],
        "loaded_sha256": None if loaded is None else _array_digest(as_array(loaded)),
    }


def _stored_digest(at: TensorLocation) -> str:
    """Of the bytes as they lie in the file."""
    source = at.source
    assert isinstance(source, MappedFile)
    digest = hashlib.sha256(source.view(at.start, at.end)).hexdigest()
    at.release()
    return digest


def _array_digest(array: Array) -> str:
    """Of the numbers in row-major order."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


# --- checking ---------------------------------------------------------------------------------

_FILE = {"path": str, "size": int}
_PARAMETER = {
    "path": str,
    "dtype": str,
    "shape": list,
    "file": str,
    "tensor": str,
    "start": int,
    "end": int,
    "stored_dtype": str,
    "stored_shape": list,
    "sha256": str,
    "loaded_sha256": (str, type(None)),
}


def _read(path: Path) -> dict[str, Any]:
    try:
        document: Any = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise NestError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise NestError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise NestError(f"{path}: is no proof of loading, or one of another version")
    proof = cast("dict[str, Any]", document)
    for key, fields in (("files", _FILE), ("parameters", _PARAMETER)):
        rows: Any = proof.get(key)
        if not isinstance(rows, list) or not all(_has(row, fields) for row in rows):
            listed = ", ".join(fields)
            raise NestError(f"{path}: `{key}` is not a list of objects with {listed}")
    unlisted = {row["file"] for row in proof["parameters"]} - {f["path"] for f in proof["files"]}
    if unlisted:
        raise NestError(f"{path}: `files` does not list {min(unlisted)}")
    return proof


def _has(row: Any, fields: dict[str, Any]) -> bool:
    return isinstance(row, dict) and all(
        key in row and isinstance(row[key], kind) for key, kind in fields.items()
    )


def _open(entry: dict[str, Any], problems: list[str]) -> Checkpoint | None:
    """The file's tensors; None and a problem where it is not what it was."""
    path = Path(entry["path"])
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:  # a name that no file has is a ValueError
        problems.append(f"{path}: {getattr(error, 'strerror', None) or error}")
        return None
    if size != entry["size"]:
        problems.append(f"{path}: has {size:,} bytes, {entry['size']:,} when it was loaded")
    try:
        checkpoint = open_checkpoint(path)
    except LinnetError as error:
        problems.append(str(error))
        return None
    for group in checkpoint.report.groups.values():
        problems += group
    return checkpoint if checkpoint.tensors else None


def _difference(entry: dict[str, Any], checkpoint: Checkpoint) -> str:
    """How the tensor in the file differs from the proof's; empty where it does not."""
    at = checkpoint.tensors.get(entry["tensor"])
    named = f"`{entry['tensor']}` in {entry['file']}"
    if at is None:
        return f"{named} is gone"
    stored = (at.dtype or at.encoding, list(at.shape))
    if stored != (entry["stored_dtype"], entry["stored_shape"]):
        was = f"{entry['stored_dtype']} {entry['stored_shape']}"
        return f"{named} is {stored[0]} {stored[1]}, it was {was}"
    source = at.source
    assert isinstance(source, MappedFile)
    if at.end > source.size:
        return f"{named} is cut off"
    if (at.start, at.end) != (entry["start"], entry["end"]):
        was = f"{entry['start']:,} to {entry['end']:,}"
        moved = f"{named} lies at {at.start:,} to {at.end:,}, it lay at {was}"
        same = _stored_digest(at) == entry["sha256"]
        return f"{moved}; its bytes are {'the same' if same else 'others'}"
    if _stored_digest(at) != entry["sha256"]:
        return f"{named}: its bytes are not those that were loaded (their digest differs)"
    if entry["loaded_sha256"] is None:
        return ""
    slot = Slot(entry["path"], tuple(entry["shape"]), entry["dtype"])
    try:
        array = Bound(slot, at, cast=at.dtype != slot.dtype).read()
    except (KeyError, TypeError, ValueError) as error:
        return f"{named} cannot be read as {slot.dtype} {entry['shape']}: {error}"
    digest = _array_digest(array)
    at.release()
    if digest != entry["loaded_sha256"]:
        return f"what the model held is not what {named} gives as {slot.dtype}"
    return ""
