"""A card's weights in the form that each method reads: a Hub directory, GGUF files, OpenVINO's.

All are made from the same values, on first use, and kept. Random weights are those of a seed, at
the card's real size, written under the names of the published checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench import peers
from bench.gguf_file import write_gguf
from linnet.diagnostics import NestError
from linnet.loading import load_source, slots_of
from linnet.nest import quantised, stack
from linnet.nest.card import Card
from linnet.nest.fetch import fetch_weights
from linnet.weights import open_checkpoint
from linnet.weights.arrays import DTYPES, Array

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_TILE = 1 << 24


@dataclass(frozen=True, slots=True)
class Prepared:
    """A card and a folder with its weights in several forms."""

    card: Card
    folder: Path
    random: str | None
    """The dtype of random weights; None where the weights are the card's own."""
    seed: int = 0

    @property
    def own_gguf(self) -> Path | None:
        """The card's own file, where that is a GGUF."""
        if self.random is not None:
            return None
        files = fetch_weights(self.card).files
        return files[0] if len(files) == 1 and files[0].suffix == ".gguf" else None

    def checkpoint(self) -> Path:
        """A directory as the Hub has them: a configuration and SafeTensors."""
        if self.random is None:
            files = fetch_weights(self.card)
            beside = files.files[0].parent
            if files.format != "gguf" and (beside / CONFIG).is_file():
                return beside
        return self._once("checkpoint", self._write_checkpoint)

    def gguf(self, storage: str, words: bool = False) -> Path:
        """A GGUF file of this storage: the card's own where it is one of 4 bits.

        With `words` it carries a vocabulary, which has to come from a GGUF file of the card.
        """
        if storage == "q4" and self.own_gguf is not None:
            return self.own_gguf
        if words and self.own_gguf is None:
            raise NestError(
                f"{self.card.name}: its GGUF file needs a vocabulary, which only a card whose own "
                "weights are a GGUF file has"
            )
        if self.random is not None and self.random != "f32" and storage == "f32":
            storage = self.random
        name = f"gguf-{storage}" + "-words" * words
        source = self.own_gguf if words else None
        write = partial(self._write_gguf, storage=storage, words=source)
        return self._once(name, write) / "model.gguf"

    def openvino(self, storage: str) -> Path:
        """A directory of OpenVINO's: weights as floats, or in 8 or 4 bits."""
        kind = storage if storage in ("q8", "q4") else "float"
        return self._once(f"openvino-{kind}", lambda at: self._write_openvino(at, kind))

    def genai(self, storage: str) -> Path:
        """A directory of ONNX Runtime GenAI's, as its own builder makes it."""
        return self._once(f"genai-{storage}", lambda at: self._write_genai(at, storage))

    # ------------------------------------------------ writing

    def _once(self, name: str, write: Callable[[Path], None]) -> Path:
        place = self.folder / name
        if not place.is_dir():
            with _whole(place) as unfinished:
                write(unfinished)
        return place

    def _write_checkpoint(self, place: Path) -> None:
        if self.random is not None:
            write_random(self.card, place, self.random, self.seed)
            return
        files = fetch_weights(self.card)
        settings = stack.settings_of(self.card, {}, files.bindings)
        checkpoint = open_checkpoint(list(files.files))
        names = set(settings.tensors.values())
        kept = {name for name in names if quantised.own_name(name, names) is not None}
        lacking = sorted(names - set(checkpoint.tensors))
        if lacking:
            raise NestError(f"{self.card.name}: the checkpoint has no tensor {lacking[0]}")

        def read(name: str) -> Array:
            return quantised.values(name, names, lambda at, kind: checkpoint.tensors[at].read(kind))

        write_config(settings, place)
        own = {name: quantised.own_name(name, names) or name for name in sorted(kept)}
        write_safetensors(
            place / WEIGHTS,
            {own[name]: (checkpoint.tensors[name].shape, partial(read, name)) for name in own},
            "f32",
        )

    def _write_gguf(self, place: Path, storage: str, words: Path | None) -> None:
        write_gguf(self.checkpoint(), place / "model.gguf", storage, words)

    def _write_openvino(self, place: Path, kind: str) -> None:
        self._converted("openvino", "optimum-intel", place, kind)

    def _write_genai(self, place: Path, storage: str) -> None:
        self._converted("genai", "ONNX Runtime GenAI", place, storage)

    def _converted(self, peer: str, by: str, place: Path, kind: str) -> None:
        code = [str(peers.python(peer)), "-m", f"bench.{peer}_export"]
        asked = [*code, str(self.checkpoint()), str(place), kind]
        done = subprocess.run(asked, env=peers.environment(), capture_output=True, text=True)
        if done.returncode:
            last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
            raise NestError(f"{by} cannot convert the model: {''.join(last)}")


