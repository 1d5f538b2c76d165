"""Weights that a user gives in place of a card's: whether their configuration says what it says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from linnet.diagnostics import LinnetError, NestError
from linnet.nest.card import Card, Scalar
from linnet.nest.conversion.plan import Plan, plan
from linnet.weights import config_of
from linnet.weights.objects import read_object

# What a configuration that does not speak of them means.
_OFF: dict[str, Scalar] = {"FACTOR": 1.0, "WINDOW": 0}


def refuse_other_constants(card: Card, weights: object) -> None:
    """The weights' own configuration, where one lies with them, has the card's constants.

    Tensors of the same shapes may belong to a model with another rotary base or window: nothing
    but its configuration says so. One that is no configuration of the card's family says nothing.
    """
    found = _plan_of(weights) if isinstance(weights, str | Path) else None
    if found is None or found.table.family != card.package:
        return
    lines = [
        f"  `{name}` is {value!r} by {_keys(found, name)}, {card.constants[name]!r} in the card"
        for name, value in {**_OFF, **found.constants}.items()
        if name in card.constants and not _same(value, card.constants[name])
    ]
    if lines:
        raise NestError(
            f"{found.label}: these weights are of a model with other settings than {card.name}:\n"
            + "\n".join(lines)
            + "\n  give the checkpoint itself in place of the card's name: a card of its own is "
            "made from its configuration"
        )


def _plan_of(weights: str | Path) -> Plan | None:
    """What the configuration with the weights says; None where there is none that can be read."""
    place = Path(weights).expanduser()
    try:
        if place.suffix == ".gguf":
            return plan(config_of(place), str(place))
        file = (place if place.is_dir() else place.parent) / "config.json"
        config: dict[str, Any] | None = read_object(file, NestError) if file.is_file() else None
        return None if config is None else plan(config, str(file))
    except (LinnetError, OSError):
        return None  # loading says what is wrong with the files; the rest is convert's business


def _keys(found: Plan, name: str) -> str:
    keys = found.origins.get(name, ())
    return " and ".join(f"`{key}`" for key in keys) or "what they leave out"


def _same(a: Scalar, b: Scalar) -> bool:
    """Equal, as far as a GGUF file's f32 says."""
    return a == b or math.isclose(a, b, rel_tol=1e-6)
