"""States that are only handed on are none of a function's states; what touches one keeps them."""

from __future__ import annotations

import numpy as np
import pytest

from backends.common import lowered
from linnet.core.ir import Program
from linnet.core.untouched import drop_untouched
from linnet.core.verify import verify
from linnet.reference import evaluate

SOURCE = """module m
block Cell {
    state s: Tensor[2; f32]
    pub fn up(x: f32, on: f32?) -> f32 {
        s = match on {
            some(y) => s + y
            none => s
        }
        return match on {
            some(y) => x + s[0]
            none => x * 2
        }
    }
}
pub block Root {
    sub cells: [Cell; 3]
    sub one: Cell
    state a: f32
    fn all(x: f32, on: f32?) -> f32 {
        var y = x
        static for cell in cells { y = y + cell.up(y, on) }
        return y + one.up(x, on)
    }
    pub entry plain(x: f32) -> f32 { return all(x, none) + cells[1].up(x, none) }
    pub entry stored(x: f32) -> f32 { return all(x, some(x)) + a }
    pub entry swapped(x: f32) -> f32 {
        let old = a
        a = x
        let y = all(x, some(a))
        a = old
        return y
    }
}
"""


def states(program: Program, entry: str) -> list[str]:
    return [p.name for p in program.entries[entry].params if p.kind == "state"]


def test_what_is_only_handed_on_is_gone() -> None:
    before = lowered(SOURCE)
    after = drop_untouched(before)
    verify(after)
    assert states(before, "plain") == ["cells.*.s", "one.s"]
    assert states(after, "plain") == [] and after.entries["plain"].writes == ()
    assert states(after, "stored") == states(before, "stored")
    assert states(after, "swapped") == states(before, "swapped")
    for function in after.functions.values():
        if function.name.endswith(".up") and not function.params[1:]:
            assert function.writes == ()


@pytest.mark.parametrize("entry", ["plain", "stored", "swapped"])
def test_the_meaning_stays(entry: str) -> None:
    before = lowered(SOURCE)
    after = drop_untouched(before)
    held: list[dict[str, np.ndarray]] = [{"a": np.float32(2.5)}, {"a": np.float32(2.5)}]  # type: ignore[dict-item]
    for x in (1.5, -2.0):
        found = [
            evaluate(program, entry, [np.float32(x)], state=state)
            for program, state in zip((before, after), held, strict=True)
        ]
        np.testing.assert_array_equal(*found)
    for path in held[1]:
        np.testing.assert_array_equal(held[0][path], held[1][path])
