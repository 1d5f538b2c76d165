"""Inputs that are drawn: legal, within their axes, and then outside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import linnet
from linnet.check import check_text
from linnet.core.ir import Program
from linnet.core.lower import lower
from linnet.core.passes import optimize
from linnet.ir import load_program
from linnet.verification.bounded import bounds
from linnet.verification.draw import cases, states, weights
from linnet.verification.legal import legal
from linnet.verification.sizes import choices

FAMILIES = Path(linnet.__file__).parent / "zoo" / "families"
WRITES = """module w
use std.nn.cache::{write_slots, write_tokens}

fn put<P: Dim>(
    cache: Tensor[3, 1, 8, 2; f32], x: Tensor[1, 1, P, 2; f32],
    rows: Tensor[P; i32], at: Tensor[P; i32],
) -> Tensor[3, 1, 8, 2; f32] {
    return write_tokens(cache, x, rows, at)
}

pub entry tokens<P: Dim>(
    cache: Tensor[3, 1, 8, 2; f32], x: Tensor[1, 1, P, 2; f32],
    rows: Tensor[P; i32], page: Tensor[P; i32],
) -> Tensor[3, 1, 8, 2; f32] {
    var written = cache
    for i in 0..2 {
        written = put(written, x, rows, page * 4 + iota<i32>(P) % 4)
    }
    return written
}

pub entry slots<M: Dim>(
    cache: Tensor[3, 1, 8, 2; f32], x: Tensor[M, 1, 2, 2; f32], slots: Tensor[M; i32], on: bool,
) -> Tensor[3, 1, 8, 2; f32]
where M > 0
{
    return if on { write_slots(cache, x, slots, 0) } else { cache }
}
"""


def program(text: str = WRITES) -> Program:
    return optimize(lower(check_text(text)))


def i32(*values: int) -> Any:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("rows", "page", "allowed"),
    [
        ((0, 0, 1), (0, 0, 0), True),  # places 0, 1 and 2 of their rows
        ((0, 1, 2), (1, 1, 1), True),
        ((0, 0, 0), (0, 0, 0), True),
        ((0, 0, 0, 0, 0), (0, 1, 0, 1, 0), False),  # tokens 0 and 4 are both at place 0
        ((0, 1, 0, 1, 2), (0, 1, 0, 1, 0), True),
        ((3, -1, 3, -1, 3), (0, 0, 0, 0, 0), True),  # rows that there are not
        ((0, 0, 0, 0, 0), (2, 0, 0, 0, 2), True),  # places that there are not
    ],
)
def test_two_tokens_at_one_place_are_refused(rows: Any, page: Any, allowed: bool) -> None:
    """The places are worked out through arithmetic, a call and a loop."""
    function, count = program().entries["tokens"], len(rows)
    inputs = np.zeros((3, 1, 8, 2)), np.zeros((1, 1, count, 2)), i32(*rows), i32(*page)
    assert legal(function, inputs, {"P": count}) is allowed


@pytest.mark.parametrize(("slots", "allowed"), [((2, 0), True), ((1, 1), False), ((5, 5), True)])
def test_rows_that_are_not_distinct_are_refused(slots: Any, allowed: bool) -> None:
    function = program().entries["slots"]
    inputs = np.zeros((3, 1, 8, 2)), np.zeros((2, 1, 2, 2)), i32(*slots), np.asarray(True)
    assert legal(function, inputs, {"M": 2}) is allowed


def test_what_is_drawn_is_legal_and_within_its_axes_and_then_outside() -> None:
    for name, function in program().entries.items():
        drawn = cases(function, choices(function, 8), 0)
        assert [case.name for case in drawn][-2:] == ["past the axis", "before the axis"], name
        for case in drawn:
            assert legal(function, case.inputs, case.sizes)
            extents = bounds(function, case.sizes)
            for number, array in enumerate(case.inputs):
                if number not in extents:
                    continue
                path, extent = function.values[number].name, extents[number]
                least, most = int(array.min()), int(array.max())
                if case.name == "past the axis":
                    assert case.past[path] == extent and most == extent
                elif case.name == "before the axis":
                    assert case.past[path] == -1 and least == -1
                else:
                    assert least >= 0 and most < extent and not case.past


def test_the_same_seed_draws_the_same() -> None:
    made = program()
    for seed in (0, 0, 1):
        drawn = [
            [x.tobytes() for case in cases(f, choices(f, 8), seed) for x in case.inputs]
            for f in made.entries.values()
        ]
        if seed == 0:
            first = drawn
    assert drawn != first
    assert first == [
        [x.tobytes() for case in cases(f, choices(f, 8), 0) for x in case.inputs]
        for f in made.entries.values()
    ]


def test_structs_tuples_and_sizes_that_no_input_says() -> None:
    text = """module s
    pub struct Pair<N: Dim> { x: Tensor[N; f32] at: i32 }
    pub entry f<N: Dim, Times: Dim>(p: Pair<N>, both: (i64, bool)) -> Tensor[Times; f32]
    where N > 2, N % 3 == 0, Times > 0
    {
        return for i in 0..Times { yield p.x[p.at] }
    }"""
    function = program(text).entries["f"]
    for case in cases(function, choices(function, 16), 0):
        pair, both = case.arguments(function)
        assert pair.x.shape == (case.sizes["N"],) and case.sizes["N"] % 3 == 0
        assert len(both) == 2 and case.generics(function).keys() == {"N", "Times"}
        assert case.sizes["Times"] <= 3


@pytest.mark.parametrize("name", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_every_entry_of_a_decoder_has_inputs(name: str) -> None:
    """Prompts, pages, slots, segments: those that std's ops allow, of every size that is tried."""
    loaded = load_program(FAMILIES / name)
    small = {"MaxSeq": 32, "PageSize": 8, "Batch": 3, "MaxPositions": 40}
    known = {generic.name for generic in loaded.generics()}
    own = {n: v for n, v in small.items() if n in known}
    made = loaded.lower(loaded.example(own))
    assert {path: x.shape for path, x in states(made, 0).items()}
    assert all(np.isfinite(x.astype(float)).all() for x in weights(made, 0).values())
    for entry, function in made.entries.items():
        drawn = cases(function, choices(function, 32), 0)
        names = [case.name for case in drawn]
        assert names == ["1", "prime", "longest", "past the axis", "before the axis"], entry
        assert all(legal(function, case.inputs, case.sizes) for case in drawn)
        tokens = next(i for i, p in enumerate(function.values) if p.name.startswith("token"))
        vocab = made.generics["Vocab"]
        assert bounds(function, drawn[0].sizes)[tokens] == vocab, entry
    longest = [
        max(c.sizes.values(), default=0)
        for c in cases(made.entries["forward"], choices(made.entries["forward"], 32), 0)
    ]
    assert max(longest) == 32
