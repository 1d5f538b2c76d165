"""Parameters chosen by patterns of their paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from torch import Tensor

from linnet.diagnostics import PlanError
from linnet.inputs import near


def fitting(
    what: str, patterns: str | Iterable[str], paths: Iterable[str], kind: str = "parameter"
) -> dict[str, list[str]]:
    """The paths that fit each pattern; a PlanError where a pattern fits none."""
    known = list(paths)
    found: dict[str, list[str]] = {}
    if not isinstance(patterns, Iterable):
        raise PlanError(f"{what}: {patterns!r} is no path or pattern of paths, nor a list of them")
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if not isinstance(pattern, str):
            raise PlanError(f"{what}: {pattern!r} is no path or pattern of paths")
        found[pattern] = [path for path in known if fnmatchcase(path, pattern)]
        if not found[pattern]:
            raise PlanError(f"{what}: {_no_fit(pattern, known, kind)}")
    return found


def float_paths(
    what: str, patterns: bool | str | Iterable[str], held: Mapping[str, Tensor]
) -> list[str]:
    """The float parameters that are asked for: all (True), none (False), or those that fit."""
    floats = {path for path, tensor in held.items() if tensor.is_floating_point()}
    if isinstance(patterns, bool):
        return [path for path in held if path in floats and patterns]
    chosen: set[str] = set()
    for pattern, fits in fitting(what, patterns, held).items():
        if not floats.intersection(fits):
            dtype = str(held[fits[0]].dtype).removeprefix("torch.")
            raise PlanError(
                f"{what}: {_meant(pattern, fits)} is of {dtype}, and only floats take gradients"
            )
        chosen.update(fits)
    return [path for path in held if path in chosen & floats]


def _meant(pattern: str, fits: list[str]) -> str:
    return pattern if fits == [pattern] else f"what {pattern!r} fits ({fits[0]})"


def _no_fit(pattern: str, paths: list[str], kind: str) -> str:
    if any(path.startswith(f"{pattern}.") for path in paths):
        return f"{pattern!r} is a block, not a {kind}: its own are '{pattern}.*'"
    general = [re.sub(r"(?<=\.)[0-9]+(?=\.)", "*", path) for path in paths]
    close = near(pattern, dict.fromkeys([*general, *paths]))
    some = f"; there are {', '.join(paths[:3])}{', ...' if len(paths) > 3 else ''}"
    return f"no {kind}'s path fits {pattern!r}{close or (some if paths else '')}"
