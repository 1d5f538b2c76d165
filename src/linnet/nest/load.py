"""A card to a model: source, constants, generics, weights and backend put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnet.diagnostics import NestError
from linnet.nest.card import Card
from linnet.nest.conversion.agreement import refuse_other_constants
from linnet.nest.fetch import WeightFiles, fetch_weights
from linnet.nest.progress import Progress
from linnet.nest.resolve import resolve
from linnet.nest.stored import settled

if TYPE_CHECKING:
    from linnet.weights.bindings import Bound
    from linnet.weights.checkpoint import Weights

# Backend -> the module and the function in it that makes its model.
LOADERS: dict[str, tuple[str, str]] = {
    "torch": ("linnet.torch", "load"),
    "jax": ("linnet.jax", "load"),
    "jax_source": ("linnet.jax", "load_source"),
    "jax_model": ("linnet.jax", "load_model"),
    "nnx": ("linnet.jax", "load_nnx"),
    "onnx_model": ("linnet.onnx", "load_model"),
}


def load(
    name_or_dir: str | Path | Card,
    *,
    backend: str = "torch",
    std_root: str | Path | None = None,
    generics: Mapping[str, int | str] | None = None,
    weights: Weights | None = None,
    progress: Progress | None = None,
    proof: str | Path | None = None,
    **options: Any,
) -> Any:
    """The card's model with its weights, ready to run on a backend.

    The name is that of a card, its directory, or a checkpoint's directory, for which a card is
    made from its configuration (`resolve`). `generics` override the card's; `weights` (a
    .safetensors or .gguf file, several, a directory, or arrays by tensor name) stand for the
    published ones, which are fetched otherwise. `proof` is a file that will say which bytes became
    which parameters (linnet.nest.proof). `options` go to the backend's loader. Raises NestError for
    a card or download that cannot be used and PlanError for everything that is wrong with source,
    generics or weights.
    """
    card = resolve(name_or_dir, progress=progress)
    if backend not in LOADERS:
        raise NestError(
            f"no backend {backend!r} in this version: choose {', '.join(sorted(LOADERS))}"
        )
    if "bindings" not in options:
        options["bindings"] = card.bindings_path
    if weights is None:
        found: WeightFiles = fetch_weights(card, progress)
        weights = list(found.files)
        # A mirror may store another float dtype than the published file that the card speaks of.
        options["cast_dtype"] = options.get("cast_dtype", False) or found.cast_dtype
        options["bindings"] = found.bindings or options["bindings"]
    else:
        refuse_other_constants(card, weights)
    if card.weights.cast_dtype:
        options["cast_dtype"] = True
    entries = options.get("entries")
    bound: list[Bound] = []
    if proof is not None:
        options["on_bound"] = bound.extend
    model = loader(backend)(
        card.source_path,
        root=card.root,
        main=card.entry if entries is None or card.entry in entries else None,
        generics={**card.generics, **(generics or {})},
        constants=card.constants,
        std_root=std_root,
        weights=settled(card, weights),
        unread=card.weights.unread,
        overrides=[n for n, v in (generics or {}).items() if card.generics.get(n, v) != v],
        **options,
    )
    if proof is not None:
        from linnet.nest.proof import write_proof

        held = dict(model.state_dict()) if hasattr(model, "state_dict") else None
        write_proof(proof, bound, held, {"model": card.name, "backend": backend})
    return model


def loader(backend: str) -> Callable[..., Any]:
    """What makes the backend's models; NotInstalledError where its framework is not there."""
    module, name = LOADERS[backend]
    made: Callable[..., Any] = getattr(import_module(module), name)
    return made
