"""Programs as nn.Modules: the block tree, its weights and state, and entries that run."""

from __future__ import annotations

import builtins
import copy
import linecache
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import Parameter, signature
from numbers import Integral
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from linnet.check import check
from linnet.core.ir import Function as IrFunction
from linnet.core.ir import ManifestEntry, Param, Program
from linnet.core.lower import lower_function
from linnet.core.passes import optimize as run_passes
from linnet.diagnostics import PlanError
from linnet.inputs import (
    Given,
    bind_entry,
    check_numbers,
    find_entry,
    flat_inputs,
    in_order,
    leaf_paths,
    near,
    structured,
)
from linnet.loading import load_source
from linnet.policy import Policy, policy_named
from linnet.torch.attend import numbered
from linnet.torch.blocks import Blocks
from linnet.torch.body import RESERVED
from linnet.torch.compile import Modes, check_mode, check_placed, mode_named
from linnet.torch.emit import Generated, generate, native_kernel
from linnet.torch.express import TORCH_NAMES
from linnet.torch.layout import Layout
from linnet.torch.pages import Room, array_of
from linnet.torch.parallel import Shards, eager, joined
from linnet.torch.placed import Running, apply, waiting_place
from linnet.torch.placement import (
    Placement,
    check_fits,
    is_used,
    planned,
    refuse_offloaded,
    refuse_placed,
)
from linnet.torch.saving import origins
from linnet.torch.siblings import opened
from linnet.torch.splitting import split
from linnet.torch.stored import (
    NOTHING,
    Stored,
    check_storage,
    empty,
    packed,
    plan_storage,
    read_blocks,
    refuse_blocks,
)
from linnet.torch.tensors import tensor_of as _tensor_of
from linnet.torch.training import Training
from linnet.torch.variant import Variant
from linnet.types import DType, TensorType
from linnet.weights import Bound, Slot, as_array, dtype_name, plan_bindings, read_bound
from linnet.weights.arrays import Array, byte_count
from linnet.weights.checkpoint import Weights
from linnet.weights.part import Part, cut
from linnet.workspace import SUFFIX, Workspace

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, t) for name, t in TORCH_NAMES.items()}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# What PyTorch's users ask for under other names.
_ELSEWHERE = {
    "dtype": 'dtypes are generics of the program: generics={"T": "bf16"}',
    "torch_dtype": 'dtypes are generics of the program: generics={"T": "bf16"}',
    "load_in_4bit": 'storage="q4" keeps weights in 4 bits',
    "load_in_8bit": 'storage="q8" keeps weights in 8 bits',
    "quantization_config": 'storage="q4" or "q8" keeps weights in few bits',
}
# Sizes found for the shapes of earlier calls; more than a server meets.
_KNOWN_CALLS = 256


# What is made in inference mode could neither be written nor trained outside it.
_ordinary = torch.inference_mode(False)


