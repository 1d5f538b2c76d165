"""Entries captured whole: what one run does on the device, done again without Python.

A function is captured for each signature (shapes, dtypes, sizes) that comes twice: first it runs as
it is, on inputs at fixed addresses, then it is recorded. Recordings read weights and write state
where these lay, so they are made anew when one of them was replaced.
"""

from __future__ import annotations

import ast
import ctypes
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from linnet.torch import native
from linnet.torch.kernels import HOLDING
from linnet.torch.layout import Watch
from linnet.torch.regions import called, functions_of, is_work, native_names, reaching

if TYPE_CHECKING:
    from linnet.torch.compile import Compiled, Source

# Signatures that a module remembers, the last used ones. A server meets fewer at a time.
KEPT = 128
Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Recording:
    """One run that took place: its results, and how to let it take place again into them.

    `replay` is None where the run cannot be recorded, because of `reason`.
    """

    results: Any
    replay: Callable[[], None] | None
    reason: str = ""


class Capture(Protocol):
    """What a kind of device offers to record runs with."""

    def first(self, run: Run) -> Any:
        """The results of a run that is not recorded, but is to be the next time."""

    def record(self, run: Run) -> Recording:
        """The run took place exactly once, recorded if it can be."""


class CudaCapture:
    """CUDA graphs, which share one pool of memory: results are copied before the next replay."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def first(self, run: Run) -> Any:
        # Libraries take their workspace for the stream, so it must not be the default one.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results = run()
        torch.cuda.current_stream().wait_stream(stream)
        return results

    def record(self, run: Run) -> Recording:
        # Capturing runs nothing on the device: the first replay is the run.
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                results = run()
        except RuntimeError as error:
            torch.cuda.synchronize()
            return Recording(run(), None, str(error).strip().splitlines()[0])
        graph.replay()
        return Recording(results, graph.replay)


class CpuCapture:
    """Runs of C kernels, recorded with the ops of PyTorch between them, which share memory."""

    def __init__(self) -> None:
        self.space = native.Space()

    def first(self, run: Run) -> Any:
        return run()

    def record(self, run: Run) -> Recording:
        # What is not recorded runs as well as ever, so no reason is told.
        recording = Recording(*native.replayed(run, self.space))
        _trim()
        return recording


def _trim() -> None:
    """The system has back what the first runs of many shapes left in glibc's heap, in pieces."""
    trim = getattr(_process(), "malloc_trim", None)
    if trim is not None:
        trim(0)


@cache
def _process() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None


def _cpu_capture() -> Capture | None:
    return CpuCapture() if native.available() else None


# By kind of device; None, or no row, where nothing can be captured.
CAPTURES: dict[str, Callable[[], Capture | None]] = {"cuda": CudaCapture, "cpu": _cpu_capture}


@dataclass(slots=True, eq=False)
class Graph:
    """One function for one signature: its inputs at fixed addresses, and the recording, if any.

    `constants` are those that the run reads, which must stay where they are.
    """

    args: list[Any]
    recording: Recording | None = None
    constants: dict[object, Any] = field(default_factory=dict[object, Any])

    def take(self, args: Sequence[Any]) -> None:
        for own, given in zip(self.args, args, strict=True):
            if isinstance(own, Tensor):
                own.copy_(given)


