"""Where each part of a program lies when one device does not hold it, planned before loading.

A unit is never split: an element of a sub array (`layers.0`), or another member of the root. What
a device does not hold is offloaded: its weights are brought to the device for each call and freed
after it, while its state stays there. `torch.placed` runs what is planned here.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from pathlib import Path

import torch

from linnet.core.ir import ManifestEntry, Program
from linnet.diagnostics import PlanError
from linnet.inputs import near
from linnet.torch.blocks import FORMATS
from linnet.torch.stored import NOTHING, Stored
from linnet.types import DType
from linnet.weights import Bound
from linnet.weights.location import MappedFile

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?)?B?\s*", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
# Of a CUDA device's free memory, what is left for activations and workspaces unless told.
_FOR_WEIGHTS = 0.9
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Unit:
    """What lies on one device: its weights' bytes by tensor, and the bytes of its state.

    A tensor that several units share has one key. `filed`: every weight lies in a file, from which
    it can be read again.
    """

    path: str
    weights: Mapping[str, int]
    state: int = 0
    filed: bool = False

    @property
    def bytes(self) -> int:
        return sum(self.weights.values())

    def size(self) -> str:
        state = f" and {shown(self.state)} state" if self.state else ""
        return f"{shown(self.bytes)} weights{state}"


@dataclass(frozen=True, slots=True)
class Placement:
    """Which device runs each unit, and which units' weights are brought there for each call.

    `slots` gives a unit's place in `devices`. `ahead`: the next offloaded unit is fetched while one
    runs. `held` are the offloaded units that an accelerator takes from this machine's memory.
    """

    units: tuple[Unit, ...] = field(repr=False)
    devices: tuple[torch.device, ...]
    slots: Mapping[str, int]
    offloaded: tuple[str, ...] = ()
    ahead: bool = True
    held: frozenset[str] = field(default_factory=frozenset[str])

    @property
    def trivial(self) -> bool:
        """Everything is on one device and stays there."""
        return len(set(self.slots.values())) <= 1 and not self.offloaded

    @property
    def home(self) -> torch.device:
        """Where inputs are taken and results are given: the first unit's device."""
        return self.devices[self.slots[self.units[0].path] if self.units else 0]

    def unit_of(self, path: str) -> str | None:
        """The unit that a member belongs to; None where nothing was placed."""
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            start = ".".join(parts[:end])
            if start in self.slots:
                return start
        return None

    def device_of(self, path: str, other: torch.device) -> torch.device:
        """The device on which a member's unit runs, or another that is given."""
        unit = None if self.trivial else self.unit_of(path)
        return other if unit is None else self.devices[self.slots[unit]]

    def streams(self, path: str) -> bool:
        """Whether a weight is brought to its device for each call."""
        return bool(self.offloaded) and self.unit_of(path) in self.offloaded

    def flags(self) -> tuple[str, ...]:
        """What repeats this placement on the command line; slot 0 goes without saying."""
        placed = [f"{path}={slot}" for path, slot in self.slots.items() if slot]
        flags = [x for text in placed for x in ("--place", text)]
        return (*flags, *(x for path in self.offloaded for x in ("--offload", path)))

    def describe(self) -> str:
        """For each device a line on what it holds, and a line on what is brought to it."""
        lines: list[str] = []
        for slot, device in enumerate(self.devices):
            here = [u for u in self.units if self.slots[u.path] == slot]
            away = [u for u in here if u.path in self.offloaded]
            stay = [u for u in here if u.path not in self.offloaded]
            state = sum(u.state for u in here)
            weights = shown(_weights(stay))
            if here:
                holds = (
                    f"{listed([u.path for u in stay])}: {weights} weights" if stay else "nothing"
                )
                lines.append(f"{device}: {holds}" + (f", {shown(state)} state" if state else ""))
            if away:
                names = listed([u.path for u in away])
                lines.append(f"{device}: brought for each call: {names}: {shown(_weights(away))}")
        return "\n".join(lines)


# ---------------------------------------------------------------- units


