"""Programs in JAX: entries as functions of arrays, compiled by XLA once for each of their sizes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from linnet.check import check
from linnet.check.analysis import Analysis
from linnet.core.ir import Program, stands_for
from linnet.core.lower import lower_function, refuse_unknown
from linnet.core.passes import optimize as run_passes
from linnet.diagnostics import PlanError
from linnet.inputs import find_entry, in_order, leaf_paths
from linnet.jax.entry import Arrays, Entry, Source, checked, placed, zeros
from linnet.jax.exported import is_wide, wide
from linnet.jax.sharding import Rules, Spread, by_rules, by_shards, mesh_of, shard_axis
from linnet.loading import SHARDS, Loaded, slots_of
from linnet.loading import load_source as load_program
from linnet.policy import Policy, policy_named
from linnet.types import DType, TensorType
from linnet.weights.bindings import read_bound
from linnet.weights.checkpoint import Weights
from linnet.weights.part import Shard
from linnet.workspace import Workspace


def load(
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
) -> LinnetFunction:
    """One entry as a function of arrays: its StableHLO, compiled by XLA.

    Without `entry` it is the main one. Every parameter's name, shape and dtype is checked before a
    byte is read; without weights they are given to `apply`. Raises PlanError with everything that
    is wrong with the source, the generics or the weights.
    """
    loaded, policy, read = read_one(load, locals())
    return LinnetFunction(loaded.program, entry or loaded.program.main, policy, read)


def load_source(
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
    mesh: Mesh | None = None,
    rules: Rules | None = None,
    **options: Any,
) -> SourceFunction:
    """One entry as readable `jax.numpy`: what `jax.grad`, `jax.vmap` and the rest see through.

    `mesh` and `rules` are those of `load_model`. As `load` otherwise, with the same errors.
    """
    loaded, policy, read = read_one(load_source, locals())
    name = entry or loaded.program.main
    return SourceFunction(loaded.program, name, policy, read, loaded.spread)


def load_model(
    source: str | Path,
    *,
    generics: Mapping[str, int | str] | None = None,
    weights: Weights | None = None,
    root: str | None = None,
    entries: Iterable[str] | None = None,
    bindings: Mapping[str, str] | str | Path | None = None,
    std_root: str | Path | None = None,
    numerics: str = "fast",
    cast_dtype: bool = False,
    generated: bool = False,
    mesh: Mesh | None = None,
    rules: Rules | None = None,
    **options: Any,
) -> LinnetModel:
    """All entries over one copy of the weights; the state is kept, and updated in place.

    `generated`: they run as generated `jax.numpy` instead of StableHLO, as they do on a `mesh`. On
    one, a root with `Shards` is split over the mesh's axis for them; another root's parameters,
    states and inputs lie as `rules` say: a pattern of paths -> a mesh axis, or None, for each axis.
    Raises PlanError with everything that is wrong with the source, the generics, the weights or the
    rules, and where a parameter has no weight.
    """
    given = locals()
    loaded, policy = _loaded(load_model, given, options.get("main"), entries)
    read = _read(loaded)
    return LinnetModel(loaded.program, policy, read, generated, loaded.spread)


def load_function(
    source: str | Path,
    name: str | None = None,
    *,
    dtypes: Mapping[str, str] | None = None,
    ranks: Mapping[str, int] | None = None,
    absent: Iterable[str] = (),
    std_root: str | Path | None = None,
    numerics: str = "fast",
    **unknown: object,
) -> Function:
    """A free function of the source as generated `jax.numpy`; `name` may be left out where there
    is one.

    `dtypes` binds its dtype generics, `ranks` the number of axes of its packs, `absent` names
    optional parameters that are not passed. Raises PlanError with what is wrong with the source.
    """
    _refuse(load_function, unknown, ())
    policy = policy_named(numerics)
    analysis = check(Workspace(std_root=std_root), source)
    module = analysis.roots[0]
    if name is None:
        names = [item.name.text for item in module.items.values() if hasattr(item, "params")]
        if len(names) != 1:
            listed = ", ".join(names) or "none"
            raise PlanError(f"{module.name} has {len(names)} functions ({listed}): name one")
        name = names[0]
    absent = [absent] if isinstance(absent, str) else list(absent)
    refuse_unknown(analysis, module.name, name, dtypes, ranks, absent)
    program = lower_function(analysis, module.name, name, dtypes=dtypes, ranks=ranks, absent=absent)
    return Function(SourceFunction(run_passes(program, policy), name, policy, {}), name)


# ---------------------------------------------------------------- reading

# What a loader hands to `linnet.loading.load_source`, beside its own parameters.
_HANDED_ON = ("main", "constants", "strict", "optimize", "overrides", "unread")


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """What a loader was given, checked: the program, where it is to lie, what fills it."""

    loaded: Loaded
    spread: Spread | None

    @property
    def program(self) -> Program:
        return self.loaded.program

    @property
    def analysis(self) -> Analysis:
        return self.loaded.analysis


def read_one(of: Callable[..., Any], given: dict[str, Any]) -> tuple[Read, Policy, dict[str, Any]]:
    """What a loader of one entry was given, read: the program, the policy, the arrays by path."""
    entry = given["entry"]
    main = entry or given["options"].get("main")
    loaded, policy = _loaded(of, given, main, None if entry is None else [entry])
    find_entry(loaded.program, entry or loaded.program.main or None)
    return loaded, policy, _read(loaded)


def _loaded(
    of: Callable[..., Any], given: dict[str, Any], main: str | None, entries: Iterable[str] | None
) -> tuple[Read, Policy]:
    options = dict(given["options"])
    told: Callable[[Collection[Any]], None] | None = options.pop("on_bound", None)
    _refuse(of, options, _HANDED_ON)
    options.pop("main", None)
    policy = policy_named(given["numerics"])
    names = ("generics", "weights", "root", "bindings", "std_root", "cast_dtype")
    own = {name: given[name] for name in names} | options
    mesh = given.get("mesh")
    spread: Spread | None = None
    if mesh is None and given.get("rules") is not None:
        raise PlanError("rules place arrays on a mesh: give mesh too")
    run = partial(load_program, given["source"], main=main, entries=entries, policy=policy)
    if mesh is None:
        loaded = run(**own)
    else:
        mesh = mesh_of(mesh)
        loaded, spread = _spread(run, own, mesh, given["rules"])
    if told is not None:
        told(loaded.bound or [])
    return Read(loaded, spread), policy


def _spread(
    run: Callable[..., Loaded], own: dict[str, Any], mesh: Mesh, rules: Rules | None
) -> tuple[Loaded, Spread]:
    """The program, over the mesh by its rules, or one shard's with all of the weights."""
    if rules is not None:
        loaded = run(**own)
        return loaded, by_rules(mesh, rules, *_arrays(loaded.program))
    axis = shard_axis(mesh)
    part = run(**own, shard=Shard(0, mesh.shape[axis]))
    if part.parts is None:
        names = _arrays(part.program)[0]
        example = next((path for path in names), "weight")
        raise PlanError(
            f"{part.program.name} has no generic Shards: on a mesh give rules, such as "
            f'{{"{example}": ("{mesh.axis_names[0]}",)}}'
        )
    whole = run(**{**own, "generics": {**(own["generics"] or {}), SHARDS: 1}})
    return replace(whole, program=part.program), by_shards(mesh, axis, part.program, whole.program)


