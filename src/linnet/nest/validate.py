"""The validation figures of a card: its model, cut to a few layers, beside transformers in f32."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import linnet
from linnet.diagnostics import LinnetError, NestError
from linnet.nest.card import Card
from linnet.nest.fetch import fetch_weights
from linnet.nest.load import load
from linnet.nest.progress import Progress
from linnet.nest.stack import Settings, Stack, published_stack, random_stack, settings_of
from linnet.nest.text import load_text

if TYPE_CHECKING:
    import torch

TEXT = (
    "Rain fell on the harbour for three days before anyone thought to count the boats. There were "
    "forty-one, which was one too many: between the pilot's cutter and the old ferry lay a hull "
    "that nobody had seen come in, painted grey, without a name, its ropes made fast by someone "
    "who knew how. The harbour master wrote it down as no. 41 (unknown) and sent for the key."
)
"""What real weights read."""
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Figure:
    """How far two results are apart; `agreeing` of `positions` rows have one argmax."""

    name: str
    max_abs_difference: float
    mean_abs_difference: float
    largest: float
    agreeing: int | None = None
    positions: int | None = None

    def line(self) -> str:
        same = "" if self.agreeing is None else f"; argmax {self.agreeing}/{self.positions}"
        return (
            f"{self.name}: max abs difference {self.max_abs_difference:.2e}, mean "
            f"{self.mean_abs_difference:.2e}, largest value {self.largest:.3g}{same}"
        )

    def within(self, tolerance: float) -> bool:
        """The difference is at most this part of the largest value; nan is not."""
        return bool(self.max_abs_difference <= tolerance * max(self.largest, 1e-6))


@dataclass(frozen=True, slots=True)
class Validation:
    """What was run, and the figures; `problems` says which of them are not as they should be."""

    model: str
    layers: int
    of_layers: int
    numerics: str
    tokens: int
    read: str
    weights: str
    reference: str
    figures: tuple[Figure, ...]
    problems: tuple[str, ...]

    def text(self) -> str:
        layers = (
            f"all {self.of_layers} layers"
            if self.layers == self.of_layers
            else f"{self.layers} of {self.of_layers} layers"
        )
        lines = [
            f"{self.model}: {layers} in f32 ({self.numerics}), {self.tokens} tokens of {self.read}",
            f"  weights: {self.weights}",
            f"  beside: {self.reference}",
            *(f"  {figure.line()}" for figure in self.figures),
            *(f"  NOT AS IT SHOULD BE: {problem}" for problem in self.problems),
        ]
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """The same for tools."""
        return {
            "version": 1,
            "model": self.model,
            "layers": self.layers,
            "of_layers": self.of_layers,
            "dtype": "f32",
            "numerics": self.numerics,
            "tokens": self.tokens,
            "read": self.read,
            "weights": self.weights,
            "reference": self.reference,
            "linnet": linnet.__version__,
            "machine": platform.machine(),
            "figures": {
                figure.name: {
                    key: value
                    for key in Figure.__slots__
                    if key != "name" and (value := getattr(figure, key)) is not None
                }
                for figure in self.figures
            },
            "problems": list(self.problems),
        }


def validate(
    card: Card,
    *,
    layers: int | None = 2,
    tokens: int = 64,
    weights: str | Path | None = None,
    random: bool = False,
    seed: int = 0,
    numerics: str = "fast",
    tolerance: float = TOLERANCE,
    progress: Progress | None = None,
) -> Validation:
    """The card's model beside transformers': its first `layers` layers, or all (None), in f32.

    Both have the card's published weights, those at `weights`, or random ones. Raises NestError
    where there is nothing to compare with, or not the memory for it.
    """
    found = None if random or weights is not None else _fetched(card, progress)
    bindings = found.bindings if found is not None else card.bindings_path
    all_layers = card.generics.get("Layers")
    if not isinstance(all_layers, int):
        raise NestError(f"{card.name}: its card binds no `Layers`, so there is nothing to cut")
    count = all_layers if layers is None else min(layers, all_layers)
    overrides: dict[str, int | str] = {"Layers": count, "T": "f32"}
    if "MaxSeq" in card.generics:
        overrides |= {"MaxSeq": _room(card, tokens), "Batch": 1}
    # The reference is built for the card's own context, which rotary scaling may depend on.
    own = {k: v for k, v in overrides.items() if k != "MaxSeq"}
    settings = settings_of(card, own, bindings)
    _check_memory(settings, count)
    options: dict[str, Any] = {"generics": overrides, "numerics": numerics, "bindings": bindings}
    if random:
        stack, arrays = random_stack(settings, seed)
        ids, read = _drawn(settings, tokens, seed), f"drawn ids (seed {seed})"
        options["weights"], origin = arrays, f"random (seed {seed})"
    else:
        place = list(found.files) if found is not None else weights
        assert place is not None
        stack = published_stack(settings, place, None if count == all_layers else count)
        text_files = list(found.text_files) if found is not None else place
        ids, read = _read(card, settings, text_files, tokens, seed)
        origin = found.origin if found is not None else str(weights)
        options |= {"weights": place, "cast_dtype": True}
    compare = _decoder if settings.decodes else _encoder
    figures, problems = compare(card, stack, ids, options, tolerance)
    return Validation(
        card.name,
        count,
        all_layers,
        numerics,
        len(ids),
        read,
        origin,
        stack.description,
        tuple(figures),
        tuple(problems),
    )


def _fetched(card: Card, progress: Progress | None) -> Any:
    try:
        return fetch_weights(card, progress)
    except NestError as error:
        raise NestError(f"{error}\n  --random validates the program without them") from error


def _room(card: Card, tokens: int) -> int:
    """Positions of the caches: the tokens, as far as the model has them."""
    limits = [card.generics[name] for name in ("MaxSeq", "MaxPositions") if name in card.generics]
    return min([tokens, *(limit for limit in limits if isinstance(limit, int))])


def _check_memory(settings: Settings, layers: int) -> None:
    """Both models, and what is read for them, fit in the memory that is free."""
    needed = 3 * 4 * settings.values
    free = _free_memory()
    if free is not None and needed > free:
        raise NestError(
            f"{settings.card.name}: {layers} layers in f32 take about {needed / 2**30:.1f} GiB for "
            f"both models, and {free / 2**30:.1f} GiB of memory are free; --layers takes fewer"
        )


def _free_memory() -> int | None:
    """Bytes that can be had without swapping; None where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _drawn(settings: Settings, tokens: int, seed: int) -> list[int]:
    """Ids that mean nothing; the lowest ones, which may be padding, are left out."""
    count = _room(settings.card, tokens)
    first = int(settings.number("FIRST_POSITION", 0))
    if "MaxPositions" in settings.generics:
        count = min(count, settings.size("MaxPositions") - first)
    draw = np.random.default_rng(seed)
    lowest = min(4, settings.size("Vocab") - 1)
    return [int(id) for id in draw.integers(lowest, settings.size("Vocab"), count)]


