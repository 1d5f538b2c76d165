"""What is wrong with a card: its text, its source, its weights by their headers, its exports."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from linnet.backends import BACKENDS
from linnet.core import ir as core
from linnet.core.derive import dtype_of, shape_of
from linnet.core.lower import bind_generics, main_module, root_block
from linnet.diagnostics import LinnetError, NestError, PlanError
from linnet.inputs import bind_entry
from linnet.ir import Function, Program
from linnet.loading import matching
from linnet.nest.card import MANIFEST, Binding, Card, TextContract, find_card
from linnet.nest.fetch import TOKENIZER_FILES
from linnet.nest.hub import COMMIT, commit_of, fetch_files, headers_of, hub_folder, page
from linnet.nest.parameters import card_bindings, card_slots, present_in
from linnet.nest.progress import say_nothing, show_nothing
from linnet.nest.text import load_text
from linnet.nest.web import Unavailable
from linnet.weights import Checkpoint, Slot, expand_bindings, open_checkpoint, read_bindings
from linnet.weights.bindings import match_bindings

README = "README.md"
SHORTEST = 200  # characters of a README
# Backend -> the module and function that print a lowered program; those of BACKENDS alone.
EXPORTS: dict[str, tuple[str, str]] = {"torch": ("linnet.torch.emit", "emit")}


def check(
    card: Card, *, std_root: str | Path | None = None, hub: bool = True, exports: bool = True
) -> list[str]:
    """Every problem of the card, a line each or a few; none where it is as it should be.

    `hub` compares its weights by their headers, at the pinned commit where they are not here;
    `exports` prints its main entry for every backend.
    """
    found = _Check(card)
    _check_text(found)
    with_program = _check_source(found, std_root)
    if with_program is not None:
        program, slots = with_program
        bindings = _check_bindings(found, slots)
        if hub and not found.broken:
            _check_weights(found, slots, bindings)
        if exports and not found.broken:
            _check_exports(found, program, bindings)
    return found.problems


def read_card(name_or_dir: str) -> tuple[Card | None, list[str]]:
    """The card, or every problem of its nest.toml."""
    try:
        return find_card(name_or_dir), []
    except NestError as error:
        return None, re.split(r"\n(?! )", str(error))


@dataclass(slots=True)
class _Check:
    """The problems so far; `broken` where what follows could only repeat them."""

    card: Card
    problems: list[str] = field(default_factory=list[str])
    broken: bool = False

    def add(self, place: str, problem: str) -> None:
        self.problems.append(f"{place}: {problem}")


# --- card -------------------------------------------------------------------------------------


def _check_text(found: _Check) -> None:
    card = found.card
    directory = card.directory.resolve().name
    # A repository's copy in the cache lies in a directory named by its commit.
    if card.name != directory and not COMMIT.fullmatch(directory):
        found.add(MANIFEST, f"[model] name is {card.name!r}, its directory is {directory!r}")
    for key in ("title", "summary", "license"):
        if not (getattr(card, key) or "").strip():
            found.add(MANIFEST, f"[model] has no `{key}`")
    if card.links.huggingface is None:
        found.add(MANIFEST, "[links] has no `huggingface`")
    if not card.weights.files:
        found.add(MANIFEST, "[weights] names no `files`")
    for name in card.weights.files:
        if not name.endswith(".safetensors"):
            found.add(MANIFEST, f"[weights] `files` holds {name}, which is no .safetensors file")
    _check_readme(found, card.directory / README)
    template = card.text.template
    if template is not None and not (card.directory / template).is_file():
        found.add(MANIFEST, f"[text] `template` is {template}, which does not lie beside the card")


def _check_readme(found: _Check, path: Path) -> None:
    try:
        text = path.read_text("utf-8").strip()
    except FileNotFoundError:
        found.add(README, "there is none beside the card")
    except (OSError, UnicodeDecodeError) as error:
        found.add(README, f"cannot be read: {error}")
    else:
        if len(text) < SHORTEST:
            found.add(README, f"has {len(text)} characters; a card's page has {SHORTEST} or more")


# --- source -----------------------------------------------------------------------------------


def _check_source(found: _Check, std_root: str | Path | None) -> tuple[Program, list[Slot]] | None:
    """The program and what it wants filled, as far as the source checks and its generics bind."""
    card = found.card
    if not card.source_path.is_file():
        found.add(MANIFEST, f"[source] means {card.source_path}, and there is no such file")
        return None
    try:
        program = card.program(std_root)
    except LinnetError as error:
        _add_error(found, "source", error)
        return None
    analysis = program.analysis
    block = root_block(analysis, main_module(analysis), program.root)
    if block is None:
        found.add(MANIFEST, "[source] names no `root`, and the package has several or none")
        return None
    _check_entry(found, program)
    try:
        bind_generics(analysis, block, card.generics)
        return program, card_slots(card, program)
    except LinnetError as error:
        _add_error(found, f"{MANIFEST}: [generics]", error)
        return None


def _check_entry(found: _Check, program: Program) -> None:
    """The main entry exists, and [check] gives its generics values."""
    entry = _main_entry(found, program)
    if entry is None:
        found.broken = True
        return
    known = {generic.name: generic for generic in entry.generics}
    for generic in entry.generics:
        if generic.pack:
            found.add(MANIFEST, f"[check] cannot bind {generic} of {entry.name}: it is a pack")
        elif generic.default is None and generic.name not in found.card.check:
            found.add(MANIFEST, f"[check] has no value for {generic} of {entry.name}")
    for name in found.card.check.keys() - known.keys():
        own = ", ".join(known) or "none"
        found.add(MANIFEST, f"[check] binds {name}; the generics of {entry.name} are: {own}")


def _main_entry(found: _Check, program: Program) -> Function | None:
    name = found.card.entry
    if name is None:
        entries = program.entries()
        if len(entries) == 1:
            return entries[0]
        listed = ", ".join(entry.name for entry in entries) or "none"
        found.add(MANIFEST, f"[source] names no `entry`, and the program's entries are: {listed}")
        return None
    try:
        return program.entry(name)
    except PlanError as error:
        _add_error(found, f"{MANIFEST}: [source] entry", error)
        return None


# --- bindings and weights ---------------------------------------------------------------------


def _check_bindings(found: _Check, slots: list[Slot]) -> dict[str, str] | None:
    """The card's bindings: each path is a parameter's, each parameter that must be filled has one.

    The same files are asked for by every mirror that has bindings of its own.
    """
    card = found.card
    names = [card.weights.bindings, *(mirror.bindings for mirror in card.weights.mirrors)]
    for name in dict.fromkeys(name for name in names if name is not None):
        try:
            _check_paths(found, name, slots)
        except PlanError as error:
            _add_error(found, name, error)
            found.broken = True
    return None if found.broken else card_bindings(card)


def _check_paths(found: _Check, name: str, slots: list[Slot]) -> None:
    bindings = read_bindings(found.card.directory / name)
    # No tensor is there, so that what is left are the bindings' own mistakes.
    _, report = match_bindings(slots, Checkpoint((), {}), bindings)
    wrong = [(g, p) for g, problems in report.groups.items() for p in problems if "binding" in g]
    for group, problem in wrong:
        found.add(name, f"{group}: {problem}")
    if wrong:
        return
    reached = expand_bindings(bindings, [slot.path for slot in slots])
    missing = [slot.path for slot in slots if not slot.optional and slot.path not in reached]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        found.add(name, f"names no tensor for {', '.join(missing[:3])}{more}")


def _check_weights(found: _Check, slots: list[Slot], bindings: Mapping[str, str] | None) -> None:
    card = found.card
    try:
        checkpoint, texts = _headers(card)
    except Unavailable as failure:
        found.add("weights", f"{page(card.weights.repo)}: {failure}")
        return
    except LinnetError as error:
        _add_error(found, "weights", error)
        return
    stated = card.weights
    unread = {*stated.copies, *matching(checkpoint, stated.unread)}
    _, report = match_bindings(
        slots, checkpoint, bindings, cast_dtype=stated.cast_dtype, unread=unread
    )
    for group, problems in report.groups.items():
        for problem in problems:
            found.add("weights", f"{group}: {problem}")
    if texts is not None and texts.is_dir():
        _check_tokenizer(found, texts)


def _headers(card: Card) -> tuple[Checkpoint, Path | None]:
    """The published files' headers, and the folder of the tokenizer beside them."""
    weights = card.weights
    beside = [card.weights_dir / name for name in weights.files]
    if not weights.repo or all(path.is_file() for path in beside):
        return open_checkpoint(beside), card.weights_dir
    commit = commit_of(weights.repo, weights.revision, say_nothing)
    checkpoint = headers_of(weights.repo, commit, weights.files)
    names = TOKENIZER_FILES if weights.tokenizer is None else weights.tokenizer
    optional = TOKENIZER_FILES if weights.tokenizer is None else ()
    fetch_files(weights.repo, commit, names, show_nothing, say_nothing, optional=optional)
    return checkpoint, hub_folder(weights.repo, commit)