def _arrays(program: Program) -> tuple[dict[str, TensorType], list[str]]:
    """The type of each parameter and state, and the names of all entries' inputs."""
    types = {path: e.type for e in program.manifest.entries for path in e.expanded()}
    inputs = [path for entry in program.entries.values() for path in leaf_paths(entry)]
    return types, list(dict.fromkeys(inputs))


def _refuse(of: Callable[..., Any], unknown: Iterable[str], known: Iterable[str]) -> None:
    """Raises PlanError for an option that the loader has not."""
    taken = signature(of).parameters.values()
    own = [one.name for one in taken if one.kind is Parameter.KEYWORD_ONLY]
    listed = ", ".join(sorted({*own, *known} - {"main", "overrides"}))
    for name in unknown:
        if name not in known:
            raise PlanError(f"there is no option {name}; there are {listed}")


def _read(read: Read) -> dict[str, Any]:
    """The weights as arrays of JAX, those that share a tensor as one."""
    found: dict[str, Any] = {}
    for slots, array in read_bound(read.loaded.bound or []):
        with wide(array.dtype.itemsize == 8):
            held = placed(array, slots[0].path, read.spread)
        found.update(dict.fromkeys((slot.path for slot in slots), held))
    return found


# ---------------------------------------------------------------- one entry


