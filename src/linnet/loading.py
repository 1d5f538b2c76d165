"""From a source and a checkpoint to a program and what fills its parameters; for every backend."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from linnet.check import check
from linnet.check.analysis import Analysis
from linnet.check.blocks import manifest
from linnet.core.ir import Program
from linnet.core.lower import lower
from linnet.core.passes import optimize as run_passes
from linnet.diagnostics import PlanError
from linnet.policy import Policy
from linnet.weights import (
    Bound,
    Checkpoint,
    Slot,
    apply_bindings,
    expand_bindings,
    open_checkpoint,
    plan_bindings,
)
from linnet.weights.bindings import read_bindings
from linnet.weights.checkpoint import Weights
from linnet.workspace import Workspace

_PLACEHOLDER = re.compile(r"\{[A-Za-z_]\w*\}")


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A lowered program, and for each parameter that has one its tensor, checked but not read.

    `bound` is None when no weights were given.
    """

    program: Program
    bound: list[Bound] | None
    analysis: Analysis


def load_source(
    source: str | Path,
    *,
    generics: Mapping[str, int | str] | None = None,
    root: str | None = None,
    main: str | None = None,
    entries: Iterable[str] | None = None,
    constants: Mapping[str, bool | int | float] | None = None,
    std_root: str | Path | None = None,
    weights: Weights | None = None,
    bindings: Mapping[str, str] | str | Path | None = None,
    strict: bool = True,
    cast_dtype: bool = False,
    optimize: bool = True,
    policy: Policy = "fast",
    overrides: Collection[str] = (),
    unread: Collection[str] = (),
) -> Loaded:
    """The source checked and lowered, and every tensor's name, shape and dtype checked.

    Optional members are present where the checkpoint has them. `overrides` names generics that the
    caller changed from a card's: where one of them makes an array of subs shorter, the tensors of
    the positions that are left out stay unread, and so may those that fit a pattern of `unread`.
    Raises PlanError with everything that is wrong with the source, the generics or the checkpoint.
    """
    analysis = check(Workspace(std_root=std_root), source, constants=constants)
    names = read_bindings(bindings) if isinstance(bindings, (str, Path)) else bindings
    checkpoint = open_checkpoint(weights) if weights is not None else None
    present = _Presence(checkpoint, names)
    program = lower(
        analysis, root=root, generics=generics, present=present, entries=entries, main=main
    )
    present.check(program)
    if optimize:
        program = run_passes(program, policy)
    if checkpoint is None:
        return Loaded(program, None, analysis)
    left_out = _left_out(analysis, program, checkpoint, names, overrides)
    bound = plan_bindings(
        slots_of(program),
        checkpoint,
        {path: name for path, name in names.items() if path not in left_out} if names else names,
        strict=strict,
        cast_dtype=cast_dtype,
        unread=frozenset(left_out.values()) | frozenset(matching(checkpoint, unread)),
    )
    return Loaded(program, bound, analysis)


def matching(checkpoint: Checkpoint, patterns: Collection[str]) -> Iterator[str]:
    """The tensors whose names fit one of the patterns."""
    return (
        name
        for name in checkpoint.tensors
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    )


def slots_of(program: Program) -> list[Slot]:
    """One slot per param and buffer of the manifest, positions written out."""
    out: list[Slot] = []
    for entry in program.manifest.entries:
        if entry.kind == "state":
            continue
        shape = tuple(int(str(axis)) for axis in entry.type.shape)
        for path in entry.expanded():
            out.append(Slot(path, shape, str(entry.type.dtype), entry.optional))
    return out


def _left_out(
    analysis: Analysis,
    program: Program,
    checkpoint: Checkpoint,
    bindings: Mapping[str, str] | None,
    overrides: Collection[str],
) -> dict[str, str]:
    """Path -> tensor of the positions beyond the end of arrays that an override shortened."""
    if not overrides:
        return {}
    block = next(b for b in analysis.blocks if b.name.text == program.manifest.root)
    shortened = [
        re.compile(re.escape(entry.path).replace(r"\*", "(?:0|[1-9][0-9]*)"))
        for entry in manifest(analysis, block)
        if any(length.names() & set(overrides) for length in entry.lengths)
    ]
    paths = {slot.path for slot in slots_of(program)}
    names = {name: name for name in checkpoint.tensors}
    written = {k: n for k, n in (bindings or names).items() if not _PLACEHOLDER.search(k)}
    patterns = {k: n for k, n in (bindings or names).items() if _PLACEHOLDER.search(k)}
    found = {**apply_bindings(names, patterns), **written}
    return {
        path: name
        for path, name in found.items()
        if path not in paths and any(pattern.fullmatch(path) for pattern in shortened)
    }


class _Presence:
    """Whether a checkpoint has the optional members: a predicate over paths with `*`."""

    def __init__(self, checkpoint: Checkpoint | None, bindings: Mapping[str, str] | None) -> None:
        self.tensors = checkpoint.tensors if checkpoint is not None else {}
        self.bindings = bindings or {}
        # What is bound at position 0, for optional subs: something below them is.
        self.first = {_PLACEHOLDER.sub("0", key) for key in self.bindings} | set(self.tensors)

    def __call__(self, path: str) -> bool:
        first = path.replace("*", "0")
        return self.has(first) or any(name.startswith(f"{first}.") for name in self.first)

    def has(self, path: str) -> bool:
        """A tensor fills this concrete path."""
        return expand_bindings(self.bindings, [path]).get(path, path) in self.tensors

    def check(self, program: Program) -> None:
        """Every position of an array agrees on what is present."""
        for entry in program.manifest.entries:
            if not entry.optional or not entry.repeat:
                continue
            has = {path: self.has(path) for path in entry.expanded()}
            if len(set(has.values())) > 1:
                bound = next(p for p, there in has.items() if there)
                empty = next(p for p, there in has.items() if not there)
                raise PlanError(
                    f"the optional {entry.path} is bound at some positions only: "
                    f"{bound} has a tensor, {empty} has none"
                )
