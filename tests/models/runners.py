"""One way to run an entry on the reference and on each backend, state kept between calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np


class Runner(Protocol):
    def __call__(self, entry: str, *inputs: Any, **generics: int) -> Any: ...

    def reset(self) -> None:
        """Every state is zeros again."""


class Reference:
    """The NumPy evaluator over a loaded program."""

    def __init__(self, source: Path, generics: Mapping[str, int | str], **options: Any) -> None:
        from linnet.loading import load_source
        from linnet.weights import read_bound

        loaded = load_source(source, generics=generics, policy="exact", **options)
        self.program = loaded.program
        self.members: dict[str, np.ndarray] = {}
        for slots, array in read_bound(loaded.bound or []):
            for slot in slots:
                self.members[slot.path] = np.array(array)
        self.state: dict[str, np.ndarray] = {}

    def __call__(self, entry: str, *inputs: Any, **generics: int) -> Any:
        from linnet.reference import evaluate

        arrays = list(inputs)
        return evaluate(self.program, entry, arrays, self.members, self.state, generics)

    def reset(self) -> None:
        self.state.clear()


class Torch:
    """The generated PyTorch, of a source or (`nest.load`) of a card."""

    def __init__(
        self,
        source: Any,
        generics: Mapping[str, int | str],
        load: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        import linnet.torch

        load = load or linnet.torch.load
        numerics = options.pop("numerics", "equivalent")
        self.module = load(source, generics=generics, numerics=numerics, **options)

    def __call__(self, entry: str, *inputs: Any, **generics: int) -> Any:
        import torch

        given = [torch.from_numpy(i) if isinstance(i, np.ndarray) else i for i in inputs]
        with torch.no_grad():
            out = self.module.run_entry(entry, given, generics=generics or None)
        if isinstance(out, tuple):
            return tuple(_numpy(o) for o in out)
        return _numpy(out)

    def reset(self) -> None:
        self.module.reset_state()


def _numpy(value: Any) -> np.ndarray:
    return value.numpy().copy() if hasattr(value, "numpy") else np.asarray(value)


RUNNERS: dict[str, Any] = {"reference": Reference, "torch": Torch}