class LinnetFunction:
    """One entry; `f(*inputs)` gives its results.

    An entry that has states takes them by path (`state=`; zeros where it is left out) and gives
    `(results, new state)`. It may be called under `jax.jit`, and is compiled for each of its sizes.
    `apply` takes other parameters than `weights`, by path.
    """

    def __init__(
        self,
        program: Program,
        name: str,
        policy: Policy,
        weights: Arrays,
        spread: Spread | None = None,
    ) -> None:
        self.program = program
        self.weights = dict(weights)
        self._spread = spread
        self._entry = self._entry_of(name or program.main, policy)
        read = self._entry.parameters
        self._others = {slot.path for slot in slots_of(program) if slot.path not in read}
        held = (e for e in program.manifest.entries if e.kind == "state")
        paths = {path for e in held for path in e.expanded()}
        self._other_states = paths - self._entry.states.keys()

    def _entry_of(self, name: str, policy: Policy) -> Entry:
        return Entry(self.program, name, policy)

    @property
    def generics(self) -> dict[str, int | str]:
        """The root's generics, as bound."""
        return dict(self.program.generics)

    @property
    def placement(self) -> dict[str, Any]:
        """Where each weight lies, by path: a `jax.sharding.Sharding`."""
        return {path: array.sharding for path, array in self.weights.items()}

    @property
    def parameter_paths(self) -> tuple[str, ...]:
        """The parameters that the entry reads."""
        return tuple(self._entry.parameters)

    @property
    def state_paths(self) -> tuple[str, ...]:
        """The states that the entry reads or writes."""
        return tuple(self._entry.states)

    def source_entry(self) -> Entry:
        """The entry as generated source."""
        entry = self._entry
        source = entry.source or Source(self.program, entry.policy)
        return Entry(self.program, entry.name, entry.policy, source)

    def is_param(self, path: str) -> bool:
        """Whether it may be trained: a `param` of floats."""
        found = next(
            e for e in self.program.manifest.entries if path == e.path or stands_for(e.path, path)
        )
        return (
            found.kind == "param"
            and isinstance(found.type.dtype, DType)
            and found.type.dtype.is_float
        )

    def initial_state(self) -> dict[str, Any]:
        """Zeros for every state."""
        return zeros(self._entry.states, self._spread)

    def __call__(
        self,
        *inputs: object,
        state: Arrays | None = None,
        generics: Mapping[str, int] | None = None,
        **named: object,
    ) -> Any:
        return self.apply(self.weights, *inputs, state=state, generics=generics, **named)

    def apply(
        self,
        parameters: Arrays,
        /,
        *inputs: object,
        state: Arrays | None = None,
        generics: Mapping[str, int] | None = None,
        **named: object,
    ) -> Any:
        """The results with these parameters; `(results, new state)` where the entry has states."""
        entry = self._entry
        if isinstance(parameters, Mapping):  # what other entries read is no mistake
            others = self._others
            parameters = {path: x for path, x in parameters.items() if path not in others}
        own = checked(
            f"{entry.name} cannot run with these parameters",
            entry.parameters,
            parameters,
            "give load weights, or apply all parameters",
        )
        states = self.initial_state() if state is None else state
        if state and not entry.states:
            listed = ", ".join(map(str, state))
            raise PlanError(f"{entry.name} has no state, and is given {listed}")
        others_: dict[str, Any] = {}  # states of other entries, which are handed on
        if isinstance(states, Mapping):
            known = self._other_states
            others_ = {path: x for path, x in states.items() if path in known}
            states = {path: x for path, x in states.items() if path not in known}
        states = checked(
            f"{entry.name} cannot run with this state",
            entry.states,
            states,
            "give it what another call gave, or leave it out",
        )
        given = in_order(entry.function, inputs, named, entry.name)
        results, new = entry.run(given, generics, own, states)
        return (results, {**new, **others_}) if entry.states else results

    def parameters_for(
        self, *inputs: object, generics: Mapping[str, int] | None = None, **named: object
    ) -> dict[str, Any]:
        """The weights that a call with these inputs reads, by path; the inputs are checked."""
        entry = self._entry
        entry.sizes(entry.values(in_order(entry.function, inputs, named, entry.name)), generics)
        return {path: self.weights[path] for path in entry.parameters if path in self.weights}

    def stablehlo(
        self, *inputs: object, generics: Mapping[str, int] | None = None, **named: object
    ) -> str:
        """The module that runs for inputs of these shapes."""
        entry = self._entry
        values = entry.values(in_order(entry.function, inputs, named, entry.name))
        return self._entry.text(self._entry.sizes(values, generics))


