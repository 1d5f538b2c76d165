"""A plan as calls of a model's entries: chunks laid out in arrays, logits in the chunks' order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from linnet.serve.driver import Driver, Ints
from linnet.serve.pages import NOBODYS
from linnet.serve.scheduler import Chunk, Plan


class Passes(Protocol):
    """How a model computes a plan."""

    def compute(self, plan: Plan) -> torch.Tensor:
        """The logits `[N, vocab]` after the N chunks of the plan that end, in their order."""
        ...

    def warm(self, prompts: Iterable[int]) -> None:
        """What a pass of these many prompt tokens, and steps, build once is built."""
        ...


def at_ends(plan: Plan, chunks: Sequence[Chunk], logits: torch.Tensor) -> torch.Tensor:
    """Of the logits of all chunks those of a plan's chunks that end, in the plan's order."""
    where = {id(chunk): k for k, chunk in enumerate(chunks)}
    wanted = [where[id(chunk)] for chunk in plan.chunks if chunk.ends]
    return logits if wanted == list(range(len(chunks))) else logits[wanted]


@dataclass(slots=True)
class PagedPasses:
    """Over a pool of pages: `decode_paged`, `prefill_paged`, and both in one, `step_paged`.

    A row of the table is a chunk's; a chunk of one token steps, whether it is a prompt's last or
    follows an answer. `size` is a page's, `columns` the most pages of a request, `rows` the most
    chunks. Where the driver's attention over packed tokens takes steps as well as prompts,
    `prefill_paged` is both in one: it has half the rows of logits that `step_paged` has.
    """

    driver: Driver
    size: int
    columns: int
    rows: int
    pad: int = 0
    mix: bool = True

    def compute(self, plan: Plan) -> torch.Tensor:
        steps = [chunk for chunk in plan.chunks if chunk.count == 1]
        prompts = [chunk for chunk in plan.chunks if chunk.count > 1]
        if steps and prompts and self.mix:
            if self.driver.packs_steps:
                return at_ends(plan, plan.chunks, self._prompts(plan.chunks))
            return at_ends(plan, [*prompts, *steps], self._both(steps, prompts))
        parts = [self._prompts(prompts)] if prompts else []
        parts += [self._step(steps)] if steps else []
        return at_ends(plan, [*prompts, *steps], torch.cat(parts) if len(parts) > 1 else parts[0])

    def _rows(self, count: int) -> int:
        """Rows of the table for so many chunks: a power of two, or all."""
        return min(1 << (count - 1).bit_length(), self.rows)

    def _table(self, chunks: Sequence[Chunk], rows: int) -> Ints:
        """Each chunk's pages; the last column, and rows without a chunk, are the page of nobody.

        The width is 4, 8, 16, ... and one, or all: a kernel reads no more than what is written.
        """
        widest = max((len(chunk.sequence.pages) for chunk in chunks), default=1)
        width = min(max(4, 1 << (widest - 1).bit_length()), self.columns)
        table = np.full((rows, width + 1), NOBODYS, np.int32)
        for row, chunk in enumerate(chunks):
            pages = chunk.sequence.pages
            table[row, : len(pages)] = pages
        return table

    def _step(self, steps: Sequence[Chunk]) -> torch.Tensor:
        """Rows without a chunk step at position 0 of the page of nobody."""
        rows = self._rows(len(steps))
        tokens, positions = np.full((rows, 1), self.pad, np.int32), np.zeros(rows, np.int32)
        for row, chunk in enumerate(steps):
            tokens[row, 0], positions[row] = chunk.sequence.tokens[chunk.start], chunk.start
        given = [tokens, positions, self._table(steps, rows)]
        return self.driver.run("decode_paged", given, True)[: len(steps)]

    def _prompts(self, prompts: Sequence[Chunk]) -> torch.Tensor:
        rows = self._rows(len(prompts))
        given = [*self._packed(prompts, rows), self._table(prompts, rows)]
        return self.driver.run("prefill_paged", given, True)[: len(prompts)]

    def _both(self, steps: Sequence[Chunk], prompts: Sequence[Chunk]) -> torch.Tensor:
        """The rows of prompts step too, in the last column, where nothing is kept or read."""
        count = len(prompts)
        rows = self._rows(count + len(steps))
        table = self._table([*prompts, *steps], rows)
        tokens, positions = np.full((rows, 1), self.pad, np.int32), np.zeros(rows, np.int32)
        positions[:count] = (table.shape[1] - 1) * self.size
        for row, chunk in enumerate(steps, count):
            tokens[row, 0], positions[row] = chunk.sequence.tokens[chunk.start], chunk.start
        packed = self._packed(prompts, rows)
        logits = self.driver.run("step_paged", [*packed, tokens, positions, table], True)
        return torch.cat((logits[:count], logits[rows + count : rows + count + len(steps)]))

    def _packed(self, prompts: Sequence[Chunk], rows: int) -> list[Ints]:
        """The chunks' tokens, positions, rows and places, and each row's last token.

        Padding is at position 0 of the last row, and is written in the page of nobody.
        """
        count = self.driver.padded(sum(chunk.count for chunk in prompts))
        tokens = np.full(count, self.pad, np.int32)
        positions, places = np.zeros(count, np.int32), np.zeros(count, np.int32)
        owners, last = np.full(count, rows - 1, np.int32), np.zeros(rows, np.int32)
        at = 0
        for row, chunk in enumerate(prompts):
            end, after = at + chunk.count, chunk.start + chunk.count
            own = np.arange(chunk.start, after, dtype=np.int32)
            tokens[at:end] = chunk.sequence.tokens[chunk.start : after]
            positions[at:end] = own
            pages = np.asarray(chunk.sequence.pages, np.int32)
            places[at:end] = pages[own // self.size] * self.size + own % self.size
            owners[at:end] = row
            last[row] = end - 1
            at = end
        return [tokens, positions, owners, places, last]

    def warm(self, prompts: Iterable[int]) -> None:
        for rows in doublings(self.rows):
            for width in doublings(self.columns, 4):
                table, positions = np.zeros((rows, width + 1), np.int32), np.zeros(rows, np.int32)
                self.driver.run("decode_paged", [positions[:, None], positions, table], True)
        for length in prompts:
            nothing, width = (
                np.zeros(self.driver.padded(length), np.int32),
                doublings(self.columns, 4)[0],
            )
            one = [np.zeros(1, np.int32), np.zeros((1, width + 1), np.int32)]
            self.driver.run("prefill_paged", [*[nothing] * 4, *one], True)


def doublings(most: int, first: int = 1) -> list[int]:
    """The first number, twice it, ..., and last the most."""
    return [one for k in range(32) if (one := first << k) < most] + [most]


@dataclass(slots=True)
class RowPasses:
    """Over rows of the caches, page k + 1 being row k: `decode_rows` for steps, and whole prompts
    through `prefill_packed`, else through `prefill_slots`, at most `group` at a time.

    `step_packed` does both in one. `last` is the last position of a row, which no request uses.
    """

    driver: Driver
    rows: int
    last: int
    pad: int = 0
    mix: bool = True
    group: int = 8

    def compute(self, plan: Plan) -> torch.Tensor:
        steps = [chunk for chunk in plan.chunks if chunk.count == 1]
        prompts = [chunk for chunk in plan.chunks if chunk.count > 1]
        packed = "prefill_packed" in self.driver.entries
        if steps and prompts and self.mix and "step_packed" in self.driver.entries:
            given = [*self._packed(prompts), *self._stepping(steps)]
            logits = self.driver.run("step_packed", given, False)
            prompts_at = [row_of(chunk) for chunk in prompts]
            steps_at = [self.rows + row_of(chunk) for chunk in steps]
            return at_ends(plan, [*prompts, *steps], logits[[*prompts_at, *steps_at]])
        parts: list[torch.Tensor] = []
        if prompts and packed:
            logits = self.driver.run("prefill_packed", self._packed(prompts), False)
            parts.append(logits[[row_of(chunk) for chunk in prompts]])
        elif prompts:
            prompts.sort(key=lambda chunk: chunk.count)
            groups = range(0, len(prompts), self.group)
            parts += [self._slots(prompts[at : at + self.group]) for at in groups]
        if steps:
            logits = self.driver.run("decode_rows", self._stepping(steps), True)
            parts.append(logits[[row_of(chunk) for chunk in steps]])
        return at_ends(plan, [*prompts, *steps], torch.cat(parts) if len(parts) > 1 else parts[0])

    def _stepping(self, steps: Sequence[Chunk]) -> list[Ints]:
        tokens = np.full((self.rows, 1), self.pad, np.int32)
        positions = np.full(self.rows, self.last, np.int32)
        for chunk in steps:
            row = row_of(chunk)
            tokens[row, 0], positions[row] = chunk.sequence.tokens[chunk.start], chunk.start
        return [tokens, positions]

    def _packed(self, prompts: Sequence[Chunk]) -> list[Ints]:
        """The prompts' tokens, rows, positions and segments, and each row's last token.

        Padding is a segment of its own, at the position that no request uses.
        """
        count = self.driver.padded(sum(chunk.count for chunk in prompts))
        tokens, rows = np.full(count, self.pad, np.int32), np.zeros(count, np.int32)
        positions = np.full(count, self.last, np.int32)
        segments, last = np.full(count, len(prompts), np.int32), np.zeros(self.rows, np.int32)
        at = 0
        for k, chunk in enumerate(prompts):
            end = at + chunk.count
            tokens[at:end] = chunk.sequence.tokens[: chunk.count]
            rows[at:end] = row_of(chunk)
            positions[at:end] = np.arange(chunk.count)
            segments[at:end] = k
            last[row_of(chunk)] = end - 1
            at = end
        return [tokens, rows, positions, segments, last]

    def _slots(self, prompts: Sequence[Chunk]) -> torch.Tensor:
        longest = max(chunk.count for chunk in prompts)
        width = max(min(self.driver.padded(longest), self.last), longest)
        tokens = np.full((len(prompts), width), self.pad, np.int32)
        for row, chunk in enumerate(prompts):
            tokens[row, : chunk.count] = chunk.sequence.tokens[: chunk.count]
        slots = np.array([row_of(chunk) for chunk in prompts], np.int32)
        lengths = np.array([chunk.count for chunk in prompts], np.int32)
        return self.driver.run("prefill_slots", [tokens, slots, lengths], False)

    def warm(self, prompts: Iterable[int]) -> None:
        self.driver.run("decode_rows", self._stepping(()), True)
        for length in prompts:
            if "prefill_packed" in self.driver.entries:
                nothing = [np.zeros(self.driver.padded(length), np.int32)] * 2
                unread = np.full(self.driver.padded(length), self.last, np.int32)
                last = np.zeros(self.rows, np.int32)
                given = [*nothing, unread, nothing[0], last]
                self.driver.run("prefill_packed", given, False)


def row_of(chunk: Chunk) -> int:
    """The row of the caches that a chunk's one page is."""
    return chunk.sequence.pages[0] - 1
