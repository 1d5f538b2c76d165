"""An entry of a program on ONNX Runtime: what it is given, checked, and the session that runs."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime as ort

from linnet.core.ir import Function, Program, ValueType
from linnet.diagnostics import LinnetError, PlanError
from linnet.inputs import (
    Given,
    bind_entry,
    check_numbers,
    find_entry,
    flat_inputs,
    leaf_paths,
    near,
    structured,
)
from linnet.onnx import native
from linnet.onnx.alias import in_place
from linnet.onnx.export import Exported, export_program
from linnet.onnx.graph import ELEMENT, NAMES
from linnet.onnx.kernels import KERNELS
from linnet.policy import Policy
from linnet.stablehlo.emit import paths_of, written_by
from linnet.types import DType, TensorType
from linnet.weights.arrays import DTYPES, as_array, dtype_name

# Rewrites of the runtime that change results: `x + 0.0` is not x where x is -0.0.
INEXACT = ["NoopElimination"]

Array = np.ndarray[Any, Any]
Values = Mapping[str, ort.OrtValue]
Providers = Sequence[str | tuple[str, Mapping[str, Any]]]


@dataclass(slots=True, eq=False)
class Entry:
    """An entry of a program; its session is made when it first runs, and serves all sizes.

    Parameters are inputs of the session: what the runtime is given as initializers it copies, for
    each session anew.
    """

    program: Program
    name: str
    policy: Policy
    providers: Providers
    threads: int | None = None
    function: Function = field(init=False)
    parameters: dict[str, TensorType] = field(init=False)
    states: dict[str, TensorType] = field(init=False)
    written: tuple[str, ...] = field(init=False)
    _session: _Session | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.function = find_entry(self.program, self.name)
        paths = paths_of(self.function)
        self.parameters = {p: t for kind, p, t in paths if kind in ("param", "buffer")}
        self.states = {p: t for kind, p, t in paths if kind == "state"}
        self.written = tuple(written_by(self.function))

    def values(self, inputs: Sequence[object] | Mapping[str, object]) -> list[Array]:
        """The inputs as arrays, flattened; plain Python values take the declared dtype."""
        found = flat_inputs(self.function, inputs, self.name)
        paths = leaf_paths(self.function)
        return [
            _array(f"{self.name}: {path}", param.of, value)
            for path, param, value in zip(paths, self.function.values, found, strict=True)
        ]

    def sizes(self, values: Sequence[Array], generics: Mapping[str, int] | None) -> dict[str, int]:
        """The entry's dimensions, by the inputs' shapes; PlanError names what does not fit."""
        given: list[Given] = [(tuple(x.shape), NAMES[x.dtype]) for x in values]
        return bind_entry(self.function, given, generics, self.name)

    def run(
        self,
        inputs: Sequence[object] | Mapping[str, object],
        generics: Mapping[str, int] | None,
        parameters: Values,
        states: Values,
    ) -> tuple[Any, dict[str, ort.OrtValue]]:
        """The results, in the structure that the entry declares, and the new states by path."""
        values = self.values(inputs)
        sizes = self.sizes(values, generics)
        if self._session is None:
            self._session = _Session.of(self)
        native.threads(self.threads)
        made = self._session.run(
            [ort_value(x) for x in values],
            [parameters[path] for path in self.parameters],
            [states[path] for path in self.states],
            sizes,
        )
        count = len(self.function.value_results)
        results = [to_array(value) for value in made[:count]]
        new = dict(zip(self.written, made[count:], strict=True))
        return structured(self.function.returns, results), new


@dataclass(frozen=True, slots=True, eq=False)
class _Session:
    """A session of the runtime, and what its inputs are called."""

    entry: str
    session: ort.InferenceSession
    names: list[str]  # values, parameters, states
    dims: dict[str, str]  # of the inputs that are sizes
    outputs: list[str]
    over: dict[str, str]  # the outputs that are written where an input lies

    @staticmethod
    def of(entry: Entry) -> _Session:
        on_cpu = list(entry.providers) == ["CPUExecutionProvider"]
        own = native.library() if on_cpu and entry.policy == "fast" else None
        kernels = KERNELS if own is None else native.kernels()
        # Inside of functions the runtime cannot tell the types of what our operators give.
        made = export_program(
            entry.program, entry.name, entry.policy, inline=own is not None, kernels=kernels
        )
        try:
            session = ort.InferenceSession(
                made.model.SerializeToString(),
                options(entry.threads, own),
                providers=list(entry.providers),
                disabled_optimizers=INEXACT,
            )
        except Exception as error:  # the runtime has an exception class for each of its statuses
            raise LinnetError(f"{entry.name}: ONNX Runtime refuses the model: {error}") from error
        dims = _props(made, "linnet.size.")
        inputs = {path: name for name, path in _props(made, "linnet.state.").items()}
        pairs = [(inputs[path], name) for name, path in _props(made, "linnet.next_state.").items()]
        there = in_place(made.model, pairs)
        names = [port.name for port in made.model.graph.input if port.name not in dims]
        outputs = [port.name for port in made.outputs]
        over = {output: given for given, output in pairs if output in there}
        return _Session(entry.name, session, names, dims, outputs, over)

    def run(
        self,
        values: Sequence[ort.OrtValue],
        parameters: Sequence[ort.OrtValue],
        states: Sequence[ort.OrtValue],
        sizes: Mapping[str, int],
    ) -> list[ort.OrtValue]:
        """All outputs, where the runtime made them."""
        binding = self.session.io_binding()
        given = dict(zip(self.names, [*values, *parameters, *states], strict=True))
        for name, value in given.items():
            binding.bind_ortvalue_input(name, value)
        for name, dim in self.dims.items():
            size = np.asarray([sizes[dim]], np.int64)
            binding.bind_ortvalue_input(name, ort_value(size))
        for name in self.outputs:
            if name in self.over:
                binding.bind_ortvalue_output(name, given[self.over[name]])
            else:
                binding.bind_output(name)
        try:
            self.session.run_with_iobinding(binding)
        except Exception as error:  # the runtime has an exception class for each of its statuses
            raise LinnetError(f"{self.entry}: ONNX Runtime cannot run it: {error}") from error
        # What is given out must keep its memory alive, as the runtime's own wrapper does not.
        over = {name: given[source] for name, source in self.over.items()}
        made = zip(self.outputs, binding.get_outputs(), strict=True)
        return [over.get(name, value) for name, value in made]


def _props(made: Exported, start: str) -> dict[str, str]:
    """What the model says of its inputs or outputs under a key."""
    props = ((p.key, p.value) for p in made.model.metadata_props)
    return {key.removeprefix(start): value for key, value in props if key.startswith(start)}


def options(threads: int | None = None, operators: str | None = None) -> ort.SessionOptions:
    """How sessions are made: they say only what went wrong; `operators` is a library's file."""
    made = ort.SessionOptions()
    made.log_severity_level = 3
    if operators is not None:
        made.register_custom_ops_library(operators)
        # The runtime's threads would take the processors from those of our operators.
        made.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if threads is not None:
        made.intra_op_num_threads = threads
    return made