@_ordinary
def load(
    source: str | Path,
    *,
    generics: Mapping[str, int | str] | None = None,
    root: str | None = None,
    main: str | None = None,
    entries: Iterable[str] | None = None,
    constants: Mapping[str, bool | int | float] | None = None,
    std_root: str | Path | None = None,
    weights: Weights | None = None,
    bindings: Mapping[str, str] | str | Path | None = None,
    device: str | torch.device = "cpu",
    strict: bool = True,
    optimize: bool = True,
    numerics: str = "fast",
    compile: bool | str | None = None,
    trainable: bool | str | Iterable[str] = False,
    storage: str | None = None,
    cast_dtype: bool = False,
    amp: str | None = None,
    checked: bool = False,
    seed: int = 0,
    overrides: Collection[str] = (),
    on_bound: Callable[[Sequence[Bound]], None] | None = None,
    unread: Collection[str] = (),
    tensor_parallel: object = None,
    tp_rules: Mapping[str, str | int] | None = None,
    device_map: str | Mapping[str, object] | None = None,
    max_memory: Mapping[Any, int | str] | None = None,
    offload: bool = True,
    **unknown: object,
) -> LinnetModule:
    """The program as an nn.Module whose entries run generated source.

    Parameters without weights are random: normal with deviation 0.02 from `seed`, integers zero.
    `compile` says how entries run: False as the generated source, True or "inductor" through
    torch.compile, "reduce-overhead" or "cudagraphs" as graphs that are replayed, None the best of
    these that compiles nothing. `storage`, "q4" or "q8", keeps the weights of linear maps and
    embeddings in blocks of few bits: a GGUF file's own, or blocks made while loading; the program
    and its dtypes stay as they are. `checked` makes a runtime index outside its axis an error
    instead of clamping it. `overrides` names generics changed from a card's, which may leave out
    layers of the checkpoint. `unread` has patterns (`cls.*`) of tensors that may go unbound.
    `on_bound` is told which tensor fills which parameter. `trainable` is what `set_trainable`
    takes, `amp` the module's own. `tensor_parallel`, a DeviceMesh, binds the root's `Shards` to its
    size, and each of its processes holds and reads its part; a root without `Shards` is split by
    `tp_rules` (linnet.torch.splitting). `device_map` ("auto", or devices by path) spreads the
    program over devices under `max_memory`, bytes by device; with `offload`, weights that do not
    fit are brought for each call. Everything that is wrong with the source, the generics or the
    weights is one PlanError.
    """
    _refuse_unknown(unknown, load)
    _hint_at_cards(source)
    place = _device(device)
    check_mode(compile, place)
    if not isinstance(seed, Integral) or not -(2**63) <= seed < 2**63:
        raise PlanError(f"seed={seed!r}: it is a whole number of 64 bits")
    if isinstance(entries, str):
        raise PlanError(f"entries={entries!r}: it is a list of names, [{entries!r}]")
    policy = policy_named(numerics)
    check_storage(storage, policy, trains=trainable is not False)
    shards = None if tensor_parallel is None else joined(tensor_parallel, place)
    if shards is not None and storage is not None:
        raise PlanError(
            f"storage={storage!r} with tensor_parallel: a shard's weights stay in the program's "
            "dtypes; leave one of them out"
        )
    loaded = load_source(
        source,
        generics=generics,
        root=root,
        main=main,
        entries=entries,
        constants=constants,
        std_root=std_root,
        weights=weights,
        bindings=bindings,
        strict=strict,
        cast_dtype=cast_dtype,
        optimize=optimize,
        policy=policy,
        overrides=overrides,
        unread=unread,
        shard=shards.shard if shards is not None else None,
    )
    program, bound, parts = loaded.program, loaded.bound or [], loaded.parts
    if shards is not None and parts is None:
        program, parts = split(program, tp_rules, shards.shard)
        bound = cut(bound, parts)
    elif tp_rules is not None:
        why = f"{program.name} has Shards" if shards is not None else "there is no tensor_parallel"
        raise PlanError(f"tp_rules are for models without Shards on a mesh: {why}")
    if on_bound is not None:
        on_bound(bound)
    present = [one.slot.path for one in bound]
    if storage is not None:
        program = opened(program)
    kernel = partial(native_kernel, policy=policy, checked=checked)
    stored = plan_storage(program, storage, bound, policy, kernel)
    placement = planned(
        program, bound, place, device_map, max_memory, offload, stored, tensor_parallel
    )
    check_placed(mode_named(compile), placement)
    module = LinnetModule(
        program,
        policy,
        placement.home,
        checked=checked,
        present=present,
        stored=stored,
        shards=shards,
        parts=parts,
        placement=placement,
        compile=compile if shards is None else eager(compile),
    )
    if device_map is None:
        check_fits(program, bound, placement.units, place, module._layout.paths)
    waiting = [one for one in bound if placement.streams(one.slot.path)]
    module._fill([one for one in bound if not placement.streams(one.slot.path)])
    module._initialise(seed, {one.slot.path for one in waiting})
    apply(module, placement, waiting)
    module.amp = amp
    module.set_trainable(trainable)
    module._settle()
    return module


