"""Programs in JAX: entries as functions of arrays, compiled by XLA once for each of their sizes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from linnet.core.ir import Function, Program, ValueType
from linnet.diagnostics import PlanError
from linnet.inputs import (
    Given,
    bind_entry,
    check_numbers,
    find_entry,
    flat_inputs,
    in_order,
    leaf_paths,
    near,
    structured,
)
from linnet.jax.exported import aval, callable_of, is_wide, wide
from linnet.loading import Loaded, load_source, slots_of
from linnet.policy import Policy, policy_named
from linnet.stablehlo import emit
from linnet.stablehlo.emit import paths_of, results_of, written_by
from linnet.types import DType, TensorType
from linnet.weights.arrays import DTYPES, as_array, dtype_name
from linnet.weights.bindings import read_bound
from linnet.weights.checkpoint import Weights

Arrays = Mapping[str, Any]


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
    main = options.pop("main", None)
    loaded, policy = _loaded(
        source,
        numerics,
        main=entry or main,
        entries=None if entry is None else [entry],
        one=True,
        options={
            "generics": generics,
            "weights": weights,
            "root": root,
            "bindings": bindings,
            "std_root": std_root,
            "cast_dtype": cast_dtype,
            **options,
        },
    )
    name = entry or loaded.program.main
    find_entry(loaded.program, name or None)
    return LinnetFunction(loaded.program, name, policy, _read(loaded))


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
    **options: Any,
) -> LinnetModel:
    """All entries over one copy of the weights; the state is kept, and updated in place.

    Raises PlanError with everything that is wrong with the source, the generics or the weights, and
    where a parameter has no weight.
    """
    loaded, policy = _loaded(
        source,
        numerics,
        main=options.pop("main", None),
        entries=entries,
        options={
            "generics": generics,
            "weights": weights,
            "root": root,
            "bindings": bindings,
            "std_root": std_root,
            "cast_dtype": cast_dtype,
            **options,
        },
    )
    return LinnetModel(loaded.program, policy, _read(loaded))


def _loaded(
    source: str | Path,
    numerics: str,
    *,
    main: str | None,
    entries: Iterable[str] | None,
    options: dict[str, Any],
    one: bool = False,
) -> tuple[Loaded, Policy]:
    known = {*(load_source.__kwdefaults__ or {}), "on_bound"} - {"policy", "shard", "entries"}
    for name in options:
        if name not in known:
            own = "entry" if one else "entries"
            listed = ", ".join(
                sorted({*known, own, "numerics"} - {"main", "on_bound", "overrides"})
            )
            raise PlanError(f"there is no option {name}; there are {listed}")
    told: Callable[[Collection[Any]], None] | None = options.pop("on_bound", None)
    policy = policy_named(numerics)
    loaded = load_source(source, main=main, entries=entries, policy=policy, **options)
    if told is not None:
        told(loaded.bound or [])
    return loaded, policy


def _read(loaded: Loaded) -> dict[str, Any]:
    """The weights as arrays of JAX, those that share a tensor as one."""
    found: dict[str, Any] = {}
    for slots, array in read_bound(loaded.bound or []):
        with wide(array.dtype.itemsize == 8):
            held = _placed(array)
        found.update(dict.fromkeys((slot.path for slot in slots), held))
    return found


# ---------------------------------------------------------------- one entry


@dataclass(slots=True, eq=False)
class Entry:
    """An entry of a program, compiled for each of its sizes."""

    program: Program
    name: str
    policy: Policy
    donates: bool = False
    function: Function = field(init=False)
    parameters: dict[str, TensorType] = field(init=False)
    states: dict[str, TensorType] = field(init=False)
    written: tuple[str, ...] = field(init=False)
    known: dict[tuple[int, ...], Callable[..., tuple[Any, ...]]] = field(
        init=False, default_factory=dict[tuple[int, ...], Callable[..., tuple[Any, ...]]]
    )

    def __post_init__(self) -> None:
        self.function = find_entry(self.program, self.name)
        paths = paths_of(self.function)
        self.parameters = {p: t for kind, p, t in paths if kind in ("param", "buffer")}
        self.states = {p: t for kind, p, t in paths if kind == "state"}
        self.written = tuple(written_by(self.function))

    def sizes(self, values: Sequence[Any], generics: Mapping[str, int] | None) -> dict[str, int]:
        """The entry's dimensions, by the inputs' shapes; PlanError names what does not fit."""
        given: list[Given] = [(tuple(x.shape), dtype_name(x.dtype) or str(x.dtype)) for x in values]
        return bind_entry(self.function, given, generics, self.name)

    def values(self, inputs: Sequence[object] | Mapping[str, object]) -> list[Any]:
        """The inputs as arrays, flattened; plain Python values take the declared dtype."""
        found = flat_inputs(self.function, inputs, self.name)
        paths = leaf_paths(self.function)
        return [
            _array(f"{self.name}: {path}", param.of, value)
            for path, param, value in zip(paths, self.function.values, found, strict=True)
        ]

    def text(self, sizes: Mapping[str, int]) -> str:
        """The StableHLO module for these sizes."""
        return emit(self.program, self.name, sizes, self.policy)

    def compiled(self, sizes: Mapping[str, int]) -> Callable[..., tuple[Any, ...]]:
        """From values, parameters and states, flat, to results and what was written, flat."""
        key = tuple(sizes[dim] for dim in self.function.dims)
        if key not in self.known:
            taken = [type for _, _, type in paths_of(self.function)]
            made = results_of(self.function)
            needs, written = any(map(is_wide, (*taken, *made))), set(self.written)
            with wide(needs):
                call = callable_of(
                    self.name,
                    self.text(sizes),
                    *([_aval(type, sizes) for type in types] for types in (taken, made)),
                )
                first = len(taken) - len(self.states)
                donated = [first + at for at, path in enumerate(self.states) if path in written]
                run = jax.jit(call, donate_argnums=donated if self.donates else ())
            self.known[key] = _widely(run) if needs else run
        return self.known[key]

    def run(
        self,
        inputs: Sequence[object] | Mapping[str, object],
        generics: Mapping[str, int] | None,
        parameters: Arrays,
        states: Arrays,
    ) -> tuple[Any, dict[str, Any]]:
        """The results, in the structure that the entry declares, and the new states by path."""
        values = self.values(inputs)
        sizes = self.sizes(values, generics)
        given = [parameters[path] for path in self.parameters]
        kept = [states[path] for path in self.states]
        made = self.compiled(sizes)(*values, *given, *kept)
        count = len(self.function.value_results)
        new = {**states, **dict(zip(self.written, made[count:], strict=True))}
        return structured(self.function.returns, made[:count]), new


def _widely(run: Callable[..., Any]) -> Callable[..., Any]:
    def within(*given: Any) -> Any:
        with wide(True):
            return run(*given)

    return within


def _aval(type: TensorType, sizes: Mapping[str, int]) -> Any:
    return aval([axis.evaluate(sizes) for axis in type.shape], str(type.dtype))  # type: ignore[union-attr]


def _array(where: str, of: ValueType, value: object) -> Any:
    """An array, or what JAX traces; a Python number, or lists of them, takes the declared dtype."""
    assert isinstance(of, TensorType) and isinstance(of.dtype, DType)
    if isinstance(value, jax.Array):
        name = dtype_name(value.dtype)
        if is_wide(of) and name == f"{of.dtype.name[0]}32":
            raise PlanError(
                f"{where} is {name}, expected {of}: JAX makes arrays of 64 bits only where it is "
                "told to (jax.enable_x64); pass a NumPy array, or a number"
            )
        return value
    if isinstance(value, (bool, int, float, list, tuple)):
        check_numbers(where, value, of.dtype)
        try:
            return np.asarray(value, DTYPES[of.dtype.name])
        except ValueError as error:
            raise PlanError(f"{where} is not a rectangle of numbers") from error
    try:
        array = as_array(value)
    except (TypeError, ValueError) as error:
        raise PlanError(f"{where} is of type {type(value).__name__}, expected {of}") from error
    if dtype_name(array.dtype) not in DTYPES:
        raise PlanError(f"{where} is a {type(value).__name__} of {array.dtype}, expected {of}")
    return array


def _zeros(states: Mapping[str, TensorType]) -> dict[str, Any]:
    """Every state as it is at the start."""
    found: dict[str, Any] = {}
    for path, type in states.items():
        with wide(is_wide(type)):
            found[path] = _placed(jnp.zeros(*_shape(type)))
    return found


def _placed(array: Any) -> Any:
    """An own copy where JAX computes, and said to be there: what a call gives back is too.

    Else its first call and its second would be compiled apart.
    """
    return jax.device_put(jnp.array(array), jax.devices()[0])


def _shape(type: TensorType) -> tuple[tuple[int, ...], Any]:
    return tuple(axis.evaluate({}) for axis in type.shape), DTYPES[str(type.dtype)]  # type: ignore[union-attr]


def _checked(what: str, wanted: Mapping[str, TensorType], given: Any, fix: str) -> Arrays:
    """The arrays by path, all there and of their types; else one PlanError with every problem."""
    if not isinstance(given, Mapping):
        raise PlanError(f"{what}: arrays by path are expected, not a {type(given).__name__}")
    problems = [f"there is no {path}{near(path, wanted)}" for path in given if path not in wanted]
    arrays: dict[str, Any] = {}
    for path, type_ in wanted.items():
        shape, dtype = _shape(type_)
        if path not in given:
            problems.append(f"{path} is missing, expected {type_}")
            continue
        array = given[path]
        if not isinstance(array, jax.Array):
            array = as_array(array)
        traced = isinstance(array, jax.core.Tracer)
        if isinstance(array, jax.Array) and not traced and array.is_deleted():
            problems.append(f"{path} is no longer there: a later call took its memory")
        elif tuple(array.shape) != shape or array.dtype != dtype:
            name = dtype_name(array.dtype) or str(array.dtype)
            found = f"Tensor[{', '.join(map(str, array.shape))}; {name}]"
            problems.append(f"{path} is {found}, expected {type_}")
        arrays[path] = array
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems[:20])
        more = f"\n  and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise PlanError(f"{what}; {fix}\n{listed}{more}")
    return arrays


class LinnetFunction:
    """One entry; `f(*inputs)` gives its results.

    An entry that has states takes them by path (`state=`; zeros where it is left out) and gives
    `(results, new state)`. It may be called under `jax.jit`, and is compiled for each of its sizes.
    `apply` takes other parameters than `weights`, by path.
    """

    def __init__(self, program: Program, name: str, policy: Policy, weights: Arrays) -> None:
        self.program = program
        self.weights = dict(weights)
        self._entry = Entry(program, name or program.main, policy)
        read = self._entry.parameters
        self._others = {slot.path for slot in slots_of(program) if slot.path not in read}

    @property
    def generics(self) -> dict[str, int | str]:
        """The root's generics, as bound."""
        return dict(self.program.generics)

    @property
    def parameter_paths(self) -> tuple[str, ...]:
        """The parameters that the entry reads."""
        return tuple(self._entry.parameters)

    @property
    def state_paths(self) -> tuple[str, ...]:
        """The states that the entry reads or writes."""
        return tuple(self._entry.states)

    def initial_state(self) -> dict[str, Any]:
        """Zeros for every state."""
        return _zeros(self._entry.states)

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
        own = _checked(
            f"{entry.name} cannot run with these parameters",
            entry.parameters,
            parameters,
            "give load weights, or apply all parameters",
        )
        states = self.initial_state() if state is None else state
        if state and not entry.states:
            raise PlanError(f"{entry.name} has no state, and is given {', '.join(state)}")
        states = _checked(
            f"{entry.name} cannot run with this state",
            entry.states,
            states,
            "give it what another call gave, or leave it out",
        )
        given = in_order(entry.function, inputs, named, entry.name)
        results, new = entry.run(given, generics, own, states)
        return (results, new) if entry.states else results

    def stablehlo(
        self, *inputs: object, generics: Mapping[str, int] | None = None, **named: object
    ) -> str:
        """The module that runs for inputs of these shapes."""
        entry = self._entry
        values = entry.values(in_order(entry.function, inputs, named, entry.name))
        return self._entry.text(self._entry.sizes(values, generics))


