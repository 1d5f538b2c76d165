"""From a source and a checkpoint to a program and what fills its parameters; for every backend."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, get_args

from linnet.check import check
from linnet.check.analysis import Analysis
from linnet.check.blocks import manifest
from linnet.core.ir import Program
from linnet.core.lower import (
    bind_generics,
    bound_manifest,
    lower,
    main_module,
    require_ok,
    root_block,
)
from linnet.core.passes import optimize as run_passes
from linnet.diagnostics import PlanError
from linnet.dims import Dim
from linnet.policy import Policy
from linnet.syntax import tree
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
from linnet.weights.part import Part, Shard, cut, parts_between
from linnet.workspace import Workspace

Optionals = Literal["auto", "present", "absent"]
SHARDS = "Shards"  # the generic of a root block that is split over devices
_PLACEHOLDER = re.compile(r"\{[A-Za-z_]\w*\}")


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A lowered program, and for each parameter that has one its tensor, checked but not read.

    `bound` is None when no weights were given. `parts` says of a shard's parameters which part of
    the whole model's each is, where it is one; None where a shard was asked for and the root has
    no `Shards`: the program is the whole model's.
    """

    program: Program
    bound: list[Bound] | None
    analysis: Analysis
    parts: Mapping[str, Part] | None = field(default_factory=dict[str, Part])


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
    shard: Shard | None = None,
    optionals: Optionals = "auto",
) -> Loaded:
    """The source checked and lowered, and every tensor's name, shape and dtype checked.

    Optional members are there where the checkpoint has them, or all of them (`"present"`: a tensor
    that is missing is an error then), or none (`"absent"`: their tensors stay unread). `overrides`
    names generics that the caller changed from a card's: where one of them makes an array of subs
    shorter, the tensors of the positions that are left out stay unread, and so may those that fit a
    pattern of `unread`.
    With a `shard` the root's `Shards` is bound to their number, and each split parameter to its
    part of the checkpoint, which is that of the whole model.
    Raises PlanError with everything that is wrong with the source, the generics or the checkpoint.
    """
    analysis = check(Workspace(std_root=std_root), source, constants=constants)
    names = read_bindings(bindings) if isinstance(bindings, (str, Path)) else bindings
    checkpoint = open_checkpoint(weights) if weights is not None else None
    if optionals not in get_args(Optionals):
        listed = ", ".join(get_args(Optionals))
        raise PlanError(f"optionals is {optionals!r}, expected one of {listed}")
    present = _Presence(checkpoint, names, optionals)
    unsplit = shard is not None and not splits(analysis, root)
    if shard is not None and not unsplit:
        generics = sharded(analysis, root, generics or {}, shard)
    program = lower(
        analysis, root=root, generics=generics, present=present, entries=entries, main=main
    )
    present.check(program)
    if optimize:
        program = run_passes(program, policy)
    whole, parts = program, dict[str, Part]()
    if shard is not None and not unsplit:
        whole, fused = _unsplit(analysis, root, generics or {}, program)
        parts = parts_between(slots_of(whole), slots_of(program), shard, fused)
        _refuse_repeated(slots_of(program), parts, present)
    if checkpoint is None:
        return Loaded(program, None, analysis, None if unsplit else parts)
    left_out = _left_out(analysis, program, checkpoint, names, overrides)
    wanted = slots_of(whole)
    if optionals == "present":
        wanted = [replace(slot, optional=False) for slot in wanted]
    bound = plan_bindings(
        wanted,
        checkpoint,
        {path: name for path, name in names.items() if path not in left_out} if names else names,
        strict=strict,
        cast_dtype=cast_dtype,
        unread=frozenset(left_out.values()) | frozenset(matching(checkpoint, unread)),
    )
    if optionals == "absent":
        bound = [one for one in bound if not one.slot.optional]
    return Loaded(program, cut(bound, parts), analysis, None if unsplit else parts)


# ---------------------------------------------------------------- shards


def splits(analysis: Analysis, root: str | None) -> bool:
    """The root block has the generic that says over how many devices it is split."""
    require_ok(analysis)
    block = root_block(analysis, main_module(analysis), root)
    return block is not None and any(g.name.text == SHARDS for g in block.generics)


