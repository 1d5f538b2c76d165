"""A placed module at work: values follow the units over devices, offloaded weights come and go.

A call of a unit's method moves what it is given to the unit's device; its offloaded weights are
there from the call to its return, while the next unit's are fetched. What the frame (the code
between units) reads of an offloaded unit is fetched for that reading alone. Between devices, the
frame moves values to a weight, else to where the later units are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from linnet.torch.offload import Ahead, Source, Spill, Waiting, pages
from linnet.torch.placement import Placement
from linnet.torch.tensors import tensor_of
from linnet.weights import Bound

if TYPE_CHECKING:
    from linnet.torch.runtime import Code, LinnetModule

CPU = torch.device("cpu")
# Where a unit's module says that it is one.
_UNIT = "_linnet_unit"


@dataclass(slots=True, eq=False)
class PlacedUnit:
    """A unit while the module runs: its device, and what is brought there for each call.

    `waiting` are the dicts of its modules that hold sources, by module and attribute.
    """

    path: str
    device: torch.device
    waiting: list[tuple[nn.Module, str, Waiting]] = field(
        default_factory=list[tuple[nn.Module, str, Waiting]]
    )
    entered: bool = False

    @property
    def sources(self) -> list[Source]:
        return [source for _, _, held in self.waiting for source in held.sources.values()]

    def arrive(self, tensors: Iterable[Tensor]) -> None:
        """Its modules hold these, in the order of `sources`."""
        given = iter(tensors)
        for module, kind, held in self.waiting:
            module.__dict__[kind] = held.with_fetched({name: next(given) for name in held.sources})

    def leave(self) -> None:
        """Its modules hold what waits, and no memory for it."""
        for module, kind, held in self.waiting:
            module.__dict__[kind] = held
        for source in self.sources:
            source.release()


class Running:
    """What a placed module keeps while it runs.

    `present` are the offloaded units whose weights are on their device now, `most` the most that
    there have been at once, those being fetched included.
    """

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.depth = 0  # of entries that run
        self.present: set[str] = set()
        self.most = 0
        self.read: dict[str, Source] = {}  # what the frame has read, and not yet given back
        self.units: dict[str, PlacedUnit] = {}
        self.after: dict[str, str] = {}
        self.last: str | None = None
        self.ahead = Ahead() if placement.ahead else None
        several = len(set(placement.slots.values())) > 1
        self.frame = Frame(placement) if several else None

    # ------------------------------------------------ calls

    def inhabit(self, code: Code) -> None:
        """The generated functions run as it is placed."""
        space = code.space
        entries = {entry.function for entry in code.entries.values()}
        for name, function in list(space.items()):
            if name in entries:
                space[name] = self.entry(function)
            elif _is_method(function, space):
                space[name] = self.method(function, space)

    def entry(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The entry, its results at home and nothing of what was brought kept."""

        @functools.wraps(function)
        def run(*args: Any, **sizes: Any) -> Any:
            if self.depth:
                return function(*args, **sizes)
            self.depth += 1
            try:
                if self.frame is None:
                    return function(*args, **sizes)
                with self.frame.on():
                    results = function(*args, **sizes)
                home = self.placement.home
                return tree_map_only(Tensor, lambda t: t.to(home), results)
            finally:
                self.depth -= 1
                self.finish()

        return run

    def method(self, function: Callable[..., Any], space: dict[str, Any]) -> Callable[..., Any]:
        """The method of a block, run where the block is if it is a unit."""

        @functools.wraps(function)
        def run(block: nn.Module, *args: Any, **sizes: Any) -> Any:
            unit = block.__dict__.get(_UNIT)
            if unit is None or unit.entered:
                return function(block, *args, **sizes)
            with self.entered(unit, space) as given:
                return function(block, *given(args), **sizes)

        return run

    @contextmanager
    def entered(self, unit: PlacedUnit, space: dict[str, Any]) -> Iterator[Callable[[Any], Any]]:
        """Inside, the unit's code runs on its device and has its weights; what brings values."""
        before, frame = space["DEVICE"], self.frame
        unit.entered = True
        try:
            space["DEVICE"] = unit.device
            if unit.waiting:
                self.arrive(unit)
            if frame is None:
                yield lambda values: values
            else:
                with frame.off():
                    yield lambda values: frame.moved(values, unit.device)
        finally:
            space["DEVICE"] = before
            unit.entered = False
            if unit.waiting:
                unit.leave()
                self.present.discard(unit.path)

    # ------------------------------------------------ what is brought

    def arrive(self, unit: PlacedUnit) -> None:
        """The unit's weights are there, and the next unit's on their way."""
        self.give_back()
        if self.last is not None:
            self.after[self.last] = unit.path
        self.last = unit.path
        sources = unit.sources
        if self.ahead is None:
            unit.arrive([source.fetch() for source in sources])
        else:
            unit.arrive(self.ahead.take(unit.path, sources))
            following = self.units.get(self.after.get(unit.path, ""))
            if following is not None and following is not unit:
                self.ahead.start(following.path, following.sources)
        self.present.add(unit.path)
        coming = self.ahead.units if self.ahead is not None else ()
        self.most = max(self.most, len(self.present | set(coming)))

    def glance(self, source: Source) -> Tensor:
        """A weight that the frame reads, which it has for as long as it keeps the tensor."""
        if source.path not in self.read:
            self.give_back()
            self.read[source.path] = source
        return source.fetch()

    def give_back(self) -> None:
        """The pages of what the frame has read count as memory no longer."""
        for source in self.read.values():
            source.release()
        self.read.clear()

    def finish(self) -> None:
        """An entry has ended: nothing that was brought is kept."""
        self.last = None
        self.give_back()
        if self.ahead is not None:
            self.ahead.drop()
        if self.frame is not None:
            self.frame.copies.clear()


