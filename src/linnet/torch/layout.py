"""Where a module's weights lie: side by side where one product reads several, and whether they have
moved since somebody looked.

A weight that lies beside others is a slice of the tensor that the product reads, so nothing is kept
twice. Whoever replaces a weight need not know: the next run finds it elsewhere and lays it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from linnet.core.ir import Program
from linnet.torch.pages import Room
from linnet.torch.siblings import Beside

Held = dict[str, Any]  # a module's `_parameters`, `_buffers` or `_modules`

# The names of a block's tensors that hold members side by side: attributes and no parameters, since
# the members are.
_NAMES = "_laid_names"
# Whose such a tensor is, by its address.
_OWNERS: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
_TRAINED = attrgetter("requires_grad")
_STRIDES: Callable[[Any], Any] = Tensor.stride


class Watch:
    """The addresses of every parameter, buffer and state of a module, as they were seen.

    What its layout looks after is looked at there, before every run: here only whether it was
    laid anew.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.look()

    def _laid(self) -> tuple[Layout | None, int]:
        layout: Layout | None = self.module.__dict__.get("_layout")
        return layout, layout.laid if layout is not None else 0

    def look(self) -> None:
        """What is there now is what `moved` compares with."""
        self._last = self._laid()
        layout = self._last[0]
        elsewhere = layout.watched() if layout is not None else set[tuple[int, str]]()
        inside = list(self.module.modules())
        self._tree = _Tree((inner._modules, name) for inner in inside for name in inner._modules)
        self._tensors = _Tensors(
            (held, name)
            for inner in inside
            for held in (inner._parameters, inner._buffers)
            for name in held
            if (id(held), name) not in elsewhere
        )

    def moved(self) -> bool:
        """Whether one has been replaced since: what kept its address reads the old one."""
        same = self._laid() == self._last and self._tree.same() and self._tensors.same()
        return not same


# Both are asked before every run, for hundreds of members: hence the maps.


class _Tree:
    """Modules under their names, as they were seen."""

    def __init__(self, slots: Iterable[tuple[Held, str]]) -> None:
        listed = list({(id(held), name): (held, name) for held, name in slots}.values())
        self._held = [held for held, _ in listed]
        self._names = [name for _, name in listed]
        self._seen = [held.get(name) for held, name in listed]

    def same(self) -> bool:
        return all(map(is_, map(dict.get, self._held, self._names), self._seen))


class _Tensors:
    """Where tensors under their names lie, and whether a gradient is asked for, as seen."""

    def __init__(self, slots: Iterable[tuple[Held, str]]) -> None:
        listed = [(h, n, address) for h, n in slots if (address := _address(h.get(n))) is not None]
        self._held = [held for held, _, _ in listed]
        self._names = [name for _, name, _ in listed]
        self._addresses = [address for _, _, address in listed]
        # What is square is of the same shape when it is transposed, and lies where it lay.
        square = [(h, n) for h, n, _ in listed if len(set(h[n].shape)) < h[n].dim()]
        self._square = [held for held, _ in square]
        self._square_names = [name for _, name in square]
        self._strides = [held[name].stride() for held, name in square]
        self._trained = [held[name].requires_grad for held, name, _ in listed]

    def slots(self) -> set[tuple[int, str]]:
        return set(zip(map(id, self._held), self._names, strict=True))

    def same(self) -> bool:
        found: list[Any] = list(map(dict.get, self._held, self._names))
        try:
            addresses = list(map(Tensor.data_ptr, found))
        except (TypeError, RuntimeError):  # gone, or a tensor without memory
            return False
        if addresses != self._addresses:
            return False
        turned = map(dict.get, self._square, self._square_names)
        if list(map(_STRIDES, turned)) != self._strides:
            return False
        # Who wants no gradient now may use one that is asked for later.
        return not torch.is_grad_enabled() or list(map(_TRAINED, found)) == self._trained


def _address(tensor: object) -> int | None:
    try:
        return tensor.data_ptr() if isinstance(tensor, Tensor) else None
    except RuntimeError:
        return None


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """The members of one block instance that lie side by side, or could."""

    beside: Beside
    owner: nn.Module
    paths: tuple[str, ...]
    members: tuple[tuple[Held, str], ...]

    def parameters(self) -> list[nn.Parameter] | None:
        """The members, if all are plain weights of one kind and none is asked for a gradient."""
        found: list[nn.Parameter] = []
        for held, name in self.members:
            p = held.get(name)
            if type(p) is not nn.Parameter or type(p.data) is not Tensor or p.requires_grad:
                return None
            if p.layout is not torch.strided or p.is_meta or not p.dim():
                return None
            found.append(p)
        kinds = {(p.dtype, p.device, p.shape[1:]) for p in found}
        return found if len(kinds) == 1 and len(set(map(id, found))) == len(found) else None

    @property
    def tensor(self) -> Tensor | None:
        found = self.owner.__dict__.get(self.beside.name)
        return found if isinstance(found, Tensor) else None

    def keep(self, tensor: Tensor) -> None:
        """The block has the tensor that its members are slices of."""
        self.owner.__dict__[self.beside.name] = tensor
        self.owner.__dict__.setdefault(_NAMES, set()).add(self.beside.name)


