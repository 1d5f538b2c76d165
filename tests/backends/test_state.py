# ruff: noqa: E501 - Linnet sources are laid out for the eye
"""State in place gives what state as values means, whoever still reads an old value."""

from __future__ import annotations

import numpy as np
import pytest

from backends.common import agree, lowered, module

HEAD = """module m
use std.nn.cache::{write_at, write_span}
"""

CACHE = (
    HEAD
    + """
pub block Cell {
    state cache: Tensor[1, 1, 4, 2; f32]
    state count: i32
    pub fn push(x: Tensor[1, 1, 1, 2; f32], at: i32) -> Tensor[1, 1, 4, 2; f32] {
        cache = write_at(cache, x, at)
        count = count + 1
        return cache * 2.0
    }
    pub fn peek() -> Tensor[1, 1, 4, 2; f32] { return cache }
    pub fn clear() -> i32 {
        cache = fill<f32>([1, 1, 4, 2], 0.0)
        return count
    }
}
pub block Root {
    sub cell: Cell
    sub cells: [Cell; 2]
    state a: Tensor[2; f32]
    state b: Tensor[2; f32]
    state memory: Tensor[1, 1, 4, 2; f32]
    BODY
}
"""
)

X = np.arange(1, 3, dtype=np.float32).reshape(1, 1, 1, 2)
V = np.array([3.0, 5.0], np.float32)


def run(body: str, *calls, **options):  # type: ignore[no-untyped-def]
    return agree(lowered(CACHE.replace("BODY", body)), list(calls), **options)


def test_a_write_goes_in_place() -> None:
    body = """
    pub entry step(x: Tensor[1, 1, 1, 2; f32], at: i32) -> Tensor[4; f32] {
        memory = write_at(memory, x, at)
        return sum[d] memory[0, 0, ., d]
    }""".replace("sum[d] memory[0, 0, ., d]", "sums(memory)")
    body += """
    fn sums(m: Tensor[1, 1, 4, 2; f32]) -> Tensor[4; f32] {
        let total[s] = sum[d] m[0, 0, s, d]
        return total
    }"""
    made = run(body, ("step", [X, 1]), ("step", [2 * X, 3]), ("step", [X, 9]))[-1]
    source = made.generated_source()
    assert "kernels.write_at_(self.memory, x, at)" in source and "clone" not in source


def test_an_old_value_is_copied_before_it_is_overwritten() -> None:
    body = """
    pub entry step(x: Tensor[1, 1, 1, 2; f32], at: i32)
        -> (Tensor[1, 1, 4, 2; f32], Tensor[2; f32]) {
        let old = memory
        let row = memory[0, 0, 1, :]
        memory = write_at(memory, x, at)
        memory = write_at(memory, x * 2.0, at + 1)
        return (old + memory, row + x[0, 0, 0, :])
    }"""
    run(body, ("step", [X, 1]), ("step", [3 * X, 0]), ("step", [X, 3]))


def test_a_value_between_two_writes() -> None:
    body = """
    pub entry step(x: Tensor[1, 1, 1, 2; f32]) -> Tensor[1, 1, 4, 2; f32] {
        memory = write_at(memory, x, 0)
        let between = memory
        memory = write_at(memory, x * 3.0, 0)
        return between - memory
    }"""
    run(body, ("step", [X]), ("step", [2 * X]))


def test_a_write_of_what_it_reads() -> None:
    body = """
    pub entry step(at: i32) -> f32 {
        memory = write_at(memory, memory[:, :, 0:1, :] + 1.0, at)
        memory = write_span(memory, memory[:, :, 0:3, :], 1)
        return memory[0, 0, 3, 1]
    }"""
    run(body, ("step", [0]), ("step", [2]), ("step", [1]))


def test_states_change_places() -> None:
    body = """
    pub entry fill_both(x: Tensor[2; f32]) -> f32 {
        a = x
        b = x * 2.0
        return 0.0
    }
    pub entry swap() -> Tensor[2; f32] {
        let t = a
        a = b
        b = t
        return a - b
    }"""
    run(body, ("fill_both", [V]), ("swap", []), ("swap", []))


def test_a_recurrent_state() -> None:
    body = """
    pub entry step(x: Tensor[2; f32]) -> (Tensor[2; f32], Tensor[2; f32]) {
        let before = a
        a = tanh(a * 0.5 + x)
        return (a, before)
    }"""
    made = run(body, ("step", [V]), ("step", [-V]), ("step", [V]))[-1]
    assert "self.a.copy_(" in made.generated_source()


def test_results_are_not_the_state_itself() -> None:
    body = """
    pub entry step(x: Tensor[2; f32]) -> (Tensor[2; f32], f32) {
        a = a + x
        return (a, a[0])
    }
    pub entry look() -> Tensor[1, 1, 4, 2; f32] { return cell.peek() }
    pub entry push(x: Tensor[1, 1, 1, 2; f32]) -> Tensor[1, 1, 4, 2; f32] {
        return cell.push(x, 0)
    }"""
    for made in run(body, ("step", [V]), ("step", [V])):
        first, number = made.run_entry("step", [V])
        kept, scalar = first.clone(), float(number)
        look = made.run_entry("look", [])
        made.run_entry("step", [V])
        made.run_entry("push", [X])
        assert (first == kept).all() and float(number) == scalar and (look == 0).all()


