"""A configuration to what a card binds: generics, constants, and whether the head is tied."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from linnet.diagnostics import NestError
from linnet.nest.conversion.reader import ABSENT, MOST, Reader, Scalar, shown
from linnet.nest.conversion.tables import COMMON, COMMON_MUSTS, INSTEAD, TABLES, Table

DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
# Many times the deepest published model: each layer's parameters are written out to be compared.
MOST_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class Plan:
    """What a configuration says, all of it: no key is left that could change the model.

    `origins` gives the keys behind each generic and constant, `biases` those that the settings
    switch on or off. `dtype` is None where the configuration states none.
    """

    label: str
    model_type: str
    table: Table
    generics: dict[str, int | str]
    constants: dict[str, Scalar]
    tied: bool
    biases: dict[str, bool]
    dtype: str | None
    origins: dict[str, tuple[str, ...]]
    notes: tuple[str, ...]


def plan(config: dict[str, Any], label: str, ignored: Collection[str] = ()) -> Plan:
    """The plan, or one NestError that names every key that the package cannot express."""
    model_type, table = _table(config, label)
    reader = Reader(config, table.family)
    for name, (keys, default) in table.sizes.items():
        most = MOST_LAYERS if name == "Layers" else MOST
        reader.generic(name, reader.size(*keys, default=default, most=most), *keys)
    for name, (keys, number) in table.constants.items():
        reader.constant(name, reader.number(*keys, default=number), *keys)
    for key, values in {**COMMON_MUSTS, **table.musts}.items():
        reader.must(key, values, default=values[0])
    _architecture(reader, table)
    _quantisation(reader)
    biases = {key: reader.flag(key, default=False) for key in table.biases}
    tied = reader.flag("tie_word_embeddings", default=table.tied)
    dtype = _dtype(reader)
    # What several keys state together needs the sizes: with one of them wrong it says nothing.
    if not any(f"`{key}`" in text for text in reader.problems for key in _size_keys(table)):
        for step in table.steps:
            step(reader)
    else:
        reader.seen.update(config)
    reader.leftover(COMMON | table.inert, ignored)
    if reader.problems:
        raise NestError(_report(label, model_type, reader.problems))
    return Plan(
        label,
        model_type,
        table,
        reader.generics,
        reader.constants,
        tied,
        biases,
        dtype,
        {name: _stated(config, keys) for name, keys in reader.origins.items()},
        tuple(reader.notes),
    )


def _stated(config: dict[str, Any], keys: tuple[str, ...]) -> tuple[str, ...]:
    """Of several spellings those that stand there, else the usual one."""
    return tuple(key for key in keys if "." in key or key in config) or keys[:1]


def _report(label: str, model_type: str, problems: list[str]) -> str:
    plural = "setting" if len(problems) == 1 else "settings"
    lines = "\n".join(f"  {problem}" for problem in problems)
    title = f"cannot convert {label} ({model_type}): {len(problems)} {plural} of its configuration"
    return f"{title}\n{lines}"


def _size_keys(table: Table) -> list[str]:
    return [key for keys, _ in table.sizes.values() for key in keys]


def _table(config: dict[str, Any], label: str) -> tuple[str, Table]:
    model_type = config.get("model_type")
    known = f"the zoo converts {', '.join(TABLES)}"
    if not isinstance(model_type, str):
        found = (
            "states no `model_type`"
            if model_type is None
            else (f"states `model_type` {shown(model_type)}")
        )
        raise NestError(f"cannot convert {label}: its configuration {found}\n  {known}")
    if model_type in INSTEAD:
        raise NestError(
            f'cannot convert {label}: its `model_type` is "{model_type}": {INSTEAD[model_type]}'
        )
    if model_type not in TABLES:
        raise NestError(
            f'cannot convert {label}: its `model_type` is "{model_type}", which no package of the '
            f"zoo computes\n  {known}\n"
            "  (docs/nest.md, `A family of your own`, writes a package and a card for another)"
        )
    return model_type, TABLES[model_type]


def _architecture(reader: Reader, table: Table) -> None:
    """The class whose checkpoint it is computes what the package does."""
    value = reader.get("architectures")
    if value is ABSENT:
        return
    if (
        not isinstance(value, list)
        or not value
        or any(one not in table.architectures for one in value)
    ):
        reader.problem(
            f"{reader.stated('architectures')}; the package `{table.family}` is "
            f"{' or '.join(table.architectures)}"
        )


def _quantisation(reader: Reader) -> None:
    for key in ("quantization_config", "compression_config"):
        if reader.get(key) is not ABSENT:
            reader.problem(
                f"{reader.stated(key)}: its tensors are stored quantised, which no package here "
                "reads; take the checkpoint that it was made from, or a GGUF file"
            )


def _dtype(reader: Reader) -> str | None:
    """The dtype that the configuration states, in the language's words."""
    value = reader.get("dtype", "torch_dtype")
    if value is ABSENT:
        return None
    name = value.removeprefix("torch.") if isinstance(value, str) else value
    if not isinstance(name, str) or name not in DTYPES:
        reader.problem(f"{reader.stated('dtype', 'torch_dtype')}: it must be {', '.join(DTYPES)}")
        return None
    reader.origins["T"] = ("dtype", "torch_dtype")
    return DTYPES[name]