def _drop(owner: nn.Module, name: str) -> None:
    """The block has no such tensor; its members stay where they are."""
    names = owner.__dict__.get(_NAMES, set())
    if name in names:
        names.discard(name)
        del owner.__dict__[name]


class Layout:
    """The members of a module that lie side by side, or would where they can."""

    def __init__(self, root: nn.Module, program: Program, besides: Sequence[Beside]) -> None:
        self.root = root
        self.besides = tuple(besides)
        self.kept_apart: set[str] = set()
        entries = {entry.path: entry for entry in program.manifest.entries}
        self._expanded = {
            b: tuple(zip(*(entries[path].expanded() for path in b.paths), strict=True))
            for b in self.besides
        }
        self._shapes = {
            b: [tuple(int(str(axis)) for axis in entries[path].type.shape) for path in b.paths]
            for b in self.besides
        }
        # For a concrete path: which it is of those that it lies with.
        self._spots = {
            path: (b, paths, i)
            for b, rows in self._expanded.items()
            for paths in rows
            for i, path in enumerate(paths)
        }
        self._pending: dict[tuple[str, ...], Tensor] = {}
        self._tree = _Tree(())
        self._seen: _Tensors | None = None
        self.laid = 0  # how often

    @property
    def paths(self) -> frozenset[str]:
        """Every member that lies beside others where it can: the manifest's paths, and concrete."""
        return frozenset(self._spots) | frozenset(p for b in self.besides for p in b.paths)

    # ------------------------------------------------ before a run

    def holds(self) -> bool:
        """Whether every member is where `lay` found or left it."""
        return self._seen is not None and self._tree.same() and self._seen.same()

    def watched(self) -> set[tuple[int, str]]:
        """The members that `holds` looks at: what holds each, and its name there."""
        return self._seen.slots() if self._seen is not None else set()

    def lay(self) -> frozenset[str]:
        """Members lie side by side where they can; the manifest's paths of those that do not.

        What cannot in one instance of its block is left alone in all: they run the same code.
        """
        rows, apart = self._rows()
        shared = _shared_memory(self.root) if rows else set[int]()
        claimed: dict[int, tuple[int, ...]] = {}
        for row in rows:
            found = row.parameters()
            key = tuple(map(id, found or ()))
            alone = claimed.get(key[0]) != key if key else False
            if (
                found is None
                or not self.kept_apart.isdisjoint((*row.beside.paths, *row.paths))
                or any(claimed.setdefault(one, key) != key for one in key)
                or (alone and any(_is_elsewhere(p, row.owner) for p in found))
                or any(one in shared for one in key)
            ):
                apart.add(row.beside)
        done: dict[tuple[int, ...], Tensor] = {}
        # A tensor that is made in inference mode could not be used where gradients are wanted.
        with torch.inference_mode(False), torch.no_grad():
            for row in rows:
                if row.beside in apart:
                    _drop(row.owner, row.beside.name)
                else:
                    self._lay_row(row, done)
        self._pending.clear()
        self.laid += 1
        self._seen = _Tensors(slot for row in rows for slot in row.members)
        return frozenset(path for b in apart for path in b.paths)

    def _lay_row(self, row: _Row, done: dict[tuple[int, ...], Tensor]) -> None:
        found = row.parameters()
        assert found is not None
        key = tuple(map(id, found))
        known = (done.get(key), row.tensor, self._pending.pop(row.paths, None))
        tensor = next((t for t in known if t is not None and _are_slices(found, t)), None)
        if tensor is None:
            _drop(row.owner, row.beside.name)
            tensor = torch.cat([p.data for p in found])
            for p, part in zip(found, _slices(tensor, [len(p) for p in found]), strict=True):
                p.data = part
        if key not in done:
            _OWNERS[tensor.data_ptr()] = row.owner
        done[key] = tensor
        row.keep(tensor)

    def keep_apart(self, paths: Iterable[str]) -> None:
        """Members of these paths, the manifest's or written out, never lie beside others."""
        self.kept_apart.update(paths)
        self._seen = None

    def _rows(self) -> tuple[list[_Row], set[Beside]]:
        """The rows that are in the tree, and what is not there in every block."""
        rows: list[_Row] = []
        lacking: set[Beside] = set()
        edges: list[tuple[Held, str]] = []
        for beside, expanded in self._expanded.items():
            for paths in expanded:
                members = [_member(self.root, path, edges) for path in paths]
                owner = _inner(self.root, beside.block, paths[0])
                present = [m for m in members if m is not None]
                if owner is None or len(present) < len(members):
                    lacking.add(beside)
                else:
                    rows.append(_Row(beside, owner, paths, tuple(present)))
        self._tree = _Tree(edges)
        return rows, lacking

    # ------------------------------------------------ while weights are loaded, moved and copied

    def put(self, path: str, tensor: Tensor, device: torch.device, room: Room) -> Tensor | None:
        """The tensor copied to where it will lie beside others; None if it lies alone."""
        spot = self.spot(path, tuple(tensor.shape), tensor.dtype, device, room)
        if spot is None or spot.data_ptr() == tensor.data_ptr():
            return spot
        return spot.copy_(tensor)

    def spot(
        self,
        path: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        room: Room,
    ) -> Tensor | None:
        """Where a weight will lie beside others, for its values to be put there."""
        if path not in self._spots:
            return None
        beside, paths, at = self._spots[path]
        shapes = self._shapes[beside]
        apart = not self.kept_apart.isdisjoint((*beside.paths, *paths))
        if apart or shape != shapes[at]:
            return None
        rows = [shape[0] for shape in shapes]
        whole = self._pending.get(paths)
        if whole is None:
            # What lay there before is not kept until all of the new is here.
            owner = _inner(self.root, beside.block, path)
            if owner is not None:
                _drop(owner, beside.name)
            shape = (sum(rows), *shapes[at][1:])
            own = room.empty(shape, dtype) if device.type == "cpu" else None
            whole = torch.empty(shape, dtype=dtype, device=device) if own is None else own
            self._pending[paths] = whole
        if whole.device != device or whole.dtype != dtype:
            return None
        return _slices(whole, rows)[at]

    def move(self, change: Callable[[Tensor], Tensor]) -> None:
        """What lies side by side is changed as one, such as moved to a device, and stays so."""
        for row in self._rows()[0]:
            found, tensor = row.parameters(), row.tensor
            if found is None or tensor is None or not _are_slices(found, tensor):
                continue
            with torch.no_grad():
                moved = change(tensor)
            if torch._has_compatible_shallow_copy_type(tensor, moved):
                parts = _slices(moved, [len(p) for p in found])
                for p, part in zip(found, parts, strict=True):
                    p.data = part
                _OWNERS[moved.data_ptr()] = row.owner
                row.keep(moved)

    def copy_into(self, memo: dict[int, Any]) -> None:
        """For `copy.deepcopy`: the members' copies are slices of a copy of what they lie in."""
        for row in self._rows()[0]:
            found, tensor = row.parameters(), row.tensor
            if found is None or tensor is None or not _are_slices(found, tensor):
                continue
            if id(tensor) not in memo:
                copied = tensor.clone()
                memo[id(tensor)] = copied
                for p, part in zip(found, _slices(copied, [len(p) for p in found]), strict=True):
                    memo[id(p)] = nn.Parameter(part, requires_grad=False)


