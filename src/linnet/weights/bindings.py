"""Bindings: which tensor fills which parameter, planned and checked before anything is read."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from linnet.diagnostics import PlanError
from linnet.weights.arrays import DTYPES, FLOATS, Array
from linnet.weights.checkpoint import Checkpoint, Weights, open_checkpoint
from linnet.weights.location import TensorLocation
from linnet.weights.report import Report, did_you_mean

T = TypeVar("T")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
# Buffers that checkpoints carry and no program reads: tables that follow from the configuration.
_INERT = (
    "*.rotary_emb.inv_freq",
    "rope_freqs.weight",
    "*.attn.masked_bias",
    "*.attention.masked_bias",
    "*position_ids",
)


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter or buffer that the program wants filled; `optional` ones may stay empty."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Bound:
    """A slot and the tensor that fills it; `cast`: another float dtype is stored.

    A tensor may have one more axis, of 1, at its end; and a slot of u8 takes E4M3 numbers too, as
    their bytes.
    """

    slot: Slot
    location: TensorLocation
    cast: bool

    def read(self) -> Array:
        """The tensor in the slot's dtype, rounded once at most."""
        location, slot = self.location, self.slot
        if _as_bytes(slot, location):
            array = location.read().view(DTYPES["u8"])
        else:
            array = location.read(slot.dtype)
        return array if array.shape == slot.shape else array.reshape(slot.shape)

    def read_into(self, memory: Array) -> Array:
        """`read` into memory of the slot's shape and dtype, which is given back."""
        if _as_bytes(self.slot, self.location):
            memory[...] = self.read()
        else:
            self.location.read_into(memory.reshape(self.location.shape))
        return memory


def plan_bindings(
    slots: Iterable[Slot],
    checkpoint: Weights,
    bindings: Mapping[str, str] | str | Path | None = None,
    *,
    strict: bool = True,
    cast_dtype: bool = False,
    unread: Collection[str] = (),
) -> list[Bound]:
    """Each slot with its tensor, in slot order, or one PlanError with every problem found.

    Problems of the files themselves are part of the same report. `bindings` maps paths to tensor
    names; a path it leaves out is filled by the tensor of its own name. Optional slots without a
    tensor are left out of the result; without `strict`, so are missing ones. Tensors in `unread`
    need no slot.
    """
    checkpoint = open_checkpoint(checkpoint)
    bound, report = match_bindings(
        slots, checkpoint, bindings, strict=strict, cast_dtype=cast_dtype, unread=unread
    )
    report.check(f"cannot bind {checkpoint.label}")
    return bound


def match_bindings(
    slots: Iterable[Slot],
    checkpoint: Checkpoint,
    bindings: Mapping[str, str] | str | Path | None = None,
    *,
    strict: bool = True,
    cast_dtype: bool = False,
    unread: Collection[str] = (),
) -> tuple[list[Bound], Report]:
    """What `plan_bindings` gives, and the report of every problem instead of an error."""
    wanted = list(slots)
    report = Report()
    report.extend(checkpoint.report)
    names = _expand(bindings, [slot.path for slot in wanted], report, strict=strict)
    bound: list[Bound] = []
    missing: list[tuple[Slot, str]] = []
    for slot in wanted:
        name = names.get(slot.path, slot.path)
        location = checkpoint.tensors.get(name)
        if location is None:
            if name not in checkpoint.broken:
                missing.append((slot, name))
            continue
        converted = location.dtype not in (None, slot.dtype) and not _as_bytes(slot, location)
        if _fits(slot, location, report, cast_dtype=cast_dtype):
            bound.append(Bound(slot, location, converted))
    used = {names.get(slot.path, slot.path) for slot in wanted} | set(unread)
    extra = [
        name
        for name, at in checkpoint.tensors.items()
        if name not in used and not is_inert(name, at.shape)
    ]
    if strict and checkpoint.whole:
        _report_missing(missing, extra, len(wanted), checkpoint, names, report)
        for name in extra:
            location = checkpoint.tensors[name]
            report.add(
                "tensors that nothing binds (strict=False ignores them)",
                f"`{name}` {list(location.shape)} in {location.file}",
            )
    return bound, report


