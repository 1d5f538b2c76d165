"""A model made small: what its clauses allow, with all kinds of layers that it has."""

from __future__ import annotations

import pytest

from linnet.check import check_text
from linnet.ir import program_of
from linnet.nest.card import card_directories, find_card
from linnet.nest.parameters import card_bindings, present_in
from linnet.verification.sizes import ELEMENTS, PACKED, reduced, room_of

QUICK = ("smollm2-135m-instruct", "gemma-3-270m", "gpt-oss-20b")
TEXT = """module m
pub block Inner<A: Dim> { param w: Tensor[A; f32] }
pub block M<
    A: Dim, N: Dim, Rows: Dim, Page: Dim = 64, T: Float = bf16, Kv: Float = T, Twice: Dim = 2 * A
>
where A % 8 == 0, Rows % 2 == 0, Page > 0
{
    sub several: [Inner<A>; N / 3]
    sub rest: [Inner<A>; N % 3]
    param table: Tensor[A, Twice; T]
    state seen: Tensor[Rows, 4; Kv]
    entry f() -> i64 { return Page }
}
"""


def test_each_size_by_what_it_is_for() -> None:
    program = program_of(check_text(TEXT))
    own = {"A": 80_000, "N": 11, "Rows": 1000}
    found = reduced(program, own, {})
    assert found["T"] == "f32" and "Kv" not in found and "Twice" not in found
    assert (found["N"], found["Rows"], found["Page"]) == (8, 64, 16)  # 2 of each array
    assert isinstance(found["A"], int) and found["A"] % 8 == 0
    elements = sum(row.count or 0 for row in program.parameters(found) if row.kind != "state")
    assert elements <= ELEMENTS
    assert room_of(program, found) == 64
    kept = reduced(program, own, {"N": 5, "T": "f16", "Page": 128})
    assert (kept["N"], kept["T"], kept["Page"]) == (5, "f16", 128)


def test_a_program_without_sizes_or_a_block() -> None:
    free = program_of(check_text("module m\nentry f(x: f32) -> f32 { return x }"))
    assert reduced(free, {}, {}) == {} and room_of(free, {}) == 64
    some = program_of(check_text(TEXT))
    assert reduced(some, {}, {})["Rows"] == 4  # 3 rows are not even


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in card_directories()],
)
def test_every_card_becomes_small(name: str) -> None:
    card = find_card(name)
    program = card.program()
    found = reduced(program, card.generics, {})
    rows = [row for row in program.parameters(found) if row.kind != "state"]
    weight = sum((row.count or 0) * (1 if row.dtype[0] == "f" else PACKED) for row in rows)
    assert weight <= ELEMENTS
    own = {row.path: row.repeat for row in program.parameters(card.generics)}
    for row in rows:
        lengths = [min(n, 2) for n in own[row.path] if isinstance(n, int)]
        assert all(n >= min(least, 1) for n, least in zip(row.repeat, lengths)), row.path
    if "MaxSeq" in card.generics:
        assert (found["MaxSeq"], found["Batch"], found["PageSize"]) == (64, 3, 16)
    program.lower(found, present=present_in(card_bindings(card)))