def units_of(
    program: Program, bound: Iterable[Bound], present: Iterable[str], stored: Stored = NOTHING
) -> list[Unit]:
    """The program's units in its order, with what each needs; `present` are the filled paths."""
    filling = {one.slot.path: one for one in bound}
    filled = frozenset(present)
    entries = program.manifest.entries
    containers = {
        ".".join(parts[:end])
        for parts in (e.path.split(".*")[0].split(".") for e in entries if e.repeat)
        for end in range(1, len(parts))
    }
    weights: dict[str, dict[str, int]] = {}
    states: dict[str, int] = {}
    unfiled: set[str] = set()
    for entry in entries:
        used = not entry.optional or is_used(program, entry)
        size = bytes_of(entry)
        for path in entry.expanded():
            if not used and path not in filled:
                continue
            unit = _unit(path, entry, containers)
            held = weights.setdefault(unit, {})
            if entry.kind == "state":
                states[unit] = states.get(unit, 0) + size
                continue
            one = filling.get(path)
            held[path if one is None else _key(one)] = (
                size if path not in stored.members else _in_blocks(entry, one, stored)
            )
            if one is None or not isinstance(one.location.source, MappedFile):
                unfiled.add(unit)
    return [Unit(u, held, states.get(u, 0), u not in unfiled) for u, held in weights.items()]


def is_used(program: Program, entry: ManifestEntry) -> bool:
    """Whether an optional member is present: then some entry was lowered with it."""
    functions = program.entries.values()
    return any(param.name == entry.path for function in functions for param in function.params)


