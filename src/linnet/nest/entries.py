"""Which entries a card's program has, and what a card without the wanted ones is good for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from linnet.core.lower import main_module, refusals, root_block
from linnet.diagnostics import LinnetError, NestError
from linnet.nest.card import Card, card_directories
from linnet.nest.fetch import local_weights

if TYPE_CHECKING:
    from linnet.ir import Function, Program

# What an entry is for, and the command that runs it.
PURPOSES = {"prefill": ("text generation", "run"), "embed": ("sentence vectors", "embed")}
SHOWN = 6


def entries_of(card: Card, std_root: str | Path | None = None) -> tuple[str, ...]:
    """The names of the entries that can be run with what the card binds, in the source's order."""
    return tuple(entry.name for entry in runnable(card, card.program(std_root)))


def runnable(card: Card, program: Program) -> list[Function]:
    """The entries of the card's program that its generics do not rule out."""
    analysis = program.analysis
    block = root_block(analysis, main_module(analysis), program.root)
    refused = {} if block is None else refusals(analysis, block, card.generics)
    return [entry for entry in program.entries() if entry.name not in refused]


@contextmanager
def needing(
    card: Card, wanted: Sequence[str], *, fetches: bool, std_root: str | Path | None
) -> Iterator[None]:
    """What is done here with the card needs these entries; where one lacks, that is the error.

    Looking costs a check of the source, so it is done before a download and after a failure only.
    """
    if fetches and local_weights(card) is None:
        require_entries(card, wanted, std_root)
    try:
        yield
    except LinnetError:
        require_entries(card, wanted, std_root)
        raise


def require_entries(card: Card, wanted: Iterable[str], std_root: str | Path | None = None) -> None:
    """The card's program has these entries; else a NestError says what runs the model it is."""
    declared = entries_of(card, std_root)
    lacking = [name for name in wanted if name not in declared]
    if not lacking:
        return
    purpose, command = PURPOSES[lacking[0]]
    more = f" and {len(declared) - SHOWN} more" if len(declared) > SHOWN else ""
    listed = ", ".join(declared[:SHOWN]) or "none at all"
    lines = [f"{card.name} is not for {purpose}: it has no entry {lacking[0]}, only {listed}{more}"]
    for entry, (other, its) in PURPOSES.items():
        if entry in declared:
            lines.append(f"  for {other} with it: linnet {its} {card.name} TEXT")
    fitting = [name for name, where in card_directories().items() if _is_for(where, command)]
    if fitting:
        lines.append(f"  models for {purpose}: {', '.join(fitting)}")
    raise NestError("\n".join(lines))


_TAGS = {"run": "text-generation", "embed": "sentence-similarity"}


def _is_for(directory: Path, command: str) -> bool:
    try:
        return _TAGS[command] in Card.read(directory).tags
    except NestError:
        return False