def read_bound(
    bound: Iterable[Bound], memory: Callable[[Bound], Array | None] | None = None
) -> Iterator[tuple[tuple[Slot, ...], Array]]:
    """Each tensor read once, with all the slots that share it, in the order of the first of them.

    `memory` gives an array of the slot's shape and dtype to read it into, or None. The pages of a
    mapped file are given back as the next tensor is asked for, so copying each array as it comes
    keeps the peak near one copy of the weights.
    """
    shared: dict[tuple[int, str, tuple[int, ...]], list[Bound]] = {}
    for one in bound:
        key = (id(one.location), one.slot.dtype, one.slot.shape)
        shared.setdefault(key, []).append(one)
    for group in shared.values():
        own = memory(group[0]) if memory is not None else None
        array = group[0].read() if own is None else group[0].read_into(own)
        yield tuple(one.slot for one in group), array
        del array
        group[0].location.release()


def read_bindings(path: str | Path) -> dict[str, str]:
    """The path-to-tensor map of a JSON file, placeholders left as they stand."""
    path = Path(path)
    repeated: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        repeated.extend(sorted({name for name in names if names.count(name) > 1}))
        return dict(pairs)

    try:
        document: Any = json.loads(path.read_text("utf-8"), object_pairs_hook=unique)
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise PlanError(f"{path}: bindings are one object from Linnet path to tensor name")
    entries = cast("dict[str, Any]", document)
    wrong = [key for key, name in entries.items() if not isinstance(name, str)]
    if wrong or repeated:
        problems = [f"`{key}` is bound to {entries[key]!r}, not a tensor name" for key in wrong]
        problems += [f"`{key}` is bound twice" for key in repeated]
        raise PlanError(f"{path}: {'; '.join(problems)}")
    return entries


def write_bindings(path: str | Path, bindings: Mapping[str, str]) -> None:
    """The file holds the bindings as JSON, one a line."""
    Path(path).write_text(json.dumps(dict(bindings), indent=2) + "\n", "utf-8")


def apply_bindings(tensors: Mapping[str, T], bindings: Mapping[str, str]) -> dict[str, T]:
    """The tensors by Linnet path; a tensor that several paths share is the same object for each."""
    applied: dict[str, T] = {}
    for path, name in bindings.items():
        if not _PLACEHOLDER.search(path) and not _PLACEHOLDER.search(name):
            if name not in tensors:
                raise PlanError(f"`{path}` is bound to `{name}`, {_unknown(name, tensors)}")
            applied[path] = tensors[name]
    for path, name in bindings.items():
        if _PLACEHOLDER.search(name):
            pattern = _regex(name)
            for tensor, value in tensors.items():
                match = pattern.fullmatch(tensor)
                if match is not None:
                    applied.setdefault(_fill(path, match.groupdict()), value)
    return applied


