"""The ways in which a program runs: one model of it for each, over the same weights and state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from linnet.core.ir import Program
from linnet.diagnostics import PlanError
from linnet.inputs import near
from linnet.policy import Policy
from linnet.weights.arrays import as_array

Arrays = Mapping[str, Any]
Array = np.ndarray[Any, Any]


class Runner(Protocol):
    """A program on a backend: all of its entries over one copy of the weights."""

    def run(
        self, entry: str, inputs: Sequence[Any], generics: Mapping[str, int], state: Arrays
    ) -> tuple[Any, dict[str, Array]]:
        """The entry's results on this state, in its structure, and every state after it."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a program: what it needs, and what makes a runner of it.

    `kernels` are the module and the name of the table of native kernels that it has, or of what
    gives it.
    """

    name: str
    needs: tuple[str, ...]  # packages to import, which their distributions are named after
    extra: str
    kernels: tuple[str, str]
    make: Callable[[Program, Policy, Arrays], Runner]

    @property
    def missing(self) -> str:
        """A package that it needs and that is not installed; empty where all are."""
        return next((name for name in self.needs if find_spec(name) is None), "")

    @property
    def versions(self) -> dict[str, str]:
        """The installed versions of what it needs."""
        return {name: _version(name) for name in self.needs}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # installed under another name, such as onnxruntime-gpu
        from importlib import import_module

        return str(getattr(import_module(name), "__version__", "unknown"))


class _Torch:
    def __init__(self, program: Program, policy: Policy, weights: Arrays, compile: bool) -> None:
        import torch

        from linnet.torch import LinnetModule, bind_weights
        from linnet.torch.compile import check_mode

        device = torch.device("cpu")
        check_mode(compile, device)  # torch.compile needs a compiler
        self.module = LinnetModule(program, policy, device, present=weights, compile=compile)
        held = {path for path, _, _ in self.module._slots()}
        bind_weights(self.module, {path: x for path, x in weights.items() if path in held})

    def run(
        self, entry: str, inputs: Sequence[Any], generics: Mapping[str, int], state: Arrays
    ) -> tuple[Any, dict[str, Array]]:
        import torch

        from linnet.torch.tensors import tensor_of

        module = self.module
        with torch.no_grad():
            for path in module.state_paths:
                module.get_buffer_at(path).copy_(tensor_of(np.array(state[path])))
            results = module.run_entry(entry, inputs, generics)
        held = {p: as_array(module.get_buffer_at(p).clone()) for p in module.state_paths}
        return results, held


class _Keeping:
    """A model that has `run_entry` and its state by path: JAX's and ONNX Runtime's."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def run(
        self, entry: str, inputs: Sequence[Any], generics: Mapping[str, int], state: Arrays
    ) -> tuple[Any, dict[str, Array]]:
        model = self.model
        model.state = {path: np.array(state[path]) for path in model.state_paths}
        results = model.run_entry(entry, inputs, generics)
        return results, {path: np.array(x) for path, x in model.state.items()}


def _torch(compile: bool) -> Callable[[Program, Policy, Arrays], Runner]:
    return lambda program, policy, weights: _Torch(program, policy, weights, compile)


def _jax(generated: bool) -> Callable[[Program, Policy, Arrays], Runner]:
    def make(program: Program, policy: Policy, weights: Arrays) -> Runner:
        from linnet.jax.entry import placed
        from linnet.jax.exported import wide
        from linnet.jax.runtime import LinnetModel

        own: dict[str, Any] = {}
        for path, array in weights.items():
            with wide(array.dtype.itemsize == 8):
                own[path] = placed(array, path, None)
        return _Keeping(LinnetModel(program, policy, own, generated))

    return make


def _onnx(program: Program, policy: Policy, weights: Arrays) -> Runner:
    from linnet.onnx.entry import ort_value
    from linnet.onnx.runtime import OnnxModel

    held = {path: ort_value(array) for path, array in weights.items()}
    return _Keeping(OnnxModel(program, policy, held, ["CPUExecutionProvider"]))


_XLA = "linnet.jax.kernels", "KERNELS"
WAYS: tuple[Way, ...] = (
    Way("torch", ("torch",), "torch", ("linnet.torch.kernels", "KERNELS"), _torch(False)),
    Way("torch-compiled", ("torch",), "torch", ("linnet.torch.kernels", "KERNELS"), _torch(True)),
    Way("jax", ("jax",), "jax", _XLA, _jax(True)),
    Way("stablehlo", ("jax",), "jax", ("linnet.stablehlo.kernels", "KERNELS"), _jax(False)),
    Way("onnx", ("onnxruntime", "onnx"), "onnx", ("linnet.onnx.native", "kernels"), _onnx),
)


def chosen(names: Sequence[str] | None) -> tuple[list[Way], list[Way]]:
    """The ways to compare, and those whose packages are not installed.

    Raises PlanError for a name that is no way, and for a named one that is not installed.
    """
    if names is None:
        return [w for w in WAYS if not w.missing], [w for w in WAYS if w.missing]
    known = {way.name: way for way in WAYS}
    for name in names:
        if name not in known:
            raise PlanError(
                f"no backend {name}{near(name, known)}; there are {', '.join(known)}, and the "
                "reference that they are compared with"
            )
        way = known[name]
        if way.missing:
            raise PlanError(
                f"backend {name} needs {way.missing}, which is not installed: "
                f"pip install 'linnet[{way.extra}]'"
            )
    return [known[name] for name in dict.fromkeys(names)], []
