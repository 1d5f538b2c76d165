"""The two sets of colours that a drawing comes in."""

from __future__ import annotations

from dataclasses import dataclass

from linnet.diagnostics import PlanError
from linnet.diagram.graph import Kind


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours; of each kind of node its fill and its border."""

    page: str
    text: str
    muted: str
    line: str
    frame: str
    kinds: dict[Kind, tuple[str, str]]


THEMES: dict[str, Theme] = {
    "light": Theme(
        "#ffffff",
        "#1f2328",
        "#59636e",
        "#818b98",
        "#f6f8fa",
        {
            "input": ("#e6f5ec", "#3c9464"),
            "output": ("#fdf1dd", "#b97a1f"),
            "call": ("#e8f0fe", "#4a73c4"),
            "op": ("#ffffff", "#9aa4af"),
            "param": ("#f3ecfd", "#8560c0"),
            "state": ("#fdeaea", "#c05656"),
        },
    ),
    "dark": Theme(
        "#0d1117",
        "#e6edf3",
        "#9198a1",
        "#6e7681",
        "#161b22",
        {
            "input": ("#10291c", "#3fa06b"),
            "output": ("#2c2110", "#c08a34"),
            "call": ("#142341", "#5b8def"),
            "op": ("#0d1117", "#6e7681"),
            "param": ("#241a36", "#9a76d6"),
            "state": ("#331719", "#d06a6a"),
        },
    ),
}


def theme_named(name: str) -> Theme:
    """The theme of this name."""
    if name not in THEMES:
        raise PlanError(f"no theme {name!r}: choose {' or '.join(THEMES)}")
    return THEMES[name]