def bytes_of(entry: ManifestEntry) -> int:
    """What one element of the member takes."""
    assert isinstance(entry.type.dtype, DType)
    count = prod(int(str(axis)) for axis in entry.type.shape)
    return count * max(1, entry.type.dtype.bits // 8)


def _in_blocks(entry: ManifestEntry, one: Bound | None, stored: Stored) -> int:
    """What a matrix takes in blocks of few bits: a file's own, or those made of its floats."""
    own = one is not None and one.location.encoding in stored.own
    numbers, width = FORMATS[one.location.encoding if one is not None and own else stored.format]
    return prod(int(str(axis)) for axis in entry.type.shape) // numbers * width


def _unit(path: str, entry: ManifestEntry, containers: set[str]) -> str:
    """An array's position, or the first part of the path that holds no arrays of units."""
    parts = path.split(".")
    if entry.repeat:
        first = entry.path.split(".").index("*")
        return ".".join(parts[: first + 1])
    end = 1
    while end < len(parts) and ".".join(parts[:end]) in containers:
        end += 1
    return ".".join(parts[:end])


def _key(one: Bound) -> str:
    return f"{one.location.file}: {one.location.name}: {one.slot.dtype}"


def _weights(units: Iterable[Unit]) -> int:
    """Their bytes on one device, where a shared tensor lies once."""
    return sum({k: v for unit in units for k, v in unit.weights.items()}.values())


# ---------------------------------------------------------------- planning


def plan(
    units: Sequence[Unit],
    budgets: Mapping[torch.device, int | None],
    *,
    offload: bool = True,
    host: int | None = None,
) -> Placement:
    """The devices filled in order under their budgets (None: no limit); the rest is offloaded.

    The last device runs what no device holds. `host` is the memory of this machine that offloaded
    weights may take. PlanError, with the sizes, if the units cannot run so.
    """
    devices = tuple(budgets)
    slots: dict[str, int] = {}
    slot, here = 0, list[Unit]()
    for unit in units:
        while slot < len(devices) - 1 and not _fits([*here, unit], budgets[devices[slot]]):
            slot, here = slot + 1, []
        here.append(unit)
        slots[unit.path] = slot
    return _settled(units, devices, slots, budgets, offload=offload, host=host)


def from_map(
    units: Sequence[Unit],
    mapping: Mapping[str, object],
    budgets: Mapping[torch.device, int | None] | None = None,
    *,
    offload: bool = True,
    host: int | None = None,
) -> Placement:
    """Each unit on the device of the longest path or pattern that names it or what it lies in.

    `""` is for the rest. A unit on "cpu" beside accelerators is offloaded to the device before it
    unless `offload` is False: then it runs on the CPU. PlanError names paths that are no member's,
    units split over devices, and devices that are not there.
    """
    found = {key: _mapped_device(key, value) for key, value in mapping.items()}
    chosen = _chosen(units, found)
    streamed: set[str] = set()
    if offload and any(d.type != "cpu" for d in chosen.values()):
        chosen, streamed = _on_accelerators(units, chosen)
    devices = tuple(dict.fromkeys(chosen.values()))
    slots = {path: devices.index(device) for path, device in chosen.items()}
    limits = {d: (budgets or {}).get(d) for d in devices}
    return _settled(
        units, devices, slots, limits, offload=offload, host=host, streamed=frozenset(streamed)
    )


def from_flags(
    units: Sequence[Unit], places: Iterable[str], offloaded: Iterable[str]
) -> tuple[dict[str, int], tuple[str, ...]]:
    """What `flags` says: the slot of each unit, 0 unless it is named, and the offloaded units."""
    slots = dict.fromkeys((unit.path for unit in units), 0)
    away = tuple(offloaded)
    given: dict[str, str] = {}
    for text in places:
        path, equals, slot = text.rpartition("=")
        if not equals or not slot.isdigit():
            raise PlanError(f"--place {text}: give a unit and a device's number, as layers.0=1")
        given[f"--place {text}"] = path
        slots[path] = int(slot)
    given |= {f"--offload {path}": path for path in away}
    for flag, path in given.items():
        if path not in {unit.path for unit in units}:
            names = [unit.path for unit in units]
            raise PlanError(f"{flag}: {path!r} is no unit of the program{near(path, names)}")
    return slots, away


def _chosen(units: Sequence[Unit], found: Mapping[str, torch.device]) -> dict[str, torch.device]:
    """The device of each unit, by the mapping alone."""
    chosen: dict[str, torch.device] = {}
    problems: list[str] = []
    met: set[str] = set()
    for unit in units:
        keys = [key for key in found if _covers(key, unit.path)]
        met.update(keys)
        if keys:
            chosen[unit.path] = found[max(keys, key=_precise)]
        else:
            problems.append(f"{unit.path} has no device: name it, or give the rest one with ''")
    paths = [unit.path for unit in units]
    for key in found:
        if key in met or key == "":
            continue
        owner = next((p for p in paths if key.startswith(f"{p}.")), None)
        if owner is not None:
            if found[key] == chosen.get(owner):
                continue
            problems.append(
                f"{key!r} would split {owner} over {chosen.get(owner, 'no device')} and "
                f"{found[key]}: a unit lies on one device"
            )
        else:
            problems.append(f"{key!r} is no member of the program{near(key, _starts(paths))}")
    if problems:
        raise PlanError("device_map cannot be followed:\n  " + "\n  ".join(problems[:_SHOWN]))
    return chosen


def _on_accelerators(
    units: Sequence[Unit], chosen: Mapping[str, torch.device]
) -> tuple[dict[str, torch.device], set[str]]:
    """What was put on the CPU runs on the accelerator of the unit before it, or the first one."""
    device = next(d for d in chosen.values() if d.type != "cpu")
    moved: dict[str, torch.device] = {}
    streamed: set[str] = set()
    for unit in units:
        if chosen[unit.path].type == "cpu":
            streamed.add(unit.path)
        else:
            device = chosen[unit.path]
        moved[unit.path] = device
    return moved, streamed


def _covers(key: str, path: str) -> bool:
    """Whether the key is the path, a pattern for it, or what it lies in."""
    if key == "":
        return True
    parts, given = path.split("."), key.split(".")
    return len(given) <= len(parts) and all(
        fnmatch.fnmatchcase(part, pattern) for part, pattern in zip(parts, given, strict=False)
    )


def _precise(key: str) -> tuple[int, int, int]:
    """Longer keys go first, and of two as long the one with fewer patterns."""
    return (len(key.split(".")) if key else 0, -len(re.findall(r"[*?\[]", key)), len(key))


def _starts(paths: Iterable[str]) -> list[str]:
    """The paths and everything that they lie in."""
    found: dict[str, None] = {}
    for path in paths:
        parts = path.split(".")
        found.update(dict.fromkeys(".".join(parts[:end]) for end in range(1, len(parts) + 1)))
    return list(found)


def _settled(
    units: Sequence[Unit],
    devices: tuple[torch.device, ...],
    slots: dict[str, int],
    budgets: Mapping[torch.device, int | None],
    *,
    offload: bool,
    host: int | None,
    streamed: frozenset[str] = frozenset(),
) -> Placement:
    """What each device holds of its units, and what is brought to it; PlanError if it cannot."""
    away: set[str] = set()
    ahead = True
    for slot, device in enumerate(devices):
        here = [unit for unit in units if slots[unit.path] == slot]
        budget = budgets.get(device)
        forced = [unit for unit in here if unit.path in streamed]
        if not forced and _fits(here, budget):
            continue
        if not offload:
            raise PlanError(_too_large(units, budgets, slots, devices))
        kept, twice = _kept(here, streamed, budget, ahead=True), True
        if kept is None:
            kept, twice = _kept(here, streamed, budget, ahead=False), False
        if kept is None:
            raise PlanError(_too_small(device, here, budget))
        ahead = ahead and twice
        away.update(unit.path for unit in here if unit.path not in kept)
    offloaded = [unit for unit in units if unit.path in away]
    held = _held(offloaded, devices, slots, host)
    return Placement(
        tuple(units), devices, slots, tuple(u.path for u in offloaded), ahead, frozenset(held)
    )


def _fits(units: Sequence[Unit], budget: int | None) -> bool:
    return budget is None or _weights(units) + sum(u.state for u in units) <= budget


def _kept(
    here: Sequence[Unit], streamed: frozenset[str], budget: int | None, *, ahead: bool
) -> set[str] | None:
    """The units that stay on a device, as many as leave room for the others to be brought there.

    None if there is no room even for that.
    """
    if budget is None:
        return {unit.path for unit in here if unit.path not in streamed}
    state = sum(unit.state for unit in here)
    kept: list[Unit] = []
    if state + _window(here, ahead=ahead) > budget:
        return None
    for unit in here:
        if unit.path in streamed:
            continue
        stay = [*kept, unit]
        rest = [other for other in here if other not in stay]
        if state + _weights(stay) + _window(rest, ahead=ahead) <= budget:
            kept = stay
    return {unit.path for unit in kept}


def _window(units: Sequence[Unit], *, ahead: bool) -> int:
    """The most that is on the device at once of units that are brought one after another."""
    sizes = [unit.bytes for unit in units]
    largest = max(sizes, default=0)
    return max([largest, *(a + b for a, b in pairwise(sizes))]) if ahead else largest


def _held(
    offloaded: Sequence[Unit],
    devices: tuple[torch.device, ...],
    slots: Mapping[str, int],
    host: int | None,
) -> list[str]:
    """The offloaded units that accelerators take from memory: all that may and what must be."""
    remote = [u for u in offloaded if devices[slots[u.path]].type != "cpu"]
    must = [u for u in remote if not u.filed]
    if host is not None and _weights(must) > host:
        raise PlanError(
            f"offloaded weights take {shown(_weights(must))} of this machine's memory, "
            f"{shown(host)} are allowed: they are in no file that they could stay in "
            f"({listed([u.path for u in must])})"
        )
    held = list(must)
    for unit in remote:
        if unit.filed and (host is None or _weights([*held, unit]) <= host):
            held.append(unit)
    return [u.path for u in held]


def refuse_offloaded(placement: Placement, what: str) -> None:
    """Offloaded weights cannot be replaced: they wait where they were loaded from."""
    if placement.offloaded:
        raise PlanError(
            f"{what}: {listed(placement.offloaded)} are offloaded, and keep the weights that they "
            "were loaded with: load the module with the new ones"
        )


def refuse_placed(placement: Placement) -> None:
    """A module that was placed stays there."""
    if not placement.trivial:
        raise PlanError(
            "the module was placed by device_map, and cannot be moved as a whole: load it again"
        )


# ---------------------------------------------------------------- what is said


def _too_large(
    units: Sequence[Unit],
    budgets: Mapping[torch.device, int | None],
    slots: Mapping[str, int],
    devices: tuple[torch.device, ...],
) -> str:
    """Nothing may be offloaded, and the devices do not hold the units."""
    fits: dict[torch.device, list[Unit]] = {device: [] for device in devices}
    for unit in units:
        device = devices[slots[unit.path]]
        if _fits([*fits[device], unit], budgets.get(device)):
            fits[device].append(unit)
    lines = [f"offload=False, and the model needs {_total(units)}; allowed and filled:"]
    for device in devices:
        budget = budgets.get(device)
        names = listed([u.path for u in fits[device]]) or "nothing"
        allowed = "all that it has" if budget is None else shown(budget)
        lines.append(f"  {device}: {allowed}; fits: {names}")
    return "\n".join([*lines, *_needs(units), _ADVICE])


def _too_small(device: torch.device, here: Sequence[Unit], budget: int | None) -> str:
    """Even one unit at a time, the device does not hold them."""
    state = sum(unit.state for unit in here)
    largest = max(here, key=lambda unit: unit.bytes)
    parts = [f"{shown(largest.bytes)} for the weights of {largest.path} while it runs"]
    parts += [f"{shown(state)} for state, which stays"] if state else []
    return "\n".join(
        [
            f"{device} may hold {shown(budget or 0)}, and with everything offloaded that can be it "
            f"still holds {shown(largest.bytes + state)}: {' and '.join(parts)}",
            *_needs(here),
            _ADVICE,
        ]
    )


_ADVICE = (
    "allow more with max_memory, spread the units over more devices, or bind smaller generics "
    "(Batch and MaxSeq size the state, a narrower dtype the weights)"
)


def _total(units: Sequence[Unit]) -> str:
    state = sum(unit.state for unit in units)
    return f"{shown(_weights(units))} for weights" + (
        f", {shown(state)} for state" if state else ""
    )


def _needs(units: Sequence[Unit]) -> list[str]:
    """A line for each unit, and one for a row of equal ones."""
    groups: list[list[Unit]] = []
    for unit in units:
        before = groups[-1][-1] if groups else None
        if before is not None and before.size() == unit.size() and _follows(before, unit):
            groups[-1].append(unit)
        else:
            groups.append([unit])
    lines = [
        f"  {listed([u.path for u in group])}: {group[0].size()}{' each' if group[1:] else ''}"
        for group in groups
    ]
    more = len(lines) - _SHOWN
    return lines if more <= 0 else [*lines[:_SHOWN], f"  and {more} more"]


def _follows(before: Unit, unit: Unit) -> bool:
    return before.path.rpartition(".")[0] == unit.path.rpartition(".")[0] and "." in unit.path


def listed(paths: Sequence[str]) -> str:
    """The paths, rows of an array's positions as `layers.0 to layers.7`."""
    runs: list[list[str]] = []
    for path in paths:
        owner, _, last = path.rpartition(".")
        before = runs[-1][-1] if runs else ""
        if last.isdigit() and int(last) and before == f"{owner}.{int(last) - 1}":
            runs[-1].append(path)
        else:
            runs.append([path])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def shown(size: float) -> str:
    """Bytes, in the largest unit that leaves a number of at least 1."""
    if size < 1024:
        return f"{size:.0f} byte{'' if size == 1 else 's'}"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


# ---------------------------------------------------------------- what is there


def size_of(given: object, where: str) -> int:
    """Bytes given as a number, or as text such as "10GiB", "80GB" or "512 MiB"."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    match = _SIZE.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        raise PlanError(f'{where} is {given!r}: give bytes, or text such as "10GiB" or "512MB"')
    power = _POWERS[match[2][0].lower()] if match[2] else 0
    base = 1024 if (match[2] or "").lower().endswith("i") else 1000
    return int(float(match[1]) * base**power)


def device_named(given: object, where: str) -> torch.device:
    """The device of a name or a CUDA number, which is there; PlanError says which are."""
    if str(given) == "disk":
        raise PlanError(
            f'{where}: "disk" is no device: weights that fit nowhere are read from their file as '
            "they are needed, with offload=True"
        )
    try:
        number = isinstance(given, int) and not isinstance(given, bool)
        device = torch.device(f"cuda:{given}" if number else str(given))
        if device.type == "meta":
            raise RuntimeError("it holds no values")
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", 0)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError) as error:
        why = str(error).splitlines()[0].partition(". ")[0]
        raise PlanError(
            f"{where}: the device {given!r} cannot be used ({why}); there {_there()}"
        ) from error
    return torch.device("cpu") if device.type == "cpu" else device


def _mapped_device(key: str, given: object) -> torch.device:
    return device_named(given, f"device_map[{key!r}]")


def _there() -> str:
    names = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    return f"{'is' if len(names) == 1 else 'are'} {', '.join(names)}"


def free_memory(device: torch.device) -> int | None:
    """What a device has left, in bytes; None where nothing says so."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return _available() if device.type == "cpu" else None


def _available() -> int | None:
    """This machine's memory that a process may still take, within its control group's limit."""
    found: list[int] = []
    try:
        text = Path("/proc/meminfo").read_text("ascii")
    except OSError:
        pass
    else:
        match = re.search(r"^MemAvailable:\s*([0-9]+) kB", text, re.MULTILINE)
        found += [int(match[1]) * 1024] if match else []
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text("ascii").strip()
        used = int((group / "memory.current").read_text("ascii"))
        stat = (group / "memory.stat").read_text("ascii")
    except (OSError, ValueError):
        limit, used, stat = "max", 0, ""
    if limit.isdigit():
        files = re.search(r"^inactive_file ([0-9]+)", stat, re.MULTILINE)
        found.append(max(0, int(limit) - used + (int(files[1]) if files else 0)))
    if not found and hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)


