"""A card's parameters written out, what is bound to them, and how many that makes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from linnet.diagnostics import PlanError
from linnet.nest.card import Card
from linnet.weights import Slot, expand_bindings, read_bindings

if TYPE_CHECKING:
    from linnet.ir import Program

_POSITION = re.compile(r"\{[A-Za-z_]\w*\}")


def expand_paths(path: str, repeat: Sequence[int]) -> list[str]:
    """The path at every position: `layers.{i}.norm` twice is `layers.0.norm`, `layers.1.norm`."""
    pieces = _POSITION.split(path.replace("*", "{i}"))
    return [
        "".join(part for pair in zip(pieces, (*map(str, at), "")) for part in pair)
        for at in product(*map(range, repeat))
    ]


def card_bindings(card: Card) -> dict[str, str] | None:
    """The bindings beside the card; None where paths are the tensor names."""
    return None if card.bindings_path is None else read_bindings(card.bindings_path)


def card_slots(card: Card, program: Program) -> list[Slot]:
    """Every param and buffer at every position, with the card's sizes; PlanError if they lack."""
    return [
        Slot(path, tuple(_int(size) for size in row.shape), row.dtype, row.optional)
        for row in program.parameters(card.generics)
        if row.kind != "state"
        for path in expand_paths(row.path, [_int(size) for size in row.repeat])
    ]


def bound_tensors(slots: Collection[Slot], bindings: Mapping[str, str] | None) -> dict[str, str]:
    """The tensor that each slot is bound to, by path; optional ones that nothing names left out."""
    reached = expand_bindings(bindings or {}, [slot.path for slot in slots])
    return {
        slot.path: reached.get(slot.path, slot.path)
        for slot in slots
        if slot.path in reached or not slot.optional
    }


def present_in(bindings: Mapping[str, str] | None) -> Callable[[str], bool]:
    """Whether the bindings speak of an optional member, or of something below it."""
    first = {_POSITION.sub("0", path) for path in bindings or {}}

    def present(path: str) -> bool:
        start = path.replace("*", "0")
        return start in first or any(name.startswith(f"{start}.") for name in first)

    return present


def parameter_count(card: Card, program: Program) -> int:
    """The elements of what is bound, a tensor that several paths share once.

    A card whose tensors hold several parameters in one element states the count itself.
    """
    if card.parameters is not None:
        return card.parameters
    slots = card_slots(card, program)
    tensors = bound_tensors(slots, card_bindings(card))
    sizes = {tensors[slot.path]: math.prod(slot.shape) for slot in slots if slot.path in tensors}
    return sum(sizes.values())


def format_parameters(count: int) -> str:
    """The count with one decimal and a unit: `7.2B`, `22.6M`, `950`."""
    for unit, scale in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        # 999,950 would be rounded to 1000.0K.
        if count >= scale * (0.99995 if unit != "K" else 1):
            return f"{count / scale:.1f}{unit}"
    return str(count)


def _int(size: object) -> int:
    """A size that is bound; the program was asked with all of the card's generics."""
    if isinstance(size, int):
        return size
    raise PlanError(f"the size {size} has no value: [generics] should bind it")
