"""What training asks of a loaded program: which parameters take gradients, gradients through
state, autocast, and layers whose activations are computed again instead of kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from linnet.core.derive import dtype_of
from linnet.core.ir import Function, Program
from linnet.diagnostics import PlanError
from linnet.lora import adapter_names, is_adapter
from linnet.torch import lora
from linnet.torch.express import TORCH_NAMES
from linnet.torch.lora import Adapter
from linnet.torch.paths import float_paths
from linnet.torch.placement import Placement, refuse_offloaded
from linnet.torch.saving import Origin, save
from linnet.torch.stored import refuse_blocks
from linnet.torch.touched import changed_states
from linnet.torch.variant import PLAIN, Variant

if TYPE_CHECKING:
    from linnet.torch.parallel import Shards
    from linnet.torch.runtime import Code
    from linnet.torch.stored import Stored
    from linnet.weights.part import Part

AMP: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "f16": torch.float16}


class Training(nn.Module):
    """The part of a loaded module that is about training it."""

    if TYPE_CHECKING:
        program: Program
        placement: Placement
        _stored: Stored
        shards: Shards | None
        parts: dict[str, Part]
        _code: Code

        @property
        def device(self) -> torch.device: ...

        def _generated(self, variant: Variant) -> Code: ...

        def _take_code(self, code: Code) -> None: ...

        def _owner(self, path: str) -> tuple[nn.Module, str]: ...

        def _slots(self) -> Iterable[tuple[str, Tensor, bool]]: ...

    def __init__(self) -> None:
        super().__init__()
        self._variant = PLAIN
        self._rebinding: Code | None = None  # generated when it is first needed
        self._amp: str | None = None
        self._own_memory: set[str] = set()
        self._adapters: dict[str, Adapter] = {}  # by the paths of their weights
        self._origins: dict[str, Origin] = {}  # of weights that a checkpoint gave

    def _regenerate(self, variant: Variant) -> None:
        """The module runs this variant of its source."""
        if variant != self._variant:
            self._take_code(self._generated(variant))
            self._variant, self._rebinding = variant, None

    # ------------------------------------------------ which parameters

    def set_trainable(self, chosen: bool | str | Iterable[str] = True) -> list[str]:
        """Exactly these parameters take gradients; the result is their paths, tied ones included.

        True means every float parameter, False none, a glob or several those whose paths fit.
        What trains has memory of its own: no file's, and no array's that was given as weights.
        """
        if chosen is not False:
            refuse_blocks(self._stored, f"set_trainable({chosen!r})")
        if self.placement.offloaded:
            if chosen is not False:
                refuse_offloaded(self.placement, "trainable")
            return []
        held = dict(self.named_parameters(remove_duplicate=False))
        wanted = {id(held[path]) for path in float_paths("trainable", chosen, held)}
        paths = [path for path, parameter in held.items() if id(parameter) in wanted]
        # What is shared is copied once, and so it stays shared.
        for path, parameter in {id(held[path]): (path, held[path]) for path in paths}.values():
            if path not in self._own_memory:
                parameter.data = parameter.data.clone()
        self._own_memory.update(paths)
        for parameter in held.values():
            parameter.requires_grad_(id(parameter) in wanted)
        return paths

    def trains(self) -> bool:
        """Whether some parameter takes gradients."""
        if self.placement.offloaded:
            return False
        return any(parameter.requires_grad for parameter in self.parameters())

    # ------------------------------------------------ autocast

    @property
    def amp(self) -> str | None:
        """What products run in while gradients are recorded: "bf16", "f16", or None for their own
        dtype. With f16, small gradients vanish unless the loss is scaled (torch.amp.GradScaler)."""
        return self._amp

    @amp.setter
    def amp(self, dtype: str | None) -> None:
        if dtype is not None:
            _check_amp(dtype, self.named_parameters())
        self._amp = dtype

    # ------------------------------------------------ activations

    def set_checkpointing(self, on: bool = True) -> None:
        """Each layer keeps only its inputs for the backward pass, and runs again there.

        A layer is a block of an array of sub blocks. Those that have state keep everything.
        """
        variant = replace(self._variant, checkpointed=on)
        if on and "training.checkpointed(" not in self._generated(variant).text:
            raise PlanError("set_checkpointing: no entry runs a block of an array without state")
        self._regenerate(variant)

    # ------------------------------------------------ adapters

    @property
    def lora(self) -> dict[str, Adapter]:
        """The adapter of each adapted weight, by the weight's path."""
        return dict(self._adapters)

    @property
    def lora_paths(self) -> tuple[str, ...]:
        """The paths of the adapters' own parameters."""
        return tuple(part for path in self._adapters for part in adapter_names(path))

    def add_lora(
        self, patterns: str | Iterable[str], *, rank: int = 16, alpha: float = 32.0, seed: int = 0
    ) -> list[str]:
        """The weights whose paths fit have an adapter, which adds nothing at first; their paths.

        Weights of `linear` can have one. Adapters take gradients, and nothing else does until
        `set_trainable`.
        """
        self._check_adaptable("add_lora")
        refuse_offloaded(self.placement, "add_lora")
        lora.check_size(rank, alpha)
        paths = lora.adaptable(self, patterns)
        rng = np.random.default_rng(seed)
        adapter = Adapter(int(rank), float(alpha))
        shapes = {path: self.get_parameter(path).shape for path in paths}
        self._adapt({p: (adapter, *lora.first_values(shapes[p], rank, rng)) for p in paths})
        return paths

    def load_lora(self, path: str | Path) -> list[str]:
        """The adapters of a file that `save_weights` wrote; the paths of their weights."""
        self._check_adaptable("load_lora")
        refuse_offloaded(self.placement, "load_lora")
        adapters = lora.read(path, self.weight_names)
        fits = set(lora.adaptable(self, list(adapters)))
        for weight, (_, down, up) in adapters.items():
            wanted = list(self.get_parameter(weight).shape)
            if weight not in fits or [up.shape[0], down.shape[1]] != wanted:
                found = [up.shape[0], down.shape[1]]
                raise PlanError(f"{path}: the adapter of {weight} is for {found}, it is {wanted}")
        self._adapt(adapters)
        return list(adapters)

    def _check_adaptable(self, asked: str) -> None:
        refuse_blocks(self._stored, asked)
        if self.shards is not None:
            raise PlanError(
                f"{asked}: the model is split by tensor_parallel, and an adapter is not; load it "
                "without, add the adapters, merge and save, and split what was saved"
            )

    def _adapt(self, adapters: Mapping[str, tuple[Adapter, Tensor, Tensor]]) -> None:
        again = next((path for path in adapters if path in self._adapters), None)
        if again is not None:
            raise PlanError(f"{again} has an adapter already: merge_lora() makes it part of it")
        for path, (adapter, down, up) in adapters.items():
            lora.attach(*self._owner(path), adapter, down, up)
            self._adapters[path] = adapter
        for path, parameter in self.named_parameters():
            parameter.requires_grad_(is_adapter(path) and parameter.requires_grad)
        self._adapters_changed()

    def merge_lora(self) -> list[str]:
        """Adapted weights have what their adapters add, and no adapters; their paths."""
        paths = list(self._adapters)
        for path in paths:
            owner, name = self._owner(path)
            with torch.no_grad():
                merged = lora.weight(owner, name=name)
            owner.get_parameter(name).data = merged
            self._own_memory.add(path)
            lora.detach(owner, name)
        self._adapters.clear()
        self._adapters_changed()
        return paths

    def _copied_from(self, source: nn.Module) -> dict[str, Tensor]:
        """The source's tensors by path, adapted weights with what their adapters add."""
        if self._adapters:
            raise PlanError(
                "copy_weights: the model has adapters, which would add to what is copied: "
                "merge_lora() first"
            )
        found = dict(source.state_dict())
        if isinstance(source, Training):
            for path in source._adapters:
                owner, name = source._owner(path)
                found[path] = lora.weight(owner, name=name)
        return found

    def _adapters_changed(self) -> None:
        adapted = frozenset(
            entry.path
            for entry in self.program.manifest.entries
            if not self._adapters.keys().isdisjoint(entry.expanded())
        )
        self._regenerate(replace(self._variant, adapted=adapted))

    # ------------------------------------------------ saving

    @property
    def weight_names(self) -> dict[str, str]:
        """What the checkpoint calls each weight; those that it did not give go by their paths."""
        return {p: self._origins[p].name if p in self._origins else p for p, _, _ in self._slots()}

    def save_weights(
        self,
        path: str | Path,
        *,
        names: str = "checkpoint",
        dtype: str | None = None,
        include: str | Iterable[str] | None = None,
    ) -> None:
        """The SafeTensors file holds the weights, or those whose paths fit `include`.

        `names` are those of the checkpoint that was loaded, or (linnet) paths, under which the file
        loads without bindings. `dtype` is that of floats in the file. A file that stands there is
        replaced when the new one is complete. Of a split model every process calls this, and the
        first one writes the whole model.
        """
        refuse_blocks(self._stored, "save_weights")
        tensors = {path: tensor for path, tensor, _ in self._slots()}
        origin = dict(self._origins)
        if self._adapters and include is None:
            raise PlanError(
                "the model has adapters: merge_lora() first, or save them alone with "
                "include=linnet.lora.PATTERNS"
            )
        for weight in self._adapters:
            known = origin.get(weight)
            for i, part in enumerate(adapter_names(weight)):
                tensors[part] = self.get_parameter(part)
                if known is not None:
                    shape = tuple(tensors[part].shape)
                    origin[part] = Origin(adapter_names(known.name)[i], shape, None)
        if self.shards is not None:
            tensors = self.shards.collected(tensors, self.parts)
            if self.shards.shard.index:
                return
        save(
            path,
            tensors,
            origin,
            names=names,
            dtype=dtype,
            include=include,
            metadata=lora.metadata(self._adapters),
        )

    # ------------------------------------------------ running

    def _recording(
        self,
        function: Function,
        runner: Callable[[Code], Callable[..., Any]],
        inputs: Sequence[Tensor],
    ) -> Callable[..., Any]:
        """What runs the entry, `runner` of the code; where gradients are recorded they flow."""
        writes = changed_states(function)
        if not torch.is_grad_enabled() or not (self._amp or writes):
            return runner(self._code)
        if not (self.trains() or any(x.requires_grad for x in inputs)):
            return runner(self._code)
        run = runner(self._rebinding_code() if writes else self._code)

        def recorded(*arguments: Any, **sizes: int) -> Any:
            with _autocast(self._amp, self.device), self._states_apart(function):
                return _in_dtypes(function, run(*arguments, **sizes))

        return recorded

    def _rebinding_code(self) -> Code:
        if self._rebinding is None:
            self._rebinding = self._generated(replace(self._variant, rebinding=True))
        self._rebinding.to(self.device)
        return self._rebinding

    @contextmanager
    def _states_apart(self, function: Function) -> Iterator[None]:
        """Inside, the states that the function writes are copies, to be replaced by values with
        gradients. Then the states take the last values; they stay as they were if it failed."""
        held: list[tuple[dict[str, Tensor | None], str, Tensor]] = []
        for path in _expanded(self.program, changed_states(function)):
            owner, name = self._owner(path)
            tensor = owner._buffers[name]
            assert tensor is not None
            held.append((owner._buffers, name, tensor))
            owner._buffers[name] = tensor.clone()
        try:
            yield
            with torch.no_grad():
                for buffers, name, tensor in held:
                    value = buffers[name]
                    assert value is not None
                    tensor.copy_(value)
        finally:
            for buffers, name, tensor in held:
                buffers[name] = tensor


