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

    def padded(self, count: int) -> int:
        """The length to which so many tokens are padded, so that few shapes come."""
        ...

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


def driver_of(model: Any, graphs: bool) -> Driver:
    """What drives a model: of JAX or ONNX Runtime what `load_model` made, else PyTorch's."""
    match type(model).__module__.split(".")[:2]:
        case ["linnet", "jax"]:
            return JaxDriver(model)
        case ["linnet", "onnx"]:
            return OnnxDriver(model)
    return TorchDriver(model, graphs)


def _vocab(model: Any) -> int:
    """The size of the vocabulary, which the entry of steps gives logits of."""
    for name in ("decode_paged", "decode_rows"):
        if name in model.entries:
            returned = model.program.entries[name].returns
            return int(str(returned.shape[-1]))
    raise LinnetError(
        f"{model.program.name} cannot serve many requests at once: it has neither `decode_paged` "
        "nor `decode_rows`; implement `std.nn.decoder::Decoder`, which has both"
    )


def _are_caches(shape: Sequence[int], sizes: Mapping[str, int | str]) -> bool:
    """`[Batch, KvHeads, MaxSeq, D]`."""
    return len(shape) == 4 and shape[2] == sizes["MaxSeq"]


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
        self.vocab = _vocab(model)
        device = placement.home if placement is not None else torch.device("cpu")
        self.packs_steps = device.type == "cpu"
        # Products of more rows are no faster on a CPU, and who steps waits for them.
        self.pack = 256 if device.type == "cpu" else 2048

    def padded(self, count: int) -> int:
        """Of 16 up to 320, then four to a doubling."""
        step = 16 if count <= 320 else 1 << ((count - 1).bit_length() - 3)
        return -(-count // step) * step

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
        return [one for one in states if _are_caches(one.shape, self.sizes)]

    def copy_weights(self, model: Any) -> None:
        self.model.copy_weights(model)

    def reset(self) -> None:
        self.model.reset_state()


class _ArrayDriver:
    """A model whose entries take arrays and give arrays."""

    packs_steps = False
    pack = 256

    def __init__(self, model: Any) -> None:
        self.model = model
        self.entries = model.entries
        self.sizes = model.generics
        self.vocab = _vocab(model)

    def run(self, entry: str, inputs: Sequence[Ints], steady: bool) -> torch.Tensor:
        logits = np.array(self.model.run_entry(entry, inputs), np.float32)
        return torch.from_numpy(logits)

    def copy_weights(self, model: Any) -> None:
        self.model.copy_weights(model)

    def reset(self) -> None:
        self.model.reset_state()


class JaxDriver(_ArrayDriver):
    """A model that `linnet.jax.load_model` made; XLA compiles an entry for each of its shapes."""

    def __init__(self, model: Any) -> None:
        if not hasattr(model, "run_entry"):
            raise LinnetError(
                "an engine needs all entries of a model: load it with linnet.jax.load_model "
                '(`nest.load(..., backend="jax_model")`)'
            )
        super().__init__(model)

    def padded(self, count: int) -> int:
        """A power of two: each shape is seconds of XLA's time."""
        return max(16, 1 << (count - 1).bit_length())

    def copy_pages(self, copies: Sequence[tuple[int, int]], size: int) -> None:
        from linnet.jax.pages import copied

        for source, target in copies:
            self._change(lambda x, at=(source, target): copied(x, *at, size))

    def clear_pages(self, pages: Sequence[int], size: int) -> None:
        from linnet.jax.pages import cleared

        for page in pages:
            self._change(lambda x, page=page: cleared(x, page, size))

    def _change(self, change: Any) -> None:
        self.model.change_state(lambda x: change(x) if _are_caches(x.shape, self.sizes) else x)


class OnnxDriver(_ArrayDriver):
    """A model that `linnet.onnx.load_model` made; a session serves all shapes alike."""

    def padded(self, count: int) -> int:
        """As it is."""
        return count

    def copy_pages(self, copies: Sequence[tuple[int, int]], size: int) -> None:
        for cache in self._caches():
            for source, target in copies:
                read, written = (slice(page * size, (page + 1) * size) for page in (source, target))
                cache[:, :, written] = cache[:, :, read]

    def clear_pages(self, pages: Sequence[int], size: int) -> None:
        for cache in self._caches():
            for page in pages:
                cache[:, :, page * size : (page + 1) * size] = 0

    def _caches(self) -> list[npt.NDArray[Any]]:
        """The states `[Batch, KvHeads, MaxSeq, D]`, where they are."""
        return [x for x in self.model.state_views.values() if _are_caches(x.shape, self.sizes)]
