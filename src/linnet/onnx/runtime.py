"""Programs on ONNX Runtime: all entries of a model over one copy of its weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from linnet.core.ir import Program
from linnet.diagnostics import PlanError
from linnet.inputs import find_entry, in_order, near
from linnet.loading import load_source, slots_of
from linnet.onnx.entry import Entry, Providers, Values, checked, ort_value, to_array, view, zeros
from linnet.policy import Policy, policy_named
from linnet.weights.bindings import read_bound
from linnet.weights.checkpoint import Weights

# What `load_model` hands to `linnet.loading.load_source`, beside its own parameters.
_HANDED_ON = ("main", "constants", "strict", "optimize", "overrides", "unread")


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
    providers: Providers | None = None,
    threads: int | None = None,
    **options: Any,
) -> OnnxModel:
    """All entries over one copy of the weights; the state is kept between calls.

    `providers` are ONNX Runtime's, by name, the most preferred first (the CPU's without any);
    `threads` are those that one operator may use (the runtime's choice without a number).
    Raises PlanError with everything that is wrong with the source, the generics or the weights, and
    where a parameter has no weight.
    """
    told: Callable[[Collection[Any]], None] | None = options.pop("on_bound", None)
    _refuse(options)
    policy, chosen = policy_named(numerics), _providers(providers)
    loaded = load_source(
        source,
        generics=generics,
        weights=weights,
        root=root,
        entries=entries,
        bindings=bindings,
        std_root=std_root,
        cast_dtype=cast_dtype,
        policy=policy,
        **options,
    )
    if told is not None:
        told(loaded.bound or [])
    held: dict[str, ort.OrtValue] = {}
    for slots, array in read_bound(loaded.bound or []):
        held.update(dict.fromkeys((slot.path for slot in slots), ort_value(array)))
    return OnnxModel(loaded.program, policy, held, chosen, threads)


def _refuse(unknown: Iterable[str]) -> None:
    """Raises PlanError for an option that there is not."""
    taken = signature(load_model).parameters.values()
    own = [one.name for one in taken if one.kind is Parameter.KEYWORD_ONLY]
    listed = ", ".join(sorted({*own, *_HANDED_ON} - {"main", "overrides"}))
    for name in unknown:
        if name not in _HANDED_ON:
            raise PlanError(f"there is no option {name}; there are {listed}")


def _providers(given: Providers | None) -> Providers:
    """The providers, all of which the runtime that is installed has; else PlanError."""
    if given is None:
        return ["CPUExecutionProvider"]
    known = ort.get_available_providers()
    if isinstance(given, str) or not given:
        raise PlanError(f"providers is a list of names, such as {known[-1:]}, not {given!r}")
    for one in given:
        name = one if isinstance(one, str) else one[0]
        if name not in known:
            raise PlanError(
                f"ONNX Runtime has no provider {name}{near(str(name), known)}; "
                f"what is installed has {', '.join(known)}"
            )
    return list(given)


class OnnxModel:
    """All entries of a program over one copy of its weights, arrays of NumPy in and out.

    The state is the model's own: a call's new state is what the next one is given, uncopied.
    """

    def __init__(
        self,
        program: Program,
        policy: Policy,
        weights: Values,
        providers: Providers,
        threads: int | None = None,
    ) -> None:
        missing = [s.path for s in slots_of(program) if s.path not in weights and not s.optional]
        if missing:
            listed = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            raise PlanError(f"load_model needs weights; there are none for {listed}")
        self.program = program
        self.numerics = policy
        self._weights = dict(weights)
        self._providers = tuple(providers)
        self._entries = {
            name: Entry(program, name, policy, self._providers, threads) for name in program.entries
        }
        self._types = {p: t for entry in self._entries.values() for p, t in entry.states.items()}
        self._state: dict[str, ort.OrtValue] = zeros(self._types)

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(self._entries)

    @property
    def generics(self) -> dict[str, int | str]:
        """The root's generics, as bound."""
        return dict(self.program.generics)

    @property
    def providers(self) -> tuple[str, ...]:
        """Who computes, the most preferred first."""
        return tuple(one if isinstance(one, str) else one[0] for one in self._providers)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and the state, each tensor once."""
        kept = {value.data_ptr(): value for value in self._weights.values()}
        sizes = [value.tensor_size_in_bytes() for value in (*kept.values(), *self._state.values())]
        return sum(sizes)

    @property
    def weights(self) -> dict[str, Any]:
        """A copy of each parameter, by path."""
        return {path: to_array(value) for path, value in self._weights.items()}

    @property
    def state_paths(self) -> tuple[str, ...]:
        return tuple(self._types)

    @property
    def state(self) -> dict[str, Any]:
        """A copy of each state, by path."""
        return {path: to_array(value) for path, value in self._state.items()}

    @state.setter
    def state(self, arrays: Mapping[str, Any]) -> None:
        what = f"{self.program.name} cannot have this state"
        fitting = checked(what, self._types, arrays, "give all of it, as `state` has it")
        self._state = {path: ort_value(np.array(array)) for path, array in fitting.items()}

    @property
    def state_views(self) -> dict[str, Any]:
        """Each state by path, over the model's own memory: right until the next call."""
        return {path: view(value) for path, value in self._state.items()}

    def reset_state(self) -> None:
        """Every state is zeros again."""
        self._state = zeros(self._types)

    def run_entry(
        self,
        name: str,
        inputs: Sequence[object] | Mapping[str, object],
        generics: Mapping[str, int] | None = None,
    ) -> Any:
        """The entry's results for these inputs, in order or by name; its state is updated."""
        if name not in self._entries:
            find_entry(self.program, name)
        results, new = self._entries[name].run(inputs, generics, self._weights, self._state)
        self._state.update(new)
        return results

    def __call__(self, *inputs: object, **named: object) -> Any:
        """The main entry."""
        function = find_entry(self.program)
        name = self.program.main
        return self.run_entry(name, in_order(function, inputs, named, name))

    def copy_weights(self, source: OnnxModel | Mapping[str, Any]) -> None:
        """The weights become the source's of the same paths, which has all, in these types."""
        found = source.weights if isinstance(source, OnnxModel) else source
        wanted = {p: t for entry in self._entries.values() for p, t in entry.parameters.items()}
        given = {p: x for p, x in found.items() if p in wanted or p not in self._weights}
        fitting = checked("cannot copy the weights", wanted, given, "give all of them")
        self._weights.update({p: ort_value(np.array(array)) for p, array in fitting.items()})
