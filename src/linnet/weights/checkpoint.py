"""A checkpoint: where every tensor of some files lies, with all problems of the files known."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from linnet.diagnostics import PlanError
from linnet.weights.arrays import Array, byte_count, dtype_name
from linnet.weights.gguf import Metadata, read_gguf
from linnet.weights.location import MEMORY, Header, TensorLocation
from linnet.weights.report import Report
from linnet.weights.safetensors import INDEX, SINGLE, read_header, read_index

Weights: TypeAlias = "str | Path | Sequence[str | Path] | Mapping[str, Any] | Checkpoint"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Tensors by name with their places; `report` has what is wrong with the files themselves.

    `broken` names tensors that the files describe wrongly: reported, and not missing beside that.
    `whole` is False where a file's header could not be read, so that its tensors are unknown.
    """

    files: tuple[Path, ...]
    tensors: dict[str, TensorLocation]
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    report: Report = field(default_factory=Report)
    broken: frozenset[str] = frozenset()
    whole: bool = True

    @property
    def label(self) -> str:
        """The files in a few words, for a message."""
        if not self.files:
            return "the weights in memory"
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return f"{self.files[0]}{more}"


def open_checkpoint(weights: Weights) -> Checkpoint:
    """Every tensor's place, headers read and no data; file problems wait in the report.

    `weights` is a .safetensors or .gguf file, several of them, a directory, or a mapping from
    name to array. Only a path that does not exist, or holds no weights, is raised here.
    """
    if isinstance(weights, Checkpoint):
        return weights
    if isinstance(weights, Mapping):
        return _in_memory(weights)
    if isinstance(weights, str | Path) and Path(weights).is_dir():
        return _directory(Path(weights))
    if isinstance(weights, str | Path) and Path(weights).name.endswith(".safetensors.index.json"):
        return _indexed(Path(weights))
    return _files(safetensors_or_gguf(weights), Report())


def safetensors_or_gguf(weights: str | Path | Sequence[str | Path]) -> tuple[Path, ...]:
    """The weight files that a file, several files or a directory stand for; all exist."""
    if isinstance(weights, str | Path):
        path = Path(weights)
        if path.is_dir():
            return _files_in(path)
        paths = [path]
    elif isinstance(weights, Sequence) and all(isinstance(p, str | Path) for p in weights):
        paths = [Path(path) for path in weights]
    else:
        raise PlanError(
            f"weights are a path, several, or arrays by name, not a {type(weights).__name__}"
        )
    if not paths:
        raise PlanError("no weight file was given")
    missing = [str(path) for path in paths if not os.path.exists(path)]
    if missing:
        raise PlanError(f"no such weight file: {', '.join(missing)}")
    unknown = [str(path) for path in paths if path.suffix not in (".safetensors", ".gguf")]
    if unknown:
        raise PlanError(
            f"not a weight file: {', '.join(unknown)}; weights are .safetensors or .gguf files, "
            "or a directory that holds them"
        )
    return tuple(paths)


def safetensors_files(weights: str | Path | Sequence[str | Path]) -> tuple[Path, ...]:
    """The SafeTensors files that a file, several files or a directory stand for."""
    files = safetensors_or_gguf(weights)
    others = [str(path) for path in files if path.suffix != ".safetensors"]
    if others:
        raise PlanError(f"not SafeTensors: {', '.join(others)}")
    return files


def read_arrays(weights: Weights) -> dict[str, Array]:
    """Every array by tensor name, all files checked first; quantised tensors come in f32."""
    checkpoint = open_checkpoint(weights)
    checkpoint.report.check(f"cannot read {checkpoint.label}")
    return {name: location.read() for name, location in checkpoint.tensors.items()}


def _files_in(directory: Path) -> tuple[Path, ...]:
    # As transformers: one whole file goes before an index of shards.
    if (directory / SINGLE).is_file():
        return (directory / SINGLE,)
    if (directory / INDEX).exists():
        shards = read_index(directory / INDEX, Report()) or {}
        return tuple(directory / name for name in sorted(set(shards.values())))
    found = sorted(directory.glob("*.safetensors"))
    if found:
        return tuple(found)
    found = sorted(directory.glob("*.gguf"))
    if len(found) > 1 and not all("-of-" in path.stem for path in found):
        names = ", ".join(path.name for path in found)
        raise PlanError(f"{directory}: holds several GGUF files, name one of them: {names}")
    if not found:
        raise PlanError(f"{directory}: holds no .safetensors and no .gguf file")
    return tuple(found)