def _check_tokenizer(found: _Check, folder: Path) -> None:
    """The card's text contract holds for the tokenizer that is published."""
    if found.card.text == TextContract() or not (folder / "tokenizer.json").is_file():
        return
    try:
        load_text(found.card, folder)
    except LinnetError as error:
        _add_error(found, "text", error)


# --- exports ----------------------------------------------------------------------------------


def _check_exports(found: _Check, program: Program, bindings: Mapping[str, str] | None) -> None:
    card = found.card
    entry = card.entry or program.entries()[0].name
    try:
        lowered = program.lower(
            card.generics,
            entries=[entry],
            main=entry,
            numerics="equivalent",
            present=present_in(bindings),
        )
        _bind_check(lowered.entries[entry], card.check)
    except LinnetError as error:
        _add_error(found, f"exports: {entry}", error)
        return
    for backend, (module, name) in EXPORTS.items():
        try:
            BACKENDS[backend].load()
            export: Callable[..., str] = getattr(import_module(module), name)
            compile(export(lowered, "equivalent"), f"{card.name} for {backend}", "exec")
        except LinnetError as error:
            _add_error(found, f"exports: {backend}", error)


def _bind_check(function: core.Function, values: Mapping[str, Binding]) -> None:
    """The entry can be called with [check]'s sizes: its where clauses hold."""
    sizes = {name: size for name, size in values.items() if isinstance(size, int)}
    known = {name: size for name, size in sizes.items() if name in function.dims}
    missing = [name for name in function.dims if name not in known]
    if missing:
        raise PlanError(f"{', '.join(missing)} has no value in [check]")
    inputs = [
        (tuple(axis.evaluate(known) for axis in shape_of(param)), str(dtype_of(param)))
        for param in function.values
    ]
    bind_entry(function, inputs, known)


# --- errors -----------------------------------------------------------------------------------


def _add_error(found: _Check, place: str, error: LinnetError) -> None:
    """The error's findings, a problem each; without any, its message."""
    for diagnostic in error.diagnostics:
        span = diagnostic.primary.span
        at = f"{span.source.name}:{span.source.position(span.start).line}"
        found.add(place, f"{at}: {diagnostic.code}: {diagnostic.message}")
    if not error.diagnostics:
        found.add(place, str(error))