def _read(
    card: Card, settings: Settings, place: Any, tokens: int, seed: int
) -> tuple[list[int], str]:
    """The ids of a text; drawn ones where the checkpoint has no tokenizer."""
    try:
        text = load_text(card, place)
    except NestError:
        raise
    except LinnetError:
        return _drawn(settings, tokens, seed), f"drawn ids (seed {seed}): there is no tokenizer"
    ids = text.encode(TEXT)
    while len(ids) < tokens:
        ids += text.encode(TEXT, special=False)
    return ids[: len(_drawn(settings, tokens, seed))], "a text"


# --- the comparisons --------------------------------------------------------------------------


def _decoder(
    card: Card, stack: Stack, ids: Sequence[int], options: Mapping[str, Any], tolerance: float
) -> tuple[list[Figure], list[str]]:
    """Logits at every position, and the steps of `decode` beside the whole pass."""
    import torch

    tokens = torch.tensor([list(ids)], dtype=torch.int32)
    half = max(1, len(ids) // 2)
    with torch.inference_mode():
        theirs = stack.model(tokens.long(), use_cache=False).logits[0].float()
        model = load(card, entries=("forward", "prefill", "decode"), **options)
        ours = model.run_entry("forward", [tokens])[0]
        steps = [model.run_entry("prefill", [tokens[:, :half], 0])]
        for k in range(half, len(ids)):
            steps.append(model.run_entry("decode", [tokens[:, k : k + 1], k]))
    logits = _figure("logits", ours, theirs)
    decode = _figure(
        f"decode after prefill({half}) beside forward", torch.cat(steps), ours[half - 1 :]
    )
    problems = [
        f"{figure.name}: argmax differs at {figure.positions - figure.agreeing} positions"
        for figure in (logits, decode)
        if figure.agreeing is not None
        and figure.positions is not None
        and figure.agreeing < figure.positions
    ]
    return [logits, decode], problems + _beyond([logits, decode], tolerance)


def _encoder(
    card: Card, stack: Stack, ids: Sequence[int], options: Mapping[str, Any], tolerance: float
) -> tuple[list[Figure], list[str]]:
    """Hidden states, and the vectors that the card's entries make of them."""
    import torch

    tokens = torch.tensor([list(ids)], dtype=torch.int32)
    types = torch.zeros_like(tokens)
    with torch.inference_mode():
        out = stack.model(tokens.long(), token_type_ids=types.long())
        hidden = out.last_hidden_state
        model = load(card, **options)
        figures = [_figure("hidden states", model.run_entry("forward", [tokens, types]), hidden)]
        if "embed" in model.entries:
            mean = torch.nn.functional.normalize(hidden.mean(dim=1), dim=-1)
            ours = model.run_entry("embed", [tokens, types])
            figures.append(_figure("embed beside the normalised mean", ours, mean))
        if "pool" in model.entries and out.pooler_output is not None:
            ours = model.run_entry("pool", [tokens, types])
            figures.append(_figure("pool beside pooler_output", ours, out.pooler_output))
    return figures, _beyond(figures, tolerance)


def _figure(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> Figure:
    if ours.shape != theirs.shape:
        raise NestError(f"{name}: ours is {list(ours.shape)}, transformers' {list(theirs.shape)}")
    difference = (ours.double() - theirs.double()).abs()
    same: int | None = None
    if name.startswith(("logits", "decode")):
        same = int((ours.argmax(-1) == theirs.argmax(-1)).sum())
    return Figure(
        name,
        float(difference.max()),
        float(difference.mean()),
        float(theirs.abs().max()),
        same,
        None if same is None else ours.shape[0],
    )


def _beyond(figures: Sequence[Figure], tolerance: float) -> list[str]:
    return [
        f"{figure.name}: the difference is more than {tolerance:g} of the largest value"
        for figure in figures
        if not figure.within(tolerance)
    ]
