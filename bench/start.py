"""How a method's worker starts: its environment, what it loads, and what it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import peers
from bench.job import Job
from bench.methods import FLOATS, Method
from bench.prepare import Prepared
from bench.turns import Start, project
from linnet.nest.fetch import fetch_weights


@dataclass(frozen=True, slots=True)
class Asked:
    """What is the same for all methods."""

    prompts: list[list[int]]
    new: int
    threads: int
    device: str
    seed: int
    concurrency: int = 1


def start(one: Method, prepared: Prepared, asked: Asked, logits: Path) -> Start:
    """The weights' form and the environment are ready; this is how the method starts."""
    peer = one.family.peer
    if peer is None:
        python, variables = project()
    else:
        python, variables = str(peers.python(peer)), peers.environment()
    job = Job(
        key=one.key,
        runner=one.family.runner,
        dtype=one.dtype,
        place=str(_place(one, prepared)),
        prompts=asked.prompts,
        new=asked.new,
        threads=asked.threads,
        device=asked.device,
        logits=str(logits),
        seed=asked.seed,
        concurrency=asked.concurrency,
        options=_options(one, prepared),
    )
    return Start(python, variables, job)


def _place(one: Method, prepared: Prepared) -> Path:
    """What the method loads."""
    match one.family.needs:
        case "gguf":
            return prepared.gguf(one.storage)
        case "gguf with words":
            return prepared.gguf(one.storage, words=True)
        case "openvino":
            return prepared.openvino(one.storage)
        case "genai":
            return prepared.genai(one.storage)
        case "linnet" if one.storage == "q4" and prepared.own_gguf is not None:
            return prepared.own_gguf  # its blocks are kept as they are
        case _:
            return prepared.checkpoint()


def _options(one: Method, prepared: Prepared) -> dict[str, Any]:
    options = {"cache": one.cache, **one.family.options}
    if one.family.needs != "linnet":
        return options
    options["card"] = str(prepared.card.directory)
    options["random"] = prepared.random is not None
    if one.storage not in FLOATS:
        options["storage"] = one.storage
    if one.storage == "q4" and prepared.own_gguf is not None:
        bindings = fetch_weights(prepared.card).bindings or prepared.card.bindings_path
        options["bindings"] = None if bindings is None else str(bindings)
    return options
