"""Rotary settings, in both spellings that configurations have them, as constants of a package."""

from __future__ import annotations

from typing import Any, cast

from linnet.nest.conversion.reader import ABSENT, Reader, is_number, shown

# What each kind of scaling is stated by, beside `rope_type` and `rope_theta`.
_KINDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}


def rotary(reader: Reader, kinds: tuple[str, ...], theta: float = 10000.0) -> None:
    """THETA, and the scaling of a kind that the package has, are constants.

    New: `rope_parameters` with all of it. Old: `rope_theta`, and `rope_scaling` for the kind.
    """
    new, old = _table(reader, "rope_parameters"), _table(reader, "rope_scaling")
    if new and old and new != old:
        reader.problem(
            f"{reader.stated('rope_parameters', 'rope_scaling')}: two spellings of one setting "
            "that disagree"
        )
    name = "rope_scaling" if old else "rope_parameters"
    settings = old or new
    _theta(reader, settings, name, "rope_theta", "THETA", theta)
    _whole(reader, settings, name)
    scaling(reader, settings, name, kinds)


def rotary_pair(reader: Reader) -> None:
    """Gemma 3's two: THETA and FACTOR of the full layers, LOCAL_THETA of those with a window."""
    new, old = _table(reader, "rope_parameters"), _table(reader, "rope_scaling")
    for key in new:
        if key not in ("full_attention", "sliding_attention"):
            reader.problem(
                f"`rope_parameters.{key}` is {shown(new[key])}: it holds one table for "
                "`full_attention` and one for `sliding_attention`"
            )
    full, local = _inner(reader, new, "full_attention"), _inner(reader, new, "sliding_attention")
    for key in full.keys() & old.keys():
        if full[key] != old[key]:
            reader.problem(
                f"`rope_parameters.full_attention.{key}` is {shown(full[key])} and "
                f"`rope_scaling.{key}` is {shown(old[key])}: two spellings that disagree"
            )
    name = "rope_scaling" if old else "rope_parameters.full_attention"
    settings = {**full, **old}
    _theta(reader, settings, name, "rope_theta", "THETA", 1_000_000.0)
    _whole(reader, settings, name)
    scaling(reader, settings, name, ("default", "linear"))
    name = "rope_parameters.sliding_attention"
    _theta(reader, local, name, "rope_local_base_freq", "LOCAL_THETA", 10000.0)
    _whole(reader, local, name)
    scaling(reader, local, name, ("default",))


def scaling(reader: Reader, settings: dict[str, Any], name: str, kinds: tuple[str, ...]) -> None:
    """The constants of the kind of scaling that the settings state; other kinds are a problem."""
    kind = settings.pop("rope_type", ABSENT)
    older = settings.pop("type", ABSENT)
    if ABSENT not in (kind, older) and kind != older:
        reader.problem(f"`{name}.rope_type` is {shown(kind)} and `{name}.type` is {shown(older)}")
    kind = older if kind is ABSENT else kind
    kind = "default" if kind is ABSENT or kind is None else kind
    if kind not in kinds:
        reader.problem(
            f"`{name}.rope_type` is {shown(kind)}; the package `{reader.family}` supports "
            f"{' or '.join(shown(one) for one in kinds)}"
        )
        return
    numbers: dict[str, float] = {}
    for key in _KINDS[kind]:
        value = settings.pop(key, ABSENT)
        if value is ABSENT and key == "original_max_position_embeddings":
            value = reader.config.get("max_position_embeddings", ABSENT)
        if not is_number(value) or not value > 0:
            found = "is missing" if value is ABSENT else f"is {shown(value)}"
            reader.problem(f"`{name}.{key}` {found}: {shown(kind)} needs a number above 0")
            return
        numbers[key] = float(value)
    for key, value in settings.items():
        reader.problem(
            f"`{name}.{key}` is {shown(value)}: not a setting of the rotary kind {shown(kind)}"
        )
    if kind == "linear":
        reader.constant("FACTOR", numbers["factor"], f"{name}.factor")
        if "llama3" in kinds:
            # Every wavelength counts as long: each frequency is divided.
            reader.constant("ORIGINAL_MAX_POSITION_EMBEDDINGS", 0.0, f"{name}.rope_type")
    elif kind == "llama3":
        if numbers["high_freq_factor"] <= numbers["low_freq_factor"]:
            reader.problem(
                f"`{name}.high_freq_factor` is {numbers['high_freq_factor']:g}, not above "
                f"`{name}.low_freq_factor`, which is {numbers['low_freq_factor']:g}"
            )
        for key, number in numbers.items():
            reader.constant(key.upper(), number, f"{name}.{key}")


def _theta(
    reader: Reader,
    settings: dict[str, Any],
    name: str,
    key: str,
    constant: str,
    default: float,
) -> None:
    """The base of the frequencies, from the table or from the key beside it."""
    beside = reader.number(key, default=0.0)
    inside = settings.pop("rope_theta", ABSENT)
    if inside is ABSENT or inside is None:
        reader.constant(constant, beside or default, key)
        return
    if not is_number(inside) or not inside > 0:
        reader.problem(f"`{name}.rope_theta` is {shown(inside)}: it must be a number above 0")
        return
    if beside and beside != inside:
        reader.problem(
            f"`{key}` is {shown(reader.config[key])} and `{name}.rope_theta` is {shown(inside)}: "
            "two spellings of one setting that disagree"
        )
    reader.constant(constant, float(inside), f"{name}.rope_theta")


def _whole(reader: Reader, settings: dict[str, Any], name: str) -> None:
    """The whole width of a head turns."""
    found = {f"{name}.partial_rotary_factor": settings.pop("partial_rotary_factor", ABSENT)}
    found["partial_rotary_factor"] = reader.get("partial_rotary_factor")
    for key, value in found.items():
        if value is not ABSENT and value is not None and value != 1:
            reader.problem(
                f"`{key}` is {shown(value)}; the package `{reader.family}` turns the whole width "
                "of a head: 1.0"
            )


def _table(reader: Reader, key: str) -> dict[str, Any]:
    value = reader.get(key)
    if value is ABSENT:
        return {}
    if not isinstance(value, dict):
        reader.problem(f"{reader.stated(key)}: it must be an object of settings")
        return {}
    return dict(cast("dict[str, Any]", value))


def _inner(reader: Reader, table: dict[str, Any], key: str) -> dict[str, Any]:
    value = table.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        reader.problem(f"`rope_parameters.{key}` is {shown(value)}: it must be an object")
        return {}
    return dict(cast("dict[str, Any]", value))
