"""Programs as Flax NNX modules: the source's blocks, with their names, around generated `jnp`.

Weights are `nnx.Param`s, what is not trained (buffers, integers) `Buffer`s, states `State`s, which
a call updates in place as NNX does. https://flax.readthedocs.io/en/latest/nnx_basics.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx

from linnet.check.analysis import Analysis
from linnet.check.blocks import instance_of
from linnet.diagnostics import PlanError
from linnet.inputs import in_order
from linnet.jax import tree as tree_
from linnet.jax.entry import Entry, checked
from linnet.jax.exported import is_wide, wide
from linnet.jax.runtime import LinnetFunction, SourceFunction, read_one
from linnet.syntax import tree
from linnet.weights.checkpoint import Weights


class Buffer(nnx.Variable[Any]):
    """A weight that is not trained."""


class State(nnx.Variable[Any]):
    """Runtime data: a cache, a counter."""


class Block(nnx.Module):
    """A block of the source; its members are attributes."""


class LinnetNNX(Block):
    """A root block; calling it runs one entry, and its states are updated."""

    _entry: Entry

    def __call__(
        self, *inputs: object, generics: Mapping[str, int] | None = None, **named: object
    ) -> Any:
        """The entry's results. Raises PlanError that names what is wrong with the inputs."""
        entry = self._entry
        weights = {path: _at(self, path).get_value() for path in entry.parameters}
        held = {path: _at(self, path) for path in entry.states}
        states = {path: variable.get_value() for path, variable in held.items()}
        what = f"{entry.name} cannot run with these"
        weights = dict(checked(f"{what} weights", entry.parameters, weights, "as they were read"))
        states = dict(checked(f"{what} states", entry.states, states, "as they were made"))
        given = in_order(entry.function, inputs, named, entry.name)
        results, new = entry.run(given, generics, weights, states)
        for path in entry.written:
            held[path].set_value(new[path])
        return results

    def reset_state(self) -> None:
        """Every state is zeros again."""
        for path in self._entry.states:
            with wide(is_wide(self._entry.states[path])):
                variable = _at(self, path)
                variable.set_value(jnp.zeros_like(variable.get_value()))

    def generated_source(self) -> str:
        """The Python module that runs."""
        assert self._entry.source is not None
        return self._entry.source.text(self._entry.name)


def load_nnx(
    source: str | Path,
    *,
    generics: Mapping[str, int | str] | None = None,
    weights: Weights | None = None,
    root: str | None = None,
    entry: str | None = None,
    bindings: Mapping[str, str] | str | Path | None = None,
    std_root: str | Path | None = None,
    numerics: str = "fast",
    cast_dtype: bool = False,
    **options: Any,
) -> LinnetNNX:
    """One entry of a program, with its weights, as a Flax NNX module.

    Raises PlanError with everything that is wrong with the source, the generics or the weights, and
    where a parameter has no weight.
    """
    loaded, policy, read = read_one(load_nnx, locals())
    function = SourceFunction(loaded.program, entry or loaded.program.main, policy, read)
    return module_of(function, _blocks(loaded.analysis, loaded.program.manifest.root))


def to_nnx(function: LinnetFunction) -> LinnetNNX:
    """A loaded function, with its weights, as a Flax NNX module; the arrays are shared.

    Blocks are named after the members that they are, since a function does not know their types.
    Raises PlanError where a parameter has no weight.
    """
    if not isinstance(function, LinnetFunction):
        raise PlanError(
            f"to_nnx takes what linnet.jax.load_source gives, not a {type(function).__name__}"
        )
    return module_of(function)


def module_of(function: LinnetFunction, blocks: Mapping[str, str] | None = None) -> LinnetNNX:
    """The module of a function; `blocks` are the names of blocks by path, positions as `*`."""
    entry = function.source_entry()
    missing = [path for path in entry.parameters if path not in function.weights]
    if missing:
        listed = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise PlanError(f"an NNX module needs weights; there are none for {listed}")
    known: dict[int, nnx.Variable[Any]] = {}  # what shares a tensor goes on sharing it
    leaves: dict[str, Any] = {}
    for path, array in function.weights.items():
        kind = nnx.Param if function.is_param(path) else Buffer
        leaves[path] = known.setdefault(id(array), kind(array))
    leaves |= {path: State(array) for path, array in function.initial_state().items()}
    nested: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *way, last = path.split(".")
        at = nested
        for part in way:
            at = at.setdefault(part, {})
        at[last] = leaf
    module = _block(nested, "", blocks or {}, LinnetNNX, function.program.manifest.root)
    assert isinstance(module, LinnetNNX)
    module._entry = entry
    return module


_TAKEN = {name.rstrip("_") for name in (*dir(LinnetNNX()), "_entry")}


def attribute(member: str) -> str:
    """The member's name in its module: with `_` after it where modules have another use for it."""
    return f"{member}_" if member.rstrip("_") in _TAKEN else tree_.attribute(member)


def _block(
    members: Mapping[str, Any],
    path: str,
    blocks: Mapping[str, str],
    base: type[Block],
    name: str,
) -> Any:
    if members and all(part.isdecimal() for part in members):
        found = {int(part): member for part, member in members.items()}
        return nnx.List(
            [
                _block(found.get(i, {}), f"{path}.*", blocks, base, name)
                for i in range(max(found) + 1)
            ]
        )
    made = type(name or "Root", (base,), {"__module__": __name__})()
    for part, member in members.items():
        inner = f"{path}.{part}".lstrip(".")
        if isinstance(member, dict):
            title = "".join(word.title() for word in part.split("_"))
            kind = blocks.get(inner, title if not part.isdecimal() else name)
            member = _block(member, inner, blocks, Block, kind)
        setattr(made, attribute(part), member)
    return made


def _at(module: Any, path: str) -> nnx.Variable[Any]:
    place = ""
    for part in path.split("."):
        if part.isdecimal():
            place += f"[{part}]"
            module = module[int(part)]
        else:
            place += f".{attribute(part)}"
            module = getattr(module, attribute(part), None)
    if not isinstance(module, nnx.Variable):
        found = "gone" if module is None else f"a {type(module).__name__}"
        raise PlanError(
            f"{path} is {found}, expected an nnx.Variable: "
            f"set a new value with `module{place}[...] = array`"
        )
    return module


def _blocks(analysis: Analysis, root: str) -> dict[str, str]:
    """The name of the block at each path, positions as `*`."""
    found: dict[str, str] = {}

    def walk(decl: object, path: str) -> Iterator[tuple[str, str]]:
        info = analysis.blocks.get(decl) if isinstance(decl, tree.Block) else None
        for name, member in info.members.items() if info is not None else ():
            of = instance_of(member)
            if of is not None:
                inner = f"{path}.{name}".lstrip(".")
                yield inner, of.name
                yield from walk(of.decl, inner)
                yield from walk(of.decl, f"{inner}.*")

    for block in analysis.blocks:
        if block.name.text == root:
            found.update(walk(block, ""))
    return found
