"""samples.json of a card that makes text: our greedy answer beside the reference stack's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linnet.diagnostics import NestError
from linnet.nest.card import Card
from linnet.nest.fetch import fetch_weights
from linnet.nest.load import load
from linnet.nest.progress import Progress
from linnet.nest.stack import greedy, published_stack, settings_of
from linnet.nest.text import load_text
from linnet.serve.sampling import Sampling
from linnet.serve.text import Text

FILE = "samples.json"
QUESTION = "Explain in two sentences why the sky is blue."
BEGINNING = "The sky is blue because"


def text_sample(
    card: Card,
    *,
    prompt: str | None = None,
    count: int = 128,
    raw: bool = False,
    weights: str | Path | None = None,
    numerics: str = "fast",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """A sample of the kind `text`: both answers to a prompt, in f32, up to an end token.

    The chat template is applied where there is one, unless `raw`. Raises NestError for a card
    whose model makes no text.
    """
    from linnet.serve.generation import ENTRIES, Generator, shared_prefix

    if "MaxSeq" not in card.generics:
        raise NestError(f"{card.name} makes no text: samples are made of decoders")
    if weights is None:
        found = fetch_weights(card, progress)
        place: Any = list(found.files)
        text, bindings = load_text(card, found.text_files), found.bindings
    else:
        place, text, bindings = weights, load_text(card, weights), card.bindings_path
    chat = text.template is not None and not raw
    prompt = prompt or (QUESTION if chat else BEGINNING)
    ids = text.encode_chat([{"role": "user", "content": prompt}]) if chat else text.encode(prompt)
    overrides: dict[str, int | str] = {"MaxSeq": _positions(card, ids, count), "T": "f32"}
    overrides["Batch"] = 1
    # One model at a time: the larger cards fit twice into few machines.
    stack = published_stack(settings_of(card, {"T": "f32"}, bindings), place, None)
    theirs, description = greedy(stack.model, ids, count, text.eos), stack.description
    del stack
    model = load(
        card,
        generics=overrides,
        weights=place,
        bindings=bindings,
        entries=ENTRIES,
        numerics=numerics,
        cast_dtype=True,
    )
    ours: list[int] = []
    for token in Generator(model).tokens(ids, count, Sampling()):
        if token in text.eos:
            break
        ours.append(token)
    return {
        "kind": "text",
        "prompt": prompt,
        "chat": chat,
        "output": _words(text, ours),
        "reference": _words(text, theirs),
        "reference_stack": description,
        "tokens": len(ours),
        "agreeing_prefix": shared_prefix(ours, theirs),
    }


def _positions(card: Card, ids: list[int], count: int) -> int:
    """What the caches hold: the prompt and its answer."""
    context, needed = card.generics["MaxSeq"], len(ids) + count
    if isinstance(context, int) and needed > context:
        raise NestError(
            f"{card.name}: {len(ids)} tokens of the prompt and {count} new ones are more than its "
            f"context of {context} holds"
        )
    return needed


def _words(text: Text, ids: list[int]) -> str:
    """The text as it is streamed: of a last character that is not whole, nothing."""
    stream = text.stream()
    return "".join(map(stream.push, ids)) + stream.finish()
