"""Blocks as components: instances, containment, roots and the manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from linnet.check import calls, traits
from linnet.check.analysis import Analysis, BlockInfo, MemberInfo, Module
from linnet.check.scope import Checking, Scope
from linnet.check.typeexprs import bindings_of
from linnet.diagnostics import Label
from linnet.dims import Dim
from linnet.syntax import tree
from linnet.types import (
    BlockArray,
    BlockType,
    GenericValue,
    TensorType,
    Type,
    substitute,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A param, buffer or state below a root block, in the root's generics.

    `path` has a `*` for each position in a sub array; `lengths` are those arrays' lengths.
    `optional` says that the member itself, or a `sub` on its path, may be absent.
    """

    path: str
    lengths: tuple[Dim, ...]
    kind: Literal["param", "buffer", "state"]
    type: TensorType
    optional: bool


def instance_of(info: MemberInfo) -> BlockType | None:
    """The block that a `sub` holds, one or many of."""
    of = info.type.of if isinstance(info.type, BlockArray) else info.type
    return of if isinstance(of, BlockType) else None


def check_instances(checking: Checking) -> None:
    """Every `sub` satisfies its block's where clauses, and every block its traits; and no block
    contains itself."""
    sound = _of_finite_depth(checking.analysis)
    for info in checking.analysis.blocks.values():
        if info.module in checking.reused:
            continue
        scope = Scope(
            checking,
            info.module,
            generics={g.name.text: g for g in info.block.generics},
            known=checking.known(info.facts, info.block),
            block=info.block,
        )
        for member in info.members.values():
            instance = instance_of(member)
            if instance is None:
                continue
            assert isinstance(instance.decl, tree.Block)
            clauses = checking.clauses.get(instance.decl, ())
            at = member.member.type
            calls.prove_instance(scope, at, instance.name, clauses, bindings_of(instance))
        traits.check(scope, info)
        if info.block not in sound:
            _contains_itself(scope, info)


def _of_finite_depth(analysis: Analysis) -> set[tree.Block]:
    """The blocks that neither contain themselves nor any that does: all, as a rule."""
    held_by: dict[object, list[tree.Block]] = {}
    waiting: dict[tree.Block, int] = {}
    for block, info in analysis.blocks.items():
        held = {i.decl for m in info.members.values() if (i := instance_of(m)) is not None}
        waiting[block] = len(held)
        for each in held:
            held_by.setdefault(each, []).append(block)
    done = [block for block, count in waiting.items() if not count]
    for block in done:  # grows as it is walked
        for holder in held_by.get(block, ()):
            waiting[holder] -= 1
            if not waiting[holder]:
                done.append(holder)
    return set(done)


def _contains_itself(scope: Scope, info: BlockInfo) -> None:
    """Reported at the member through which a block holds itself, for each block once."""
    for member in info.members.values():
        instance = instance_of(member)
        if instance is None:
            continue
        chain = _path_to(scope.analysis, instance.decl, info.block, set())
        if chain is not None:
            names = " -> ".join([info.block.name.text, *chain])
            scope.report(
                "E2122",
                f"the block `{info.block.name.text}` contains itself: {names}",
                member.member.type,
                related=(Label(info.block.name.span, "declared here"),),
            )
            return


def _path_to(
    analysis: Analysis, start: object, target: tree.Block, seen: set[object]
) -> list[str] | None:
    assert isinstance(start, tree.Block)
    if start is target:
        return [target.name.text]
    if start in seen or start not in analysis.blocks:
        return None
    seen.add(start)
    for member in analysis.blocks[start].members.values():
        instance = instance_of(member)
        if instance is not None:
            rest = _path_to(analysis, instance.decl, target, seen)
            if rest is not None:
                return [start.name.text, *rest]
    return None


def blocks(module: Module) -> list[tree.Block]:
    """The module's blocks, without its traits."""
    items = module.items.values()
    return [i for i in items if isinstance(i, tree.Block) and not isinstance(i, tree.Trait)]


def roots(analysis: Analysis, module: Module) -> list[tree.Block]:
    """The module's blocks that have entries and are not held by another block."""
    held = {
        instance.decl
        for info in analysis.blocks.values()
        for member in info.members.values()
        if (instance := instance_of(member)) is not None
    }
    return [
        item
        for item in blocks(module)
        if item not in held
        and any(fn.kind == "entry" for fn in analysis.blocks[item].methods.values())
    ]


def manifest(analysis: Analysis, block: tree.Block) -> tuple[Entry, ...]:
    """Every param, buffer and state of a root block, in the order of declaration."""
    identity: dict[str, GenericValue] = {}
    return tuple(_entries(analysis, analysis.blocks[block], identity, "", (), False))


def _entries(
    analysis: Analysis,
    info: BlockInfo,
    bindings: Mapping[str, GenericValue],
    prefix: str,
    lengths: tuple[Dim, ...],
    optional: bool,
) -> Iterator[Entry]:
    for name, member in info.members.items():
        path = prefix + name
        absent = optional or member.optional
        found: Type = substitute(member.type, bindings)
        match found:
            case TensorType():
                kind = member.member.kind
                assert kind != "sub"
                yield Entry(path, lengths, kind, found, absent)
            case BlockType() | BlockArray():
                inner = lengths
                if isinstance(found, BlockArray):
                    path, inner, found = f"{path}.*", (*lengths, found.length), found.of
                assert isinstance(found.decl, tree.Block)
                below = analysis.blocks[found.decl]
                yield from _entries(analysis, below, bindings_of(found), f"{path}.", inner, absent)
            case _:
                pass