def test_sub_blocks_keep_their_own() -> None:
    body = """
    pub entry step(x: Tensor[1, 1, 1, 2; f32], at: i32) -> (Tensor[1, 1, 4, 2; f32], i32) {
        let first = cell.push(x, at)
        let seen = cell.peek()
        var total = first + seen
        static for c in cells {
            total = total + c.push(x * 3.0, at)
        }
        let again = cells[1].push(x, at - 1) + cells[0].peek() + cells[1].cache
        return (total + again, cell.count + cells[0].count + cells[1].count)
    }
    pub entry clear() -> i32 { return cell.clear() + cells[1].clear() }
    """
    run(
        body,
        ("step", [X, 1]),
        ("step", [2 * X, 2]),
        ("clear", []),
        ("step", [X, 0]),
    )


def test_a_state_stored_and_then_read_by_a_method() -> None:
    body = """
    fn half() -> Tensor[2; f32] { return a * 0.5 }
    fn double() -> Tensor[2; f32] {
        a = a * 2.0
        return a
    }
    pub entry step(x: Tensor[2; f32]) -> Tensor[2; f32] {
        a = x + b
        let low = half()
        a = a + 1.0
        let high = double()
        b = low
        a = a - high * 0.25
        return half() + high
    }"""
    run(body, ("step", [V]), ("step", [-V]))


def test_loops_carry_state() -> None:
    body = """
    pub entry grow<N: Dim>(x: Tensor[2; f32]) -> (Tensor[2; f32], Tensor[2; f32])
    where N > 0 {
        var kept = a
        static for i in 0..N {
            a = a + x * cast<f32>(i)
            memory = write_at(memory, reshape(a, [1, 1, 1, 2]), cast<i32>(i))
            kept = a + kept
        }
        return (kept, a)
    }
    pub entry until(limit: f32) -> (i32, Tensor[2; f32]) {
        var count: i32 = 0
        var last = a
        while a[0] < limit && count < 10 {
            last = a
            a = a * 2.0 + 1.0
            count = count + 1
            b = last
        }
        return (count, last)
    }"""
    run(
        body, ("grow", [V], {"N": 3}), ("until", [100.0]), ("until", [0.0]), ("grow", [V], {"N": 1})
    )


def test_branches_write_state() -> None:
    body = """
    fn up(x: Tensor[2; f32]) -> Tensor[2; f32] {
        a = a + x
        return a
    }
    fn down(x: Tensor[2; f32]) -> Tensor[2; f32] {
        b = b - x
        return b * 2.0
    }
    pub entry step(x: Tensor[2; f32], which: bool) -> (Tensor[2; f32], Tensor[2; f32]) {
        let old = a
        let y = if which { up(x) } else { down(x) }
        return (y, old)
    }"""
    run(body, ("step", [V, True]), ("step", [V, False]), ("step", [-V, True]))


def test_a_loop_that_keeps_an_old_value() -> None:
    body = """
    pub entry step(x: Tensor[1, 1, 1, 2; f32]) -> Tensor[1, 1, 4, 2; f32] {
        var seen = memory
        static for i in 0..3 {
            let before = memory
            memory = write_at(memory, x + memory[:, :, 0:1, :], cast<i32>(i))
            seen = seen + before
        }
        return seen
    }"""
    run(body, ("step", [X]), ("step", [X]))


STATES = """module m
block Cell {
    state s: Tensor[2; f32]
    pub fn up(x: f32) -> f32 {
        let old = s
        s = s * 0.5 + x
        return old[0] + s[1]
    }
    pub fn see() -> f32 { return s[0] * 2 + 1 }
}
pub block Root {
    sub cells: [Cell; 2]
    state a: f32
    state b: f32
    state m: Tensor[2, 2; f32]
    fn add(x: f32) -> f32 {
        a = a + x
        return a * 2
    }
    fn get() -> f32 { return a * 3 + b }
    fn corner() -> f32 { return m[0, 1] }
    pub entry first(x: f32) -> f32 {
        a = x
        b = 3 * x
        m = concat(fill([1, 2], x), fill([1, 2], x * 2), axis = 0)
        return x
    }
    pub entry step(x: f32) -> (f32, f32) {
        BODY
    }
}
"""


