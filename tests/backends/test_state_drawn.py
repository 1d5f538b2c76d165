"""Drawn programs of loops, branches and methods around state: PyTorch is what the reference is."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from backends.common import agree, lowered

HEAD = """
module m
block Cell {
    state s: Tensor[2; f32]
    pub fn up(x: f32) -> f32 {
        let before = s[0]
        s = s * 0.5 + fill<f32>([2], x)
        return before
    }
    pub fn trade(t: Tensor[2; f32]) -> Tensor[2; f32] {
        let before = s
        s = t
        return before
    }
}
pub block Root {
    sub c: Cell
    sub cs: [Cell; 2]
    state a: Tensor[2; f32]
    state b: Tensor[2; f32]
"""


class Drawn:
    """One entry's statements: state is read, stored, swapped and written through methods.

    A `flat` program has more statements of simpler values, and no loops in loops.
    """

    def __init__(self, seed: int, flat: bool) -> None:
        self.random = Random(seed)
        self.flat = flat
        self.plain = 0.75 if flat else 0.4
        self.tensors = ["a", "b", "c.s", "cs[0].s", "cs[1].s", "kept"]
        self.scalars = ["x", "total"]
        self.count = 0

    def text(self) -> str:
        count = self.random.randint(6, 12) if self.flat else self.random.randint(3, 7)
        body = self.statements(count, 1 if self.flat else 2, "        ")
        lines = ["    pub entry main(x: f32) -> (Tensor[2; f32], f32, Tensor[2; f32]) {"]
        lines += ["        var total = x", "        var kept = fill<f32>([2], x)", *body]
        lines.append(f"        return ({self.tensor(1)}, {self.scalar(1)}, {self.tensor(0)})")
        return HEAD + "\n".join([*lines, "    }", "}", ""])

    def fresh(self, kind: str) -> str:
        self.count += 1
        return f"{kind}_{self.count}"

    def tensor(self, depth: int) -> str:
        if depth == 0 or self.random.random() < self.plain:
            return self.random.choice(self.tensors)
        form = self.random.randrange(3)
        if form == 0:
            return f"fill<f32>([2], {self.scalar(depth - 1)})"
        if form == 1:
            return f"({self.tensor(depth - 1)} * 0.5 + {self.tensor(depth - 1)} * 0.25)"
        return f"(if x > 0.0 {{ {self.tensor(depth - 1)} }} else {{ {self.tensor(depth - 1)} }})"

    def scalar(self, depth: int) -> str:
        if depth == 0 or self.random.random() < self.plain:
            return self.random.choice([*self.scalars, f"{self.tensor(0)}[1]"])
        return f"({self.scalar(depth - 1)} * 0.5 + {self.tensor(depth - 1)}[0] * 0.25)"

    def statements(self, count: int, depth: int, pad: str) -> list[str]:
        """They see what is named before them; what they name ends with them."""
        outer = list(self.tensors), list(self.scalars)
        lines = [line for _ in range(count) for line in self.statement(depth, pad)]
        if pad != "        ":
            self.tensors, self.scalars = outer
        return lines

    def statement(self, depth: int, pad: str) -> list[str]:
        forms: list[Callable[[int, str], list[str]]] = [self.keep, self.keep]
        forms += [self.trade] if self.flat else []
        forms += [self.assign, self.store, self.store, self.store, self.up, self.trade]
        if depth:
            forms += [self.for_loop, self.collecting, self.while_loop, self.over_cells]
        return self.random.choice(forms)(depth, pad)

    def keep(self, depth: int, pad: str) -> list[str]:
        value, name = self.tensor(1), self.fresh("t")
        self.tensors.append(name)
        return [f"{pad}let {name} = {value}"]

    def assign(self, depth: int, pad: str) -> list[str]:
        if self.random.random() < 0.5:
            return [f"{pad}kept = {self.tensor(1)}"]
        return [f"{pad}total = {self.scalar(1)}"]

    def store(self, depth: int, pad: str) -> list[str]:
        return [f"{pad}{self.random.choice('ab')} = {self.tensor(1)}"]

    def cell(self) -> str:
        cells = ["c", "cs[0]", "cs[1]"]
        return self.random.choice(cells + [t[:-2] for t in self.tensors if t.startswith("cell")])

    def up(self, depth: int, pad: str) -> list[str]:
        call = f"{self.cell()}.up({self.scalar(1)})"
        self.scalars.append(name := self.fresh("u"))
        return [f"{pad}let {name} = {call}"]

    def trade(self, depth: int, pad: str) -> list[str]:
        call = f"{self.cell()}.trade({self.tensor(1)})"
        self.tensors.append(name := self.fresh("t"))
        return [f"{pad}let {name} = {call}"]

    def for_loop(self, depth: int, pad: str) -> list[str]:
        word = self.random.choice(["for", "for", "static for"])
        name = self.fresh("i")
        body = self.statements(self.random.randint(1, 3), depth - 1, pad + "    ")
        head = f"{pad}{word} {name} in {self.random.choice(['0..3', '0..0', '2..4'])} {{"
        counted = f"{pad}    total = total * 0.5 + cast<f32>({name})"
        return [head, *body, counted, f"{pad}}}"]

    def collecting(self, depth: int, pad: str) -> list[str]:
        name, counter, other = self.fresh("t"), self.fresh("i"), self.fresh("u")
        outer = list(self.tensors), list(self.scalars)
        self.scalars.append(f"cast<f32>({counter})")
        inner = pad + "    "
        body = [
            line
            for _ in range(self.random.randint(1, 3))
            for line in self.statement(depth - 1, inner)
        ]
        yielded = f"({self.tensor(1)}, {self.scalar(1)})"
        self.tensors, self.scalars = outer
        self.tensors += [f"{name}[0, ...]", f"{name}[{counter}, ...]"]
        self.scalars += [f"{other}[0]", f"{other}[2]"]
        again = f"{pad}let {counter} = 1"
        head = f"{pad}let ({name}, {other}) = for {counter} in 1..4 {{"
        return [head, *body, f"{inner}yield {yielded}", f"{pad}}}", again]

    def while_loop(self, depth: int, pad: str) -> list[str]:
        name = self.fresh("n")
        body = self.statements(self.random.randint(1, 3), depth - 1, pad + "    ")
        head = [f"{pad}var {name} = 0", f"{pad}while {name} < 2 {{"]
        return [*head, *body, f"{pad}    {name} = {name} + 1", f"{pad}}}"]

    def over_cells(self, depth: int, pad: str) -> list[str]:
        name = self.fresh("cell")
        outer = list(self.tensors)
        self.tensors.append(f"{name}.s")
        body = self.statements(self.random.randint(1, 2), depth - 1, pad + "    ")
        called = f"{pad}    total = total * 0.5 + {name}.up(total)"
        self.tensors = outer
        return [f"{pad}static for {name} in cs {{", *body, called, f"{pad}}}"]


def check(seed: int, flat: bool) -> None:
    text = Drawn(seed, flat).text()
    calls = [("main", [np.float32(x)]) for x in (0.75, -0.5, 0.25)]
    try:
        agree(lowered(text), calls, ("exact",))
    except Exception as error:
        raise AssertionError(f"seed {seed}:\n{text}") from error


@pytest.mark.parametrize("seed", range(8))
def test_drawn_state(seed: int) -> None:
    check(seed, flat=False)


@pytest.mark.parametrize("seed", [1433, 1662, 1872, 1, 2, 3])
def test_drawn_state_of_flat_programs(seed: int) -> None:
    """The first three once stored a state elsewhere and read it after both were written."""
    check(seed, flat=True)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 400, 50))
def test_more_drawn_state(first: int) -> None:
    for seed in range(first, first + 50):
        check(seed, flat=seed % 2 == 0)
