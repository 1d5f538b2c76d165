"""A plan held against the headers: every parameter has its tensor, every tensor its parameter."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from linnet.check import check
from linnet.check.blocks import manifest
from linnet.core.lower import bind_generics, bound_manifest, main_module, require_ok, root_block
from linnet.diagnostics import InternalError, NestError, PlanError
from linnet.dims import Dim
from linnet.nest.conversion.plan import Plan
from linnet.nest.conversion.source import Source
from linnet.types import TensorType
from linnet.weights import TensorLocation
from linnet.weights.bindings import is_inert
from linnet.weights.report import Report, did_you_mean
from linnet.workspace import Workspace

ROOT = "Model"
_FLOATS = ("f32", "bf16", "f16")
_LAYER = "{i}"


@dataclass(frozen=True, slots=True)
class Bindings:
    """Which tensor fills which path: `written` as a card has it, `{i}` for a layer.

    `copies` maps a redundant tensor to the one that it must equal; `unread` has patterns of
    tensors of parts that the family leaves out. `cast`: some tensor is stored in another float
    dtype than T.
    """

    written: dict[str, str]
    generics: dict[str, int | str]
    copies: dict[str, str]
    unread: tuple[str, ...]
    cast: bool
    parameters: int


def bind(
    source: Source, plan: Plan, package: Path, dtype: str | None, std: Path | None = None
) -> Bindings:
    """The bindings, or one NestError with everything in which the headers and settings differ."""
    return _Binder(source, plan).bind(package, dtype, std)


class _Binder:
    """Mutable while the report is being filled."""

    def __init__(self, source: Source, plan: Plan) -> None:
        self.source, self.plan, self.table = source, plan, plan.table
        self.tensors: Mapping[str, TensorLocation] = source.checkpoint.tensors
        self.generics = dict(plan.generics)
        self.layers = int(self.generics["Layers"])
        self.report = Report()
        self.copies: dict[str, str] = {}
        self.prefix = self._prefix()
        self.templates = {path: self._stored(name) for path, name in self.table.tensors.items()}
        self.bias_of = {
            self._stored(name): key
            for key, names in self.table.biases.items()
            for name in names.values()
        }

    def bind(self, package: Path, dtype: str | None, std: Path | None) -> Bindings:
        for key, on in self.plan.biases.items():
            if on:
                self.templates |= {p: self._stored(n) for p, n in self.table.biases[key].items()}
        self._optional()
        self._head()
        short = self._layer_count()
        expanded = self._expanded()
        self._missing(expanded, short)
        unread = self._leftover(expanded, short)
        self._check()
        self._set_dtype(expanded, dtype)
        self._check()
        self._shapes(expanded, package, std)
        self._check()
        used = {name: self.tensors[name] for name in expanded.values()}
        return Bindings(
            self.templates if self.table.layer is None else expanded,
            self.generics,
            self.copies,
            unread,
            any(location.dtype not in (None, self.generics["T"]) for location in used.values()),
            sum(math.prod(location.shape) for location in used.values()),
        )

    def _check(self) -> None:
        if self.report.count:
            title = f"cannot convert {self.plan.label} ({self.plan.model_type})"
            raise NestError(self.report.text(title))

    # --- names --------------------------------------------------------------------------------

    def _prefix(self) -> str:
        """The prefix under which the first tensor of the table is stored."""
        first = next(iter(self.table.tensors.values()))
        for prefix in self.table.prefixes:
            if prefix + first in self.tensors:
                return prefix
        return self.table.prefixes[0]

    def _stored(self, name: str) -> str:
        """The tensor as this checkpoint calls it."""
        full = self.prefix + name
        for new, old in self.table.renames.items():
            other = full.replace(new, old)
            if full.replace(_LAYER, "0") not in self.tensors:
                if other.replace(_LAYER, "0") in self.tensors:
                    return other
        return full

    def _expanded(self) -> dict[str, str]:
        """Every path with its tensor, layers written out."""
        expanded: dict[str, str] = {}
        for path, name in self.templates.items():
            if _LAYER not in name:
                expanded[path] = name
                continue
            for layer in range(self.layers):
                place = path.replace(_LAYER, str(layer))
                if self.table.layer is not None:
                    where = self.table.layer(layer, self.generics)
                    place = path.replace(f"layers.{_LAYER}", where)
                expanded[place] = name.replace(_LAYER, str(layer))
        return expanded

    # --- what is there and what is not --------------------------------------------------------

    def _optional(self) -> None:
        """Parts that a generic counts are there where the checkpoint has them."""
        for generic, (path, name) in self.table.optional.items():
            stored = self._stored(name)
            there = stored in self.tensors
            self.generics[generic] = int(there)
            if there:
                kinds = ("weight", "bias")
                prefix = stored.removesuffix("weight")
                self.templates |= {f"{path}.{kind}": f"{prefix}{kind}" for kind in kinds}

    def _head(self) -> None:
        """The head is bound: to its own tensor, or to the embedding where they are tied."""
        if self.table.head is None:
            return
        path, own, shared = self.table.head
        embedding = self.templates[shared]
        stated = f"`tie_word_embeddings` is {str(self.plan.tied).lower()}"
        if not self.plan.tied:
            if not path:
                self.report.add(
                    "head",
                    f"{stated}; the package `{self.table.family}` reads `{embedding}` as its head",
                )
            elif own not in self.tensors:
                self.report.add("head", f"{stated}, but the checkpoint has no `{own}`")
            if path:
                self.templates[path] = own
            return
        if path:
            self.templates[path] = embedding
        if own in self.tensors and embedding in self.tensors:
            self.copies[own] = embedding
            head, table = self.tensors[own], self.tensors[embedding]
            for what in ("shape", "dtype"):
                if getattr(head, what) != getattr(table, what):
                    self.report.add(
                        "head",
                        f"{stated}, but `{own}` has the {what} {_plain(getattr(head, what))} and "
                        f"`{embedding}` {_plain(getattr(table, what))}: they cannot be equal",
                    )

    def _layer_count(self) -> int | None:
        """How many layers the checkpoint has, where it is not how many are stated."""
        patterns = [
            re.compile(re.escape(name).replace(re.escape(_LAYER), "([0-9]{1,9})"))
            for name in self.templates.values()
            if _LAYER in name
        ]
        found = {
            int(match[1])
            for name in self.tensors
            for pattern in patterns
            if (match := pattern.fullmatch(name)) is not None
        }
        count = max(found, default=-1) + 1
        if not found or count == self.layers:
            return None
        self.report.add(
            "layers",
            f"{self._keys('Layers')} is {self.layers}, the checkpoint has {count} layers",
        )
        return count

    def _missing(self, expanded: Mapping[str, str], count: int | None) -> None:
        absent = [
            name
            for name in dict.fromkeys(expanded.values())
            if name not in self.tensors and not self._beyond(name, count)
        ]
        head = self.table.head[1] if self.table.head else ""
        used = set(expanded.values())
        extra = [name for name in self.tensors if name not in used] if absent else []
        for k, name in enumerate(absent):
            if name == head:
                continue
            key = self.bias_of.get(_template(name))
            why = f"; `{key}` is true" if key else ""
            # Searching near names is slow, and only the first few problems are shown.
            near = did_you_mean(name, extra) if k < 8 and not key else ""
            self.report.add("tensors that the checkpoint lacks", f"`{name}`{why or near}")

    def _leftover(self, expanded: Mapping[str, str], count: int | None) -> tuple[str, ...]:
        """Patterns of what the family leaves out; any other tensor without a reader is reported."""
        used = {*expanded.values(), *self.copies}
        unread: list[str] = []
        for name, location in self.tensors.items():
            if name in used or is_inert(name, location.shape) or self._beyond(name, count):
                continue
            fitting = [p for p in self.table.unread if fnmatch.fnmatchcase(name, p)]
            if fitting:
                unread += fitting
                continue
            key = self.bias_of.get(_template(name))
            why = f"; `{key}` is false" if key else ""
            self.report.add(
                f"tensors that nothing in the package `{self.table.family}` reads",
                f"`{name}` {list(location.shape)} in {location.file.name}{why}",
            )
        return tuple(dict.fromkeys(unread))

    def _beyond(self, name: str, count: int | None) -> bool:
        """The tensor belongs to a layer that only the settings, or only the checkpoint, has."""
        if count is None or _LAYER not in _template(name):
            return False
        layer = re.search(r"(?<=\.)[0-9]{1,9}(?=\.)", name)
        return layer is not None and int(layer[0]) >= min(count, self.layers)

    # --- dtypes and shapes --------------------------------------------------------------------

    def _set_dtype(self, expanded: Mapping[str, str], dtype: str | None) -> None:
        """T is the dtype that was asked for, else the configuration's, else the tensors' own."""
        stored: dict[str, str] = {}
        for name in expanded.values():
            kind = self.tensors[name].dtype
            if kind is not None:
                stored.setdefault(kind, name)
            if kind is not None and kind not in _FLOATS:
                self.report.add("dtypes", f"`{name}` is stored as {kind}, not as floats")
        chosen = dtype or self.plan.dtype
        if chosen is None and len(stored) > 1:
            listed = " and ".join(f"{kind} (`{name}`)" for kind, name in stored.items())
            self.report.add(
                "dtypes",
                f"`dtype` is absent and the tensors are {listed}: --dtype says which one it is",
            )
        self.generics["T"] = chosen or next(iter(stored), "bf16")

    def _shapes(self, expanded: Mapping[str, str], package: Path, std: Path | None) -> None:
        """Every tensor has the shape of its parameter in the package's manifest."""
        analysis = check(Workspace(std_root=std), package, constants=self.plan.constants)
        require_ok(analysis)
        block = root_block(analysis, main_module(analysis), ROOT)
        if block is None:
            raise InternalError("convert", f"{package} has no root block")
        try:
            generics = bind_generics(analysis, block, self.generics)
            bound = bound_manifest(analysis, block, generics).entries
        except PlanError as error:
            raise NestError(
                f"cannot convert {self.plan.label} ({self.plan.model_type}): {error}\n"
                f"  {self._said_of(str(error))}"
            ) from error
        # As the package declares them.
        names = [generic.name.text for generic in block.generics]
        self.generics = {name: self.generics[name] for name in names if name in self.generics}
        known: set[str] = set()
        for declared, entry in zip(manifest(analysis, block), bound, strict=True):
            if entry.kind == "state":
                continue
            paths = entry.expanded()
            known.update(paths)
            shape = tuple(int(str(axis)) for axis in entry.type.shape)
            wrong = [
                path
                for path in paths
                if path in expanded and self.tensors[expanded[path]].shape != shape
            ]
            lacking = [path for path in paths if path not in expanded]
            if lacking and not entry.optional:
                raise InternalError("convert", f"nothing is bound to {lacking[0]} of {package}")
            if wrong:
                self._wrong_shape(declared.type, expanded[wrong[0]], shape, len(wrong))
        unknown = [path for path in expanded if path not in known]
        if unknown:
            raise InternalError("convert", f"{package} has no parameter {unknown[0]}")

    def _wrong_shape(
        self, declared: TensorType, name: str, shape: tuple[int, ...], count: int
    ) -> None:
        found = self.tensors[name].shape
        names: set[str] = set()
        for k, axis in enumerate(declared.shape):
            if isinstance(axis, Dim) and (len(found) != len(shape) or found[k] != shape[k]):
                names |= axis.names()
        keys = [self._keys(one) for one in self.plan.origins if one in names]
        because = f" by {', '.join(dict.fromkeys(keys))}" if keys else ""
        others = f", and {count - 1} more like it" if count > 1 else ""
        self.report.add("shapes", f"`{name}` is {list(found)}{others}; {list(shape)}{because}")

    def _keys(self, generic: str) -> str:
        """The keys that gave the generic its value."""
        return " and ".join(f"`{key}`" for key in self.plan.origins.get(generic, ()))

    def _said_of(self, text: str) -> str:
        """Where the sizes that a message names come from."""
        named = set(re.findall(r"\w+", text))
        parts = [f"{name} is {self._keys(name)}" for name in self.plan.origins if name in named]
        return f"of its configuration, {', '.join(parts)}" if parts else "of its configuration"


def _template(name: str) -> str:
    """The name with its layer's number replaced."""
    return re.sub(r"(?<=\.)[0-9]+(?=\.)", _LAYER, name, count=1)


def _plain(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)
