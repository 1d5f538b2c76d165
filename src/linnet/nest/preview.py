"""`preview`: drawings of the cards' main entries, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from linnet.diagram import build, save, to_svg
from linnet.ir import Program, load_program
from linnet.nest.card import MANIFEST, Card, find_card

FILES = {"light": "preview.svg", "dark": "preview-dark.svg"}


def cards_at(place: str | Path) -> list[Card]:
    """The card of a name or a directory, or all cards in a directory of them."""
    folder = Path(place)
    if folder.is_dir() and not (folder / MANIFEST).is_file():
        inside = sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))
        if inside:
            return [Card.read(one) for one in inside]
    return [find_card(place)]


def program_of_card(card: Card, std_root: str | Path | None = None) -> Program:
    """The card's source, checked with its constants."""
    return load_program(
        card.source_path, root=card.root, std_root=std_root, constants=card.constants
    )


def drawing(
    card: Card,
    theme: str = "light",
    expand: int = 1,
    *,
    program: Program | None = None,
    std_root: str | Path | None = None,
) -> str:
    """The card's main entry as SVG, with the card's sizes beside the title."""
    checked = program_of_card(card, std_root) if program is None else program
    graph = build(checked, card.entry, expand=expand, generics=card.generics)
    entry = graph.title.rpartition(".")[2]
    return to_svg(replace(graph, title=f"{card.title or card.name}: {entry}"), theme)


def write_previews(
    card: Card, expand: int = 1, *, std_root: str | Path | None = None
) -> Iterator[Path]:
    """Both drawings beside the card; their paths."""
    program = program_of_card(card, std_root)
    for theme, name in FILES.items():
        path = card.directory / name
        save(drawing(card, theme, expand, program=program), path)
        yield path
