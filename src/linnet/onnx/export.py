"""An entry as a model of ONNX, whole: its types, its weights, and what its parts are called."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx.inliner
from onnx import ModelProto, TensorProto, helper

from linnet import __version__
from linnet.backends import Kernels
from linnet.check import check
from linnet.core.ir import Program
from linnet.core.lower import lower_function
from linnet.core.passes import optimize as run_passes
from linnet.diagnostics import PlanError
from linnet.dims import Dim
from linnet.inputs import find_entry
from linnet.loading import Optionals, load_source
from linnet.onnx.emit import opsets, write_entry
from linnet.onnx.graph import IR_VERSION, tensor_proto, value_info, words
from linnet.onnx.kernels import KERNELS
from linnet.policy import Policy, policy_named
from linnet.stablehlo.emit import paths_of, results_of, written_by
from linnet.types import DTYPES, TensorType
from linnet.weights.bindings import read_bound
from linnet.weights.checkpoint import Weights
from linnet.workspace import Workspace

ALIGNMENT = 4096  # of each tensor in a file of weights, so that it can be mapped


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a model: its axes are numbers, or sizes by name."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name}: Tensor[{', '.join(map(str, self.shape))}; {self.dtype}]"


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """A model of ONNX: `inputs` are values, then states, then sizes that no input's shape says.

    `outputs` are results, then new states. `parameters` are the weights: initializers, or, where
    none were given, inputs between the values and the states.
    """

    model: ModelProto
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    parameters: tuple[Port, ...]

    def save(self, path: str | Path, *, external_threshold: int = 1 << 30) -> None:
        """Writes the model; weights of more bytes than the threshold go to `<path>.data`.

        PlanError where it cannot be written: then there is no new file.
        """
        target = Path(path)
        weights = self.model.graph.initializer
        total = sum(len(tensor.raw_data) for tensor in weights)
        try:
            if total <= external_threshold:
                _write(target, [self.model.SerializeToString()])
                return
            data = target.with_name(f"{target.name}.data")
            outside, chunks = _apart(weights, data.name)
            model = _without_weights(self.model)
            model.graph.initializer.extend(outside)
            _write(data, chunks)
            _write(target, [model.SerializeToString()])
        except OSError as error:
            raise PlanError(f"cannot write {target}: {error.strerror}") from error


def export_model(
    source: str | Path,
    *,
    generics: Mapping[str, int | str] | None = None,
    weights: Weights | None = None,
    entry: str | None = None,
    root: str | None = None,
    std_root: str | Path | None = None,
    numerics: str = "equivalent",
    bindings: Mapping[str, str] | str | Path | None = None,
    optionals: Optionals = "auto",
    cast_dtype: bool = False,
    inline: bool = False,
    constants: Mapping[str, bool | int | float] | None = None,
) -> Exported:
    """One entry as a model whose own sizes stay open, so that it serves all of them.

    Without `entry` it is the main one; without `weights` the parameters are inputs. Optional
    members are there where the weights have them (`"auto"`), or all of them (`"present"`), or none
    (`"absent"`). `inline` writes the functions out where they are called. PlanError with everything
    that is wrong with the source, the generics or the weights.
    """
    policy = policy_named(numerics)
    loaded = load_source(
        source,
        generics=generics,
        weights=weights,
        root=root,
        main=entry,
        entries=None if entry is None else [entry],
        bindings=bindings,
        std_root=std_root,
        cast_dtype=cast_dtype,
        constants=constants,
        policy=policy,
        optionals=optionals,
    )
    find_entry(loaded.program, entry)
    if loaded.bound is None:
        return export_program(loaded.program, entry, policy, inline=inline)
    arrays: dict[str, Any] = {}
    for slots, array in read_bound(loaded.bound):
        arrays.update(dict.fromkeys((slot.path for slot in slots), array))
    return export_program(loaded.program, entry, policy, arrays, inline=inline)


def export_function(
    source: str | Path,
    name: str,
    *,
    dtypes: Mapping[str, str] | None = None,
    ranks: Mapping[str, int] | None = None,
    absent: Iterable[str] = (),
    std_root: str | Path | None = None,
    numerics: str = "equivalent",
    inline: bool = False,
) -> Exported:
    """A free function of the source as a model; all of its sizes stay open.

    `dtypes` binds its dtype generics, `ranks` the number of axes of its packs, `absent` names
    optional parameters that are not passed. PlanError with what is wrong with the source.
    """
    policy = policy_named(numerics)
    analysis = check(Workspace(std_root=std_root), source)
    program = lower_function(
        analysis, analysis.roots[0].name, name, dtypes=dtypes, ranks=ranks, absent=absent
    )
    return export_program(run_passes(program, policy), program.main, policy, inline=inline)


def export_program(
    program: Program,
    entry: str | None,
    policy: Policy,
    weights: Mapping[str, Any] | None = None,
    *,
    inline: bool = False,
    kernels: Kernels = KERNELS,
) -> Exported:
    """The model of an entry; `weights` by path, without which parameters are inputs."""
    function = find_entry(program, entry)
    written = write_entry(program, entry, policy, kernels, apart=inline)
    paths = paths_of(function)
    ports: dict[str, list[Port]] = {kind: [] for kind in ("value", "param", "state", "size")}
    props = {
        "linnet.version": __version__,
        "linnet.entry": entry or program.main,
        "linnet.numerics": policy,
    }
    initializers: list[TensorProto] = []
    for name, (kind, path, type) in zip(written.inputs, paths, strict=True):
        port = _port(name, type)
        if kind == "state":
            props[f"linnet.state.{name}"] = path
        elif kind != "value":
            kind = "param"
            props[f"linnet.path.{name}"] = path
            if weights is not None:
                if path not in weights:
                    raise PlanError(f"there is no weight for {path}, expected {type}")
                initializers.append(tensor_proto(weights[path], name))
        ports[kind].append(port)
    for dim, name in written.sizes.items():
        ports["size"].append(Port(name, "i64", (1,)))
        props[f"linnet.size.{name}"] = dim
    made = results_of(function)
    outputs = [_port(name, type) for name, type in zip(written.outputs, made, strict=True)]
    new = written_by(function)
    for port, path in zip(outputs[len(outputs) - len(new) :], new, strict=True):
        props[f"linnet.next_state.{port.name}"] = path
    for number, fact in enumerate(function.facts):
        props[f"linnet.where.{number}"] = str(fact)
    inputs = [*ports["value"], *ports["param"], *ports["state"], *ports["size"]]
    graph = helper.make_graph(
        written.nodes,
        words(function.name) or "main",
        [_info(port) for port in inputs],
        [_info(port) for port in outputs],
        doc_string=function.docs or None,
    )
    model = helper.make_model(
        graph,
        functions=written.functions,
        opset_imports=opsets([*written.nodes, *(n for f in written.functions for n in f.node)]),
        ir_version=IR_VERSION,
        producer_name="linnet",
        producer_version=__version__,
    )
    helper.set_model_props(model, props)
    if inline:
        model = onnx.inliner.inline_local_functions(model)
    if weights is not None:  # last: what copies a model need not copy them
        first = len(ports["value"])
        del model.graph.input[first : first + len(initializers)]
        model.graph.initializer.extend(initializers)
    taken = (*ports["value"], *ports["state"], *ports["size"])
    return Exported(model, taken, tuple(outputs), tuple(ports["param"]))


def _port(name: str, type: TensorType) -> Port:
    axes = [axis for axis in type.shape if isinstance(axis, Dim)]
    shape = tuple(str(axis) if axis.constant is None else axis.constant for axis in axes)
    return Port(name, str(type.dtype), shape)


def _info(port: Port) -> Any:
    return value_info(port.name, DTYPES[port.dtype], port.shape)


# ---------------------------------------------------------------- files


def _apart(weights: Iterable[TensorProto], file: str) -> tuple[list[TensorProto], list[bytes]]:
    """Each weight as its place in the file, and the file's bytes: those of equal ones once."""
    told: list[TensorProto] = []
    places: dict[bytes, int] = {}
    chunks: list[bytes] = []
    at = 0
    for tensor in weights:
        data = tensor.raw_data
        if data not in places:
            chunks += [b"\0" * (-at % ALIGNMENT), data]
            places[data] = at + len(chunks[-2])
            at = places[data] + len(data)
        place = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        place.data_location = TensorProto.EXTERNAL
        for key, value in (("location", file), ("offset", places[data]), ("length", len(data))):
            place.external_data.add(key=key, value=str(value))
        told.append(place)
    return told, chunks


def _without_weights(model: ModelProto) -> ModelProto:
    """The same model with no initializers, whose bytes are not copied."""
    made = ModelProto()
    for field, value in model.ListFields():
        if field.name == "graph":
            for inner, part in value.ListFields():
                if inner.name == "initializer":
                    continue
                _set(made.graph, inner, part)
        else:
            _set(made, field, value)
    return made


def _set(target: Any, field: Any, value: Any) -> None:
    held = getattr(target, field.name)
    if hasattr(held, "extend"):
        held.extend(value)
    elif hasattr(held, "CopyFrom"):
        held.CopyFrom(value)
    else:
        setattr(target, field.name, value)


def _write(target: Path, chunks: Iterable[bytes]) -> None:
    """All of the file, or none of it."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