def _directory(directory: Path) -> Checkpoint:
    if (directory / INDEX).exists() and not (directory / SINGLE).is_file():
        return _indexed(directory / INDEX)
    return _files(_files_in(directory), Report())


def _indexed(index: Path) -> Checkpoint:
    """The shards that an index names, each entry checked against the shard's own header."""
    report = Report()
    shards = read_index(index, report)
    if shards is None:
        return Checkpoint((index,), {}, {}, report, whole=False)
    # os.path: a name that no file system takes is that of no file.
    absent = {name for name in set(shards.values()) if not os.path.isfile(index.parent / name)}
    present = sorted(set(shards.values()) - absent)
    found = _files([index.parent / name for name in present], report)
    return check_index(index, shards, absent, found)


def check_index(
    index: Path, shards: Mapping[str, str], absent: Collection[str], found: Checkpoint
) -> Checkpoint:
    """What was found in the shards, each entry of the index checked against it."""
    report = found.report
    held = Counter(shards.values())
    for name in sorted(absent):
        report.add(
            "index", f"{index}: names {name} for {held[name]} tensors; there is no such file"
        )
    lost = {tensor for tensor, shard in shards.items() if shard in absent}
    for tensor, shard in shards.items():
        location = found.tensors.get(tensor)
        if location is not None and location.file.name != shard:
            report.add(
                "index",
                f"{index}: `{tensor}` should lie in {shard}, it lies in {location.file.name}",
            )
        elif location is None and found.whole and tensor not in found.broken | lost:
            report.add("index", f"{index}: `{tensor}` should lie in {shard}, which lacks it")
            lost.add(tensor)
    for tensor, location in found.tensors.items():
        if tensor not in shards:
            report.add("index", f"{index}: does not list `{tensor}` of {location.file.name}")
    return replace(found, broken=found.broken | lost)


def _files(paths: Sequence[Path], report: Report) -> Checkpoint:
    metadata = Metadata()
    headers: list[tuple[Path, Header | None]] = []
    for path in paths:
        if path.suffix == ".gguf":
            file = read_gguf(path, report)
            headers.append((path, None if file is None else file.header))
            metadata |= Metadata() if file is None else file.metadata
        else:
            headers.append((path, read_header(path, report)))
    return replace(from_headers(headers, report), metadata=metadata)


def from_headers(headers: Sequence[tuple[Path, Header | None]], report: Report) -> Checkpoint:
    """The checkpoint of files whose headers have been read (None: could not be)."""
    tensors: dict[str, TensorLocation] = {}
    broken: set[str] = set()
    for path, header in headers:
        for name, location in (header.tensors if header else {}).items():
            if name in tensors:
                report.add("files", f"`{name}` lies in {tensors[name].file} and again in {path}")
            tensors[name] = location
        broken |= header.broken if header else frozenset()
    whole = all(header is not None for _, header in headers)
    paths = tuple(path for path, _ in headers)
    return Checkpoint(paths, tensors, {}, report, frozenset(broken), whole)


def _in_memory(arrays: Mapping[str, Any]) -> Checkpoint:
    report = Report()
    tensors: dict[str, TensorLocation] = {}
    for name, value in arrays.items():
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            report.add("arrays", f"`{name}` is a {type(value).__name__}, not an array or tensor")
            continue
        dtype = dtype_name(value.dtype)
        if dtype is None:
            report.add("arrays", f"`{name}` has the dtype {value.dtype}, which the language lacks")
            continue
        shape = tuple(int(n) for n in value.shape)
        size = byte_count(dtype, shape)
        tensors[name] = TensorLocation(MEMORY, name, dtype, shape, 0, size, "", None, value)
    return Checkpoint((), tensors, {}, report)
