"""Models over the devices of a mesh: by rules that place arrays, or as the `Shards` of a source.

Rules give `NamedSharding`s and XLA splits the work (GSPMD, Xu et al., arXiv:2105.04663). A root
with `Shards` runs under `jax.shard_map`: each device runs the program of one shard, and the ops of
`std.nn.parallel` are collectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from linnet.core.ir import Program
from linnet.diagnostics import PlanError
from linnet.dims import Dim
from linnet.inputs import near
from linnet.jax.kernels import Array
from linnet.types import TensorType

Rule = PartitionSpec | Sequence[str | tuple[str, ...] | None] | None
Rules = Mapping[str, Rule]
"""A pattern of paths (`layers.*.mlp.up.weight`) or an input's name -> a mesh axis for each axis."""

_SHARD_AXES = ("shards", "model", "tensor", "tp")


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """Where everything lies on a mesh.

    `specs` are of parameters and states by path, `inputs` of an entry's values. With an `axis` the
    program is one shard's: `whole` gives the types of the parameters and states that are split.
    """

    mesh: Mesh
    specs: Mapping[str, PartitionSpec]
    inputs: Mapping[str, PartitionSpec] = field(default_factory=dict[str, PartitionSpec])
    axis: str | None = None
    whole: Mapping[str, TensorType] = field(default_factory=dict[str, TensorType])

    def sharding(self, path: str) -> NamedSharding:
        """Of a parameter or a state."""
        return NamedSharding(self.mesh, self.specs.get(path, PartitionSpec()))

    def place(self, path: str, array: Any) -> Any:
        """The array where it belongs; what JAX traces goes there."""
        to = self.sharding(path)
        if isinstance(array, jax.core.Tracer):
            return lax.with_sharding_constraint(array, to)
        return jax.device_put(array, to)

    def place_input(self, name: str, array: Any) -> Any:
        """An entry's value, by its rule or everywhere."""
        spec = self.inputs.get(name, PartitionSpec())
        shape = jnp.shape(array)
        _refuse_uneven(self.mesh, name, shape, spec)
        to = NamedSharding(self.mesh, spec)
        if isinstance(array, jax.core.Tracer):
            return lax.with_sharding_constraint(array, to)
        return jax.device_put(array, to)


def mesh_of(mesh: object) -> Mesh:
    """The mesh, its axes left to XLA. PlanError for what is none."""
    if not isinstance(mesh, Mesh):
        raise PlanError(
            f"mesh is a jax.sharding.Mesh, not a {type(mesh).__name__}: "
            'jax.make_mesh((8,), ("model",)) makes one'
        )
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)


# ---------------------------------------------------------------- rules


def by_rules(
    mesh: Mesh, rules: Rules, arrays: Mapping[str, TensorType], inputs: Iterable[str]
) -> Spread:
    """What rules say of parameters, states and inputs; what none speaks of is everywhere whole.

    The first pattern that fits a path counts. PlanError for a pattern that fits nothing, an axis
    that the mesh has not, too many axes, and extents that the mesh does not divide.
    """
    if not isinstance(rules, Mapping) or not all(isinstance(pattern, str) for pattern in rules):
        raise PlanError(
            "rules give mesh axes by patterns of paths: "
            f'{{"*.weight": ("{mesh.axis_names[0]}", None)}}, not {rules!r}'
        )
    names = list(inputs)
    specs: dict[str, PartitionSpec] = {}
    own: dict[str, PartitionSpec] = {}
    checked = {pattern: _spec(mesh, pattern, rule) for pattern, rule in rules.items()}
    for pattern, spec in checked.items():
        fitting = [path for path in arrays if fnmatchcase(path, pattern)]
        if not fitting and pattern not in names:
            hint = near(pattern, [*arrays, *names])
            raise PlanError(f"rules: {pattern} is no parameter, state or input{hint}")
        for path in fitting:
            shape = [axis.evaluate({}) for axis in arrays[path].shape if isinstance(axis, Dim)]
            _refuse_uneven(mesh, path, shape, spec)
            specs.setdefault(path, spec)
        if pattern in names:
            own[pattern] = spec
    return Spread(mesh, specs, own)