# ---------------------------------------------------------------- arrays

_DTYPES = {element: DTYPES[name] for name, element in ELEMENT.items()}


def ort_value(array: Array) -> ort.OrtValue:
    """The array as the runtime's own, over the same memory; the value keeps it alive."""
    data, name = np.asarray(array, order="C"), NAMES[array.dtype]
    if name == "bf16":
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(data.view(np.uint16), ELEMENT[name])
    return ort.OrtValue.ortvalue_from_numpy(data)


def to_array(value: ort.OrtValue) -> Array:
    """The runtime's value as an array of its own."""
    return view(value).copy()


def view(value: ort.OrtValue) -> Array:
    """The runtime's value in the memory of the CPU as an array over the same memory.

    The runtime's own `numpy()` copies, and knows no bf16.
    """
    dtype, shape = _DTYPES[value.element_type()], value.shape()
    size = value.tensor_size_in_bytes()
    if not size:
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_char * size).from_address(value.data_ptr())
    memory.owner = value  # which lives as long as what looks at it
    return np.frombuffer(memory, dtype).reshape(shape)


def zeros(states: Mapping[str, TensorType]) -> dict[str, ort.OrtValue]:
    """Every state as it is at the start."""
    return {path: ort_value(np.zeros(*shape_dtype(type))) for path, type in states.items()}


def shape_dtype(type: TensorType) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """What NumPy calls a tensor of known sizes."""
    shape = tuple(axis.evaluate({}) for axis in type.shape)  # type: ignore[union-attr]
    return shape, DTYPES[str(type.dtype)]


def _array(where: str, of: ValueType, value: object) -> Array:
    """An array; a Python number, or lists of them, takes the declared dtype."""
    assert isinstance(of, TensorType) and isinstance(of.dtype, DType)
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
    if array.dtype == object:
        raise PlanError(f"{where} is of type {type(value).__name__}, expected {of}")
    if array.dtype not in NAMES:
        raise PlanError(f"{where} is a {type(value).__name__} of {array.dtype}, expected {of}")
    return array


def checked(what: str, wanted: Mapping[str, TensorType], given: object, fix: str) -> dict[str, Any]:
    """The arrays by path, all there and of their types; else one PlanError with every problem."""
    if not isinstance(given, Mapping):
        raise PlanError(f"{what}: arrays by path are expected, not a {type(given).__name__}")
    problems = [f"there is no {path}{near(path, wanted)}" for path in given if path not in wanted]
    arrays: dict[str, Any] = {}
    for path, type_ in wanted.items():
        if path not in given:
            problems.append(f"{path} is missing, expected {type_}")
            continue
        array, expected = as_array(given[path]), shape_dtype(type_)
        if (array.shape, array.dtype) != expected:
            name = dtype_name(array.dtype) or str(array.dtype)
            found = f"Tensor[{', '.join(map(str, array.shape))}; {name}]"
            problems.append(f"{path} is {found}, expected {type_}")
        arrays[path] = array
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems[:20])
        more = f"\n  and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise PlanError(f"{what}; {fix}\n{listed}{more}")
    return arrays
