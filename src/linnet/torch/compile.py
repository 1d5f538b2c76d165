"""How a module's entries run: generated source as it is, compiled in regions, or captured whole."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from linnet.diagnostics import PlanError
from linnet.policy import Policy
from linnet.torch.emit import Entry
from linnet.torch.graphs import CAPTURES, Graphs
from linnet.torch.placement import Placement, listed
from linnet.torch.regions import split

# "graphs" is "reduce-overhead" without torch.compile inside.
Mode = Literal["eager", "inductor", "reduce-overhead", "graphs"]
_MODES: dict[str, Mode] = {
    "inductor": "inductor",
    "reduce-overhead": "reduce-overhead",
    "cudagraphs": "reduce-overhead",
}
# What torch.compile is asked for; tests count with others.
BACKEND: str | Callable[..., Any] = "inductor"
# Variants of one region before that is an error: batch and sequence sizes make four at most.
VARIANTS = 64


class Source(Protocol):
    """Generated source that is there to run: its text, and the names that it defines."""

    text: str
    entries: dict[str, Entry]
    space: dict[str, Any]
    device: torch.device

    def again(self, text: str, tag: str) -> Source:
        """Other text, in a space of its own."""

    def to(self, device: torch.device) -> None:
        """What the code creates, it creates there."""


def mode_named(compile: object) -> Mode | None:
    """The mode that the option asks for; None for the best one that costs no compilation."""
    if compile is None:
        return None
    if compile is False:
        return "eager"
    if compile is True:
        return "inductor"
    if isinstance(compile, str) and compile in _MODES:
        return _MODES[compile]
    listed = ", ".join(f'"{name}"' for name in _MODES)
    raise PlanError(f"compile={compile!r}: it is None, False, True (which is inductor), {listed}")


def check_mode(compile: object, device: torch.device) -> None:
    """The option is one that there is, and works on the device; else a PlanError."""
    if mode_named(compile) == "inductor":
        check_compilers(device)


def check_placed(mode: Mode | None, placement: Placement) -> None:
    """A placed module runs so; else a PlanError says why it does not."""
    if mode in (None, "eager") or placement.trivial:
        return
    why = "its values move from one device to another on the way"
    if placement.offloaded:
        why = f"weights are brought for each call ({listed(placement.offloaded)})"
    raise PlanError(
        f"compile={mode!r}: a module that device_map has placed runs as generated source, since "
        f"{why}: load it with compile=False, or on one device that holds it"
    )


def check_compilers(device: torch.device) -> None:
    """What torch.compile needs for code on the device is installed; else a PlanError names it."""
    if BACKEND != "inductor":
        return
    if device.type != "cpu":
        if device.type == "cuda" and importlib.util.find_spec("triton") is None:
            raise PlanError(
                "compile='inductor' needs Triton on a GPU, which is not installed: "
                "pip install triton, or load with compile=False"
            )
        return
    found = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    compiler = os.environ.get("CXX") or found
    if shutil.which(compiler) is None:
        raise PlanError(
            f"compile='inductor' needs a C++ compiler, and {compiler} is not there: "
            "install it (g++ of gcc), or name another in the environment variable CXX, "
            "or load with compile=False"
        )
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        raise PlanError(
            f"compile='inductor' needs the headers of Python, and {headers} has no Python.h: "
            "install python3-dev (or python3-devel), or load with compile=False"
        )


class Modes:
    """The ways in which one module's entries run; mutable: each is made when it is first used."""

    def __init__(self, module: nn.Module, compile: object, numerics: Policy) -> None:
        self.module = module
        self.default = mode_named(compile)
        self.numerics = numerics
        self._compiled: dict[Source, Compiled] = {}
        self._graphs: Graphs | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Modes:
        """Nothing that holds the other module's memory."""
        copied = Modes(memo.get(id(self.module), self.module), None, self.numerics)
        copied.default = self.default
        return copied

    def runner(
        self, code: Source, entry: str, compile: object, inputs: Sequence[Tensor]
    ) -> Callable[..., Any]:
        """What runs the entry of the code in the mode that this call or else the module has."""
        function = code.entries[entry].function
        mode = self.mode(entry, compile, code.device, inputs)
        if mode == "eager":
            run: Callable[..., Any] = code.space[function]
            return run
        if mode == "inductor":
            return self._inductor(code).runner(function)
        return self._captured(code, fused=mode == "reduce-overhead").runner(function)

    def mode(
        self, entry: str, compile: object, device: torch.device, inputs: Sequence[Tensor]
    ) -> Mode:
        """The mode for these inputs: graphs give no gradients, so they are not the default."""
        asked = mode_named(compile) or self.default
        placement: Placement | None = self.module.__dict__.get("placement")
        if placement is not None and not placement.trivial:
            check_placed(asked, placement)
            return "eager"
        if asked == "inductor":
            check_compilers(device)
        if asked is None:
            if device.type == "cpu" or wants_gradient(self.module, inputs):
                return "eager"
            return "graphs"
        if asked == "reduce-overhead" and wants_gradient(self.module, inputs):
            raise PlanError(
                f"{entry}: compile='reduce-overhead' gives no gradients, and some are asked for: "
                "call it under torch.no_grad(), or with compile='inductor'"
            )
        return asked

    def _inductor(self, code: Source) -> Compiled:
        if code not in self._compiled:
            self._compiled[code] = Compiled(code, self.module, self.numerics)
        self._compiled[code].code.to(code.device)
        return self._compiled[code]

    def _captured(self, code: Source, *, fused: bool) -> Graphs:
        """Graphs of the code; `fused` ones on a GPU are of what torch.compile makes of it."""
        known, kind = self._graphs, code.device.type
        fused = fused and kind == "cuda" and importlib.util.find_spec("triton") is not None
        inner = self._inductor(code) if fused else None
        if (
            known is None
            or known.source is not code
            or known.device != code.device
            or known.compiled is not inner
        ):
            known = Graphs(self.module, code, CAPTURES.get(kind, lambda: None)(), inner)
            self._graphs = known
        return known