# ---------------------------------------------------------------- what `load` asks for


def planned(
    program: Program,
    bound: Sequence[Bound],
    device: torch.device,
    device_map: object,
    max_memory: object,
    offload: object,
    stored: Stored = NOTHING,
    mesh: object = None,
) -> Placement:
    """Where a program that is about to be loaded goes; PlanError if the memory is too small."""
    units = units_of(program, bound, [one.slot.path for one in bound], stored)
    if not isinstance(offload, bool):
        raise PlanError(f"offload={offload!r}: it is True or False")
    if device_map is None:
        if max_memory is not None:
            raise PlanError('max_memory goes with device_map: add device_map="auto"')
        check_fits(program, bound, units, device)
        return Placement(tuple(units), (device,), {unit.path: 0 for unit in units})
    if mesh is not None:
        raise PlanError(
            "device_map and tensor_parallel both say where the model goes: leave one out"
        )
    found = _by_map(units, device, device_map, max_memory, offload)
    if found.offloaded and stored.members:
        raise PlanError(
            f"storage: {listed(found.offloaded)} do not fit and would be brought for each call, "
            "which weights in blocks are not: allow more with max_memory, or leave storage out"
        )
    return found


def _by_map(
    units: Sequence[Unit],
    device: torch.device,
    device_map: object,
    max_memory: object,
    offload: bool,
) -> Placement:
    limits = _limits(max_memory)
    cpu = torch.device("cpu")
    host = limits.get(cpu, free_memory(cpu))
    if isinstance(device_map, Mapping):
        budgets = dict.fromkeys(limits) | limits
        return from_map(units, device_map, budgets, offload=offload, host=host)
    if device_map != "auto":
        raise PlanError(
            f'device_map={device_map!r}: it is "auto", or a mapping from paths to devices '
            '({"layers.*": "cuda:1", "": "cuda:0"})'
        )
    if device.type != "cpu":
        raise PlanError(
            f'device={str(device)!r} and device_map="auto" both say where the model goes: '
            "leave one out"
        )
    return plan(units, _auto(limits), offload=offload, host=host)


