"""How large the caches become: decided from sizes, before anything is loaded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.diagnostics import LinnetError
from linnet.serve.memory import Demand, pool_of, shown

DEMAND = Demand(weights=1 << 20, position=1024, page=64)


def test_as_much_as_can_be_used() -> None:
    pool = pool_of(DEMAND, rows=4, max_len=500, wanted=None, free=1 << 30)
    assert pool.positions == (4 * 8 + 1) * 64 and pool.usable == 32
    assert pool.fitting(500) == 4 and pool.fitting(64) == 4
    assert "4 of 256, 4 of 500" in pool.describe() and "2.1 MiB" in pool.describe()


def test_no_more_than_is_free() -> None:
    pool = pool_of(DEMAND, rows=32, max_len=1024, wanted=None, free=5 << 20)
    assert pool.positions * 1024 + (1 << 20) <= 0.9 * (5 << 20)
    assert pool.fitting(1024) == 3


def test_a_stated_pool() -> None:
    assert pool_of(DEMAND, rows=4, max_len=64, wanted=130, free=None).positions == 192
    for wanted, problem in ((60, "too small"), (100_000, "does not fit: .* at most 3")):
        with pytest.raises(LinnetError, match=problem):
            pool_of(DEMAND, rows=4, max_len=64, wanted=wanted, free=5 << 20)


def test_not_even_one_request() -> None:
    with pytest.raises(LinnetError, match="one request of 9000 tokens does not fit"):
        pool_of(DEMAND, rows=4, max_len=9000, wanted=None, free=5 << 20)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 64), st.integers(1, 64), st.integers(2, 9000), st.integers(1 << 20, 1 << 30))
def test_a_pool_always_fits(page: int, rows: int, max_len: int, free: int) -> None:
    demand = Demand(weights=1 << 19, position=512, page=page)
    try:
        pool = pool_of(demand, rows=rows, max_len=max_len, wanted=None, free=free)
    except LinnetError:
        return
    assert pool.positions * 512 + (1 << 19) <= free
    assert 1 <= pool.fitting(max_len) <= rows


def test_sizes_are_written_short() -> None:
    assert [shown(n) for n in (5, 2048, 3 << 30, 5 << 40)] == [
        "5 bytes",
        "2.0 KiB",
        "3.0 GiB",
        "5.0 TiB",
    ]