def wants_gradient(module: nn.Module, args: Sequence[Any]) -> bool:
    """Whether a call with these arguments now would be recorded for a backward pass."""
    if not torch.is_grad_enabled():
        return False
    given = (a.requires_grad for a in args if isinstance(a, Tensor))
    return any(given) or any(p.requires_grad for p in module.parameters())


class Compiled:
    """Generated source in regions that torch.compile makes, one for each kind of block."""

    def __init__(self, code: Source, module: nn.Module, numerics: Policy) -> None:
        regions = split(code.text)
        self.module = module
        self.view = _View()
        self.whole = regions.whole
        self.regions = regions.names
        self.code = code.again(regions.text, "in regions")
        # Rounding where the source rounds, unless the policy lets products be kept wider.
        precise = BACKEND == "inductor" and numerics != "fast"
        self.options: Any = {"emulate_precision_casts": True} if precise else None
        self.functions: dict[str, Callable[..., Any]] = {}
        for name in regions.names:
            self.code.space[name] = self._made(name)

    def _made(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = torch.compile(
            self.code.space[name], dynamic=True, backend=BACKEND, options=self.options
        )
        return function

    def runner(self, name: str) -> Callable[..., Any]:
        """What calls the function as `call` does."""
        function = self.function(name)
        return lambda *args, **sizes: self.call(function, args, sizes)

    def function(self, name: str) -> Callable[..., Any]:
        """The function by its name in the source: one without a loop is a region itself."""
        if name not in self.functions:
            whole = name in self.whole
            self.functions[name] = self._made(name) if whole else self.code.space[name]
        return self.functions[name]

    def call(
        self, function: Callable[..., Any], args: Sequence[Any], sizes: Mapping[str, int]
    ) -> Any:
        """The results, with torch.compile set so that no variant of a region is left out."""
        given = [self.view.of(a) if a is self.module else a for a in args]
        with _settings(), ExitStack() as ways:
            # One way of calling, whatever the caller's: each would be a variant of every region.
            if not wants_gradient(self.module, args):
                ways.enter_context(torch.no_grad())
                ways.enter_context(torch.inference_mode(False))
            with _plainly(function):
                return function(*given, **sizes)


class _View(nn.Module):
    """A module's members without its class, whose own attributes are none of the code's business.

    torch.compile would look at every entry of a module that looks names up itself.
    """

    def of(self, module: nn.Module) -> nn.Module:
        own, members = self.__dict__, module.__dict__
        if len(own) != len(members):
            own.clear()
        own.update(members)
        return self


@contextmanager
def _settings() -> Iterator[None]:
    """Sizes that happen to be equal are told apart, and the user's configuration is left alone."""
    import torch._dynamo
    from torch.fx.experimental import _config as sizes

    limits = torch._dynamo.config.patch(
        recompile_limit=VARIANTS,
        accumulated_recompile_limit=1 << 20,
        fail_on_recompile_limit_hit=True,
    )
    with limits, sizes.patch(use_duck_shape=False):  # type: ignore[attr-defined]
        yield


@contextmanager
def _plainly(function: Callable[..., Any]) -> Iterator[None]:
    """What torch.compile itself cannot do is a PlanError."""
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    try:
        yield
    except (TorchDynamoException, FailOnRecompileLimitHit) as error:
        why = str(error).strip().splitlines()
        name = getattr(function, "__name__", "the entry")
        raise PlanError(
            f"torch.compile failed for {name}: {why[0] if why else type(error).__name__}; "
            "run it with compile=False"
        ) from error