def _limits(max_memory: object) -> dict[torch.device, int]:
    if max_memory is None:
        return {}
    if not isinstance(max_memory, Mapping) or not max_memory:
        raise PlanError(
            f"max_memory={max_memory!r}: it maps devices to sizes "
            '({"cuda:0": "20GiB", "cpu": "8GiB"})'
        )
    return {
        device_named(key, f"max_memory[{key!r}]"): size_of(value, f"max_memory[{key!r}]")
        for key, value in max_memory.items()
    }


def _auto(limits: Mapping[torch.device, int]) -> dict[torch.device, int | None]:
    """The devices to fill: those with a limit, else every CUDA device there is, else the CPU."""
    given = {d: size for d, size in limits.items() if d.type != "cpu" and size}
    if given:
        return dict(given)
    cpu = torch.device("cpu")
    if not limits and torch.cuda.device_count():
        there = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
        return {device: int((free_memory(device) or 0) * _FOR_WEIGHTS) for device in there}
    return {cpu: limits.get(cpu, free_memory(cpu))}


def check_fits(
    program: Program,
    bound: Sequence[Bound],
    units: Sequence[Unit],
    device: torch.device,
    copied: Collection[str] = (),
) -> None:
    """One device has room for what must be allocated on it, or PlanError says how much is missing.

    On a CPU, tensors that a file or the caller holds in the right form take nothing more, but for
    those of the paths that are `copied`.
    """
    free = free_memory(device)
    if free is None:
        return
    kept: set[str] = set()
    if device.type == "cpu":
        kept = {_key(one) for one in bound if not _converts(one)}
        kept -= {_key(one) for one in bound if one.slot.path in copied}
    weights = {k: v for u in units for k, v in u.weights.items() if k not in kept}
    state = sum(unit.state for unit in units)
    need = sum(weights.values()) + state
    if need <= free:
        return
    raise PlanError(
        "\n".join(
            [
                f"{program.name} does not fit on {device}: {shown(need)} must be allocated "
                f"({shown(need - state)} for weights, {shown(state)} for state), "
                f"{shown(free)} are free",
                *_needs(units),
                'device_map="auto" brings weights that do not fit for each call; '
                "smaller generics need less (Batch and MaxSeq size the state, a narrower dtype "
                "the weights)",
            ]
        )
    )


def _converts(one: Bound) -> bool:
    """Reading the tensor makes new memory."""
    location = one.location
    return one.cast or location.dtype is None or location.form is not None