def _spec(mesh: Mesh, pattern: str, rule: Rule) -> PartitionSpec:
    if rule is None:
        return PartitionSpec()
    if not isinstance(rule, (PartitionSpec, tuple, list)):
        raise PlanError(
            f"rules: {pattern} has {rule!r}; a rule gives a mesh axis, or None, for each axis: "
            f'("{mesh.axis_names[0]}", None)'
        )
    seen: set[str] = set()
    for each in rule:
        for axis in each if isinstance(each, tuple) else (each,):
            if axis in seen:
                raise PlanError(f"rules: {pattern}: mesh axis {axis} stands twice in {rule!r}")
            if axis is not None:
                seen.add(axis)
            if axis is not None and axis not in mesh.axis_names:
                listed = ", ".join(mesh.axis_names)
                hint = near(str(axis), mesh.axis_names)
                raise PlanError(
                    f"rules: {pattern}: the mesh has no axis {axis}, only {listed}{hint}"
                )
    return rule if isinstance(rule, PartitionSpec) else PartitionSpec(*rule)


def _refuse_uneven(mesh: Mesh, path: str, shape: Sequence[int], spec: PartitionSpec) -> None:
    if len(spec) > len(shape):
        raise PlanError(
            f"rules: {path} has {len(shape)} {'axis' if len(shape) == 1 else 'axes'} "
            f"{list(shape)}, its rule {len(spec)}: {spec}"
        )
    for i, (extent, axes) in enumerate(zip(shape, spec, strict=False)):
        names = axes if isinstance(axes, tuple) else (axes,)
        count = 1
        for name in names:
            count *= mesh.shape[name] if name is not None else 1
        if extent % count:
            over = ", ".join(str(name) for name in names)
            raise PlanError(
                f"{path}: axis {i} has {extent}, which the {count} devices of mesh axis {over} "
                "do not divide"
            )


# ---------------------------------------------------------------- shards


def shard_axis(mesh: Mesh) -> str:
    """The axis of the mesh that `Shards` are split over; PlanError where it is not clear."""
    names = [str(name) for name in mesh.axis_names]
    if len(names) == 1:
        return names[0]
    found = [name for name in _SHARD_AXES if name in names]
    if len(found) != 1:
        raise PlanError(
            f"the mesh has the axes {', '.join(names)}: name the one that Shards are split over "
            f"{', '.join(_SHARD_AXES[:-1])} or {_SHARD_AXES[-1]}"
        )
    return found[0]


def by_shards(mesh: Mesh, axis: str, program: Program, whole: Program) -> Spread:
    """What the parameters and states of one shard are of the whole model's: equal runs."""
    full = {entry.path: entry.type for entry in whole.manifest.entries}
    specs: dict[str, PartitionSpec] = {}
    types: dict[str, TensorType] = {}
    for entry in program.manifest.entries:
        sides = zip(full[entry.path].shape, entry.type.shape, strict=True)
        split = [i for i, (a, b) in enumerate(sides) if a != b]
        if not split:
            continue
        spec = PartitionSpec(*[axis if i == split[0] else None for i in range(split[0] + 1)])
        for path in entry.expanded():
            specs[path] = spec
            types[path] = replace(entry.type, shape=full[entry.path].shape)
    return Spread(mesh, specs, axis=axis, whole=types)


@dataclass(frozen=True, slots=True)
class Shards:
    """What generated code calls in one shard's program: collectives over an axis of the mesh."""

    axis: str

    def all_reduce(self, x: Array) -> Array:
        """The sum of the shards' x."""
        return lax.psum(x, self.axis)

    def all_gather(self, x: Array, *, Shards: int) -> Array:
        """The shards' columns side by side."""
        return lax.all_gather(x, self.axis, axis=1, tiled=True)

    def token_log_probs(
        self, hidden: Array, weight: Array, targets: Array, *, Shards: int
    ) -> Array:
        """The log-probability of each row's target; no shard holds the logits of another's rows."""
        logits = (hidden @ weight.T).astype(jnp.float32)
        own = logits.shape[1]
        peak = lax.pmax(lax.stop_gradient(logits.max(-1)), self.axis)
        total = lax.psum(jnp.exp(logits - peak[:, None]).sum(-1), self.axis)
        at = jnp.clip(targets, 0, Shards * own - 1).astype(jnp.int32)
        at = at - lax.axis_index(self.axis).astype(jnp.int32) * own
        inside = (at >= 0) & (at < own)
        rows = jnp.arange(logits.shape[0], dtype=jnp.int32)
        chosen = logits[rows, jnp.clip(at, 0, own - 1)]
        return lax.psum(jnp.where(inside, chosen, 0.0), self.axis) - peak - jnp.log(total)
