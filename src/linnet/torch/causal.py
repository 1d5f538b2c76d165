"""A language model as the trainers of Hugging Face call one: rows of tokens in, the loss out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from linnet.diagnostics import PlanError
from linnet.inputs import near
from linnet.torch import lora

if TYPE_CHECKING:
    from linnet.torch.runtime import LinnetModule

IGNORED = -100
_TAKES = ("tokens", "positions", "segments", "targets", "weights")


class Output(NamedTuple):
    """The mean loss of the tokens that are learned, and `[rows, positions, vocabulary]` scores."""

    loss: Tensor | None
    logits: Tensor | None


class _Packed(NamedTuple):
    """Rows without their padding, one after another, and what is learned."""

    tokens: Tensor
    positions: Tensor
    segments: Tensor
    targets: Tensor
    learned: Tensor
    places: Tensor  # where each token stood, in rows laid end to end


class CausalLM(nn.Module):
    """`forward(input_ids, labels=...)` gives the loss and asked-for logits of a decoder.

    Rows are packed without their padding to a multiple of `bucket` tokens, so that few different
    lengths run. `entry` gives the loss; with `logits`, or where there are no labels, the scores are
    `hidden`'s vectors times the weight at `head`.
    """

    main_input_name = "input_ids"

    def __init__(
        self,
        model: LinnetModule,
        *,
        entry: str = "loss_packed",
        bucket: int = 256,
        logits: bool = False,
        hidden: str = "hidden_packed",
        head: str = "lm_head.weight",
        name: str = "",
    ) -> None:
        super().__init__()
        if isinstance(bucket, bool) or not isinstance(bucket, int) or bucket < 1:
            raise PlanError(f"bucket is {bucket!r}, expected a whole number from 1 on")
        _check_entry(model, entry, _TAKES)
        self.model = model
        self.entry = entry
        self.bucket = bucket
        self.logits = logits
        self.hidden = hidden
        self.head = head
        self.name = name or model.program.name
        if logits:
            self._check_scores()

    def _check_scores(self) -> None:
        """What gives the scores is there."""
        _check_entry(self.model, self.hidden, _TAKES[:3])
        held = [path for path, _ in self.model.named_parameters(remove_duplicate=False)]
        if self.head not in held:
            close = near(self.head, held)
            raise PlanError(f"head={self.head!r}: the model has no such weight{close}")

    @property
    def device(self) -> torch.device:
        return self.model.device

    def gradient_checkpointing_enable(self, *options: object, **named: object) -> None:
        """Layers run again for the backward pass."""
        self.model.set_checkpointing(True)

    def gradient_checkpointing_disable(self) -> None:
        self.model.set_checkpointing(False)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
    ) -> Output:
        """The loss of each label at the token before it, those of -100 left out.

        It is summed and divided by their count, or by `num_items_in_batch`. Positions count the
        tokens that `attention_mask` has, unless `position_ids` are given.
        """
        given = {"attention_mask": attention_mask, "labels": labels, "position_ids": position_ids}
        _check_shapes(input_ids, given)
        packed = self._pack(input_ids, attention_mask, labels, position_ids)
        loss = scores = None
        weights = packed.learned.float()
        if labels is not None:
            count = num_items_in_batch if num_items_in_batch is not None else weights.sum()
            weights = weights / torch.as_tensor(count, device=weights.device).clamp(min=1)
        if self.logits or labels is None:
            self._check_scores()
            every = self._scores(packed)
            if labels is not None:
                each = F.cross_entropy(every.float(), packed.targets, reduction="none")
                loss = (each * weights).sum()
            size = len(packed.places)
            scores = every.new_zeros(input_ids.numel(), every.shape[-1])
            scores = scores.index_copy(0, packed.places, every[:size])
            scores = scores.reshape(*input_ids.shape, -1)
        else:
            loss = self.model.run_entry(self.entry, [*packed[:4], weights])
        return Output(loss, scores)

    def _scores(self, packed: _Packed) -> Tensor:
        hidden: Tensor = self.model.run_entry(self.hidden, packed[:3])
        block, name = self.model._owner(self.head)
        return F.linear(hidden, lora.weight(block, name=name))

    def _pack(
        self,
        ids: Tensor,
        mask: Tensor | None,
        labels: Tensor | None,
        positions: Tensor | None,
    ) -> _Packed:
        kept = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        if positions is None:
            positions = kept.cumsum(1) - 1
        rows = torch.arange(len(ids), device=ids.device)[:, None].expand_as(ids)
        # What a token learns is the label of the place after it, if both belong to the row.
        following = torch.full_like(ids, IGNORED, dtype=torch.long)
        if labels is not None:
            following[:, :-1] = torch.where(kept[:, 1:], labels[:, 1:].long(), IGNORED)
        places = kept.flatten().nonzero().flatten()
        # The padding at the end is a segment of its own.
        room = max(-(-len(places) // self.bucket), 1) * self.bucket - len(places)

        def laid(x: Tensor, dtype: torch.dtype, end: int) -> Tensor:
            return F.pad(x.flatten()[places].to(dtype), (0, room), value=end)

        targets = laid(following, torch.long, IGNORED)
        learned = targets != IGNORED
        return _Packed(
            laid(ids, torch.int32, 0),
            laid(positions, torch.int32, 0),
            laid(rows, torch.int32, len(ids)),
            targets.where(learned, 0),
            learned,
            places,
        )


def _check_entry(model: LinnetModule, entry: str, takes: tuple[str, ...]) -> None:
    if entry not in model.entries:
        raise PlanError(f"there is no entry {entry}{near(entry, model.entries)}")
    found = tuple(name for name, _ in model.program.entries[entry].takes)
    if found != takes:
        raise PlanError(f"{entry} takes ({', '.join(found)}), expected ({', '.join(takes)})")


def _check_shapes(ids: Tensor, given: Mapping[str, Any]) -> None:
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point():
        raise PlanError("input_ids: expected whole numbers of shape [rows, positions]")
    for name, tensor in given.items():
        if tensor is not None and tensor.shape != ids.shape:
            raise PlanError(f"{name} is {list(tensor.shape)}, input_ids {list(ids.shape)}")