class SourceFunction(LinnetFunction):
    """One entry as generated `jax.numpy`.

    Everything of JAX goes through it: `jax.grad` (of `apply`, by its parameters), `jax.vmap`,
    `jax.jit`, `jax.checkpoint`. Loops of `while` have no reverse derivative, in JAX too.
    """

    def _entry_of(self, name: str, policy: Policy) -> Entry:
        axis = self._spread.axis if self._spread is not None else None
        return Entry(self.program, name, policy, Source(self.program, policy, axis), self._spread)

    @property
    def parameters(self) -> dict[str, Any]:
        """The weights by path, which `apply` takes: a pytree."""
        return dict(self.weights)

    def generated_source(self) -> str:
        """The Python module that runs."""
        assert self._entry.source is not None
        return self._entry.source.text(self._entry.name)


class Function:
    """A free function of a program, called with arrays or plain values, in order or by name.

    Sizes that no input's shape says are named: `f(x, Steps=8)`, or `f(x, generics={"Steps": 8})`.
    """

    def __init__(self, run: SourceFunction, name: str) -> None:
        self._run = run
        self.name = name
        self.__name__ = name
        self.__doc__ = run.program.entries[name].docs or None

    @property
    def inputs(self) -> tuple[tuple[str, str], ...]:
        """The name and the type of each input."""
        return tuple((n, str(type)) for n, type in self._run.program.entries[self.name].takes)

    def __call__(self, *inputs: object, **named: Any) -> Any:
        entry = self._run._entry
        own = {name: named.pop(name) for name, _ in entry.function.takes if name in named}
        if isinstance(named.get("generics"), Mapping):
            named |= named.pop("generics")
        given = in_order(entry.function, inputs, own, self.name)
        results, _ = entry.run(given, named, {}, {})
        return results

    def generated_source(self) -> str:
        """The Python module that runs."""
        return self._run.generated_source()


# ---------------------------------------------------------------- a whole model