# ---------------------------------------------------------------- a whole model


class LinnetModel:
    """All entries of a program over one copy of its weights.

    The state is the model's own: a call that writes it gives its old memory to the new one.
    `run_entry` and the entries by name run outside of JAX's transformations.
    """

    def __init__(self, program: Program, policy: Policy, weights: Arrays) -> None:
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
        self._entries = {name: Entry(program, name, policy, True) for name in program.entries}
        self._types = {p: t for entry in self._entries.values() for p, t in entry.states.items()}
        self._state: Arrays = _zeros(self._types)

    @property
    def state(self) -> Arrays:
        """Every state by path. An array of it is gone once a call has written that state."""
        return self._state

    @state.setter
    def state(self, arrays: Arrays) -> None:
        what = f"{self.program.name} cannot have this state"
        self._state = _checked(what, self._types, arrays, "give all of it, as `state` has it")

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
        results, state = entry.run(inputs, generics, self.weights, self._state)
        if any(
            isinstance(x, jax.core.Tracer) for x in (*jax.tree.leaves(results), *state.values())
        ):
            raise PlanError(
                f"{name}: a model keeps its state itself, so it runs outside of what JAX traces; "
                "inside, call the function that linnet.jax.load gives"
            )
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
        self._state = _zeros(self._types)

    def copy_weights(self, source: LinnetModel | Arrays) -> None:
        """The weights become the source's of the same paths, which has all, in these types."""
        found = source.weights if isinstance(source, LinnetModel) else source
        wanted = {
            path: entry.parameters[path]
            for entry in self._entries.values()
            for path in entry.parameters
        }
        given = {p: x for p, x in found.items() if p in wanted or p not in self.weights}
        checked = _checked("cannot copy the weights", wanted, given, "give all of them")
        copied: dict[int, Any] = {}  # what shares a tensor goes on sharing it
        for path, array in checked.items():
            if id(array) not in copied:
                with wide(is_wide(wanted[path])):
                    copied[id(array)] = _placed(array)
        self.weights.update({path: copied[id(array)] for path, array in checked.items()})