@pytest.mark.parametrize(
    "body",
    [
        # Assigned before a loop that goes on from there.
        "a = x\nstatic for i in 0..3 { a = a + 1.0 }\nreturn (a, b)",
        "b = x\nlet old = a\na = b\nb = old\nstatic for cell in cells { a = a + cell.up(b)\nb = b + a }"
        "\nreturn (a, b)",
        "a = b + x\nlet kept = a\nvar i = 0\nwhile i < 3 { b = b + a + kept\na = a * 2\ni = i + 1 }"
        "\nreturn (a, b)",
        # An old state is back in its buffer when a method, or the end, reads it there.
        "let old = a\na = x\nlet y = add(1.0)\na = old\nreturn (y, a)",
        "let old = a\na = x\nlet y = get()\na = old\nlet z = get()\na = z\nreturn (y + a, z)",
        "let old = a\na = x\nlet y = get()\na = b\nb = old\nreturn (y, get())",
        "let old = a\nlet y = add(x)\na = old\nlet z = add(x * 2)\na = old\nreturn (y, z)",
        "let old = a\nlet y = add(x)\nlet mid = a\na = old\nlet z = add(x * 2)\na = mid\nb = old"
        "\nreturn (y + z, get())",
        "static for i in 0..3 { let old = a\na = x\nlet y = get()\na = old\nb = b + y }\nreturn (a, b)",
        "let old = a\nlet y = if x > 0.0 { add(x) } else { x }\na = old\nreturn (y, get())",
        "let old = a\nvar i = 0\nvar y = x\nwhile i < 3 { y = y + add(x)\ni = i + 1 }\na = old"
        "\nreturn (y, get())",
        # A view of itself, and a constant that a method reads.
        "m = permute(m, [1, 0])\nlet y = corner()\nm = permute(m, [1, 0])\nreturn (y, corner())",
        "let old = permute(m, [1, 0])\nm = fill([2, 2], 7.0)\nlet y = corner()\nm = old"
        "\nreturn (y + x, m[0, 1])",
        # One position of an array, read late; written in one branch only.
        "let y = cells[0].s[1]\nlet z = cells[0].up(x)\nreturn (z, y + b)",
        "let y = cells[1].s\nvar z = x\nstatic for cell in cells { z = z + cell.up(x) }"
        "\nreturn (z, y[1] + cells[1].see())",
        "let y = if x > 0.0 { cells[0].up(x) } else { cells[1].see() }\nvar z = y"
        "\nstatic for cell in cells { z = z + cell.up(y) }\nreturn (z, cells[0].s[0])",
    ],
)
def test_the_order_of_the_source(body: str) -> None:
    """Whatever is assigned, kept and assigned again: each reader finds what the source says."""
    calls = [("first", [1.5]), ("step", [5.0]), ("step", [-2.0]), ("step", [0.5])]
    agree(lowered(STATES.replace("BODY", body)), calls)


def test_reset_and_paths() -> None:
    body = "pub entry step(x: Tensor[2; f32]) -> f32 { a = a + x return a[0] }".replace(
        "x return", "x\nreturn"
    )
    made = module(lowered(CACHE.replace("BODY", body)))
    address = made.a.data_ptr()
    made.step(V)
    assert made.a.tolist() == [3.0, 5.0]
    made.reset_state()
    assert made.a.tolist() == [0.0, 0.0] and made.a.data_ptr() == address
    assert set(made.state_paths) >= {"a", "b", "memory", "cell.cache", "cells.1.count"}
    assert not any(path in made.state_dict() for path in made.state_paths)
    with pytest.raises(Exception, match="no attribute"):
        _ = made.nothing


def test_results_are_the_callers_own() -> None:
    """Neither a weight nor a constant that is kept can be written through what an entry returns."""
    text = """module m
    pub block Root {
        param w: Tensor[2, 2; f32]
        fn row() -> Tensor[2; f32] { return w[0, :] }
        fn table<S: Dim>() -> Tensor[S, S; f32] {
            let made[i, j] = cast<f32>(iota<i64>(S)[i]) * 2.0 + cast<f32>(iota<i64>(S)[j])
            return made
        }
        pub entry weight(x: f32) -> (Tensor[2, 2; f32], Tensor[2; f32], f32) { return (w, row(), x + 1.0) }
        pub entry made<S: Dim>(x: Tensor[S; f32]) -> (Tensor[S, S; f32], Tensor[S; f32]) {
            return (permute(table<S>(), [1, 0]), x)
        }
        pub entry carried<S: Dim>(x: Tensor[S, S; f32]) -> Tensor[S, S; f32] where S > 0 {
            var y = table<S>()
            static for i in 0..S { y = if x[0, 0] > cast<f32>(i) { table<S>() } else { y } }
            return y
        }
    }"""
    x = np.ones((3, 3), np.float32)
    program = lowered(text)
    for made in agree(program, [("weight", [1.0]), ("made", [x[0]]), ("carried", [x])]):
        for entry, inputs in [("weight", [1.0]), ("made", [x[0]]), ("carried", [x])]:
            first = made.run_entry(entry, inputs)
            for result in first if isinstance(first, tuple) else (first,):
                result.add_(100.0)
        agree_again = [("weight", [1.0]), ("made", [np.ones(3, np.float32)]), ("carried", [x])]
        for entry, inputs in agree_again:
            found = made.run_entry(entry, inputs)
            found = found if isinstance(found, tuple) else (found,)
            assert all(float(result.max()) < 50 for result in found)
        source = made.generated_source()
        assert source.count(".clone()") <= 5