def _member(root: nn.Module, path: str, edges: list[tuple[Held, str]]) -> tuple[Held, str] | None:
    """Where the module tree holds the parameter, if it does; edges get the steps on the way."""
    *parts, name = path.split(".")
    module = root
    for part in parts:
        child = module._modules.get(part)
        edges.append((module._modules, part))
        if child is None:
            return None
        module = child
    return (module._parameters, name) if name in module._parameters else None


def _inner(root: nn.Module, block: str, path: str) -> nn.Module | None:
    """The block that the concrete path runs through, as deep as `block` is."""
    module: nn.Module | None = root
    for part in path.split(".")[: len(block.split(".")) if block else 0]:
        module = module._modules.get(part) if module is not None else None
    return module


def _slices(tensor: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    return list(torch.split(tensor, list(sizes)))


def _are_slices(parameters: Collection[nn.Parameter], tensor: Tensor) -> bool:
    """Whether the parameters are what the tensor consists of, in order."""
    if len(tensor) != sum(len(p) for p in parameters):
        return False
    parts = _slices(tensor, [len(p) for p in parameters])
    return all(
        p.data_ptr() == part.data_ptr()
        and p.shape == part.shape
        and p.stride() == part.stride()
        and p.dtype is part.dtype
        and p.device == part.device
        for p, part in zip(parameters, parts, strict=True)
    )


def _is_elsewhere(parameter: nn.Parameter, owner: nn.Module) -> bool:
    """Whether it lies side by side for a block of another model, which would miss it."""
    address = parameter.untyped_storage().data_ptr()
    other = _OWNERS.get(address)
    return (
        other is not None
        and other is not owner
        and any(
            other.__dict__[name].data_ptr() == address for name in other.__dict__.get(_NAMES, ())
        )
    )


def _shared_memory(root: nn.Module) -> set[int]:
    """The parameters, by id, whose memory is that of another one too, or of a buffer."""
    shared: set[int] = set()
    last: tuple[str, int, int] | None = None  # the one that reaches furthest so far
    for device, start, end, key in sorted(_spans(root)):
        if last is not None and last[0] == device and start < last[1]:
            shared |= {last[2], key}
        if last is None or last[0] != device or end > last[1]:
            last = device, end, key
    return shared


def _spans(root: nn.Module) -> Iterator[tuple[str, int, int, int]]:
    tensors = {id(t): t for t in (*root.parameters(), *root.buffers())}
    for key, tensor in tensors.items():
        start = _address(tensor)
        plain = type(tensor.data) is Tensor and tensor.layout is torch.strided
        if start and plain and tensor.numel():
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            length = 1 + sum((n - 1) * step for n, step in steps)
            yield str(tensor.device), start, start + length * tensor.element_size(), key