def load_function(
    source: str | Path,
    name: str | None = None,
    *,
    dtypes: Mapping[str, str] | None = None,
    ranks: Mapping[str, int] | None = None,
    absent: Iterable[str] = (),
    std_root: str | Path | None = None,
    numerics: str = "fast",
    compile: bool | str | None = None,
    optimize: bool = True,
    device: str | torch.device = "cpu",
    checked: bool = False,
    **unknown: object,
) -> Function:
    """A free function of the source as a callable; `name` may be left out where there is one.

    `dtypes` binds its dtype generics, `ranks` the number of axes of its packs, `absent` names
    optional parameters that are not passed. `compile` is that of `load`.
    """
    _refuse_unknown(unknown, load_function)
    place = _device(device)
    check_mode(compile, place)
    policy = policy_named(numerics)
    analysis = check(Workspace(std_root=std_root), source)
    module = analysis.roots[0]
    if name is None:
        names = [i.name.text for i in module.items.values() if hasattr(i, "params")]
        if len(names) != 1:
            listed = ", ".join(names) or "none"
            raise PlanError(f"{module.name} has {len(names)} functions ({listed}): name one")
        name = names[0]
    program = lower_function(analysis, module.name, name, dtypes=dtypes, ranks=ranks, absent=absent)
    if optimize:
        program = run_passes(program, policy)
    return Function(LinnetModule(program, policy, place, checked=checked, compile=compile), name)


@_ordinary
def bind_weights(
    module: LinnetModule,
    weights: Weights,
    bindings: Mapping[str, str] | str | Path | None = None,
    strict: bool = True,
    cast_dtype: bool = False,
) -> None:
    """The module's parameters and buffers are the checkpoint's tensors, all checked first."""
    refuse_blocks(module._stored, "bind_weights")
    refuse_offloaded(module.placement, "bind_weights")
    slots = [
        Slot(path, module._whole(path, tensor), _NAMES[tensor.dtype], optional)
        for path, tensor, optional in module._slots()
    ]
    bound = plan_bindings(slots, weights, bindings, strict=strict, cast_dtype=cast_dtype)
    module._fill(cut(bound, module.parts))
    module._settle()


def _refuse_unknown(unknown: Mapping[str, object], of: Callable[..., object]) -> None:
    """Raises PlanError for an option that there is not, with what was meant or what there is."""
    for name in unknown:
        taken = signature(of).parameters.values()
        options = [one.name for one in taken if one.kind is Parameter.KEYWORD_ONLY]
        known = [one for one in options if one not in ("on_bound", "overrides")]
        meant = near(name, known)
        if name in _ELSEWHERE and "generics" in known:
            meant = f"; {_ELSEWHERE[name]}"
        raise PlanError(f"there is no option {name}{meant or '; there are ' + ', '.join(known)}")


def _hint_at_cards(source: str | Path) -> None:
    """A word that is no file here may be the name of a card, which another function loads."""
    word = re.fullmatch(r"[\w.-]+", str(source)) and Path(str(source)).suffix != SUFFIX
    if word and not Path(source).exists():
        raise PlanError(
            f"{Path(source).resolve()}: no such file or directory; a model of the zoo is loaded "
            f'with linnet.nest.load("{source}")'
        )


def _device(device: str | torch.device) -> torch.device:
    """The device, which is there and holds tensors."""
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).splitlines()[0]
        raise PlanError(f"device={str(device)!r} cannot be used: {why}") from error
    return place


# ---------------------------------------------------------------- generated source


class Code:
    """Generated source, compiled and run; tracebacks show its lines."""

    def __init__(self, generated: Generated, name: str, device: torch.device) -> None:
        self.text = generated.text
        self.entries = generated.entries
        self.besides = generated.besides
        self.name = name
        filename = f"<linnet {name}>"
        lines = self.text.splitlines(keepends=True)
        linecache.cache[filename] = (len(self.text), None, lines, filename)
        self.space: dict[str, Any] = {"__name__": filename}
        compiled: CodeType = builtins.compile(self.text, filename, "exec")
        exec(compiled, self.space)
        self.to(device)

    def to(self, device: torch.device) -> None:
        """What the code creates, it creates there."""
        self.device = device
        self.space["DEVICE"] = device

    def again(self, text: str, tag: str) -> Code:
        """Other text for the same entries, in a space of its own."""
        other = Code(Generated(text, self.entries), f"{self.name} {tag}", self.device)
        if "SHARDS" in self.space:
            other.space["SHARDS"] = self.space["SHARDS"]
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Code:
        return self

    def __reduce__(self) -> Any:
        raise PlanError(
            "a loaded program cannot be pickled: keep its weights (save_weights, or state_dict()) "
            "and load it again"
        )


# ---------------------------------------------------------------- modules


class Block(nn.Module):
    """One block instance: its members as attributes, its sub blocks as children."""


