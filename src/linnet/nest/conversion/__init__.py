"""Conversion: from a checkpoint's configuration and headers alone to a card."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from linnet.diagnostics import NestError
from linnet.nest.card import ZOO
from linnet.nest.conversion.plan import DTYPES, Plan, plan
from linnet.nest.conversion.source import Source, of_repo, read_directory, read_gguf, read_source
from linnet.nest.conversion.tables import TABLES, Table
from linnet.nest.conversion.tensors import Bindings, bind
from linnet.nest.conversion.writing import free, write
from linnet.nest.progress import Notice, say_nothing

__all__ = [
    "TABLES",
    "Bindings",
    "Plan",
    "Source",
    "Table",
    "bind",
    "convert",
    "convert_source",
    "of_repo",
    "plan",
    "read_directory",
    "read_gguf",
    "read_source",
]


def convert(
    source: str | Path,
    *,
    output: str | Path,
    revision: str | None = None,
    dtype: str | None = None,
    ignore: Collection[str] = (),
    std_root: str | Path | None = None,
    notice: Notice | None = None,
) -> Path:
    """The directory `output` holds a card of the checkpoint; no tensor's data has been read.

    `source` is a directory with config.json and SafeTensors files, a GGUF file, or a repository of
    the Hub ("org/name", "hf://org/name@revision"), of which the headers are fetched. `dtype` is
    what T becomes in place of what the configuration states. `ignore` names keys of the
    configuration that nothing here knows and that do not change the model. Raises NestError with
    every setting and tensor that the card could not express; nothing is written then.
    """
    place = free(output)
    found = read_source(source, revision, notice)
    return convert_source(
        found, place, dtype=dtype, ignore=ignore, std_root=std_root, notice=notice
    )


def convert_source(
    source: Source,
    output: Path,
    *,
    dtype: str | None = None,
    ignore: Collection[str] = (),
    std_root: str | Path | None = None,
    notice: Notice | None = None,
) -> Path:
    """The same for a checkpoint whose configuration and headers are at hand."""
    if dtype is not None and dtype not in DTYPES.values():
        raise NestError(f"--dtype {dtype}: choose {', '.join(DTYPES.values())}")
    read = plan(source.config, source.label, ignore)
    package = ZOO / "families" / read.table.family
    bindings = bind(source, read, package, dtype, Path(std_root) if std_root else None)
    write(output, output.name, source, read, bindings)
    for note in read.notes:
        (notice or say_nothing)(note)
    return output