def checkpointed(run: Callable[..., Any], *arguments: Any, **sizes: int) -> Any:
    """What `run` gives; the backward pass makes again what `run` makes on the way."""
    if not torch.is_grad_enabled():
        return run(*arguments, **sizes)
    # No function of the language draws from PyTorch's random state.
    again = partial(run, **sizes)
    return checkpoint(again, *arguments, use_reentrant=False, preserve_rng_state=False)


def _expanded(program: Program, written: Collection[str]) -> list[str]:
    return [p for e in program.manifest.entries if e.path in written for p in e.expanded()]


def _autocast(amp: str | None, device: torch.device) -> AbstractContextManager[Any]:
    return torch.autocast(device.type, AMP[amp]) if amp else nullcontext()


def _in_dtypes(function: Function, results: Any) -> Any:
    """The results in the dtypes that the entry declares, whatever autocast made of them."""
    wanted = [getattr(torch, TORCH_NAMES[dtype_of(r).name]) for r in function.value_results]
    if len(wanted) == 1:
        return results.to(wanted[0])
    return tuple(r.to(dtype) for r, dtype in zip(results or (), wanted, strict=True))


def _check_amp(dtype: str, parameters: Iterable[tuple[str, Tensor]]) -> None:
    """The dtype is one for autocast, and no weight is as narrow already."""
    if dtype not in AMP:
        raise PlanError(f"amp is {dtype!r}; products run in {' or '.join(AMP)}, or with amp=None")
    for path, parameter in parameters:
        if parameter.dtype in AMP.values():
            found = str(parameter.dtype).removeprefix("torch.")
            raise PlanError(
                f"amp={dtype!r} needs weights in f32, which an optimizer adds small steps to; "
                f"{path} is {found}: load the model in f32 (its dtype generic, with "
                "cast_dtype=True), or leave amp out"
            )