def sharded(
    analysis: Analysis, root: str | None, generics: Mapping[str, int | str], shard: Shard
) -> dict[str, int | str]:
    """The generics with `Shards` bound to the number of shards, which suits the others."""
    block = _split_root(analysis, root)
    given = generics.get(SHARDS, shard.count)
    if given != shard.count:
        raise PlanError(
            f"tensor_parallel has {shard.count} devices and the generics say {SHARDS} = {given!r}: "
            f"leave {SHARDS} out, or make it {shard.count}"
        )
    try:
        bind_generics(analysis, block, {**generics, SHARDS: shard.count})
    except PlanError as error:
        fitting = [n for n in range(1, shard.count) if _binds(analysis, block, generics, n)]
        if not fitting:
            raise
        listed = ", ".join(map(str, fitting))
        raise PlanError(
            f"tensor_parallel binds {SHARDS} to its {shard.count} devices: {error}; "
            f"of fewer devices {listed} would do"
        ) from error
    return {**generics, SHARDS: shard.count}


def _split_root(analysis: Analysis, root: str | None) -> tree.Block:
    module = main_module(analysis)
    block = root_block(analysis, module, root)
    if block is None or all(g.name.text != SHARDS for g in block.generics):
        name = block.name.text if block is not None else module.name
        raise PlanError(f"{name} has no generic {SHARDS} to split it by")
    return block


def _binds(
    analysis: Analysis, block: tree.Block, generics: Mapping[str, int | str], count: int
) -> bool:
    try:
        bind_generics(analysis, block, {**generics, SHARDS: count})
    except PlanError:
        return False
    return True


def _unsplit(
    analysis: Analysis, root: str | None, generics: Mapping[str, int | str], program: Program
) -> tuple[Program, dict[str, str]]:
    """The program with the parameters of `Shards = 1`; and which split axes are several sizes."""
    block = _split_root(analysis, root)
    listed = bound_manifest(
        analysis, block, bind_generics(analysis, block, {**generics, SHARDS: 1})
    )
    fused = {
        entry.path: str(axis)
        for entry in manifest(analysis, block)
        for axis in entry.type.shape
        if isinstance(axis, Dim) and SHARDS in axis.names() and _several(axis)
    }
    whole = replace(program, manifest=listed)
    paths = {
        path: fused[entry.path]
        for entry in listed.entries
        if entry.path in fused
        for path in entry.expanded()
    }
    return whole, paths


def _refuse_repeated(slots: Iterable[Slot], parts: Mapping[str, Part], present: _Presence) -> None:
    """No bias is there that every shard would add to its summand of one product."""
    for slot in slots:
        stem, _, name = slot.path.rpartition(".")
        part = parts.get(f"{stem}.weight")
        there = not slot.optional or present.has(slot.path)
        if name == "bias" and slot.path not in parts and part is not None and part.axis and there:
            raise PlanError(
                f"`{slot.path}` would be added by each of the {part.count} shards of "
                f"`{stem}.weight`, whose products are summed: add it after `all_reduce`, as a "
                "parameter of another name"
            )


def _several(axis: Dim) -> bool:
    """More than one share of the shards side by side: `2 * (N / Shards)`, `(A + B) / Shards`."""
    if len(axis.terms) != 1 or axis.terms[0][1] != 1:
        return True
    shares = (a.args for a in axis.atoms() if a.op == "/" and SHARDS in a.args[1].names())
    return any(len(divided.terms) > 1 for divided, _ in shares)


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

    def __init__(
        self,
        checkpoint: Checkpoint | None,
        bindings: Mapping[str, str] | None,
        optionals: Optionals,
    ) -> None:
        self.optionals = optionals
        self.tensors = checkpoint.tensors if checkpoint is not None else {}
        self.bindings = bindings or {}
        # What is bound at position 0, for optional subs: something below them is.
        self.first = {_PLACEHOLDER.sub("0", key) for key in self.bindings} | set(self.tensors)

    def __call__(self, path: str) -> bool:
        if self.optionals != "auto":
            return self.optionals == "present"
        first = path.replace("*", "0")
        return self.has(first) or any(name.startswith(f"{first}.") for name in self.first)

    def has(self, path: str) -> bool:
        """A tensor fills this concrete path."""
        if self.optionals == "absent":
            return False
        return expand_bindings(self.bindings, [path]).get(path, path) in self.tensors

    def check(self, program: Program) -> None:
        """Every position of an array agrees on what is present."""
        if self.optionals != "auto":
            return
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
