"""A configuration read key by key: each is used, held to a value, known to be inert, or refused."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from linnet.weights.report import did_you_mean

Scalar = int | float

# A key that is not in the configuration; None is a value of its own there.
ABSENT: Any = object()


# Sizes above it are no model's, and larger integers than the language's i32.
MOST = (1 << 31) - 1
# How many unknown keys are named.
_UNKNOWN = 20


def is_number(value: Any) -> bool:
    """A finite number that a float can hold."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False


def shown(value: Any) -> str:
    """The value as JSON, cut where it is long."""
    try:
        text = json.dumps(value)
    except RecursionError:
        text = f"a {type(value).__name__} of many levels"
    return text if len(text) <= 72 else f"{text[:68]} ..."


@dataclass(slots=True)
class Reader:
    """A mutable reading of one configuration: what it gives, and every problem with it.

    `origins` says which keys gave a generic or a constant its value, for later messages.
    """

    config: dict[str, Any]
    family: str
    problems: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    generics: dict[str, int | str] = field(default_factory=dict[str, "int | str"])
    constants: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    origins: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    seen: set[str] = field(default_factory=set[str])

    # --- values -------------------------------------------------------------------------------

    def get(self, *keys: str) -> Any:
        """The value under any of the spellings of one setting, or ABSENT; the keys are dealt with.

        Spellings that contradict each other are a problem; null counts as not being there.
        """
        self.seen.update(keys)
        given = {key: self.config[key] for key in keys if self.config.get(key) is not None}
        values = list(given.values())
        if any(value != values[0] for value in values[1:]):
            self.problem(f"{self.stated(*given)}: two spellings of one setting that disagree")
        return values[0] if values else ABSENT

    def size(self, *keys: str, default: int | None, least: int = 1, most: int = MOST) -> int:
        """A whole number from `least` to `most`; `default` where the key is absent."""
        value = self.get(*keys)
        if value is ABSENT and default is not None:
            return default
        if type(value) is int and value > most:
            self.problem(f"{self.stated(*keys)}: it must be {most:,} or less")
            return default or least
        if type(value) is not int or value < least:
            self.problem(
                f"{self.stated(*keys)}: it must be a whole number, {least} or more"
                if value is not ABSENT
                else f"`{keys[0]}` is missing: it gives a size"
            )
            return default or least
        return value

    def number(self, *keys: str, default: float, above: float = 0.0) -> float:
        """A finite number above `above`; `default` where the key is absent."""
        value = self.get(*keys)
        if value is ABSENT:
            return default
        if not is_number(value) or not value > above:
            self.problem(f"{self.stated(*keys)}: it must be a number above {above:g}")
            return default
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._stated(key, default)
        if value is ABSENT:
            return default
        if not isinstance(value, bool):
            self.problem(f"{self.stated(key)}: it must be true or false")
            return default
        return value

    def _stated(self, key: str, default: Any) -> Any:
        """The value; null is no `true` and no name: only off, and none, are as good as absent."""
        value = self.get(key)
        null = value is ABSENT and key in self.config and default not in (None, False)
        return None if null else value

    def must(self, key: str, allowed: Sequence[Any], *, default: Any) -> None:
        """The setting, or transformers' default, is one of the values that the package computes."""
        value = self._stated(key, default)
        if value is ABSENT:
            value = default
        # 0 is not False here, nor 1 True.
        if not any(value == one and type(value) is type(one) for one in allowed):
            options = " or ".join(shown(one) for one in allowed if one is not None) or "null"
            found = self.stated(key) if key in self.config else f"`{key}` is absent: {shown(value)}"
            self.problem(f"{found}; the package `{self.family}` supports {options}")

    # --- what comes of them -------------------------------------------------------------------

    def generic(self, name: str, value: int | str, *keys: str) -> None:
        """The card binds the generic to the value, which these keys gave."""
        self.generics[name] = value
        self.origins[name] = keys

    def constant(self, name: str, value: Scalar, *keys: str) -> None:
        """The card gives the package's constant this value."""
        self.constants[name] = value
        self.origins[name] = keys

    def problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)

    # --- words --------------------------------------------------------------------------------

    def stated(self, *keys: str) -> str:
        """The keys with the values that stand in the configuration."""
        parts = [f"`{key}` is {shown(self.config[key])}" for key in keys if key in self.config] or [
            f"`{key}` is absent" for key in keys
        ]
        return " and ".join(parts)

    def leftover(self, inert: Collection[str], ignored: Collection[str]) -> None:
        """Every key that nothing has dealt with is a problem that names it."""
        known = [*inert, *self.seen]
        # Null sets nothing, whatever the key is.
        unknown = [
            key
            for key, value in self.config.items()
            if not (key in self.seen or key in inert or key in ignored or value is None)
        ]
        for key in unknown[:_UNKNOWN]:
            name = key if len(key) <= 72 else f"{key[:68]} ..."
            self.problem(
                f"`{name}` is {shown(self.config[key])}: not a setting of "
                f"{self.config.get('model_type')} that is known here, so it may change the "
                f"model{did_you_mean(key, known)} (--ignore {name}, if it does not)"
            )
        if len(unknown) > _UNKNOWN:
            self.problem(f"and {len(unknown) - _UNKNOWN:,} more keys that are not known here")
        for key in ignored:
            if key in self.seen or key in inert or key not in self.config:
                where = "is a known setting" if key in known else "is not in the configuration"
                self.problem(f"--ignore {key}: `{key}` {where}")