class Graphs:
    """The captured functions of one module on one device; mutable."""

    def __init__(
        self,
        module: nn.Module,
        code: Source,
        capture: Capture | None,
        compiled: Compiled | None = None,
    ) -> None:
        self.source = code
        self.device = code.device
        self.capture = capture
        self.compiled = compiled
        self.kept: OrderedDict[object, Graph] = OrderedDict()
        self.watch = Watch(module)
        self.busy = False
        self.code = code
        if capture is not None:
            self.code = self._around(code, capture)

    def _around(self, code: Source, capture: Capture) -> Source:
        """The code in a space of its own, in which calls of what is captured come here."""
        compiled = self.compiled
        inner = code.again(code.text if compiled is None else compiled.code.text, "captured")
        names = captured_functions(code.text, entry_functions(code))
        if compiled is not None:
            inner.space.update({name: compiled.code.space[name] for name in compiled.regions})
            whole = names & compiled.whole
            inner.space.update({name: compiled.function(name) for name in whole})
        for name in names:
            inner.space[name] = self._capturing(name, inner.space[name], capture)
        return inner

    def runner(self, name: str) -> Callable[..., Any]:
        """What runs the function; its results are the caller's own."""
        function: Callable[..., Any] = self.code.space[name]
        compiled = self.compiled
        if compiled is None:
            return function
        return lambda *args, **sizes: compiled.call(function, args, sizes)

    def _capturing(
        self, name: str, function: Callable[..., Any], capture: Capture
    ) -> Callable[..., Any]:
        def run(*args: Any, **sizes: int) -> Any:
            if self.busy:  # part of what is being captured
                return function(*args, **sizes)
            self.busy = True
            try:
                with torch.inference_mode(False), torch.no_grad():
                    return self._captured(name, function, capture, args, sizes)
            finally:
                self.busy = False

        run.__name__ = name
        return run

    def _captured(
        self,
        name: str,
        function: Callable[..., Any],
        capture: Capture,
        args: Sequence[Any],
        sizes: Mapping[str, int],
    ) -> Any:
        if self.watch.moved():
            for graph in self.kept.values():
                graph.recording = None
            self.watch.look()
        key = (name, *map(_signature, args), *sizes.items(), _autocast(self.device))
        known = key in self.kept
        if not known:
            self.kept[key] = Graph([_fixed(a) for a in args])
            if len(self.kept) > KEPT:
                self.kept.popitem(last=False)
        graph = self.kept[key]
        self.kept.move_to_end(key)
        recording = graph.recording
        if recording is not None and recording.replay is None:
            return function(*args, **sizes)
        graph.take(args)
        if recording is not None and recording.replay is not None:
            recording.replay()
            return _copied(recording.results)
        own = graph.args

        def run() -> Any:
            with _holding(graph.constants):
                return function(*own, **sizes)

        if not known:
            return _copied(capture.first(run))
        graph.recording = recording = capture.record(run)
        if recording.replay is None and recording.reason:
            warnings.warn(
                f"{name} runs without a graph: {recording.reason}", RuntimeWarning, stacklevel=2
            )
        return _copied(recording.results)


@contextmanager
def _holding(constants: dict[object, Any]) -> Iterator[None]:
    """Constants that are read meanwhile are these, or become so."""
    before, HOLDING.held = HOLDING.held, constants
    try:
        yield
    finally:
        HOLDING.held = before


def _signature(arg: object) -> object:
    if isinstance(arg, Tensor):
        return tuple(arg.shape), arg.dtype, arg.device
    return type(arg), id(arg) if isinstance(arg, nn.Module) else arg


def _autocast(device: torch.device) -> object:
    if not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def _fixed(arg: object) -> object:
    """Memory for the values of an input; what is no tensor is part of the signature."""
    return (
        torch.empty(arg.shape, dtype=arg.dtype, device=arg.device)
        if isinstance(arg, Tensor)
        else arg
    )


def _copied(results: Any) -> Any:
    """The results in memory of their own: the next replay writes into theirs."""
    if isinstance(results, tuple):
        return tuple(map(_copied, results))
    return results.clone() if isinstance(results, Tensor) else results


# ---------------------------------------------------------------- what is captured


def entry_functions(code: Source) -> set[str]:
    return {entry.function for entry in code.entries.values()}


def captured_functions(text: str, entries: Collection[str]) -> set[str]:
    """The functions of generated source that are captured, each as large as it can be.

    A loop of which the device decides the end cannot be, and a loop of passes through the layers is
    not: the graph of one pass serves all of them. Of such a function, what it calls is.
    """
    tree = ast.parse(text)
    functions, native = functions_of(tree), native_names(tree)
    kept = {name for name, function in functions.items() if function.decorator_list}
    walking = reaching(functions, lambda f: any(map(_walks, ast.walk(f))))
    turning = reaching(functions, lambda f: any(_turns(node, walking) for node in ast.walk(f)))
    steady = set(functions) - turning - kept
    parts = {name for f in turning for name in called(functions[f]) & steady}
    return (steady & set(entries)) | {
        name for name in parts if is_work(functions[name].body, set(), native)
    }


def _walks(node: ast.AST) -> bool:
    """A loop over blocks: one that counts has a range."""
    return isinstance(node, ast.For) and not _counts(node)


def _counts(node: ast.For) -> bool:
    return isinstance(node.iter, ast.Call) and called(node.iter) == {"range"}


def _turns(node: ast.AST, walking: set[str]) -> bool:
    match node:
        case ast.While() | ast.If():
            return True
        case ast.For(body=body) if _counts(node):
            return any(called(s) & walking or any(map(_walks, ast.walk(s))) for s in body)
        case _:
            return False
