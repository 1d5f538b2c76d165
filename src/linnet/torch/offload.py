"""Offloaded weights: where they wait, and how they come to a device and leave it."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from linnet.diagnostics import PlanError
from linnet.torch.tensors import tensor_of
from linnet.weights import Bound
from linnet.weights.location import MappedFile


class Spill:
    """A nameless file, mapped, for weights that no file holds: memory that can be given back."""

    def __init__(self, size: int) -> None:
        self._end = 0
        try:
            with tempfile.TemporaryFile(prefix="linnet-") as file:
                file.truncate(max(size, 1))
                self._map = mmap.mmap(file.fileno(), max(size, 1))
        except OSError as error:
            raise PlanError(
                f"{tempfile.gettempdir()} has no room for {size:,} bytes of offloaded weights "
                f"({error.strerror or error}): TMPDIR names another directory"
            ) from error

    def keep(self, tensor: Tensor) -> Tensor:
        """The same tensor in the file."""
        start, size = self._end, tensor.nbytes
        if not size:
            return tensor
        self._end += pages(size)
        whole = torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=start)
        kept = whole.view(tensor.dtype).view(tensor.shape)
        kept.copy_(tensor)
        self.release(kept)
        return kept

    def release(self, kept: Tensor) -> None:
        """The tensor's pages count as memory no longer; reading them again is allowed."""
        if kept.nbytes and hasattr(mmap, "MADV_DONTNEED"):
            base = torch.frombuffer(self._map, dtype=torch.uint8, count=1).data_ptr()
            start = kept.data_ptr() - base
            self._map.madvise(mmap.MADV_DONTNEED, start, pages(kept.nbytes))


def pages(size: int) -> int:
    """What so many bytes take in a Spill: whole pages."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


@dataclass(slots=True, eq=False)
class Source:
    """An offloaded weight: where its values wait, and the device that they are brought to."""

    path: str
    device: torch.device
    parameter: bool
    origin: Bound | Tensor
    spill: Spill | None = None

    def fetch(self) -> Tensor:
        """The weight on its device; what a file holds in the right form is not copied on a CPU."""
        origin = self.origin
        tensor = tensor_of(origin.read()) if isinstance(origin, Bound) else origin
        tensor = tensor.to(self.device, non_blocking=True)
        if not self.mapped:
            self.release()
        return nn.Parameter(tensor, requires_grad=False) if self.parameter else tensor

    @property
    def mapped(self) -> bool:
        """A fetch makes no new memory: it shows what lies in a file, or is the caller's."""
        if isinstance(self.origin, Tensor):
            return self.device.type == "cpu"
        location = self.origin.location
        plain = location.form is None and location.dtype is not None and not self.origin.cast
        return plain and self.device.type == "cpu"

    def release(self) -> None:
        """The pages that a fetch or a use brought in count as memory no longer."""
        if isinstance(self.origin, Bound):
            self.origin.location.release()
        elif self.spill is not None:
            self.spill.release(self.origin)

    def expect(self) -> None:
        """The system begins to read what the next fetch will want."""
        if isinstance(self.origin, Bound):
            location = self.origin.location
            if isinstance(location.source, MappedFile):
                location.source.expect(location.start, location.end)


class Waiting(dict[str, Any]):
    """A module's tensors, of which those with a source are fetched whenever they are read."""

    def __init__(
        self,
        held: Mapping[str, Any],
        sources: Mapping[str, Source],
        read: Callable[[Source], Tensor],
    ) -> None:
        super().__init__(held)
        self.sources = sources
        self._read = read

    def with_fetched(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """What the module holds while these are there."""
        return {name: tensors.get(name, held) for name, held in super().items()}

    def __getitem__(self, name: str) -> Any:
        source = self.sources.get(name)
        return super().__getitem__(name) if source is None else self._read(source)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401

    def values(self) -> Any:
        return [self[name] for name in self]

    def items(self) -> Any:
        return [(name, self[name]) for name in self]

    def __setitem__(self, name: str, tensor: Any) -> None:
        source = self.sources.get(name)
        if source is not None:
            raise PlanError(
                f"{source.path} is offloaded: its weights stay those that it was loaded with"
            )
        super().__setitem__(name, tensor)

    def __deepcopy__(self, memo: dict[int, Any]) -> Waiting:
        raise PlanError("a module with offloaded weights cannot be copied: load it again")

    def __reduce__(self) -> Any:
        raise PlanError("a module with offloaded weights cannot be pickled: load it again")


@dataclass(slots=True)
class _Coming:
    """What has been asked for: tensors from another thread, or in another stream."""

    later: Future[list[Tensor]] | None
    tensors: list[Tensor]
    done: torch.cuda.Event | None = None


@dataclass(slots=True)
class Ahead:
    """Fetches a unit's sources while another unit runs; one unit at a time."""

    _coming: dict[str, _Coming] = field(default_factory=dict[str, _Coming])
    _thread: ThreadPoolExecutor | None = None
    _streams: dict[torch.device, torch.cuda.Stream] = field(
        default_factory=dict[torch.device, torch.cuda.Stream]
    )

    @property
    def units(self) -> tuple[str, ...]:
        return tuple(self._coming)

    def start(self, unit: str, sources: Sequence[Source]) -> None:
        """The unit's weights are on their way."""
        if unit in self._coming or not sources:
            return
        device = sources[0].device
        if device.type == "cuda":
            self._coming[unit] = self._streamed(device, sources)
        elif device.type == "cpu":
            for source in sources:
                if source.mapped:
                    source.expect()
            self._thread = self._thread or ThreadPoolExecutor(1, "linnet-ahead")
            self._coming[unit] = _Coming(self._thread.submit(_fetched, sources), [])
        else:
            # The copies are asked for, and not waited for.
            self._coming[unit] = _Coming(None, _fetched(sources))

    def take(self, unit: str, sources: Sequence[Source]) -> list[Tensor]:
        """The unit's weights, waited for where they are on their way; others' are dropped."""
        coming = self._coming.pop(unit, None)
        self.drop()
        if coming is None:
            return _fetched(sources)
        if coming.later is not None:
            return coming.later.result()
        if coming.done is not None:
            now = torch.cuda.current_stream(sources[0].device)
            now.wait_event(coming.done)
            for tensor in coming.tensors:
                tensor.record_stream(now)  # else its memory could be given away too early
        return coming.tensors

    def drop(self) -> None:
        """Nothing is on its way any more."""
        for coming in self._coming.values():
            if coming.later is not None:
                coming.later.result()
        self._coming.clear()

    def _streamed(self, device: torch.device, sources: Sequence[Source]) -> _Coming:
        side = self._streams.setdefault(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):
            tensors = _fetched(sources)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(side)
        return _Coming(None, tensors, done)


def _fetched(sources: Sequence[Source]) -> list[Tensor]:
    return [source.fetch() for source in sources]
