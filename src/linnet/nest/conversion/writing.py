"""The files of a converted card: `nest.toml`, `README.md` and `bindings.json`."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from linnet.diagnostics import NestError
from linnet.nest.card import MANIFEST
from linnet.nest.conversion.plan import Plan
from linnet.nest.conversion.source import Source
from linnet.nest.conversion.tensors import ROOT, Bindings
from linnet.weights import write_bindings

BINDINGS = "bindings.json"
README = "README.md"


def free(output: str | Path) -> Path:
    """The directory to write: it does not exist yet, or is empty."""
    place = Path(os.path.expanduser(output))
    if os.path.isdir(place):
        if any(place.iterdir()):
            raise NestError(f"{output}: is not empty; name a new directory")
    elif os.path.lexists(place):
        raise NestError(f"{output}: is a file; name a new directory")
    return place.absolute()


def write(output: Path, name: str, source: Source, plan: Plan, bindings: Bindings) -> None:
    """The directory holds the whole card, or what was there before."""
    place: Path | None = None
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
        (place / MANIFEST).write_text(_manifest(name, source, plan, bindings), "utf-8")
        (place / README).write_text(_readme(name, source, plan, bindings), "utf-8")
        write_bindings(place / BINDINGS, bindings.written)
        place.chmod(0o777 & ~_umask())
        # On every system: a directory takes the place of an empty one only after that is gone.
        if output.is_dir():
            output.rmdir()
        os.replace(place, output)
    except (OSError, ValueError) as error:  # a name that is no UTF-8 is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise NestError(f"{output}: cannot be written: {reason}") from error
    finally:
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)


def _manifest(name: str, source: Source, plan: Plan, bindings: Bindings) -> str:
    table = plan.table
    tags = list(table.tags)
    if bindings.generics.get("KvHeads", 0) != bindings.generics.get("Heads"):
        tags += ["grouped-query-attention"] if "KvHeads" in bindings.generics else []
    tables: dict[str, dict[str, object]] = {
        "model": {
            "name": name,
            "title": _title(source),
            "summary": _summary(source, plan, bindings),
            **({"license": source.license} if source.license else {}),
            "family": table.family,
            "tags": tags,
        },
        "links": {"huggingface": f"https://huggingface.co/{source.repo}"} if source.repo else {},
        "source": {"package": table.family, "root": ROOT, "entry": table.entry},
        "generics": dict(bindings.generics),
        "constants": dict(plan.constants),
        "check": dict(table.check),
        "weights": {
            **({"repo": source.repo} if source.repo else {}),
            **({"revision": source.revision} if source.revision else {}),
            **({"directory": str(source.directory)} if source.directory else {}),
            "files": list(source.files),
            "bindings": BINDINGS,
            **({"cast_dtype": True} if bindings.cast else {}),
            **({"unread": list(bindings.unread)} if bindings.unread else {}),
        },
        "weights.copies": dict(bindings.copies),
    }
    parts = [
        "\n".join([f"[{heading}]", *(f"{_key(k)} = {_value(v)}" for k, v in table.items())])
        for heading, table in tables.items()
        if table
    ]
    return "\n\n".join(parts) + "\n"


def _key(name: str) -> str:
    plain = name.replace("_", "").replace("-", "").isalnum() and name.isascii()
    return name if plain else _value(name)


def _value(value: object) -> str:
    """The value in TOML: JSON's strings, numbers and lists are TOML's too."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        lines = [f"    {_value(one)},\n" for one in value]
        short = f"[{', '.join(_value(one) for one in value)}]"
        return short if len(short) <= 88 else "[\n" + "".join(lines) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _title(source: Source) -> str:
    return source.repo.rpartition("/")[2] or source.label


def _summary(source: Source, plan: Plan, bindings: Bindings) -> str:
    sizes = bindings.generics
    return (
        f"A checkpoint of the type {plan.model_type} with {bindings.parameters:,} parameters in "
        f"{sizes['Layers']} layers, converted from its configuration."
    )


def _readme(name: str, source: Source, plan: Plan, bindings: Bindings) -> str:
    origin = (
        f"[{source.repo}](https://huggingface.co/{source.repo}), revision `{source.revision}`"
        if source.repo
        else f"the directory `{source.directory}`"
    )
    lines = [
        f"# {_title(source)}",
        "",
        f"{_summary(source, plan, bindings)} The program is the package `{plan.table.family}` of "
        "the zoo; this card binds its sizes, its constants and its weights. Every setting of the "
        "configuration and every tensor of the checkpoint is accounted for; no value of a tensor "
        "was read for it.",
        "",
        "## Loading",
        "",
        "```python",
        "from linnet import nest",
        "",
        f'model = nest.load("path/to/{name}")',
        "```",
        "",
        "## Settings",
        "",
        "| Name | Value | From |",
        "| --- | --- | --- |",
        *_rows(bindings.generics, plan),
        *_rows(plan.constants, plan),
        "",
        "## Provenance",
        "",
        f"- Weights: {origin}.",
        f"- Files: {', '.join(f'`{file}`' for file in source.files)}.",
    ]
    for redundant, tensor in bindings.copies.items():
        lines.append(
            f"- `{redundant}` is a copy of `{tensor}`: loading compares them and refuses a "
            "difference."
        )
    if bindings.unread:
        listed = ", ".join(f"`{tensor}`" for tensor in bindings.unread)
        lines.append(f"- Not part of the package, and not read: {listed}.")
    if bindings.cast:
        lines.append(
            f"- Some tensors are stored in another dtype than {bindings.generics['T']}: they are "
            "rounded once when they are loaded."
        )
    lines += [f"- {note[0].upper()}{note[1:]}." for note in plan.notes]
    return "\n".join(lines) + "\n"


def _rows(values: Mapping[str, object], plan: Plan) -> list[str]:
    rows: list[str] = []
    for name, value in values.items():
        keys = ", ".join(f"`{key}`" for key in plan.origins.get(name, ()))
        rows.append(f"| `{name}` | {value} | {keys or '-'} |")
    return rows


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