class Frame(TorchFunctionMode):
    """Between units, an operation's operands are brought to one device."""

    def __init__(self, placement: Placement) -> None:
        super().__init__()
        self.active = False
        self.order = {device: slot for slot, device in enumerate(placement.devices)}
        self.copies: dict[tuple[int, torch.device], tuple[Tensor, int, Tensor]] = {}

    @contextmanager
    def on(self) -> Iterator[None]:
        """Inside, operands meet."""
        self.active = True
        try:
            with self:
                yield
        finally:
            self.active = False

    @contextmanager
    def off(self) -> Iterator[None]:
        """Inside is one device: no operand is moved."""
        if not self.active:
            yield  # a layer that runs again for the backward pass
            return
        self.active = False
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            self.__enter__()  # type: ignore[no-untyped-call]
            self.active = True

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        found: dict[torch.device, Tensor] = {}
        operands = [args, kwargs or {}]
        for tensor in _tensors(operands):
            found.setdefault(tensor.device, tensor)
        if len(found) > 1:
            device = self._meeting(func, args, found)
            args = self.moved(args, device)
            kwargs = {name: self.moved(value, device) for name, value in (kwargs or {}).items()}
        return func(*args, **(kwargs or {}))

    def _meeting(
        self, func: Callable[..., Any], args: tuple[Any, ...], found: Mapping[torch.device, Tensor]
    ) -> torch.device:
        """Where the operands meet: what is written stays, weights are not moved for values."""
        name = getattr(func, "__name__", "")
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            written: torch.device = args[0].device
            return written
        for tensor in _tensors([args]):
            if isinstance(tensor, nn.Parameter):
                return tensor.device
        return max(found, key=lambda device: self.order.get(device, -1))

    def moved(self, values: Any, device: torch.device) -> Any:
        """The values with every tensor on the device; the same one is moved once a pass."""
        return tree_map_only(Tensor, lambda t: self._moved(t, device), values)

    def _moved(self, tensor: Tensor, device: torch.device) -> Tensor:
        if tensor.device == device:
            return tensor
        if tensor.is_inference():
            # Nothing says whether it has been written since: state may be.
            return tensor.to(device, non_blocking=device.type != "cpu")
        key = (id(tensor), device)
        known = self.copies.get(key)
        if known is None or known[1] != tensor._version:
            copy = tensor.to(device, non_blocking=device.type != "cpu")
            known = self.copies[key] = (tensor, tensor._version, copy)
        return known[2]