@dataclass(slots=True)
class _Call:
    """How one entry is called: what it takes and the sizes found for earlier shapes."""

    function: IrFunction
    takes_self: bool
    dims: dict[str, str]
    leaves: tuple[tuple[str, Param], ...]  # with how each is named in a message
    known: dict[object, dict[str, int]] = field(default_factory=dict[object, dict[str, int]])


class LinnetModule(Training):
    """A program: parameters, buffers and state by Linnet path, and one method for each entry.

    State lives in non-persistent buffers, zeros at first, and persists over calls until
    `reset_state`. Parameters take no gradient unless asked to.
    """

    def __init__(
        self,
        program: Program,
        numerics: Policy,
        device: torch.device,
        *,
        checked: bool = False,
        present: Iterable[str] = (),
        stored: Stored = NOTHING,
        shards: Shards | None = None,
        parts: Mapping[str, Part] | None = None,
        placement: Placement | None = None,
        compile: object = None,
    ) -> None:
        super().__init__()
        self.placement = placement or Placement((), (device,), {})
        self._running: Running | None = None
        self.shards = shards
        self.program = program
        self.numerics = numerics
        self._modes = Modes(self, compile, numerics)
        self._checked = checked
        self._stored = stored
        self._states: list[str] = []
        self._anchor = torch.empty(0, device=device)
        self._codes: dict[Variant, Code] = {}
        self._variant = Variant(split=shards is not None)
        self._take_code(self._generated(self._variant))
        self._layout = Layout(self, program, self._code.besides)
        if self.placement.offloaded:
            # What comes and goes is not laid out anew each time.
            self._layout.keep_apart(self._layout.paths)
        filled = frozenset(present)
        for entry in program.manifest.entries:
            self._declare_empty_arrays(entry)
            used = not entry.optional or is_used(program, entry)
            for path in entry.expanded():
                if used or path in filled:
                    self._declare(path, entry, self.placement.device_of(path, device))
        declared = {path for path, _, _ in self._slots()}
        self.parts = {path: part for path, part in (parts or {}).items() if path in declared}

    # ------------------------------------------------ the tree

    def _declare_empty_arrays(self, entry: ManifestEntry) -> None:
        """A sub array without elements is there all the same, for loops to walk."""
        if 0 not in entry.repeat:
            return
        empty = entry.repeat.index(0)
        before = "*".join(entry.path.split("*")[: empty + 1]).rstrip(".")
        for path in replace(entry, path=before, repeat=entry.repeat[:empty]).expanded():
            owner, name = self._owner(path, create=True)
            owner._modules.setdefault(name, nn.ModuleList())

    def _declare(self, path: str, entry: ManifestEntry, device: torch.device) -> None:
        shape = [int(str(axis)) for axis in entry.type.shape]
        assert isinstance(entry.type.dtype, DType)
        dtype = DTYPES[entry.type.dtype.name]
        owner, name = self._owner(path, create=True)
        if entry.kind == "state":
            owner._buffers[name] = torch.zeros(shape, dtype=dtype, device=device)
            owner._non_persistent_buffers_set.add(name)
            self._states.append(path)
            return
        if path in self._stored.members:
            slot = Slot(path, tuple(shape), entry.type.dtype.name)
            owner._modules[name] = empty(slot, self._stored, dtype)
            return
        unfilled = torch.empty(shape, dtype=dtype, device="meta")
        if entry.kind == "param":
            owner._parameters[name] = nn.Parameter(unfilled, requires_grad=False)
        else:
            owner._buffers[name] = unfilled

    def _owner(self, path: str, *, create: bool = False) -> tuple[nn.Module, str]:
        """The module that holds the member, and the member's name in it."""
        *parts, name = path.split(".")
        module: nn.Module = self
        for i, part in enumerate(parts):
            if part not in module._modules:
                assert create, path
                following = parts[i + 1] if i + 1 < len(parts) else ""
                child = nn.ModuleList() if following.isdigit() else Block()
                module._modules[part] = child
            inner = module._modules[part]
            assert inner is not None
            module = inner
        return module, name

    def _slots(self) -> Iterable[tuple[str, Tensor, bool]]:
        """Every param and buffer with its path, and whether it may be absent."""
        for entry in self.program.manifest.entries:
            if entry.kind == "state":
                continue
            for path in entry.expanded():
                try:
                    owner, name = self._owner(path)
                except AssertionError:
                    continue
                tensor = {**owner._parameters, **owner._buffers}.get(name)
                if tensor is not None:
                    yield path, tensor, entry.optional

    def _whole(self, path: str, tensor: Tensor) -> tuple[int, ...]:
        """The shape of the parameter in the whole model."""
        part = self.parts.get(path)
        return tuple(tensor.shape) if part is None else part.whole(tensor.shape)

    def _put(self, path: str, tensor: Tensor | nn.Parameter) -> None:
        owner, name = self._owner(path)
        if name in owner._parameters:
            assert isinstance(tensor, nn.Parameter)
            owner._parameters[name] = tensor
        else:
            owner._buffers[name] = tensor

    def _initialise(self, seed: int, elsewhere: Collection[str] = ()) -> None:
        """What no weights filled: random floats, normal with deviation 0.02; the rest zero."""
        source = torch.Generator().manual_seed(seed)
        open_slots = [s for s in self._slots() if s[1].is_meta and s[0] not in elsewhere]
        room = Room(sum(unfilled.nbytes for _, unfilled, _ in open_slots))
        for path, unfilled, _ in open_slots:
            value = torch.zeros(unfilled.shape, dtype=unfilled.dtype, device="cpu")
            if unfilled.dtype.is_floating_point:
                # A shard draws the whole, so that all of them together are one model.
                drawn = _drawn(self._whole(path, unfilled), source)
                drawn = self.parts[path].cut(drawn) if path in self.parts else drawn
                value = (drawn * 0.02).to(unfilled.dtype)
            self._take(path, value, room)
        for path in sorted(self._stored.members):
            owner, name = self._owner(path)
            held = owner._modules[name]
            if isinstance(held, Blocks) and held.data.is_meta:
                value = _drawn(held.shape, source) * 0.02
                owner._modules[name] = packed(value, self._stored, held.dtype).to(
                    self.placement.device_of(path, self.device)
                )

    def _take(self, path: str, tensor: Tensor, room: Room) -> Tensor:
        """The member is the tensor, on the device where it is placed."""
        owner, name = self._owner(path)
        device = waiting_place(self.placement, path, self.device)
        beside = self._layout.put(path, tensor, device, room)
        tensor = beside if beside is not None else tensor.to(device)
        (self._own_memory.discard if beside is None else self._own_memory.add)(path)
        if name in owner._parameters:
            tensor = nn.Parameter(tensor, requires_grad=False)
        self._put(path, tensor)
        return tensor

    def _fill(self, bound: Iterable[Bound]) -> None:
        """Each tensor is read once; slots that share one share the parameter."""
        bound = list(bound)
        self._origins.update(origins(bound))
        floats = [one for one in bound if one.slot.path not in self._stored.members]
        others = [one for one in bound if one.slot.path in self._stored.members]
        room = Room(self._expected(bound))
        for shared, blocks in read_blocks(others, self._stored, DTYPES):
            blocks.data = room.copied(blocks.data)
            for device, there in self._by_device(shared):
                held = blocks.to(device)
                for slot in there:
                    owner, name = self._owner(slot.path)
                    owner._modules[name] = held
        for slots, array in read_bound(floats, partial(self._memory, room)):
            tensor = _tensor_of(array)
            for _, there in self._by_device(slots):
                self._share(there, tensor, room)
            if room.has(tensor):
                self._own_memory.update(slot.path for slot in slots)

    def _expected(self, bound: Iterable[Bound]) -> int:
        """Bytes that what is read from files will take on a CPU."""
        tensors = {(id(one.location), one.slot.dtype): one for one in bound}.values()
        return sum(
            one.location.nbytes
            if one.slot.path in self._stored.members
            else byte_count(one.slot.dtype, one.slot.shape)
            for one in tensors
            if one.location.is_mapped and self._device_of(one.slot).type == "cpu"
        )

    def _memory(self, room: Room, one: Bound) -> Array | None:
        """Where a file's weight is to be read to; what was given as an array is used as it is."""
        slot, device = one.slot, self._device_of(one.slot)
        if device.type != "cpu" or not one.location.is_mapped:
            return None
        dtype = DTYPES[slot.dtype]
        memory = self._layout.spot(slot.path, slot.shape, dtype, device, room)
        if memory is None:
            memory = room.empty(slot.shape, dtype)
        return None if memory is None else array_of(memory, slot.dtype)

    def _device_of(self, slot: Slot) -> torch.device:
        return self.placement.device_of(slot.path, self.device)

    def _by_device(self, slots: Iterable[Slot]) -> list[tuple[torch.device, list[Slot]]]:
        """The slots on each device: they share a tensor there, and none with other devices."""
        found: dict[torch.device, list[Slot]] = {}
        for slot in slots:
            found.setdefault(self._device_of(slot), []).append(slot)
        return list(found.items())

    def _share(self, slots: Sequence[Slot], tensor: Tensor, room: Room) -> None:
        first = self._take(slots[0].path, tensor, room)
        for slot in slots[1:]:
            owner, name = self._owner(slot.path)
            shares = isinstance(first, nn.Parameter) == (name in owner._parameters)
            if shares:
                self._put(slot.path, first)
            else:
                self._take(slot.path, tensor, room)

    # ------------------------------------------------ code for where the weights lie

    def _settle(self) -> None:
        """What one product reads lies side by side, and the code is for what does.

        Holds until a weight is replaced, or is asked for a gradient.
        """
        if self.placement.offloaded:
            self._regenerate(replace(self._variant, apart=self._layout.paths))
            return
        if self._layout.root is not self:  # a shallow copy
            self._layout = Layout(self, self.program, self._layout.besides)
        if self._layout.holds():
            return
        self._regenerate(replace(self._variant, apart=self._layout.lay()))

    @_ordinary
    def __deepcopy__(self, memo: dict[int, Any]) -> LinnetModule:
        refuse_offloaded(self.placement, "a copy")
        copied = self.__class__.__new__(self.__class__)
        memo[id(self)] = copied
        self._layout.copy_into(memo)
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    # ------------------------------------------------ entries

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(self.program.entries)

    @property
    def generics(self) -> dict[str, int | str]:
        """The root's generics, as bound."""
        return dict(self.program.generics)

    @property
    def device(self) -> torch.device:
        return self._anchor.device

    def _generated(self, variant: Variant) -> Code:
        if variant not in self._codes:
            text = generate(
                self.program,
                self.numerics,
                checked=self._checked,
                variant=variant,
                stored=self._stored,
            )
            code = Code(text, self.program.name, self.device)
            if self.shards is not None:
                code.space["SHARDS"] = self.shards
            if self._running is not None:
                self._running.inhabit(code)
            self._codes[variant] = code
        return self._codes[variant]

    def _run_as(self, running: Running) -> None:
        """Entries run as the module is placed from here on."""
        self._running = running
        for code in self._codes.values():
            running.inhabit(code)
        self._take_code(self._code)

    def _take_code(self, code: Code) -> None:
        self._code = code
        self._code.to(self.device)
        self._calls = {name: self._call(name) for name in self.program.entries}

    def _call(self, name: str) -> _Call:
        entry = self._code.entries[name]
        function = self.program.entries[name]
        paths = [f"{name}: {path}" for path in leaf_paths(function)]
        leaves = tuple(zip(paths, function.values, strict=True))
        return _Call(function, entry.takes_self, entry.dims, leaves)

    def run_entry(
        self,
        name: str,
        inputs: Sequence[object] | Mapping[str, object],
        generics: Mapping[str, int] | None = None,
        compile: object = None,
    ) -> Any:
        """The entry's results for these inputs, in the structure that it declares.

        `inputs` are in order, or by name. A struct is given as a mapping of its fields, and given
        back as a named tuple, which can be given again. `generics` gives sizes that no input's
        shape says. `compile` is how it runs this time, None the way that was said to `load`.
        """
        if self._layout.besides and not torch.compiler.is_compiling():
            self._settle()
        call = self._calls.get(name)
        if call is None:
            find_entry(self.program, name)
            raise AssertionError(name)
        for size, given_as in (generics or {}).items():
            if not isinstance(given_as, Integral) or isinstance(given_as, bool):
                raise PlanError(f"{name}: {size} is {given_as!r}; a size is a whole number")
        tensors = self._inputs(name, call, inputs)
        # Shapes and dtypes settle the sizes; what was checked once needs no second look.
        key = (tuple((t.shape, t.dtype) for t in tensors), *(generics or {}).items())
        sizes = call.known.get(key)
        if sizes is None:
            given: list[Given] = [
                (tuple(t.shape), _NAMES.get(t.dtype, str(t.dtype))) for t in tensors
            ]
            sizes = bind_entry(call.function, given, generics, name)
            if len(call.known) >= _KNOWN_CALLS:
                call.known.clear()
            call.known[key] = sizes
        named = {python: sizes[dim] for dim, python in call.dims.items()}

        def runner(code: Code) -> Callable[..., Any]:
            mode = compile if self.shards is None else eager(compile)
            return self._modes.runner(code, name, mode, tensors)

        run = self._recording(call.function, runner, tensors)
        results = run(*([self] if call.takes_self else []), *tensors, **named)
        returns = call.function.returns
        if isinstance(returns, TensorType):
            return results
        leaves = results if len(call.function.value_results) > 1 else (results,)
        return structured(returns, leaves if call.function.value_results else ())

    def _inputs(
        self, name: str, call: _Call, inputs: Sequence[object] | Mapping[str, object]
    ) -> list[Tensor]:
        values = flat_inputs(call.function, inputs, name)
        return [
            self._input(where, p, value)
            for (where, p), value in zip(call.leaves, values, strict=True)
        ]

    def _input(self, where: str, param: Param, value: object) -> Tensor:
        """A tensor on the module's device; plain Python values take the declared dtype."""
        if isinstance(value, Tensor):
            if value.device != self.device:
                raise PlanError(
                    f"{where} is on {value.device}, the model on {self.device}: "
                    f"pass {where.rpartition(': ')[2]}.to({str(self.device)!r})"
                )
            if value.layout is not torch.strided:
                raise PlanError(
                    f"{where} is of layout {value.layout}: "
                    f"pass {where.rpartition(': ')[2]}.to_dense()"
                )
            return value
        assert isinstance(param.of, TensorType) and isinstance(param.of.dtype, DType)
        if isinstance(value, (bool, int, float, list, tuple)):
            made = _from_python(where, value, param.of.dtype).to(self.device)
            return numbered(made, value) if type(value) is int else made
        try:
            array = as_array(value)
        except (TypeError, ValueError) as error:
            raise PlanError(
                f"{where} is of type {type(value).__name__}, expected {param.of}"
            ) from error
        if dtype_name(array.dtype) not in DTYPES:
            found = f"a {type(value).__name__} of {array.dtype}"
            raise PlanError(f"{where} is {found}, expected {param.of}")
        return _tensor_of(array).to(self.device)

    def forward(
        self, *inputs: object, generics: Mapping[str, int] | None = None, **named: object
    ) -> Any:
        """The main entry."""
        return self._run(find_main(self.program), *inputs, generics=generics, **named)

    def _run(
        self,
        entry: str,
        /,
        *inputs: object,
        generics: Mapping[str, int] | None = None,
        **named: object,
    ) -> Any:
        given = in_order(self._calls[entry].function, inputs, named, entry)
        return self.run_entry(entry, given, generics)

    def __getattr__(self, name: str) -> Any:
        calls = self.__dict__.get("_calls")
        if calls is not None and name in calls and name not in RESERVED:
            return partial(self._run, name)
        program = self.__dict__.get("program")
        if program is not None and name in program.refused:
            raise AttributeError(program.refused[name])
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if program is None or name.startswith("_"):
                raise
            raise AttributeError(
                f"{program.name} has no attribute {name}{near(name, calls or ())}; its entries are "
                f"{', '.join(calls or ()) or 'none'}"
            ) from error

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._calls]  # type: ignore[no-untyped-call]

    def generated_source(self, entry: str | None = None) -> str:
        """The source of the whole module, or of one entry and what it calls."""
        if entry is None:
            return self._code.text
        find_entry(self.program, entry)
        chosen = generate(
            self.program,
            self.numerics,
            [entry],
            checked=self._checked,
            variant=self._variant,
            stored=self._stored,
        )
        return chosen.text

    # ------------------------------------------------ state

    @property
    def state_paths(self) -> tuple[str, ...]:
        return tuple(self._states)

    def reset_state(self) -> None:
        """Every state is zeros again, in the same memory."""
        with torch.no_grad():
            for path in self._states:
                self.get_buffer_at(path).zero_()

    def get_buffer_at(self, path: str) -> Tensor:
        """The buffer or state at a path."""
        owner, name = self._owner(path)
        buffer = owner._buffers[name]
        assert buffer is not None
        return buffer

    # ------------------------------------------------ weights

    @_ordinary
    def copy_weights(self, source: nn.Module | Mapping[str, Tensor]) -> None:
        """Parameters and buffers get the values of the source's tensors of the same paths.

        The source must have all of them, in these shapes; dtypes are converted. A shard takes its
        part of a whole model's.
        """
        refuse_blocks(self._stored, "copy_weights")
        refuse_offloaded(self.placement, "copy_weights")
        found = self._copied_from(source) if isinstance(source, nn.Module) else source
        problems: list[str] = []
        pairs: list[tuple[str, Tensor, Tensor]] = []
        for path, own, _ in self._slots():
            other = found.get(path)
            if other is not None and path in self.parts:
                if tuple(other.shape) == self._whole(path, own) != tuple(own.shape):
                    other = self.parts[path].cut(other)
            if other is None:
                problems.append(f"{path}: the source has no such tensor")
            elif tuple(other.shape) != tuple(own.shape):
                problems.append(f"{path}: is {list(own.shape)}, the source's {list(other.shape)}")
            else:
                pairs.append((path, own, other))
        if problems:
            listed = "\n  ".join(problems[:20])
            raise PlanError(f"cannot copy the weights: {len(problems)} problems\n  {listed}")
        copied: dict[int, Tensor] = {}
        for path, own, other in pairs:
            # New memory: what a parameter holds may be another's, or a mapped file.
            if id(own) not in copied:
                value = other.detach().to(own.device, own.dtype, copy=True)
                copied[id(own)] = value
                if isinstance(own, nn.Parameter):
                    own.data = value
                else:
                    self._put(path, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LinnetModule:
        refuse_placed(self.placement)
        held = [*self.named_parameters(), *self.named_buffers()]
        for path, tensor in held:
            if fn(torch.empty(0, dtype=tensor.dtype, device=tensor.device)).dtype != tensor.dtype:
                raise PlanError(
                    f"{path} is {_NAMES[tensor.dtype]} in the program, and stays so: dtypes are "
                    "bound when a program is loaded, by its generics"
                )
        self._layout.move(fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._anchor = fn(self._anchor)
        self._code.to(self._anchor.device)
        return self

    def extra_repr(self) -> str:
        return f"{self.program.name}, numerics={self.numerics}, entries: {', '.join(self.entries)}"


def find_main(program: Program) -> str:
    """The name of the entry that a direct call runs."""
    find_entry(program)
    return program.main


def _drawn(shape: Sequence[int], source: torch.Generator) -> Tensor:
    """Normal numbers that hang on the generator alone, not on what new tensors are by default."""
    return torch.randn(shape, generator=source, dtype=torch.float32, device="cpu")


def _from_python(where: str, value: object, dtype: DType) -> Tensor:
    """Numbers, or lists of them, that are of the dtype without rounding a float to an integer."""
    check_numbers(where, value, dtype)
    try:
        return torch.tensor(value, dtype=DTYPES[dtype.name], device="cpu")
    except (TypeError, ValueError) as error:
        raise PlanError(f"{where} is not a rectangle of numbers") from error


# ---------------------------------------------------------------- functions


class Function:
    """A free function of a program, called with tensors or plain values.

    Sizes that no input's shape says are named: `f(x, Steps=8)`.
    """

    def __init__(self, module: LinnetModule, name: str) -> None:
        self.module = module
        self.name = name
        self.__name__ = name
        self.__doc__ = module.program.entries[name].docs or None

    @property
    def inputs(self) -> tuple[tuple[str, str], ...]:
        """The name and the type of each input."""
        return tuple((n, str(type)) for n, type in self.module.program.entries[self.name].takes)

    def run(
        self,
        inputs: Sequence[object],
        generics: Mapping[str, int] | None = None,
        compile: object = None,
    ) -> Any:
        return self.module.run_entry(self.name, inputs, generics, compile)

    def __call__(self, *inputs: object, **generics: int) -> Any:
        if isinstance(generics.get("generics"), Mapping):
            raise PlanError(f"sizes are named in a call of a function: {self.name}(..., N=8)")
        return self.run(inputs, generics)

    def generated_source(self) -> str:
        return self.module.generated_source()
