"""Weights, states and inputs from a seed: such that every part of a program matters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal
from zlib import crc32

import numpy as np

from linnet.core.derive import dtype_of, shape_of
from linnet.core.ir import Function, Program
from linnet.inputs import structured
from linnet.loading import slots_of
from linnet.types import BOOL, DType, TupleType
from linnet.verification.bounded import bounds
from linnet.verification.legal import legal
from linnet.verification.sizes import Choice
from linnet.weights import Slot
from linnet.weights.arrays import DTYPES

Array = np.ndarray[Any, Any]
Edge = Literal["", "first", "last", "past", "before"]

TRIES = 50  # inputs drawn until some are what std's ops ask for
# Of integers among the weights. As bits of floats of 8 bits these are finite and not tiny, as
# exponents (E8M0) they are near 1.
BITS = range(112, 127)


def weights(program: Program, seed: int) -> dict[str, Array]:
    """An array for each parameter that is not left out: each hangs on the seed and its path alone.

    Matrices keep the size of what they multiply, vectors are near 1.
    """
    gone = set(program.absent)
    listed = (s for e in program.manifest.entries if e.path not in gone for s in e.expanded())
    there = set(listed)
    return {slot.path: _weight(slot, seed) for slot in slots_of(program) if slot.path in there}


def _weight(slot: Slot, seed: int) -> Array:
    draw, to = _generator(seed, slot.path), DTYPES[slot.dtype]
    if slot.dtype == "bool":
        return np.asarray(draw.random(slot.shape) < 0.5)
    if to.kind in "iu":
        return draw.integers(BITS.start, BITS.stop, slot.shape).astype(to)
    noise = draw.standard_normal(slot.shape, np.float32)
    if len(slot.shape) < 2:
        return np.asarray(1 + 0.1 * noise).astype(to)
    inputs = slot.shape[-1] if len(slot.shape) < 4 else prod(slot.shape[1:])
    return np.asarray(noise / max(inputs, 1) ** 0.5).astype(to)


def states(program: Program, seed: int) -> dict[str, Array]:
    """Every state as if calls had filled it."""
    found: dict[str, Array] = {}
    for entry in program.manifest.entries:
        if entry.kind == "state":
            shape, to = [int(str(axis)) for axis in entry.type.shape], DTYPES[str(entry.type.dtype)]
            for path in entry.expanded():
                draw = _generator(seed, path)
                whole = to.kind in "biu"
                values = draw.integers(0, 2, shape) if whole else draw.standard_normal(shape)
                found[path] = np.asarray(values).astype(to)
    return found


def _generator(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, crc32(name.encode())])


# ---------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True)
class Case:
    """One call of an entry: what is tried with it, its sizes, its inputs, flat, and the seed.

    `past` names the inputs that hold an index outside its axis, each with that index.
    """

    name: str
    sizes: dict[str, int]
    inputs: tuple[Array, ...]
    seed: int
    past: dict[str, int]

    def arguments(self, function: Function) -> Sequence[Any]:
        """The inputs as the entry takes them, tuples and structs put together."""
        if not function.takes:
            return self.inputs
        whole = structured(TupleType(tuple(type for _, type in function.takes)), self.inputs)
        assert isinstance(whole, tuple)
        return whole

    def generics(self, function: Function) -> dict[str, int]:
        """The sizes by name, all of them: some are on no axis."""
        return {dim: self.sizes[dim] for dim in function.dims}


def cases(function: Function, choices: Iterable[Sequence[Choice]], seed: int) -> list[Case]:
    """For each choice of sizes inputs that are legal there, and then indices outside their axes."""
    found: list[Case] = []
    edges: dict[str, Edge] = {"1": "first", "longest": "last"}
    middle: Case | None = None
    for alternatives in choices:
        for choice in alternatives:
            case = _case(function, choice.name, choice.sizes, edges.get(choice.name, ""), seed)
            if case is not None:
                found.append(case)
                middle = case if choice.name == "prime" else middle
                break
    if middle is None and found:
        middle = found[0]
    if middle is not None and bounds(function, middle.sizes):
        for edge in ("past", "before"):
            case = _case(function, f"{edge} the axis", middle.sizes, edge, seed)
            found += [case] if case is not None else []
    return found


def _case(
    function: Function, name: str, sizes: dict[str, int], edge: Edge, seed: int
) -> Case | None:
    """Inputs at these sizes that std's ops may be given; None where none were found."""
    extents = bounds(function, sizes)
    for attempt in range(TRIES):
        own = seed + 1000 * attempt
        inputs: list[Array] = []
        past: dict[str, int] = {}
        for number, param in enumerate(function.values):
            draw = _generator(own, f"{function.name}.{name}.{param.name}")
            shape = [axis.evaluate(sizes) for axis in shape_of(param)]
            array = _input(draw, shape, dtype_of(param), extents.get(number))
            if number in extents:
                array = array.copy()
                at = _edged(array, extents[number], edge)
                if at is not None:
                    past[param.name] = at
            inputs.append(array)
        if legal(function, inputs, sizes):
            return Case(name, dict(sizes), tuple(inputs), own, past)
    return None


def _edged(array: Array, extent: int, edge: Edge) -> int | None:
    """Puts an index of the edge into the array; returns it where it is outside the axis.

    A scalar is at the first or the last position. Of several the first or the last is outside.
    """
    if not array.size:
        return None
    flat = array.reshape(-1)
    match edge:
        case "first" | "last" if not array.ndim and extent:
            flat[0] = 0 if edge == "first" else extent - 1
        case "past" if extent <= np.iinfo(array.dtype).max:
            flat[-1] = extent
            return extent
        case "before" if array.dtype.kind == "i":
            flat[0] = -1
            return -1
        case _:
            pass
    return None


def _input(draw: np.random.Generator, shape: list[int], dtype: DType, extent: int | None) -> Array:
    to, count = DTYPES[dtype.name], prod(shape)
    if dtype is BOOL:
        return np.asarray(draw.random(shape) < 0.5)
    if dtype.is_float:
        noise = draw.standard_normal(shape)
        return np.asarray(noise if shape else 1 + 0.1 * noise).astype(to)
    if extent is None:
        # What no axis bounds, such as the segments of a pack, ascends and repeats; a number of
        # turns is one at least.
        numbers = np.sort(draw.integers(0, count // 2 + 2, count)) if shape else draw.integers(1, 4)
    elif count <= extent < 1 << 24:
        numbers = draw.permutation(extent)[:count]
    else:
        numbers = draw.integers(0, max(extent, 1), count)
    return np.asarray(numbers).astype(to).reshape(shape)
