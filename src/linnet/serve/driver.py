"""What an engine asks of a model, and PyTorch's answer: entries on arrays, pages copied."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from linnet.diagnostics import LinnetError

Ints = npt.NDArray[np.int32]


class Driver(Protocol):
    """A model of any backend, its caches kept between calls."""

    entries: Collection[str]
    sizes: Mapping[str, int | str]  # the generics of the model, as bound
    vocab: int
    packs_steps: bool  # attention over pages takes packed prompts and steps alike, at full speed
    pack: int  # so many tokens in a pass are worth it

    def run(self, entry: str, inputs: Sequence[Ints], steady: bool) -> torch.Tensor:
        """The entry's logits `[N, vocab]`; `steady`: calls of these shapes come again and again."""
        ...

    def copy_pages(self, copies: Sequence[tuple[int, int]], size: int) -> None:
        """Pages of `size` positions become copies of others, one after the other."""
        ...

    def clear_pages(self, pages: Sequence[int], size: int) -> None:
        """Pages of `size` positions hold zeros."""
        ...

    def copy_weights(self, model: Any) -> None:
        """The weights become those of another model of the same source."""
        ...

    def reset(self) -> None:
        """The caches are as at the start."""
        ...


class TorchDriver:
    """A module that `linnet.torch.load` made; its entries run on its own device."""

    def __init__(self, model: Any, graphs: bool) -> None:
        self.model = model
        self.entries = model.entries
        self.sizes = model.generics
        placement = getattr(model, "placement", None)
        # What is brought from elsewhere for each call cannot be recorded.
        whole = placement is not None and placement.trivial and model.shards is None
        self._steady = {"compile": "reduce-overhead"} if graphs and whole else {}
        self.vocab = self._vocab()
        device = placement.home if placement is not None else torch.device("cpu")
        self.packs_steps = device.type == "cpu"
        # Products of more rows are no faster on a CPU, and who steps waits for them.
        self.pack = 256 if device.type == "cpu" else 2048

    def _vocab(self) -> int:
        for name in ("decode_paged", "decode_rows"):
            if name in self.entries:
                returned = self.model.program.entries[name].returns
                return int(str(returned.shape[-1]))
        name = self.model.program.name
        raise LinnetError(
            f"{name} cannot serve many requests at once: it has neither `decode_paged` nor "
            "`decode_rows`; implement `std.nn.decoder::Decoder`, which has both"
        )

    def run(self, entry: str, inputs: Sequence[Ints], steady: bool) -> torch.Tensor:
        given = [torch.from_numpy(x) for x in inputs]
        with torch.inference_mode():
            logits: torch.Tensor = self.model.run_entry(
                entry, given, **(self._steady if steady else {})
            )
        return logits

    def copy_pages(self, copies: Sequence[tuple[int, int]], size: int) -> None:
        with torch.inference_mode():
            for cache in self._caches():
                for source, target in copies:
                    read, written = (
                        slice(page * size, (page + 1) * size) for page in (source, target)
                    )
                    cache[:, :, written] = cache[:, :, read]

    def clear_pages(self, pages: Sequence[int], size: int) -> None:
        with torch.inference_mode():
            for cache in self._caches():
                for page in pages:
                    cache[:, :, page * size : (page + 1) * size] = 0

    def _caches(self) -> list[torch.Tensor]:
        """The states `[Batch, KvHeads, MaxSeq, D]`."""
        states = [self.model.get_buffer_at(path) for path in self.model.state_paths]
        return [one for one in states if one.ndim == 4 and one.shape[2] == self.sizes["MaxSeq"]]

    def copy_weights(self, model: Any) -> None:
        self.model.copy_weights(model)

    def reset(self) -> None:
        self.model.reset_state()