def paths_by_tensor(bindings: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Every tensor name with the paths it fills: two or more where it is shared."""
    paths: dict[str, tuple[str, ...]] = {}
    for path, name in bindings.items():
        paths[name] = (*paths.get(name, ()), path)
    return paths


def expand_bindings(bindings: Mapping[str, str], paths: Iterable[str]) -> dict[str, str]:
    """The tensor name of each of the paths that the bindings reach, placeholders filled in."""
    report = Report()
    names = _expand(bindings, list(paths), report, strict=False)
    report.check("bad bindings")
    return names


def _expand(
    bindings: Mapping[str, str] | str | Path | None,
    paths: list[str],
    report: Report,
    *,
    strict: bool,
) -> dict[str, str]:
    """Tensor name by path; a written-out path goes before a pattern that also reaches it."""
    if bindings is None:
        return {}
    if isinstance(bindings, str | Path):
        try:
            bindings = read_bindings(bindings)
        except PlanError as error:
            report.add("bindings", str(error))
            return {}
    known = set(paths)
    names: dict[str, str] = {}
    patterns: list[tuple[str, str]] = []
    for key, name in bindings.items():
        if _PLACEHOLDER.search(key) or _PLACEHOLDER.search(name):
            patterns.append((key, name))
        elif key in known:
            names[key] = name
        elif strict:
            report.add("bindings of no parameter", f"`{key}`{did_you_mean(key, known)}")
    written = set(names)
    for key, name in patterns:
        unbound = set(_PLACEHOLDER.findall(name)) - set(_PLACEHOLDER.findall(key))
        if unbound:
            places = ", ".join(f"{{{place}}}" for place in sorted(unbound))
            report.add("bindings", f"`{key}` -> `{name}`: {places} does not stand in the path")
            continue
        pattern = _regex(key)
        reached = [(path, match) for path in paths if (match := pattern.fullmatch(path))]
        if not reached and strict:
            report.add("bindings of no parameter", f"`{key}`{_near_pattern(key, paths)}")
        for path, match in reached:
            tensor = _fill(name, match.groupdict())
            if path in written:
                continue
            if names.setdefault(path, tensor) != tensor:
                report.add("bindings", f"`{path}` is bound to `{names[path]}` and to `{tensor}`")
    return names


def _regex(pattern: str) -> re.Pattern[str]:
    """Matches what the pattern stands for; a placeholder is a position, the same one each time."""
    parts = _PLACEHOLDER.split(pattern)
    seen: set[str] = set()
    text = re.escape(parts[0])
    for place, literal in zip(parts[1::2], parts[2::2], strict=True):
        text += f"(?P={place})" if place in seen else f"(?P<{place}>0|[1-9][0-9]*)"
        text += re.escape(literal)
        seen.add(place)
    return re.compile(text)


def _fill(pattern: str, positions: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: positions[match[1]], pattern)


def _near_pattern(key: str, paths: list[str]) -> str:
    zeroed = _PLACEHOLDER.sub("0", key)
    return did_you_mean(zeroed, paths) or "; no parameter's path has this form"


def _fits(slot: Slot, location: TensorLocation, report: Report, *, cast_dtype: bool) -> bool:
    """The tensor may fill the slot; where not, the report says how they differ."""
    at = f"`{location.name}` in {location.file}"
    if slot.dtype not in DTYPES:
        report.add("dtypes", f"`{slot.path}` has the dtype {slot.dtype}, which no checkpoint holds")
        return False
    if location.shape not in (slot.shape, (*slot.shape, 1)):
        turned = " (transposed?)" if location.shape == slot.shape[::-1] else ""
        report.add(
            "shapes",
            f"`{slot.path}` is {list(slot.shape)}, {at} is {list(location.shape)}{turned}",
        )
        return False
    if location.dtype is None:
        if slot.dtype not in FLOATS:
            report.add(
                "dtypes", f"`{slot.path}` is {slot.dtype}, {at} is quantised ({location.encoding})"
            )
        return slot.dtype in FLOATS
    if location.dtype == slot.dtype or _as_bytes(slot, location):
        return True
    both = location.dtype in FLOATS and slot.dtype in FLOATS
    if not (both and cast_dtype):
        fix = "; cast_dtype=True converts it" if both else ""
        report.add("dtypes", f"`{slot.path}` is {slot.dtype}, {at} is {location.dtype}{fix}")
    return both and cast_dtype


def _as_bytes(slot: Slot, location: TensorLocation) -> bool:
    """The tensor's E4M3 numbers fill the slot as they are stored."""
    return slot.dtype == "u8" and location.dtype == "f8_e4m3"


def _report_missing(
    missing: list[tuple[Slot, str]],
    extra: list[str],
    wanted: int,
    checkpoint: Checkpoint,
    names: Mapping[str, str],
    report: Report,
) -> None:
    needed = [(slot, name) for slot, name in missing if not slot.optional]
    if len(needed) > 1 and len(missing) == wanted:
        report.add(
            "missing tensors",
            f"none of the {len(needed)} that the program needs: it asks for `{needed[0][1]}`, "
            f"{checkpoint.label} holds `{next(iter(checkpoint.tensors), 'nothing')}`",
        )
        return
    for k, (slot, name) in enumerate(needed):
        # Searching near names is slow, and only the first few problems are shown.
        near = did_you_mean(name, extra) if k < 8 else ""
        wants = f" for `{slot.path}`" if name != slot.path else ""
        if names and slot.path not in names:
            wants = " (no binding names this path)"
        report.add("missing tensors", f"`{name}` {list(slot.shape)}{wants}{near}")


def is_inert(name: str, shape: tuple[int, ...]) -> bool:
    """The tensor is a table that models compute, or a causal mask kept as a buffer."""
    mask = len(shape) == 4 and shape[:2] == (1, 1) and shape[2] == shape[3]
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _INERT) or (
        mask and name.endswith((".attn.bias", ".attention.bias"))
    )


def _unknown(name: str, tensors: Mapping[str, object]) -> str:
    return f"which is not among the {len(tensors)} tensors{did_you_mean(name, tensors)}"