def prepare(card: Card, folder: Path, random: str | None, seed: int) -> Prepared:
    """The card, and where its weights are kept in the forms that methods read."""
    if random is not None:
        what = f"random {random} {seed} {card.generics} {card.constants}"
    else:
        what = " ".join(f"{path}:{path.stat().st_size}" for path in fetch_weights(card).files)
    digest = hashlib.sha256(what.encode()).hexdigest()[:12]
    return Prepared(card, folder / f"{card.name}-{digest}", random, seed)


@contextmanager
def _whole(place: Path) -> Iterator[Path]:
    """A folder that gets its name when all of it is written."""
    unfinished = place.with_name(f"{place.name}.{os.getpid()}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        unfinished.rename(place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


# ---------------------------------------------------------------- random weights


def write_random(card: Card, place: Path, dtype: str, seed: int) -> None:
    """A checkpoint of random values: matrices over the root of their width, vectors near one.

    Values repeat after some millions, at another place in each tensor: to make every one of
    billions anew would take minutes.
    """
    settings = stack.settings_of(card, {"T": dtype} if "T" in card.generics else {})
    write_config(settings, place)
    shapes = _shapes(card, dtype)
    noise = np.random.default_rng(seed).standard_normal(_TILE, np.float32)

    def value(k: int, shape: tuple[int, ...]) -> Array:
        scale = 0.5 * shape[-1] ** -0.5 if len(shape) > 1 else 0.02
        tile = (noise * np.float32(scale) + np.float32(len(shape) == 1)).astype(DTYPES[dtype])
        return np.resize(np.roll(tile, 977 * k), shape)

    names = sorted(set(settings.tensors.values()))
    of = {name: shapes[path] for path, name in settings.tensors.items()}
    write_safetensors(
        place / WEIGHTS,
        {name: (of[name], partial(value, k, of[name])) for k, name in enumerate(names)},
        dtype,
    )


# ---------------------------------------------------------------- a checkpoint's files


def write_config(settings: stack.Settings, place: Path) -> None:
    """transformers' configuration of what the card binds, with the class of its model."""
    import transformers

    family = settings.card.package or settings.card.family or ""
    if family not in stack.CONFIGS:
        raise NestError(
            f"{settings.card.name}: no configuration of transformers is known for {family!r} "
            f"(known are {', '.join(stack.CONFIGS)})"
        )
    config = stack.CONFIGS[family](settings, transformers)
    known: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    config.architectures = [known[type(config)].__name__]
    config.save_pretrained(place)


def write_safetensors(
    place: Path, tensors: Mapping[str, tuple[Sequence[int], Callable[[], Array]]], dtype: str
) -> None:
    """One SafeTensors file, written tensor by tensor: never more than one is in memory."""
    kind = DTYPES[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (shape, _) in tensors.items():
        size = math.prod(shape) * kind.itemsize
        offsets = [at, at + size]
        header[name] = {"dtype": dtype.upper(), "shape": list(shape), "data_offsets": offsets}
        at += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with place.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for _, value in tensors.values():
            array = np.ascontiguousarray(value(), kind)
            file.write(array.reshape(-1).view(np.uint8).data)


def _shapes(card: Card, dtype: str) -> dict[str, tuple[int, ...]]:
    loaded = load_source(
        card.source_path,
        root=card.root,
        main=card.entry,
        entries=[card.entry] if card.entry else None,
        generics={**card.generics, **({"T": dtype} if "T" in card.generics else {})},
        constants=card.constants,
        optimize=False,
    )
    return {slot.path: tuple(slot.shape) for slot in slots_of(loaded.program)}
