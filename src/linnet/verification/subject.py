"""What is verified: a program, its sizes, its weights, from a card, a package or a file."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from linnet.core import ir as core
from linnet.diagnostics import LinnetError, NestError, PlanError
from linnet.ir import Program, Value, load_program
from linnet.loading import load_source
from linnet.nest.card import MANIFEST, Card, Scalar
from linnet.nest.fetch import fetch_weights
from linnet.nest.parameters import card_bindings, present_in
from linnet.nest.progress import TextProgress
from linnet.nest.resolve import CONFIG, resolve
from linnet.nest.stored import settled
from linnet.verification import draw
from linnet.verification.sizes import reduced, room_of
from linnet.weights import read_bound
from linnet.workspace import SUFFIX

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A program before the passes, and all that it runs with.

    `room` is how long the longest sequence is. `origin` says where the weights come from: "drawn",
    or the files. `model` is the digest of the sources and what is bound in them.
    """

    name: str
    program: core.Program
    generics: dict[str, Value]
    constants: dict[str, Scalar]
    room: int
    weights: dict[str, Array]
    origin: tuple[str, ...]
    model: str
    card: str | None

    @property
    def weights_digest(self) -> str:
        """Of every parameter's path, dtype, shape and bytes."""
        digest = hashlib.sha256()
        for path, array in sorted(self.weights.items()):
            digest.update(f"{path} {array.dtype} {list(array.shape)}\n".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user says of a model: what to bind, which entries, at which sizes, with what."""

    generics: Mapping[str, Value]
    entries: tuple[str, ...] | None
    root: str | None
    full: bool
    weights: str | Path | None
    seed: int
    std_root: str | Path | None


def open_subject(model: str | Path | Card, asked: Asked) -> Subject:
    """The model at small sizes with drawn weights, or in full as its card says, with its own.

    Raises NestError, PlanError with every finding where the source has errors, and PlanError for
    generics or entries that there are not.
    """
    if asked.weights is not None and not asked.full:
        raise PlanError(
            f"weights={str(asked.weights)!r} are the model's at its own sizes, and it is verified "
            "at small ones: verify it in full (--full), or leave the weights out"
        )
    card = _card(model)
    if card is None:
        return _of_source(Path(str(model)), asked)
    return _in_full(card, asked) if asked.full else _small(card, asked)


def _card(model: str | Path | Card) -> Card | None:
    """The card that is meant; None where it is a source file or a package."""
    if isinstance(model, Card):
        return model
    place = Path(model)
    if place.exists() and not (place / MANIFEST).is_file():
        if not (place / CONFIG).is_file() and place.suffix != ".gguf":
            return None
    try:
        return resolve(model, progress=TextProgress(sys.stderr))
    except NestError:
        if place.exists() or place.suffix != SUFFIX:
            raise
        raise LinnetError(f"{model}: no such file or directory, and no card's name") from None


def _small(card: Card, asked: Asked) -> Subject:
    constants: dict[str, Scalar] = dict(card.constants)
    program = _program(card, asked, constants)
    values = reduced(program, card.generics, asked.generics)
    room = room_of(program, values)
    less = {name: _within(value, room) for name, value in constants.items()}
    if less != constants:
        program = _program(card, asked, less)
    lowered = _lowered(program, values, asked, present_in(card_bindings(card)))
    weights = draw.weights(lowered, asked.seed)
    digest = _digest(program, values, less)
    return Subject(card.name, lowered, values, less, room, weights, (), digest, card.name)


def _program(card: Card, asked: Asked, constants: Mapping[str, Scalar]) -> Program:
    root = asked.root or card.root
    source = card.source_path
    return load_program(source, root=root, std_root=asked.std_root, constants=constants)


def _within(value: Scalar, room: int) -> Scalar:
    """A whole number beyond the longest sequence, such as a window, so that it has an effect."""
    return room // 4 if type(value) is int and value > room else value


def _in_full(card: Card, asked: Asked) -> Subject:
    """The card's program at its own sizes, with its own weights, fetched if none are given."""
    constants: dict[str, Scalar] = dict(card.constants)
    program = _program(card, asked, constants)
    values: dict[str, Value] = {**card.generics, **asked.generics}
    cast, bindings, files = card.weights.cast_dtype, card.bindings_path, asked.weights
    origin: tuple[str, ...] = (str(files),)
    given: Any = files
    if files is None:
        found = fetch_weights(card, TextProgress(sys.stderr))
        cast, bindings = cast or found.cast_dtype, found.bindings or bindings
        origin, given = tuple(map(str, found.files)), list(found.files)
    loaded = load_source(
        card.source_path,
        generics=_plain(values),
        root=program.root,
        entries=asked.entries,
        constants=constants,
        std_root=asked.std_root,
        weights=settled(card, given),
        bindings=bindings,
        cast_dtype=cast,
        unread=card.weights.unread,
        overrides=[n for n, v in values.items() if card.generics.get(n, v) != v],
        optimize=False,
    )
    held, room = _read(loaded.bound or []), room_of(program, values)
    digest = _digest(program, values, constants)
    return Subject(
        card.name, loaded.program, values, constants, room, held, origin, digest, card.name
    )


def _of_source(place: Path, asked: Asked) -> Subject:
    """A package or a file, its optional members there; small sizes where none are given."""
    program = load_program(place, root=asked.root, std_root=asked.std_root)
    full = asked.full
    values = program.example(asked.generics) if full else reduced(program, {}, asked.generics)
    digest, room, name = _digest(program, values, {}), room_of(program, values), place.name
    if asked.weights is None:
        lowered = _lowered(program, values, asked, lambda path: True)
        drawn = draw.weights(lowered, asked.seed)
        return Subject(name, lowered, values, {}, room, drawn, (), digest, None)
    loaded = load_source(
        place,
        generics=_plain(values),
        root=program.root,
        std_root=asked.std_root,
        weights=asked.weights,
        entries=asked.entries,
        optimize=False,
    )
    held, origin = _read(loaded.bound or []), (str(asked.weights),)
    return Subject(name, loaded.program, values, {}, room, held, origin, digest, None)


def _plain(values: Mapping[str, Value]) -> dict[str, int | str]:
    """The generics of a block, which has no packs."""
    return {name: value for name, value in values.items() if not isinstance(value, tuple)}


def _read(bound: Iterable[Any]) -> dict[str, Array]:
    held: dict[str, Array] = {}
    for slots, array in read_bound(list(bound)):
        held.update(dict.fromkeys((slot.path for slot in slots), np.array(array)))
    return held


def _lowered(
    program: Program, values: Mapping[str, Value], asked: Asked, present: Callable[[str], bool]
) -> core.Program:
    for name in asked.entries or ():
        program.entry(name)
    bare = replace(program, optimize=False)
    return bare.lower(values, entries=asked.entries, present=present)


def _digest(
    program: Program,
    values: Mapping[str, Value],
    constants: Mapping[str, Scalar],
) -> str:
    """Of every source file that the program is made of, and what is bound in it."""
    digest = hashlib.sha256()
    modules = program.analysis.modules
    for name in sorted(modules):
        text = modules[name].file.source.text
        digest.update(f"{name} {len(text)}\n{text}\n".encode())
    for bound in (values, constants):
        digest.update(repr(sorted(bound.items())).encode())
    return digest.hexdigest()
