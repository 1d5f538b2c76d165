"""The backends by name, and native kernels: what a kernel is and which one a call gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType

from linnet.core.derive import dtype_of
from linnet.core.ir import Call, Function, Program, functions_of
from linnet.diagnostics import installing
from linnet.emit import ordered
from linnet.policy import Policy, allows
from linnet.types import DType


@dataclass(frozen=True, slots=True)
class Backend:
    """A module, imported on use, and what it makes of a program."""

    module: str
    makes: str
    extra: str  # the optional dependencies that it needs

    def load(self) -> ModuleType:
        """The backend's module; NotInstalledError where its framework is missing."""
        with installing(self.module.removesuffix(".emit"), self.extra):
            return import_module(self.module)


BACKENDS: dict[str, Backend] = {
    "torch": Backend("linnet.torch.emit", "a torch.nn.Module that runs generated source", "torch"),
    "jax": Backend("linnet.jax.emit", "functions of jax.numpy, in generated source", "jax"),
    "onnx": Backend("linnet.onnx.emit", "a model of ONNX, which ONNX Runtime runs", "onnx"),
    "reference": Backend("linnet.reference", "values, evaluated node by node in NumPy", "nest"),
}


Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """Sizes and values to try a kernel on.

    `dims` gives the op's dimensions (a pack `S` of two axes as `S_0`, `S_1`), `absent` the optional
    parameters to leave out, `ranges` the bounds (both included) of integer and scalar parameters.
    """

    dims: Mapping[str, int]
    absent: tuple[str, ...] = ()
    ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])


def any_call(call: Call) -> str | None:
    """Accepts every call."""
    return None


@dataclass(frozen=True, slots=True)
class Kernel:
    """A native implementation of an op, run in place of its body.

    `policy` is the strictest policy that allows it. `accepts` answers None, or why not, as a
    phrase. `run` is the function that its call is printed as: it takes the op's parameters in
    order, those in `named` by name and a missing optional one not at all, then the sizes `dims` of
    the op by name. `in_place` is the form that writes into its first argument and returns nothing.
    `numbers` are the parameters that may be Python numbers.
    """

    policy: Policy
    run: str
    samples: tuple[Sample, ...]
    accepts: Callable[[Call], str | None] = any_call
    named: frozenset[str] = frozenset()
    dims: tuple[str, ...] = ()
    in_place: str = ""
    numbers: frozenset[str] = frozenset()


# Kernels of each op by its identity, `module::name`, the most preferred first.
Kernels = Mapping[str, Sequence[Kernel]]


def choose(kernels: Kernels, call: Call, policy: Policy) -> tuple[Kernel | None, dict[str, str]]:
    """The first kernel that the policy allows and that accepts the call, and why others do not."""
    kernel, refused = consider(kernels, call, policy)
    return kernel, {refusal.kernel.run: refusal.reason for refusal in refused}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A kernel that a call did not get, and why."""

    kernel: Kernel
    reason: str


def consider(
    kernels: Kernels, call: Call, policy: Policy
) -> tuple[Kernel | None, tuple[Refusal, ...]]:
    """The kernel that a call gets under a policy, and those that were preferred and refused."""
    refused: list[Refusal] = []
    op = call.function.op
    # An op outside std shares no identity with one of std's, whatever it is called.
    if op is None or op.package != "std":
        return None, ()
    for kernel in kernels.get(str(op), ()):
        reason = kernel.accepts(call)
        if not allows(policy, kernel.policy):
            reason = f"needs numerics={kernel.policy!r}"
        if reason is None:
            return kernel, tuple(refused)
        refused.append(Refusal(kernel, reason))
    return None, tuple(refused)


def calls_in(function: Function) -> Iterator[Call]:
    """The calls of a function, those in its loops and branches among them, in their order."""
    for node in ordered(function.results):
        if isinstance(node, Call):
            yield node
        else:
            for body in functions_of(node):
                yield from calls_in(body)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What a call of an op gets: a kernel, or None for its body."""

    call: Call
    kernel: Kernel | None
    refused: tuple[Refusal, ...]


def choices(kernels: Kernels, program: Program, policy: Policy) -> list[Choice]:
    """Every call of an op that is made when entries run: a kernel makes none."""
    found: list[Choice] = []
    done: set[Function] = set()
    waiting = list(program.entries.values())
    while waiting:
        function = waiting.pop(0)
        if function in done:
            continue
        done.add(function)
        for call in calls_in(function):
            kernel, refused = consider(kernels, call, policy)
            if call.function.op is not None:
                found.append(Choice(call, kernel, refused))
            if kernel is None:
                waiting.append(call.function)
    return found


def call_dtype(call: Call) -> DType:
    """The dtype of the call's first input."""
    return dtype_of(call.inputs[0])


def call_dims(call: Call) -> dict[str, int | None]:
    """The callee's dimensions, as far as they are constants in the call."""
    return {name: dim.constant for name, dim in zip(call.function.dims, call.dims, strict=True)}
