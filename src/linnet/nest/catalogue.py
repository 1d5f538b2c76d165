"""The catalogue of a zoo: what every card says, and what its program is, as plain data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnet.diagnostics import NestError
from linnet.nest.card import MANIFEST, Card
from linnet.nest.entries import runnable
from linnet.nest.parameters import parameter_count
from linnet.types import NoneType, TupleType, Type

if TYPE_CHECKING:
    from linnet.ir import Function, Program

VERSION = 1
MODELS = "models"


def index(root: str | Path, std_root: str | Path | None = None) -> dict[str, Any]:
    """Every card below the root's `models` (or of the root itself), by the directories' names."""
    return {
        "version": VERSION,
        "models": [describe(Card.read(found), std_root, root) for found in _cards(Path(root))],
    }


def index_text(root: str | Path, std_root: str | Path | None = None) -> str:
    """The catalogue as JSON: the same cards give the same bytes."""
    return json.dumps(index(root, std_root), indent=1, ensure_ascii=False) + "\n"


def describe(
    card: Card, std_root: str | Path | None = None, root: str | Path | None = None
) -> dict[str, Any]:
    """What the card says and what its program is; paths are relative to the root where below it."""
    program = card.program(std_root)
    entries = runnable(card, program)
    main = card.entry or (entries[0].name if len(entries) == 1 else None)
    weights = card.weights
    return {
        "name": card.name,
        "title": card.title,
        "summary": card.summary,
        "license": card.license,
        "family": card.family,
        "tags": list(card.tags),
        "links": {name: link for name, link in asdict(card.links).items() if link is not None},
        "source": _source(card, root),
        "root": program.root,
        "module": program.name,
        "entry": main,
        "generics": card.generics,
        "constants": card.constants,
        "check": card.check,
        "parameters": parameter_count(card, program),
        "entries": [_entry(entry) for entry in entries],
        "blocks": _blocks(program),
        "weights": {
            "repo": weights.repo,
            "files": list(weights.files),
            "revision": weights.revision,
            "bindings": weights.bindings,
        }
        if weights.files
        else None,
        "files": _files(card.directory),
    }


def _cards(root: Path) -> list[Path]:
    place = root / MODELS if (root / MODELS).is_dir() else root
    if not place.is_dir():
        raise NestError(f"{root}: no such directory")
    found = sorted(directory for directory in place.iterdir() if (directory / MANIFEST).is_file())
    if not found:
        raise NestError(f"{place}: holds no cards, directories with a {MANIFEST}")
    return found


def _source(card: Card, root: str | Path | None) -> str:
    """The main file: below the card where it is the card's own, else below the zoo's root."""
    if card.package is None:
        return card.path
    path, top = card.source_path.resolve(), Path(root or card.source_path.anchor).resolve()
    if root is not None and path.is_relative_to(top):
        return path.relative_to(top).as_posix()
    return f"families/{card.package}/{card.path}"


def _entry(entry: Function) -> dict[str, Any]:
    states = dict.fromkeys((*entry.reads, *entry.writes))
    return {
        "name": entry.name,
        "signature": f"{'pub ' * entry.public}{entry.signature}",
        "docs": entry.docs,
        "inputs": [{"name": param.name, "type": str(param.type)} for param in entry.params],
        "results": _results(entry.result),
        "states": sorted(_positions(path) for path in states),
    }


def _results(type: Type | None) -> list[str]:
    """The types of what an entry gives, those of a tuple one by one."""
    match type:
        case None | NoneType():
            return []
        case TupleType(items):
            return [str(item) for item in items]
        case _:
            return [str(type)]


def _positions(path: str) -> str:
    """`layers.{i}.cache` as `layers[*].cache`."""
    pieces = path.split(".")
    return ".".join("[*]" if piece.startswith("{") else piece for piece in pieces).replace(
        ".[*]", "[*]"
    )


def _blocks(program: Program) -> dict[str, str]:
    """What every block that was loaded says of itself, by module and name."""
    found = {
        f"{info.module.name}::{info.block.name.text}": info.block.docs
        for info in program.analysis.blocks.values()
    }
    return dict(sorted(found.items()))


def _files(directory: Path) -> list[str]:
    """Every file below the directory, but for hidden ones and what Python leaves behind."""
    return sorted(
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_file()
        and not any(
            part.startswith(".") or part == "__pycache__"
            for part in path.relative_to(directory).parts
        )
    )