def _tensors(operands: Any) -> Iterable[Tensor]:
    for x in operands.values() if isinstance(operands, dict) else operands:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, (list, tuple, dict)):
            yield from _tensors(x)


# ---------------------------------------------------------------- a module is placed


def waiting_place(placement: Placement, path: str, home: torch.device) -> torch.device:
    """Where loading puts a weight: on its unit's device, or on the CPU if it is offloaded."""
    return CPU if placement.streams(path) else placement.device_of(path, home)


def apply(module: LinnetModule, placement: Placement, waiting: Iterable[Bound]) -> None:
    """The loaded module runs as it is placed; `waiting` are the weights that were left unread."""
    if placement.trivial:
        return
    running = Running(placement)
    sources = _sources(module, placement, {one.slot.path: one for one in waiting})
    for unit in placement.units:
        device = placement.devices[placement.slots[unit.path]]
        running.units[unit.path] = PlacedUnit(unit.path, device)
    module._settle()
    _mark(module, running)
    _wait(module, running, sources)
    running.after.update(_in_order(placement))
    module._run_as(running)


def _sources(
    module: LinnetModule, placement: Placement, waiting: Mapping[str, Bound]
) -> dict[str, Source]:
    """Where each offloaded weight waits: a file, or memory for accelerators to copy from."""
    tensors = {path: t for path, t, _ in module._slots() if placement.streams(path)}
    held = {path for path in tensors if placement.unit_of(path) in placement.held}
    spilled = [path for path in tensors if path not in held and path not in waiting]
    spill = Spill(sum(pages(tensors[path].nbytes) for path in spilled)) if spilled else None
    sources: dict[str, Source] = {}
    for path, tensor in tensors.items():
        device = placement.device_of(path, module.device)
        origin: Bound | Tensor = waiting.get(path, tensor.detach())
        if path in held and isinstance(origin, Bound):
            origin = tensor_of(origin.read()).clone()
        if isinstance(origin, Tensor):
            if spill is not None and path in spilled:
                origin = spill.keep(origin)
            elif device.type == "cuda":
                origin = origin.pin_memory()
        kept = spill if path in spilled else None
        parameter = isinstance(tensor, nn.Parameter)
        sources[path] = Source(path, device, parameter, origin, kept)
    return sources


def _mark(module: LinnetModule, running: Running) -> None:
    """The units' modules know it."""
    for path, unit in running.units.items():
        owner, name = module._owner(path)
        block = owner._modules.get(name)
        if block is not None:
            block.__dict__[_UNIT] = unit


def _wait(module: LinnetModule, running: Running, sources: Mapping[str, Source]) -> None:
    """The modules hold what waits in place of the offloaded weights."""
    groups: dict[tuple[nn.Module, str], dict[str, Source]] = {}
    for path, source in sources.items():
        owner, name = module._owner(path)
        kind = "_parameters" if source.parameter else "_buffers"
        groups.setdefault((owner, kind), {})[name] = source
    for (owner, kind), group in groups.items():
        held: dict[str, Any] = owner.__dict__[kind]
        empty = {name: _empty(held[name]) for name in group}
        waiting = Waiting({**held, **empty}, group, running.glance)
        owner.__dict__[kind] = waiting
        path = next(iter(group.values())).path
        unit = running.placement.unit_of(path)
        assert unit is not None
        if owner is not module or "." in path:
            running.units[unit].waiting.append((owner, kind, waiting))


def _in_order(placement: Placement) -> Iterable[tuple[str, str]]:
    """The offloaded positions of each array, with the next one: what a first run goes by."""
    for unit, following in pairwise(placement.offloaded):
        owner, _, position = unit.rpartition(".")
        if following == f"{owner}.{int(position) + 1 if position.isdigit() else ''}":
            yield unit, following


def _empty(tensor: Tensor) -> Tensor:
    """The tensor's shape and dtype, and nothing else."""
    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return nn.Parameter(empty, False) if isinstance(tensor, nn.Parameter) else empty


def _is_method(function: object, space: dict[str, Any]) -> bool:
    """Whether it is generated code that takes a block."""
    if not isinstance(function, FunctionType) or function.__globals__ is not space:
        return False
    code = function.__code__
    return code.co_argcount > 0 and code.co_varnames[0] == "self"