class LinnetModel:
    """All entries of a program over one copy of its weights.

    The state is the model's own: a call that writes it gives its old memory to the new one.
    `run_entry` runs outside of JAX's transformations.
    """

    def __init__(
        self,
        program: Program,
        policy: Policy,
        weights: Arrays,
        generated: bool = False,
        spread: Spread | None = None,
    ) -> None:
        slots = {
            slot.path: slot
            for slot in slots_of(program)
            if slot.path in weights or not slot.optional
        }
        missing = [path for path in slots if path not in weights]
        if missing:
            listed = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            raise PlanError(f"load_model needs weights; there are none for {listed}")
        self.program = program
        self.numerics = policy
        self.weights = dict(weights)
        self._spread = spread
        self._entries = self._made(generated)
        self._types = {p: t for entry in self._entries.values() for p, t in entry.states.items()}
        self._state: Arrays = zeros(self._types, spread)

    def _made(self, generated: bool) -> dict[str, Entry]:
        spread, program = self._spread, self.program
        axis = spread.axis if spread is not None else None
        use = generated or spread is not None
        source = Source(program, self.numerics, axis) if use else None
        return {
            name: Entry(program, name, self.numerics, source, spread, donates=True)
            for name in program.entries
        }

    @property
    def placement(self) -> dict[str, Any]:
        """Where each parameter and state lies, by path: a `jax.sharding.Sharding`."""
        return {path: array.sharding for path, array in {**self.weights, **self.state}.items()}

    def shard(self, mesh: Mesh, rules: Rules) -> None:
        """The weights and the state lie on the mesh as the rules say, and what runs is split.

        Raises PlanError for rules that do not fit, and for a model that is split by its `Shards`.
        """
        if self._spread is not None and self._spread.axis is not None:
            raise PlanError(f"{self.program.name} is split over a mesh already, by its Shards")
        spread = by_rules(mesh_of(mesh), rules, *_arrays(self.program))
        weights, state = dict(self.weights), dict(self._state)
        for arrays in (weights, state):
            for path, array in arrays.items():
                with wide(array.dtype.itemsize == 8):
                    arrays[path] = spread.place(path, array)
        self._spread, self.weights, self._state = spread, weights, state
        self._entries = self._made(True)

    @property
    def state(self) -> Arrays:
        """Every state by path. An array of it is gone once a call has written that state.

        What is assigned is copied.
        """
        return self._state

    @state.setter
    def state(self, arrays: Arrays) -> None:
        own: dict[str, Any] = {}
        for path, array in self._fitting(arrays).items():
            with wide(is_wide(self._types[path])):
                own[path] = placed(array.copy(), path, self._spread)
        self._state = own

    def change_state(self, change: Callable[[Any], Any]) -> None:
        """Each state is what `change` makes of its array, whose memory is the model's from then."""
        self._state = self._fitting({path: change(x) for path, x in self._state.items()})

    def _fitting(self, arrays: Arrays) -> Arrays:
        what = f"{self.program.name} cannot have this state"
        return checked(what, self._types, arrays, "give all of it, as `state` has it")

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(self._entries)

    @property
    def generics(self) -> dict[str, int | str]:
        """The root's generics, as bound."""
        return dict(self.program.generics)

    @property
    def state_paths(self) -> tuple[str, ...]:
        return tuple(self._types)

    def run_entry(
        self,
        name: str,
        inputs: Sequence[object] | Mapping[str, object],
        generics: Mapping[str, int] | None = None,
    ) -> Any:
        """The entry's results for these inputs, in order or by name; its state is updated."""
        entry = self._entries.get(name)
        if entry is None:
            find_entry(self.program, name)
            raise AssertionError(name)
        traced = PlanError(
            f"{name}: a model keeps its state itself, so it runs outside of what JAX traces; "
            "inside, call the function that linnet.jax.load_source gives"
        )
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(inputs)):
            raise traced
        results, state = entry.run(inputs, generics, self.weights, self._state)
        made = (*jax.tree.leaves(results), *state.values())
        if any(isinstance(x, jax.core.Tracer) for x in made):
            raise traced
        self._state = state
        return results

    def __call__(self, *inputs: object, **named: object) -> Any:
        """The main entry."""
        find_entry(self.program)
        entry = self._entries[self.program.main]
        given = in_order(entry.function, inputs, named, entry.name)
        return self.run_entry(self.program.main, given)

    def reset_state(self) -> None:
        """Every state is zeros again."""
        self._state = zeros(self._types, self._spread)

    def copy_weights(self, source: LinnetModel | LinnetFunction | Arrays) -> None:
        """The weights become the source's of the same paths, which has all, in these types."""
        found = source.weights if isinstance(source, (LinnetModel, LinnetFunction)) else source
        if not isinstance(found, Mapping):
            raise PlanError(
                "cannot copy the weights: a model or arrays by path are expected, "
                f"not a {type(found).__name__}"
            )
        wanted = {
            path: entry.parameters[path]
            for entry in self._entries.values()
            for path in entry.parameters
        }
        given = {p: x for p, x in found.items() if p in wanted or p not in self.weights}
        fitting = checked("cannot copy the weights", wanted, given, "give all of them")
        copied: dict[int, Any] = {}  # what shares a tensor goes on sharing it
        for path, array in fitting.items():
            if id(array) not in copied:
                with wide(is_wide(wanted[path])):
                    copied[id(array)] = placed(array, path, self._spread)
        self.weights.update({path: copied[id(array)] for path, array in fitting.items()})
